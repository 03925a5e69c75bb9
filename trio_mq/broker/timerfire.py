"""One slot of the timer wheel on its way out: from units of the timer log to messages that are due.

In: a slot, the timer log and the commit log. Out: letters to put, each at its own time within the slot. Called by
:mod:`trio_mq.broker.timers`, which begins a slot a little ahead of its time: then reading is done when the messages
are due. Steps are synchronous and short; where data is on the disk only they raise ColdData with nothing lost, and
go on when called again. Source: Apache TimerMessageStore.dequeue, TimerDequeueGetMessageService, convert.
"""

from __future__ import annotations

import heapq
import logging
from array import array
from collections import deque
from collections.abc import Iterable
from itertools import count
from typing import Final, NamedTuple

from trio_mq.broker.names import TIMER_TOPIC
from trio_mq.broker.put import Letter
from trio_mq.errors import BodyError, LocalProtocolError
from trio_mq.protocol import properties as props
from trio_mq.protocol.layout import MAX_PROPERTIES_BYTES
from trio_mq.protocol.record import StoredMessage, decode
from trio_mq.store.multidispatch import MARK as MULTI_DISPATCH
from trio_mq.store.packed import Packed
from trio_mq.store.queuetable import fits_folder
from trio_mq.store.store import Store
from trio_mq.store.timerlog import DELETE, NO_UNIT, ROLL, TimerLog
from trio_mq.store.timerwheel import Slot

log = logging.getLogger("trio_mq.broker.timers")

#: Units gone over, and messages read, in one step: the loop is free in between.
WALK_UNITS: Final = 2000
READ_MESSAGES: Final = 200
#: Messages of a slot that are in memory at a time, and their bytes. The others of a crowded slot follow.
READY_MESSAGES: Final = 20_000
READY_BYTES: Final = 32 * 1024 * 1024
#: What a message has for TIMER_ENQUEUE_MS that came too late to wait (Apache: Long.MAX_VALUE).
NEVER_WAITED: Final = 2**63 - 1

_DELAY_SEC = props.TIMER_DELAY_SEC.encode()
_DELAY_MS = props.TIMER_DELAY_MS.encode()
_DELIVER_MS = props.TIMER_DELIVER_MS.encode()
_ROLL_TIMES = props.TIMER_ROLL_TIMES.encode()
_ENQUEUE_MS = props.TIMER_ENQUEUE_MS.encode()
_DEQUEUE_MS = props.TIMER_DEQUEUE_MS.encode()
_REAL_TOPIC = props.REAL_TOPIC.encode()
_REAL_QID = props.REAL_QID.encode()
_UNIQ_KEY = props.UNIQ_KEY.encode()
_DELETE_KEY = props.TIMER_DEL_UNIQKEY.encode()


class Place(NamedTuple):
    """Where a message is that waits, and what its unit in the timer log says of it."""

    log_offset: int
    size: int
    write_ms: int
    magic: int
    topic_hash: int


class Due(NamedTuple):
    """A message on its way out: packed, or a letter where it takes more than that to put it. `topic` is where it
    goes in the end, `key` what recalls name; `number` is its own."""

    due_ms: int
    place: Place
    number: int
    out: Packed | Letter
    topic: str
    key: bytes


def number_of(properties: bytes, name: bytes) -> int | None:
    """A property as a whole number; None when it is not there or is none."""
    text = props.get(properties, name)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def due_time_ms(message: StoredMessage, slot_ms: int, precision_ms: int) -> int:
    """When within its slot a message is due: as its producer said, or at the slot's end when that is not known.

    A message that was rolled has a new store time, so what its delay counted from is not known any more.
    """
    data, end_ms = message.properties, slot_ms + precision_ms
    delay_ms = number_of(data, _DELAY_SEC)
    delay_ms = number_of(data, _DELAY_MS) if delay_ms is None else delay_ms * 1000
    if delay_ms is None:
        due_ms = number_of(data, _DELIVER_MS)
    elif props.get(data, _ROLL_TIMES) is None:
        due_ms = message.store_timestamp_ms + delay_ms
    else:
        due_ms = None
    return end_ms if due_ms is None or not slot_ms < due_ms <= end_ms else due_ms


