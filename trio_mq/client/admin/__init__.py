"""Administration of a cluster: :class:`Admin`, and the values that it answers with.

In: addresses of name servers. Out: typed results. The public name is :class:`trio_mq.Admin`; the values are in
:mod:`.values`. Each family of requests is a module: :mod:`.topics`, :mod:`.groups`, :mod:`.places` (moving groups),
:mod:`.messages`, :mod:`.cluster`. Source of the rules: Apache MQAdminExt.
"""

from __future__ import annotations

from trio_mq.client.admin.cluster import ClusterAdmin
from trio_mq.client.admin.messages import MessageAdmin
from trio_mq.client.admin.reading import Reading
from trio_mq.client.admin.topics import Place
from trio_mq.client.admin.values import (
    Answers,
    Broker,
    BrokerStatus,
    ConsumeRates,
    GroupMembers,
    GroupProgress,
    Member,
    QueueInHand,
    QueueProgress,
    QueueStats,
    RunningInfo,
    Several,
    TopicStats,
)

__all__ = [
    "Admin",
    "Answers",
    "Broker",
    "BrokerStatus",
    "ConsumeRates",
    "GroupMembers",
    "GroupProgress",
    "Member",
    "Place",
    "QueueInHand",
    "QueueProgress",
    "QueueStats",
    "Reading",
    "RunningInfo",
    "Several",
    "TopicStats",
]


class Admin(MessageAdmin, ClusterAdmin):
    """Looks at a cluster and changes it: ``async with trio_mq.Admin("127.0.0.1:9876") as admin:``.

    Questions to several brokers are asked at the same time. A broker that is down is told, with its address, in
    `failures` of the answer, and hides nothing of the others; a change that only some brokers made raises
    :class:`trio_mq.BrokersFailed`. When nobody did what was asked for, that is PeerRefused with the peer's code, or
    PeerUnavailable. `namespace` is put before the topics and groups that are given; answers have whole names.
    """
