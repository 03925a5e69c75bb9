"""How many slots and entries an index file was made with: its length gives one equation for two numbers.

In: index files, open for reading, from :mod:`trio_mq.recovery.detect`. Out: both numbers, if the content tells them.
The length is 40 + 4 * slots + 20 * entries. The header says the log offsets of the first and of the last entry, so the
place of these gives the number of slots; the slot of the first entry's hash has to lead to it.
Source: Apache IndexHeader, IndexFile.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import Final, Protocol

import attrs

from trio_mq.protocol.layout import (
    INDEX_ENTRY_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SLOT,
    INDEX_SLOT_SIZE,
    IndexEntry,
    IndexHeader,
    index_entry_position,
    index_slot_position,
    unpack_index_entry,
    unpack_index_header,
)

DEFAULT_SLOTS: Final = 5_000_000
DEFAULT_ENTRIES: Final = 20_000_000
#: Places that are looked at in one file, and links that are followed from a slot.
_MOST_CANDIDATES: Final = 100_000
_MOST_LINKS: Final = 10_000
_PIECE_BYTES: Final = 1024 * 1024
_OFFSET_IN_ENTRY: Final = 4
_LONG: Final = struct.Struct(">q")


class Content(Protocol):
    """Bytes of a file, as :class:`trio_mq.store.disk.File` has them."""

    def read(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end."""
        ...

    def next_data(self, offset: int) -> int:
        """The first position that may hold anything but zeros; the length where none does."""
        ...


@attrs.frozen
class Split:
    """Numbers of an index file."""

    slots: int
    entries: int


def possible(length: int) -> bool:
    """Whether an index file can have this length: one slot and two entries at least."""
    return length % 4 == 0 and length >= INDEX_HEADER_SIZE + INDEX_SLOT_SIZE + 2 * INDEX_ENTRY_SIZE


def split_of(length: int, slots: int) -> Split | None:
    """The numbers of a file of some length, if it can have so many slots."""
    rest = length - INDEX_HEADER_SIZE - INDEX_SLOT_SIZE * slots
    if slots < 1 or rest % INDEX_ENTRY_SIZE or rest < 2 * INDEX_ENTRY_SIZE:
        return None
    return Split(slots, rest // INDEX_ENTRY_SIZE)


def usual_splits(length: int) -> Iterator[Split]:
    """Numbers that are likely by the length alone: those of Apache's default, or as many entries per slot."""
    per_slot = DEFAULT_ENTRIES // DEFAULT_SLOTS
    slots, left = divmod(length - INDEX_HEADER_SIZE, INDEX_SLOT_SIZE + per_slot * INDEX_ENTRY_SIZE)
    if not left and slots >= 1:
        yield Split(slots, per_slot * slots)


def find_split(file: Content, length: int) -> Split | None:
    """The numbers that the content shows; None where it shows none, as in a file without any entry."""
    header = unpack_index_header(file.read(INDEX_HEADER_SIZE, 0).ljust(INDEX_HEADER_SIZE, b"\0"))
    if not possible(length) or header.index_count <= 1:
        return None
    look = _Look(file, length, header)
    for split in usual_splits(length):
        if look.evidence(split) == 3:
            return split
    best: Split | None = None
    best_evidence = 1
    for slots in islice(look.candidates(), _MOST_CANDIDATES):
        candidate = split_of(length, slots)
        evidence = 0 if candidate is None else look.evidence(candidate)
        if evidence == 3:
            return candidate
        if evidence > best_evidence and look.has_offsets:
            best, best_evidence = candidate, evidence
    return best


class _Look:
    """One file, looked at by its header."""

    def __init__(self, file: Content, length: int, header: IndexHeader) -> None:
        self._file = file
        self._length = length
        self._header = header
        #: Whether the header holds an offset that cannot be confused with an empty place.
        self.has_offsets = header.begin_log_offset > 0 or header.end_log_offset > 0

    def evidence(self, split: Split) -> int:
        """What speaks for a split: 0 without the first entry at its place; one more each for slot and last entry."""
        header, slots = self._header, split.slots
        if header.index_count > split.entries:
            return 0
        first = self._entry(1, slots)
        if first.log_offset != header.begin_log_offset or first.previous or first.key_hash < 0:
            return 0
        last = self._entry(header.index_count - 1, slots)
        return 1 + (last.log_offset == header.end_log_offset) + self._leads_to_first(slots, first)

    def _entry(self, number: int, slots: int) -> IndexEntry:
        at = index_entry_position(number, slots)
        return unpack_index_entry(
            self._file.read(INDEX_ENTRY_SIZE, at).ljust(INDEX_ENTRY_SIZE, b"\0")
        )

    def _leads_to_first(self, slots: int, first: IndexEntry) -> bool:
        """Whether the chain of the first entry's slot ends in it."""
        slot = first.key_hash % slots
        data = self._file.read(INDEX_SLOT_SIZE, index_slot_position(slot))
        number = INDEX_SLOT.unpack(data.ljust(INDEX_SLOT_SIZE, b"\0"))[0]
        for _ in range(_MOST_LINKS):
            if number == 1:
                return True
            if not 1 < number < self._header.index_count:
                return False
            entry = self._entry(number, slots)
            if entry.key_hash % slots != slot or entry.previous >= number:
                return False
            number = entry.previous
        return False

    def candidates(self) -> Iterator[int]:
        """Numbers of slots for which the first or the last entry would lie where its log offset stands."""
        begin, end = self._header.begin_log_offset, self._header.end_log_offset
        number, wanted = (1, begin) if begin > 0 else (self._header.index_count - 1, end)
        behind_slots = INDEX_HEADER_SIZE + INDEX_ENTRY_SIZE * number
        if wanted > 0:
            found = self._places(_LONG.pack(wanted))
            places: Iterator[int] = (place - _OFFSET_IN_ENTRY for place in found)
        else:
            # All keys are of the record at offset 0: what is not zero is a slot, or the hash of an entry.
            behind_slots = INDEX_HEADER_SIZE + INDEX_ENTRY_SIZE
            places = self._numbers()
        for place in places:
            slots, left = divmod(place - behind_slots, INDEX_SLOT_SIZE)
            if not left and slots >= 1:
                yield slots

    def _pieces(self) -> Iterator[tuple[int, bytes]]:
        """All behind the header that is not a hole, in pieces that overlap by what a number may reach over."""
        at = INDEX_HEADER_SIZE
        while (at := self._file.next_data(at)) < self._length:
            at -= at % INDEX_SLOT_SIZE
            data = self._file.read(_PIECE_BYTES + _LONG.size, at)
            if not data:
                return
            yield at, data
            at += _PIECE_BYTES

    def _places(self, wanted: bytes) -> Iterator[int]:
        for at, data in self._pieces():
            found = data.find(wanted)
            while found >= 0:
                yield at + found
                found = data.find(wanted, found + 1)

    def _numbers(self) -> Iterator[int]:
        for at, data in self._pieces():
            whole = len(data) // INDEX_SLOT_SIZE * INDEX_SLOT_SIZE
            for place, (number,) in enumerate(INDEX_SLOT.iter_unpack(data[:whole])):
                if number:
                    yield at + place * INDEX_SLOT_SIZE
