"""One outbound connection: requests out, replies matched by number, the peer's own requests to a
callback.

In: a byte stream that is connected, commands to send. Out: replies, or :class:`PeerUnavailable`
that names the address and the next step. Written on anyio, so that it runs under Trio and asyncio
alike; parsing is that of :mod:`trio_mq.protocol`. Made by :mod:`trio_mq.net.dial`; the two tasks of
a link, one that reads and one that writes, live in :meth:`Link.run`, whose caller owns them. Source
of the rules: Apache NettyRemotingAbstract.

All writing is done by one task. A caller that gives up only forgets its reply: were it to write
itself, giving up half way through a frame would ruin the connection for the others.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

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


@attrs.define(eq=False)
class _Pending:
    """A call that waits for its reply."""

    done: anyio.Event = attrs.field(factory=anyio.Event)
    reply: Command | None = None


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
        self._stream = stream
        self._on_request = on_request
        self._pending: dict[int, _Pending] = {}
        self._next_opaque = 0
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._filled = anyio.Event()
        self._drained = anyio.Event()
        self._over = anyio.Event()

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.ended is not None

    async def call(self, command: Command, timeout_s: float = CALL_TIMEOUT_S) -> Command:
        """Send a request and wait for its reply, whatever its response code.

        Raises PeerUnavailable when the link ends or the time is over. When cancelled, the request
        may or may not have reached the peer; its late reply is dropped.
        """
        opaque = self._take_opaque()
        pending = self._pending[opaque] = _Pending()
        sending = attrs.evolve(
            command, opaque=opaque, flag=command.flag & ~(FLAG_RESPONSE | FLAG_ONEWAY)
        )
        try:
            with anyio.move_on_after(timeout_s):
                await self._send(sending)
                await pending.done.wait()
        finally:
            del self._pending[opaque]
        if pending.reply is not None:
            return pending.reply
        if self.ended is not None:
            raise self._unavailable(f"{self.ended} before it answered {_name(command.code)}")
        raise self._unavailable(f"no answer to {_name(command.code)} within {timeout_s:g} s")

    async def send_oneway(self, command: Command, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Hand over a request that is never answered. Waits only while much is unsent."""
        sending = attrs.evolve(
            command, opaque=self._take_opaque(), flag=command.flag & ~FLAG_RESPONSE | FLAG_ONEWAY
        )
        with anyio.move_on_after(timeout_s):
            await self._send(sending)
            return
        raise self._unavailable(f"does not take {_name(command.code)} within {timeout_s:g} s")

    def respond(self, request: Command, reply: Command) -> None:
        """Answer a request of the peer; never waits. Dropped if one-way, or if the link ended."""
        if request.is_oneway or self.closed:
            return
        data = commands.encode(attrs.evolve(reply, opaque=request.opaque, flag=FLAG_RESPONSE))
        self._put(data)
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

    async def _send(self, command: Command) -> None:
        while self._outbox_bytes > OUTBOX_MAX_BYTES and not self.closed:
            await self._drained.wait()
        if self.ended is not None:
            raise self._unavailable(f"{self.ended} before {_name(command.code)} was sent")
        self._put(commands.encode(command))

    def _put(self, data: bytes) -> None:
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        self._filled.set()

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
        pending = self._pending.get(command.opaque)
        if pending is None:
            log.debug("%s: reply %d came too late, dropped", self.address, command.opaque)
            return
        pending.reply = command
        pending.done.set()

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
        for pending in self._pending.values():
            pending.done.set()

    def _unavailable(self, what: str) -> PeerUnavailable:
        return PeerUnavailable(
            f"{self.address}: {what}; "
            f"check that a RocketMQ peer listens there and is not overloaded"
        )


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
