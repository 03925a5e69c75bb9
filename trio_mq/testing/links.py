"""Connections in memory: pairs of streams, and a network that delays, loses and cuts on command.

In: what a test wants to happen to a connection. Out: streams with anyio's names (``send``,
``receive``) and Trio's (``send_all``, ``receive_some``), so that both sides of a link run on them,
under any backend and under a mock clock. :func:`serve_stream` gives such a stream to a handler of
:mod:`trio_mq.net.serve` in place of a socket.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import anyio
import anyio.abc
import attrs

from trio_mq.config.addresses import Address
from trio_mq.errors import PeerUnavailable
from trio_mq.net.requests import Peer
from trio_mq.protocol.frames import FrameReader, RawFrame
from trio_mq.protocol.message import Host

#: What a direction holds before its sender waits: about the socket buffers of a small machine.
CAPACITY_BYTES = 64 * 1024


class Changed:
    """Wakes everybody who waits for a change."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        """Wake all that wait now."""
        self._event.set()
        self._event = anyio.Event()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the next :meth:`notify`, or for the time to pass."""
        with anyio.move_on_after(timeout_s):
            await self._event.wait()


class Direction:
    """One half of a wire: bytes with the time at which they may be read."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.changed = Changed()
        self.ended = False  # the sender will send no more
        self.unread = False  # the receiver is gone
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0

    async def send(self, data: bytes) -> None:
        """Put bytes in, in pieces that fit."""
        rest = memoryview(data)
        await anyio.lowlevel.checkpoint()
        while True:
            if self.wire.is_reset or self.unread:
                raise anyio.BrokenResourceError
            if self.wire.is_cut:
                return  # gone, and nobody is told
            room = CAPACITY_BYTES - self._held_bytes
            if room > 0 or not rest:
                piece = bytes(rest[:room])
                due = anyio.current_time() + self.wire.delay_s
                self._pieces.append((due, piece))
                self._held_bytes += len(piece)
                self.changed.notify()
                rest = rest[room:]
                if not rest:
                    return
            else:
                await self.changed.wait()

    async def receive(self, max_bytes: int) -> bytes:
        """Take bytes out, b"" at the end."""
        await anyio.lowlevel.checkpoint()
        while True:
            if self.wire.is_reset or self.unread:
                raise anyio.BrokenResourceError if self.wire.is_reset else anyio.ClosedResourceError
            if self._pieces and not self.wire.is_cut:
                due, piece = self._pieces[0]
                wait_s = due - anyio.current_time()
                if wait_s > 0:
                    await self.changed.wait(wait_s)
                    continue
                self._pieces.popleft()
                if len(piece) > max_bytes:
                    self._pieces.appendleft((due, piece[max_bytes:]))
                    piece = piece[:max_bytes]
                self._held_bytes -= len(piece)
                self.changed.notify()
                if piece:
                    return piece
                continue
            if self.ended and not self.wire.is_cut:
                return b""
            await self.changed.wait()


class Wire:
    """Both directions of one connection, and what is wrong with it."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.is_cut = False
        self.is_reset = False
        self.directions = Direction(self), Direction(self)

    def cut(self) -> None:
        """Half-open: from now on nothing arrives at either end, and neither is told."""
        self.is_cut = True

    def heal(self) -> None:
        """Let bytes through again; those sent while the wire was cut stay lost."""
        self.is_cut = False
        self._notify()

    def reset(self) -> None:
        """Both ends get a connection reset."""
        self.is_reset = True
        self._notify()

    def _notify(self) -> None:
        for direction in self.directions:
            direction.changed.notify()


