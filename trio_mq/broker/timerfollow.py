"""The timer's progress on a slave: what its master says, kept in the files that a master starts from.

In: the master's checkpoint and counts. Out: ``config/timercheck`` and ``config/timermetrics``, and the same as answers.
Called by :mod:`trio_mq.broker.follow`. A slave keeps no wheel and no timer log, as it delivers nothing: its checkpoint
says so, and up to where the master was. Started as a master it takes the timer's queue anew and passes over what was
due, and so delivered, before (:mod:`trio_mq.broker.timerstate`). An Apache slave has a wheel of its own. Source: Apache
SlaveSynchronize.syncTimerCheckPoint, syncTimerMetrics.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs

from trio_mq.broker.statejson import is_older
from trio_mq.broker.tables import LoadedStateFile, StateFile
from trio_mq.broker.timermetrics import METRICS, TimerMetrics
from trio_mq.broker.timers import Timers
from trio_mq.clock import Clock
from trio_mq.errors import StoreError
from trio_mq.protocol.bodies import DataVersion
from trio_mq.store.disk import Disk
from trio_mq.store.timercheck import TimerCheckpoint


class TimerFollower:
    """Keeps the progress of a master's timers. `timers` are those of this broker, which do not run."""

    def __init__(self, disk: Disk, store_path: str, timers: Timers, clock: Clock) -> None:
        self._disk = disk
        self._state = timers.state
        self._state.following = True
        self._metrics = timers.metrics
        directory = f"{store_path}/config"
        self._unloaded = StateFile(disk, directory, METRICS, timers.metrics, clock)
        self._file: LoadedStateFile[TimerMetrics] | None = None
        self._anew = False

    async def load(self) -> None:
        """Read what is known from before; called once, first. StoreError if the disk does not hand it over."""
        self._file = await self._unloaded.load()
        try:
            await self._disk.run(self._state.check.load)
        except OSError as error:
            path = self._state.check.path
            raise StoreError(f"cannot read {path}: {error.strerror}") from error

    async def take_checkpoint(self, master: TimerCheckpoint) -> bool:
        """Keep the master's progress; False, and no change, if it is of a state before ours. StoreError if not saved.

        What the file says of a log and a wheel of this broker's own is taken back: from when it was a master itself.
        A next start as master compares every unit of them with the log, and uses what fits.
        """
        mine = self._state.check.value
        unversioned = _version(master) == DataVersion()
        if not unversioned and not self._anew and is_older(_version(master), _version(mine)):
            return False
        kept = attrs.evolve(master, log_end=0, queue_offset=0)
        if kept != mine:
            check = self._state.check
            try:
                await self._disk.run(partial(check.save, kept))
            except OSError as error:
                raise StoreError(f"cannot save {check.path}: {error.strerror}") from error
        self._anew = False
        return True

    def follow_anew(self) -> None:
        """The end of our log was given up, and what was delivered there: the next checkpoint counts whatever it is."""
        self._anew = True

    async def take_counts(self, value: Any) -> None:
        """Keep the master's counts. BodyError, and no change, if they are none; StoreError if not saved."""
        assert self._file is not None, "counts are loaded before they are saved"
        self._metrics.take_over(value)
        await self._file.persist_if_changed()


def _version(checkpoint: TimerCheckpoint) -> DataVersion:
    return DataVersion(checkpoint.changes, checkpoint.state_version, checkpoint.changed_ms)
