"""Consume queues of both kinds, and the table that keeps them."""

from __future__ import annotations

import errno
import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_stores as golden
from trio_mq.errors import ConfigError
from trio_mq.protocol.layout import (
    BATCH_QUEUE_ENTRY_SIZE,
    PRE_BLANK,
    QUEUE_ENTRY,
    unpack_batch_queue_entry,
    unpack_queue_entry,
)
from trio_mq.store.queues import HOLE_ENTRIES, BatchConsumeQueue, ConsumeQueue, Position
from trio_mq.store.queuetable import QueueTable
from trio_mq.testing.disk import MemoryDisk

FILE_ENTRIES = 10


def table(disk: MemoryDisk | None = None, **more) -> QueueTable:
    sizes = {"queue_file_bytes": 20 * FILE_ENTRIES, "batch_file_bytes": 46 * 10} | more
    return QueueTable(
        disk or MemoryDisk(), "/s", is_batch_topic=lambda topic: topic.startswith("B"), **sizes
    )


def simple(disk: MemoryDisk | None = None) -> ConsumeQueue:
    queue = table(disk).obtain("T", 0)
    assert isinstance(queue, ConsumeQueue)
    return queue


def batch(disk: MemoryDisk | None = None) -> BatchConsumeQueue:
    queue = table(disk).obtain("B", 0)
    assert isinstance(queue, BatchConsumeQueue)
    return queue


def fill(queue: ConsumeQueue, count: int, *, size: int = 100) -> None:
    """Entries whose log offsets are a hundred times their queue offsets."""
    for number in range(queue.max_offset, queue.max_offset + count):
        assert queue.put(number, 1, number * 100, size, number % 7, 1000 + number)


# -- simple queues


def test_entries_have_the_bytes_of_the_format():
    disk = MemoryDisk()
    queue = simple(disk)
    assert queue.put(0, 1, 0, 104, 2598919, 5)
    queue.files.write_tail()
    data = disk.open("/s/consumequeue/T/0/00000000000000000000").read(200, 0)
    assert data.hex() == "000000000000000000000068000000000027a807" + "00" * 180


def test_offsets_and_state_follow_the_entries():
    queue = simple()
    assert (queue.min_offset, queue.max_offset, queue.indexed_to) == (0, 0, -1)
    assert list(queue.positions(0, 10)) == []
    fill(queue, 3)
    assert (queue.min_offset, queue.max_offset, queue.indexed_to) == (0, 3, 300)
    assert list(queue.positions(1, 10)) == [
        Position(1, 1, 100, 100, 1),
        Position(2, 1, 200, 100, 2),
    ]
    assert [p.queue_offset for p in queue.positions(0, 2)] == [0, 1]
    assert [queue.log_offset_at(n) for n in (0, 2, 3, -1)] == [0, 200, -1, -1]


def test_a_known_record_changes_nothing():
    queue = simple()
    fill(queue, 3)
    assert not queue.put(1, 1, 100, 100, 9, 9)  # ends before the last one
    assert not queue.put(1, 1, 900, 100, 9, 9)  # its place is taken
    assert not queue.put(0, 1, 900, 100, 9, 9)
    assert queue.max_offset == 3
    assert queue.put(3, 1, 300, 100, 9, 9)


def test_positions_go_on_over_file_borders():
    queue = simple()
    fill(queue, 35)
    queue.files.write_tail()
    fill(queue, 3)
    assert [p.queue_offset for p in queue.positions(5, 30)] == list(range(5, 35))
    assert [p.log_offset for p in queue.positions(8, 100)] == [n * 100 for n in range(8, 38)]


def test_a_queue_may_begin_anywhere():
    disk = MemoryDisk()
    queue = simple(disk)
    assert queue.put(25, 1, 5000, 100, 1, 1)
    assert (queue.min_offset, queue.max_offset) == (25, 26)
    queue.files.write_tail()
    path = f"/s/consumequeue/T/0/{400:020d}"
    assert disk.open(path).read(200, 0)[:100] == PRE_BLANK * 5
    assert [p.queue_offset for p in queue.positions(20, 10)] == [25]
    assert queue.log_offset_at(22) == -1


