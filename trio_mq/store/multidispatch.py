"""One record in several queues: light queues (LMQ), which the sender names and which need no topic.

In: the properties of a message that is about to be stored; and of records that are given their queue entries, live or
by recovery. Out: the message's offset in each of its further queues, as a property of the record, and the queues with
these offsets. A light queue has a name with `%LMQ%` in front, and is queue 0 of it; it holds the entries that lead to
records of other topics. Called by the sender, :class:`~trio_mq.broker.put.Putter` and
:class:`~trio_mq.store.dispatch.Dispatcher`. Format: docs/reference/store-format.md. Rules: Apache LmqDispatch,
MultiDispatchUtils, ConsumeQueue.multiDispatchLmqQueue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from trio_mq.errors import RequestRefused
from trio_mq.protocol import properties
from trio_mq.protocol.codes import ResponseCode
from trio_mq.store.queues import BaseQueue
from trio_mq.store.queuetable import QueueTable

log = logging.getLogger("trio_mq.store.multidispatch")

PREFIX: Final = "%LMQ%"
QUEUE_ID: Final = 0
#: What the record of a message in several queues has among its properties, in bytes.
MARK: Final = b"INNER_MULTI_DISPATCH\x01"
#: Most further queues of one message: each is an entry, and a file of its own.
MAX_QUEUES_OF_MESSAGE: Final = 100
_NAMES: Final = b"INNER_MULTI_DISPATCH"
_OFFSETS: Final = b"INNER_MULTI_QUEUE_OFFSET"
#: Topics whose messages are on their way to another one, or are nobody's.
_NOT_FROM: Final = ("%RETRY%", "rmq_sys_", "RMQ_SYS_")
_SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"


def is_light(name: str) -> bool:
    """Whether a name of a topic or group is that of a light queue, which is in no table."""
    return name.startswith(PREFIX)


def allows(topic: str) -> bool:
    """Whether messages of a topic may be in further queues."""
    return not topic.startswith(_NOT_FROM) and topic != _SCHEDULE


class MultiDispatch:
    """Offsets in further queues. `max_queues` is a limit for all light queues of the store."""

    def __init__(self, queues: QueueTable, max_queues: int) -> None:
        self._queues = queues
        self._max_queues = max_queues
        self._count: int | None = None

    def assign(self, topic: str, props: bytes) -> tuple[bytes, tuple[BaseQueue, ...]]:
        """The properties with the offsets that a message gets now, and its further queues.

        The caller stages the record in the same step. Raises RequestRefused for names that cannot be queues.
        """
        names = self.names(topic, props)
        if not names:
            return props, ()
        queues = tuple(self._queue(name) for name in names)
        offsets = b",".join(b"%d" % queue.next_offset for queue in queues)
        return properties.append(properties.remove(props, _OFFSETS), _OFFSETS, offsets), queues

    def names(self, topic: str, props: bytes) -> list[str]:
        """The further queues that a message of a topic names. Raises RequestRefused for names that cannot be queues."""
        value = properties.get(props, _NAMES)
        if not value or not value.strip() or not allows(topic):
            return []
        names = value.decode("utf-8", "replace").split(",")
        for name in names:
            if not is_light(name) or "/" in name or "\0" in name or len(name.encode()) > 255:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"INNER_MULTI_DISPATCH names {name[:80]!r}, which is no light queue: such a name begins with "
                    f"{PREFIX}, has no slash and 255 bytes at most",
                )
        if len(set(names)) < len(names) or len(names) > MAX_QUEUES_OF_MESSAGE:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"INNER_MULTI_DISPATCH names {len(names)} queues; {MAX_QUEUES_OF_MESSAGE} different ones are allowed",
            )
        return names

    def _queue(self, name: str) -> BaseQueue:
        queue = self._queues.get(name, QUEUE_ID)
        if queue is not None:
            return queue
        if self._count is None or self._count >= self._max_queues:
            self._count = sum(is_light(queue.topic) for queue in self._queues)
        if self._count >= self._max_queues:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"there are {self._count} light queues, {self._max_queues} are allowed (maxLmqConsumeQueueNum)",
            )
        self._count += 1
        return self._queues.obtain(name, QUEUE_ID)


def further_queues(
    topic: str, props: bytes, obtain: Callable[[str], BaseQueue | None]
) -> list[tuple[BaseQueue, int]]:
    """The further queues of a record, each with the record's offset in it; none for what is not whole."""
    if not allows(topic):
        return []
    names, offsets = properties.get(props, _NAMES), properties.get(props, _OFFSETS)
    if not names or not offsets:
        return []
    pairs = list(
        zip(names.decode("utf-8", "replace").split(","), offsets.split(b","), strict=False)
    )
    if len(pairs) != names.count(b",") + 1 or len(pairs) != offsets.count(b",") + 1:
        log.warning("a record of %s names %s, with offsets %s: left out", topic, names, offsets)
        return []
    found = []
    for name, offset in pairs:
        if is_light(name) and "/" not in name and "\0" not in name and offset.isdigit():
            queue = obtain(name)
            if queue is not None and not queue.is_batch:
                found.append((queue, int(offset)))
    return found
