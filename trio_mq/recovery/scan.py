"""Looking at a store's files without changing them: where each queue ends, and what lies at an offset.

In: the parts of a store. Out: :class:`QueueTail` and verdicts of :mod:`trio_mq.protocol.verdict`. Everything here
blocks and belongs in a worker thread; it is called by :mod:`trio_mq.recovery.recover`. The log itself is walked by
:mod:`trio_mq.recovery.walk`, the index is looked at by :mod:`trio_mq.recovery.indexscan`.
Sources: Apache ConsumeQueue.recover, BatchConsumeQueue.recover.
"""

from __future__ import annotations

from typing import Final, Protocol

import attrs

from trio_mq.protocol.layout import (
    BATCH_QUEUE_ENTRY,
    BATCH_QUEUE_ENTRY_SIZE,
    PRE_BLANK_SIZE,
    QUEUE_ENTRY,
    QUEUE_ENTRY_SIZE,
    BatchQueueEntry,
)
from trio_mq.protocol.verdict import Torn, Verdict, Whole
from trio_mq.recovery.iterators import verdict_at
from trio_mq.recovery.survey import next_whole
from trio_mq.store.queues import BaseQueue
from trio_mq.store.segments import Segments

#: Files at the end of a queue whose entries are all looked at after a crash (Apache looks at as many).
QUEUE_FILES: Final = 3
#: Entries looked at in one go.
CHUNK_ENTRIES: Final = 3000
#: Entries at the begin of a file that are read at once, to find its end or to know that it is further on.
HEAD_ENTRIES: Final = 256
#: Entries behind the end of a queue that have to be empty after a clean stop; else the whole file is looked at.
BEHIND_ENTRIES: Final = 200
#: A peer syncs a queue's file within a second once two pages of it are new (Apache:
#: flushConsumeQueueLeastPages); as much again may come until then.
UNSYNCED_BYTES: Final = 4 * 4096


class LogFiles(Protocol):
    """What is needed of a commit log."""

    @property
    def segments(self) -> Segments:
        """Its files."""
        ...


# -- queues --------------------------------------------------------------------------------------------------


@attrs.frozen
class QueueTail:
    """What a queue's files hold. Positions are bytes of the queue, offsets bytes of the log.

    The valid entries end at `end_bytes`; blank ones, which fill holes, count. `last_log_offset` and `indexed_to`
    are begin and end of the last record that has an entry, -1 without one. `hole` says that valid entries follow
    invalid ones: then some before them are missing. Entries of records before `synced_to` (offset in the log) are on
    the disk however the machine ended, since a peer syncs a queue's file as soon as that much is new.
    """

    end_bytes: int
    last_log_offset: int = -1
    indexed_to: int = -1
    max_offset: int = 0
    hole: bool = False
    synced_to: int = -1


def scan_queue(queue: BaseQueue, log: LogFiles, *, thorough: bool) -> QueueTail:
    """The valid entries of one queue.

    After a clean stop the end is found by bisection in the last file that has entries; `thorough`, or when
    something lies behind that end, all entries of the last files are looked at, and the last one has to lead to a
    record of the queue.
    """
    segments, entry_bytes = queue.files.segments, queue.files.entry_bytes
    if segments.empty:
        return QueueTail(0)
    hole = False
    end = None if thorough else _bisect_end(segments, entry_bytes)
    if end is None:
        whole_end, hole = _walk_end(segments, entry_bytes)
        end = _led_end(queue, log, whole_end)
        hole = hole or end < whole_end
    last_log_offset, indexed_to, max_offset = last_record(segments, entry_bytes, end)
    synced_to = _synced_to(segments, entry_bytes, end) if thorough else -1
    return QueueTail(end, last_log_offset, indexed_to, max_offset, hole, synced_to)


def _synced_to(segments: Segments, entry_bytes: int, end: int) -> int:
    """Log offset of the entry that lies :data:`UNSYNCED_BYTES` before the end, -1 without one."""
    position = end - UNSYNCED_BYTES - UNSYNCED_BYTES % entry_bytes
    position -= position % entry_bytes
    if position < segments.start or not segments.has(position):
        return -1
    log_offset, size, _ = QUEUE_ENTRY.unpack_from(segments.read(entry_bytes, position))
    return -1 if size == PRE_BLANK_SIZE else int(log_offset)


def _bisect_end(segments: Segments, entry_bytes: int) -> int | None:
    """End of the valid entries when none is missing before it; None when that is in doubt."""
    for start in reversed(segments.starts):
        # One read tells all of a short queue, and most of many queues are short (case C172).
        head = segments.read(min(HEAD_ENTRIES * entry_bytes, segments.segment_bytes), start)
        low, high = valid_entries(head, entry_bytes), segments.segment_bytes // entry_bytes
        if low * entry_bytes < len(head):
            high = low
        while low < high:
            middle = (low + high) // 2
            if _is_valid(segments.read(entry_bytes, start + middle * entry_bytes)):
                low = middle + 1
            else:
                high = middle
        end = start + low * entry_bytes
        left = min(start + segments.segment_bytes - end, BEHIND_ENTRIES * entry_bytes)
        behind = head[end - start :]
        if len(behind) < left:
            behind = segments.read(left, end)
        if not _is_zero(behind):
            return None
        if low:
            return end
    return segments.start


