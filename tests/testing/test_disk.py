"""The disk in memory: copies, kills, faults and torn memory. What it shares with the real one is in tests/store."""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.store.disk import RealDisk
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk, Operation, PowerCut
from trio_mq.testing.disk_state import PAGE_BYTES, SECTOR_BYTES


def put(disk: MemoryDisk, path: str, data: bytes, *, sync: bool = False) -> None:
    file = disk.open(path, create=True)
    file.write(data, 0)
    if sync:
        file.sync()
        disk.sync_dir(os.path.dirname(path) or ".")
    file.close()


def get(disk: MemoryDisk, path: str) -> bytes:
    return disk.files()[path]


# -- copies


def test_a_clone_has_the_same_files_and_goes_its_own_way():
    disk = MemoryDisk()
    disk.make_dirs("/d")
    put(disk, "/d/f", b"one", sync=True)
    put(disk, "/d/g", b"two")
    copy = disk.clone()
    assert copy.files() == disk.files() == {"/d/f": b"one", "/d/g": b"two"}
    assert copy.operations == []
    put(copy, "/d/f", b"ONE")
    put(disk, "/d/g", b"TWO")
    copy.open("/d/f").truncate(2)
    disk.remove("/d/f")
    copy.rename("/d/g", "/d/h")
    assert copy.files() == {"/d/f": b"ON", "/d/h": b"two"}
    assert disk.files() == {"/d/g": b"TWO"}


def test_one_crash_of_a_clone_is_the_crash_of_the_disk():
    """What is not synced is copied too, with its order: names, bytes, truncations, and files that were removed."""

    def made() -> MemoryDisk:
        disk = MemoryDisk()
        disk.make_dirs("/d")
        for number in range(6):
            put(disk, f"/d/{number}", bytes([number]) * 3000, sync=number % 2 == 0)
            disk.open(f"/d/{number}").write(b"new" * 500, 700)
        disk.rename("/d/1", "/d/7")
        disk.remove("/d/2")
        disk.open("/d/3").truncate(100)
        disk.open("/d/4").map(3000)[:2] = b"mm"
        return disk

    outcomes = set()
    for seed in range(40):
        disk, copy = made(), made().clone()
        disk.crash(seed, reorder_names=bool(seed % 2))
        copy.crash(seed, reorder_names=bool(seed % 2))
        assert copy.files() == disk.files()
        outcomes.add(tuple(disk.files().items()))
        again = disk.clone()
        again.crash(seed + 1)
        assert again.files() == disk.files(), "what survived a crash survives the next one"
    assert len(outcomes) > 20


def test_locks_open_files_and_faults_are_not_copied():
    disk = MemoryDisk()
    disk.lock("lock", b"lock")
    disk.fail_at(1)
    copy = disk.clone(clock=ManualClock(5))
    copy.lock("lock", b"lock")
    put(copy, "f", b"1")
    assert copy.modified_ms("f") == 5


def test_before_sees_each_operation_without_its_effect():
    disk = MemoryDisk()
    seen: list[tuple[Operation, dict[str, bytes]]] = []
    disk.before = lambda operation: seen.append((operation, disk.clone().files()))
    put(disk, "f", b"abc")
    disk.rename("f", "g")
    assert [(o.number, o.kind) for o, _ in seen] == [(1, "create"), (2, "write"), (3, "rename")]
    assert [files for _, files in seen] == [{}, {"f": b""}, {"f": b"abc"}]


# -- the end of a process


def test_a_kill_loses_nothing_and_syncs_nothing():
    disk = MemoryDisk()
    put(disk, "f", b"old", sync=True)
    file = disk.open("f")
    memory = file.map(3)
    file.write(b"n", 0)
    memory[1:2] = b"e"
    disk.lock("lock", b"lock")
    disk.kill()
    with pytest.raises(OSError) as caught:
        file.read(1, 0)
    assert caught.value.errno == errno.EBADF
    assert get(disk, "f") == b"ned"
    disk.lock("lock", b"lock")
    memory[2:3] = b"w"  # memory of a process that is gone
    disk.crash(1, keep="none")
    assert get(disk, "f") == b"old"


def test_of_a_write_that_is_on_its_way_whole_pages_survive_a_kill_and_sectors_a_power_cut():
    new = b"n" * (3 * PAGE_BYTES)

    def cut() -> MemoryDisk:
        disk = MemoryDisk()
        put(disk, "f", b"o" * len(new), sync=True)
        disk.kill_at(1)
        with pytest.raises(PowerCut):
            disk.open("f").write(new, 0)
        return disk

    killed = cut()
    killed.kill()
    assert get(killed, "f") == b"n" * 2 * PAGE_BYTES + b"o" * PAGE_BYTES
    lengths = set()
    for seed in range(60):
        disk = cut()
        disk.crash(seed, keep="all")
        data = get(disk, "f")
        lengths.add(data.count(b"n"))
        assert data == b"n" * data.count(b"n") + b"o" * data.count(b"o")
    assert all(length % SECTOR_BYTES == 0 for length in lengths)
    assert len(lengths) > 10
    lost = cut()
    lost.crash(1, keep="none")
    assert b"n" not in get(lost, "f")


# -- mapped memory


