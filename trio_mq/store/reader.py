"""Reading messages: a queue offset in, stored bytes and the next offset out.

Called by processors and services of the broker. Reads come from memory; where the disk would have to be waited for,
:class:`trio_mq.store.segments.ColdData` gets out and the caller asks again after warming. Nothing here changes
anything. Rules: Apache DefaultMessageStore.getMessage, ConsumeQueue.getOffsetInQueueByTime.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from struct import Struct

import attrs

from trio_mq.config import StoreSettings
from trio_mq.protocol.layout import PRE_BLANK_SIZE, QUEUE_ENTRY, QUEUE_ENTRY_SIZE
from trio_mq.store.log import CommitLog
from trio_mq.store.oldrecords import OldRecords
from trio_mq.store.queues import BaseQueue, BatchConsumeQueue, ConsumeQueue
from trio_mq.store.sieve import Sieve

#: Bytes of queue entries looked at for one request, at least (Apache: maxFilterMessageSize).
SCAN_BYTES = 16_000
#: Entries read at once: most requests end in the first lot.
LOT_ENTRIES = 64
#: Most bytes of messages in one answer, which also has to fit into a frame; a single message may have more.
ANSWER_BYTES = 8 * 1024 * 1024
#: Longest record that is read by its offset: nothing longer fits into a frame.
RECORD_BYTES = 16 * 1024 * 1024
#: Two records with less than this between them are read in one go: copying a page is cheaper than a system call.
GAP_BYTES = 4096
STORE_TIME_AT = 56
_V6_BORN_SHIFT = 12
_BORN_V6_BIT = 0x10
_RECORD_HEAD = Struct(">i3sx20xq")  # size, magic but its last byte, log offset
_MAGIC = b"\xda\xa3\x20"


class Found(enum.Enum):
    """Outcome of a read; the names are the peers' (Apache: GetMessageStatus)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"


@attrs.define
class Messages:
    """Answer to a read. `data` is stored records one after the other, `count` messages in them.

    `lags` says that the read was far behind the log's end, so that the data came from the disk.
    """

    found: Found
    next_offset: int
    min_offset: int
    max_offset: int
    data: bytes = b""
    count: int = 0
    lags: bool = False


