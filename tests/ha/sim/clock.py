"""Trio's time for runs: it stands still while anybody has something to do, and then is that of the next deadline.

In: Trio's loop, which asks how long it may sleep. Out: never. Called by :mod:`tests.ha.sim.runner`. Against
:class:`trio.testing.MockClock`, which lets the loop go idle once before each leap, a quarter of all turns of the loop
are saved; it is for code without worker threads only.
"""

from __future__ import annotations

import math

import trio


class LeapClock(trio.abc.Clock):
    """See the module."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def start_clock(self) -> None:
        """See :class:`trio.abc.Clock`."""

    def current_time(self) -> float:
        """See :class:`trio.abc.Clock`."""
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Nobody can run: leap. Without a deadline the loop turns in vain, which the limit of a run ends."""
        if deadline < math.inf:
            self._now_s = max(self._now_s, deadline)
        return 0.0
