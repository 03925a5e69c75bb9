"""The quarantine: what a start cuts from the log is in a folder afterwards, bounded, with a manifest that says why."""

from __future__ import annotations

import errno
import logging
import random

import pytest

from tests.golden_stores import raw_records
from trio_mq.errors import StoreDamaged, StoreFull
from trio_mq.recovery.manifest import Manifest
from trio_mq.recovery.quarantine import MOST_FOLDERS, data_runs, listed, measure
from trio_mq.recovery.survey import Lot, survey
from trio_mq.store.segments import FilePool, Segments
from trio_mq.testing.disk import MemoryDisk

from .cuts import DAMAGED, TwoFileSystems, damaged, held, manifest_of, only, segment_names
from .stores import SEGMENT_BYTES, World, bodies, everything
from .test_golden import golden

# -- what is kept


async def test_a_torn_tail_is_kept_too(world: World):
    offsets = await world.filled(9, kill=True)
    last = offsets[-1]
    world.write_log(bytes(30), last + 100)
    tail = world.read_log(200, last)
    written = len(tail.rstrip(b"\0"))
    async with world.life() as store:
        assert world.report.log_end == last
        assert world.report.quarantine == only(world).folder
        assert f"what was cut off is kept in {only(world).folder}" in world.report.notes
        assert f"kept in {only(world).folder}" in world.report.line()
        assert world.report.as_dict()["quarantine"] == only(world).folder
        assert sum(map(len, everything(store).values())) == 8
    kept = only(world)
    manifest = manifest_of(kept)
    assert kept.folder.endswith(f"-{last:020d}")
    assert (manifest.offset, manifest.length, manifest.kept_length) == (last, written, written)
    assert "properties" in manifest.reason
    assert held(world, kept, last, written) == tail[:written]
    assert world.read_log(200, last) == bytes(200)


async def test_whole_segments_are_moved_and_the_rest_is_copied(world: World):
    cut = await damaged(world)
    names = segment_names(world)
    async with world.life() as store:
        assert world.report.log_end == min(cut)
        assert sum(map(len, everything(store).values())) == DAMAGED
    kept = only(world)
    manifest = manifest_of(kept)
    behind = [name for name in names if int(name) + SEGMENT_BYTES > min(cut)]
    assert world.disk.list_dir(kept.folder) == [*behind, "manifest.json"]
    assert [file.name for file in manifest.files] == behind
    assert world.disk.list_dir(world.path("commitlog"))[-1] == behind[0]
    for offset, raw in cut.items():
        assert held(world, kept, offset, len(raw)) == raw
    first = world.read(f"{kept.folder}/{behind[0]}")
    at = min(cut) - int(behind[0])
    assert first[:at] == bytes(at), "what stays in the log is not in the copy"
    assert [world.disk.size(f"{kept.folder}/{name}") for name in behind] == [SEGMENT_BYTES] * len(
        behind
    ), "a folder can be read as a row of segments"
    assert manifest.length == max(cut) + len(cut[max(cut)]) - min(cut)
    assert manifest.kept_length == manifest.length
    moved = [note for note in world.report.notes if "is now in" in note]
    assert len(moved) == len(behind) - 1


async def test_a_folder_is_a_row_of_log_files(world: World):
    """A survey of it finds all records behind the damaged one, as it would have in the log."""
    cut = await damaged(world)
    await world.restart()
    kept = only(world)
    segments = Segments(world.disk, FilePool(world.disk), kept.folder, SEGMENT_BYTES)
    assert segments.load() == []
    pieces = survey(segments, begin=manifest_of(kept).offset)
    found = [w.log_offset for piece in pieces if isinstance(piece, Lot) for w in piece.records()]
    assert found == sorted(cut)[1:]
    segments.close()


async def test_nothing_is_kept_where_nothing_is_cut(world: World):
    await world.filled(60, kill=True)
    report = await world.restart()
    assert (report.quarantine, report.cut_bytes) == (None, 0)
    assert (await world.restart()).quarantine is None
    assert not world.disk.exists(world.path("quarantine"))


