"""A store with timers on a disk in memory: sends that wait, what came out of them and when, restarts and crashes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from trio_mq.broker.put import Letter, Putter
from trio_mq.broker.redirects import Redirects
from trio_mq.broker.timers import Timers
from trio_mq.broker.timerstate import TimerState
from trio_mq.config import FlushDiskType, StoreSettings
from trio_mq.protocol import properties
from trio_mq.protocol.message import Host
from trio_mq.protocol.record import StoredMessage, decode
from trio_mq.recovery.recover import Choices, recover
from trio_mq.store.store import Store, open_parts
from trio_mq.tasks import stage
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk

T0 = 1_700_000_000_000
HOST = Host("127.0.0.1", 10911)
BORN = Host("10.0.0.1", 4000).packed
#: A day of slots: what the real wheel has more only costs time in tests.
WINDOW = 86_400
SETTINGS = StoreSettings(
    path="/store",
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=20 * 1000,
    mapped_file_size_timer_log=52 * 100 + 16,
    max_hash_slot_num=50,
    max_index_num=2_000,
)


@attrs.frozen
class Out:
    """A message that came out: its body, when it was stored, and the record."""

    body: str
    ms: int
    record: StoredMessage


class Rig:
    """One run of a store with timers."""

    def __init__(self, store: Store, clock: TrioClock, settings: StoreSettings, window: int):
        self.store = store
        self.clock = clock
        self.settings = settings
        self.redirects = Redirects(settings)
        self.putter = Putter(store, self.redirects, clock)
        state = TimerState(store.parts.disk, settings, clock, window_slots=window)
        self.timers = Timers(store, self.putter, settings, clock, state)
        self.redirects.timer_is_full = self.timers.is_full

    @property
    def state(self) -> TimerState:
        return self.timers.state

    def send(self, body: str, *, topic: str = "T", queue_id: int = 0, **props: object) -> int:
        """Put a message through the redirects; returns its log offset."""
        found = {name: str(value) for name, value in props.items()}
        found.setdefault("UNIQ_KEY", f"id-{body}")
        letter = Letter(
            topic, queue_id, body.encode(), properties.encode(found), self.clock.now_ms(), BORN
        )
        return self.putter.deliver(letter).log_offset

    def recall(self, body: str, deliver_ms: int, *, topic: str = "T", key: str | None = None):
        """Take a message back, as the processor does."""
        props = {
            "TIMER_DEL_UNIQKEY": f"id-{body}" if key is None else key,
            "TIMER_DELIVER_MS": str(deliver_ms),
        }
        letter = Letter(topic, 0, b"0", properties.encode(props), self.clock.now_ms(), BORN)
        self.putter.deliver(letter)

    def out(self, topic: str = "T", queue_id: int = 0) -> list[Out]:
        """What is in a queue."""
        return out_of(self.store, topic, queue_id)

    def bodies(self, topic: str = "T") -> list[str]:
        return [one.body for one in self.out(topic)]


def out_of(store: Store, topic: str = "T", queue_id: int = 0) -> list[Out]:
    queue = store.queue(topic, queue_id)
    if queue is None:
        return []
    found = []
    for offset in range(queue.min_offset, queue.max_offset):
        answer = store.reader.messages(queue, offset, 1, None)
        record = decode(answer.data)
        found.append(Out(record.body.decode(), record.store_timestamp_ms, record))
    return found


@asynccontextmanager
async def timers_on(
    disk: MemoryDisk,
    clock: TrioClock,
    settings: StoreSettings = SETTINGS,
    *,
    window: int = WINDOW,
    batch_topics: tuple[str, ...] = (),
) -> AsyncIterator[Rig]:
    """A store with running timers; leaving the block is a clean stop, unless an error leaves it."""
    parts = open_parts(disk, settings, clock, lambda topic: topic in batch_topics)
    await recover(parts, Choices.of(settings))
    store = Store(parts, clock, HOST)
    await store.start()
    rig = Rig(store, clock, settings, window)
    async with stage() as nursery:
        if settings.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            await nursery.start(store.flusher.run_log)  # without it nothing would be seen
        await nursery.start(rig.timers.run)
        yield rig
    await rig.timers.close()
    await store.close()


async def wait_until(clock: TrioClock, ms: int) -> None:
    """Sleep until the wall clock shows a time."""
    await trio.sleep((ms - clock.now_ms()) / 1000)
