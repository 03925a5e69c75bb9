"""The key index: from the hash of ``topic#key`` to the offsets of records, in hash-chained files.

In: keys of stored records, in bulk. Out: log offsets of records that may have a key; hits are matches of the hash
only, so the caller compares the real key. Files are mapped: an insert touches a slot and an entry. The caller of
:meth:`KeyIndex.insert` is the dispatcher, which is also the only writer.
Format: ``docs/reference/store-format.md``; sources: Apache IndexFile, IndexService.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

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

log = logging.getLogger("trio_mq.store.index")

#: File names are the local time of creation, yyyyMMddHHmmssSSS.
NAME_DIGITS = 17
#: Entries looked at in one query: a damaged or crowded chain must not hold up the loop.
CHAIN_LIMIT = 100_000
_INT_MAX = 2**31 - 1


class IndexFile:
    """One mapped file."""

    def __init__(self, file: File, path: str, slots: int, entries: int) -> None:
        self.path = path
        self.file = file
        self.slots = slots
        self.entries = entries
        self.memory = file.map(index_file_size(slots, entries))
        self.header: IndexHeader = unpack_index_header(self.memory[:INDEX_HEADER_SIZE].tobytes())
        self.dirty = False

    @property
    def full(self) -> bool:
        """Whether no entry fits any more. Entry 0 is never used."""
        return self.header.index_count >= self.entries

    @property
    def ends_well(self) -> bool:
        """Whether the last entry that the header counts is there (case C038)."""
        count = self.header.index_count
        if count <= 1:
            return True
        at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * self.slots + INDEX_ENTRY_SIZE * (count - 1)
        return bool(INDEX_ENTRY.unpack_from(self.memory, at)[1] == self.header.end_log_offset)

    def close(self) -> None:
        """Give memory and file back."""
        self.memory.release()
        self.file.close()

    def store_header(self) -> None:
        """Write the header through to the mapped file."""
        INDEX_HEADER.pack_into(self.memory, 0, *self.header)

    def insert(self, keys: list[tuple[int, int, int]]) -> int:
        """Add (hash, log offset, store time) triples in order, as many as fit; returns how many."""
        if not keys:
            return 0
        begin_ms, end_ms, begin_offset, end_offset, used, count = self.header
        memory, slots = self.memory, self.slots
        entries_at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slots
        slot_unpack, slot_pack, entry_pack = (
            INDEX_SLOT.unpack_from,
            INDEX_SLOT.pack_into,
            INDEX_ENTRY.pack_into,
        )
        done = 0
        for key_hash, log_offset, ms in keys[: self.entries - count]:
            slot_at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * (key_hash % slots)
            previous = slot_unpack(memory, slot_at)[0]
            if previous <= 0 or previous > count:
                previous = 0
                used += 1
            seconds = (ms - begin_ms) // 1000 if begin_ms > 0 else 0
            seconds = 0 if seconds < 0 else min(seconds, _INT_MAX)
            entry_pack(
                memory,
                entries_at + INDEX_ENTRY_SIZE * count,
                key_hash,
                log_offset,
                seconds,
                previous,
            )
            slot_pack(memory, slot_at, count)
            if count <= 1:
                begin_ms, begin_offset = ms, log_offset
            count += 1
            end_ms, end_offset = ms, log_offset
            done += 1
        self.header = IndexHeader(begin_ms, end_ms, begin_offset, end_offset, used, count)
        self.store_header()
        self.dirty = True
        return done

    def search(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Log offsets with this hash and a store time in [begin, end], newest first.

        Chains only go backwards: a link that does not is damage, and ends the search (case C037).
        """
        header = self.header
        entries_at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * self.slots
        slot_at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * (key_hash % self.slots)
        number = INDEX_SLOT.unpack_from(self.memory, slot_at)[0]
        looked = 0
        while 0 < number < header.index_count and looked < CHAIN_LIMIT:
            looked += 1
            found, log_offset, seconds, previous = INDEX_ENTRY.unpack_from(
                self.memory, entries_at + INDEX_ENTRY_SIZE * number
            )
            if seconds < 0:
                return
            # Times are kept in whole seconds: an entry is as old as its second, so the bound is too.
            at_ms = header.begin_timestamp_ms + seconds * 1000
            if found == key_hash and begin_ms - 999 <= at_ms <= end_ms:
                yield log_offset
            if at_ms < begin_ms - 999 or previous >= number:
                return
            number = previous

    def truncate(self, log_offset: int) -> None:
        """Forget entries of records at or behind `log_offset`, and link the slots anew from those that stay."""
        kept = self.count_before(log_offset)
        entries_at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * self.slots
        self.memory[INDEX_HEADER_SIZE:entries_at] = bytes(INDEX_SLOT_SIZE * self.slots)
        used = 0
        last = (0, 0, 0, 0)
        for number in range(1, kept):
            at = entries_at + INDEX_ENTRY_SIZE * number
            last = INDEX_ENTRY.unpack_from(self.memory, at)
            slot_at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * (last[0] % self.slots)
            previous = INDEX_SLOT.unpack_from(self.memory, slot_at)[0]
            used += not previous
            INDEX_ENTRY.pack_into(self.memory, at, last[0], last[1], last[2], previous)
            INDEX_SLOT.pack_into(self.memory, slot_at, number)
        begin_ms, begin_offset = self.header.begin_timestamp_ms, self.header.begin_log_offset
        end_ms = begin_ms + last[2] * 1000 if kept > 1 else begin_ms
        self.header = IndexHeader(begin_ms, end_ms, begin_offset, last[1], used, kept)
        self.store_header()
        self.dirty = True

    def count_before(self, log_offset: int) -> int:
        """Index count that leaves only entries of records before `log_offset`; entries ascend by offset."""
        entries_at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * self.slots
        low, high = 1, min(self.header.index_count, self.entries)
        while low < high:
            middle = (low + high) // 2
            entry = INDEX_ENTRY.unpack_from(self.memory, entries_at + INDEX_ENTRY_SIZE * middle)
            if entry[1] < log_offset:
                low = middle + 1
            else:
                high = middle
        return low


