"""A network in memory, whose addresses are listened at and connected to, and what goes wrong with it.

In: what a test wants to happen. Out: connections whose ends are those of :mod:`.wires`, under any backend and under a
mock clock. :func:`serve_stream` gives such a stream to a handler of :mod:`trio_mq.net.serve` in place of a socket;
:mod:`.hosts` runs whole servers. Called by tests of links, and by :mod:`.cluster`.

There are two kinds of silence. :meth:`MemoryNetwork.partition` black-holes one address: what is sent meanwhile is
lost, as with a half-open connection. :meth:`MemoryNetwork.sever` parts hosts from each other, and
:meth:`MemoryNetwork.deafen` does so in one direction: what is sent meanwhile arrives when they are mended, as TCP has
it.
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
from trio_mq.testing.conditions import ANY, Conditions, CutToCome
from trio_mq.testing.wires import (
    CAPACITY_BYTES,
    Changed,
    Ending,
    MemoryStream,
    Wire,
    memory_pair,
)

__all__ = [
    "CAPACITY_BYTES", "CLIENT_HOST", "MemoryListener", "MemoryNetwork", "MemoryPeer", "MemoryStream", "Wire",
    "memory_pair", "serve_stream",
]  # fmt: skip

#: Where clients connect from that say nothing else.
CLIENT_HOST = "10.9.0.1"
#: Where the ports of clients begin, and how many there are.
FIRST_CLIENT_PORT, CLIENT_PORTS = 40_000, 25_000
#: Connections after which those that are over are forgotten.
SWEEP_EVERY = 1000


class MemoryListener:
    """Connections that arrive at one address of a :class:`MemoryNetwork`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.wires: list[Wire] = []
        self.is_cut = False
        #: Handles of the port, of who counts them (:mod:`.hosts`).
        self.handles = 0
        self._arrived: deque[MemoryStream] = deque()
        self._changed = Changed()

    def arrive(self, ours: MemoryStream) -> None:
        """A new connection: the server's end of it."""
        if len(self.wires) % SWEEP_EVERY == SWEEP_EVERY - 1:
            self.wires = [wire for wire in self.wires if not wire.is_over]
        self.wires.append(ours.wire)
        self._arrived.append(ours)
        self._changed.notify()

    async def accept(self) -> MemoryStream:
        """The server's end of the next connection."""
        while not self._arrived:
            await self._changed.wait()
        return self._arrived.popleft()

    def refuse(self) -> None:
        """Nobody accepts any more: connections that wait are reset."""
        for stream in self._arrived:
            stream.wire.reset()
        self._arrived.clear()

    async def serve(self, handle: Callable[[MemoryStream], Coroutine[Any, Any, None]]) -> None:
        """Run `handle` for each connection until cancelled."""
        async with anyio.create_task_group() as connections:
            while True:
                connections.start_soon(handle, await self.accept())


