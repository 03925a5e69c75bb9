"""As :class:`trio_mq.lookinside.chains.Links`, many entries at once with numpy; the same answers.

Imported by :mod:`trio_mq.lookinside.chains` only when numpy is installed; nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trio_mq.lookinside.chains import Fault, Links
from trio_mq.lookinside.keysearch import IndexFileView

_ENTRY = np.dtype([("hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])


class BulkLinks(Links):
    """The links as the hashes want them, made in blocks."""

    def __init__(self, file: IndexFileView, *, grows: bool) -> None:
        self.file = file
        self.grows = grows
        self.used = 0
        self._tips = np.zeros(file.slots, np.int32)

    def entries(self, number: int, data: bytes) -> Iterator[Fault]:
        """See :class:`Links`."""
        rows = np.frombuffer(data, _ENTRY)
        total = len(rows)
        slots = rows["hash"].astype(np.int64) % self.file.slots
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        first = np.ones(total, np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
        numbers = order + number
        expected = np.empty(total, np.int64)
        expected[1:] = numbers[:-1]
        tips = self._tips[ordered[first]]
        expected[first] = tips
        self.used += int(np.count_nonzero(tips == 0))
        last = np.ones(total, np.bool_)
        last[:-1] = first[1:]
        self._tips[ordered[last]] = numbers[last]
        wanted = np.empty(total, np.int64)
        wanted[order] = expected
        found = rows["previous"].astype(np.int64)
        for at in np.flatnonzero(found != wanted).tolist():
            yield self.link_fault(number + at, int(found[at]), int(wanted[at]))

    def slots(self, first: int, data: bytes) -> Iterator[Fault]:
        """See :class:`Links`."""
        found = np.frombuffer(data, ">i4").astype(np.int32)
        wanted = self._tips[first : first + len(found)]
        for at in np.flatnonzero(found != wanted).tolist():
            if not self.leads_to(int(found[at]), int(wanted[at])):
                yield self.slot_fault(first + at, int(found[at]), int(wanted[at]))