def _walk_end(segments: Segments, entry_bytes: int) -> tuple[int, bool]:
    """End of the valid entries of the last files, and whether valid ones follow behind."""
    starts = segments.starts
    first = max(0, len(starts) - QUEUE_FILES)
    while True:
        end, hole = _end_from(segments, starts[first:], entry_bytes)
        if end > starts[first] or first == 0:
            return end, hole
        first -= 1  # nothing in all those files: the end is further back


def _end_from(segments: Segments, starts: list[int], entry_bytes: int) -> tuple[int, bool]:
    end, over = starts[0], False
    for start in starts:
        over = over or start != end
        position, stop = start, start + segments.segment_bytes
        while position < stop:
            size = min(CHUNK_ENTRIES * entry_bytes, stop - position)
            chunk = segments.read(size, position)
            position += size
            valid = 0
            if not over:
                valid = valid_entries(chunk, entry_bytes)
                end += valid * entry_bytes
                over = valid * entry_bytes < len(chunk)
            if over:
                if _any_valid(chunk[valid * entry_bytes :], entry_bytes):
                    return end, True
                # Files are sparse: what was never written is not read either (case C172).
                if position < stop:
                    position = max(position, segments.next_data(position))
                    position -= (position - start) % entry_bytes
    return end, False


#: For each size of entries: groups of bytes that must not all be zero, and bytes whose top bit is a sign.
_NOT_ZERO: Final = {
    QUEUE_ENTRY_SIZE: ((8, 9, 10, 11),),
    BATCH_QUEUE_ENTRY_SIZE: ((8, 9, 10, 11), (36, 37)),
}
_SIGNS: Final = {QUEUE_ENTRY_SIZE: (0, 8), BATCH_QUEUE_ENTRY_SIZE: (0, 8, 28, 36)}


def valid_entries(data: bytes, entry_bytes: int) -> int:
    """How many valid entries `data` begins with; see :func:`_is_valid`.

    The test is made on whole columns of bytes at once, since a start may look at millions of entries.
    """
    count = len(data) // entry_bytes
    valid = count
    for group in _NOT_ZERO[entry_bytes]:
        joined = 0
        for at in group:
            joined |= int.from_bytes(data[at::entry_bytes], "big")
        zero = joined.to_bytes(count, "big").find(0)
        if zero >= 0:
            valid = min(valid, zero)
    for at in _SIGNS[entry_bytes]:
        signs = data[at::entry_bytes]
        if not signs.isascii():
            valid = min(valid, next(n for n, byte in enumerate(signs) if byte > 127))
    return valid


def _is_valid(entry: bytes) -> bool:
    """Whether one entry is valid: log offset at least 0, size above 0; in batches base offset and count, too."""
    log_offset, size, _ = QUEUE_ENTRY.unpack_from(entry)
    if log_offset < 0 or size <= 0 or len(entry) == QUEUE_ENTRY_SIZE:
        return bool(log_offset >= 0 and size > 0)
    return BatchQueueEntry._make(BATCH_QUEUE_ENTRY.unpack(entry)).is_valid


def _any_valid(data: bytes, entry_bytes: int) -> bool:
    if _is_zero(data):
        return False
    return any(_is_valid(data[at : at + entry_bytes]) for at in range(0, len(data), entry_bytes))


def _is_zero(data: bytes) -> bool:
    return data == bytes(len(data))


def _led_end(queue: BaseQueue, log: LogFiles, end: int) -> int:
    """The end of a queue when entries that lead nowhere are left out at its end.

    A power cut may leave entries of records that the log has lost, or parts of an entry that look valid.
    """
    if log.segments.empty:
        return end  # they all led to what is gone
    entry_bytes, start = queue.files.entry_bytes, queue.files.segments.start
    low, high, step = (end - start) // entry_bytes, (end - start) // entry_bytes, 1
    while low and not leads_to_record(queue, log, start + (low - 1) * entry_bytes):
        high, low, step = low - 1, max(0, low - step), 2 * step
    while low < high:
        middle = (low + high + 1) // 2
        if leads_to_record(queue, log, start + (middle - 1) * entry_bytes):
            low = middle
        else:
            high = middle - 1
    return start + low * entry_bytes


def leads_to_record(queue: BaseQueue, log: LogFiles, position: int) -> bool:
    """Whether the entry at a position leads to a record of its queue, or to one that is gone with its file.

    Offsets may be shifted, as Apache does behind a hole; but entries ascend in the log.
    """
    segments, entry_bytes = log.segments, queue.files.entry_bytes
    entry = queue.files.segments.read(entry_bytes, position)
    log_offset, size, _ = QUEUE_ENTRY.unpack_from(entry)
    if size == PRE_BLANK_SIZE:
        return True
    if not segments.has(log_offset):
        # Gone with its file; but half an entry says some smaller offset.
        return bool(log_offset < segments.end) and _follows(queue, position, log_offset)
    record = record_at(log, log_offset, check_crc=False)
    if not isinstance(record, Whole) or record.size != size:
        return False
    if (record.topic, record.queue_id) != (queue.topic, queue.queue_id):
        return b"INNER_MULTI_DISPATCH" in record.properties
    at_its_place = record.queue_offset * entry_bytes == position
    return at_its_place or _follows(queue, position, log_offset)


