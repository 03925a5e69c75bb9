"""One queue of a store on its way through a check: the entry at its cursor against the next record of the log.

In: records of the queue in log order. Out: findings. Both sides are in the order of the log, so they are compared in
one pass, whole blocks at a time where all is well. What a queue cannot know by itself is asked of a :class:`Judge`.
Called by :mod:`trio_mq.lookinside.verify_queues`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Protocol

import attrs

from trio_mq.lookinside.findings import Kind, Report
from trio_mq.lookinside.view import BATCH_REST, Entry, QueueFiles
from trio_mq.protocol.codes import TRANSACTION_MASK, UNDISPATCHED, MessageFlag
from trio_mq.protocol.layout import PRE_BLANK, QUEUE_ENTRY, QUEUE_ENTRY_SIZE
from trio_mq.protocol.verdict import SCHEDULE_TOPIC, Whole

#: Entries read at once where they are looked at one by one.
BLOCK = 256
#: Entries read at once where many are passed over.
SKIP_BLOCK = 4096
#: Records that get no queue entry.
_INNER_BATCH = int(MessageFlag.INNER_BATCH)
#: Flags that a record of a simple queue must not have to be compared in a block.
ODD_FLAGS = 0x80 | 0x4
_columns = itemgetter(0, 3, 4, 5, 7)  # of Whole: size, offsets in queue and log, flags, tags code


class Judge(Protocol):
    """What a lane asks about its store. `unclean`: the newest records may have no entries; `pending` counts those."""

    report: Report
    log_start: int
    unclean: bool
    pending: int

    def tags_fit(self, queue: QueueFiles, entry: Entry, record: Whole) -> bool:
        """Whether an entry has the tags code of a record."""
        ...

    def fault(self, queue: QueueFiles, entry: Entry) -> str:
        """Why an entry leads to no record of its queue; empty when it does, or to one that has expired."""
        ...

    def end_of(self, queue: QueueFiles) -> int:
        """Number behind the last entry that is to be judged: a broker may add to it meanwhile."""
        ...


@attrs.define
class _Run:
    """Findings of one kind that follow each other in a queue."""

    kind: Kind
    first: int
    last: int
    log_offset: int
    reason: str
    count: int = 1


class Lane:
    """One queue on its way. `cursor` is the number of the next entry that has not been compared."""

    def __init__(self, queue: QueueFiles, check: Judge) -> None:
        self.queue = queue
        self._check = check
        self.cursor = queue.first
        self._block: list[Entry] = []
        self._block_at = 0
        self._run: _Run | None = None
        self._skip_expired()
        #: Entry that the files begin with, if any: older records are of another life of the topic.
        self._first = next(iter(queue.entries(self.cursor, self.cursor + SKIP_BLOCK)), None)
        self.older = 0
        #: Whether a record had no entry.
        self.lacked = False

    # -- records

    def take(self, records: Sequence[Whole]) -> None:
        """Compare the next records of this queue, which are in log order."""
        if not self._take_block(records):
            for record in records:
                if record.sys_flag & TRANSACTION_MASK not in UNDISPATCHED:
                    self._take_one(record)

    def _take_block(self, records: Sequence[Whole]) -> bool:
        """Compare all at once; False, and nothing done, when they are not exactly the next entries."""
        sizes, offsets, log_offsets, flags, tags = zip(*map(_columns, records), strict=True)
        first, count = offsets[0], len(sizes)
        if not self.is_at(first) or offsets[-1] != first + count - 1:
            return False
        if any(flag & ODD_FLAGS for flag in set(flags)):
            return False
        if offsets != tuple(range(first, first + count)):
            return False
        pack = QUEUE_ENTRY.pack
        expected = b"".join([pack(*row) for row in zip(log_offsets, sizes, tags, strict=True)])
        return self.advance(expected)

    def is_at(self, queue_offset: int) -> bool:
        """Whether all is well, and the next entry is that of a queue offset, so that a block may be compared."""
        simple = not self.queue.is_batch and self.queue.topic != SCHEDULE_TOPIC
        return simple and self._run is None and queue_offset == self.cursor

    def advance(self, expected: bytes) -> bool:
        """Pass over the next entries if they are these; whether they were."""
        count, cursor = len(expected) // QUEUE_ENTRY_SIZE, self.cursor
        found = self.queue.read(cursor, count)
        if len(found) < len(expected) and found:
            done = len(found) // QUEUE_ENTRY_SIZE
            found += self.queue.read(cursor + done, count - done)
        if found != expected:
            return False
        self.cursor = cursor + count
        return True

    def _take_one(self, record: Whole) -> None:
        queue_offset, count = record.queue_offset, 1
        if record.sys_flag & _INNER_BATCH and record.base_offset >= 0:
            queue_offset, count = record.base_offset, record.batch_size
        first = self._first
        if (
            first is not None
            and record.log_offset < first.log_offset
            and queue_offset >= first.queue_offset
        ):
            self.older += 1
            return
        if not self.queue.is_batch and queue_offset > self.cursor:
            self._jump(queue_offset, record.log_offset)
        while True:
            entry = self._entry(self.cursor)
            if entry is None or not entry.is_valid:
                self._block = []  # it may have been written since
                entry = self._entry(self.cursor)
            if entry is None or not entry.is_valid:
                self._lacks(record, queue_offset, "it is empty" if entry else "there is none")
                if entry is not None and self._is_place(entry.number, queue_offset):
                    self.cursor += 1
                return
            if entry.is_blank or entry.log_offset < record.log_offset:
                self._stray(entry)
                self.cursor += 1
                continue
            if entry.log_offset == record.log_offset:
                self._compare(entry, record, queue_offset, count)
                self.cursor += 1
                return
            if entry.queue_offset == queue_offset and self._fault(entry):
                self._note(
                    Kind.QUEUE_WRONG, entry.number, record.log_offset,
                    f"it says log offset {entry.log_offset}",
                )  # fmt: skip
                self.cursor += 1
            else:
                self._lacks(record, queue_offset, f"it is of log offset {entry.log_offset}")
            return

    def _is_place(self, number: int, queue_offset: int) -> bool:
        """Whether an empty entry is where that of a record should be."""
        if self.queue.is_batch:
            return number < self._check.end_of(self.queue)
        return number == queue_offset

    def _jump(self, queue_offset: int, log_offset: int) -> None:
        """Go to the entry of a queue offset if it is that of a record: whatever is before it has none in the log."""
        target = self._entry(queue_offset)
        if target is None or target.log_offset != log_offset or not target.is_valid:
            return
        while self.cursor < queue_offset:
            entry = self._entry(self.cursor)
            if entry is not None:
                self._stray(entry)
            self.cursor += 1

    def _compare(self, entry: Entry, record: Whole, queue_offset: int, count: int) -> None:
        wrong = []
        if entry.size != record.size:
            wrong.append(f"size {entry.size} instead of {record.size}")
        if not self._check.tags_fit(self.queue, entry, record):
            wrong.append(f"tags code {entry.tags_code} instead of {record.tags_code}")
        if self.queue.is_batch and entry.count != max(1, count):
            wrong.append(f"{entry.count} messages instead of {count}")
        if entry.stored_ms not in (None, record.store_timestamp_ms):
            wrong.append(f"store time {entry.stored_ms} instead of {record.store_timestamp_ms}")
        if entry.rest != BATCH_REST:
            wrong.append(f"{entry.rest} in its last fields instead of {BATCH_REST}")
        if wrong:
            self._note(Kind.QUEUE_WRONG, entry.number, record.log_offset, ", ".join(wrong))
        elif entry.queue_offset != queue_offset:
            self._note(
                Kind.QUEUE_SHIFTED, entry.number, record.log_offset,
                f"by {entry.queue_offset - queue_offset} from what the records say",
            )  # fmt: skip
        else:
            self._end_run()

    # -- entries

    def _entry(self, number: int) -> Entry | None:
        at = number - self._block_at
        if not 0 <= at < len(self._block):
            self._block = list(self.queue.unpack(self.queue.read(number, BLOCK), number))
            self._block_at, at = number, 0
        return self._block[at] if self._block else None

    def _skip_expired(self) -> None:
        """Pass over entries of records that are gone with their files, and over the blanks before them."""
        queue, log_start = self.queue, self._check.log_start
        while True:
            data = queue.read(self.cursor, SKIP_BLOCK)
            if not data:
                return
            if not queue.is_batch and data == PRE_BLANK * (len(data) // QUEUE_ENTRY_SIZE):
                self.cursor += len(data) // QUEUE_ENTRY_SIZE
                continue
            for entry in queue.unpack(data, self.cursor):
                if not entry.is_valid or not (entry.is_blank or entry.log_offset < log_start):
                    self.cursor = entry.number
                    return
            self.cursor += len(data) // queue.entry_bytes

    def _fault(self, entry: Entry) -> str:
        """Why an entry leads to no record of this queue; empty when it does, or to one that was."""
        if entry.is_blank:
            return ""
        return self._check.fault(self.queue, entry)

    def _stray(self, entry: Entry) -> None:
        """Judge an entry that no record asked for."""
        if not entry.is_valid:
            self._note(Kind.QUEUE_TORN, entry.number, entry.log_offset, "it is empty")
            return
        fault = self._fault(entry)
        if fault:
            self._note(Kind.QUEUE_STRAY, entry.number, entry.log_offset, fault)

    def finish(self) -> None:
        """Judge what is left behind the last record."""
        queue = self.queue
        end = self._check.end_of(queue)
        while self.cursor < end:
            data = queue.read(self.cursor, SKIP_BLOCK)
            if not data:
                following = [
                    s for s in queue.segments.starts if s > self.cursor * queue.entry_bytes
                ]
                if not following:
                    break
                self.cursor = following[0] // queue.entry_bytes
                continue
            if data.count(0) < len(data):
                for entry in queue.unpack(data, self.cursor):
                    if entry.number < end:
                        self._stray(entry)
            self.cursor += len(data) // queue.entry_bytes
        if self._run is not None and self._run.kind is Kind.QUEUE_LACKS and self._check.unclean:
            self._check.pending += self._run.count
            self._run = None
        self._end_run()
        used = queue.read(end, BLOCK).rstrip(b"\0")
        if used and queue.end() == end:
            path, offset = queue.place(end)
            self._check.report.add(
                Kind.QUEUE_TORN, path, offset,
                f"{len(used)} bytes behind the last entry of {queue.name} are no entry",
            )  # fmt: skip

    # -- findings

    def _lacks(self, record: Whole, queue_offset: int, entry: str) -> None:
        self.lacked = True
        self._note(Kind.QUEUE_LACKS, queue_offset, record.log_offset, entry)

    def _note(self, kind: Kind, number: int, log_offset: int, reason: str) -> None:
        run = self._run
        follows = run is not None and (
            kind is Kind.QUEUE_LACKS
            or (number == run.last + 1 and (reason == run.reason or kind is Kind.QUEUE_STRAY))
        )
        if run is not None and run.kind is kind and follows:
            run.last = number
            run.count += 1
            return
        self._end_run()
        self._run = _Run(kind, number, number, log_offset, reason)

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is None or (run.kind is Kind.QUEUE_LACKS and self._has_come(run)):
            return
        queue = self.queue
        number = run.first if not queue.is_batch or run.kind is not Kind.QUEUE_LACKS else 0
        path, offset = queue.place(number)
        if not queue.segments.has(number * queue.entry_bytes):
            path, offset = queue.segments.directory, 0
        self._check.report.add(run.kind, path, offset, _text(queue, run), run.count)

    def _has_come(self, run: _Run) -> bool:
        """Whether a broker has written meanwhile what seemed to lack."""
        if not self._check.unclean:
            return False
        entry = self.queue.entry(self.queue.find(run.log_offset, self.queue.end()))
        return entry is not None and entry.is_valid and entry.log_offset == run.log_offset


def _text(queue: QueueFiles, run: _Run) -> str:
    many = run.count > 1
    offsets = f"{run.first} to {run.last}" if many else f"{run.first}"
    if run.kind is Kind.QUEUE_LACKS:
        return (
            f"{queue.name} has no entry for queue offset {offsets}, whose record is at log offset "
            f"{run.log_offset}{' and behind' if many else ''} ({run.reason})"
        )
    what = "entries" if many else "entry"
    if run.kind is Kind.QUEUE_SHIFTED:
        return f"{queue.name}: queue offset {offsets} is shifted {run.reason} (log offset {run.log_offset})"
    return f"{queue.name}: {what} {offsets} (log offset {run.log_offset}): {run.reason}"
