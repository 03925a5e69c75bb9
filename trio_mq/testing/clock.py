"""Wall time for tests: it follows Trio's clock, so `autojump_clock` moves timestamps and timers.

In: nothing, or a time to set. Out: :class:`trio_mq.clock.Clock`. Called by tests.
"""

from __future__ import annotations

import trio

from trio_mq.clock import Clock

DEFAULT_START_MS = 1_700_000_000_000
"""A round moment in November 2023 that shows at once as made up."""


class TrioClock:
    """A wall clock that shows `start_ms` when it is first read and then follows Trio's time."""

    def __init__(self, start_ms: int = DEFAULT_START_MS) -> None:
        self._now_ms = start_ms
        self._read_at_s: float | None = None
        self._rest_s = 0.0

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        now_s = trio.current_time()
        if self._read_at_s is not None:
            # whole milliseconds move over and the rest is kept: nothing is lost by rounding
            passed_s = now_s - self._read_at_s + self._rest_s
            passed_ms = int(passed_s * 1000 + 1e-6)
            self._now_ms += passed_ms
            self._rest_s = passed_s - passed_ms / 1000
        self._read_at_s = now_s
        return self._now_ms

    def set(self, now_ms: int) -> None:
        """Let it be `now_ms`, as somebody who sets a machine's clock, forwards or backwards."""
        self._now_ms = now_ms
        self._rest_s = 0.0
        self._read_at_s = trio.current_time()


class MachineClock:
    """The wall clock of one machine: that of all of them, or one that is some time ahead or behind."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: How far it is ahead (ms), or behind.
        self.ahead_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return self._clock.now_ms() + self.ahead_ms

    def jump(self, by_ms: int) -> None:
        """Be set forwards or backwards, while everything that uses it goes on."""
        self.ahead_ms += by_ms


class ManualClock:
    """A wall clock for tests without Trio: it stands still until it is told."""

    def __init__(self, start_ms: int = DEFAULT_START_MS) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return self._now_ms

    def set(self, now_ms: int) -> None:
        """Let it be `now_ms`."""
        self._now_ms = now_ms

    def advance(self, by_ms: int) -> None:
        """Let `by_ms` pass."""
        self._now_ms += by_ms
