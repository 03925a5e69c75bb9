"""Long polls: pulls that found nothing and wait for a message to arrive.

In: held pulls from the pull processor, arrivals from the dispatcher. Out: pulls to be answered now. Pure but for
:meth:`Holds.run`, which answers those whose time is over and looks after those that an arrival did not match.
Source of the rules: Apache PullRequestHoldService.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container
from itertools import count

import attrs
import trio

from trio_mq.net.requests import Peer
from trio_mq.store.queues import BaseQueue

#: How exactly the end of a hold is kept.
DEADLINE_STEP_S = 0.1
#: Held pulls in all, above which a pull is answered at once: each costs about a kilobyte.
MAX_HELD = 200_000


@attrs.define(eq=False)
class Held:
    """One waiting pull: `answer` runs it again, and must not hold it a second time."""

    peer: Peer
    queue: BaseQueue
    offset: int
    codes: Container[int] | None
    answer: Callable[[], None]
    done: bool = False


class Holds:
    """All waiting pulls, by queue and by deadline."""

    def __init__(self, scan_interval_s: float) -> None:
        self._scan_interval_s = scan_interval_s
        self._by_queue: dict[BaseQueue, list[Held]] = {}
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
        self._by_queue.setdefault(held.queue, []).append(held)
        held.queue.watched = True
        heapq.heappush(self._deadlines, (deadline_s, next(self._numbers), held))
        self._count += 1
        self._wanted.set()
        return True

    def arrived(self, hits: list[tuple[BaseQueue, int]]) -> None:
        """Answer the pulls that wait for one of these (queue, tags code) arrivals."""
        answered: list[Held] = []
        for queue, tags_code in hits:
            waiting = self._by_queue.get(queue)
            if not waiting:
                continue
            matching = [h for h in waiting if h.codes is None or tags_code in h.codes]
            if matching:
                self._forget(queue, matching)
                answered += matching
        for held in answered:
            held.answer()

    def look_again(self) -> None:
        """Answer pulls whose queue has moved on, though nothing matched: they learn the next offset."""
        for queue, waiting in list(self._by_queue.items()):
            moved = [h for h in waiting if queue.max_offset > h.offset or h.peer.closed]
            if moved:
                self._forget(queue, moved)
                for held in moved:
                    held.answer()

    def expire(self, now_s: float) -> None:
        """Answer pulls whose time is over."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_s:
            held = heapq.heappop(deadlines)[2]
            if not held.done:
                self._forget(held.queue, [held])
                held.answer()

    def _forget(self, queue: BaseQueue, gone: list[Held]) -> None:
        for held in gone:
            held.done = True
        self._count -= len(gone)
        left = [h for h in self._by_queue[queue] if not h.done]
        if left:
            self._by_queue[queue] = left
        else:
            del self._by_queue[queue]
            queue.watched = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer what is due until cancelled."""
        task_status.started()
        next_look_s = trio.current_time() + self._scan_interval_s
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._deadlines:
                await trio.sleep(DEADLINE_STEP_S)
                now_s = trio.current_time()
                self.expire(now_s)
                if now_s >= next_look_s:
                    next_look_s = now_s + self._scan_interval_s
                    self.look_again()
                    self._drop_done()

    def _drop_done(self) -> None:
        """Take answered pulls out of the heap, which otherwise keeps them until their deadline."""
        if len(self._deadlines) > 2 * self._count + 1000:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)
