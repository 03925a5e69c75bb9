"""The log of a slave: bytes of the master's appended as they come, then taken over into queues and index.

In: pieces of the master's log. Out: the same bytes at the same offsets, and entries of all whole records among them, as
:mod:`trio_mq.ha.takeover` makes them. Called by :mod:`trio_mq.ha.masterlink`; :meth:`LogCopy.run` is a task beside the
store's. The loop's thread appends; nobody else does on a slave.

A log may end in the middle of a record, since pieces are cut anywhere: what is there of it waits for the rest. Rules:
Apache CommitLog.appendData, DefaultMessageStore.appendToCommitLog, ReputMessageService.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from trio_mq.errors import StoreError
from trio_mq.ha.cutback import cut_store
from trio_mq.ha.takeover import Takeover
from trio_mq.store.store import Store
from trio_mq.tasks import Watermark

log = logging.getLogger("trio_mq.ha")

#: Time that a clean stop gives to the records that are not taken over yet; the next start goes on with them.
FINISH_LIMIT_S: Final = 2.0
#: Time that a cut of the log may take before a stop no longer waits for it.
CUT_LIMIT_S: Final = 60.0


class LogsDiffer(StoreError):
    """Bytes that do not continue this log: another offset, or other sizes of files."""


class LogCopy:
    """The log of a store, as the copy of another one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._log = store.log
        self._is_sync = store.is_sync
        #: Everything before is here: written, or with SYNC_FLUSH durable. What a slave reports.
        self.kept = Watermark(store.confirmed)
        self._takeover = Takeover(store)
        store.confirmed_moved = self._confirmed_moved

    @property
    def end(self) -> int:
        """Where the next byte goes; 0 in an empty log."""
        return self._log.written

    @property
    def segment_bytes(self) -> int:
        """Length of the log's files."""
        return self._log.segments.segment_bytes

    @property
    def dispatched(self) -> int:
        """Log offset up to which records are in their queues."""
        return self._takeover.at

    @property
    def damage(self) -> str | None:
        """What was no record, though all its bytes are there, where that happened last; None while all was well."""
        return self._takeover.damage

    def append(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes at the end of the log, which has to be `offset`; an empty log begins there.

        LogsDiffer when they do not belong there, OSError when the disk does not take them; nothing has changed then.
        """
        commit_log, end = self._log, self._log.end
        if offset != end:
            if end or offset < 0:
                raise LogsDiffer(f"bytes for offset {offset} came, but the log ends at {end}")
            if not data and offset % self.segment_bytes:
                return  # not a place where a log begins
        begin = offset % self.segment_bytes
        if begin + len(data) > self.segment_bytes:
            raise LogsDiffer(
                f"{len(data)} bytes for offset {offset} lead out of a log file, and these have {self.segment_bytes} "
                f"bytes here: the other log has larger ones (mappedFileSizeCommitLog)"
            )
        if offset == end and not data:
            return
        try:
            commit_log.copy(data, offset)
        except OSError as error:
            self._store.cleaner.write_failed(error)
            raise
        if not end and offset:
            self._takeover.begin(offset)
        self._grown()

    def _grown(self) -> None:
        store = self._store
        if self._is_sync:
            store.flusher.written()
        else:
            self.kept.advance(self._log.written)
            self._takeover.more.set()
        if store.grown is not None:
            store.grown()

    def _confirmed_moved(self) -> None:
        """The durable end has moved."""
        if self._is_sync:
            self.kept.advance(self._log.durable.value)
            self._takeover.more.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take whole records over into queues and index until cancelled."""
        task_status.started()
        await self._takeover.run()

    async def close(self) -> None:
        """End the log with its last whole record, so that the next start finds nothing odd.

        Called after :meth:`run` has ended, before the store closes. Where that takes too long, or does not work, the
        abort marker stays: the next start cuts what is no record.
        """
        store = self._store
        store.unclean = "what was copied from the master is not taken over to its end"
        with trio.move_on_after(FINISH_LIMIT_S, shield=True):
            try:
                await store.flusher.sync_log()
                if await self._takeover.finish():
                    await self._cut_tail(self._takeover.at)
                    store.unclean = None
            except OSError as error:
                log.error("the log of this slave cannot be cut to its last record: %s", error)

    async def cut_to(self, offset: int) -> None:
        """Give up everything from an offset on, where a record begins or ends: log, queues and index end there.

        What is cut goes to the quarantine, as during a start. A sudden end at any moment leaves a store that the next
        start recovers, with what is cut or without. Nothing may be appended meanwhile. OSError or StoreError when the
        disk does not take it: then nothing is cut, or only whole files at the end. Cancelling waits for its end.
        """
        if not self._log.start <= offset <= self.end:
            raise LogsDiffer(
                f"the log cannot be cut at {offset}: it goes from {self._log.start} to {self.end}"
            )
        if offset == self.end:
            return
        store = self._store
        store.unclean = f"the log was being cut at {offset}"
        with trio.move_on_after(CUT_LIMIT_S, shield=True):
            async with self._takeover.paused(), store.flusher.paused():
                try:
                    await cut_store(store, offset)
                    store.unclean = None
                finally:
                    self._takeover.rewind(offset)
                    self.kept.fall_back(store.confirmed)
        if store.unclean is not None:
            raise StoreError(f"{store.unclean}, which took more than {CUT_LIMIT_S:g} s")

    async def _cut_tail(self, end: int) -> None:
        """Make the part of a record that the log ends with zeros, durably."""
        commit_log, size = self._log, self._log.written - end
        if size <= 0:
            return
        log.info("the log ends with %d bytes of a record that is not whole: they are cut off", size)
        commit_log.segments.write(bytes(size), end)
        commit_log.cut_back(end)
        await commit_log.disk.run(commit_log.segments.sync_call(end, end + size))