def test_a_hole_is_filled_so_that_offsets_stay_those_of_the_records():
    queue = simple()
    fill(queue, 2)
    assert queue.put(5, 1, 700, 100, 1, 1)
    assert queue.max_offset == 6
    assert [p.queue_offset for p in queue.positions(0, 10)] == [0, 1, 5]
    assert [queue.log_offset_at(n) for n in range(6)] == [0, 100, -1, -1, -1, 700]
    assert queue.next_record(2, 6) == (5, 700)
    assert queue.next_record(2, 5) == (5, -1)
    assert queue.next_record(6, 6) == (6, -1)


def test_an_absurd_offset_is_put_at_the_end_as_apache_does(caplog):
    queue = simple()
    with caplog.at_level(logging.ERROR):
        assert queue.put(1 << 60, 1, 0, 100, 1, 1)
        fill(queue, 1)
        assert queue.put(2 + HOLE_ENTRIES + 1, 1, 900, 100, 1, 1)
    assert queue.max_offset == 3
    assert [record.args[2] for record in caplog.records] == [1 << 60, 2 + HOLE_ENTRIES + 1]


def test_trim_follows_the_log_and_drops_files():
    disk = MemoryDisk()
    queue = simple(disk)
    fill(queue, 35)
    queue.files.write_tail()
    assert queue.trim(0) == 0
    assert queue.trim(1234) == 13
    assert queue.min_offset == 13
    assert disk.list_dir("/s/consumequeue/T/0") == [f"{n:020d}" for n in (200, 400, 600)]
    assert queue.trim(900) == 13  # never back
    assert queue.trim(3400) == 34
    assert queue.trim(100_000) == 35  # nothing left: min is max, the last file stays
    assert disk.list_dir("/s/consumequeue/T/0") == [f"{600:020d}"]
    fill(queue, 1)
    assert [p.queue_offset for p in queue.positions(35, 5)] == [35]


def test_trim_of_entries_in_memory_only():
    queue = simple()
    fill(queue, 4)
    assert queue.trim(250) == 3
    assert queue.min_offset == 3


def test_trim_is_not_led_astray_by_blank_entries():
    queue = simple()
    for queue_offset, log_offset in ((0, 100), (1, 200), (7, 400), (8, 500)):
        queue.put(queue_offset, 1, log_offset, 50, 1, 1)
    assert queue.trim(150) == 1  # what lies before the hole is still there
    assert queue.trim(201) == 7  # and the minimum is never inside it
    assert queue.trim(450) == 8


def test_trim_passes_over_the_fillers_of_the_first_file():
    queue = simple()
    queue.put(27, 1, 5000, 100, 1, 1)
    queue.put(28, 1, 5100, 100, 1, 1)
    queue.files.write_tail()
    queue.min_offset = 20  # as after a restart, which looks at file names first
    assert queue.trim(0) == 27
    queue.min_offset = 20
    assert queue.trim(5100) == 28


def test_a_missing_file_is_passed_over():
    queue = simple()
    fill(queue, 35)
    queue.files.write_tail()
    queue.files.segments.drop_segment(200)
    assert queue.next_record(10, 35) == (20, 2000)
    assert queue.trim(500) == 5
    assert queue.trim(1500) == 20


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 50)), min_size=1, max_size=40),
    st.integers(0, 2200),
    st.booleans(),
)
def test_trim_agrees_with_a_plain_search(steps, log_start, written):
    queue = simple()
    expected = []
    queue_offset = log_offset = 0
    for step, gap in steps:
        queue_offset += step - 1
        log_offset += gap
        queue.put(queue_offset, 1, log_offset, 1, 0, 0)
        expected.append((queue_offset, log_offset))
        queue_offset += 1
    if written:
        queue.files.write_tail()
    alive = [q for q, at in expected if at >= log_start]
    assert queue.trim(log_start) == (alive[0] if alive else queue.max_offset)
    assert [p.queue_offset for p in queue.positions(queue.min_offset, 1000)] == alive


