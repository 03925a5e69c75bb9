"""Timers: messages with a time of their own wait in the timer wheel, and are put into their topics when due.

In: new messages in queue 0 of ``rmq_sys_wheel_timer`` (:mod:`trio_mq.broker.redirects` sends them there), the wall
clock, and the files of :mod:`trio_mq.broker.timerstate`. Out: records in the topics that the messages are for. Owned
by the broker, which runs :meth:`Timers.run` in its nursery: a task that takes and fires, asleep until there is
something to do, and one that saves. What is in memory is a byte for each slot of the wheel and the messages of the
slots that fire now, bounded; however many wait. Explained in ``docs/explanation/timers.md``. Source: Apache
TimerMessageStore.

Failure policy: a message that cannot be delivered is told in the log and passed; a disk that is full or cannot be read
is waited for; files that cannot be synced end the broker, and the next start goes on from the last checkpoint.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from trio_mq.broker.names import TIMER_TOPIC
from trio_mq.broker.put import Letter, Putter
from trio_mq.broker.rates import Rate
from trio_mq.broker.timerfire import Due, Firing, Place, late_letter
from trio_mq.broker.timermetrics import TimerMetrics
from trio_mq.broker.timerput import DuePutter, Stopped
from trio_mq.broker.timerretake import Retake
from trio_mq.broker.timersave import TimerSaver
from trio_mq.broker.timerstate import Entry, TimerState, out_time_ms
from trio_mq.broker.warm import warmed
from trio_mq.clock import Clock
from trio_mq.config import StoreSettings
from trio_mq.errors import BodyError, StoreError, StoreFull
from trio_mq.protocol import properties as props
from trio_mq.protocol.record import StoredMessage, decode
from trio_mq.store.dispatch import Arrival
from trio_mq.store.queues import BaseQueue
from trio_mq.store.reader import Found
from trio_mq.store.store import Store
from trio_mq.store.timerlog import DELETE, PLAIN
from trio_mq.store.timerwheel import Slot

log = logging.getLogger("trio_mq.broker.timers")

#: How long before its time a slot is begun: reading takes time, and nothing of it may be late.
LEAD_MS: Final = 1000
#: Longest sleep: a wall clock that was set is noticed after this time.
CLOCK_CHECK_S: Final = 15.0
#: Messages taken from the timer's queue, and put into their topics, in one go.
TAKE_LOT: Final = 128
FIRE_LOT: Final = 512
FIRE_LOT_BYTES: Final = 2 * 1024 * 1024
#: Until something is tried again that the disk refused.
FAILURE_PAUSE_S: Final = 0.5
_UNLIMITED: Final = 2**31 - 1
_REAL_TOPIC: Final = props.REAL_TOPIC.encode()
_DELETE_KEY: Final = props.TIMER_DEL_UNIQKEY.encode()
_ROLL_TIMES: Final = props.TIMER_ROLL_TIMES.encode()


class Timers:
    """The timers of one store."""

    def __init__(
        self,
        store: Store,
        putter: Putter,
        settings: StoreSettings,
        clock: Clock,
        state: TimerState | None = None,
    ) -> None:
        self._store = store
        self._due = DuePutter(store, putter)
        self._settings = settings
        self._clock = clock
        self._disk = store.parts.disk
        self.state = state or TimerState(self._disk, settings, clock)
        self._retake = Retake(self.state)
        self.metrics = TimerMetrics(clock)
        self._saver = TimerSaver(store, self.state, self.metrics, settings, clock)
        self._queue: BaseQueue | None = None
        #: Slots on their way out, by time.
        self._firing: dict[int, Firing] = {}
        #: Offset in the timer's queue behind the last message that went round.
        self._rolled_to = 0
        self._arrived = trio.Event()
        self._failing = False
        #: Messages that came to wait, and that left.
        self.taken, self.fired = Rate(), Rate()
        #: Whether what a crash or Apache left was put right; nothing else is called before.
        self.started = False

    # -- what others want to know ----------------------------------------------------------------------------

    @property
    def behind_ms(self) -> int:
        """How far delivery is behind the clock. May raise ColdData."""
        now_ms = self._clock.now_ms()
        slot = None if self._firing else self._next_slot()
        first_ms = min(self._firing, default=now_ms if slot is None else slot.time_ms)
        return max(0, now_ms - first_ms)

    @property
    def untaken(self) -> int:
        """Messages of the timer's queue that are not in the wheel yet."""
        queue = self._store.queue(TIMER_TOPIC, 0)
        return 0 if queue is None else max(0, queue.max_offset - self.state.queue_offset)

    def delivered_to_ms(self) -> int:
        """What was due until then is in its topic; nothing is due before it is stored. May raise ColdData."""
        to_ms = self._clock.now_ms() - self.behind_ms
        queue, offset = self._store.queue(TIMER_TOPIC, 0), self.state.queue_offset
        if queue is None or offset >= queue.max_offset:
            return to_ms
        log_offset = queue.next_record(offset, queue.max_offset)[1]
        return min(to_ms, self._store.reader.store_time_ms(log_offset))

    def runtime(self) -> dict[str, str]:
        """For the runtime information, under the peers' names."""
        return {
            "timerReadBehind": str(self.behind_ms // 1000),
            "timerOffsetBehind": str(self.untaken),
            "timerCongestNum": str(self.state.waiting),
            "timerEnqueueTps": f"{self.taken.per_second():.1f}",
            "timerDequeueTps": f"{self.fired.per_second():.1f}",
        }

    def is_full(self, out_ms: int) -> bool:
        """Whether a slot takes no more (Apache: isReject)."""
        limit = self._settings.timer_congest_num_each_slot
        return limit < _UNLIMITED and self.started and self.state.is_crowded(out_ms, limit)

    # -- the tasks -------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled."""
        await self._start()
        self._store.dispatcher.listeners.append(self._arrival)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._saver.run)
                nursery.start_soon(self._work)
                task_status.started()
        finally:
            self._store.dispatcher.listeners.remove(self._arrival)
            self._watch(None)

    async def _start(self) -> None:
        await self._saver.load()
        state = self.state
        queue = self._store.queues.obtain(TIMER_TOPIC, 0)
        low, high = queue.min_offset, queue.max_offset
        if not low <= state.queue_offset <= high:
            log.warning(
                "the timer was at offset %d of its queue, which holds %d to %d",
                *(state.queue_offset, low, high),
            )
            state.queue_offset = min(max(state.queue_offset, low), high)
        if state.waiting or high > state.queue_offset:
            log.info(
                "%d messages wait for timers, %d have to be taken; delivery goes on from %d ms",
                *(state.waiting, high - state.queue_offset, state.read_ms),
            )
        if not state.untouched:
            self._saver.soon()
        self.started = True

    async def close(self) -> None:
        """Save all. Called after :meth:`run` has ended, with a shield and a limit around it."""
        if not self.started:
            return
        try:
            if not self.state.untouched:
                await self._disk.run(self._keep_what_is_left)
                await self._saver.save()
        except OSError as error:
            raise StoreError(
                f"the timer's files cannot be saved: {error}; the next start goes on from the last checkpoint"
            ) from error
        finally:
            self.state.close()

    def _keep_what_is_left(self) -> None:
        """Let the slots that were begun hold only what has not gone out: the next start repeats nothing. Blocking."""
        for firing in self._in_order():
            if not firing.begun:
                continue
            left = firing.left()
            self.state.keep_only(firing.slot.time_ms, left)
            if not left:
                self.state.read_ms = max(self.state.read_ms, firing.end_ms)

    def _arrival(self, hits: list[Arrival]) -> None:
        for hit in hits:
            if hit.queue is self._queue:
                self._arrived.set()
                return

    def _watch(self, queue: BaseQueue | None) -> None:
        if self._queue is not None:
            self._queue.watched -= 1
        self._queue = queue
        if queue is not None:
            queue.watched += 1

    async def _work(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            try:
                busy = await self._round()
            except (OSError, StoreFull) as error:
                if not self._failing:  # once, not in every round
                    log.error("timers have to wait: %s", error)
                self._failing = True
                await trio.sleep(FAILURE_PAUSE_S)
                continue
            if self._failing:
                log.warning("timers go on")
                self._failing = False
            if not busy:
                await self._rest()

    async def _round(self) -> bool:
        """A bit of everything: what is due first. Whether there is more to do."""
        self.state.log.write()  # what could not be written before
        busy = False
        caught_up = True
        if not self._settings.timer_stop_dequeue:
            await warmed(self._disk, self._begin_slots)
            for firing in self._in_order():
                busy = await self._fire(firing) or busy
            await self._move_on()
            # The wheel may not go round while old slots are in it.
            behind_ms = self._clock.now_ms() - self.state.read_ms
            caught_up = behind_ms < self.state.wheel.span_ms // 4
        if caught_up and not self._settings.timer_stop_enqueue:
            busy = await self._take() or busy
        return busy

    async def _rest(self) -> None:
        """Sleep until there is something to do."""
        self._arrived = trio.Event()
        now_ms = self._clock.now_ms()
        wait_s = CLOCK_CHECK_S
        if not self._settings.timer_stop_dequeue:
            for firing in self._firing.values():
                wait_s = min(wait_s, (firing.next_ms - now_ms) / 1000)
            slot = await warmed(self._disk, self._next_slot)
            if slot is not None:
                wait_s = min(wait_s, (slot.time_ms - LEAD_MS - now_ms) / 1000)
        with trio.move_on_after(max(0.0, wait_s)):
            await self._arrived.wait()

    # -- firing ----------------------------------------------------------------------------------------------

    @property
    def _rolling(self) -> bool:
        """Whether messages that went round were not taken again yet: their slot may be the next one."""
        return self.state.queue_offset < self._rolled_to and not self._settings.timer_stop_enqueue

    def _in_order(self) -> list[Firing]:
        return [self._firing[time_ms] for time_ms in sorted(self._firing)]

    def _next_slot(self) -> Slot | None:
        """The first slot that is not on its way out yet."""
        state = self.state
        slot = state.wheel.next(state.read_ms)
        while slot is not None and slot.time_ms in self._firing:
            slot = state.wheel.next(slot.time_ms + state.precision_ms)
        return slot

    def _begin_slots(self) -> None:
        """Begin with the slots whose time is near."""
        now_ms = self._clock.now_ms()
        # What is overdue goes slot by slot: one may hold recalls, or rounds that end, of messages in the next.
        while not self._rolling and all(one.end_ms > now_ms for one in self._firing.values()):
            slot = self._next_slot()
            if slot is None or slot.time_ms > now_ms + LEAD_MS:
                return
            self._firing[slot.time_ms] = Firing(
                slot,
                self.state.precision_ms,
                self.state.log,
                self._store,
                with_topic=self._settings.append_topic_for_timer_delete_key,
            )

    async def _fire(self, firing: Firing) -> bool:
        """Put what is due of a slot, and read some ahead; whether there is more to do at once."""
        while firing.has_recalls and await warmed(self._disk, firing.prepare):
            pass
        now_ms = self._clock.now_ms()
        due = firing.take(now_ms, FIRE_LOT, self._most_bytes())
        if due:
            self._put_due(firing, due, now_ms)
            self._saver.soon()
            return True
        return await warmed(self._disk, firing.prepare)

    def _most_bytes(self) -> int:
        """Bytes of one lot: it has to fit into a segment of the commit log."""
        return min(FIRE_LOT_BYTES, self._store.log.segments.segment_bytes // 4)

    def _put_due(self, firing: Firing, due: Sequence[Due], now_ms: int) -> None:
        """Put messages; those that could not be put go back, and an error gets out (case C148)."""
        done = 0
        try:
            done = self._due.put([one.out for one in due], now_ms)
        except Stopped as error:
            done = error.done
            firing.put_back(due[done:])
            raise
        finally:
            gone = Counter(one.topic for one in due[:done] if one.out.topic != TIMER_TOPIC)
            for topic, count in gone.items():
                self.metrics.add(topic, -count)
            self.fired.count(done)
            if any(one.out.topic == TIMER_TOPIC for one in due[:done]):
                self._rolled_to = self._store.queues.obtain(TIMER_TOPIC, 0).next_offset

    async def _move_on(self) -> None:
        """Forget the slots that are over, and see how far delivery has come."""
        state = self.state
        if self._rolling:
            return
        for firing in self._in_order():
            if not firing.done or self._clock.now_ms() < firing.end_ms:
                break
            await warmed(self._disk, partial(state.finish, firing.slot.time_ms))
            del self._firing[firing.slot.time_ms]
            state.read_ms = max(state.read_ms, firing.end_ms)
            for topic in firing.recalled.values():
                if topic:  # a recall without a message was counted, too
                    self.metrics.add(topic, 1)
            self._saver.soon()
        slot = await warmed(self._disk, self._next_slot)
        now_ms = self._clock.now_ms()
        open_ms = min(self._firing, default=now_ms)
        earliest_ms = min(open_ms, now_ms if slot is None else slot.time_ms)
        state.read_ms = max(state.read_ms, state.wheel.floor(min(now_ms, earliest_ms)))

    # -- taking ----------------------------------------------------------------------------------------------

    async def _take(self) -> bool:
        """Take some messages of the timer's queue; whether there may be more."""
        state, reader = self.state, self._store.reader
        queue = self._store.queues.obtain(TIMER_TOPIC, 0)
        if queue is not self._queue:
            if self._queue is not None:  # the topic was deleted: its queue begins anew
                state.queue_offset = queue.min_offset
                state.known.clear()
            self._watch(queue)
        if state.holding and state.queue_offset >= min(state.retake_before, queue.max_offset):
            await self._place_kept()
        if state.queue_offset >= queue.max_offset:
            return False
        offset = state.queue_offset
        answer = await warmed(self._disk, lambda: reader.messages(queue, offset, TAKE_LOT, None))
        if answer.found is not Found.FOUND:
            log.warning(
                "messages %d to %d of the timer's queue are gone", offset, answer.next_offset - 1
            )
            state.queue_offset = max(answer.next_offset, offset + 1)
            return True
        await self._take_all(answer.data, answer.next_offset)
        self._saver.soon()
        return True

    async def _take_all(self, data: bytes, next_offset: int) -> None:
        """Let messages wait, or deliver those at once whose time is over."""
        state, at = self.state, 0
        overdue: list[tuple[int, Letter]] = []
        while at < len(data):
            try:
                message = decode(data, at)
            except BodyError as error:
                log.error("a message of the timer's queue cannot be read: %s", error)
                break
            at += message.size
            offset = message.queue_offset
            out_ms = out_time_ms(message.properties)
            self._retake.saw(message, out_ms)
            if offset < state.queue_offset or offset in state.known:
                continue
            if state.is_over(out_ms, self._clock.now_ms()):
                was_delivered = state.was_delivered(offset, out_ms)
                letter = None if was_delivered else late_letter(message, self._clock.now_ms())
                if letter is not None:
                    overdue.append((offset, letter))
                continue
            assert out_ms is not None, "a message without a time does not wait"
            if self._retake.keeps(message, out_ms):
                continue
            self._put_overdue(overdue)
            await self._place(message)
            state.queue_offset = offset + 1
        self._put_overdue(overdue)
        state.log.write()
        state.queue_offset = max(state.queue_offset, next_offset)
        if state.known and max(state.known) < next_offset:
            state.known.clear()

    def _put_overdue(self, overdue: list[tuple[int, Letter]]) -> None:
        """Deliver messages that came too late to wait, and empty the list."""
        if not overdue:
            return
        try:
            self._due.put([letter for _, letter in overdue], self._clock.now_ms())
        except Stopped as error:
            self.state.queue_offset = overdue[error.done][0]
            raise
        self.fired.count(len(overdue))
        self.state.queue_offset = overdue[-1][0] + 1
        overdue.clear()

    async def _place(self, message: StoredMessage) -> None:
        """Put a message into the wheel."""
        state, data, now_ms = self.state, message.properties, self._clock.now_ms()
        out_ms = max(out_time_ms(data) or 0, state.read_ms)
        is_recall = props.get(data, _DELETE_KEY) is not None
        topic = (props.get(data, _REAL_TOPIC) or b"").decode("utf-8", "replace")
        entry = Entry(message.log_offset, message.size, out_ms, state.topic_hash(topic), is_recall)
        placed_ms = await warmed(self._disk, lambda: state.put(entry, now_ms))
        firing = self._firing.get(placed_ms)
        if firing is not None:
            magic = PLAIN | (DELETE if is_recall else 0)
            write_ms, topic_hash = state.wheel.floor(now_ms), entry.topic_hash
            firing.add(Place(message.log_offset, message.size, write_ms, magic, topic_hash))
        if props.get(data, _ROLL_TIMES) is None:
            self.metrics.add(topic, -1 if is_recall else 1)
        self.taken.count()

    async def _place_kept(self) -> None:
        """Put messages into the wheel that were kept as they might have gone round, and did not."""
        while (message := self._retake.first()) is not None:
            await self._place(message)
            self._retake.drop_first()
        self.state.log.write()
        self._saver.soon()
