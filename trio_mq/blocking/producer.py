"""A producer for plain threads.

In: messages. Out: receipts. The twin of :class:`trio_mq.client.producer.Producer`, where parameters and errors are
told.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from trio_mq.blocking.pipeline import Pipeline
from trio_mq.blocking.portal import call_with_function
from trio_mq.blocking.twin import Twin, made_as, waits
from trio_mq.blocking.workers import Workers
from trio_mq.client import producer
from trio_mq.client.messages import Message, SendReceipt
from trio_mq.client.pipeline import WINDOW
from trio_mq.client.transactions import CHECKS_AT_ONCE, TransactionReceipt, TransactionState


class Producer(Twin[producer.Producer]):
    """Sends messages, inside its ``with`` block; any number of threads may send at the same time.

    It takes what :class:`trio_mq.Producer` takes. `check_transaction` is a plain function, called in a thread of its
    own.
    """

    @made_as(producer.Producer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check = kwargs.get("check_transaction")
        workers = Workers(CHECKS_AT_ONCE, "trio-mq Producer")
        if check is not None:
            kwargs["check_transaction"] = functools.partial(workers.call, check)
        super().__init__(producer.Producer(*args, **kwargs))
        self._workers.append(workers)

    send = waits(producer.Producer.send)
    send_oneway = waits(producer.Producer.send_oneway)
    send_batch = waits(producer.Producer.send_batch)
    request = waits(producer.Producer.request)
    queues = waits(producer.Producer.queues)
    recall = waits(producer.Producer.recall)

    def pipeline(self, window: int = WINDOW) -> Pipeline:
        """Send many messages without waiting for each answer: at most `window` are on their way.

        ``with producer.pipeline() as pipeline: pending = pipeline.send(message)``; ``pending.wait()`` gives the
        receipt. Leaving the block waits for all sends, and raises the first failure that nobody heard of.
        """
        self._check_open()
        return Pipeline(self, window)

    def send_in_transaction(
        self, message: Message, local: Callable[[SendReceipt], TransactionState | None]
    ) -> TransactionReceipt:
        """Send a message that consumers see only if `local`, the application's own transaction, commits.

        As :meth:`trio_mq.Producer.send_in_transaction`; `local` is called in the calling thread.
        """

        async def send(
            run: Callable[[SendReceipt], Awaitable[TransactionState | None]],
        ) -> TransactionReceipt:
            return await self._client.send_in_transaction(message, run)

        return call_with_function(self._check_open(), send, local)
