"""A cluster whose master waits for slaves: real ones, and scripted ones that report what a test says.

In: settings. Out: :class:`SimulatedCluster` with its slaves in sync, and :class:`ScriptedSlave`, which speaks the wire
of replication and nothing else of ours.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from trio_mq.config import Address
from trio_mq.config.ha import BrokerRole
from trio_mq.ha.primary import Primary
from trio_mq.net.streams import BROKEN
from trio_mq.testing.cluster import SimulatedCluster
from trio_mq.testing.hosts import MemoryHost
from trio_mq.testing.nodes import BrokerNode

HA_PORT = 10912
TOPIC = "T"
#: `slaveTimeout`, and how much later an answer may be.
DEADLINE_S, GRACE_S = 2.5, 0.1


@asynccontextmanager
async def sync_cluster(slaves: int = 1, **ha: Any) -> AsyncIterator[SimulatedCluster]:
    """A master that waits for one slave (`inSyncReplicas=2`) unless `ha` says otherwise, and its slaves, in sync."""
    settings = {"role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2} | ha
    async with SimulatedCluster(ha=settings) as cluster:
        master = cluster.brokers[0]
        for _ in range(slaves):
            await cluster.add_slave(master).start()
        await cluster.create_topic(TOPIC, 4, master)
        await in_sync(master, 1 + slaves)
        yield cluster


async def in_sync(master: BrokerNode, count: int, limit_s: float = 30.0) -> None:
    """Wait until a master has so many in sync, itself included."""
    with trio.fail_after(limit_s):
        while primary(master).in_sync_count < count:  # noqa: ASYNC110 - nobody tells, and the mock clock costs nothing
            await trio.sleep(0.05)


def primary(node: BrokerNode) -> Primary:
    """Who feeds the slaves of a broker."""
    assert node.inside is not None, "it runs"
    return node.inside.replication.primary


def log_end(node: BrokerNode) -> int:
    """How far the log of a broker goes."""
    assert node.inside is not None, "it runs"
    return node.inside.store.log.written


@attrs.define(eq=False)
class ScriptedSlave:
    """One connection to the port for slaves. It reports the end of what it got, as long as `reports` is set."""

    stream: Any
    end: int = 0
    reports: bool = True
    closed: trio.Event = attrs.field(factory=trio.Event)

    async def report(self, offset: int | None = None) -> None:
        """Say to have everything before `offset`; by default what came."""
        await self.stream.send_all(struct.pack(">q", self.end if offset is None else offset))

    async def run(self) -> None:
        """Read until the master ends it."""
        buffer = b""
        try:
            while data := await self.stream.receive_some(1 << 16):
                buffer += data
                while len(buffer) >= 12:
                    offset, size = struct.unpack(">qi", buffer[:12])
                    if len(buffer) < 12 + size:
                        break
                    buffer = buffer[12 + size :]
                    self.end = max(self.end, offset + size)
                if self.reports:
                    await self.report()
        except BROKEN:
            pass
        finally:
            self.closed.set()


@asynccontextmanager
async def scripted(
    cluster: SimulatedCluster,
    host: str = "10.8.0.1",
    *,
    at: int | None = None,
    reports: bool = True,
) -> AsyncIterator[ScriptedSlave]:
    """A scripted slave at `host` that begins with the master's log end, or with `at`."""
    master = cluster.brokers[0]
    machine = MemoryHost(cluster.network, host)
    stream = await machine.open_stream(Address(master.host, HA_PORT), 5.0)
    slave = ScriptedSlave(stream, end=log_end(master) if at is None else at, reports=reports)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slave.run)
        await slave.report()
        await trio.sleep(0.05)
        yield slave
        nursery.cancel_scope.cancel()
