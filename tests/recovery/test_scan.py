"""Looking at queue files: where valid entries end, whatever lies in the file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trio_mq.protocol.layout import (
    BATCH_QUEUE_ENTRY,
    BATCH_QUEUE_ENTRY_SIZE,
    PRE_BLANK,
    QUEUE_ENTRY,
    QUEUE_ENTRY_SIZE,
    BatchQueueEntry,
)
from trio_mq.recovery.scan import QueueTail, scan_queue, valid_entries
from trio_mq.store.log import CommitLog
from trio_mq.store.queuetable import QueueTable
from trio_mq.testing.disk import MemoryDisk

NUMBER = st.one_of(st.integers(0, 300), st.sampled_from([0, -1, 1 << 40, 1 << 31, (1 << 31) - 1]))
OFFSET = st.one_of(NUMBER, st.sampled_from([-(1 << 63), (1 << 63) - 1]))
INT = NUMBER.filter(lambda n: -(1 << 31) <= n < 1 << 31)
SIMPLE = st.builds(QUEUE_ENTRY.pack, OFFSET, INT, OFFSET)
BATCH = st.builds(
    BATCH_QUEUE_ENTRY.pack, OFFSET, INT, OFFSET, OFFSET, OFFSET, st.integers(-2, 300), INT, INT
)


@given(st.lists(SIMPLE, max_size=30))
def test_valid_entries_of_a_simple_queue(rows):
    expected = 0
    for row in rows:
        log_offset, size, _ = QUEUE_ENTRY.unpack(row)
        if log_offset < 0 or size <= 0:
            break
        expected += 1
    assert valid_entries(b"".join(rows), QUEUE_ENTRY_SIZE) == expected


@given(st.lists(BATCH, max_size=30))
def test_valid_entries_of_a_batch_queue(rows):
    expected = 0
    for row in rows:
        if not BatchQueueEntry._make(BATCH_QUEUE_ENTRY.unpack(row)).is_valid:
            break
        expected += 1
    assert valid_entries(b"".join(rows), BATCH_QUEUE_ENTRY_SIZE) == expected


def scanned(files: list[bytes], *, thorough: bool, per_file: int = 10, first: int = 0) -> QueueTail:
    disk = MemoryDisk()
    size = per_file * QUEUE_ENTRY_SIZE
    table = QueueTable(
        disk, "", queue_file_bytes=size, batch_file_bytes=460, is_batch_topic=lambda topic: False
    )
    queue = table.make("T", 0, batch=False)
    disk.make_dirs(queue.files.segments.directory)
    for number, data in enumerate(files, first):
        file = disk.open(queue.files.segments.path(number * size), create=True)
        file.truncate(size)
        file.write(data, 0)
    queue.files.segments.load()
    return scan_queue(queue, CommitLog(disk, "/log", 4096), thorough=thorough)


def rows(count: int, first: int = 0) -> bytes:
    return b"".join(QUEUE_ENTRY.pack(100 * n, 100, 7) for n in range(first, first + count))


@given(
    count=st.integers(0, 35), fillers=st.integers(0, 9), empty=st.booleans(), thorough=st.booleans()
)
def test_the_end_is_found_with_and_without_looking_at_everything(count, fillers, empty, thorough):
    data = PRE_BLANK * fillers + rows(count)
    files = [data[at : at + 200] for at in range(0, len(data), 200)] + [b""] * empty
    tail = scanned(files, thorough=thorough, first=3)
    begin = 3 * 200 if files else 0
    end = begin + len(data)
    last = -1 if not count else 100 * (count - 1)
    assert tail == QueueTail(end, last, last + 100 if count else -1, end // 20)


def test_a_hole_is_seen_by_who_looks_at_everything():
    data = rows(4) + bytes(3 * 20) + rows(3, 7)
    assert scanned([data, rows(5, 10)], thorough=True) == QueueTail(80, 300, 400, 4, hole=True)
    clean = scanned([data], thorough=False)
    assert (clean.end_bytes, clean.hole) == (80, True)


def test_only_the_last_files_are_looked_at():
    files = [bytes(200), rows(10, 10), rows(10, 20), rows(3, 30)]
    tail = scanned(files, thorough=True)
    assert (tail.max_offset, tail.hole) == (33, False)


def test_empty_last_files_lead_further_back():
    tail = scanned([rows(10), rows(4, 10), b"", b"", b""], thorough=True)
    assert (tail.max_offset, tail.hole) == (14, False)


def test_a_queue_without_files():
    assert scanned([], thorough=True) == QueueTail(0)
