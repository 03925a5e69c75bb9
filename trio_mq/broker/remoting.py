"""The remoting face of the broker: frames in, replies out, for every connection.

Sends and pulls come per message and take a short way: typed decode, a plain function, a reply from a template.
All other requests go through the :class:`RequestTable`. All frames of one receive are handled in one go, the store
commits once, and the replies leave together; under sync flush they leave when the disk has them. Where data must
be waited for, the request is put aside for a task of :meth:`RemotingFace.run` and handled again.
Source of the rules: Apache NettyRemotingAbstract, SendMessageProcessor, PullMessageProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Protocol

import msgspec
import trio

from trio_mq.broker.processors.pull import Puller, PullRequest
from trio_mq.broker.processors.send import Sender, SendRequest, Sent
from trio_mq.broker.saver import Saver
from trio_mq.broker.topics import TopicTable
from trio_mq.clock import Clock
from trio_mq.errors import HeaderError, LocalProtocolError, RequestRefused, StoreFull
from trio_mq.net.requests import Peer, Reply, RequestTable, encode_reply
from trio_mq.protocol import command as commands
from trio_mq.protocol import headers
from trio_mq.protocol.codes import FLAG_ONEWAY, VERSION, RequestCode, ResponseCode
from trio_mq.protocol.frames import RawFrame
from trio_mq.protocol.headers import hot
from trio_mq.protocol.headers.pull import PullMessageRequest
from trio_mq.protocol.headers.send import SendMessageReply, SendMessageRequest, SendMessageRequestV2
from trio_mq.store.segments import ColdData
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.remoting")

#: Requests that wait for the disk at the same time; beyond, a request is refused as busy.
COLD_REQUESTS = 1000
#: Reads from the disk for one request: a search by time makes some thirty.
COLD_TRIES = 200
#: Start of a header as the Java client writes it; other clients take the longer way to the same end.
_SENDS_V2 = (b'{"code":310,', b'{"code":320,')
_SEND = b'{"code":10,'
_PULLS = (b'{"code":11,', b'{"code":361,')
_LENGTHS = Struct(">ii")
_JSON_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-:.#@ ")


class Inbound(Peer, Protocol):
    """A connection of a listener, as this face needs it."""

    @property
    def packed_address(self) -> bytes:
        """The peer's address as records hold it."""
        ...