# -- batch queues


def fill_batches(queue: BatchConsumeQueue, counts: list[int]) -> None:
    for count in counts:
        number = queue.files.end // BATCH_QUEUE_ENTRY_SIZE
        queue.put(queue.max_offset, count, number * 1000, 500, number, 50 + number)


def test_a_batch_entry_has_the_bytes_of_the_format():
    disk = MemoryDisk()
    queue = batch(disk)
    assert queue.put(40, 10, 4096, 500, 7, 1_700_000_000_000)
    queue.files.write_tail()
    data = disk.open("/s/batchconsumequeue/B/0/00000000000000000000").read(46, 0)
    entry = unpack_batch_queue_entry(data)
    assert entry == (4096, 500, 7, 1_700_000_000_000, 40, 10, -1, 0)
    assert (queue.min_offset, queue.max_offset) == (40, 50)


def test_batches_are_found_by_any_of_their_offsets():
    queue = batch()
    fill_batches(queue, [10, 1, 5, 20])
    queue.files.write_tail()
    fill_batches(queue, [4])
    assert queue.max_offset == 40
    for offset, base in (
        (0, 0),
        (9, 0),
        (10, 10),
        (11, 11),
        (15, 11),
        (16, 16),
        (35, 16),
        (39, 36),
    ):
        found = next(iter(queue.positions(offset, 1)))
        assert found.queue_offset == base
        assert queue.log_offset_at(offset) == found.log_offset
    assert [(p.queue_offset, p.count) for p in queue.positions(12, 10)] == [
        (11, 5),
        (16, 20),
        (36, 4),
    ]
    assert not queue.put(36, 4, 4000, 500, 4, 54)  # known


def test_a_hole_between_batches_is_passed_over():
    queue = batch()
    queue.put(0, 5, 0, 100, 0, 0)
    queue.put(9, 3, 100, 100, 0, 0)
    assert [p.queue_offset for p in queue.positions(6, 3)] == [9]
    assert queue.next_record(6, 12) == (9, 100)
    assert queue.next_record(10, 12) == (10, 100)
    assert queue.next_record(6, 8) == (8, -1)


def test_trim_of_batches():
    disk = MemoryDisk()
    queue = batch(disk)
    fill_batches(queue, [10] * 25)
    queue.files.write_tail()
    assert queue.trim(11_500) == 120
    assert queue.trim(12_000) == 120
    assert disk.list_dir("/s/batchconsumequeue/B/0") == [f"{n:020d}" for n in (460, 920)]
    assert [p.queue_offset for p in queue.positions(125, 2)] == [120, 130]
    assert queue.trim(100_000) == 250


def test_the_count_of_a_batch_is_kept_within_the_format():
    queue = batch()
    queue.put(0, 40_000, 0, 100, 0, 0)
    assert queue.max_offset == 32_767
    queue.put(40_000, 0, 100, 100, 0, 0)
    assert queue.max_offset == 40_001


# -- the table


def test_queues_are_made_once_and_of_the_kind_of_their_topic():
    queues = table()
    first = queues.obtain("T", 3)
    assert queues.obtain("T", 3) is first
    assert queues.get("T", 3) is first
    assert queues.get("T", 4) is None
    assert isinstance(queues.obtain("B", 0), BatchConsumeQueue)
    assert not first.is_batch
    assert queues.obtain("B", 0).is_batch
    assert {(q.topic, q.queue_id) for q in queues} == {("T", 3), ("B", 0)}
    assert queues.of_topic("T") == [first]


def test_folders_on_the_disk_are_found_and_other_things_passed_over():
    disk = MemoryDisk()
    queues = table(disk)
    for topic, queue_id in (("T", 0), ("T", 12), ("%RETRY%g", 1), ("B", 0)):
        queues.obtain(topic, queue_id).put(0, 1, 0, 9, 0, 0)
    queues.dirty.update(queues)
    queues.write_tails()
    for stray in ("consumequeue/stray", "consumequeue/T/13"):
        disk.open(f"/s/{stray}", create=True).close()
    for folder in ("consumequeue/T/x", "consumequeue/T/007", "consumequeue/T/-1", "consumequeue/E"):
        disk.make_dirs(f"/s/{folder}")
    assert sorted(table(disk).found()) == [
        ("%RETRY%g", 1, False), ("B", 0, True), ("T", 0, False), ("T", 12, False),
    ]  # fmt: skip


