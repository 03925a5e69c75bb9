"""Stores of any origin are known by their files; what is none is refused with a reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.golden_stores import (
    HASH_SLOTS,
    MAX_INDEX_NUM,
    QUEUE_FILE_SIZE,
    SEGMENT_SIZE,
    unpack,
)
from trio_mq.config import StoreSettings
from trio_mq.errors import ForeignFormat, StoreError
from trio_mq.recovery.detect import Detected, detect, view_settings
from trio_mq.store.disk import Disk, File, RealDisk
from trio_mq.store.overlay import OverlayDisk
from trio_mq.testing.disk import MemoryDisk

from .stores import SEGMENT_BYTES, World

ROOT = "/store"


def sizes(detected: Detected) -> tuple[int, ...]:
    """The numbers alone."""
    return (
        detected.log_segment.value,
        detected.queue_file.value,
        detected.batch_queue_file.value,
        detected.index_slots.value,
        detected.index_entries.value,
    )


APACHES = (1 << 30, 6_000_000, 13_800_000, 5_000_000, 20_000_000)
WORLDS = (SEGMENT_BYTES, 1000, 460, 50, 400)


async def made(*, kill: bool = False) -> World:
    """A store of ours with all kinds of files."""
    world = World.make(MemoryDisk(), ROOT)
    world.batch_topics.add("B")
    async with world.life(kill=kill) as store:
        for n in range(60):
            world.send(store, b"body %d" % n, "T", n % 3, keys=f"k{n}")
        world.send_batch(store, [b"a", b"b"])
    return world


# -- stores


@pytest.mark.parametrize("kill", [False, True])
async def test_a_store_of_ours(kill):
    world = await made(kill=kill)
    before = world.files()
    operations = list(world.disk.operations)
    found = detect(world.disk, ROOT)
    assert sizes(found) == WORLDS
    assert (found.commit_log_only, found.notes) == (False, ())
    assert found.texts == (
        "log files: 4096 bytes (the length of 2 of 2, and the names are as far apart)",
        "queue files: 1000 bytes (the length of 3 of 3)",
        "batch queue files: 460 bytes (the length of the only batch queue file)",
        f"index files: 50 slots ({found.index_slots.how})",
        f"index files: 400 entries ({found.index_slots.how})",
    )
    assert found.index_slots.how.startswith(f"by the entries in {ROOT}/index/")
    settings = view_settings(found, ROOT)
    assert settings == StoreSettings(
        path=ROOT,
        mapped_file_size_commit_log=4096,
        mapped_file_size_consume_queue=1000,
        mapped_file_size_batch_consume_queue=460,
        max_hash_slot_num=50,
        max_index_num=400,
    )
    assert (world.files(), world.disk.operations) == (before, operations)


@pytest.mark.parametrize("name", ["clean", "crash"])
def test_a_store_of_apaches(name, tmp_path):
    root = str(unpack(name, tmp_path))
    found = detect(RealDisk(), f"{root}/")
    assert sizes(found) == (SEGMENT_SIZE, QUEUE_FILE_SIZE, 13_800_000, HASH_SLOTS, MAX_INDEX_NUM)
    assert all(size.found for size in (found.log_segment, found.queue_file, found.index_slots))
    assert found.notes == ()
    assert not found.commit_log_only
    assert view_settings(found, f"{root}/").commit_log_dir == f"{root}/commitlog"


async def test_a_start_with_what_was_found_finds_nothing_to_do(tmp_path):
    world = await made()
    overlay = OverlayDisk(world.disk)
    settings = view_settings(detect(overlay, ROOT), ROOT)
    again = World(overlay, ROOT, settings, world.clock, world.batch_topics)
    report = await again.restart()
    assert report.clean
    assert report.notes == []


async def test_the_log_alone_in_a_store(tmp_path):
    world = await made()
    for name in world.disk.list_dir(ROOT):
        if name != "commitlog":
            world.disk.remove_tree(f"{ROOT}/{name}")
            if not world.disk.is_dir(f"{ROOT}/{name}"):
                world.disk.remove(f"{ROOT}/{name}")
    found = detect(world.disk, ROOT)
    assert found.commit_log_only
    assert found.commit_log_dir == f"{ROOT}/commitlog"
    assert sizes(found) == (SEGMENT_BYTES, *APACHES[1:])
    assert not found.queue_file.found


async def test_the_folder_of_the_log_itself():
    world = await made()
    for path in (f"{ROOT}/commitlog", f"{ROOT}/commitlog/"):
        found = detect(world.disk, path)
        assert found.commit_log_only
        assert sizes(found) == (SEGMENT_BYTES, *APACHES[1:])
        assert view_settings(found, path).commit_log_dir == f"{ROOT}/commitlog"


def test_log_files_in_a_folder_of_any_name(tmp_path):
    root = unpack("clean", tmp_path)
    shutil.copytree(root / "commitlog", tmp_path / "saved-log")
    found = detect(RealDisk(), str(tmp_path / "saved-log"))
    assert found.log_segment.value == SEGMENT_SIZE
    assert found.commit_log_only


async def test_a_log_with_a_place_of_its_own():
    world = await made()
    disk = world.disk
    disk.make_dirs("/fast")
    for name in disk.list_dir(f"{ROOT}/commitlog"):
        disk.rename(f"{ROOT}/commitlog/{name}", f"/fast/{name}")
    disk.remove_tree(f"{ROOT}/commitlog")
    found = detect(disk, ROOT)
    assert sizes(found) == (APACHES[0], *WORLDS[1:])
    assert "storePathCommitLog" in found.notes[0]
    found = detect(disk, ROOT, commit_log_dir="/fast")
    assert (sizes(found), found.notes) == (WORLDS, ())
    assert view_settings(found, ROOT).commit_log_path == "/fast"


async def test_empty_folders_have_the_default():
    disk = MemoryDisk()
    for folder in ("commitlog", "consumequeue/T/0", "batchconsumequeue/B/0", "index"):
        disk.make_dirs(f"{ROOT}/{folder}")
    found = detect(disk, ROOT)
    assert sizes(found) == APACHES
    assert found.notes == ()
    assert not found.commit_log_only
    assert not any(size.found for size in (found.log_segment, found.queue_file, found.index_slots))


# -- what does not fit


async def test_a_broken_copy_is_known_and_the_short_files_are_named():
    world = await made()
    last = world.disk.list_dir(f"{ROOT}/commitlog")[-1]
    world.write(f"{ROOT}/commitlog/{last}", b"x" * 100, 3800)
    world.resize(f"{ROOT}/commitlog/{last}", 3900)
    world.resize(world.queue_file("T", 1), 433)
    found = detect(world.disk, ROOT)
    assert sizes(found) == WORLDS
    assert found.notes == (
        f"{ROOT}/commitlog/{last} has 3900 bytes, expected 4096",
        f"{ROOT}/consumequeue/T/1/{0:020d} has 433 bytes, expected 1000",
    )


async def test_one_log_file_that_was_cut_is_not_taken_for_a_size():
    disk = MemoryDisk()
    world = World.make(disk, ROOT)
    world.write(f"{ROOT}/commitlog/{0:020d}", b"record" * 10_000)
    found = detect(disk, ROOT)
    assert found.log_segment.value == 1 << 30
    assert not found.log_segment.found
    assert found.notes == (f"{ROOT}/commitlog/{0:020d} has 60000 bytes, expected {1 << 30}",)


async def test_an_empty_last_file_is_no_contradiction():
    world = await made(kill=True)
    end = len(world.disk.list_dir(f"{ROOT}/commitlog")) * SEGMENT_BYTES
    world.resize(world.segment(end), 0)
    found = detect(world.disk, ROOT)
    assert (sizes(found), found.notes) == (WORLDS, ())


async def test_an_index_file_of_another_size_is_named():
    world = await made()
    world.resize(f"{ROOT}/index/20200101000000000", 900)
    [name] = [n for n in world.disk.list_dir(f"{ROOT}/index") if n != "20200101000000000"]
    found = detect(world.disk, ROOT)
    assert sizes(found) == WORLDS
    assert found.notes == (
        f"{ROOT}/index/20200101000000000 has 900 bytes, expected 8240 as of most index files",
    )
    world.disk.remove(f"{ROOT}/index/{name}")
    found = detect(world.disk, ROOT)
    assert sizes(found)[3:] == APACHES[3:]
    assert "no entry in them tells" in found.notes[0]
    world.resize(f"{ROOT}/index/20200101000000000", 7)
    found = detect(world.disk, ROOT)
    assert found.notes == (f"{ROOT}/index/20200101000000000 has 7 bytes, so it is no index file",)


def test_index_files_without_entries_are_known_by_their_length():
    disk = MemoryDisk()
    world = World.make(disk, ROOT)
    disk.make_dirs(f"{ROOT}/index")
    world.resize(f"{ROOT}/index/20200101000000000", 420_000_040)
    found = detect(disk, ROOT)
    assert sizes(found) == APACHES
    assert found.index_slots.found
    world.resize(f"{ROOT}/index/20200101000000000", 40 + 84 * 700)
    found = detect(disk, ROOT)
    assert sizes(found)[3:] == (700, 2800)


# -- what is no store


def refused(disk: Disk, path: str) -> str:
    with pytest.raises(ForeignFormat) as caught:
        detect(disk, path)
    text = str(caught.value)
    assert text.startswith(path.rstrip("/")), "the path is named first"
    return text


def test_what_is_no_store_is_refused_with_reason_and_next_step():
    disk = MemoryDisk()
    disk.make_dirs("/data/empty")
    disk.make_dirs("/data/photos")
    disk.open("/data/photos/cat.jpg", create=True).close()
    disk.make_dirs("/data/one/commitlog")
    disk.make_dirs("/data/other/commitlog")
    disk.remove_tree("/data/other/commitlog")
    assert "nothing is there; look for storePathRootDir" in refused(disk, "/nowhere")
    assert "it is a file" in refused(disk, "/data/photos/cat.jpg")
    assert "the folder is empty" in refused(disk, "/data/empty/")
    assert "it holds cat.jpg, but neither commitlog" in refused(disk, "/data/photos")
    assert "there is one in it: /data/one" in refused(disk, "/data")
    assert "the folder is empty" in refused(disk, "/data/one/commitlog")
    disk.open("/data/one/commitlog/readme", create=True).close()
    assert "it holds no log files" in refused(disk, "/data/one/commitlog")


async def test_a_part_of_a_store_is_refused_and_the_whole_is_named():
    world = await made()
    world.disk.make_dirs(f"{ROOT}/timerlog")
    world.resize(f"{ROOT}/timerlog/{0:020d}", 100)
    for part in ("consumequeue", "consumequeue/T", "consumequeue/T/0", "timerlog"):
        assert f"part of a store; name the whole: {ROOT}" in refused(world.disk, f"{ROOT}/{part}")


class Forbidding(RealDisk):
    """A disk on which some calls are not permitted."""

    def __init__(self, what: str, path: str) -> None:
        self.what, self.path = what, path

    def _check(self, what: str, path: str) -> None:
        if (what, path) == (self.what, self.path):
            raise PermissionError(13, "Permission denied", path)

    def exists(self, path: str) -> bool:
        return (self.what, self.path) != ("size", path) and super().exists(path)

    def size(self, path: str) -> int:
        self._check("size", path)
        return super().size(path)

    def list_dir(self, path: str) -> list[str]:
        self._check("list_dir", path)
        return super().list_dir(path)

    def open(self, path: str, *, create: bool = False, readonly: bool = False) -> File:
        self._check("open", path)
        return super().open(path, create=create, readonly=readonly)


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("size", ""),
        ("list_dir", ""),
        ("list_dir", "/commitlog"),
        ("list_dir", "/consumequeue"),
        ("open", "/commitlog/00000000000000131072"),
    ],
)
def test_what_may_not_be_read_is_named(what, name, tmp_path):
    root = str(unpack("clean", tmp_path))
    with pytest.raises(StoreError) as caught:
        detect(Forbidding(what, root + name), root)
    assert not isinstance(caught.value, ForeignFormat)
    assert str(caught.value).startswith(
        f"{root}{name} cannot be read: Permission denied; run this as"
    )


def test_a_disk_that_fails_is_no_missing_store(tmp_path: Path):
    root = str(unpack("clean", tmp_path))

    class Failing(Forbidding):
        def _check(self, what: str, path: str) -> None:
            if (what, path) == (self.what, self.path):
                raise OSError(5, "Input/output error", path)

    with pytest.raises(StoreError, match="Input/output error; look at the disk"):
        detect(Failing("list_dir", f"{root}/index"), root)


def test_files_that_go_meanwhile_are_left_out(tmp_path: Path):
    root = str(unpack("clean", tmp_path))

    class Vanishing(RealDisk):
        """The first file of every row, every index file, and a log file that was listed before."""

        def size(self, path: str) -> int:
            if path.endswith("00000000000000000000") or "/index/" in path:
                raise FileNotFoundError(2, "No such file or directory", path)
            return super().size(path)

        def open(self, path: str, *, create: bool = False, readonly: bool = False) -> File:
            if path.endswith("131072"):
                raise FileNotFoundError(2, "No such file or directory", path)
            return super().open(path, create=create, readonly=readonly)

    found = detect(Vanishing(), root)
    assert found.log_segment.value == SEGMENT_SIZE
    assert not found.index_slots.found
    assert found.notes == ()


def test_strange_names_are_passed_over(tmp_path: Path):
    root = unpack("clean", tmp_path)
    (root / "consumequeue" / "file").write_bytes(b"1")
    (root / "consumequeue" / "GoldNormal" / "other").mkdir()
    (root / "commitlog" / "cut").mkdir()
    (root / "commitlog" / "00000000000000000001").mkdir()
    (root / "index" / "notes.txt").write_bytes(b"1")
    found = detect(RealDisk(), str(root))
    assert sizes(found)[:2] == (SEGMENT_SIZE, QUEUE_FILE_SIZE)
    assert found.notes == ()
