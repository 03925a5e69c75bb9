"""Every byte that a check can judge, flipped: it is always noticed, and nothing that reads a store ever raises."""

from __future__ import annotations

import random
import sys
from contextlib import suppress

import pytest

from tests.recovery.stores import World
from trio_mq.errors import StoreError
from trio_mq.lookinside.listing import list_store
from trio_mq.lookinside.verify import StateLook, verify
from trio_mq.protocol.layout import index_entry_position
from trio_mq.testing.disk import MemoryDisk

from .support import chosen, view_of


async def filled() -> World:
    """A small store with simple and batch queues and an index."""
    world = World.make(MemoryDisk(), "/store", max_hash_slot_num=7)
    world.batch_topics.add("B")
    async with world.life() as store:
        for n in range(24):
            world.send(store, b"body %d" % n, "T", n % 2, tags=f"tag{n}", keys=f"k{n}")
        for n in range(6):
            world.send_batch(store, [b"x"] * (1 + n % 3))
    return world


@pytest.fixture
async def world() -> World:
    return await filled()


def is_sound(world: World) -> bool:
    with view_of(world) as view:
        return verify(view, StateLook(), lambda *_: None).sound


def unnoticed(world: World, path: str, begin: int, end: int) -> list[int]:
    """Positions where a flipped bit leaves the store sound."""
    found = []
    data = world.read(path)
    for at in range(begin, end):
        world.write(path, bytes([data[at] ^ (1 << at % 8)]), at)
        if is_sound(world):
            found.append(at)
        world.write(path, data[at : at + 1], at)
    return found


async def test_every_byte_of_a_queue(world: World) -> None:
    assert is_sound(world)
    path = world.queue_file("T", 1)
    assert unnoticed(world, path, 0, len(world.read(path).rstrip(b"\0")) + 30) == []


async def test_every_byte_of_a_batch_queue(world: World) -> None:
    path = world.path(f"batchconsumequeue/B/0/{0:020d}")
    assert unnoticed(world, path, 0, 7 * 46) == []


async def test_every_byte_of_index_slots_and_entries(world: World) -> None:
    (name,) = world.disk.list_dir(world.path("index"))
    path = world.path(f"index/{name}")
    first = index_entry_position(1, 7)
    # The first entry's seconds count from the end of a file before, which is not there.
    seconds = range(first + 12, first + 16)
    last = index_entry_position(48, 7)
    found = unnoticed(world, path, 40, 40 + 7 * 4) + unnoticed(world, path, first, first + 6 * 20)
    found += unnoticed(world, path, last, last + 20)
    assert [at for at in found if at not in seconds] == []


async def test_every_byte_of_a_record_but_those_without_a_checksum(world: World) -> None:
    """Flags, times, hosts, the count of consumptions and the offset of a half message are covered by nothing."""
    with view_of(world) as view:
        record = chosen(view)[3]
    uncovered = {*range(16, 20), *range(36, 84)}
    found = unnoticed(world, world.segment(0), record.log_offset, record.log_offset + record.size)
    wrong = [at - record.log_offset for at in found]
    assert [at for at in wrong if at not in uncovered] == []


@pytest.mark.parametrize("seed", range(8))
async def test_nothing_raises_whatever_the_bytes_are(world: World, seed: int) -> None:
    rng = random.Random(seed)
    files = world.files()
    for _ in range(25):
        name = rng.choice(sorted(files))
        data = files[name]
        at = rng.randrange(max(1, len(data.rstrip(b"\0"))))
        world.write(
            world.path(name), rng.randbytes(rng.choice((1, 4, 8, 100)))[: len(data) - at], at
        )
        with suppress(StoreError), view_of(world) as view:
            verify(view, StateLook(), lambda *_: None)
            list(list_store(view).lines())
            chosen(view)
            chosen(view, topics=frozenset({"T"}), first=2, last=9)
            chosen(view, topics=frozenset({"B"}), since_ms=1)
            chosen(view, topics=frozenset({"T"}), key="k7")


@pytest.mark.parametrize("seed", range(4))
async def test_many_damages_are_told_alike_without_numpy(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    files = world.files("commitlog", "consumequeue", "batchconsumequeue", "index")
    for _ in range(6):
        damaged = rng.choices(sorted(files), k=rng.randrange(1, 8))
        for name in damaged:
            at = rng.randrange(max(1, len(files[name].rstrip(b"\0"))))
            new = rng.choice((bytes(rng.choice((1, 8, 300))), rng.randbytes(rng.choice((1, 20)))))
            world.write(world.path(name), new[: len(files[name]) - at], at)
        found = report(world)
        with monkeypatch.context() as patched:
            for module in ("bulkfeed", "bulkkeys", "bulkchains"):
                patched.setitem(sys.modules, f"trio_mq.lookinside.{module}", None)
            assert report(world) == found
        for name in damaged:
            world.write(world.path(name), files[name])


def report(world: World) -> dict[str, object]:
    """What a check finds, or why it refuses to look."""
    try:
        with view_of(world) as view:
            return verify(view, StateLook(), lambda *_: None).as_dict()
    except StoreError as error:
        return {"refused": str(error)}