async def test_records_far_behind_zeros_are_found_and_kept(tmp_path):
    """Pages of the log were lost, and more than a mebibyte of it: what lies behind might fit a later end."""
    world = World.make(MemoryDisk(), "store", mapped_file_size_commit_log=8 * 1024 * 1024)
    offsets = await world.filled(5, kill=True)
    stale = world.read_log(300, offsets[2])
    far = 3 * 1024 * 1024
    world.write_log(stale, far)
    async with world.life() as store:
        assert sum(map(len, everything(store).values())) == 5
    kept = only(world)
    assert world.report.quarantine == kept.folder
    assert world.report.cut_bytes == manifest_of(kept).length
    assert manifest_of(kept).files[0].data_bytes < 400, "zeros take no room"
    file = world.disk.open(f"{kept.folder}/{0:020d}")
    assert file.read(300, far) == stale
    assert world.read_log(300, far) == bytes(300)
    again = await world.restart()
    assert (again.quarantine, again.cut_reason) == (None, None)


async def test_two_cuts_have_two_folders(world: World):
    for _ in range(2):
        async with world.life(kill=True) as store:
            at = world.send(store, b"x" * 50)
        world.flip(at + 88)
    await world.restart()
    first, second = listed(world.disk, world.root)
    assert first.folder < second.folder
    assert manifest_of(first).offset == manifest_of(second).offset
    assert held(world, first, at, 80) != held(world, second, at, 80)


async def test_a_segment_that_begins_at_the_end_stays(world: World):
    """As in Apache's truncateDirtyFiles; its bytes are copied, those of later ones move."""
    offsets = await world.filled(100, kill=True)
    world.disk.remove(world.path("checkpoint"))
    first = next(o for o in offsets if o >= SEGMENT_BYTES)
    world.flip(first + 88)
    raw = world.read_log(SEGMENT_BYTES, first)
    async with world.life() as store:
        assert world.report.log_end == first == SEGMENT_BYTES
        assert world.disk.exists(world.segment(first))
        assert not world.disk.exists(world.segment(first + SEGMENT_BYTES))
        assert world.send(store, b"goes on") == first
    assert held(world, only(world), first, SEGMENT_BYTES) == raw


async def test_a_blank_at_the_end_is_no_loss(world: World):
    offsets = await world.filled(60, kill=True)
    for name in world.disk.list_dir(world.path("commitlog"))[1:]:
        world.disk.remove(world.path(f"commitlog/{name}"))
    assert offsets
    await world.restart()
    assert listed(world.disk, world.root) == []


async def test_a_damaged_store_of_apaches(tmp_path):
    """The crashed reference store with a flipped bit in a record near its end: all from there on is kept."""
    world = golden("crash", tmp_path)
    records = list(raw_records("crash"))
    bad = records[-3][0]
    world.flip(bad + 90)
    last = records[-1][0] + len(records[-1][1])
    tail = world.read_log(last - bad, bad)
    async with world.life() as store:
        assert world.report.log_end == bad
        for offset, raw in records[:-3]:
            assert store.reader.record(offset) == raw
    manifest = manifest_of(only(world))
    assert (manifest.offset, manifest.length) == (bad, len(tail.rstrip(b"\0")))
    assert held(world, only(world), bad, len(tail)) == tail
    assert world.read_log(len(tail), bad) == bytes(len(tail))
    assert (await world.restart()).quarantine is None


# -- switched off, and bounded


async def test_it_can_be_turned_off(tmp_path):
    world = World.make(MemoryDisk(), "store", quarantine_max_bytes=0)
    cut = await damaged(world)
    async with world.life() as store:
        assert sum(map(len, everything(store).values())) == DAMAGED
    assert world.report.quarantine is None
    assert any("not kept, since quarantineMaxBytes is 0" in n for n in world.report.notes)
    assert not world.disk.exists("store/quarantine")
    assert world.read_log(200, min(cut)) == bytes(200)
    assert len([n for n in world.report.notes if "lies behind the log's end and is removed" in n])


