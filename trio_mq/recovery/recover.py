"""The phases of a start, in order. Nothing is served before they end.

In: the locked parts of a store. Out: a :class:`RecoveryReport`, and parts that :class:`trio_mq.store.store.Store`
may be made from. A sudden end or a cancellation at any point leaves a store that the next start recovers as well:
the abort marker is there before anything is changed, and a replay marks where it began.

The six phases of Apache's start: 1 load, 2 queue tails, 3 the log with dispatch, 4 queues are cut to the log's end,
5 metadata; 6 replication begins only after this module is done. ``docs/explanation/recovery.md`` tells the whole.
Source: Apache DefaultMessageStore.load, recover.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import attrs
import trio

from trio_mq.protocol.verdict import Whole
from trio_mq.recovery import apply, foreign, plan
from trio_mq.recovery.choices import Choices as Choices
from trio_mq.recovery.explained import explained
from trio_mq.recovery.feed import Gap
from trio_mq.recovery.indexscan import IndexState, scan_index
from trio_mq.recovery.plan import EndPlan, Found, StartPlan
from trio_mq.recovery.queuework import LogSegments, Look, for_each_queue, some_at_once
from trio_mq.recovery.replay import Replay
from trio_mq.recovery.report import RecoveryReport
from trio_mq.recovery.scan import (
    QueueTail,
    has_expired_before,
    next_record,
    record_at,
    scan_queue,
    written_behind,
)
from trio_mq.recovery.walk import Walk
from trio_mq.store.checkpoint import Marks, read_marks
from trio_mq.store.log import reaches
from trio_mq.store.queues import BaseQueue
from trio_mq.store.roster import Bounds
from trio_mq.store.store import StoreParts

T = TypeVar("T")

log = logging.getLogger("trio_mq.recovery")


async def recover(parts: StoreParts, choices: Choices | None = None) -> RecoveryReport:
    """Bring log, queues and index of a store into agreement, by default as its settings say.

    Raises StoreError when that cannot be done: ForeignFormat for files of other sizes, StoreDamaged for files that
    contradict the settings or cannot be read, StoreFull without room on the disk.
    """
    report = RecoveryReport()
    recovery = _Recovery(parts, report, choices or Choices.of(parts.settings))
    with explained(parts.root):
        for phase in (
            recovery.load,
            recovery.tails,
            recovery.log,
            recovery.queues,
            recovery.settle,
        ):
            began_s = trio.current_time()
            await phase()
            report.phase_s[phase.__name__] = trio.current_time() - began_s
    # A copy is cut anywhere by a sudden end, and gets the rest again: nothing that somebody has to look at.
    usual = recovery.choices.copied or (report.clean and not report.notes)
    for text in (report.line(), *report.notes):
        (log.info if usual else log.warning)("%s", text)
    return report


class _Recovery:
    """The phases of one start, with what they hand on to each other."""

    def __init__(self, parts: StoreParts, report: RecoveryReport, choices: Choices) -> None:
        self._parts = parts
        self._report = report
        self.choices = choices
        self._index_enabled = choices.index_enabled
        self._check_crc = parts.settings.check_crc_on_recover
        self._tails: dict[BaseQueue, QueueTail] = {}
        self._lost: list[str] = []
        self._found = Found(True, parts.checkpoint.value, (), 1)
        self._end: EndPlan | None = None
        self._replay: Replay | None = None
        self._walk: Walk | None = None

    async def _run(self, call: Callable[[], object]) -> None:
        await self._parts.disk.run(call)

    async def _for_each_queue(self, queues: Sequence[BaseQueue], look: Look[T]) -> list[T]:
        parts = self._parts
        return await for_each_queue(
            parts.disk,
            queues,
            parts.log.segments,
            look,
            concurrently=self.choices.concurrently,
        )

    # -- phase 1: load ---------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Find the files, and decide whether the last exit was clean."""
        parts, report = self._parts, self._report
        await self._run(parts.checkpoint.load)
        assumed = self.choices.assume_clean
        crashed = parts.abort.present if assumed is None else not assumed
        report.notes += await parts.disk.run(parts.log.segments.load)
        found = await parts.disk.run(parts.queues.found)
        for some in some_at_once(found):
            report.notes += await parts.disk.run(
                partial(
                    apply.load_queues,
                    *(parts.queues, some),
                    mend=crashed,
                    copied=self.choices.copied,
                )
            )
        await self._run(parts.queues.roster.load)
        report.notes += await parts.disk.run(parts.index.load)
        if crashed:
            parts.index.doubt()
        report.why_careful = self._why_careful(crashed)
        report.clean = report.why_careful is None

    def _why_careful(self, crashed: bool) -> str | None:
        parts, assumed = self._parts, self.choices.assume_clean
        if assumed is not None:
            return None if assumed else "that was asked for"
        if crashed:
            return "the abort marker is there"
        if not parts.log.segments.empty and not parts.checkpoint.known:
            return "the checkpoint is missing or short"
        if read_marks(parts.checkpoint.value).replay_from is not None:
            return "the last recovery did not end"
        return None

    # -- phase 2: where queues end ---------------------------------------------------------------------------

    async def tails(self) -> None:
        """Find the end of every queue, and gather what else a plan needs."""
        thorough = not self._report.clean

        def look(queue: BaseQueue, log_files: LogSegments) -> QueueTail:
            tail = scan_queue(queue, log_files, thorough=thorough)
            apply.open_queue(queue, tail)
            return tail

        queues = list(self._parts.queues)
        self._tails = dict(zip(queues, await self._for_each_queue(queues, look), strict=True))
        await self._run(self._look_for_lost)
        holed = [queue for queue, tail in self._tails.items() if tail.hole]
        if holed and self._report.clean:
            self._report.clean = False
            self._report.why_careful = f"queue {holed[0].topic}/{holed[0].queue_id} has a hole"
        self._found = await self._parts.disk.run(self._gather)

    def _look_for_lost(self) -> None:
        """Compare what the queues' files hold with what they surely held once; what they lack is a hole."""
        parts = self._parts
        listed = parts.queues.roster.listed
        had = dict.fromkeys(self.choices.expected, Bounds()) if listed is None else listed
        for (topic, queue_id), bounds in had.items():
            queue = parts.queues.get(topic, queue_id)
            if queue is None or queue.files.segments.empty:
                self._lost.append(f"{topic}/{queue_id}")
            elif (
                bounds.max_offset
                and queue.min_offset > bounds.min_offset
                and not has_expired_before(queue, parts.log.segments.start)
            ):
                self._lost.append(f"{topic}/{queue_id}")  # its first files
            elif self._tails[queue].max_offset < bounds.max_offset:
                self._tails[queue] = attrs.evolve(self._tails[queue], hole=True)
        if self._lost and not parts.log.segments.empty:
            self._report.notes.append(
                f"{len(self._lost)} queues have lost their files, {self._lost[0]} for one: they are made again"
            )

    def _gather(self) -> Found:
        """What a plan needs. Blocking."""
        parts, clean = self._parts, self._report.clean
        segments = parts.log.segments
        marks = read_marks(parts.checkpoint.value)
        last = self._last_indexed()
        first_records = {}
        if not (clean and last is not None):
            for start in segments.starts:
                first_records[start] = record_at(parts.log, start, check_crc=self._check_crc)
        index: IndexState | None = None
        if self._index_enabled:
            index = scan_index(parts.index, parts.log, clean=clean, safe_offset=marks.safe_offset)
        left = None
        if not clean and marks.safe_offset <= 0 and marks.replay_from is None:
            left = foreign.look(
                parts,
                self._tails,
                path=self.choices.path,
                index_enabled=self._index_enabled,
            )
        if index is not None and left is not None:
            index = attrs.evolve(index, sound_from=left.sound_from)
        return Found(
            clean=clean,
            checkpoint=parts.checkpoint.value,
            segments=segments.starts,
            segment_bytes=segments.segment_bytes,
            tails=list(self._tails.values()),
            safe_offset=marks.safe_offset,
            replay_from=marks.replay_from,
            last_indexed=last,
            first_records=first_records,
            index=index,
            lost_queue=self._lost[0] if self._lost else None,
            recent=None if left is None else left.recent,
            has_checkpoint=parts.checkpoint.known,
            copied=self.choices.copied,
        )

    def _last_indexed(self) -> int | None:
        """Log offset of the record that the furthest queue entry points to, if it is there and whole."""
        if not self._tails:
            return None
        queue, tail = max(self._tails.items(), key=lambda item: item[1].indexed_to)
        if tail.indexed_to < 0:
            return None
        verdict = record_at(self._parts.log, tail.last_log_offset, check_crc=self._check_crc)
        whole = isinstance(verdict, Whole) and verdict.topic == queue.topic
        return tail.last_log_offset if whole else None

    # -- phase 3: the log ------------------------------------------------------------------------------------

    async def log(self) -> None:
        """Walk the log to its end, giving queues and index what they lack; then cut what is behind the end."""
        parts, report, found = self._parts, self._report, self._found
        # From here on files may change: a start that does not get to its end must not look like a clean exit.
        await self._run(lambda: parts.abort.create(os.getpid(), parts.root))
        if not found.segments:
            await self._run(self._without_log)
            return
        if self.choices.copied and not report.clean:
            await self._run(partial(apply.drop_deleted, parts.queues))
        walk = await self._walk_to_end(plan.plan_start(found))
        written = walk.end
        if not walk.at_blank:
            written = await parts.disk.run(partial(written_behind, parts.log.segments, walk.end))
        end = plan.plan_end(found, walk.end, written, walk.reason)
        for begin, stop in walk.missing:
            report.notes.append(f"the log has no bytes {begin} to {stop}: their messages are gone")
        report.cut_bytes, report.cut_reason = end.cut_bytes, end.reason
        if end.reason and report.clean:
            report.notes.append("the store was damaged though it was closed cleanly")
        cut = await parts.disk.run(partial(apply.cut_log, parts, end, thorough=not report.clean))
        report.cut_bytes = max(end.cut_bytes, cut.length)
        report.cut_reason = end.reason or cut.reason
        report.quarantine = cut.folder
        report.notes += cut.notes
        if end.index_to is not None:
            await self._run(partial(parts.index.truncate, end.index_to))
        parts.index.indexed_to = walk.records_end
        report.log_end = end.log_end

    async def _walk_to_end(self, start: StartPlan) -> Walk:
        """The walk that reached the log's end; it begins further back when it turns out that it has to."""
        parts, report, found = self._parts, self._report, self._found
        segments = parts.log.segments
        begin = start.walk_from
        report.walked_from, report.walk_reason = begin, start.why
        nothing_lacks = found.clean and begin == found.last_indexed
        known_end = found.known_end
        if not nothing_lacks:
            # Without queues nobody else knows how far the log goes.
            reached = await parts.disk.run(partial(reaches, parts.disk, segments.directory))
            known_end = max(known_end, reached)
        replay = self._replay = Replay(
            parts,
            index_enabled=self._index_enabled,
            known_end=known_end,
            known_to=start.known_to,
            trusted=found.clean,
            copied=self.choices.copied,
            keep=self._keep,
            progress=self._tell_progress,
        )
        if not nothing_lacks:
            await self._mark_replay(begin, start.index_from)
        if found.index is not None:
            report.notes += await parts.disk.run(
                partial(apply.prepare_index, parts, start.index_from, found.index)
            )
        steps, before = 1, 0
        first = begin <= segments.start
        while True:
            walk = self._walk = Walk(
                segments,
                begin,
                path=self.choices.path,
                check_crc=self._check_crc,
                holes_to=start.sure_to if self.choices.copied else None,
            )
            gap = await replay.run(walk, fill_gaps=first)
            behind = None if gap is not None else await self._behind(walk, start)
            if behind is not None:
                begin, first, before = behind, True, before + walk.records
                continue
            if gap is None and (walk.records or first or plan.is_boundary(found, begin)):
                break
            replay.known_to = 0
            begin = plan.earlier(segments.starts, begin, steps)
            steps *= 2
            first, before = begin <= segments.start, 0
            self._tell_earlier(gap, begin)
            await self._mark_replay(begin, start.index_from)
        report.records = before + walk.records
        report.notes += replay.notes
        if replay.mended:
            report.notes.append(f"{replay.mended} queue entries were torn and are written again")
        return walk

    async def _behind(self, walk: Walk, start: StartPlan) -> int | None:
        """Where the log goes on behind the point that ended a walk; None when that is the log's end.

        What ends a walk too early is damage in the middle: that costs what is damaged, and not all that follows
        (case C020). A start that had no need to look that far back would not have noticed it.
        """
        if walk.end >= start.sure_to:
            return None
        parts = self._parts
        behind = await parts.disk.run(partial(next_record, parts.log, walk.end))
        if behind is not None:
            why = walk.reason or f"at offset {walk.end}: nothing was written here"
            self._report.notes.append(f"the log cannot be read up to offset {behind}: {why}")
            log.warning("%s", self._report.notes[-1])
        return behind

    def _tell_earlier(self, gap: Gap | None, begin: int) -> None:
        report = self._report
        if gap is not None:
            why = f"queue {gap.topic}/{gap.queue_id} lacks entries {gap.expected_offset} to {gap.queue_offset}"
        else:
            why = f"there is no record at offset {report.walked_from}"
        log.info("%s: looking further back, from offset %d", why, begin)
        report.walked_from, report.walk_reason = begin, why

    def _tell_progress(self, offset: int, end: int) -> None:
        if self.choices.progress is not None:
            self.choices.progress("log", offset, end)

    async def _mark_replay(self, begin: int, index_from: int | None) -> None:
        safe = self._found.safe_offset
        if index_from is not None:
            safe = min(safe, index_from)
        await self._run(partial(apply.mark_replay, self._parts, Marks(safe, begin)))

    def _keep(self, walk: Walk) -> Callable[[], None]:
        """A call that makes durable what a long replay has done, so that the next one begins here if it is ended."""
        parts = self._parts
        lanes = self._replay.lanes if self._replay else []
        sync = apply.sync_call(parts, lanes, walk.start, walk.end)
        marks, newest_ms = Marks(walk.records_end, walk.records_end), walk.newest_ms

        def keep() -> None:
            sync()
            apply.mark(parts, newest_ms, marks.safe_offset, marks)

        return keep

    def _without_log(self) -> None:
        """A store without log files: offsets go on, nothing can be read. Blocking."""
        parts, report, found = self._parts, self._report, self._found
        if self.choices.copied:  # it begins anew, and so do its queues
            for queue in parts.queues:
                parts.queues.drop(queue)
        else:
            report.log_end = plan.end_without_log(found)
        if found.dispatched_to > 0 and not self.choices.copied:
            report.notes.append(
                f"the commit log has no file, but queues know records up to {found.dispatched_to}: they are "
                f"gone; offsets go on, the log's at {report.log_end}"
            )
        if self._index_enabled and parts.index.files:
            parts.index.drop_all()

    # -- phase 4: queues end with the log --------------------------------------------------------------------

    async def queues(self) -> None:
        """Cut every queue at the log's end."""
        log_end, notes = self._report.log_end, self._report.notes
        if not self._found.segments:
            return

        def cut(queue: BaseQueue, _log: LogSegments) -> str | None:
            if queue.indexed_to > log_end:
                return apply.cut_queue(queue, log_end)
            apply.tidy_queue(queue, self._tails[queue])
            return None

        careful = not self._report.clean
        queues = [
            queue
            for queue in self._parts.queues
            if queue.indexed_to > log_end or (careful and queue in self._tails)
        ]
        notes += filter(None, await self._for_each_queue(queues, cut))

    # -- phase 5: metadata -----------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Make everything durable and say so; then next and minimum offsets of all queues."""
        parts, report, walk = self._parts, self._report, self._walk
        newest_ms = walk.newest_ms if walk else 0
        if not report.clean or report.notes or report.records > 1:
            lanes = self._replay.lanes if self._replay else []
            begin = walk.start if walk else report.log_end
            await self._run(apply.sync_call(parts, lanes, begin, report.log_end))
            marks = Marks(walk.records_end if walk else report.log_end)
            await self._run(partial(apply.mark, parts, newest_ms, report.log_end, marks))
        parts.log.open_at(report.log_end)
        parts.log.newest_ms = newest_ms or parts.checkpoint.value.physic_timestamp_ms
        log_start = None if parts.log.segments.empty else parts.log.start
        for some in some_at_once(list(parts.queues)):
            await self._run(partial(apply.settle_queues, some, log_start))
        if log_start is not None:
            parts.index.expire(log_start)
        await self._list_queues(parts.log.start)
        report.log_start = parts.log.start
        report.queues = sum(1 for _ in parts.queues)

    async def _list_queues(self, log_start: int) -> None:
        """Note which queues there are now, and forget deleted topics whose records have all expired."""
        queues = self._parts.queues
        roster, reached = queues.roster, queues.reached()
        cut = roster.cut_back(self._report.log_end)
        expired = [topic for topic, offset in roster.deleted.items() if offset <= log_start]
        for topic in expired:
            del roster.deleted[topic]
        if cut or expired or reached != roster.listed:
            await self._run(partial(roster.save, reached))
