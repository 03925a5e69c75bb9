"""A queue during a replay: what its files knew before, and which part of them was gone over.

Made by :mod:`trio_mq.recovery.feed` for each queue that a record of the log belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trio_mq.store.queues import BaseQueue, ConsumeQueue

#: Entries of a queue that are read at once to be compared.
BLOCK_ENTRIES: Final = 100


class Lane:
    """One queue."""

    __slots__ = (
        *("_block", "_block_at", "from_offset", "known_to", "next_at"),
        *("of_deleted", "queue", "touched_from"),
    )

    def __init__(self, queue: BaseQueue, from_offset: int = 0) -> None:
        self.queue = queue
        #: Records before belong to no queue, since the topic was deleted; in the index they are of this one.
        self.from_offset = from_offset
        self.of_deleted = ConsumeQueue(queue.topic, queue.queue_id, queue.files)
        self.of_deleted.dropped = True
        self._block = b""
        self._block_at = 0
        #: Where the entry behind the last one that was compared is; -1 before the first one of a batch queue was found.
        self.next_at = -1
        #: Records that end at or before have an entry already.
        self.known_to = queue.indexed_to
        #: Position of the first entry that was compared or added.
        self.touched_from = queue.files.end

    def entry(self, position: int) -> bytes:
        """The entry in the files at a position, empty where there is none; neighbours are read with it."""
        files = self.queue.files
        at = position - self._block_at
        if not 0 <= at < len(self._block):
            if not (0 <= position < files.written and files.segments.has(position)):
                return b""
            segment_end = files.segments.segment_of(position) + files.segments.segment_bytes
            size = min(BLOCK_ENTRIES * files.entry_bytes, segment_end - position)
            self._block = files.segments.read(min(size, files.written - position), position)
            self._block_at, at = position, 0
        return self._block[at : at + files.entry_bytes]

    def put_in_front(self, entry: bytes, position: int) -> None:
        """Write an entry that lies before the queue's first file, which has lost its name; the file is made again."""
        segments = self.queue.files.segments
        if not segments.has(position):
            first = segments.segment_of(position)
            segments.create(first)
            count = segments.segment_bytes // self.queue.files.entry_bytes
            segments.write(self.queue.files.filler * count, first)
        segments.write(entry, position)
        self.touched_from = min(self.touched_from, position)
        self.queue.min_offset = min(self.queue.min_offset, position // len(entry))

    def range(self, position: int, size: int) -> bytes:
        """The entries in the files from a position on; fewer bytes where some are not there."""
        files = self.queue.files
        data = b""
        stop = min(position + size, files.written)
        while position < stop and files.segments.has(position):
            segment_end = files.segments.segment_of(position) + files.segments.segment_bytes
            piece = files.segments.read(min(stop, segment_end) - position, position)
            data += piece
            position += len(piece)
        return data


LaneOf = Callable[[str, int], Lane | None]
