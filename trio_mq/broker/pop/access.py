"""What pops and notifications may read: the checks that both make, in Apache's order.

In: settings, tables and the names in a request. Out: the settings of a topic or group, or a :class:`RequestRefused`.
Called by the processors of pops and notifications. Source: Apache PopMessageProcessor, NotificationProcessor.
"""

from __future__ import annotations

from trio_mq.broker.groups import GroupTable
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings
from trio_mq.errors import RequestRefused
from trio_mq.protocol.bodies import TopicConfig
from trio_mq.protocol.codes import Perm, ResponseCode


def require_reads(settings: BrokerSettings) -> None:
    """Refuse when the broker hands out nothing, with NO_PERMISSION (16)."""
    if not settings.broker_permission & Perm.READ:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the broker {settings.broker_name} does not hand out messages (brokerPermission)",
        )


def readable_topic(topics: TopicTable, name: str, queue_id: int) -> TopicConfig:
    """A topic that may be read and has such a queue; refused with 17, 16 or 29. A queue id below 0 means any."""
    topic = topics.require(name)
    if not topic.perm & Perm.READ:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"topic {name} may not be read (perm {topic.perm})"
        )
    if queue_id >= topic.read_queue_nums:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queue id {queue_id}: topic {name} has {topic.read_queue_nums} queues to read",
        )
    return topic


def require_consuming(groups: GroupTable, name: str) -> None:
    """Refuse a group that is not there (26) or may not consume (16)."""
    if not groups.require(name).consume_enable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"subscription group {name} may not consume (consumeEnable)",
        )
