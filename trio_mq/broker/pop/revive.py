"""Revival: popped messages that nobody acknowledged in time go to their group's retry topic.

In: check points and acknowledgements from the revive topic, which the timer puts there when they are due. Out: copies
of messages in retry topics, and how far each revive queue is worked off, which is the offset of the group
CID_RMQ_SYS_REVIVE_GROUP. Owns one task, :meth:`Reviver.run`. Apache: PopReviveService.

A check point comes into its queue a second before its messages are due, and acknowledgements when they are due. So it
is decided when everything that was due a little later has been read. What is open is kept in memory, at most
:data:`MOST_OPEN` check points of each queue: as a rule those of three seconds.

Failures: a record that is no check point is told and passed over; a message that has expired is gone. When the log
takes no more, or the disk does not hand data over, the check point stays and the next round tries again. A kill at
any moment leaves messages that are revived twice at worst: the offset moves only behind what is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import attrs
import trio

from trio_mq.broker.groups import GroupTable
from trio_mq.broker.names import RETRY_PREFIX, pop_retry_topics
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.pop.checkpoints import (
    CK_TAG,
    LOG_END,
    REVIVE_GROUP,
    Checkpoint,
    Key,
    Open,
    decode_ack,
    decode_checkpoint,
)
from trio_mq.broker.pop.ledger import PopLedger
from trio_mq.broker.pop.queuereads import records
from trio_mq.broker.put import Letter, Putter
from trio_mq.broker.saver import Saver
from trio_mq.broker.topics import TopicTable
from trio_mq.broker.warm import warmed
from trio_mq.clock import Clock
from trio_mq.config import BrokerSettings
from trio_mq.errors import BodyError, StoreError
from trio_mq.protocol import properties
from trio_mq.protocol.bodies import TopicConfig
from trio_mq.protocol.codes import Perm
from trio_mq.protocol.layout import MAX_PROPERTIES_BYTES
from trio_mq.protocol.receipts import normal_topic
from trio_mq.protocol.record import StoredMessage, decode
from trio_mq.store.dispatch import Arrival
from trio_mq.store.queues import BaseQueue
from trio_mq.store.reader import Found, Messages
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.pop")

#: Check points of one revive queue that are kept in memory; then it is read no further until some are decided.
MOST_OPEN = 20_000
#: Records of the revive topic that are read in one go; between two goes the loop is free.
READ_COUNT = 32
#: While the queue is not read to its end: acknowledgements may lie so much behind those of a later time.
SLACK_MS = 2000
_READ_WRITE = int(Perm.READ | Perm.WRITE)
_MOVED = frozenset({Found.OFFSET_TOO_SMALL, Found.OFFSET_OVERFLOW_BADLY})


@attrs.define(eq=False)
class _Line:
    """One revive queue: where to read on, what is open (by queue offset), and the latest time that was read."""

    queue_id: int
    next_offset: int
    open: dict[int, Open] = attrs.field(factory=dict)
    by_key: dict[Key, Open] = attrs.field(factory=dict)
    seen_ms: int = 0


class Reviver:
    """Brings messages back. `delivered_to_ms` tells until when the timer has delivered everything; it may raise
    ColdData."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        putter: Putter,
        ledger: PopLedger,
        saver: Saver,
        settings: BrokerSettings,
        clock: Clock,
        delivered_to_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._putter = putter
        self._ledger = ledger
        self._saver = saver
        self._settings = settings
        self._clock = clock
        self._delivered_to_ms = delivered_to_ms
        self._lines: dict[int, _Line] = {}
        self._watched: set[BaseQueue] = set()
        self._news = trio.Event()
        #: Messages that were revived since the start.
        self.revived = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Revive what is due, every `reviveInterval` while something is open, until cancelled."""
        listeners = self._store.dispatcher.listeners
        listeners.append(self._arrived)
        try:
            task_status.started()
            while True:
                self._news = trio.Event()
                busy = await self.round()
                if not busy:
                    await self._news.wait()
                await trio.sleep(self._settings.revive_interval_ms / 1000)
        finally:
            listeners.remove(self._arrived)
            for queue in self._watched:
                queue.watched -= 1
            self._watched.clear()

    def _arrived(self, hits: list[Arrival]) -> None:
        if not self._news.is_set() and any(hit.queue in self._watched for hit in hits):
            self._news.set()

    async def round(self) -> bool:
        """Work each revive queue off as far as that goes now; whether something is still open."""
        busy = False
        for queue_id in self._queue_ids():
            line = self._line(queue_id)
            try:
                busy = await self._work_off(line) or busy
            except (StoreError, OSError) as error:
                busy = True
                log.error(
                    "revive queue %d waits: a message cannot be brought back now: %s",
                    *(queue_id, error),
                )
        return busy

    def _queue_ids(self) -> range:
        """Queues that may have check points; those of an earlier, higher reviveQueueNum as well."""
        config = self._topics.get(self._ledger.topic)
        known = 0 if config is None else config.read_queue_nums
        return range(max(known, self._settings.revive_queue_num))

    def _line(self, queue_id: int) -> _Line:
        line = self._lines.get(queue_id)
        if line is None:
            done = self._offsets.query(REVIVE_GROUP, self._ledger.topic, queue_id)
            line = self._lines[queue_id] = _Line(queue_id, 0 if done is None else done + 1)
        return line

    def _watch(self, queue_id: int) -> BaseQueue:
        """A revive queue, whose arrivals end the sleep."""
        queue = self._store.queues.obtain(self._ledger.topic, queue_id)
        if queue not in self._watched:
            self._watched.add(queue)
            queue.watched += 1
        return queue

    async def _work_off(self, line: _Line) -> bool:
        queue = self._watch(line.queue_id)
        delivered_ms = await warmed(self._store.parts.disk, self._delivered_to_ms)
        at_end = await self._read(line, queue)
        until_ms = line.seen_ms - SLACK_MS
        if at_end:
            until_ms = max(until_ms, delivered_ms)
        elif len(line.open) >= MOST_OPEN:
            # No room to read on: those that are late are decided by what was read of their acknowledgements.
            until_ms = max(until_ms, self._clock.now_ms() - 2 * SLACK_MS)
        end = 0
        try:
            for opened in list(line.open.values()):
                if opened.left and opened.ck.due_ms > until_ms:
                    break
                if opened.left:
                    end = max(end, await self._revive(opened))
                self._close(line, opened)
        finally:
            done = next(iter(line.open), line.next_offset) - 1
            self._putter.when_durable(end, partial(self._commit, line.queue_id, done))
        return bool(line.open) or not at_end

    def _commit(self, queue_id: int, done: int, durable: bool) -> None:
        """Store how far a queue is worked off, now that what was revived is safe; else a later round does it."""
        before = self._offsets.query(REVIVE_GROUP, self._ledger.topic, queue_id)
        if durable and done > (-1 if before is None else before):
            self._offsets.commit(REVIVE_GROUP, self._ledger.topic, queue_id, done)

    # -- reading ---------------------------------------------------------------------------------------------

    async def _read(self, line: _Line, queue: BaseQueue) -> bool:
        """Read what is new; whether the queue's end was reached."""
        while len(line.open) < MOST_OPEN:
            found = await warmed(
                self._store.parts.disk,
                lambda: self._store.reader.messages(queue, line.next_offset, READ_COUNT, None),
            )
            if found.found in _MOVED:
                log.warning(
                    "revive queue %d goes on at offset %d instead of %d: that has expired or was cut off",
                    *(line.queue_id, found.next_offset, line.next_offset),
                )
            if found.next_offset == line.next_offset or not found.max_offset:
                return True
            self._take_in(line, found)
            line.next_offset = found.next_offset
            await trio.lowlevel.checkpoint()
        return False

    def _take_in(self, line: _Line, found: Messages) -> None:
        for offset, begin, end in records(found.data):
            try:
                self._take_in_one(line, offset, decode(found.data[begin:end]))
            except BodyError as error:
                log.warning(
                    "revive queue %d: the record at offset %d is passed over: %s",
                    *(line.queue_id, offset, error),
                )

    def _take_in_one(self, line: _Line, offset: int, record: StoredMessage) -> None:
        props = record.properties
        at = properties.get(props, b"TIMER_DELIVER_MS")
        if at is not None and at.isdigit():
            line.seen_ms = max(line.seen_ms, int(at))
        if properties.get(props, b"TAGS") == CK_TAG.encode():
            ck = decode_checkpoint(record.body)
            log_end = properties.get(props, LOG_END)
            ends = int(log_end) if log_end is not None and log_end.isdigit() else None
            line.open[offset] = line.by_key[ck.key] = Open(ck, offset, set(ck.offsets()), ends)
            return
        ack = decode_ack(record.body)
        key = ack.key if ack.broker_name else (*ack.key[:-1], self._settings.broker_name)
        opened = line.by_key.get(key)
        if opened is None:
            return  # its check point is decided: it came too late
        opened.left.difference_update(ack.offsets())
        if not opened.left:
            self._close(line, opened)

    def _close(self, line: _Line, opened: Open) -> None:
        line.open.pop(opened.revive_offset, None)
        if line.by_key.get(opened.ck.key) is opened:
            del line.by_key[opened.ck.key]

    # -- reviving --------------------------------------------------------------------------------------------

    async def _revive(self, opened: Open) -> int:
        """Put the messages of a check point into the retry topic; the log offset behind them, 0 for none."""
        ck = opened.ck
        own = normal_topic(ck.topic, ck.group)
        if self._topics.get(own) is None or self._groups.obtain(ck.group) is None:
            log.info("topic %s or group %s is gone, and with it what was popped", own, ck.group)
            return 0
        letters = [
            letter
            for offset in sorted(opened.left)
            if (letter := await self._letter(opened, offset)) is not None
        ]
        if not letters:
            return 0
        await self._obtain_retry_topic(letters[0].topic, ck.group)
        end = self._putter.put_all(letters)[-1].end
        self._ledger.back(ck.topic, ck.group, ck.queue_id, ck.pop_time_ms, len(opened.left))
        self.revived += len(letters)
        return end

    async def _letter(self, opened: Open, offset: int) -> Letter | None:
        """The message at an offset as it goes to the retry topic; None when it is gone."""
        ck = opened.ck
        queue = self._store.queue(ck.topic, ck.queue_id)
        found = await warmed(
            self._store.parts.disk, lambda: self._store.reader.messages(queue, offset, 1, None)
        )
        if not found.count or found.next_offset != offset + 1:
            log.info(
                "group %s never acknowledged %s queue %d offset %d, and it has expired",
                *(ck.group, ck.topic, ck.queue_id, offset),
            )
            return None
        try:
            message = decode(found.data)
        except BodyError as error:
            log.error(
                "%s queue %d offset %d is damaged and does not come back to group %s: %s",
                *(ck.topic, ck.queue_id, offset, ck.group, error),
            )
            return None
        if opened.log_end is not None and message.log_offset >= opened.log_end:
            log.info(
                "%s queue %d offset %d is not what group %s popped: the topic was made anew",
                *(ck.topic, ck.queue_id, offset, ck.group),
            )
            return None
        topic = ck.topic
        if not topic.startswith(RETRY_PREFIX):
            v2 = self._settings.enable_retry_topic_v2
            topic = pop_retry_topics(topic, ck.group)[1 if v2 else 0]
        props = self._properties(message, ck)
        letter = Letter.again(message, topic=topic, queue_id=0, properties=props)
        return attrs.evolve(letter, reconsume_times=message.reconsume_times + 1)

    def _properties(self, message: StoredMessage, ck: Checkpoint) -> bytes:
        """Those of a message in a retry topic: since when it is popped, and by which group."""
        bare = props = properties.remove(message.properties, b"POP_CK")
        if not message.reconsume_times or properties.get(props, b"1ST_POP_TIME") is None:
            props = properties.remove(props, b"1ST_POP_TIME")
            props = properties.append(props, b"1ST_POP_TIME", str(ck.pop_time_ms).encode())
        props = properties.remove(props, b"ORIGIN_GROUP")
        props = properties.append(props, b"ORIGIN_GROUP", ck.group.encode())
        # A message whose properties are as long as can be comes back without them.
        return props if len(props) <= MAX_PROPERTIES_BYTES else bare

    async def _obtain_retry_topic(self, topic: str, group: str) -> None:
        """Make a retry topic, and wait until it is saved: without it nobody finds what is in its queue."""
        if self._topics.get(topic) is not None:
            return
        self._topics.create_if_absent(TopicConfig(topic, 1, 1, _READ_WRITE))
        if self._offsets.query(group, topic, 0) is None:
            self._offsets.commit(group, topic, 0, 0)
        saved = trio.Event()
        failure: StoreError | None = None

        def done(error: StoreError | None) -> None:
            nonlocal failure
            failure = error
            saved.set()

        self._saver.soon(done)
        await saved.wait()
        if failure is not None:
            raise failure
