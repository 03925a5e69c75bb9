"""From an offset of the log to the end of what is valid in one segment: record by record, or out of windows.

In: a call that reads bytes of the log. Out: lots of whole records, then the offset where they end and the verdict on
what lies there. Both iterators ask the same question of every record, :func:`trio_mq.protocol.verdict.check`, and give
the same answers; they differ in how often they read, and :class:`BatchMessageIterator` asks it of many records at once
where numpy is installed. Windows are read into memory, not mapped: a page of a map that cannot be read, or is cut
away by another process, ends the process, and one that is not in memory holds up all threads of it.
Sources: RocketMQ-Rust CommitLogFrameCursor (windows, and what happens at their borders), Apache CommitLog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from trio_mq.protocol.layout import BLANK_MAGIC, FIXED_RECORD_SIZE
from trio_mq.protocol.verdict import Blank, Damaged, Torn, Verdict, Whole, check, check_start
from trio_mq.recovery.lots import Lot, RecordLot
from trio_mq.recovery.paths import Path
from trio_mq.store.segments import Segments

if TYPE_CHECKING:
    from trio_mq.recovery.columns import ColumnScan

Read = Callable[[int, int], bytes]
"""Up to so many bytes from an offset of the log, fewer only where the file ends. Blocks."""

#: Bytes of the log that are looked at in one go; a record that is larger is read by itself.
WINDOW_BYTES: Final = 65_536
#: Windows that are read and checked together where many records are checked at once: fewer calls for each record.
WINDOWS_AT_ONCE: Final = 4
#: The system is asked for at least this much of the log before it is read.
AHEAD_BYTES: Final = 4 * 1024 * 1024
#: Records that the sequential path hands on at once.
SLICE_RECORDS: Final = 256
#: No record is as long: a frame of the protocol has 16 MiB at most. What claims more is never read for its size.
RECORD_LIMIT_BYTES: Final = 64 * 1024 * 1024
#: What the magic numbers of both record versions begin with.
RECORD_MAGIC: Final = b"\xda\xa3\x20"
HEAD_BYTES: Final = 8
_SMALLEST: Final = FIXED_RECORD_SIZE + 1


class ReadAhead:
    """Reads a log from one end to the other, and lets the system fetch what comes next meanwhile."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._asked_to = 0

    def __call__(self, size: int, offset: int) -> bytes:
        """See :data:`Read`."""
        if offset + AHEAD_BYTES > self._asked_to:
            begin = max(offset, self._asked_to)
            self._segments.will_need(2 * AHEAD_BYTES, begin)
            self._asked_to = begin + 2 * AHEAD_BYTES
        return self._segments.read(size, offset)


class MessageIterator(Protocol):
    """Goes through one segment. After the last lot, `verdict` is what lies at `offset`; None where the segment ends."""

    offset: int
    verdict: Verdict | None

    def __iter__(self) -> Iterator[Lot]:
        """Lots of records, in order and without gaps."""
        ...


def messages(
    path: Path,
    read: Read,
    begin: int,
    end: int,
    *,
    check_crc: bool,
) -> MessageIterator:
    """An iterator from `begin`, where a record should be, to `end`, where its segment ends."""
    if path is Path.SEQUENTIAL:
        return SequentialMessageIterator(read, begin, end, check_crc=check_crc)
    return BatchMessageIterator(read, begin, end, check_crc=check_crc)


def claimed_size(head: bytes, at: int = 0) -> int:
    """Bytes that a record says to have; 0 for anything that is no record."""
    if head[at + 4 : at + 7] != RECORD_MAGIC:
        return 0
    return int.from_bytes(head[at : at + 4], "big", signed=True)


def verdict_at(
    read: Read, offset: int, end: int, *, check_crc: bool, strict: bool = True
) -> Verdict:
    """What lies at an offset of the log, reading no more than a record there claims; its segment ends at `end`.

    Without `strict` Apache's rules alone count: a record may name another offset, and a blank has to fit in.
    """
    room = end - offset
    head = read(min(HEAD_BYTES, room), offset)
    if len(head) < min(HEAD_BYTES, room):
        return Torn(f"the file ends {len(head)} bytes behind")
    if strict and head[4:] == BLANK_MAGIC:
        # Known by its magic alone, whatever it claims as size.
        return Blank(int.from_bytes(head[:4], "big", signed=True))
    size = claimed_size(head)
    if not _SMALLEST <= size <= room:
        return check_start(head, 0, room)
    if size > RECORD_LIMIT_BYTES:
        return Damaged(-1, f"record claims {size} bytes, more than any record has", rule=5)
    data = read(size, offset)
    expected = offset if strict else None
    return check(data, 0, len(data), check_crc=check_crc, expected_offset=expected, strict=strict)


