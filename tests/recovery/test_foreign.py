"""Stores that a peer left behind after a sudden end: only what it may not have synced is gone over, and that surely."""

from __future__ import annotations

import pytest
from attrs import evolve

from trio_mq.protocol.layout import Checkpoint, pack_checkpoint
from trio_mq.recovery import scan
from trio_mq.recovery.foreign import look, offset_before
from trio_mq.recovery.missing import ANY_END, first_missing
from trio_mq.recovery.paths import Path
from trio_mq.recovery.scan import scan_queue
from trio_mq.store.disk import RealDisk

from .stores import World, everything, keyed

SPACING_MS = 500
COUNT = 400


async def left_behind(world: World, *, slow_every: int = 0) -> list[int]:
    """A store as Apache leaves it when it is killed: 200 s of messages; every `slow_every`-th on a slow queue.

    Its checkpoint has times that follow the entries, and nothing of ours.
    """
    offsets = []
    async with world.life(kill=True) as store:
        for number in range(COUNT):
            world.clock.advance(SPACING_MS - 1)
            slow = slow_every and number % slow_every == 0
            topic, queue_id = ("Slow", 0) if slow else ("T", number % 2)
            offsets.append(
                world.send(store, b"body %d" % number, topic, queue_id, keys=f"k{number}")
            )
    now_ms = world.clock.now_ms()
    world.write(world.path("checkpoint"), pack_checkpoint(Checkpoint(now_ms, now_ms, 0)))
    if world.disk.exists(world.path("queuelist.json")):
        world.disk.remove(world.path("queuelist.json"))
    world.crash()
    return offsets


def number_at(offsets: list[int], offset: int) -> int:
    return next(n for n, at in enumerate(offsets) if at >= offset)


async def test_a_whole_store_is_gone_over_from_the_peers_own_start(world: World, monkeypatch):
    """Never later than Apache would begin (the file older than the checkpoint), and never much earlier."""
    pytest.importorskip("numpy")  # without, the index is filled again, from further back
    monkeypatch.setattr(scan, "UNSYNCED_BYTES", 20)
    offsets = await left_behind(world)
    before = world.files("consumequeue", "index")
    async with world.life() as store:
        assert world.report.walk_reason == "the last segment older than the checkpoint"
        assert number_at(offsets, world.report.walked_from) > COUNT - 80
        assert sum(map(len, everything(store).values())) == COUNT
        assert all(offsets[n] in keyed(store, f"k{n}") for n in range(COUNT))
    assert world.files("consumequeue", "index").keys() == before.keys()


@pytest.mark.parametrize("lost", [1, 2, 5])
async def test_entries_of_a_slow_queue_that_were_not_synced_are_found(world: World, lost: int):
    """The last ones of a slow queue never reached the disk, those of busy ones did."""
    offsets = await left_behind(world, slow_every=20)
    slow = COUNT // 20
    world.cut_entries("Slow", 0, slow - lost, lost)
    async with world.life() as store:
        assert world.report.walked_from <= offsets[(slow - lost) * 20]
        assert sum(map(len, everything(store).values())) == COUNT


async def test_a_slow_queue_whose_files_were_lost_with_their_names(world: World):
    offsets = await left_behind(world, slow_every=390)
    world.disk.remove_tree(world.path("consumequeue/Slow"))
    async with world.life() as store:
        assert world.report.walked_from <= offsets[390]
        assert len(everything(store)["Slow", 0]) >= 1


@pytest.mark.parametrize("where", ["entries", "slots"])
async def test_lost_pages_of_the_index_are_noticed(tmp_path, where: str):
    """A page that was never written holds zeros; then the keys are inserted again."""
    pytest.importorskip("numpy")
    world = World.make(RealDisk(), str(tmp_path / "store"), max_index_num=2000)
    offsets = await left_behind(world)
    (name,) = world.disk.list_dir(world.path("index"))
    path = world.path(f"index/{name}")
    slots_at, entries_at = 40, 40 + 4 * world.settings.max_hash_slot_num
    if where == "entries":
        world.write(path, bytes(20 * 6), entries_at + 20 * (COUNT - 10))
    else:
        world.write(path, bytes(4 * world.settings.max_hash_slot_num), slots_at)
    async with world.life() as store:
        assert all(offsets[n] in keyed(store, f"k{n}") for n in range(COUNT))


async def test_a_whole_index_is_left_as_it_is(tmp_path):
    pytest.importorskip("numpy")
    world = World.make(RealDisk(), str(tmp_path / "store"))
    await left_behind(world)
    before = world.files("index")
    await world.restart()
    assert world.files("index") == before
    assert world.report.records < COUNT // 2


async def test_records_are_found_by_time(world: World):
    offsets = await left_behind(world)
    parts = world.open_parts()
    try:
        parts.log.segments.load()
        queue = parts.queues.make("T", 0, batch=False)
        queue.files.segments.load()
        queue.files.open_at(scan_queue(queue, parts.log, thorough=True).end_bytes, cut=False)
        times = {
            n: scan.record_at(parts.log, offsets[n], check_crc=True).store_timestamp_ms
            for n in (0, 50, 398)
        }
        assert offset_before(queue, parts.log, times[0] - 1) is None
        assert offset_before(queue, parts.log, times[0]) == offsets[0]
        assert offset_before(queue, parts.log, times[50] + SPACING_MS) == offsets[50]
        assert offset_before(queue, parts.log, 1 << 50) == offsets[398]
    finally:
        parts.release()


@pytest.mark.parametrize("path", Path)
async def test_the_first_record_without_an_entry(world: World, path: Path):
    offsets = await left_behind(world, slow_every=50)
    parts = world.open_parts()
    try:
        segments = parts.log.segments
        segments.load()
        ends = {"T": {0: ANY_END, 1: ANY_END}, "Slow": {0: 3}}
        assert first_missing(segments, 0, segments.end, ends, path=path) == offsets[150]
        assert first_missing(segments, 0, offsets[150], ends, path=path) is None
        assert first_missing(segments, offsets[160], segments.end, ends, path=path) == offsets[200]
        ends["Slow"] = {0: 8}
        assert first_missing(segments, 0, segments.end, ends, path=path) is None
        del ends["Slow"]
        assert first_missing(segments, 0, segments.end, ends, path=path) == offsets[0]
    finally:
        parts.release()


async def test_a_checkpoint_without_times_tells_nothing(world: World):
    await left_behind(world)
    world.write(
        world.path("checkpoint"), pack_checkpoint(evolve(Checkpoint(), index_timestamp_ms=5))
    )
    parts = world.open_parts()
    try:
        parts.checkpoint.load()
        assert look(parts, {}, path=Path.BATCH, index_enabled=True) is None
    finally:
        parts.release()
