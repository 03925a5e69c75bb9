"""The remoting face of the broker: frames in, replies out, for every connection.

Sends and pulls come per message and take a short way: typed decode, a plain function, a reply from a template.
All other requests go through the :class:`RequestTable`. All frames of one receive are handled in one go, the store
commits once, and the replies leave together; with sync flush or sync replication, when the disk or the replicas have
what was sent (:mod:`trio_mq.broker.safety`). Where data must be waited for, the request is put aside
(:mod:`trio_mq.broker.cold`) and handled again. One-way requests are never answered, whatever becomes of them. Source of
the rules: Apache NettyRemotingAbstract, SendMessageProcessor, PullMessageProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from functools import partial
from struct import Struct
from time import perf_counter
from typing import Protocol

import msgspec
import trio

from trio_mq.broker.cold import ColdRequests
from trio_mq.broker.processors.pull import Puller, PullRequest
from trio_mq.broker.processors.send import SendRequest, Sent
from trio_mq.broker.safety import PutStatus, Safety
from trio_mq.broker.saver import Saver
from trio_mq.broker.topics import TopicTable
from trio_mq.clock import Clock
from trio_mq.errors import (
    HeaderError,
    LocalProtocolError,
    RequestRefused,
    StoreError,
    StoreFull,
)
from trio_mq.net.requests import Peer, Reply, RequestTable, encode_reply
from trio_mq.protocol import command as commands
from trio_mq.protocol import headers
from trio_mq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, VERSION, RequestCode, ResponseCode
from trio_mq.protocol.frames import RawFrame
from trio_mq.protocol.headers import hot
from trio_mq.protocol.headers.pull import PullMessageRequest
from trio_mq.protocol.headers.send import SendMessageReply, SendMessageRequest, SendMessageRequestV2
from trio_mq.store.segments import ColdData
from trio_mq.store.store import Store
from trio_mq.store.traffic import TIMED_EVERY

log = logging.getLogger("trio_mq.broker.remoting")

#: Start of a header as the Java client writes it; other clients take the longer way to the same end.
_SENDS_V2 = (b'{"code":310,', b'{"code":320,')
_SEND = b'{"code":10,'
_PULLS = (b'{"code":11,', b'{"code":361,')
_SEND_CODES = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
_PULL_CODES = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
_LENGTHS = Struct(">ii")
_JSON_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-:.#@ ")


class Inbound(Peer, Protocol):
    """A connection of a listener, as this face needs it."""

    @property
    def packed_address(self) -> bytes:
        """The peer's address as records hold it."""
        ...


class Sends(Protocol):
    """What takes sends: :class:`.processors.send.Sender`, or on a slave :class:`.role.NoSends`."""

    failures: int

    def send(
        self, request: SendRequest, body: bytes, born_host: bytes, now_ms: int, token: object, /
    ) -> Sent:
        """Stage a message, or RequestRefused."""
        ...

    def send_batch(
        self, request: SendRequest, body: bytes, born_host: bytes, now_ms: int, token: object, /
    ) -> Sent:
        """Stage a batch, or RequestRefused."""
        ...


