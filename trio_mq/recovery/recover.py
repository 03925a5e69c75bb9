"""The six phases of a start, in order. Nothing is served before they end.

In: the locked parts of a store. Out: a :class:`RecoveryReport`, and parts that :class:`trio_mq.store.store.Store`
may be made from. A sudden end or a cancellation at any point leaves a store that the next start recovers the same
way: the abort marker is not touched here. Phases 1, 2 and 6 (load, HA) frame the others; see
``docs/explanation/recovery.md``. Source: Apache DefaultMessageStore.load, recover.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

import attrs
import trio

from trio_mq.errors import StoreDamaged
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.layout import BATCH_QUEUE_ENTRY, BATCH_QUEUE_ENTRY_SIZE
from trio_mq.protocol.verdict import SCHEDULE_TOPIC, Whole
from trio_mq.recovery.plan import EndPlan, Found, StartPlan, plan_end, plan_start
from trio_mq.recovery.report import RecoveryReport
from trio_mq.recovery.scan import QueueTail, Walk, first_record, record_at, scan_queue
from trio_mq.store.dispatch import Dispatcher, Stored
from trio_mq.store.queues import BaseQueue, BatchConsumeQueue
from trio_mq.store.segments import warmed
from trio_mq.store.store import StoreParts

log = logging.getLogger("trio_mq.recovery")

#: Time between two progress lines of a long replay.
PROGRESS_S = 5.0
#: Queues that are looked at in one call to a worker thread.
QUEUES_AT_ONCE = 64
#: Delivery delay of a level that no longer exists (Apache: ScheduleMessageService.computeDeliverTimestamp).
UNKNOWN_LEVEL_MS = 1000


async def recover(parts: StoreParts, *, index_enabled: bool = True) -> RecoveryReport:
    """Bring log, queues and index of a store into agreement.

    Raises StoreError (ForeignFormat, StoreDamaged) when that cannot be done without losing data.
    """
    report = RecoveryReport()
    recovery = _Recovery(parts, report, index_enabled=index_enabled)
    for phase in (recovery.load, recovery.queues, recovery.log, recovery.metadata):
        began = trio.current_time()
        await phase()
        report.phase_s[phase.__name__] = trio.current_time() - began
    (log.info if report.clean else log.warning)("%s", report.line())
    for note in report.notes:
        log.warning("%s", note)
    return report


class _Recovery:
    """The phases of one start, with what they hand on to each other."""

    def __init__(self, parts: StoreParts, report: RecoveryReport, *, index_enabled: bool) -> None:
        self._parts = parts
        self._report = report
        self._index_enabled = index_enabled
        self._tails: dict[BaseQueue, QueueTail] = {}
        self._delays_ms = parts.settings.delay_levels_ms

    # -- phase 1 and 2 ---------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Find the files, and decide whether the last exit was clean."""
        parts, report = self._parts, self._report
        disk = parts.disk
        report.notes += await disk.run(parts.log.segments.load)
        for topic, queue_id, batch in await disk.run(parts.queues.found):
            queue = parts.queues.get(topic, queue_id) or parts.queues.make(
                topic, queue_id, batch=batch
            )
            report.notes += await disk.run(queue.files.segments.load)
        await disk.run(parts.checkpoint.load)
        report.notes += await disk.run(parts.index.load)
        if parts.abort.present:
            report.why_careful = "the abort marker is there"
        elif not parts.log.segments.empty and not parts.checkpoint.known:
            report.why_careful = "the checkpoint is missing or short"
        report.clean = report.why_careful is None

    # -- phase 3, first half ---------------------------------------------------------------------------------

    async def queues(self) -> None:
        """Find the end of every queue. A queue that cannot be read ends the start, with its path."""
        thorough = not self._report.clean

        def look(queue: BaseQueue) -> None:
            tail = self._tails[queue] = scan_queue(queue, thorough=thorough)
            _open_queue(queue, tail)

        await self._for_each_queue(look)

    async def _for_each_queue(self, look: Callable[[BaseQueue], None]) -> None:
        """Call `look` for all queues in a worker thread, some at a time, so that a stop is noticed."""
        queues = list(self._parts.queues)
        for begin in range(0, len(queues), QUEUES_AT_ONCE):
            some = queues[begin : begin + QUEUES_AT_ONCE]

            def call(some: list[BaseQueue] = some) -> None:
                for queue in some:
                    try:
                        look(queue)
                    except OSError as error:
                        path = queue.files.segments.directory
                        raise StoreDamaged(f"cannot read queue {path}: {error.strerror}") from error

            await self._parts.disk.run(call)

    # -- phase 3, second half, and 4 -------------------------------------------------------------------------

    async def log(self) -> None:
        """Walk the log to its end, giving queues and index what they lack; then cut what is behind the end."""
        parts, report = self._parts, self._report
        found = await self._found()
        if not found.segments:
            await self._without_log(found)
            return
        start = plan_start(found)
        if not found.clean:
            report.notes += await parts.disk.run(partial(parts.index.truncate, start.index_from))
        walk = Walk(parts.log, start.walk_from, parts.settings.check_crc_on_recover)
        report.walked_from, report.walk_reason = start.walk_from, start.why
        await self._replay(walk, start)
        end = plan_end(found, walk.end, parts.log.segments.end, walk.reason)
        for begin, stop in walk.missing:
            report.notes.append(f"the log has no bytes {begin} to {stop}: their messages are gone")
        await self._apply(end)
        report.records = walk.records
        if end.drop_index and self._index_enabled:
            report.notes.append(
                f"the index speaks of records behind the log's end {end.log_end}: it is made anew"
            )
            await parts.disk.run(parts.index.drop_all)
            again = Walk(parts.log, parts.log.start, check_crc=False)
            await self._replay(again, attrs.evolve(start, index_from=parts.log.start))

    async def _found(self) -> Found:
        parts, report = self._parts, self._report
        check_crc = parts.settings.check_crc_on_recover
        segments = parts.log.segments.starts
        tails = list(self._tails.values())
        last = None
        if report.clean and tails:
            last = await parts.disk.run(partial(self._last_indexed, check_crc))
        records = {}
        if last is None:
            for segment in segments:
                records[segment] = await parts.disk.run(
                    partial(first_record, parts.log, segment, check_crc=check_crc)
                )
        return Found(
            clean=report.clean,
            checkpoint=parts.checkpoint.value,
            segments=segments,
            first_records=records,
            tails=tails,
            index_begin=self._unsafe_index_files(),
            index_end=parts.index.end_log_offset if self._index_enabled else parts.log.segments.end,
            last_indexed_offset=last,
        )

    def _unsafe_index_files(self) -> list[int]:
        index_ms = self._parts.checkpoint.value.index_timestamp_ms
        return [
            f.header.begin_log_offset
            for f in self._parts.index.files
            if f.header.end_timestamp_ms > index_ms
        ] or [self._parts.index.end_log_offset + 1]

    def _last_indexed(self, check_crc: bool) -> int | None:
        """Offset of the record that the furthest queue entry points to, if it is there and whole."""
        queue, tail = max(self._tails.items(), key=lambda item: item[1].indexed_to)
        if tail.indexed_to < 0:
            return None
        size = queue.files.entry_bytes
        entry = queue.files.segments.read(size, tail.end_bytes - size)
        offset = int.from_bytes(entry[:8], "big")
        if not self._parts.log.segments.has(offset):
            return None
        verdict = record_at(self._parts.log, offset, check_crc=check_crc)
        return offset if isinstance(verdict, Whole) and verdict.topic == queue.topic else None

    async def _replay(self, walk: Walk, start: StartPlan) -> None:
        """Hand the walked records to a dispatcher, which adds what is not known yet."""
        parts = self._parts
        parts.index.indexed_to = max(start.index_from, parts.index.end_log_offset + 1)
        dispatcher = Dispatcher(parts.queues, parts.index, index_enabled=self._index_enabled)
        told = trio.current_time()
        total = max(1, parts.log.segments.end - walk.start)
        async for records in walk.slices():
            dispatcher.apply(self._stored(records))
            while dispatcher.index_backlog > 10_000:
                dispatcher.index_chunk()
            if trio.current_time() - told > PROGRESS_S:
                told = trio.current_time()
                percent = 100 * (walk.end - walk.start) // total
                log.info("recovering: offset %d, %d %% of what has to be read", walk.end, percent)
                parts.queues.write_tails()
        dispatcher.finish()

    def _stored(self, records: Iterable[Whole]) -> Iterable[Stored]:
        queues = self._parts.queues
        for record in records:
            queue = queues.obtain(record.topic, record.queue_id)
            batch = record.sys_flag & MessageFlag.INNER_BATCH and record.base_offset >= 0
            yield Stored(
                queue,
                record.base_offset if batch else record.queue_offset,
                record.batch_size if batch else 1,
                record.log_offset,
                record.size,
                self._tags_code(record),
                record.store_timestamp_ms,
                record.properties,
                record.sys_flag,
            )

    def _tags_code(self, record: Whole) -> int:
        """The tags code of a queue entry; for delayed messages it is the time when they are due."""
        level = record.delay_level
        if record.topic != SCHEDULE_TOPIC or not level or level < 0:
            return record.tags_code
        level = min(level, len(self._delays_ms))
        delay_ms = self._delays_ms[level - 1] if level else UNKNOWN_LEVEL_MS
        return record.store_timestamp_ms + delay_ms

    async def _apply(self, end: EndPlan) -> None:
        """Carry out the end of a plan: log, queues and index end at the same record."""
        parts, report = self._parts, self._report
        segments = parts.log.segments
        report.cut_bytes, report.cut_reason = end.cut_bytes, end.reason
        if end.reason and report.clean:
            report.notes.append("the store was damaged though it was closed cleanly")
        if end.reason or not report.clean or segments.starts[-1] > end.log_end:
            removed = await parts.disk.run(partial(segments.cut, end.log_end))
            report.notes += [
                f"{path} holds nothing before the log's end and is removed" for path in removed
            ]
            await parts.disk.run(segments.sync_call(end.log_end, segments.end))
        parts.log.open_at(end.log_end)
        for queue in parts.queues:
            if queue.indexed_to > end.log_end:
                await parts.disk.run(partial(_cut_queue, queue, end.log_end))
                report.notes.append(
                    f"queue {queue.topic}/{queue.queue_id} ends at offset {queue.max_offset}, with the log"
                )
            elif not report.clean:
                await parts.disk.run(partial(queue.files.segments.cut, queue.files.end))
        if not report.clean:
            report.notes += await parts.disk.run(partial(parts.index.truncate, end.log_end))

    async def _without_log(self, found: Found) -> None:
        """A store without log segments: queue offsets and log offsets go on, nothing can be read."""
        parts = self._parts
        known = max(found.dispatched_to, 0)
        size = parts.log.segments.segment_bytes
        parts.log.open_at(-(-known // size) * size)
        for queue in parts.queues:
            queue.min_offset = queue.max_offset

    # -- phase 5 ---------------------------------------------------------------------------------------------

    async def metadata(self) -> None:
        """Next offsets of all queues, and minimum offsets that the log still holds."""
        parts = self._parts
        start = parts.log.start
        has_log = not parts.log.segments.empty

        def settle(queue: BaseQueue) -> None:
            queue.next_offset = queue.max_offset
            if has_log:
                warmed(partial(_trim, queue, start))
            queue.min_offset = min(queue.min_offset, queue.max_offset)

        await self._for_each_queue(settle)
        parts.index.expire(start)
        self._report.log_start, self._report.log_end = start, parts.log.end
        self._report.queues = len(list(parts.queues))


def _open_queue(queue: BaseQueue, tail: QueueTail) -> None:
    """Set a queue's bounds to what its files hold; nothing is cut before the log's end is known."""
    files = queue.files
    files.open_at(tail.end_bytes, cut=False)
    queue.indexed_to = tail.indexed_to
    first = files.segments.start
    if isinstance(queue, BatchConsumeQueue):
        head = files.segments.read(BATCH_QUEUE_ENTRY_SIZE, first) if tail.end_bytes > first else b""
        base = BATCH_QUEUE_ENTRY.unpack(head)[4] if head else tail.max_offset
        queue.opened(base, tail.max_offset)
    else:
        queue.min_offset = first // files.entry_bytes


def _trim(queue: BaseQueue, log_start: int) -> None:
    """Raise a queue's minimum, only looking at its first entry where that is enough. Blocking."""
    if queue.min_offset >= queue.max_offset:
        return
    if not 0 <= queue.log_offset_at(queue.min_offset) >= log_start:
        queue.trim(log_start)


def _cut_queue(queue: BaseQueue, log_end: int) -> None:
    """Remove the entries of records at or behind the log's end. Blocking."""
    files = queue.files
    files.write_tail()
    size, low, high = (
        files.entry_bytes,
        files.segments.start // files.entry_bytes,
        files.end // files.entry_bytes,
    )
    while low < high:
        middle = (low + high) // 2
        entry = files.segments.read(size, middle * size)
        if int.from_bytes(entry[:8], "big") < log_end:
            low = middle + 1
        else:
            high = middle
    tail_end = low * size
    files.open_at(tail_end)
    last = files.segments.read(size, tail_end - size) if tail_end > files.segments.start else b""
    queue.indexed_to = log_end
    if isinstance(queue, BatchConsumeQueue):
        fields = BATCH_QUEUE_ENTRY.unpack(last) if last else None
        end = fields[4] + fields[5] if fields else queue.min_offset
        queue.opened(min(queue.min_offset, end), end)