class RemotingFace:
    """Handler of the broker's listeners (:class:`trio_mq.net.serve.Handler`)."""

    def __init__(
        self,
        store: Store,
        sender: Sender,
        puller: Puller,
        table: RequestTable,
        clock: Clock,
        region_id: str,
        trace_on: bool,
        disconnected: Callable[[Peer], None],
        topics: TopicTable,
        saver: Saver,
    ) -> None:
        self._store = store
        self._sender = sender
        self._puller = puller
        self._table = table
        self._clock = clock
        self._disconnected = disconnected
        self._topics = topics
        self._saver = saver
        self._region_id, self._trace_on = region_id, trace_on
        table.passed_on = (ColdData,)
        for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
            assert code not in table.codes, "sends do not go through the table"
        store_host = store.host.packed.hex().upper().encode()
        self._template = (
            b'{"code":0,"extFields":{"MSG_REGION":%s,"TRACE_ON":"%s","msgId":"%s%%016X","queueId":"%%d",'
            b'"queueOffset":"%%d","transactionId":"%%b"},"flag":1,"language":"PYTHON","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (
            msgspec.json.encode(region_id),
            b"true" if trace_on else b"false",
            store_host,
            VERSION,
        )
        self._id_prefix = store_host.decode()
        #: Replies to sends of the receive that is being handled: peer, opaque, frame, waits for the disk.
        self._replies: list[tuple[Inbound, int, bytes, bool]] = []
        self._cold, self._cold_jobs = trio.open_memory_channel[
            tuple[Inbound, RawFrame, ColdData, Callable[[], None] | None]
        ](COLD_REQUESTS)

    # -- the handler -----------------------------------------------------------------------------------------

    def opened(self, peer: Inbound) -> None:
        """A connection was accepted: it counts once it sends something."""

    def disconnected(self, peer: Inbound) -> None:
        """A connection is gone."""
        self._disconnected(peer)

    def received(self, peer: Inbound, frames: list[RawFrame]) -> None:
        """Handle all frames of one receive."""
        now_ms = self._clock.now_ms()
        version = self._topics.version
        for frame in frames:
            self._one(peer, frame, now_ms)
            if peer.closed:
                break
        if self._replies:
            self._finish(topics_changed=version is not self._topics.version)

    def _one(self, peer: Inbound, frame: RawFrame, now_ms: int) -> None:
        header = frame[1]
        if frame[0] == 0:
            try:
                if header.startswith(_SENDS_V2):
                    send = hot.decode_send_v2(header)
                    self._send(peer, send.ext, send.code, send.opaque, send.flag, frame[2], now_ms)
                    return
                if header.startswith(_PULLS):
                    pull = hot.decode_pull(header)
                    self._pull(peer, pull.ext, pull.code, pull.opaque, pull.flag, frame)
                    return
                if header.startswith(_SEND):
                    plain = hot.decode_send(header)
                    self._send(
                        peer, plain.ext, plain.code, plain.opaque, plain.flag, frame[2], now_ms
                    )
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
            peer.close()
            return
        if command.is_response:
            return
        code, opaque, flag = command.code, command.opaque, command.flag
        try:
            if code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
                short = headers.decode(SendMessageRequestV2, command.ext)
                self._send(peer, short, code, opaque, flag, command.body, now_ms)
            elif code == RequestCode.SEND_MESSAGE:
                long = headers.decode(SendMessageRequest, command.ext)
                self._send(peer, long, code, opaque, flag, command.body, now_ms)
            elif code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
                pull = headers.decode(PullMessageRequest, command.ext)
                self._pull(peer, pull, code, opaque, flag, frame)
            else:
                self._table.handle(peer, command, now_ms)
        except HeaderError as error:
            if not flag & FLAG_ONEWAY:
                reply = Reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
                peer.write(encode_reply(opaque, reply))
        except ColdData as cold:
            self._put_aside(peer, frame, opaque, cold)

    # -- sends -----------------------------------------------------------------------------------------------

    def _send(
        self,
        peer: Inbound,
        request: SendRequest,
        code: int,
        opaque: int,
        flag: int,
        body: bytes,
        now_ms: int,
    ) -> None:
        token = (peer, opaque)
        try:
            if request.batch and code != RequestCode.SEND_MESSAGE:
                sent = self._sender.send_batch(request, body, peer.packed_address, now_ms, token)
            else:
                sent = self._sender.send(request, body, peer.packed_address, now_ms, token)
        except RequestRefused as refusal:
            reply = Reply(refusal.code, remark=refusal.remark)
        except StoreFull as full:
            reply = Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(full))
        except LocalProtocolError as error:
            reply = Reply(ResponseCode.MESSAGE_ILLEGAL, remark=str(error))
        except Exception as error:
            log.exception("a send of %s failed", peer.address)
            reply = Reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        else:
            if flag & FLAG_ONEWAY:
                self._replies.append((peer, opaque, b"", False))
            else:
                self._replies.append((peer, opaque, self._sent_frame(sent, opaque), sent.wait))
            return
        if not flag & FLAG_ONEWAY:
            peer.write(encode_reply(opaque, reply))

    def _sent_frame(self, sent: Sent, opaque: int) -> bytes:
        """The reply to a send that succeeded."""
        unique_id = sent.unique_id
        if (
            len(sent.log_offsets) == 1
            and not sent.batch_unique_id
            and _JSON_SAFE.issuperset(unique_id)
        ):
            header = self._template % (
                sent.log_offsets[0],
                sent.queue_id,
                sent.queue_offset,
                unique_id,
                opaque,
            )
            return _LENGTHS.pack(4 + len(header), len(header)) + header
        prefix = self._id_prefix
        reply = SendMessageReply(
            msg_id=",".join([f"{prefix}{offset:016X}" for offset in sent.log_offsets]),
            queue_id=sent.queue_id,
            queue_offset=sent.queue_offset,
            transaction_id=unique_id.decode("utf-8", "replace"),
            batch_uniq_id=sent.batch_unique_id.decode("utf-8", "replace") or None,
            msg_region=self._region_id,
            trace_on=self._trace_on,
        )
        return encode_reply(opaque, Reply(header=reply))

    def _finish(self, *, topics_changed: bool) -> None:
        """Commit, then let the replies go.

        A send that created its topic is answered when the topic is saved and the name servers know it, so that
        whoever reads the answer finds a route.
        """
        store = self._store
        replies, self._replies = self._replies, []
        store.commit()
        failed: set[object] = set()
        if store.failed:
            failed, store.failed = set(store.failed), []
        waiting: list[tuple[Inbound, bytes]] = []
        for peer, opaque, frame, wait in replies:
            if not frame:
                continue
            if failed and (peer, opaque) in failed:
                refused = Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=store.refusal)
                peer.write(encode_reply(opaque, refused))
            elif topics_changed or (wait and store.is_sync):
                waiting.append((peer, frame))
            else:
                peer.write(frame)
        if not waiting:
            return
        release = partial(_release, waiting)
        if topics_changed:
            end = store.log.written
            self._saver.soon(lambda _error: self._when_durable(end, release))
        else:
            self._when_durable(store.log.written, release)

    def _when_durable(self, end: int, release: Callable[[bool], None]) -> None:
        if self._store.is_sync:
            self._store.flusher.wait_durable(end, release)
        else:
            release(True)

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
        if flag & FLAG_ONEWAY:
            return

        def again() -> None:
            if not peer.closed:
                self._pull(peer, request, code, opaque, flag, frame, suspend=False)

        try:
            answer = self._puller.pull(peer, request, code, opaque, again if suspend else None)
        except RequestRefused as refusal:
            answer = encode_reply(opaque, Reply(refusal.code, remark=refusal.remark))
        except ColdData as cold:
            self._put_aside(peer, frame, opaque, cold, again if not suspend else None)
            return
        except Exception as error:
            log.exception("a pull of %s failed", peer.address)
            remark = f"{type(error).__name__}: {error}"
            answer = encode_reply(opaque, Reply(ResponseCode.SYSTEM_ERROR, remark=remark))
        if answer is not None:
            peer.write(answer)

    # -- data that is on the disk only -----------------------------------------------------------------------

    def _put_aside(
        self,
        peer: Inbound,
        frame: RawFrame,
        opaque: int,
        cold: ColdData,
        again: Callable[[], None] | None = None,
    ) -> None:
        try:
            self._cold.send_nowait((peer, frame, cold, again))
        except trio.WouldBlock:
            remark = (
                f"{COLD_REQUESTS} requests wait for the disk; try again, or pull less at a time"
            )
            peer.write(encode_reply(opaque, Reply(ResponseCode.SYSTEM_BUSY, remark=remark)))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fetch data from the disk for requests that need it, then handle them again. Until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            async for peer, frame, cold, again in self._cold_jobs:
                nursery.start_soon(self._warm, peer, frame, cold, again)

    async def _warm(
        self, peer: Inbound, frame: RawFrame, cold: ColdData, again: Callable[[], None] | None
    ) -> None:
        await self._store.parts.disk.run(cold.warm)
        if peer.closed:
            return
        if again is not None:
            again()
        else:
            self.received(peer, [frame])


def _release(waiting: list[tuple[Inbound, bytes]], durable: bool) -> None:
    """Let replies go that waited for the disk; too late means a success with another code."""
    if not durable:
        waiting = [(peer, _with_timeout_code(frame)) for peer, frame in waiting]
    if len({id(peer) for peer, _ in waiting}) == 1:
        waiting[0][0].write(b"".join([frame for _, frame in waiting]))
        return
    for peer, frame in waiting:
        peer.write(frame)


def _with_timeout_code(frame: bytes) -> bytes:
    """A successful send reply, turned into one that says FLUSH_DISK_TIMEOUT: stored, but not known durable."""
    code = b'{"code":%d,' % ResponseCode.FLUSH_DISK_TIMEOUT
    header = frame[8:].replace(b'{"code":0,', code, 1)
    return _LENGTHS.pack(4 + len(header), len(header)) + header
