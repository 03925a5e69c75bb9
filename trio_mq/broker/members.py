"""Who is connected: producers and consumers of each group, and what each group subscribes.

In: heartbeats, goodbyes and closed connections, with the present moment on a monotonic clock in
seconds. Out: the groups whose members have to be told (NOTIFY_CONSUMER_IDS_CHANGED), and look-ups.
Called by processors and by the listener when a connection closes. Nothing here is saved: clients
send their heartbeats again after a restart.

A group has one subscription for all its members: the newest heartbeat wins. Members that disagree
lose messages without a sign, so a disagreement is reported whenever it changes. Rules: Apache
ConsumerManager, ConsumerGroupInfo, ProducerManager, ClientManageProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

import attrs

from trio_mq.broker.conflicts import Conflict, Conflicts
from trio_mq.broker.subscriptions import is_tag_type, looks_like_sql
from trio_mq.net.requests import Peer
from trio_mq.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)

log = logging.getLogger("trio_mq.broker.members")

EXPIRY_S: Final = 120.0
"""A client that was silent for so long is gone; clients send a heartbeat every 30 s."""


@attrs.define(eq=False)
class Client:
    """One client on one connection. `language` and `version` are those of its commands."""

    peer: Peer
    client_id: str
    language: int | None
    version: int
    seen_s: float


@attrs.define(eq=False)
class ConsumerGroup:
    """A consumer group with at least one member connected."""

    name: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    clients: dict[Peer, Client] = attrs.field(factory=dict)
    subscriptions: dict[str, SubscriptionData] = attrs.field(factory=dict)
    fingerprint: int | None = None
    """Of the last heartbeat, version 2; 0 for one of version 1, None before a whole one came."""

    @property
    def is_broadcast(self) -> bool:
        """Whether each member gets every message; such members need not know of each other."""
        return self.message_model is MessageModel.BROADCASTING

    def subscription(self, topic: str) -> SubscriptionData | None:
        """What the group wants of a topic."""
        return self.subscriptions.get(topic)

    def client_ids(self) -> list[str]:
        """Sorted ids of the members; one that has just reconnected may be on two connections."""
        return sorted({client.client_id for client in self.clients.values()})


@attrs.frozen
class Changes:
    """What a heartbeat, a goodbye or a scan has changed.

    `notify` are consumer groups whose members have to be told; groups that broadcast or have no
    member left are not among them. `gone` are clients that were dropped for their silence.
    """

    notify: tuple[str, ...] = ()
    subscription_changed: bool = False
    gone: tuple[Client, ...] = ()


class Members:
    """Connected clients by group. Moments are seconds of one monotonic clock."""

    def __init__(self, expiry_s: float = EXPIRY_S) -> None:
        self._expiry_s = expiry_s
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Peer, Client]] = {}
        self._consumes: dict[Peer, set[str]] = {}
        self._produces: dict[Peer, set[str]] = {}
        #: Producers by client id, whatever their groups: who replies names the client only.
        self._producer_ids: dict[str, dict[Peer, Client]] = {}
        self._conflicts = Conflicts()
        self._turn = 0

    # -- heartbeats

    def heartbeat(
        self,
        data: HeartbeatData,
        peer: Peer,
        *,
        language: int | None,
        version: int,
        now_s: float,
        accepts: Callable[[ConsumerData], bool] = lambda _: True,
    ) -> Changes:
        """Register what a heartbeat tells, for the consumer groups that `accepts` lets in.

        The answer to the client is `subscription_changed`: with a heartbeat of version 2 that
        carries no subscriptions, it asks the client to send them next time.
        """
        client = Client(peer, data.client_id, language, version, now_s)
        notify: list[str] = []
        is_v2 = data.heartbeat_fingerprint != 0
        changed = not is_v2
        for consumer in data.consumer_data_set:
            if not accepts(consumer):
                continue
            known = self._consumers.get(consumer.group_name)
            before = None if known is None else known.fingerprint
            without = is_v2 and data.without_sub
            if before is None:
                changed |= without  # nothing to refresh: a broker that was restarted, say
            else:
                changed |= before != data.heartbeat_fingerprint
            if self._consume(consumer, client, with_subscriptions=not without):
                notify.append(consumer.group_name)
            if not without or before is not None:
                self._consumers[consumer.group_name].fingerprint = data.heartbeat_fingerprint
        for producer in data.producer_data_set:
            self._produce(producer.group_name, client)
        return Changes(self._worth_notifying(notify), changed)

    def _consume(self, data: ConsumerData, client: Client, *, with_subscriptions: bool) -> bool:
        """Register one consumer group of a client; whether its members have to be told."""
        group = self._consumers.get(data.group_name)
        if group is None:
            group = self._consumers[data.group_name] = ConsumerGroup(
                data.group_name,
                data.consume_type,
                data.message_model,
                data.consume_from_where,
            )
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.clients.get(client.peer)
        if known is not None and known.client_id != client.client_id:
            log.warning(
                "group %s: connection %s now belongs to client %s, was %s",
                *(group.name, client.peer.address, client.client_id, known.client_id),
            )
        group.clients[client.peer] = client
        self._consumes.setdefault(client.peer, set()).add(group.name)
        changed = known is None
        if changed:
            log.info("group %s: consumer %s joined", group.name, client.client_id)
        if with_subscriptions:
            changed |= _update_subscriptions(group, data.subscription_data_set)
            self._conflicts.note(group.name, client.client_id, data.subscription_data_set)
        return changed

    def _produce(self, group: str, client: Client) -> None:
        clients = self._producers.setdefault(group, {})
        if client.peer not in clients:
            log.info("group %s: producer %s joined", group, client.client_id)
        known = clients.get(client.peer)
        if known is not None and known.client_id != client.client_id:
            self._drop_producer_id(known)
        clients[client.peer] = client
        self._produces.setdefault(client.peer, set()).add(group)
        self._producer_ids.setdefault(client.client_id, {})[client.peer] = client

    # -- leaving

    def unregister(
        self, peer: Peer, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> Changes:
        """Take a connection out of a group, as its client asks."""
        if producer_group is not None:
            self._drop_producer(producer_group, peer)
        if consumer_group is not None and self._drop_consumer(consumer_group, peer):
            return Changes(self._worth_notifying([consumer_group]))
        return Changes()

    def remove_peer(self, peer: Peer) -> Changes:
        """Take a closed connection out of all its groups."""
        for group in self._produces.pop(peer, ()):
            self._drop_producer(group, peer)
        groups = [
            group for group in self._consumes.pop(peer, ()) if self._drop_consumer(group, peer)
        ]
        return Changes(self._worth_notifying(sorted(groups)))

    def expire(self, now_s: float) -> Changes:
        """Drop clients that were silent too long; the owner closes their connections."""
        gone: dict[Peer, Client] = {}
        notify: set[str] = set()
        for group in list(self._consumers.values()):
            for client in self._silent(group.clients, now_s):
                gone[client.peer] = client
                if self._drop_consumer(group.name, client.peer):
                    notify.add(group.name)
        for name, clients in list(self._producers.items()):
            for client in self._silent(clients, now_s):
                gone[client.peer] = client
                self._drop_producer(name, client.peer)
        for client in gone.values():
            log.warning(
                "client %s at %s sent no heartbeat for %.0f s and is dropped",
                *(client.client_id, client.peer.address, now_s - client.seen_s),
            )
        return Changes(self._worth_notifying(sorted(notify)), gone=tuple(gone.values()))

    def _silent(self, clients: dict[Peer, Client], now_s: float) -> list[Client]:
        return [c for c in clients.values() if now_s - c.seen_s > self._expiry_s]

    def _drop_consumer(self, group: str, peer: Peer) -> bool:
        """Whether the connection was a member."""
        found = self._consumers.get(group)
        client = None if found is None else found.clients.pop(peer, None)
        if found is None or client is None:
            return False
        _forget(self._consumes, peer, group)
        log.info("group %s: consumer %s left", group, client.client_id)
        if not found.clients:
            del self._consumers[group]
        if client.client_id not in found.client_ids():
            self._conflicts.forget(group, client.client_id)
        return True

    def _drop_producer(self, group: str, peer: Peer) -> None:
        clients = self._producers.get(group, {})
        client = clients.pop(peer, None)
        if client is None:
            return
        _forget(self._produces, peer, group)
        if peer not in self._produces:
            self._drop_producer_id(client)
        log.info("group %s: producer %s left", group, client.client_id)
        if not clients:
            del self._producers[group]

    def _drop_producer_id(self, client: Client) -> None:
        connections = self._producer_ids.get(client.client_id, {})
        connections.pop(client.peer, None)
        if not connections:
            self._producer_ids.pop(client.client_id, None)

    def _worth_notifying(self, groups: Iterable[str]) -> tuple[str, ...]:
        found = (self._consumers.get(group) for group in groups)
        return tuple(group.name for group in found if group is not None and not group.is_broadcast)

    # -- looking up

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """A consumer group, if a member is connected."""
        return self._consumers.get(group)

    def client_ids(self, group: str) -> list[str]:
        """Sorted ids of the members of a consumer group."""
        found = self._consumers.get(group)
        return [] if found is None else found.client_ids()

    def consumers(self, group: str) -> list[Client]:
        """The members of a consumer group."""
        found = self._consumers.get(group)
        return [] if found is None else list(found.clients.values())

    def consumer(self, group: str, client_id: str) -> Client | None:
        """One member of a consumer group."""
        return next((c for c in self.consumers(group) if c.client_id == client_id), None)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """What a connected group wants of a topic."""
        found = self._consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def subscribers(self, topic: str) -> list[str]:
        """Sorted names of the connected groups that subscribe a topic."""
        return sorted(g.name for g in self._consumers.values() if topic in g.subscriptions)

    def producers(self, group: str) -> list[Client]:
        """The members of a producer group."""
        return list(self._producers.get(group, {}).values())

    def producer(self, client_id: str) -> Client | None:
        """A producer by its client id; the newest open connection of one that has just reconnected."""
        connections = self._producer_ids.get(client_id, {})
        return next((c for c in reversed(connections.values()) if not c.peer.closed), None)

    def any_producer(self, group: str) -> Client | None:
        """A member of a producer group whose connection is open, a different one each time."""
        clients = [client for client in self.producers(group) if not client.peer.closed]
        if not clients:
            return None
        self._turn += 1
        return clients[self._turn % len(clients)]

    @property
    def consumer_groups(self) -> list[ConsumerGroup]:
        """All consumer groups with members."""
        return list(self._consumers.values())

    @property
    def producer_groups(self) -> list[str]:
        """Sorted names of the producer groups with members."""
        return sorted(self._producers)

    @property
    def conflicts(self) -> list[Conflict]:
        """Subscriptions that members of one group disagree about, for the status."""
        return self._conflicts.current


def _update_subscriptions(group: ConsumerGroup, wanted: Iterable[SubscriptionData]) -> bool:
    """Take over subscriptions; whether a topic was added or dropped.

    A newer version of a known topic's subscription replaces it without the members being told.
    """
    changed = False
    topics: set[str] = set()
    for data in wanted:
        topics.add(data.topic)
        old = group.subscriptions.get(data.topic)
        if old is not None and data.sub_version <= old.sub_version:
            continue
        group.subscriptions[data.topic] = data
        changed |= old is None
        if old is None or old.sub_string != data.sub_string:
            log.info("group %s subscribes %s: %s", group.name, data.topic, data.sub_string)
            _warn_about_sql(group.name, data)
    for topic in group.subscriptions.keys() - topics:
        log.info("group %s no longer subscribes %s", group.name, topic)
        del group.subscriptions[topic]
        changed = True
    return changed


def _warn_about_sql(group: str, data: SubscriptionData) -> None:
    if is_tag_type(data.expression_type) and looks_like_sql(data.sub_string):
        log.warning(
            "group %s subscribes %s by the tag %r, which looks like an SQL expression and will "
            "match nothing; the client has to say MessageSelector.bySql (SQL92)",
            *(group, data.topic, data.sub_string),
        )


def _forget(groups_of: dict[Peer, set[str]], peer: Peer, group: str) -> None:
    groups = groups_of.get(peer)
    if groups is not None:
        groups.discard(group)
        if not groups:
            del groups_of[peer]