class KeyIndex:
    """All index files of a store, oldest first."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        slots: int,
        entries: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.slots = slots
        self.entries = entries
        self._now_ms = now_ms
        self.files: list[IndexFile] = []
        #: Paths of files that :meth:`load` could not use and removed: the keys in them have to be inserted again.
        self.unusable: list[str] = []
        #: Every record before has its keys in the files (exclusive log offset).
        self.indexed_to = 0

    def load(self) -> list[str]:
        """Open the files. Returns a note for each that is no index of ours and is removed (case C038)."""
        notes: list[str] = []
        expected = index_file_size(self.slots, self.entries)
        for name in self.disk.list_dir(self.directory):
            path = f"{self.directory}/{name}"
            if not (name.isdigit() and len(name) == NAME_DIGITS):
                continue
            size = self.disk.size(path)
            if size != expected:
                notes.append(self._unusable(path, f"has {size} bytes instead of {expected}"))
                continue
            index_file = IndexFile(self.disk.open(path), path, self.slots, self.entries)
            if index_file.header.index_count > self.entries:
                index_file.close()
                notes.append(self._unusable(path, "says more entries than fit into it"))
                continue
            self.files.append(index_file)
        # Names are times of a clock that may have been set back; what counts is the order of the records.
        self.files.sort(key=lambda f: (f.header.end_log_offset, f.header.begin_log_offset))
        if self.files:
            self.indexed_to = self.files[-1].header.end_log_offset + 1
        return notes

    def _unusable(self, path: str, fault: str) -> str:
        self.disk.remove(path)
        self.unusable.append(path)
        return f"{path} {fault}: it is dropped, and its keys are inserted again"

    @property
    def end_log_offset(self) -> int:
        """Log offset of the newest record in the index; -1 without one."""
        return self.files[-1].header.end_log_offset if self.files else -1

    @property
    def end_timestamp_ms(self) -> int:
        """Store time of the newest record in the index; 0 without one."""
        return self.files[-1].header.end_timestamp_ms if self.files else 0

    def insert(self, keys: list[tuple[int, int, int]]) -> None:
        """Add (key hash, log offset, store time ms) triples in log order; rolls to new files as they fill.

        The first call makes a file, keys or not: a store with records and without any file has lost its index.
        """
        if not self.files:
            self._roll()
        done = 0
        while done < len(keys):
            if not self.files or self.files[-1].full:
                self._roll()
            done += self.files[-1].insert(keys[done:])

    def _roll(self) -> None:
        self.disk.make_dirs(self.directory)
        at_ms = self._now_ms()
        newest = self.files[-1].path.rpartition("/")[2] if self.files else ""
        while (name := _name(at_ms)) <= newest and at_ms < self._now_ms() + 10_000:
            at_ms += 1  # two files in one millisecond, or a clock that went back a little
        path = f"{self.directory}/{name}"
        file = self.disk.open(path, create=True)
        file.truncate(index_file_size(self.slots, self.entries))
        index_file = IndexFile(file, path, self.slots, self.entries)
        if self.files:
            # Apache: the first entry's time is counted from the end of the file before.
            full = self.files[-1].header
            index_file.header = IndexHeader(
                full.end_timestamp_ms,
                full.end_timestamp_ms,
                full.end_log_offset,
                full.end_log_offset,
                0,
                1,
            )
        index_file.store_header()
        self.files.append(index_file)

    def search(self, key_hash: int, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Log offsets of records that may have the key, newest first (Apache: IndexService.queryOffset)."""
        hits: list[int] = []
        for index_file in reversed(self.files):
            header = index_file.header
            if header.begin_timestamp_ms <= end_ms and header.end_timestamp_ms >= begin_ms:
                for offset in index_file.search(key_hash, begin_ms, end_ms):
                    hits.append(offset)
                    if len(hits) >= limit:
                        return hits
            if header.begin_timestamp_ms < begin_ms:
                break
        return hits

    def truncate(self, log_offset: int) -> list[str]:
        """Forget all keys of records at or behind `log_offset`. Returns notes about what was dropped."""
        notes: list[str] = []
        while self.files and self.files[-1].header.begin_log_offset >= log_offset:
            notes.append(
                f"{self.files[-1].path} indexes only records behind {log_offset} and is dropped"
            )
            self._drop(len(self.files) - 1)
        if self.files and self.files[-1].header.end_log_offset >= log_offset:
            self.files[-1].truncate(log_offset)
            notes.append(f"{self.files[-1].path} is cut back to the records before {log_offset}")
        self.indexed_to = min(self.indexed_to, log_offset)
        return notes

    def expire(self, log_start: int) -> None:
        """Drop files that only index records before `log_start`; the last file always stays."""
        while len(self.files) > 1 and self.files[0].header.end_log_offset < log_start:
            self._drop(0)

    def drop_all(self) -> None:
        """Drop every file."""
        while self.files:
            self._drop(len(self.files) - 1)
        self.indexed_to = 0

    def _drop(self, number: int) -> None:
        index_file = self.files.pop(number)
        index_file.close()
        self.disk.remove(index_file.path)

    def sync_call(self) -> Callable[[], None] | None:
        """A blocking call that makes what was inserted durable; None when there is nothing."""
        dirty = [f for f in self.files if f.dirty]
        if not dirty:
            return None
        for index_file in dirty:
            index_file.dirty = False
        paths = [f.path for f in dirty]
        return lambda: _sync_paths(self.disk, paths)

    def close(self) -> None:
        """Close all files."""
        while self.files:
            self.files.pop().close()


def _sync_paths(disk: Disk, paths: Iterable[str]) -> None:
    for path in paths:
        try:
            file = disk.open(path)
        except FileNotFoundError:
            continue  # expired meanwhile
        file.sync()
        file.close()


def _name(at_ms: int) -> str:
    # Local time, as the peers name these files: only the order of names matters.
    at = datetime.fromtimestamp(at_ms / 1000).astimezone()
    return at.strftime("%Y%m%d%H%M%S") + f"{at_ms % 1000:03d}"
