"""Consume queues: for each topic and queue id, where its messages are in the commit log.

In: positions of records, from the dispatcher and from recovery. Out: positions again, to readers. Two kinds with
one face: :class:`ConsumeQueue` has an entry per message, :class:`BatchConsumeQueue` (topics with
``queue.type=BatchCQ``) one per record, which may hold many messages. :class:`trio_mq.store.queuetable.QueueTable`
keeps them all.
Formats: ``docs/reference/store-format.md``; sources: Apache ConsumeQueue, BatchConsumeQueue.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator

import attrs

from trio_mq.protocol.layout import (
    BATCH_QUEUE_ENTRY,
    BATCH_QUEUE_ENTRY_SIZE,
    PRE_BLANK,
    PRE_BLANK_SIZE,
    QUEUE_ENTRY,
    QUEUE_ENTRY_SIZE,
)
from trio_mq.store.entries import EntryFiles
from trio_mq.store.traffic import Traffic

log = logging.getLogger("trio_mq.store.queues")

#: Longest hole that is filled with blank entries (20 MB of them). A longer one comes from a damaged queue offset.
HOLE_ENTRIES = 1_000_000
#: Entries read at once while blank ones are passed over.
_SKIP_ENTRIES = 4096
#: Most messages of a batch record: the format has a signed short for them.
_MAX_BATCH = 32_767
_pack_entry = QUEUE_ENTRY.pack


@attrs.frozen
class Position:
    """Where one record of a queue is. `queue_offset` is that of its first message, `count` how many it has."""

    queue_offset: int
    count: int
    log_offset: int
    size: int
    tags_code: int


class BaseQueue(ABC):
    """What both kinds share. Queue offsets count messages, log offsets are bytes in the commit log."""

    is_batch = False

    def __init__(self, topic: str, queue_id: int, files: EntryFiles) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = files
        #: Totals of the topic, shared by its queues.
        self.traffic = Traffic()
        self.topic_bytes = topic.encode()
        #: Offset that the next stored message gets (Apache: topicQueueTable).
        self.next_offset = 0
        #: First offset whose record is still in the log.
        self.min_offset = 0
        #: End of the last record that has an entry; -1 without entries.
        self.indexed_to = -1
        #: How many wait for new entries; each adds one, and takes it away again.
        self.watched = 0
        #: Whether the queue was deleted: records that are on their way get no entries any more.
        self.dropped = False

    @property
    @abstractmethod
    def max_offset(self) -> int:
        """Offset behind the last message that readers can see."""

    @abstractmethod
    def put(
        self, queue_offset: int, count: int, log_offset: int, size: int, tags_code: int, ms: int
    ) -> bool:
        """Add an entry; False for one that is there already."""

    @abstractmethod
    def positions(self, queue_offset: int, limit: int) -> Iterator[Position]:
        """Entries from the one that holds `queue_offset`, at most `limit`. May raise ColdData while iterating."""

    def log_offset_at(self, queue_offset: int) -> int:
        """Log offset of the record that holds `queue_offset`, -1 without an entry."""
        for position in self.positions(queue_offset, 1):
            return position.log_offset
        return -1

    def next_record(self, queue_offset: int, limit: int) -> tuple[int, int]:
        """The first message in [`queue_offset`, `limit`) that has a record, and the record's log offset.

        (`limit`, -1) when there is none: only entries that fill holes.
        """
        if queue_offset >= limit:
            return limit, -1
        return queue_offset, self.log_offset_at(queue_offset)

    def trim(self, log_start: int) -> int:
        """Raise the minimum offset to the first record at or behind `log_start`, drop files before it.

        Returns the new minimum (Apache: ConsumeQueue.correctMinOffset, deleteExpiredFile).
        """
        low, end = self.min_offset, self.max_offset
        first, log_offset = self.next_record(low, end)
        if log_offset >= log_start:
            low = first
        else:
            low, high = first, end
            while low < high:
                middle = (low + high) // 2
                found, log_offset = self.next_record(middle, high)
                if found < high and log_offset < log_start:
                    low = found + 1
                else:
                    high = middle
            low = self.next_record(low, end)[0]
        self.min_offset = max(self.min_offset, low)
        segments = self.files.segments
        keep = self._byte_position(self.min_offset)
        for start in segments.starts[:-1]:
            if start + segments.segment_bytes <= keep:
                segments.drop_segment(start)
        return self.min_offset

    @abstractmethod
    def _byte_position(self, queue_offset: int) -> int:
        """Where the entry that holds `queue_offset` begins in the files."""


class ConsumeQueue(BaseQueue):
    """An entry of 20 bytes per message: log offset, size, tags code."""

    @property
    def max_offset(self) -> int:
        """Offset behind the last message that readers can see."""
        return self.files.end // QUEUE_ENTRY_SIZE

    def put(
        self, queue_offset: int, count: int, log_offset: int, size: int, tags_code: int, ms: int
    ) -> bool:
        """Add an entry; False for one that is there already (Apache: putMessagePositionInfo).

        A hole before the entry is filled with blank entries, which readers pass over, so that offsets always
        equal those in the records. (Apache appends at the end instead, and shifts all offsets behind a hole; so
        do we where the hole is absurd.)
        """
        files = self.files
        expected, record_end = queue_offset * QUEUE_ENTRY_SIZE, log_offset + size
        if record_end <= self.indexed_to or expected < files.end:
            return False
        if expected > files.end:
            self._skip_to(queue_offset)
        # As files.append(), without a call: this is done once per message.
        files.tail += _pack_entry(log_offset, size, tags_code)
        files.end += QUEUE_ENTRY_SIZE
        self.indexed_to = record_end
        return True

    def _skip_to(self, queue_offset: int) -> None:
        """Leave a hole before the next entry."""
        files = self.files
        hole = queue_offset - files.end // QUEUE_ENTRY_SIZE
        if files.end == 0 and queue_offset <= 1 << 48:
            self.min_offset = queue_offset
            files.segments.drop_all()  # what a sudden end has left of them holds no entry
            files.open_at(queue_offset * QUEUE_ENTRY_SIZE)
        elif hole <= HOLE_ENTRIES:
            files.append(PRE_BLANK * hole)
        else:
            log.error(
                "queue %s/%d: a record says queue offset %d, the queue ends at %d: it is put at the end",
                self.topic,
                self.queue_id,
                queue_offset,
                self.max_offset,
            )

    def positions(self, queue_offset: int, limit: int) -> Iterator[Position]:
        """See :meth:`BaseQueue.positions`."""
        files = self.files
        position = queue_offset * QUEUE_ENTRY_SIZE
        left = limit * QUEUE_ENTRY_SIZE
        while left > 0:
            data = files.read(left, position)
            if not data:
                return
            left -= len(data)
            position += len(data)
            for log_offset, size, tags_code in QUEUE_ENTRY.iter_unpack(data):
                if size != PRE_BLANK_SIZE:
                    yield Position(queue_offset, 1, log_offset, size, tags_code)
                queue_offset += 1

    def log_offset_at(self, queue_offset: int) -> int:
        """Log offset of one message, -1 without an entry (also for one that only fills a hole)."""
        data = self.files.read(QUEUE_ENTRY_SIZE, queue_offset * QUEUE_ENTRY_SIZE)
        if len(data) < QUEUE_ENTRY_SIZE:
            return -1
        log_offset, size, _ = QUEUE_ENTRY.unpack(data)
        return -1 if size == PRE_BLANK_SIZE else int(log_offset)

    def next_record(self, queue_offset: int, limit: int) -> tuple[int, int]:
        """See :meth:`BaseQueue.next_record`; long runs of blank entries are compared, not looked at one by one."""
        count = 1
        while queue_offset < limit:
            count = min(count, limit - queue_offset)
            data = self.files.read(count * QUEUE_ENTRY_SIZE, queue_offset * QUEUE_ENTRY_SIZE)
            if not data:  # a file between two others is missing
                per_file = self.files.segments.segment_bytes // QUEUE_ENTRY_SIZE
                queue_offset += per_file - queue_offset % per_file
                continue
            got = len(data) // QUEUE_ENTRY_SIZE
            if data != PRE_BLANK * got:
                for at, (log_offset, size, _) in enumerate(QUEUE_ENTRY.iter_unpack(data)):
                    if size != PRE_BLANK_SIZE:
                        return queue_offset + at, log_offset
            queue_offset += got
            count = _SKIP_ENTRIES
        return limit, -1

    def _byte_position(self, queue_offset: int) -> int:
        return queue_offset * QUEUE_ENTRY_SIZE


class BatchConsumeQueue(BaseQueue):
    """An entry of 46 bytes per record, found by the offset of its first message."""

    is_batch = True

    def __init__(self, topic: str, queue_id: int, files: EntryFiles) -> None:
        super().__init__(topic, queue_id, files)
        self._max_offset = 0

    @property
    def max_offset(self) -> int:
        """Offset behind the last message that readers can see."""
        return self._max_offset

    def opened(self, min_offset: int, max_offset: int) -> None:
        """Set the bounds that recovery found in the entries."""
        self.min_offset, self._max_offset = min_offset, max_offset

    def put(
        self, queue_offset: int, count: int, log_offset: int, size: int, tags_code: int, ms: int
    ) -> bool:
        """Add an entry; False for one that is there already (Apache: putBatchMessagePositionInfo)."""
        if log_offset + size <= self.indexed_to:
            return False
        if self.files.end == 0:
            self.min_offset = queue_offset
        count = max(1, min(count, _MAX_BATCH))
        self.files.append(
            BATCH_QUEUE_ENTRY.pack(log_offset, size, tags_code, ms, queue_offset, count, -1, 0)
        )
        self.indexed_to = log_offset + size
        self._max_offset = queue_offset + count
        return True

    def positions(self, queue_offset: int, limit: int) -> Iterator[Position]:
        """See :meth:`BaseQueue.positions`."""
        position = self._byte_position(queue_offset)
        left = limit * BATCH_QUEUE_ENTRY_SIZE
        while left > 0:
            data = self.files.read(left, position)
            if not data:
                return
            left -= len(data)
            position += len(data)
            for log_offset, size, tags, _, base, count, _, _ in BATCH_QUEUE_ENTRY.iter_unpack(data):
                if base + count > queue_offset:  # else there is a hole between two records
                    yield Position(base, count, log_offset, size, tags)

    def next_record(self, queue_offset: int, limit: int) -> tuple[int, int]:
        """See :meth:`BaseQueue.next_record`."""
        for position in self.positions(queue_offset, 2):
            found = max(queue_offset, position.queue_offset)
            return (found, position.log_offset) if found < limit else (limit, -1)
        return limit, -1

    def _byte_position(self, queue_offset: int) -> int:
        """Where the entry is whose record holds `queue_offset`, or the last one before."""
        low = self.files.segments.start // BATCH_QUEUE_ENTRY_SIZE
        high = self.files.end // BATCH_QUEUE_ENTRY_SIZE
        while high - low > 1:
            middle = (low + high) // 2
            data = self.files.read(BATCH_QUEUE_ENTRY_SIZE, middle * BATCH_QUEUE_ENTRY_SIZE)
            if len(data) == BATCH_QUEUE_ENTRY_SIZE and (
                BATCH_QUEUE_ENTRY.unpack(data)[4] <= queue_offset
            ):
                low = middle
            else:
                high = middle
        return low * BATCH_QUEUE_ENTRY_SIZE
