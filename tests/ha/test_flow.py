"""The limit of a stream holds over any time, and its rate is what was sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.ha.flow import BURST_S, Flow, Meter


def test_without_a_limit_there_is_always_room() -> None:
    flow = Flow(None, 0.0)
    for _ in range(3):
        assert flow.room(1 << 20, 0.0) == 1 << 20
        flow.sent(1 << 20, 0.0)


@given(
    st.integers(1, 10_000_000),
    st.integers(1, 300_000),
    st.lists(st.floats(0, 0.5), min_size=1, max_size=50),
)
def test_never_more_than_the_rate_and_one_burst(rate: int, most: int, pauses: list[float]) -> None:
    flow, now_s, sent = Flow(rate, 0.0), 0.0, 0
    for pause_s in pauses:
        now_s += pause_s
        size = flow.room(most, now_s)
        assert 0 <= size <= most
        if size:
            flow.sent(size, now_s)
            sent += size
        assert sent <= rate * now_s + max(1.0, BURST_S * rate) + 1


@given(st.integers(1, 10_000_000), st.integers(1, 300_000))
def test_who_asks_when_it_is_ready_gets_the_whole_rate(rate: int, most: int) -> None:
    """And does not ask again and again for nothing."""
    flow, now_s, sent, asked = Flow(rate, 0.0), 0.0, 0, 0
    while asked < 400:
        asked += 1
        if size := flow.room(most, now_s):
            flow.sent(size, now_s)
            sent += size
        else:
            later_s = flow.ready_s(now_s)
            assert later_s > now_s
            now_s = later_s
    assert sent >= rate * now_s * 0.9 - 1
    assert sent > 0


def test_headers_are_made_up_for() -> None:
    flow = Flow(1000, 0.0)
    flow.sent(flow.room(100, 0.0) + 12, 0.0)
    assert flow.room(100, 0.0) == 0
    assert flow.ready_s(0.0) == pytest.approx((50 + 12) / 1000)
    assert flow.room(100, 0.0631) in (50, 51)


def test_the_rate_is_that_of_the_last_whole_second() -> None:
    meter = Meter(10.0)
    assert meter.rate(10.5) == 0
    for at_s in (10.1, 10.5, 10.9):
        meter.add(100, at_s)
    assert meter.rate(11.0) == 300
    meter.add(50, 11.5)
    assert meter.rate(11.9) == 300
    assert meter.rate(12.0) == 50
    assert meter.rate(13.5) == 0


def test_the_rate_after_a_silence_counts_the_silence() -> None:
    meter = Meter(0.0)
    meter.add(1000, 0.5)
    assert meter.rate(10.0) == 100
