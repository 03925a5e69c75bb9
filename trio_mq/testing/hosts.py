"""Machines on a network in memory: a handler behind each port, as :mod:`trio_mq.net.serve` has it behind a socket.

In: a :class:`.links.MemoryNetwork` and the address of a machine. Out: :class:`MemoryHost`, a
:class:`trio_mq.net.network.Network` that :mod:`trio_mq.system` runs on, under a mock clock. Called by :mod:`.cluster`
and by the pytest plugin. The rules are those of the real thing: frames of one receive go to the handler together,
replies that are not taken wait, and stop the reading when they are many; a stop ends accepting before connections.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

import anyio
import trio

from trio_mq.config.addresses import Address
from trio_mq.errors import AddressInUse, PeerUnavailable
from trio_mq.net.accepting import accept_at
from trio_mq.net.serve import (
    BACKLOG_LIMIT_BYTES,
    BACKLOG_MAX_BYTES,
    IDLE_LIMIT_S,
    RECEIVE_BYTES,
    Handler,
    serve_connection,
    serve_ports,
)
from trio_mq.net.streams import StreamHandler, contained
from trio_mq.protocol.frames import FrameReader
from trio_mq.protocol.message import Host
from trio_mq.testing.links import MemoryListener, MemoryNetwork, MemoryStream

log = logging.getLogger("trio_mq.testing")

#: Where free ports begin.
FIRST_FREE_PORT = 20_000
_ANY_HOST = ("", "0.0.0.0", "::")


class MemoryPort:
    """A handle of a port that was taken (:class:`trio_mq.net.network.Listening`)."""

    def __init__(self, network: MemoryNetwork, listener: MemoryListener) -> None:
        self._network = network
        self._closed = False
        self.listener = listener
        listener.handles += 1

    @property
    def address(self) -> Host:
        """Where it listens."""
        return Host(self.listener.address.host, self.listener.address.port)

    def double(self) -> MemoryPort:
        """Another handle of it."""
        return MemoryPort(self._network, self.listener)

    def close(self) -> None:
        """Give the handle back, and with the last one the port."""
        if self._closed:
            return
        self._closed = True
        self.listener.handles -= 1
        at = self.listener.address
        if not self.listener.handles and self._network.listener(at) is self.listener:
            self._network.leave(at)


class MemoryConnection:
    """One accepted connection, as handlers see it (:class:`trio_mq.net.serve.Connection`)."""

    def __init__(self, stream: MemoryStream, local: Host, nursery: trio.Nursery) -> None:
        assert stream.wire.client is not None, "connections of a network have a client"
        self.address, self.local_address = stream.wire.client, local
        self.packed_address = self.address.packed
        self.closed = self.stalled = False
        self._stream = stream
        self._nursery = nursery
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._drained = trio.Event()
        self._scope = trio.CancelScope()
        self._active = True

    def write(self, data: bytes) -> None:
        """Send whole frames, in order; never waits, does nothing on a closed connection."""
        if self.closed or not data:
            return
        self._active = True
        if not self._backlog:
            data = data[self._stream.send_nowait(data) :]
            if not data:
                return
            self._nursery.start_soon(self._drain)
        self._backlog.append(data)
        self._backlog_bytes += len(data)
        self.stalled = self._backlog_bytes > BACKLOG_LIMIT_BYTES
        if self._backlog_bytes > BACKLOG_MAX_BYTES:
            log.warning("%s does not take its replies, closing its connection", self.address)
            self.close()

    def close(self) -> None:
        """Close the connection soon."""
        self.closed = self.stalled = True
        self._scope.cancel()

    def idle(self) -> bool:
        """Whether nothing was read or written since the last call of this."""
        active, self._active = self._active, False
        return not active

    async def _drain(self) -> None:
        while self._backlog and not self.closed:
            try:
                await self._stream.send(self._backlog[0])
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self.close()
                return
            self._active = True
            self._backlog_bytes -= len(self._backlog.popleft())
            if self.stalled and self._backlog_bytes <= BACKLOG_LIMIT_BYTES:
                self.stalled = self.closed
                self._drained.set()
                self._drained = trio.Event()

    async def run(self, handler: Handler) -> None:
        """Read until the peer closes, breaks the format, or :meth:`close` is called."""
        stopping = False
        try:
            handler.opened(self)  # type: ignore[arg-type]  # all that handlers use of a connection
            with self._scope:
                await self._read(handler)
        except trio.Cancelled:
            stopping = True
            raise
        finally:
            self.closed = self.stalled = True
            try:
                if not stopping:
                    handler.disconnected(self)  # type: ignore[arg-type]
            finally:
                self._stream.close()

    async def _read(self, handler: Handler) -> None:
        reader = FrameReader()
        while not self.closed:
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return
            if not data:
                return
            self._active = True
            frames = reader.feed(data)
            while frames:
                handled = handler.received(self, frames)  # type: ignore[arg-type]
                while self.stalled and not self.closed:
                    await self._drained.wait()
                if handled is None or self.closed:
                    break
                frames = frames[handled:]
            if reader.failure is not None:
                log.warning("closing connection of %s: %s", self.address, reader.failure)
                return


class MemoryHost:
    """One machine while one process runs on it. After :meth:`kill` nothing of that process gets out any more."""

    def __init__(self, network: MemoryNetwork, host: str) -> None:
        self.host = host
        self._network = network
        self._dead = False

    def listen(self, host: str, port: int, *, purpose: str) -> MemoryPort:
        """See :class:`trio_mq.net.network.Network`; a host that is no address means this machine's."""
        name = self.host if host in _ANY_HOST else host
        while not port:
            free = FIRST_FREE_PORT + self._network.next_number()
            port = 0 if self._network.listener(Address(name, free)) else free
        address = Address(name, port)
        if self._network.listener(address) is not None:
            raise AddressInUse(f"{purpose}: {address} is in use")
        return MemoryPort(self._network, self._network.listen(address))

    async def serve(
        self,
        listeners: Sequence[MemoryPort],
        handler: Handler,
        *,
        idle_limit_s: float = IDLE_LIMIT_S,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See :class:`trio_mq.net.network.Network`."""
        await serve_ports(
            listeners,
            handler,
            _accept,
            MemoryPort.close,
            idle_limit_s=idle_limit_s,
            task_status=task_status,
        )

    async def serve_streams(
        self,
        listeners: Sequence[MemoryPort],
        handle: StreamHandler,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See :class:`trio_mq.net.network.Network`."""

        async def accept(port: MemoryPort, connections: trio.Nursery) -> None:
            await _accept_streams(port, handle, connections)

        await accept_at(listeners, accept, MemoryPort.close, task_status=task_status)

    async def open_stream(self, address: Address, timeout_s: float, /) -> MemoryStream:
        """See :class:`trio_mq.net.network.Network`."""
        return await self.connect(address, timeout_s)

    async def connect(self, address: Address, timeout_s: float = 3.0, /) -> MemoryStream:
        """See :class:`trio_mq.net.network.Network`."""
        if self._dead:
            raise PeerUnavailable(f"{address}: the process at {self.host} was killed")
        return await self._network.connect_from(self.host, address, timeout_s)

    def kill(self) -> None:
        """End the process for its peers, as kill -9 does: connections are reset, attempts refused."""
        self._dead = True
        self._network.kill(self.host)


async def _accept(
    port: MemoryPort, handler: Handler, nursery: trio.Nursery, live: set[MemoryConnection]
) -> None:
    while True:
        connection = MemoryConnection(await port.listener.accept(), port.address, nursery)
        nursery.start_soon(serve_connection, connection, handler, live)


async def _accept_streams(
    port: MemoryPort, handle: StreamHandler, connections: trio.Nursery
) -> None:
    async def one(stream: MemoryStream) -> None:
        assert stream.wire.client is not None, "connections of a network have a client"
        try:
            await contained(handle, stream, stream.wire.client)
        finally:
            stream.close()

    while True:
        connections.start_soon(one, await port.listener.accept())
