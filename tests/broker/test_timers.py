"""Timers: messages come when they are due, whatever happens meanwhile."""

from __future__ import annotations

import pytest
import trio

from tests.broker.timer_support import T0, timers_on
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