class Out(NamedTuple):
    """Where a message goes, and its properties then."""

    topic: str
    queue_id: int
    properties: bytes

    @classmethod
    def of(cls, message: StoredMessage, enqueue_ms: int, dequeue_ms: int) -> Out | None:
        """For a message that has waited; None when it does not say where it goes.

        Anybody may send to the timer's queue by hand, so what a message says there is looked at.
        """
        topic = (props.get(message.properties, _REAL_TOPIC) or b"").decode("utf-8", "replace")
        queue_id = number_of(message.properties, _REAL_QID)
        if not fits_folder(topic) or queue_id is None or not 0 <= queue_id < 2**31:
            return None
        data = _with_number(message.properties, _ENQUEUE_MS, enqueue_ms)
        data = _with_number(data, _DEQUEUE_MS, dequeue_ms)
        return cls(topic, queue_id, data)

    @classmethod
    def rolled(cls, message: StoredMessage, enqueue_ms: int, dequeue_ms: int) -> Out:
        """Back to the timer's queue, for a message that is due much later."""
        times = number_of(message.properties, _ROLL_TIMES) or 0
        data = _with_number(message.properties, _ENQUEUE_MS, enqueue_ms)
        data = _with_number(data, _DEQUEUE_MS, dequeue_ms)
        return cls(TIMER_TOPIC, 0, _with_number(data, _ROLL_TIMES, times + 1))

    def letter(self, message: StoredMessage) -> Letter:
        """The message as it goes out."""
        return Letter.again(
            message, topic=self.topic, queue_id=self.queue_id, properties=self.properties
        )


def late_letter(message: StoredMessage, now_ms: int) -> Letter | None:
    """What goes out for a message whose time is over; None for a recall, and for one that cannot go anywhere."""
    if props.get(message.properties, _DELETE_KEY) is not None:
        return None
    out = Out.of(message, NEVER_WAITED, now_ms)
    if out is None:
        log.error("message %d of the timer's queue says no queue to go to", message.queue_offset)
        return None
    return out.letter(message)


def _with_number(data: bytes, name: bytes, number: int) -> bytes:
    """Properties with one more, or as they are when there is no room: losing the message would be worse."""
    changed = props.append(props.remove(data, name), name, b"%d" % number)
    return changed if len(changed) <= MAX_PROPERTIES_BYTES else data


