"""Which messages of a queue an ordered pop has handed out, and whether the next one has to wait for them.

In: pops, acknowledgements and changes of visibility from the pop and ack processors, with the present moment in ms
since the epoch; the content of ``consumerOrderInfo.json``. Out: whether a queue is blocked for a group, how often
each message was handed out before, and the offset that the group may commit. :meth:`PopOrders.run` tells when a
blocked queue is free again. Called by the pop, ack and notification processors, and by
:mod:`trio_mq.broker.tables`. Format of the file: ``docs/reference/state-files.md``. Rules: Apache
QueueLevelConsumerManager (before 5.4: ConsumerOrderInfoManager) and its lock manager.

A group has at most one batch out per queue. While a message of that batch is neither acknowledged nor visible
again, the queue gives nothing to anybody else; only who repeats the attempt id of that batch gets it again.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import attrs
import trio

from trio_mq.broker.offsets import SEPARATOR, split_key
from trio_mq.broker.statejson import json_object
from trio_mq.clock import Clock
from trio_mq.errors import BodyError
from trio_mq.protocol import bodies
from trio_mq.protocol.names import wire

log = logging.getLogger("trio_mq.broker.pop")

#: A batch without news for this long is forgotten (Apache: CLEAN_SPAN_FROM_LAST).
FORGET_AFTER_MS: Final = 24 * 3600 * 1000
#: Longest sleep until the next look at releases: after that a jump of the wall clock is noticed.
LONGEST_SLEEP_S: Final = 10.0
#: Releases that may stay in the heap after they were moved, on top of as many as still count.
SPARE_RELEASES: Final = 1000
_MASK: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63


class QueueOfGroup(NamedTuple):
    """What an order belongs to."""

    topic: str
    group: str
    queue_id: int


class Committed(NamedTuple):
    """What became of acknowledgements: the offset to commit, None if nothing was noted; one that is no message of the
    batch, if there is one."""

    next_offset: int | None
    illegal: int | None = None


@attrs.define
class Order:
    """One batch that was handed out, with the names of ``consumerOrderInfo.json``. Times are in ms since the epoch.

    `offsets` are queue offsets (in the file the first, and the distances of the others from it), `acked` has a bit for
    each that was acknowledged. `counts` tells how often a message was handed out before, for those above 0.
    """

    pop_time: int = 0
    invisible_time: int | None = wire("i", default=None)
    offsets: tuple[int, ...] = wire("o", default=())
    next_visible: dict[int, int] | None = wire("ot", default=None)  # noqa: RUF009 - a field of attrs
    counts: dict[int, int] | None = wire("oc", default=None)  # noqa: RUF009 - the same
    last_consume_timestamp: int = wire("l", default=0)
    acked: int = wire("cm", default=0)
    attempt_id: str | None = wire("a", default=None)

    def next_offset(self) -> int:
        """Offset of the first message that was not acknowledged, else the one behind the last."""
        acked, offsets = self.acked, self.offsets
        number = (~acked & (acked + 1)).bit_length() - 1  # of the lowest bit that is not set
        return offsets[number] if number < len(offsets) else offsets[-1] + 1

    def free_at_ms(self, now_ms: int, invisible_ms: int = 0) -> int:
        """When all messages are acknowledged or visible, as it looks now; `now_ms` if that is so already.

        `invisible_ms` is taken for a batch whose own time is not known.
        """
        offsets, acked, changed = self.offsets, self.acked, self.next_visible
        everything = (1 << len(offsets)) - 1
        if acked & everything == everything:
            return now_ms
        visible_ms = self.pop_time + (self.invisible_time or invisible_ms)
        if not changed:
            return max(now_ms, visible_ms)
        unacked = [offset for number, offset in enumerate(offsets) if not acked >> number & 1]
        return max([now_ms, *(changed.get(offset, visible_ms) for offset in unacked)])

    def ack(self, offset: int) -> bool:
        """Note an acknowledgement; whether the batch has such a message."""
        if offset not in self.offsets:
            return False
        self.acked |= 1 << self.offsets.index(offset)
        return True


class PopOrders:
    """Batches of ordered pops by topic, group and queue. `on_unlocked` is called when a blocked queue is free."""

    def __init__(self, clock: Clock, *, tell_unlocked: bool = True) -> None:
        #: Called with topic, group and queue id; from :meth:`run`, never from within another call.
        self.on_unlocked: Callable[[str, str, int], None] | None = None
        self._clock = clock
        self._tell_unlocked = tell_unlocked
        self._table: dict[str, dict[int, Order]] = {}
        self._revision = 0
        self._unknown_of_file: dict[str, Any] = {}
        #: Moments at which queues become free. The table of releases says which entries of the heap count.
        self._releases: dict[QueueOfGroup, int] = {}
        self._heap: list[tuple[int, int, QueueOfGroup]] = []
        self._numbers = count()
        self._sooner = trio.Event()

    # -- pops and acknowledgements

    def blocked(
        self,
        topic: str,
        group: str,
        queue_id: int,
        attempt_id: str | None,
        invisible_ms: int,
        now_ms: int,
    ) -> bool:
        """Whether a pop has to leave a queue alone. Who repeats the last attempt id need not.

        `invisible_ms` is the pop's own, for a batch that was loaded without one.
        """
        order = self._get(topic, group, queue_id)
        if order is None or not order.offsets:
            return False
        if order.attempt_id is not None and order.attempt_id == attempt_id:
            return False
        return order.free_at_ms(now_ms, invisible_ms) > now_ms

    def update(
        self,
        attempt_id: str | None,
        topic: str,
        group: str,
        queue_id: int,
        pop_time_ms: int,
        invisible_ms: int,
        offsets: Sequence[int],
    ) -> str:
        """Note a batch with these queue offsets (ascending, not empty), in place of the one before.

        Returns its part of the reply's ``orderCountInfo``: ``0 qo<queue>%<offset> <count>`` for each message that
        was handed out before, and ``0 <queue> <count>`` with the least of all, which old clients read.
        """
        assert offsets, "a pop without messages hands nothing out"
        now_ms = self._clock.now_ms()
        order = Order(
            pop_time_ms,
            invisible_ms,
            tuple(offsets),
            last_consume_timestamp=now_ms,
            attempt_id=attempt_id,
        )
        before = self._get(topic, group, queue_id)
        if before is not None:
            order.counts = _counts_after(before, order, offsets)
        self._table.setdefault(f"{topic}@{group}", {})[queue_id] = order
        self._changed(QueueOfGroup(topic, group, queue_id), order, now_ms)
        counts = order.counts or {}
        told = [f"0 qo{queue_id}%{offset} {times}" for offset, times in counts.items()]
        # Only repeated messages have a count: fewer counts than messages means that one is new.
        least = min(counts.values()) if counts and len(counts) == len(offsets) else 0
        return ";".join([*told, f"0 {queue_id} {least}"])

    def commit(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: Sequence[int],
        pop_time_ms: int,
        now_ms: int,
    ) -> Committed:
        """Note acknowledgements (ascending, not empty): what the group may commit now, and what was not in the batch.

        Nothing happens for a batch of an earlier pop. If nothing is known of the queue, say because the file got lost,
        the group goes on behind these messages.
        """
        order = self._get(topic, group, queue_id)
        if order is None:
            return Committed(offsets[-1] + 1)
        if order.offsets and order.pop_time != pop_time_ms:
            return Committed(None)
        illegal = [offset for offset in offsets if not order.ack(offset)]
        if len(illegal) == len(offsets):
            return Committed(None, illegal[0])
        self._changed(QueueOfGroup(topic, group, queue_id), order, now_ms)
        return Committed(order.next_offset(), illegal[0] if illegal else None)

    def change_visible(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offset: int,
        pop_time_ms: int,
        next_visible_ms: int,
    ) -> None:
        """Let one message be visible at another time; nothing happens for a batch of an earlier pop."""
        order = self._get(topic, group, queue_id)
        if order is None or order.pop_time != pop_time_ms:
            log.info(
                "group %s changes the visibility of %s queue %d offset %d by the receipt of a pop that is not "
                "its last one; that has no effect",
                *(group, topic, queue_id, offset),
            )
            return
        order.next_visible = {**(order.next_visible or {}), offset: next_visible_ms}
        self._changed(QueueOfGroup(topic, group, queue_id), order, self._clock.now_ms())

    def clear(self, group: str, topic: str, queue_id: int) -> None:
        """Forget the batch of a queue, say because the group was set back: nothing blocks then."""
        if self._table.get(f"{topic}@{group}", {}).pop(queue_id, None) is not None:
            self._revision += 1
            self._releases.pop(QueueOfGroup(topic, group, queue_id), None)

    def clean(self, queue_nums: Callable[[str], int], is_group: Callable[[str], bool]) -> None:
        """Forget batches of topics, groups and queues that are gone, and those without news for a day.

        `queue_nums` tells how many queues of a topic can be read, 0 for one that does not exist.
        """
        oldest_ms = self._clock.now_ms() - FORGET_AFTER_MS
        for key, orders in list(self._table.items()):
            topic, _, group = key.partition(SEPARATOR)
            known = queue_nums(topic) if is_group(group) else 0
            for queue_id, order in list(orders.items()):
                if queue_id >= known or order.last_consume_timestamp < oldest_ms:
                    log.info("ordered pop: %s queue %d is forgotten: %s", key, queue_id, order)
                    self.clear(group, topic, queue_id)
            if not orders:
                del self._table[key]

    def _get(self, topic: str, group: str, queue_id: int) -> Order | None:
        orders = self._table.get(f"{topic}@{group}")
        return None if orders is None else orders.get(queue_id)

    # -- queues that become free

    def _changed(self, key: QueueOfGroup, order: Order, now_ms: int) -> None:
        self._revision += 1
        if self._tell_unlocked:
            self._release_at(key, order.free_at_ms(now_ms))

    def _release_at(self, key: QueueOfGroup, free_ms: int) -> None:
        if self._releases.get(key) == free_ms:
            return  # most acknowledgements leave the rest of their batch as it is
        self._releases[key] = free_ms
        if len(self._heap) > 2 * len(self._releases) + SPARE_RELEASES:
            self._heap = [entry for entry in self._heap if self._releases.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (free_ms, next(self._numbers), key))
        if self._heap[0][2] == key:
            self._sooner.set()

    def release(self, now_ms: int) -> list[QueueOfGroup]:
        """Queues that are free by now and were not at the last call."""
        free: list[QueueOfGroup] = []
        while self._heap and self._heap[0][0] <= now_ms:
            free_ms, _, key = heapq.heappop(self._heap)
            if self._releases.get(key) == free_ms:
                del self._releases[key]
                free.append(key)
        return free

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell when queues become free, until cancelled.

        A wall clock that jumps moves the releases with it: that is why each sleep has a limit.
        """
        task_status.started()
        while True:
            now_ms = self._clock.now_ms()
            for key in self.release(now_ms):
                if self.on_unlocked is not None:
                    self.on_unlocked(*key)
            left_s = (self._heap[0][0] - now_ms) / 1000 if self._heap else LONGEST_SLEEP_S
            self._sooner = trio.Event()
            with trio.move_on_after(min(left_s, LONGEST_SLEEP_S)):
                await self._sooner.wait()

    # -- the file consumerOrderInfo.json

    @property
    def revision(self) -> int:
        """Grows with each change that has to be saved."""
        return self._revision

    def read_json(self, value: Any) -> None:
        """Take the batches of a file; fields of the file itself that we do not know are kept."""
        if not isinstance(value, dict):
            raise BodyError("consumerOrderInfo.json is not an object")
        found: dict[str, dict[int, Order]] = {}
        for key, orders in json_object(value.get("table"), "table").items():
            if split_key(key) is None:
                log.warning("consumerOrderInfo.json: %r is not topic@group; dropped", key)
                continue
            found[key] = {
                _queue_id(key, number): _checked(key, order)
                for number, order in json_object(orders, key).items()
            }
        self._unknown_of_file = {key: item for key, item in value.items() if key != "table"}
        self._table = found
        self._releases, self._heap = {}, []
        if self._tell_unlocked:
            self._await_releases(self._clock.now_ms())

    def _await_releases(self, now_ms: int) -> None:
        """Of all queues that are blocked; nobody waits yet for those that are free."""
        for key, orders in self._table.items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, order in orders.items():
                free_ms = order.free_at_ms(now_ms)
                if free_ms > now_ms:
                    self._release_at(QueueOfGroup(topic, group, queue_id), free_ms)

    def to_json(self) -> Any:
        """The content of the file, with the fields of Apache's OrderInfo."""
        table = {
            key: {queue_id: _unstructure(order) for queue_id, order in orders.items()}
            for key, orders in self._table.items()
        }
        return {**self._unknown_of_file, "table": table}


