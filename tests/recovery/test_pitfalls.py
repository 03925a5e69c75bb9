"""Pitfalls of the store's format, by their number (p1 to p32), as far as no other module is about them."""

from __future__ import annotations

import pytest
from attrs import evolve

from trio_mq.protocol.layout import pack_checkpoint
from trio_mq.store.store import Store

from .stores import (
    SEGMENT_BYTES,
    World,
    bodies,
    entries,
    keyed,
    messages,
)


def all_offsets(store: Store) -> list[int]:
    """Log offsets of all messages that consumers can read."""
    return sorted(m.log_offset for q in store.queues for m in messages(store, q.topic, q.queue_id))


def of_apache(world: World) -> None:
    """Make the checkpoint one that Apache's broker wrote: times only, and that of the index is old."""
    value = evolve(world.checkpoint(), index_timestamp_ms=0, confirm_log_offset=0, rest=bytes(4056))
    world.write(world.path("checkpoint"), pack_checkpoint(value))


@pytest.mark.parametrize("crashed", [False, True])
async def test_p1_the_record_right_behind_the_last_known_one_gets_its_entry(
    world: World, crashed: bool
):
    """Also when it begins exactly where the known ones end."""
    offsets = await world.filled(31)
    world.cut_entries("T", 30 % 3, 30 // 3, 1)
    if crashed:
        world.crash()
    async with world.life() as store:
        assert all_offsets(store) == offsets
        assert [store.queue("T", n).next_offset for n in range(3)] == [11, 10, 10]


@pytest.mark.parametrize("crashed", [False, True])
async def test_p2_one_lost_queue_folder_is_made_again(world: World, crashed: bool):
    """The others say that everything is indexed; offsets are those of the records."""
    offsets = await world.filled(120)
    world.disk.remove_tree(world.path("consumequeue/T/1"))
    if crashed:
        world.crash()
    async with world.life() as store:
        assert all_offsets(store) == offsets
        assert [store.queue("T", n).next_offset for n in range(3)] == [40, 40, 40]


@pytest.mark.parametrize("apache", [False, True])
async def test_p3_checkpoint_times_run_ahead_of_the_entries_over_a_roll(world: World, apache: bool):
    """C026: a segment was rolled within the last minute, and entries before the roll never reached the disk."""
    offsets = await world.filled(160)
    last = max(
        n
        for n, offset in enumerate(offsets)
        if offset < offsets[-1] // SEGMENT_BYTES * SEGMENT_BYTES
    )
    for queue_id in range(3):
        lost = [n for n in range(last - 8, 160) if n % 3 == queue_id]
        world.cut_entries("T", queue_id, lost[0] // 3, len(lost))
    if apache:
        of_apache(world)
    world.crash()
    async with world.life() as store:
        assert all_offsets(store) == offsets
        assert all(offsets[n] in keyed(store, f"k{n}") for n in range(160))


@pytest.mark.parametrize("ends", ["partly filled", "with a blank"])
async def test_p7_an_all_zero_segment_behind_the_last_one(world: World, ends: str):
    """C017: it was made in advance; the record before it may end anywhere, or with a blank."""
    async with world.life(kill=True) as store:
        offsets = [world.send(store, b"body %d" % n) for n in range(25)]
        if ends == "with a blank":
            store.commit()
            store.log.roll()
    following = world.segment(offsets[-1] + SEGMENT_BYTES)
    world.resize(following, SEGMENT_BYTES)
    async with world.life() as store:
        assert world.report.cut_reason is None
        assert all_offsets(store) == offsets
        at = world.send(store, b"next")
        assert (at % SEGMENT_BYTES == 0) is (ends == "with a blank")
    async with world.life() as store:
        assert all_offsets(store) == [*offsets, at]


async def test_p12_queue_offset_0_behind_other_entries_shifts_nothing(world: World):
    """A record that says 0 in a queue that goes on: entries stay where they are."""
    offsets = await world.filled(30, kill=True, queues=1)
    world.write_log(bytes(8), offsets[20] + 20)
    world.cut_entries("T", 0, 15, 15)
    async with world.life() as store:
        found = [entry[0] for entry in entries(store.queue("T", 0))]
        assert found[:20] == offsets[:20]
        assert found[21:] == offsets[21:]
        assert store.queue("T", 0).next_offset == 30


@pytest.mark.parametrize("topic", ["T", "SCHEDULE_TOPIC"])
async def test_p31_a_delivered_message_is_not_delayed_again(world: World, topic: str):
    """Its properties still have the level, but its topic is an ordinary one: the entry has the code of its tag."""
    async with world.life(kill=True) as store:
        more = {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "0"}
        world.send(store, b"was delayed", topic, tags="x", more=more)
        store.commit()
        before = entries(store.queue(topic, 0))
    world.disk.remove_tree(world.path("consumequeue"))
    async with world.life() as store:
        assert entries(store.queue(topic, 0)) == before
        assert before[0][2] == ord("x")
        assert bodies(store, topic) == [b"was delayed"]


@pytest.mark.parametrize("gone", [1, 3])
async def test_p3_the_first_entries_of_a_queue_never_reached_the_disk(world: World, gone: int):
    """A power cut before anything was synced, and so before there was a checkpoint."""
    offsets = await world.filled(200, queues=1, kill=True)
    world.cut_entries("T", 0, 0, gone)
    async with world.life() as store:
        assert world.report.walk_reason == "there is no checkpoint"
        assert [m.log_offset for m in messages(store)] == offsets