class Firing:
    """A slot that is being delivered."""

    def __init__(
        self,
        slot: Slot,
        precision_ms: int,
        timer_log: TimerLog,
        store: Store,
        *,
        with_topic: bool,
    ) -> None:
        self.slot = slot
        self.end_ms = slot.time_ms + precision_ms
        self._precision_ms = precision_ms
        self._log = timer_log
        self._reader = store.reader
        self._host = store.host
        self._with_topic = with_topic
        #: Position of the next unit to go over, newest first.
        self._at = slot.last
        #: Units gone over and not read yet, newest first, as columns: a slot may hold millions.
        self._offsets, self._sizes = array("q"), array("i")
        self._times, self._magics, self._hashes = array("q"), array("b"), array("i")
        #: Recalls that were not read yet, and messages that came after the slot was begun.
        self._recalls: list[Place] = []
        self._late: deque[Place] = deque()
        #: What recalls name, with the topic that each was counted for; and where they are.
        self.recalled: dict[bytes, str] = {}
        self._recall_places: dict[bytes, Place] = {}
        #: Whether some of the slot has gone out.
        self.begun = False
        self._ready: list[Due] = []
        self._ready_bytes = 0
        self._numbers = count()

    # -- reading ahead ---------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return not self._ready and not self.unread and self._at == NO_UNIT

    @property
    def unread(self) -> bool:
        """Whether there are messages that were not read yet."""
        return bool(self._offsets or self._late or self._recalls)

    @property
    def has_recalls(self) -> bool:
        """Whether recalls wait to be read: they come before the messages that they name."""
        return bool(self._recalls)

    @property
    def next_ms(self) -> int:
        """When something has to be done here: a message is due, or the slot is over."""
        return self._ready[0].due_ms if self._ready else self.end_ms

    def prepare(self) -> bool:
        """One step of reading ahead; False when there is nothing to do for now."""
        if self._at != NO_UNIT:
            self._walk()
        elif self._recalls:
            self._read_recalls()
        elif len(self._ready) >= READY_MESSAGES or self._ready_bytes >= READY_BYTES:
            return False
        elif self._offsets or self._late:
            self._read_messages()
        else:
            return False
        return True

    def add(self, place: Place) -> None:
        """A message that came for this slot just now."""
        if _is_recall(place.magic):
            self._recalls.append(place)
        else:
            self._late.append(place)

    def _walk(self) -> None:
        """Go over some units of the slot, from the newest back."""
        for _ in range(WALK_UNITS):
            at = self._at
            if at == NO_UNIT:
                return
            unit = self._log.unit(at)
            if unit is None or unit.time_ms != self.slot.time_ms or unit.prev >= at:
                log.error(
                    "the timer log has no unit of the slot at %d ms in position %d: what came before it in this "
                    "slot cannot be found",
                    *(self.slot.time_ms, at),
                )
                self._at = NO_UNIT
                return
            if _is_recall(unit.magic):
                self._recalls.append(
                    Place(
                        unit.log_offset,
                        unit.record_size,
                        unit.write_ms,
                        unit.magic,
                        unit.topic_hash,
                    )
                )
            else:
                self._offsets.append(unit.log_offset)
                self._sizes.append(unit.record_size)
                self._times.append(unit.write_ms)
                self._magics.append(unit.magic)
                self._hashes.append(unit.topic_hash)
            self._at = unit.prev

    def _read_recalls(self) -> None:
        places = self._recalls[:READ_MESSAGES]
        for place, message in zip(places, self._messages(places), strict=True):
            key = None if message is None else props.get(message.properties, _DELETE_KEY)
            if message is not None and key is not None:
                topic = props.get(message.properties, _REAL_TOPIC) or b""
                self.recalled[key] = topic.decode("utf-8", "replace")
                self._recall_places[key] = place
        del self._recalls[: len(places)]

    def _read_messages(self) -> None:
        total = min(READ_MESSAGES, len(self._offsets))
        if total:
            last = slice(-1, -total - 1, -1)
            places = [Place(*row) for row in zip(*(c[last] for c in self._columns), strict=True)]
        else:
            places = [self._late[i] for i in range(min(READ_MESSAGES, len(self._late)))]
        messages = self._messages(places)
        if total:
            for column in self._columns:
                del column[-total:]
        else:
            for _ in places:
                self._late.popleft()
        for place, message in zip(places, messages, strict=True):
            if message is not None:
                self._make_ready(message, place)

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return (self._offsets, self._sizes, self._times, self._magics, self._hashes)

    def _messages(self, places: list[Place]) -> list[StoredMessage | None]:
        """The messages at some places; None, and a word in the log, for one that is gone."""
        found: list[StoredMessage | None] = []
        data = self._reader.records([(place[0], place[1]) for place in places])
        for (log_offset, *_), record in zip(places, data, strict=True):
            message = _decoded(record)
            if message is None:
                log.error(
                    "a message that waited for %d ms is gone from log offset %d; fileReservedTime has to be longer "
                    "than messages wait for",
                    *(self.slot.time_ms, log_offset),
                )
            found.append(message)
        return found

    def _make_ready(self, message: StoredMessage, place: Place) -> None:
        rolls = place.magic & ROLL
        due_ms = self.end_ms
        if not rolls:
            due_ms = due_time_ms(message, self.slot.time_ms, self._precision_ms)
        out = (Out.rolled if rolls else Out.of)(message, place.write_ms, due_ms)
        topic = (props.get(message.properties, _REAL_TOPIC) or b"").decode("utf-8", "replace")
        if out is None:
            log.error("the message at log offset %d says no queue to go to", message.log_offset)
            return
        key = props.get(message.properties, _UNIQ_KEY) or b""
        if self._with_topic and key:
            key = b"%b+%b" % (topic.encode(), key)
        form = self._packed(message, out)
        self.put_back([Due(due_ms, place, next(self._numbers), form, topic, key)])

    def _packed(self, message: StoredMessage, out: Out) -> Packed | Letter:
        """A message in the form that is put fastest."""
        if MULTI_DISPATCH in out.properties:
            return out.letter(message)  # its other queues are found when it is put
        try:
            return Packed.again(
                message,
                self._host,
                topic=out.topic,
                queue_id=out.queue_id,
                properties=out.properties,
            )
        except LocalProtocolError:
            return out.letter(message)

    # -- out -------------------------------------------------------------------------------------------------

    def take(self, now_ms: int, limit: int, size: int) -> list[Due]:
        """Messages that are due, at most `limit` and about `size` bytes of them; recalled ones are gone."""
        found: list[Due] = []
        ready = self._ready
        while ready and ready[0].due_ms <= now_ms and limit > 0 and size > 0:
            due = heapq.heappop(ready)
            self._ready_bytes -= due.place.size
            if due.key in self.recalled:
                self.recalled[due.key] = ""  # it had a message
                continue
            found.append(due)
            self.begun = True
            limit -= 1
            size -= due.place.size
        return found

    def put_back(self, several: Iterable[Due]) -> None:
        """Messages that are not gone yet."""
        for due in several:
            heapq.heappush(self._ready, due)
            self._ready_bytes += due.place.size

    def left(self) -> list[Place]:
        """What has not gone out, in its order; with the recalls that have met no message yet."""
        messages = [Place(*row) for row in zip(*self._columns, strict=True)]
        messages += [due.place for due in self._ready]
        messages += self._late
        recalls = [self._recall_places[key] for key, topic in self.recalled.items() if topic]
        return sorted([*messages, *recalls, *self._recalls])


def _is_recall(magic: int) -> bool:
    return bool(magic & DELETE) and not magic & ROLL


def _decoded(record: bytes | None) -> StoredMessage | None:
    if record is None:
        return None
    try:
        message = decode(record)
    except BodyError:
        return None
    # After a crash of a machine, others may lie where a unit points to.
    return message if message.topic == TIMER_TOPIC else None
