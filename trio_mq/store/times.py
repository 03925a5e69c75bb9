"""How long a stage takes, as a histogram: the first thing to look at when a broker is slow.

In: seconds. Out: counts per bucket, and one line for logs, remarks and status. Called by the store for appends and
by the flusher for syncs.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import attrs

#: Upper bounds of the buckets, ms; the last bucket has everything above.
BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_BOUNDS_S: Final = tuple(bound / 1000 for bound in BOUNDS_MS)


@attrs.define(eq=False)
class Times:
    """Counts of durations; `counts[i]` are those up to `BOUNDS_MS[i]`, the last one those above all bounds."""

    stage: str
    counts: list[int] = attrs.field(factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    last_s: float = 0.0
    slowest_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self.last_s = seconds
        if seconds > self.slowest_s:
            self.slowest_s = seconds

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def percentile_ms(self, share: float) -> float:
        """The time, ms, that `share` (0 to 1) of them stayed below: the upper bound of its bucket; 0 without any."""
        wanted, seen = share * self.count, 0
        if not wanted:
            return 0.0
        for bound, count in zip(BOUNDS_MS, self.counts, strict=False):
            seen += count
            if seen >= wanted:
                return min(float(bound), 1000 * self.slowest_s)
        return 1000 * self.slowest_s

    def text(self) -> str:
        """One line: stage, number, last and slowest, and the buckets that have something."""
        parts = [
            f"<={bound} ms: {count}"
            for bound, count in zip(BOUNDS_MS, self.counts, strict=False)
            if count
        ]
        if self.counts[-1]:
            parts.append(f">{BOUNDS_MS[-1]} ms: {self.counts[-1]}")
        head = (
            f"{self.stage}: {self.count} times, last {1000 * self.last_s:.1f} ms, "
            f"slowest {1000 * self.slowest_s:.1f} ms"
        )
        return f"{head} ({', '.join(parts)})" if parts else head
