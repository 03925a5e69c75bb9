"""The cleaner: lets old segments go, and decides when messages are refused for want of room.

In: the disk's usage and the age of segments, once per interval; writes that failed, from the rest of the store. Out:
:attr:`Cleaner.refusal`, which appends look at, and news about what expired. Owns one task, :meth:`Cleaner.run`.
Rules: Apache DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService, IndexService.deleteExpiredFile.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from functools import partial

import trio

from trio_mq.clock import Clock
from trio_mq.config import StoreSettings
from trio_mq.store import retention
from trio_mq.store.disk import Disk
from trio_mq.store.dispatch import Dispatcher
from trio_mq.store.index import KeyIndex
from trio_mq.store.log import CommitLog
from trio_mq.store.queues import BaseQueue
from trio_mq.store.queuetable import QueueTable
from trio_mq.store.retention import Expired, Pressure, RaisedMinimum
from trio_mq.store.segments import ColdData

log = logging.getLogger("trio_mq.store.cleaner")

#: Pause between two removed segments (Apache: deleteCommitLogFilesInterval).
REMOVE_PAUSE_S = 0.1
#: Written to find out whether the disk takes writes again, beside what is tried at the log's end.
PROBE_BYTES = 64 * 1024


class Cleaner:
    """Watches the room of one store."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
        dispatcher: Dispatcher,
        settings: StoreSettings,
        clock: Clock,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._settings = settings
        self._clock = clock
        self._disk: Disk = commit_log.disk
        #: Why no message is taken, None if they are.
        self.refusal: str | None = None
        #: Why none is ever taken, whatever the disk does; None where some are.
        self._always: str | None = None
        #: Whether :attr:`refusal` comes from a write that failed; then only a write that works ends it.
        self._write_failed = False
        #: Called after segments expired.
        self.expired: Callable[[Expired], None] | None = None

    def refuse_always(self, reason: str) -> None:
        """Take no messages, whatever room there is."""
        self._always = self.refusal = reason

    @property
    def trouble(self) -> str | None:
        """What of the disk keeps messages from being taken, None when it is well."""
        return None if self.refusal == self._always else self.refusal

    def write_failed(self, error: OSError) -> None:
        """A write to the store's files did not work: take no messages until one does."""
        path = error.filename or self._settings.path
        try:
            usage = self._disk.usage(self._settings.path)
        except OSError:
            usage = None
        reason = error.strerror or str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        refusal = retention.write_refusal(str(path), reason, usage, self._settings, full=full)
        if not self._write_failed:
            log.error("%s", refusal)
        self._write_failed = True
        self.refusal = refusal

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Clean once per interval until cancelled."""
        task_status.started()
        log.info("%s", self.schedule_text())
        while True:
            try:
                await self.clean()
            except OSError as error:
                log.error("old files cannot be cleaned: %s; tried again at the next turn", error)
            await trio.sleep(self._settings.clean_resource_interval_ms / 1000)

    def schedule_text(self) -> str:
        """When and which old segments go, for people (cases C059, C080)."""
        settings = self._settings
        following = retention.next_cleaning(self._clock.now_ms(), settings.delete_when)
        hours = ", ".join(f"{hour:02d}" for hour in settings.delete_when)
        return (
            f"log segments expire {settings.file_reserved_time_hours} h after their last write "
            f"(fileReservedTime), in hour {hours} of the day (deleteWhen); next time {following}"
        )

    # -- one round -------------------------------------------------------------------------------------------

    async def clean(self) -> None:
        """Look at the disk, refuse or take messages again, and remove what has expired."""
        pressure = await self._pressure()
        await self._decide(pressure)
        segments = self._log.segments
        starts = segments.starts
        if len(starts) < 2:
            return
        ages = await self._disk.run(
            lambda: [(start, self._disk.modified_ms(segments.path(start))) for start in starts]
        )
        now_ms = self._clock.now_ms()
        expired = retention.expired_segments(
            ages,
            now_ms,
            pressure,
            on_schedule=retention.is_cleaning_hour(now_ms, self._settings.delete_when),
            settings=self._settings,
        )
        if expired:
            await self._remove(expired, dict(ages), pressure)

    async def _pressure(self) -> Pressure:
        settings = self._settings
        pressure = Pressure()
        for path in {settings.path, settings.commit_log_dir}:
            if self._disk.is_dir(path):
                usage = await self._disk.run(partial(self._disk.usage, path))
                pressure = retention.worse(pressure, retention.judge_usage(usage, path, settings))
        return pressure

    async def _decide(self, pressure: Pressure) -> None:
        """Refuse messages, or take them again."""
        trouble = pressure.refuse
        if self._write_failed:
            if not await self._can_write():
                trouble = self.trouble
            else:
                self._write_failed = False
        if trouble == self.trouble:
            return
        if trouble is None:
            log.warning("there is room again for %s: messages are taken", self._settings.path)
        elif self.trouble is None:
            log.error("%s", trouble)
        self.refusal = trouble if trouble is not None else self._always

    async def _can_write(self) -> bool:
        """Whether what failed works again: the log at its end, what is left of queues and index, a new file."""
        if self._dispatcher.is_failing and not self._dispatcher.retry():
            return False
        path = f"{self._settings.path}/probe"
        try:
            self._log.probe()
            await self._disk.run(lambda: _write_file(self._disk, path))
            if self._log.needs_segment():
                await self._log.make_spare()
        except OSError as error:
            log.warning("the disk still takes no writes: %s", error)
            return False
        return True

    async def _remove(
        self, expired: list[int], ages_ms: dict[int, int], pressure: Pressure
    ) -> None:
        """Remove segments with a pause after each, and no more than it takes when that is for room."""
        segments = self._log.segments
        settings, now_ms = self._settings, self._clock.now_ms()
        begin = end = segments.start
        forced = False
        for start in expired:
            old = now_ms - ages_ms[start] >= settings.file_reserved_time_hours * retention.HOUR_MS
            if not old and not (await self._pressure()).forced:
                break
            forced = forced or not old
            end = start + segments.segment_bytes
            path = segments.detach(start)
            log.warning(
                "log segment %s expires (%s): offsets %d to %d",
                path,
                f"older than {settings.file_reserved_time_hours} h"
                if old
                else "room is very short, diskSpaceCleanForciblyRatio",
                start,
                end,
            )
            await self._disk.run(partial(self._disk.remove, path))
            await trio.sleep(REMOVE_PAUSE_S)
        if end > begin:
            raised = await self.trim()
            if self.expired is not None:
                self.expired(Expired(begin, end, forced, tuple(raised)))

    async def trim(self) -> list[RaisedMinimum]:
        """Let queues and index follow the start of the log. Returns the queues that lost messages."""
        start = self._log.start
        raised: list[RaisedMinimum] = []
        for queue in self._queues:
            before = queue.min_offset
            await run_warmed(self._disk, partial(_trim, queue, start))
            if queue.min_offset > before:
                raised.append(RaisedMinimum(queue.topic, queue.queue_id, before, queue.min_offset))
        self._index.expire(start)
        return raised


def _trim(queue: BaseQueue, log_start: int) -> None:
    if not queue.dropped:
        queue.trim(log_start)


def _write_file(disk: Disk, path: str) -> None:
    """Write and remove a file, on the disk and not only in memory."""
    file = disk.open(path, create=True)
    try:
        file.write(bytes(PROBE_BYTES), 0)
        file.sync()
    finally:
        file.close()
        disk.remove(path)


async def run_warmed(disk: Disk, call: Callable[[], object]) -> None:
    """Run a synchronous call that may need data from the disk, as often as it takes."""
    await trio.lowlevel.checkpoint()
    while True:
        try:
            call()
        except ColdData as cold:
            await disk.run(cold.warm)
        else:
            return
