"""Fixed-size entries of one queue: appending and reading over the tail and over file borders, and failing disks."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.store.entries import EntryFiles
from trio_mq.store.segments import ColdData, FilePool, Segments
from trio_mq.testing.disk import MemoryDisk

ENTRY = 4
FILE = 20  # five entries
BLANK = b"fill"


def entries(disk: MemoryDisk, *, filler: bytes = BLANK) -> EntryFiles:
    return EntryFiles(Segments(disk, FilePool(disk), "/q", FILE), ENTRY, filler)


def packed(*numbers: int) -> bytes:
    return b"".join(b"%04d" % number for number in numbers)


def read_all(files: EntryFiles, begin: int = 0) -> bytes:
    data = b""
    while piece := files.read(1000, begin + len(data)):
        data += piece
    return data


def test_entries_can_be_read_before_and_after_they_are_written():
    files = entries(MemoryDisk())
    files.append(packed(0, 1))
    assert (files.end, files.written) == (8, 0)
    assert files.read(100, 0) == packed(0, 1)
    assert files.read(4, 4) == packed(1)
    files.write_tail()
    assert (files.end, files.written) == (8, 8)
    files.append(packed(2))
    assert files.read(100, 0) == packed(0, 1, 2)  # one read over both
    assert files.read(100, 8) == packed(2)
    assert files.read(100, 12) == b""
    assert files.read(100, 1000) == b""
    assert files.read(100, -4) == b""


def test_a_read_ends_with_its_file_and_files_come_as_needed():
    disk = MemoryDisk()
    files = entries(disk)
    files.append(packed(*range(12)))
    assert files.read(100, 8) == packed(2, 3, 4)
    files.write_tail()
    assert len(disk.list_dir("/q")) == 3
    assert files.read(100, 8) == packed(2, 3, 4)
    assert files.read(100, 20) == packed(5, 6, 7, 8, 9)
    assert read_all(files) == packed(*range(12))


def test_the_first_file_is_filled_up_to_where_the_queue_begins():
    disk = MemoryDisk()
    files = entries(disk)
    files.open_at(28)
    files.append(packed(7))
    files.write_tail()
    assert disk.list_dir("/q") == [f"{20:020d}"]
    assert files.segments.read(20, 20) == BLANK * 2 + packed(7) + bytes(8)
    assert files.read(100, 28) == packed(7)
    assert files.read(100, 0) == b""


@pytest.mark.parametrize("kind", ["create", "truncate", "write"])
def test_what_cannot_be_written_stays_in_memory_and_is_written_later(kind):
    disk = MemoryDisk()
    files = entries(disk)
    files.open_at(28)
    files.append(packed(7, 8, 9, 10, 11))
    disk.fail_when(lambda operation: operation.kind == kind, errno.ENOSPC)
    for _ in range(2):
        with pytest.raises(OSError):
            files.write_tail()
        assert read_all(files, 28) == packed(7, 8, 9, 10, 11)
    disk.heal()
    files.append(packed(12))
    files.write_tail()
    assert not files.tail
    assert read_all(files, 28) == packed(7, 8, 9, 10, 11, 12)
    # the fillers are there though the first tries failed, half-way or at once
    assert files.segments.read(20, 20) == BLANK * 2 + packed(7, 8, 9)


def test_a_failure_in_the_second_file_keeps_what_the_first_took():
    disk = MemoryDisk()
    files = entries(disk)
    files.append(packed(*range(7)))
    disk.fail_when(lambda operation: f"{20:020d}" in operation.path, errno.ENOSPC)
    with pytest.raises(OSError):
        files.write_tail()
    assert files.written == 20
    assert read_all(files) == packed(*range(7))
    disk.heal()
    files.write_tail()
    assert read_all(files) == packed(*range(7))


def test_opening_sets_the_end_and_cuts_on_demand():
    disk = MemoryDisk()
    files = entries(disk)
    files.append(packed(*range(8)))
    files.write_tail()
    files.open_at(24, cut=False)
    assert files.end == 24
    assert files.segments.read(8, 24) == packed(6, 7)
    files.open_at(24)
    assert files.segments.read(8, 24) == bytes(8)
    files.append(packed(66))
    assert read_all(files) == packed(0, 1, 2, 3, 4, 5, 66)


def test_what_counts_as_durable():
    files = entries(MemoryDisk())
    files.open_at(8)
    assert files.synced == 8  # as after a clean stop
    files.append(packed(2, 3, 4))
    files.write_tail()
    assert files.synced == 8
    files.open_at(12)
    assert files.synced == 8  # cut back to entries that were not synced yet
    files.open_at(4)
    assert files.synced == 4
    files.doubt()
    assert files.synced == 0


def test_cold_entries_are_told_and_those_in_the_tail_never_are():
    disk = MemoryDisk()
    files = entries(disk)
    files.append(packed(0, 1))
    files.write_tail()
    files.append(packed(2))
    disk.cold = True
    assert files.read(100, 8) == packed(2)
    with pytest.raises(ColdData):
        files.read(100, 0)


def test_a_missing_file_reads_as_nothing():
    files = entries(MemoryDisk())
    files.append(packed(*range(12)))
    files.write_tail()
    files.segments.drop_segment(20)
    assert files.read(100, 24) == b""
    assert files.read(100, 40) == packed(10, 11)


@given(
    st.integers(0, 12),
    st.lists(st.one_of(st.integers(1, 9), st.none()), max_size=12),
    st.data(),
)
def test_any_order_of_appends_and_writes_reads_back(begin, steps, data):
    files = entries(MemoryDisk())
    files.open_at(begin * ENTRY)
    number = begin
    for step in steps:
        if step is None:
            files.write_tail()
        else:
            files.append(packed(*range(number, number + step)))
            number += step
    assert files.end == number * ENTRY
    if number > begin:
        assert read_all(files, begin * ENTRY) == packed(*range(begin, number))
        at = data.draw(st.integers(begin, number - 1))
        count = data.draw(st.integers(1, 5))
        in_file = at // 5 * 5 + 5
        expected = packed(*range(at, min(at + count, number, in_file)))
        assert files.read(count * ENTRY, at * ENTRY) == expected
