"""The workload of the sweep: three lives of a whole broker (without sockets) on one disk in memory.

In: a seed. Out: a :class:`Recording`: a copy of the disk before each of its operations, and what clients had been
told by then. The same seed gives the same operations, in any process. The lives: sync flush, ended by a clean stop;
async flush if the seed is even, ended by a kill; sync flush again, ended by a clean stop. Between them they roll log
segments, queue files and index files, write all state files, let a segment expire and delete a topic.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing

from tests.broker.support import FakePeer, is_batch, props, request, send
from tests.sweep.ledger import Ledger, Moment, Sent
from trio_mq.broker.broker import Broker
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.tables import load_tables
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings, FlushDiskType, Settings, StoreSettings
from trio_mq.protocol.bodies import SubscriptionGroupConfig
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import RawFrame
from trio_mq.protocol.headers.admin import CreateTopicRequest, DeleteTopicRequest
from trio_mq.protocol.headers.offset import UpdateConsumerOffsetRequest
from trio_mq.protocol.message import BatchItem, Host, join_batch, parse_offset_message_id
from trio_mq.recovery.recover import recover
from trio_mq.store.queues import BaseQueue
from trio_mq.store.store import Store, open_parts
from trio_mq.tasks import stage
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk, Operation

ROOT = "/store"
HOST = Host("192.168.1.5", 10911)
BROKER = BrokerSettings(broker_name="b-a", auto_create_topic_enable=True)
SIMPLE, BATCHES, CREATED, DOOMED = "Simple", "Batches", "Created", "Doomed"
GROUP = "CG"
CONFIG = f"{ROOT}/config"
#: Bodies in large segments: some are longer than the window in which the log is read.
LARGE_SEGMENT_BYTES = 192 * 1024
LARGE_BODY_BYTES = 70 * 1024


def store_settings(seed: int, *, sync: bool = True) -> StoreSettings:
    """Small files, so that few messages roll them; every fourth seed has segments of several read windows.

    Queue files are longer than a sector, which ends within an entry, so that a power cut can tear one; some are so long
    that it does at different places.
    """
    odd = is_batchy(seed)
    return StoreSettings(
        path=ROOT,
        mapped_file_size_commit_log=LARGE_SEGMENT_BYTES if is_large(seed) else 4096,
        mapped_file_size_consume_queue=540 if odd else 1300,
        mapped_file_size_batch_consume_queue=3680 if odd else 552,
        max_hash_slot_num=300,
        max_index_num=150,
        flush_disk_type=FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH,
        file_reserved_time_hours=1,
        delete_when=tuple(range(24)),
        clean_resource_interval_ms=1000,
    )


def is_large(seed: int) -> bool:
    """Whether a seed has large segments and some large bodies."""
    return seed % 4 == 3


def is_batchy(seed: int) -> bool:
    """Whether half of what is sent are batches of one record."""
    return bool(seed % 2)


class InOrder(dict[BaseQueue, None]):
    """The table's set of dirty queues, in an order that is the same in every process."""

    def add(self, queue: BaseQueue) -> None:
        """See :meth:`set.add`."""
        self[queue] = None

    def discard(self, queue: BaseQueue) -> None:
        """See :meth:`set.discard`."""
        self.pop(queue, None)


class Client(FakePeer):
    """A connection that notes the replies in the ledger."""

    def __init__(self, ledger: Ledger, written: Callable[[], int]) -> None:
        super().__init__()
        self.address = Host("10.0.0.9", 40_000)
        self.packed_address = self.address.packed
        self.waiting: dict[int, Sent] = {}
        self.told = trio.Event()
        self._ledger = ledger
        self._log_written = written

    def write(self, data: bytes) -> None:
        """Take replies: what they say is promised from now on."""
        super().write(data)
        for reply in self.take():
            if reply.is_response:
                self._note(reply)
        self.told.set()
        self.told = trio.Event()

    def _note(self, reply: Command) -> None:
        sent = self.waiting.pop(reply.opaque, None)
        if sent is None:
            return
        if reply.code not in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT):
            self._ledger.refused.append(sent)
            return
        first_id = reply.ext["msgId"].split(",")[0]
        sent.log_offset = parse_offset_message_id(first_id)[1]
        sent.queue_offset = int(reply.ext["queueOffset"])
        sent.end = self._log_written()
        sent.is_sure = reply.code == ResponseCode.SUCCESS
        sent.durable_at_reply = sent.durable_at_reply and sent.is_sure
        self._ledger.acked.append(sent)


