"""Counts of waiting messages by topic, and rates."""

from __future__ import annotations

import pytest
import trio

from trio_mq.broker.rates import Rate
from trio_mq.broker.timermetrics import TimerMetrics
from trio_mq.errors import BodyError
from trio_mq.protocol import jsondialect
from trio_mq.testing.clock import ManualClock


def test_counts_go_to_the_file_and_back():
    clock = ManualClock(5000)
    metrics = TimerMetrics(clock)
    metrics.add("T", 3)
    clock.advance(10)
    metrics.add("T", -1)
    metrics.add("U", 1)
    assert metrics.version.counter == 3
    data = jsondialect.dumps(metrics.to_json())
    again = TimerMetrics(clock)
    again.read_json(jsondialect.loads(data))
    assert dict(again.counts) == {"T": 2, "U": 1}
    assert again.to_json() == metrics.to_json()
    assert again.to_json()["timingCount"]["T"] == {"count": 2, "timeStamp": 5010}
    revision = again.revision
    again.forget("T")
    again.forget("unknown")
    assert (dict(again.counts), again.revision) == ({"U": 1}, revision + 1)


@pytest.mark.parametrize(
    "value",
    [[], {"timingCount": 3}, {"timingCount": {"T": {"count": "x"}}}, {"timingCount": {"T": 5}}],
)
def test_other_files_are_refused(value):
    metrics = TimerMetrics(ManualClock())
    with pytest.raises(BodyError):
        metrics.read_json(value)
    assert not metrics.counts


async def test_rates(autojump_clock):
    rate = Rate()
    assert rate.per_second() == 0
    for _ in range(400):
        rate.count()
        await trio.sleep(0.01)
    assert rate.total == 400
    assert rate.per_second() == pytest.approx(100, rel=0.05)
    await trio.sleep(10)
    assert rate.per_second() == 0


def test_a_copy_has_the_masters_counts():
    master, copy = TimerMetrics(ManualClock(5000)), TimerMetrics(ManualClock(9000))
    master.add("T", 3)
    copy.add("U", 1)
    assert copy.take_over(jsondialect.loads(jsondialect.dumps(master.to_json())))
    assert copy.to_json() == master.to_json()
    revision = copy.revision
    assert not copy.take_over(master.to_json())
    assert copy.revision == revision