class MemoryNetwork:
    """Addresses that can be connected to. `connect` has the signature of
    :func:`trio_mq.net.dial.connect`. All connections and attempts take `delay_s` more than no time.
    """

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.attempts: list[tuple[float, Address]] = []
        self._listeners: dict[Address, MemoryListener] = {}
        self._wires: list[Wire] = []
        self._numbers = itertools.count()
        self._changed = Changed()
        self._conditions = Conditions()
        self._twins: list[Address] = []

    # -- addresses

    def listen(self, address: Address) -> MemoryListener:
        """Take an address."""
        listener = MemoryListener(address)
        self._listeners[address] = listener
        return listener

    def listener(self, address: Address) -> MemoryListener | None:
        """Who listens at an address."""
        return self._listeners.get(address)

    def next_number(self) -> int:
        """A number that nobody had before on this network."""
        return next(self._numbers)

    def leave(self, address: Address) -> None:
        """Give an address back; connections that were accepted stay."""
        self._listeners.pop(address).refuse()

    def close(self, address: Address) -> None:
        """As if the process there had been killed: its connections are reset, new ones refused."""
        for wire in self._listeners.pop(address).wires:
            wire.reset()

    def kill(self, host: str) -> None:
        """The same for all that a host listens at, and for the connections that it made."""
        for address in [address for address in self._listeners if address.host == host]:
            self.leave(address)
        for wire in self._living():
            if host in wire.hosts:
                wire.reset()

    def wires(self, address: Address) -> list[Wire]:
        """All connections ever made to an address, in order; of many, those in use."""
        return self._listeners[address].wires

    # -- silence

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
        self._changed.notify()

    def sever(self, host: str, other: str | None = None) -> None:
        """Let nothing pass between two hosts, or between one and all others."""
        self._conditions.sever(host, other or ANY)
        self._apply()

    def deafen(self, host: str, other: str | None = None) -> None:
        """Let nothing that `other`, or anybody else, sends arrive at `host`, which is heard all the same.

        Nobody can connect in such a state, since that takes both directions. What `host` sends arrives, but it does not
        hear so: it gets stuck as soon as its send buffer is full.
        """
        self._conditions.deafen(host, other or ANY)
        self._apply()

    def mend(self, host: str | None = None, other: str | None = None) -> None:
        """Take back one :meth:`sever` or :meth:`deafen`, or without arguments all of them."""
        if host is None:
            self._conditions.mend_all()
        else:
            self._conditions.mend(host, other or ANY)
        self._apply()

    def slow(self, host: str, delay_s: float, other: str | None = None) -> None:
        """Let all that passes between two hosts, or between one and all others, take longer; 0 ends that."""
        self._conditions.slow(host, delay_s, other or ANY)
        self._apply()

    def throttle(self, host: str, bytes_per_s: float | None, other: str | None = None) -> None:
        """Let a host take no more than that from each connection with `other`, or with anybody; None ends that."""
        self._conditions.throttle(host, bytes_per_s, other or ANY)
        self._apply()

    def is_severed(self, host: str) -> bool:
        """Whether a host is parted from everybody."""
        return self._conditions.is_severed(host)

    def _apply(self) -> None:
        for wire in self._living():
            wire.delay_s = self._delay_s(*wire.hosts)
            self._conditions.apply(wire)
        self._changed.notify()

    def _living(self) -> list[Wire]:
        self._wires = [wire for wire in self._wires if not wire.is_over]
        return self._wires

    def _delay_s(self, one: str, other: str) -> float:
        return self.delay_s + self._conditions.delay_s(one, other)

    # -- single connections

    def between(self, one: str, other: str, port: int | None = None) -> list[Wire]:
        """The connections between two hosts that are in use, whoever made them; `port` is that of the server."""
        hosts = sorted((one, other))
        return [
            wire
            for wire in self._living()
            if sorted(wire.hosts) == hosts and port in (None, wire.port)
        ]

    def cut_next(
        self,
        sender: str,
        receiver: str,
        count: int,
        *,
        ending: Ending = "reset",
        port: int | None = None,
    ) -> None:
        """Let the next connection between two hosts end after exactly `count` bytes of `sender`."""
        self._conditions.cut_next(CutToCome(sender, receiver, count, ending, port or 0))

    def twin_next(self, address: Address) -> None:
        """Let the next connection to an address be made twice: the server gets all that the client sends on both, and
        what it says on the second one is lost. The second one stays when the client closes, and nobody is told."""
        self._twins.append(address)

    # -- connecting

    async def connect(self, address: Address, timeout_s: float = 3.0) -> MemoryStream:
        """Connect, after the network's delay; PeerUnavailable when refused or black-holed."""
        return await self.connect_from(CLIENT_HOST, address, timeout_s)

    async def connect_from(
        self, host: str, address: Address, timeout_s: float = 3.0
    ) -> MemoryStream:
        """The same from a host."""
        self.attempts.append((anyio.current_time(), address))
        with anyio.move_on_after(timeout_s):
            await anyio.sleep(self._delay_s(host, address.host))
            conditions, there = self._conditions, address.host
            while not (conditions.hears(host, there) and conditions.hears(there, host)):
                await self._changed.wait()
            listener = self._listeners.get(address)
            if listener is None:
                raise PeerUnavailable(f"{address}: connection refused")
            if listener.is_cut:
                await anyio.sleep_forever()
            return self._connected(host, listener)
        raise PeerUnavailable(f"{address}: no answer within {timeout_s:g} s")

    def _connected(self, host: str, listener: MemoryListener) -> MemoryStream:
        theirs = self._joined(host, listener)
        if listener.address in self._twins:
            self._twins.remove(listener.address)
            back, twin = self._joined(host, listener).wire.directions
            theirs.wire.directions[1].mirror, back.is_sink = twin, True
        return theirs

    def _joined(self, host: str, listener: MemoryListener) -> MemoryStream:
        hosts = host, listener.address.host
        client = Host(host, FIRST_CLIENT_PORT + self.next_number() % CLIENT_PORTS)
        ours, theirs = memory_pair(self._delay_s(*hosts), hosts, client, listener.address.port)
        if len(self._wires) % SWEEP_EVERY == SWEEP_EVERY - 1:
            self._living()
        self._wires.append(ours.wire)
        self._conditions.begin(ours.wire)
        listener.arrive(ours)
        return theirs


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