@pytest.mark.parametrize("bound", [100, 3000, SEGMENT_BYTES + 500, 2 * SEGMENT_BYTES + 100])
async def test_a_cut_that_is_larger_than_the_bound_is_kept_from_its_begin(bound: int):
    world = World.make(MemoryDisk(), "store", quarantine_max_bytes=bound)
    cut = await damaged(world)
    await world.restart()
    kept = only(world)
    manifest = manifest_of(kept)
    end = manifest.offset + manifest.kept_length
    assert manifest.kept_length < manifest.length
    data_bytes = sum(file.data_bytes for file in manifest.files)
    assert bound - 32 < data_bytes <= bound, "zeros at its end do not count"
    assert any(
        f"the first {manifest.kept_length} are kept" in note and f"is {bound}" in note
        for note in world.report.notes
    )
    for offset, raw in cut.items():
        there = max(0, min(len(raw), end - offset))
        assert held(world, kept, offset, there) == raw[:there]
        assert not held(world, kept, offset + there, len(raw) - there).strip(b"\0")
    assert world.report.log_end == min(cut)


async def test_the_oldest_go_first_once_the_new_one_is_there(world: World, caplog):
    caplog.set_level(logging.WARNING, "trio_mq.recovery")
    world = World.make(world.disk, world.root, quarantine_max_bytes=700)
    seen: list[str] = []
    for number in range(4):
        async with world.life(kill=True) as store:
            at = world.send(store, b"%d" % number * 200)
        world.flip(at + 88)
        report = await world.restart()
        assert report.quarantine is not None
        seen.append(report.quarantine)
    assert [kept.folder for kept in listed(world.disk, world.root)] == seen[-2:]
    assert f"{seen[1]} is removed for want of room (quarantineMaxBytes=700)" in caplog.text
    assert any(seen[1] in note for note in report.notes)


async def test_no_more_than_a_thousand_folders_are_kept():
    world = World.make(MemoryDisk(), "store")
    template = Manifest(8, 9, 9, "old", 1, SEGMENT_BYTES, ())
    for number in range(MOST_FOLDERS):
        folder = world.path(f"quarantine/20010101T{number:09d}-{8:020d}")
        world.write(f"{folder}/manifest.json", template.encode())
    await damaged(world)
    await world.restart()
    folders = listed(world.disk, world.root)
    assert len(folders) == MOST_FOLDERS
    assert folders[-1].folder == world.report.quarantine
    assert not folders[0].folder.endswith(f"20010101T{0:09d}-{8:020d}")


async def test_what_others_put_there_is_left_alone(world: World):
    world.write(world.path("quarantine/notes.txt"), b"mine")
    world.write(world.path("quarantine/saved/manifest.json"), b"mine")
    world = World.make(world.disk, world.root, quarantine_max_bytes=10)
    await damaged(world)
    await world.restart()
    assert world.read(world.path("quarantine/notes.txt")) == b"mine"
    assert world.read(world.path("quarantine/saved/manifest.json")) == b"mine"
    assert len(listed(world.disk, world.root)) == 1


# -- other file systems, no room


async def test_a_log_on_another_file_system_is_copied(caplog):
    world = World.make(TwoFileSystems(), "store", commit_log_path="log")
    cut = await damaged(world)
    async with world.life() as store:
        assert sum(map(len, everything(store).values())) == DAMAGED
    kept = only(world)
    assert kept.folder.startswith("store/quarantine/")
    for offset, raw in cut.items():
        assert held(world, kept, offset, len(raw)) == raw
    assert [name for name in world.disk.list_dir(kept.folder) if name.endswith(".tmp")] == []
    assert world.disk.list_dir("log") == [f"{n * SEGMENT_BYTES:020d}" for n in range(1)]


