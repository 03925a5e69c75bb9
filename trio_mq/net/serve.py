"""Listening sockets, and one Trio task for each connection.

In: bytes from clients. Out: whole frames to a :class:`Handler`, and whatever it writes back. A connection's task
waits until its socket is readable and then uses the raw non-blocking socket: one receive, all frames of it to the
handler in one call, which answers with plain function calls, most often with a single send. Nothing is spawned per
frame. A reply that the socket does not take is kept, and a task of the handlers' nursery sends the rest; while it
is larger than a limit nothing more is read from that peer, and what was read is not handled.

Owner of all tasks here is :func:`serve`: listeners and connections have a nursery each, so that a stop first ends
accepting and then the connections.
"""

from __future__ import annotations

import errno
import logging
import resource
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

import attrs
import trio

from trio_mq.errors import AddressInUse, ConfigError
from trio_mq.net.accepting import accept_at
from trio_mq.protocol.frames import FrameReader, RawFrame
from trio_mq.protocol.message import Host

log = logging.getLogger("trio_mq.net.serve")

P = TypeVar("P")
C = TypeVar("C", bound="Served")

#: Bytes taken in one receive. It bounds the work of one wake-up, so that a busy producer cannot starve the others.
RECEIVE_BYTES = 128 * 1024
#: Unsent bytes above which nothing more is read from a peer: a few of the largest pull replies.
BACKLOG_LIMIT_BYTES = 4 * 1024 * 1024
#: Unsent bytes above which the peer is cut off: it asks for data and never takes it.
BACKLOG_MAX_BYTES = 256 * 1024 * 1024
#: A connection without traffic is closed after this time, as the peers do (NettyServerConfig).
IDLE_LIMIT_S = 120.0
#: Idle connections are looked for this many times in that time.
IDLE_SCANS = 12
#: Connections waiting to be accepted.
BACKLOG_CONNECTIONS = 1024
#: Pause when no connection can be accepted: the process ran out of file descriptors, mostly.
ACCEPT_PAUSE_S = 0.1
#: Share of the process's descriptors that is kept for files: the store's pools take five sixteenths.
FILES_SHARE = 3 / 8
#: Errors of one client that went away before it was accepted.
_CLIENT_GONE = (errno.ECONNABORTED, errno.EPROTO)


class Handler(Protocol):
    """What a server does with its connections. All calls are synchronous and must not block."""

    def opened(self, peer: Connection) -> None:
        """A connection was accepted."""
        ...

    def received(self, peer: Connection, frames: list[RawFrame]) -> int | None:
        """Frames arrived, at least one. A handler may stop when :attr:`Connection.stalled` is set.

        It then returns how many it has handled, and gets the others when the peer has taken its replies; None
        stands for all.
        """
        ...

    def disconnected(self, peer: Connection) -> None:
        """The connection is gone; called once, after the last frames. Not called when the server stops: then all
        of them go, and nobody has to be told of each."""
        ...


