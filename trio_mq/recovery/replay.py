"""Giving queues and index what they lack, from the records of the log, during a start.

In: the parts of a store whose queues are open at the ends that a scan found, and a walk. Out: entries and keys in
memory and in files, as :mod:`trio_mq.recovery.feed` makes them; what is known already is only compared, so a replay may
begin too early, and again. Called by :mod:`trio_mq.recovery.recover`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import trio

from trio_mq.protocol.layout import QUEUE_ENTRY_SIZE
from trio_mq.recovery.feed import Feed, Gap
from trio_mq.recovery.lanes import Lane
from trio_mq.recovery.lots import Lot
from trio_mq.recovery.walk import Walk
from trio_mq.store.dispatch import Dispatcher
from trio_mq.store.multidispatch import QUEUE_ID, further_queues
from trio_mq.store.queues import BaseQueue
from trio_mq.store.store import StoreParts
from trio_mq.tasks import first_failure

log = logging.getLogger("trio_mq.recovery.replay")

#: Time between two progress lines of a long replay; then what is done is kept, too (case C019).
PROGRESS_S: Final = 5.0
#: Bytes of the log that are gone over in one go; between two goes a stop is noticed.
STEP_BYTES: Final = 4 * 1024 * 1024
#: Records whose keys may wait for the index.
INDEX_BACKLOG: Final = 4096


def _failed(error: OSError) -> None:
    # Nobody tries again during a start.
    raise error


class Replay:
    """Feeds a dispatcher with the records of walks.

    `keep` gives a blocking call that makes durable what is done so far. `trusted` says that the entries in the
    queues' files are durable, as after a clean stop. `copied` as in :class:`trio_mq.recovery.choices.Choices`.
    `progress` is told how far the log was gone over, and how far it goes at least.
    """

    def __init__(
        self,
        parts: StoreParts,
        *,
        index_enabled: bool,
        known_end: int,
        known_to: int,
        trusted: bool,
        copied: bool,
        keep: Callable[[Walk], Callable[[], None]],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._parts = parts
        self._known_end = known_end
        #: Records before have their entries and keys: they are only looked at.
        self.known_to = known_to
        self._keep = keep
        self._keeping = False
        self._progress = progress
        self._dispatcher = Dispatcher(parts.queues, parts.index, index_enabled=index_enabled)
        self._dispatcher.failed = _failed
        # Records may be in further queues (LMQ), which get their entries from the dispatcher.
        if parts.settings.enable_lmq and parts.settings.enable_multi_dispatch:
            self._dispatcher.further = self._further
        self._feed = Feed(
            *(parts.log, parts.queues, self._dispatcher, parts.settings.delay_levels_ms),
            trusted=trusted,
            copied=copied,
        )
        self._feed.load_bulk()

    @property
    def lanes(self) -> list[Lane]:
        """The queues that records were seen for."""
        return self._feed.lanes

    @property
    def notes(self) -> list[str]:
        """What was odd about records, for people."""
        return self._feed.notes

    @property
    def mended(self) -> int:
        """How many entries were torn, and are written again."""
        return self._feed.mended

    async def run(self, walk: Walk, *, fill_gaps: bool) -> Gap | None:
        """Take the walk to its end; ends early with a gap, unless gaps are to be filled with blank entries."""
        try:
            async with trio.open_nursery() as nursery:
                return await self._run(walk, nursery, fill_gaps=fill_gaps)
        except BaseExceptionGroup as group:
            raise first_failure(group) from None

    async def _run(self, walk: Walk, nursery: trio.Nursery, *, fill_gaps: bool) -> Gap | None:
        disk, lots = self._parts.disk, walk.lots()
        kept_s = trio.current_time()
        while True:
            goes_on, gap = await disk.run(partial(self._step, lots, fill_gaps=fill_gaps))
            if gap is not None or not goes_on:
                await disk.run(self._dispatcher.finish)
                return gap
            if self._progress is not None:
                self._progress(walk.end, max(self._known_end, walk.end))
            if trio.current_time() - kept_s > PROGRESS_S and not self._keeping:
                self._tell(walk)
                await disk.run(self._dispatcher.finish)
                # Records are taken over while the disk syncs what was done before.
                self._keeping = True
                nursery.start_soon(self._keep_done, self._keep(walk))
                kept_s = trio.current_time()

    async def _keep_done(self, keep: Callable[[], None]) -> None:
        try:
            await self._parts.disk.run(keep)
        finally:
            self._keeping = False

    def _tell(self, walk: Walk) -> None:
        # Where the log ends is not known before it is reached; queues and index mostly know how far it went.
        total = max(self._known_end, walk.end) - walk.start
        percent = 100 * (walk.end - walk.start) // max(1, total)
        log.info("recovering: offset %d, %d records, %d %%", walk.end, walk.records, percent)

    def _step(self, lots: Iterator[Lot], *, fill_gaps: bool) -> tuple[bool, Gap | None]:
        """Take over some records; whether there are more, and the gap that ends the replay. Blocking."""
        columns: list[Lot] = []
        begin: int | None = None
        bulk = self._feed.bulk
        for lot in lots:
            begin = lot.begin if begin is None else begin
            if lot.end <= self.known_to:
                pass
            elif bulk is not None and isinstance(lot, bulk.accepts):
                columns.append(lot)
            else:
                gap = self._take(columns, fill_gaps=fill_gaps) or self._take(
                    [lot], fill_gaps=fill_gaps
                )
                columns = []
                if gap is not None:
                    return True, gap
            if lot.end - begin >= STEP_BYTES:
                return True, self._take(columns, fill_gaps=fill_gaps)
        return False, self._take(columns, fill_gaps=fill_gaps)

    def _take(self, lots: list[Lot], *, fill_gaps: bool) -> Gap | None:
        gap = self._feed.take(lots, fill_gaps=fill_gaps)
        while self._dispatcher.index_backlog > INDEX_BACKLOG:
            self._dispatcher.index_chunk()
        return gap

    def _further(self, topic: str, props: bytes) -> list[tuple[BaseQueue, int]]:
        """The further queues of a record; known here, so that what they get is made durable, too."""

        def lane_queue(name: str) -> BaseQueue | None:
            lane = self._feed.lane_of(name, QUEUE_ID)
            return None if lane is None else lane.queue

        found = further_queues(topic, props, lane_queue)
        for queue, queue_offset in found:
            lane = self._feed.lane_of(queue.topic, QUEUE_ID)
            if lane is not None:
                lane.touched_from = min(lane.touched_from, queue_offset * QUEUE_ENTRY_SIZE)
        return found
