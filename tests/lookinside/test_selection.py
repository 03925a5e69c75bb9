"""Choosing records: by log offset, topic and queue, time and key, and what is said when it is done otherwise."""

from __future__ import annotations

import pytest

from tests.recovery.stores import SEGMENT_BYTES, World
from trio_mq.testing.disk import MemoryDisk

from .support import chosen, view_of

T = frozenset({"T"})


async def test_all_records_come_in_the_order_of_the_log(world: World) -> None:
    offsets = await world.filled(60)
    with view_of(world) as view:
        assert [m.log_offset for m in chosen(view)] == offsets
        assert [m.log_offset for m in chosen(view, begin=offsets[7], count=3)] == offsets[7:10]


async def test_an_offset_inside_of_a_record_goes_on_with_the_next(memory_world: World) -> None:
    offsets = await memory_world.filled(10)
    told: list[str] = []
    with view_of(memory_world) as view:
        found = chosen(view, told, begin=offsets[3] + 5, count=1)
    assert [m.log_offset for m in found] == [offsets[4]]
    assert len(told) == 1
    assert "hold no record" in told[0]


async def test_a_queue_and_a_range_of_it(world: World) -> None:
    await world.filled(60)
    with view_of(world) as view:
        found = chosen(view, topics=T, queue_id=1, first=5, last=8)
        assert [m.queue_offset for m in found] == [5, 6, 7, 8]
        assert {m.queue_id for m in found} == {1}
        all_queues = chosen(view, topics=T, first=19)
        assert [(m.queue_id, m.queue_offset) for m in all_queues] == [(0, 19), (1, 19), (2, 19)]


async def test_batch_queues_are_chosen_by_the_messages_in_their_records() -> None:
    world = World.make(MemoryDisk(), "/store")
    world.batch_topics.add("B")
    async with world.life() as store:
        for n in range(6):
            world.send_batch(store, [b"%d" % n] * 3)
    with view_of(world) as view:
        found = chosen(view, topics=frozenset({"B"}), first=4, last=9)
        assert [m.queue_offset for m in found] == [3, 6, 9]


async def test_times(world: World) -> None:
    await world.filled(60)
    with view_of(world) as view:
        all_of_it = chosen(view)
        since, until = all_of_it[20].store_timestamp_ms, all_of_it[40].store_timestamp_ms
        assert chosen(view, since_ms=since, until_ms=until) == all_of_it[20:41]
        of_queue = chosen(view, since_ms=since, until_ms=until, topics=T, queue_id=0)
        assert of_queue == [m for m in all_of_it[20:41] if m.queue_id == 0]
        assert chosen(view, until_ms=since - 100) == []


async def test_a_key_is_found_by_the_index(world: World) -> None:
    await world.filled(60)
    told: list[str] = []
    with view_of(world) as view:
        assert [m.body for m in chosen(view, told, topics=T, key="k17")] == [b"body 17"]
    assert told == []


async def test_a_key_that_the_index_lacks_is_searched_for(memory_world: World) -> None:
    await memory_world.filled(60)
    for name in memory_world.disk.list_dir(memory_world.path("index")):
        memory_world.disk.remove(memory_world.path(f"index/{name}"))
    told: list[str] = []
    with view_of(memory_world) as view:
        assert [m.body for m in chosen(view, told, topics=T, key="k17")] == [b"body 17"]
        assert told == ["no record by the index (there is no index): the whole log is searched"]
        assert [m.body for m in chosen(view, key="k17")] == [b"body 17"]
        assert chosen(view, topics=T, key="k99") == []


async def test_a_topic_without_queues_is_searched_for(memory_world: World) -> None:
    await memory_world.filled(30)
    memory_world.disk.remove_tree(memory_world.path("consumequeue"))
    told: list[str] = []
    with view_of(memory_world) as view:
        found = chosen(view, told, topics=T, queue_id=2, first=3)
    assert [m.queue_offset for m in found] == list(range(3, 10))
    assert told == ["no queue of T is there: the whole log is searched"]


async def test_damage_is_passed_over_and_told(memory_world: World) -> None:
    offsets = await memory_world.filled(60)
    memory_world.flip(offsets[30] + 88)
    told: list[str] = []
    with view_of(memory_world) as view:
        found = chosen(view, told)
    assert [m.log_offset for m in found] == offsets[:30] + offsets[31:]
    assert told == [
        f"bytes {offsets[30]} to {offsets[31]} of the log hold no record that can be read: "
        + told[0].rpartition("read: ")[2]
    ]


async def test_a_queue_entry_that_leads_nowhere_is_told(memory_world: World) -> None:
    offsets = await memory_world.filled(60)
    memory_world.write_log(bytes(8), offsets[6])
    told: list[str] = []
    with view_of(memory_world) as view:
        found = chosen(view, told, topics=T, queue_id=0)
    assert len(found) == 19
    assert told == [
        f"queue T/0 has an entry for queue offset 2, but there is no record at log offset {offsets[6]}"
    ]


async def test_a_missing_file_is_passed_over(memory_world: World) -> None:
    offsets = await memory_world.filled(120)
    memory_world.disk.remove(memory_world.segment(SEGMENT_BYTES))
    told: list[str] = []
    with view_of(memory_world) as view:
        found = [m.log_offset for m in chosen(view, told)]
    assert found == [o for o in offsets if not SEGMENT_BYTES <= o < 2 * SEGMENT_BYTES]
    assert any("the file is missing" in text for text in told)


@pytest.mark.parametrize("queue_id", [7, 100])
async def test_a_queue_that_is_not_there_is_told(memory_world: World, queue_id: int) -> None:
    await memory_world.filled(6)
    told: list[str] = []
    with view_of(memory_world) as view:
        assert chosen(view, told, topics=T, queue_id=queue_id) == []
    assert told == [f"there is no queue {queue_id}; there are 0, 1, 2"]
