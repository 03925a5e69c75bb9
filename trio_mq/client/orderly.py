"""Consumption in order: of each queue one message at a time, and none before the one ahead of it is done.

In: process queues, settlements. Out: messages to hand out (:class:`OrderedReady`), queues that are locked at their
broker before they are used and let go after the last message is done (:class:`Orderly`). Used by :mod:`.consumer` in
place of what it does without order. Source of the rules: Apache ConsumeMessageOrderlyService, RebalancePushImpl.

A failed message comes again after a second, before all others of its queue, in this client; the broker learns nothing
of it. At the limit it is sent to the retry topic with its count, which makes it a dead letter there, and the queue goes
on. A queue whose lock was lost is begun anew when it is ours again, at the stored position: what was done since then
may come again, and after it all that follows.

Failure policy: brokers that do not answer are asked again, see :mod:`.locks`. A message that cannot be made a dead
letter is tried again, as any that failed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import anyio
import anyio.abc

from trio_mq.client.locks import QueueLocks
from trio_mq.client.messages import Outcome, ReceivedMessage
from trio_mq.client.processqueue import ProcessQueue
from trio_mq.client.ready import Ready
from trio_mq.errors import TrioMQError
from trio_mq.protocol.bodies import MessageQueue

log = logging.getLogger("trio_mq.client")

#: Until a failed message comes again (Apache: suspendCurrentQueueTimeMillis).
SUSPEND_S = 1.0
#: Failures of a message without a limit of the application's (Apache: Integer.MAX_VALUE).
NO_LIMIT = 2**31 - 1
#: How often locks are looked at, at least.
LOOK_S = 1.0


class Queues(Protocol):
    """What is held: :class:`.AssignedQueues`."""

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """All queues that are ours."""
        ...

    def process_queues(self) -> list[ProcessQueue]:
        """Queues whose start is known."""
        ...

    def restart(self, queue: MessageQueue) -> None:
        """Ask again whether a queue is ours, and begin anew where the group has got to."""
        ...

    def give_up(self, queues: Iterable[MessageQueue]) -> None:
        """These are not ours any more."""
        ...

    async def left(self) -> None:
        """Wait until those that were given up are gone."""
        ...


class BuryMessage(Protocol):
    """What makes a dead letter: :class:`.SendBack`."""

    async def __call__(self, message: ReceivedMessage, delay_level: int) -> None:
        """Ask the broker for it."""
        ...

    async def as_new_message(self, message: ReceivedMessage) -> None:
        """The same by a new message, which has the count of failures with it."""
        ...


class OrderedReady(Ready):
    """Hands out one message of a queue at a time, and only of queues that `may_hand_out` lets pass.

    That is so beyond the life of a process queue: after a seek, the next message waits for the one in hand, too.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Whether a queue is ours; set before the first one is added.
        self.may_hand_out: Callable[[MessageQueue], bool] = lambda queue: True
        #: Messages that are being handled, and the queues that they came from.
        self._in_hand: dict[ReceivedMessage, ProcessQueue] = {}
        #: Queues that hand out nothing now: one of their messages is being handled, or has just failed.
        self._busy: dict[MessageQueue, anyio.Event] = {}
        #: Busy queues that have messages.
        self._later: dict[MessageQueue, ProcessQueue] = {}

    def add(self, queue: ProcessQueue) -> None:
        """A queue has messages; one that is busy takes part when it is free again."""
        if queue.queue in self._busy:
            self._later[queue.queue] = queue
        else:
            super().add(queue)

    def take(self) -> ReceivedMessage | None:
        """The next message, None when there is none now."""
        for _ in range(len(self._queues)):
            queue = self._queues.popleft()
            queue.listed = False
            if queue.queue in self._busy:
                self._later[queue.queue] = queue
                continue
            message = queue.take() if self.may_hand_out(queue.queue) else None
            if message is not None:
                message.taken_at_s = anyio.current_time()
                self._in_hand[message] = queue
                self._busy[queue.queue] = anyio.Event()
                self._later[queue.queue] = queue
                return message
        return None

    def returned(self, message: ReceivedMessage) -> ProcessQueue | None:
        """A message was handled: its queue, which stays busy until :meth:`free`; None for one that is not in hand."""
        return self._in_hand.pop(message, None)

    def free(self, queue: MessageQueue) -> None:
        """The next message of a queue may be handed out."""
        event = self._busy.pop(queue, None)
        if event is not None:
            event.set()
        later = self._later.pop(queue, None)
        if later is not None and later.ready and not later.dropped:
            self.add(later)

    def overdue(self, now_s: float, timeout_s: float) -> list[ReceivedMessage]:
        """Messages that were handed out too long ago."""
        return [one for one in self._in_hand if now_s - one.taken_at_s >= timeout_s]

    def abandon(self) -> None:
        """Nobody handles messages any more: those in hand come again, from where their queue begins next."""
        self._in_hand.clear()
        for queue in list(self._busy):
            self.free(queue)

    async def idle(self, queue: MessageQueue) -> None:
        """Wait until no message of a queue is being handled."""
        event = self._busy.get(queue)
        if event is not None:
            await event.wait()