def test_a_crash_may_leave_any_state_that_a_page_had_before_an_operation():
    outcomes = set()
    for seed in range(80):
        disk = MemoryDisk()
        put(disk, "f", bytes(2 * PAGE_BYTES), sync=True)
        memory = disk.open("f").map(2 * PAGE_BYTES)
        for state in (1, 2, 3):
            memory[0:1] = memory[PAGE_BYTES : PAGE_BYTES + 1] = bytes([state])
            put(disk, "other", b"")
        disk.crash(seed)
        data = get(disk, "f")
        outcomes.add((data[0], data[PAGE_BYTES]))
    assert {first for first, _ in outcomes} == {second for _, second in outcomes} == {0, 1, 2, 3}
    assert any(first != second for first, second in outcomes)


def test_a_page_is_torn_at_its_sectors():
    pages = set()
    for seed in range(60):
        disk = MemoryDisk()
        put(disk, "f", b"o" * PAGE_BYTES, sync=True)
        disk.open("f").map(PAGE_BYTES)[:] = b"n" * PAGE_BYTES
        disk.crash(seed)
        pages.add(get(disk, "f"))
    pieces = {page[at : at + SECTOR_BYTES] for page in pages for at in range(0, 4096, 512)}
    assert pieces == {b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES}
    assert len(pages) > 10


def test_a_sync_makes_mapped_memory_durable_and_a_failed_one_does_not():
    disk = MemoryDisk()
    put(disk, "f", bytes(PAGE_BYTES), sync=True)
    file = disk.open("f")
    memory = file.map(PAGE_BYTES)
    memory[0:1] = b"a"
    file.sync()
    memory[1:2] = b"b"
    disk.fail_at(1, errno.EIO)
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    disk.crash(1, keep="none")
    assert get(disk, "f")[:2] == b"a\0"


# -- failed syncs


def test_what_a_later_sync_covers_survives_whatever_a_failed_one_left_in_doubt():
    for seed in range(40):
        disk = MemoryDisk()
        put(disk, "f", b"old", sync=True)
        file = disk.open("f")
        file.write(b"one", 0)
        disk.fail_at(1, errno.EIO)
        with pytest.raises(OSError):
            file.sync()
        file.write(b"two", 0)
        file.sync()
        disk.crash(seed)
        assert get(disk, "f") == b"two"


# -- short writes and failing reads


def test_a_short_write_is_gone_on_with():
    disk = MemoryDisk()
    file = disk.open("f", create=True)
    disk.short_when(lambda operation: operation.number == 2)
    file.write(b"12345", 0)
    assert file.read(9, 0) == b"12345"
    assert [o.kind for o in disk.operations] == ["create", "write", "write"]


def test_the_rest_of_a_short_write_may_fail():
    disk = MemoryDisk()
    file = disk.open("f", create=True)
    disk.short_when(lambda operation: True)
    disk.fail_when(lambda operation: operation.number == 3, errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        file.write(b"12345678", 0)
    assert caught.value.errno == errno.ENOSPC
    assert file.read(9, 0) == b"123456"
    assert disk.failed == {3}
    disk.heal()
    file.write(b"12345678", 0)
    assert len(disk.operations) == 4


@pytest.mark.parametrize("takes", [1, 3, 7])
def test_the_real_disk_goes_on_after_a_short_write_and_reports_an_error_of_the_rest(
    tmp_path, monkeypatch, takes
):
    path = str(tmp_path / "f")
    file = RealDisk().open(path, create=True)
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:takes], at))
    file.write(memoryview(b"0123456789"), 2)
    assert file.read(99, 0) == b"\0\0" + b"0123456789"
    calls = 0

    def fails_later(fd: int, data: bytes, at: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, bytes(data)[:takes], at)

    monkeypatch.setattr(os, "pwrite", fails_later)
    with pytest.raises(OSError) as caught:
        file.write(b"abcdefgh", 0)
    assert caught.value.errno == errno.ENOSPC
    file.close()


def test_reads_fail_where_it_was_asked_for():
    disk = MemoryDisk()
    put(disk, "f", b"0123456789")
    file = disk.open("f")
    disk.fail_reads(lambda path, offset, size: path == "f" and offset <= 4 < offset + size)
    for read in (file.read, file.read_cached):
        assert read(4, 0) == b"0123"
        with pytest.raises(OSError) as caught:
            read(2, 4)
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, "f")
    disk.heal()
    assert file.read(2, 4) == b"45"


# -- all together


@given(st.integers(0, 1 << 30))
def test_whatever_happens_what_was_synced_and_not_touched_since_is_there(seed: int):
    rng = random.Random(seed)
    disk = MemoryDisk()
    safe: dict[str, bytes] = {}
    names = [f"f{n}" for n in range(4)]
    for _ in range(25):
        name, act = rng.choice(names), rng.choice(("write", "sync", "remove", "kill", "crash"))
        if act == "write":
            safe.pop(name, None)
            with suppress(OSError):
                put(disk, name, rng.randbytes(rng.randint(1, 2000)))
        elif act == "sync" and disk.exists(name):
            disk.open(name).sync()
            disk.sync_dir(".")
            safe[name] = get(disk, name)
        elif act == "remove":
            safe.pop(name, None)
            disk.remove(name)
        elif act == "kill":
            disk.kill()
        elif act == "crash":
            disk.crash(rng.randint(0, 99), reorder_names=rng.random() < 0.5)
        disk = disk.clone() if rng.random() < 0.3 else disk
        for path, data in safe.items():
            assert get(disk, path) == data
