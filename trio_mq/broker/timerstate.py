"""What waits for its time, on the disk: the timer's log, wheel and checkpoint as one, and how they are put right.

In: messages of the timer's queue, by place and time. Out: what is due, and files that always agree with the commit
log. Owns no task: :mod:`trio_mq.broker.timers` calls it, on the loop, and hands :meth:`TimerState.load` and the calls
of :meth:`TimerState.save` to a worker thread. Source: Apache TimerMessageStore (recover, doEnqueue, flush).

A save goes: commit log, timer log, wheel, checkpoint, each synced before the next. So a unit never reaches the disk
before its message, nor a slot before its units, nor a checkpoint before what it speaks of. A start therefore trusts
what lies before the checkpoint, compares units behind it with the messages that they point to, up to the first that
does not fit, and lets the wheel follow. What the checkpoint does not cover is done again from the timer's queue.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import attrs

from trio_mq.broker.names import TIMER_TOPIC
from trio_mq.broker.timerfire import Place
from trio_mq.clock import Clock
from trio_mq.config import StoreSettings
from trio_mq.errors import RemoteProtocolError
from trio_mq.protocol import properties, record
from trio_mq.protocol.message import java_hash
from trio_mq.store.disk import Disk
from trio_mq.store.log import CommitLog
from trio_mq.store.segments import ColdData, Segments
from trio_mq.store.timercheck import TimerCheckFile, TimerCheckpoint
from trio_mq.store.timerlog import DELETE, NO_UNIT, PLAIN, ROLL, UNIT_SIZE, TimerLog, TimerUnit
from trio_mq.store.timerwheel import WINDOW_SLOTS, Slot, TimerWheel

log = logging.getLogger("trio_mq.broker.timers")

#: Slots of the wheel that are never filled ahead of time (Apache: TIMER_BLANK_SLOTS).
_BLANK_SLOTS: Final = 60
#: Units before the checkpoint that a start compares with the wheel: Apache's brokers may stop between the two.
_BACK_BYTES: Final = 200_000 * UNIT_SIZE
_MOST_HASHES: Final = 10_000


@attrs.frozen
class Entry:
    """A message of the timer's queue: its place in the commit log, when it is due, and what it is for."""

    log_offset: int
    size: int
    out_ms: int
    topic_hash: int
    delete: bool


