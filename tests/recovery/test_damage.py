"""Any cut and any flipped byte in the log's tail: what is before it stays, nothing behind it is seen."""

from __future__ import annotations

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from trio_mq.protocol.record import Whole, check
from trio_mq.testing.disk import MemoryDisk

from .stores import SEGMENT_BYTES, World, keyed, messages

MESSAGE = st.tuples(
    st.sampled_from(["T", "U", "W" * 130]),
    st.integers(0, 2),
    st.binary(max_size=300),
    st.sampled_from([None, "tag", "täg"]),
)


async def build(sent: list[tuple[str, int, bytes, str | None]]) -> tuple[World, list[int]]:
    world = World.make(MemoryDisk(), "store")
    async with world.life(kill=True) as store:
        offsets = [
            world.send(store, body, topic, queue_id, tags=tags, keys=f"k{n}")
            for n, (topic, queue_id, body, tags) in enumerate(sent)
        ]
    world.disk.remove("store/checkpoint")
    return world, offsets


async def survivors(world: World) -> list[tuple[str, int, int, int, bytes]]:
    """Everything that consumers can read: topic, queue, queue offset, log offset, body."""
    async with world.life(kill=True) as store:
        found = [
            (m.topic, m.queue_id, m.queue_offset, m.log_offset, m.body)
            for q in store.queues
            for m in messages(store, q.topic, q.queue_id)
        ]
        for queue in store.queues:
            assert queue.next_offset == queue.max_offset
    return sorted(found, key=lambda row: row[3])


def expected(sent: list, offsets: list[int], damage: int) -> list[tuple[str, int, int, int, bytes]]:
    counts: dict[tuple[str, int], int] = {}
    rows = []
    for (topic, queue_id, body, _), offset in zip(sent, offsets, strict=True):
        if offset >= damage:
            break
        number = counts.get((topic, queue_id), 0)
        counts[topic, queue_id] = number + 1
        rows.append((topic, queue_id, number, offset, body))
    return rows


@settings(max_examples=60, deadline=None)
@given(
    sent=st.lists(MESSAGE, min_size=5, max_size=60),
    pick=st.floats(0, 0.999),
    how=st.sampled_from(["cut", "body", "size", "magic", "offset", "crc", "cut and garbage"]),
    lost=st.floats(0, 1),
)
def test_everything_before_the_damage_and_nothing_behind_it(sent, pick, how, lost):
    async def scene() -> None:
        world, offsets = await build(sent)
        number = int(pick * len(offsets))
        at = offsets[number]
        size = int.from_bytes(world.read_log(4, at), "big")
        if how.startswith("cut"):
            end = at + int(lost * (size - 1))
            segment = world.segment(at)
            whole = world.read(segment)
            keep = end % SEGMENT_BYTES
            tail = bytes(SEGMENT_BYTES - keep)
            if how == "cut and garbage":
                tail = bytes(n * 7 % 251 for n in range(len(tail)))
            world.write(segment, whole[:keep] + tail)
            if how == "cut":
                for name in world.disk.list_dir("store/commitlog"):
                    if int(name) > at:
                        world.disk.remove(f"store/commitlog/{name}")
        else:
            place = {"body": 88, "size": 1, "magic": 4, "offset": 35, "crc": 11}[how]
            if how == "body" and not sent[number][2]:
                place = 8
            world.write_log(bytes([world.read_log(1, at + place)[0] ^ 0x41]), at + place)
        record = world.read_log(size, at)
        verdict = check(record, 0, len(record), expected_offset=at)
        damage = end = at
        if isinstance(verdict, Whole):
            # What was lost were zeros of the record's end, or a CRC of no body: the record is as good as before.
            damage = (
                next((o for o in offsets if o > at), at + 1) if "cut" in how else offsets[-1] + 1
            )
            end = offsets[-1] + SEGMENT_BYTES
        assert await survivors(world) == expected(sent, offsets, damage)
        first = world.derived()
        assert await survivors(world) == expected(sent, offsets, damage)
        assert world.derived() == first, "a second recovery changes nothing"
        async with world.life(kill=True) as store:
            for n, offset in enumerate(offsets):
                if how == "cut and garbage" and offset == at:
                    continue  # the garbage may have made a key of its own
                assert (offset in keyed(store, f"k{n}", sent[n][0])) is (offset < damage)
            again = world.send(store, b"again", "T", 0)
            assert again % SEGMENT_BYTES == 0 or again <= end
            store.commit()
            assert messages(store, "T", 0)[-1].body == b"again"

    trio.run(scene, clock=MockClock(autojump_threshold=0))


@settings(max_examples=60, deadline=None)
@given(
    sent=st.lists(MESSAGE, min_size=5, max_size=60),
    cuts=st.lists(st.tuples(st.floats(0, 0.999), st.integers(1, 30)), min_size=1, max_size=4),
)
def test_whatever_is_lost_of_the_queues_comes_back_from_the_log(sent, cuts):
    async def scene() -> None:
        world, offsets = await build(sent)
        before = world.files("consumequeue")
        paths = sorted(before)
        for pick, count in cuts:
            path = paths[int(pick * len(paths))]
            file = world.path(path)
            if count > 25 and world.disk.exists(file):
                world.disk.remove(file)
            elif world.disk.exists(file):
                used = len(before[path].rstrip(b"\0"))
                first = int(pick * used)
                world.write(file, bytes(min(count * 7, len(before[path]) - first)), first)
        assert await survivors(world) == expected(sent, offsets, offsets[-1] + 1)
        assert world.files("consumequeue") == before

    trio.run(scene, clock=MockClock(autojump_threshold=0))
