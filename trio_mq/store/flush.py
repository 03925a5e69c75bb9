"""Durability: what moves bytes from the page cache to the disk, and who is told.

In: the written end of the log. Out: the durable end, the durable queues and index, and the checkpoint that says
so. Owns two tasks: one for the log, one for everything that is derived from it. Syncs run in worker threads; one
sync covers all that was written before it began, so senders under sync flush share it (group commit).
Rules: Apache CommitLog.GroupCommitService, FlushRealTimeService, DefaultMessageStore.FlushConsumeQueueService.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import attrs
import trio

from trio_mq.config import FlushDiskType, StoreSettings
from trio_mq.store.checkpoint import CheckpointFile, with_index_safe_offset
from trio_mq.store.dispatch import Dispatcher
from trio_mq.store.index import KeyIndex
from trio_mq.store.log import CommitLog
from trio_mq.store.queues import QueueTable

log = logging.getLogger("trio_mq.store.flush")

#: How often waiters of a sync flush are looked at for their deadline.
DEADLINE_SCAN_S = 0.1
PAGE_BYTES = 4096


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
        self._settings = settings
        self.is_sync = settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._waiters: deque[Waiter] = deque()
        self._wanted = trio.Event()
        #: Store time of the newest record that is written, ms.
        self.newest_ms = 0
        #: Called after the durable end moved.
        self.durable_moved: Callable[[], None] | None = None
        #: Called when a sync failed: what is on the disk is unknown from then on.
        self.failed: Callable[[OSError], None] | None = None
        #: Time of the last sync of the log, seconds.
        self.last_sync_s = 0.0

    def wait_durable(self, offset: int, done: Callable[[bool], None]) -> None:
        """Call `done(True)` once the log is durable up to `offset`, or `done(False)` after the time limit."""
        if self._log.durable.value >= offset:
            done(True)
            return
        deadline = trio.current_time() + self._settings.sync_flush_timeout_ms / 1000
        self._waiters.append(Waiter(offset, deadline, done))
        self._wanted.set()

    def written(self) -> None:
        """The log has grown; under sync flush a sync is due whether somebody waits or not."""
        if self.is_sync:
            self._wanted.set()

    # -- the log ---------------------------------------------------------------------------------------------

    async def run_log(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Sync the log until cancelled."""
        task_status.started()
        if self.is_sync:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_deadlines)
                while True:
                    await self._wanted.wait()
                    self._wanted = trio.Event()
                    await self.sync_log()
        settings = self._settings
        thorough_s = settings.flush_commit_log_thorough_interval_ms / 1000
        least_bytes = settings.flush_commit_log_least_pages * PAGE_BYTES
        last = trio.current_time()
        while True:
            await trio.sleep(settings.flush_interval_commit_log_ms / 1000)
            behind = self._log.written - self._log.durable.value
            thorough = trio.current_time() - last >= thorough_s
            if behind and (thorough or behind >= least_bytes):
                await self.sync_log()
                last = trio.current_time()
            if self._log.spare_needed():
                await self._log.disk.run(self._log.make_spare)

    async def sync_log(self) -> None:
        """Make everything durable that is written by now, and tell who waits for it."""
        commit_log = self._log
        begin, end, newest_ms = commit_log.durable.value, commit_log.written, self.newest_ms
        if end > begin:
            before = trio.current_time()
            try:
                await commit_log.disk.run(commit_log.segments.sync_call(begin, end))
            except OSError as error:
                # After a failed sync the kernel may have dropped the pages: trust nothing that follows.
                log.critical("the commit log cannot be synced: %s", error)
                if self.failed is not None:
                    self.failed(error)
                raise
            self.last_sync_s = trio.current_time() - before
            commit_log.durable.advance(max(end, commit_log.durable.value))
            value = self._checkpoint.value
            self._checkpoint.value = attrs.evolve(
                value, physic_timestamp_ms=max(value.physic_timestamp_ms, newest_ms)
            )
            if self.durable_moved is not None:
                self.durable_moved()
        self._release()
        if self.is_sync and commit_log.spare_needed():
            await commit_log.disk.run(commit_log.make_spare)

    def _release(self) -> None:
        durable, waiters = self._log.durable.value, self._waiters
        while waiters and waiters[0].offset <= durable:
            waiters.popleft().done(True)

    async def _watch_deadlines(self) -> None:
        while True:
            await trio.sleep(DEADLINE_SCAN_S)
            while self._waiters and self._waiters[0].deadline_s <= trio.current_time():
                self._waiters.popleft().done(False)

    # -- queues, index, checkpoint ---------------------------------------------------------------------------

    async def run_derived(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Sync queues, index and checkpoint until cancelled."""
        task_status.started()
        interval_s = self._settings.flush_interval_consume_queue_ms / 1000
        while True:
            await trio.sleep(interval_s)
            await self.sync_derived()

    async def sync_derived(self) -> None:
        """Make queues and index durable as far as they are written, then say so in the checkpoint."""
        calls: list[Callable[[], None]] = []
        newest_ms = 0
        synced = []
        for queue in self._queues:
            files = queue.files
            if files.synced < files.written:
                calls.append(files.segments.sync_call(files.synced, files.written))
                synced.append((files, files.written))
        if not self._queues.dirty:
            newest_ms = self._dispatcher.newest_ms
        index_call = self._index.sync_call()
        index_safe, index_ms = self._index.indexed_to, self._index.end_timestamp_ms
        if index_call:
            calls.append(index_call)
        if not calls and not self._moved(newest_ms):
            return
        # Queue entries must never be durable before the records that they point to.
        await self.sync_log()

        def sync_all() -> None:
            for call in calls:
                call()

        await self._log.disk.run(sync_all)
        for files, written in synced:
            files.synced = max(files.synced, written)
        value = self._checkpoint.value
        value = attrs.evolve(
            value,
            logics_timestamp_ms=max(value.logics_timestamp_ms, newest_ms),
            confirm_log_offset=max(value.confirm_log_offset, self._log.durable.value),
        )
        if index_call:
            value = with_index_safe_offset(value, index_safe)
            value = attrs.evolve(value, index_timestamp_ms=index_ms)
        self._checkpoint.value = value
        await self._log.disk.run(self._checkpoint.save)

    def _moved(self, newest_ms: int) -> bool:
        value = self._checkpoint.value
        return newest_ms > value.logics_timestamp_ms
