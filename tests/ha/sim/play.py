"""One run: a master and its slaves, senders, and all that goes wrong meanwhile; then quiet.

In: a :class:`.scenario.Scenario`. Out: nothing, or the error of what is not as it should be. All on a simulated cluster
of whole brokers, on Trio's mock clock.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from tests.ha.sim.scenario import BODY_BYTES, SEGMENT_BYTES, Event, Kind, Scenario
from tests.ha.sim.watch import Master, Slave, Watch, check_reads, disagreement, running
from trio_mq import Message, Producer
from trio_mq.client.messages import SendStatus
from trio_mq.config import BrokerRole
from trio_mq.config.store import FlushDiskType
from trio_mq.errors import ConfigError, StoreFull, TrioMQError
from trio_mq.protocol.message import parse_offset_message_id
from trio_mq.testing.cluster import BrokerNode, SimulatedCluster

TOPIC: Final = "T"
QUEUES: Final = 2
HA_PORT: Final = 10912
#: Time between two starts of a broker whose disk is full.
START_AGAIN_S: Final = 2.0
#: How often everything is looked at, besides each time that a log has grown.
LOOK_S: Final = 0.5
#: Time that both ends have to agree once nothing goes wrong any more: a link that was cut in silence is closed after
#: 20 s, a new one is made after 5 s at most, one that waits for a check is checked every 30 s.
AGREE_LIMIT_S: Final = 90.0
#: Attempts to connect of one slave in ten seconds: one every five, one after a silence, one after each start or news.
WINDOW_S, MOST_ATTEMPTS = 10.0, 5


def settings_of(values: dict[str, Any]) -> dict[str, Any]:
    """Settings of a scenario, which are plain values."""
    found = dict(values)
    for key, kind in (("role", BrokerRole), ("flush_disk_type", FlushDiskType)):
        if key in found:
            found[key] = kind(found[key])
    return found


@attrs.frozen(kw_only=True)
class Outcome:
    """What there was in a run that went well: `following` are the slaves that followed in the end, the others had
    stopped on purpose; `histories` of the master's log begin with a power cut that took something."""

    messages: int
    acked: int
    slaves: int
    following: int
    histories: int


async def play(scenario: Scenario) -> Outcome:
    """Run it. AssertionError, or whatever else broke out."""
    living = trio.lowlevel.current_statistics().tasks_living
    store = {"mapped_file_size_commit_log": SEGMENT_BYTES} | settings_of(scenario.store)
    async with SimulatedCluster(
        brokers=1, store=store, ha=settings_of(scenario.ha), delay_s=scenario.delay_s
    ) as cluster:
        await cluster.create_topic(TOPIC, QUEUES)
        play = Play(cluster, scenario)
        async with play.watching():
            outcome = await play.run()
    # the cluster's tasks are gone; those of the system task nursery of Trio stay
    left = trio.lowlevel.current_statistics().tasks_living
    assert left <= living, f"{left - living} tasks are left"
    return outcome


class Killed(Exception):
    """A process was killed while it started."""


async def started(node: BrokerNode) -> None:
    """Start a machine's process."""
    try:
        await node.start()
    except RuntimeError as error:
        if "task_status" in str(error):  # Trio's own, of a task that ends before it has begun
            raise Killed from error
        raise


