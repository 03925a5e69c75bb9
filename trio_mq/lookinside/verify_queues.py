"""Queue entries against records, and records against queue entries, in one pass through the log.

In: the records of the log in order, and the raw files of the queues. Out: findings. Both sides are in the order of the
log, so each queue has a cursor: the entry at the cursor and the next record of that queue are compared, whole blocks
at a time where all is well. Called by :mod:`trio_mq.lookinside.verify`. Rules: Apache
CommitLogDispatcherBuildConsumeQueue, ConsumeQueue.putMessagePositionInfoWrapper.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

import attrs

from trio_mq.lookinside.findings import Kind, Report
from trio_mq.lookinside.records import record_at
from trio_mq.lookinside.view import Entry, QueueFiles, StoreView
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.layout import PRE_BLANK, QUEUE_ENTRY, QUEUE_ENTRY_SIZE
from trio_mq.protocol.verdict import SCHEDULE_TOPIC, Whole

#: Entries read at once where they are looked at one by one.
BLOCK = 256
#: Entries read at once where many are passed over.
SKIP_BLOCK = 4096
#: Longest delay of a level that is believed: levels are in days at most.
LONGEST_DELAY_MS = 1000 * 86_400_000
#: A tags code below this is an address in the extension files (Apache: ConsumeQueueExt.isExtAddr).
EXT_ADDRESS = -(1 << 31) - 1

_TRANSACTION = 0xC
_INNER_BATCH = int(MessageFlag.INNER_BATCH)
_UNDISPATCHED = (int(MessageFlag.TRANSACTION_PREPARED), int(MessageFlag.TRANSACTION_ROLLBACK))
#: Flags that a record of a simple queue must not have to be compared in a block.
_ODD_FLAGS = 0x80 | 0x4
_columns = itemgetter(
    0, 3, 4, 5, 7
)  # of Whole: size, offsets in queue and log, flags, tags code, delay


@attrs.define
class _Run:
    """Findings of one kind that follow each other in a queue."""

    kind: Kind
    first: int
    last: int
    log_offset: int
    reason: str
    count: int = 1


class Damage:
    """Ranges of the log that hold no records, so that entries that lead there are told as what they are."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        """Add a range; they come in order."""
        self._begins.append(begin)
        self._ends.append(end)

    def covers(self, log_offset: int) -> bool:
        """Whether an offset lies in one of them."""
        at = bisect_right(self._begins, log_offset) - 1
        return at >= 0 and log_offset < self._ends[at]


class Lane:
    """One queue on its way. `cursor` is the number of the next entry that has not been compared."""

    def __init__(self, queue: QueueFiles, check: QueueCheck) -> None:
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

    # -- records

    def take(self, records: Sequence[Whole]) -> None:
        """Compare the next records of this queue, which are in log order."""
        if self._run is not None or self.queue.is_batch or not self._take_block(records):
            for record in records:
                if record.sys_flag & _TRANSACTION not in _UNDISPATCHED:
                    self._take_one(record)

    def _take_block(self, records: Sequence[Whole]) -> bool:
        """Compare all at once; False, and nothing done, when they are not exactly the next entries."""
        sizes, offsets, log_offsets, flags, tags = zip(*map(_columns, records), strict=True)
        count, cursor = len(sizes), self.cursor
        if offsets[0] != cursor or offsets[-1] != cursor + count - 1:
            return False
        if any(flag & _ODD_FLAGS for flag in set(flags)) or self.queue.topic == SCHEDULE_TOPIC:
            return False
        if offsets != tuple(range(cursor, cursor + count)):
            return False
        pack = QUEUE_ENTRY.pack
        expected = b"".join([pack(*row) for row in zip(log_offsets, sizes, tags, strict=True)])
        found = self.queue.read(cursor, count)
        if len(found) < len(expected) and found:
            found += self.queue.read(cursor + len(found) // QUEUE_ENTRY_SIZE, count)[
                : len(expected) - len(found)
            ]
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
                self._lacks(record, queue_offset, "it is empty" if entry else "there is none")
                if entry is not None and entry.number == queue_offset:
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
        end = queue.end()
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
        behind = queue.read(end, BLOCK)
        used = behind.rstrip(b"\0")
        if used:
            path, offset = queue.place(end)
            self._check.report.add(
                Kind.QUEUE_TORN, path, offset,
                f"{len(used)} bytes behind the last entry of {queue.name} are no entry",
            )  # fmt: skip

    # -- findings

    def _lacks(self, record: Whole, queue_offset: int, entry: str) -> None:
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
        if run is None:
            return
        queue = self.queue
        number = run.first if not queue.is_batch or run.kind is not Kind.QUEUE_LACKS else 0
        path, offset = queue.place(number)
        if not queue.segments.has(number * queue.entry_bytes):
            path, offset = queue.segments.directory, 0
        self._check.report.add(run.kind, path, offset, _text(queue, run), run.count)


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


class QueueCheck:
    """All queues of a store. Feed records with :meth:`look`, then :meth:`finish`.

    `known_topics` are those of topics.json, None when that cannot be read; `unclean`: the abort marker is there, so
    the newest records may have no entries yet.
    """

    def __init__(
        self,
        view: StoreView,
        report: Report,
        damage: Damage,
        *,
        known_topics: frozenset[str] | None,
        unclean: bool,
    ) -> None:
        self.report = report
        self.unclean = unclean
        self.log_start = view.log.start
        #: Records without entries at the end of an unclean store.
        self.pending = 0
        self._view = view
        self._damage = damage
        self._known = known_topics
        self._log_end = view.log.end
        self._lanes: dict[tuple[str, int], Lane | None] = {}
        self._homeless: dict[tuple[str, int], list[int]] = {}
        levels = view.settings.delay_levels_ms
        self._delays_ms = dict(enumerate(levels, 1))
        self._files = {(q.topic, q.queue_id): q for q in view.queues()}
        self._has_ext = view.disk.is_dir(f"{view.root}/consumequeue_ext")

    @property
    def queues(self) -> int:
        """How many queues there are."""
        return len(self._files)

    def look(self, records: Sequence[Whole]) -> None:
        """Compare the next records of the log."""
        groups: dict[tuple[str, int], list[Whole]] = {}
        for record in records:
            key = record[1], record[2]
            some = groups.get(key)
            if some is None:
                groups[key] = [record]
            else:
                some.append(record)
        for key, some in groups.items():
            lane = self._lanes[key] if key in self._lanes else self._lane(key)
            if lane is not None:
                lane.take(some)
            else:
                self._without_queue(key, some)

    def _lane(self, key: tuple[str, int]) -> Lane | None:
        queue = self._files.get(key)
        lane = self._lanes[key] = None if queue is None else Lane(queue, self)
        return lane

    def _without_queue(self, key: tuple[str, int], records: Sequence[Whole]) -> None:
        some = [r for r in records if r.sys_flag & _TRANSACTION not in _UNDISPATCHED]
        if some:
            found = self._homeless.setdefault(key, [some[0].log_offset, 0])
            found[1] += len(some)

    def tags_fit(self, queue: QueueFiles, entry: Entry, record: Whole) -> bool:
        """Whether an entry has the tags code of a record; for a delayed message, the time when it is due.

        The levels of the broker that wrote the store are not known, so the first entry of each tells its delay.
        """
        level = record.delay_level
        if record.topic != SCHEDULE_TOPIC or not level or level < 0:
            ext = self._has_ext and entry.tags_code <= EXT_ADDRESS
            return ext or entry.tags_code == record.tags_code
        delay_ms = entry.tags_code - record.store_timestamp_ms
        if self._delays_ms.get(level) != delay_ms and 0 < delay_ms <= LONGEST_DELAY_MS:
            if delay_ms % 1000:
                return False
            self._delays_ms[level] = delay_ms
        return self._delays_ms.get(level) == delay_ms

    def fault(self, queue: QueueFiles, entry: Entry) -> str:
        """Why an entry leads to no record of its queue; empty when it does, or to one that has expired."""
        log_offset = entry.log_offset
        if log_offset < self.log_start:
            return ""
        if self._damage.covers(log_offset):
            return "its record is damaged or gone"
        if log_offset >= self._log_end:
            return "it leads behind the log's end"
        raw = record_at(self._view.log, log_offset)
        if raw is None:
            return "there is no record"
        if (raw.whole.topic, raw.whole.queue_id) == (queue.topic, queue.queue_id):
            return (
                ""
                if raw.whole.queue_offset == entry.queue_offset
                else "its record has another entry"
            )
        if b"INNER_MULTI_DISPATCH" in raw.whole.properties:
            return ""  # one record in several queues
        return f"its record is of {raw.whole.topic}/{raw.whole.queue_id}"

    def finish(self) -> None:
        """Judge what no record of the log has asked for, and records without any queue."""
        for key in self._files:
            lane = self._lanes[key] if key in self._lanes else self._lane(key)
            assert lane is not None
            lane.finish()
            if lane.older:
                self.report.notes.append(
                    f"{lane.older} records say they are of {lane.queue.name}, and are older than all of its entries: "
                    f"of an earlier topic of that name"
                )
        for (topic, queue_id), (log_offset, count) in sorted(self._homeless.items()):
            self._tell_homeless(topic, queue_id, log_offset, count)
        if self.pending:
            self.report.notes.append(
                f"{self.pending} records at the log's end are not in their queues yet, and the abort marker is there: "
                f"a broker runs, or crashed; a start adds them"
            )

    def _tell_homeless(self, topic: str, queue_id: int, log_offset: int, count: int) -> None:
        if self._known is not None and topic not in self._known:
            self.report.notes.append(
                f"{count} records are of {topic}/{queue_id}, a topic that was deleted"
            )
            return
        folder = f"{self._view.root}/consumequeue/{topic}/{queue_id}"
        self.report.add(
            Kind.QUEUE_LACKS, folder, None,
            f"{topic}/{queue_id} has no files, but {count} records from log offset {log_offset} on",
            count,
        )  # fmt: skip
