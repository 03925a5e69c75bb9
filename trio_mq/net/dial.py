"""Connecting, and one link for each address, made again when it is needed and gone.

In: an :class:`Address`. Out: a connected stream, a :class:`Link`, or :class:`PeerUnavailable` that
says what failed. Called by the registrar, by clients and by replicas. Runs under Trio and asyncio.
The tasks of all links of a pool live in :func:`open_pool`. Source of the rules: Apache
NettyRemotingClient, NettyClientConfig.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import attrs

from trio_mq.config.addresses import Address
from trio_mq.errors import PeerUnavailable
from trio_mq.net.link import CALL_TIMEOUT_S, Link, OnRequest
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.command import Command

#: As the peers' clients: NettyClientConfig.connectTimeoutMillis.
CONNECT_TIMEOUT_S = 3.0

_NEXT_STEP = "check the address, that a RocketMQ peer listens there, and firewalls"

Connect = Callable[[Address, float], Awaitable[anyio.abc.ByteStream]]
#: Told of each new link, before anything is sent over it.
OnLink = Callable[[Link], None]


class TcpStream(anyio.abc.ByteStream):
    """A TCP connection that also takes bytes without waiting, as long as no send is on its way.

    It does that, and reads, by a socket of its own, a duplicate: neither backend can write without
    waiting, and asyncio's way to read takes 15 us more for each message.
    """

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610  (not Django)
        # A request is one small write and the next one waits for its reply: never hold it back.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = raw.dup()
        self._socket.setblocking(False)

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Those of the socket."""
        return self._stream.extra_attributes

    def send_nowait(self, data: bytes) -> int:
        """See :class:`trio_mq.net.link.NowaitStream`."""
        try:
            return self._socket.send(data)
        except OSError:
            return 0

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Receive at least one byte; EndOfStream when the peer has closed."""
        while True:
            if self._socket.fileno() < 0:
                raise anyio.ClosedResourceError
            await anyio.wait_readable(self._socket)
            try:
                data = self._socket.recv(max_bytes)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:
                raise anyio.BrokenResourceError from error
            if not data:
                raise anyio.EndOfStream
            return data

    async def send(self, item: bytes) -> None:
        """Send all of `item`."""
        await self._stream.send(item)

    async def send_eof(self) -> None:
        """Send no more; the other direction stays open."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the connection."""
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()
        await self._stream.aclose()


async def connect(address: Address, timeout_s: float = CONNECT_TIMEOUT_S) -> TcpStream:
    """A TCP connection; names with several addresses are tried with a head start for each."""
    stream = None
    try:
        with anyio.move_on_after(timeout_s):
            stream = await anyio.connect_tcp(address.host, address.port)
    except OSError as error:
        raise PeerUnavailable(
            f"{address}: cannot connect: {_reason(error)}; {_NEXT_STEP}"
        ) from error
    if stream is None:
        raise PeerUnavailable(f"{address}: no answer within {timeout_s:g} s; {_NEXT_STEP}")
    try:
        return TcpStream(stream)
    except OSError as error:
        await anyio.aclose_forcefully(stream)
        raise PeerUnavailable(
            f"{address}: cannot connect: {_reason(error)}; {_NEXT_STEP}"
        ) from error


