"""Bodies about clients: heartbeats, group members, locks, assignments, acknowledgements.

In and out: see :mod:`.converter`. Shapes are those of the peers' classes of the same names
(``HeartbeatData``, ``ConsumerConnection``, ``LockBatchRequestBody``,
``QueryAssignmentRequestBody``, ``BatchAckMessageRequestBody`` and their kin).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import attrs

from trio_mq.protocol.jsondialect import MessageQueue
from trio_mq.protocol.names import wire
from trio_mq.protocol.values import value


class ConsumeType(StrEnum):
    """Who moves messages: the consumer asks, or the broker is asked on its behalf, or pop."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """One consumer of the group gets a message, or all do."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group without an offset begins; three names are of old releases."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@value
class SubscriptionData:
    """What one group wants of one topic.

    ``sub_version`` is the client's clock (ms or ns) and only compared inside one group;
    ``code_set`` holds the Java hashes of ``tags_set``.
    """

    topic: str
    sub_string: str = "*"
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


@value
class ConsumerData:
    """One consumer group of a client."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


@value
class ProducerData:
    """One producer group of a client."""

    group_name: str


@value
class HeartbeatData:
    """HEART_BEAT (34). A fingerprint that is not 0 says that the client speaks version 2."""

    client_id: str = wire("clientID")
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


@value
class CheckClientBody:
    """CHECK_CLIENT_CONFIG (46)."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


@value
class ConsumerIdList:
    """Answer to GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_id_list: tuple[str, ...] = ()


@value
class Connection:
    """One connected client. ``language`` is the name."""

    client_id: str
    client_addr: str
    language: str = "OTHER"
    version: int = 0


@value
class ConsumerConnection:
    """Answer to GET_CONSUMER_CONNECTION_LIST (203)."""

    connection_set: tuple[Connection, ...] = ()
    subscription_table: Mapping[str, SubscriptionData] = attrs.field(factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


@value
class ProducerConnection:
    """Answer to GET_PRODUCER_CONNECTION_LIST (204)."""

    connection_set: tuple[Connection, ...] = ()


@value
class ProducerInfo:
    """One client in :class:`ProducerTableInfo`."""

    client_id: str
    remote_ip: str = wire("remoteIP", default="")
    language: str = "OTHER"
    version: int = 0
    last_update_timestamp: int = 0


@value
class ProducerTableInfo:
    """Answer to GET_ALL_PRODUCER_INFO (328)."""

    data: Mapping[str, tuple[ProducerInfo, ...]] = attrs.field(factory=dict)


@value
class LockBatchBody:
    """LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42)."""

    consumer_group: str
    client_id: str
    mq_set: frozenset[MessageQueue] = frozenset()
    only_this_broker: bool = False


@value
class LockBatchReplyBody:
    """Answer to 41: the queues that the client holds now."""

    lock_ok_mq_set: frozenset[MessageQueue] = wire("lockOKMQSet", default=frozenset())


@value
class QueryAssignmentBody:
    """QUERY_ASSIGNMENT (400)."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: MessageModel = MessageModel.CLUSTERING


@value
class MessageQueueAssignment:
    """A queue and how it is read: ``PULL`` or ``POP``."""

    message_queue: MessageQueue
    mode: str = "PULL"
    attachments: Mapping[str, str] | None = None


@value
class QueryAssignmentReplyBody:
    """Answer to 400; ``None`` means keep what you have, empty means drop all."""

    message_queue_assignments: tuple[MessageQueueAssignment, ...] | None = None


@value
class SetMessageRequestModeBody:
    """SET_MESSAGE_REQUEST_MODE (401)."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: int = 0


@value
class BatchAck:
    """Acknowledgements of one receipt; the names on the wire are letters."""

    consumer_group: str = wire("c")
    topic: str = wire("t")
    queue_id: int = wire("q")
    revive_queue_id: int = wire("rq")
    start_offset: int = wire("so")
    pop_time: int = wire("pt")
    invisible_time: int = wire("it")
    retry: str = wire("r", default="0")
    # Base64 of a little-endian bit set of offset - start_offset.
    bit_set: str = wire("b", default="")


@value
class BatchAckBody:
    """BATCH_ACK_MESSAGE (200151)."""

    broker_name: str
    acks: tuple[BatchAck, ...] = ()


@value
class ConsumeMessageDirectlyResult:
    """Answer to CONSUME_MESSAGE_DIRECTLY (309), from the client. ``spent_time_mills`` is in ms."""

    consume_result: str | None = None
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: int = 0


@value
class ConsumerRunningInfo:
    """Answer to GET_CONSUMER_RUNNING_INFO (307), from the client; the tables stay plain JSON."""

    properties: Mapping[str, str] = attrs.field(factory=dict)
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: Mapping[MessageQueue, Any] = attrs.field(factory=dict)
    mq_pop_table: Mapping[MessageQueue, Any] = attrs.field(factory=dict)
    status_table: Mapping[str, Any] = attrs.field(factory=dict)
    user_consumer_info: Mapping[str, str] = attrs.field(factory=dict)
    jstack: str | None = None
