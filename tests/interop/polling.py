"""Waiting for real peers: on a condition, with a limit, never for a fixed time when a condition exists.

In: a condition and a limit. Out: the condition's first true value, or a TimeoutError that shows the last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def sleep(seconds: float) -> None:
    """Real time has to pass: the other side is another process."""
    time.sleep(seconds)  # noqa: TID251


def now_ms() -> int:
    """Wall clock, as brokers stamp messages with it."""
    return int(time.time() * 1000)  # noqa: TID251


def wait_for(
    condition: Callable[[], T], what: str, *, timeout_s: float = 30.0, every_s: float = 0.05
) -> T:
    """Call ``condition`` until it is true and return its value."""
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {timeout_s} s, last seen {value!r}")
        sleep(every_s)


def holds_for(condition: Callable[[], bool], what: str, *, seconds: float) -> None:
    """The condition must stay true for some time: used where the row says that nothing more comes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), what
        sleep(0.05)
