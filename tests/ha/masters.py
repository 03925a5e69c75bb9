"""The far end of a slave in tests: a log in memory, and masters that do what a test tells them.

In: scripts of bytes. Out: what the slave reported, and when. The masters speak the wire and nothing else of ours.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import attrs
import trio

from trio_mq.config import Address
from trio_mq.config.ha import BrokerRole, HASettings
from trio_mq.ha.copylog import LogsDiffer
from trio_mq.ha.findings import Finding, Verdict
from trio_mq.ha.replica import Replica
from trio_mq.net.streams import BROKEN
from trio_mq.tasks import Watermark
from trio_mq.testing.hosts import MemoryHost
from trio_mq.testing.links import MemoryNetwork

MASTER = Address("master", 10912)
OTHER = Address("other", 10912)
SEGMENT = 1024


class MemoryLog:
    """A log that a slave copies into. `failure` is what the disk says, None when it works."""

    def __init__(self, data: bytes = b"", begin: int = 0, *, is_sync: bool = False) -> None:
        self.data = bytearray(data)
        self.begin = begin
        self.segment_bytes = SEGMENT
        self.failure: OSError | None = None
        self.appends: list[tuple[int, int]] = []
        self.kept = Watermark(self.end)
        self.is_sync = is_sync

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    def append(self, offset: int, data: bytes | memoryview) -> None:
        if self.end and offset != self.end:
            raise LogsDiffer(f"{offset} is not {self.end}")
        if self.failure is not None:
            raise self.failure
        if not self.end:
            self.begin = offset
        self.data += data
        self.appends.append((offset, len(data)))
        if not self.is_sync:
            self.kept.advance(self.end)

    def sync(self) -> None:
        self.kept.advance(self.end)


def piece(offset: int, body: bytes = b"") -> bytes:
    """As a master sends it."""
    return struct.pack(">qi", offset, len(body)) + body


@attrs.define(eq=False)
class Visit:
    """One connection of a slave: what it reported when, and the stream to answer on."""

    stream: object
    began_s: float
    reports: list[int] = attrs.field(factory=list)
    times_s: list[float] = attrs.field(factory=list)
    ended_s: float | None = None
    _rest: bytes = b""
    _changed: trio.Event = attrs.field(factory=trio.Event)

    async def read(self) -> None:
        """Take reports until the slave has gone."""
        try:
            while data := await self.stream.receive_some(4096):
                self._rest += data
                while len(self._rest) >= 8:
                    self.reports.append(struct.unpack(">q", self._rest[:8])[0])
                    self.times_s.append(trio.current_time())
                    self._rest = self._rest[8:]
                self._changed.set()
                self._changed = trio.Event()
        except BROKEN:
            pass
        finally:
            self.ended_s = trio.current_time()

    async def reported(self, count: int = 1) -> int:
        """Wait for so many reports; the last one."""
        while len(self.reports) < count:
            await self._changed.wait()
        return self.reports[-1]

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)


Script = Callable[[Visit], Awaitable[object]]


class ScriptedMaster:
    """Listens where a master would; each connection gets a script, the last one again and again."""

    def __init__(self, network: MemoryNetwork, at: Address = MASTER, *scripts: Script) -> None:
        self.at = at
        self.host = MemoryHost(network, at.host)
        self.scripts = list(scripts) or [stay]
        self.visits: list[Visit] = []

    async def serve(self, *, task_status=trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        port = self.host.listen(self.at.host, self.at.port, purpose="test")
        await self.host.serve_streams([port], self._visited, task_status=task_status)

    async def _visited(self, stream, _peer) -> None:
        visit = Visit(stream, trio.current_time())
        script = self.scripts[min(len(self.visits), len(self.scripts) - 1)]
        self.visits.append(visit)

        async def read() -> None:
            await visit.read()
            nursery.cancel_scope.cancel()  # the slave has gone

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            with suppress(*BROKEN):
                await script(visit)
            nursery.cancel_scope.cancel()

    @property
    def last(self) -> Visit:
        return self.visits[-1]


async def stay(visit: Visit) -> None:
    """Says nothing."""
    await trio.sleep_forever()


async def beat(visit: Visit) -> None:
    """Heartbeats only, as an idle master."""
    offset = await visit.reported()
    while True:
        await visit.send(piece(offset))
        await trio.sleep(5)


def sends(*pieces: bytes, hang_up: bool = False) -> Script:
    """After the first report some bytes, then nothing more, or the end of the connection."""

    async def script(visit: Visit) -> None:
        await visit.reported()
        for data in pieces:
            await visit.send(data)
        if not hang_up:
            await trio.sleep_forever()

    return script


def feeds(log: bytes, batch: int = 100, *, begin: int = 0) -> Script:
    """All of a log from where the slave is, then heartbeats."""

    async def script(visit: Visit) -> None:
        at = max(begin, await visit.reported())
        while at < begin + len(log):
            stop = min(at + batch, begin + len(log), at - at % SEGMENT + SEGMENT)
            await visit.send(piece(at, log[at - begin : stop - begin]))
            at = stop
        while True:
            await trio.sleep(5)
            await visit.send(piece(at))

    return script


def ha_settings(**others) -> HASettings:
    return HASettings(role=BrokerRole.SLAVE, **others)


async def continues() -> Finding:
    return Finding(Verdict.CONTINUES)


async def never() -> bool:
    return False


class Bench:
    """A slave, its log and a network."""

    def __init__(self, log: MemoryLog | None = None, check=continues, answers=never, **settings):
        self.network = MemoryNetwork()
        self.log = log or MemoryLog()
        settings.setdefault("master_address", None)
        self.settings = ha_settings(**settings)
        self.host = MemoryHost(self.network, "slave")
        self.replica = Replica(self.log, self.settings, self.host.open_stream, check, answers)

    def master(self, *scripts: Script, at: Address = MASTER) -> ScriptedMaster:
        return ScriptedMaster(self.network, at, *scripts)

    @asynccontextmanager
    async def running(self, *masters: ScriptedMaster, follow: Address | None = MASTER):
        """The slave runs, and is stopped at the end of the block."""
        async with trio.open_nursery() as nursery:
            for master in masters:
                await nursery.start(master.serve)
            await nursery.start(self.replica.run)
            self.replica.follow(follow)
            yield nursery
            nursery.cancel_scope.cancel()


async def settle(seconds: float = 0.0) -> None:
    """Let the others do what they can, for so long."""
    await trio.sleep(seconds)
    await trio.testing.wait_all_tasks_blocked()
