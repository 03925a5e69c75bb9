"""How often something happens, for the statistics of background services.

In: events. Out: their rate over the last seconds. Called by :mod:`trio_mq.broker.timers`. On Trio's clock.
"""

from __future__ import annotations

from typing import Final

import trio

#: The rate is that of the last whole period.
PERIOD_S: Final = 3.0


class Rate:
    """Counts events; costs an addition and a look at the clock for each."""

    def __init__(self) -> None:
        self.total = 0
        self._since_s = -1e9
        self._count = 0
        self._last = 0.0

    def count(self, events: int = 1) -> None:
        """So many have happened just now."""
        self._turn()
        self._count += events
        self.total += events

    def per_second(self) -> float:
        """Events per second."""
        self._turn()
        return self._last

    def _turn(self) -> None:
        passed_s = trio.current_time() - self._since_s
        if passed_s >= PERIOD_S:
            self._last = self._count / passed_s if passed_s < 2 * PERIOD_S else 0.0
            self._count = 0
            self._since_s += passed_s
