"""Carrying out what a plan says: opening queues, cutting ends, syncing, marking. Decides nothing.

In: the parts of a store, and values of :mod:`trio_mq.recovery.plan` and :mod:`trio_mq.recovery.scan`. Out: changed
files. Everything here blocks and belongs in a worker thread. What is cut from the log goes to
:mod:`trio_mq.recovery.quarantine` before. A sudden end at any point leaves a store that the next start puts right
in the same way.
Sources: Apache MappedFileQueue.truncateDirtyFiles, ConsumeQueue.truncateDirtyLogicFiles, correctMinOffset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import attrs

from trio_mq.errors import StoreDamaged
from trio_mq.protocol.layout import (
    BATCH_QUEUE_ENTRY,
    BATCH_QUEUE_ENTRY_SIZE,
    BLANK_HEADER_SIZE,
    BLANK_MAGIC,
)
from trio_mq.recovery.indexscan import IndexState
from trio_mq.recovery.lanes import Lane
from trio_mq.recovery.plan import EndPlan
from trio_mq.recovery.quarantine import Behind, Kept, Quarantine, measure
from trio_mq.recovery.scan import QueueTail, last_record, position_of
from trio_mq.store.checkpoint import Marks, with_marks
from trio_mq.store.entries import EntryFiles
from trio_mq.store.queues import BaseQueue, BatchConsumeQueue
from trio_mq.store.queuetable import QueueTable
from trio_mq.store.segments import Segments, warmed
from trio_mq.store.store import StoreParts

log = logging.getLogger("trio_mq.recovery.apply")

#: Entries before the end of a queue that are looked at one by one when it is cut: those of two pages.
CLOSE_ENTRIES: Final = 400


# -- loading -------------------------------------------------------------------------------------------------


def load_queues(
    table: QueueTable, found: Iterable[tuple[str, int, bool]], *, mend: bool, copied: bool = False
) -> list[str]:
    """Make queues for the folders found (topic, queue id, batch or not). Returns notes.

    With `mend`, files that are short get their size: what they lack is filled from the log. In a store that is
    `copied` the table of topics may be older than the queues, which are of the kind that their records asked for.

    Raises StoreDamaged where a folder has another kind of queue than the topic (Apache: queueTypeShouldBe).
    """
    notes: list[str] = []
    for topic, queue_id, batch in found:
        if batch != table.is_batch_topic(topic) and not copied:
            has, says = ("batch", "simple") if batch else ("simple", "batch")
            raise StoreDamaged(
                f"topic {topic} has {has} consume queues on the disk, but config/topics.json says {says} ones "
                f"(attribute queue.type): bring back the topics.json of this store (see topics.json.bak), or move "
                f"the folder of the queues away to lose them"
            )
        queue = table.make(topic, queue_id, batch=batch)
        notes += queue.files.segments.load(mend=mend)
    return notes


# -- queues --------------------------------------------------------------------------------------------------


def open_queue(queue: BaseQueue, tail: QueueTail) -> None:
    """Set a queue's bounds to what its files hold; nothing is cut before the log's end is known."""
    files = queue.files
    files.open_at(tail.end_bytes, cut=False)
    queue.indexed_to = tail.indexed_to
    first = files.segments.start
    if isinstance(queue, BatchConsumeQueue):
        base = tail.max_offset
        if tail.end_bytes > first:
            base = BATCH_QUEUE_ENTRY.unpack(files.segments.read(BATCH_QUEUE_ENTRY_SIZE, first))[4]
        queue.opened(base, tail.max_offset)
    else:
        queue.min_offset = first // files.entry_bytes


def drop_deleted(queues: QueueTable) -> None:
    """Drop queues of a copied log that a power cut has brought back after their topic was deleted.

    A slave does not number messages: where the topic was made again, the master's first record has to be the first.
    """
    for queue in queues:
        if 0 <= queue.indexed_to <= queues.roster.deleted.get(queue.topic, -1):
            queues.drop(queue)


def cut_queue(queue: BaseQueue, log_end: int) -> str:
    """Remove the entries of records at or behind the log's end, durably. Returns a note about it."""
    note = cut_entries(queue, log_end)
    end = queue.files.end
    queue.files.segments.sync_call(end, end + 1)()
    return note


