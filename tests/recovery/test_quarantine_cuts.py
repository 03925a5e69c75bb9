"""Power cuts while the log is cut: each byte is in the log or in the quarantine, and nothing stale ever comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
import pytest

from trio_mq.recovery.apply import cut_log
from trio_mq.recovery.plan import EndPlan
from trio_mq.recovery.quarantine import Kept, listed
from trio_mq.testing.disk import MemoryDisk, PowerCut
from trio_mq.testing.disk_state import Keep

from .cuts import DAMAGED, TwoFileSystems, damaged, held, manifest_of, segment_names
from .stores import SEGMENT_BYTES, World, everything

pytestmark = pytest.mark.slow

KEEPS: list[tuple[Keep, bool]] = [("none", False), ("some", False), ("some", True), ("all", False)]
"""What of the unsynced changes a power cut leaves, and whether names come back in any order."""


def copies(world: World, kept: Kept, cut: dict[int, bytes]) -> set[int]:
    """Offsets of the records that a complete folder has."""
    if kept.manifest is None:
        return set()
    return {offset for offset, raw in cut.items() if held(world, kept, offset, len(raw)) == raw}


def in_log(world: World, cut: dict[int, bytes]) -> set[int]:
    """Offsets of the records that the log still has."""
    return {
        offset
        for offset, raw in cut.items()
        if world.disk.exists(world.segment(offset)) and world.read_log(len(raw), offset) == raw
    }


async def kills(
    keep: Keep, reorder: bool, *, separate: bool = False, at: int = DAMAGED, **changes: object
) -> AsyncIterator[tuple[World, dict[int, bytes]]]:
    """The same damaged store again and again, its next start cut off one operation later each time."""
    made = TwoFileSystems() if separate else MemoryDisk()
    settings = {**({"commit_log_path": "log"} if separate else {}), **changes}
    first = World.make(made, "store", **settings)
    cut = await damaged(first, at=at)
    made.crash(0, keep="all")
    for number in range(1, 500):
        disk = made.clone()
        world = attrs.evolve(first, disk=disk)
        disk.kill_at(number)
        try:
            await world.restart()
        except* PowerCut:
            pass
        else:
            return
        disk.crash(number, keep=keep, reorder_names=reorder)
        yield world, cut
    pytest.fail("recovery never ended")


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(("keep", "reorder"), KEEPS)
async def test_every_byte_is_in_the_log_or_in_a_complete_folder(
    keep: Keep, reorder: bool, separate: bool
):
    cuts = 0
    async for world, cut in kills(keep, reorder, separate=separate):
        cuts += 1
        segment_names(world)
        somewhere = in_log(world, cut)
        for kept in listed(world.disk, world.root):
            somewhere |= copies(world, kept, cut)
        assert somewhere == set(cut)
        assert (await world.restart()).log_end == min(cut)
        kept_now = [kept for kept in listed(world.disk, world.root) if kept.manifest is not None]
        assert set().union(*(copies(world, kept, cut) for kept in kept_now)) == set(cut)
        assert len(kept_now) <= 2
        assert in_log(world, cut) == set()
        assert int(segment_names(world)[-1]) <= min(cut)
        before = world.files("commitlog", "quarantine")
        again = await world.restart()
        assert (again.log_end, again.quarantine) == (min(cut), None)
        assert world.files("commitlog", "quarantine") == before
    assert cuts > 25


async def test_a_cut_that_was_begun_is_gone_on_with_in_its_folder():
    """All but the manifests of one cut are in one folder, whatever moment the power went off before the clearing."""
    async for world, cut in kills("all", False):
        begun = [kept for kept in listed(world.disk, world.root) if kept.manifest is not None]
        untouched = min(cut) in in_log(world, cut)
        await world.restart()
        complete = listed(world.disk, world.root)
        if begun and untouched:
            assert [kept.folder for kept in complete] == [kept.folder for kept in begun]
            assert copies(world, complete[0], cut) == set(cut)
            files = manifest_of(complete[0]).files
            assert world.disk.list_dir(complete[0].folder)[:-1] == [file.name for file in files]


@pytest.mark.parametrize(("keep", "reorder"), KEEPS)
async def test_a_bounded_cut_keeps_its_begin_through_power_cuts(keep: Keep, reorder: bool):
    bound = SEGMENT_BYTES + 1500
    async for world, cut in kills(keep, reorder, quarantine_max_bytes=bound):
        await world.restart()
        segment_names(world)
        found = set()
        for kept in listed(world.disk, world.root):
            found |= copies(world, kept, cut)
        inside = {o for o, raw in cut.items() if o + len(raw) <= min(cut) + bound}
        assert inside <= found
        assert in_log(world, cut) == set()


# -- nothing stale comes back


async def write_over(world: World, body: bytes) -> int:
    """Start, and store one message where the log ends; returns its offset. The power may go off anywhere."""
    async with world.life(kill=True) as store:
        at = world.send(store, body, "T", DAMAGED % 3, tags=f"tag{DAMAGED % 2}", keys=f"k{DAMAGED}")
        store.commit()
        segments = store.log.segments
        segments.sync_call(store.log.start, store.log.end)()
        return at


@pytest.mark.parametrize("at", [DAMAGED, 80])
async def test_a_cut_is_on_the_disk_before_the_store_takes_messages(at: int):
    """The cut goes through the segment that the end lies in, an earlier one or the last; nothing of it is unsynced."""
    disk = MemoryDisk()
    world = World.make(disk, "store")
    cut = await damaged(world, count=100, at=at)
    disk.crash(0, keep="all")
    parts = await world.recover()
    disk.crash(1, keep="none")
    parts.release()
    end = min(cut)
    names = segment_names(world)
    assert int(names[-1]) == end - end % SEGMENT_BYTES
    assert world.read_log(SEGMENT_BYTES, end).strip(b"\0") == b""


@pytest.mark.parametrize("at", [DAMAGED, 80])
async def test_cutting_syncs_what_it_does_itself(at: int):
    """Not only with all the rest at the end of a start."""
    disk = MemoryDisk()
    world = World.make(disk, "store")
    cut = await damaged(world, at=at)
    disk.crash(0, keep="all")
    parts = world.open_parts()
    parts.log.segments.load()
    done = cut_log(parts, EndPlan(min(cut), 1, "at some offset: damage"), thorough=True)
    disk.crash(1, keep="none")
    assert int(segment_names(world)[-1]) <= min(cut)
    assert in_log(world, cut) == set()
    assert world.read_log(SEGMENT_BYTES, min(cut)).strip(b"\0") == b""
    (kept,) = listed(disk, "store")
    assert kept.folder == done.folder
    assert copies(world, kept, cut) == set(cut)
    assert done.length == manifest_of(kept).length == max(cut) + len(cut[max(cut)]) - min(cut)


@pytest.mark.parametrize(("keep", "reorder"), KEEPS)
@pytest.mark.parametrize("at", [DAMAGED, 80])
async def test_no_stale_record_comes_back_after_writing_over_it(keep: Keep, reorder: bool, at: int):
    """Cut, write over the begin of the cut area with a record of just that size, and lose the power again.

    The next stale record would begin where the new one ends, with an offset that fits.
    """
    made = MemoryDisk()
    first = World.make(made, "store")
    cut = await damaged(first, at=at)
    made.crash(0, keep="all")
    body = b"body %d" % at
    for number in range(1, 500):
        disk = made.clone()
        world = attrs.evolve(first, disk=disk)
        disk.kill_at(number)
        try:
            written = await write_over(world, body)
        except* PowerCut:
            written = -1
        else:
            assert written == min(cut)
            following = sorted(cut)[1]
            assert following == min(cut) + len(cut[min(cut)]), "a stale record would fit"
        disk.crash(number, keep=keep, reorder_names=reorder)
        async with world.life() as store:
            found = sorted(body for some in everything(store).values() for body in some)
        good = sorted(b"body %d" % n for n in range(at))
        assert found in (good, sorted([*good, body]))
        if written >= 0:
            assert found == sorted([*good, body]), "what was synced is there"
            return
    pytest.fail("the start never ended")
