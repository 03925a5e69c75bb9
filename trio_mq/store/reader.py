"""Reading messages: a queue offset in, stored bytes and the next offset out.

Called by the pull and query processors. Reads come from memory; where the disk would have to be waited for,
:class:`trio_mq.store.segments.ColdData` gets out and the caller asks again after warming. Nothing here changes
anything. Rules: Apache DefaultMessageStore.getMessage, ConsumeQueue.getOffsetInQueueByTime.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Container

import attrs

from trio_mq.config import StoreSettings
from trio_mq.protocol.layout import QUEUE_ENTRY, QUEUE_ENTRY_SIZE
from trio_mq.store.log import CommitLog
from trio_mq.store.queues import BaseQueue, BatchConsumeQueue, ConsumeQueue

#: Bytes of queue entries looked at for one request, at least (Apache: maxFilterMessageSize).
SCAN_BYTES = 16_000
#: Most bytes of messages in one answer, which also has to fit into a frame.
ANSWER_BYTES = 8 * 1024 * 1024
#: Most index hits followed for one query.
STORE_TIME_AT = 56
_V6_BORN_SHIFT = 12
_BORN_V6_BIT = 0x10


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


@attrs.frozen
class Messages:
    """Answer to a read. `data` is stored records one after the other, `count` messages in them."""

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
        self._in_memory_bytes = (
            physical_memory_bytes() * settings.access_message_in_memory_max_ratio // 100
        )
        self._memory_limits = (
            settings.max_transfer_bytes_in_memory,
            settings.max_transfer_count_in_memory,
        )
        self._disk_limits = settings.max_transfer_bytes_in_disk, settings.max_transfer_count_in_disk

    def messages(
        self, queue: BaseQueue | None, offset: int, max_count: int, codes: Container[int] | None
    ) -> Messages:
        """Messages of a queue from `offset`, at most `max_count`; with `codes`, only those with such a tags code."""
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
        return self._collect(queue, offset, max_count, codes)

    def _collect(
        self, queue: BaseQueue, offset: int, max_count: int, codes: Container[int] | None
    ) -> Messages:
        """The scan of :meth:`messages`, when the offset is within the queue."""
        log = self._log
        log_end = log.written
        entry_bytes = queue.files.entry_bytes
        scan_entries = max(SCAN_BYTES // entry_bytes, max_count)
        found = Found.NO_MATCHED_MESSAGE
        next_offset = offset
        runs: list[list[int]] = []  # [log offset, bytes] of records that lie one behind the other
        count = total = 0
        last_log_offset = log_end
        for position in queue.positions(offset, scan_entries):
            log_offset, size = position.log_offset, position.size
            bytes_limit, count_limit = (
                self._memory_limits
                if log_end - log_offset <= self._in_memory_bytes
                else self._disk_limits
            )
            if count and (
                count + position.count > min(max_count, count_limit) or total + size > bytes_limit
            ):
                break
            next_offset = position.queue_offset + position.count
            last_log_offset = log_offset
            if codes is not None and position.tags_code not in codes:
                continue
            if not self._readable(log_offset, size):
                if not count:
                    found = Found.MESSAGE_WAS_REMOVING
                continue
            found = Found.FOUND
            count += position.count
            total += size
            if runs and runs[-1][0] + runs[-1][1] == log_offset:
                runs[-1][1] += size
            else:
                runs.append([log_offset, size])
        if next_offset == offset:
            # Only entries that fill holes: go on behind what was looked at.
            next_offset = min(offset + scan_entries, queue.max_offset)
        data = [log.read(size, log_offset) for log_offset, size in runs]
        return Messages(
            found,
            next_offset,
            queue.min_offset,
            queue.max_offset,
            data[0] if len(data) == 1 else b"".join(data),
            count,
            log_end - last_log_offset > self._in_memory_bytes,
        )

    def _readable(self, log_offset: int, size: int) -> bool:
        """Whether a record is in the log, and not expired or in a missing segment."""
        log = self._log
        return log_offset + size <= log.written and log.segments.has(log_offset)

    def record(self, log_offset: int) -> bytes | None:
        """The record at a log offset; None when there is none."""
        head = self._log.read(8, log_offset)
        if len(head) < 8:
            return None
        size = int.from_bytes(head[:4], "big", signed=True)
        if head[4:7] != b"\xda\xa3\x20" or size <= 0:
            return None
        data = self._log.read(size, log_offset)
        return data if len(data) == size else None

    def store_time_ms(self, log_offset: int) -> int:
        """Store time of the record at a log offset, -1 when there is none (Apache: pickupStoreTimestamp)."""
        # Born host comes before the store time, and an IPv6 one is 12 bytes longer.
        head = self._log.read(STORE_TIME_AT + _V6_BORN_SHIFT + 8, log_offset)
        if len(head) < STORE_TIME_AT + 8:
            return -1
        v6 = int.from_bytes(head[36:40], "big") & _BORN_V6_BIT
        at = STORE_TIME_AT + (_V6_BORN_SHIFT if v6 else 0)
        return int.from_bytes(head[at : at + 8], "big", signed=True)

    def earliest_store_time_ms(self, queue: BaseQueue | None) -> int:
        """Store time of a queue's first message, -1 without one."""
        if queue is None or queue.min_offset >= queue.max_offset:
            return -1
        return self.store_time_ms(queue.log_offset_at(queue.min_offset))

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
        while low < high:
            middle = (low + high) // 2
            at_ms = self.store_time_ms(queue.log_offset_at(middle))
            if at_ms < timestamp_ms or (upper and at_ms == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        if isinstance(queue, BatchConsumeQueue) and not upper and low < queue.max_offset:
            # All messages of a batch have one time: its first is meant.
            low = next(iter(queue.positions(low, 1))).queue_offset
        if not upper:
            return low
        return max(low - 1, 0) if low > queue.min_offset else 0

    def entries(self, queue: ConsumeQueue, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Raw entries of a simple queue: (log offset, size, tags code) each."""
        data = queue.files.read(count * QUEUE_ENTRY_SIZE, offset * QUEUE_ENTRY_SIZE)
        return list(QUEUE_ENTRY.iter_unpack(data))
