"""The small marker files: checkpoint with its marks, abort marker, lock."""

from __future__ import annotations

import attrs
import pytest

from tests import golden_stores as golden
from trio_mq.errors import StoreDamaged, StoreLocked
from trio_mq.protocol.layout import CHECKPOINT_SIZE, Checkpoint, pack_checkpoint
from trio_mq.store.checkpoint import (
    AbortMarker,
    CheckpointFile,
    Marks,
    read_marks,
    take_lock,
    with_index_safe_offset,
    with_marks,
)
from trio_mq.store.disk import RealDisk
from trio_mq.testing.disk import MemoryDisk


@pytest.fixture(params=["real", "memory"])
def disk(request):
    return RealDisk() if request.param == "real" else MemoryDisk()


@pytest.fixture
def root(disk, tmp_path):
    path = str(tmp_path / "store")
    disk.make_dirs(path)
    return path


def put(disk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write(data, 0)
    file.close()


# -- checkpoint


def test_a_checkpoint_reads_back(disk, root):
    file = CheckpointFile(disk, f"{root}/checkpoint")
    file.load()
    assert not file.known
    file.value = Checkpoint(1, 2, 3, 4, 5)
    file.save()
    assert disk.size(f"{root}/checkpoint") == CHECKPOINT_SIZE
    again = CheckpointFile(disk, f"{root}/checkpoint")
    again.load()
    assert again.known
    assert again.value == Checkpoint(1, 2, 3, 4, 5)


@pytest.mark.parametrize("size", [0, 1, 48, CHECKPOINT_SIZE - 1])
def test_a_short_one_says_nothing_c017(disk, root, size):
    put(disk, f"{root}/checkpoint", b"\1" * size)
    file = CheckpointFile(disk, f"{root}/checkpoint")
    file.load()
    assert not file.known
    assert file.value == Checkpoint()
    file.save()
    assert disk.size(f"{root}/checkpoint") == CHECKPOINT_SIZE


def test_a_longer_one_is_no_checkpoint(disk, root):
    put(disk, f"{root}/checkpoint", bytes(CHECKPOINT_SIZE + 1))
    with pytest.raises(StoreDamaged, match="4097 bytes"):
        CheckpointFile(disk, f"{root}/checkpoint").load()


def test_apaches_own_checkpoint_is_kept_as_it_is(disk, root):
    data = golden.read_file("clean", "checkpoint")
    put(disk, f"{root}/checkpoint", data)
    file = CheckpointFile(disk, f"{root}/checkpoint")
    file.load()
    file.save()
    assert disk.open(f"{root}/checkpoint").read(5000, 0) == data
    assert read_marks(file.value) == Marks()


def test_bytes_of_other_programs_stay():
    value = Checkpoint(rest=bytes(100) + b"theirs" + bytes(CHECKPOINT_SIZE - 40 - 106))
    marked = with_marks(value, Marks(700, 300))
    assert marked.rest[24:] == value.rest[24:]
    assert len(pack_checkpoint(marked)) == CHECKPOINT_SIZE


def test_marks_read_back():
    value = Checkpoint(10, 20, 30)
    assert read_marks(value) == Marks(0, None)
    for marks in (Marks(700, None), Marks(700, 0), Marks(0, 12345)):
        assert read_marks(with_marks(value, marks)) == marks
    assert read_marks(with_index_safe_offset(value, 99)) == Marks(99, None)


def test_the_safe_offset_counts_only_with_the_time_that_it_was_written_with():
    """A peer that ran the store has moved the queues' time, and knows nothing of our mark."""
    value = with_marks(Checkpoint(10, 20, 30), Marks(700, 5))
    moved = attrs.evolve(value, logics_timestamp_ms=21)
    assert read_marks(moved) == Marks(0, 5)
    negative = with_marks(Checkpoint(), Marks(-1))
    assert read_marks(negative) == Marks(0, None)


def test_a_first_checkpoint_survives_by_its_name_too():
    for seed in range(10):
        disk = MemoryDisk()
        disk.make_dirs("/s")
        disk.sync_dir("/s")
        file = CheckpointFile(disk, "/s/checkpoint")
        file.value = Checkpoint(1, 2, 3)
        file.save()
        disk.crash(seed, keep="none")
        again = CheckpointFile(disk, "/s/checkpoint")
        again.load()
        assert again.value == Checkpoint(1, 2, 3)


def test_a_power_cut_during_a_save_leaves_the_old_or_the_new_values():
    outcomes = set()
    for seed in range(60):
        disk = MemoryDisk()
        disk.make_dirs("/s")
        file = CheckpointFile(disk, "/s/checkpoint")
        file.value = Checkpoint(1, 1, 1)
        file.save()
        file.value = Checkpoint(2, 2, 2)
        disk.fail_when(lambda operation: operation.kind == "sync")
        with pytest.raises(OSError):
            file.save()
        disk.crash(seed)
        again = CheckpointFile(disk, "/s/checkpoint")
        again.load()
        outcomes.add((again.known, again.value.physic_timestamp_ms, again.value.index_timestamp_ms))
    assert outcomes == {(True, 1, 1), (True, 2, 2)}


# -- abort marker


def test_the_abort_marker_comes_and_goes(disk, root):
    marker = AbortMarker(disk, f"{root}/abort")
    assert not marker.present
    assert marker.owner() == ""
    marker.create(4711, root)
    assert marker.present
    assert marker.owner() == "4711"
    marker.create(12, root)
    assert marker.owner() == "12"
    marker.remove(root)
    marker.remove(root)
    assert not marker.present


def test_an_empty_marker_counts_c017(disk, root):
    put(disk, f"{root}/abort", b"")
    marker = AbortMarker(disk, f"{root}/abort")
    assert marker.present
    assert marker.owner() == ""


def test_marker_and_its_removal_survive_a_power_cut():
    for seed in range(10):
        disk = MemoryDisk()
        disk.make_dirs("/s")
        marker = AbortMarker(disk, "/s/abort")
        marker.create(1, "/s")
        disk.crash(seed, keep="none")
        assert marker.present
        marker.remove("/s")
        disk.crash(seed, keep="none")
        assert not marker.present


# -- lock


def test_a_second_process_is_told_who_has_the_store_c013():
    disk = MemoryDisk()
    disk.make_dirs("/s")
    lock = take_lock(disk, "/s")
    with pytest.raises(StoreLocked, match=r"the store /s is open in another process; .* --store"):
        take_lock(disk, "/s")
    AbortMarker(disk, "/s/abort").create(4711, "/s")
    before = disk.operations[:]
    with pytest.raises(StoreLocked, match="process 4711"):
        take_lock(disk, "/s")
    assert disk.operations == before  # nothing was changed
    lock.release()
    take_lock(disk, "/s").release()
