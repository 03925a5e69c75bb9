"""Bodies of routes and of the name server.

In and out: see :mod:`.converter`. Shapes are those of the peers' classes of the same names
(``TopicRouteData``, ``ClusterInfo``, ``KVTable``, ``TopicList``, ``BrokerMemberGroup``). Broker ids
are the integer keys of the address maps; 0 is the master.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from trio_mq.protocol.values import value


@value
class QueueData:
    """The queues of a topic at one broker name."""

    broker_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


@value
class BrokerData:
    """The addresses of one broker name."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str] = attrs.field(factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None


@value
class TopicRouteData:
    """Answer to GET_ROUTEINFO_BY_TOPIC (105), body of REGISTER_TOPIC_IN_NAMESRV (217)."""

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: Mapping[str, Any] | None = None


@value
class ClusterInfo:
    """Answer to GET_BROKER_CLUSTER_INFO (106)."""

    broker_addr_table: Mapping[str, BrokerData] = attrs.field(factory=dict)
    cluster_addr_table: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)


@value
class TopicList:
    """Answer to 206, 224, 304, 305 and 343."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


@value
class KVTable:
    """Answer to REGISTER_BROKER (103), GET_KVLIST_BY_NAMESPACE (219), runtime info (28)."""

    table: Mapping[str, str] = attrs.field(factory=dict)


@value
class BrokerMemberGroup:
    """The brokers of one name."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str] = attrs.field(factory=dict)


@value
class GetBrokerMemberGroupReplyBody:
    """Answer to GET_BROKER_MEMBER_GROUP (901)."""

    broker_member_group: BrokerMemberGroup