class Connection:
    """One accepted connection; the handler's side of it is that of :class:`trio_mq.net.requests.Peer`."""

    def __init__(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        self.address, self.local_address = host_of(sock.getpeername()), host_of(sock.getsockname())
        self.closed = False
        #: Whether no more requests should be handled now: closed, or replies wait that the peer does not take.
        self.stalled = False
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
        self._corked_bytes = 0
        self._active = True

    def write(self, data: bytes) -> None:
        """Send whole frames, in order; never waits, does nothing on a closed connection."""
        if self.closed or not data:
            return
        if self._cork is None:
            self._send(data)
            return
        self._cork.append(data)
        self._corked_bytes += len(data)
        if self._corked_bytes + self._backlog_bytes > BACKLOG_LIMIT_BYTES:
            self._uncork()
            self._cork = []

    def _send(self, data: bytes) -> None:
        self._active = True
        rest = memoryview(data)
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
            rest = rest[sent:]
            self._nursery.start_soon(self._drain)
        self._backlog.append(rest)
        self._backlog_bytes += len(rest)
        self.stalled = self._backlog_bytes > BACKLOG_LIMIT_BYTES
        if self._backlog_bytes > BACKLOG_MAX_BYTES:
            log.warning("%s does not take its replies, closing its connection", self.address)
            self.close()

    def _uncork(self) -> None:
        """Send what was collected; from here on, writes go out at once."""
        cork, self._cork, self._corked_bytes = self._cork, None, 0
        if cork and not self.closed:
            self._send(cork[0] if len(cork) == 1 else b"".join(cork))

    def close(self) -> None:
        """Close the connection soon; what the socket does not take by now is lost."""
        self._uncork()
        self.closed = self.stalled = True
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
                return
            self._active = True
            self._backlog_bytes -= sent
            if sent == len(self._backlog[0]):
                self._backlog.popleft()
            else:
                self._backlog[0] = self._backlog[0][sent:]
            if self.stalled and self._backlog_bytes <= BACKLOG_LIMIT_BYTES:
                self.stalled = self.closed
                self._drained.set()
                self._drained = trio.Event()

    async def run(self, handler: Handler) -> None:
        """Read until the peer closes, breaks the format, or :meth:`close` is called."""
        stopping = False
        try:
            handler.opened(self)
            with self._scope:
                await self._read(handler)
        except trio.Cancelled:
            stopping = True
            raise
        finally:
            self.closed = self.stalled = True
            try:
                if not stopping:
                    handler.disconnected(self)
            finally:
                trio.lowlevel.notify_closing(self._sock)
                self._sock.close()

    async def _read(self, handler: Handler) -> None:
        reader = FrameReader()
        sock = self._sock
        first = True
        while not self.closed:
            await trio.lowlevel.wait_readable(sock)
            try:
                data = sock.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                log.debug("connection of %s broke: %s", self.address, error)
                return
            if not data:
                return
            self._active = True
            frames = reader.feed(data)
            while frames:
                handled = self._handle(handler, frames)
                while self.stalled and not self.closed:
                    await self._drained.wait()
                if handled is None or self.closed:
                    break
                frames = frames[handled:]
            if reader.failure is not None:
                why = _speaks(data) if first else ""
                log.warning("closing connection of %s: %s%s", self.address, reader.failure, why)
                return
            first = False

    def _handle(self, handler: Handler, frames: list[RawFrame]) -> int | None:
        """Let the handler see the frames, and send all that it answers at once."""
        self._cork = []
        try:
            return handler.received(self, frames)
        finally:
            self._uncork()


def _speaks(data: bytes) -> str:
    """What a peer seems to speak instead of the remoting protocol, by its first bytes."""
    if data.startswith(b"\x16\x03"):
        return "; it began with a TLS hello, but this port speaks plain remoting: turn TLS off in the client"
    if data.startswith((b"GET ", b"HEAD ", b"POST ", b"PUT ", b"OPTIONS ", b"PRI * HTTP/2")):
        return "; it speaks HTTP, but this port is for RocketMQ's remoting clients"
    return ""


def host_of(address: tuple[str, int] | tuple[str, int, int, int]) -> Host:
    """A socket's address."""
    ip = address[0]
    # An IPv4 client of a dual-stack listener is an IPv4 client.
    return Host(ip.removeprefix("::ffff:") if "." in ip else ip.partition("%")[0], address[1])


@attrs.frozen
class Listener:
    """A bound listening socket and where it really listens."""

    sock: socket.socket
    address: Host

    def double(self) -> Listener:
        """See :class:`trio_mq.net.network.Listening`."""
        return Listener(self.sock.dup(), self.address)

    def close(self) -> None:
        """See :class:`trio_mq.net.network.Listening`."""
        self.sock.close()


def listen(host: str, port: int, *, purpose: str, backlog: int = BACKLOG_CONNECTIONS) -> Listener:
    """Bind and listen; port 0 takes a free one. `purpose` and the way out are in the error's text."""
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{purpose}: cannot resolve the listening host {host!r}: {error}"
        ) from error
    # A name that has addresses of both kinds means the IPv4 one, as clients of old expect.
    family, kind, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    try:
        sock = socket.socket(family, kind)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # "::" means all addresses of the machine, whatever the system's default is.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(address)
            sock.listen(backlog)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"{purpose}: {at} is in use by another process; "
                f"stop it, or choose another port (0 takes a free one)"
            ) from error
        raise ConfigError(f"{purpose}: cannot listen on {at}: {error.strerror}") from error
    sock.setblocking(False)
    return Listener(sock, host_of(sock.getsockname()))


