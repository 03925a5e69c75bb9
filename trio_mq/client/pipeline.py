"""Many sends on their way at once: a bounded window, answers when they come.

In: messages, in the order in which they shall be sent. Out: a :class:`PendingSend` for each. Made by
:meth:`.producer.Producer.pipeline`. Source of the rules: Apache DefaultMQProducer.send with a callback, and its limit
of messages on their way (backPressureForAsyncSendNum).

Requests go out in the order of the calls. trio-mq stores messages to one queue in that order as long as no try fails;
Apache's broker has several threads for the requests of one connection and may swap neighbours, and a retry, as with
Java's asynchronous sends, comes later. Where order counts, await each send before the next one of its key. Messages
with a sharding key or a given queue are tried once. Failure policy: a failed send is told by its
:class:`PendingSend`, or else when the block is left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.abc

from trio_mq.client.lifetime import background
from trio_mq.client.messages import Message, SendReceipt
from trio_mq.client.outgoing import Outgoing
from trio_mq.client.routes import TopicRoute
from trio_mq.client.sending import Sender
from trio_mq.client.tries import Sent, Tries, receipt_of
from trio_mq.errors import (
    ClientError,
    ConfigError,
    NotOpen,
    PeerRefused,
    PeerUnavailable,
    RemoteProtocolError,
    TrioMQError,
)
from trio_mq.net.link import Link
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.command import Command

#: Messages on their way (Apache: backPressureForAsyncSendNum).
WINDOW: Final = 1024


class PendingSend:
    """One send of a pipeline: ``await`` it for the receipt, or look at :attr:`receipt` once it is :attr:`done`."""

    __slots__ = (
        "_began_s", "_error", "_event", "_fixed", "_outgoing", "_pipeline", "_post", "_queue", "_receipt", "_reply",
        "_route", "_timeout_s", "awaited", "done",
    )  # fmt: skip

    def __init__(
        self,
        pipeline: Pipeline,
        outgoing: Outgoing,
        route: TopicRoute,
        queue: MessageQueue,
        fixed: MessageQueue | None,
        timeout_s: float,
    ) -> None:
        #: Whether it is known what became of it.
        self.done = False
        #: Whether somebody has waited for it, and so is told of a failure.
        self.awaited = False
        self._pipeline = pipeline
        self._outgoing = outgoing
        self._route = route
        self._queue = queue
        self._fixed = fixed
        self._timeout_s = timeout_s
        self._began_s = anyio.current_time()
        self._receipt: SendReceipt | None = None
        self._error: TrioMQError | None = None
        self._reply: Command | None = None
        self._event: anyio.Event | None = None
        self._post: tuple[Link, int] | None = None

    @property
    def message_id(self) -> str:
        """The id of the message, known before its receipt."""
        return self._outgoing.message_id

    @property
    def receipt(self) -> SendReceipt:
        """The receipt. Raises the failure of the send, ClientError while nothing is known."""
        if not self.done:
            raise ClientError(
                f"message {self.message_id} is on its way; await the pending send for its receipt"
            )
        if self._error is not None:
            self.awaited = True
            raise self._error
        if self._receipt is None:
            assert self._reply is not None
            self._receipt = self._sent(self._reply).receipt
        return self._receipt

    def __await__(self) -> Generator[Any, Any, SendReceipt]:
        """Wait for the receipt; returns at once when it is there."""
        self.awaited = True
        if not self.done:
            if self._event is None:
                self._event = anyio.Event()
            yield from self._event.wait().__await__()
        return self.receipt

    def _sent(self, reply: Command) -> Sent:
        name = self._queue.broker_name
        address = self._pipeline._sender.master(self._route, name)
        return Sent(receipt_of(reply, self._outgoing, name, address), address)

    def _settle(self, receipt: SendReceipt | None = None, error: TrioMQError | None = None) -> None:
        self._receipt = receipt
        self._error = error
        self.done = True
        if self._event is not None:
            self._event.set()

    def _replied(self, reply: Command | PeerUnavailable) -> None:
        """Called by the link. Nearly all replies are a plain yes: the receipt is made when it is asked for."""
        if type(reply) is Command and reply.code == 0 and "msgId" in reply.ext:
            self._reply = reply
            self._settle()
            self._pipeline._settled(self)
        else:
            self._pipeline._unusual(self, reply)


class Pipeline:
    """See the module. Any number of tasks may send; each keeps its own order."""

    def __init__(self, sender: Sender, tasks: anyio.abc.TaskGroup, window: int) -> None:
        self._sender = sender
        self._tasks = tasks
        self._window = window
        #: Senders wake when so few are on their way: a switch of tasks for each single answer would be dear.
        self._low = window - max(1, window // 8)
        self._on_way: set[PendingSend] = set()
        self._room = anyio.Event()
        self._empty = anyio.Event()
        self._failed: list[PendingSend] = []
        self._open = True

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> PendingSend:
        """Start a send; waits only while the window is full, or for a route or a connection.

        Raises LocalProtocolError, NoRoute and PeerUnavailable (no name server) itself; what happens at brokers is told
        by the result. When as many sends have failed as the window is wide and nobody awaited them, raises the first
        failure. When cancelled, this message is not sent.
        """
        while len(self._on_way) >= self._window:
            if self._room.is_set():
                self._room = anyio.Event()
            await self._room.wait()
        if not self._open:
            raise NotOpen("this pipeline is closed; send inside its `async with` block")
        if len(self._failed) >= self._window:
            self._raise_first()
        sender = self._sender
        outgoing = sender.prepared(message)
        limit_s = sender.settings.send_timeout_s if timeout_s is None else timeout_s
        route = sender.known_route(outgoing.topic)
        if route is None or (queue is not None and not sender.serves(route, queue)):
            route = await sender.route_within(outgoing, limit_s)
        fixed = sender.fixed(outgoing, queue, route)
        pending = PendingSend(self, outgoing, route, fixed or sender.choose(route), fixed, limit_s)
        self._on_way.add(pending)
        try:
            await self._hand_over(pending)
        except PeerUnavailable as failure:
            self._unusual(pending, failure)
        except BaseException:
            self._settled(pending)
            raise
        return pending

    async def _hand_over(self, pending: PendingSend) -> None:
        """The first try; waits for the connection, not for the answer."""
        sender, outgoing, queue = self._sender, pending._outgoing, pending._queue
        address = sender.master(pending._route, queue.broker_name)
        link = sender.instance.living_link(address)
        if link is None:
            link = await sender.instance.link(address, pending._timeout_s)
        if link.crowded:
            await link.wait_roomy()
        opaque = link.post(
            sender.encoder(outgoing, queue),
            pending._replied,
            code=outgoing.code,
            timeout_s=pending._timeout_s,
            at_once=False,
            now_s=pending._began_s,
        )
        pending._post = link, opaque

    async def flush(self) -> None:
        """Wait until nothing is on its way. Raises nothing: failures are told by the sends, or at the end."""
        while self._on_way:
            if self._empty.is_set():
                self._empty = anyio.Event()
            await self._empty.wait()

    # -- answers

    def _settled(self, pending: PendingSend) -> None:
        self._on_way.discard(pending)
        if self._sender.takes_notes:
            self._sender.note(pending._queue, pending._began_s, failed=False)
        left = len(self._on_way)
        if left <= self._low:
            self._room.set()
            if not left:
                self._empty.set()

    def _unusual(self, pending: PendingSend, reply: Command | PeerUnavailable) -> None:
        """A first try that was no plain success: another one, or the end of it."""
        sender = self._sender
        tries = sender.tries(pending._outgoing, pending._began_s, pending._timeout_s)
        tries.left = 0 if pending._fixed is not None else tries.left - 1
        try:
            if isinstance(reply, PeerUnavailable):
                raise reply
            if reply.code == ResponseCode.GO_AWAY and pending._post is not None:
                pending._post[0].retire()
            if tries.done(pending._sent(reply)):
                tries.left = 0
        except (PeerUnavailable, PeerRefused, RemoteProtocolError) as failure:
            sender.note(pending._queue, pending._began_s, failed=True)
            try:
                sender.failed(tries, pending._queue, failure)
            except PeerRefused as refused:
                self._end(pending, error=refused)
                return
        if tries.another(anyio.current_time()):
            self._tasks.start_soon(self._try_again, pending, tries)
        else:
            self._conclude(pending, tries)

    def _conclude(self, pending: PendingSend, tries: Tries) -> None:
        try:
            sent = tries.result(anyio.current_time())
        except TrioMQError as error:
            self._end(pending, error=error)
        else:
            self._end(pending, sent.receipt)

    async def _try_again(self, pending: PendingSend, tries: Tries) -> None:
        try:
            sent = await self._sender.go_on(tries, pending._route, None)
        except TrioMQError as error:
            self._end(pending, error=error)
        else:
            self._end(pending, sent.receipt)

    def _end(
        self,
        pending: PendingSend,
        receipt: SendReceipt | None = None,
        error: TrioMQError | None = None,
    ) -> None:
        pending._settle(receipt, error)
        if error is not None:
            self._failed = [failed for failed in self._failed if not failed.awaited]
            self._failed.append(pending)
        self._settled(pending)

    # -- the end

    def _raise_first(self) -> None:
        for pending in self._failed:
            if not pending.awaited and pending._error is not None:
                raise pending._error

    def _abandon(self) -> None:
        """Want no answers any more."""
        self._open = False
        for pending in self._on_way:
            if pending._post is not None:
                link, opaque = pending._post
                link.forget(opaque)
            pending._settle(
                error=ClientError(
                    f"message {pending.message_id}: the pipeline was left before its answer came; it may be stored"
                )
            )
        self._on_way.clear()


@asynccontextmanager
async def open_pipeline(sender: Sender, window: int) -> AsyncIterator[Pipeline]:
    """A pipeline. Leaving the block waits for all sends, at most as long as their time-outs, and raises the first
    failure that nobody awaited; leaving it by an exception or a cancellation waits for nothing.
    """
    if window < 1:
        raise ConfigError(f"window: {window} is below 1, the least number of messages on their way")
    async with background() as tasks:
        pipeline = Pipeline(sender, tasks, window)
        try:
            yield pipeline
            pipeline._open = False
            await pipeline.flush()
            pipeline._raise_first()
        finally:
            pipeline._abandon()
