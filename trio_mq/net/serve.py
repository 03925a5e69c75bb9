"""Listening sockets, and one Trio task for each connection.

In: bytes from clients. Out: whole frames to a :class:`Handler`, and whatever it writes back. A connection's task
waits until its socket is readable and then uses the raw non-blocking socket: one receive, all frames of it to the
handler in one call, which answers with plain function calls, most often with a single send. Nothing is spawned per
frame. A reply that the socket does not take is kept, and a task of the handlers' nursery sends the rest; while it
is larger than a limit nothing more is read from that peer.

Owner of all tasks here is :func:`serve`: listeners and connections have a nursery each, so that a stop first ends
accepting and then the connections.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import attrs
import trio

from trio_mq.errors import AddressInUse, ConfigError
from trio_mq.protocol.frames import FrameReader, RawFrame
from trio_mq.protocol.message import Host

log = logging.getLogger("trio_mq.net.serve")

#: Bytes taken in one receive. It bounds the work of one wake-up, so that a busy producer cannot starve the others.
RECEIVE_BYTES = 128 * 1024
#: Unsent bytes above which nothing more is read from a peer: a few of the largest pull replies.
BACKLOG_LIMIT_BYTES = 4 * 1024 * 1024
#: Unsent bytes above which the peer is cut off: it asks for data and never takes it.
BACKLOG_MAX_BYTES = 256 * 1024 * 1024
#: A connection without traffic is closed after this time, as the peers do (NettyServerConfig).
IDLE_LIMIT_S = 120.0
#: How often idle connections are looked for.
IDLE_SCAN_S = 10.0
#: Connections waiting to be accepted.
BACKLOG_CONNECTIONS = 1024
#: Pause after the process ran out of file descriptors.
ACCEPT_PAUSE_S = 0.1


class Handler(Protocol):
    """What a server does with its connections. All calls are synchronous and must not block."""

    def opened(self, peer: Connection) -> None:
        """A connection was accepted."""
        ...

    def received(self, peer: Connection, frames: list[RawFrame]) -> None:
        """Frames arrived, at least one."""
        ...

    def disconnected(self, peer: Connection) -> None:
        """The connection is gone; called once, after the last frames."""
        ...


class Connection:
    """One accepted connection; the handler's side of it is that of :class:`trio_mq.net.requests.Peer`."""

    def __init__(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        self.address, self.local_address = _host(sock.getpeername()), _host(sock.getsockname())
        self.closed = False
        #: The packed address, which is written into every record of this peer.
        self.packed_address = self.address.packed
        self._sock = sock
        self._nursery = nursery
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._drained = trio.Event()
        self._scope = trio.CancelScope()
        #: Replies of the receive that is being handled: they leave with one send.
        self._cork: list[bytes] | None = None
        self._active = True

    def write(self, data: bytes) -> None:
        """Send whole frames, in order; never waits, does nothing on a closed connection."""
        if self.closed:
            return
        if self._cork is not None:
            self._cork.append(data)
            return
        self._active = True
        if not self._backlog:
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close()
                return
            if sent == len(data):
                return
            self._nursery.start_soon(self._drain)
            data = memoryview(data)[sent:]  # type: ignore[assignment]
        self._backlog.append(memoryview(data))
        self._backlog_bytes += len(data)
        if self._backlog_bytes > BACKLOG_MAX_BYTES:
            log.warning("%s does not take its replies, closing its connection", self.address)
            self.close()

    def close(self) -> None:
        """Close the connection soon; what the socket does not take by now is lost."""
        if self._cork:
            cork, self._cork = self._cork, None
            self.write(b"".join(cork))
        self.closed = True
        self._scope.cancel()

    def idle(self) -> bool:
        """Whether nothing was read or written since the last call of this."""
        active, self._active = self._active, False
        return not active

    async def _drain(self) -> None:
        """Send what the socket did not take."""
        while self._backlog and not self.closed:
            try:
                await trio.lowlevel.wait_writable(self._sock)
                sent = self._sock.send(self._backlog[0])
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                self.close()
                break
            self._active = True
            self._backlog_bytes -= sent
            if sent == len(self._backlog[0]):
                self._backlog.popleft()
            else:
                self._backlog[0] = self._backlog[0][sent:]
            if self._backlog_bytes <= BACKLOG_LIMIT_BYTES:
                self._wake_reader()
        self._wake_reader()

    def _wake_reader(self) -> None:
        self._drained.set()
        self._drained = trio.Event()

    def _handle(self, handler: Handler, frames: list[RawFrame]) -> None:
        """Let the handler see the frames, and send all that it answers at once."""
        cork = self._cork = []
        try:
            handler.received(self, frames)
        finally:
            self._cork = None
            if cork:
                self.write(cork[0] if len(cork) == 1 else b"".join(cork))

    async def run(self, handler: Handler) -> None:
        """Read until the peer closes, breaks the format, or :meth:`close` is called."""
        reader = FrameReader()
        sock = self._sock
        try:
            handler.opened(self)
            with self._scope:
                while not self.closed:
                    await trio.lowlevel.wait_readable(sock)
                    try:
                        data = sock.recv(RECEIVE_BYTES)
                    except BlockingIOError:
                        continue
                    if not data:
                        break
                    self._active = True
                    frames = reader.feed(data)
                    if frames:
                        self._handle(handler, frames)
                    if reader.failure is not None:
                        log.warning("closing connection of %s: %s", self.address, reader.failure)
                        break
                    while self._backlog_bytes > BACKLOG_LIMIT_BYTES and not self.closed:
                        await self._drained.wait()
        except OSError as error:
            log.debug("connection of %s broke: %s", self.address, error)
        finally:
            self.closed = True
            handler.disconnected(self)
            trio.lowlevel.notify_closing(sock)
            sock.close()


def _host(address: tuple[str, int] | tuple[str, int, int, int]) -> Host:
    ip = address[0]
    # An IPv4 client of a dual-stack listener is an IPv4 client.
    return Host(ip.removeprefix("::ffff:") if "." in ip else ip.partition("%")[0], address[1])


@attrs.frozen
class Listener:
    """A bound listening socket and where it really listens."""

    sock: socket.socket
    address: Host


def listen(host: str, port: int, *, purpose: str) -> Listener:
    """Bind and listen; port 0 takes a free one. `purpose` and the way out are in the error's text."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        info = socket.getaddrinfo(host, port, family if host else 0, socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"{purpose}: cannot resolve the listening host {host!r}: {error}"
        ) from error
    sock = socket.socket(info[0], socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(info[4])
        sock.listen(BACKLOG_CONNECTIONS)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"{purpose}: {host}:{port} is in use by another process; "
                f"stop it, or choose another port (0 takes a free one)"
            ) from error
        raise ConfigError(f"{purpose}: cannot listen on {host}:{port}: {error.strerror}") from error
    sock.setblocking(False)
    return Listener(sock, _host(sock.getsockname()))


async def serve(
    listeners: Sequence[Listener],
    handler: Handler,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept and serve until cancelled. The sockets of `listeners` are closed at the end."""
    async with trio.open_nursery() as connections:
        live: set[Connection] = set()
        try:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(_accept, listener.sock, handler, connections, live)
                accepting.start_soon(_close_idle, live)
                task_status.started()
        finally:
            for listener in listeners:
                trio.lowlevel.notify_closing(listener.sock)
                listener.sock.close()
            connections.cancel_scope.cancel()


async def _accept(
    sock: socket.socket, handler: Handler, nursery: trio.Nursery, live: set[Connection]
) -> None:
    while True:
        await trio.lowlevel.wait_readable(sock)
        try:
            accepted, _ = sock.accept()
        except BlockingIOError:
            continue
        except OSError as error:
            # Out of descriptors, or the client went away while it waited: neither ends the listener.
            log.warning("cannot accept a connection: %s", error)
            await trio.sleep(ACCEPT_PAUSE_S)
            continue
        accepted.setblocking(False)
        with suppress(OSError):  # closed by the peer already: its task finds out
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nursery.start_soon(_serve_one, accepted, handler, nursery, live)


async def _serve_one(
    sock: socket.socket, handler: Handler, nursery: trio.Nursery, live: set[Connection]
) -> None:
    try:
        connection = Connection(sock, nursery)
    except OSError:
        sock.close()
        return
    live.add(connection)
    try:
        await connection.run(handler)
    except Exception:
        # A fault of ours on one connection must not take the others down with it.
        log.exception("connection of %s ended by an internal error", connection.address)
    finally:
        live.discard(connection)


async def _close_idle(live: set[Connection]) -> None:
    quiet: dict[Connection, float] = {}
    while True:
        await trio.sleep(IDLE_SCAN_S)
        for connection in list(live):
            if not connection.idle():
                quiet.pop(connection, None)
                continue
            quiet[connection] = quiet.get(connection, 0.0) + IDLE_SCAN_S
            if quiet[connection] >= IDLE_LIMIT_S:
                log.debug("closing idle connection of %s", connection.address)
                connection.close()
        for gone in quiet.keys() - live:
            del quiet[gone]
