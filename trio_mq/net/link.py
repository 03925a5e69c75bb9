"""One outbound connection: requests out, replies matched by number, the peer's own requests to a
callback.

In: a byte stream that is connected, commands to send. Out: replies, or :class:`PeerUnavailable`
that names the address and the next step. Written on anyio, so that it runs under Trio and asyncio
alike; parsing is that of :mod:`trio_mq.protocol`. Made by :mod:`trio_mq.net.dial`; the tasks of a
link, one that reads, one that writes and one that watches the time, live in :meth:`Link.run`, whose
caller owns them. Source of the rules: Apache NettyRemotingAbstract.

The link owns all bytes that were handed to it. A caller that gives up only forgets its reply: were
it to write itself, giving up half way through a frame would ruin the connection for the others.
What keeps a request cheap: a single one is written at once where the stream takes it without
waiting (:class:`NowaitStream`), with no switch to another task; many are joined into one write; and
one task watches the time of all calls, so that none needs a cancel scope.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeAlias, runtime_checkable

import anyio
import anyio.abc
import attrs

from trio_mq.config.addresses import Address
from trio_mq.errors import HeaderError, PeerUnavailable
from trio_mq.protocol import command as commands
from trio_mq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader

log = logging.getLogger("trio_mq.net.link")

#: Default time for a call, as the peers' clients use (NettyClientConfig, DefaultMQProducer).
CALL_TIMEOUT_S = 3.0
#: Taken from the stream at once; a large pull reply needs few wake-ups.
RECEIVE_BYTES = 256 * 1024
#: Unsent bytes above which senders wait: two of the largest frames.
OUTBOX_MAX_BYTES = 32 * 1024 * 1024
#: Unsent bytes of replies above which the link is given up: the peer asks and does not read.
REPLIES_MAX_BYTES = 64 * 1024 * 1024
#: How long a close waits for what is not sent yet.
CLOSE_GRACE_S = 1.0
_OPAQUE_MASK = 0x7FFFFFFF

OnRequest = Callable[["Link", Command], Command | None]
#: The frame of a request that gets this number.
Encode: TypeAlias = Callable[[int], bytes]
#: Gets the reply, or why there is none. A plain function that neither waits nor raises.
OnReply: TypeAlias = Callable[[Command | PeerUnavailable], None]


@runtime_checkable
class NowaitStream(Protocol):
    """A stream that can take bytes without waiting."""

    def send_nowait(self, data: bytes) -> int:
        """Take what fits now and say how much that was; 0 also for a broken stream: the next
        ordinary send tells."""
        ...


@attrs.define(eq=False)
class _Pending:
    """A request that waits for its reply."""

    on_reply: OnReply
    code: int
    timeout_s: float
    deadline_s: float


class Link:
    """A connection to a peer at `address`.

    `on_request` gets the requests that the peer sends; it is a plain function and returns the
    reply, or None when there is none or when :meth:`respond` will bring it later. Without it the
    peer is told that the code is not supported.
    """

    def __init__(
        self,
        stream: anyio.abc.ByteStream,
        address: Address,
        *,
        on_request: OnRequest | None = None,
    ) -> None:
        self.address = address
        #: Why the link has ended, None while it lives.
        self.ended: str | None = None
        #: Whether new requests shall take another link (:meth:`retire`).
        self.retired = False
        self._stream = stream
        self._nowait = stream if isinstance(stream, NowaitStream) else None
        self._on_request = on_request
        self._pending: dict[int, _Pending] = {}
        self._next_opaque = 0
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._filled = anyio.Event()
        self._drained = anyio.Event()
        self._over = anyio.Event()
        #: When the watch looks at the calls next, and what wakes it earlier.
        self._watch_at_s = math.inf
        self._sooner = anyio.Event()

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.ended is not None

    @property
    def usable(self) -> bool:
        """Whether new requests should take this link."""
        return self.ended is None and not self.retired

    @property
    def crowded(self) -> bool:
        """Whether so much is unsent that senders have to wait (:meth:`wait_roomy`)."""
        return self._outbox_bytes > OUTBOX_MAX_BYTES and self.ended is None

    async def wait_roomy(self) -> None:
        """Wait while the link is crowded."""
        while self.crowded:
            await self._drained.wait()

    def post(
        self,
        encode: Encode,
        on_reply: OnReply,
        *,
        code: int,
        timeout_s: float = CALL_TIMEOUT_S,
        at_once: bool = True,
        now_s: float | None = None,
    ) -> int:
        """Send a request and return; `on_reply` is called once with what becomes of it, also when
        the link ends or `timeout_s` is over. Returns the number for :meth:`forget`.

        With `at_once` false the request goes out together with those that follow before the next
        switch of tasks. `now_s` is the time that `timeout_s` counts from, where it is not this
        moment. The caller looks at :attr:`crowded` before. Raises PeerUnavailable when the link
        has ended, and what `encode` raises.
        """
        if self.ended is not None:
            raise self._unavailable(f"{self.ended} before {_name(code)} was sent")
        opaque = self._take_opaque()
        self._put(encode(opaque), at_once)
        deadline_s = (anyio.current_time() if now_s is None else now_s) + timeout_s
        self._pending[opaque] = _Pending(on_reply, code, timeout_s, deadline_s)
        if deadline_s < self._watch_at_s:
            self._watch_at_s = deadline_s
            self._sooner.set()
        return opaque

    def forget(self, opaque: int) -> None:
        """Want no reply any more: a late one is dropped."""
        self._pending.pop(opaque, None)
        self._end_if_retired()

    def retire(self) -> None:
        """Take no further requests, and end once those on their way have their answers: the peer
        is about to stop.
        """
        self.retired = True
        self._end_if_retired()

    def _end_if_retired(self) -> None:
        if self.retired and not self._pending and not self._outbox_bytes:
            self._end("the peer is about to stop")

    async def call(self, command: Command, timeout_s: float = CALL_TIMEOUT_S) -> Command:
        """Send a request and wait for its reply, whatever its response code.

        Raises PeerUnavailable when the link ends or the time is over. When cancelled, the request
        may or may not have reached the peer; its late reply is dropped.
        """
        flag = command.flag & ~(FLAG_RESPONSE | FLAG_ONEWAY)

        def encode(opaque: int) -> bytes:
            return commands.encode(_numbered(command, opaque, flag))

        return await self.call_encoded(encode, command.code, timeout_s)

    async def call_encoded(
        self, encode: Encode, code: int, timeout_s: float = CALL_TIMEOUT_S
    ) -> Command:
        """As :meth:`call`, for a request that the caller encodes."""
        if self.crowded:
            timeout_s = await self._room_within(timeout_s, code)
        answers: list[Command | PeerUnavailable] = []
        answered = anyio.Event()

        def on_reply(reply: Command | PeerUnavailable) -> None:
            answers.append(reply)
            answered.set()

        opaque = self.post(encode, on_reply, code=code, timeout_s=timeout_s)
        try:
            await answered.wait()
        finally:
            self.forget(opaque)
        reply = answers[0]
        if isinstance(reply, PeerUnavailable):
            raise reply
        return reply

    async def _room_within(self, timeout_s: float, code: int) -> float:
        """Wait while the link is crowded; what is left of the time."""
        began_s = anyio.current_time()
        with anyio.move_on_after(timeout_s):
            await self.wait_roomy()
            return timeout_s - (anyio.current_time() - began_s)
        raise self._unavailable(f"does not take {_name(code)} within {timeout_s:g} s")

    async def send_oneway(self, command: Command, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Hand over a request that is never answered. Waits only while much is unsent."""
        if self.crowded:
            await self._room_within(timeout_s, command.code)
        if self.ended is not None:
            raise self._unavailable(f"{self.ended} before {_name(command.code)} was sent")
        flag = command.flag & ~FLAG_RESPONSE | FLAG_ONEWAY
        self._put(commands.encode(_numbered(command, self._take_opaque(), flag)), at_once=False)

    def respond(self, request: Command, reply: Command) -> None:
        """Answer a request of the peer; never waits. Dropped if one-way, or if the link ended."""
        if request.is_oneway or self.closed:
            return
        data = commands.encode(attrs.evolve(reply, opaque=request.opaque, flag=FLAG_RESPONSE))
        self._put(data, at_once=True)
        if self._outbox_bytes > REPLIES_MAX_BYTES:
            self._end("it asks and does not read the answers")

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Read and write until a side closes. Raises nothing: calls learn why the link ended."""
        task_status.started()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                tasks.start_soon(self._read)
                tasks.start_soon(self._watch)
                await self._over.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._end("this side closed the connection")
            with anyio.CancelScope(shield=True):  # closing forcefully does not wait for the peer
                await anyio.aclose_forcefully(self._stream)

    async def wait_ended(self) -> None:
        """Wait until the link has ended, whoever ended it."""
        await self._over.wait()

    async def aclose(self) -> None:
        """Send what is waiting, for a moment, then end the link; calls in progress fail."""
        with anyio.move_on_after(CLOSE_GRACE_S):
            while self._outbox_bytes and not self.closed:
                await self._drained.wait()
        self._end("this side closed the connection")

    def _take_opaque(self) -> int:
        self._next_opaque = (self._next_opaque + 1) & _OPAQUE_MASK
        return self._next_opaque

    def _put(self, data: bytes, at_once: bool) -> None:
        """Write, or leave it to the task that does: it then joins all that came."""
        if at_once and self._nowait is not None and not self._outbox_bytes:
            taken = self._nowait.send_nowait(data)
            if taken == len(data):
                return
            data = data[taken:]
        if not self._outbox:
            self._filled.set()
        self._outbox.append(data)
        self._outbox_bytes += len(data)

    async def _write(self) -> None:
        """Send the outbox, all that is in it at once."""
        while True:
            await self._filled.wait()
            self._filled = anyio.Event()
            data = b"".join(self._outbox)
            self._outbox.clear()
            try:
                await self._stream.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                self._end("the peer closed the connection")
                return
            self._outbox_bytes -= len(data)
            self._drained.set()
            self._drained = anyio.Event()

    async def _watch(self) -> None:
        """Tell calls whose time is over, as long as the link lives."""
        while True:
            with anyio.move_on_at(self._watch_at_s):
                await self._sooner.wait()
            self._sooner = anyio.Event()
            now_s = anyio.current_time()
            late = [opaque for opaque, call in self._pending.items() if call.deadline_s <= now_s]
            for opaque in late:
                call = self._pending.pop(opaque)
                what = f"no answer to {_name(call.code)} within {call.timeout_s:g} s"
                call.on_reply(self._unavailable(what))
            self._end_if_retired()
            self._watch_at_s = min(
                (call.deadline_s for call in self._pending.values()), default=math.inf
            )

    async def _read(self) -> None:
        reader = FrameReader()
        try:
            while reader.failure is None:
                for frame in reader.feed(await self._stream.receive(RECEIVE_BYTES)):
                    self._received(commands.decode(frame))
            self._end(f"closed, for it broke the format: {reader.failure}")
        except HeaderError as error:
            self._end(f"closed, for it broke the format: {error}")
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self._end("the peer closed the connection")

    def _received(self, command: Command) -> None:
        if not command.is_response:
            self._requested(command)
            return
        pending = self._pending.pop(command.opaque, None)
        if pending is None:
            log.debug("%s: reply %d came too late, dropped", self.address, command.opaque)
            return
        pending.on_reply(command)
        if self.retired:
            self._end_if_retired()

    def _requested(self, command: Command) -> None:
        if self._on_request is None:
            reply: Command | None = Command(
                code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f"request code {command.code} is not supported on this connection",
            )
        else:
            try:
                reply = self._on_request(self, command)
            except Exception as error:
                log.exception("%s: request %s failed", self.address, _name(command.code))
                reply = Command(
                    code=ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}"
                )
        if reply is not None:
            self.respond(command, reply)

    def _end(self, why: str) -> None:
        if self.ended is not None:
            return
        self.ended = why
        self._over.set()
        self._drained.set()
        calls = list(self._pending.values())
        self._pending.clear()
        for call in calls:
            what = f"{why} before it answered {_name(call.code)}"
            call.on_reply(self._unavailable(what))

    def _unavailable(self, what: str) -> PeerUnavailable:
        return PeerUnavailable(
            f"{self.address}: {what}; "
            f"check that a RocketMQ peer listens there and is not overloaded"
        )


def _numbered(command: Command, opaque: int, flag: int) -> Command:
    return Command(
        command.code, command.ext, command.body, flag, opaque,
        command.language, command.version, command.remark, command.serialize,
    )  # fmt: skip


def _name(code: int) -> str:
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return f"request {code}"


@asynccontextmanager
async def open_link(
    stream: anyio.abc.ByteStream, address: Address, *, on_request: OnRequest | None = None
) -> AsyncIterator[Link]:
    """A link whose tasks live as long as the block. An error of the block leaves as itself, not in
    a group.
    """
    link = Link(stream, address, on_request=on_request)
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        await tasks.start(link.run)
        try:
            yield link
            await link.aclose()
        except Exception as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
