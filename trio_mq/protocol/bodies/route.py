"""Bodies of routes and of the name server.

In and out: see :mod:`.converter`. Shapes are those of the peers' classes of the same names
(``TopicRouteData``, ``ClusterInfo``, ``KVTable``, ``TopicList``, ``BrokerMemberGroup``). Broker ids
are the integer keys of the address maps; 0 is the master.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen
class QueueData:
    """The queues of a topic at one broker name."""

    broker_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


@attrs.frozen
class BrokerData:
    """The addresses of one broker name."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str] = attrs.field(factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None


@attrs.frozen
class TopicRouteData:
    """Answer to GET_ROUTEINFO_BY_TOPIC (105), body of REGISTER_TOPIC_IN_NAMESRV (217)."""

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: Mapping[str, Any] | None = None


@attrs.frozen
class ClusterInfo:
    """Answer to GET_BROKER_CLUSTER_INFO (106)."""

    broker_addr_table: Mapping[str, BrokerData] = attrs.field(factory=dict)
    cluster_addr_table: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)


@attrs.frozen
class TopicList:
    """Answer to 206, 224, 304, 305 and 343."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


@attrs.frozen
class KVTable:
    """Answer to REGISTER_BROKER (103), GET_KVLIST_BY_NAMESPACE (219), runtime info (28)."""

    table: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class BrokerMemberGroup:
    """The brokers of one name."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str] = attrs.field(factory=dict)


@attrs.frozen
class GetBrokerMemberGroupReplyBody:
    """Answer to GET_BROKER_MEMBER_GROUP (901)."""

    broker_member_group: BrokerMemberGroup
