"""A pull consumer for plain threads.

In: subscriptions or queues. Out: messages, as they are polled. The twin of
:class:`trio_mq.client.pullconsumer.PullConsumer`, where parameters and errors are told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trio_mq.blocking.messages import ReceivedMessage
from trio_mq.blocking.twin import Twin, does, made_as, waits
from trio_mq.client import pullconsumer
from trio_mq.protocol.bodies import MessageQueue


class PullConsumer(Twin[pullconsumer.PullConsumer]):
    """Polls messages, inside its ``with`` block; one thread at a time may poll.

    It takes what :class:`trio_mq.PullConsumer` takes. ``for message in consumer:`` gives messages without end, until
    the block is left; the one before counts as done.
    """

    @made_as(pullconsumer.PullConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(pullconsumer.PullConsumer(*args, **kwargs))

    queues = waits(pullconsumer.PullConsumer.queues)
    assign = waits(pullconsumer.PullConsumer.assign)
    subscribe = waits(pullconsumer.PullConsumer.subscribe)
    unsubscribe = waits(pullconsumer.PullConsumer.unsubscribe)
    position = does(pullconsumer.PullConsumer.position)
    seek = waits(pullconsumer.PullConsumer.seek)
    seek_to_begin = waits(pullconsumer.PullConsumer.seek_to_begin)
    seek_to_end = waits(pullconsumer.PullConsumer.seek_to_end)
    pause = does(pullconsumer.PullConsumer.pause)
    resume = does(pullconsumer.PullConsumer.resume)
    commit = waits(pullconsumer.PullConsumer.commit)
    committed = waits(pullconsumer.PullConsumer.committed)
    lag = waits(pullconsumer.PullConsumer.lag)

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now."""
        return self._read(lambda: self._client.assignment)

    def poll(
        self, max_messages: int | None = None, timeout_s: float = 5.0
    ) -> list[ReceivedMessage]:
        """Up to `max_messages` (default: `batch_size`), as soon as there are any; none after `timeout_s`.

        Messages of the poll before count as done now. NotOpen when the block is left meanwhile.
        """
        found = self._wait(lambda: self._client.poll(max_messages, timeout_s))
        return [ReceivedMessage(message, self) for message in found]

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return (ReceivedMessage(message, self) for message in self._each(aiter(self._client)))
