"""C070 for timers: a slave has the log and what its master said of its timers; then it is started as a master."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest

from tests.broker.timer_support import HOST, SETTINGS, T0, WINDOW, Rig, timers_on, wait_until
from trio_mq.broker.timerfollow import TimerFollower
from trio_mq.errors import BodyError, StoreError
from trio_mq.recovery.recover import Choices, recover
from trio_mq.store.store import Store, open_parts
from trio_mq.store.timercheck import TimerCheckpoint
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk


@pytest.fixture
def clock():
    return TrioClock(T0)


def copied(disk: MemoryDisk, *, with_timer_files: bool = False) -> MemoryDisk:
    """What a slave has of a master's store: the log."""
    copy = disk.clone()
    copy.kill()
    if not with_timer_files:
        copy.remove_tree("/store/timerlog")
        for path in ("/store/timerwheel", "/store/config/timercheck", "/store/config/timermetrics"):
            if copy.exists(path):
                copy.remove(path)
    return copy


@asynccontextmanager
async def slave_on(disk: MemoryDisk, clock: TrioClock) -> AsyncIterator[TimerFollower]:
    """What keeps the progress of timers on a slave, whose own timers do not run."""
    parts = open_parts(disk, SETTINGS, clock, lambda _topic: False)
    await recover(parts, Choices.of(SETTINGS))
    store = Store(parts, clock, HOST)
    await store.start()
    timers = Rig(store, clock, SETTINGS, WINDOW).timers
    follower = TimerFollower(disk, SETTINGS.path, timers, clock)
    await follower.load()
    yield follower
    assert timers.state.checkpoint == timers.state.check.value, "it answers what its master said"
    await store.close()


async def told(disk: MemoryDisk, clock: TrioClock, *checkpoints: TimerCheckpoint) -> list[bool]:
    """Let a slave hear these checkpoints of its master; which of them it took."""
    async with slave_on(disk, clock) as follower:
        return [await follower.take_checkpoint(one) for one in checkpoints]


async def test_c070_timers_at_most_what_the_master_delivered_since_it_was_asked(
    autojump_clock, clock
):
    disk = MemoryDisk()
    async with timers_on(disk, clock, window=WINDOW) as rig:
        for number in range(100):
            rig.send(f"early-{number}", TIMER_DELIVER_MS=T0 + 2_000 + number * 50)
        rig.send("while it is down", TIMER_DELIVER_MS=T0 + 30_000)
        rig.send("later", TIMER_DELIVER_MS=T0 + 60_000)
        rig.send("recalled", TIMER_DELIVER_MS=T0 + 60_000)
        rig.recall("recalled", T0 + 60_000)
        await wait_until(clock, T0 + 10_000)
        asked = rig.state.checkpoint
        rig.send("since", TIMER_DELIVER_MS=T0 + 13_000)
        await wait_until(clock, T0 + 15_000)
        assert len(rig.bodies()) == 101
        slave = copied(disk)
    async with slave_on(slave, clock) as follower:
        await follower.take_checkpoint(asked)
        await follower.take_counts({"timingCount": {"T": {"count": 4}}})
    await wait_until(clock, T0 + 40_000)
    async with timers_on(slave, clock, window=WINDOW) as rig:
        await wait_until(clock, T0 + 70_000)
        came = Counter(rig.bodies())
        times = {one.body: one.ms for one in rig.out()}
        assert rig.state.waiting == 0
        assert sum(rig.timers.metrics.counts.values()) == 0, "nothing is counted twice"
    lost = [number for number in range(100) if f"early-{number}" not in came]
    repeated = {body for body, count in came.items() if count > 1}
    assert (lost, repeated) == ([], {"since"})
    assert came["later"] == came["while it is down"] == 1
    assert "recalled" not in came
    assert times["while it is down"] < T0 + 42_000
    assert T0 + 60_000 <= times["later"] < T0 + 61_000


