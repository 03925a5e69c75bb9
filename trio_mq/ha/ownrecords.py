"""Where the whole records of the own log lie: the last one, and those of a range. All calls block, for a worker thread.

In: the files of a log, whose end may be inside a record. Out: offsets and bytes. Called by
:mod:`trio_mq.ha.continuity`, while nothing is appended.
"""

from __future__ import annotations

import attrs

from trio_mq.protocol.layout import BLANK_MAGIC
from trio_mq.protocol.verdict import Blank, Damaged, Whole
from trio_mq.recovery.iterators import (
    RECORD_LIMIT_BYTES,
    BatchMessageIterator,
    ReadAhead,
    verdict_at,
)
from trio_mq.store.segments import Segments


@attrs.frozen
class Tail:
    """The end of a log: its last whole record (None without one), and where whole records end.

    `torn` are the bytes behind that; None where they are no part of one record: something is damaged there.
    """

    record: bytes | None
    offset: int
    end: int
    torn: bytes | None = b""

    @property
    def is_blank(self) -> bool:
        """Whether what is behind is the beginning of a segment's end."""
        return self.torn is not None and self.torn[4:8] == BLANK_MAGIC


class OwnRecords:
    """See the module. Remembers where it found the last record, so that a further look is short."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._known = 0

    def forget(self, end: int) -> None:
        """The log was cut there."""
        if self._known >= end:
            self._known = 0

    def tail(self, end: int) -> Tail:
        """The end of the log, which has bytes before `end`. OSError when they cannot be read."""
        size = self._segments.segment_bytes
        begin = self._segments.segment_of(end - 1)
        with self._segments.read_apart() as segments:
            while segments.has(begin):
                walk = self._walk(segments, begin, min(end, begin + size))
                last = 0
                for lot in walk:
                    last = lot.records()[-1].log_offset
                whole = walk.offset
                if isinstance(walk.verdict, Blank) and end >= begin + size:
                    whole = begin + size
                if walk.offset > begin:
                    return self._found(segments, last, walk.offset, whole, end, walk.verdict)
                begin -= size
            return self._found(segments, 0, 0, segments.start, end, None)

    def _walk(self, segments: Segments, begin: int, end: int) -> BatchMessageIterator:
        """Over one segment, from a record that was found before if there is one in it."""
        if begin <= self._known < end:
            begin = self._known
        return BatchMessageIterator(ReadAhead(segments), begin, end, check_crc=False)

    def _found(
        self, segments: Segments, last: int, last_end: int, whole: int, end: int, verdict: object
    ) -> Tail:
        torn: bytes | None = None
        is_tail = segments.segment_of(end - 1) <= whole and end - whole <= RECORD_LIMIT_BYTES
        if is_tail and not isinstance(verdict, Damaged):
            torn = segments.read(end - whole, whole) if end > whole else b""
        if not last_end:
            return Tail(None, 0, whole, torn)
        self._known = last
        return Tail(segments.read(last_end - last, last), last, whole, torn)

    def record(self, offset: int, end: int) -> bytes | None:
        """The whole record at an offset, in a log that ends at `end`."""
        with self._segments.read_apart() as segments:
            stop = min(end, segments.segment_of(offset) + segments.segment_bytes)
            found = verdict_at(segments.read, offset, stop, check_crc=False)
            return segments.read(found.size, offset) if isinstance(found, Whole) else None

    def landmarks(self, begin: int, end: int) -> list[int]:
        """Some of the offsets where records begin, from `begin` on, which is one, to `end`, in the same segment.

        They are about as far from each other as a window of the walk, so that a large segment has few thousand.
        """
        with self._segments.read_apart() as segments:
            return [
                lot.begin
                for lot in BatchMessageIterator(ReadAhead(segments), begin, end, check_crc=False)
            ]

    def starts(self, begin: int, end: int) -> list[int]:
        """All offsets where records begin, from `begin` on, which is one, to `end`, in the same segment."""
        found: list[int] = []
        with self._segments.read_apart() as segments:
            for lot in BatchMessageIterator(segments.read, begin, end, check_crc=False):
                found += [record.log_offset for record in lot.records()]
        return found
