"""A received message for plain threads.

In: a message of an async consumer. Out: the same, with :meth:`~ReceivedMessage.ack` and
:meth:`~ReceivedMessage.retry` that wait, and ``with`` instead of ``async with``. Made by the blocking consumers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self

from trio_mq.client import messages
from trio_mq.client.messages import MessageView
from trio_mq.client.popping import PoppedMessage as AsyncPoppedMessage
from trio_mq.protocol.receipts import Receipt


class Settling(Protocol):
    """What a message needs of its consumer."""

    def _settle(self, function: Callable[[], Awaitable[object]], /) -> None:
        """Run it in the client's thread; possible until that has ended."""


class ReceivedMessage(MessageView):
    """A message as a blocking consumer gives it.

    ``with message:`` acknowledges when the block is left normally; an exception is logged once, with the message's
    id, and asks for a retry: it ends there, so that the loop around goes on. An exception that is no
    :class:`Exception`, KeyboardInterrupt say, passes through and settles nothing: the message comes again.
    """

    __slots__ = ("_consumer", "_original")

    def __init__(self, original: messages.ReceivedMessage, consumer: Settling) -> None:
        self._original = original
        self._consumer = consumer
        self.queue = original.queue
        self.queue_offset = original.queue_offset
        self.size_bytes = original.size_bytes
        self.taken_at_s = original.taken_at_s
        self._record = original._record
        self._raw = original._raw
        self._body = original._body
        self._topic = original._topic
        self._properties = original._properties

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged or sent back."""
        return self._original.settled

    def ack(self) -> None:
        """It is done: the group does not get it again. Does nothing the second time."""
        self._consumer._settle(self._original.ack)

    def retry(self, delay_level: int = 0) -> None:
        """Ask for it again, after a delay level; 0 lets the broker choose, -1 makes it a dead letter."""
        self._consumer._settle(lambda: self._original.retry(delay_level))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is not None and not isinstance(error, Exception):
            return False
        self._consumer._settle(lambda: self._original.__aexit__(kind, error, traceback))
        return error is not None


class PoppedMessage(ReceivedMessage):
    """A message that is the consumer's until its invisible time is over; see :class:`trio_mq.SimpleConsumer`."""

    __slots__ = ()

    _original: AsyncPoppedMessage

    @property
    def receipt(self) -> Receipt:
        """What acknowledges it; a new one with each change of the invisible time."""
        return self._original.receipt

    @property
    def expires_s(self) -> float:
        """When the broker gives it to another consumer, on the clock of the client's thread."""
        return self._original.expires_s

    def change_invisible(self, invisible_s: float) -> None:
        """Keep it for so many seconds from now on; 0 gives it back at once. ReceiptExpired when that comes too late."""
        self._consumer._settle(lambda: self._original.change_invisible(invisible_s))
