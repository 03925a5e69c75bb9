"""A consumer for plain threads.

In: subscriptions. Out: messages, by iteration or to a handler. The twin of :class:`trio_mq.client.consumer.Consumer`,
where parameters and errors are told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trio_mq.blocking.messages import ReceivedMessage
from trio_mq.blocking.twin import Twin, does, made_as, waits
from trio_mq.client import consumer, messages
from trio_mq.protocol.bodies import MessageQueue


class Consumer(Twin[consumer.Consumer]):
    """Receives messages of a group, inside its ``with`` block; iterate over it, or :meth:`run` a handler.

    It takes what :class:`trio_mq.Consumer` takes. ``for message in consumer:`` gives messages without end, until the
    block is left; any number of threads may iterate, each message goes to one of them.
    """

    @made_as(consumer.Consumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(consumer.Consumer(*args, **kwargs))

    seek = waits(consumer.Consumer.seek)
    commit = waits(consumer.Consumer.commit)
    lag = waits(consumer.Consumer.lag)
    pause = does(consumer.Consumer.pause)
    resume = does(consumer.Consumer.resume)
    subscribe = waits(consumer.Consumer.subscribe)
    unsubscribe = waits(consumer.Consumer.unsubscribe)

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now, those of the group's retry topic included."""
        return self._read(lambda: self._client.assignment)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return (ReceivedMessage(message, self) for message in self._each(aiter(self._client)))

    def run(self, handler: Callable[[ReceivedMessage], object], concurrency: int = 8) -> None:
        """Call `handler`, a plain function, with each message, in up to `concurrency` threads.

        It goes on until the block is left by another thread, or until Ctrl-C. What the handler returns means the same
        as in :meth:`trio_mq.Consumer.run`, and handlers that run at the end may finish in the same way. Threads are
        kept from message to message.
        """
        workers = self._threads(concurrency)

        async def handle(message: messages.ReceivedMessage) -> object:
            return await workers.call(handler, ReceivedMessage(message, self))

        self._call(self._client.run, handle, concurrency)
