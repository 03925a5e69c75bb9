"""The commit log: staging, rolling with blanks, failing writes, the prepared segment, reading."""

from __future__ import annotations

import errno
import os
from itertools import pairwise

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.protocol.record import Blank, check
from trio_mq.store.disk import RealDisk
from trio_mq.store.log import CommitLog, reaches
from trio_mq.store.segments import ColdData
from trio_mq.testing.disk import MemoryDisk

SIZE = 100


def empty_log(disk=None, directory: str = "/log", segment_bytes: int = SIZE) -> CommitLog:
    log = CommitLog(disk or MemoryDisk(), directory, segment_bytes)
    log.open_at(0)
    return log


def stage(log: CommitLog, data: bytes) -> int:
    """Stage bytes as the store does with a record; returns their offset."""
    if not log.fits(len(data)):
        log.write_staged()
        log.roll()
    offset = log.end
    log.staging += data
    log.end += len(data)
    return offset


def content(disk, start: int = 0) -> bytes:
    return disk.open(f"/log/{start:020d}").read(SIZE, 0)


def test_nothing_is_there_before_it_is_written():
    log = empty_log()
    assert not log.fits(1)
    assert log.segments.empty
    assert stage(log, b"one") == 0
    assert stage(log, b"two") == 3
    assert (log.written, log.end) == (0, 6)
    assert log.read(10, 0) == b""
    log.write_staged()
    assert log.read(10, 0) == b"onetwo"
    assert log.read(2, 2) == b"et"
    log.write_staged()
    assert (log.written, log.end, log.durable.value) == (6, 6, 0)


def test_staged_records_are_written_with_one_call():
    disk = MemoryDisk()
    log = empty_log(disk)
    for _ in range(10):
        stage(log, b"12345")
    before = len(disk.operations)
    log.write_staged()
    assert [o.kind for o in disk.operations[before:]] == ["write"]


@pytest.mark.parametrize(
    ("used", "size", "rolls"), [(50, 42, False), (50, 43, True), (92, 1, True)]
)
def test_a_record_and_eight_bytes_have_to_fit_p8(used, size, rolls):
    log = empty_log()
    stage(log, b"a" * used)
    offset = stage(log, b"b" * size)
    log.write_staged()
    assert offset == (SIZE if rolls else used)
    if rolls:
        verdict = check(log.read(SIZE, used), 0, SIZE - used)
        assert isinstance(verdict, Blank)
        assert log.read(4, used) == (SIZE - used).to_bytes(4, "big")
    assert log.written == log.end == offset + size


def test_a_blank_is_eight_bytes_and_zeros_behind():
    disk = MemoryDisk()
    log = empty_log(disk)
    stage(log, b"a" * 70)
    stage(log, b"b" * 30)
    log.write_staged()
    assert content(disk) == b"a" * 70 + bytes.fromhex("0000001ecbd43194") + bytes(22)
    assert content(disk, SIZE) == b"b" * 30 + bytes(70)


def test_a_full_segment_of_somebody_else_without_room_for_a_blank():
    log = empty_log()
    log.segments.create(0)
    log.open_at(95)
    assert stage(log, b"next") == SIZE
    log.write_staged()
    assert log.read(10, SIZE) == b"next"


def test_the_log_goes_on_where_recovery_says():
    disk = MemoryDisk()
    log = empty_log(disk)
    stage(log, b"a" * 30)
    log.write_staged()
    again = CommitLog(disk, "/log", SIZE)
    again.segments.load()
    again.open_at(30)
    assert (again.end, again.written, again.durable.value) == (30, 30, 30)
    assert stage(again, b"b" * 30) == 30
    without = CommitLog(disk, "/elsewhere", SIZE)
    without.open_at(300)
    assert stage(without, b"c") == 300
    assert disk.list_dir("/elsewhere") == [f"{300:020d}"]
    assert without.start == 300


# -- failing writes


def test_a_failed_write_leaves_the_log_as_it_was():
    disk = MemoryDisk()
    log = empty_log(disk)
    stage(log, b"good")
    log.write_staged()
    disk.fail_when(lambda operation: operation.kind == "write", errno.ENOSPC)
    stage(log, b"x" * 20)
    with pytest.raises(OSError):
        log.write_staged()
    log.forget_staged()
    assert (log.written, log.end) == (4, 4)
    assert log.read(10, 0) == b"good"
    disk.heal()
    assert stage(log, b"next") == 4
    log.write_staged()
    assert log.read(100, 0) == b"goodnext"


