"""The key index against the records of the log, in one pass; and its chains, in another.

In: the records of the log in order, and raw index files. Out: findings. Entries are in the order of the log, so a
cursor moves through the files beside the records: where all is well, the keys of a lot of records are exactly the next
entries, and are compared in one go. Called by :mod:`trio_mq.lookinside.verify`. Format and rules: Apache 5.4.0
IndexService.buildIndex, IndexFile.putKey.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from trio_mq.lookinside.expectedkeys import HEAD_BYTES, Expected, expected_keys, seconds_between
from trio_mq.lookinside.findings import Kind, Report
from trio_mq.lookinside.keysearch import IndexFileView
from trio_mq.lookinside.records import record_at
from trio_mq.lookinside.verify_queues import Damage
from trio_mq.lookinside.view import StoreView
from trio_mq.protocol import properties
from trio_mq.protocol.layout import (
    INDEX_ENTRY,
    IndexEntry,
    index_entry_position,
    index_key_hash,
)
from trio_mq.protocol.verdict import Whole
from trio_mq.store.keys import KeyHasher

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
        self._keys = expected_keys(self._hasher)
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
        if not self.advance(self._keys.of(rows)):
            for row in rows:
                self._take_one(*row)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compare with."""
        return not self._files

    def advance(self, expected: Expected) -> bool:
        """Pass over the next entries if they are these; False, and nothing done, when they are not."""
        if self._run is not None:
            return False
        at, number, done = self._at, self._number, 0
        while done < expected.total:
            if at >= len(self._files):
                return False
            file = self._files[at]
            count = min(expected.total - done, file.count - number + 1)
            found = expected.heads(file.entries(number, count))
            wanted = expected.wanted(done, count, file.header.begin_timestamp_ms)
            if number == 1:  # its seconds count from the end of the file before
                wanted = wanted[:12] + found[12:HEAD_BYTES] + wanted[HEAD_BYTES:]
            if found != wanted:
                return False
            done += count
            number += count
            while at < len(self._files) and number > self._files[at].count:
                at, number = at + 1, 1
        self._at, self._number = at, number
        return True

    def _take_one(self, topic: str, data: bytes, log_offset: int, ms: int) -> None:
        while (entry := self._entry()) is not None and entry.log_offset < log_offset:
            self._stray(entry)
            self._next()
        wanted = self._hasher.keys(topic, data)
        allowed = set(wanted) | _other_keys(topic, data) if wanted else set()
        found = 0
        while (entry := self._entry()) is not None and entry.log_offset == log_offset:
            begin_ms = self._files[self._at].header.begin_timestamp_ms
            if entry.key_hash not in allowed:
                text = f"hash {entry.key_hash} is of none of its keys"
                self._note(Kind.INDEX_WRONG, log_offset, text)
            elif self._number > 1 and entry.seconds != seconds_between(begin_ms, ms):
                self._note(Kind.INDEX_WRONG, log_offset, "its time is not that of its record")
                found += 1
            else:
                found += 1
            self._next()
        if wanted and not found:
            self._lacks(log_offset)
        elif wanted and self._run is not None and self._run.kind is Kind.INDEX_LACKS:
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

    def _stray(self, entry: IndexEntry, *, is_late: bool = False) -> None:
        """Judge an entry that no record asked for; a late one may be of a record that was stored meanwhile."""
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
                text = f"hash {entry.key_hash} is of none of its keys"
                self._note(Kind.INDEX_WRONG, log_offset, text)
            elif not is_late:
                self._note(Kind.INDEX_WRONG, log_offset, "it is not in the order of the log")

    def finish(self) -> None:
        """Judge the entries behind the last record."""
        while (entry := self._entry()) is not None:
            self._stray(entry, is_late=True)
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


def _other_keys(topic: str, data: bytes) -> set[int]:
    """Hashes of keys that others than Apache 5.4.0 put: RocketMQ-Rust has its unique ids behind ``U#``."""
    unique = properties.get(data, b"UNIQ_KEY")
    if not unique:
        return set()
    return {index_key_hash(f"{topic}#U#{unique.decode('utf-8', 'replace')}")}
