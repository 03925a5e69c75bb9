"""What went in and out of each topic, as plain totals: the cheapest form of statistics.

In: the dispatcher adds each record that it makes visible, whoever answers a consumer adds what that got. Out: totals
since the topic's queues were laid out, at which the broker's statistics look every ten seconds. One object for all
queues of a topic hangs on each of them, so that a record costs two additions and no look-up, and it goes with them.
Apache: the counters of BrokerStatsManager.
"""

from __future__ import annotations

from time import perf_counter
from typing import Final

import attrs

TIMED_EVERY: Final = 16
"""One in so many answers is timed and counts for all of them: a look at the clock costs as much as all the rest."""


@attrs.define(eq=False)
class Gets:
    """What one group got of a topic: messages and bytes in `answers`; `timed` of those took `timed_ms`."""

    messages: int = 0
    bytes: int = 0
    answers: int = 0
    sent_back: int = 0
    timed: int = 0
    timed_ms: float = 0.0

    def took(self, began_s: float) -> None:
        """One of the answers that are timed began at `began_s` of the performance counter, and has ended."""
        self.timed += TIMED_EVERY
        self.timed_ms += TIMED_EVERY * 1000 * (perf_counter() - began_s)


@attrs.define(eq=False)
class Traffic:
    """Messages and bytes put into a topic (`timed` of them took `timed_ms`), and what each group got of it."""

    messages: int = 0
    bytes: int = 0
    timed: int = 0
    timed_ms: float = 0.0
    gets: dict[str, Gets] = attrs.field(factory=dict)

    def got(self, group: str, messages: int, size_bytes: int) -> Gets:
        """A consumer of `group` was answered with some messages. The totals of the group."""
        gets = self.gets.get(group)
        if gets is None:
            gets = self.gets[group] = Gets()
        gets.messages += messages
        gets.bytes += size_bytes
        gets.answers += 1
        return gets

    def took(self, began_s: float) -> None:
        """As :meth:`Gets.took`, for a send."""
        self.timed += TIMED_EVERY
        self.timed_ms += TIMED_EVERY * 1000 * (perf_counter() - began_s)

    def sent_back(self, group: str) -> None:
        """A consumer of `group` gave a message back."""
        self.gets.setdefault(group, Gets()).sent_back += 1