def test_what_a_failed_write_left_in_the_file_is_zeroed():
    """A record whose sender was told that it failed shall not come back after a crash."""
    disk = MemoryDisk()
    log = empty_log(disk)
    stage(log, b"good")
    log.write_staged()
    disk.fail_at(1, errno.ENOSPC)  # leaves a half
    stage(log, b"x" * 20)
    with pytest.raises(OSError):
        log.write_staged()
    assert b"x" in content(disk)
    log.forget_staged()
    assert content(disk) == b"good" + bytes(96)


@pytest.mark.parametrize("kind", ["write", "create", "truncate", "sync"])
def test_a_roll_that_fails_can_be_tried_again(kind):
    disk = MemoryDisk()
    log = empty_log(disk)
    stage(log, b"a" * 60)
    log.write_staged()
    disk.fail_when(lambda operation: operation.kind == kind, errno.ENOSPC)
    for _ in range(2):
        with pytest.raises(OSError):
            log.roll()
        assert (log.end, log.written) == (60, 60)
        assert log.fits(30)
        assert not log.fits(40)
    disk.heal()
    assert stage(log, b"b" * 40) == SIZE
    log.write_staged()
    assert content(disk)[60:68].hex() == "00000028cbd43194"


def test_a_smaller_record_may_overwrite_the_blank_of_a_failed_roll():
    disk = MemoryDisk()
    log = empty_log(disk)
    stage(log, b"a" * 60)
    log.write_staged()
    disk.fail_when(lambda operation: operation.kind == "create", errno.ENOSPC)
    with pytest.raises(OSError):
        log.roll()
    disk.heal()
    assert stage(log, b"b" * 20) == 60
    log.write_staged()
    assert content(disk)[60:88] == b"b" * 20 + bytes(8)


def test_a_probe_tells_whether_writes_work_and_changes_nothing():
    disk = MemoryDisk()
    log = empty_log(disk)
    log.probe()  # nothing to try yet
    stage(log, b"abc")
    log.write_staged()
    disk.fail_when(lambda operation: operation.kind == "write", errno.ENOSPC)
    with pytest.raises(OSError):
        log.probe()
    disk.heal()
    log.probe()
    assert content(disk) == b"abc" + bytes(97)
    assert log.written == 3


# -- the next segment


async def test_a_spare_is_made_ahead_durable_and_used():
    disk = MemoryDisk()
    log = empty_log(disk)
    assert not log.spare_needed()
    stage(log, b"a" * 50)
    log.write_staged()
    assert not log.spare_needed()
    stage(log, b"a" * 10)
    log.write_staged()
    assert log.spare_needed()
    await log.make_spare()
    assert not log.spare_needed()
    assert disk.size(f"/log/{SIZE:020d}") == SIZE
    assert log.segments.starts == [0]
    log.segments.sync_call(0, SIZE)()
    disk.crash(1, keep="none")
    assert disk.size(f"/log/{SIZE:020d}") == SIZE


async def test_a_roll_uses_the_spare_without_a_sync_and_makes_its_own_durable():
    disk = MemoryDisk()
    log = empty_log(disk)
    stage(log, b"a" * 60)
    log.write_staged()
    assert [o.kind for o in disk.operations if o.kind == "sync"] == ["sync"]  # the first segment
    await log.make_spare()
    before = len(disk.operations)
    log.roll()
    assert [o.kind for o in disk.operations[before:]] == ["write"]
    assert log.segments.starts == [0, SIZE]
    log.drop_spare()
    assert disk.list_dir("/log") == [f"{n:020d}" for n in (0, SIZE)]


async def test_a_clean_stop_removes_the_spare():
    disk = MemoryDisk()
    log = empty_log(disk)
    log.drop_spare()
    stage(log, b"a" * 60)
    log.write_staged()
    await log.make_spare()
    log.drop_spare()
    assert disk.list_dir("/log") == [f"{0:020d}"]
    assert log.spare_needed()