class MemoryStream(anyio.abc.ByteStream):
    """One end of a wire."""

    def __init__(self, wire: Wire, outgoing: Direction, incoming: Direction) -> None:
        self.wire = wire
        self.closed = False
        self._outgoing = outgoing
        self._incoming = incoming

    async def send(self, item: bytes) -> None:
        """Send all of `item`; BrokenResourceError when the far end is closed."""
        if self.closed or self._outgoing.ended:
            raise anyio.ClosedResourceError
        await self._outgoing.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Receive at least one byte; EndOfStream when the far end has closed."""
        data = await self.receive_some(max_bytes)
        if not data:
            raise anyio.EndOfStream
        return data

    async def send_eof(self) -> None:
        """Send no more; the other direction stays open."""
        self._outgoing.ended = True
        self._outgoing.changed.notify()
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close both directions."""
        self.closed = True
        self._outgoing.ended = True
        self._incoming.unread = True
        self._outgoing.changed.notify()
        self._incoming.changed.notify()
        await anyio.lowlevel.checkpoint()

    async def send_all(self, data: bytes) -> None:
        """Trio's name of :meth:`send`."""
        await self.send(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Trio's way to receive: b"" at the end."""
        if self.closed:
            raise anyio.ClosedResourceError
        return await self._incoming.receive(max_bytes or 65536)


def memory_pair(delay_s: float = 0.0) -> tuple[MemoryStream, MemoryStream]:
    """Two connected ends; each has the same :attr:`MemoryStream.wire`."""
    wire = Wire(delay_s)
    one, other = wire.directions
    return MemoryStream(wire, one, other), MemoryStream(wire, other, one)


class MemoryListener:
    """Connections that arrive at one address of a :class:`MemoryNetwork`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.wires: list[Wire] = []
        self.is_cut = False
        self.open = True
        self._arrived: deque[MemoryStream] = deque()
        self._changed = Changed()

    def arrive(self, delay_s: float) -> MemoryStream:
        """A new connection: the client's end of it."""
        ours, theirs = memory_pair(delay_s)
        self.wires.append(ours.wire)
        self._arrived.append(ours)
        self._changed.notify()
        return theirs

    async def accept(self) -> MemoryStream:
        """The server's end of the next connection."""
        while not self._arrived:
            await self._changed.wait()
        return self._arrived.popleft()

    async def serve(self, handle: Callable[[MemoryStream], Coroutine[Any, Any, None]]) -> None:
        """Run `handle` for each connection until cancelled."""
        async with anyio.create_task_group() as connections:
            while True:
                connections.start_soon(handle, await self.accept())


class MemoryNetwork:
    """Addresses that can be connected to. `connect` has the signature of
    :func:`trio_mq.net.dial.connect`.
    """

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.attempts: list[tuple[float, Address]] = []
        self._listeners: dict[Address, MemoryListener] = {}

    def listen(self, address: Address) -> MemoryListener:
        """Take an address."""
        listener = MemoryListener(address)
        self._listeners[address] = listener
        return listener

    def close(self, address: Address) -> None:
        """As if the process there had been killed: its connections are reset, new ones refused."""
        for wire in self._listeners.pop(address).wires:
            wire.reset()

    def partition(self, address: Address) -> None:
        """Black-hole an address: bytes vanish, and attempts to connect get no answer."""
        self._listeners[address].is_cut = True
        for wire in self._listeners[address].wires:
            wire.cut()

    def heal(self, address: Address) -> None:
        """End a partition."""
        self._listeners[address].is_cut = False
        for wire in self._listeners[address].wires:
            wire.heal()

    def wires(self, address: Address) -> list[Wire]:
        """All connections ever made to an address, in order."""
        return self._listeners[address].wires

    async def connect(self, address: Address, timeout_s: float = 3.0) -> MemoryStream:
        """Connect, after the network's delay; PeerUnavailable when refused or black-holed."""
        self.attempts.append((anyio.current_time(), address))
        await anyio.sleep(self.delay_s)
        listener = self._listeners.get(address)
        if listener is None:
            raise PeerUnavailable(f"{address}: connection refused")
        if listener.is_cut:
            await anyio.sleep(timeout_s)
            raise PeerUnavailable(f"{address}: no answer within {timeout_s:g} s")
        return listener.arrive(self.delay_s)


class FrameHandler(Protocol):
    """A handler of :mod:`trio_mq.net.serve`, for any peer."""

    def opened(self, peer: Peer) -> None:
        """A connection was accepted."""
        ...

    def received(self, peer: Peer, frames: list[RawFrame]) -> None:
        """Frames arrived."""
        ...

    def disconnected(self, peer: Peer) -> None:
        """The connection is gone."""
        ...


_ports = itertools.count(40000)


@attrs.define(eq=False)
class MemoryPeer:
    """The handler's side of a stream in memory; keeps what was written for a test to look at."""

    address: Host = attrs.field(factory=lambda: Host("10.0.0.9", next(_ports)))
    closed: bool = False
    written: list[bytes] = attrs.field(factory=list)
    changed: Changed = attrs.field(factory=Changed)

    @property
    def stalled(self) -> bool:
        """See :class:`Peer`; whatever is written is taken."""
        return self.closed

    def write(self, data: bytes) -> None:
        """See :class:`Peer`."""
        if not self.closed:
            self.written.append(data)
            self.changed.notify()

    def close(self) -> None:
        """See :class:`Peer`."""
        self.closed = True
        self.changed.notify()


async def serve_stream(stream: MemoryStream, handler: FrameHandler) -> None:
    """Serve one stream as :func:`trio_mq.net.serve.serve` serves a socket."""
    peer = MemoryPeer()
    handler.opened(peer)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_write_out, peer, stream, tasks.cancel_scope)
            await _read_in(peer, stream, handler)
            tasks.cancel_scope.cancel()
    finally:
        peer.closed = True
        handler.disconnected(peer)
        with anyio.CancelScope(shield=True):  # closing memory never waits
            await stream.aclose()


async def _read_in(peer: MemoryPeer, stream: MemoryStream, handler: FrameHandler) -> None:
    reader = FrameReader()
    try:
        while not peer.closed and reader.failure is None:
            frames = reader.feed(await stream.receive())
            if frames:
                handler.received(peer, frames)
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


async def _write_out(peer: MemoryPeer, stream: MemoryStream, scope: anyio.CancelScope) -> None:
    sent = 0
    while not peer.closed:
        while sent < len(peer.written):
            try:
                await stream.send(peer.written[sent])
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                scope.cancel()
                return
            sent += 1
        if not peer.closed:
            await peer.changed.wait()
    scope.cancel()