@attrs.define(eq=False)
class Life:
    """One running broker, and its client."""

    disk: MemoryDisk
    store: Store
    broker: Broker
    client: Client
    ledger: Ledger
    rng: random.Random
    seed: int
    percent: int
    opaque: int = 0

    # -- sends

    def frame(self, topic: str, queue_id: int, *, wait: bool = True) -> RawFrame:
        """A send of one message, noted in the ledger."""
        number = len(self.ledger.sent)
        body = b"%d-%d:" % (self.seed, number) + self._filler()
        keys = f"k{number} s{number % 7}"
        fields = {"KEYS": keys, "TAGS": f"t{number % 3}", "UNIQ_KEY": f"U{self.seed}N{number}"}
        if not wait:
            fields["WAIT"] = "false"
        self._note(topic, queue_id, (body,), keys, wait=wait)
        return send(topic, body, queue_id=queue_id, opaque=self.opaque, properties=props(**fields))

    def batch_frame(self, topic: str, queue_id: int, count: int) -> RawFrame:
        """A send of a batch, noted in the ledger."""
        number = len(self.ledger.sent)
        bodies = tuple(b"%d-%d.%d" % (self.seed, number, n) + self._filler() for n in range(count))
        items = [BatchItem(0, body, props(TAGS="b").encode()) for body in bodies]
        self._note(topic, queue_id, bodies, None, wait=True)
        return send(
            topic,
            join_batch(items),
            queue_id=queue_id,
            opaque=self.opaque,
            properties=props(UNIQ_KEY=f"U{self.seed}N{number}"),
            batch=True,
        )

    def _filler(self) -> bytes:
        most = 300
        if is_large(self.seed) and self.rng.random() < 0.1:
            most = LARGE_BODY_BYTES
        return b"." * self.rng.randint(0, most)

    def _note(
        self, topic: str, queue_id: int, bodies: tuple[bytes, ...], keys: str | None, *, wait: bool
    ) -> None:
        self.opaque += 1
        sent = Sent(len(self.ledger.sent), topic, queue_id, bodies, keys)
        sent.durable_at_reply = self.store.is_sync and wait
        self.ledger.sent.append(sent)
        self.client.waiting[self.opaque] = sent

    async def hand(self, *frames: RawFrame) -> None:
        """Let frames arrive together, and some time go by."""
        self.broker.face.received(self.client, list(frames))
        await trio.sleep(self.rng.choice((0, 0.003, 0.03, 0.3)))

    async def rounds(self, count: int) -> None:
        """Send some messages at a time, of all kinds."""
        for _ in range(-(-count * self.percent // 100)):
            frames = [self._any_frame() for _ in range(self.rng.randint(1, 3))]
            await self.hand(*frames)

    def _any_frame(self) -> RawFrame:
        rng = self.rng
        if is_batchy(self.seed) and rng.random() < 0.4:
            return self.batch_frame(BATCHES, 0, rng.randint(1, 4))
        match rng.randrange(10):
            case 0:
                return self.batch_frame(SIMPLE, rng.randrange(2), rng.randint(2, 4))
            case 1 | 2:
                return self.batch_frame(BATCHES, 0, rng.randint(1, 4))
            case 3:
                return self.frame(CREATED, 1)
            case 4:
                return self.frame(SIMPLE, 0, wait=False)
            case _:
                return self.frame(SIMPLE, rng.randrange(2))

    # -- other requests

    async def ask(self, code: int, header: object | None = None, body: object = b"") -> None:
        """A request that is no send; waits until it is answered."""
        self.opaque += 1
        told = self.client.told
        frame = request(code, header, body, opaque=self.opaque)
        self.broker.face.received(self.client, [frame])
        with trio.move_on_after(1):
            await told.wait()

    async def create(self, topic: str, queues: int, attributes: str | None = None) -> None:
        """Create a topic."""
        header = CreateTopicRequest(
            topic, "TBW102", queues, queues, 6, "SINGLE_TAG", attributes=attributes
        )
        await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def delete(self, topic: str) -> None:
        """Delete a topic: from now on its messages may be there or not."""
        self.ledger.deleted[topic] = len(self.ledger.sent)
        await self.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic))

    async def commit(self, topic: str, queue_id: int, offset: int) -> None:
        """Commit a consumer's progress; it is saved every five seconds."""
        header = UpdateConsumerOffsetRequest(GROUP, topic, queue_id, offset)
        await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def expire_first_segment(self) -> None:
        """Let the oldest segment be old; the cleaner's next turn removes it."""
        segments = self.store.log.segments
        self.ledger.expired_to = segments.start + segments.segment_bytes
        self.disk.set_modified_ms(segments.path(segments.start), 1)
        await trio.sleep(1.5)


