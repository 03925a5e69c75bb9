"""What a start does with what a scan found. Pure: values in, values out, nothing read and nothing changed.

Rules: Apache CommitLog.recoverNormally, recoverAbnormally, isMappedFileMatchedRecover; where we go further (a start
from what is really on the disk, an index without holes) the comment says why. ``docs/explanation/recovery.md`` tells
the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from trio_mq.protocol.layout import Checkpoint
from trio_mq.protocol.verdict import Verdict, Whole
from trio_mq.recovery.indexscan import IndexState
from trio_mq.recovery.scan import QueueTail

#: Apache moves the queues' time in the checkpoint with each entry, but syncs queue files this much later at worst.
FOREIGN_LAG_MS: Final = 60_000


@attrs.frozen
class Found:
    """What a look at the files gave, before the log is walked.

    `safe_offset`: every record before has its queue entries and keys on the disk; 0 when nobody says so.
    `replay_from`: where a replay began that did not end. `last_indexed`: log offset of the furthest record that a
    queue knows, when the log has it; else None.
    `first_records` has what each segment begins with; empty when a clean stop makes that needless. `lost_queue` names a
    queue whose files are gone, if one is. `recent`: all queues of a store that a peer left behind know all records
    before that offset (:mod:`trio_mq.recovery.foreign`); None when nobody looked. `copied`: the log is a copy of a
    master's.
    """

    clean: bool
    checkpoint: Checkpoint
    segments: Sequence[int]
    segment_bytes: int
    tails: Sequence[QueueTail] = ()
    safe_offset: int = 0
    replay_from: int | None = None
    last_indexed: int | None = None
    first_records: Mapping[int, Verdict] = attrs.field(factory=dict)
    index: IndexState | None = None
    lost_queue: str | None = None
    recent: int | None = None
    has_checkpoint: bool = True
    copied: bool = False

    @property
    def dispatched_to(self) -> int:
        """End of the furthest record that any queue knows, -1 without one."""
        return max((tail.indexed_to for tail in self.tails), default=-1)

    @property
    def known_end(self) -> int:
        """Offset that the log reaches at least, as far as one can tell without walking it."""
        begun = [s for s, record in self.first_records.items() if isinstance(record, Whole)]
        return max(
            self.dispatched_to,
            self.index.end_offset if self.index is not None and not self.index.foreign else -1,
            *begun,
        )


@attrs.frozen
class StartPlan:
    """Where the walk over the log begins, and why.

    Keys of records from `index_from` on are inserted again; None keeps the index as it is. The log surely reaches
    `sure_to`, however it is before: a walk that begins earlier, for what hangs on old records, does not decide that.
    Queues and index surely know all records before `known_to`: those are only looked at.
    """

    walk_from: int
    index_from: int | None
    why: str
    sure_to: int = 0
    known_to: int = 0


def plan_start(found: Found) -> StartPlan:
    """Where to begin. Beginning too early only costs time: what is known already is not added twice."""
    assert found.segments, "without a log there is nothing to walk"
    begin, why = _queues_from(found)
    sure_to, known_to = begin, found.recent or 0
    if found.dispatched_to < 0:
        # All queues are made again: no damage before the last segment that was begun is the log's end.
        sure_to = max(
            (s for s, first in found.first_records.items() if isinstance(first, Whole)),
            default=begin,
        )
    if found.copied:
        # Whatever a power cut has left behind a hole, the master sends it again; to keep it would keep the hole.
        durable = found.checkpoint.confirm_log_offset
        sure_to = min(sure_to, durable)
        if not found.clean and found.safe_offset <= 0 and durable < begin:
            begin, why = containing(found.segments, durable), "what is behind may not be durable"
    holes = [tail.indexed_to for tail in found.tails if tail.hole]
    if holes and min(holes) < max(begin, known_to):
        begin, why = min(begin, containing(found.segments, min(holes))), "a queue has a hole"
        known_to = 0
    if found.lost_queue is not None and found.dispatched_to >= 0:
        begin, why = found.segments[0], f"queue {found.lost_queue} has lost its files"
        known_to = 0
    index_from = _index_from(found, begin)
    if index_from is not None:
        known_to = min(known_to, index_from)
        if index_from < begin:
            begin, why = index_from, "the index is whole up to there"
    if not any(s <= begin < s + found.segment_bytes for s in found.segments):
        begin = containing(found.segments, begin)
    return StartPlan(begin, index_from, why, sure_to, known_to)


def _queues_from(found: Found) -> tuple[int, str]:
    """Where queues may begin to lack entries."""
    progress = found.dispatched_to
    if found.replay_from is not None:
        return found.replay_from, "a recovery that began there has not ended"
    if found.clean and found.last_indexed is not None:
        return found.last_indexed, "the last record that a queue knows"
    if found.safe_offset > 0 and _reaches(found, found.safe_offset):
        return min(found.safe_offset, progress), "everything before was synced"
    if progress < 0:
        return found.segments[0], "no queue knows a record"
    begin, why = _by_time(found)
    if begin > progress:
        # Times in the checkpoint may run ahead of the queues on the disk (cases C007, C026).
        begin, why = containing(found.segments, progress), "the segment that the queues end in"
    return begin, why


def _reaches(found: Found, offset: int) -> bool:
    """Whether queues know records up to an offset, the end of a segment left aside, which is no record."""
    progress = found.dispatched_to
    at_start = offset % found.segment_bytes == 0 and found.last_indexed is not None
    return progress >= offset or (at_start and progress > offset - found.segment_bytes)


def _by_time(found: Found) -> tuple[int, str]:
    """The last segment that begins with a record of which the checkpoint knows that queues have it.

    A checkpoint without times (a store that only copied from another one, case C008) says nothing: then the queues' own
    progress counts, less one segment, since their last entries may not be synced. Without any checkpoint, or with
    one that a power cut has emptied (case C017), nothing at all may be.
    """
    times_ms = found.checkpoint.min_timestamp_ms
    if times_ms == 0 and not found.has_checkpoint:
        return found.segments[0], "there is no checkpoint"
    if times_ms == 0:
        before = [s for s in found.segments if s <= found.dispatched_to][-2:]
        return (before or found.segments)[0], "the segment before the one that the queues end in"
    limit_ms = times_ms
    if not found.clean and found.recent is None:
        limit_ms -= FOREIGN_LAG_MS
    begin, why = found.segments[0], "the first segment"
    for segment in reversed(found.segments):
        record = found.first_records.get(segment)
        if isinstance(record, Whole) and 0 < record.store_timestamp_ms <= limit_ms:
            begin, why = segment, "the last segment older than the checkpoint"
            break
    if found.recent is not None and found.recent < begin:
        begin, why = found.recent, "what a peer may not have synced"
    return begin, why


def is_boundary(found: Found, offset: int) -> bool:
    """Whether a record surely begins or ends at an offset, though there may be none: what a walk may start from."""
    known = found.last_indexed is not None and offset == found.dispatched_to
    return known or offset in found.segments


def containing(segments: Sequence[int], offset: int) -> int:
    """The last segment that begins at or before an offset, else the first."""
    return max((s for s in segments if s <= offset), default=segments[0])


def earlier(segments: Sequence[int], offset: int, steps: int) -> int:
    """Where to begin instead of `offset`: the start of its segment, or `steps` segments before that."""
    at = segments.index(containing(segments, offset))
    return segments[at] if segments[at] < offset else segments[max(0, at - steps)]


def _index_from(found: Found, begin: int) -> int | None:
    """Log offset from which on keys have to be inserted again; None when the index can stay as it is.

    After a crash Apache drops every index file that is newer than the checkpoint, and the keys in it are lost. We
    insert them again (case C031), from where a sync has covered them, or from where the queues may lack entries when
    what is behind that was looked at: a page of the index that never reached the disk holds zeros.
    """
    index, first = found.index, found.segments[0]
    if index is None:
        return None
    if index.foreign:
        return first
    from_offset: int | None = None
    if index.whole_to is not None:
        from_offset = max(first, index.whole_to)
    if found.clean:
        return from_offset
    if found.safe_offset > 0:
        unsynced = found.safe_offset
    elif index.sound_from is not None:
        unsynced = max(index.end_offset, index.sound_from)
    elif found.checkpoint.min_timestamp_ms == 0:
        # Nobody says what was synced (case C008). The system writes within half a minute, whatever asks for it.
        unsynced = min(index.end_offset, begin)
    else:
        limit_ms = found.checkpoint.index_timestamp_ms
        newer = [s.begin_offset for s in index.spans if s.end_ms > limit_ms]
        unsynced = min(newer, default=index.end_offset)
    unsynced = max(first, unsynced)
    return unsynced if from_offset is None else min(unsynced, from_offset)


@attrs.frozen
class EndPlan:
    """Where the log ends, what is cut away behind that, and what becomes of the index.

    `cut_bytes` were written there, and `reason` says why they do not count; None when nothing was. `index_to`: keys
    of records from there on go; None when there are none.
    """

    log_end: int
    cut_bytes: int = 0
    reason: str | None = None
    index_to: int | None = None


def plan_end(found: Found, log_end: int, written_end: int, reason: str | None) -> EndPlan:
    """What to do at the end of the walk. `written_end` is the end of what is not zero in the files."""
    cut_bytes = max(0, written_end - log_end)
    if reason is None and cut_bytes:
        # Pages of the log were lost, but not all behind them.
        reason = f"at offset {log_end}: nothing was written here, but behind it"
    behind = found.index is not None and found.index.end_offset >= log_end
    return EndPlan(
        log_end=log_end,
        cut_bytes=cut_bytes,
        reason=reason,
        index_to=log_end if behind else None,
    )


def end_without_log(found: Found) -> int:
    """Where a log without any file goes on: behind everything that a queue ever knew (case C053).

    So no log offset is given twice, and queue offsets go on as well.
    """
    known = max(found.dispatched_to, 0)
    return -(-known // found.segment_bytes) * found.segment_bytes
