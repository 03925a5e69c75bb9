"""C020: damage in an old part of the log costs no more than itself when a start looks there for another reason."""

from __future__ import annotations

from itertools import pairwise

import pytest

from trio_mq.recovery.scan import next_record

from .stores import SEGMENT_BYTES, World, everything, keyed

COUNT = 150


def damage(world: World, how: str, offsets: list[int]) -> set[int]:
    """Spoil a part of the log; returns the numbers of the messages that are hurt."""
    if how == "a bit":
        world.flip(offsets[40] + 90)
        return {40}
    if how == "two lengths":
        for number in (40, 41):
            world.write_log(b"\xff\xff\xff\xff", offsets[number])
        return {40, 41}
    if how == "the end of a segment":
        last = max(n for n, at in enumerate(offsets) if at < SEGMENT_BYTES)
        world.write_log(bytes(SEGMENT_BYTES - offsets[last]), offsets[last])
        return {last}
    hurt = {n for n, at in enumerate(offsets) if SEGMENT_BYTES <= at < 2 * SEGMENT_BYTES}
    world.write_log(bytes(SEGMENT_BYTES), SEGMENT_BYTES)
    return hurt


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("lost", [["index"], ["index", "consumequeue"], ["consumequeue"]])
@pytest.mark.parametrize("how", ["a bit", "two lengths", "the end of a segment", "a whole segment"])
async def test_c020_index_and_queues_made_again_do_not_cut_the_log(
    world: World, crashed: bool, how: str, lost: list[str]
):
    """C020, C028: all else is read and found by key, offsets go on, and the next start has nothing to do."""
    offsets = await world.filled(COUNT)
    hurt = damage(world, how, offsets)
    for folder in lost:
        world.disk.remove_tree(world.path(folder))
    if crashed:
        world.crash()
    async with world.life() as store:
        assert store.log.end == world.report.log_end > offsets[-1]
        assert world.report.cut_bytes == 0
        assert any("cannot be read" in note for note in world.report.notes)
        for number in set(range(COUNT)) - hurt:
            assert keyed(store, f"k{number}") == [offsets[number]]
        if "consumequeue" in lost:
            left = {b"body %d" % number for number in set(range(COUNT)) - hurt}
            assert {body for found in everything(store).values() for body in found} == left
        assert [queue.max_offset for queue in store.queues] == [COUNT // 3] * 3
        assert world.send(store, b"more", "T", 0) > offsets[-1]
    report = await world.restart()
    assert report.records == 1
    assert report.clean
    assert report.notes == []


async def test_c020_a_flipped_bit_of_a_body_hides_no_message(world: World):
    """Readers get what is stored, as with Apache; they check bodies themselves."""
    offsets = await world.filled(COUNT)
    world.flip(offsets[40] + 90)
    world.disk.remove_tree(world.path("index"))
    async with world.life() as store:
        found = everything(store)
    assert sum(map(len, found.values())) == COUNT


async def test_the_next_whole_record_is_found_wherever_it_begins(world: World):
    """From every offset; bytes that look like a record in a body, at another offset, are none."""
    async with world.life() as store:
        offsets = [world.send(store, b"body %d" % n * n) for n in range(60)]
        store.commit()
        inner = store.log.segments.read(300, offsets[30])
        offsets += [world.send(store, inner), world.send(store, b"last")]
    parts = await world.recover()
    try:
        for low, high in pairwise(offsets):
            for offset in {low, low + 1, low + 4, (low + high) // 2, high - 4, high - 1}:
                assert next_record(parts.log, offset) == high
        assert next_record(parts.log, offsets[-1]) is None
    finally:
        parts.release()
