"""Wall clocks for tests follow Trio's time and can be set."""

from __future__ import annotations

import trio

from trio_mq.testing.clock import DEFAULT_START_MS, ManualClock, TrioClock


async def test_wall_time_follows_trio_time(autojump_clock):
    clock = TrioClock()
    assert clock.now_ms() == DEFAULT_START_MS
    await trio.sleep(1.5)
    assert clock.now_ms() == DEFAULT_START_MS + 1500
    assert clock.now_ms() == DEFAULT_START_MS + 1500


async def test_parts_of_a_millisecond_add_up(autojump_clock):
    clock = TrioClock(0)
    clock.now_ms()
    for _ in range(10):
        await trio.sleep(0.0003)
        clock.now_ms()
    assert clock.now_ms() == 3


async def test_the_clock_can_be_set_back(autojump_clock):
    clock = TrioClock(10_000)
    clock.now_ms()
    await trio.sleep(1)
    clock.set(500)
    assert clock.now_ms() == 500
    await trio.sleep(2)
    assert clock.now_ms() == 2500


async def test_a_clock_that_was_set_before_it_was_read(autojump_clock):
    clock = TrioClock(10_000)
    clock.set(700)
    await trio.sleep(1)
    assert clock.now_ms() == 1700


def test_a_manual_clock_moves_when_told():
    clock = ManualClock(5)
    clock.advance(10)
    assert clock.now_ms() == 15
    clock.set(3)
    assert clock.now_ms() == 3
