"""Bodies of statistics and of looking into queues.

In and out: see :mod:`.converter`. Shapes are those of the peers' classes of the same names
(``TopicStatsTable``, ``ConsumeStats``, ``BrokerStatsData``, ``QueryConsumeQueueResponseBody``).
Times are ms since the epoch; rates are per second.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from trio_mq.protocol.jsondialect import MessageQueue
from trio_mq.protocol.values import value

from .client import SubscriptionData


@value
class TopicOffset:
    """Bounds of one queue."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@value
class TopicStatsTable:
    """Answer to GET_TOPIC_STATS_INFO (202)."""

    offset_table: Mapping[MessageQueue, TopicOffset] = attrs.field(factory=dict)
    topic_put_tps: float = 0.0


@value
class OffsetWrapper:
    """How far a group is in one queue."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0


@value
class ConsumeStats:
    """Answer to GET_CONSUME_STATS (208)."""

    offset_table: Mapping[MessageQueue, OffsetWrapper] = attrs.field(factory=dict)
    consume_tps: float = 0.0


@value
class ConsumeStatsList:
    """Answer to GET_BROKER_CONSUME_STATS (317): one map from group to stats for each group."""

    broker_addr: str
    consume_stats_list: tuple[Mapping[str, tuple[ConsumeStats, ...]], ...] = ()
    total_diff: int = 0
    total_inflight_diff: int = 0


@value
class GroupList:
    """Answer to QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    group_list: tuple[str, ...] = ()


@value
class QuerySubscriptionReplyBody:
    """Answer to QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None


@value
class GroupForbidden:
    """Answer to UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    topic: str
    group: str
    readable: bool


@value
class QueueTimeSpan:
    """Times of the oldest, the newest and the last consumed message; ``delay_time`` in ms."""

    message_queue: MessageQueue
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0


@value
class ConsumeTimeSpanBody:
    """Answer to QUERY_CONSUME_TIME_SPAN (303)."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = ()


@value
class BrokerStatsItem:
    """Sum, rate and average of one span."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@value
class BrokerStatsData:
    """Answer to VIEW_BROKER_STATS_DATA (315)."""

    stats_minute: BrokerStatsItem = attrs.field(factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = attrs.field(factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = attrs.field(factory=BrokerStatsItem)


@value
class ConsumeQueueData:
    """One queue entry. ``physic_offset`` is a place in the log; ``eval``: would it be delivered."""

    physic_offset: int
    physic_size: int
    tags_code: int
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@value
class QueryConsumeQueueReplyBody:
    """Answer to QUERY_CONSUME_QUEUE (321)."""

    queue_data: tuple[ConsumeQueueData, ...] = ()
    min_queue_index: int = 0
    max_queue_index: int = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
