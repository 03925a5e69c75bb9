"""Saves the broker's tables: definitions soon after a change, progress now and then, all at the end.

In: loaded state files, and requests to save soon. Out: files on the disk, and the news that a change
is safe and the name servers know it. Owned by the broker, which runs :meth:`Saver.run` in its
nursery. A disk that is full or fails is no reason to stop serving: the files keep their last good
state, the failure is told, and the next round tries again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import trio

from trio_mq.broker.tables import BrokerTables, LoadedStateFile
from trio_mq.errors import StoreError
from trio_mq.net.requests import Call, Reply
from trio_mq.protocol.codes import ResponseCode

log = logging.getLogger("trio_mq.broker.saver")

RETRY_S: Final = 5.0
"""Time until a save that failed is tried again, unless somebody asks sooner."""

Done = Callable[[StoreError | None], None]


def respond_saved(call: Call, reply: Reply, error: StoreError | None) -> None:
    """Answer a change with `reply` once it is saved; or say that it is not, though it is in effect."""
    if error is not None:
        told = f"the change is in effect but not saved, a restart may lose it: {error}"
        reply = Reply(ResponseCode.SYSTEM_ERROR, remark=told)
    call.respond(reply)


@attrs.define(eq=False)
class _Periodic:
    """A file that is saved now and then; `before` brings its table up to date."""

    file: LoadedStateFile[Any]
    interval_s: float
    before: Callable[[], None] | None
    wanted: trio.Event = attrs.field(factory=trio.Event)

    def hurry(self) -> None:
        """Save at once."""
        self.wanted.set()


class Saver:
    """Saves tables in the background; `offsets_interval_s` is the period for consumer offsets."""

    def __init__(self, tables: BrokerTables, offsets_interval_s: float) -> None:
        self._tables = tables
        self._periodic: list[_Periodic] = []
        self.every(tables.offsets, offsets_interval_s)
        self._waiting: list[Done] = []
        self._wanted = trio.Event()
        self._failing: set[str] = set()
        #: Whether somebody waits for a change of topics or groups on its way to the disk.
        self.busy = False
        #: Waits until the name servers know of the changes, for some time; set by who registers us.
        self.published: Callable[[], Awaitable[None]] | None = None

    def soon(self, done: Done | None = None) -> None:
        """Save topics and groups soon; `done` hears when that has happened, or why it has not."""
        if done is not None:
            self._waiting.append(done)
            self.busy = True
        self._wanted.set()

    def every(
        self,
        file: LoadedStateFile[Any],
        interval_s: float,
        before: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Save a file now and then, if it has changed; `before` brings its table up to date. Called before a run.

        What is returned, when called, has the file saved at once rather than at the end of the interval.
        """
        periodic = _Periodic(file, interval_s, before)
        self._periodic.append(periodic)
        return periodic.hurry

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Save until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._save_definitions)
            for periodic in self._periodic:
                nursery.start_soon(self._save_periodically, periodic)
            task_status.started()

    async def close(self) -> None:
        """Save all that has changed, and raise the first failure once everything was tried.

        Called after :meth:`run` has ended, with a shield and a limit around it.
        """
        waiting, self._waiting = self._waiting, []
        error = await self._save_all(*self._tables.files)
        _tell(waiting, error)
        if error is not None:
            raise error

    async def _save_definitions(self) -> None:
        retry = False
        while True:
            with trio.move_on_after(RETRY_S if retry else float("inf")):
                await self._wanted.wait()
            self._wanted = trio.Event()
            # who asks from here on waits for the next round: this one may not have its change
            waiting, self._waiting = self._waiting, []
            tables = self._tables
            error = await self._save_all(tables.topics, tables.groups, tables.modes, tables.updates)
            retry = error is not None
            if waiting and self.published is not None:
                await self.published()
            self.busy = bool(self._waiting)
            _tell(waiting, error)

    async def _save_periodically(self, periodic: _Periodic) -> None:
        while True:
            with trio.move_on_after(periodic.interval_s):
                await periodic.wanted.wait()
            periodic.wanted = trio.Event()
            if periodic.before is not None:
                periodic.before()
            await self.save(periodic.file)

    async def _save_all(self, *files: LoadedStateFile[Any]) -> StoreError | None:
        """Try all of them; the first failure."""
        errors = [await self.save(file) for file in files]
        return next((error for error in errors if error is not None), None)

    async def save(self, file: LoadedStateFile[Any]) -> StoreError | None:
        """Save a file now if it has changed; why that failed, which is told in the log once."""
        try:
            await file.persist_if_changed()
        except StoreError as error:
            if file.path not in self._failing:  # once, not in every round
                self._failing.add(file.path)
                log.error("%s; its last good state stays, and saving is tried again", error)
            return error
        if file.path in self._failing:
            self._failing.discard(file.path)
            log.warning("%s is saved again", file.path)
        return None


def _tell(waiting: list[Done], error: StoreError | None) -> None:
    for done in waiting:
        done(error)