@attrs.define(eq=False)
class Recording:
    """A run of the workload. `take` says of which cuts a copy of the disk is kept."""

    seed: int
    take: Callable[[int], bool]
    #: Called once the disk is there, for faults.
    prepare: Callable[[MemoryDisk], None] | None = None
    #: How much is sent, compared with an ordinary run.
    percent: int = 100
    ledger: Ledger = attrs.field(factory=Ledger)
    moments: list[Moment] = attrs.field(factory=list)
    disk: MemoryDisk = attrs.field(factory=MemoryDisk)
    clock: TrioClock = attrs.field(factory=TrioClock)
    #: Log offset that the disk has for sure.
    durable: int = 0
    _store: Store | None = None
    _dir_synced: int = 0
    #: Number and path of the operation before this one, when that was the rename of a state file's new file.
    _renamed: tuple[int, str] = (0, "")

    # -- cuts

    def _before(self, operation: Operation) -> None:
        self._look_at_saves(operation)
        if self.take(operation.number):
            self.moments.append(self.moment(operation.number, operation))

    def moment(self, number: int, operation: Operation | None) -> Moment:
        """What is known now, and a copy of the disk."""
        if self._store is not None:
            self.durable = max(self.durable, self._store.log.durable.value)
        ledger = self.ledger
        return Moment(
            number,
            operation,
            self.disk.clone(),
            self.clock.now_ms(),
            len(ledger.sent),
            len(ledger.acked),
            self.durable,
            ledger.expired_to,
            dict(ledger.deleted),
            ledger.progress(),
        )

    def _look_at_saves(self, operation: Operation) -> None:
        """A save of a state file counts from the rename of its new file on; a sync of the folder completes it."""
        ledger = self.ledger
        self._forget_failed_rename()
        if self._dir_synced and self._dir_synced not in self.disk.failed:
            ledger.complete = {path: len(saved) for path, saved in ledger.saves.items()}
        is_sync = operation.kind == "sync_dir" and operation.path == CONFIG
        self._dir_synced = operation.number if is_sync else 0
        in_config = operation.path.startswith(f"{CONFIG}/")
        if operation.kind == "rename" and in_config and operation.path.endswith(".json"):
            saved = self.disk.files()[f"{operation.path}.tmp"]
            ledger.saves.setdefault(operation.path, []).append(saved)
            self._renamed = operation.number, operation.path

    def _forget_failed_rename(self) -> None:
        """A rename that failed was no save, whatever sync of the folder comes next."""
        number, path = self._renamed
        self._renamed = 0, ""
        if number in self.disk.failed:
            self.ledger.saves[path].pop()

    # -- the run

    async def run(self) -> None:
        """Three lives. Every failure of the broker gets out; how far it came is the last moment then."""
        try:
            await self._run()
        finally:
            self.disk.before = None
            self._forget_failed_rename()
            self.disk.heal()
            number = len(self.disk.operations) + 1
            if self.prepare is not None or self.take(number):
                self.moments.append(self.moment(number, None))

    async def _run(self) -> None:
        rng = random.Random(self.seed)
        self.disk = MemoryDisk(clock=self.clock)
        self.disk.before = self._before
        if self.prepare is not None:
            self.prepare(self.disk)
        async with self.life(rng, sync=True) as life:
            await first_life(life)
        async with self.life(rng, sync=bool(self.seed % 2), kill=True) as life:
            await second_life(life)
        self.disk.kill()
        async with self.life(rng, sync=True) as life:
            await life.rounds(14)

    @asynccontextmanager
    async def life(
        self, rng: random.Random, *, sync: bool, kill: bool = False
    ) -> AsyncIterator[Life]:
        """A recovered, working broker, as :func:`trio_mq.system.run_system` has it; stopped in order, or killed."""
        disk, clock = self.disk, self.clock
        settings = Settings(broker=BROKER, store=store_settings(self.seed, sync=sync))
        topics = TopicTable(BROKER, clock)
        parts = open_parts(disk, settings.store, clock, lambda topic: is_batch(topics, topic))
        parts.queues.dirty = InOrder()
        try:
            groups, offsets = GroupTable(BROKER, clock), ConsumerOffsets(BROKER, clock)
            tables = await load_tables(
                disk, CONFIG, clock, topics=topics, groups=groups, offsets=offsets
            )
            await recover(parts)
            store = Store(parts, clock, HOST)
            await store.start()
            self._store = store
            broker = Broker(settings, store, tables, clock, str(HOST))
            client = Client(self.ledger, lambda: store.log.written)
            async with stage() as outer:
                await outer.start(store.run)
                async with stage() as inner:
                    await inner.start(broker.run)
                    yield Life(
                        disk, store, broker, client, self.ledger, rng, self.seed, self.percent
                    )
                if not kill:
                    await broker.close()
            if not kill:
                await store.close()
            self.durable = max(self.durable, store.log.durable.value)
        finally:
            self._store = None
            parts.release()


