"""Hands out messages of all queues, one of each in turn, so that no queue waits for another one's backlog.

In: :class:`.ProcessQueue` objects that have got messages. Out: the next message, at once or when there is one. Filled
by :mod:`.fetch`, read by :mod:`.consumer` and :mod:`.concurrent`, by as many tasks as they like.

A waiting task is woken for each message that came, and not all of them for one. :meth:`Ready.next` lets other tasks run
once in a while also when messages never run out: a loop over a backlog must not hold up heartbeats and pulls.
"""

from __future__ import annotations

from collections import deque

import anyio
from anyio.lowlevel import checkpoint

from trio_mq.client.messages import ReceivedMessage
from trio_mq.client.processqueue import ProcessQueue

#: Messages that are handed out without letting other tasks run: as many as one pull brings.
MESSAGES_PER_TURN = 32


class Ready:
    """See the module. Once closed, :meth:`next` gives None."""

    def __init__(self) -> None:
        self.closed = False
        self._queues: deque[ProcessQueue] = deque()
        self._waiting: deque[anyio.Event] = deque()
        self._turn = 0
        #: The time of the turn is good enough for messages that are worked on for too long.
        self._now_s = 0.0

    def add(self, queue: ProcessQueue) -> None:
        """A queue has messages: let it take part, and wake as many tasks as have something to do."""
        if not queue.listed:
            queue.listed = True
            self._queues.append(queue)
        self._wake(queue.ready)

    def close(self) -> None:
        """Nothing more is handed out; tasks that wait get None."""
        self.closed = True
        self._wake(len(self._waiting))

    def take(self) -> ReceivedMessage | None:
        """The next message, None when there is none now."""
        queues = self._queues
        while queues:
            message = queues[0].take()
            if message is not None:
                queues.rotate(-1)
                message.taken_at_s = self._now_s
                return message
            queues.popleft().listed = False
        return None

    def take_now(self) -> ReceivedMessage | None:
        """The next message; None when there is none now, and when it is time to let other tasks run."""
        self._turn -= 1
        return self.take() if self._turn > 0 and not self.closed else None

    async def next(self) -> ReceivedMessage | None:
        """Wait for the next message; None once closed. Cancelled, it has taken nothing."""
        self._turn -= 1
        if self._turn <= 0:
            await checkpoint()
            self._begin_turn()
        while not self.closed:
            message = self.take()
            if message is not None:
                return message
            await self._wait()
            self._begin_turn()
        return None

    def _begin_turn(self) -> None:
        self._turn = MESSAGES_PER_TURN
        self._now_s = anyio.current_time()

    async def _wait(self) -> None:
        event = anyio.Event()
        self._waiting.append(event)
        try:
            await event.wait()
        except BaseException:
            if event.is_set():
                self._wake(1)  # it was meant for a task that goes away
            else:
                self._waiting.remove(event)
            raise

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._waiting))):
            self._waiting.popleft().set()
