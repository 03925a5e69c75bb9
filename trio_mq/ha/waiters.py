"""Who waits for replicas: each with the end of its record, how many brokers have to have it, and its own deadline.

In: acknowledged offsets, and the time. Out: calls of those who waited. Pure. Used by :mod:`trio_mq.ha.primary`.
Source: Apache GroupTransferService, which looks at its waiters one by one; here nobody waits for the one before.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter

import attrs


@attrs.define(eq=False)
class Waiter:
    """One who waits; `done` is None as soon as it was called."""

    end: int
    deadline_s: float
    done: Callable[[bool], None] | None

    def finish(self, reached: bool) -> None:
        """Tell the outcome, once."""
        done, self.done = self.done, None
        if done is not None:
            done(reached)


_END = attrgetter("end")


class Waiters:
    """All who wait, by how many slaves they wait for, in the order of their ends."""

    def __init__(self) -> None:
        #: By the number of slaves that have to have a record: never an empty row.
        self._rows: dict[int, deque[Waiter]] = {}
        #: In the order of their deadlines, which is that of their coming: all wait equally long.
        self._deadlines: deque[Waiter] = deque()

    def __len__(self) -> int:
        return sum(waiter.done is not None for row in self._rows.values() for waiter in row)

    def add(self, end: int, slaves: int, deadline_s: float, done: Callable[[bool], None]) -> None:
        """Call `done(True)` once `slaves` of them have the log up to `end`, or `done(False)` at the deadline.

        Deadlines never go back from call to call.
        """
        waiter = Waiter(end, deadline_s, done)
        row = self._rows.setdefault(slaves, deque())
        if row and row[-1].end > end:
            insort(row, waiter, key=_END)
        else:
            row.append(waiter)
        self._deadlines.append(waiter)

    def acknowledged(self, acks: Sequence[int], floors: Sequence[int] = ()) -> None:
        """Release whom the slaves' log ends are enough for.

        `floors` say where the slaves' logs begin, in the same order: they have nothing before, though they report more.
        """
        if not self._rows:
            return
        ordered = sorted(acks, reverse=True)
        logs = [*zip(floors, acks, strict=True)] if any(floors) else []
        for slaves in tuple(self._rows):
            if slaves <= len(ordered):
                self._release(slaves, ordered[slaves - 1], logs)
        self._forget()

    def _release(self, slaves: int, end: int, logs: Sequence[tuple[int, int]]) -> None:
        row = self._rows[slaves]
        before: list[Waiter] = []
        while row and (row[0].end <= end or row[0].done is None):
            waiter = row.popleft()
            if logs and sum(floor < waiter.end <= ack for floor, ack in logs) < slaves:
                before.append(waiter)
            else:
                waiter.finish(True)
        row.extendleft(reversed(before))
        if not row:
            del self._rows[slaves]

    @property
    def next_deadline_s(self) -> float | None:
        """When somebody's time is over next; None when nobody waits."""
        return self._deadlines[0].deadline_s if self._deadlines else None

    def expire(self, now_s: float) -> None:
        """Give up those whose time is over."""
        late: list[Waiter] = []
        while self._deadlines and self._deadlines[0].deadline_s <= now_s:
            late.append(self._deadlines.popleft())
        for waiter in late:
            waiter.finish(False)
        for slaves, row in tuple(self._rows.items()):
            # Ends come in about the order of deadlines: what is left behind somebody else is only an empty shell.
            while row and row[0].done is None:
                row.popleft()
            if not row:
                del self._rows[slaves]
        self._forget()

    def _forget(self) -> None:
        """Let go of those in front that were told: what they hold (whole sends) is not kept until their deadline."""
        while self._deadlines and self._deadlines[0].done is None:
            self._deadlines.popleft()
