"""Headers of administration: topics, groups, settings, statistics.

In and out: see :mod:`.core`. Fields are those of the peers' classes of the same names with
``Header`` at the end.
"""

from __future__ import annotations

from trio_mq.protocol.names import wire
from trio_mq.protocol.values import value

from .core import I32, I64


@value
class CreateTopicRequest:
    """UPDATE_AND_CREATE_TOPIC (17). ``attributes`` is text like ``+key=value,-key2``."""

    topic: str
    default_topic: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str
    topic_sys_flag: I32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False


@value
class DeleteTopicRequest:
    """DELETE_TOPIC_IN_BROKER (215)."""

    topic: str


@value
class GetAllTopicConfigRequest:
    """GET_ALL_TOPIC_CONFIG (21); older peers send no field and get all topics at once.

    A page starts at ``topic_seq``; ``data_version`` is JSON text.
    """

    topic_seq: I32 | None = None
    data_version: str | None = None
    max_topic_num: I32 | None = None


@value
class GetAllTopicConfigReply:
    """Answer to 21."""

    total_topic_num: I32


@value
class GetTopicConfigRequest:
    """GET_TOPIC_CONFIG (351)."""

    topic: str


@value
class GetTopicStatsInfoRequest:
    """GET_TOPIC_STATS_INFO (202)."""

    topic: str


@value
class GetAllSubscriptionGroupRequest:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201); pages as with topics."""

    group_seq: I32 | None = None
    data_version: str | None = None
    max_group_num: I32 | None = None


@value
class GetAllSubscriptionGroupReply:
    """Answer to 201."""

    total_group_num: I32


@value
class GetSubscriptionGroupConfigRequest:
    """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


@value
class DeleteSubscriptionGroupRequest:
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    clean_offset: bool = False


@value
class UpdateGroupForbiddenRequest:
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353); without ``readable`` it only asks."""

    group: str
    topic: str
    readable: bool | None = None


@value
class GetBrokerConfigReply:
    """Answer to GET_BROKER_CONFIG (26). ``version`` is a data version as JSON text."""

    version: str


@value
class GetConsumeStatsRequest:
    """GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@value
class GetConsumeStatsInBrokerRequest:
    """GET_BROKER_CONSUME_STATS (317)."""

    order: bool = wire("isOrder", default=False)


@value
class QueryTopicConsumeByWhoRequest:
    """QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    topic: str


@value
class QueryTopicsByConsumerRequest:
    """QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


@value
class QuerySubscriptionByConsumerRequest:
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str | None = None


@value
class QueryConsumeTimeSpanRequest:
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


@value
class ViewBrokerStatsDataRequest:
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


@value
class ResetMasterFlushOffsetRequest:
    """RESET_MASTER_FLUSH_OFFSET (908)."""

    master_flush_offset: I64
