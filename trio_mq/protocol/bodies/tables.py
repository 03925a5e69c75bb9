"""Bodies that are a broker's tables: topics, subscription groups, consumer offsets.

In and out: see :mod:`.converter`. The state files have the same shapes. Shapes are those of the
peers' classes ``TopicConfigSerializeWrapper``, ``RegisterBrokerBody``,
``SubscriptionGroupWrapper``, ``ConsumerOffsetSerializeWrapper``, ``DataVersion``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from trio_mq.protocol.jsondialect import MessageQueue
from trio_mq.protocol.values import value


@value
class DataVersion:
    """Version of a table. ``timestamp`` is ms since the epoch."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


@value
class TopicConfig:
    """One topic. ``perm`` is a :class:`~trio_mq.protocol.codes.Perm`."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = attrs.field(factory=dict)


@value
class TopicConfigSerializeWrapper:
    """Answer to GET_ALL_TOPIC_CONFIG (21), part of REGISTER_BROKER (103), file ``topics.json``."""

    topic_config_table: Mapping[str, TopicConfig] = attrs.field(factory=dict)
    data_version: DataVersion = attrs.field(factory=DataVersion)
    mapping_data_version: DataVersion = attrs.field(factory=DataVersion)
    topic_queue_mapping_detail_map: Mapping[str, Any] = attrs.field(factory=dict)
    topic_queue_mapping_info_map: Mapping[str, Any] = attrs.field(factory=dict)


@value
class RegisterBrokerBody:
    """REGISTER_BROKER (103), plain form; the compressed one is read by :mod:`.compressed`."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = attrs.field(
        factory=TopicConfigSerializeWrapper
    )
    filter_server_list: tuple[str, ...] = ()


@value
class SubscriptionGroupConfig:
    """One consumer group: UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), answer to 352.

    ``consume_timeout_minute`` is in minutes; broker ids say where a slow consumer reads.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: Mapping[str, Any] = attrs.field(factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: tuple[Mapping[str, Any], ...] | None = None
    attributes: Mapping[str, str] = attrs.field(factory=dict)


@value
class SubscriptionGroupWrapper:
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), file ``subscriptionGroup.json``.

    ``forbidden_table``: group to topic to bits, bit 0 set when reading is forbidden.
    """

    subscription_group_table: Mapping[str, SubscriptionGroupConfig] = attrs.field(factory=dict)
    data_version: DataVersion = attrs.field(factory=DataVersion)
    forbidden_table: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict)


@value
class ConsumerOffsetWrapper:
    """Answer to GET_ALL_CONSUMER_OFFSET (43). Keys are ``topic@group``, then queue ids."""

    offset_table: Mapping[str, Mapping[int, int]] = attrs.field(factory=dict)
    data_version: DataVersion = attrs.field(factory=DataVersion)


@value
class ResetOffsetBody:
    """RESET_CONSUMER_CLIENT_OFFSET (220), answer to 222."""

    offset_table: Mapping[MessageQueue, int] = attrs.field(factory=dict)


@value
class ConsumerStatusBody:
    """Answer to 223 (by client id) and to 221 (``message_queue_table``)."""

    consumer_table: Mapping[str, Mapping[MessageQueue, int]] = attrs.field(factory=dict)
    message_queue_table: Mapping[MessageQueue, int] = attrs.field(factory=dict)
