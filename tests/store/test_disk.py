"""One contract for the real disk and the disk in memory, and what only the latter can do."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_mq.errors import StoreLocked
from trio_mq.store.checkpoint import take_lock
from trio_mq.store.disk import Disk, RealDisk
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk, PowerCut


@pytest.fixture(params=["real", "memory"])
def disk(request):
    return RealDisk() if request.param == "real" else MemoryDisk()


@pytest.fixture
def root(disk, tmp_path):
    path = str(tmp_path / "root")
    disk.make_dirs(path)
    return path


def put(disk: Disk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.write(data, 0)
    file.close()


def get(disk: Disk, path: str) -> bytes:
    file = disk.open(path, readonly=True)
    try:
        return file.read(disk.size(path) + 1, 0)
    finally:
        file.close()


# -- both disks


def test_a_file_reads_back_what_was_written_and_ends_at_its_end(disk, root):
    file = disk.open(f"{root}/f", create=True)
    file.write(b"hello world", 0)
    file.write(memoryview(b"W"), 6)
    assert file.read(100, 0) == b"hello World"
    assert file.read(5, 6) == b"World"
    assert file.read(5, 9) == b"ld"
    assert file.read(5, 50) == b""
    assert file.size() == disk.size(f"{root}/f") == 11
    assert file.path == f"{root}/f"
    file.close()
    file.close()


def test_a_write_behind_the_end_leaves_zeros(disk, root):
    file = disk.open(f"{root}/f", create=True)
    file.write(b"x", 5)
    assert file.read(10, 0) == b"\0\0\0\0\0x"
    file.close()


def test_truncate_cuts_and_extends_with_zeros(disk, root):
    file = disk.open(f"{root}/f", create=True)
    file.write(b"abcdef", 0)
    file.truncate(3)
    file.truncate(6)
    assert file.read(10, 0) == b"abc\0\0\0"
    file.truncate(1 << 30)  # sparse: costs nothing
    assert file.size() == 1 << 30
    assert file.read(4, (1 << 30) - 2) == b"\0\0"
    file.close()


def test_next_data_jumps_over_holes_and_never_over_data(disk, root):
    file = disk.open(f"{root}/f", create=True)
    assert file.next_data(0) == 0
    file.truncate(1 << 24)
    assert file.next_data(0) == file.next_data(5000) == 1 << 24
    for at in (8 << 20, 1 << 20):
        file.write(b"data", at)
        for offset in (0, at - 1, at, at + 3):
            assert offset <= file.next_data(offset) <= max(offset, at)
        assert file.next_data(0) > at - (1 << 20), "file systems round down to blocks"
    assert file.next_data((8 << 20) + (1 << 20)) == 1 << 24
    assert file.next_data(1 << 24) == 1 << 24
    assert file.read(4, 8 << 20) == b"data"
    file.close()


def test_read_cached_finds_what_was_just_written(disk, root):
    file = disk.open(f"{root}/f", create=True)
    file.write(b"abc", 0)
    assert file.read_cached(3, 0) == b"abc"
    assert file.read_cached(9, 1) == b"bc"
    file.close()


def test_mapped_memory_is_the_file(disk, root):
    file = disk.open(f"{root}/f", create=True)
    file.truncate(8192)
    file.write(b"abc", 0)
    memory = file.map(5000)
    assert len(memory) == 5000
    assert memory[:4] == b"abc\0"
    memory[4990:4995] = b"hello"
    assert file.read(5, 4990) == b"hello"
    file.write(b"H", 4990)
    assert memory[4990:4995] == b"Hello"
    file.sync()
    memory.release()
    with pytest.raises(ValueError):
        file.map(9000)
    file.truncate(4992)
    assert file.read(9, 4990) == b"He"
    file.close()


def test_opening_what_is_not_there(disk, root):
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/missing")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/no/such/dir", create=True)
    with pytest.raises(FileNotFoundError):
        disk.size(f"{root}/missing")
    with pytest.raises(FileNotFoundError):
        disk.modified_ms(f"{root}/missing")
    with pytest.raises(IsADirectoryError):
        disk.open(root)


def test_a_readonly_or_closed_file_refuses_writes(disk, root):
    put(disk, f"{root}/f", b"abc")
    file = disk.open(f"{root}/f", readonly=True)
    with pytest.raises(OSError) as caught:
        file.write(b"x", 0)
    assert caught.value.errno == errno.EBADF
    file.close()
    with pytest.raises(OSError) as caught:
        file.read(1, 0)
    assert caught.value.errno == errno.EBADF
    assert get(disk, f"{root}/f") == b"abc"


def test_directories_and_their_names(disk, root):
    disk.make_dirs(f"{root}/a/b")
    disk.make_dirs(f"{root}/a/b")
    put(disk, f"{root}/a/2", b"")
    put(disk, f"{root}/a/1", b"")
    assert disk.list_dir(f"{root}/a") == ["1", "2", "b"]
    assert disk.list_dir(f"{root}/nothing") == []
    with pytest.raises(NotADirectoryError):
        disk.list_dir(f"{root}/a/1")
    with pytest.raises(FileExistsError):
        disk.make_dirs(f"{root}/a/1")
    assert disk.is_dir(f"{root}/a/b")
    assert not disk.is_dir(f"{root}/a/1")
    assert disk.exists(f"{root}/a/b")
    assert disk.exists(f"{root}/a/1")
    assert not disk.exists(f"{root}/a/3")
    disk.sync_dir(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        disk.sync_dir(f"{root}/nothing")


def test_remove_is_quiet_about_what_is_not_there(disk, root):
    put(disk, f"{root}/f", b"abc")
    disk.remove(f"{root}/f")
    disk.remove(f"{root}/f")
    assert not disk.exists(f"{root}/f")
    disk.make_dirs(f"{root}/d")
    with pytest.raises((IsADirectoryError, PermissionError)):
        disk.remove(f"{root}/d")


def test_a_removed_file_stays_readable_while_it_is_open(disk, root):
    put(disk, f"{root}/f", b"abc")
    file = disk.open(f"{root}/f")
    disk.remove(f"{root}/f")
    assert file.read(3, 0) == b"abc"
    file.close()


def test_remove_tree(disk, root):
    disk.make_dirs(f"{root}/t/x/y")
    put(disk, f"{root}/t/x/y/f", b"1")
    put(disk, f"{root}/tt", b"other")
    disk.remove_tree(f"{root}/t")
    disk.remove_tree(f"{root}/t")
    assert disk.list_dir(root) == ["tt"]


def test_rename_replaces(disk, root):
    put(disk, f"{root}/new", b"new")
    put(disk, f"{root}/old", b"old")
    disk.rename(f"{root}/new", f"{root}/old")
    assert disk.list_dir(root) == ["old"]
    assert get(disk, f"{root}/old") == b"new"
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/new", f"{root}/old")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/old", f"{root}/no/such/dir")


def test_usage_adds_up(disk, root):
    usage = disk.usage(root)
    assert usage.total > 0
    assert 0 <= usage.used <= usage.total
    assert 0 <= usage.used_percent <= 100


def test_modified_ms_moves_with_a_write(disk, root):
    put(disk, f"{root}/f", b"abc")
    before = disk.modified_ms(f"{root}/f")
    put(disk, f"{root}/f", b"abd")
    assert disk.modified_ms(f"{root}/f") >= before


def test_a_lock_writes_its_content_and_can_be_taken_again_after_release(disk, root):
    lock = disk.lock(f"{root}/lock", b"lock")
    assert get(disk, f"{root}/lock") == b"lock"
    lock.release()
    lock.release()
    disk.lock(f"{root}/lock", b"lock").release()


async def test_run_hands_back_results_and_errors(disk):
    assert await disk.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await disk.run(lambda: 1 // 0)


OTHER_PROCESS = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


def test_errors_of_an_open_real_file_name_it(tmp_path):
    path = str(tmp_path / "f")
    put(RealDisk(), path, b"abc")
    file = RealDisk().open(path, readonly=True)
    for call in (
        lambda: file.write(b"x", 0),
        lambda: file.truncate(1),
        lambda: file.read(1, -1),
    ):
        with pytest.raises(OSError, match=path):
            call()
    file.close()


def test_a_real_lock_is_refused_while_another_process_holds_it(tmp_path):
    path = str(tmp_path / "lock")
    with subprocess.Popen(
        [sys.executable, "-S", "-c", OTHER_PROCESS, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StoreLocked, match="lock") as refused:
            RealDisk().lock(path, b"lock")
        assert refused.value.owner == other.pid


def test_c013_a_second_start_names_the_owner_and_not_who_crashed_before(tmp_path):
    """C013: the marker still has the id of the last crash while the owner has just begun."""
    (tmp_path / "abort").write_bytes(b"4711")
    with subprocess.Popen(
        [sys.executable, "-S", "-c", OTHER_PROCESS, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StoreLocked, match=f"is open in process {other.pid};"):
            take_lock(RealDisk(), str(tmp_path))


def test_a_lock_whose_owner_cannot_be_told(tmp_path, monkeypatch):
    """Another container's process has no id here."""
    unlocked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0)
    for answer in (lambda *_: unlocked, raising(OSError(errno.ENOTSUP, "Not supported"))):
        monkeypatch.setattr(fcntl, "fcntl", answer)
        monkeypatch.setattr(fcntl, "lockf", raising(BlockingIOError(errno.EAGAIN, "Busy")))
        with pytest.raises(StoreLocked) as refused:
            RealDisk().lock(str(tmp_path / "lock"), b"lock")
        assert refused.value.owner is None


