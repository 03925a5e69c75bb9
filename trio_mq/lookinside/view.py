"""A store as it lies on the disk, for reading only: log, queues and index files, whatever their health.

In: a folder. Out: a :class:`StoreView` with rows of files that can be read, and what was odd about them. The files are
seen through an overlay, so nothing here can change a byte: not on a read-only file system, and not of a store that
another process has open. Called by all other modules of this room.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from trio_mq.config import StoreSettings
from trio_mq.protocol.layout import (
    BATCH_QUEUE_ENTRY,
    BATCH_QUEUE_ENTRY_SIZE,
    PRE_BLANK_SIZE,
    QUEUE_ENTRY,
    QUEUE_ENTRY_SIZE,
)
from trio_mq.recovery.detect import Detected, detect, view_settings
from trio_mq.store.disk import Disk
from trio_mq.store.overlay import OverlayDisk
from trio_mq.store.queuetable import BATCH_FOLDER, SIMPLE_FOLDER
from trio_mq.store.segments import FilePool, Segments

#: Open files of a view: it may have a queue for each of them.
OPEN_FILES = 256
#: Bytes looked at in one go while the last entry of a file is searched from behind.
BACK_BYTES = 64 * 1024
#: Compacted offset and reserved field of a batch queue's entry: nobody uses them.
BATCH_REST = (-1, 0)


@attrs.frozen
class Entry:
    """One entry of a queue. `number` counts entries, `queue_offset` messages; `count` is the messages of its record.

    `stored_ms` and `rest` (two numbers that are always the same) are only in entries of batch queues.
    """

    number: int
    queue_offset: int
    count: int
    log_offset: int
    size: int
    tags_code: int
    stored_ms: int | None = None
    rest: tuple[int, int] = BATCH_REST

    @property
    def is_blank(self) -> bool:
        """Whether it only fills a hole."""
        return self.size == PRE_BLANK_SIZE

    @property
    def is_valid(self) -> bool:
        """Whether it may lead to a record, or fills a hole; a zero area and a torn entry are not."""
        return self.log_offset >= 0 and self.size > 0 and self.count > 0


class QueueFiles:
    """The files of one queue. Positions are numbers of entries, from the start of the queue."""

    def __init__(self, topic: str, queue_id: int, segments: Segments, *, is_batch: bool) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.is_batch = is_batch
        self.segments = segments
        self.entry_bytes = BATCH_QUEUE_ENTRY_SIZE if is_batch else QUEUE_ENTRY_SIZE

    @property
    def name(self) -> str:
        """How the queue is called in texts."""
        return f"{self.topic}/{self.queue_id}"

    @property
    def first(self) -> int:
        """Number of the first entry that a file has room for."""
        return self.segments.start // self.entry_bytes

    def place(self, number: int) -> tuple[str, int]:
        """Path of the file of an entry, and its position there."""
        at = number * self.entry_bytes
        start = self.segments.segment_of(at)
        return self.segments.path(start), at - start

    def read(self, number: int, count: int) -> bytes:
        """Up to `count` entries from one file; empty where there is none."""
        at = number * self.entry_bytes
        segments = self.segments
        if at < 0 or not segments.has(at):
            return b""
        room = segments.segment_of(at) + segments.segment_bytes - at
        data = segments.read(min(count * self.entry_bytes, room), at)
        return data[: len(data) - len(data) % self.entry_bytes]

    def unpack(self, data: bytes, number: int) -> Iterator[Entry]:
        """Entries of bytes that :meth:`read` gave for `number`."""
        if self.is_batch:
            for log_offset, size, tags, ms, base, count, *rest in BATCH_QUEUE_ENTRY.iter_unpack(
                data
            ):
                yield Entry(number, base, count, log_offset, size, tags, ms, (rest[0], rest[1]))
                number += 1
        else:
            for log_offset, size, tags in QUEUE_ENTRY.iter_unpack(data):
                yield Entry(number, number, 1, log_offset, size, tags)
                number += 1

    def entry(self, number: int) -> Entry | None:
        """One entry, None where no file has it."""
        data = self.read(number, 1)
        return next(self.unpack(data, number)) if data else None

    def entries(self, begin: int, end: int, block: int = 4096) -> Iterator[Entry]:
        """Valid entries of records from number `begin` to `end`; blanks and what is no entry are passed over."""
        number = max(begin, self.first)
        while number < end:
            data = self.read(number, min(block, end - number))
            if not data:  # a file between two others is missing
                following = [s for s in self.segments.starts if s > number * self.entry_bytes]
                if not following:
                    return
                number = following[0] // self.entry_bytes
                continue
            for entry in self.unpack(data, number):
                if entry.is_valid and not entry.is_blank:
                    yield entry
            number += len(data) // self.entry_bytes

    def end(self) -> int:
        """Number behind the last valid entry; :attr:`first` without one."""
        for start in reversed(self.segments.starts):
            stop = data_end(self.segments, start)
            high = -(-(stop - start) // self.entry_bytes) + start // self.entry_bytes
            low = start // self.entry_bytes
            while high > low:
                begin = max(low, high - BACK_BYTES // self.entry_bytes)
                entries = list(self.unpack(self.read(begin, high - begin), begin))
                for entry in reversed(entries):
                    if entry.is_valid:
                        return entry.number + 1
                high = begin
        return self.first

    def find(self, log_offset: int, end: int) -> int:
        """Number of the first entry before `end` whose record is at or behind a log offset; else `end`.

        A blank counts to what is before it.
        """
        low, high = self.first, end
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is None or entry.is_blank or entry.log_offset < log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def find_queue_offset(self, queue_offset: int, end: int) -> int:
        """Number of the first entry before `end` that holds a queue offset or a later one; else `end`."""
        if not self.is_batch:
            return min(max(queue_offset, self.first), end)
        low, high = self.first, end
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is None or entry.queue_offset + max(1, entry.count) <= queue_offset:
                low = middle + 1
            else:
                high = middle
        return low


def data_end(segments: Segments, start: int) -> int:
    """An offset in the file that begins at `start`, behind which it has only zeros, as its holes tell.

    It may be too far by what was written as zeros; where the file system knows no holes, it is the file's end.
    """
    low, high = start, start + segments.segment_bytes
    stop = high
    if segments.next_data(low) >= stop:
        return low
    while high - low > 1:
        middle = (low + high) // 2
        if segments.next_data(middle) >= stop:
            high = middle
        else:
            low = middle
    return high


@attrs.frozen(eq=False)
class StoreView:
    """A store that can only be looked at; see :func:`open_view`.

    `disk` is the overlay, in which short files have their full size; `base` shows them as they are.
    """

    base: Disk
    disk: Disk
    root: str
    settings: StoreSettings
    detected: Detected
    log: Segments
    _pool: FilePool

    def queues(self, topics: frozenset[str] | None = None) -> list[QueueFiles]:
        """All queues, or those of some topics, by topic and number; folders of other names are passed over."""
        found: list[QueueFiles] = []
        for folder, is_batch in ((SIMPLE_FOLDER, False), (BATCH_FOLDER, True)):
            for topic in self.disk.list_dir(f"{self.root}/{folder}"):
                if topics is not None and topic not in topics:
                    continue
                found += self._queues_of(f"{self.root}/{folder}/{topic}", topic, is_batch)
        return sorted(found, key=lambda queue: (queue.topic, queue.queue_id))

    def _queues_of(self, path: str, topic: str, is_batch: bool) -> Iterator[QueueFiles]:
        if not self.disk.is_dir(path):
            return
        settings = self.settings
        size = settings.mapped_file_size_batch_consume_queue
        if not is_batch:
            size = (
                -(-settings.mapped_file_size_consume_queue // QUEUE_ENTRY_SIZE) * QUEUE_ENTRY_SIZE
            )
        for name in self.disk.list_dir(path):
            if not (name.isascii() and name.isdigit() and name == str(int(name))):
                continue
            if not self.disk.is_dir(f"{path}/{name}"):
                continue
            segments = Segments(self.disk, self._pool, f"{path}/{name}", size)
            segments.load(mend=True)
            yield QueueFiles(topic, int(name), segments, is_batch=is_batch)

    def close(self) -> None:
        """Close all files."""
        self.log.close()
        self._pool.close()


def open_view(disk: Disk, root: str, *, commit_log_dir: str | None = None) -> StoreView:
    """Look at the store in a folder; `commit_log_dir` is where its log is, if that has a place of its own.

    Sizes of its files are found from the files. Raises :class:`trio_mq.errors.StoreError` for what is no store, and
    for log or queue files whose sizes or names do not fit each other.
    """
    detected = detect(disk, root, commit_log_dir=commit_log_dir)
    return view_with(disk, root, view_settings(detected, root), detected)


def view_with(disk: Disk, root: str, settings: StoreSettings, detected: Detected) -> StoreView:
    """As :func:`open_view`, with sizes that are known."""
    overlay = OverlayDisk(disk)
    log = Segments(
        overlay,
        FilePool(overlay, OPEN_FILES),
        settings.commit_log_dir,
        settings.mapped_file_size_commit_log,
    )
    log.load(mend=True)
    pool = FilePool(overlay, OPEN_FILES)
    return StoreView(disk, overlay, root, settings, detected, log, pool)
