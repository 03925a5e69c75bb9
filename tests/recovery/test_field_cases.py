"""Cases from the field, as close to how they were told as a small store can be."""

from __future__ import annotations

import logging

import pytest
import trio
from attrs import evolve

from trio_mq.protocol.layout import QUEUE_ENTRY_SIZE, Checkpoint, pack_checkpoint
from trio_mq.recovery import replay
from trio_mq.recovery.recover import Choices, recover
from trio_mq.store.checkpoint import read_marks
from trio_mq.store.store import Store
from trio_mq.testing.disk import MemoryDisk

from .stores import QUEUE_FILE_ENTRIES, SEGMENT_BYTES, World, everything, keyed, messages


def all_offsets(store: Store) -> list[int]:
    """Log offsets of all messages that consumers can read."""
    return sorted(m.log_offset for q in store.queues for m in messages(store, q.topic, q.queue_id))


def only_times(world: World, at_ms: int) -> None:
    """A checkpoint as Apache's broker writes it, with one time everywhere."""
    world.write(world.path("checkpoint"), pack_checkpoint(Checkpoint(at_ms, at_ms, at_ms)))


@pytest.mark.parametrize("apache", [False, True])
async def test_c007_the_end_of_the_second_last_segment_was_not_dispatched(
    world: World, apache: bool
):
    """C007: no entries for the last three records of segment 1 and all of segment 2; the checkpoint is newer."""
    async with world.life() as store:
        offsets = []
        while not offsets or offsets[-1] < SEGMENT_BYTES:
            offsets.append(world.send(store, b"body %d" % len(offsets), keys=f"k{len(offsets)}"))
    world.cut_entries("T", 0, len(offsets) - 4, 4)
    if apache:
        only_times(world, world.clock.now_ms() + 1000)
    world.crash()
    async with world.life() as store:
        assert all_offsets(store) == offsets
        assert [m.queue_offset for m in messages(store)] == list(range(len(offsets)))
        for n, offset in enumerate(offsets):
            assert keyed(store, f"k{n}") == [offset]


async def test_c008_without_times_a_replay_begins_near_the_progress_of_the_queues(world: World):
    """C008: a slave's checkpoint of zeros, eight segments, queues dispatched up to the middle of the eighth."""
    world.settings = evolve(world.settings, message_index_enable=False)
    async with world.life() as store:
        offsets = [world.send(store, b"%d" % n, queue_id=n % 3, keys=f"k{n}") for n in range(1)]
        while offsets[-1] < 7 * SEGMENT_BYTES + SEGMENT_BYTES // 2:
            n = len(offsets)
            offsets.append(world.send(store, b"%d" % n, queue_id=n % 3, keys=f"k{n}"))
    dispatched = len(offsets)
    derived = world.files("consumequeue")
    async with world.life(kill=True) as store:
        offsets += [
            world.send(store, b"%d" % n, queue_id=n % 3, keys=f"k{n}")
            for n in range(dispatched, dispatched + 6)
        ]
    for name, data in derived.items():
        world.write(world.path(name), data)
    only_times(world, 0)
    async with world.life() as store:
        assert world.report.walked_from >= 6 * SEGMENT_BYTES, "at most one segment before"
        assert 6 <= world.report.records <= 2 * SEGMENT_BYTES // (offsets[1] - offsets[0])
        assert all_offsets(store) == offsets


async def test_c008_c019_a_long_replay_tells_offset_and_share(autojump_clock, caplog, monkeypatch):
    """C008, C019: in the log, and to whoever wants to hear of it; never less than before, up to the end."""
    monkeypatch.setattr(replay, "STEP_BYTES", SEGMENT_BYTES)
    caplog.set_level(logging.INFO, "trio_mq.recovery")
    disk = MemoryDisk()
    world = World.make(disk, "store")
    await world.filled(400)
    disk.remove_tree("store/consumequeue")
    disk.run_delay_s = 1.0
    told: list[tuple[str, int, int]] = []
    parts = world.open_parts()
    report = await recover(
        parts, Choices(progress=lambda phase, offset, end: told.append((phase, offset, end)))
    )
    parts.release()
    assert [line for line in caplog.messages if "recovering: offset" in line and "%" in line]
    in_log = [(offset, end) for phase, offset, end in told if phase == "log"]
    assert len(in_log) > 3
    assert in_log == sorted(in_log)
    assert all(offset <= end for offset, end in in_log)
    assert in_log[0][1] > report.log_end // 2, "the end is known from the beginning, more or less"
    assert in_log[-1][0] > report.log_end // 2


