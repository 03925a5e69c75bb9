"""Durability: what moves bytes from the page cache to the disk, and who is told.

In: the written end of the log. Out: the durable end, the durable queues and index, and the checkpoint that says
so. Owns two tasks: one for the log, one for everything that is derived from it. Syncs run in worker threads; one
sync covers all that was written before it began, so senders under sync flush share it (group commit).
Rules: Apache CommitLog.GroupCommitService, FlushRealTimeService, DefaultMessageStore.FlushConsumeQueueService.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import attrs
import trio

from trio_mq.config import FlushDiskType, StoreSettings
from trio_mq.store.checkpoint import CheckpointFile, with_index_safe_offset
from trio_mq.store.dispatch import Dispatcher
from trio_mq.store.entries import EntryFiles
from trio_mq.store.index import KeyIndex
from trio_mq.store.log import CommitLog
from trio_mq.store.queuetable import QueueTable
from trio_mq.store.times import Times

log = logging.getLogger("trio_mq.store.flush")

#: How often waiters of a sync flush are looked at for their deadline.
DEADLINE_SCAN_S = 0.1
PAGE_BYTES = 4096
#: Time between two syncs of the key index: its pages are many and lie anywhere. A crash costs that much indexing.
INDEX_SYNC_S = 10.0
#: Queues with less than this that is new are left for later, but not for longer than :data:`QUEUES_SYNC_S`
#: (Apache: flushConsumeQueueLeastPages, flushConsumeQueueThoroughInterval).
QUEUE_LEAST_BYTES = 2 * PAGE_BYTES
QUEUES_SYNC_S = 60.0
#: Time until the next segment's file is tried again after there was no room for it.
SPARE_RETRY_S = 10.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Waiter(NamedTuple):
    """Somebody who waits until the log is durable up to `offset`; `done` is called with False at the deadline."""

    offset: int
    deadline_s: float
    done: Callable[[bool], None]


class Flusher:
    """Makes a store's files durable, by the interval or for each group of messages."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
        dispatcher: Dispatcher,
        checkpoint: CheckpointFile,
        settings: StoreSettings,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self._saved = checkpoint.value
        self._unsaved = False
        self._settings = settings
        self.is_sync = settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._waiters: deque[Waiter] = deque()
        self._wanted = trio.Event()
        self._waiting = trio.Event()
        self._one_sync = trio.Lock()
        #: Held while queues, index and checkpoint are synced, or the next segment is prepared.
        self._one_derived = trio.Lock()
        self._spare_from_s = -1e9
        #: Log offsets before which queues and index are durable; -1 until a sync has told.
        self._queues_to = self._index_to = -1
        #: Log offset up to which they are wanted to be, soon.
        self._wanted_to = -1
        self._list_failing = False
        #: Store time of the newest record that is written, ms.
        self.newest_ms = 0
        #: Called after the durable end moved.
        self.durable_moved: Callable[[], None] | None = None
        #: Called when a sync failed: what is on the disk is unknown from then on.
        self.failed: Callable[[OSError], None] | None = None
        #: How long syncs of the log took.
        self.times = Times("syncing the commit log")
        self._syncing_since_s: float | None = None

    def wait_durable(self, offset: int, done: Callable[[bool], None]) -> None:
        """Call `done(True)` once the log is durable up to `offset`, or `done(False)` after the time limit."""
        if self._log.durable.value >= offset:
            done(True)
            return
        deadline = trio.current_time() + self._settings.sync_flush_timeout_ms / 1000
        self._waiters.append(Waiter(offset, deadline, done))
        self._wanted.set()
        self._waiting.set()

    def written(self) -> None:
        """The log has grown; under sync flush a sync is due whether somebody waits or not."""
        if self.is_sync:
            self._wanted.set()

    def slow_text(self) -> str:
        """What a sender who waited too long should know (case C097): the stage and its time."""
        if self._syncing_since_s is not None:
            so_far_s = trio.current_time() - self._syncing_since_s
            return f"{self.times.stage} has taken {1000 * so_far_s:.0f} ms so far"
        return f"{self.times.stage} took {1000 * self.times.last_s:.0f} ms the last time"

    def thorough_soon(self) -> None:
        """Sync all queues and the index soon: after a crash no record from before is dispatched again."""
        self._wanted_to = self._dispatcher.dispatched

    # -- the log ---------------------------------------------------------------------------------------------

    async def run_log(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Sync the log until cancelled."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_deadlines)
            if self.is_sync:
                await self._sync_when_wanted()
            else:
                await self._sync_by_interval()

    async def _sync_when_wanted(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await self.sync_log()

    async def _sync_by_interval(self) -> None:
        settings = self._settings
        thorough_s = settings.flush_commit_log_thorough_interval_ms / 1000
        least_bytes = settings.flush_commit_log_least_pages * PAGE_BYTES
        last_s = trio.current_time()
        while True:
            await trio.sleep(settings.flush_interval_commit_log_ms / 1000)
            behind = self._log.written - self._log.durable.value
            thorough = trio.current_time() - last_s >= thorough_s
            if behind and (thorough or behind >= least_bytes or self._waiters):
                await self.sync_log()
                last_s = trio.current_time()

    async def sync_log(self) -> None:
        """Make everything durable that is written by now, and tell who waits for it."""
        try:
            self._one_sync.acquire_nowait()
        except trio.WouldBlock:
            await self._one_sync.acquire()  # what the other one covers is not synced again
        try:
            await self._sync_log()
        finally:
            self._one_sync.release()
        durable, waiters = self._log.durable.value, self._waiters
        while waiters and waiters[0].offset <= durable:
            waiters.popleft().done(True)

    async def _sync_log(self) -> None:
        commit_log = self._log
        begin, end, newest_ms = commit_log.durable.value, commit_log.written, self.newest_ms
        if end <= begin:
            return
        began_s = self._syncing_since_s = trio.current_time()
        try:
            await commit_log.disk.run(commit_log.segments.sync_call(begin, end))
        except OSError as error:
            self._lost(error, "the commit log")
            raise
        finally:
            self._syncing_since_s = None
        self.times.add(trio.current_time() - began_s)
        commit_log.durable.advance(max(end, commit_log.durable.value))
        value = self._checkpoint.value
        self._checkpoint.value = attrs.evolve(
            value, physic_timestamp_ms=max(value.physic_timestamp_ms, newest_ms)
        )
        if self.durable_moved is not None:
            self.durable_moved()

    def _lost(self, error: OSError, what: str) -> None:
        # After a failed sync the kernel may have dropped the pages: trust nothing that follows.
        log.critical("%s cannot be synced: %s", what, error)
        if self.failed is not None:
            self.failed(error)

    async def _watch_deadlines(self) -> None:
        while True:
            await self._waiting.wait()
            while self._waiters:
                await trio.sleep(DEADLINE_SCAN_S)
                while self._waiters and self._waiters[0].deadline_s <= trio.current_time():
                    self._waiters.popleft().done(False)
            self._waiting = trio.Event()

    # -- the next segment, queues, index, checkpoint ---------------------------------------------------------

    async def run_derived(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Sync queues, index and checkpoint, and prepare the next log segment, until cancelled."""
        task_status.started()
        queues_s = index_s = -1e9  # the first round is thorough: what recovery wrote is synced soon
        while True:
            await trio.sleep(self._settings.flush_interval_consume_queue_ms / 1000)
            async with self._one_derived:
                await self._prepare_spare()
            now_s = trio.current_time()
            # The keys may not be in the index yet; then the next round is wanted, too.
            wanted = min(self._queues_to, self._index_to) < self._wanted_to
            thorough = wanted or now_s - queues_s >= QUEUES_SYNC_S
            with_index = wanted or now_s - index_s >= INDEX_SYNC_S
            await self.sync_derived(thorough=thorough, with_index=with_index)
            queues_s = now_s if thorough else queues_s
            index_s = now_s if with_index else index_s

    async def _prepare_spare(self) -> None:
        if not self._log.spare_needed() or trio.current_time() < self._spare_from_s:
            return
        try:
            await self._log.make_spare()
        except OSError as error:
            # Nothing is lost yet: the log itself refuses messages when it has to roll without room.
            self._spare_from_s = trio.current_time() + SPARE_RETRY_S
            log.warning("the next log segment cannot be prepared: %s", error)

    async def sync_derived(self, *, thorough: bool = True, with_index: bool = True) -> None:
        """Make queues and index durable as far as they are written, then say so in the checkpoint.

        Unless `thorough`, queues with little that is new are left for later.
        """
        async with self._one_derived:
            await self._sync_derived(thorough=thorough, with_index=with_index)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """A block during which nothing is synced and no file is made, however long it takes."""
        async with self._one_derived, self._one_sync:
            yield

    def cut_back(self, end: int, newest_ms: int) -> None:
        """The log ends earlier now, and so do queues and index; store time of its newest record, ms."""
        self._queues_to, self._index_to = min(self._queues_to, end), min(self._index_to, end)
        self._wanted_to = min(self._wanted_to, end)
        self.newest_ms = newest_ms

    async def _sync_derived(self, *, thorough: bool, with_index: bool) -> None:
        dispatcher, index = self._dispatcher, self._index
        newest_ms, dispatched = dispatcher.newest_ms, dispatcher.dispatched
        complete = dispatcher.write_tails()
        calls: list[Callable[[], None]] = []
        synced: list[tuple[EntryFiles, int]] = []
        for queue in self._queues:
            files = queue.files
            behind = files.written - files.synced
            if behind <= 0:
                continue
            if behind < QUEUE_LEAST_BYTES and not thorough:
                complete = False
                continue
            calls.append(files.segments.sync_call(files.synced, files.written))
            synced.append((files, files.written))
        index_ms, indexed_to = index.end_timestamp_ms, index.indexed_to
        index_call = index.sync_call() if with_index else None
        if index_call is not None:
            calls.append(index_call)
        # Queue entries must never be durable before the records that they point to.
        await self.sync_log()
        if calls:
            try:
                await self._log.disk.run(lambda: _run_all(calls))
            except OSError as error:
                self._lost(error, "queues or index")
                raise
        for files, written in synced:
            files.synced = max(files.synced, written)
        await self._list_queues()
        if complete:
            self._queues_to = dispatched
        if with_index:
            self._index_to = indexed_to if dispatcher.index_enabled else dispatched
        self._note_durable(newest_ms if complete else 0, index_ms if with_index else None)
        await self._save_checkpoint()

    async def _list_queues(self) -> None:
        """Note which queues there are, before the checkpoint counts on their files."""
        due = self._queues.unlisted()
        if due is None:
            return
        try:
            roster = self._queues.roster
            await self._log.disk.run(partial(roster.save, due, as_of=roster.deletions))
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            if not self._list_failing:  # once, not in every round
                log.warning(
                    "the list of queues cannot be written: %s; a lost one may go unnoticed", error
                )
            self._list_failing = True
        else:
            self._list_failing = False

    def _note_durable(self, newest_ms: int, index_ms: int | None) -> None:
        """Put into the checkpoint how far log, queues and index are durable; nothing there may run ahead of them."""
        value = self._checkpoint.value
        value = attrs.evolve(
            value,
            logics_timestamp_ms=max(value.logics_timestamp_ms, newest_ms),
            index_timestamp_ms=value.index_timestamp_ms if index_ms is None else index_ms,
            confirm_log_offset=max(value.confirm_log_offset, self._log.durable.value),
        )
        safe = min(self._queues_to, self._index_to)
        self._checkpoint.value = value if safe < 0 else with_index_safe_offset(value, safe)

    async def _save_checkpoint(self) -> None:
        value = self._checkpoint.value
        if value == self._saved:
            return
        try:
            await self._log.disk.run(self._checkpoint.save)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            # An old checkpoint only makes the next start look at more.
            if not self._unsaved:
                log.error("the checkpoint cannot be written: %s", error)
            self._unsaved = True
            if self.failed is not None:
                self.failed(error)
        else:
            self._saved = value
            self._unsaved = False


def _run_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()
