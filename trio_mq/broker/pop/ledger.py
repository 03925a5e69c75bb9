"""What is handed out: check points and acknowledgements into the store, and how far each group has popped.

In: check points of pops and acknowledgements, from the processors of pop and ack. Out: records of the revive topic,
which reach it through the timer when they are due, and the offsets of groups. Called on the loop, never waits.
Apache: PopBufferMergeService, PopInflightMessageCounter, AckMessageProcessor.appendAck.

A group's offset moves past handed-out messages only when their check point is in the log, and with synchronous flush
only when it is on the disk: then a crash cannot lose them. Until then :attr:`Ahead` remembers where the next pop
starts.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import attrs

from trio_mq.broker.names import SYSTEM_PREFIX
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.pop.checkpoints import (
    ACK_INTERVAL_MS,
    Ack,
    Checkpoint,
    ack_properties,
    checkpoint_properties,
)
from trio_mq.broker.put import Letter, Putter
from trio_mq.broker.redirects import Redirects
from trio_mq.clock import Clock
from trio_mq.config import BrokerSettings
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.pop")

QueueOfGroup: TypeAlias = tuple[str, str, int]
"""Topic, group and queue id."""


class HandedOut(NamedTuple):
    """Messages that one pop takes of one queue; `next_offset` is where the next pop of the group starts."""

    ck: Checkpoint
    next_offset: int


class Acknowledged(NamedTuple):
    """An acknowledgement for a queue of the revive topic; `due_ms` is when its check point is due."""

    ack: Ack
    revive_queue_id: int
    due_ms: int


@attrs.define(eq=False)
class Ahead:
    """Where the next pop starts, while the offset that a crash would leave is behind it.

    `end` is the log offset before which all has to be safe first.
    """

    offset: int
    end: int
    valid: bool = True


def revive_topic(cluster: str) -> str:
    """The topic that check points and acknowledgements of a cluster's brokers go to."""
    return f"{SYSTEM_PREFIX}REVIVE_LOG_{cluster}"


