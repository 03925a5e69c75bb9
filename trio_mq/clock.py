"""Wall-clock time as an argument, so that a test can turn it.

Only timestamps that are stored or sent come from here; durations and deadlines use Trio's own clock.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where timestamps come from."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000
