"""Histograms of durations."""

from __future__ import annotations

from trio_mq.store.times import BOUNDS_MS, Times


def test_durations_are_counted_by_their_upper_bound():
    times = Times("syncing")
    for ms in (0.5, 1, 1.5, 49, 50, 6000):
        times.add(ms / 1000)
    counts = dict(zip([*BOUNDS_MS, None], times.counts, strict=True))
    assert {bound: n for bound, n in counts.items() if n} == {1: 2, 2: 1, 50: 2, None: 1}
    assert times.count == 6
    assert times.last_s == times.slowest_s == 6
    times.add(0.001)
    assert (times.last_s, times.slowest_s) == (0.001, 6)


def test_one_line_says_it_all():
    times = Times("syncing the commit log")
    assert times.text() == "syncing the commit log: 0 times, last 0.0 ms, slowest 0.0 ms"
    times.add(0.05)
    times.add(7)
    assert times.text() == (
        "syncing the commit log: 2 times, last 7000.0 ms, slowest 7000.0 ms (<=50 ms: 1, >5000 ms: 1)"
    )