class TimerState:
    """The files of one store's timer."""

    def __init__(
        self,
        disk: Disk,
        settings: StoreSettings,
        clock: Clock,
        *,
        window_slots: int = WINDOW_SLOTS,
    ) -> None:
        root = settings.path
        self._disk = disk
        self._clock = clock
        self.log = TimerLog(disk, f"{root}/timerlog", settings.mapped_file_size_timer_log)
        self.wheel = TimerWheel(
            disk, f"{root}/timerwheel", settings.timer_precision_ms, window_slots
        )
        self.check = TimerCheckFile(disk, f"{root}/config/timercheck")
        most = window_slots - _BLANK_SLOTS if window_slots > 2 * _BLANK_SLOTS else window_slots
        wanted = settings.timer_roll_window_slot
        self._roll_slots = wanted if 2 <= wanted <= most else most
        #: All slots before were delivered.
        self.read_ms = 0
        #: Messages of the timer's queue before are in log and wheel, or delivered.
        self.queue_offset = 0
        #: Messages behind that are there, too: a start has found them in the log.
        self.known: set[int] = set()
        #: Messages of the queue before are taken again, as there are no units of theirs here; those that were due
        #: before `retake_ms` were delivered.
        self.retake_before, self.retake_ms = 0, 0
        #: Whether some of them are kept aside (:mod:`trio_mq.broker.timerretake`): until then a start begins anew.
        self.holding = False
        #: Whether this is the copy of a master's: then there is a checkpoint, and nothing else.
        self.following = False
        self._hashes: dict[str, int] = {}
        #: How many messages wait.
        self.waiting = 0

    @property
    def precision_ms(self) -> int:
        """Length of a slot."""
        return self.wheel.precision_ms

    @property
    def untouched(self) -> bool:
        """Whether no message has ever waited here: then there are no files, either."""
        return (
            not self.check.known
            and not self.wheel.dirty
            and self.log.segments.empty
            and not self.queue_offset
        )

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """What a save would note now."""
        last = self.check.value
        if self.following or self.holding:
            return last
        now = attrs.evolve(
            last,
            read_ms=self.read_ms,
            log_end=self.log.written,
            queue_offset=self.queue_offset,
            primary_queue_offset=self.queue_offset,
        )
        if now == last:
            return last
        return attrs.evolve(now, changed_ms=self._clock.now_ms(), changes=last.changes + 1)

    def topic_hash(self, topic: str) -> int:
        """What units say of a topic."""
        found = self._hashes.get(topic)
        if found is None:
            if len(self._hashes) >= _MOST_HASHES:
                self._hashes.clear()
            found = self._hashes[topic] = java_hash(topic)
        return found

    def is_crowded(self, out_ms: int, limit: int) -> bool:
        """Whether a slot takes no more: at random from the limit on, always from twice the limit."""
        try:
            slot = self.wheel.get(out_ms)
        except ColdData:
            return False  # a slot that nobody has touched for long is not crowded by this sender
        crowd = 0 if slot is None else slot.waiting
        return crowd > limit and random.random() < (crowd - limit) / limit

    # -- putting and finding ---------------------------------------------------------------------------------

    def put(self, entry: Entry, now_ms: int) -> int:
        """Let a message wait; returns the slot that it is in. :meth:`TimerLog.write` has to follow.

        A time far ahead is reached in several rounds, so that the message can leave the old end of the commit log.
        OSError, and ColdData, leave everything as it was.
        """
        wheel = self.wheel
        write_ms = wheel.floor(now_ms)
        time_ms, magic = wheel.floor(entry.out_ms), PLAIN | (DELETE if entry.delete else 0)
        round_ms = self.round_ms(entry.out_ms, now_ms)
        if round_ms is not None:
            magic |= ROLL
            time_ms = round_ms
        slot = wheel.occupant(time_ms)
        while slot is not None and slot.time_ms != time_ms:
            # The clock was moved by days: another time holds the slot. Come back soon, and see.
            magic |= ROLL
            write_ms += self.precision_ms
            time_ms = write_ms
            slot = wheel.occupant(time_ms)
        self.log.make_room()
        position = self.log.append(
            NO_UNIT if slot is None else slot.last,
            magic,
            write_ms,
            time_ms - write_ms,
            entry.log_offset,
            entry.size,
            entry.topic_hash,
        )
        count = -1 if entry.delete else 1
        wheel.put(
            Slot(time_ms, position, position, count)
            if slot is None
            else slot._replace(last=position, waiting=slot.waiting + count)
        )
        self.waiting += count
        return time_ms

    def round_ms(self, out_ms: int, taken_ms: int) -> int | None:
        """The slot in which a message that was taken then goes round; None when it waits in the slot of its time."""
        write_ms = self.wheel.floor(taken_ms)
        window_ms = self._roll_slots * self.precision_ms
        beyond_ms = self.wheel.floor(out_ms) - write_ms - window_ms
        if beyond_ms < 0:
            return None
        if beyond_ms < self._roll_slots // 3 * self.precision_ms:
            window_ms = self._roll_slots // 2 * self.precision_ms  # the last round is no short one
        return write_ms + window_ms

    def is_over(self, out_ms: int | None, now_ms: int) -> bool:
        """Whether the slot of a time was delivered already. No time counts as that."""
        if out_ms is None:
            return True
        time_ms = self.wheel.floor(out_ms)
        if time_ms < self.read_ms and time_ms + self.precision_ms > now_ms:
            self.read_ms = (
                time_ms  # the clock was set back; what was delivered is no longer in the wheel
            )
        return time_ms < self.read_ms

    def was_delivered(self, offset: int, out_ms: int | None) -> bool:
        """Whether a message of the queue that is over now, and is taken again, was delivered before."""
        due_ms = 0 if out_ms is None else self.wheel.floor(out_ms)
        return offset < self.retake_before and due_ms < self.retake_ms

    def finish(self, time_ms: int) -> None:
        """A slot was delivered. ColdData leaves everything as it was."""
        slot = self.wheel.get(time_ms)
        if slot is not None:
            self.waiting -= slot.waiting
            self.wheel.clear(slot)

    def keep_only(self, time_ms: int, places: Iterable[Place]) -> None:
        """Let only these wait in a slot of which a part was delivered. Blocking."""
        slot = self.wheel.find(time_ms)
        if slot is None:
            return
        self.waiting -= slot.waiting
        self.wheel.clear(slot)
        first, last, waiting = NO_UNIT, NO_UNIT, 0
        for place in places:
            self.log.make_room()
            delay_ms = time_ms - place.write_ms
            last = self.log.append(
                *(last, place.magic, place.write_ms, delay_ms),
                *(place.log_offset, place.size, place.topic_hash),
            )
            first = last if first == NO_UNIT else first
            waiting += -1 if place.magic & DELETE else 1
        if last != NO_UNIT:
            self.wheel.put(Slot(time_ms, first, last, waiting))
            self.waiting += waiting

    # -- saving ----------------------------------------------------------------------------------------------

    async def save(self, sync_log: Callable[[], Awaitable[None]]) -> None:
        """Make everything durable as it is now. An OSError leaves the files as a crash would: see the module's head.

        `sync_log` syncs the commit log.
        """
        self.log.write()
        value = self.checkpoint
        log_call = self.log.sync_call()
        wheel_call, failed = self.wheel.save_call()
        try:
            await sync_log()
            await self._disk.run(lambda: self._save(log_call, wheel_call, value))
        except BaseException:
            failed()
            raise
        self.wheel.saved()

    def _save(
        self, log_call: Callable[[], None], wheel_call: Callable[[], None], value: TimerCheckpoint
    ) -> None:
        log_call()
        wheel_call()
        if value != self.check.value:
            self.check.save(value)

    def close(self) -> None:
        """Close the files."""
        self.log.close()
        self.wheel.close()

    # -- starting --------------------------------------------------------------------------------------------

    def load(self, commit_log: CommitLog) -> None:
        """Read the files, put them right, and say where to go on. Blocking."""
        self.check.load()
        for note in self.log.load(mend=True):
            log.warning("%s", note)
        new_wheel = self.wheel.load()
        value, now_ms = self.check.value, self._clock.now_ms()
        self.read_ms = self.wheel.floor(self._read_from(new_wheel, now_ms))
        self.queue_offset = min(value.queue_offset, value.primary_queue_offset)
        # A slave's file: its master was further, and what was due there until `read_ms` is delivered (case C070).
        self.retake_before, self.retake_ms = value.primary_queue_offset, self.read_ms
        begin = 0 if new_wheel else self.log.unit_at(max(0, value.log_end - _BACK_BYTES))
        with commit_log.segments.read_apart() as files:
            end = self._sound_end(begin, files, commit_log.written)
            if end < value.log_end:
                log.warning(
                    "the timer log ends at %d, its checkpoint says %d: what is missing is taken from the queue again",
                    *(end, value.log_end),
                )
                self._retake(end, files, commit_log.written)
        self.log.open_at(end)
        self._take_wheel(self.log.end)
        for at, unit in self.log.scan(begin):
            if unit.time_ms >= self.read_ms:
                self._revise(at, unit)

    def _read_from(self, new_wheel: bool, now_ms: int) -> int:
        """Where delivery goes on. Without a checkpoint, as far back as a message may have been put ahead."""
        if self.check.known and self.check.value.read_ms > 0:
            return self.check.value.read_ms
        if new_wheel and self.log.segments.empty:
            return now_ms
        return max(0, now_ms - (self.wheel.window_slots - _BLANK_SLOTS) * self.precision_ms)

    def _sound_end(self, begin: int, files: Segments, log_end: int) -> int:
        """Where the timer log ends. What is behind the checkpoint has to fit to its messages."""
        checked = self.check.value.log_end
        end = min(begin, self.log.segments.end)
        for at, unit in self.log.scan(begin):
            if at >= checked:
                queue_offset = _queue_offset_of(unit, files, log_end, self.wheel)
                if queue_offset is None or unit.prev >= at:
                    log.warning("the timer log is cut at %d: what is there fits to no message", at)
                    break
                if queue_offset >= self.queue_offset:
                    self.known.add(queue_offset)
            end = self.log.behind(at)
        return end

    def _retake(self, end: int, files: Segments, log_end: int) -> None:
        """Begin with the queue anew, but for what the log still has."""
        self.retake_before = max(self.retake_before, self.queue_offset)
        self.queue_offset = 0
        for at, unit in self.log.scan(0):
            if at >= end:
                return
            queue_offset = _queue_offset_of(unit, files, log_end, self.wheel)
            if queue_offset is not None:
                self.known.add(queue_offset)

    def _take_wheel(self, end: int) -> None:
        """Find out what waits. Slots that point behind the log's end are made anew from the log."""
        broken: dict[int, Slot] = {}
        first = end
        for slot in self.wheel.stored():
            if slot.time_ms < self.read_ms:
                continue  # Apache leaves slots as they are when they were delivered
            self.wheel.use(slot)
            if max(slot.first, slot.last) < end:
                self.waiting += slot.waiting
                continue
            broken[slot.time_ms] = slot
            first = min(first, max(0, slot.first))
        for slot in broken.values():
            self.wheel.clear(slot)
        if broken:
            log.warning(
                "%d slots of the timer wheel point behind the timer log: made anew", len(broken)
            )
            for at, unit in self.log.scan(first):
                if unit.time_ms in broken:
                    self._revise(at, unit)

    def _revise(self, at: int, unit: TimerUnit) -> None:
        """Let the wheel know a unit, if it does not."""
        wheel = self.wheel
        slot = wheel.find(unit.time_ms)
        if slot is not None and (slot.last >= at or slot.time_ms != unit.time_ms):
            return
        count = -1 if unit.magic & DELETE else 1
        wheel.put(
            Slot(unit.time_ms, at, at, count)
            if slot is None
            else slot._replace(last=at, waiting=slot.waiting + count)
        )
        self.waiting += count


def _queue_offset_of(
    unit: TimerUnit, files: Segments, log_end: int, wheel: TimerWheel
) -> int | None:
    """The offset in the timer's queue of the message that a unit is about; None when it is not about one."""
    if unit.log_offset + unit.record_size > log_end or not files.has(unit.log_offset):
        return None
    try:
        message = record.decode(files.read(unit.record_size, unit.log_offset))
    except RemoteProtocolError:
        return None
    if message.log_offset != unit.log_offset or message.size != unit.record_size:
        return None
    out_ms = out_time_ms(message.properties)
    fits = unit.magic & ROLL or (out_ms is not None and wheel.floor(out_ms) == unit.time_ms)
    return message.queue_offset if message.topic == TIMER_TOPIC and fits else None


def out_time_ms(props: bytes) -> int | None:
    """When a message leaves the timer, by its raw properties; None when they do not say."""
    text = properties.get(props, properties.TIMER_OUT_MS.encode())
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