class PopLedger:
    """All that a broker has handed out."""

    def __init__(
        self,
        store: Store,
        putter: Putter,
        redirects: Redirects,
        offsets: ConsumerOffsets,
        settings: BrokerSettings,
        clock: Clock,
    ) -> None:
        self.topic = revive_topic(settings.cluster)
        self._store = store
        self._putter = putter
        self._redirects = redirects
        self._offsets = offsets
        self._settings = settings
        self._clock = clock
        self._host = store.host.packed
        self._waits = putter.waits
        self._numbers = itertools.count()
        self._ahead: dict[QueueOfGroup, Ahead] = {}
        #: Messages that are out, by topic and group, then by queue.
        self._inflight: dict[tuple[str, str], dict[int, int]] = {}
        self._started_ms = clock.now_ms()

    # -- pops ------------------------------------------------------------------------------------------------

    def next_revive_queue(self) -> int:
        """The queue of the revive topic that the next pop uses: one after the other."""
        return next(self._numbers) % self._settings.revive_queue_num

    def hand_out(self, handed: Sequence[HandedOut], revive_queue_id: int) -> int:
        """Store the check points of one pop; the log offset behind them.

        Raises StoreFull, or RequestRefused for an invisible time that the timer does not take or for want of
        replicas; then nothing has been handed out.
        """
        end = self._put([(ck, revive_queue_id) for ck, _ in handed], [])
        for ck, next_offset in handed:
            self._count(ck.topic, ck.group, ck.queue_id, ck.count)
            self._advance(ck.group, ck.topic, ck.queue_id, next_offset, end)
        return end

    def skip(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Note that a queue has nothing for a group before an offset."""
        self._advance(group, topic, queue_id, next_offset, None)

    def next_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where the next pop of a queue starts, None for a group that never was there."""
        offset = self._offsets.query(group, topic, queue_id)
        if self._ahead:
            ahead = self._ahead.get((topic, group, queue_id))
            if ahead is not None and (offset is None or ahead.offset > offset):
                return ahead.offset
        return offset

    def reset(self, group: str, topic: str, queue_id: int) -> None:
        """Forget how far a group has popped a queue: its offset was set, and counts."""
        ahead = self._ahead.pop((topic, group, queue_id), None)
        if ahead is not None:
            ahead.valid = False
        self._inflight.get((topic, group), {}).pop(queue_id, None)

    def forget(self, topic: str) -> None:
        """A topic is gone: what was popped of it says nothing about one of the same name."""
        for key in [key for key in self._ahead if key[0] == topic]:
            self._ahead.pop(key).valid = False
        for pair in [pair for pair in self._inflight if pair[0] == topic]:
            del self._inflight[pair]

    def _advance(
        self, group: str, topic: str, queue_id: int, next_offset: int, end: int | None
    ) -> None:
        key = (topic, group, queue_id)
        ahead = self._ahead.get(key)
        if ahead is None:
            if not self._waits or end is None:
                self._offsets.commit(group, topic, queue_id, next_offset, client="a pop")
                return
            ahead = self._ahead[key] = Ahead(next_offset, end)
        ahead.offset = next_offset
        if end is not None:
            ahead.end = end  # who only skips messages waits for the check points before them
        self._putter.when_durable(ahead.end, partial(self._durable, key, ahead, next_offset))

    def _durable(self, key: QueueOfGroup, ahead: Ahead, next_offset: int, durable: bool) -> None:
        """Commit an offset whose check points are safe. If the disk was too slow, a later pop does it."""
        if not durable or not ahead.valid:
            return
        topic, group, queue_id = key
        self._offsets.commit(group, topic, queue_id, next_offset, client="a pop")
        if ahead.offset == next_offset:
            ahead.valid = False
            del self._ahead[key]

    # -- acknowledgements ------------------------------------------------------------------------------------

    def acknowledge(self, acks: Sequence[Acknowledged]) -> int:
        """Store acknowledgements; the log offset behind them. Raises as :meth:`hand_out`; then none is stored."""
        end = self._put([], acks)
        for ack, _, _ in acks:
            self.back(ack.topic, ack.group, ack.queue_id, ack.pop_time_ms, len(ack.offsets()))
        return end

    def exchange(self, ck: Checkpoint, revive_queue_id: int, acked: Acknowledged) -> int:
        """Store a new check point and the acknowledgement of the old one with one write; the log offset behind."""
        return self._put([(ck, revive_queue_id)], [acked])

    def _put(
        self,
        checkpoints: Sequence[tuple[Checkpoint, int]],
        acks: Sequence[Acknowledged],
    ) -> int:
        self._putter.check_replicas()
        now_ms, log_end = self._clock.now_ms(), self._store.log.end
        letters = [
            self._letter(
                ck.encode(),
                checkpoint_properties(ck, log_end),
                queue_id,
                ck.due_ms - ACK_INTERVAL_MS,
                now_ms,
            )
            for ck, queue_id in checkpoints
        ]
        letters += [
            self._letter(ack.encode(), ack_properties(ack, due_ms), queue_id, due_ms, now_ms)
            for ack, queue_id, due_ms in acks
        ]
        return self._putter.put_all(letters)[-1].end

    def _letter(
        self, body: bytes, properties: bytes, queue_id: int, at_ms: int, now_ms: int
    ) -> Letter:
        to = self._redirects.waiting(self.topic, queue_id, properties, at_ms, now_ms)
        return Letter(to.topic, to.queue_id, body, to.properties, now_ms, self._host)

    # -- how much is out -------------------------------------------------------------------------------------

    def too_many(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether a group has so many messages of a queue that it gets no more."""
        if not self._settings.enable_pop_message_threshold:
            return False
        out = self.inflight(topic, group, queue_id)
        return out > self._settings.pop_inflight_message_threshold

    def inflight(self, topic: str, group: str, queue_id: int) -> int:
        """Messages of a queue that this broker has handed out to a group since its start, and that are not back."""
        return self._inflight.get((topic, group), {}).get(queue_id, 0)

    def _count(self, topic: str, group: str, queue_id: int, count: int) -> None:
        queues = self._inflight.setdefault((topic, group), {})
        queues[queue_id] = queues.get(queue_id, 0) + count

    def back(self, topic: str, group: str, queue_id: int, pop_time_ms: int, count: int) -> None:
        """Messages are acknowledged or revived. Those of an earlier run of the broker were never counted."""
        if pop_time_ms < self._started_ms:
            return
        queues = self._inflight.get((topic, group))
        if queues is None or queue_id not in queues:
            return
        left = queues[queue_id] - count
        if left > 0:
            queues[queue_id] = left
            return
        del queues[queue_id]
        if not queues:
            del self._inflight[topic, group]
