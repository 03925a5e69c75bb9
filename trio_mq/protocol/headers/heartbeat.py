"""Headers about connected clients: heartbeats, members of groups, questions to a client.

In and out: see :mod:`.core`. Fields are those of the peers' classes of the same names with
``Header`` at the end.
"""

from __future__ import annotations

from trio_mq.protocol.names import wire
from trio_mq.protocol.values import value

from .core import I32


@value
class HeartbeatRequest:
    """HEART_BEAT (34): everything is in the body."""


@value
class HeartbeatReply:
    """Answer to 34."""

    support_heart_beat_v2: bool = wire("IS_SUPPORT_HEART_BEAT_V2", default=True)
    sub_change: bool = wire("IS_SUB_CHANGE", default=True)


@value
class UnregisterClientRequest:
    """UNREGISTER_CLIENT (35)."""

    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@value
class GetConsumerListByGroupRequest:
    """GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_group: str


@value
class NotifyConsumerIdsChangedRequest:
    """NOTIFY_CONSUMER_IDS_CHANGED (40), broker to client, one-way."""

    consumer_group: str


@value
class GetConsumerConnectionListRequest:
    """GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


@value
class GetProducerConnectionListRequest:
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


@value
class GetConsumerRunningInfoRequest:
    """GET_CONSUMER_RUNNING_INFO (307), to the broker and from it to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@value
class ConsumeMessageDirectlyResultRequest:
    """CONSUME_MESSAGE_DIRECTLY (309), to the broker and from it to the client."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
