"""What :class:`trio_mq.Admin` answers with: frozen values in RocketMQ's terms.

In: nothing. Out: classes; :mod:`.reading` and the families of requests fill them, users read them. Times are aware
datetimes (UTC), None where the peer says 0 or -1; offsets count messages of one queue; rates are per second. Where
several brokers are asked, `failures` tells those that did not answer: what the others said is there all the same.
Source of the contents: Apache TopicStatsTable, ConsumeStats, ConsumerConnection, ClusterInfo, ConsumerRunningInfo.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar, overload

import attrs

from trio_mq.client.messages import from_ms
from trio_mq.errors import BrokerFailure
from trio_mq.protocol.bodies import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    MessageQueue,
    SubscriptionData,
)

K = TypeVar("K")
T = TypeVar("T")


@attrs.frozen
class Answers(Mapping[K, T]):
    """What was answered, by broker name, queue or address; `failures` tells who did not answer."""

    by_key: Mapping[K, T]
    failures: tuple[BrokerFailure, ...] = ()

    def __getitem__(self, key: K) -> T:
        return self.by_key[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self.by_key)

    def __len__(self) -> int:
        return len(self.by_key)


@attrs.frozen
class Several(Sequence[T]):
    """Things found on several brokers; `failures` tells who did not answer."""

    items: tuple[T, ...]
    failures: tuple[BrokerFailure, ...] = ()

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)


# -- cluster


@attrs.frozen
class Broker:
    """A broker as name servers know it. `broker_id` 0 is the master; `address` is ``host:port``."""

    cluster: str
    name: str
    broker_id: int
    address: str


@attrs.frozen
class BrokerStatus:
    """How a broker is. `table` holds everything that it tells, in its own words (request 28)."""

    broker: Broker
    table: Mapping[str, str]

    @property
    def version(self) -> str:
        """Its release, as it calls it."""
        return self.table.get("brokerVersionDesc", "")

    @property
    def boot_at(self) -> datetime | None:
        """When it was started."""
        return moment(_integer(self.table.get("bootTimestamp")))

    @property
    def put_tps(self) -> float:
        """Messages stored per second, over the last ten seconds."""
        return _first_number(self.table.get("putTps"))

    @property
    def get_tps(self) -> float:
        """Messages delivered per second, over the last ten seconds."""
        return _first_number(self.table.get("getTransferredTps"))

    @property
    def disk_ratio(self) -> float:
        """Share of the log's disk that is in use, 0 to 1."""
        return _first_number(self.table.get("commitLogDiskRatio"))

    @property
    def put_today(self) -> int:
        """Messages stored since midnight, by the broker's clock."""
        return _since(self.table, "msgPutTotalTodayNow", "msgPutTotalTodayMorning")

    @property
    def get_today(self) -> int:
        """Messages delivered since midnight."""
        return _since(self.table, "msgGetTotalTodayNow", "msgGetTotalTodayMorning")


def _since(table: Mapping[str, str], now: str, then: str) -> int:
    return _integer(table.get(now)) - _integer(table.get(then))


def _integer(text: str | None) -> int:
    return int(text) if text and text.lstrip("-").isdecimal() else 0


def _first_number(text: str | None) -> float:
    try:
        return float(text.split()[0]) if text else 0.0
    except (ValueError, IndexError):
        return 0.0


def moment(timestamp_ms: int) -> datetime | None:
    """A time of the peers; None for 0 and -1, with which they say that there is none."""
    return from_ms(timestamp_ms) if timestamp_ms > 0 else None


# -- topics and groups


@attrs.frozen
class QueueStats:
    """What one queue holds: offsets `min_offset` up to, not including, `max_offset`."""

    min_offset: int
    max_offset: int
    last_stored_at: datetime | None

    @property
    def messages(self) -> int:
        """How many messages are there."""
        return self.max_offset - self.min_offset


@attrs.frozen
class TopicStats:
    """What the queues of a topic hold."""

    topic: str
    queues: Mapping[MessageQueue, QueueStats]
    put_tps: float
    failures: tuple[BrokerFailure, ...] = ()

    @property
    def messages(self) -> int:
        """Messages in all queues that were told."""
        return sum(queue.messages for queue in self.queues.values())


@attrs.frozen
class QueueProgress:
    """How far a group is in one queue."""

    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_consumed_at: datetime | None

    @property
    def lag(self) -> int:
        """Messages that are not acknowledged yet."""
        return self.broker_offset - self.consumer_offset

    @property
    def inflight(self) -> int:
        """Messages that were fetched and are not acknowledged."""
        return self.pull_offset - self.consumer_offset


@attrs.frozen
class GroupProgress:
    """How far a group is in all queues of its topics, its retry topics included."""

    group: str
    queues: Mapping[MessageQueue, QueueProgress]
    consume_tps: float
    failures: tuple[BrokerFailure, ...] = ()

    @property
    def lag(self) -> int:
        """Messages that are not acknowledged yet, in all queues that were told."""
        return sum(queue.lag for queue in self.queues.values())

    def of(self, topic: str) -> GroupProgress:
        """The part of one topic."""
        queues = {queue: found for queue, found in self.queues.items() if queue.topic == topic}
        return attrs.evolve(self, queues=queues)


@attrs.frozen
class Member:
    """A connected client. `version` is the number of Apache's MQVersion."""

    client_id: str
    address: str
    language: str
    version: int


@attrs.frozen
class GroupMembers:
    """The consumers of a group that are connected, and how they consume; nobody: no members, None."""

    group: str
    members: tuple[Member, ...]
    subscriptions: Mapping[str, SubscriptionData]
    consume_type: ConsumeType | None
    message_model: MessageModel | None
    from_where: ConsumeFromWhere | None
    failures: tuple[BrokerFailure, ...] = ()

    @property
    def online(self) -> bool:
        """Whether somebody is there."""
        return bool(self.members)


# -- a running consumer


@attrs.frozen
class QueueInHand:
    """A queue that a consumer holds: what it has fetched, and how far it is."""

    commit_offset: int
    cached_messages: int
    cached_min_offset: int
    cached_max_offset: int
    locked: bool
    dropped: bool
    last_pull_at: datetime | None
    last_consume_at: datetime | None


@attrs.frozen
class ConsumeRates:
    """What a consumer measures of one topic: times in ms, rates per second."""

    pull_ms: float
    pull_tps: float
    consume_ms: float
    consume_ok_tps: float
    consume_failed_tps: float
    consume_failed_messages: int


@attrs.frozen
class RunningInfo:
    """What a consumer says of itself. `properties` are the client's own words, `stacks` its threads."""

    group: str
    client_id: str
    properties: Mapping[str, str]
    subscriptions: tuple[SubscriptionData, ...]
    queues: Mapping[MessageQueue, QueueInHand]
    rates: Mapping[str, ConsumeRates]
    stacks: str | None
