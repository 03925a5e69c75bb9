"""Starts after clean stops and crashes: what is there, what is rebuilt, what is cut."""

from __future__ import annotations

from .stores import World, bodies, everything, keyed


async def test_an_empty_folder_becomes_a_store(world: World):
    async with world.life() as store:
        assert world.report.clean
        assert (world.report.log_start, world.report.log_end, world.report.queues) == (0, 0, 0)
        world.send(store, b"first")
    async with world.life() as store:
        assert world.report.clean
        assert bodies(store) == [b"first"]


async def test_a_clean_stop_needs_one_record_read_and_changes_nothing(world: World):
    await world.filled(60)
    before = world.derived()
    report = await world.restart()
    assert report.clean
    assert report.records == 1
    assert world.derived() == before


async def test_a_kill_loses_nothing_that_was_written(world: World):
    offsets = await world.filled(60, kill=True)
    async with world.life() as store:
        assert not world.report.clean
        assert bodies(store, "T", 0) == [b"body %d" % n for n in range(0, 60, 3)]
        assert sum(map(len, everything(store).values())) == 60
        for n, offset in enumerate(offsets):
            assert offset in keyed(store, f"k{n}")
