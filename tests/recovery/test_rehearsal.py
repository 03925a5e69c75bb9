"""A recovery on an overlay does what one on a copy does, and changes nothing below."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from trio_mq.recovery.report import RecoveryReport
from trio_mq.store.disk import RealDisk
from trio_mq.store.overlay import OverlayDisk
from trio_mq.store.scratch import Scratch
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk

from .stores import World

ROOT = "/store"


def on(world: World, disk: object) -> World:
    """The same store, at the same time, on another disk."""
    clock = ManualClock(world.clock.now_ms())
    return attrs.evolve(world, disk=disk, clock=clock, report=RecoveryReport())


def copy(world: World) -> World:
    """A store of its own with the same files."""
    other = on(world, MemoryDisk())
    for name, data in world.files().items():
        other.write(f"{world.root}/{name}", data)
    return other


def told(report: RecoveryReport) -> dict[str, object]:
    """All that a report says, but for how long it took."""
    return {**attrs.asdict(report), "phase_s": None}


def nothing(world: World, offsets: list[int]) -> None:
    """No damage."""


def torn_end(world: World, offsets: list[int]) -> None:
    """The last record was written in part."""
    world.write_log(bytes(30), offsets[-1] + 60)


def damaged_middle(world: World, offsets: list[int]) -> None:
    """A bit flipped, and queues have to be made again from there on."""
    world.flip(offsets[30] + 100)
    world.cut_entries("T", 0, 2, 3)


def no_queues(world: World, offsets: list[int]) -> None:
    """All queues and the index are gone."""
    for folder in ("consumequeue", "index"):
        world.disk.remove_tree(world.path(folder))


def no_middle(world: World, offsets: list[int]) -> None:
    """A file of the log is missing."""
    world.disk.remove(world.segment(offsets[30]))


def spoilt_index(world: World, offsets: list[int]) -> None:
    """The index file has another size; the checkpoint is empty."""
    for name in world.disk.list_dir(world.path("index")):
        world.resize(world.path(f"index/{name}"), 1000)
    world.resize(world.path("checkpoint"), 0)


DAMAGES = [nothing, torn_end, damaged_middle, no_queues, no_middle, spoilt_index]


async def crashed(damage: Callable[[World, list[int]], None]) -> World:
    """A store after a kill, damaged, on a disk that now refuses every change."""
    world = World.make(MemoryDisk(), ROOT)
    damage(world, await world.filled(90, kill=True))
    world.disk.fail_when(lambda operation: True, errno.EROFS)
    return world


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_rehearsal_has_the_same_result_as_the_real_thing_on_a_copy(damage):
    world = await crashed(damage)
    before, names = world.files(), world.disk.operations.copy()
    real = copy(world)
    await real.restart()
    overlay = OverlayDisk(world.disk, scratch=Scratch(8192))
    rehearsal = on(world, overlay)
    await rehearsal.restart()
    assert told(rehearsal.report) == told(real.report)
    assert rehearsal.files() == real.files()
    assert world.files() == before
    assert world.disk.operations == names, "nothing was even tried"

    after = real.files()
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    changes = {change.path.removeprefix(f"{ROOT}/"): change for change in overlay.changes()}
    assert changed == {name for name, change in changes.items() if not change.is_dir}
    for name in changed:
        assert (changes[name].kind == "created") == (name not in before)
        assert (changes[name].kind == "removed") == (name not in after)


async def test_a_second_rehearsal_on_top_of_the_first_changes_nothing_more():
    world = await crashed(damaged_middle)
    overlay = OverlayDisk(world.disk)
    await on(world, overlay).restart()
    changes = overlay.changes()
    again = on(world, overlay)
    await again.restart()
    assert again.report.cut_bytes == 0
    assert overlay.changes() == changes


async def test_a_store_that_is_open_elsewhere_can_be_rehearsed(tmp_path):
    """On real files, with index files mapped; the other process goes on writing."""
    world = World.make(RealDisk(), str(tmp_path / "store"))
    async with world.life(kill=True) as store:
        offsets = [world.send(store, b"body %d" % n, keys=f"k{n}") for n in range(40)]
        store.commit()
        store.dispatcher.finish()
        before = stats(tmp_path)
        overlay = OverlayDisk(world.disk)
        rehearsal = on(world, overlay)
        await rehearsal.restart()
        assert rehearsal.report.records == 40
        assert rehearsal.report.log_end > offsets[-1]
        assert stats(tmp_path) == before
        changed = {c.path.removeprefix(f"{world.root}/") for c in overlay.changes()}
        assert "checkpoint" in changed
        assert not [name for name in changed if "/" in name], "log, queues and index are whole"
        world.send(store, b"one more")


def stats(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Time, size and content of all files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "lock":
            stat = path.stat()
            found[str(path)] = (stat.st_mtime_ns, stat.st_size, path.read_bytes())
    return found


async def test_a_rehearsal_on_files_that_nobody_may_write_to(tmp_path):
    world = World.make(RealDisk(), str(tmp_path / "store"))
    offsets = await world.filled(90, kill=True)
    damaged_middle(world, offsets)
    shutil.copytree(world.root, tmp_path / "copy")
    real = on(attrs.evolve(world, root=str(tmp_path / "copy")), RealDisk())
    real.settings = attrs.evolve(world.settings, path=real.root)
    await real.restart()
    for folder, _, names in os.walk(world.root):
        for name in names:
            os.chmod(os.path.join(folder, name), 0o444)
        os.chmod(folder, 0o555)
    before = stats(tmp_path / "store")
    rehearsal = on(world, OverlayDisk(RealDisk()))
    await rehearsal.restart()
    assert rehearsal.derived() == real.derived()
    assert stats(tmp_path / "store") == before
    for folder, _, _ in os.walk(world.root):
        os.chmod(folder, 0o755)