class RemotingFace:
    """Handler of the broker's listeners (:class:`trio_mq.net.serve.Handler`)."""

    def __init__(
        self,
        store: Store,
        sender: Sends,
        puller: Puller,
        table: RequestTable,
        clock: Clock,
        region_id: str,
        trace_on: bool,
        disconnected: Callable[[Peer], None],
        topics: TopicTable,
        saver: Saver,
        answered: Callable[[Peer, commands.Command], None],
        safety: Safety | None = None,
    ) -> None:
        self._store = store
        self._safety = safety or Safety(store)
        self._waits = self._safety.waits
        self._sender = sender
        self._puller = puller
        self._table = table
        self._clock = clock
        self._disconnected = disconnected
        #: Hears the answers of clients to what the broker asked them.
        self._answered = answered
        self._topics, self._saver = topics, saver
        self._region_id, self._trace_on = region_id, trace_on
        table.passed_on = (ColdData,)
        for code in (*_SEND_CODES, *_PULL_CODES):
            assert code not in table.codes, "sends and pulls do not go through the table"
        self._cold = ColdRequests(store.parts.disk)
        self._store_host = store.host.packed.hex().upper().encode()
        #: A message id, for the log offset.
        self._id = self._store_host + b"%016X"
        #: Reply to a send, for message id, queue id, queue offset, unique id and opaque.
        self._sent = (
            b'{"code":0,"extFields":{"MSG_REGION":%b,"TRACE_ON":"%b","msgId":"%%b","queueId":"%%d",'
            b'"queueOffset":"%%d","transactionId":"%%b"},"flag":1,"language":"PYTHON","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (
            msgspec.json.encode(region_id).replace(b"%", b"%%"),
            b"true" if trace_on else b"false",
            VERSION,
        )
        #: The same for one message, with its log offset in place of the message id.
        self._sent_one = self._sent.replace(b'"msgId":"%b"', b'"msgId":"%b"' % self._id, 1)
        self._version: object = None
        #: Receives so far, when the one that is timed began (0 for all others), and the topic of its last send.
        self._turn, self._began_s, self._timed_topic = 0, 0.0, ""
        #: Answers to the sends of the receive that is being handled: opaque, frame (empty for a one-way send),
        #: whether it waits to be safe. A send's place in this list is its token in the store.
        self._replies: list[tuple[int, bytes, bool]] = []

    # -- the handler -----------------------------------------------------------------------------------------

    def opened(self, peer: Inbound) -> None:
        """A connection was accepted: it counts once it sends something."""

    def disconnected(self, peer: Inbound) -> None:
        """A connection is gone."""
        self._disconnected(peer)

    def received(self, peer: Inbound, frames: list[RawFrame]) -> int | None:
        """Handle all frames of one receive; how many it were if `peer` has stalled, None for all of them."""
        now_ms = self._clock.now_ms()
        self._version = self._topics.version
        turn = self._turn = (self._turn + 1) % TIMED_EVERY
        if not turn:
            self._began_s = perf_counter()
        number = 0
        try:
            for number, frame in enumerate(frames, 1):  # noqa: B007 - the number is the answer
                self._one(peer, frame, now_ms)
                if peer.stalled:
                    break
        finally:
            self._finish(peer)
            self._table.settle()
            if not turn:
                self._began_s = 0.0
        return number if number < len(frames) else None

    def _one(self, peer: Inbound, frame: RawFrame, now_ms: int) -> None:
        header = frame[1]
        if frame[0] == 0:
            try:
                if header.startswith(_SENDS_V2):
                    send = hot.decode_send_v2(header)
                    self._send(peer, send.ext, send.opaque, send.flag, frame[2], now_ms)
                    return
                if header.startswith(_PULLS):
                    pull = hot.decode_pull(header)
                    self._pull(peer, pull.ext, pull.code, pull.opaque, pull.flag, frame)
                    return
                if header.startswith(_SEND):
                    plain = hot.decode_send(header)
                    self._send(peer, plain.ext, plain.opaque, plain.flag, frame[2], now_ms)
                    return
            except (msgspec.DecodeError, RecursionError):
                pass  # the ordinary way accepts more, and names what is wrong
        self._ordinary(peer, frame, now_ms)

    def _ordinary(self, peer: Inbound, frame: RawFrame, now_ms: int) -> None:
        """A request that has no short way, or did not fit it."""
        try:
            command = commands.decode(frame)
        except HeaderError as error:
            log.warning("closing connection of %s: %s", peer.address, error)
            self._finish(peer)
            peer.close()
            return
        if command.is_response:
            self._finish(peer)  # who asked may put a message, with a commit of its own
            self._answered(peer, command)
            return
        code, opaque, flag = command.code, command.opaque, command.flag
        try:
            if code in _SEND_CODES:
                is_long = code == RequestCode.SEND_MESSAGE
                header_type = SendMessageRequest if is_long else SendMessageRequestV2
                send = headers.decode(header_type, command.ext)
                self._send(peer, send, opaque, flag, command.body, now_ms)
            elif code in _PULL_CODES:
                pull = headers.decode(PullMessageRequest, command.ext)
                self._pull(peer, pull, code, opaque, flag, frame)
            else:
                # Whoever looks at the store, or changes topics, finds what was sent before.
                self._finish(peer)
                self._table.handle(peer, command, now_ms)
        except HeaderError as error:
            if not command.is_oneway:
                reply = Reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
                peer.write(encode_reply(opaque, reply))
        except ColdData as cold:
            again = partial(self.received, peer, [frame])
            self._cold.put_aside(peer, opaque, cold, again, oneway=command.is_oneway)

    # -- sends -----------------------------------------------------------------------------------------------

    def _send(
        self, peer: Inbound, request: SendRequest, opaque: int, flag: int, body: bytes, now_ms: int
    ) -> None:
        if flag & FLAG_RESPONSE:
            return  # whoever answers what we never asked gets no answer
        sender, token = self._sender, len(self._replies)
        try:
            if request.batch:
                sent = sender.send_batch(request, body, peer.packed_address, now_ms, token)
            else:
                sent = sender.send(request, body, peer.packed_address, now_ms, token)
        except RequestRefused as refusal:
            reply = Reply(refusal.code, remark=refusal.remark)
        except StoreFull as full:
            sender.failures += 1
            reply = Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(full))
        except LocalProtocolError as error:
            reply = Reply(ResponseCode.MESSAGE_ILLEGAL, remark=str(error))
        except Exception as error:
            log.exception("a send of %s failed", peer.address)
            reply = Reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        else:
            frame = b"" if flag & FLAG_ONEWAY else self._sent_frame(sent, opaque)
            self._replies.append((opaque, frame, sent.wait))
            if self._began_s:
                self._timed_topic = request.topic
            return
        if not flag & FLAG_ONEWAY:
            peer.write(encode_reply(opaque, reply))

    def _sent_frame(self, sent: Sent, opaque: int) -> bytes:
        """The reply to a send that succeeded."""
        log_offset, queue_id, queue_offset, unique_id, _, log_offsets, batch_unique_id, recall = (
            sent
        )
        # What is neither letter nor digit may need escapes in JSON, and text that is no UTF-8 care.
        plain = unique_id.isalnum() or _JSON_SAFE.issuperset(unique_id)
        if plain and not log_offsets and not recall:
            fields = (log_offset, queue_id, queue_offset, unique_id, opaque)
            header = self._sent_one % fields
            return _LENGTHS.pack(4 + len(header), len(header)) + header
        message_id = b",".join([self._id % offset for offset in log_offsets or (log_offset,)])
        if plain and not batch_unique_id and not recall:
            header = self._sent % (message_id, queue_id, queue_offset, unique_id, opaque)
            return _LENGTHS.pack(4 + len(header), len(header)) + header
        reply = SendMessageReply(
            msg_id=message_id.decode(),
            queue_id=queue_id,
            queue_offset=queue_offset,
            transaction_id=unique_id.decode("utf-8", "replace"),
            batch_uniq_id=batch_unique_id.decode("utf-8", "replace") or None,
            recall_handle=recall.decode() or None,
            msg_region=self._region_id,
            trace_on=self._trace_on,
        )
        return encode_reply(opaque, Reply(header=reply))

    def _finish(self, peer: Inbound) -> None:
        """Commit the sends so far, then let their replies go.

        A send that created its topic is answered when the topic is saved and the name servers know it, so that
        whoever reads the answer finds a route.
        """
        replies = self._replies
        if not replies:
            return
        self._replies = []
        store = self._store
        store.commit()
        if store.failed:
            failed, store.failed = frozenset(store.failed), []
            replies = self._refused(replies, failed)
        # Another sender may have created the topic, and wait for it too.
        topics_changed = self._version is not self._topics.version or self._saver.busy
        if not topics_changed and not self._waits:
            peer.write(b"".join([frame for _, frame, _ in replies]))
            if self._began_s:
                self._took(self._timed_topic, self._began_s)
            return
        now = [frame for _, frame, wait in replies if not wait]
        later, end = [frame for _, frame, wait in replies if frame and wait], store.log.written
        release = partial(self._release, peer, later, end, self._timed_topic, self._began_s)

        def go() -> None:  # those that wait share one waiter
            peer.write(b"".join(now))
            if later:
                self._safety.when_safe(end, release)

        def saved(error: StoreError | None) -> None:
            if error is None:
                go()
            else:  # after a crash the topic may be gone
                remark = f"stored, but its topic could not be saved: {error}"
                _tell(peer, now + later, ResponseCode.FLUSH_DISK_TIMEOUT, remark)

        if topics_changed:
            self._saver.soon(saved)
        else:
            go()

    def _release(
        self,
        peer: Inbound,
        frames: list[bytes],
        end: int,
        topic: str,
        began_s: float,
        status: PutStatus,
    ) -> None:
        """Let replies go that waited to be safe; too late means a success with another code."""
        remark = self._safety.remark(status, end)
        if remark is None:
            peer.write(b"".join(frames))
        else:
            _tell(peer, frames, status.code, remark)
        if began_s:
            self._took(topic, began_s)

    def _took(self, topic: str, began_s: float) -> None:
        """The sends of a receive that is timed are answered; the last one's topic stands for all of them."""
        traffic = self._store.queues.traffic.get(topic)
        if traffic is not None:
            traffic.took(began_s)

    def _refused(
        self, replies: list[tuple[int, bytes, bool]], failed: Container[object]
    ) -> list[tuple[int, bytes, bool]]:
        """The replies of a receive, with a refusal for each send that could not be written."""
        reply = Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=self._store.refusal)
        return [
            (opaque, encode_reply(opaque, reply), False)
            if frame and token in failed
            else (opaque, frame, wait)
            for token, (opaque, frame, wait) in enumerate(replies)
        ]

    # -- pulls -----------------------------------------------------------------------------------------------

    def _pull(
        self,
        peer: Inbound,
        request: PullRequest,
        code: int,
        opaque: int,
        flag: int,
        frame: RawFrame,
        *,
        suspend: bool = True,
    ) -> None:
        """Answer a pull, now or when a message arrives. A one-way pull makes no sense and is dropped."""
        if flag & (FLAG_ONEWAY | FLAG_RESPONSE):
            return

        def again() -> None:
            if not peer.closed:
                self._pull(peer, request, code, opaque, flag, frame, suspend=False)

        try:
            answer = self._puller.pull(
                peer, request, code, opaque, again if suspend else None, self._began_s
            )
        except RequestRefused as refusal:
            answer = encode_reply(opaque, Reply(refusal.code, remark=refusal.remark))
        except ColdData as cold:
            retry = partial(self.received, peer, [frame]) if suspend else again
            self._cold.put_aside(peer, opaque, cold, retry, oneway=False)
            return
        except Exception as error:
            log.exception("a pull of %s failed", peer.address)
            remark = f"{type(error).__name__}: {error}"
            answer = encode_reply(opaque, Reply(ResponseCode.SYSTEM_ERROR, remark=remark))
        if answer is not None:
            peer.write(answer)

    def handle_again(self, peer: Peer, command: commands.Command) -> None:
        """Handle a request of the table that has waited, from another task than that of its connection."""
        if peer.closed:
            return
        try:
            self._table.handle(peer, command, self._clock.now_ms())
            self._table.settle()
        except ColdData as cold:
            again = partial(self.handle_again, peer, command)
            self._cold.put_aside(peer, command.opaque, cold, again, oneway=command.is_oneway)

    # -- data that is on the disk only -----------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fetch data from the disk for requests that need it, then handle them again. Until cancelled."""
        await self._cold.run(task_status=task_status)


def _tell(peer: Inbound, frames: list[bytes], code: int, remark: str) -> None:
    """Let replies to sends go with a code that says: stored, but not as safe as asked for."""
    start = b'{"code":%d,"remark":%b,' % (code, msgspec.json.encode(remark))
    peer.write(b"".join([_with_code(frame, start) for frame in frames if frame]))


def _with_code(frame: bytes, start: bytes) -> bytes:
    """The reply to a send, with another start of its header if it was a success."""
    header = frame[8:].replace(b'{"code":0,', start, 1)
    return _LENGTHS.pack(4 + len(header), len(header)) + header
