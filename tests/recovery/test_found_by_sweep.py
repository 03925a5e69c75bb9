"""What the crash sweep (tests/sweep) has found in recovery, each as the smallest store that shows it."""

from __future__ import annotations

import pytest

from trio_mq.protocol.layout import BATCH_QUEUE_ENTRY, QUEUE_ENTRY
from trio_mq.testing.disk import MemoryDisk

from .stores import HOST, World, bodies, consumed


@pytest.fixture
async def expired(world: World) -> World:
    """A store whose first log segment has expired."""
    world.batch_topics.add("B")
    await world.filled(60)
    async with world.life(kill=True) as store:
        store.log.segments.drop_segment(0)
        await store.cleaner.trim()
        for number in range(8):
            world.send(store, b"simple %d" % number, "S")
            world.send_batch(store, [b"batch %d" % number])
    return world


@pytest.mark.parametrize(("topic", "text", "entry"), [
    ("S", b"simple %d", QUEUE_ENTRY),
    ("B", b"batch %d", BATCH_QUEUE_ENTRY),
])  # fmt: skip
async def test_an_entry_without_the_first_bytes_of_its_offset_is_not_taken_for_an_expired_one(
    expired: World, topic: str, text: bytes, entry
):
    """A sector ended within the last entry, and only the second one reached the disk."""
    folder = "batchconsumequeue/B" if topic == "B" else "consumequeue/S"
    path = expired.path(f"{folder}/0/{0:020d}")
    before = expired.read(path)
    expired.write(path, bytes(7), 7 * entry.size)
    assert int.from_bytes(expired.read(path)[7 * entry.size :][:8], "big") < 4096
    async with expired.life() as store:
        assert bodies(store, topic) == [text % number for number in range(8)]
        assert store.queue(topic, 0).max_offset == 8
    assert expired.read(path) == before


@pytest.mark.parametrize("known", range(1, 9))
@pytest.mark.parametrize("torn", [{0}, {1}, {2}, {5}, {6}, {0, 1, 2}, {1, 3}, {2, 5, 6}])
async def test_torn_entries_in_a_batch_queue_hide_no_whole_ones_from_the_search(
    world: World, known: int, torn: set[int]
):
    """The search halves the queue, and each half entry says a smaller offset than all before it.

    The last entry is whole, so that the queue seems to be; the first entries are of an earlier life.
    """
    world.batch_topics.add("B")
    async with world.life() as store:
        for number in range(known):
            world.send_batch(store, [b"batch %d" % number])
    async with world.life(kill=True) as store:
        for number in range(known, known + 8):
            world.send_batch(store, [b"batch %d" % number])
    file_bytes = world.settings.mapped_file_size_batch_consume_queue
    paths = [world.path(f"batchconsumequeue/B/0/{start:020d}") for start in (0, file_bytes)]
    if known + 8 <= file_bytes // BATCH_QUEUE_ENTRY.size:
        paths.pop()
    before = [world.read(path) for path in paths]
    for number in torn:
        file, at = divmod((known + number) * BATCH_QUEUE_ENTRY.size, file_bytes)
        world.write(paths[file], bytes(7), at)
    async with world.life() as store:
        assert bodies(store, "B") == [b"batch %d" % number for number in range(known + 8)]
    assert [world.read(path) for path in paths] == before


async def test_what_a_kill_left_in_a_light_queue_is_durable_after_the_next_start():
    """The start said that all entries before were on the disk; those in further queues (LMQ) were not."""
    disk = MemoryDisk()
    world = World.make(disk, "/store", enable_lmq=True, enable_multi_dispatch=True)
    data = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
    for kill, numbers in ((False, range(2)), (True, range(2, 8))):
        async with world.life(kill=kill) as store:
            assert store.multi is not None
            for number in numbers:
                props, further = store.multi.assign("T", data)
                store.append(
                    store.queues.obtain("T", 0), b"%d" % number, props, token=None, further=further,
                    born_timestamp_ms=1, born_host=HOST.packed, now_ms=world.clock.now_ms(),
                )  # fmt: skip
    await world.restart()
    disk.crash(1, keep="none")
    disk.remove(world.path("queuelist.json"))  # the power was cut before this start wrote it
    async with world.life() as store:
        light = store.queue("%LMQ%a", 0)
        assert light is not None
        assert [m.body for m in consumed(store, light)] == [b"%d" % number for number in range(8)]
