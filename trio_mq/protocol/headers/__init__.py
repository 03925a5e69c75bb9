"""Typed request and reply headers, by family; the codec is in :mod:`.core`, the fast readers in
:mod:`.hot`.

Use: ``headers.decode(headers.PullMessageRequest, command.ext)`` and ``headers.encode(value)``.
Names are the peers' without ``Header``; a ``...ResponseHeader`` is a ``...Reply`` here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trio_mq import lazy

from .core import I32, I64, decode, encode

if TYPE_CHECKING:
    from .admin import (
        CreateTopicRequest,
        DeleteSubscriptionGroupRequest,
        DeleteTopicRequest,
        GetAllSubscriptionGroupReply,
        GetAllSubscriptionGroupRequest,
        GetAllTopicConfigReply,
        GetAllTopicConfigRequest,
        GetBrokerConfigReply,
        GetConsumeStatsInBrokerRequest,
        GetConsumeStatsRequest,
        GetSubscriptionGroupConfigRequest,
        GetTopicConfigRequest,
        GetTopicStatsInfoRequest,
        QueryConsumeTimeSpanRequest,
        QuerySubscriptionByConsumerRequest,
        QueryTopicConsumeByWhoRequest,
        QueryTopicsByConsumerRequest,
        ResetMasterFlushOffsetRequest,
        UpdateGroupForbiddenRequest,
        ViewBrokerStatsDataRequest,
    )
    from .heartbeat import (
        ConsumeMessageDirectlyResultRequest,
        GetConsumerConnectionListRequest,
        GetConsumerListByGroupRequest,
        GetConsumerRunningInfoRequest,
        GetProducerConnectionListRequest,
        HeartbeatReply,
        HeartbeatRequest,
        NotifyConsumerIdsChangedRequest,
        UnregisterClientRequest,
    )
    from .lock import (
        LockBatchMqRequest,
        UnlockBatchMqRequest,
    )
    from .offset import (
        BoundaryType,
        CloneGroupOffsetRequest,
        GetConsumerStatusRequest,
        GetEarliestMsgStoretimeReply,
        GetEarliestMsgStoretimeRequest,
        GetMaxOffsetReply,
        GetMaxOffsetRequest,
        GetMinOffsetReply,
        GetMinOffsetRequest,
        QueryConsumerOffsetReply,
        QueryConsumerOffsetRequest,
        QueryCorrectionOffsetRequest,
        ResetOffsetRequest,
        SearchOffsetReply,
        SearchOffsetRequest,
        UpdateConsumerOffsetRequest,
    )
    from .pop import (
        AckMessageRequest,
        ChangeInvisibleTimeReply,
        ChangeInvisibleTimeRequest,
        NotificationReply,
        NotificationRequest,
        PeekMessageRequest,
        PollingInfoReply,
        PollingInfoRequest,
        PopMessageReply,
        PopMessageRequest,
    )
    from .pull import (
        PullMessageReply,
        PullMessageRequest,
    )
    from .query import (
        QueryConsumeQueueRequest,
        QueryMessageReply,
        QueryMessageRequest,
        ViewMessageRequest,
    )
    from .registration import (
        BrokerHeartbeatRequest,
        ExchangeHAInfoReply,
        ExchangeHAInfoRequest,
        GetBrokerMemberGroupRequest,
        NotifyMinBrokerIdChangeRequest,
        QueryDataVersionReply,
        QueryDataVersionRequest,
        RegisterBrokerReply,
        RegisterBrokerRequest,
        UnRegisterBrokerRequest,
    )
    from .route import (
        AddWritePermOfBrokerReply,
        AddWritePermOfBrokerRequest,
        DeleteKVConfigRequest,
        DeleteTopicFromNamesrvRequest,
        GetKVConfigReply,
        GetKVConfigRequest,
        GetKVListByNamespaceRequest,
        GetRouteInfoRequest,
        GetTopicsByClusterRequest,
        PutKVConfigRequest,
        RegisterTopicRequest,
        WipeWritePermOfBrokerReply,
        WipeWritePermOfBrokerRequest,
    )
    from .send import (
        ConsumerSendMsgBackRequest,
        RecallMessageReply,
        RecallMessageRequest,
        ReplyMessageRequest,
        SendMessageReply,
        SendMessageRequest,
        SendMessageRequestV2,
    )
    from .transaction import (
        CheckTransactionStateRequest,
        EndTransactionRequest,
        ResumeCheckHalfMessageRequest,
    )

__all__ = [
    "I32",
    "I64",
    "AckMessageRequest",
    "AddWritePermOfBrokerReply",
    "AddWritePermOfBrokerRequest",
    "BoundaryType",
    "BrokerHeartbeatRequest",
    "ChangeInvisibleTimeReply",
    "ChangeInvisibleTimeRequest",
    "CheckTransactionStateRequest",
    "CloneGroupOffsetRequest",
    "ConsumeMessageDirectlyResultRequest",
    "ConsumerSendMsgBackRequest",
    "CreateTopicRequest",
    "DeleteKVConfigRequest",
    "DeleteSubscriptionGroupRequest",
    "DeleteTopicFromNamesrvRequest",
    "DeleteTopicRequest",
    "EndTransactionRequest",
    "ExchangeHAInfoReply",
    "ExchangeHAInfoRequest",
    "GetAllSubscriptionGroupReply",
    "GetAllSubscriptionGroupRequest",
    "GetAllTopicConfigReply",
    "GetAllTopicConfigRequest",
    "GetBrokerConfigReply",
    "GetBrokerMemberGroupRequest",
    "GetConsumeStatsInBrokerRequest",
    "GetConsumeStatsRequest",
    "GetConsumerConnectionListRequest",
    "GetConsumerListByGroupRequest",
    "GetConsumerRunningInfoRequest",
    "GetConsumerStatusRequest",
    "GetEarliestMsgStoretimeReply",
    "GetEarliestMsgStoretimeRequest",
    "GetKVConfigReply",
    "GetKVConfigRequest",
    "GetKVListByNamespaceRequest",
    "GetMaxOffsetReply",
    "GetMaxOffsetRequest",
    "GetMinOffsetReply",
    "GetMinOffsetRequest",
    "GetProducerConnectionListRequest",
    "GetRouteInfoRequest",
    "GetSubscriptionGroupConfigRequest",
    "GetTopicConfigRequest",
    "GetTopicStatsInfoRequest",
    "GetTopicsByClusterRequest",
    "HeartbeatReply",
    "HeartbeatRequest",
    "LockBatchMqRequest",
    "NotificationReply",
    "NotificationRequest",
    "NotifyConsumerIdsChangedRequest",
    "NotifyMinBrokerIdChangeRequest",
    "PeekMessageRequest",
    "PollingInfoReply",
    "PollingInfoRequest",
    "PopMessageReply",
    "PopMessageRequest",
    "PullMessageReply",
    "PullMessageRequest",
    "PutKVConfigRequest",
    "QueryConsumeQueueRequest",
    "QueryConsumeTimeSpanRequest",
    "QueryConsumerOffsetReply",
    "QueryConsumerOffsetRequest",
    "QueryCorrectionOffsetRequest",
    "QueryDataVersionReply",
    "QueryDataVersionRequest",
    "QueryMessageReply",
    "QueryMessageRequest",
    "QuerySubscriptionByConsumerRequest",
    "QueryTopicConsumeByWhoRequest",
    "QueryTopicsByConsumerRequest",
    "RecallMessageReply",
    "RecallMessageRequest",
    "RegisterBrokerReply",
    "RegisterBrokerRequest",
    "RegisterTopicRequest",
    "ReplyMessageRequest",
    "ResetMasterFlushOffsetRequest",
    "ResetOffsetRequest",
    "ResumeCheckHalfMessageRequest",
    "SearchOffsetReply",
    "SearchOffsetRequest",
    "SendMessageReply",
    "SendMessageRequest",
    "SendMessageRequestV2",
    "UnRegisterBrokerRequest",
    "UnlockBatchMqRequest",
    "UnregisterClientRequest",
    "UpdateConsumerOffsetRequest",
    "UpdateGroupForbiddenRequest",
    "ViewBrokerStatsDataRequest",
    "ViewMessageRequest",
    "WipeWritePermOfBrokerReply",
    "WipeWritePermOfBrokerRequest",
    "decode",
    "encode",
]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "admin": """
            CreateTopicRequest DeleteSubscriptionGroupRequest DeleteTopicRequest
            GetAllSubscriptionGroupReply GetAllSubscriptionGroupRequest GetAllTopicConfigReply
            GetAllTopicConfigRequest GetBrokerConfigReply GetConsumeStatsInBrokerRequest
            GetConsumeStatsRequest GetSubscriptionGroupConfigRequest GetTopicConfigRequest
            GetTopicStatsInfoRequest QueryConsumeTimeSpanRequest QuerySubscriptionByConsumerRequest
            QueryTopicConsumeByWhoRequest QueryTopicsByConsumerRequest ResetMasterFlushOffsetRequest
            UpdateGroupForbiddenRequest ViewBrokerStatsDataRequest
        """,
        "heartbeat": """
            ConsumeMessageDirectlyResultRequest GetConsumerConnectionListRequest
            GetConsumerListByGroupRequest GetConsumerRunningInfoRequest
            GetProducerConnectionListRequest HeartbeatReply HeartbeatRequest
            NotifyConsumerIdsChangedRequest UnregisterClientRequest
        """,
        "lock": "LockBatchMqRequest UnlockBatchMqRequest",
        "offset": """
            BoundaryType CloneGroupOffsetRequest GetConsumerStatusRequest
            GetEarliestMsgStoretimeReply GetEarliestMsgStoretimeRequest GetMaxOffsetReply
            GetMaxOffsetRequest GetMinOffsetReply GetMinOffsetRequest QueryConsumerOffsetReply
            QueryConsumerOffsetRequest QueryCorrectionOffsetRequest ResetOffsetRequest
            SearchOffsetReply SearchOffsetRequest UpdateConsumerOffsetRequest
        """,
        "pop": """
            AckMessageRequest ChangeInvisibleTimeReply ChangeInvisibleTimeRequest NotificationReply
            NotificationRequest PeekMessageRequest PollingInfoReply PollingInfoRequest
            PopMessageReply PopMessageRequest
        """,
        "pull": "PullMessageReply PullMessageRequest",
        "query": "QueryConsumeQueueRequest QueryMessageReply QueryMessageRequest ViewMessageRequest",
        "registration": """
            BrokerHeartbeatRequest ExchangeHAInfoReply ExchangeHAInfoRequest
            GetBrokerMemberGroupRequest NotifyMinBrokerIdChangeRequest QueryDataVersionReply
            QueryDataVersionRequest RegisterBrokerReply RegisterBrokerRequest
            UnRegisterBrokerRequest
        """,
        "route": """
            AddWritePermOfBrokerReply AddWritePermOfBrokerRequest DeleteKVConfigRequest
            DeleteTopicFromNamesrvRequest GetKVConfigReply GetKVConfigRequest
            GetKVListByNamespaceRequest GetRouteInfoRequest GetTopicsByClusterRequest
            PutKVConfigRequest RegisterTopicRequest WipeWritePermOfBrokerReply
            WipeWritePermOfBrokerRequest
        """,
        "send": """
            ConsumerSendMsgBackRequest RecallMessageReply RecallMessageRequest ReplyMessageRequest
            SendMessageReply SendMessageRequest SendMessageRequestV2
        """,
        "transaction": "CheckTransactionStateRequest EndTransactionRequest ResumeCheckHalfMessageRequest",
    },
)