def _counts_after(before: Order, order: Order, offsets: Sequence[int]) -> dict[int, int]:
    """How often the messages of a new batch were handed out before it."""
    counts: Mapping[int, int] = before.counts or {}
    if before.attempt_id is not None and before.attempt_id == order.attempt_id:
        return dict(
            counts
        )  # the same attempt again, whose answer may have got lost: it does not count
    seen = set(before.offsets)
    return {offset: counts.get(offset, 0) + 1 for offset in offsets if offset in seen}


def _queue_id(key: str, number: str) -> int:
    try:
        return int(number)
    except ValueError:
        raise BodyError(f"{key}: queue id {number!r} is no number") from None


def _checked(key: str, value: Any) -> Order:
    order = bodies.structure(Order, json_object(value, key))
    order.acked &= _MASK
    if order.offsets:
        first, *distances = order.offsets
        order.offsets = (first, *(first + distance for distance in distances))
    return order


def _unstructure(order: Order) -> Any:
    """As Java writes it, whose bits are a signed number."""
    signed = order.acked - (1 << 64) if order.acked & _SIGN else order.acked
    first, others = order.offsets[:1], order.offsets[1:]
    offsets = (*first, *(offset - first[0] for offset in others))
    return bodies.unstructure(attrs.evolve(order, acked=signed, offsets=offsets))
