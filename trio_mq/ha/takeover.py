"""The reput loop of a slave: records of the copied log on their way into queues and index, while it runs.

In: the store's log, which grows by pieces that are cut anywhere. Out: entries and keys of all whole records, made by
the same code as during a start (:mod:`trio_mq.recovery.feed`), through the store's own dispatcher, so that long polls
and all who follow queues are served as on a master. Called by :mod:`trio_mq.ha.copylog`.

Nothing that is not confirmed is looked at: with sync flush that is what is durable (case C071). A record of which only
a part is there waits for the rest, however long that takes; what is no record though all its bytes are there is told
once, and passed over. Rules: Apache DefaultMessageStore.ReputMessageService.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from trio_mq.protocol.layout import BLANK_MAGIC
from trio_mq.protocol.verdict import Damaged, Torn, Verdict
from trio_mq.recovery.feed import Feed
from trio_mq.recovery.iterators import (
    HEAD_BYTES,
    RECORD_LIMIT_BYTES,
    BatchMessageIterator,
    claimed_size,
    column_scan,
)
from trio_mq.recovery.survey import next_whole
from trio_mq.store.segments import ColdData
from trio_mq.store.store import Store

if TYPE_CHECKING:
    from trio_mq.recovery.bulk import Batch, BulkReplay

log = logging.getLogger("trio_mq.ha")

#: Time after which others have their turn.
STEP_S: Final = 0.004
#: Bytes of the log that are looked at in one go, record by record.
WINDOW_BYTES: Final = 32 * 1024
#: With this much to do, many records are taken over at once, where numpy is installed.
BULK_BYTES: Final = 48 * 1024
#: While as much comes in that time, it is let gather: many records at once cost a quarter of the same one by one, and
#: the time belongs to the copying of the log. Readers of a busy slave see a message that much later.
GATHER_LEAST_BYTES: Final = 8 * 1024
GATHER_S: Final = 0.02
#: Bytes that a worker thread prepares then; what is left for the loop takes it some milliseconds.
BATCH_BYTES: Final = 1024 * 1024
#: Fewer records at once are not worth it.
BATCH_LEAST: Final = 64
#: After this much one by one, or with so much to do, numpy is imported: that takes a moment, and memory.
BULK_FROM_BYTES: Final = 4 * 1024 * 1024
#: Records that wait for the index; with more, the index has its turn first.
INDEX_BACKLOG: Final = 20_000
#: Behind damage, the next record is looked for this often while the log grows.
SEARCH_S: Final = 1.0


class Takeover:
    """The loop and its position."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._log = store.log
        self._dispatcher = store.dispatcher
        #: Records before are in queues and index; where the next one begins.
        self.at = store.log.end
        #: Set when there is more to look at.
        self.more = trio.Event()
        self._one_step = trio.Lock()
        #: What was no record, where that happened last.
        self.damage: str | None = None
        #: The log has to be confirmed up to here before there is anything new to see.
        self._needs = 0
        #: Offset of what is no record, while the next one is looked for.
        self._damaged_at: int | None = None
        self._searched_s = 0.0
        settings = store.parts.settings
        self._check_crc = settings.check_crc_on_recover
        self._feed = Feed(
            *(store.log, store.queues, store.dispatcher, settings.delay_levels_ms),
            trusted=True,
            copied=True,
        )
        self._bulk_wanted = True
        #: Bytes that were taken over one by one so far.
        self._singly = 0
        #: Whether much came in a short time, so that more will.
        self._busy = False
        #: Records before are taken over one by one: something about them is unusual.
        self._singly_to = 0
        #: With this much to do, many records are taken over at once, where numpy is installed.
        self.bulk_bytes = BULK_BYTES
        self._notes = 0

    def begin(self, offset: int) -> None:
        """The log begins at an offset."""
        self.at = offset
        self._dispatcher.dispatched = offset

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """A block during which no record is taken over."""
        async with self._one_step:
            yield

    def rewind(self, offset: int) -> None:
        """The log was cut back: go on from there, if more was taken over."""
        self.at = min(self.at, offset)
        self._needs, self._singly_to, self._damaged_at = 0, 0, None
        self._feed.forget_lanes()
        self.more.set()

    # -- the loop --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take records over until cancelled."""
        while True:
            await self._gather()
            if self.more.is_set():
                self.more = trio.Event()
            more = self.more
            if await self._go_on():
                continue
            await more.wait()
            # The report of what was appended goes out first: senders on the master wait for it.
            await trio.lowlevel.checkpoint()
            if self._damaged_at is not None:
                await trio.sleep_until(self._searched_s + SEARCH_S)

    async def _gather(self) -> None:
        """Let more come, while much does and it is not enough yet to be taken over at once."""
        there = self._store.confirmed - self.at
        if self._busy and self._feed.bulk is not None and there < self.bulk_bytes:
            await trio.sleep(GATHER_S)
            there = self._store.confirmed - self.at
        self._busy = there >= GATHER_LEAST_BYTES

    async def finish(self) -> bool:
        """Take over all that is confirmed; False when it ends with what is no record."""
        while await self._go_on():
            pass
        return self._damaged_at is None

    async def _go_on(self) -> bool:
        """Take over some records; False when nothing can be done before the log has grown. Others have their turn."""
        async with self._one_step:
            return await self._go_on_alone()

    async def _go_on_alone(self) -> bool:
        if self._damaged_at is not None and not await self._search():
            return False
        limit = self._store.confirmed
        if limit <= self.at or limit < self._needs:
            return False
        if not self._log.segments.has(self.at):
            self._pass_over_expired(limit)
            return True
        if self._bulk_wanted and limit - self.at + self._singly >= BULK_FROM_BYTES:
            self._bulk_wanted = False
            await self._log.disk.run(self.load_bulk)
        many = limit - self.at >= self.bulk_bytes and self.at >= self._singly_to
        try:
            if self._feed.bulk is not None and many:
                await self._take_many(self._feed.bulk, limit)
            else:
                begin = self.at
                self._step(limit)
                self._singly += self.at - begin
        except ColdData as cold:
            await self._log.disk.run(cold.warm)
        return True

    def _pass_over_expired(self, limit: int) -> None:
        """Segments that had to go for room, before their records were taken over."""
        following = (start for start in self._log.segments.starts if start > self.at)
        begin = min(following, default=limit)
        log.error("log offsets %d to %d expired before they were dispatched", self.at, begin)
        self.at, self._needs = begin, 0

    def load_bulk(self) -> None:
        """Take over many records at once from now on, where there is much to do. Blocking: imports numpy."""
        column_scan()
        self._feed.load_bulk()

    # -- records ---------------------------------------------------------------------------------------------

    def _step(self, limit: int) -> None:
        """Take over records one by one for a few milliseconds, at most to the end of their segment."""
        until_s = trio.current_time() + STEP_S

        def read(size: int, offset: int) -> bytes:
            return self._log.read(min(size, limit - offset), offset)

        end = self._segment_end()
        found = BatchMessageIterator(
            *(read, self.at, end),
            check_crc=self._check_crc,
            window_bytes=WINDOW_BYTES,
            columns=False,
        )
        for lot in found:
            self._feed.take([lot], fill_gaps=True)
            self._taken(lot.end)
            if trio.current_time() >= until_s:
                return
        self._stopped(found.verdict, limit, end)

    def _segment_end(self) -> int:
        segments = self._log.segments
        return segments.segment_of(self.at) + segments.segment_bytes

    async def _take_many(self, bulk: BulkReplay, limit: int) -> None:
        """Take over a lot of records: a worker thread reads, checks and hashes them, the loop does the rest."""
        end = self._segment_end()
        look = partial(self._look, bulk, self.at, min(limit, end), end)
        try:
            batches, verdict = await self._log.disk.run(look)
        except FileNotFoundError:
            return  # expired meanwhile
        for records_end, batch in batches:
            if batch is None or not bulk.commit(batch):
                self._singly_to = records_end
                return
            self._taken(records_end)
            await trio.lowlevel.checkpoint()
        if verdict is not None:
            self._stopped(verdict, limit, end)

    def _look(
        self, bulk: BulkReplay, begin: int, limit: int, end: int
    ) -> tuple[list[tuple[int, Batch | None]], Verdict | None]:
        """Prepare what lies between two offsets, to a limit: where each batch ends, None for one that is unusual.

        And what ends the records, unless there are more. Blocking.
        """
        with self._log.segments.read_apart() as segments:

            def read(size: int, offset: int) -> bytes:
                return segments.read(max(0, min(size, limit - offset)), offset)

            found = BatchMessageIterator(
                read, begin, end, check_crc=self._check_crc, window_bytes=BATCH_BYTES // 4
            )
            batches: list[tuple[int, Batch | None]] = []
            for lot in found:
                usual = isinstance(lot, bulk.accepts) and lot.count >= BATCH_LEAST
                batch = bulk.prepare([lot]) if usual else None
                batches.append((lot.end, batch))
                if batch is None or lot.end - begin >= BATCH_BYTES // 2:
                    return batches, None
            return batches, found.verdict

    def _taken(self, end: int) -> None:
        """Records before an offset are taken over."""
        dispatcher = self._dispatcher
        self.at = end
        self._store.flusher.newest_ms = dispatcher.newest_ms
        while dispatcher.index_backlog > INDEX_BACKLOG and dispatcher.index_chunk():
            pass
        for text in self._feed.notes[self._notes :]:
            log.warning("%s", text)
        self._notes = len(self._feed.notes)

    def _stopped(self, verdict: Verdict | None, limit: int, end: int) -> None:
        """What lies at :attr:`at` is no whole record: say what has to come before it is looked at again."""
        at, there = self.at, min(limit, end) - self.at
        if not there:
            return
        if there < min(HEAD_BYTES, end - at):
            self._needs = at + min(HEAD_BYTES, end - at)
            return
        head = self._log.read(HEAD_BYTES, at)
        if head[4:] == BLANK_MAGIC:
            # The rest of the segment is no record, but it is copied like everything else.
            self._needs = end
            if there == end - at:
                self.at = end
            return
        size = claimed_size(head)
        if there < size <= min(end - at, RECORD_LIMIT_BYTES):
            self._needs = at + size
            return
        reason = verdict.reason if isinstance(verdict, Torn | Damaged) else "there is no record"
        self._damaged_at = at
        self._searched_s = trio.current_time() - SEARCH_S
        self.damage = f"at offset {at}: {reason}"
        log.error(
            "the copied log has no record at offset %d: %s; records behind it are looked for",
            at,
            reason,
        )

    # -- behind damage ---------------------------------------------------------------------------------------

    async def _search(self) -> bool:
        """Find the next record behind damage; False when there is none in what is confirmed."""
        assert self._damaged_at is not None
        limit, segments = self._store.confirmed, self._log.segments
        end = segments.segment_of(self._damaged_at) + segments.segment_bytes
        self._searched_s = trio.current_time()
        search = partial(self._next, self._damaged_at + 1, min(limit, end))
        found = await self._log.disk.run(search)
        if found is None and limit < end:
            return False
        found = end if found is None else found
        log.error(
            "the copied log cannot be read from offset %d to %d: what was there is passed over",
            *(self._damaged_at, found),
        )
        self.at, self._damaged_at, self._needs = found, None, 0
        return True

    def _next(self, begin: int, limit: int) -> int | None:
        """The next whole record that ends before a limit. Blocking, for a worker thread."""
        with self._log.segments.read_apart() as segments:
            return next_whole(segments, begin, limit, check_crc=self._check_crc)
