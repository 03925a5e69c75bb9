"""The dispatcher: entries at once, keys in lots, news for waiting readers, and files that cannot be written."""

from __future__ import annotations

import errno
import logging

import pytest
import trio

from trio_mq.protocol.layout import index_key_hash
from trio_mq.store import dispatch
from trio_mq.store.dispatch import Dispatcher, Stored
from trio_mq.store.index import KeyIndex
from trio_mq.store.queuetable import QueueTable
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk

SIZE = 100
ROLLBACK, COMMIT, PREPARED = 0xC, 0x8, 0x4


class Parts:
    """A dispatcher with everything around it, and what it told."""

    def __init__(self, disk: MemoryDisk | None = None, *, index_enabled: bool = True) -> None:
        self.disk = disk or MemoryDisk()
        self.queues = QueueTable(
            self.disk,
            "/s",
            queue_file_bytes=200,
            batch_file_bytes=460,
            is_batch_topic=lambda topic: topic == "B",
        )
        self.index = KeyIndex(
            self.disk, "/s/index", slots=50, entries=5000, now_ms=ManualClock().now_ms
        )
        self.dispatcher = Dispatcher(self.queues, self.index, index_enabled=index_enabled)
        self.failures: list[OSError] = []
        self.arrivals: list[list[tuple[str, int, int]]] = []
        self.dispatcher.failed = self.failures.append
        self.dispatcher.listeners.append(
            lambda hits: self.arrivals.append(
                [(hit.queue.topic, hit.queue.queue_id, hit.tags_code) for hit in hits]
            )
        )
        self.log_end = 0

    def stored(
        self, number: int, *, topic: str = "T", queue_id: int = 0, sys_flag: int = 0, count: int = 1
    ) -> Stored:
        queue = self.queues.obtain(topic, queue_id)
        log_offset = self.log_end
        self.log_end += SIZE
        props = b"KEYS\x01k%d\x02" % number
        return Stored(
            queue, number, count, log_offset, SIZE, number % 5, 1000 + number, props, sys_flag
        )

    def has_key(self, number: int, topic: str = "T") -> bool:
        return bool(self.index.search(index_key_hash(f"{topic}#k{number}"), 10, 0, 1 << 60))


def test_entries_are_there_at_once_and_keys_wait():
    parts = Parts()
    parts.dispatcher.apply([parts.stored(n) for n in range(3)])
    queue = parts.queues.get("T", 0)
    assert queue is not None
    assert [p.log_offset for p in queue.positions(0, 9)] == [0, 100, 200]
    assert parts.queues.dirty == {queue}
    assert (parts.dispatcher.dispatched, parts.dispatcher.newest_ms) == (300, 1002)
    assert parts.dispatcher.index_backlog == 3
    assert parts.index.files == []
    parts.dispatcher.finish()
    assert parts.dispatcher.index_backlog == 0
    assert all(parts.has_key(n) for n in range(3))
    assert not parts.queues.dirty
    assert parts.index.indexed_to == 300


def test_records_twice_change_nothing_p29():
    parts = Parts()
    records = [parts.stored(n) for n in range(5)]
    parts.dispatcher.apply(records)
    parts.dispatcher.finish()
    queue_file = parts.disk.open("/s/consumequeue/T/0/00000000000000000000").read(200, 0)
    index_file = parts.index.files[0].memory.tobytes()
    parts.dispatcher.apply(records)
    parts.dispatcher.finish()
    assert parts.disk.open("/s/consumequeue/T/0/00000000000000000000").read(200, 0) == queue_file
    assert parts.index.files[0].memory.tobytes() == index_file


@pytest.mark.parametrize(
    ("sys_flag", "entry", "key"),
    [(0, True, True), (COMMIT, True, True), (PREPARED, False, True), (ROLLBACK, False, False)],
)
def test_what_transactions_leave(sys_flag, entry, key):
    parts = Parts()
    parts.dispatcher.apply([parts.stored(0, sys_flag=sys_flag)])
    parts.dispatcher.finish()
    queue = parts.queues.get("T", 0)
    assert queue is not None
    assert queue.max_offset == (1 if entry else 0)
    assert parts.has_key(0) is key
    assert parts.dispatcher.dispatched == SIZE


def test_batches_count_their_messages():
    parts = Parts()
    parts.dispatcher.apply([parts.stored(0, topic="B", count=10), parts.stored(10, topic="B")])
    queue = parts.queues.get("B", 0)
    assert queue is not None
    assert queue.max_offset == 11


def test_without_an_index_nothing_waits():
    parts = Parts(index_enabled=False)
    parts.dispatcher.apply([parts.stored(0)])
    assert parts.dispatcher.index_backlog == 0
    parts.dispatcher.finish()
    assert not parts.disk.exists("/s/index")


