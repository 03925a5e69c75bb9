"""One file of the key index: hash slots, and entries that chain backwards.

In: hashes of keys with the offsets and times of their records. Out: log offsets of records that may have a key. The
file is mapped: an insert touches a slot and an entry. Touching a mapped page without room on the disk would end the
process (tmpfs: even reading it), so every page gets its room by an ordinary write first, which fails with an OSError
instead, and pages of which that is not known are read the ordinary way.
Format: ``docs/reference/store-format.md``; source: Apache IndexFile.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from trio_mq.protocol.layout import (
    INDEX_ENTRY,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT,
    INDEX_SLOT_SIZE,
    IndexHeader,
    index_file_size,
    unpack_index_header,
)
from trio_mq.store.disk import Disk, File

#: Entries looked at in one query: a damaged or crowded chain must not hold up the loop.
CHAIN_LIMIT = 100_000
PAGE_BYTES = 4096
#: Smallest piece that a disk writes as a whole: an entry in two of them may reach it in half.
SECTOR_BYTES = 512
_SLOTS_AT_ONCE = 1 << 16
_ENTRIES_AT_ONCE = 1 << 14
_HASHES = struct.Struct(f">i{INDEX_ENTRY_SIZE - 4}x")
_INT_MAX = 2**31 - 1


class Keys(NamedTuple):
    """Keys of records in log order: hash, log offset and store time (ms) of each, side by side."""

    hashes: Sequence[int]
    log_offsets: Sequence[int]
    times_ms: Sequence[int]

    @property
    def total(self) -> int:
        """How many keys there are."""
        return len(self.hashes)

    def insert_into(self, index_file: IndexFile, begin: int) -> int:
        """See :meth:`IndexFile.insert`."""
        return index_file.insert(self, begin)


class SomeKeys(Protocol):
    """Keys of records in log order, in whatever form."""

    @property
    def total(self) -> int:
        """How many keys there are."""
        ...

    def insert_into(self, index_file: IndexFile, begin: int) -> int:
        """Add keys from the `begin`-th on to a file, as many as fit; returns how many. An OSError changes nothing."""
        ...


class IndexFile:
    """One mapped file."""

    def __init__(self, file: File, path: str, slots: int, entries: int) -> None:
        self.path = path
        self.file = file
        self.slots = slots
        self.entries = entries
        size = index_file_size(slots, entries)
        self.memory = file.map(size)
        self.header: IndexHeader = unpack_index_header(file.read(INDEX_HEADER_SIZE, 0))
        self.entries_at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slots
        #: Pages that have room on the disk, as far as it is known; and how many pages with slots have none yet.
        self._room = bytearray(-(-size // PAGE_BYTES))
        self._slot_pages = self._slots_missing = -(-self.entries_at // PAGE_BYTES)
        #: Changes so far, and how many of them are durable.
        self.changes = 0
        self.durable_changes = 0

    @classmethod
    def create(
        cls, disk: Disk, path: str, slots: int, entries: int, header: IndexHeader
    ) -> IndexFile:
        """A new file; nothing is left of it when an OSError gets out."""
        file = disk.open(path, create=True)
        try:
            file.truncate(index_file_size(slots, entries))
            made = cls(file, path, slots, entries)
            made.header = header
            made.store_header()
        except OSError:
            file.close()
            disk.remove(path)
            raise
        return made

    @property
    def full(self) -> bool:
        """Whether no entry fits any more. Entry 0 is never used."""
        return self.header.index_count >= self.entries

    @property
    def ends_well(self) -> bool:
        """Whether the last entry that the header counts is there (case C038), or none at all when it counts none."""
        count = self.header.index_count
        if count > 1:
            return self.entry(count - 1)[1] == self.header.end_log_offset
        first = self.file.read(PAGE_BYTES, self.entries_at + INDEX_ENTRY_SIZE)
        return not any(first)

    @property
    def dirty(self) -> bool:
        """Whether something is not durable yet."""
        return self.changes > self.durable_changes

    def close(self) -> None:
        """Give memory and file back."""
        self.memory.release()
        self.file.close()

    # -- writing ---------------------------------------------------------------------------------------------

    def make_room(self, begin: int, end: int) -> None:
        """See to it that the pages of bytes `begin` to `end` can be written through the memory."""
        for page in range(begin // PAGE_BYTES, -(-end // PAGE_BYTES)):
            if not self._room[page]:
                at = page * PAGE_BYTES
                self.file.write(self.file.read(PAGE_BYTES, at), at)
                self._room[page] = 1
                self._slots_missing -= page < self._slot_pages

    def make_slot_room(self, hashes: Iterable[int]) -> None:
        """As :meth:`make_room`, for the slots of some hashes. Nothing is changed before all of them have room."""
        if self._slots_missing:
            slots = self.slots
            self.make_slot_pages(
                {(INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * (h % slots)) >> 12 for h in hashes}
            )

    def make_slot_pages(self, pages: Iterable[int]) -> None:
        """As :meth:`make_slot_room`, for the pages that the slots lie in."""
        if self._slots_missing:
            for page in pages:
                self.make_room(page << 12, (page << 12) + 1)

    def store_header(self) -> None:
        """Write the header through to the mapped file."""
        self.make_room(0, INDEX_HEADER_SIZE)
        INDEX_HEADER.pack_into(self.memory, 0, *self.header)
        self.changes += 1

    def insert(self, keys: Keys, begin: int = 0) -> int:
        """Add keys in order from the `begin`-th, as many as fit; returns how many. An OSError changes nothing."""
        begin_ms, end_ms, begin_offset, end_offset, used, count = self.header
        total = min(len(keys.hashes) - begin, self.entries - count)
        if total <= 0:
            return 0
        at = self.entries_at + INDEX_ENTRY_SIZE * count
        self.make_room(at, at + INDEX_ENTRY_SIZE * total)
        self.make_slot_room(islice(keys.hashes, begin, begin + total))
        memory, slots = self.memory, self.slots
        slot_unpack, slot_pack = INDEX_SLOT.unpack_from, INDEX_SLOT.pack_into
        entry_pack = INDEX_ENTRY.pack_into
        rows = zip(*keys, strict=True)
        for key_hash, log_offset, ms in islice(rows, begin, begin + total):
            slot_at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * (key_hash % slots)
            previous = slot_unpack(memory, slot_at)[0]
            if previous <= 0 or previous >= count:
                previous = 0
                used += 1
            seconds = (ms - begin_ms) // 1000 if begin_ms > 0 else 0
            if not 0 <= seconds <= _INT_MAX:
                seconds = 0 if seconds < 0 else _INT_MAX
            entry_pack(memory, at, key_hash, log_offset, seconds, previous)
            slot_pack(memory, slot_at, count)
            if count <= 1:
                begin_ms, begin_offset = ms, log_offset
            count += 1
            at += INDEX_ENTRY_SIZE
            end_ms, end_offset = ms, log_offset
        self.header = IndexHeader(begin_ms, end_ms, begin_offset, end_offset, used, count)
        self.store_header()
        return total

    # -- looking up ------------------------------------------------------------------------------------------

    def read(self, size: int, at: int) -> bytes:
        """Bytes of the file, from its memory where that is safe."""
        room = self._room
        if room[at // PAGE_BYTES] and room[(at + size - 1) // PAGE_BYTES]:
            return self.memory[at : at + size].tobytes()
        return self.file.read(size, at)

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Hash, log offset, seconds since the file's begin, previous entry of the chain."""
        data = self.read(INDEX_ENTRY_SIZE, self.entries_at + INDEX_ENTRY_SIZE * number)
        key_hash, log_offset, seconds, previous = INDEX_ENTRY.unpack(data)
        return key_hash, log_offset, seconds, previous

    def search(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Log offsets with this hash and a store time in [begin, end], newest first.

        Times are kept in whole seconds, so up to one second too many may come. Chains only go backwards: a link
        that does not is damage, and ends the search (case C037).
        """
        header = self.header
        slot_at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * (key_hash % self.slots)
        number = INDEX_SLOT.unpack(self.read(INDEX_SLOT_SIZE, slot_at))[0]
        # As in Apache, the first entry's seconds count from the end of the file before.
        first_ms = header.begin_timestamp_ms
        for _ in range(CHAIN_LIMIT):
            if not 0 < number < header.index_count:
                return
            found, log_offset, seconds, previous = self.entry(number)
            if seconds < 0:
                return
            at_ms = first_ms + seconds * 1000 if number > 1 else first_ms
            if at_ms < begin_ms - 999:
                return
            if found == key_hash and at_ms <= end_ms:
                yield log_offset
            if previous >= number:
                return
            number = previous

    # -- putting right ---------------------------------------------------------------------------------------

    def count_before(self, log_offset: int) -> int:
        """Index count that leaves only entries of records before `log_offset`.

        Entries ascend by offset; those that never reached the disk are zeros at the end. One that reached it in part
        may say any smaller offset, so an entry only counts behind one that it may follow.
        """
        begin = self.header.begin_log_offset
        low, high = 1, max(1, min(self.header.index_count, self.entries))
        while low < high:
            middle = (low + high) // 2
            entry, before = self.entry(middle), self.entry(middle - 1)
            follows = middle == 1 or (any(before) and before[1] <= entry[1])
            if any(entry) and follows and begin <= entry[1] < log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def has_between(self, kept: int, log_offset: int) -> bool:
        """Whether an entry from number `kept` on is of a record before `log_offset`: then those before it are lost."""
        newest = self.entry(kept - 1)[1]
        for first in range(kept, self.header.index_count, _ENTRIES_AT_ONCE):
            total = min(_ENTRIES_AT_ONCE, self.header.index_count - first)
            data = self.file.read(
                INDEX_ENTRY_SIZE * total, self.entries_at + INDEX_ENTRY_SIZE * first
            )
            if any(
                newest < offset < log_offset for _, offset, _, _ in INDEX_ENTRY.iter_unpack(data)
            ):
                return True
        return False

    def truncate(self, log_offset: int) -> None:
        """Forget entries of records at or behind `log_offset`, and let no slot point to what is not there."""
        begin_ms, end_ms, begin_offset, end_offset, used, count = self.header
        kept = self.count_before(log_offset)
        last = self.entry(kept - 1)
        newest = 0
        unsure: dict[int, int] = {}
        for first, values in self._slot_values():
            highest = max(values)
            newest = max(newest, highest)
            if highest >= kept:
                tips = {slot: tip for slot, tip in enumerate(values, first) if tip >= kept}
                self._relink_tips(tips, kept, unsure)
        self._relink_unsure(unsure, kept)
        written = min(newest + 1, self.entries) if newest >= kept else 0
        self._clear_entries(kept, max(count, written))
        if kept < count:
            end_offset = last[1] if kept > 1 else begin_offset
            # Entries have seconds only: the newest of the kept ones is less than one second newer.
            end_ms = begin_ms + last[2] * 1000 + 999 if kept > 2 else begin_ms
        if written or kept < count:
            used = sum(len(values) - values.count(0) for _, values in self._slot_values())
        self.header = IndexHeader(begin_ms, end_ms, begin_offset, end_offset, used, kept)
        self.store_header()

    def _slot_values(self) -> Iterator[tuple[int, array[int]]]:
        """The slots, some at a time, with the number of the first one."""
        for first in range(0, self.slots, _SLOTS_AT_ONCE):
            at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * first
            end = at + INDEX_SLOT_SIZE * min(_SLOTS_AT_ONCE, self.slots - first)
            values = array("i", self.file.read(end - at, at))
            if sys.byteorder == "little":
                values.byteswap()
            yield first, values

    def _relink_tips(self, tips: dict[int, int], kept: int, unsure: dict[int, int]) -> None:
        """Let slots that point behind the kept entries point to the newest kept one of their chain.

        What is kept was durable, and so were its links. What is behind may have reached the disk in part: slots whose
        chain through it cannot be trusted are added to `unsure`.
        """
        for slot, tip in tips.items():
            number = self._kept_before(slot, tip, kept)
            if number is None:
                unsure[slot] = 0
            else:
                self._set_slot(slot, number)

    def _relink_unsure(self, unsure: dict[int, int], kept: int) -> None:
        """Let slots point to the newest of the kept entries that belong to them, all of which are gone over."""
        if not unsure:
            return
        for first in range(1, kept, _ENTRIES_AT_ONCE):
            at = self.entries_at + INDEX_ENTRY_SIZE * first
            end = at + INDEX_ENTRY_SIZE * min(_ENTRIES_AT_ONCE, kept - first)
            data = self.file.read(end - at, at)
            for number, (key_hash,) in enumerate(_HASHES.iter_unpack(data), first):
                slot = key_hash % self.slots
                if slot in unsure:
                    unsure[slot] = number
        for slot, number in unsure.items():
            self._set_slot(slot, number)

    def _kept_before(self, slot: int, tip: int, kept: int) -> int | None:
        """The newest kept entry that a chain leads to, 0 without one; None when it leads through torn entries."""
        number = tip
        while number >= kept:
            at = self.entries_at + INDEX_ENTRY_SIZE * number
            torn = at // SECTOR_BYTES != (at + INDEX_ENTRY_SIZE - 1) // SECTOR_BYTES
            if torn or number >= self.entries:
                return None  # a part of it may be zeros, which would look like the end of the chain
            key_hash, log_offset, _, previous = self.entry(number)
            if key_hash % self.slots != slot or previous >= number or not log_offset:
                return None
            number = previous
        return max(0, number)

    def _clear_entries(self, begin: int, end: int) -> None:
        """Zero entries that no longer count, so that none can be taken for one that is written later."""
        at = self.entries_at + INDEX_ENTRY_SIZE * begin
        stop = self.entries_at + INDEX_ENTRY_SIZE * end
        while at < stop:
            size = min(PAGE_BYTES, stop - at)
            if self.file.read(size, at).count(0) < size:
                self.make_room(at, at + size)
                self.memory[at : at + size] = bytes(size)
            at += size

    def _set_slot(self, slot: int, number: int) -> None:
        at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slot
        self.make_room(at, at + INDEX_SLOT_SIZE)
        INDEX_SLOT.pack_into(self.memory, at, number)
