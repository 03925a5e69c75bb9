"""A broker on a bench with slaves that acknowledge, or are late, when a test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs

from tests.broker.support import BROKER, STORE, Bench, FakePeer, props, serving
from trio_mq.config import BrokerSettings, FlushDiskType, StoreSettings
from trio_mq.config.ha import BrokerRole, HASettings
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.message import Host

SYNC_FLUSH = attrs.evolve(STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
#: Each put waits for one slave.
TWO = HASettings(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
#: What answers say.
OK, LATE, REFUSED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SYSTEM_ERROR,
)
#: Properties of a message that waits for nothing.
NO_WAIT = props(WAIT="false")


def codes(peer: FakePeer) -> list[int]:
    """Codes of what was written since the last look."""
    return [reply.code for reply in peer.take()]


@attrs.define
class FakeSlave:
    """A slave as the broker sees it."""

    address: Host = attrs.field(factory=lambda: Host("10.1.0.2", 40_000))
    ack_offset: int = -1
    ahead: bool = False


@attrs.define
class FakeReplicas:
    """Stands for :class:`trio_mq.ha.primary.Primary`. `waits` has end, needed and callback of each wait."""

    slaves: list[FakeSlave] = attrs.field(factory=lambda: [FakeSlave()])
    in_sync_count: int = 2
    waits: list[tuple[int, int, Callable[[bool], None]]] = attrs.field(factory=list)

    def wait_for(self, end: int, needed: int, done: Callable[[bool], None]) -> None:
        if 1 + sum(slave.ack_offset >= end for slave in self.slaves) >= needed:
            done(True)
        else:
            self.waits.append((end, needed, done))

    def finish(self, in_time: bool) -> int:
        """Tell everybody who waits; how many those were."""
        waits, self.waits = self.waits, []
        for end, needed, done in waits:
            if in_time:
                for slave in self.slaves[: needed - 1]:
                    slave.ack_offset = max(slave.ack_offset, end)
            done(in_time)
        return len(waits)


@asynccontextmanager
async def replicated(
    ha: HASettings = TWO,
    *,
    replicas: FakeReplicas | None = None,
    store: StoreSettings = STORE,
    broker: BrokerSettings = BROKER,
) -> AsyncIterator[tuple[Bench, FakeReplicas]]:
    """A broker with its slaves."""
    slaves = FakeReplicas() if replicas is None else replicas
    async with serving(ha=ha, primary=slaves, store=store, broker=broker) as bench:
        bench.create()
        yield bench, slaves
