"""Looks into the store by background tasks, which can wait where requests are put aside.

In: a synchronous look that may meet data which is only on the disk. Out: its result. Called by the services of the
broker (delays, timers, transactions, pop revival).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from trio_mq.store.disk import Disk
from trio_mq.store.segments import ColdData

T = TypeVar("T")


async def warmed(disk: Disk, look: Callable[[], T]) -> T:
    """The result of `look`, which runs on the loop; a worker thread fetches what it misses, then it runs again.

    It must therefore change nothing before it has all that it needs. OSError when the disk does not hand data over.
    """
    while True:
        try:
            return look()
        except ColdData as cold:
            await disk.run(cold.warm)
