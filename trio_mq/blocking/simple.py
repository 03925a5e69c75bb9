"""A consumer over pop for plain threads.

In: a group and what it wants. Out: messages, each for a time. The twin of
:class:`trio_mq.client.simple.SimpleConsumer`, where parameters and errors are told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trio_mq.blocking.messages import PoppedMessage
from trio_mq.blocking.twin import Twin, made_as, waits
from trio_mq.client import simple


class SimpleConsumer(Twin[simple.SimpleConsumer]):
    """Receives messages of a group, inside its ``with`` block; any number of threads may receive at the same time.

    It takes what :class:`trio_mq.SimpleConsumer` takes. ``for message in consumer:`` gives messages without end, until
    the block is left.
    """

    @made_as(simple.SimpleConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(simple.SimpleConsumer(*args, **kwargs))

    subscribe = waits(simple.SimpleConsumer.subscribe)
    unsubscribe = waits(simple.SimpleConsumer.unsubscribe)

    def receive(
        self,
        max_messages: int = 16,
        *,
        invisible_s: float | None = None,
        await_s: float | None = None,
    ) -> list[PoppedMessage]:
        """Up to `max_messages`, as soon as there are any; an empty list when there are none for `await_s`.

        NotOpen when the block is left meanwhile.
        """
        found = self._wait(
            lambda: self._client.receive(max_messages, invisible_s=invisible_s, await_s=await_s)
        )
        return [PoppedMessage(message, self) for message in found]

    def __iter__(self) -> Iterator[PoppedMessage]:
        return (PoppedMessage(message, self) for message in self._each(aiter(self._client)))

    def ack(self, *messages: PoppedMessage) -> None:
        """Acknowledge messages, those of one topic at one broker by one request. Raises as ``message.ack()`` does."""
        self._call(self._client.ack, *(message._original for message in messages))

    def change_invisible(self, message: PoppedMessage, invisible_s: float) -> None:
        """Keep a message for so long from now on, with 0 give it back at once. ReceiptExpired when it is too late."""
        self._call(self._client.change_invisible, message._original, invisible_s)
