"""Long polls: pulls that found nothing and wait for a message to arrive.

In: held pulls from the pull processor, arrivals from the dispatcher, connections that closed. Out: pulls to be
answered now. Pure but for :meth:`Holds.run`, which answers those whose time is over and looks after those that an
arrival did not match. Source of the rules: Apache PullRequestHoldService.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

import attrs
import trio

from trio_mq.broker.filters import MessageFilter
from trio_mq.net.requests import Peer
from trio_mq.store.dispatch import Arrival
from trio_mq.store.queues import BaseQueue

#: How exactly the end of a hold is kept.
DEADLINE_STEP_S: Final = 0.1
#: Held pulls in all, above which a pull is answered at once: each costs about a kilobyte.
MAX_HELD: Final = 200_000
#: Answered pulls that may stay among the deadlines, on top of as many as still wait.
SPARE_DEADLINES: Final = 1000


@attrs.define(eq=False)
class Held:
    """One waiting pull: `answer` runs it again, and must not hold it a second time."""

    peer: Peer
    queue: BaseQueue
    offset: int
    filter: MessageFilter
    answer: Callable[[], None]
    done: bool = False


class Holds:
    """All waiting pulls, by queue, by connection and by deadline."""

    def __init__(self, scan_interval_s: float) -> None:
        self._scan_interval_s = scan_interval_s
        # Dictionaries stand for ordered sets: whoever came first is answered first.
        self._by_queue: dict[BaseQueue, dict[Held, None]] = {}
        self._by_peer: dict[Peer, dict[Held, None]] = {}
        self._deadlines: list[tuple[float, int, Held]] = []
        self._numbers = count()
        self._count = 0
        self._wanted = trio.Event()

    def __len__(self) -> int:
        return self._count

    def hold(self, held: Held, deadline_s: float) -> bool:
        """Keep a pull until a message arrives or Trio's clock says `deadline_s`; False when too many wait.

        The caller has looked for messages in the same step, so none can slip in between (case C098).
        """
        if self._count >= MAX_HELD:
            return False
        waiting = self._by_queue.get(held.queue)
        if waiting is None:
            waiting = self._by_queue[held.queue] = {}
            held.queue.watched += 1
        waiting[held] = None
        self._by_peer.setdefault(held.peer, {})[held] = None
        self._count += 1
        # A busy consumer is held and answered thousands of times before the first deadline comes.
        if len(self._deadlines) > 2 * self._count + SPARE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (deadline_s, next(self._numbers), held))
        if not self._wanted.is_set():
            self._wanted.set()
        return True

    def arrived(self, hits: Iterable[Arrival]) -> None:
        """Answer the pulls that wait for one of these arrivals."""
        answered: list[Held] = []
        for queue, tags_code, properties, _queue_offset in hits:
            waiting = self._by_queue.get(queue)
            if not waiting:
                continue
            matching = [h for h in waiting if h.filter.matches(tags_code, properties)]
            self._forget(matching)
            answered += matching
        _answer(answered)

    def look_again(self) -> None:
        """Answer pulls whose queue has moved on, though nothing matched: they learn the next offset."""
        moved: list[Held] = []
        for queue, waiting in self._by_queue.items():
            end = queue.max_offset
            moved += [held for held in waiting if end > held.offset]
        self._forget(moved)
        _answer(moved)

    def answer_all(self) -> None:
        """Answer all pulls now: they had better ask another broker."""
        waiting = [held for of_queue in self._by_queue.values() for held in of_queue]
        self._forget(waiting)
        _answer(waiting)

    def expire(self, now_s: float) -> None:
        """Answer pulls whose time is over."""
        deadlines = self._deadlines
        over: list[Held] = []
        while deadlines and deadlines[0][0] <= now_s:
            held = heapq.heappop(deadlines)[2]
            if not held.done:
                over.append(held)
        self._forget(over)
        _answer(over)

    def drop(self, peer: Peer) -> None:
        """Forget the pulls of a connection that has closed."""
        self._forget(list(self._by_peer.get(peer, ())))

    def _forget(self, gone: list[Held]) -> None:
        for held in gone:
            held.done = True
            waiting = self._by_queue[held.queue]
            del waiting[held]
            if not waiting:
                del self._by_queue[held.queue]
                held.queue.watched -= 1
            of_peer = self._by_peer[held.peer]
            del of_peer[held]
            if not of_peer:
                del self._by_peer[held.peer]
        self._count -= len(gone)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer what is due until cancelled."""
        task_status.started()
        next_look_s = trio.current_time() + self._scan_interval_s
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._count:
                await trio.sleep(DEADLINE_STEP_S)
                now_s = trio.current_time()
                self.expire(now_s)
                if now_s >= next_look_s:
                    next_look_s = now_s + self._scan_interval_s
                    self.look_again()


def _answer(held_pulls: list[Held]) -> None:
    for held in held_pulls:
        held.answer()
