"""A consumer that takes messages for a time: it receives, and acknowledges, gives back or asks for more time.

In: a group and what it wants, receives. Out: :class:`.PoppedMessage`. The client of applications; what is asked of
which broker is :mod:`.inbox`, the questions are :mod:`.popsource` and :mod:`.popcalls`. No queue belongs to anybody:
any number of consumers of a group share all of them, and a slow one holds nobody up. Needs brokers of 5.x. Source of
the names: SimpleConsumer of Apache's rocketmq-clients; of the rules: Apache DefaultMQPushConsumerImpl (pop).

Failure policy: brokers and name servers that are away are logged once and asked again; topics without a route are
looked for again. Nothing of that ends the consumer. What the application asks for by hand (ack, retry, change) raises.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal, Self

import anyio
import anyio.abc

from trio_mq.client.inbox import Inbox, Source
from trio_mq.client.instance import Instance, open_instance
from trio_mq.client.invisible import InvisibleTimes
from trio_mq.client.lifetime import Owner, background
from trio_mq.client.messages import Outcome, ReceivedMessage
from trio_mq.client.options import (
    ClientOptions,
    Credentials,
    check_group,
    check_topic,
    with_namespace,
    without_namespace,
)
from trio_mq.client.popcalls import MAX_MESSAGES, PopCalls
from trio_mq.client.popping import PoppedMessage, retry_delay_s
from trio_mq.client.popsource import PopRules, pop_forever
from trio_mq.client.subscription import Sql, Subscription, parse
from trio_mq.errors import (
    ClientError,
    ConfigError,
    NoRoute,
    PeerUnavailable,
    ReceiptExpired,
)
from trio_mq.protocol.bodies import ConsumeFromWhere, ConsumerData, ConsumeType
from trio_mq.protocol.receipts import normal_topic

log = logging.getLogger("trio_mq.client")

#: Of a group without an offset (Apache: ConsumeInitMode).
_INIT_MODES: Final = {"first": 0, "last": 1}
_FROM_WHERE: Final = {
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
}
#: A receive whose time is over waits so long for answers that are on their way.
LAST_ANSWERS_S = 3.0
#: How often a topic without a route is asked for.
LOOK_FOR_TOPIC_S = 2.0


class SimpleConsumer(Owner):
    """Receives messages of a group, inside its ``async with`` block. Times are seconds.

    `subscribe` gives a tag expression or :class:`.Sql` for each topic. A message that is received is nobody else's for
    `invisible_s`; who needs longer says :meth:`change_invisible`. `from_where` is the start of a group that has none.
    A message that came back more than `max_reconsume_times` becomes a dead letter. Iterating takes `batch_size`
    messages at a time.
    """

    def __init__(
        self,
        nameserver: str | Iterable[str],
        group: str,
        *,
        subscribe: Mapping[str, str | Sql | None],
        invisible_s: float = 60.0,
        await_s: float = 15.0,
        from_where: Literal["last", "first"] = "last",
        batch_size: int = 16,
        max_reconsume_times: int = 16,
        namespace: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        credentials: Credentials | None = None,
        start_timeout_s: float = 10.0,
        call_timeout_s: float = 3.0,
    ) -> None:
        self.group = check_group(group)
        self._options = ClientOptions.of(
            nameserver, namespace=namespace, instance_name=instance_name, unit_name=unit_name,
            credentials=credentials, start_timeout_s=start_timeout_s, call_timeout_s=call_timeout_s,
        )  # fmt: skip
        if from_where not in _INIT_MODES:
            raise ConfigError(f"from_where: {from_where!r} is not 'last' or 'first'")
        self.invisible_s = _above_zero("invisible_s", invisible_s)
        self.await_s = _not_negative("await_s", await_s)
        self.batch_size = _count("batch_size", batch_size)
        self._from_where = from_where
        self._max_reconsume_times = max_reconsume_times
        self._wanted: dict[str, Subscription] = {}
        self._version = 0
        for topic, expression in subscribe.items():
            self._want(topic, expression)
        self._inbox = Inbox()
        self._tasks: dict[tuple[str, str], anyio.CancelScope] = {}
        self._route_changed = anyio.Event()
        self._instance: Instance
        self._calls: PopCalls
        self._times: InvisibleTimes

    # -- life

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        async with open_instance(self._options) as instance:
            self._instance = instance
            self._calls = PopCalls(instance, self._wire_group, _INIT_MODES[self._from_where])
            self._times = InvisibleTimes(instance.tasks, self._inbox, self._calls, self.invisible_s)
            instance.consumers[self._wire_group] = self._data
            instance.route_changed.append(self._told_of_route)
            try:
                async with background() as tasks:
                    await self._look_for_topics()
                    await instance.heartbeat()
                    self._share_out(tasks)
                    for source in [*self._inbox.sources.values()]:
                        await source.begun.wait()
                    tasks.start_soon(self._follow_routes, tasks)
                    tasks.start_soon(self._times.tend)
                    yield
            finally:
                self._inbox.changed()
                await self._times.give_back_all()

    @property
    def _wire_group(self) -> str:
        return with_namespace(self._options.namespace, self.group)

    def _data(self) -> ConsumerData:
        """What heartbeats tell."""
        return ConsumerData(
            self._wire_group,
            ConsumeType.CONSUME_POP,
            consume_from_where=_FROM_WHERE[self._from_where],
            subscription_data_set=tuple(
                one.as_data(self._version) for _, one in sorted(self._wanted.items())
            ),
        )

    def _want(self, topic: str, expression: str | Sql | None) -> str:
        wire = with_namespace(self._options.namespace, check_topic(topic))
        self._wanted[wire] = parse(wire, expression)
        return wire

    # -- sources

    def _told_of_route(self, topic: str) -> None:
        if topic in self._wanted:
            self._route_changed.set()

    async def _follow_routes(self, tasks: anyio.abc.TaskGroup) -> None:
        """Pop from the brokers that routes name; topics without a route are looked for again."""
        while True:
            missing = [topic for topic in self._wanted if topic not in self._instance.routes.topics]
            with anyio.move_on_after(LOOK_FOR_TOPIC_S if missing else None):
                await self._route_changed.wait()
            self._route_changed = anyio.Event()
            await self._look_for_topics(told=missing)
            self._share_out(tasks)

    async def _look_for_topics(self, told: Iterable[str] = ()) -> None:
        """Learn the routes that are not known. Those `told` were warned of before."""
        for topic in [*self._wanted]:
            try:
                await self._instance.route(topic)
            except (NoRoute, PeerUnavailable) as error:
                if topic not in told:
                    log.warning("group %s waits for topic %s: %s", self.group, topic, error)

    def _share_out(self, tasks: anyio.abc.TaskGroup) -> None:
        """One task for each topic at each broker."""
        routes = self._instance.routes.topics
        wanted = {
            (topic, queue.broker_name)
            for topic in self._wanted
            if topic in routes
            for queue in routes[topic].read_queues
        }
        for place in self._tasks.keys() - wanted:
            self._tasks.pop(place).cancel()
            del self._inbox.sources[place]
        rules = PopRules(
            self._calls, self, self._wire_group, self._max_reconsume_times,
            self._wanted.__getitem__, self._shown, self._from_where == "last", self.invisible_s,
        )  # fmt: skip
        for place in wanted - self._tasks.keys():
            source = self._inbox.sources[place] = Source(*place)
            scope = self._tasks[place] = anyio.CancelScope()
            tasks.start_soon(self._pop_within, scope, source, rules)
        self._inbox.changed()

    async def _pop_within(self, scope: anyio.CancelScope, source: Source, rules: PopRules) -> None:
        with scope:
            await pop_forever(source, self._inbox, rules)

    def _shown(self, topic: str) -> str:
        return without_namespace(self._options.namespace, topic)

    # -- receiving

    async def receive(
        self,
        max_messages: int = 16,
        *,
        invisible_s: float | None = None,
        await_s: float | None = None,
    ) -> list[PoppedMessage]:
        """Up to `max_messages`, as soon as there are any; an empty list when there are none for `await_s`.

        Raises PeerRefused when nothing came because every broker refuses pops (no permission, a release before 5).

        All brokers are asked at the same time. Cancelling it loses nothing: what is on its way is for the next
        receive, or given back when the block is left.
        """
        count = _count("max_messages", max_messages)
        invisible_s = _above_zero(
            "invisible_s", self.invisible_s if invisible_s is None else invisible_s
        )
        await_s = _not_negative("await_s", self.await_s if await_s is None else await_s)
        return await self._receive(count, count, invisible_s, await_s)

    def __aiter__(self) -> Self:
        """Messages one after another, without end."""
        self._check_open()
        return self

    async def __anext__(self) -> PoppedMessage:
        """The next message; any number of tasks may iterate, each message goes to one of them."""
        while True:
            for message in await self._receive(1, self.batch_size, self.invisible_s, self.await_s):
                return message

    async def _receive(
        self, count: int, ahead: int, invisible_s: float, await_s: float
    ) -> list[PoppedMessage]:
        """Take `count` messages at most; pop `ahead` when there are none."""
        self._check_open()
        inbox = self._inbox
        began_s = inbox.last_asked_s = anyio.current_time()
        want = inbox.want(ahead, invisible_s, began_s + await_s)
        try:
            while not (found := inbox.take(count, anyio.current_time())):
                left_s = want.until_s - anyio.current_time()
                is_over = left_s <= 0 and inbox.is_answered(want)
                if is_over or left_s + LAST_ANSWERS_S <= 0:
                    return self._nothing()
                with anyio.move_on_after(left_s if left_s > 0 else left_s + LAST_ANSWERS_S):
                    await inbox.wait()
                self._check_open()
        finally:
            inbox.unwant(want)
            inbox.last_asked_s = anyio.current_time()
        return await self._times.hand_out(found, invisible_s)

    def _nothing(self) -> list[PoppedMessage]:
        """No messages; PeerRefused when there cannot be any, as every broker says no."""
        refusal = self._inbox.refusal()
        if refusal is not None:
            raise refusal
        return []

    # -- settling

    async def settle(self, message: ReceivedMessage, outcome: Outcome, delay_level: int) -> None:
        """What ``message.ack()`` and ``message.retry()`` do; not for applications."""
        self._check_open()
        assert isinstance(message, PoppedMessage)  # it only settles its own
        if outcome is Outcome.ACK:
            await self._calls.ack(message.receipt, message.queue.topic)
        elif delay_level < 0:
            await self._calls.bury(message)
        else:
            delay_s = retry_delay_s(delay_level, message.reconsume_times)
            await self._calls.change_invisible(message, delay_s)
            self._times.settled(message)
            return
        self._times.settled(message)
        _check_in_time(message)

    async def ack(self, *messages: PoppedMessage) -> None:
        """Acknowledge messages, those of one topic at one broker by one request. Raises as ``message.ack()`` does."""
        self._check_open()
        several: dict[tuple[str, str], list[PoppedMessage]] = {}
        for message in messages:
            if not message.settled:
                topic = normal_topic(message.queue.topic, self._wire_group)
                several.setdefault((message.queue.broker_name, topic), []).append(message)
        for (broker_name, topic), alike in several.items():
            receipts = [message.receipt for message in alike]
            await self._calls.ack_several(broker_name, topic, receipts)
            for message in alike:
                message.mark_settled()
                self._times.settled(message)
        for message in messages:
            _check_in_time(message)

    async def change_invisible(self, message: PoppedMessage, invisible_s: float) -> None:
        """Keep a message for so long from now on; 0 gives it back at once. ReceiptExpired when that comes too late."""
        self._check_open()
        if message.settled:
            raise ClientError(f"{message!r} is settled: its invisible time cannot be changed")
        _not_negative("invisible_s", invisible_s)
        _check_in_time(message)
        await self._calls.change_invisible(message, invisible_s)

    # -- subscriptions

    async def subscribe(self, topic: str, expression: str | Sql | None = "*") -> None:
        """Consume one more topic, or change what is wanted of one. NoRoute when no broker serves it."""
        self._check_open()
        wire = with_namespace(self._options.namespace, check_topic(topic))
        await self._instance.route(wire)
        self._want(topic, expression)
        await self._tell()

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more; its messages that nobody has got yet are given back."""
        self._check_open()
        wire = with_namespace(self._options.namespace, topic)
        if self._wanted.pop(wire, None) is not None:
            for place in [place for place in self._tasks if place[0] == wire]:
                self._tasks.pop(place).cancel()
                del self._inbox.sources[place]
            await self._times.give_back(self._inbox.take_topic(topic))
            await self._tell()

    async def _tell(self) -> None:
        self._version = max(self._version + 1, self._instance.clock.now_ms())
        self._route_changed.set()
        await self._instance.heartbeat()

    def __repr__(self) -> str:
        return f"<SimpleConsumer {self.group} of {', '.join(map(self._shown, self._wanted))}>"


def _check_in_time(message: PoppedMessage) -> None:
    late_s = anyio.current_time() - message.expires_s
    if late_s > 0:
        raise ReceiptExpired(
            f"message {message.message_id} of topic {message.topic} is settled {late_s:.1f} s after its invisible "
            f"time: another consumer may have it; receive with a larger invisible_s, or ask for more time with "
            f"change_invisible"
        )


def _above_zero(name: str, seconds: float) -> float:
    if not 0.001 <= seconds < float("inf"):
        raise ConfigError(f"{name}: {seconds} is not a time of at least 0.001 s")
    return seconds


def _not_negative(name: str, seconds: float) -> float:
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"{name}: {seconds} is not a time of 0 s or more")
    return seconds


def _count(name: str, count: int) -> int:
    if not 1 <= count <= MAX_MESSAGES:
        raise ConfigError(
            f"{name}: {count} is not a number from 1 to {MAX_MESSAGES}, the most of one pop"
        )
    return count
