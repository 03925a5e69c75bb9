"""JSON bodies as typed values, by family; :mod:`.converter` holds the rules.

Use: ``bodies.decode(bodies.HeartbeatData, command.body)`` and ``bodies.encode(value)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trio_mq import lazy
from trio_mq.protocol.jsondialect import MessageQueue

if TYPE_CHECKING:
    from .client import (
        BatchAck,
        BatchAckBody,
        CheckClientBody,
        Connection,
        ConsumeFromWhere,
        ConsumeMessageDirectlyResult,
        ConsumerConnection,
        ConsumerData,
        ConsumerIdList,
        ConsumerRunningInfo,
        ConsumeType,
        HeartbeatData,
        LockBatchBody,
        LockBatchReplyBody,
        MessageModel,
        MessageQueueAssignment,
        ProducerConnection,
        ProducerData,
        ProducerInfo,
        ProducerTableInfo,
        QueryAssignmentBody,
        QueryAssignmentReplyBody,
        SetMessageRequestModeBody,
        SubscriptionData,
    )
    from .compressed import decode_compressed
    from .converter import decode, encode, structure, unstructure
    from .ha import HAClientRuntimeInfo, HAConnectionRuntimeInfo, HARuntimeInfo
    from .route import (
        BrokerData,
        BrokerMemberGroup,
        ClusterInfo,
        GetBrokerMemberGroupReplyBody,
        KVTable,
        QueueData,
        TopicList,
        TopicRouteData,
    )
    from .stats import (
        BrokerStatsData,
        BrokerStatsItem,
        ConsumeQueueData,
        ConsumeStats,
        ConsumeStatsList,
        ConsumeTimeSpanBody,
        GroupForbidden,
        GroupList,
        OffsetWrapper,
        QueryConsumeQueueReplyBody,
        QuerySubscriptionReplyBody,
        QueueTimeSpan,
        TopicOffset,
        TopicStatsTable,
    )
    from .tables import (
        ConsumerOffsetWrapper,
        ConsumerStatusBody,
        DataVersion,
        RegisterBrokerBody,
        ResetOffsetBody,
        SubscriptionGroupConfig,
        SubscriptionGroupWrapper,
        TopicConfig,
        TopicConfigSerializeWrapper,
    )

__all__ = [
    "BatchAck",
    "BatchAckBody",
    "BrokerData",
    "BrokerMemberGroup",
    "BrokerStatsData",
    "BrokerStatsItem",
    "CheckClientBody",
    "ClusterInfo",
    "Connection",
    "ConsumeFromWhere",
    "ConsumeMessageDirectlyResult",
    "ConsumeQueueData",
    "ConsumeStats",
    "ConsumeStatsList",
    "ConsumeTimeSpanBody",
    "ConsumeType",
    "ConsumerConnection",
    "ConsumerData",
    "ConsumerIdList",
    "ConsumerOffsetWrapper",
    "ConsumerRunningInfo",
    "ConsumerStatusBody",
    "DataVersion",
    "GetBrokerMemberGroupReplyBody",
    "GroupForbidden",
    "GroupList",
    "HAClientRuntimeInfo",
    "HAConnectionRuntimeInfo",
    "HARuntimeInfo",
    "HeartbeatData",
    "KVTable",
    "LockBatchBody",
    "LockBatchReplyBody",
    "MessageModel",
    "MessageQueue",
    "MessageQueueAssignment",
    "OffsetWrapper",
    "ProducerConnection",
    "ProducerData",
    "ProducerInfo",
    "ProducerTableInfo",
    "QueryAssignmentBody",
    "QueryAssignmentReplyBody",
    "QueryConsumeQueueReplyBody",
    "QuerySubscriptionReplyBody",
    "QueueData",
    "QueueTimeSpan",
    "RegisterBrokerBody",
    "ResetOffsetBody",
    "SetMessageRequestModeBody",
    "SubscriptionData",
    "SubscriptionGroupConfig",
    "SubscriptionGroupWrapper",
    "TopicConfig",
    "TopicConfigSerializeWrapper",
    "TopicList",
    "TopicOffset",
    "TopicRouteData",
    "TopicStatsTable",
    "decode",
    "decode_compressed",
    "encode",
    "structure",
    "unstructure",
]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "compressed": "decode_compressed",
        "converter": "decode encode structure unstructure",
        "ha": "HAClientRuntimeInfo HAConnectionRuntimeInfo HARuntimeInfo",
        "client": """
            BatchAck BatchAckBody CheckClientBody Connection ConsumeFromWhere
            ConsumeMessageDirectlyResult ConsumerConnection ConsumerData ConsumerIdList
            ConsumerRunningInfo ConsumeType HeartbeatData LockBatchBody LockBatchReplyBody
            MessageModel MessageQueueAssignment ProducerConnection ProducerData ProducerInfo
            ProducerTableInfo QueryAssignmentBody QueryAssignmentReplyBody SetMessageRequestModeBody
            SubscriptionData
        """,
        "route": """
            BrokerData BrokerMemberGroup ClusterInfo GetBrokerMemberGroupReplyBody KVTable QueueData
            TopicList TopicRouteData
        """,
        "stats": """
            BrokerStatsData BrokerStatsItem ConsumeQueueData ConsumeStats ConsumeStatsList
            ConsumeTimeSpanBody GroupForbidden GroupList OffsetWrapper QueryConsumeQueueReplyBody
            QuerySubscriptionReplyBody QueueTimeSpan TopicOffset TopicStatsTable
        """,
        "tables": """
            ConsumerOffsetWrapper ConsumerStatusBody DataVersion RegisterBrokerBody ResetOffsetBody
            SubscriptionGroupConfig SubscriptionGroupWrapper TopicConfig TopicConfigSerializeWrapper
        """,
    },
)
