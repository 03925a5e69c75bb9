"""Carrying out what a plan says: opening queues, cutting ends, syncing, marking. Decides nothing.

In: the parts of a store, and values of :mod:`trio_mq.recovery.plan` and :mod:`trio_mq.recovery.scan`. Out: changed
files. Everything here blocks and belongs in a worker thread. What may have been messages is kept aside when it is
cut. A sudden end at any point leaves a store that the next start puts right in the same way.
Sources: Apache MappedFileQueue.truncateDirtyFiles, ConsumeQueue.truncateDirtyLogicFiles, correctMinOffset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

import attrs

from trio_mq.errors import StoreDamaged
from trio_mq.protocol.layout import BATCH_QUEUE_ENTRY, BATCH_QUEUE_ENTRY_SIZE
from trio_mq.recovery.plan import EndPlan
from trio_mq.recovery.replay import Lane
from trio_mq.recovery.scan import QueueTail, last_record, position_of
from trio_mq.store.checkpoint import Marks, with_marks
from trio_mq.store.queues import BaseQueue, BatchConsumeQueue
from trio_mq.store.queuetable import QueueTable
from trio_mq.store.segments import Segments, warmed
from trio_mq.store.store import StoreParts

log = logging.getLogger("trio_mq.recovery.apply")

#: Folder beside the log's segments for what was cut off; peers look at files only.
KEPT_FOLDER: Final = "cut"
_COPY_BYTES: Final = 1024 * 1024


# -- loading -------------------------------------------------------------------------------------------------


def load_queues(
    table: QueueTable, found: Iterable[tuple[str, int, bool]], *, mend: bool
) -> list[str]:
    """Make queues for the folders found (topic, queue id, batch or not). Returns notes.

    With `mend`, files that are short get their size: what they lack is filled from the log.

    Raises StoreDamaged where a folder has another kind of queue than the topic (Apache: queueTypeShouldBe).
    """
    notes: list[str] = []
    for topic, queue_id, batch in found:
        if batch != table.is_batch_topic(topic):
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


def cut_queue(queue: BaseQueue, log_end: int) -> str:
    """Remove the entries of records at or behind the log's end. Returns a note about it."""
    files, before = queue.files, queue.max_offset
    end = position_of(queue, log_end)
    files.open_at(end)
    _, queue.indexed_to, max_offset = last_record(files.segments, files.entry_bytes, end)
    if isinstance(queue, BatchConsumeQueue):
        # Without entries the count goes on from where the queue began (case C023).
        max_offset = max_offset if queue.indexed_to >= 0 else queue.min_offset
        queue.opened(min(queue.min_offset, max_offset), max_offset)
    files.segments.sync_call(end, end + 1)()
    return (
        f"queue {queue.topic}/{queue.queue_id} ends at offset {queue.max_offset} instead of {before}, "
        f"since the log ends at {log_end}"
    )


def tidy_queue(queue: BaseQueue, tail: QueueTail) -> None:
    """Remove what lies behind a queue's end: entries behind a hole that the log could not fill, empty files."""
    files = queue.files
    starts = files.segments.starts
    if starts and (tail.hole or (len(starts) > 1 and starts[-1] >= files.end)):
        files.segments.cut(files.end)
        files.segments.sync_call(files.end, files.end + 1)()


def settle_queue(queue: BaseQueue, log_start: int | None) -> None:
    """Set next and minimum offset; a log without any file (None) holds nothing of the queue."""
    queue.next_offset = queue.max_offset
    if log_start is None:
        queue.min_offset = queue.max_offset
    else:
        warmed(partial(queue.trim, log_start))


# -- the log -------------------------------------------------------------------------------------------------


def cut_log(segments: Segments, end: EndPlan) -> list[str]:
    """Remove everything behind the log's end from its files, so that no stale record comes back after another
    crash. Returns notes about files that are gone and copies that are kept.
    """
    notes: list[str] = []
    if end.keep_copy:
        path = keep_copy(segments, end)
        notes.append(f"what was cut off is kept in {path}")
    if segments.starts[-1] == end.log_end:
        # A new file without any record stays: the log has just rolled (case C029).
        segments.clear(end.log_end)
        return notes
    written_end = end.log_end + end.cut_bytes
    for start in [start for start in segments.starts if start >= written_end]:
        # Prepared for later; there is one after many a crash.
        log.info("%s was never written to and is removed", segments.drop_segment(start))
    removed = segments.cut(end.log_end)
    return notes + [f"{path} holds nothing before the log's end and is removed" for path in removed]


def keep_copy(segments: Segments, end: EndPlan) -> str:
    """Copy what is about to be cut off; returns the folder. Zeros are left out, as holes of the copies."""
    disk = segments.disk
    folder = f"{segments.directory}/{KEPT_FOLDER}"
    disk.make_dirs(folder)
    for start in segments.starts:
        begin, stop = max(start, end.log_end), start + segments.segment_bytes
        if begin >= stop or begin >= end.log_end + end.cut_bytes:
            continue
        path = f"{folder}/{begin:020d}"
        disk.remove(path)
        copy = disk.open(path, create=True)
        try:
            for at in range(begin, min(stop, end.log_end + end.cut_bytes), _COPY_BYTES):
                piece = segments.read(min(_COPY_BYTES, stop - at), at).rstrip(b"\0")
                if piece:
                    copy.write(piece, at - begin)
            copy.sync()
        finally:
            copy.close()
    disk.sync_dir(folder)
    return folder


# -- the index -----------------------------------------------------------------------------------------------


def prepare_index(parts: StoreParts, index_from: int | None, *, foreign: bool) -> list[str]:
    """Forget the keys that are inserted again, all of them when the files are of another log. Returns notes."""
    index = parts.index
    notes: list[str] = []
    if foreign:
        notes.append(f"the files in {index.directory} index another log: they are made anew")
        index.drop_all()
    elif index_from is not None:
        for text in index.truncate(index_from):
            log.info("%s", text)
    index.indexed_to = index.end_log_offset + 1 if index_from is None else index_from
    return notes


# -- durability ----------------------------------------------------------------------------------------------


def sync_all(parts: StoreParts, lanes: Iterable[Lane], begin: int, end: int) -> None:
    """Make the log from `begin` to `end` durable, then the entries and keys that point into it."""
    if not parts.log.segments.empty:
        parts.log.segments.sync_call(begin, end + 1)()
    for lane in lanes:
        files = lane.queue.files
        first = min(files.synced, lane.touched_from)
        if first < files.written:
            files.segments.sync_call(first, files.written)()
        files.synced = files.written
    sync_index = parts.index.sync_call()
    if sync_index is not None:
        sync_index()


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