def physical_memory_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Reader:
    """Reads of one store."""

    def __init__(self, log: CommitLog, settings: StoreSettings) -> None:
        self._log = log
        #: What was there before us may have been damaged meanwhile.
        self.old = OldRecords(log.end)
        self._in_memory_bytes = (
            physical_memory_bytes() * settings.access_message_in_memory_max_ratio // 100
        )
        self._memory_limits = (
            min(settings.max_transfer_bytes_in_memory, ANSWER_BYTES),
            settings.max_transfer_count_in_memory,
        )
        self._disk_limits = (
            min(settings.max_transfer_bytes_in_disk, ANSWER_BYTES),
            settings.max_transfer_count_in_disk,
        )

    def messages(
        self,
        queue: BaseQueue | None,
        offset: int,
        max_count: int,
        codes: Container[int] | None,
        accepts: Callable[[bytes], bool] | None = None,
    ) -> Messages:
        """Messages of a queue from `offset`, at most `max_count`.

        With `codes`, only those with such a tags code; with `accepts`, only those whose raw properties it takes.
        """
        if queue is None:
            return Messages(Found.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return Messages(Found.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return Messages(Found.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return Messages(Found.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return Messages(Found.OFFSET_OVERFLOW_BADLY, high, low, high)
        if codes is None and accepts is None and type(queue) is ConsumeQueue:
            answer = self._contiguous(queue, offset, max_count)
            if answer is not None:
                return answer
        return self._collect(queue, offset, max_count, codes, accepts)

    def _contiguous(self, queue: ConsumeQueue, offset: int, max_count: int) -> Messages | None:
        """The short way for records that lie one behind the other; None when they do not, or a limit is passed."""
        log = self._log
        bytes_limit, count_limit = self._memory_limits
        files = queue.files
        entries = files.read(
            min(max_count, count_limit) * QUEUE_ENTRY_SIZE, offset * QUEUE_ENTRY_SIZE
        )
        count = len(entries) // QUEUE_ENTRY_SIZE
        if not count:
            return None
        fields = _entries_struct(count).unpack(entries)
        sizes = fields[1::3]
        total = sum(sizes)
        begin = fields[0]
        if (
            fields[-3] + sizes[-1] - begin != total
            or total > bytes_limit
            or begin + total > log.written
            or log.written - begin > self._in_memory_bytes
        ):
            return None
        data = log.read(total, begin)
        if len(data) != total or (
            begin < self.old.before and not self.old.all_good(data, sizes, begin)
        ):
            return None
        return Messages(
            Found.FOUND, offset + count, queue.min_offset, queue.max_offset, data, count
        )

    def _collect(
        self,
        queue: BaseQueue,
        offset: int,
        max_count: int,
        codes: Container[int] | None,
        accepts: Callable[[bytes], bool] | None,
    ) -> Messages:
        """The scan of :meth:`messages`, when the offset is within the queue."""
        log = self._log
        log_end, has = log.written, log.segments.has
        #: Records from here on are taken for being in memory.
        recent = log_end - self._in_memory_bytes
        scan_entries = max(SCAN_BYTES // queue.files.entry_bytes, max_count)
        removed = False
        next_offset, last_log_offset = offset, log_end
        wanted: list[tuple[int, int]] = []
        numbers: list[tuple[int, int]] = []
        count = total = 0
        sieve = Sieve(log.read, codes, accepts)
        for queue_offset, messages, log_offset, size, tags_code in chain.from_iterable(
            _lots(queue, offset, scan_entries)
        ):
            if size == PRE_BLANK_SIZE or size <= 0:
                if size == 0:
                    self.old.hole(queue, queue_offset)
                continue
            if count:
                bytes_limit, count_limit = (
                    self._memory_limits if log_offset >= recent else self._disk_limits
                )
                more = count + messages
                if count >= count_limit or more > max_count or total + size > bytes_limit:
                    break
            taken: bool | None = False
            if sieve.excludes(tags_code):
                pass
            elif log_offset + size > log_end or not has(log_offset):
                # The entry is there, the record is not: it expired, or its segment is missing (case C010).
                removed = True
            else:
                taken = sieve.takes(tags_code, log_offset, size, first=next_offset == offset)
            if taken is None:
                break
            next_offset, last_log_offset = queue_offset + messages, log_offset
            if not taken:
                continue
            count += messages
            total += size
            wanted.append((log_offset, size))
            numbers.append((queue_offset, messages))
        if next_offset == offset:
            # Only entries that fill holes: go on behind what was looked at.
            next_offset = min(offset + scan_entries, queue.max_offset)
        data = self._records(wanted, total)
        if wanted and wanted[0][0] < self.old.before:
            kept = self.old.readable(data, wanted, queue, [number for number, _ in numbers])
            if not all(kept):
                data, count, removed = *_only(data, wanted, numbers, kept), True
        found = Found.MESSAGE_WAS_REMOVING if removed else Found.NO_MATCHED_MESSAGE
        return Messages(
            Found.FOUND if count else found,
            next_offset,
            queue.min_offset,
            queue.max_offset,
            data,
            count,
            last_log_offset < recent,
        )

    def _records(self, wanted: list[tuple[int, int]], total: int) -> bytes:
        """The bytes of records at (log offset, size), one after the other. Neighbours are read in one go."""
        parts: list[bytes] = []
        segment_bytes = self._log.segments.segment_bytes
        at = 0
        while at < len(wanted):
            first = at
            begin, size = wanted[at]
            end = begin + size
            segment_end = begin - begin % segment_bytes + segment_bytes
            at += 1
            for log_offset, size in islice(wanted, at, None):
                if not end <= log_offset <= end + GAP_BYTES or log_offset >= segment_end:
                    break
                end = log_offset + size
                at += 1
            data = self._log.read(end - begin, begin)
            if at - first == len(wanted) and end - begin == total:
                return data
            parts += [data[a - begin : a - begin + size] for a, size in islice(wanted, first, at)]
        return b"".join(parts)

    def record(self, log_offset: int) -> bytes | None:
        """The record at a log offset; None when there is none."""
        head = self._log.read(_RECORD_HEAD.size, log_offset)
        if len(head) < _RECORD_HEAD.size:
            return None
        size, magic, stored_at = _RECORD_HEAD.unpack(head)
        if magic != _MAGIC or stored_at != log_offset or not 0 < size <= RECORD_BYTES:
            return None
        data = self._log.read(size, log_offset)
        return data if len(data) == size else None

    def records(self, places: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """The records at (log offset, size), None for one that has expired or is not what its entry says."""
        log_end, has = self._log.written, self._log.segments.has
        there = [place for place in places if has(place[0]) and place[0] + place[1] <= log_end]
        data = self._records(there, sum(size for _, size in there))
        found: dict[int, bytes] = {}
        at = 0
        for log_offset, size in there:
            record = data[at : at + size]
            at += size
            if len(record) < max(size, _RECORD_HEAD.size):
                continue
            claimed, magic, stored_at = _RECORD_HEAD.unpack_from(record)
            if (claimed, magic, stored_at) == (size, _MAGIC, log_offset):
                found[log_offset] = record
        return [found.get(log_offset) for log_offset, _ in places]

    def is_recent(self, log_offset: int) -> bool:
        """Whether a record is so near to the log's end that it is taken for being in memory."""
        return self._log.written - log_offset <= self._in_memory_bytes

    # -- times -----------------------------------------------------------------------------------------------

    def store_time_ms(self, log_offset: int) -> int:
        """Store time of the record at a log offset, -1 when there is none (Apache: pickupStoreTimestamp)."""
        # Born host comes before the store time, and an IPv6 one is 12 bytes longer (case C092).
        head = self._log.read(STORE_TIME_AT + _V6_BORN_SHIFT + 8, log_offset)
        if len(head) < STORE_TIME_AT + _V6_BORN_SHIFT + 8 or head[4:7] != _MAGIC:
            return -1
        v6 = int.from_bytes(head[36:40], "big") & _BORN_V6_BIT
        at = STORE_TIME_AT + (_V6_BORN_SHIFT if v6 else 0)
        return int.from_bytes(head[at : at + 8], "big", signed=True)

    def earliest_store_time_ms(self, queue: BaseQueue | None) -> int:
        """Store time of a queue's first message, -1 without one."""
        if queue is None or queue.min_offset >= queue.max_offset:
            return -1
        return self.store_time_ms(queue.next_record(queue.min_offset, queue.max_offset)[1])

    def offset_by_time(
        self, queue: BaseQueue | None, timestamp_ms: int, *, upper: bool = False
    ) -> int:
        """The queue offset of the first message stored at or after a time; with `upper`, the last at or before it.

        Behind the last message: max offset, or with `upper` the last offset. Before the first: min offset, or
        with `upper` 0. Answers stay inside the queue whatever the clock did (cases C076, C077).
        """
        if queue is None or queue.min_offset >= queue.max_offset:
            return 0
        low, high = queue.min_offset, queue.max_offset
        last = -1
        while low < high:
            middle = (low + high) // 2
            found, log_offset = queue.next_record(middle, high)
            at_ms = self.store_time_ms(log_offset) if found < high else -1
            if found < high and (at_ms < timestamp_ms or (upper and at_ms == timestamp_ms)):
                low, last = found + 1, found
            else:
                high = middle
        if upper:
            return max(last, 0)
        low = queue.next_record(low, queue.max_offset)[0]
        if isinstance(queue, BatchConsumeQueue) and low < queue.max_offset:
            # All messages of a batch have one time: its first is meant.
            low = next(iter(queue.positions(low, 1))).queue_offset
        return low

    def entries(self, queue: ConsumeQueue, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Raw entries of a simple queue: (log offset, size, tags code) each."""
        data = queue.files.read(count * QUEUE_ENTRY_SIZE, offset * QUEUE_ENTRY_SIZE)
        return list(QUEUE_ENTRY.iter_unpack(data))


def _only(
    data: bytes,
    places: Sequence[tuple[int, int]],
    numbers: Sequence[tuple[int, int]],
    kept: Sequence[bool],
) -> tuple[bytes, int]:
    """Those of the records in `data` that are kept, and how many messages that are."""
    at, parts, count = 0, [], 0
    for (_, size), (_, messages), keep in zip(places, numbers, kept, strict=True):
        if keep:
            parts.append(data[at : at + size])
            count += messages
        at += size
    return b"".join(parts), count


_structs: dict[int, Struct] = {}


def _entries_struct(count: int) -> Struct:
    """For `count` entries of a simple queue at once."""
    known = _structs.get(count)
    if known is None:
        known = Struct(">" + "qiq" * count)
        if count <= LOT_ENTRIES:
            _structs[count] = known
    return known


def _lots(
    queue: BaseQueue, offset: int, limit: int
) -> Iterator[Iterable[tuple[int, int, int, int, int]]]:
    """Of at most `limit` entries, some at a time: queue offset, messages, log offset, size, tags code."""
    if not isinstance(queue, ConsumeQueue):
        yield (
            (p.queue_offset, p.count, p.log_offset, p.size, p.tags_code)
            for p in queue.positions(offset, limit)
        )
        return
    end = offset + limit
    while offset < end:
        lot = min(LOT_ENTRIES, end - offset) * QUEUE_ENTRY_SIZE
        data = queue.files.read(lot, offset * QUEUE_ENTRY_SIZE)
        if not data:
            return
        count = len(data) // QUEUE_ENTRY_SIZE
        fields = _entries_struct(count).unpack(data)
        numbers = range(offset, offset + count)
        yield zip(numbers, repeat(1), fields[::3], fields[1::3], fields[2::3], strict=False)
        offset += count
