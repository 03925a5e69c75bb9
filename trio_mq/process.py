"""What the operating system knows and grants of this process.

In: nothing. Out: the moment when it began, and as many file descriptors as it may have. Called once by
:mod:`trio_mq.system` at the start.
"""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress


def raise_descriptor_limit() -> None:
    """Let the process open as many files and connections as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems name a limit that they then refuse
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def start_s() -> float:
    """When this process began, on the clock of time.perf_counter; that of this call if the system cannot tell."""
    now_s = time.perf_counter()
    try:
        with open("/proc/self/stat", "rb") as stat:
            started_ticks = int(stat.read().rpartition(b")")[2].split()[19])
        up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        age_s = up_s - started_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return now_s
    return now_s - max(0.0, min(age_s, 60.0))