def raising(error):
    def call(*_):
        raise error

    return call


# -- the disk in memory: locks, faults, crashes


def test_a_memory_lock_is_refused_while_held_and_free_after_a_crash():
    disk = MemoryDisk()
    disk.lock("lock", b"lock")
    with pytest.raises(StoreLocked, match="lock"):
        disk.lock("lock", b"lock")
    disk.crash(1)
    disk.lock("lock", b"lock")


def synced(disk: MemoryDisk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.write(data, 0)
    file.sync()
    file.close()
    disk.sync_dir(os.path.dirname(path) or ".")


@pytest.mark.parametrize("keep", ["some", "none", "all"])
def test_what_was_synced_survives_every_crash(keep):
    disk = MemoryDisk()
    disk.make_dirs("/a/b")
    synced(disk, "/a/b/f", b"abc")
    for seed in range(50):
        disk.crash(seed, keep=keep, reorder_names=bool(seed % 2))
        assert get(disk, "/a/b/f") == b"abc"
    assert disk.boots == 50


def test_unsynced_bytes_are_lost_kept_or_torn():
    outcomes = set()
    for seed in range(200):
        disk = MemoryDisk()
        synced(disk, "f", b"o" * 1024)
        disk.open("f").write(b"n" * 2048, 0)
        disk.crash(seed)
        outcomes.add(get(disk, "f"))
    old, new = b"o" * 1024, b"n" * 2048
    assert {old, new, old + bytes(1024)} < outcomes
    assert any(data.startswith(b"o" * 512 + b"n" * 512) for data in outcomes)
    # whatever happened, a sector is old, new or zero as a whole
    pieces = {data[at : at + 512] for data in outcomes for at in range(0, len(data), 512)}
    assert pieces == {b"o" * 512, b"n" * 512, bytes(512)}


def test_pages_of_mapped_memory_are_lost_or_kept():
    outcomes = set()
    for seed in range(40):
        disk = MemoryDisk()
        synced(disk, "f", bytes(8192))
        file = disk.open("f")
        memory = file.map(8192)
        memory[0:1] = b"s"
        file.sync()
        memory[1:2], memory[5000:5001] = b"x", b"y"
        disk.crash(seed)
        data = get(disk, "f")
        assert data[:1] == b"s"
        outcomes.add((data[1:2], data[5000:5001]))
    assert outcomes == {(a, b) for a in (b"x", b"\0") for b in (b"y", b"\0")}


def test_keep_none_and_keep_all_are_the_two_ends():
    for keep, expected in (("none", b"old"), ("all", b"new!")):
        disk = MemoryDisk()
        synced(disk, "f", b"old")
        disk.open("f").write(b"new!", 0)
        disk.crash(3, keep=keep)
        assert get(disk, "f") == expected


def test_one_seed_gives_one_outcome():
    def outcome(seed: int) -> list[bytes]:
        disk = MemoryDisk()
        for name in "abc":
            put(disk, name, name.encode() * 3000)
        disk.crash(seed)
        return [get(disk, name) for name in disk.list_dir(".")]

    assert all(outcome(seed) == outcome(seed) for seed in range(20))
    assert len({tuple(outcome(seed)) for seed in range(20)}) > 5


def test_a_new_file_is_gone_unless_its_directory_was_synced():
    disk = MemoryDisk()
    file = disk.open("f", create=True)
    file.write(b"abc", 0)
    file.sync()
    disk.crash(1, keep="none")
    assert not disk.exists("f")


def test_a_rename_is_undone_unless_the_directory_was_synced():
    disk = MemoryDisk()
    synced(disk, "f", b"old")
    synced(disk, "f.tmp", b"new")
    disk.rename("f.tmp", "f")
    disk.crash(1, keep="none")
    assert get(disk, "f") == b"old"
    assert get(disk, "f.tmp") == b"new"
    disk.rename("f.tmp", "f")
    disk.sync_dir(".")
    disk.crash(1, keep="none")
    assert get(disk, "f") == b"new"
    assert not disk.exists("f.tmp")


def test_names_survive_in_order_unless_told_otherwise():
    def survivors(seed: int, *, reorder: bool) -> str:
        disk = MemoryDisk()
        for name in "abcd":
            put(disk, name, b"")
        disk.crash(seed, reorder_names=reorder)
        return "".join(disk.list_dir("."))

    ordered = {survivors(seed, reorder=False) for seed in range(100)}
    assert ordered == {"", "a", "ab", "abc", "abcd"}
    assert len({survivors(seed, reorder=True) for seed in range(200)}) == 16


def test_syncing_one_directory_says_nothing_about_another():
    disk = MemoryDisk()
    disk.make_dirs("/x")
    disk.make_dirs("/y")
    put(disk, "/x/f", b"")
    put(disk, "/y/f", b"")
    disk.sync_dir("/x")
    disk.crash(1, keep="none")
    assert disk.list_dir("/x") == ["f"]
    assert not disk.exists("/y")


def test_a_removed_tree_comes_back_unless_synced():
    disk = MemoryDisk()
    disk.make_dirs("/x/y")
    synced(disk, "/x/y/f", b"1")
    disk.remove_tree("/x/y")
    disk.crash(1, keep="none")
    assert get(disk, "/x/y/f") == b"1"
    disk.remove_tree("/x/y")
    disk.sync_dir("/x")
    disk.crash(1, keep="none")
    assert disk.list_dir("/x") == []


def test_a_move_between_directories_leaves_one_name():
    for seed in range(50):
        disk = MemoryDisk()
        disk.make_dirs("/x")
        disk.make_dirs("/y")
        put(disk, "/x/f", b"1")
        disk.rename("/x/f", "/y/g")
        disk.sync_dir("/y")
        disk.crash(seed, reorder_names=True)
        assert disk.list_dir("/x") == []
        assert disk.list_dir("/y") == ["g"]


def test_a_later_sync_does_not_cover_what_a_failed_one_was_about():
    disk = MemoryDisk()
    synced(disk, "f", b"old")
    file = disk.open("f")
    file.write(b"new", 0)
    disk.fail_at(1, errno.EIO)
    with pytest.raises(OSError) as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.sync()
    disk.crash(1, keep="none")
    assert get(disk, "f") == b"old"


def test_the_nth_operation_fails_once_and_a_failed_write_leaves_a_part():
    disk = MemoryDisk()
    file = disk.open("f", create=True)
    disk.fail_at(2)
    file.write(b"1234", 0)
    with pytest.raises(OSError) as caught:
        file.write(b"5678", 4)
    assert caught.value.errno == errno.ENOSPC
    assert file.read(9, 0) == b"123456"
    file.write(b"5678", 4)
    assert file.read(9, 0) == b"12345678"


def test_fail_when_matches_until_healed():
    disk = MemoryDisk()
    disk.fail_when(lambda op: op.kind == "sync" and op.path.endswith(".log"), errno.EIO)
    log, other = disk.open("x.log", create=True), disk.open("x", create=True)
    other.sync()
    for _ in range(2):
        with pytest.raises(OSError):
            log.sync()
    disk.heal()
    log.sync()
    assert [op.kind for op in disk.operations] == ["create", "create"] + ["sync"] * 4


def test_a_power_cut_stops_everything_until_the_restart():
    disk = MemoryDisk()
    synced(disk, "f", b"old")
    file = disk.open("f")
    disk.kill_at(1)
    with pytest.raises(PowerCut):
        file.write(b"new", 0)
    for call in (
        file.sync,
        lambda: file.read(1, 0),
        lambda: disk.open("f"),
        lambda: disk.exists("f"),
        lambda: disk.remove("f"),
        lambda: disk.rename("f", "g"),
        lambda: disk.sync_dir("."),
        lambda: disk.list_dir("."),
    ):
        with pytest.raises(PowerCut):
            call()
    assert not issubclass(PowerCut, Exception)
    disk.crash(1, keep="none")
    assert get(disk, "f") == b"old"
    with pytest.raises(OSError) as caught:
        file.read(1, 0)
    assert caught.value.errno == errno.EBADF


def test_a_full_disk_refuses_and_tells_how_full_it_is():
    disk = MemoryDisk(capacity_bytes=1000)
    file = disk.open("f", create=True)
    file.truncate(5000)  # a hole takes no room
    file.write(b"x" * 900, 0)
    assert disk.usage(".").used_percent == 90
    with pytest.raises(OSError) as caught:
        file.write(b"x" * 200, 900)
    assert caught.value.errno == errno.ENOSPC
    file.write(b"y" * 900, 0)
    disk.remove("f")
    assert disk.usage(".").used == 0
    put(disk, "g", b"z" * 1000)


def test_times_come_from_the_clock_and_can_be_set():
    clock = ManualClock(5_000)
    disk = MemoryDisk(clock=clock)
    put(disk, "f", b"1")
    assert disk.modified_ms("f") == 5_000
    disk.set_modified_ms("f", 7)
    assert disk.modified_ms("f") == 7


def test_a_cold_disk_has_nothing_cached():
    disk = MemoryDisk()
    put(disk, "f", b"abc")
    disk.cold = True
    file = disk.open("f")
    assert file.read_cached(3, 0) is None
    assert file.read(3, 0) == b"abc"


async def test_a_slow_disk_takes_trio_time(autojump_clock):
    disk = MemoryDisk()
    disk.run_delay_s = 0.05
    before = trio.current_time()
    assert await disk.run(lambda: 1) == 1
    assert trio.current_time() - before == pytest.approx(0.05)


CHANGES = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 40), st.binary(max_size=30)),
    st.tuples(st.just("truncate"), st.integers(0, 60), st.just(b"")),
    st.tuples(st.just("sync"), st.just(0), st.just(b"")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CHANGES, max_size=12))
def test_both_disks_read_the_same_after_any_changes(tmp_path_factory, changes):
    path = str(tmp_path_factory.mktemp("same") / "f")
    memory = MemoryDisk()
    memory.make_dirs(os.path.dirname(path))
    files = [RealDisk().open(path, create=True), memory.open(path, create=True)]
    for kind, position, data in changes:
        for file in files:
            if kind == "write":
                file.write(data, position)
            elif kind == "truncate":
                file.truncate(position)
            else:
                file.sync()
        assert files[0].size() == files[1].size()
        assert files[0].read(200, 0) == files[1].read(200, 0)
    memory.crash(1, keep="all")
    assert memory.open(path).read(200, 0) == files[0].read(200, 0)
    files[0].close()
