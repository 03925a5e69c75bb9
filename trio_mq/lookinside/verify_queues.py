"""Queue entries against records, and records against queue entries, in one pass through the log.

In: the records of the log in order, and the raw files of the queues. Out: findings. Records go to the lane of their
queue (:mod:`trio_mq.lookinside.queuelane`); here is what concerns all queues. Called by
:mod:`trio_mq.lookinside.verify`. Rules: Apache CommitLogDispatcherBuildConsumeQueue,
ConsumeQueue.putMessagePositionInfoWrapper.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from trio_mq.lookinside.findings import Kind, Report
from trio_mq.lookinside.queuelane import Lane
from trio_mq.lookinside.records import record_at
from trio_mq.lookinside.view import Entry, QueueFiles, StoreView
from trio_mq.protocol.codes import TRANSACTION_MASK, UNDISPATCHED
from trio_mq.protocol.verdict import SCHEDULE_TOPIC, Whole
from trio_mq.store.roster import QueueRoster

#: Longest delay of a level that is believed: levels are in days at most.
LONGEST_DELAY_MS = 1000 * 86_400_000
#: A tags code below this is an address in the extension files (Apache: ConsumeQueueExt.isExtAddr).
EXT_ADDRESS = -(1 << 31) - 1


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
        #: Records of topics that were deleted, by topic.
        self._deleted: Counter[str] = Counter()
        levels = view.settings.delay_levels_ms
        self._delays_ms = dict(enumerate(levels, 1))
        self._files = {(q.topic, q.queue_id): q for q in view.queues()}
        self._ends = {key: queue.end() for key, queue in self._files.items()}
        #: What the store itself says about its queues.
        self._roster = QueueRoster(view.base, view.root)
        self._roster.load()
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
            self.look_at_queue(key, some)

    def look_at_queue(self, key: tuple[str, int], records: Sequence[Whole]) -> None:
        """Compare the next records of one queue."""
        gone_to = self._roster.deleted.get(key[0], 0)
        if gone_to:  # the topic was deleted: records from before that belong to no queue
            left = [record for record in records if record.log_offset >= gone_to]
            self._deleted[key[0]] += len(records) - len(left)
            records = left
            if not records:
                return
        lane = self.lane(key)
        if lane is not None:
            lane.take(records)
        else:
            self._without_queue(key, records)

    def lane(self, key: tuple[str, int]) -> Lane | None:
        """A queue's lane; None for one that has no folder."""
        return self._lanes[key] if key in self._lanes else self._lane(key)

    def _lane(self, key: tuple[str, int]) -> Lane | None:
        queue = self._files.get(key)
        lane = self._lanes[key] = None if queue is None else Lane(queue, self)
        return lane

    def _without_queue(self, key: tuple[str, int], records: Sequence[Whole]) -> None:
        some = [r for r in records if r.sys_flag & TRANSACTION_MASK not in UNDISPATCHED]
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

    def end_of(self, queue: QueueFiles) -> int:
        """Number behind the last entry that was there when the check began."""
        return self._ends[queue.topic, queue.queue_id]

    def finish(self) -> None:
        """Judge what no record of the log has asked for, and records without any queue."""
        for key in self._files:
            lane = self.lane(key)
            assert lane is not None
            lane.finish()
            if lane.older:
                self.report.notes.append(
                    f"{lane.older} records say they are of {lane.queue.name}, and are older than all of its entries: "
                    f"of an earlier topic of that name"
                )
        self.report.notes += [
            f"{count} records are of an earlier topic {topic}, which was deleted"
            for topic, count in sorted(self._deleted.items())
        ]
        for (topic, queue_id), (log_offset, count) in sorted(self._homeless.items()):
            self._tell_homeless(topic, queue_id, log_offset, count)
        self._compare_with_list()
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

    def _compare_with_list(self) -> None:
        """Compare with the list of queues, which knows of those whose files and records are both gone."""
        roster = self._roster
        if roster.listed is None:
            if self._view.base.exists(roster.path):
                self.report.add(Kind.STATE_FILE, roster.path, None, "it cannot be read")
            return
        for (topic, queue_id), bounds in sorted(roster.listed.items()):
            queue = self._files.get((topic, queue_id))
            if queue is None:
                if (topic, queue_id) not in self._homeless:
                    text = f"the list of queues knows {topic}/{queue_id}, which has no files"
                    self.report.add(Kind.QUEUE_LACKS, roster.path, None, text)
                continue
            end = self._ends[topic, queue_id]
            last = queue.entry(end - 1) if end > queue.first else None
            found = last.queue_offset + last.count if last else end
            lane = self._lanes.get((topic, queue_id))
            if found < bounds.max_offset and not (lane and lane.lacked):
                text = f"{queue.name} ends at queue offset {found}, but has had {bounds.max_offset} by the list"
                self.report.add(Kind.QUEUE_LACKS, queue.segments.directory, None, text)
