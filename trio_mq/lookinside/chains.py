"""Whether each entry of an index file leads to the newest one before it in its slot, as its hashes want it.

In: an index file. Out: (entry or slot, what is wrong). The chains are built again from the hashes, entry by entry, in a
table with a number for each slot (20 MB for the usual size), and compared with what is in the file, whole blocks at a
time where numpy is installed. Called by :mod:`trio_mq.lookinside.verify`. Format: Apache IndexFile.putKey.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator

from trio_mq.lookinside.keysearch import IndexFileView
from trio_mq.protocol.layout import INDEX_ENTRY

#: Entries, or slots, that are looked at in one go.
BLOCK = 1 << 16

#: Position in the file and what is wrong there.
Fault = tuple[int, str]


def chain_faults(
    file: IndexFileView, done: Callable[[int], None], *, grows: bool = False
) -> Iterator[Fault]:
    """All wrong links of a file; `done` is told how many entries were looked at.

    When the file `grows` meanwhile, slots may lead to entries behind those that are looked at.
    """
    try:
        from trio_mq.lookinside.bulkchains import BulkLinks
    except ImportError:
        links: Links = Links(file, grows=grows)
    else:
        links = BulkLinks(file, grows=grows)
    for number in range(1, file.count + 1, BLOCK):
        count = min(BLOCK, file.count + 1 - number)
        yield from links.entries(number, file.entries(number, count))
        done(number + count - 1)
    for first in range(0, file.slots, BLOCK):
        count = min(BLOCK, file.slots - first)
        yield from links.slots(first, file.slot_values(first, count))
    if file.header.hash_slot_count != links.used:
        yield (
            32,
            f"the header counts {file.header.hash_slot_count} used slots, there are {links.used}",
        )


class Links:
    """The links as the hashes want them, made entry by entry."""

    def __init__(self, file: IndexFileView, *, grows: bool) -> None:
        self.file = file
        self.grows = grows
        #: Slots that an entry has used.
        self.used = 0
        self._newest = array("i", bytes(4 * file.slots))

    def entries(self, number: int, data: bytes) -> Iterator[Fault]:
        """Compare the links of some entries, the first of which has the given number."""
        newest, slots = self._newest, self.file.slots
        for key_hash, _, _, previous in INDEX_ENTRY.iter_unpack(data):
            slot = key_hash % slots
            expected = newest[slot]
            if previous != expected:
                yield self.link_fault(number, previous, expected)
            if not expected:
                self.used += 1
            newest[slot] = number
            number += 1

    def slots(self, first: int, data: bytes) -> Iterator[Fault]:
        """Compare some slots with the newest entry of each."""
        values = array("i", data)
        if sys.byteorder == "little":
            values.byteswap()
        expected = self._newest[first : first + len(values)]
        if values == expected:
            return
        for slot, (value, wanted) in enumerate(zip(values, expected, strict=True), first):
            if value != wanted and not self.leads_to(value, wanted):
                yield self.slot_fault(slot, value, wanted)

    def leads_to(self, value: int, wanted: int) -> bool:
        """Whether a slot leads to an entry by way of others that were added meanwhile."""
        while self.grows and self.file.count < value < self.file.capacity:
            previous = self.file.entry(value).previous
            if previous == wanted:
                return True
            if previous >= value:
                return False
            value = previous
        return False

    def link_fault(self, number: int, found: int, expected: int) -> Fault:
        """Words for a wrong link of an entry."""
        how = "does not go backwards" if found >= number else "leads past entries, or elsewhere"
        at = _entry_at(self.file, number) + 16
        return at, f"entry {number} leads to {found} instead of {expected}: it {how}"

    def slot_fault(self, slot: int, found: int, expected: int) -> Fault:
        """Words for a wrong slot."""
        return 40 + 4 * slot, f"slot {slot} leads to entry {found} instead of {expected}"


def _entry_at(file: IndexFileView, number: int) -> int:
    return 40 + 4 * file.slots + 20 * number
