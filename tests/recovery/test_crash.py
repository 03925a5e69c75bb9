"""Power cuts at any moment of a broker's life: what was promised is there, and the store agrees with itself."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio

from trio_mq.errors import ConfigError, StoreDamaged, StoreFull
from trio_mq.store.store import Store
from trio_mq.testing.disk import MemoryDisk, PowerCut

from .stores import HOST, World, everything, keyed, messages

QUEUES = [("T", 0), ("T", 1), ("Other", 0)]


async def workload(world: World, store: Store, acked: set[bytes], count: int, seed: int) -> None:
    """Send messages as the broker does, some at a time; note those whose wait for the disk was answered with yes."""
    rng = random.Random(seed)
    number = 0
    while number < count:
        some: list[tuple[bytes, int]] = []
        for _ in range(rng.randint(1, 6)):
            topic, queue_id = rng.choice(QUEUES)
            body = b"%d-%d" % (seed, number) + b"." * rng.randint(0, 200)
            world.send(store, body, topic, queue_id, tags="x", keys=f"{seed}-{number}")
            some.append((body, store.log.end))
            number += 1
        store.commit()
        for body, end in some:

            def done(ok: bool, body: bytes = body) -> None:
                if ok:
                    acked.add(body)

            store.flusher.wait_durable(end, done)
        await trio.sleep(rng.choice((0, 0.003, 0.05, 0.4)))


async def live(world: World, acked: set[bytes], count: int, seed: int) -> None:
    """One life of a broker with all its tasks; ends only in a power cut or when all is sent."""
    parts = await world.recover()
    store = Store(parts, world.clock, HOST)
    await store.start()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await workload(world, store, acked, count, seed)
        nursery.cancel_scope.cancel()


def assert_agrees(store: Store, *, lost_file: bool = False) -> Counter[bytes]:
    """Every entry leads to its record, each record of the log has its entry and its keys; returns the bodies.

    With `lost_file` the log lacks a file in the middle, whose name never reached the disk.
    """
    found: Counter[bytes] = Counter()
    offsets = []
    for queue in store.queues:
        for message in messages(store, queue.topic, queue.queue_id):
            found[message.body] += 1
            offsets.append(message.log_offset)
            key = message.property_map["KEYS"]
            assert message.log_offset in keyed(store, key, queue.topic)
        assert queue.next_offset == queue.max_offset
        count = len(messages(store, queue.topic, queue.queue_id))
        assert lost_file or queue.max_offset - queue.min_offset == count
    end = 0
    for offset in sorted(offsets):
        size = len(store.reader.record(offset))
        assert offset == end or offset % store.log.segments.segment_bytes == 0
        end = offset + size
    return found


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("seed", range(12))
async def test_a_power_cut_under_load(autojump_clock, seed: int, sync: bool):
    disk = MemoryDisk()
    world = World.make(disk, "store", sync=sync)
    acked: set[bytes] = set()
    lost_file = False
    for life in range(4):
        rng = random.Random(100 * seed + life)
        if life:
            disk.kill_at(rng.randint(20, 250))
        try:
            await live(world, acked, 40, 1000 * seed + life)
        except* PowerCut:
            pass
        disk.crash(rng.randint(0, 1 << 30), reorder_names=rng.random() < 0.3)
        acked_now = set(acked)
        async with world.life(kill=True) as store:
            lost_file = lost_file or any("has a hole" in note for note in world.report.notes)
            found = assert_agrees(store, lost_file=lost_file)
            assert max(found.values(), default=1) == 1
            if sync:
                assert acked_now <= found.keys()
        disk.crash(seed, keep="all")


@pytest.mark.parametrize("seed", range(25))
async def test_a_power_cut_in_the_middle_of_recovery(autojump_clock, seed: int):
    """Recovery is cut off again and again; the one that gets to its end finds all that was promised."""
    disk = MemoryDisk()
    world = World.make(disk, "store", sync=True)
    acked: set[bytes] = set()
    rng = random.Random(seed)
    await live(world, acked, 120, seed)
    disk.crash(seed)
    if seed % 3 == 0:
        disk.remove_tree("store/consumequeue")
    if seed % 5 == 0:
        disk.remove_tree("store/index")
    for _ in range(4):
        disk.kill_at(rng.randint(1, 40))
        try:
            await world.restart()
        except* PowerCut:
            pass
        disk.crash(rng.randint(0, 1 << 30))
    async with world.life() as store:
        found = assert_agrees(store)
        assert acked <= found.keys()
    assert (await world.restart()).clean


@pytest.mark.parametrize("seed", range(6))
async def test_a_kill_loses_nothing_that_was_written(autojump_clock, seed: int):
    """kill -9: the page cache stays, so everything that was committed is there, with async flush too."""
    disk = MemoryDisk()
    world = World.make(disk, "store")
    sent: set[bytes] = set()
    for life in range(3):
        parts = await world.recover()
        store = Store(parts, world.clock, HOST)
        await store.start()
        with trio.move_on_after(random.Random(seed + life).uniform(0.01, 3)):
            async with trio.open_nursery() as nursery:
                await nursery.start(store.run)
                for n in range(60):
                    body = b"%d %d" % (life, n)
                    world.send(store, body, *QUEUES[n % 3], keys=f"k{n}")
                    store.commit()
                    sent.add(body)
                    await trio.sleep(0.04)
                nursery.cancel_scope.cancel()
        disk.crash(seed, keep="all")
    async with world.life() as store:
        assert {body for some in everything(store).values() for body in some} == sent
        assert_agrees(store)


async def test_a_full_disk_during_recovery_is_told_and_harms_nothing(autojump_clock):
    disk = MemoryDisk()
    world = World.make(disk, "store")
    offsets = await world.filled(100)
    disk.remove_tree("store/consumequeue")
    disk.fail_when(
        lambda operation: operation.kind == "write" and "consumequeue" in operation.path, 28
    )
    with pytest.raises(StoreFull, match=r"consumequeue.*No space"):
        await world.restart()
    disk.heal()
    async with world.life() as store:
        assert len(assert_agrees(store)) == len(offsets)


@pytest.mark.parametrize("kind", ["write", "sync", "create", "truncate"])
async def test_a_failing_disk_ends_the_start_with_an_error_of_ours(autojump_clock, kind: str):
    disk = MemoryDisk()
    world = World.make(disk, "store")
    offsets = await world.filled(100, kill=True)
    world.disk.remove("store/checkpoint")
    world.flip(offsets[50] + 88)
    for count in range(1, 200):
        number = len(disk.operations) + count
        disk.fail_when(lambda o, number=number: o.number >= number and o.kind == kind, 5)
        try:
            await world.restart()
        except (StoreDamaged, ConfigError):
            continue
        finally:
            disk.heal()
        break
    async with world.life() as store:
        assert len(assert_agrees(store)) == 50
