"""Timers: messages come when they are due, whatever happens meanwhile."""

from __future__ import annotations

import errno
from contextlib import suppress

import attrs
import pytest
import trio

from tests.broker.timer_support import BORN, SETTINGS, T0, timers_on
from trio_mq.broker import timerfire
from trio_mq.broker.names import TIMER_TOPIC
from trio_mq.broker.put import Letter
from trio_mq.broker.timers import CLOCK_CHECK_S
from trio_mq.config import FlushDiskType
from trio_mq.errors import RequestRefused, StoreFull
from trio_mq.protocol import properties
from trio_mq.protocol.codes import ResponseCode
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk


@pytest.fixture
def clock():
    return TrioClock(T0)


@pytest.fixture
def disk():
    return MemoryDisk()


async def test_the_kinds_of_delay_come_when_they_are_due(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        rig.send("sec", TIMER_DELAY_SEC=5)
        rig.send("ms", TIMER_DELAY_MS=1234)
        rig.send("at", TIMER_DELIVER_MS=T0 + 2500)
        rig.send("past", TIMER_DELIVER_MS=T0 - 1)
        assert rig.bodies() == ["past"]
        await trio.sleep(20)
        out = rig.out()
        assert [one.body for one in out] == ["past", "ms", "at", "sec"]
        assert [one.ms - T0 for one in out[1:]] == [1234, 2500, 5000]
        assert rig.state.waiting == 0
        props = out[1].record.property_map
        assert (props["REAL_TOPIC"], props["REAL_QID"], props["TIMER_OUT_MS"]) == (
            *("T", "0", str(T0 + 1000)),
        )
        assert int(props["TIMER_ENQUEUE_MS"]) == T0
        assert int(props["TIMER_DEQUEUE_MS"]) == T0 + 1234


async def test_a_day_passes_in_a_moment(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        rig.send("tomorrow", TIMER_DELAY_SEC=24 * 3600)
        await trio.sleep(24 * 3600 - 0.001)
        assert rig.bodies() == []
        await trio.sleep(0.002)
        assert rig.bodies() == ["tomorrow"]


async def test_far_times_are_reached_in_rounds(autojump_clock, disk, clock):
    settings = attrs.evolve(SETTINGS, timer_roll_window_slot=100)
    async with timers_on(disk, clock, settings) as rig:
        rig.send("far", TIMER_DELAY_SEC=1000)
        rig.send("absolute", TIMER_DELIVER_MS=T0 + 1_000_200)
        rig.send("taken back", TIMER_DELIVER_MS=T0 + 1_000_300)
        await trio.sleep(150)
        assert rig.state.waiting == 3
        rig.recall("taken back", T0 + 1_000_001)
        await trio.sleep(849)
        assert rig.bodies() == []
        await trio.sleep(3)
        # How long the first one was to wait is no longer known after a round: it comes at the end of its second.
        assert [(one.body, one.ms - T0) for one in rig.out()] == [
            ("far", 1_000_000),
            ("absolute", 1_000_200),
        ]
        assert int(rig.out()[0].record.property_map["TIMER_ROLL_TIMES"]) > 3
        assert rig.state.waiting == 0
        assert dict(rig.timers.metrics.counts) == {"T": 0}


async def test_messages_of_one_slot_come_in_their_order(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        for number in range(300):
            rig.send(str(number), TIMER_DELIVER_MS=T0 + 5000)
        await trio.sleep(4.999)
        assert rig.bodies() == []
        await trio.sleep(0.01)
        assert rig.bodies() == [str(number) for number in range(300)]


async def test_what_comes_for_a_slot_that_fires_goes_with_it(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        rig.send("first", TIMER_DELIVER_MS=T0 + 5300)
        await trio.sleep(5.1)
        rig.send("second", TIMER_DELIVER_MS=T0 + 5200)
        rig.send("third", TIMER_DELIVER_MS=T0 + 5900)
        await trio.sleep(0.5)
        assert rig.bodies() == ["second", "first"]
        rig.recall("third", T0 + 5_950)
        await trio.sleep(5)
        assert rig.bodies() == ["second", "first"]


async def test_recalled_messages_do_not_come(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        rig.send("stays", TIMER_DELAY_MS=5500)
        rig.send("goes", TIMER_DELAY_MS=5500)
        await trio.sleep(1)
        rig.recall("goes", T0 + 5001)
        rig.recall("unknown", T0 + 5001)
        await trio.sleep(1)
        assert dict(rig.timers.metrics.counts) == {"T": 0}  # two came, two were named by recalls
        await trio.sleep(8)
        assert rig.bodies() == ["stays"]
        assert rig.state.waiting == 0
        assert dict(rig.timers.metrics.counts) == {"T": 0}


@pytest.mark.parametrize(("with_topic", "came"), [(True, ["mine"]), (False, [])])
async def test_whether_a_recall_names_its_topic(autojump_clock, disk, clock, with_topic, came):
    settings = attrs.evolve(SETTINGS, append_topic_for_timer_delete_key=with_topic)
    async with timers_on(disk, clock, settings) as rig:
        rig.send("mine", TIMER_DELAY_MS=5500)
        await trio.sleep(1)
        key = "Other+id-mine" if with_topic else "id-mine"
        rig.recall("mine", T0 + 5001, topic="Other", key=key)
        await trio.sleep(8)
        assert rig.bodies() == came


async def test_timers_survive_a_restart(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        for number in range(20):
            rig.send(f"m{number}", TIMER_DELAY_MS=1000 * number + 500, TAGS="x")
        await trio.sleep(4.7)
        assert len(rig.bodies()) == 5
    async with timers_on(disk, clock) as rig:
        assert rig.state.waiting == 15
        await trio.sleep(30)
        assert sorted(rig.bodies()) == sorted(f"m{number}" for number in range(20))
    async with timers_on(disk, clock) as rig:
        assert rig.state.waiting == 0
        await trio.sleep(30)
        assert len(rig.bodies()) == 20


async def test_what_came_due_while_the_broker_was_down_comes_at_once(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        for number in range(50):
            rig.send(f"m{number}", TIMER_DELAY_SEC=60 + 7 * number)
        await trio.sleep(2)
    clock.set(T0 + 40 * 24 * 3600 * 1000)
    async with timers_on(disk, clock) as rig:
        await trio.sleep(0.5)
        assert sorted(rig.bodies()) == sorted(f"m{number}" for number in range(50))
        rig.send("new", TIMER_DELAY_MS=700)
        await trio.sleep(2)
        assert rig.bodies()[-1] == "new"


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_recalls_hold_for_what_was_due_while_the_broker_was_down(
    autojump_clock, disk, clock, flush
):
    """Also when message and recall were both on their round."""
    settings = attrs.evolve(SETTINGS, timer_roll_window_slot=10, flush_disk_type=flush)
    async with timers_on(disk, clock, settings) as rig:
        for number in range(40):
            rig.send(str(number), TIMER_DELIVER_MS=T0 + 20_100 + 400 * number)
        await trio.sleep(2)
        for number in range(0, 40, 2):
            rig.recall(str(number), (T0 + 20_099 + 400 * number) // 1000 * 1000 + 1)
        await trio.sleep(1)
    clock.set(T0 + 600_000)
    async with timers_on(disk, clock, settings) as rig:
        await trio.sleep(5)
        assert rig.bodies() == [str(number) for number in range(1, 40, 2)]
        assert rig.state.waiting == 0


async def test_a_clock_that_is_set_forward_fires_soon(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        rig.send("m", TIMER_DELAY_SEC=3600)
        await trio.sleep(1)
        clock.set(T0 + 3_600_500)
        await trio.sleep(CLOCK_CHECK_S + 0.1)
        assert rig.bodies() == ["m"]


async def test_a_clock_that_is_set_back_neither_repeats_nor_hurries(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        rig.send("before", TIMER_DELAY_MS=500)
        rig.send("later", TIMER_DELAY_SEC=30)
        await trio.sleep(10)
        assert rig.bodies() == ["before"]
        clock.set(T0 - 3_600_000)
        rig.send("after", TIMER_DELAY_SEC=5)
        await trio.sleep(4.9)
        assert rig.bodies() == ["before"]
        await trio.sleep(0.2)
        assert rig.bodies() == ["before", "after"]
        await trio.sleep(3700)
        assert rig.bodies() == ["before", "after", "later"]


async def test_a_clock_set_back_while_a_slot_fires(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        rig.send("a", TIMER_DELIVER_MS=T0 + 5200)
        rig.send("b", TIMER_DELIVER_MS=T0 + 5800)
        await trio.sleep(5.5)
        clock.set(T0 - 60_000)
        rig.send("c", TIMER_DELIVER_MS=T0 - 50_000)
        await trio.sleep(20)
        assert rig.bodies() == ["a", "c"]
        await trio.sleep(60)
        assert rig.bodies() == ["a", "c", "b"]


async def test_crowded_slots_take_no_more(autojump_clock, disk, clock):
    settings = attrs.evolve(SETTINGS, timer_congest_num_each_slot=10)
    async with timers_on(disk, clock, settings) as rig:
        taken = 0
        for number in range(200):
            with suppress(RequestRefused):
                rig.send(f"m{number}", TIMER_DELIVER_MS=T0 + 60_500)
                taken += 1
            await trio.sleep(0.01)
        if taken == 20:
            with pytest.raises(RequestRefused, match="timerCongestNumEachSlot") as refused:
                rig.send("no more", TIMER_DELIVER_MS=T0 + 60_500)
            assert refused.value.code == ResponseCode.SYSTEM_ERROR
        assert 11 <= taken <= 20
        rig.send("elsewhere", TIMER_DELIVER_MS=T0 + 70_500)
        await trio.sleep(100)
        assert len(rig.bodies()) == taken + 1


async def test_a_crowded_second_is_delivered_whole(autojump_clock, disk, clock, monkeypatch):
    monkeypatch.setattr(timerfire, "READY_MESSAGES", 50)
    monkeypatch.setattr(timerfire, "WALK_UNITS", 70)
    async with timers_on(disk, clock) as rig:
        for number in range(1000):
            rig.send(str(number), TIMER_DELIVER_MS=T0 + 10_000)
            if number == 500:
                await trio.sleep(0.1)
        await trio.sleep(20)
        assert rig.bodies() == [str(number) for number in range(1000)]


async def test_c148_one_put_that_fails_repeats_only_itself(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        for number in range(50):
            rig.send(str(number), TIMER_DELIVER_MS=T0 + 5000)
        await trio.sleep(3)
        append, failed = rig.store.append_packed, []

        def append_or_fail(queue, packed, **more):
            if b"id-9\x02" in packed.record and len(failed) < 2:
                failed.append(packed)
                raise StoreFull("no room for a moment")
            return append(queue, packed, **more)

        rig.store.append_packed = append_or_fail
        await trio.sleep(3)
        assert failed
        assert sorted(rig.bodies(), key=int) == [str(number) for number in range(50)]


async def test_a_full_disk_is_waited_for(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        for number in range(300):
            rig.send(str(number), TIMER_DELIVER_MS=T0 + 5000)
        rig.send("late", TIMER_DELAY_SEC=8)
        await trio.sleep(3)
        rig.store.cleaner.refusal = "the disk is full"
        await trio.sleep(10)
        assert rig.bodies() == []
        rig.store.cleaner.refusal = None
        await trio.sleep(1)
        assert rig.bodies() == [*(str(number) for number in range(300)), "late"]


async def test_a_full_disk_under_the_timer_log_loses_nothing(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        disk.fail_when(lambda operation: "timer" in operation.path, errno.ENOSPC)
        for number in range(150):
            rig.send(str(number), TIMER_DELAY_MS=20_000 + number)
        await trio.sleep(10)
        disk.heal()
        await trio.sleep(15)
        assert rig.bodies() == [str(number) for number in range(150)]


async def test_enqueuing_and_firing_can_be_held(autojump_clock, disk, clock):
    settings = attrs.evolve(SETTINGS, timer_stop_dequeue=True)
    async with timers_on(disk, clock, settings) as rig:
        rig.send("m", TIMER_DELAY_SEC=1)
        await trio.sleep(10)
        assert (rig.bodies(), rig.state.waiting) == ([], 1)
    settings = attrs.evolve(SETTINGS, timer_stop_enqueue=True)
    async with timers_on(disk, clock, settings) as rig:
        rig.send("n", TIMER_DELAY_SEC=1)
        await trio.sleep(10)
        assert (rig.bodies(), rig.timers.untaken) == (["m"], 1)
        assert rig.timers.runtime()["timerOffsetBehind"] == "1"
    async with timers_on(disk, clock) as rig:
        await trio.sleep(1)
        assert rig.bodies() == ["m", "n"]


async def test_the_timer_log_goes_on_over_many_files_and_old_ones_go(autojump_clock, disk, clock):
    settings = attrs.evolve(SETTINGS, mapped_file_size_commit_log=1 << 15)
    async with timers_on(disk, clock, settings) as rig:
        for number in range(600):
            rig.send(str(number), TIMER_DELAY_MS=2000 + 10 * number)
            if number % 50 == 0:
                await trio.sleep(0.01)
        await trio.sleep(20)
        assert len(rig.bodies()) == 600
        assert len(disk.list_dir("/store/timerlog")) == 6
        while len(rig.store.log.segments.starts) > 1:
            rig.store.log.segments.drop_segment(rig.store.log.segments.start)
        await trio.sleep(60)
        rig.send("last", TIMER_DELAY_SEC=1)
        await trio.sleep(5)
        assert len(disk.list_dir("/store/timerlog")) < 6
        assert rig.out()[-1].body == "last"
    async with timers_on(disk, clock, settings) as rig:
        rig.send("more", TIMER_DELAY_SEC=1)
        await trio.sleep(5)
        assert rig.bodies()[-1] == "more"


async def test_damaged_messages_of_the_queue_are_passed(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        for props in ({}, {"TIMER_OUT_MS": "x"}, {"TIMER_OUT_MS": str(T0 + 2000)}):
            data = properties.encode(props)
            rig.putter.put(Letter("rmq_sys_wheel_timer", 0, b"?", data, T0, BORN))
        rig.send("good", TIMER_DELAY_SEC=2)
        await trio.sleep(10)
        assert rig.bodies() == ["good"]


async def test_no_timer_no_files(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        rig.send("plain")
        await trio.sleep(10)
    assert not [path for path in disk.files() if "timer" in path]


async def test_cold_files_are_fetched(autojump_clock, disk, clock):
    async with timers_on(disk, clock) as rig:
        for number in range(100):
            rig.send(f"{number}", TIMER_DELAY_SEC=5 + number)
        await trio.sleep(3)
    disk.run_delay_s = 0.001

    async def forget_now_and_then():
        while True:
            disk.cold = not disk.cold
            await trio.sleep(0.003)

    async with timers_on(disk, clock) as rig, trio.open_nursery() as nursery:
        nursery.start_soon(forget_now_and_then)
        rig.send("one more", TIMER_DELAY_SEC=20)
        await trio.sleep(110)
        nursery.cancel_scope.cancel()
        disk.cold = False
        assert len(rig.bodies()) == 101


@pytest.mark.parametrize("where", ["../../../x", "..", "", "a/b", "a\0b"])
@pytest.mark.parametrize("ahead_ms", [2000, -2000])
async def test_names_that_lead_out_of_the_store_are_passed(
    autojump_clock, disk, clock, where, ahead_ms, caplog
):
    """Such messages are sent to the timer's queue by hand."""
    async with timers_on(disk, clock) as rig:
        out_ms = clock.now_ms() + ahead_ms
        for topic in (where, "T"):
            rig.send("x", topic=TIMER_TOPIC, REAL_TOPIC=topic, REAL_QID=0, TIMER_OUT_MS=out_ms)
        await trio.sleep(5)
        assert rig.bodies() == ["x"]
        assert {queue.topic for queue in rig.store.queues} == {"T", TIMER_TOPIC}
    assert "says no queue to go to" in caplog.text
