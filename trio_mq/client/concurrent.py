"""Settles messages in any order, and runs a handler on several at a time.

In: messages of :class:`.Ready`, a handler. Out: settlements in their process queues. Called by :mod:`.consumer`. Source
of the rules: Apache ConsumeMessageConcurrentlyService, ProcessQueue.cleanExpiredMsg.

Failure policy: a handler that raises is logged once with the message's id, and the message is asked for again; one that
returns what means nothing ends the run with HandlerError. A message that no broker takes back is handed out again here.
In broadcasting nobody would retry: failures are logged and passed, as with Apache.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable

import anyio
import anyio.abc

from trio_mq.client.functions import is_async
from trio_mq.client.lifetime import background
from trio_mq.client.messages import Outcome, ReceivedMessage
from trio_mq.client.processqueue import ProcessQueue
from trio_mq.client.ready import Ready
from trio_mq.client.sendback import OVERDUE_LEVEL
from trio_mq.errors import HandlerError, TrioMQError

log = logging.getLogger("trio_mq.client")

#: A handler: async, or a plain function, which runs in a worker thread and so may block.
Handler = Callable[[ReceivedMessage], Awaitable[object] | object]
#: What asks for a message again: :class:`.SendBack`.
AskAgain = Callable[[ReceivedMessage, int], Awaitable[None]]

#: Until a message that no broker takes back is handed out again (Apache: submitConsumeRequestLater).
HERE_AGAIN_S = 5.0
#: A retry that is asked for is not left half done when its task is cancelled, but not waited for longer than this.
SEND_BACK_MOST_S = 6.0
_PARTS_OF_TIMEOUT = 15


def outcome_of(value: object, message: ReceivedMessage) -> Outcome:
    """What a handler's value means; HandlerError for what means nothing."""
    if value is None or value is True or value is Outcome.ACK:
        return Outcome.ACK
    if value is False or value is Outcome.RETRY:
        return Outcome.RETRY
    raise HandlerError(
        f"the handler returned {value!r} for message {message.message_id} of topic {message.topic}; "
        f"return None, True or Outcome.ACK when it is done, False or Outcome.RETRY for another try"
    )


class Settling:
    """What becomes of messages: the settler of one queue's messages is made by :meth:`of`."""

    def __init__(
        self, tasks: anyio.abc.TaskGroup, ready: Ready, ask_again: AskAgain | None
    ) -> None:
        self._tasks = tasks
        self._ready = ready
        #: None in broadcasting.
        self._ask_again = ask_again

    def of(self, queue: ProcessQueue) -> QueueSettler:
        """The settler of a queue's messages."""
        return QueueSettler(self, queue)

    async def retry(self, queue: ProcessQueue, message: ReceivedMessage, delay_level: int) -> None:
        """Ask for a message again. One that is not held any more comes again anyhow: to whoever has its queue now."""
        if queue.dropped or not queue.holds(message):
            return
        if self._ask_again is None:
            log.warning("message %s of topic %s failed and is passed: nobody retries in broadcasting",
                        message.message_id, message.topic)  # fmt: skip
            queue.settle(message)
            return
        sent_back = False
        with anyio.move_on_after(SEND_BACK_MOST_S, shield=True):
            try:
                await self._ask_again(message, delay_level)
                sent_back = True
            except TrioMQError as failure:
                log.warning("message %s of topic %s is handed out again here in %g s, for no broker takes it back: %s",
                            message.message_id, message.topic, HERE_AGAIN_S, failure)  # fmt: skip
        if sent_back:
            queue.settle(message)
        else:
            self._tasks.start_soon(self._hand_out_again, queue, message)

    async def _hand_out_again(self, queue: ProcessQueue, message: ReceivedMessage) -> None:
        await anyio.sleep(HERE_AGAIN_S)
        if queue.holds(message):
            queue.put_back([message.renewed()])
            self._ready.add(queue)

    async def watch_overdue(
        self, queues: Callable[[], Iterable[ProcessQueue]], timeout_s: float
    ) -> None:
        """Ask again for messages whose handlers take too long, so that they do not hold up the commit; forever."""
        while True:
            await anyio.sleep(timeout_s / _PARTS_OF_TIMEOUT)
            now_s = anyio.current_time()
            for queue in list(queues()):
                for message in queue.overdue(now_s, timeout_s):
                    log.warning("message %s of topic %s is worked on for more than %g s and is asked for again",
                                message.message_id, message.topic, timeout_s)  # fmt: skip
                    await message.retry(OVERDUE_LEVEL)


