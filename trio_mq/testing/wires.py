"""Wires in memory: pairs of streams, which a test delays, cuts, holds and resets.

In: what a test wants to happen to a connection, or to one direction of it. Out: streams with anyio's names (``send``,
``receive``) and Trio's (``send_all``, ``receive_some``), so that both sides of a link run on them, under any backend
and under a mock clock. Made by :mod:`.links`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

import anyio
import anyio.abc

from trio_mq.protocol.message import Host

#: What a direction holds before its sender waits: about the socket buffers of a small machine.
CAPACITY_BYTES = 64 * 1024
#: A slow receiver takes what it takes in such a time at once.
SIP_S: Final = 0.1

#: How a connection ends that is cut after some bytes: the receiver sees a reset, or the end of the stream; or nothing
#: comes any more, and nobody is told.
Ending = Literal["reset", "end", "silence"]


class Changed:
    """Wakes everybody who waits for a change; that nobody waits costs nothing."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def notify(self) -> None:
        """Wake all that wait now."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the next :meth:`notify`, or for the time to pass."""
        if self._event is None:
            self._event = anyio.Event()
        event = self._event
        if timeout_s is None:
            await event.wait()
            return
        with anyio.move_on_after(timeout_s):
            await event.wait()


class Direction:
    """One half of a wire: bytes with the time at which they may be read."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.changed = Changed()
        self.ended = False  # the sender will send no more
        self.unread = False  # the receiver is gone
        self.is_held = False  # nothing passes for now
        #: The way back: acknowledgements and resets come over it.
        self.back: Direction
        #: Bytes per second that the receiver takes; None for as many as come.
        self.bytes_per_s: float | None = None
        #: What is sent vanishes: nobody is at the other end.
        self.is_sink = False
        #: Gets a copy of all that is sent.
        self.mirror: Direction | None = None
        self._left: int | None = None
        self._ending: Ending = "reset"
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._unconfirmed_bytes = 0
        self._may_read_at_s = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether nothing arrives now."""
        return self.is_held or self.wire.is_cut

    @property
    def is_known_reset(self) -> bool:
        """Whether the sender is told of a reset: that does not get through a partition either."""
        return self.wire.is_reset and not self.back.is_held

    @property
    def is_broken(self) -> bool:
        """Whether a sender would be told so; across a partition nobody is told that the far end has closed."""
        is_apart = self.wire.is_cut or self.is_held or self.back.is_held
        return self.is_known_reset or (self.unread and not is_apart)

    def stop_after(self, count: int, ending: Ending) -> None:
        """Let `count` more bytes through, from now; then comes the end of that kind. The earlier of two ends counts:
        what was lost after the first one is never followed by anything."""
        if self._left is None or count < self._left:
            self._left, self._ending = count, ending
        self.changed.notify()

    def let_go(self) -> None:
        """The partition is over: what was received meanwhile is acknowledged, too."""
        self._held_bytes -= self._unconfirmed_bytes
        self._unconfirmed_bytes = 0

    def put(self, data: bytes | memoryview) -> int:
        """Take what there is room for; how many bytes that was."""
        if self.wire.is_cut or self.is_sink:
            return len(data)  # gone, and nobody is told
        allowed = data if self._left is None else data[: self._left]
        piece = bytes(allowed[: max(0, CAPACITY_BYTES - self._held_bytes)])
        if piece:
            self._pieces.append((anyio.current_time() + self.wire.delay_s, piece))
            self._held_bytes += len(piece)
            if self.mirror is not None:
                self.mirror.put(piece)
            if self._left is not None:
                self._left -= len(piece)
            self.changed.notify()
        return len(data) if self._left == 0 else len(piece)

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
        if self._pieces or self.ended or self._left == 0:  # there may be no wait, which is one, too
            await anyio.lowlevel.checkpoint()
        while True:
            if self.unread:
                raise anyio.ClosedResourceError
            if self.wire.is_reset and not self.is_held:
                raise anyio.BrokenResourceError
            if self._pieces and not self.is_silent:
                wait_s = max(self._pieces[0][0], self._may_read_at_s) - anyio.current_time()
                if wait_s > 0:
                    await self.changed.wait(wait_s)
                    continue
                return self._take(max_bytes)
            if not self._pieces and not self.is_silent:
                if self.ended or (self._left == 0 and self._ending == "end"):
                    return b""
                if self._left == 0 and self._ending == "reset":
                    self.wire.reset()
                    continue
            await self.changed.wait()

    def _take(self, max_bytes: int) -> bytes:
        """The next bytes, at most so many."""
        due_s, piece = self._pieces.popleft()
        if self.bytes_per_s is not None:
            max_bytes = min(max_bytes, max(1, int(self.bytes_per_s * SIP_S)))
        if len(piece) > max_bytes:
            self._pieces.appendleft((due_s, piece[max_bytes:]))
            piece = piece[:max_bytes]
        if self.bytes_per_s is not None:
            self._may_read_at_s = anyio.current_time() + len(piece) / self.bytes_per_s
        if self.back.is_held:
            self._unconfirmed_bytes += len(piece)  # the sender has to keep them
        else:
            self._held_bytes -= len(piece)
        self.changed.notify()
        return piece


class Wire:
    """Both directions of one connection, and what is wrong with it. `hosts` are that of the client and that of the
    server; `client` is the address that the server sees, `port` the one that it listens at.
    """

    def __init__(
        self,
        delay_s: float = 0.0,
        hosts: tuple[str, str] = ("", ""),
        client: Host | None = None,
        port: int = 0,
    ) -> None:
        self.delay_s = delay_s
        self.hosts = hosts
        self.client = client
        self.port = port
        self.is_cut = False
        self.is_reset = False
        #: From the server to the client, and the other way round.
        self.directions = Direction(self), Direction(self)
        one, other = self.directions
        one.back, other.back = other, one

    def direction(self, sender: str) -> Direction:
        """What `sender`, one of the hosts, sends."""
        return self.directions[0 if sender == self.hosts[1] else 1]

    @property
    def is_over(self) -> bool:
        """Whether neither end uses it any more."""
        return all(one.unread or (self.is_reset and not one.is_held) for one in self.directions)

    def hold(self, held: bool, *directions: Direction) -> None:
        """Begin or end a partition, of some directions or of both: bytes wait for its end, as TCP sends them again
        until they arrive. What gets through in one direction only is not acknowledged, so its sender gets stuck.
        """
        for direction in directions or self.directions:
            direction.is_held = held
        for direction in self.directions:
            if not direction.back.is_held:
                direction.let_go()
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
    delay_s: float = 0.0,
    hosts: tuple[str, str] = ("", ""),
    client: Host | None = None,
    port: int = 0,
) -> tuple[MemoryStream, MemoryStream]:
    """Two connected ends, the server's first; each has the same :attr:`MemoryStream.wire`."""
    wire = Wire(delay_s, hosts, client, port)
    one, other = wire.directions
    return MemoryStream(wire, one, other), MemoryStream(wire, other, one)