def cut_entries(queue: BaseQueue, log_end: int) -> str:
    """As :func:`cut_queue`, but nothing is synced. All entries have to be in the files."""
    files, before = queue.files, queue.max_offset
    end = _end_before(queue, log_end)
    files.open_at(end)
    _, queue.indexed_to, max_offset = last_record(files.segments, files.entry_bytes, end)
    if isinstance(queue, BatchConsumeQueue):
        # Without entries the count goes on from where the queue began (case C023).
        max_offset = max_offset if queue.indexed_to >= 0 else queue.min_offset
        queue.opened(min(queue.min_offset, max_offset), max_offset)
    return (
        f"queue {queue.topic}/{queue.queue_id} ends at offset {queue.max_offset} instead of {before}, "
        f"since the log ends at {log_end}"
    )


def _end_before(queue: BaseQueue, log_end: int) -> int:
    """Where the first entry of a record at or behind `log_end` is.

    Found by bisection; but a torn entry says any offset, so what lies close before is looked at one by one.
    """
    files = queue.files
    end = position_of(queue, log_end)
    while end > files.segments.start:
        begin = max(files.segments.segment_of(end - 1), end - CLOSE_ENTRIES * files.entry_bytes)
        data = files.segments.read(end - begin, begin)
        behind = [
            at
            for at in range(0, len(data), files.entry_bytes)
            if int.from_bytes(data[at : at + 8], "big") >= log_end
        ]
        if not behind:
            break
        end = begin + behind[0]
    return end


def tidy_queue(queue: BaseQueue, tail: QueueTail) -> None:
    """Remove what lies behind a queue's end: entries behind a hole that the log could not fill, empty files."""
    files = queue.files
    starts = files.segments.starts
    if starts and (tail.hole or (len(starts) > 1 and starts[-1] >= files.end)):
        files.segments.cut(files.end)
        files.segments.sync_call(files.end, files.end + 1)()


def settle_queues(queues: Iterable[BaseQueue], log_start: int | None) -> None:
    """Set next and minimum offsets; a log without any file (None) holds nothing of any queue."""
    for queue in queues:
        queue.next_offset = queue.max_offset
        if log_start is None:
            queue.min_offset = queue.max_offset
        else:
            warmed(partial(queue.trim, log_start))


# -- the log -------------------------------------------------------------------------------------------------


@attrs.frozen
class Cut:
    """What lay behind the log's end: `length` bytes up to the last one that was written, kept in `folder` if at all."""

    length: int = 0
    reason: str | None = None
    folder: str | None = None
    notes: tuple[str, ...] = ()


def cut_log(parts: StoreParts, end: EndPlan, *, thorough: bool) -> Cut:
    """Keep everything behind the log's end in the quarantine, then make it unreadable, durably.

    So no stale record comes back after another crash, whatever is written over a part of it. Without `thorough`,
    for a clean start, only what `end` or later files tell of is looked at. Raises StoreFull without room.
    """
    segments, settings = parts.log.segments, parts.settings
    quarantine = Quarantine(
        parts.disk, parts.root, settings.quarantine_max_bytes, parts.clock.now_ms
    )
    quarantine.tidy(segments)
    if not (thorough or end.cut_bytes or segments.starts[-1] > end.log_end):
        return Cut()
    behind = measure(segments, end.log_end)
    if len(behind) == 1 and _is_blank(segments, behind[0]):
        behind = []  # what fills a segment up is no loss
    if not behind and segments.starts[-1] <= end.log_end:
        return Cut()
    length = behind[-1].end - end.log_end if behind else 0
    reason = end.reason or (f"at offset {end.log_end}: the log ends here" if behind else None)
    kept: Kept | None = None
    if behind and quarantine.enabled:
        kept = quarantine.keep(segments, end.log_end, behind, reason or "")
    notes = _notes_of(kept, length, settings.quarantine_max_bytes) if behind else []
    notes += _drop_behind(
        segments, end.log_end, {part.segment for part in behind}, quarantine, kept
    )
    if segments.has(end.log_end):
        segments.clear(end.log_end)
    segments.sync_call(end.log_end, end.log_end + 1)()
    if kept is not None:
        notes += quarantine.trim(kept)
    return Cut(length, reason, kept.folder if kept else None, tuple(notes))


def _is_blank(segments: Segments, part: Behind) -> bool:
    """Whether all that a segment holds behind an offset is the head of the blank that fills it up."""
    if part.end > part.begin + BLANK_HEADER_SIZE:
        return False
    head = segments.read(BLANK_HEADER_SIZE, part.begin)
    return head[4:] == BLANK_MAGIC


