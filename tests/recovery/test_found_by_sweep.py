"""What the crash sweep (tests/sweep) has found in recovery, each as the smallest store that shows it."""

from __future__ import annotations

import pytest

from trio_mq.protocol.layout import BATCH_QUEUE_ENTRY, QUEUE_ENTRY

from .stores import World, bodies


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
