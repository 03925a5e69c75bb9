"""A consumer that asks for messages itself: it polls, and chooses queues and places in them if it likes.

In: subscriptions that are shared out in a group, or queues; polls. Out: messages; positions that are stored. The client
of applications; what it has in common with other consumers is :mod:`.member`. Source of the names, defaults and rules:
Apache DefaultLitePullConsumer.

A message counts as done with the next poll, with a commit, and when the block is left without an error. So positions
that are stored by themselves (every `auto_commit_s`) never pass a message that is still being worked on, and one whose
work fails comes again after the next start. Apache's client counts it when it is polled.

Failure policy: what brokers and networks do never ends a consumer; it goes on when they do. What the application asks
for by hand raises.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Literal, Self

import anyio
from anyio.lowlevel import checkpoint

from trio_mq.client.callbacks import Asked, BrokerQuestions
from trio_mq.client.fetch import PullSettings
from trio_mq.client.lifetime import Owner
from trio_mq.client.member import Member, MemberSpec, Where, open_member
from trio_mq.client.messages import Outcome, ReceivedMessage
from trio_mq.client.offsets import check_from_where, queue_max, queue_min
from trio_mq.client.options import ClientOptions, Credentials, check_group, check_topic
from trio_mq.client.processqueue import FlowLimits, ProcessQueue
from trio_mq.client.strategies import Strategy, average, strategy_of
from trio_mq.client.subscription import Sql, parse
from trio_mq.errors import ClientError, ConfigError
from trio_mq.protocol.bodies import ConsumeType, MessageQueue
from trio_mq.protocol.codes import PullFlag, RequestCode

#: Most messages of one pull that any broker gives.
MAX_BATCH = 1024


class PullConsumer(Owner):
    """Polls messages, inside its ``async with`` block. Times are seconds; one task at a time may poll.

    Either `subscribe` maps topics to tags or conditions, and their queues are shared out in the group, or `assign`
    names queues, which are this consumer's alone (`assign=()` to choose them with :meth:`assign`). Positions are
    stored every `auto_commit_s` and when the block is left; with `auto_commit=False` only by :meth:`commit`. A pull
    brings up to `batch_size` messages; of each queue at most about `pull_threshold` messages, `pull_threshold_bytes`
    and `max_span` offsets are held. The other parameters are those of :class:`.Consumer`.
    """

    def __init__(
        self,
        nameserver: str | Iterable[str],
        group: str,
        *,
        subscribe: Mapping[str, str | Sql] | None = None,
        assign: Iterable[MessageQueue] | None = None,
        auto_commit: bool = True,
        auto_commit_s: float = 5.0,
        batch_size: int = 10,
        from_where: Literal["last", "first"] | datetime = "last",
        strategy: str | Strategy = average,
        pull_threshold: int = 1000,
        pull_threshold_bytes: int = 100 * 1024 * 1024,
        max_span: int = 2000,
        namespace: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        credentials: Credentials | None = None,
        start_timeout_s: float = 10.0,
        call_timeout_s: float = 3.0,
    ) -> None:
        self.group = check_group(group)
        if (subscribe is None) == (assign is None):
            raise ConfigError("give either subscribe={topic: tags} or assign=[queues]")
        for topic, wanted in (subscribe or {}).items():
            parse(check_topic(topic), wanted)
        for name, number, least in (
            ("batch_size", batch_size, 1),
            ("pull_threshold", pull_threshold, 1),
            ("pull_threshold_bytes", pull_threshold_bytes, 1),
            ("max_span", max_span, 1),
            ("auto_commit_s", auto_commit_s, 0.001),
        ):
            if number < least:
                raise ConfigError(f"{name}: {number} is not allowed; give {least} or more")
        if batch_size > MAX_BATCH:
            raise ConfigError(f"batch_size: {batch_size} is not allowed; give {MAX_BATCH} or less")
        self.batch_size = batch_size
        self._assign = None if assign is None else tuple(assign)
        self._spec = MemberSpec(
            ClientOptions.of(
                nameserver, namespace=namespace, instance_name=instance_name, unit_name=unit_name,
                credentials=credentials, start_timeout_s=start_timeout_s, call_timeout_s=call_timeout_s,
            ),
            group,
            dict(subscribe or {}),
            from_where=check_from_where(from_where),
            strategy=strategy_of(strategy),
            limits=FlowLimits(pull_threshold, pull_threshold_bytes, max_span),
            pull=PullSettings(
                batch_size,
                code=RequestCode.LITE_PULL_MESSAGE,
                flags=int(PullFlag.SUSPEND | PullFlag.LITE_PULL),
                with_expression=True,
            ),
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            auto_commit_s=auto_commit_s if auto_commit else None,
            with_retries=False,
        )  # fmt: skip
        self._member: Member
        #: Messages of the last poll, and the queues that they came from.
        self._polled: list[ReceivedMessage] = []
        self._is_polling = False

    def __repr__(self) -> str:
        return f"<PullConsumer of group {self.group}>"

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        async with open_member(self._spec) as member:
            self._member = member
            member.settler = _PullSettler
            BrokerQuestions(
                Asked(member.instance, member.group, member.assigned, member.store)
            ).listen()
            if self._assign is None:
                await member.start()
            else:
                await member.start_alone(self._assign)
            try:
                yield
                await self._done()
            finally:
                member.ready.close()

    # -- messages

    async def poll(
        self, max_messages: int | None = None, timeout_s: float = 5.0
    ) -> list[ReceivedMessage]:
        """Up to `max_messages` (default: `batch_size`), as soon as there are any; none after `timeout_s`.

        Messages of the poll before count as done now. Cancelling it loses none.
        """
        self._check_open()
        count = self.batch_size if max_messages is None else max_messages
        if count < 1 or not 0 <= timeout_s < float("inf"):
            raise ConfigError(
                f"poll({count}, {timeout_s}): ask for 1 message or more, within 0 s or more"
            )
        ready = self._member.ready
        found: list[ReceivedMessage] = []
        with self._polling():
            await self._done()
            await checkpoint()
            first = ready.take()
            if first is None:
                with anyio.move_on_after(timeout_s):
                    first = await ready.next()
            while first is not None:
                found.append(first)
                first = ready.take() if len(found) < count else None
            self._polled = found
        return list(found)

    def __aiter__(self) -> Self:
        self._check_open()
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message of any queue; the one before counts as done. Ends when the consumer's block is left."""
        with self._polling():
            await self._done()
            message = self._member.ready.take_now() or await self._member.ready.next()
            if message is None:
                raise StopAsyncIteration
            self._polled = [message]
        return message

    def _polling(self) -> _OneAtATime:
        return _OneAtATime(self)

    async def _done(self) -> None:
        """The messages of the last poll are done."""
        polled, self._polled = self._polled, []
        for message in polled:
            await message.ack()

    # -- queues and positions

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now."""
        self._check_open()
        return frozenset(map(self._member.shown, self._member.assigned.queues))

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """All queues of a topic that can be consumed. NoRoute for a topic that nobody knows."""
        self._check_open()
        route = await self._member.instance.route(
            self._member.wire(MessageQueue(topic, "", 0)).topic
        )
        return tuple(map(self._member.shown, route.read_queues))

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Take these queues and no others; those that were ours before go on where they are.

        ClientError for one that is not there, or when the consumer subscribes; NoRoute for an unknown topic.
        """
        self._check_open()
        if self._assign is None:
            raise ClientError(
                f"{self!r} subscribes, its queues are shared out; make it with assign=()"
            )
        await self._member.assign(queues)

    async def subscribe(self, topic: str, wanted: str | Sql = "*") -> None:
        """Consume one more topic, or another part of one. ClientError when queues were assigned.

        NoRoute for a topic that nobody knows, PeerRefused when a broker does not take an SQL condition.
        """
        self._check_shares()
        await self._member.subscribe(topic, wanted)

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more. ClientError when queues were assigned."""
        self._check_shares()
        await self._member.unsubscribe(topic)

    def _check_shares(self) -> None:
        self._check_open()
        if self._assign is not None:
            raise ClientError(
                f"{self!r} has assigned queues; make it with subscribe= to share queues"
            )

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message of a queue that a poll gives. ClientError when the queue is not ours."""
        return self._process(queue).next_out

    async def seek(self, queue: MessageQueue, where: Where) -> None:
        """Let the next poll go on at an offset, ``"begin"``, ``"end"`` or a time.

        ClientError when the queue is not ours, or has no such offset; PeerUnavailable, PeerRefused from its broker.
        """
        self._check_open()
        found = self._member.own(queue)
        offset = await self._member.offset_of(found, where)
        if isinstance(where, int):
            low = await queue_min(self._member.instance, found)
            high = await queue_max(self._member.instance, found)
            if not low <= offset <= high:
                raise ClientError(
                    f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name} has no offset "
                    f"{offset}: it goes from {low} to {high}"
                )
        self._member.assigned.seek(self._member.own(queue), offset)
        await self._member.assigned.started()

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Let the next poll go on at the first message that is there, of all own queues when none is given."""
        for queue in queues or self.assignment:
            await self.seek(queue, "begin")

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Let the next poll go on at what comes from now on, of all own queues when none is given."""
        for queue in queues or self.assignment:
            await self.seek(queue, "end")

    def pause(self, *queues: MessageQueue) -> None:
        """Let polls give nothing of these queues, of all own ones when none is given."""
        self._check_open()
        self._member.assigned.pause(self._given(queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with these queues, with all when none is given."""
        self._check_open()
        self._member.assigned.resume(self._given(queues))

    async def commit(self, positions: Mapping[MessageQueue, int] | None = None) -> None:
        """Store positions now, and wait until brokers have them: what was polled is done. Raises the first failure.

        `positions` are offsets of own queues to go on at, instead of what was polled.
        """
        self._check_open()
        given = None
        if positions is None:
            await self._done()
        else:
            given = {self._member.own(queue): offset for queue, offset in positions.items()}
        failures = await self._member.assigned.commit(wait=True, positions=given)
        for failure in failures.values():
            raise failure

    async def committed(self, queue: MessageQueue) -> int | None:
        """The stored offset of the group in a queue, None without one. PeerUnavailable, PeerRefused from its broker."""
        self._check_open()
        wire = self._member.wire(queue)
        await self._member.instance.route(wire.topic)
        return await self._member.store.read(wire)

    async def lag(self) -> dict[MessageQueue, int]:
        """How many messages of each own queue are not done. PeerUnavailable, PeerRefused from brokers."""
        self._check_open()
        return await self._member.lag()

    def _given(self, queues: tuple[MessageQueue, ...]) -> Iterable[MessageQueue]:
        return map(self._member.own, queues) if queues else self._member.assigned.queues

    def _process(self, queue: MessageQueue) -> ProcessQueue:
        self._check_open()
        found = self._member.assigned.process_queue(self._member.own(queue))
        if found is None:
            raise ClientError(
                f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name} has no position yet: its "
                f"broker has not said where the group is"
            )
        return found


class _OneAtATime:
    """Refuses a second poll while one goes on: it would take the first one's messages as done."""

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer = consumer

    def __enter__(self) -> None:
        self._consumer._check_open()
        if self._consumer._is_polling:
            raise ClientError(
                f"{self._consumer!r} is polled by two tasks at the same time; poll in one and share out its messages, "
                f"or use trio_mq.Consumer"
            )
        self._consumer._is_polling = True

    def __exit__(self, *_: object) -> None:
        self._consumer._is_polling = False


class _PullSettler:
    """The settler of one queue's messages: they are done, or read again by a seek."""

    __slots__ = ("_queue",)

    def __init__(self, queue: ProcessQueue) -> None:
        self._queue = queue

    async def settle(self, message: ReceivedMessage, outcome: Outcome, delay_level: int) -> None:
        """See :class:`.messages.Settler`."""
        if outcome is Outcome.RETRY:
            raise ClientError(
                f"{message!r} came from a pull consumer, whose messages are not retried: read it again with "
                f"seek(message.queue, message.queue_offset), or use trio_mq.Consumer"
            )
        self._queue.settle(message)
