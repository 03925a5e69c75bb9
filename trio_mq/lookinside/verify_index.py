"""The key index against the records of the log, in one pass; and its chains, in another.

In: the records of the log in order, and raw index files. Out: findings. Entries are in the order of the log, so a
cursor moves through the files beside the records: where all is well, the keys of a lot of records are exactly the next
entries, and are compared in one go. Called by :mod:`trio_mq.lookinside.verify`. Format and rules: Apache 5.4.0
IndexService.buildIndex, IndexFile.putKey.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from trio_mq.lookinside.findings import Kind, Report
from trio_mq.lookinside.keysearch import IndexFileView
from trio_mq.lookinside.records import record_at
from trio_mq.lookinside.verify_queues import Damage
from trio_mq.lookinside.view import StoreView
from trio_mq.protocol import properties
from trio_mq.protocol.layout import (
    INDEX_ENTRY,
    INDEX_ENTRY_SIZE,
    IndexEntry,
    index_entry_position,
    index_key_hash,
)
from trio_mq.protocol.verdict import Whole
from trio_mq.store.keys import KeyHasher

if TYPE_CHECKING:
    from trio_mq.store.bulkindex import BulkHasher

#: Entries read at once where they are looked at one by one.
BLOCK = 1024
#: Entries of a file that lead to no record and are looked up one by one; then the file is of another log.
STRAYS = 10_000
_ROLLBACK = 0xC


@attrs.define
class _Run:
    kind: Kind
    path: str
    first: int
    last: int
    log_offset: int
    reason: str
    count: int = 1


class IndexCheck:
    """All index files of a store. Feed records with :meth:`look`, then :meth:`finish`."""

    def __init__(
        self,
        view: StoreView,
        files: Sequence[IndexFileView],
        report: Report,
        damage: Damage,
        *,
        unclean: bool,
    ) -> None:
        self.pending = 0
        self._view = view
        self._report = report
        self._damage = damage
        self._unclean = unclean
        self._log_start = view.log.start
        self._files = [f for f in files if not f.fault]
        self._at = 0
        self._number = 1
        self._block: list[IndexEntry] = []
        self._block_at = 0
        self._block_file = -1
        self._run: _Run | None = None
        self._strays = 0
        self._hasher = KeyHasher()
        self._bulk = _bulk_hasher(self._hasher)
        self._skip_empty_files()

    # -- records

    def look(self, records: Sequence[Whole]) -> None:
        """Compare the next records of the log."""
        if not self._files:
            return
        rows = [
            (r.topic, r.properties, r.log_offset, r.store_timestamp_ms)
            for r in records
            if r.sys_flag & _ROLLBACK != _ROLLBACK
        ]
        if self._run is None and self._take_block(rows):
            return
        for topic, data, log_offset, _ in rows:
            self._take_one(topic, data, log_offset)

    def _take_block(self, rows: list[tuple[str, bytes, int, int]]) -> bool:
        """Compare all at once; False, and nothing done, when they are not exactly the next entries."""
        expected = self._expected(rows)
        at, number, done = self._at, self._number, 0
        while done < len(expected):
            if at >= len(self._files):
                return False
            count = min((len(expected) - done) // 12, self._files[at].count - number + 1)
            found = self._files[at].entries(number, count)
            if _heads(found) != expected[done : done + 12 * count]:
                return False
            done += 12 * count
            number += count
            while at < len(self._files) and number > self._files[at].count:
                at, number = at + 1, 1
        self._at, self._number = at, number
        return True

    def _expected(self, rows: list[tuple[str, bytes, int, int]]) -> bytes:
        """Hash and log offset of every key that 5.4.0 puts, as they stand in entries."""
        if self._bulk is not None:
            return self._bulk.heads(rows)
        pack = INDEX_ENTRY.pack
        return b"".join(
            [
                pack(key_hash, log_offset, 0, 0)[:12]
                for topic, data, log_offset, _ in rows
                for key_hash in self._hasher.keys(topic, data)
            ]
        )

    def _take_one(self, topic: str, data: bytes, log_offset: int) -> None:
        while (entry := self._entry()) is not None and entry.log_offset < log_offset:
            self._stray(entry)
            self._next()
        wanted = self._hasher.keys(topic, data)
        allowed = set(wanted) | _other_keys(topic, data) if wanted else set()
        found = 0
        while (entry := self._entry()) is not None and entry.log_offset == log_offset:
            if entry.key_hash in allowed:
                found += 1
            else:
                self._note(
                    Kind.INDEX_WRONG, log_offset, f"hash {entry.key_hash} is of none of its keys"
                )
            self._next()
        if wanted and not found:
            self._lacks(log_offset)
        elif wanted:
            self._end_run()

    # -- entries

    def _entry(self) -> IndexEntry | None:
        """The entry at the cursor, None behind the last one."""
        if self._at >= len(self._files):
            return None
        at = self._number - self._block_at
        if self._block_file != self._at or not 0 <= at < len(self._block):
            file = self._files[self._at]
            data = file.entries(self._number, min(BLOCK, file.count - self._number + 1))
            self._block = list(map(IndexEntry._make, INDEX_ENTRY.iter_unpack(data)))
            self._block_at, self._block_file, at = self._number, self._at, 0
        return self._block[at]

    def _next(self) -> None:
        self._number += 1
        self._skip_empty_files()

    def _skip_empty_files(self) -> None:
        while self._at < len(self._files) and self._number > self._files[self._at].count:
            self._at, self._number = self._at + 1, 1
            self._strays = 0

    def _stray(self, entry: IndexEntry) -> None:
        """Judge an entry that no record asked for."""
        log_offset = entry.log_offset
        if not any(entry):
            self._note(Kind.INDEX_STRAY, 0, "it is empty, though the header counts it")
            return
        if 0 <= log_offset < self._log_start:
            return
        self._strays += 1
        if self._strays > STRAYS:
            self._note(Kind.INDEX_STRAY, log_offset, "as so many before it")
        elif self._damage.covers(log_offset):
            self._note(Kind.INDEX_STRAY, log_offset, "its record is damaged or gone")
        else:
            raw = record_at(self._view.log, log_offset)
            if raw is None:
                self._note(Kind.INDEX_STRAY, log_offset, "there is no record")
                return
            whole = raw.whole
            keys = set(self._hasher.keys(whole.topic, whole.properties))
            if entry.key_hash not in keys | _other_keys(whole.topic, whole.properties):
                self._note(
                    Kind.INDEX_WRONG, log_offset, f"hash {entry.key_hash} is of none of its keys"
                )

    def finish(self) -> None:
        """Judge the entries behind the last record."""
        while (entry := self._entry()) is not None:
            self._stray(entry)
            self._next()
        if self._run is not None and self._run.kind is Kind.INDEX_LACKS and self._unclean:
            self.pending += self._run.count
            self._run = None
        self._end_run()
        if self.pending:
            self._report.notes.append(
                f"keys of {self.pending} records at the log's end are not in the index yet, and the abort marker is "
                f"there; a start adds them"
            )

    # -- findings

    def _lacks(self, log_offset: int) -> None:
        run = self._run
        if run is not None and run.kind is Kind.INDEX_LACKS:
            run.last = log_offset
            run.count += 1
            return
        self._end_run()
        directory = f"{self._view.root}/index"
        self._run = _Run(Kind.INDEX_LACKS, directory, log_offset, log_offset, log_offset, "")

    def _note(self, kind: Kind, log_offset: int, reason: str) -> None:
        run, number, path = self._run, self._number, self._files[self._at].path
        if (
            run is not None
            and (run.kind, run.path, run.last) == (kind, path, number - 1)
            and (run.reason == reason or kind is Kind.INDEX_STRAY)
        ):
            run.last = number
            run.count += 1
            return
        self._end_run()
        self._run = _Run(kind, path, number, number, log_offset, reason)

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        if run.kind is Kind.INDEX_LACKS:
            where = (
                f"offset {run.first}" if run.count == 1 else f"offsets {run.first} to {run.last}"
            )
            self._report.add(
                run.kind, run.path, None, f"no key of {run.count} records at log {where}", run.count
            )
            return
        numbers = f"entry {run.first}" if run.count == 1 else f"entries {run.first} to {run.last}"
        at = index_entry_position(run.first, self._view.settings.max_hash_slot_num)
        self._report.add(
            run.kind,
            run.path,
            at,
            f"{numbers} (log offset {run.log_offset}): {run.reason}",
            run.count,
        )


def _heads(entries: bytes) -> bytes:
    """Hash and log offset of each of some entries."""
    if not entries:
        return b""
    out = bytearray(len(entries) // INDEX_ENTRY_SIZE * 12)
    for byte in range(12):
        out[byte::12] = entries[byte::INDEX_ENTRY_SIZE]
    return bytes(out)


def _other_keys(topic: str, data: bytes) -> set[int]:
    """Hashes of keys that others than Apache 5.4.0 put: RocketMQ-Rust has its unique ids behind ``U#``."""
    unique = properties.get(data, b"UNIQ_KEY")
    if not unique:
        return set()
    return {index_key_hash(f"{topic}#U#{unique.decode('utf-8', 'replace')}")}


class _BulkHeads:
    """As :meth:`IndexCheck._expected`, with numpy."""

    def __init__(self, hasher: BulkHasher) -> None:
        import numpy as np

        self._np = np
        self._hasher = hasher
        self._kind = np.dtype([("hash", ">i4"), ("log_offset", ">i8")])

    def heads(self, rows: list[tuple[str, bytes, int, int]]) -> bytes:
        """Hash and log offset of every key, as they stand in entries."""
        keys = self._hasher.keys(rows)
        made = self._np.empty(keys.total, self._kind)
        made["hash"] = keys.hashes
        made["log_offset"] = keys.log_offsets
        return made.tobytes()


def _bulk_hasher(hasher: KeyHasher) -> _BulkHeads | None:
    try:
        from trio_mq.store.bulkindex import BulkHasher
    except ImportError:
        return None
    return _BulkHeads(BulkHasher(hasher))