def _notes_of(kept: Kept | None, length: int, max_bytes: int) -> list[str]:
    if kept is None:
        return [f"{length} bytes that are cut off are not kept, since quarantineMaxBytes is 0"]
    manifest = kept.manifest
    if manifest is not None and manifest.kept_length < manifest.length:
        return [
            f"of {manifest.length} bytes that are cut off the first {manifest.kept_length} are kept in {kept.folder}, "
            f"since quarantineMaxBytes is {max_bytes}"
        ]
    return [f"what was cut off is kept in {kept.folder}"]


def _drop_behind(
    segments: Segments, log_end: int, written: set[int], quarantine: Quarantine, kept: Kept | None
) -> list[str]:
    """Remove the segments behind the log's end from the log, the last one first, so that it never has a hole.

    One that begins right there stays: the log goes on in it (case C029; Apache: MappedFileQueue.truncateDirtyFiles).
    Returns notes about them.
    """
    notes: list[str] = []
    for start in reversed(segments.starts):
        if start <= log_end:
            break
        path = segments.path(start)
        if kept is not None and quarantine.take(segments, kept, start):
            notes.append(f"{path} lies behind the log's end and is now in {kept.folder}")
            continue
        if segments.has(start):
            segments.drop_segment(start)
            segments.disk.sync_dir(segments.directory)
        if start in written:
            notes.append(f"{path} lies behind the log's end and is removed")
        else:
            # Prepared for later; there is one after many a crash.
            log.info("%s was never written to and is removed", path)
    return notes


# -- the index -----------------------------------------------------------------------------------------------


def prepare_index(parts: StoreParts, index_from: int | None, found: IndexState) -> list[str]:
    """Forget the keys that are inserted again, all of them when the files are of another log. Returns notes."""
    index = parts.index
    notes: list[str] = []
    if found.foreign:
        notes.append(f"the files in {index.directory} index another log: they are made anew")
        index.drop_all()
    elif index_from is not None:
        # First, since a header that says too small an offset puts its file before the others.
        index.drop(found.damaged)
        for text in index.truncate(index_from):
            log.info("%s", text)
    index.indexed_to = index.end_log_offset + 1 if index_from is None else index_from
    return notes


# -- durability ----------------------------------------------------------------------------------------------


def sync_call(parts: StoreParts, lanes: Iterable[Lane], begin: int, end: int) -> Callable[[], None]:
    """A blocking call that makes durable what is written now: the log from `begin` to `end`, then entries and keys.

    More may be written while it runs.
    """
    calls: list[Callable[[], None]] = []
    synced: list[tuple[EntryFiles, int]] = []
    if not parts.log.segments.empty:
        calls.append(parts.log.segments.sync_call(begin, end + 1))
    for lane in lanes:
        files = lane.queue.files
        first = min(files.synced, lane.touched_from)
        if first < files.written:
            calls.append(files.segments.sync_call(first, files.written))
        synced.append((files, files.written))
    index_call = parts.index.sync_call()
    if index_call is not None:
        calls.append(index_call)

    def sync() -> None:
        for call in calls:
            call()
        for files, written in synced:
            files.synced = max(files.synced, written)

    return sync


def mark(parts: StoreParts, newest_ms: int, log_end: int, marks: Marks) -> None:
    """Write the checkpoint: what is durable, and what the next start may rely on.

    `newest_ms` is the store time of the newest record that was gone over, 0 without one. Times are set back when
    the log was cut: a checkpoint that is newer than the log would let a later start begin too late.
    """
    value = attrs.evolve(
        parts.checkpoint.value,
        confirm_log_offset=log_end,
        index_timestamp_ms=parts.index.end_timestamp_ms,
    )
    if newest_ms:
        value = attrs.evolve(value, physic_timestamp_ms=newest_ms, logics_timestamp_ms=newest_ms)
    parts.checkpoint.value = with_marks(value, marks)
    parts.checkpoint.save()


def mark_replay(parts: StoreParts, marks: Marks) -> None:
    """Note in the checkpoint where a replay begins, so that one that is cut short begins there again."""
    parts.checkpoint.value = with_marks(parts.checkpoint.value, marks)
    parts.checkpoint.save()
