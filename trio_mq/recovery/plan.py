"""What a start does with what a scan found. Pure: values in, values out, nothing read and nothing changed.

Rules: Apache CommitLog.recoverNormally, recoverAbnormally, isMappedFileMatchedRecover; where we go further (an
earlier start, the index kept up to what is known to be whole) the comment says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from trio_mq.protocol.layout import Checkpoint
from trio_mq.protocol.verdict import Verdict, Whole
from trio_mq.recovery.scan import QueueTail
from trio_mq.store.checkpoint import index_safe_offset


@attrs.frozen
class Found:
    """What a look at the files gave, before the log is walked."""

    clean: bool
    checkpoint: Checkpoint
    segments: Sequence[int]
    first_records: Mapping[int, Verdict]
    tails: Sequence[QueueTail]
    index_begin: Sequence[int] = ()
    index_end: int = -1
    #: Whether a record lies where the furthest queue entry ends its own; only then a clean start trusts the queues.
    last_indexed_offset: int | None = None

    @property
    def dispatched_to(self) -> int:
        """End of the furthest record that any queue knows, -1 without queues."""
        return max((tail.indexed_to for tail in self.tails), default=-1)


@attrs.frozen
class StartPlan:
    """Where the walk over the log begins, and from where on the index is filled again."""

    walk_from: int
    index_from: int
    why: str


def plan_start(found: Found) -> StartPlan:
    """Where to begin. Beginning too early only costs time: what is known already is not added twice."""
    if not found.segments:
        return StartPlan(0, 0, "there is no log")
    first = found.segments[0]
    index_from = _index_from(found)
    if found.clean and found.last_indexed_offset is not None:
        begin, why = found.last_indexed_offset, "the last record that a queue knows"
    else:
        begin, why = _segment(found)
        progress = found.dispatched_to
        if not found.clean and begin > progress:
            # Times in the checkpoint may run ahead of the queues on the disk (cases C007, C026).
            begin, why = _containing(found.segments, progress), "the segment that the queues end in"
    holes = [tail.indexed_to for tail in found.tails if tail.hole]
    if holes and min(holes) < begin:
        begin, why = _containing(found.segments, min(holes)), "a queue has a hole"
    if index_from < begin:
        begin, why = max(first, index_from), "the index is whole up to there"
    return StartPlan(begin, index_from, why)


def _segment(found: Found) -> tuple[int, str]:
    """The segment to begin with: the last one whose first record is known to be dispatched."""
    limit_ms = found.checkpoint.min_timestamp_ms
    for segment in reversed(found.segments):
        record = found.first_records.get(segment)
        if not isinstance(record, Whole) or not record.store_timestamp_ms:
            continue
        if found.clean and record.log_offset <= found.dispatched_to:
            return segment, "the last segment that queues know"
        if not found.clean and record.store_timestamp_ms <= limit_ms:
            return segment, "the last segment older than the checkpoint"
    return found.segments[0], "the first segment"


def _containing(segments: Sequence[int], offset: int) -> int:
    """The last segment that begins at or before an offset, else the first."""
    return max((s for s in segments if s <= offset), default=segments[0])


def _index_from(found: Found) -> int:
    """Log offset from which on keys have to be inserted again.

    After a crash Apache drops every index file that is newer than the checkpoint, and the keys in it are lost. We
    keep entries up to the offset that a sync has covered, or fill the dropped files again (case C031).
    """
    if found.index_end < 0:
        return found.segments[0]
    if found.clean:
        return found.index_end + 1
    safe = index_safe_offset(found.checkpoint)
    if safe > 0:
        return min(safe, found.index_end + 1)
    return min(found.index_begin, default=found.segments[0])


@attrs.frozen
class EndPlan:
    """Where the log ends, and whether bytes behind that are cut away."""

    log_end: int
    cut_bytes: int
    reason: str | None
    drop_index: bool


def plan_end(found: Found, walked_to: int, written_end: int, reason: str | None) -> EndPlan:
    """What to do at the end of the walk. `written_end` is the end of the last file.

    Without any segment the log goes on behind everything that a queue ever knew, so that no log offset and no
    queue offset is given twice (case C053).
    """
    return EndPlan(
        log_end=walked_to,
        cut_bytes=max(0, written_end - walked_to) if reason else 0,
        reason=reason,
        drop_index=found.index_end >= walked_to and found.clean,
    )