async def first_life(life: Life) -> None:
    """Topics of all kinds, a group, sends of all kinds."""
    await life.create(SIMPLE, 2)
    await life.create(BATCHES, 1, "+queue.type=BatchCQ")
    await life.create(DOOMED, 1)
    group = SubscriptionGroupConfig(GROUP)
    await life.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    # The first checkpoint comes before the second segment: without any, a start goes back one segment and no further.
    await life.hand(life.frame(SIMPLE, 0), life.batch_frame(BATCHES, 0, 3))
    await trio.sleep(1.2)
    await life.rounds(8)
    await life.hand(*(life.frame(DOOMED, 0) for _ in range(3)))
    await life.rounds(18)
    await life.commit(SIMPLE, 0, 3)
    await trio.sleep(6)
    await life.rounds(12)
    await life.commit(SIMPLE, 0, 7)


async def second_life(life: Life) -> None:
    """A segment expires, a topic is deleted, the progress of consumers is saved."""
    await life.rounds(4)
    await life.hand(*(life.frame(DOOMED, 0) for _ in range(3)))
    await life.expire_first_segment()
    await life.rounds(8)
    await life.delete(DOOMED)
    await life.rounds(6)
    await life.commit(SIMPLE, 1, 5)
    await trio.sleep(5.5)
    await life.rounds(14)


def record(seed: int, take: Callable[[int], bool]) -> Recording:
    """Run the workload of a seed, in its own event loop; its order of tasks is that of the seed, too."""
    recording = Recording(seed, take)
    deterministically(seed, recording.run)
    return recording


def deterministically(
    seed: int, call: Callable[[], object], clock: trio.abc.Clock | None = None
) -> None:
    """Run an async function with time that jumps, and with an order of tasks that only depends on the seed."""
    # Trio shuffles runnable tasks; these two names are how Hypothesis makes it repeat itself, too.
    trio_run = trio._core._run
    before = trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True
    trio_run._r.seed(seed)
    try:
        trio.run(call, clock=clock or trio.testing.MockClock(autojump_threshold=0))
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = before