class SequentialMessageIterator:
    """Record by record: reads the head of each, then as much as it claims."""

    def __init__(self, read: Read, begin: int, end: int, *, check_crc: bool = True) -> None:
        self.offset = begin
        self.verdict: Verdict | None = None
        self._read = read
        self._end = end
        self._check_crc = check_crc

    def __iter__(self) -> Iterator[Lot]:
        """See :class:`MessageIterator`."""
        records: list[Whole] = []
        while self.offset < self._end:
            verdict = verdict_at(self._read, self.offset, self._end, check_crc=self._check_crc)
            if not isinstance(verdict, Whole):
                self.verdict = verdict
                break
            records.append(verdict)
            self.offset += verdict.size
            if len(records) >= SLICE_RECORDS:
                yield RecordLot(records)
                records = []
        if records:
            yield RecordLot(records)


class BatchMessageIterator:
    """Many records at a time, out of windows that begin where the last whole record ended.

    A record that leads out of its window begins the next one; one that is larger than a window is read by itself.
    With numpy a window is four of the usual ones, unless `columns` are not wanted.
    """

    def __init__(
        self,
        read: Read,
        begin: int,
        end: int,
        *,
        check_crc: bool = True,
        window_bytes: int = WINDOW_BYTES,
        columns: bool = True,
    ) -> None:
        self.offset = begin
        self.verdict: Verdict | None = None
        self._read = read
        self._end = end
        self._check_crc = check_crc
        self._scan = column_scan() if columns else None
        windows = WINDOWS_AT_ONCE if self._scan else 1
        self._window_bytes = max(windows * window_bytes, HEAD_BYTES)

    def __iter__(self) -> Iterator[Lot]:
        """See :class:`MessageIterator`."""
        while self.offset < self._end:
            begin = self.offset
            window = self._read(min(self._window_bytes, self._end - begin), begin)
            yield from self._look(window, begin)
            at = self.offset - begin
            if at and (at == len(window) or self._goes_on(window, at)):
                continue
            verdict = verdict_at(self._read, self.offset, self._end, check_crc=self._check_crc)
            if not isinstance(verdict, Whole):
                self.verdict = verdict
                return
            self.offset += verdict.size
            yield RecordLot([verdict])

    def _goes_on(self, window: bytes, at: int) -> bool:
        """Whether what lies at `at` may be a record that leads out of the window."""
        return len(window) - at < HEAD_BYTES or claimed_size(window, at) > len(window) - at

    def _look(self, window: bytes, begin: int) -> Iterator[Lot]:
        """The records that lie in the window as a whole; :attr:`offset` moves with them."""
        scan = self._scan
        if scan is not None and len(window) > _SMALLEST:
            columns = scan(window, begin, check_crc=self._check_crc)
            for lot in columns:
                if not isinstance(lot, int):
                    self.offset = lot.end
                    yield lot
                    continue
                # A record that columns do not know: it is asked for by itself.
                verdict = check(
                    window,
                    lot,
                    len(window),
                    check_crc=self._check_crc,
                    expected_offset=begin + lot,
                )
                if not isinstance(verdict, Whole):
                    return
                self.offset += verdict.size
                yield RecordLot([verdict])
            return
        records: list[Whole] = []
        at, end = 0, len(window)
        while at < end:
            verdict = check(window, at, end, check_crc=self._check_crc, expected_offset=begin + at)
            if type(verdict) is not Whole:
                break
            records.append(verdict)
            at += verdict.size
        self.offset = begin + at
        if records:
            yield RecordLot(records)


_scan: list[ColumnScan | None] = []


def column_scan() -> ColumnScan | None:
    """The way to check many records at once; None without numpy."""
    if not _scan:
        try:
            from trio_mq.recovery.columns import scan
        except ImportError:
            _scan.append(None)
        else:
            _scan.append(scan)
    return _scan[0]