async def test_a_roll_while_the_spare_is_being_made_does_not_lose_the_segment(nursery):
    disk = MemoryDisk()
    disk.run_delay_s = 0.01
    log = empty_log(disk)
    stage(log, b"a" * 60)
    log.write_staged()
    nursery.start_soon(log.make_spare)
    await trio.testing.wait_all_tasks_blocked()
    stage(log, b"b" * 60)
    log.write_staged()
    await trio.sleep(0.05)
    log.drop_spare()  # must not take the active segment
    assert log.read(100, SIZE) == b"b" * 60
    assert content(disk, SIZE)[:60] == b"b" * 60


async def test_an_empty_log_can_have_a_spare():
    disk = MemoryDisk()
    log = empty_log(disk)
    assert log.needs_segment()
    await log.make_spare()
    assert not log.needs_segment()
    assert stage(log, b"a") == 0
    log.write_staged()
    assert content(disk)[:1] == b"a"


def test_default_segments_stay_sparse(tmp_path):
    log = empty_log(RealDisk(), str(tmp_path), 1 << 30)
    stage(log, b"a" * 1000)
    log.write_staged()
    (name,) = os.listdir(tmp_path)
    stat = os.stat(tmp_path / name)
    assert stat.st_size == 1 << 30
    assert stat.st_blocks * 512 < 100_000
    log.segments.close()


# -- reading


def test_reads_end_with_the_segment_and_with_what_is_written():
    log = empty_log()
    stage(log, b"a" * 60)
    stage(log, b"b" * 60)
    log.write_staged()
    stage(log, b"c")
    assert log.read(500, 50)[:18] == b"a" * 10 + bytes.fromhex("00000028cbd43194")
    assert len(log.read(500, 50)) == 50
    assert log.read(500, 100) == b"b" * 60
    assert log.read(1, 160) == b""
    assert log.read(1, -1) == b""
    assert log.read(1, 10_000) == b""
    log.segments.drop_segment(0)
    assert log.read(10, 50) == b""
    assert log.start == SIZE


def test_cold_data_is_told():
    disk = MemoryDisk()
    log = empty_log(disk)
    stage(log, b"abc")
    log.write_staged()
    disk.cold = True
    with pytest.raises(ColdData) as caught:
        log.read(3, 0)
    assert caught.value.warm() == b"abc"


@given(
    st.lists(st.tuples(st.integers(1, 92), st.booleans()), max_size=30),
    st.integers(0, 40),
)
def test_appends_of_any_sizes_read_back_across_segments(sizes, first):
    disk = MemoryDisk()
    log = CommitLog(disk, "/log", SIZE)
    log.open_at(first * SIZE)
    placed = []
    for number, (size, commit) in enumerate(sizes):
        data = bytes([number + 1]) * size
        placed.append((stage(log, data), data))
        if commit:
            log.write_staged()
    log.write_staged()
    for offset, data in placed:
        assert offset % SIZE + len(data) + 8 <= SIZE
        assert log.read(len(data), offset) == data
    for (a, data), (b, _) in pairwise(placed):
        assert b == a + len(data) or b == a - a % SIZE + SIZE
    if placed:
        assert log.segments.starts[0] == first * SIZE
        assert log.end == placed[-1][0] + len(placed[-1][1])


@pytest.mark.parametrize("real", [False, True])
def test_how_far_the_files_reach(tmp_path, real):
    """Up to the last block that was written; nothing there is 0."""
    disk = RealDisk() if real else MemoryDisk()
    folder = str(tmp_path / "log")
    assert reaches(disk, folder) == 0
    disk.make_dirs(folder)
    size = 1 << 20
    for start, written in ((0, size), (size, 300_000)):
        file = disk.open(f"{folder}/{start:020d}", create=True)
        file.truncate(size)
        file.write(b"x" * written, 0)
        file.close()
    disk.open(f"{folder}/notes", create=True).close()
    assert size + 300_000 <= reaches(disk, folder) <= size + 300_000 + 65_536
    file = disk.open(f"{folder}/{2 * size:020d}", create=True)
    file.truncate(size)
    file.close()
    assert reaches(disk, folder) == 2 * size
