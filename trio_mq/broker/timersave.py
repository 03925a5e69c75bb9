"""Saves the timer's files while something changes, and at the end; removes those that nobody needs.

In: :meth:`TimerSaver.soon`. Out: files on the disk. Owned by :mod:`trio_mq.broker.timers`, which runs
:meth:`TimerSaver.run` in its nursery. A full disk is waited for; files that cannot be synced end the broker, since
nobody knows then what of them is on the disk. Source: Apache TimerMessageStore.TimerFlushService.
"""

from __future__ import annotations

import errno
import logging
from functools import partial
from typing import Final

import trio

from trio_mq.broker.tables import LoadedStateFile, StateFile
from trio_mq.broker.timermetrics import METRICS, TimerMetrics
from trio_mq.broker.timerstate import TimerState
from trio_mq.clock import Clock
from trio_mq.config import StoreSettings
from trio_mq.errors import StoreError
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.timers")

#: Time between two looks for files of the timer log that nobody needs, and between two saves of the counts by topic.
CLEAN_S: Final = 30.0
METRICS_S: Final = 10.0
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class TimerSaver:
    """Saves the timer of one store."""

    def __init__(
        self,
        store: Store,
        state: TimerState,
        metrics: TimerMetrics,
        settings: StoreSettings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._disk = store.parts.disk
        self._state = state
        self._settings = settings
        self._metrics = metrics
        directory = f"{settings.path}/config"
        self._unloaded = StateFile(self._disk, directory, METRICS, metrics, clock)
        self._metrics_file: LoadedStateFile[TimerMetrics] | None = None
        self._dirty = trio.Event()
        self._cleaned_s = self._counted_s = -1e9

    async def load(self) -> None:
        """Read what is there, and put it right."""
        self._metrics_file = await self._unloaded.load()
        await self._disk.run(partial(self._state.load, self._store.log))
        if not self._state.waiting and self._state.queue_offset < self._state.retake_before:
            self._metrics.count_anew()

    def soon(self) -> None:
        """Something has changed."""
        self._dirty.set()

    async def save(self) -> None:
        """Save all. OSError, and the next start goes on from the last checkpoint."""
        if not self._state.untouched:
            await self._state.save(self._store.flusher.sync_log)
            await self._save_metrics()

    async def run(self) -> None:
        """Save now and then until cancelled."""
        failing = False
        while True:
            await self._dirty.wait()
            await trio.sleep(self._settings.timer_flush_interval_ms / 1000)
            self._dirty = trio.Event()
            try:
                await self._state.save(self._store.flusher.sync_log)
                await self._save_metrics_now_and_then()
                await self._clean()
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                if not failing:
                    log.error("the timer's files cannot be saved: %s; it is tried again", error)
                failing = True
                self._dirty.set()
            else:
                failing = False

    async def _save_metrics_now_and_then(self) -> None:
        if trio.current_time() - self._counted_s >= METRICS_S:
            self._counted_s = trio.current_time()
            await self._save_metrics()

    async def _save_metrics(self) -> None:
        assert self._metrics_file is not None, "timers are saved after their start"
        try:
            await self._metrics_file.persist_if_changed()
        except StoreError as error:
            log.warning("%s; the counts of the next start may be wrong", error)

    async def _clean(self) -> None:
        """Remove files of the timer log whose messages have left the commit log."""
        if trio.current_time() - self._cleaned_s < CLEAN_S:
            return
        self._cleaned_s = trio.current_time()
        timer_log = self._state.log
        for segment in await self._disk.run(partial(timer_log.expired, self._store.log.start)):
            path = timer_log.segments.detach(segment)
            log.info("%s goes: its messages have left the commit log", path)
            await self._disk.run(partial(self._disk.remove, path))
