"""One member of a consumer group: what all kinds of consumer that pull have in common.

In: :class:`MemberSpec`. Out: a :class:`Member` whose queues are shared out with the group's other members and pulled
into ``ready``, with positions that are stored every few seconds and when its block is left. Used by :mod:`.consumer`
and :mod:`.pullconsumer`. Source of the rules: Apache DefaultMQPushConsumerImpl (start, shutdown, subscribe).

Failure policy: that of the parts. A topic that nobody knows, or whose broker is away, does not keep a member from
opening: it is told in the log, and consumed as soon as it can be.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Literal

import anyio
import anyio.abc
import attrs

from trio_mq.client import world
from trio_mq.client.assigned import AssignedQueues
from trio_mq.client.decoding import Source
from trio_mq.client.fetch import Fetcher, PullSettings
from trio_mq.client.instance import Instance, open_instance
from trio_mq.client.lifetime import background, forever, together
from trio_mq.client.localoffsets import LocalOffsets, offsets_file
from trio_mq.client.messages import Settler
from trio_mq.client.offsets import (
    FromWhere,
    OffsetStore,
    RemoteOffsets,
    queue_max,
    queue_min,
    queue_offset_at,
    start_offset,
)
from trio_mq.client.options import ClientOptions, check_topic, with_namespace, without_namespace
from trio_mq.client.processqueue import FlowLimits, ProcessQueue
from trio_mq.client.ready import Ready
from trio_mq.client.rebalance import Rebalancer
from trio_mq.client.strategies import Strategy, average
from trio_mq.client.subscription import Subscription, Subscriptions, parse
from trio_mq.errors import ClientError, PeerUnavailable, TrioMQError
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import (
    CheckClientBody,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    MessageQueue,
)
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.topics import retry_topic

log = logging.getLogger("trio_mq.client")

#: For the last positions, when a block is left.
LAST_COMMIT_S = 3.0
#: Between two tries to store them.
LAST_COMMIT_AGAIN_S = 0.2

#: A place in a queue.
Where = int | datetime | Literal["begin", "end"]

_FROM_WHERE = {
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
}


@attrs.frozen
class MemberSpec:
    """What a consumer is made with. `group` and topics are the application's names, without the namespace."""

    options: ClientOptions
    group: str
    subscribe: Mapping[str, object]
    model: MessageModel = MessageModel.CLUSTERING
    from_where: FromWhere = "last"
    strategy: Strategy = average
    limits: FlowLimits = attrs.field(factory=FlowLimits)
    pull: PullSettings = attrs.field(factory=PullSettings)
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    #: Between two rounds of storing positions; None when only the application stores them.
    auto_commit_s: float | None = 5.0
    offsets_dir: str | os.PathLike[str] | None = None
    #: Whether failed messages come again, over the group's retry topic.
    with_retries: bool = True

    @property
    def is_broadcasting(self) -> bool:
        """Whether each member gets all messages."""
        return self.model is MessageModel.BROADCASTING


