"""The near end of a master in tests: a real store in memory, and slaves that say what a test tells them.

A :class:`FakeSlave` speaks the wire and nothing else of ours: it keeps each piece with the time of its
coming, and acknowledges only when it is told to, or at once.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from tests.store.stores import empty_store, send
from trio_mq.config.ha import HASettings
from trio_mq.ha.primary import Primary, SlaveView
from trio_mq.protocol.message import Host
from trio_mq.store.store import Store
from trio_mq.testing.disk import MemoryDisk
from trio_mq.testing.wires import MemoryStream, memory_pair

SEGMENT_BYTES = 4096
BODY_BYTES = 100


@attrs.frozen
class Got:
    """One piece of the log as it came."""

    at_s: float
    offset: int
    body: bytes


class FakeSlave:
    """One connection to the master."""

    def __init__(self, stream: MemoryStream, peer: Host) -> None:
        self.stream = stream
        self.peer = peer
        self.pieces: list[Got] = []
        #: When the master ended the connection.
        self.closed_s: float | None = None
        #: Whether each piece is reported as soon as it is complete.
        self.acknowledges = False
        #: Whether anything is read.
        self.reads = trio.Event()
        self.reads.set()
        self._rest = b""
        self._changed = trio.Event()

    async def report(self, *log_ends: int) -> None:
        await self.stream.send_all(b"".join(struct.pack(">q", end) for end in log_ends))

    @property
    def data(self) -> bytes:
        """All that came, which has to be without a hole."""
        for before, after in zip(self.pieces, self.pieces[1:], strict=False):
            assert after.offset == before.offset + len(before.body)
        return b"".join(piece.body for piece in self.pieces)

    @property
    def end(self) -> int:
        return self.pieces[-1].offset + len(self.pieces[-1].body) if self.pieces else -1

    @property
    def heartbeats(self) -> list[Got]:
        return [piece for piece in self.pieces if not piece.body]

    async def until(self, met: Callable[[], bool]) -> None:
        while not met():
            await self._changed.wait()

    async def run(self) -> None:
        try:
            while True:
                await self.reads.wait()
                data = await self.stream.receive_some(65_536)
                if not data:
                    break
                await self._take(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, Exception) as error:
            if "Resource" not in type(error).__name__:
                raise
        self.closed_s = trio.current_time()
        self._notify()

    async def _take(self, data: bytes) -> None:
        data = self._rest + data
        while len(data) >= 12:
            offset, size = struct.unpack_from(">qi", data)
            if len(data) < 12 + size:
                break
            self.pieces.append(Got(trio.current_time(), offset, data[12 : 12 + size]))
            data = data[12 + size :]
            self._notify()
            if self.acknowledges:
                await self.report(offset + size)
        self._rest = data

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class Master:
    """A store with a primary, and the slaves that a test lets connect."""

    def __init__(self, store: Store, primary: Primary, nursery: trio.Nursery) -> None:
        self.store = store
        self.primary = primary
        self._nursery = nursery
        self._queue = store.queues.obtain("T", 0)
        self._ports = iter(range(40_000, 50_000))

    @property
    def end(self) -> int:
        return self.store.log.written

    def put(self, count: int = 1, body: bytes = b"b" * BODY_BYTES) -> int:
        """Store messages, one commit each; the end of the log then."""
        for _ in range(count):
            send(self.store, self._queue, body)
            self.store.commit()
            self.primary.grown()
        return self.end

    def log_bytes(self, begin: int, end: int) -> bytes:
        """What is in the log's files."""
        data = b""
        while begin + len(data) < end:
            data += self.store.log.read(end - begin - len(data), begin + len(data))
        return data

    async def connect(self, ip: str = "10.0.0.2", *, report: int | None = None) -> FakeSlave:
        """A slave that reads all it gets; it reports only what it is told to."""
        near, far = memory_pair()
        slave = FakeSlave(far, Host(ip, next(self._ports)))
        self._nursery.start_soon(self._serve, near, slave.peer)
        self._nursery.start_soon(slave.run)
        if report is not None:
            await slave.report(report)
        return slave

    async def _serve(self, stream: MemoryStream, peer: Host) -> None:
        try:
            await self.primary.serve(stream, peer)
        finally:
            stream.close()

    def view(self, slave: FakeSlave) -> SlaveView | None:
        return next((one for one in self.primary.slaves if one.address == slave.peer), None)


@asynccontextmanager
async def master(
    *, disk: MemoryDisk | None = None, store: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Master]:
    """A master with an empty log of small files. `settings` are of replication, `store` of the store."""
    made = empty_store(disk or MemoryDisk(), **(store or {}))
    primary = Primary(made, HASettings(**settings))
    async with trio.open_nursery() as nursery:
        await nursery.start(primary.run)
        yield Master(made, primary, nursery)
        nursery.cancel_scope.cancel()
    made.parts.release()