def test_queue_files_are_whole_entries_and_batch_files_have_to_be():
    disk = MemoryDisk()
    queues = table(disk, queue_file_bytes=105)
    queue = queues.obtain("T", 0)
    queue.put(0, 1, 0, 9, 0, 0)
    queue.files.write_tail()
    assert disk.size("/s/consumequeue/T/0/00000000000000000000") == 120
    with pytest.raises(ConfigError, match=r"mapperFileSizeBatchConsumeQueue is 100 bytes.* 46"):
        table(batch_file_bytes=100)


def test_a_queue_that_cannot_be_written_does_not_stop_the_others():
    disk = MemoryDisk()
    queues = table(disk)
    for queue_id in range(5):
        queue = queues.obtain("T", queue_id)
        queue.put(0, 1, 0, 9, 0, 0)
        queues.dirty.add(queue)
    disk.fail_when(lambda operation: "/T/2" in operation.path, errno.EACCES)
    with pytest.raises(OSError):
        queues.write_tails()
    assert {queue.queue_id for queue in queues.dirty} == {2}
    disk.heal()
    queues.write_tails()
    assert not queues.dirty
    assert disk.list_dir("/s/consumequeue/T") == ["0", "1", "2", "3", "4"]


def test_a_dropped_topic_leaves_nothing_and_begins_anew():
    disk = MemoryDisk()
    queues = table(disk)
    old = queues.obtain("T", 0)
    old.put(0, 1, 0, 9, 0, 0)
    queues.dirty.add(old)
    queues.write_tails()
    queues.dirty.add(old)
    queues.obtain("TT", 0)
    queues.drop_topic("T", 0)
    assert old.dropped
    assert not queues.dirty
    assert queues.get("T", 0) is None
    assert not disk.exists("/s/consumequeue/T")
    assert queues.obtain("T", 0) is not old
    assert queues.get("TT", 0) is not None


# -- Apache's own files


@pytest.mark.parametrize("name", golden.NAMES)
def test_entries_of_golden_records_are_byte_for_byte_those_of_apache(name):
    """Every queue, rebuilt from the list of records, has the bytes that Apache wrote."""
    disk = MemoryDisk()
    queues = QueueTable(
        disk,
        "/s",
        queue_file_bytes=golden.QUEUE_FILE_SIZE,
        batch_file_bytes=46 * 26,
        is_batch_topic=lambda topic: topic == "GoldBCQ",
    )
    theirs = golden.read_files(name, "consumequeue")
    checked = 0
    for folder in {path.rpartition("/")[0] for path in theirs}:
        topic, queue_id = folder.split("/")
        queue = queues.obtain(topic, int(queue_id))
        files = sorted(path for path in theirs if path.startswith(folder + "/"))
        entries = [
            entry
            for path in files
            for entry in map(unpack_queue_entry, _pieces(theirs[path]))
            if entry.size
        ]
        assert all(a.log_offset < b.log_offset for a, b in pairwise(entries))
        for number, (log_offset, size, code) in enumerate(entries):
            assert queue.put(number, 1, log_offset, size, code, 0)
        queues.dirty.add(queue)
        queues.write_tails()
        for path in files:
            number = int(path.rpartition("/")[2])
            if number >= queue.files.end:
                continue  # Apache makes a file before it needs one
            mine = disk.open(f"/s/consumequeue/{path}").read(golden.QUEUE_FILE_SIZE, 0)
            assert mine == theirs[path]
            checked += 1
    assert checked >= 15


def _pieces(data: bytes) -> list[bytes]:
    return [data[at : at + 20] for at in range(0, len(data), QUEUE_ENTRY.size)]