class Member:
    """See the module. Made by :func:`open_member`; :meth:`start` makes it a member."""

    def __init__(
        self,
        spec: MemberSpec,
        instance: Instance,
        tasks: anyio.abc.TaskGroup,
        store: OffsetStore,
        ready: Ready,
    ) -> None:
        self.spec = spec
        self.instance = instance
        self.tasks = tasks
        self.store = store
        self.group = with_namespace(spec.options.namespace, spec.group)
        self.subscriptions = Subscriptions()
        self.ready = ready
        #: What settles messages of a queue; set it before :meth:`start`.
        self.settler: Callable[[ProcessQueue], Settler | None] = lambda queue: None
        #: Called when a queue has got messages; the default lets them be handed out.
        self.delivered: Callable[[ProcessQueue], None] = self.ready.add
        self._retry_topic = retry_topic(self.group)
        fetcher = Fetcher(
            instance,
            self.group,
            spec.pull,
            wanted=self.subscriptions.get,
            source=self._source,
            commit=self._commit_with_pull,
            delivered=lambda queue: self.delivered(queue),
        )
        self.assigned = AssignedQueues(
            tasks,
            fetcher,
            store,
            self.ready,
            start=lambda queue: start_offset(instance, store, queue, spec.from_where),
            limits=spec.limits,
            shown=self.shown,
            keeps_positions=spec.auto_commit_s is not None,
        )
        self.rebalancer = Rebalancer(
            instance,
            self.group,
            self.subscriptions,
            self.assigned,
            spec.strategy,
            broadcasting=spec.is_broadcasting,
        )

    async def start(self) -> None:
        """Join the group, take the queues that are ours, and learn where to begin: positions are fixed when it ends.

        PeerRefused when a broker does not take an SQL condition. What cannot be reached is tried again later.
        """
        for topic, wanted in self.spec.subscribe.items():
            self._put(topic, wanted)
        if self.spec.with_retries and not self.spec.is_broadcasting:
            self.subscriptions.put(parse(self._retry_topic, "*"), self.instance.clock.now_ms())
        self.instance.consumers[self.group] = self._told
        self.rebalancer.listen()
        complete = False
        with anyio.move_on_after(self.spec.options.start_timeout_s):
            await self._learn_routes()
            await self._check_conditions()
            await self.instance.heartbeat()
            complete = await self.rebalancer.round()
            await self.assigned.started()
        self.tasks.start_soon(self.rebalancer.run, complete)
        self._commit_forever()

    async def start_alone(self, queues: Iterable[MessageQueue]) -> None:
        """Take queues that the application chose, and share none with the rest of the group; see :meth:`assign`."""
        self.instance.consumers[self.group] = self._told
        await self.assign(queues)
        self._commit_forever()

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Take these queues and no others.

        NoRoute, PeerUnavailable for their topics; ClientError when one is not there.
        """
        wanted = frozenset(map(self.wire, queues))
        for topic in sorted({queue.topic for queue in wanted}):
            await self.instance.route(topic)
        for queue in sorted(wanted):
            known = self.instance.routes.topics[queue.topic].read_queues
            if queue not in known:
                raise ClientError(
                    f"topic {self.shown(queue).topic} has no queue {queue.queue_id} that can be read at "
                    f"{queue.broker_name}; it has {len(known)}, see queues()"
                )
        await self.instance.heartbeat()  # brokers pull only for groups that they know
        held = self.assigned.queues
        self.assigned.give_up(held - wanted)
        self.assigned.take(sorted(wanted - held))
        with anyio.move_on_after(self.spec.options.start_timeout_s):
            await self.assigned.started()

    def _commit_forever(self) -> None:
        period_s = self.spec.auto_commit_s
        if period_s is not None:
            self.tasks.start_soon(
                partial(forever, period_s, self.assigned.commit_quietly, first_s=period_s)
            )

    async def commit_at_last(self) -> None:
        """Store all positions before the block ends.

        When a master has gone, a name server may give its place to a slave a moment after we have missed it: while
        there is one, this is tried again.
        """
        while True:
            unheard = await self.assigned.commit_quietly(wait=True)
            brokers = self.instance.routes.brokers()
            if all(len(brokers.get(name, ())) < 2 for name in unheard):
                return
            await anyio.sleep(LAST_COMMIT_AGAIN_S)

    async def _learn_routes(self) -> None:
        async with anyio.create_task_group() as asking:
            for topic in self.subscriptions.topics:
                asking.start_soon(self._learn_route, topic)

    async def _learn_route(self, topic: str) -> None:
        try:
            await self.instance.route(topic)
        except TrioMQError as error:
            if topic != self._retry_topic:  # which brokers make when they hear of the group
                log.warning("group %s consumes topic %s later: %s", self.group, topic, error)

    async def _check_conditions(self) -> None:
        for topic in self.subscriptions.topics:
            await self._check_condition(topic)

    async def _check_condition(self, topic: str) -> None:
        """Let a broker compile an SQL condition: errors of brokers that only log them would never be seen."""
        subscribed = self.subscriptions.get(topic)
        route = self.instance.routes.topics.get(topic)
        if subscribed is None or route is None or subscribed.subscription.expression_type == "TAG":
            return
        body = CheckClientBody(
            self.instance.client_id,
            self.group,
            subscribed.subscription.as_data(subscribed.version),
            self.spec.options.namespace,
        )
        for by_id in route.brokers.values():
            try:
                await self.instance.ask(
                    by_id[min(by_id)],
                    RequestCode.CHECK_CLIENT_CONFIG,
                    body=bodies.encode(body),
                    about=f"the condition of group {self.group} on topic {topic}",
                )
                return
            except PeerUnavailable as error:
                log.warning("a condition is checked by the next broker: %s", error)

    def _told(self) -> ConsumerData:
        """What brokers hear of this member."""
        spec = self.spec
        return ConsumerData(
            self.group,
            spec.consume_type,
            spec.model,
            ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
            if isinstance(spec.from_where, datetime)
            else _FROM_WHERE[spec.from_where],
            self.subscriptions.data(),
        )

    # -- subscriptions

    def _put(self, topic: str, wanted: object) -> Subscription:
        name = with_namespace(self.spec.options.namespace, check_topic(topic))
        subscription = parse(name, wanted)
        self.subscriptions.put(subscription, self.instance.clock.now_ms())
        return subscription

    async def subscribe(self, topic: str, wanted: object) -> None:
        """Consume one more topic, or another part of one; when it returns, its queues are ours.

        NoRoute for a topic that nobody knows, PeerRefused when a broker does not take an SQL condition.
        """
        subscription = self._put(topic, wanted)
        await self.instance.route(subscription.topic)
        await self._check_condition(subscription.topic)
        await self.instance.heartbeat()
        await self.rebalancer.round()
        await self.assigned.started()

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more."""
        if self.subscriptions.drop(with_namespace(self.spec.options.namespace, topic)):
            await self.rebalancer.round()
            await self.instance.heartbeat()

    # -- queues

    def shown(self, queue: MessageQueue) -> MessageQueue:
        """A queue as the application names it."""
        topic = without_namespace(self.spec.options.namespace, queue.topic)
        return queue if topic == queue.topic else attrs.evolve(queue, topic=topic)

    def wire(self, queue: MessageQueue) -> MessageQueue:
        """A queue as brokers name it."""
        topic = with_namespace(self.spec.options.namespace, queue.topic)
        return queue if topic == queue.topic else attrs.evolve(queue, topic=topic)

    def own(self, queue: MessageQueue) -> MessageQueue:
        """The same; ClientError unless the queue is ours now."""
        found = self.wire(queue)
        if found not in self.assigned.queues:
            raise ClientError(
                f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name} is not assigned to "
                f"this consumer of group {self.spec.group}; `assignment` has those that are"
            )
        return found

    async def offset_of(self, queue: MessageQueue, where: Where) -> int:
        """The offset that a place stands for. PeerUnavailable, PeerRefused when its broker does not tell."""
        if where == "begin":
            return await queue_min(self.instance, queue)
        if where == "end":
            return await queue_max(self.instance, queue)
        if isinstance(where, datetime):
            return await queue_offset_at(self.instance, queue, where)
        return int(where)

    async def lag(self) -> dict[MessageQueue, int]:
        """Messages of each own queue that are not settled, by what brokers say now."""
        found: dict[MessageQueue, int] = {}

        async def one(process: ProcessQueue) -> None:
            end = await queue_max(self.instance, process.queue)
            found[process.shown] = max(0, end - process.position)

        async with together() as asking:
            for process in self.assigned.process_queues():
                asking.start_soon(one, process)
        return found

    # -- what pulls need

    def _source(self, queue: ProcessQueue) -> Source:
        subscribed = self.subscriptions.get(queue.queue.topic)
        return Source(
            queue.shown,
            self.settler(queue),
            frozenset() if subscribed is None else subscribed.subscription.tags,
            queue.queue.topic == self._retry_topic,
            self.spec.options.namespace,
        )

    def _commit_with_pull(self, queue: ProcessQueue) -> int | None:
        if self.spec.is_broadcasting or self.spec.auto_commit_s is None:
            return None
        return queue.position


@asynccontextmanager
async def open_member(spec: MemberSpec, ready: Ready | None = None) -> AsyncIterator[Member]:
    """A member whose tasks and positions live as long as the block. PeerUnavailable when no name server answers.

    `ready` is the order in which messages are handed out, if it is not the usual one.
    """
    async with open_instance(spec.options) as instance:
        group = with_namespace(spec.options.namespace, spec.group)
        store: OffsetStore
        if spec.is_broadcasting:
            path = offsets_file(spec.offsets_dir, instance.client_id, group)
            store = await LocalOffsets.load(path, world.current().in_thread)
        else:
            store = RemoteOffsets(instance, group)
        member: Member | None = None
        try:
            async with background() as tasks:
                member = Member(spec, instance, tasks, store, ready or Ready())
                yield member
        finally:
            if member is not None and spec.auto_commit_s is not None:
                with anyio.move_on_after(LAST_COMMIT_S, shield=True):
                    await member.commit_at_last()
