"""Wires in memory: pairs of streams, which a test delays, cuts, holds and resets.

In: what a test wants to happen to a connection. Out: streams with anyio's names (``send``, ``receive``) and Trio's
(``send_all``, ``receive_some``), so that both sides of a link run on them, under any backend and under a mock clock.
Made by :mod:`.links`.
"""

from __future__ import annotations

from collections import deque

import anyio
import anyio.abc

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

    @property
    def is_broken(self) -> bool:
        """Whether a sender would be told so; across a partition nobody is told that the far end has closed."""
        return self.wire.is_known_reset or (self.unread and not self.wire.is_silent)

    def put(self, data: bytes | memoryview) -> int:
        """Take what there is room for; how many bytes that was."""
        if self.wire.is_cut:
            return len(data)  # gone, and nobody is told
        piece = bytes(data[: max(0, CAPACITY_BYTES - self._held_bytes)])
        if piece:
            self._pieces.append((anyio.current_time() + self.wire.delay_s, piece))
            self._held_bytes += len(piece)
            self.changed.notify()
        return len(piece)

    async def send(self, data: bytes) -> None:
        """Put bytes in, in pieces that fit."""
        rest = memoryview(data)
        await anyio.lowlevel.checkpoint()
        while True:
            if self.is_broken:
                raise anyio.BrokenResourceError
            rest = rest[self.put(rest) :]
            if not rest:
                return
            await self.changed.wait()

    async def receive(self, max_bytes: int) -> bytes:
        """Take bytes out, b"" at the end."""
        await anyio.lowlevel.checkpoint()
        while True:
            if self.unread:
                raise anyio.ClosedResourceError
            if self.wire.is_known_reset:
                raise anyio.BrokenResourceError
            if self._pieces and not self.wire.is_silent:
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
            if self.ended and not self._pieces and not self.wire.is_silent:
                return b""
            await self.changed.wait()


class Wire:
    """Both directions of one connection, and what is wrong with it. `hosts` are that of the client and that of the
    server; `client` is the address that the server sees.
    """

    def __init__(
        self,
        delay_s: float = 0.0,
        hosts: tuple[str, str] = ("", ""),
        client: Host | None = None,
    ) -> None:
        self.delay_s = delay_s
        self.hosts = hosts
        self.client = client
        self.is_cut = False
        self.is_held = False
        self.is_reset = False
        self.directions = Direction(self), Direction(self)

    @property
    def is_silent(self) -> bool:
        """Whether nothing arrives now."""
        return self.is_cut or self.is_held

    @property
    def is_known_reset(self) -> bool:
        """Whether the ends are told of a reset: that does not get through a partition either."""
        return self.is_reset and not self.is_held

    @property
    def is_over(self) -> bool:
        """Whether neither end uses it any more."""
        return self.is_known_reset or all(direction.unread for direction in self.directions)

    def hold(self, held: bool) -> None:
        """Begin or end a partition: bytes wait for its end, as TCP sends them again until they arrive."""
        self.is_held = held
        self._notify()

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

    def send_nowait(self, data: bytes) -> int:
        """See :class:`trio_mq.net.link.NowaitStream`."""
        if self.closed or self._outgoing.ended or self._outgoing.is_broken:
            return 0
        return self._outgoing.put(data)

    @property
    def broken(self) -> bool:
        """Whether the far end is gone, as far as this one can know."""
        return self._outgoing.is_broken

    async def wait_writable(self) -> None:
        """Wait until a send may do more than the last one."""
        await self._outgoing.changed.wait()

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
        self.close()
        await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        """The same without a wait."""
        self.closed = True
        self._outgoing.ended = True
        self._incoming.unread = True
        self._outgoing.changed.notify()
        self._incoming.changed.notify()

    async def send_all(self, data: bytes) -> None:
        """Trio's name of :meth:`send`."""
        await self.send(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Trio's way to receive: b"" at the end."""
        if self.closed:
            raise anyio.ClosedResourceError
        return await self._incoming.receive(max_bytes or 65536)


def memory_pair(
    delay_s: float = 0.0, hosts: tuple[str, str] = ("", ""), client: Host | None = None
) -> tuple[MemoryStream, MemoryStream]:
    """Two connected ends, the server's first; each has the same :attr:`MemoryStream.wire`."""
    wire = Wire(delay_s, hosts, client)
    one, other = wire.directions
    return MemoryStream(wire, one, other), MemoryStream(wire, other, one)