async def serve(
    listeners: Sequence[Listener],
    handler: Handler,
    *,
    idle_limit_s: float = IDLE_LIMIT_S,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept and serve until cancelled. The sockets of `listeners` are closed at the end."""

    def close(listener: Listener) -> None:
        trio.lowlevel.notify_closing(listener.sock)
        listener.close()

    await serve_ports(
        listeners, handler, _accept, close, idle_limit_s=idle_limit_s, task_status=task_status
    )


async def serve_ports(
    ports: Sequence[P],
    handler: Handler,
    accept: Callable[[P, Handler, trio.Nursery, set[C]], Awaitable[None]],
    close: Callable[[P], None],
    *,
    idle_limit_s: float,
    task_status: trio.TaskStatus[None],
) -> None:
    """Serve a handler at some ports, of sockets or in memory.

    `accept` takes the connections of one port, for ever, and lets each live in the nursery and in the set that it
    gets. The order is that of :func:`.accepting.accept_at`; connections that fall silent are closed.
    """
    live: set[C] = set()

    async def accept_one(port: P, connections: trio.Nursery) -> None:
        await accept(port, handler, connections, live)

    idle = partial(close_idle, live, idle_limit_s)
    await accept_at(ports, accept_one, close, beside=[idle], task_status=task_status)


async def _accept(
    listener: Listener, handler: Handler, nursery: trio.Nursery, live: set[Connection]
) -> None:
    sock = listener.sock
    refusing = False
    while True:
        await trio.lowlevel.wait_readable(sock)
        try:
            accepted = _accepted(sock)
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno in _CLIENT_GONE:
                continue
            if not refusing:
                log.error(
                    "cannot accept connections: %s; those that are open go on", error.strerror
                )
            refusing = True
            await trio.sleep(ACCEPT_PAUSE_S)
            continue
        if refusing:
            log.warning("connections are accepted again")
            refusing = False
        accepted.setblocking(False)
        with suppress(OSError):  # closed by the peer already: its task finds out
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nursery.start_soon(_serve_one, accepted, handler, nursery, live)


def _accepted(sock: socket.socket) -> socket.socket:
    """The next connection. Too many of them must not take the descriptors that the store needs for its files."""
    accepted, _ = sock.accept()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The lowest free number is taken, so a high one says how many are in use.
    used = accepted.fileno()
    if soft != resource.RLIM_INFINITY and used >= soft - soft * FILES_SHARE:
        accepted.close()
        raise OSError(
            errno.EMFILE,
            f"of {soft} file descriptors {used} are in use, and the others are kept for files; "
            f"raise the limit (ulimit -n, LimitNOFILE)",
        )
    return accepted


async def _serve_one(
    sock: socket.socket, handler: Handler, nursery: trio.Nursery, live: set[Connection]
) -> None:
    try:
        connection = Connection(sock, nursery)
    except OSError:
        sock.close()
        return
    await serve_connection(connection, handler, live)


async def serve_connection(connection: C, handler: Handler, live: set[C]) -> None:
    """Run one connection to its end. A fault of ours on it must not take the others down with it."""
    live.add(connection)
    try:
        await connection.run(handler)
    except Exception:
        log.exception("connection of %s ended by an internal error", connection.address)
    finally:
        live.discard(connection)


class Served(Protocol):
    """A connection that was accepted, and may fall silent."""

    @property
    def address(self) -> Host:
        """Where the peer connected from."""
        ...

    def run(self, handler: Handler) -> Awaitable[None]:
        """Read until the peer closes, breaks the format, or :meth:`close` is called."""
        ...

    def idle(self) -> bool:
        """Whether nothing was read or written since the last call of this."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


async def close_idle(live: AbstractSet[Served], limit_s: float) -> None:
    """Close connections that were idle for at least `limit_s`, until cancelled."""
    scans: dict[Served, int] = {}
    while True:
        await trio.sleep(limit_s / IDLE_SCANS)
        for connection in list(live):
            if not connection.idle():
                scans.pop(connection, None)
                continue
            scans[connection] = scans.get(connection, 0) + 1
            if scans[connection] >= IDLE_SCANS:
                log.debug("closing idle connection of %s", connection.address)
                connection.close()
        for gone in scans.keys() - live:
            del scans[gone]
