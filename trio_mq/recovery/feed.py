"""From records of the log to entries of queues and keys of the index: one record after the other, or many at once.

In: lots of whole records in log order, of a recovery or of a log that is being copied. Out: what a dispatcher has to
know of them; nothing that is valid is removed, and what is known already is only compared. Used by
:mod:`trio_mq.recovery.replay` in worker threads, and by :mod:`trio_mq.ha.takeover` on the loop.
Rules: Apache CommitLogDispatcherBuildConsumeQueue, ConsumeQueue.putMessagePositionInfoWrapper,
CommitLog.checkMessageAndReturnSize (tags code of delayed messages).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from trio_mq.protocol.codes import TRANSACTION_MASK, UNDISPATCHED, MessageFlag
from trio_mq.protocol.layout import (
    BATCH_QUEUE_ENTRY,
    FIXED_RECORD_SIZE,
    PRE_BLANK,
    QUEUE_ENTRY,
    QUEUE_ENTRY_SIZE,
)
from trio_mq.protocol.verdict import SCHEDULE_TOPIC, Whole
from trio_mq.recovery.lanes import Lane, LaneOf
from trio_mq.recovery.lots import Lot
from trio_mq.recovery.scan import leads_to_record, position_of, sound_to
from trio_mq.store.dispatch import Dispatcher, Stored
from trio_mq.store.log import CommitLog
from trio_mq.store.queuetable import QueueTable, fits_folder

if TYPE_CHECKING:
    from trio_mq.recovery.bulk import BulkReplay

log = logging.getLogger("trio_mq.recovery")

#: Longest delay of a level that is believed: levels are in days at most.
LONGEST_DELAY_MS = 1000 * 86_400_000
#: Delivery delay of a level that no longer exists (Apache: ScheduleMessageService.computeDeliverTimestamp).
UNKNOWN_LEVEL_MS: Final = 1000
#: Smallest record: the fixed fields, the length of the topic and one character of it.
_MIN_RECORD_BYTES: Final = FIXED_RECORD_SIZE + 2
#: Most messages of one record: the count of a batch is a signed short.
_MAX_BATCH: Final = 32_767
_INNER_BATCH: Final = int(MessageFlag.INNER_BATCH)  # an enumeration would be made anew by each &
#: Most notes about single records: a log that is full of oddities shall not fill the terminal.
_NOTES: Final = 20


def pack_batch(stored: Stored) -> bytes:
    """The entry of a record in a batch queue."""
    count = max(1, min(stored.batch_size, _MAX_BATCH))
    return BATCH_QUEUE_ENTRY.pack(
        *(stored.log_offset, stored.size, stored.tags_code, stored.store_timestamp_ms),
        *(stored.queue_offset, count, -1, 0),
    )


@attrs.frozen
class Gap:
    """A queue lacks entries before a record: they have to be looked for further back in the log."""

    topic: str
    queue_id: int
    queue_offset: int
    expected_offset: int
    log_offset: int


class Feed:
    """Feeds a dispatcher. `trusted` says that the entries in the queues' files are durable, as after a clean stop.

    In a log that is `copied` records may come before the table of topics says which kind of queue theirs is.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        dispatcher: Dispatcher,
        delays_ms: Sequence[int],
        *,
        trusted: bool,
        copied: bool,
    ) -> None:
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._delays_ms = delays_ms
        self._trusted = trusted
        self._copied = copied
        self._lanes: dict[tuple[str, int], Lane | None] = {}
        #: The way to take over many records at once; None where there is none, or none is wanted yet.
        self.bulk: BulkReplay | None = None
        self.notes: list[str] = []
        self.mended = 0

    @property
    def lanes(self) -> list[Lane]:
        """The queues that records were seen for."""
        return [
            lane for lane in self._lanes.values() if lane is not None and not lane.queue.dropped
        ]

    def forget_lanes(self) -> None:
        """Queues were cut: look at them anew."""
        self._lanes.clear()

    def load_bulk(self) -> None:
        """Take over many records at once from now on, where numpy is installed. Imports it, which blocks."""
        if self.bulk is None:
            self.bulk = bulk_replay(
                self._dispatcher,
                self.lane_of,
                trusted=self._trusted,
                index_enabled=self._dispatcher.index_enabled,
            )

    def take(self, lots: Sequence[Lot], *, fill_gaps: bool) -> Gap | None:
        """Take over lots that follow each other, all at once where they came as columns and nothing is unusual.

        Ends early with a gap, unless gaps are to be filled with blank entries.
        """
        if not lots:
            return None
        bulk = self.bulk
        if (
            bulk is not None
            and all(isinstance(lot, bulk.accepts) for lot in lots)
            and bulk.apply(lots)
        ):
            return None
        for lot in lots:
            stored, gap = self._stored(lot.records(), fill_gaps=fill_gaps)
            self._dispatcher.apply(stored)
            if gap is not None:
                return gap
        return None

    # -- records ---------------------------------------------------------------------------------------------

    def _stored(
        self, records: Iterable[Whole], *, fill_gaps: bool
    ) -> tuple[list[Stored], Gap | None]:
        """What a dispatcher has to know of some records, up to the first one behind a gap."""
        lanes = self._lanes
        result: list[Stored] = []
        ends: dict[Lane, int] = {}
        for record in records:
            key = record.topic, record.queue_id
            is_batch = record.sys_flag & _INNER_BATCH and record.base_offset >= 0
            lane = lanes.get(key)
            if lane is None or lane.queue.dropped:
                lane = self.lane_of(*key, batch=bool(is_batch and self._copied))
                if lane is None:
                    continue
            queue, queue_offset, count = lane.queue, record.queue_offset, 1
            if is_batch:
                queue_offset, count = record.base_offset, record.batch_size
            tags_code = record.tags_code if record.delay_level is None else self._due(record)
            stored = Stored(
                queue,
                queue_offset,
                count,
                record.log_offset,
                record.size,
                tags_code,
                record.store_timestamp_ms,
                record.properties,
                record.sys_flag,
            )
            if record.log_offset < lane.from_offset:
                stored = stored._replace(queue=lane.of_deleted)
            elif record.sys_flag & TRANSACTION_MASK not in UNDISPATCHED:
                if record.log_offset < lane.known_to:
                    self._compare(lane, stored)
                else:
                    end = ends.get(lane, queue.max_offset)
                    if self._copied and queue_offset == 0 < end:
                        if record.log_offset >= queue.indexed_to:
                            lane = self._anew(lane, result)
                            stored, end = stored._replace(queue=lane.queue), 0
                            result.clear()
                            ends.clear()
                    elif queue_offset > end:
                        if not self._plausible(lane, stored, end):
                            stored = stored._replace(queue_offset=end)
                            queue_offset = end
                        elif not fill_gaps:
                            gap = Gap(*key, queue_offset, end, record.log_offset)
                            return result, gap
                    ends[lane] = max(end, queue_offset + count)
            result.append(stored)
        return result, None

    def _anew(self, lane: Lane, before: Sequence[Stored]) -> Lane:
        """Let a queue begin anew, once the records `before` have been put: the master gave its first offset again.

        Its topic was deleted there and made again, or all of the queue had expired at a master of Apache's. Nothing
        else tells that to a slave, whose table of topics may be copied before or after. Returns the new lane.
        """
        self._dispatcher.apply(before)
        queue = lane.queue
        log.info(
            "queue %s/%d begins anew behind offset %d, as at the master",
            *(queue.topic, queue.queue_id, queue.max_offset),
        )
        self._queues.begin_anew(queue)
        found = self.lane_of(queue.topic, queue.queue_id, batch=queue.is_batch)
        assert found is not None, "its name is that of a folder"
        return found

    def lane_of(self, topic: str, queue_id: int, *, batch: bool = False) -> Lane | None:
        """The lane of a queue; None for records that cannot be put into one."""
        lane = self._lanes.get((topic, queue_id))
        if lane is not None and not lane.queue.dropped:
            return lane
        known = lane is None and (topic, queue_id) in self._lanes
        return None if known else self._lane(topic, queue_id, batch=batch)

    def _lane(self, topic: str, queue_id: int, *, batch: bool) -> Lane | None:
        """The lane of a queue; None for a name that no folder can have: such a record was damaged, or is hostile."""
        lane = None
        if not fits_folder(topic) or queue_id < 0:
            self._note(f"records of topic {topic!r}, queue {queue_id} cannot be put into a queue")
        else:
            queues = self._queues
            queue = queues.obtain(topic, queue_id, batch=batch)
            lane = Lane(queue, queues.roster.deleted.get(topic, 0))
        self._lanes[topic, queue_id] = lane
        return lane

    def _due(self, record: Whole) -> int:
        """The tags code of a queue entry of a delayed message: the time when it is due."""
        level = record.delay_level
        if record.topic != SCHEDULE_TOPIC or not level or level < 0:
            return record.tags_code
        level = min(level, len(self._delays_ms))
        delay_ms = self._delays_ms[level - 1] if level else UNKNOWN_LEVEL_MS
        return record.store_timestamp_ms + delay_ms

    def _plausible(self, lane: Lane, stored: Stored, end: int) -> bool:
        """Whether as many messages as a queue lacks fit into the log between its last record and this one.

        If not, the record's queue offset is damaged (no CRC covers it), and its place is the queue's end.
        """
        known = lane.queue.indexed_to
        if known < 0:
            return True
        per_record = _MAX_BATCH if lane.queue.is_batch else 1
        room = (stored.log_offset - known) // _MIN_RECORD_BYTES * per_record
        if stored.queue_offset - end <= room:
            return True
        self._note(
            f"the record at offset {stored.log_offset} says queue offset {stored.queue_offset}, but "
            f"{lane.queue.topic}/{lane.queue.queue_id} ends at {end}: it is put there"
        )
        return False

    def _compare(self, lane: Lane, stored: Stored) -> None:
        """See to it that the entry of a known record is whole: a power cut may have left a part of it."""
        queue, files = lane.queue, lane.queue.files
        if queue.is_batch:
            entry, position = pack_batch(stored), self._batch_position(lane, stored.log_offset)
        else:
            entry = QUEUE_ENTRY.pack(stored.log_offset, stored.size, stored.tags_code)
            position = stored.queue_offset * QUEUE_ENTRY_SIZE
        found = lane.entry(position)
        if not found:
            # Files expire only when all their records have: what is in the log has an entry, or its file was lost.
            if 0 <= position < files.segments.start and not queue.is_batch:
                lane.put_in_front(entry, position)
                self.mended += 1
            return
        lane.next_at = position + files.entry_bytes
        if found == entry and self._trusted:
            return
        lane.touched_from = min(lane.touched_from, position)
        if found == entry or (stored.queue.topic == SCHEDULE_TOPIC and _says_due(stored, found)):
            return
        # An entry of another record stays: the topic was deleted and made again, or its offsets are shifted.
        blank = found == PRE_BLANK
        if blank or found[:8] == entry[:8] or not leads_to_record(queue, self._log, position):
            files.segments.write(entry, position)
            self.mended += 1

    def _batch_position(self, lane: Lane, log_offset: int) -> int:
        """Where the entry of a record is in a batch queue, -1 without one. Mostly it is the next one."""
        log, wanted = self._log, log_offset.to_bytes(8, "big")
        found = lane.entry(lane.next_at)
        if found[:8] == wanted:
            return lane.next_at
        position = position_of(lane.queue, log_offset)
        if lane.entry(position)[:8] == wanted:
            return position
        if lane.next_at < 0:
            lane.next_at = sound_to(lane.queue, log, log_offset)
            found = lane.entry(lane.next_at)
            if found[:8] == wanted:
                return lane.next_at
        # An entry that leads nowhere is a torn one of this record, unless this record has one elsewhere.
        torn = found and not leads_to_record(lane.queue, log, lane.next_at)
        return lane.next_at if torn else -1

    def _note(self, text: str) -> None:
        if len(self.notes) < _NOTES:
            self.notes.append(text)


def bulk_replay(
    dispatcher: Dispatcher, lane_of: LaneOf, *, trusted: bool, index_enabled: bool
) -> BulkReplay | None:
    """The way to take over many records at once; None without numpy."""
    try:
        from trio_mq.recovery.bulk import BulkReplay
    except ImportError:
        return None
    return BulkReplay(dispatcher, lane_of, trusted=trusted, index_enabled=index_enabled)


def _says_due(stored: Stored, entry: bytes) -> bool:
    """Whether the entry of a delayed message is whole, with the delay of other settings: that one stays (case C142)."""
    log_offset, size, due_ms = QUEUE_ENTRY.unpack(entry)
    delay_ms = due_ms - stored.store_timestamp_ms
    if (log_offset, size) != (stored.log_offset, stored.size):
        return False
    return bool(0 < delay_ms <= LONGEST_DELAY_MS and delay_ms % 1000 == 0)
