"""Whether queues lack entries of records in a part of the log: a quick look, before anything is replayed.

In: a part of the log, and how far each queue goes. Out: the offset of the first record whose entry is not there.
Bodies are not checked. Blocks: for worker threads. Called for a store that a peer left behind, of which it is not known
how far slow queues were synced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trio_mq.protocol.codes import TRANSACTION_MASK, UNDISPATCHED
from trio_mq.protocol.verdict import Whole
from trio_mq.recovery.lots import Lot
from trio_mq.recovery.paths import Path
from trio_mq.recovery.walk import Walk
from trio_mq.store.segments import Segments

QueueEnds = Mapping[str, Mapping[int, int]]
"""By topic and queue id, the offset behind the last message that has an entry."""

#: The end of a queue that need not be looked at.
ANY_END: Final = 1 << 62


def first_missing(
    segments: Segments, begin: int, end: int, ends: QueueEnds, *, path: Path
) -> int | None:
    """Log offset of the first record in [`begin`, `end`) that lies behind its queue's end; None without one.

    A record should begin at `begin`.
    """
    by_topic = {topic.encode(): of_topic for topic, of_topic in ends.items()}
    for lot in Walk(segments, begin, path=path, check_crc=False).lots():
        if _may_miss(lot, by_topic):
            for record in lot.records():
                if record.log_offset < end and _misses(record, ends):
                    return record.log_offset
        if lot.end >= end:
            break
    return None


def _may_miss(lot: Lot, ends: Mapping[bytes, Mapping[int, int]]) -> bool:
    rows = lot.queue_offsets()
    none: Mapping[int, int] = {}
    return any(offset >= ends.get(topic, none).get(queue_id, 0) for topic, queue_id, offset in rows)


def _misses(record: Whole, ends: QueueEnds) -> bool:
    if record.sys_flag & TRANSACTION_MASK in UNDISPATCHED:
        return False
    return record.queue_offset >= ends.get(record.topic, {}).get(record.queue_id, 0)
