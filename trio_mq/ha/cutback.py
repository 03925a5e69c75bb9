"""Cutting the log of a running store, for a slave that gives up what its master does not have.

In: the store, whose flusher and dispatcher are at rest meanwhile, and the offset where its log is to end. Out: log,
queues and index that end there; what was behind lies in the quarantine, as after a start
(:mod:`trio_mq.recovery.apply` does both). Called by :meth:`trio_mq.ha.copylog.LogCopy.cut_to`.

The checkpoint says first that a replay from that offset has not ended, and takes that back last. So a sudden end in
between leaves a store whose next start makes queues and index fit the log, whatever of it is cut by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import attrs
import trio

from trio_mq.recovery import apply
from trio_mq.recovery.plan import EndPlan
from trio_mq.store.checkpoint import Marks, read_marks
from trio_mq.store.cleaner import run_warmed
from trio_mq.store.log import CommitLog
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.ha")


async def cut_store(store: Store, offset: int) -> None:
    """Cut a store's log at an offset, where a record begins or ends.

    OSError or StoreError when that does not work: then the log has what it had, or only whole files less.
    """
    parts, old_end = store.parts, store.log.end
    await _written(store)
    safe = min(read_marks(parts.checkpoint.value).safe_offset, offset)
    await parts.disk.run(partial(apply.mark_replay, parts, Marks(safe, offset)))
    # From here on nobody counts on what queues and index had, also if the rest does not work.
    store.flusher.cut_back(offset, store.flusher.newest_ms)
    syncs = await _cut_queues(store, offset)
    store.log.cut_back(offset)
    store.dispatcher.dispatched = min(store.dispatcher.dispatched, offset)
    cut = _LogCut(store, offset, old_end)
    try:
        await parts.disk.run(cut)
    except BaseException:
        store.log.recut(cut.starts)
        store.log.cut_back(min(old_end, store.log.segments.end))
        raise
    store.log.recut(cut.starts)
    twin = parts.index.apart(offset)
    try:
        await parts.disk.run(partial(twin.truncate, offset))
    finally:
        parts.index.rejoin(twin)
    newest_ms = await _newest_ms(store)
    store.dispatcher.newest_ms = newest_ms
    store.flusher.cut_back(offset, newest_ms)
    reached = parts.queues.reached()
    parts.queues.roster.cut_back(offset)
    syncs.append(partial(parts.queues.roster.save, reached, as_of=parts.queues.roster.deletions))
    await parts.disk.run(partial(_settle, store, offset, newest_ms, syncs))


async def _written(store: Store) -> None:
    """Have all entries and keys in their files."""
    dispatcher = store.dispatcher
    store.queues.write_tails()
    while dispatcher.index_backlog:
        dispatcher.finish_some()
        await trio.lowlevel.checkpoint()


async def _cut_queues(store: Store, offset: int) -> list[Callable[[], None]]:
    """Cut all queues in memory and in their files; returns the calls that make that durable, which block."""
    syncs: list[Callable[[], None]] = []
    for queue in store.queues:
        if queue.indexed_to <= offset or queue.dropped:
            continue
        log.info("%s", apply.cut_entries(queue, offset))
        queue.next_offset = queue.max_offset
        end = queue.files.end
        syncs.append(queue.files.segments.sync_call(end, end + 1))
        await trio.lowlevel.checkpoint()
    return syncs


class _LogCut:
    """The blocking part: with files of its own, since the loop goes on reading what is before."""

    def __init__(self, store: Store, offset: int, old_end: int) -> None:
        self._parts = store.parts
        self._plan = EndPlan(
            log_end=offset,
            cut_bytes=old_end - offset,
            reason=f"at offset {offset}: the master's log does not go on like that",
        )
        #: The segments that are left.
        self.starts = store.log.segments.starts

    def __call__(self) -> None:
        parts = self._parts
        mine = parts.log.segments
        twin = CommitLog(parts.disk, mine.directory, mine.segment_bytes)
        twin.segments.load()
        try:
            cut = apply.cut_log(attrs.evolve(parts, log=twin), self._plan, thorough=True)
        finally:
            self.starts = twin.segments.starts
            twin.segments.close()
        log.warning("%d bytes are cut from the log at offset %d", cut.length, self._plan.log_end)
        for note in cut.notes:
            log.warning("%s", note)


async def _newest_ms(store: Store) -> int:
    """Store time of the newest record that a queue knows, 0 without one."""
    known = [queue for queue in store.queues if queue.indexed_to > 0]
    if not known:
        return 0
    queue = max(known, key=lambda queue: queue.indexed_to)
    found: list[int] = []

    def look() -> None:
        at = queue.log_offset_at(queue.max_offset - 1)
        found.append(store.reader.store_time_ms(at) if at >= 0 else 0)

    await run_warmed(store.parts.disk, look)
    return max(0, found[-1])


def _settle(store: Store, offset: int, newest_ms: int, syncs: list[Callable[[], None]]) -> None:
    """Make all of it durable, then say so. Blocking."""
    parts = store.parts
    index_call = parts.index.sync_call()
    for call in [*syncs, *([index_call] if index_call is not None else [])]:
        call()
    value = parts.checkpoint.value
    parts.checkpoint.value = attrs.evolve(
        value,
        physic_timestamp_ms=min(value.physic_timestamp_ms, newest_ms),
        logics_timestamp_ms=min(value.logics_timestamp_ms, newest_ms),
    )
    apply.mark(parts, 0, offset, Marks(offset))
