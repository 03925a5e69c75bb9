"""Shares out the queues of a group: who is in it, who gets what, and again when either changes.

In: routes, the members that a broker knows, a strategy. Out: queues for :class:`.AssignedQueues` to take and give up.
Run by consumers; woken by brokers (NOTIFY_CONSUMER_IDS_CHANGED), by routes that change and by subscriptions. Source of
the rules: Apache RebalanceImpl, RebalanceService, MQClientInstance.findConsumerIdList.

Apache's clients see a broker that was started again with their next look at all routes, after up to 30 s. Here the
routes that it is missing from are looked at more often for some minutes.

Failure policy: a topic without a route, and members that no broker tells, leave the queues of that topic as they are,
and the others alone; the next round comes sooner then. Each cause is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import anyio

from trio_mq.client.instance import Instance
from trio_mq.client.routes import TopicRoute
from trio_mq.client.strategies import Strategy
from trio_mq.client.subscription import Subscriptions
from trio_mq.config.addresses import Address
from trio_mq.errors import NoRoute, PeerRefused, PeerUnavailable, ProtocolError, TrioMQError
from trio_mq.net.link import Link
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import ConsumerIdList, MessageQueue
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.topics import RETRY_PREFIX

log = logging.getLogger("trio_mq.client")

#: Apache: rocketmq.client.rebalance.waitInterval.
PERIOD_S = 20.0
#: Rounds are at least this far apart, so that fifty members who join at once do not make fifty rounds of each.
LEAST_S = 0.2
#: Routes that have lost a broker are looked at this often, for a while: it may just be starting again.
LOOK_S = 4.0
LOOK_FOR_S = 300.0
#: The first round after one that left something undone; each further one waits twice as long, up to the period.
AGAIN_S = 0.1


class Holder(Protocol):
    """What rebalancing moves queues in and out of."""

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """All that are held."""
        ...

    def take(self, queues: Iterable[MessageQueue]) -> None:
        """These are ours now."""
        ...

    def give_up(self, queues: Iterable[MessageQueue]) -> None:
        """These are not ours any more."""
        ...


def share(
    strategy: Strategy,
    group: str,
    client_id: str,
    queues: Collection[MessageQueue],
    members: Sequence[str],
) -> frozenset[MessageQueue]:
    """The own queues of a topic. All members sort in the same way, and so get results that fit together."""
    return frozenset(strategy(group, client_id, sorted(queues), sorted(members)))


class Rebalancer:
    """See the module. With `broadcasting`, all queues are ours."""

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscriptions: Subscriptions,
        holder: Holder,
        strategy: Strategy,
        *,
        broadcasting: bool = False,
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._holder = holder
        self._strategy = strategy
        self._broadcasting = broadcasting
        self._woken = anyio.Event()
        self._told: dict[str, str] = {}
        self._lock = anyio.Lock()
        self._failed_at_s: dict[Address, float] = {}
        #: Topics whose route has lost brokers, which, and until when to look for them.
        self._missing: dict[str, tuple[frozenset[str], float]] = {}

    def wake(self) -> None:
        """Share out again, soon."""
        self._woken.set()

    def listen(self) -> None:
        """Be woken by brokers and by routes that change."""
        self._instance.on_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._notified)
        self._instance.route_changed.append(self._route_changed)

    def _notified(self, _: Link, command: Command) -> None:
        header = headers.decode(headers.NotifyConsumerIdsChangedRequest, command.ext)
        if header.consumer_group == self._group:
            self.wake()

    def _route_changed(self, topic: str) -> None:
        if self._subscriptions.get(topic) is not None:
            self.wake()

    async def run(self, complete: bool = False) -> None:
        """Share out when woken, every 20 s, and sooner after a round that left something undone: not `complete`."""
        wait_s = PERIOD_S if complete else AGAIN_S
        while True:
            with anyio.move_on_after(min(wait_s, LOOK_S) if self._missing else wait_s):
                await self._woken.wait()
            if self._woken.is_set():
                self._woken = anyio.Event()
                wait_s = AGAIN_S
            await self._look_for_missing()
            complete = await self.round()
            wait_s = PERIOD_S if complete else min(2 * wait_s, PERIOD_S)
            await anyio.sleep(LEAST_S)

    async def round(self) -> bool:
        """Share out all topics once, at the same time; whether nothing was left undone."""
        async with self._lock:
            return await self._round()

    async def _round(self) -> bool:
        topics = self._subscriptions.topics
        self._holder.give_up([q for q in self._holder.queues if q.topic not in topics])
        complete: list[bool] = []

        async def one(topic: str) -> None:
            complete.append(await self._share_out(topic))

        async with anyio.create_task_group() as sharing:
            for topic in topics:
                sharing.start_soon(one, topic)
        return all(complete)

    async def _share_out(self, topic: str) -> bool:
        try:
            route = await self._instance.route(topic)
            if self._broadcasting:
                wanted = frozenset(route.read_queues)
            else:
                members = await self._members(route)
                wanted = share(
                    self._strategy,
                    self._group,
                    self._instance.client_id,
                    route.read_queues,
                    members,
                )
        except TrioMQError as failure:
            self._tell(topic, failure)
            return False
        except Exception:
            # The application's own strategy: as with Apache, queues stay as they are.
            log.exception("group %s: the strategy failed for topic %s", self._group, topic)
            return False
        self._told.pop(topic, None)
        if self._subscriptions.get(topic) is None:
            return True  # unsubscribed meanwhile
        held = frozenset(queue for queue in self._holder.queues if queue.topic == topic)
        self._note_missing(topic, held, route)
        if held != wanted:
            log.info("group %s, topic %s: %d of %d queues are ours, %d come, %d go", self._group, topic,
                     len(wanted), len(route.read_queues), len(wanted - held), len(held - wanted))  # fmt: skip
            self._holder.give_up(sorted(held - wanted))
            self._holder.take(sorted(wanted - held))
        return True

    def _tell(self, topic: str, failure: TrioMQError) -> None:
        if self._told.get(topic) == str(failure):
            return
        self._told[topic] = str(failure)
        # Brokers make a retry topic when the group's first heartbeat comes: it takes a moment to be known.
        is_expected = topic.startswith(RETRY_PREFIX) and isinstance(failure, NoRoute)
        log.log(logging.DEBUG if is_expected else logging.WARNING,
                "group %s: queues of topic %s stay as they are: %s", self._group, topic, failure)  # fmt: skip

    # -- brokers that went

    def _note_missing(self, topic: str, held: frozenset[MessageQueue], route: TopicRoute) -> None:
        now_s = anyio.current_time()
        names, until_s = self._missing.pop(topic, (frozenset(), 0.0))
        lost = frozenset(queue.broker_name for queue in held) - route.brokers.keys()
        left = names - route.brokers.keys() | lost
        until_s = now_s + LOOK_FOR_S if lost else until_s
        if left and now_s < until_s:
            self._missing[topic] = (left, until_s)

    async def _look_for_missing(self) -> None:
        """Ask for the routes that have lost a broker; one that changes shares out its topic again."""
        async with anyio.create_task_group() as asking:
            for topic in self._missing:
                asking.start_soon(self._instance.refreshed_route, topic)

    # -- members

    async def _members(self, route: TopicRoute) -> Sequence[str]:
        """The ids of all members, from a broker of the topic; the error of the last one when none tells them."""
        failure: TrioMQError = PeerUnavailable(f"topic {route.topic}: its route names no broker")
        for address in self._brokers(route):
            try:
                members = await self._asked(address)
                if self._instance.client_id not in members:
                    # It was started again, or our first heartbeat to it was lost.
                    await self._instance.heartbeat()
                    members = await self._asked(address)
                return members
            except (PeerUnavailable, PeerRefused, ProtocolError) as error:
                self._failed_at_s[address] = anyio.current_time()
                failure = error
        raise failure

    def _brokers(self, route: TopicRoute) -> list[Address]:
        """One address of each broker of a topic, those that failed lately last."""
        first = [by_id[min(by_id)] for _, by_id in sorted(route.brokers.items()) if by_id]
        return sorted(first, key=lambda address: self._failed_at_s.get(address, 0.0))

    async def _asked(self, address: Address) -> Sequence[str]:
        header = headers.GetConsumerListByGroupRequest(consumer_group=self._group)
        code, about = RequestCode.GET_CONSUMER_LIST_BY_GROUP, f"group {self._group}"
        try:
            reply = await self._instance.ask(address, code, header, about=about)
        except PeerRefused as refused:
            if refused.code == ResponseCode.SYSTEM_ERROR:
                return ()  # the broker knows no member
            raise
        return bodies.decode(ConsumerIdList, reply.body).consumer_id_list
