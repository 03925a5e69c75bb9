"""Fixed-size entries in a row of segments, with the newest ones in memory: what every consume queue is made of.

In: packed entries from the dispatcher. Out: ranges of entries, wherever they are. New entries collect in a tail and
are written by the store's tick; a reader sees both alike. Positions are bytes from the start of the queue.
"""

from __future__ import annotations

from trio_mq.store.disk import Buffer
from trio_mq.store.segments import Segments


class EntryFiles:
    """One queue's entries: ``synced <= written <= end``, in bytes. `end` counts the tail in memory too."""

    __slots__ = ("end", "entry_bytes", "filler", "segments", "synced", "tail", "written")

    def __init__(self, segments: Segments, entry_bytes: int, filler: bytes = b"") -> None:
        assert segments.segment_bytes % entry_bytes == 0
        self.segments = segments
        self.entry_bytes = entry_bytes
        #: Entry that fills a queue's very first file up to where the queue begins.
        self.filler = filler
        self.tail = bytearray()
        self.written = 0
        self.end = 0
        #: Everything before is durable, as far as it is known.
        self.synced = 0

    def open_at(self, end: int, *, cut: bool = True) -> None:
        """Set the end of the valid entries; with `cut`, everything behind it is removed from the files.

        What is before counts as durable, as after a clean stop; :meth:`doubt` takes that back.
        """
        self.tail.clear()
        if end < self.written:
            self.synced = min(self.synced, end)  # cut back: what was to be synced still is
        else:
            self.synced = end
        self.written = self.end = end
        if cut:
            self.segments.cut(end)

    def doubt(self) -> None:
        """Take nothing for durable: an earlier process may have ended before it synced what it wrote."""
        self.synced = min(self.synced, self.segments.start)

    def append(self, data: Buffer) -> None:
        """Add whole entries."""
        self.tail += data
        self.end += len(data)

    def write_tail(self) -> None:
        """Write the entries in memory to their files, which are created as needed.

        What an OSError leaves unwritten stays in memory, for the next try.
        """
        tail = self.tail
        done = 0
        try:
            while done < len(tail):
                segment = self.segments.segment_of(self.written)
                if not self.segments.has(self.written):
                    self._create(segment)
                size = min(len(tail) - done, segment + self.segments.segment_bytes - self.written)
                self.segments.write(tail[done : done + size], self.written)
                self.written += size
                done += size
        finally:
            del tail[:done]

    def _create(self, segment: int) -> None:
        first = self.segments.empty
        self.segments.create(segment)
        if not (first and self.filler and self.written > segment):
            return
        count = (self.written - segment) // self.entry_bytes
        try:
            self.segments.write(self.filler * count, segment)
        except OSError:
            # Without its fillers the file would seem to end before its first entry.
            self.segments.drop_segment(segment)
            raise

    def read(self, size: int, position: int) -> bytes:
        """Entries from `position`, at most `size` bytes, at most up to the end of a file.

        Raises :class:`trio_mq.store.segments.ColdData` when the disk would have to be waited for.
        """
        size = self.readable(size, position)
        if size <= 0:
            return b""
        written = self.written
        if position >= written:
            return bytes(self.tail[position - written : position - written + size])
        from_file = self.segments.read_cached(min(size, written - position), position)
        if position + size <= written:
            return from_file
        return from_file + bytes(self.tail[: position + size - written])

    def readable(self, size: int, position: int) -> int:
        """How many bytes a read at `position` can give at once."""
        if position < self.written and not self.segments.has(position):
            return 0
        segment_end = self.segments.segment_of(position) + self.segments.segment_bytes
        return min(size, self.end - position, segment_end - position)
