"""Waiting pops and notifications: who found nothing and waits for a message, or for a queue that is free again.

In: requests that wait, from the pop and notification processors; arrivals from the store's dispatcher; queues that
became free; topics and groups that changed; connections that closed. Out: requests to be looked at again, which is
what their `answer` does. Owns one task, :meth:`PopPolls.run`: nothing is answered from within an arrival or a
change, for an answer may write to the store. Rules: Apache PopLongPollingService, PopRequest.

One arrival wakes one request for each group that waits for this queue and one for each that waits for any queue of
the topic. Whoever is woken and finds nothing waits again.
"""

from __future__ import annotations

import enum
import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, TypeVar

import attrs
import trio

from trio_mq.broker.names import pop_retry_topics
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings
from trio_mq.net.requests import Peer
from trio_mq.store.dispatch import Arrival
from trio_mq.store.queues import BaseQueue
from trio_mq.store.queuetable import QueueTable

log = logging.getLogger("trio_mq.broker.pop")

#: A waiting request is answered this long before its client gives up (Apache: 50 ms).
EARLY_MS: Final = 50
#: Requests of one key whose filter an arrival is compared with: those of a group have the same one, normally.
FILTERS_TRIED: Final = 16
#: Requests answered in one go; between two goes the loop is free.
ANSWERS_AT_ONCE: Final = 64
#: Answered requests that may stay among the deadlines, on top of as many as still wait.
SPARE_DEADLINES: Final = 1000

K = TypeVar("K")
V = TypeVar("V")
Matches = Callable[[int, bytes], bool]
"""Whether a message with this tags code and these raw properties is wanted."""


class Held(enum.Enum):
    """What became of a request that wants to wait."""

    HELD = "waits"
    FULL = "too many wait"
    TIMEOUT = "its time is over"


@attrs.define(eq=False)
class Poll:
    """One waiting request. `matches` is None when it wants everything."""

    peer: Peer
    line: _Line
    matches: Matches | None
    answer: Callable[[], None]
    done: bool = False


@attrs.define(eq=False)
class _Line:
    """All that wait for the same topic, group and queue (-1 for any), in the order in which they came."""

    topic: str
    group: str
    queue_id: int
    waiting: dict[Poll, None] = attrs.field(factory=dict)
    #: Queues whose arrivals are for this line, while somebody waits.
    watched: list[BaseQueue] = attrs.field(factory=list)


