"""A recovery without a broker: the files are as after a start and a stop, and the report tells what was rehearsed."""

from __future__ import annotations

import attrs
import pytest

from tests.recovery.stores import World, everything
from trio_mq.config import Settings, StoreSettings
from trio_mq.errors import ForeignFormat, StoreLocked
from trio_mq.offline import Wanted, recover_offline, rehearse
from trio_mq.recovery.inspection import Verdict
from trio_mq.recovery.inspectiontext import lines

from .looking import carry_out, inspect, nothing
from .test_rehearsal import (
    DAMAGES,
    Damage,
    bad_tables,
    damaged_behind,
    flipped,
    no_checkpoint,
    no_middle,
    zeroed_middle,
)


async def test_a_crashed_store_is_closed_well_afterwards(world: World):
    await world.filled(100, kill=True)
    world.disk.remove_tree(world.path("consumequeue"))
    found = await carry_out(world, given=True)
    assert (found.done, found.verdict) == (True, Verdict.CHANGES)
    assert not world.disk.exists(world.path("abort"))
    assert "recovered, something was put right (exit code 1)" in next(lines(found))
    again = await carry_out(world)
    assert again.verdict is Verdict.SOUND
    async with world.life() as store:
        assert world.report.clean
        assert world.report.records <= 1
        assert sum(map(len, everything(store).values())) == 100


@pytest.mark.parametrize("damage", [d for d in DAMAGES if d is not bad_tables])
async def test_it_does_what_was_rehearsed(world: World, damage: Damage):
    damage(world, await world.filled(100, kill=True))
    rehearsed = await inspect(world, given=True)
    found = await carry_out(world, given=True)
    assert found.verdict is rehearsed.verdict
    assert found.report.log_end == rehearsed.report.log_end
    assert found.report.cut_bytes == rehearsed.report.cut_bytes
    assert found.queue_changes == rehearsed.queue_changes
    for change in rehearsed.changes:
        if change.kind.value == "removed" and not change.path.startswith("index/"):
            assert not world.disk.exists(world.path(change.path))
    again = await inspect(world)
    stays = damage in (no_middle, flipped, zeroed_middle) and again.is_damaged
    assert again.verdict is (Verdict.CHANGES if stays else Verdict.SOUND), list(lines(again))
    assert damage is not no_checkpoint or again.report.clean


async def test_new_files_of_a_guessed_size_are_not_made(world: World):
    """A broker with other settings would refuse them."""
    await world.filled(100, kill=True)
    world.disk.remove_tree(world.path("consumequeue"))
    before = world.files()
    found = await carry_out(world)
    assert world.files() == before
    assert (found.done, found.verdict) == (False, Verdict.REFUSED)
    assert "--set mappedFileSizeConsumeQueue=" in found.refusals[0]
    rehearsed = await inspect(world)
    assert rehearsed.verdict is Verdict.CHANGES
    assert "no file tells what the broker's settings say" in "\n".join(lines(rehearsed))


async def test_records_behind_the_cut_are_in_quarantine(world: World):
    offsets = await damaged_behind(world)
    found = await carry_out(world)
    assert found.verdict is Verdict.LOSES
    assert found.lost.records == 19
    assert found.report.quarantine.startswith(world.path("quarantine/"))
    assert world.disk.exists(f"{found.report.quarantine}/manifest.json")
    async with world.life():
        assert world.report.log_end == offsets[110]


async def test_a_refused_store_is_left_alone(world: World):
    await world.filled(20)
    bad_tables(world, [])
    before = world.files()
    found = await carry_out(world)
    assert world.files() == before
    assert not found.done
    assert found.verdict is Verdict.REFUSED


async def test_a_folder_of_log_files_can_only_be_looked_at(world: World):
    await world.filled(100)
    alone = attrs.evolve(world, root=world.path("commitlog"))
    found = await inspect(alone)
    assert found.commit_log_only
    assert found.picture.records == 100
    before = alone.files()
    with pytest.raises(ForeignFormat, match="a folder of log files only"):
        await carry_out(alone)
    assert alone.files() == before


async def test_a_log_in_a_place_of_its_own(world: World, tmp_path):
    place = str(tmp_path / "other-disk")
    world.settings = attrs.evolve(world.settings, commit_log_path=place)
    await world.filled(100, kill=True)
    spare = f"{place}/{(1 << 20):020d}"
    world.resize(spare, 0)
    settings = Settings(store=StoreSettings(commit_log_path=place))
    async with rehearse(world.disk, world.clock, Wanted(world.root, settings)) as rehearsal:
        found = rehearsal.inspection
    assert found.picture.records == 100
    assert [(c.path, c.phase) for c in found.changes if c.counts] == [(spare, 3)]
    await recover_offline(world.disk, world.clock, Wanted(world.root, settings), nothing)
    assert not world.disk.exists(spare)


async def test_a_state_file_comes_back_from_its_backup(world: World):
    await world.filled(10)
    good = b'{"offsetTable":{"T@group":{0:2}}}'
    world.write(world.path("config/consumerOffset.json"), b"")
    world.write(world.path("config/consumerOffset.json.bak"), good)
    found = await carry_out(world)
    assert found.verdict is Verdict.CHANGES
    assert b"T@group" in world.read(world.path("config/consumerOffset.json"))
    assert world.read(world.path("config/consumerOffset.json.bak")) == good
    assert not world.disk.exists(world.path("config/topics.json")), "what was not there stays away"


async def test_progress_ahead_of_the_log_is_saved_as_it_becomes(world: World):
    await world.filled(10, queues=1)
    world.write(world.path("config/consumerOffset.json"), b'{"offsetTable":{"T@group":{0:25}}}')
    found = await carry_out(world)
    assert [change.after for change in found.offset_changes] == [10]
    assert b"{0:10}" in world.read(world.path("config/consumerOffset.json")).replace(b" ", b"")
    assert (await inspect(world)).verdict is Verdict.SOUND


async def test_a_store_that_is_open_is_refused():
    from trio_mq.testing.disk import MemoryDisk

    world = World.make(MemoryDisk(), "store")
    async with world.life() as store:
        world.send(store, b"one")
        with pytest.raises(StoreLocked):
            await carry_out(world)