@pytest.mark.parametrize("asked_ms", [50_000, 150_000])
async def test_c070_messages_that_went_round_come_once(autojump_clock, clock, asked_ms):
    """Each round leaves a copy in the timer's queue; a promoted slave meets all of them."""
    rounds = attrs.evolve(SETTINGS, timer_roll_window_slot=40)
    disk = MemoryDisk()
    async with timers_on(disk, clock, rounds, window=WINDOW) as rig:
        for number in range(20):
            rig.send(f"far-{number}", TIMER_DELIVER_MS=T0 + 200_000 + number)
        await wait_until(clock, T0 + asked_ms - 5_000)
        rig.send("new", TIMER_DELIVER_MS=T0 + 300_000)
        await wait_until(clock, T0 + asked_ms)
        asked, slave = rig.state.checkpoint, copied(disk)
        assert rig.store.queue("rmq_sys_wheel_timer", 0).max_offset >= 41
    await told(slave, clock, asked)
    async with timers_on(slave, clock, rounds, window=WINDOW) as rig:
        await wait_until(clock, T0 + asked_ms + 1_000)
        killed = slave.clone()
        await wait_until(clock, T0 + 310_000)
        assert Counter(rig.bodies()) == dict.fromkeys(["new", *(f"far-{i}" for i in range(20))], 1)
        assert rig.state.waiting == 0
    killed.kill()
    again = TrioClock(T0 + asked_ms + 1_000)
    async with timers_on(killed, again, rounds, window=WINDOW) as rig:
        await wait_until(again, T0 + 310_000)
        assert rig.bodies().count("far-7") == rig.bodies().count("new") == 1


async def test_c070_messages_that_should_have_gone_round_while_nobody_was_there(
    autojump_clock, clock
):
    rounds = attrs.evolve(SETTINGS, timer_roll_window_slot=40)
    disk = MemoryDisk()
    async with timers_on(disk, clock, rounds, window=WINDOW) as rig:
        rig.send("far", TIMER_DELIVER_MS=T0 + 100_000)
        await wait_until(clock, T0 + 20_000)
        asked, slave = rig.state.checkpoint, copied(disk)
    for read_ms in (asked.read_ms, T0 + 90_000):  # and a master that was late with its rounds
        await told(slave, clock, attrs.evolve(asked, read_ms=read_ms, changes=asked.changes + 1))
    await wait_until(clock, T0 + 95_000)
    async with timers_on(slave, clock, rounds, window=WINDOW) as rig:
        await wait_until(clock, T0 + 150_000)
        assert rig.bodies() == ["far"]
        assert rig.out()[0].ms >= T0 + 100_000


async def test_a_former_master_that_is_one_again_uses_what_fits_of_its_wheel(autojump_clock, clock):
    disk = MemoryDisk()
    async with timers_on(disk, clock, window=WINDOW) as rig:
        rig.send("early", TIMER_DELIVER_MS=T0 + 2_000)
        for number in range(5):
            rig.send(f"later-{number}", TIMER_DELIVER_MS=T0 + 60_000 + number)
        await wait_until(clock, T0 + 10_000)
        slave = copied(disk, with_timer_files=True)
        rig.send("unknown to its wheel", TIMER_DELIVER_MS=T0 + 61_000)
        await wait_until(clock, T0 + 12_000)
        asked, whole = rig.state.checkpoint, copied(disk)
    assert slave.size("/store/timerwheel")
    for path in whole.files():  # the log of the other one, and its own timer files
        if "/commitlog/" in path or "/consumequeue/" in path:
            slave.make_dirs(path.rpartition("/")[0])
            slave.open(path, create=True).write(whole.files()[path], 0)
    await told(slave, clock, asked)
    async with timers_on(slave, clock, window=WINDOW) as rig:
        await wait_until(clock, T0 + 70_000)
        assert Counter(rig.bodies()) == dict.fromkeys(
            ["early", "unknown to its wheel", *(f"later-{i}" for i in range(5))], 1
        )


async def test_checkpoints_of_a_state_before_are_not_taken(autojump_clock, clock):
    disk = MemoryDisk()
    newer = TimerCheckpoint(9_000, 52, 5, 5, 0, 9_000, 9)
    older = TimerCheckpoint(7_000, 52, 3, 3, 0, 7_000, 8)
    unversioned = TimerCheckpoint(6_000, 52, 2, 2)
    assert await told(disk, clock, newer, older, newer) == [True, False, True]
    # the file has what a slave's has: the master's progress, and none of an own log
    assert await told(disk, clock, older, unversioned) == [False, True]


async def test_a_disk_that_takes_no_checkpoint(autojump_clock, clock):
    disk = MemoryDisk()
    checkpoint = TimerCheckpoint(9_000, 52, 5, 5, 0, 9_000, 9)
    async with slave_on(disk, clock) as follower:
        disk.fill()
        with pytest.raises(StoreError, match="timercheck"):
            await follower.take_checkpoint(checkpoint)
        disk.make_room()
        assert await follower.take_checkpoint(checkpoint)
        with pytest.raises(BodyError):
            await follower.take_counts([])
