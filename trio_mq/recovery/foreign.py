"""How far a store that a peer left behind is whole after a sudden end, as its checkpoint and its files tell.

In: queues with their tails, the log, the index. Out: where reading has to begin at the latest, and whether the index
lost a page. Apache's broker moves the queues' time in its checkpoint with every entry, but syncs a queue's file
within about a second only when two pages of it are new, and else within a minute; index files it syncs when they are
full. So entries of slow queues from the last minute are looked for, and the index is looked through.
Blocks: for worker threads. Sources: Apache DefaultMessageStore.FlushConsumeQueueService, StoreCheckpoint, IndexService.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from trio_mq.protocol.layout import PRE_BLANK_SIZE, QUEUE_ENTRY
from trio_mq.protocol.verdict import Verdict, Whole
from trio_mq.recovery.missing import ANY_END, first_missing
from trio_mq.recovery.paths import Path
from trio_mq.recovery.plan import FOREIGN_LAG_MS
from trio_mq.recovery.scan import LogFiles, QueueTail, record_at
from trio_mq.store.queues import BaseQueue
from trio_mq.store.store import StoreParts

#: As :data:`FOREIGN_LAG_MS`, where much is new in a queue. The checkpoint's times are three seconds earlier already.
RECENT_MS: Final = 1_000


@attrs.frozen
class Foreign:
    """Offsets in the log: all queues know all records before `recent`; `sound_from` as in IndexState."""

    recent: int
    sound_from: int | None


def look(
    parts: StoreParts, tails: Mapping[BaseQueue, QueueTail], *, path: Path, index_enabled: bool
) -> Foreign | None:
    """What a store tells; None when its checkpoint holds no times, or no queue leads to a record."""
    times_ms = parts.checkpoint.value.min_timestamp_ms
    known = [queue for queue, tail in tails.items() if tail.indexed_to >= 0]
    if not times_ms or not known:
        return None
    furthest = max(known, key=lambda queue: tails[queue].indexed_to)
    recent = offset_before(furthest, parts.log, times_ms - RECENT_MS)
    if recent is None:
        return None
    settled = offset_before(furthest, parts.log, times_ms - FOREIGN_LAG_MS)
    if settled is None:
        settled = parts.log.segments.start
    slow = [tails[queue].synced_to for queue in tails if tails[queue].synced_to < recent]
    if slow:
        begin = max(settled, min(slow))
        ends: dict[str, dict[int, int]] = {}
        for queue, tail in tails.items():
            end = tail.max_offset if tail.synced_to < recent else ANY_END
            ends.setdefault(queue.topic, {})[queue.queue_id] = end
        missing = first_missing(parts.log.segments, begin, recent, ends, path=path)
        recent = recent if missing is None else missing
    sound = index_enabled and _is_sound(parts, settled)
    return Foreign(recent, settled if sound else None)


def _is_sound(parts: StoreParts, log_offset: int) -> bool:
    """Whether the index lost no page of what it has for records from an offset on. Not known without numpy."""
    try:
        from trio_mq.store.bulkindex import is_sound
    except ImportError:
        return False
    files = [f for f in parts.index.files if f.header.end_log_offset >= log_offset]
    return all(is_sound(f, log_offset) for f in files)


def offset_before(queue: BaseQueue, log: LogFiles, limit_ms: int) -> int | None:
    """Log offset of the last record of a queue that was stored at `limit_ms` or before; None without one.

    Found by bisection over the queue's entries, since those lead to records whatever the size of the log.
    """
    files = queue.files
    first = files.segments.start // files.entry_bytes
    low, high = first, files.end // files.entry_bytes
    found: int | None = None
    while low < high:
        middle = (low + high) // 2
        position = middle * files.entry_bytes
        record: Verdict | None = None
        if files.segments.has(position):
            entry = files.segments.read(files.entry_bytes, position)
            log_offset, size, _ = QUEUE_ENTRY.unpack_from(entry)
            if size != PRE_BLANK_SIZE and log.segments.has(log_offset):
                record = record_at(log, log_offset, check_crc=False)
        # What leads nowhere lies before all that counts: blank entries, and records that are gone.
        if isinstance(record, Whole) and record.store_timestamp_ms > limit_ms:
            high = middle
        else:
            found = record.log_offset if isinstance(record, Whole) else found
            low = middle + 1
    return found
