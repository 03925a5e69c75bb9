"""How fast the log goes to one slave: what it may take now, and what it took.

In: bytes sent, and the time by Trio's clock. Out: room for more, and a rate. Pure. Used by
:mod:`trio_mq.ha.slavelink`. Source: Apache FlowMonitor; unlike there, headers and bodies both count.
"""

from __future__ import annotations

from typing import Final

#: What a slave may take at once after a silence, as a share of a second's bytes: smooth, but not in drops.
BURST_S: Final = 0.1
#: Less than this, or half of a burst, is not worth a call and a header.
LEAST_BYTES: Final = 32 * 1024
#: The least time to wait for room.
LEAST_WAIT_S: Final = 0.001
#: Time that a rate is taken over.
WINDOW_S: Final = 1.0


class Flow:
    """At most `bytes_per_s` on average, None for no limit.

    What is sent may exceed the room by the sizes of headers; that is made up for later.
    """

    def __init__(self, bytes_per_s: int | None, now_s: float) -> None:
        self._rate = bytes_per_s
        self._burst = max(1.0, BURST_S * bytes_per_s) if bytes_per_s else 0.0
        self._least = max(1.0, min(LEAST_BYTES, self._burst / 2))
        self._room = self._burst
        self._at_s = now_s

    def room(self, most: int, now_s: float) -> int:
        """How many of `most` bytes may be sent now."""
        if self._rate is None:
            return most
        self._refill(now_s)
        return min(most, int(self._room)) if self._room >= self._least else 0

    def ready_s(self, now_s: float) -> float:
        """When to ask for room again; always later than now."""
        if self._rate is None:
            return now_s + LEAST_WAIT_S
        self._refill(now_s)
        return now_s + max(LEAST_WAIT_S, (self._least - self._room) / self._rate)

    def sent(self, size: int, now_s: float) -> None:
        """Note that so many bytes were sent, headers included."""
        if self._rate is not None:
            self._refill(now_s)
            self._room -= size

    def _refill(self, now_s: float) -> None:
        assert self._rate is not None
        self._room = min(self._burst, self._room + (now_s - self._at_s) * self._rate)
        self._at_s = now_s


class Meter:
    """Bytes per second, over the last whole window."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._size = 0
        self._last = 0

    def add(self, size: int, now_s: float) -> None:
        """Count bytes."""
        if now_s - self._began_s >= WINDOW_S:
            self._turn(now_s)
        self._size += size

    def rate(self, now_s: float) -> int:
        """Bytes per second as of now."""
        if now_s - self._began_s >= WINDOW_S:
            self._turn(now_s)
        return self._last

    def _turn(self, now_s: float) -> None:
        spent_s = now_s - self._began_s
        # Nothing was counted after the end of the window: a gap makes the average of it and what was before.
        self._last = int(self._size / spent_s)
        self._began_s, self._size = now_s, 0
