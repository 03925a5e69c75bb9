"""Looking at a store's files without changing them: where each queue ends, and which records the log holds.

In: the parts of a store. Out: :class:`QueueTail` values, and the log's records one window after the other, each
with a verdict of :mod:`trio_mq.protocol.verdict`. Called by :mod:`trio_mq.recovery.recover`; reads are made off the
loop, the looking is done on it in slices, so that a stop is noticed at once.
Sources: Apache ConsumeQueue.recover, BatchConsumeQueue.recover, CommitLog.recoverNormally.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import attrs
import trio

from trio_mq.protocol.layout import (
    BATCH_QUEUE_ENTRY,
    BATCH_QUEUE_ENTRY_SIZE,
    PRE_BLANK_SIZE,
    QUEUE_ENTRY,
    QUEUE_ENTRY_SIZE,
)
from trio_mq.protocol.verdict import Blank, Damaged, Torn, Verdict, Whole, check
from trio_mq.store.log import CommitLog
from trio_mq.store.queues import BaseQueue
from trio_mq.store.segments import Segments

#: Bytes of the log read at once; a record that is larger is read by itself.
WINDOW_BYTES = 4 * 1024 * 1024
#: Records looked at between two checkpoints of the loop.
SLICE_RECORDS = 2000
#: Files at the end of a queue whose entries are all looked at after a crash.
QUEUE_FILES = 3


@attrs.frozen
class QueueTail:
    """What a queue's files hold: bytes of valid entries, and where the log records of them end.

    `hole` says that valid entries follow invalid ones: then entries before the end are missing. For batch queues
    `max_offset` is that of the messages.
    """

    end_bytes: int
    indexed_to: int
    max_offset: int
    hole: bool = False


def scan_queue(queue: BaseQueue, *, thorough: bool) -> QueueTail:
    """The valid entries of one queue. Blocking, for a worker thread.

    After a clean stop the end is found by bisection in the last file; otherwise the last files are looked through.
    """
    segments = queue.files.segments
    if segments.empty:
        return QueueTail(0, -1, 0)
    scan = _scan_batch if queue.is_batch else _scan_simple
    starts = segments.starts
    if not thorough:
        for start in reversed(starts):
            tail = scan(segments, start, _bisect_end(segments, start, queue.files.entry_bytes))
            if tail is not None:
                return tail
        return QueueTail(segments.start, -1, segments.start // QUEUE_ENTRY_SIZE)
    first = starts[-QUEUE_FILES] if len(starts) >= QUEUE_FILES else starts[0]
    found: QueueTail | None = None
    for start in starts[starts.index(first) :]:
        end, hole = _valid_end(segments, start, queue.files.entry_bytes)
        tail = scan(segments, start, end)
        found = tail or found
        if hole and found is not None:
            return attrs.evolve(found, hole=True)
        if end < start + segments.segment_bytes:
            break
    if found is not None:
        return found
    return QueueTail(
        segments.start, -1, 0 if queue.is_batch else segments.start // QUEUE_ENTRY_SIZE
    )


def _entry_valid(data: bytes, entry_bytes: int) -> bool:
    log_offset, size = QUEUE_ENTRY.unpack_from(data)[:2]
    if entry_bytes == QUEUE_ENTRY_SIZE:
        return bool(log_offset >= 0 and size > 0)
    _, _, _, _, base, count, _, _ = BATCH_QUEUE_ENTRY.unpack(data)
    return bool(log_offset >= 0 and size > 0 and base >= 0 and count > 0)


def _bisect_end(segments: Segments, start: int, entry_bytes: int) -> int:
    """End of the valid entries of one file, when no invalid one lies between them."""
    low, high = 0, segments.segment_bytes // entry_bytes
    while low < high:
        middle = (low + high) // 2
        if _entry_valid(segments.read(entry_bytes, start + middle * entry_bytes), entry_bytes):
            low = middle + 1
        else:
            high = middle
    return start + low * entry_bytes


def _valid_end(segments: Segments, start: int, entry_bytes: int) -> tuple[int, bool]:
    """End of the valid entries from the file's start, and whether valid ones follow behind."""
    data = segments.read(segments.segment_bytes, start)
    if entry_bytes == QUEUE_ENTRY_SIZE:
        valid = [a >= 0 and size > 0 for a, size, _ in QUEUE_ENTRY.iter_unpack(data)]
    else:
        valid = [
            e[0] >= 0 and e[1] > 0 and e[4] >= 0 and e[5] > 0
            for e in BATCH_QUEUE_ENTRY.iter_unpack(data)
        ]
    if all(valid):
        return start + len(data), False
    first_bad = valid.index(False)
    return start + first_bad * entry_bytes, any(valid[first_bad:])