class QueueSettler:
    """The settler of one queue's messages."""

    __slots__ = ("_queue", "_settling")

    def __init__(self, settling: Settling, queue: ProcessQueue) -> None:
        self._settling = settling
        self._queue = queue

    async def settle(self, message: ReceivedMessage, outcome: Outcome, delay_level: int) -> None:
        """See :class:`.messages.Settler`."""
        if outcome is Outcome.ACK:
            self._queue.settle(message)
        else:
            await self._settling.retry(self._queue, message, delay_level)


class HandlerRun:
    """One call of ``Consumer.run``. :meth:`stop` lets handlers that run finish, within the grace time."""

    def __init__(self, ready: Ready, handler: Handler, concurrency: int, grace_s: float) -> None:
        self._ready = ready
        self.handler = handler
        self._in_loop = is_async(handler)
        self.concurrency = concurrency
        self._grace_s = grace_s
        self._threads = anyio.CapacityLimiter(concurrency)
        self._stopping = anyio.Event()
        self._shelter = anyio.CancelScope(shield=True)
        self._idle: set[anyio.CancelScope] = set()
        self._failure: HandlerError | None = None
        self.done = anyio.Event()

    def stop(self) -> None:
        """Take no more messages; what runs may finish, and is cancelled after the grace time."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._shelter.deadline = anyio.current_time() + self._grace_s
            for scope in self._idle:
                scope.cancel()

    async def __call__(self) -> None:
        """Handle messages until stopped. Cancelled, it stops in the same way before the cancellation goes on."""
        try:
            async with background() as tasks:
                tasks.start_soon(self._work_sheltered)
                try:
                    await self.done.wait()
                finally:
                    self.stop()
        finally:
            self.done.set()
        if self._failure is not None:
            raise self._failure

    async def _work_sheltered(self) -> None:
        try:
            with self._shelter:
                async with anyio.create_task_group() as workers:
                    for _ in range(self.concurrency):
                        workers.start_soon(self._work)
        finally:
            self.done.set()

    async def _work(self) -> None:
        while not self._stopping.is_set():
            message = self._ready.take_now() or await self._wait()
            if message is None:
                return
            try:
                outcome = await self._handle(message)
            except HandlerError as error:
                self._failure = self._failure or error
                self.stop()
                return
            if message.settled:
                continue  # by the handler itself
            if outcome is Outcome.ACK:
                await message.ack()
            else:
                await message.retry()

    async def _wait(self) -> ReceivedMessage | None:
        with anyio.CancelScope() as scope:
            self._idle.add(scope)
            try:
                return await self._ready.next()
            finally:
                self._idle.discard(scope)
        return None

    async def _handle(self, message: ReceivedMessage) -> Outcome:
        try:
            if self._in_loop:
                value = self.handler(message)
            else:
                # In a tuple: Trio takes a coroutine that comes out of a thread for a mistake.
                (value,) = await anyio.to_thread.run_sync(
                    lambda: (self.handler(message),),
                    abandon_on_cancel=True,
                    limiter=self._threads,
                )
            if inspect.isawaitable(value):
                value = await value
        except Exception as error:
            log.error("message %s of topic %s failed and is asked for again", message.message_id,
                      message.topic, exc_info=error)  # fmt: skip
            return Outcome.RETRY
        return outcome_of(value, message)