def _reason(error: OSError) -> str:
    """The text that names the cause: with several attempts it sits in a group below the error."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, OSError):
        error = cause
    # asyncio puts the address into the text in place of the reason; a resolver's error is negative.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


@attrs.define(eq=False)
class _Slot:
    """What is known of one address."""

    lock: anyio.Lock = attrs.field(factory=anyio.Lock)
    link: Link | None = None
    #: Number of attempts to connect so far, and how the last one failed.
    attempts: int = 0
    failure: PeerUnavailable | None = None


class LinkPool:
    """One link for each address, connected on demand. Made by :func:`open_pool`."""

    def __init__(
        self,
        start: Callable[[Link], None],
        *,
        connect: Connect = connect,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        on_request: OnRequest | None = None,
        on_link: OnLink | None = None,
    ) -> None:
        self._start = start
        self._connect = connect
        self._connect_timeout_s = connect_timeout_s
        self._on_request = on_request
        self._on_link = on_link
        self._slots: dict[Address, _Slot] = {}

    async def link(self, address: Address) -> Link:
        """The living link to an address. Callers of the same attempt share its outcome."""
        slot = self._slots.setdefault(address, _Slot())
        if slot.link is not None and slot.link.usable:
            return slot.link
        attempts_seen = slot.attempts
        async with slot.lock:
            if slot.link is not None and slot.link.usable:
                return slot.link
            if slot.failure is not None and slot.attempts > attempts_seen:
                # It failed while this caller waited: one after another, fifty callers of a dead
                # address would wait for fifty time-outs.
                raise PeerUnavailable(str(slot.failure)) from slot.failure
            return await self._dial(address, slot)

    async def _dial(self, address: Address, slot: _Slot) -> Link:
        try:
            stream = await self._connect(address, self._connect_timeout_s)
        except PeerUnavailable as failure:
            slot.attempts += 1
            slot.failure = failure
            raise
        slot.attempts += 1
        slot.failure = None
        slot.link = Link(stream, address, on_request=self._on_request)
        self._start(slot.link)
        if self._on_link is not None:
            self._on_link(slot.link)
        return slot.link

    def living(self) -> list[Link]:
        """All links that are connected now."""
        links = (slot.link for slot in self._slots.values())
        return [link for link in links if link is not None and not link.closed]

    async def call(
        self, address: Address, command: Command, timeout_s: float = CALL_TIMEOUT_S
    ) -> Command:
        """Connect if needed, send a request and wait for its reply; `timeout_s` covers all of it.

        A peer that is about to stop (GO_AWAY) is asked once more over a new connection.
        """
        began_s = anyio.current_time()
        link = await self.link_within(address, timeout_s)
        reply = await link.call(command, _left_s(began_s, timeout_s))
        if reply.code == ResponseCode.GO_AWAY:
            link.retire()
            link = await self.link_within(address, _left_s(began_s, timeout_s))
            reply = await link.call(command, _left_s(began_s, timeout_s))
        return reply

    def living_link(self, address: Address) -> Link | None:
        """The living link to an address, None when one has to be made."""
        slot = self._slots.get(address)
        if slot is None or slot.link is None or not slot.link.usable:
            return None
        return slot.link

    async def link_within(self, address: Address, timeout_s: float) -> Link:
        """The living link to an address, connected in the given time or PeerUnavailable."""
        link = self.living_link(address)
        if link is not None:
            return link
        with anyio.move_on_after(timeout_s):
            return await self.link(address)
        raise PeerUnavailable(f"{address}: no answer within {timeout_s:g} s; {_NEXT_STEP}")

    async def send_oneway(
        self, address: Address, command: Command, timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        """Connect if needed and hand over a request that is never answered."""
        began_s = anyio.current_time()
        link = await self.link_within(address, timeout_s)
        await link.send_oneway(command, _left_s(began_s, timeout_s))

    async def drop(self, address: Address) -> None:
        """Close the link to an address and forget it, say because no route names it any more."""
        slot = self._slots.pop(address, None)
        if slot is not None and slot.link is not None:
            await slot.link.aclose()

    async def aclose(self) -> None:
        """Close all links, at the same time."""
        async with anyio.create_task_group() as closing:
            for slot in self._slots.values():
                if slot.link is not None:
                    closing.start_soon(slot.link.aclose)


def _left_s(began_s: float, timeout_s: float) -> float:
    return max(0.0, timeout_s - (anyio.current_time() - began_s))


@asynccontextmanager
async def open_pool(
    *,
    connect: Connect = connect,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    on_request: OnRequest | None = None,
    on_link: OnLink | None = None,
) -> AsyncIterator[LinkPool]:
    """A pool whose links live as long as the block. An error of the block leaves as itself, not in
    a group.
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:

        def start(link: Link) -> None:
            tasks.start_soon(link.run)

        pool = LinkPool(
            start,
            connect=connect,
            connect_timeout_s=connect_timeout_s,
            on_request=on_request,
            on_link=on_link,
        )
        try:
            yield pool
            await pool.aclose()
        except Exception as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
