"""Routes: which brokers serve a topic, with which queues, at which addresses.

In: bodies of GET_ROUTEINFO_BY_TOPIC. Out: :class:`TopicRoute` (pure) and :class:`RouteTable`, what a client knows of
all topics that it uses. Called by :mod:`.instance`, which asks the name servers. Source of the rules: Apache
TopicRouteData, MQClientInstance.topicRouteData2TopicPublishInfo, topicRouteData2TopicSubscribeInfo.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import cached_property

import attrs

from trio_mq.config.addresses import Address
from trio_mq.errors import ConfigError
from trio_mq.net.address import parse_address
from trio_mq.protocol.bodies import MessageQueue, TopicRouteData
from trio_mq.protocol.codes import Perm

log = logging.getLogger("trio_mq.client")

MASTER_ID = 0
#: Queues of a topic that a send makes (Apache: DefaultMQProducer.defaultTopicQueueNums).
DEFAULT_TOPIC_QUEUES = 4


@attrs.define(slots=False, frozen=True)
class TopicRoute:
    """Where a topic is. `brokers` maps broker names to addresses by broker id."""

    topic: str
    data: TopicRouteData

    @cached_property
    def brokers(self) -> dict[str, dict[int, Address]]:
        """Addresses by broker name and broker id; one that does not parse is left out."""
        found: dict[str, dict[int, Address]] = {}
        for broker in self.data.broker_datas:
            addresses = found.setdefault(broker.broker_name, {})
            for broker_id, text in sorted(broker.broker_addrs.items()):
                try:
                    address = parse_address(text, what=f"address of {broker.broker_name}")
                except ConfigError as error:
                    log.warning("route of topic %s: %s", self.topic, error)
                    continue
                addresses[broker_id] = address
        return found

    @cached_property
    def publish_queues(self) -> tuple[MessageQueue, ...]:
        """Queues that can be sent to, by broker name and id; those of an ordered topic as it is configured."""
        if self.data.order_topic_conf:
            return tuple(_ordered_queues(self.topic, self.data.order_topic_conf))
        found = []
        for queues in sorted(self.data.queue_datas, key=lambda queues: queues.broker_name):
            if queues.perm & Perm.WRITE and MASTER_ID in self.brokers.get(queues.broker_name, {}):
                found += self._of(queues.broker_name, queues.write_queue_nums)
        return tuple(found)

    @cached_property
    def read_queues(self) -> tuple[MessageQueue, ...]:
        """Queues that can be consumed, by broker name and id."""
        found = []
        for queues in sorted(self.data.queue_datas, key=lambda queues: queues.broker_name):
            if queues.perm & Perm.READ:
                found += self._of(queues.broker_name, queues.read_queue_nums)
        return tuple(found)

    def for_new_topic(self, topic: str, queues: int = DEFAULT_TOPIC_QUEUES) -> TopicRoute:
        """This route, of the auto-create topic, as that of a topic that the first send will make."""
        data = attrs.evolve(
            self.data,
            order_topic_conf=None,
            queue_datas=tuple(
                attrs.evolve(
                    data,
                    read_queue_nums=min(queues, data.read_queue_nums),
                    write_queue_nums=min(queues, data.read_queue_nums),
                )
                for data in self.data.queue_datas
            ),
        )
        return TopicRoute(topic, data)

    def _of(self, broker_name: str, count: int) -> list[MessageQueue]:
        return [MessageQueue(self.topic, broker_name, number) for number in range(count)]


def _ordered_queues(topic: str, conf: str) -> Iterable[MessageQueue]:
    """``broker-a:4;broker-b:2``."""
    for item in conf.split(";"):
        name, _, count = item.partition(":")
        for number in range(int(count) if count.isdigit() else 0):
            yield MessageQueue(topic, name, number)


class RouteTable:
    """The routes of all topics in use, and the addresses of all brokers in them."""

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}
        #: All routes in one, made when it is asked for: pulls look up their broker each time.
        self._brokers: dict[str, dict[int, Address]] | None = None

    @property
    def topics(self) -> Mapping[str, TopicRoute]:
        """Routes by topic."""
        return self._routes

    def put(self, route: TopicRoute) -> bool:
        """Keep a route; whether it differs from the one that was known."""
        old = self._routes.get(route.topic)
        if old is not None and old.data == route.data:
            return False
        self._routes.pop(route.topic, None)  # the newest one comes last
        self._routes[route.topic] = route
        self._brokers = None
        return True

    def drop(self, topic: str) -> None:
        """Forget a topic."""
        self._routes.pop(topic, None)
        self._brokers = None

    def brokers(self) -> Mapping[str, Mapping[int, Address]]:
        """Addresses of all brokers in all routes, by broker name and broker id.

        The newest route that names a broker counts: the others were asked for before it moved.
        """
        if self._brokers is None:
            self._brokers = {}
            for route in self._routes.values():
                self._brokers.update(route.brokers)
        return self._brokers

    def addresses(self) -> set[Address]:
        """All addresses in :meth:`brokers`."""
        return {address for by_id in self.brokers().values() for address in by_id.values()}

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> Address | None:
        """The address of one broker, None when no route names it."""
        return self.brokers().get(broker_name, {}).get(broker_id)

    def any_address(self, broker_name: str, preferred_id: int = MASTER_ID) -> Address | None:
        """The address of the broker with that id; without it, of the slave after it, or the one with the least id."""
        by_id = self.brokers().get(broker_name)
        if not by_id:
            return None
        found = by_id.get(preferred_id)
        if found is None and preferred_id != MASTER_ID:
            found = by_id.get(preferred_id + 1)
        return found or by_id[min(by_id)]

    def other_id(self, broker_name: str, broker_id: int) -> int:
        """Another broker of that name: the master, or from there the slave with the least id; itself without one."""
        others = [
            other for other in sorted(self.brokers().get(broker_name, ())) if other != broker_id
        ]
        return others[0] if others else broker_id