def _follows(queue: BaseQueue, position: int, log_offset: int) -> bool:
    """Whether the entry before a position, if there is one, is of a record before `log_offset`, or blank."""
    segments, entry_bytes = queue.files.segments, queue.files.entry_bytes
    if not segments.has(position - entry_bytes):
        return True
    before = QUEUE_ENTRY.unpack_from(segments.read(entry_bytes, position - entry_bytes))
    return bool(before[1] == PRE_BLANK_SIZE or before[0] < log_offset)


def last_record(segments: Segments, entry_bytes: int, end: int) -> tuple[int, int, int]:
    """Begin and end in the log of the last record with an entry before `end` (-1 without one), and the max offset."""
    if entry_bytes == BATCH_QUEUE_ENTRY_SIZE:
        if end == segments.start:
            return -1, -1, 0
        entry = BATCH_QUEUE_ENTRY.unpack(segments.read(entry_bytes, end - entry_bytes))
        return entry[0], entry[0] + entry[1], entry[4] + entry[5]
    for start in reversed([s for s in segments.starts if s < end]):
        position = min(end, start + segments.segment_bytes)
        size = entry_bytes  # nearly always the last entry is one of a record
        while position > start:
            position -= size
            real = [
                entry
                for entry in QUEUE_ENTRY.iter_unpack(segments.read(size, position))
                if entry[1] != PRE_BLANK_SIZE
            ]
            if real:
                return real[-1][0], real[-1][0] + real[-1][1], end // entry_bytes
            size = min(CHUNK_ENTRIES * entry_bytes, position - start)
    return -1, -1, end // entry_bytes


def has_expired_before(queue: BaseQueue, log_start: int) -> bool:
    """Whether the first entry of a queue leads to the log's begin or before it: then nothing is missed before it."""
    segments = queue.files.segments
    entry = segments.read(queue.files.entry_bytes, segments.start)
    log_offset, size, _ = QUEUE_ENTRY.unpack_from(entry)
    return bool(0 < size != PRE_BLANK_SIZE and log_offset <= log_start)


def position_of(queue: BaseQueue, log_offset: int) -> int:
    """Position of the first entry of a record at or behind `log_offset`, else the queue's written end."""
    files = queue.files
    low, high = files.segments.start // files.entry_bytes, files.written // files.entry_bytes
    while low < high:
        middle = (low + high) // 2
        # A blank entry says log offset 0, so it counts to what is before it.
        entry = files.segments.read(files.entry_bytes, middle * files.entry_bytes)
        if int.from_bytes(entry[:8], "big") < log_offset:
            low = middle + 1
        else:
            high = middle
    return low * files.entry_bytes


def sound_to(queue: BaseQueue, log: LogFiles, log_offset: int) -> int:
    """Position behind the entries that lead to records before `log_offset`, whatever torn ones behind them say.

    A torn entry says any offset, mostly a smaller one: in :func:`position_of` it may hide whole ones before it.
    """
    files = queue.files
    low, high = files.segments.start // files.entry_bytes, files.written // files.entry_bytes
    while low < high:
        middle = (low + high) // 2
        position = middle * files.entry_bytes
        entry = files.segments.read(files.entry_bytes, position)
        is_before = int.from_bytes(entry[:8], "big") < log_offset
        if is_before and leads_to_record(queue, log, position):
            low = middle + 1
        else:
            high = middle
    return low * files.entry_bytes


# -- the log -------------------------------------------------------------------------------------------------


def record_at(log: LogFiles, offset: int, *, check_crc: bool) -> Verdict:
    """What lies at an offset of the log, reading no more than a record there claims."""
    segments = log.segments
    if not segments.has(offset):
        return Torn(f"no file has offset {offset}")
    end = segments.segment_of(offset) + segments.segment_bytes
    return verdict_at(segments.read, offset, end, check_crc=check_crc)


def next_record(log: LogFiles, offset: int) -> int | None:
    """The first whole record behind an offset of the log, found by its magic and its own offset; None without one."""
    segments = log.segments
    for start in segments.starts:
        end = start + segments.segment_bytes
        if end > offset:
            found = next_whole(segments, max(start, offset + 1), end, check_crc=True)
            if found is not None:
                return found
    return None


def written_behind(segments: Segments, offset: int) -> int:
    """End of what is written behind `offset`: the last byte before a mebibyte of zeros, or `offset` itself."""
    step = 1024 * 1024
    end = offset
    for start in segments.starts:
        position = max(start, offset)
        while position < start + segments.segment_bytes:
            piece = segments.read(min(step, start + segments.segment_bytes - position), position)
            used = len(piece.rstrip(b"\0"))
            if not used:
                break
            end = position + used
            position += len(piece)
    return end