def orderly_limit(max_reconsume_times: int) -> int:
    """Failures after which a message is a dead letter; -1 stands for Apache's Integer.MAX_VALUE."""
    return NO_LIMIT if max_reconsume_times == -1 else max_reconsume_times


class Orderly:
    """Locks, failures and the order of one consumer; the settler of all its messages."""

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        locks: QueueLocks,
        ready: OrderedReady,
        bury: BuryMessage,
        *,
        max_reconsume_times: int = NO_LIMIT,
        consume_timeout_s: float = 900.0,
    ) -> None:
        self._ready = ready
        self._tasks = tasks
        self._locks = locks
        self._bury = bury
        self._limit = max_reconsume_times
        self._consume_timeout_s = consume_timeout_s
        #: Queues that go, and are ours until their last message is done.
        self._leaving: set[MessageQueue] = set()
        ready.may_hand_out = self.may_commit

    # -- what has to be true before a queue is used, and done after: see Custody in .assigned

    async def admit(self, queue: MessageQueue) -> bool:
        """Whether a queue is locked for us now; one that was ours before, when its last message is done."""
        await self._ready.idle(queue)
        await self._locks.lock([queue])
        return self._locks.is_locked(queue, anyio.current_time())

    async def forsake(self, queue: MessageQueue) -> None:
        """Unlock a queue that goes before it was used."""
        await self._locks.unlock([queue])

    async def release(self, queue: ProcessQueue, commit: Callable[[], Awaitable[None]]) -> None:
        """Wait for the message that is being handled, store the position, and let others have the queue.

        The position of a queue that was lost meanwhile is not stored: its next owner's is further on.
        """
        self._leaving.add(queue.queue)
        try:
            await self._ready.idle(queue.queue)
            if self.may_commit(queue.queue):
                await commit()
                await self._locks.unlock([queue.queue])
        finally:
            self._leaving.discard(queue.queue)

    def may_commit(self, queue: MessageQueue) -> bool:
        """Whether a position may be stored: not that of a queue whose lock is gone."""
        return self._locks.is_locked(queue, anyio.current_time())

    async def keep(self, queues: Queues) -> None:
        """Renew locks, and begin queues anew whose lock was lost, until cancelled."""
        while True:
            await anyio.sleep(min(LOOK_S, self._locks.interval_s / 4))
            held = {process.queue for process in queues.process_queues()}
            await self._locks.renew(held | self._leaving)
            now_s = anyio.current_time()
            for process in queues.process_queues():
                process.locked_until_s = self._locks.until_s(process.queue)
                if not self._locks.is_locked(process.queue, now_s):
                    log.warning(
                        "%r is not ours any more; it goes on when it is locked again", process
                    )
                    queues.restart(process.queue)
            for message in self._ready.overdue(now_s, self._consume_timeout_s):
                log.warning("message %s of topic %s is not settled after %g s and comes again",
                            message.message_id, message.topic, self._consume_timeout_s)  # fmt: skip
                self._again(message)

    # -- what becomes of a message

    async def settle(self, message: ReceivedMessage, outcome: Outcome, delay_level: int) -> None:
        """A message was handled. Of one whose time was over, or whose queue was lost, nothing changes."""
        if outcome is Outcome.RETRY:
            if delay_level >= 0 and message.reconsume_times < self._limit:
                self._again(message)
                return
            try:
                await self._make_dead_letter(message, delay_level)
            except TrioMQError as error:
                log.warning("message %s of topic %s is no dead letter yet, it is tried again: %s",
                            message.message_id, message.topic, error)  # fmt: skip
                self._again(message)
                return
        queue = self._ready.returned(message)
        if queue is not None:
            queue.settle(message)
            self._ready.free(queue.queue)

    async def _make_dead_letter(self, message: ReceivedMessage, delay_level: int) -> None:
        if delay_level < 0:
            await self._bury(message, delay_level)
        else:
            await self._bury.as_new_message(message)

    def _again(self, message: ReceivedMessage) -> None:
        queue = self._ready.returned(message)
        if queue is not None:
            queue.put_back([message.renewed(failures=1)])
            self._tasks.start_soon(self._free_later, queue)

    async def _free_later(self, queue: ProcessQueue) -> None:
        if not queue.dropped:
            await anyio.sleep(SUSPEND_S)
        self._ready.free(queue.queue)

    async def let_all_go(self, queues: Queues) -> None:
        """The consumer's end, when no handler runs any more: positions are stored, and others may have the queues."""
        self._ready.abandon()
        queues.give_up(queues.queues)
        await queues.left()