def test_news_only_of_watched_queues_and_only_what_is_new():
    parts = Parts()
    parts.queues.obtain("T", 1).watched = 1
    records = [parts.stored(n, queue_id=n % 2) for n in range(4)]
    records = [record._replace(queue_offset=n // 2) for n, record in enumerate(records)]
    parts.dispatcher.apply(records)
    assert parts.arrivals == [[("T", 1, 1), ("T", 1, 3)]]
    parts.dispatcher.apply(records)
    assert len(parts.arrivals) == 1


def test_a_dropped_queue_gets_nothing_more():
    parts = Parts()
    record = parts.stored(0)
    parts.queues.disk.make_dirs("/s")
    parts.queues.drop_topic("T", 0)
    parts.dispatcher.apply([record])
    assert not parts.queues.dirty
    parts.dispatcher.finish()
    assert not parts.disk.exists("/s/consumequeue/T")


def test_keys_go_in_lots(monkeypatch):
    monkeypatch.setattr(dispatch, "INDEX_CHUNK", 10)
    parts = Parts()
    parts.dispatcher.apply([parts.stored(n) for n in range(25)])
    assert parts.dispatcher.index_chunk()
    assert parts.dispatcher.index_backlog == 15
    assert parts.index.indexed_to == 10 * SIZE
    assert parts.has_key(9)
    assert not parts.has_key(10)
    while parts.dispatcher.index_backlog:
        assert parts.dispatcher.index_chunk()
    assert parts.has_key(24)


# -- the task


async def test_run_writes_entries_and_keys_soon(autojump_clock, nursery):
    parts = Parts()
    await nursery.start(parts.dispatcher.run)
    await trio.sleep(5)
    parts.dispatcher.apply([parts.stored(n) for n in range(3)])
    await trio.sleep(dispatch.TICK_S * 2)
    assert not parts.queues.dirty
    assert parts.dispatcher.index_backlog == 0
    assert parts.disk.exists("/s/consumequeue/T/0/00000000000000000000")
    parts.dispatcher.apply([parts.stored(3)])
    await trio.sleep(dispatch.TICK_S * 3)
    assert not parts.queues.dirty
    assert parts.has_key(3)


async def test_run_does_nothing_while_there_is_nothing(autojump_clock, nursery):
    parts = Parts()
    await nursery.start(parts.dispatcher.run)
    parts.dispatcher.apply([parts.stored(0)])
    await trio.sleep(1)
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")


async def test_what_cannot_be_written_is_tried_again_and_told_once(autojump_clock, nursery, caplog):
    parts = Parts()
    await nursery.start(parts.dispatcher.run)
    parts.disk.fail_when(lambda operation: operation.kind in ("create", "write"), errno.ENOSPC)
    with caplog.at_level(logging.ERROR):
        parts.dispatcher.apply([parts.stored(n) for n in range(3)])
        await trio.sleep(10)
    assert parts.dispatcher.is_failing
    assert len(caplog.records) == 2  # one for queues, one for the index; not one per try
    assert 10 <= len(parts.failures) <= 24
    queue = parts.queues.get("T", 0)
    assert queue is not None
    assert [p.log_offset for p in queue.positions(0, 9)] == [0, 100, 200]  # served from memory
    parts.disk.heal()
    await trio.sleep(dispatch.RETRY_S + 0.1)
    assert not parts.dispatcher.is_failing
    assert not parts.queues.dirty
    assert all(parts.has_key(n) for n in range(3))


def test_a_retry_on_demand():
    parts = Parts()
    parts.disk.fail_when(lambda operation: operation.kind == "write", errno.ENOSPC)
    parts.dispatcher.apply([parts.stored(0)])
    assert not parts.dispatcher.write_tails()

    async def retry() -> bool:
        return parts.dispatcher.retry()

    assert not trio.run(retry)
    assert parts.dispatcher.is_failing
    parts.disk.heal()
    assert trio.run(retry)
    assert not parts.dispatcher.is_failing


def test_keys_that_went_in_before_a_failure_do_not_go_in_twice():
    parts = Parts()
    parts.index.entries = 40
    parts.dispatcher.apply([parts.stored(n) for n in range(60)])
    parts.disk.fail_at(6, errno.ENOSPC)  # while the second index file is made
    parts.disk.fail_at(7, errno.ENOSPC)
    tries = 0
    while parts.dispatcher.index_backlog:
        tries += 0 if parts.dispatcher.index_chunk() else 1
    assert tries >= 1
    assert [file.header.index_count for file in parts.index.files] == [40, 22]
    for number in range(60):
        hits = parts.index.search(index_key_hash(f"T#k{number}"), 10, 0, 1 << 60)
        assert len(hits) == 1


def test_finish_raises_what_it_could_not_write():
    parts = Parts()
    parts.dispatcher.apply([parts.stored(0)])
    parts.disk.fail_when(lambda operation: "index" in operation.path, errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        parts.dispatcher.finish()
    assert caught.value.errno == errno.ENOSPC
    parts.disk.heal()
    parts.dispatcher.finish()
    assert parts.has_key(0)