class PopPolls:
    """All waiting requests of one kind, by key, by connection and by deadline.

    `newest_first` says who is woken first: notifications are many per client, and the one sent last has its reader
    still there for the longest time. `force_interval` is the setting popLongPollingForceNotifyInterval.
    """

    def __init__(
        self,
        queues: QueueTable,
        topics: TopicTable,
        *,
        most_per_key: int,
        most: int,
        force_interval: int,
        newest_first: bool = False,
    ) -> None:
        self._queues = queues
        self._topics = topics
        self._most_per_key = most_per_key
        self._most = most
        self._force_interval = force_interval
        self._newest_first = newest_first
        self._lines: dict[tuple[str, str, int], _Line] = {}
        # Dictionaries stand for ordered sets.
        self._by_queue: dict[BaseQueue, dict[_Line, None]] = {}
        self._by_topic: dict[str, dict[_Line, None]] = {}
        self._by_peer: dict[Peer, dict[Poll, None]] = {}
        self._deadlines: list[tuple[float, int, Poll]] = []
        self._numbers = count()
        self._count = 0
        self._due: deque[Poll] = deque()
        self._news = trio.Event()

    @classmethod
    def of(
        cls,
        settings: BrokerSettings,
        queues: QueueTable,
        topics: TopicTable,
        *,
        newest_first: bool = False,
    ) -> PopPolls:
        """With the limits of the settings."""
        return cls(
            queues,
            topics,
            most_per_key=settings.pop_polling_size,
            most=settings.max_pop_polling_size,
            force_interval=settings.pop_long_polling_force_notify_interval,
            newest_first=newest_first,
        )

    def __len__(self) -> int:
        return self._count

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        """How many wait for exactly this key."""
        line = self._lines.get((topic, group, queue_id))
        return 0 if line is None else len(line.waiting)

    # -- waiting

    def hold(
        self,
        peer: Peer,
        topic: str,
        group: str,
        queue_id: int,
        deadline_s: float,
        matches: Matches | None,
        answer: Callable[[], None],
    ) -> Held:
        """Let a request wait for a message, at most until Trio's clock says `deadline_s` (see :func:`deadline_s`).

        `answer` looks again and may hold again. The caller has looked in the same step, so that no message can
        slip in between.
        """
        if trio.current_time() >= deadline_s:
            return Held.TIMEOUT
        line = self._lines.get((topic, group, queue_id))
        if self._count >= self._most or (line and len(line.waiting) > self._most_per_key):
            return Held.FULL
        if line is None:
            line = self._open(topic, group, queue_id)
        poll = Poll(peer, line, matches, answer)
        line.waiting[poll] = None
        self._by_peer.setdefault(peer, {})[poll] = None
        self._count += 1
        # A busy consumer waits and is woken thousands of times before the first deadline comes.
        if len(self._deadlines) > 2 * self._count + SPARE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (deadline_s, next(self._numbers), poll))
        if self._deadlines[0][2] is poll:
            self._news.set()
        return Held.HELD

    def _open(self, topic: str, group: str, queue_id: int) -> _Line:
        line = self._lines[topic, group, queue_id] = _Line(topic, group, queue_id)
        retries = pop_retry_topics(topic, group)
        for name in (topic, *retries):
            self._by_topic.setdefault(name, {})[line] = None
        if queue_id >= 0:
            self._watch(line, topic, (queue_id,))
        for name in retries if queue_id >= 0 else (topic, *retries):
            # A topic that comes later, or grows, is told by topic_changed.
            config = self._topics.get(name)
            if config is not None:
                self._watch(line, name, range(config.read_queue_nums))
        return line

    def _watch(self, line: _Line, topic: str, queue_ids: Iterable[int]) -> None:
        for queue_id in queue_ids:
            queue = self._queues.obtain(topic, queue_id)
            queue.watched += 1
            line.watched.append(queue)
            self._by_queue.setdefault(queue, {})[line] = None

    def _close(self, line: _Line) -> None:
        del self._lines[line.topic, line.group, line.queue_id]
        for name in (line.topic, *pop_retry_topics(line.topic, line.group)):
            _remove(self._by_topic, name, line)
        for queue in line.watched:
            queue.watched -= 1
            _remove(self._by_queue, queue, line)

    # -- waking

    def arrived(self, hits: Iterable[Arrival]) -> None:
        """Wake those who wait for these messages; a listener of the store's dispatcher."""
        by_queue, force_interval = self._by_queue, self._force_interval
        for queue, tags_code, properties, queue_offset in hits:
            lines = by_queue.get(queue)
            if not lines:
                continue
            # Now and then one is woken though nothing matches, so that the group's offset moves on.
            forced = force_interval > 0 and queue_offset % force_interval == 0
            for line in list(lines):
                # What is given out again has matched before.
                if forced or queue.topic != line.topic:
                    self._wake(line)
                else:
                    self._wake_matching(line, tags_code, properties)

    def wake(self, topic: str, group: str, queue_id: int) -> bool:
        """Wake one of a group that waits for any queue, and one that waits for this one; whether somebody did.

        For a queue that is free again, and for messages that another pop has left.
        """
        woken = False
        for key in dict.fromkeys(((topic, group, -1), (topic, group, queue_id))):
            line = self._lines.get(key)
            if line is not None:
                self._wake(line)
                woken = True
        return woken

    def topic_changed(self, topic: str) -> None:
        """A topic was created, changed or deleted: whoever waits for it looks again."""
        for line in list(self._by_topic.get(topic, ())):
            self._wake_all(line)

    def group_changed(self, group: str) -> None:
        """A group was created, changed or deleted: whoever waits for it looks again."""
        for line in [line for line in self._lines.values() if line.group == group]:
            self._wake_all(line)

    def drop(self, peer: Peer) -> None:
        """Forget the requests of a connection that has closed."""
        for poll in list(self._by_peer.get(peer, ())):
            self._forget(poll)

    def expire(self, now_s: float) -> None:
        """Let those whose time is over be answered."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_s:
            poll = heapq.heappop(deadlines)[2]
            if not poll.done:
                self._wake_one(poll)

    def _wake(self, line: _Line) -> None:
        waiting = line.waiting
        self._wake_one(next(reversed(waiting) if self._newest_first else iter(waiting)))

    def _wake_matching(self, line: _Line, tags_code: int, properties: bytes) -> None:
        waiting = reversed(line.waiting) if self._newest_first else iter(line.waiting)
        for poll, _ in zip(waiting, range(FILTERS_TRIED), strict=False):
            if poll.matches is None or poll.matches(tags_code, properties):
                self._wake_one(poll)
                return

    def _wake_all(self, line: _Line) -> None:
        for poll in list(line.waiting):
            self._wake_one(poll)

    def _wake_one(self, poll: Poll) -> None:
        self._forget(poll)
        self._due.append(poll)
        self._news.set()

    def _forget(self, poll: Poll) -> None:
        poll.done = True
        line = poll.line
        del line.waiting[poll]
        if not line.waiting:
            self._close(line)
        _remove(self._by_peer, poll.peer, poll)
        self._count -= 1

    # -- answering

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer who was woken, until cancelled.

        An answer that fails is told in the log and loses that request alone: its client asks again when its time
        is over.
        """
        task_status.started()
        while True:
            self._news = trio.Event()
            self.expire(trio.current_time())
            self.answer_due()
            if self._due:
                await trio.lowlevel.checkpoint()
                continue
            with trio.move_on_at(self._deadlines[0][0] if self._deadlines else float("inf")):
                await self._news.wait()

    def answer_due(self) -> None:
        """Answer some of those who were woken."""
        for _ in range(min(len(self._due), ANSWERS_AT_ONCE)):
            poll = self._due.popleft()
            if poll.peer.closed:
                continue
            try:
                poll.answer()
            except Exception:
                log.exception("a waiting request of %s could not be answered", poll.peer.address)


def deadline_s(born_time_ms: int, poll_time_ms: int, now_ms: int) -> float:
    """Until when a request may wait, on Trio's clock.

    The client counts from its own `born_time_ms`. A client whose clock is ahead waits its poll time, not longer.
    """
    left_ms = min(born_time_ms + poll_time_ms - now_ms, poll_time_ms) - EARLY_MS
    return trio.current_time() + left_ms / 1000


def _remove(table: dict[K, dict[V, None]], key: K, value: V) -> None:
    """Take a value out of a table of sets, and the set with the last of its values."""
    values = table[key]
    values.pop(value, None)
    if not values:
        del table[key]