async def replay_time(world: World, limit_s: float) -> float | None:
    """How long a recovery takes; None when it was killed after `limit_s`."""
    parts = world.open_parts()
    began_s = trio.current_time()
    with trio.move_on_after(limit_s) as scope:
        await recover(parts)
    parts.release()
    return None if scope.cancelled_caught else trio.current_time() - began_s


@pytest.mark.parametrize("lost", [("consumequeue",), ("consumequeue", "index")])
async def test_c019_after_three_kills_the_fourth_try_ends_sooner(
    autojump_clock, monkeypatch, lost: tuple[str, ...]
):
    """C019: a replay of a minute is killed after a third of it, three times; what was done is not done again."""
    monkeypatch.setattr(replay, "STEP_BYTES", SEGMENT_BYTES)

    async def damaged() -> tuple[World, list[int]]:
        world = World.make(MemoryDisk(), "store")
        offsets = await world.filled(2800)
        for folder in lost:
            world.disk.remove_tree(f"store/{folder}")
        world.disk.run_delay_s = 1.0
        return world, offsets

    whole_s = await replay_time((await damaged())[0], float("inf"))
    assert whole_s > 60
    world, offsets = await damaged()
    begins = [0]
    for _ in range(3):
        assert await replay_time(world, whole_s / 3) is None
        world.disk.crash(1, keep="none")  # the power goes, too: what is kept is kept durably
        begins.append(read_marks(world.checkpoint()).replay_from or 0)
    assert begins == sorted(set(begins)), "each try came further than the one before"
    world.disk.run_delay_s = 1.0
    last_s = await replay_time(world, whole_s)
    assert last_s < whole_s * 4 / 5
    world.disk.run_delay_s = 0.0
    async with world.life() as store:
        assert all_offsets(store) == offsets
        assert all(keyed(store, f"k{n}").count(offset) == 1 for n, offset in enumerate(offsets))


async def test_c029_a_clean_stop_right_after_a_roll_warns_of_nothing(world: World, caplog):
    """C029: a new log file without records, and a queue file that is exactly full."""
    async with world.life() as store:
        offsets = [world.send(store, b"%d" % n) for n in range(QUEUE_FILE_ENTRIES)]
        store.commit()
        store.log.roll()
        rolled = store.log.end
    assert world.disk.size(world.segment(rolled)) == SEGMENT_BYTES
    assert world.read(world.segment(rolled)) == bytes(SEGMENT_BYTES)
    assert world.disk.list_dir(world.path("consumequeue/T/0")) == ["0" * 20]
    assert world.disk.size(world.queue_file()) == QUEUE_FILE_ENTRIES * QUEUE_ENTRY_SIZE
    caplog.clear()
    async with world.life() as store:
        assert world.report.clean
        assert world.report.notes == []
        assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
        assert world.send(store, b"next") == rolled
        store.commit()
        assert messages(store)[-1].queue_offset == QUEUE_FILE_ENTRIES
        assert all_offsets(store) == [*offsets, rolled]


async def test_c028_three_topics_come_back_without_being_asked_for(world: World):
    """C028: all queues of a cleanly closed store are gone; nobody gave a flag."""
    async with world.life() as store:
        for n in range(90):
            world.send(store, b"%d" % n, f"Topic{n % 3}", n % 2)
        store.commit()
        before = everything(store)
    world.disk.remove_tree(world.path("consumequeue"))
    async with world.life() as store:
        assert everything(store) == before
        for queue in store.queues:
            offsets = [m.queue_offset for m in messages(store, queue.topic, queue.queue_id)]
            assert offsets == list(range(15))
