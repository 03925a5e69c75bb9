"""The key index: from the hash of ``topic#key`` to the offsets of records, in a row of hash-chained files.

In: keys of stored records, in bulk. Out: log offsets of records that may have a key; hits are matches of the hash
only, so the caller compares the real key. The caller of :meth:`KeyIndex.insert` is the dispatcher, which is also the
only writer; the flusher asks for sync points. Format: ``docs/reference/store-format.md``; source: Apache IndexService.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import datetime

from trio_mq.protocol.layout import IndexHeader, index_file_size
from trio_mq.store.disk import Disk
from trio_mq.store.indexfile import IndexFile, SomeKeys

log = logging.getLogger("trio_mq.store.index")

#: File names are the local time of creation, yyyyMMddHHmmssSSS.
NAME_DIGITS = 17


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
        #: Changes of names so far, and how many of them are durable.
        self._names = 0
        self._durable_names = 0

    def load(self) -> list[str]:
        """Open the files. Returns a note for each that is no index of ours and is removed (case C038)."""
        notes: list[str] = []
        expected = index_file_size(self.slots, self.entries)
        for name in self.disk.list_dir(self.directory):
            path = f"{self.directory}/{name}"
            if not (name.isascii() and name.isdigit() and len(name) == NAME_DIGITS):
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
        for index_file in self.files[:-1]:
            # What it held never reached the disk: a new file begins where the one before ends, so it comes last.
            if index_file.header.index_count <= 1:
                self.files.remove(index_file)
                index_file.close()
                notes.append(self._unusable(index_file.path, "is empty, but not the last one"))
        if self.files:
            self.indexed_to = self.end_log_offset + 1
        return notes

    def _unusable(self, path: str, fault: str) -> str:
        self._remove(path)
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

    # -- writing ---------------------------------------------------------------------------------------------

    def insert(self, keys: SomeKeys, begin: int = 0) -> int:
        """Add keys from the `begin`-th on, rolling to a new file once at most. Returns how many were added.

        Fewer than asked for are added when a file is full; call again with the rest. An OSError adds none. The
        first call makes a file, keys or not: a store with records and without any file has lost its index.
        """
        if not self.files or (self.files[-1].full and begin < keys.total):
            self._roll()
        return keys.insert_into(self.files[-1], begin)

    def _roll(self) -> None:
        self.disk.make_dirs(self.directory)
        newest = max((f.path.rpartition("/")[2] for f in self.files), default="")
        path = f"{self.directory}/{_next_name(self._now_ms(), newest)}"
        header = IndexHeader(0, 0, 0, 0, 0, 1)
        if self.files:
            # Apache: the first entry's time is counted from the end of the file before.
            full = self.files[-1].header
            header = IndexHeader(
                full.end_timestamp_ms,
                full.end_timestamp_ms,
                full.end_log_offset,
                full.end_log_offset,
                0,
                1,
            )
        self.files.append(IndexFile.create(self.disk, path, self.slots, self.entries, header))
        self._names += 1

    def sync_call(self) -> Callable[[], None] | None:
        """A blocking call that makes durable what is in the index now, for a worker thread; None if it is already."""
        dirty = [(f, f.changes) for f in self.files if f.dirty]
        names = self._names
        if not dirty and self._durable_names >= names:
            return None

        def sync() -> None:
            for index_file, changes in dirty:
                try:
                    file = self.disk.open(index_file.path)
                except FileNotFoundError:
                    continue  # expired meanwhile
                try:
                    file.sync()
                finally:
                    file.close()
                index_file.durable_changes = max(index_file.durable_changes, changes)
            if self._durable_names < names and self.disk.is_dir(self.directory):
                self.disk.sync_dir(self.directory)
                self._durable_names = max(self._durable_names, names)

        return sync

    def doubt(self) -> None:
        """Take nothing for durable: an earlier process may have ended before it synced what it wrote."""
        self._names += 1
        for index_file in self.files:
            index_file.changes += 1

    # -- looking up ------------------------------------------------------------------------------------------

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

    # -- cutting ---------------------------------------------------------------------------------------------

    def truncate(self, log_offset: int) -> list[str]:
        """Forget all keys of records at or behind `log_offset`; for recovery, after a sudden end.

        What stays is linked anew where a slot points to an entry that is not there. Returns notes about what was
        dropped.
        """
        notes: list[str] = []
        while self.files and self.files[-1].header.begin_log_offset >= log_offset:
            notes.append(
                f"{self.files[-1].path} indexes only records behind {log_offset} and is dropped"
            )
            self._drop(len(self.files) - 1)
        if self.files:
            newest = self.files[-1]
            count = newest.header.index_count
            newest.truncate(log_offset)
            if newest.header.index_count < count:
                notes.append(f"{newest.path} is cut back to the records before {log_offset}")
        self.indexed_to = min(self.indexed_to, log_offset)
        return notes

    def apart(self, log_offset: int) -> KeyIndex:
        """The files with keys of records at or behind an offset, for a worker thread to truncate.

        Nobody sees them here until :meth:`rejoin` brings them back. Nothing may be inserted meanwhile.
        """
        twin = KeyIndex(
            self.disk, self.directory, slots=self.slots, entries=self.entries, now_ms=self._now_ms
        )
        twin.files = [f for f in self.files if f.header.end_log_offset >= log_offset]
        twin.indexed_to = self.indexed_to
        self.files = [f for f in self.files if f not in twin.files]
        return twin

    def rejoin(self, twin: KeyIndex) -> None:
        """Take the files of :meth:`apart` back, as they are now."""
        self.files += twin.files
        self.indexed_to = min(self.indexed_to, twin.indexed_to)
        self._names += twin._names

    def expire(self, log_start: int) -> None:
        """Drop files that only index records before `log_start`; the last file always stays."""
        while len(self.files) > 1 and self.files[0].header.end_log_offset < log_start:
            log.info("index file %s expires: its records are gone from the log", self.files[0].path)
            self._drop(0)

    def drop_all(self) -> None:
        """Drop every file."""
        while self.files:
            self._drop(len(self.files) - 1)
        self.indexed_to = 0

    def drop(self, paths: Collection[str]) -> None:
        """Drop some files."""
        for number in reversed(range(len(self.files))):
            if self.files[number].path in paths:
                log.info("%s is damaged and is dropped", self.files[number].path)
                self._drop(number)

    def _drop(self, number: int) -> None:
        index_file = self.files.pop(number)
        index_file.close()
        self._remove(index_file.path)

    def _remove(self, path: str) -> None:
        self.disk.remove(path)
        self._names += 1

    def close(self) -> None:
        """Close all files."""
        while self.files:
            self.files.pop().close()


def _next_name(now_ms: int, newest: str) -> str:
    """Name of a new file: the local time, as the peers have it, and always behind the newest name.

    Only the order of names matters to anybody: where the clock went back, or two files are made in one
    millisecond, the name is the next number.
    """
    at = datetime.fromtimestamp(now_ms / 1000).astimezone()
    name = at.strftime("%Y%m%d%H%M%S") + f"{now_ms % 1000:03d}"
    return name if name > newest else f"{int(newest) + 1:0{NAME_DIGITS}d}"