def _scan_simple(segments: Segments, start: int, end: int) -> QueueTail | None:
    """The tail, if the file has a real entry in its valid part; fillers alone do not count."""
    position = end
    while position > start:
        chunk = min(64 * QUEUE_ENTRY_SIZE, position - start)
        position -= chunk
        entries = list(QUEUE_ENTRY.iter_unpack(segments.read(chunk, position)))
        real = [offset + size for offset, size, _ in entries if size != PRE_BLANK_SIZE]
        if real:
            return QueueTail(end, real[-1], end // QUEUE_ENTRY_SIZE)
    return None


def _scan_batch(segments: Segments, start: int, end: int) -> QueueTail | None:
    if end == start:
        return None
    last = BATCH_QUEUE_ENTRY.unpack(
        segments.read(BATCH_QUEUE_ENTRY_SIZE, end - BATCH_QUEUE_ENTRY_SIZE)
    )
    return QueueTail(end, last[0] + last[1], last[4] + last[5])


def first_record(log: CommitLog, segment: int, *, check_crc: bool) -> Verdict:
    """What the first bytes of a segment are. Blocking, for a worker thread."""
    segments = log.segments
    return _at(segments, segment, segment, b"", segment, check_crc=check_crc)


def record_at(log: CommitLog, offset: int, *, check_crc: bool) -> Verdict:
    """What lies at an offset of the log. Blocking, for a worker thread."""
    return _at(
        log.segments, log.segments.segment_of(offset), offset, b"", offset, check_crc=check_crc
    )


def _at(
    segments: Segments, segment: int, offset: int, window: bytes, window_at: int, *, check_crc: bool
) -> Verdict:
    """The verdict on one position, reading as much as the record there claims (never more than the segment)."""
    segment_end = segment + segments.segment_bytes
    room = segment_end - offset
    head = segments.read(min(8, room), offset)
    size = int.from_bytes(head[:4], "big", signed=True) if len(head) >= 4 else 0
    data = (
        segments.read(size, offset) if 0 < size <= room and head[4:7] == b"\xda\xa3\x20" else head
    )
    if len(data) < room and size > room:
        return Torn(f"record claims {size} bytes, {room} are left", size)
    return check(data, 0, len(data), check_crc=check_crc, expected_offset=offset)


def _claim(window: bytes, at: int) -> int:
    """Bytes that a record says to have; 0 for anything that is no record, which is never read for its size."""
    if window[at + 4 : at + 7] != b"\xda\xa3\x20":
        return 0
    return int.from_bytes(window[at : at + 4], "big", signed=True)


@attrs.define
class Walk:
    """Reads the log from an offset to the end of what is valid. After iterating, `end` and `reason` say where
    and why it stopped; `reason` is None when nothing was written there."""

    log: CommitLog
    start: int
    check_crc: bool = True
    end: int = attrs.field(init=False)
    reason: str | None = attrs.field(init=False, default=None)
    records: int = attrs.field(init=False, default=0)
    missing: list[tuple[int, int]] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        self.end = self.start

    async def slices(self) -> AsyncIterator[list[Whole]]:
        """The valid records in order, some at a time."""
        segments = self.log.segments
        for segment in segments.starts:
            segment_end = segment + segments.segment_bytes
            if segment_end <= self.start:
                continue
            if segment > self.end and self.end > self.start:
                # A file between two others is gone: what is behind it is as good as before.
                self.missing.append((self.end, segment))
            self.end = max(segment, self.start)
            finished = True
            async for records, goes_on in self._segment(segment_end):
                yield records
                finished = goes_on
            if not finished:
                return

    async def _segment(self, segment_end: int) -> AsyncIterator[tuple[list[Whole], bool]]:
        """Slices of one segment; the flag says whether the walk may go on with the next one."""
        segments, disk = self.log.segments, self.log.disk
        wanted = WINDOW_BYTES
        while self.end < segment_end:
            window = await disk.run(
                partial(segments.read, min(wanted, segment_end - self.end), self.end)
            )
            at, room = 0, len(window)
            records: list[Whole] = []
            asked, wanted = wanted, WINDOW_BYTES
            while at < room:
                if self.end + room - at < segment_end and room - at < 8:
                    break  # the head of the record is in the next window
                verdict = check(
                    window, at, room, check_crc=self.check_crc, expected_offset=self.end
                )
                if type(verdict) is Whole:
                    records.append(verdict)
                    at += verdict.size
                    self.end += verdict.size
                    if len(records) >= SLICE_RECORDS:
                        self.records += len(records)
                        yield records, True
                        records = []
                        await trio.lowlevel.checkpoint()
                    continue
                claimed = _claim(window, at)
                if room - at < claimed <= segment_end - self.end and (at or asked < claimed):
                    wanted = max(WINDOW_BYTES, claimed)
                    break  # the record goes on behind this window
                self.records += len(records)
                yield records, self._stop(verdict, segment_end)
                return
            self.records += len(records)
            yield records, True
            await trio.lowlevel.checkpoint()

    def _stop(self, verdict: Verdict, segment_end: int) -> bool:
        """Note why the records of a segment end; True when the next segment goes on."""
        if isinstance(verdict, Blank):
            if self.log.segments.has(segment_end) or segment_end < self.log.segments.end:
                self.end = segment_end
            return True
        if isinstance(verdict, Damaged | Torn):
            unwritten = isinstance(verdict, Torn) and "nothing was written" in verdict.reason
            self.reason = None if unwritten else f"at offset {self.end}: {verdict.reason}"
        return False