@pytest.mark.parametrize("separate", [False, True])
async def test_without_room_the_start_ends_and_says_how_to_go_on(separate: bool):
    disk = TwoFileSystems() if separate else MemoryDisk()
    world = World.make(disk, "store", **({"commit_log_path": "log"} if separate else {}))
    cut = await damaged(world)
    before = {o: world.read_log(len(raw), o) for o, raw in cut.items()}
    disk.fail_when(lambda o: o.kind == "write" and "quarantine" in o.path, errno.ENOSPC)
    with pytest.raises(StoreFull) as full:
        await world.restart()
    data_bytes = measure_of(world, min(cut))
    for part in ("store/quarantine", f"{data_bytes} bytes", "free", "quarantineMaxBytes=0"):
        assert part in str(full.value)
    disk.heal()
    assert {o: world.read_log(len(raw), o) for o, raw in cut.items()} == before
    assert listed(disk, "store") == []
    async with world.life() as store:
        assert sum(map(len, everything(store).values())) == DAMAGED
    assert len(listed(disk, "store")) == 1


def measure_of(world: World, offset: int) -> int:
    """Bytes of data that the first segment holds behind an offset: what has to be copied."""
    directory = world.settings.commit_log_dir
    segments = Segments(world.disk, FilePool(world.disk), directory, SEGMENT_BYTES)
    segments.load()
    return measure(segments, offset)[0].data_bytes


async def test_another_error_of_the_disk_names_the_path():
    disk = MemoryDisk()
    world = World.make(disk, "store")
    await damaged(world)
    disk.fail_when(lambda o: o.kind == "write" and "quarantine" in o.path, errno.EIO)
    with pytest.raises(StoreDamaged, match=r"recovery cannot use .*quarantine"):
        await world.restart()
    disk.heal()
    assert listed(disk, "store") == []
    assert (await world.restart()).quarantine is not None


# -- what is not ours to remove


async def test_a_folder_without_manifest_whose_bytes_are_nowhere_else_stays(world: World):
    await damaged(world)
    await world.restart()
    kept = only(world)
    world.disk.remove(f"{kept.folder}/manifest.json")
    before = world.disk.list_dir(kept.folder)
    world.crash()
    await world.restart()
    assert world.disk.list_dir(kept.folder) == before


async def test_a_manifest_that_cannot_be_read_does_no_harm(world: World):
    await damaged(world)
    await world.restart()
    kept = only(world)
    world.write(f"{kept.folder}/manifest.json", b"}")
    async with world.life(kill=True) as store:
        at = world.send(store, b"x" * 50)
    world.flip(at + 88)
    report = await world.restart()
    assert report.quarantine not in (None, kept.folder)
    assert len(listed(world.disk, world.root)) == 2


# -- the scan


@pytest.mark.parametrize("seed", range(10))
def test_data_runs_are_all_that_is_not_zero(world: World, seed: int):
    rng = random.Random(seed)
    size = 1024 * 1024
    segments = Segments(world.disk, FilePool(world.disk), world.path("commitlog"), size)
    segments.create(0)
    image = bytearray(size)
    for _ in range(rng.randint(0, 6)):
        at = rng.randrange(size - 200_000)
        piece = rng.randbytes(rng.choice((1, 100, 70_000, 150_000)))
        image[at : at + len(piece)] = piece
        segments.write(piece, at)
    begin = rng.choice((0, 1, 4095, rng.randrange(size)))
    again = bytearray(size)
    for at, data in data_runs(segments, begin, size):
        assert data[0]
        assert data[-1]
        again[at : at + len(data)] = data
    assert again[begin:] == image[begin:]
    behind = measure(segments, begin)
    written = len(bytes(image[begin:]).rstrip(b"\0"))
    assert [part.end for part in behind] == ([begin + written] if written else [])
    segments.close()


async def test_messages_go_on_after_a_cut(world: World):
    cut = await damaged(world)
    async with world.life(kill=True) as store:
        assert world.send(store, b"new", "New") == min(cut)
    async with world.life() as store:
        assert bodies(store, "New") == [b"new"]
        assert world.report.cut_reason is None
