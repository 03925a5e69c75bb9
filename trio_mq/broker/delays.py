"""Delay levels: messages that wait in the queues of the schedule topic are put into their own topics when due.

In: new entries of the schedule topic (their tags code is the time when they are due), the wall clock, and the
progress of each level (:mod:`trio_mq.broker.delayoffsets`). Out: records in the topics that the messages are for, and
progress again. Owned by the broker, which runs :meth:`Delays.run` in its nursery: one task for all levels, asleep
until the next message is due. What is held in memory is one lot of messages and a few numbers per level, however many
wait. Explained in ``docs/explanation/delay-and-retry.md``. Source: Apache ScheduleMessageService.

Progress is only told to the table when the delivered records are durable, so that a power cut repeats a delivery
rather than losing one. A message that cannot be delivered is told in the log and passed; a disk that takes nothing is
waited for.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import attrs
import trio

from trio_mq.broker.delayoffsets import DelayOffsets
from trio_mq.broker.dueletters import DueLetters, letter_size
from trio_mq.broker.names import SCHEDULE_TOPIC
from trio_mq.broker.put import Letter, Putter
from trio_mq.broker.warm import warmed
from trio_mq.clock import Clock
from trio_mq.errors import BodyError, LocalProtocolError, RequestRefused, StoreFull
from trio_mq.protocol.layout import (
    BLANK_HEADER_SIZE,
    PRE_BLANK_SIZE,
    QUEUE_ENTRY,
    QUEUE_ENTRY_SIZE,
)
from trio_mq.store.dispatch import Arrival
from trio_mq.store.queues import BaseQueue
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.delays")

#: Messages delivered in one write.
LOT: Final = 128
#: Time for one level until other tasks run. Senders may keep the loop busy, each with a receive full of messages per
#: turn; in less than this delivery would fall behind them.
TURN_S: Final = 0.02
#: Most bytes of records in one go, and with them what is held in memory.
LOT_BYTES: Final = 4 * 1024 * 1024
#: Longest sleep: a wall clock that is set forward is noticed after this time.
CLOCK_CHECK_S: Final = 5.0
#: Smaller steps back of the wall clock are waited out.
SET_BACK_LEAST_MS: Final = 200
#: Until a level is tried again after a failure: a disk that is full, or data that cannot be read.
FAILURE_PAUSE_MS: Final = 1000
#: Messages delivered until progress is saved at once: a crash repeats no more than about that many.
HURRY_AFTER: Final = 5000
#: Deliveries that are noted one by one until they are durable; beyond, several share a note.
UNSETTLED_MOST: Final = 1000


class _Entry(NamedTuple):
    """An entry of a schedule queue."""

    offset: int
    log_offset: int
    size: int
    due_ms: int


class _SetBack(NamedTuple):
    """The wall clock was set back by so much, to `to_ms`; `ends` are the ends of the queues by level at that moment.

    Messages that were stored before, by the clock of then, are due that much earlier by the clock of now.
    """

    by_ms: int
    to_ms: int
    ends: dict[int, int]


@attrs.define(eq=False)
class _Level:
    """A level at work. `delay_ms` is None for one that the settings do not have any more."""

    number: int
    queue: BaseQueue
    delay_ms: int | None
    #: Queue offset of the next message to deliver.
    next: int = 0
    #: When that one is due; None while there is none.
    due_ms: int | None = None


class Delays:
    """Delivers the delayed messages of one store."""

    def __init__(
        self,
        store: Store,
        putter: Putter,
        offsets: DelayOffsets,
        levels_ms: tuple[int, ...],
        clock: Clock,
    ) -> None:
        self._store = store
        self._putter = putter
        self._offsets = offsets
        self._levels_ms = levels_ms
        self._clock = clock
        self._letters = DueLetters()
        #: Most bytes of records that one write can put into the log.
        self._room = store.log.segments.segment_bytes - BLANK_HEADER_SIZE
        self._levels: dict[int, _Level] = {}
        self._woken = trio.Event()
        self._set_back: list[_SetBack] = []
        self._seen: tuple[int, float] | None = None
        #: Whether the clock was set back since the alarms of the levels were set.
        self._changed = False
        #: Deliveries that may not be durable yet: end of the last record, level, offset behind, messages so far.
        self._unsettled: deque[tuple[int, int, int, int]] = deque()
        #: Messages delivered since the start, and how many of them progress told of when it was last to be saved.
        self.delivered = 0
        self._hurried = 0
        #: Has progress saved at once; the broker sets it.
        self.hurry: Callable[[], None] | None = None

    def progress(self) -> dict[str, str]:
        """For the runtime information: `offset,max offset` of each level by ``scheduleMessageOffset_<level>``."""
        return {
            f"scheduleMessageOffset_{level.number}": f"{level.next},{level.queue.max_offset}"
            for level in self._levels.values()
            if level.next or level.queue.max_offset
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled."""
        await self._begin()
        self._store.dispatcher.listeners.append(self._arrived)
        for level in self._levels.values():
            level.queue.watched += 1
        task_status.started()
        try:
            while True:
                await self._round()
        finally:
            self._store.dispatcher.listeners.remove(self._arrived)
            for level in self._levels.values():
                level.queue.watched -= 1

    async def close(self) -> None:
        """Make sure of what was delivered, so that the file says it. Called after :meth:`run` has ended."""
        if self._unsettled:
            try:
                await self._store.flusher.sync_log()
            except OSError as error:
                log.warning("the last deliveries may be repeated by the next start: %s", error)
        self.settle()

    def settle(self) -> None:
        """Tell the table of progress of what has become durable."""
        durable = self._store.log.durable.value
        while self._unsettled and self._unsettled[0][0] <= durable:
            _, level, offset, delivered = self._unsettled.popleft()
            self._offsets.update(level, offset)
            # Not all that is delivered: what becomes durable after that save would wait for the next period.
            if delivered - self._hurried >= HURRY_AFTER and self.hurry is not None:
                self._hurried = delivered
                self.hurry()

    # -- the beginning ---------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Find the levels, and where each goes on."""
        queues = self._store.queues
        levels = dict(enumerate(self._levels_ms, 1))
        for number in levels:
            queues.obtain(SCHEDULE_TOPIC, number - 1)
        for queue in sorted(queues.of_topic(SCHEDULE_TOPIC), key=lambda queue: queue.queue_id):
            number = queue.queue_id + 1
            level = self._levels[number] = _Level(number, queue, levels.get(number))
            await self._place(level)
            if level.delay_ms is None and level.next < queue.max_offset:  # case C142
                log.warning(
                    "messageDelayLevel has no level %d any more; the %d messages there come when they are due",
                    *(number, queue.max_offset - level.next),
                )
        self._look_at_clock(self._store.log.newest_ms)
        for level in self._levels.values():
            await self._look_ahead(level)

    async def _place(self, level: _Level) -> None:
        """Set where a level goes on; an offset that cannot be right is put right, in the file too.

        What is due after the newest record was stored cannot have been delivered: a delivered copy would be newer.
        So progress never lies behind the first such message, whatever the file says (cases C050, C140, and a log
        that lost its end).
        """
        queue, saved = level.queue, self._offsets.get(level.number)
        low, high = queue.min_offset, queue.max_offset
        place = low if saved is None else min(max(saved, low), high)
        newest_ms = self._store.log.newest_ms  # Apache's checkpoint lags behind the log
        if newest_ms > 0 and place > low:
            place = min(place, await self._first_due_after(queue, low, place, newest_ms))
        level.next = place
        if saved is not None and saved != place:
            log.warning(
                "delayOffset.json has level %d at %d, but its queue has messages %d to %d%s; it goes on at %d",
                *(level.number, saved, low, high),
                ""
                if saved > high or saved < low
                else ", of which some were not due before the end",
                place,
            )
        if saved is not None or place > 0:
            self._offsets.update(level.number, place)

    async def _first_due_after(self, queue: BaseQueue, low: int, high: int, moment_ms: int) -> int:
        """The first offset in [low, high) whose message is due later than a moment; `high` without one."""
        while low < high:
            middle = (low + high) // 2
            entries = await self._entries(queue, middle, 1)
            if entries and entries[0].due_ms > moment_ms:
                high = middle
            else:
                low = middle + 1
        return high

    # -- the clock -------------------------------------------------------------------------------------------

    def _look_at_clock(self, last_ms: int = 0, arrived: Sequence[Arrival] = ()) -> int:
        """The time in ms. Notices when the wall clock was set back, since `last_ms` or since the last look.

        `arrived` are messages that were stored since it was set back.
        """
        now_ms, now_s = self._clock.now_ms(), trio.current_time()
        if self._seen is not None:
            then_ms, then_s = self._seen
            last_ms = then_ms + int((now_s - then_s) * 1000)
        self._seen = now_ms, now_s
        by_ms = last_ms - now_ms
        if by_ms >= SET_BACK_LEAST_MS:
            ends = {level.number: level.queue.max_offset for level in self._levels.values()}
            for queue, _, _, offset in reversed(arrived):
                ends[queue.queue_id + 1] = offset
            self._set_back.append(_SetBack(by_ms, now_ms, ends))
            log.warning(
                "the clock was set back by %.1f s; delayed messages that were stored before come after their delay",
                by_ms / 1000,
            )
        return now_ms

    def _due_ms(self, level: _Level, offset: int, due_ms: int) -> int:
        """When a message is due by the clock of now."""
        if level.delay_ms is None:
            return due_ms
        for back in self._set_back:
            # What was stored before the clock went wrong has an earlier time, and is due as it says.
            if offset < back.ends.get(level.number, 0) and due_ms - level.delay_ms >= back.to_ms:
                due_ms -= back.by_ms
        return due_ms

    def _forget_set_backs(self) -> None:
        self._set_back = [
            back
            for back in self._set_back
            if any(self._levels[number].next < end for number, end in back.ends.items())
        ]

    # -- waiting ---------------------------------------------------------------------------------------------

    def _arrived(self, hits: list[Arrival]) -> None:
        """New messages in watched queues; only one that finds its level without any moves the alarm."""
        mine = [hit for hit in hits if hit.queue.topic == SCHEDULE_TOPIC]
        if mine:
            before = len(self._set_back)
            self._look_at_clock(arrived=mine)
            self._changed |= len(self._set_back) > before
            if self._changed:
                self._woken.set()
        for queue, due_ms, _, offset in mine:
            level = self._levels.get(queue.queue_id + 1)
            if level is not None and level.due_ms is None and offset >= level.next:
                level.due_ms = self._due_ms(level, offset, due_ms)
                self._woken.set()

    async def _round(self) -> None:
        """Deliver a lot of each level that has messages due; without any, sleep until there are."""
        set_backs = len(self._set_back)
        now_ms = self._look_at_clock()
        if self._changed or len(self._set_back) > set_backs:
            self._changed = False
            for level in self._levels.values():
                level.due_ms = now_ms  # a delivery looks for what is due, and when the next one is
        elif set_backs:
            self._forget_set_backs()
        self.settle()
        due = [
            level
            for level in self._levels.values()
            if level.due_ms is not None and level.due_ms <= now_ms
        ]
        if due:
            for level in due:
                began_s = time.perf_counter()
                while level.due_ms is not None and level.due_ms <= now_ms:
                    await self._deliver(level, now_ms)
                    if time.perf_counter() - began_s > TURN_S:
                        break
                await trio.lowlevel.checkpoint()
            return
        waiting = [level.due_ms for level in self._levels.values() if level.due_ms is not None]
        sleep_s = min([(due_ms - now_ms) / 1000 for due_ms in waiting], default=CLOCK_CHECK_S)
        with trio.move_on_after(min(sleep_s, CLOCK_CHECK_S)):
            await self._woken.wait()
        self._woken = trio.Event()

    # -- delivering ------------------------------------------------------------------------------------------

    async def _deliver(self, level: _Level, now_ms: int) -> None:
        """Deliver some of what is due at a level. Whatever fails is logged, and costs a pause at most."""
        try:
            entries = await self._due_entries(level, now_ms)
            if entries:
                await self._deliver_entries(level, entries)
            await self._look_ahead(level)
        except StoreFull as full:
            log.warning("delayed messages wait until the store takes messages again: %s", full)
            level.due_ms = now_ms + FAILURE_PAUSE_MS
        except Exception:
            log.exception("delivery of level %d failed; it is tried again", level.number)
            level.due_ms = now_ms + FAILURE_PAUSE_MS

    async def _due_entries(self, level: _Level, now_ms: int) -> list[_Entry]:
        """The next messages of a level that are due, as many as fit into a lot."""
        found: list[_Entry] = []
        size = 0
        for entry in await self._entries(level.queue, level.next, LOT):
            size += entry.size
            late = self._due_ms(level, entry.offset, entry.due_ms) > now_ms
            if late or (found and size > LOT_BYTES):
                break
            found.append(entry)
        return found

    async def _deliver_entries(self, level: _Level, entries: list[_Entry]) -> None:
        """Put the messages of some entries into their topics, all in one write, and move on behind them."""
        store = self._store
        places = [(entry.log_offset, entry.size) for entry in entries]
        records = await warmed(store.parts.disk, partial(store.reader.records, places))
        letters: list[Letter] = []
        total, behind = 0, entries[0].offset
        for entry, record in zip(entries, records, strict=True):
            found = self._letter(level, entry, record)
            if found is not None:
                letter, size = found
                if total + size > self._room:
                    break
                letters.append(letter)
                total += size
            behind = entry.offset + 1
        end = store.log.end
        if letters:
            store.make_room(total)  # in one segment, so that all of them are stored or none
            end = self._putter.put_all(letters)[-1].end
            self.delivered += len(letters)
        level.next = behind
        if len(self._unsettled) >= UNSETTLED_MOST and self._unsettled[-1][1] == level.number:
            self._unsettled.pop()
        self._unsettled.append((end, level.number, level.next, self.delivered))

    def _letter(
        self, level: _Level, entry: _Entry, record: bytes | None
    ) -> tuple[Letter, int] | None:
        """The message that an entry points to, for its own topic, and the size of its record.

        None, and a line in the log, when there is no such message.
        """
        try:
            if record is None:
                raise BodyError("its record is not in the log any more, or damaged")
            letter = self._letters.of(record)
            size = letter_size(letter)
            if size > self._room:
                raise BodyError(
                    f"its record would have {size} bytes, a log segment takes {self._room}"
                )
        except (BodyError, LocalProtocolError, RequestRefused, ValueError) as error:
            log.error(
                "the delayed message %d of level %d (log offset %d) cannot be delivered, and is passed: %s",
                *(entry.offset, level.number, entry.log_offset, error),
            )
            return None
        return letter, size

    # -- reading ---------------------------------------------------------------------------------------------

    async def _entries(self, queue: BaseQueue, offset: int, count: int) -> list[_Entry]:
        """Entries from `offset` on that stand for messages, without those that fill holes. Fewer at the end."""

        def look() -> list[_Entry]:
            data = queue.files.read(count * QUEUE_ENTRY_SIZE, offset * QUEUE_ENTRY_SIZE)
            return [
                _Entry(number, *fields)
                for number, fields in enumerate(QUEUE_ENTRY.iter_unpack(data), offset)
                if 0 < fields[1] != PRE_BLANK_SIZE
            ]

        return await warmed(self._store.parts.disk, look)

    async def _look_ahead(self, level: _Level) -> None:
        """Find the next message of a level and when it is due; pass over what only fills holes or has expired."""
        queue = level.queue
        level.next = max(level.next, queue.min_offset)
        while level.next < queue.max_offset:
            at, end = level.next, queue.max_offset
            look = partial(queue.next_record, at, end)
            level.next, _ = await warmed(self._store.parts.disk, look)
            found = await self._entries(queue, level.next, 1) if level.next < end else []
            if found:
                level.due_ms = self._due_ms(level, level.next, found[0].due_ms)
                return
            level.next = max(level.next, at + 1)
        level.due_ms = None
