"""What has become of the half messages that matter still: from the progress of their queue on.

In: places in the half queue, from decisions, checks and op records. Out: which half is open, and where a transaction
is now. Pure; owned by :mod:`.transactions`. The rules of progress are Apache's (TransactionalMessageServiceImpl).

A half that is checked is stored again at the end of its queue, so that the progress can pass its old place. All copies
of one half have the same root: the place of the first, which the copies name in a property. A decision names any of
them, a late one names the first; it holds for the transaction, which then is decided once (cases C152, C155).

Memory: a byte for each half from the progress on, and an entry of a dictionary for each open one that has a copy.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final


class Fate(enum.IntEnum):
    """What has become of a half message."""

    OPEN = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    DECIDED = 3
    """An op record says so, but not how."""
    GIVEN_UP = 4
    """Checked too often, or too old."""
    COPIED = 5
    """A copy of it stands for the transaction now."""
    UNREADABLE = 6
    PASSED = 7
    """The progress is behind it: it was decided or given up."""


_OPEN_BYTE: Final = bytes([Fate.OPEN])


class HalfLedger:
    """The half messages from offset `begin` on. What is behind the end of what was noted is open."""

    def __init__(self, begin: int = 0) -> None:
        #: Everything before has been decided, given up or copied: the progress of the half queue.
        self.begin = begin
        self._fates = bytearray()
        #: For the root of each open transaction that was stored again: its newest copy.
        self._newest: dict[int, int] = {}

    @property
    def copied(self) -> int:
        """Open transactions that have copies."""
        return len(self._newest)

    def fate(self, offset: int) -> Fate:
        """What has become of the half at a place of its queue."""
        at = offset - self.begin
        if at < 0:
            return Fate.PASSED
        return Fate(self._fates[at]) if at < len(self._fates) else Fate.OPEN

    def newest(self, root: int) -> int:
        """The place that stands for a transaction now."""
        return self._newest.get(root, root)

    def settle(self, root: int, fate: Fate) -> int:
        """Note a decision about an open transaction; returns the place that stood for it."""
        current = self._newest.pop(root, root)
        self._note(current, fate)
        self._note(root, fate)
        return current

    def settle_place(self, offset: int, fate: Fate) -> None:
        """Note what has become of one place, whatever transaction it belongs to."""
        self._note(offset, fate)

    def copy(self, root: int, offset: int) -> None:
        """Note that an open transaction was stored again at `offset`."""
        self._note(self._newest.get(root, root), Fate.COPIED)
        self._newest[root] = offset

    def forget_place(self, offset: int) -> None:
        """Note that nothing can be read at an open place; a transaction that it stood for ends with it."""
        self._note(offset, Fate.UNREADABLE)
        for root in [root for root, current in self._newest.items() if current == offset]:
            del self._newest[root]

    def expire(self, begin: int) -> int:
        """Let go of places before `begin`, whose records are gone from the log; how many of them were open."""
        count = 0
        while (at := self.next_open(self.begin, begin)) < begin:
            self._note(at, Fate.UNREADABLE)
            self.advance()
            count += 1
        for root in [root for root, current in self._newest.items() if current < begin]:
            del self._newest[root]
        return count

    def _note(self, offset: int, fate: Fate) -> None:
        at = offset - self.begin
        if at < 0:
            return
        if at >= len(self._fates):
            self._fates.extend(bytes(at + 1 - len(self._fates)))
        self._fates[at] = fate

    def next_open(self, offset: int, end: int) -> int:
        """The first open place from `offset` on, `end` if there is none before."""
        at = self._fates.find(_OPEN_BYTE, max(0, offset - self.begin))
        if at < 0:
            return min(max(offset, self.begin + len(self._fates)), end)
        return min(self.begin + at, end)

    def open_count(self, end: int) -> int:
        """Open places before `end`."""
        return max(0, end - self.begin - len(self._fates)) + self._fates.count(_OPEN_BYTE)

    def advance(self) -> int:
        """Let go of what is no longer open at the beginning; returns the progress."""
        at = self._fates.find(_OPEN_BYTE)
        done = len(self._fates) if at < 0 else at
        del self._fates[:done]
        self.begin += done
        return self.begin


class OpProgress:
    """How far the op queue is needed: up to the first record about a half that the progress has not passed."""

    def __init__(self, begin: int = 0) -> None:
        self.begin = begin
        #: Offset of each op record that is needed, and the highest place of a half in it.
        self._needed: deque[tuple[int, int]] = deque()

    def add(self, op_offset: int, halves: list[int]) -> None:
        """Note an op record; they come in the order of their queue."""
        self._needed.append((op_offset, max(halves, default=-1)))

    def advance(self, half_begin: int) -> int:
        """Let go of records that only name halves before `half_begin`; returns the progress."""
        needed = self._needed
        while needed and needed[0][1] < half_begin:
            self.begin = needed.popleft()[0] + 1
        return self.begin

    def __len__(self) -> int:
        return len(self._needed)
