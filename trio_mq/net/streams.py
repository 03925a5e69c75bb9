"""Plain streams of bytes, for a protocol that has no frames of the remoting kind: replication.

In: listeners of :func:`trio_mq.net.serve.listen`, or an address. Out: :class:`RawStream`, the few of Trio's names that
such a protocol needs, so that sockets and wires in memory are the same to it. Called by
:mod:`trio_mq.net.network`; used by :mod:`trio_mq.ha`.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import anyio
import trio

from trio_mq.config.addresses import Address
from trio_mq.net import dial
from trio_mq.net.accepting import accept_at
from trio_mq.net.serve import Listener, host_of
from trio_mq.protocol.message import Host

log = logging.getLogger("trio_mq.net.streams")

BROKEN: Final = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)
"""What a stream raises when it is of no use any more."""


class RawStream(Protocol):
    """A connection. All but :meth:`aclose` raise one of :data:`BROKEN` when it is of no use any more."""

    async def send_all(self, data: bytes) -> None:
        """Send all of it. Cancelling leaves an unknown part of it sent: the stream is of no use then."""
        ...

    async def receive_some(self, max_bytes: int) -> bytes:
        """Some bytes; none at the end."""
        ...

    async def aclose(self) -> None:
        """Close it."""
        ...


#: What serves a stream; the second argument says where it comes from. It ends with the stream.
StreamHandler = Callable[[RawStream, Host], Awaitable[None]]


class DialledStream:
    """A connection that was made with :func:`trio_mq.net.dial.connect`, under Trio's names."""

    def __init__(self, stream: dial.TcpStream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        """See :class:`RawStream`."""
        await self._stream.send(data)

    async def receive_some(self, max_bytes: int) -> bytes:
        """See :class:`RawStream`."""
        try:
            return await self._stream.receive(max_bytes)
        except anyio.EndOfStream:
            return b""

    async def aclose(self) -> None:
        """See :class:`RawStream`."""
        await self._stream.aclose()


async def open_stream(address: Address, timeout_s: float) -> DialledStream:
    """Connect in the given time, or PeerUnavailable."""
    return DialledStream(await dial.connect(address, timeout_s))


async def serve_streams(
    listeners: Sequence[Listener],
    handle: StreamHandler,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept until cancelled: first accepting ends, then the connections. Closes `listeners`."""

    async def one(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                peer = host_of(stream.socket.getpeername())
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:  # it went away while it was accepted
                log.debug("a connection is gone: %s", error)
                return
            await contained(handle, stream, peer)

    doors = [
        trio.SocketListener(trio.socket.from_stdlib_socket(listener.sock)) for listener in listeners
    ]

    async def accept(door: trio.SocketListener, connections: trio.Nursery) -> None:
        await trio.serve_listeners(one, [door], handler_nursery=connections)

    def close(door: trio.SocketListener) -> None:
        door.socket.close()

    await accept_at(doors, accept, close, task_status=task_status)


async def contained(handle: StreamHandler, stream: RawStream, peer: Host) -> None:
    """Serve one stream; what goes wrong with it ends no other."""
    try:
        await handle(stream, peer)
    except BROKEN:
        log.info("the connection of %s broke", peer)
    except Exception:
        log.exception("the connection of %s failed", peer)
