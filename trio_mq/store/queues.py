"""Consume queues: for each topic and queue id, where its messages are in the commit log.

In: positions of records, from the dispatcher and from recovery. Out: positions again, to readers. Two kinds with
one face: :class:`ConsumeQueue` has an entry per message, :class:`BatchConsumeQueue` (topics with
``queue.type=BatchCQ``) one per record, which may hold many messages. :class:`QueueTable` keeps them all.
Formats: ``docs/reference/store-format.md``; sources: Apache ConsumeQueue, BatchConsumeQueue, ConsumeQueueStore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from trio_mq.protocol.layout import (
    BATCH_QUEUE_ENTRY,
    BATCH_QUEUE_ENTRY_SIZE,
    PRE_BLANK,
    PRE_BLANK_SIZE,
    QUEUE_ENTRY,
    QUEUE_ENTRY_SIZE,
)
from trio_mq.store.disk import Disk
from trio_mq.store.entries import EntryFiles
from trio_mq.store.segments import FilePool, Segments

#: Folders under the store's root.
SIMPLE_FOLDER = "consumequeue"
BATCH_FOLDER = "batchconsumequeue"


@attrs.frozen
class Position:
    """Where one record of a queue is. `queue_offset` is that of its first message, `count` how many it has."""

    queue_offset: int
    count: int
    log_offset: int
    size: int
    tags_code: int


class BaseQueue:
    """What both kinds share. Queue offsets count messages, log offsets are bytes in the commit log."""

    is_batch = False

    def __init__(self, topic: str, queue_id: int, files: EntryFiles) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = files
        self.topic_bytes = topic.encode()
        #: Offset that the next stored message gets (Apache: topicQueueTable).
        self.next_offset = 0
        #: First offset whose record is still in the log.
        self.min_offset = 0
        #: End of the last record that has an entry; -1 without entries.
        self.indexed_to = -1
        #: Whether somebody waits for new entries.
        self.watched = False
        #: Store time of the newest entry, ms.
        self.newest_ms = 0

    @property
    def max_offset(self) -> int:
        """Offset behind the last message that readers can see."""
        raise NotImplementedError

    def put(
        self, queue_offset: int, count: int, log_offset: int, size: int, tags_code: int, ms: int
    ) -> bool:
        """Add an entry; False for one that is there already."""
        raise NotImplementedError

    def positions(self, queue_offset: int, limit: int) -> Iterator[Position]:
        """Entries from the one that holds `queue_offset`, at most `limit`. May raise ColdData while iterating."""
        raise NotImplementedError

    def log_offset_at(self, queue_offset: int) -> int:
        """Log offset of the record that holds `queue_offset`, -1 without an entry."""
        for position in self.positions(queue_offset, 1):
            return position.log_offset
        return -1

    def trim(self, log_start: int) -> int:
        """Raise the minimum offset to the first record at or behind `log_start`, drop files before it.

        Returns the new minimum (Apache: ConsumeQueue.correctMinOffset, deleteExpiredFile).
        """
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            if self.log_offset_at(middle) < log_start:
                low = middle + 1
            else:
                high = middle
        self.min_offset = max(self.min_offset, low)
        segments = self.files.segments
        keep = self._byte_position(self.min_offset)
        for start in segments.starts[:-1]:
            if start + segments.segment_bytes <= keep:
                segments.drop_segment(start)
        return self.min_offset

    def _byte_position(self, queue_offset: int) -> int:
        raise NotImplementedError


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
        equal those in the records. (Apache appends at the end instead, and shifts all offsets behind a hole.)
        """
        files = self.files
        expected = queue_offset * QUEUE_ENTRY_SIZE
        if log_offset + size <= self.indexed_to or expected < files.end:
            return False
        if expected > files.end:
            if files.end == 0 and files.segments.empty:
                self.min_offset = queue_offset
                files.open_at(expected)
            else:
                files.append(PRE_BLANK * ((expected - files.end) // QUEUE_ENTRY_SIZE))
        files.append(QUEUE_ENTRY.pack(log_offset, size, tags_code))
        self.indexed_to = log_offset + size
        self.newest_ms = ms
        return True

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
        self.files.append(
            BATCH_QUEUE_ENTRY.pack(log_offset, size, tags_code, ms, queue_offset, count, -1, 0)
        )
        self.indexed_to = log_offset + size
        self._max_offset = queue_offset + count
        self.newest_ms = ms
        return True

    def positions(self, queue_offset: int, limit: int) -> Iterator[Position]:
        """See :meth:`BaseQueue.positions`."""
        index = self._find(queue_offset)
        position = index * BATCH_QUEUE_ENTRY_SIZE
        left = limit * BATCH_QUEUE_ENTRY_SIZE
        while left > 0:
            data = self.files.read(left, position)
            if not data:
                return
            left -= len(data)
            position += len(data)
            for log_offset, size, tags, _ms, base, count, _c, _r in BATCH_QUEUE_ENTRY.iter_unpack(
                data
            ):
                yield Position(base, count, log_offset, size, tags)

    def _find(self, queue_offset: int) -> int:
        """Number of the entry whose record holds `queue_offset`."""
        low = self.files.segments.start // BATCH_QUEUE_ENTRY_SIZE
        high = self.files.end // BATCH_QUEUE_ENTRY_SIZE
        while high - low > 1:
            middle = (low + high) // 2
            data = self.files.read(BATCH_QUEUE_ENTRY_SIZE, middle * BATCH_QUEUE_ENTRY_SIZE)
            if BATCH_QUEUE_ENTRY.unpack(data)[4] <= queue_offset:
                low = middle
            else:
                high = middle
        return low

    def _byte_position(self, queue_offset: int) -> int:
        return self._find(queue_offset) * BATCH_QUEUE_ENTRY_SIZE


class QueueTable:
    """All queues of a store, by topic and queue id."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        *,
        queue_file_bytes: int,
        batch_file_bytes: int,
        is_batch_topic: Callable[[str], bool],
    ) -> None:
        self.disk = disk
        self.pool = FilePool(disk)
        self._root = root
        self._queue_file_bytes = -(-queue_file_bytes // QUEUE_ENTRY_SIZE) * QUEUE_ENTRY_SIZE
        self._batch_file_bytes = batch_file_bytes
        #: Says whether a topic has batch queues; the broker's topic table knows.
        self.is_batch_topic = is_batch_topic
        self._queues: dict[tuple[str, int], BaseQueue] = {}
        #: Queues with entries that are not in their files yet.
        self.dirty: set[BaseQueue] = set()

    def __iter__(self) -> Iterator[BaseQueue]:
        return iter(list(self._queues.values()))

    def get(self, topic: str, queue_id: int) -> BaseQueue | None:
        """The queue, if it exists."""
        return self._queues.get((topic, queue_id))

    def obtain(self, topic: str, queue_id: int) -> BaseQueue:
        """The queue, made when it does not exist; its files come with the first entry."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self.make(topic, queue_id, batch=self.is_batch_topic(topic))
        return queue

    def make(self, topic: str, queue_id: int, *, batch: bool) -> BaseQueue:
        """A queue of a given kind, with its files not yet looked at."""
        folder = BATCH_FOLDER if batch else SIMPLE_FOLDER
        segments = Segments(
            self.disk,
            self.pool,
            f"{self._root}/{folder}/{topic}/{queue_id}",
            self._batch_file_bytes if batch else self._queue_file_bytes,
        )
        queue: BaseQueue
        if batch:
            queue = BatchConsumeQueue(topic, queue_id, EntryFiles(segments, BATCH_QUEUE_ENTRY_SIZE))
        else:
            files = EntryFiles(segments, QUEUE_ENTRY_SIZE, filler=PRE_BLANK)
            queue = ConsumeQueue(topic, queue_id, files)
        self._queues[topic, queue_id] = queue
        return queue

    def found(self) -> list[tuple[str, int, bool]]:
        """Topic, queue id and kind (batch or not) of every queue folder on the disk."""
        result: list[tuple[str, int, bool]] = []
        for folder, batch in ((SIMPLE_FOLDER, False), (BATCH_FOLDER, True)):
            for topic in self.disk.list_dir(f"{self._root}/{folder}"):
                result += [
                    (topic, int(name), batch)
                    for name in self.disk.list_dir(f"{self._root}/{folder}/{topic}")
                    if name.isascii() and name.isdigit()
                ]
        return result

    def of_topic(self, topic: str) -> list[BaseQueue]:
        """All queues of one topic."""
        return [queue for (name, _), queue in self._queues.items() if name == topic]

    def drop_topic(self, topic: str) -> None:
        """Forget a topic's queues and remove their files."""
        for queue in self.of_topic(topic):
            self.drop(queue)
        for folder in (SIMPLE_FOLDER, BATCH_FOLDER):
            self.disk.remove_tree(f"{self._root}/{folder}/{topic}")

    def drop(self, queue: BaseQueue) -> None:
        """Forget one queue and remove its files."""
        del self._queues[queue.topic, queue.queue_id]
        self.dirty.discard(queue)
        queue.files.segments.drop_all()
        self.disk.remove_tree(queue.files.segments.directory)

    def write_tails(self) -> None:
        """Write all entries in memory to their files; on an OSError the rest stays for the next time."""
        while self.dirty:
            queue = next(iter(self.dirty))
            queue.files.write_tail()
            self.dirty.discard(queue)
