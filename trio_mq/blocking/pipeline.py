"""Many sends on their way at once, for plain threads.

In: messages, from any number of threads. Out: a :class:`PendingSend` for each. Made by
:meth:`trio_mq.blocking.Producer.pipeline`. The twin of :class:`trio_mq.client.pipeline.Pipeline`, where the order of
sends and their failures are told.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from trio_mq.blocking.portal import Held
from trio_mq.blocking.twin import Twin
from trio_mq.client import pipeline
from trio_mq.client.messages import Message, SendReceipt
from trio_mq.client.producer import Producer as AsyncProducer
from trio_mq.errors import NotOpen
from trio_mq.protocol.bodies import MessageQueue


class PendingSend:
    """One send of a pipeline: :meth:`wait` for its receipt, or look at :attr:`receipt` once it is :attr:`done`."""

    __slots__ = ("_original", "_owner")

    def __init__(self, original: pipeline.PendingSend, owner: Twin[AsyncProducer]) -> None:
        self._original = original
        self._owner = owner

    @property
    def done(self) -> bool:
        """Whether it is known what became of it."""
        return self._original.done

    @property
    def message_id(self) -> str:
        """The id of the message, known before its receipt."""
        return self._original.message_id

    @property
    def receipt(self) -> SendReceipt:
        """The receipt. Raises the failure of the send, ClientError while nothing is known."""
        return self._original.receipt

    def wait(self) -> SendReceipt:
        """Wait for the receipt; returns at once when it is there. Raises the failure of the send."""
        if self._original.done:
            return self._original.receipt

        async def receipt() -> SendReceipt:
            return await self._original

        return self._owner._call(receipt)


class Pipeline:
    """A context manager; see the module."""

    def __init__(self, owner: Twin[AsyncProducer], window: int) -> None:
        self._owner = owner
        self._window = window
        self._held: Held[pipeline.Pipeline] | None = None
        self._inside: pipeline.Pipeline | None = None

    def __enter__(self) -> Self:
        if self._held is not None:
            raise NotOpen("this pipeline was opened before; make a new one for each block")
        portal = self._owner._check_open()
        self._held = Held(portal, self._owner._client.pipeline(self._window))
        self._inside = self._held.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        assert self._held is not None, "entered"
        return self._held.leave(error)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> PendingSend:
        """Start a send; waits only while the window is full, or for a route or a connection.

        As :meth:`trio_mq.client.pipeline.Pipeline.send`.
        """
        if self._inside is None:
            raise NotOpen("this pipeline is not open: send inside its `with` block")
        pending = self._owner._call(self._inside.send, message, queue=queue, timeout_s=timeout_s)
        return PendingSend(pending, self._owner)

    def flush(self) -> None:
        """Wait until nothing is on its way. Raises nothing: failures are told by the sends, or at the end."""
        if self._inside is not None:
            self._owner._call(self._inside.flush)