class Play:
    """See the module."""

    def __init__(self, cluster: SimulatedCluster, scenario: Scenario) -> None:
        self.cluster = cluster
        self.scenario = scenario
        self.rng = random.Random(scenario.seed + 1)
        master = cluster.brokers[0]
        ha = settings_of(scenario.slave_ha)
        nodes = [cluster.add_slave(master, **ha) for _ in range(scenario.slaves)]
        for node in nodes:
            store = attrs.evolve(node.settings.store, **settings_of(scenario.slave_store))
            node.settings = attrs.evolve(node.settings, store=store)
        self.watch = Watch(
            Master(master),
            [Slave(node) for node in nodes],
            needed=1 if scenario.is_sync else 0,
            may_cut=bool(ha.get("cut_when_ahead")),
        )
        self.nodes = [master, *nodes]
        master.disk.run_delay_s = scenario.disk_s
        self._starting: defaultdict[BrokerNode, trio.Lock] = defaultdict(trio.Lock)
        self._number = 0
        self._quiet = False

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look at everything all the time."""
        master = self.watch.master
        inside = running(master.node)
        assert inside is not None, "the cluster has started it"
        self.watch.attach()
        self.watch._master_opened(inside)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            yield
            nursery.cancel_scope.cancel()

    async def _look(self) -> None:
        while True:
            self.watch.look()
            await trio.sleep(LOOK_S)

    # -- the course of it

    async def run(self) -> Outcome:
        """All of it."""
        scenario = self.scenario
        async with self._producer() as producer:
            for _ in range(scenario.before):
                await self._send(producer, wait=False)
        for node in self.nodes[1:]:
            await self._start(node)
        async with trio.open_nursery() as nursery:
            for _ in range(scenario.producers):
                nursery.start_soon(self._produce)
            for event in scenario.events:
                nursery.start_soon(self._happen, event)
        await self._heal()
        await self._agree()
        async with self._producer() as producer:
            await self._send(producer)
        await self._agree()
        self.watch.check_acked()
        self._check_attempts()
        return Outcome(
            messages=self._number,
            acked=len(self.watch.acked),
            slaves=len(self.watch.slaves),
            following=check_reads(self.watch),
            histories=len(self.watch.master.histories),
        )

    async def _heal(self) -> None:
        cluster = self.cluster
        cluster.network.mend()
        for node in self.nodes:
            node.disk.make_room()
            for other in self.nodes:
                cluster.network.slow(node.host, 0, other.host)
                cluster.network.throttle(node.host, None, other.host)
        (names,) = cluster.nameservers
        if not names.running:
            await names.start()
        for node in self.nodes:
            await self._start(node)

    async def _agree(self) -> None:
        """Wait until both ends agree."""
        deadline_s = trio.current_time() + AGREE_LIMIT_S
        while True:
            self.watch.look()
            why = disagreement(self.watch)
            if why is None:
                return
            assert trio.current_time() < deadline_s, f"after {AGREE_LIMIT_S:g} s of quiet: {why}"
            await trio.sleep(0.5)

    def _check_attempts(self) -> None:
        """Nobody tries again and again without a pause."""
        master = self.nodes[0].host
        times = [
            at for at, address in self.cluster.network.attempts
            if address.host == master and address.port == HA_PORT
        ]  # fmt: skip
        for first in times:
            window = sum(first <= at < first + WINDOW_S for at in times)
            starts = sum(first - WINDOW_S <= at < first + WINDOW_S for at in self.watch.starts_s)
            most = MOST_ATTEMPTS * self.scenario.slaves + starts
            assert window <= most, (
                f"{window} attempts to connect within {WINDOW_S:g} s from {first:.2f} s on"
            )

    # -- senders

    @asynccontextmanager
    async def _producer(self) -> AsyncIterator[Producer]:
        async with Producer(
            self.cluster.nameserver, retry_times_when_send_failed=0, send_timeout_s=6.0
        ) as producer:
            yield producer

    async def _produce(self) -> None:
        until_s = trio.current_time() + self.scenario.lasting_s
        async with self._producer() as producer:
            while trio.current_time() < until_s:
                await self._send(producer)
                await trio.sleep(self.rng.expovariate(1 / self.scenario.pause_s))

    async def _send(self, producer: Producer, *, wait: bool = True) -> None:
        self._number += 1
        size = self.rng.choice((10, 300, self.rng.randint(0, BODY_BYTES)))
        body = b"%d:%d:" % (self.scenario.seed, self._number) + self.rng.randbytes(
            1
        ).hex().encode() * (size // 2)
        message = Message(TOPIC, body, wait_store_ok=wait)
        try:
            receipt = await producer.send(message)
        except TrioMQError:
            return
        if wait and receipt.status is SendStatus.OK:
            self.watch.stored(body, parse_offset_message_id(receipt.offset_message_id)[1])

    # -- what goes wrong

    async def _happen(self, event: Event) -> None:
        await trio.sleep(event.at_s)
        node = self.nodes[event.side]
        master, slave = self.nodes[0], self.nodes[max(1, event.side)]
        other = slave if node is master else master
        network = self.cluster.network
        match event.kind:
            case Kind.PARTITION:
                network.sever(master.host, slave.host)
                await trio.sleep(event.lasting_s)
                network.mend(master.host, slave.host)
            case Kind.DEAF:
                network.deafen(node.host, other.host)
                await trio.sleep(event.lasting_s)
                network.mend(node.host, other.host)
            case Kind.ISLAND:
                node.partition()
                await trio.sleep(event.lasting_s)
                node.heal()
            case Kind.CUT:
                for wire in network.between(master.host, slave.host, HA_PORT):
                    wire.direction(node.host).stop_after(int(event.amount), event.how)
            case Kind.CUT_NEXT:
                count = int(event.amount)
                network.cut_next(node.host, other.host, count, ending=event.how, port=HA_PORT)
            case Kind.RESET:
                for wire in network.between(master.host, slave.host):
                    wire.reset()
            case Kind.DELAY:
                network.slow(master.host, event.amount, slave.host)
                await trio.sleep(event.lasting_s)
                network.slow(master.host, 0, slave.host)
            case Kind.SLOW:
                network.throttle(node.host, event.amount, other.host)
                await trio.sleep(event.lasting_s)
                network.throttle(node.host, None, other.host)
            case Kind.TWIN:
                network.twin_next(attrs.evolve(master.address, port=HA_PORT))
                for wire in network.between(master.host, slave.host, HA_PORT):
                    wire.reset()
            case Kind.RESTART | Kind.KILL | Kind.CRASH:
                await self._end(node, event)
            case Kind.FULL:
                node.disk.fill(event.number)
                await trio.sleep(event.lasting_s)
                node.disk.make_room()
            case Kind.CLOCK:
                node.clock.jump(int(event.amount * 1000))
            case Kind.NAMES:
                await self._names_away(event.lasting_s)

    async def _end(self, node: BrokerNode, event: Event) -> None:
        if event.kind is Kind.RESTART:
            async with self._starting[node]:
                await self._stop(node)
                self.watch.down(node)
        else:
            self.watch.down(node, lossy=event.kind is Kind.CRASH)
            if event.kind is Kind.KILL:
                await node.kill()
            else:
                await node.crash(event.number, keep=event.how)
        await trio.sleep(event.lasting_s / 4)
        await self._start(node)

    async def _stop(self, node: BrokerNode) -> None:
        """Stop a machine's process, which a full disk may keep from saving all its state."""
        try:
            await node.stop()
        except StoreFull as error:
            # a table is that of the last save then; whatever the store lacks, the next start has to look for
            store = node.settings.store.path
            is_told = f"{store}/config/" in str(error) or node.disk.exists(f"{store}/abort")
            if not is_told:
                raise

    async def _start(self, node: BrokerNode) -> None:
        async with self._starting[node]:
            while not node.running:
                node.disk.run_delay_s = self.scenario.disk_s
                try:
                    await started(node)
                except* (StoreFull, ConfigError):  # the disk is full; whoever runs it tries again
                    await trio.sleep(START_AGAIN_S)
                except* Killed:  # whoever did that starts it again
                    await trio.sleep(START_AGAIN_S)

    async def _names_away(self, lasting_s: float) -> None:
        (names,) = self.cluster.nameservers
        await names.kill()
        await trio.sleep(lasting_s)
        if not names.running:
            await names.start()
