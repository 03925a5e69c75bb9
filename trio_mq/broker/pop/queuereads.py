"""What a pop would take of one queue: where it starts, what it finds, and what that would change.

In: a group, a queue, a start mode, how much is wanted. Out: a :class:`QueueRead`, which nothing has been changed for
yet, since the data of the next queue may have to be fetched from the disk first. Called by the pop processor. Apache:
PopMessageProcessor.popMsgFromQueue, getPopOffset, getInitOffset.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

import attrs

from trio_mq.broker.filters import MessageFilter
from trio_mq.broker.names import RETRY_PREFIX
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.pop.ledger import PopLedger
from trio_mq.config import BrokerSettings
from trio_mq.store.queues import BaseQueue, ConsumeQueue
from trio_mq.store.reader import Found, Messages
from trio_mq.store.store import Store

#: Start mode of a group that was never there: the oldest messages, or the newest (Apache: ConsumeInitMode).
INIT_MIN, INIT_MAX = 0, 1
_OFF = frozenset({Found.OFFSET_TOO_SMALL, Found.OFFSET_OVERFLOW_BADLY, Found.OFFSET_FOUND_NULL})
#: Nothing for this pop, but the group need not look there again.
_PASSED = frozenset({Found.NO_MATCHED_MESSAGE, Found.MESSAGE_WAS_REMOVING})
_SIZE_AND_OFFSET = Struct(">i16xq")


@attrs.frozen
class QueueRead:
    """What a pop finds in a queue.

    `start` is the offset of receipts, `numbers` are the queue offsets of the messages in `data`. `reset` says that
    the group's offset was set from outside, `commit` is an offset that has to be stored before all else.
    """

    topic: str
    queue_id: int
    start: int
    next_offset: int
    rest: int
    data: bytes = b""
    numbers: tuple[int, ...] = ()
    reset: bool = False
    commit: int | None = None
    passed: bool = False


class QueueReads:
    """Reads for pops."""

    def __init__(
        self, store: Store, offsets: ConsumerOffsets, ledger: PopLedger, settings: BrokerSettings
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._ledger = ledger
        self._settings = settings

    def read(
        self,
        topic: str,
        group: str,
        queue_id: int,
        init_mode: int,
        max_count: int,
        wanted: MessageFilter,
    ) -> QueueRead:
        """What a pop of at most `max_count` messages finds; with 0, only how much there is. May raise ColdData."""
        queue = self._store.queue(topic, queue_id)
        end = 0 if queue is None else queue.max_offset
        reset = self._offsets.pending_reset(group, topic, queue_id)
        commit = None
        if reset is not None:
            start = reset
        else:
            known = self._ledger.next_offset(group, topic, queue_id)
            if known is None:
                known = commit = self._first(topic, queue, init_mode)
            start = known
        is_reset = reset is not None
        if max_count <= 0 or queue is None:
            return QueueRead(
                topic, queue_id, start, start, end - start, reset=is_reset, commit=commit
            )
        found = self._messages(queue, start, max_count, wanted)
        if found.found in _OFF:
            # The offset is before or behind what there is: go on where there is something.
            start = commit = found.next_offset
            found = self._messages(queue, start, max_count, wanted)
        numbers = _numbers(found, queue, start) if found.count else ()
        return QueueRead(
            topic,
            queue_id,
            start,
            found.next_offset,
            found.max_offset - found.next_offset,
            found.data,
            numbers,
            is_reset,
            commit,
            found.found in _PASSED,
        )

    def _messages(
        self, queue: BaseQueue, start: int, max_count: int, wanted: MessageFilter
    ) -> Messages:
        return self._store.reader.messages(queue, start, max_count, wanted.codes, wanted.accepts)

    def _first(self, topic: str, queue: BaseQueue | None, init_mode: int) -> int:
        """Where a group starts that was never there."""
        if queue is None:
            return 0
        if init_mode == INIT_MIN or topic.startswith(RETRY_PREFIX):
            return queue.min_offset
        young = queue.min_offset <= 0 and self._in_memory(queue)
        if young and self._settings.init_pop_offset_by_check_msg_in_mem:
            return 0
        return max(0, queue.max_offset - 1)  # of the newest, one comes at once

    def _in_memory(self, queue: BaseQueue) -> bool:
        """Whether a queue's first message is so young that it should still be in memory."""
        if queue.max_offset == 0:
            return False
        found, log_offset = queue.next_record(0, queue.max_offset)
        return found < queue.max_offset and self._store.reader.is_recent(log_offset)


def _numbers(found: Messages, queue: BaseQueue, start: int) -> tuple[int, ...]:
    """Queue offsets of the messages that were found."""
    end = found.next_offset
    if type(queue) is ConsumeQueue and end - start == found.count:
        return tuple(range(start, end))
    return tuple(offset for offset, _, _ in records(found.data))


def records(data: bytes) -> Iterable[tuple[int, int, int]]:
    """Of each record in some data: queue offset, begin and end."""
    at = 0
    while at < len(data):
        size, offset = _SIZE_AND_OFFSET.unpack_from(data, at)
        yield offset, at, at + size
        at += size
