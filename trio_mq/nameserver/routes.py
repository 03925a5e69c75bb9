"""The route table: which brokers live, and which topics they have.

In: registrations, heartbeats and ends of connections, with the time of a monotonic clock in
seconds; wall time never decides here. Out: routes, lists, and notices for other brokers. Called by
:mod:`trio_mq.nameserver.processors`. Pure: no IO, no clock. Source of the rules: Apache
RouteInfoManager.

A *token* stands for the connection that a broker registered over, and is opaque here. A broker that
registers again over a new connection belongs to the new one; the end of the old one then removes
nothing. What differs from Apache: a broker that comes back at its address with another name or
another cluster leaves nothing behind under the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs

from trio_mq.config.nameserver import NameServerSettings
from trio_mq.nameserver.outcomes import (
    MinBrokerChange,
    Refused,
    Registered,
    Registration,
    Removed,
)
from trio_mq.protocol.bodies import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicList,
    TopicRouteData,
)
from trio_mq.protocol.codes import Perm

MASTER_ID = 0
#: Topics that hold the members of a broker name; their routes never show an acting master.
SYNC_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
_WRITE = int(Perm.WRITE)
_READ_WRITE = int(Perm.READ | Perm.WRITE)


@attrs.define
class _Broker:
    """A broker name: its addresses by id."""

    cluster: str
    addresses: dict[int, str] = attrs.field(factory=dict)
    enable_acting_master: bool = False
    zone: str | None = None

    def min_id(self) -> int | None:
        return min(self.addresses) if self.addresses else None


@attrs.define
class _Live:
    """What keeps an address in the table."""

    broker_name: str
    updated_s: float
    timeout_s: float
    version: DataVersion
    token: object
    ha_address: str
    filter_servers: tuple[str, ...] = ()


class RouteTable:
    """All that a name server knows about brokers. Settings may be exchanged at any time."""

    def __init__(self, settings: NameServerSettings | None = None) -> None:
        self.settings = settings or NameServerSettings()
        self._brokers: dict[str, _Broker] = {}
        self._live: dict[str, _Live] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._mappings: dict[str, dict[str, object]] = {}

    # --- brokers come and go

    def register(
        self, registration: Registration, token: object, now_s: float
    ) -> Registered | Refused:
        """Take a broker's registration: its address and, from a master, its topics."""
        name, broker_id, address = (
            registration.broker_name,
            registration.broker_id,
            registration.address,
        )
        version = registration.topics.data_version
        before = self._live.get(address)
        if before is not None and before.broker_name != name:
            self.unregister(before.broker_name, address)
        broker = self._brokers.get(name) or _Broker(registration.cluster)
        old_min = broker.min_id()
        # One address has one id: a slave that became the master leaves its old id.
        others = {i: a for i, a in broker.addresses.items() if i == broker_id or a != address}
        holder = others.get(broker_id)
        if holder is not None and holder != address:
            rival = self._live.get(holder)
            if rival is not None and rival.version.state_version > version.state_version:
                broker.addresses = others
                self._live.pop(address, None)
                return Registered(ignored=True)
            if rival is not None and rival.token is token:
                del self._live[holder]  # the same broker tells a new address
        if holder is None and len(registration.topics.topic_config_table) == 1:
            return Refused(
                f"broker {name} id {broker_id} is not registered, and a first registration with "
                f"exactly one topic counts as an update; register all topics (two or more) first"
            )
        self._brokers[name] = broker
        broker.cluster = registration.cluster
        broker.addresses = {**others, broker_id: address}
        broker.enable_acting_master = bool(registration.enable_acting_master)
        broker.zone = registration.zone
        self._take_topics(registration, broker, is_first=holder is None)
        self._live[address] = _Live(
            name,
            now_s,
            registration.timeout_s,
            version,
            token,
            registration.ha_address,
            registration.filter_servers,
        )
        change = None
        if old_min is not None and broker_id < old_min:
            change = self._min_change(name, broker, None, registration.ha_address)
        return attrs.evolve(self._master_for(broker_id, broker), change=change)

    def _master_for(self, broker_id: int, broker: _Broker) -> Registered:
        master = broker.addresses.get(MASTER_ID)
        if broker_id == MASTER_ID or master is None or master not in self._live:
            return Registered()
        return Registered(master, self._live[master].ha_address)

    def _take_topics(self, registration: Registration, broker: _Broker, *, is_first: bool) -> None:
        """Topics count when they come from the master or from the one that stands in for it."""
        is_acting = (
            registration.enable_acting_master is not None
            and registration.broker_id != MASTER_ID
            and registration.broker_id == broker.min_id()
        )
        if registration.broker_id != MASTER_ID and not is_acting:
            return
        name, wrapper = registration.broker_name, registration.topics
        live = self._live.get(registration.address)
        is_changed = is_first or live is None or live.version != wrapper.data_version
        mappings = wrapper.topic_queue_mapping_info_map
        if self.settings.delete_topic_with_broker_registration and not mappings:
            for topic in self._topics_of(name) - wrapper.topic_config_table.keys():
                self._drop_queues(topic, name)
        lost = _WRITE if is_acting and broker.enable_acting_master else 0
        for topic, config in wrapper.topic_config_table.items():
            if is_changed or name not in self._topics.get(topic, ()):
                self._topics.setdefault(topic, {})[name] = _queue_data(name, config, lost)
        if is_changed:
            for topic, mapping in mappings.items():
                self._mappings.setdefault(topic, {})[name] = mapping

    def unregister(self, broker_name: str, address: str) -> Removed | None:
        """Take an address off; None when the broker name does not have it."""
        live = self._live.get(address)
        if live is not None and live.broker_name == broker_name:
            del self._live[address]
        else:
            live = None
        broker = self._brokers.get(broker_name)
        if broker is None or address not in broker.addresses.values():
            return None if live is None else Removed(broker_name, address, live.token)
        token = live.token if live is not None else None
        return Removed(
            broker_name, address, token, self._remove_address(broker_name, broker, address)
        )

    def _remove_address(self, name: str, broker: _Broker, address: str) -> MinBrokerChange | None:
        old_min = broker.min_id()
        broker.addresses = {i: a for i, a in broker.addresses.items() if a != address}
        if not broker.addresses:
            self._remove_name(name)
            return None
        if broker.enable_acting_master and MASTER_ID not in broker.addresses:
            # Without a master there is nobody to write to.
            self._change_perm(name, lambda perm: perm & ~_WRITE)
        if broker.min_id() == old_min:
            return None
        return self._min_change(name, broker, address, None)

    def _remove_name(self, name: str) -> None:
        del self._brokers[name]
        for topic in self._topics_of(name):
            self._drop_queues(topic, name)
        for topic, mappings in list(self._mappings.items()):
            mappings.pop(name, None)
            if not mappings:
                del self._mappings[topic]

    def _min_change(
        self, name: str, broker: _Broker, offline: str | None, ha_address: str | None
    ) -> MinBrokerChange:
        """All others hear of a new smallest id; when one went offline, all that are left do."""
        min_id = min(broker.addresses)
        told = (a for i, a in broker.addresses.items() if offline is not None or i != min_id)
        notify = tuple(self._live[a].token for a in told if a in self._live)
        return MinBrokerChange(name, min_id, broker.addresses[min_id], offline, ha_address, notify)

    # --- who is alive

    def heartbeat(self, address: str, now_s: float) -> None:
        """A sign of life; those of unknown addresses mean nothing."""
        live = self._live.get(address)
        if live is not None:
            live.updated_s = now_s

    def compare_version(
        self, address: str, version: DataVersion, now_s: float
    ) -> tuple[bool, DataVersion | None]:
        """Whether a broker's topics differ from what it registered, and the version of that."""
        live = self._live.get(address)
        if live is None:
            return True, None
        live.updated_s = now_s
        return live.version != version, live.version

    def expire(self, now_s: float) -> list[Removed]:
        """Take off all that were silent for too long; their connections are to be closed."""
        silent = [a for a, live in self._live.items() if live.updated_s + live.timeout_s < now_s]
        return self._remove_all(silent)

    def disconnected(self, token: object) -> list[Removed]:
        """Take off the brokers that registered over this connection, and no others."""
        return self._remove_all([a for a, live in self._live.items() if live.token is token])

    def _remove_all(self, addresses: list[str]) -> list[Removed]:
        removed = (self.unregister(self._live[a].broker_name, a) for a in addresses)
        return [each for each in removed if each is not None]

    # --- topics

    def _topics_of(self, name: str) -> set[str]:
        return {topic for topic, queues in self._topics.items() if name in queues}

    def _drop_queues(self, topic: str, name: str) -> None:
        queues = self._topics[topic]
        del queues[name]
        if not queues:
            del self._topics[topic]

    def _change_perm(self, name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._topics.values():
            if name in queues:
                queues[name] = attrs.evolve(queues[name], perm=change(queues[name].perm))
                count += 1
        return count

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take W from all topics of a broker, until it registers a changed table; how many."""
        return self._change_perm(broker_name, lambda perm: perm & ~_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Give R and W to all topics of a broker; how many."""
        return self._change_perm(broker_name, lambda perm: _READ_WRITE)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, everywhere or at the brokers of one cluster."""
        for name in list(self._topics.get(topic, ())):
            if not cluster or self._brokers[name].cluster == cluster:
                self._drop_queues(topic, name)

    def register_topic(self, topic: str, queues: tuple[QueueData, ...]) -> list[str]:
        """Set the queues of a topic at the brokers that are known; the names of the others."""
        unknown = []
        for queue in queues:
            if queue.broker_name in self._brokers:
                self._topics.setdefault(topic, {})[queue.broker_name] = queue
            else:
                unknown.append(queue.broker_name)
        return unknown

    # --- questions

    def route(self, topic: str, *, zone: str | None = None) -> TopicRouteData | None:
        """Where a topic is; None when it is unknown.

        With a `zone`, brokers of other zones that have a master are left out, with their queues.
        """
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [_broker_data(name, self._brokers[name]) for name in queues]
        if self.settings.support_acting_master and not topic.startswith(SYNC_MEMBER_PREFIX):
            brokers = [_with_acting_master(broker, queues) for broker in brokers]
        if zone is not None:
            brokers = [broker for broker in brokers if _serves_zone(broker, zone)]
        return TopicRouteData(
            queue_datas=tuple(queues[broker.broker_name] for broker in brokers),
            broker_datas=tuple(brokers),
            filter_server_table=dict(self._filter_servers(brokers)),
            topic_queue_mapping_by_broker=self._mappings.get(topic),
        )

    def _filter_servers(self, brokers: list[BrokerData]) -> Iterator[tuple[str, tuple[str, ...]]]:
        for broker in brokers:
            for address in broker.broker_addrs.values():
                live = self._live.get(address)
                if live is not None and live.filter_servers:
                    yield address, live.filter_servers

    def cluster_info(self) -> ClusterInfo:
        """All brokers, by name and by cluster."""
        return ClusterInfo(
            {name: _broker_data(name, broker) for name, broker in self._brokers.items()},
            {cluster: tuple(names) for cluster, names in self._clusters().items()},
        )

    def _clusters(self) -> dict[str, list[str]]:
        clusters: dict[str, list[str]] = {}
        for name, broker in self._brokers.items():
            clusters.setdefault(broker.cluster, []).append(name)
        return clusters

    def member_group(self, cluster: str, broker_name: str) -> BrokerMemberGroup:
        """The addresses of one broker name; none when it is unknown."""
        broker = self._brokers.get(broker_name)
        return BrokerMemberGroup(
            cluster, broker_name, _sorted(broker.addresses) if broker is not None else {}
        )

    def topics(self) -> TopicList:
        """All topics."""
        return TopicList(tuple(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        """The topics that have queues in a cluster."""
        names = set(self._clusters().get(cluster, ()))
        return TopicList(tuple(t for t, queues in self._topics.items() if names & queues.keys()))

    def system_topics(self) -> TopicList:
        """Names of clusters and brokers, which are topics too, and the address of one broker."""
        names = [n for cluster, brokers in self._clusters().items() for n in (cluster, *brokers)]
        first = next(iter(self._brokers.values()), None)
        address = first.addresses[min(first.addresses)] if first is not None else None
        return TopicList(tuple(dict.fromkeys(names)), address)

    def topics_with_flags(self, flags: int, without: int = 0) -> TopicList:
        """Topics whose system flags (of their first broker) hold `flags` and none of `without`."""
        found = {
            t: next(iter(queues.values())).topic_sys_flag for t, queues in self._topics.items()
        }
        return TopicList(
            tuple(t for t, flag in found.items() if flag & flags and not flag & without)
        )


def _sorted(addresses: Mapping[int, str]) -> dict[int, str]:
    return dict(sorted(addresses.items()))


def _broker_data(name: str, broker: _Broker) -> BrokerData:
    return BrokerData(
        broker.cluster,
        name,
        _sorted(broker.addresses),
        broker.enable_acting_master,
        broker.zone,
    )


def _queue_data(name: str, config: TopicConfig, lost: int) -> QueueData:
    return QueueData(
        name,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm & ~lost,
        config.topic_sys_flag,
    )


def _with_acting_master(broker: BrokerData, queues: Mapping[str, QueueData]) -> BrokerData:
    """Show the smallest id as the master, where a name has none and nothing can be written."""
    addresses = dict(broker.broker_addrs)
    if MASTER_ID in addresses or not broker.enable_acting_master:
        return broker
    if queues[broker.broker_name].perm & Perm.WRITE:
        return broker
    acting = addresses.pop(min(addresses))
    return attrs.evolve(broker, broker_addrs={MASTER_ID: acting, **addresses})


def _serves_zone(broker: BrokerData, zone: str) -> bool:
    """Without a master a broker is shown to all zones, so that its slaves can be read."""
    if MASTER_ID not in broker.broker_addrs:
        return True
    return broker.zone_name is not None and broker.zone_name.lower() == zone.lower()
