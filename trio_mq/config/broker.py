"""Settings of the broker: what is answered, where it listens, what name servers
are told.

Defaults are those of Apache RocketMQ 5.4.0 (BrokerConfig, NettyServerConfig),
except where the text of a setting says otherwise.
"""

from __future__ import annotations

import enum
import platform

import attrs

from trio_mq.config import kinds
from trio_mq.config.addresses import Address
from trio_mq.config.declare import setting
from trio_mq.config.kinds import FLAG, integer


class MessageRequestMode(enum.Enum):
    """How a consumer reads the queues that a broker assigns to it."""

    PULL = "PULL"
    POP = "POP"


@attrs.frozen(kw_only=True)
class BrokerSettings:
    """What the broker answers, where it listens, and what it tells name servers."""

    broker_name: str = setting(
        "brokerName",
        kinds.text(1, 127),
        platform.node() or "DEFAULT_BROKER",
        "Name of the broker in routes; masters and their slaves share it.",
        default_text="name of the machine",
    )
    cluster: str = setting(
        "brokerClusterName", kinds.text(1, 127), "DefaultCluster", "Name of the cluster in routes."
    )
    broker_id: int = setting(
        "brokerId", integer(0), 0, "0 is the master; clients send only to a broker with id 0."
    )
    listen_host: str = setting(
        "bindAddress",
        kinds.LISTEN_HOST,
        "127.0.0.1",
        "Address to listen on. Apache listens on all (0.0.0.0); here a first start is not open "
        "to the network.",
    )
    listen_port: int = setting(
        "listenPort",
        kinds.PORT,
        10911,
        "Port for clients; 0 takes a free one. Apache's scripts use 10911 too.",
    )
    fast_port: bool = setting(
        "enableFastPort",
        FLAG,
        True,
        "Also listen on `listenPort` - 2, as Apache always does: its slaves and old clients use "
        "it. "
        "Off when `listenPort` is 0.",
    )
    advertise_host: str | None = setting(
        "brokerIP1",
        kinds.REACHABLE_HOST,
        None,
        "Host that name servers hand to clients.",
        default_text="the address listened on, or one of the machine",
    )
    advertise_port: int = setting(
        "advertisePort",
        kinds.PORT,
        0,
        "Port that name servers hand to clients; 0 means the port listened on. For mapped ports "
        "of containers.",
    )
    nameservers: tuple[Address, ...] = setting(
        "namesrvAddr",
        kinds.ADDRESSES,
        (),
        "Name servers to register at, besides the one in this process.",
        default_text="none",
    )
    broker_permission: int = setting(
        "brokerPermission",
        integer(0, 7),
        6,
        "What clients may do: 4 read + 2 write (+ 1 inherit). It limits every topic's permission.",
    )
    auto_create_topic_enable: bool = setting(
        "autoCreateTopicEnable", FLAG, True, "Whether a send to an unknown topic creates it."
    )
    default_topic_queue_nums: int = setting(
        "defaultTopicQueueNums",
        integer(1, 1024),
        8,
        "Most queues that an automatically created topic gets.",
    )
    auto_create_subscription_group: bool = setting(
        "autoCreateSubscriptionGroup",
        FLAG,
        True,
        "Whether an unknown consumer group is created on first use.",
    )
    cluster_topic_enable: bool = setting(
        "clusterTopicEnable",
        FLAG,
        True,
        "Whether the topic named after the cluster can be a template for new ones.",
    )
    broker_topic_enable: bool = setting(
        "brokerTopicEnable",
        FLAG,
        True,
        "Whether the topic named after the broker can be a template for new ones.",
    )
    trace_topic_enable: bool = setting(
        "traceTopicEnable", FLAG, False, "Whether the topic for message traces is created at start."
    )
    msg_trace_topic_name: str = setting(
        "msgTraceTopicName",
        kinds.text(1, 127),
        "RMQ_SYS_TRACE_TOPIC",
        "Name of the topic for message traces.",
    )
    trace_on: bool = setting(
        "traceOn", FLAG, True, "What messages are marked with in their property TRACE_ON."
    )
    region_id: str = setting(
        "regionId",
        kinds.text(0, 127),
        "DefaultRegion",
        "What messages are marked with in their property MSG_REGION.",
    )
    validate_system_topic: bool = setting(
        "validateSystemTopicWhenUpdateTopic",
        FLAG,
        True,
        "Whether administrators may not change system topics.",
    )
    enable_mixed_message_type: bool = setting(
        "enableMixedMessageType",
        FLAG,
        False,
        "Whether a topic may be created with the message type MIXED.",
    )
    recall_message_enable: bool = setting(
        "recallMessageEnable", FLAG, False, "Whether producers may take back messages that wait."
    )
    allow_recall_when_broker_not_writeable: bool = setting(
        "allowRecallWhenBrokerNotWriteable",
        FLAG,
        True,
        "Whether they may while the broker's permission is not to write.",
    )
    reject_transaction_message: bool = setting(
        "rejectTransactionMessage", FLAG, False, "Whether transactional messages are refused."
    )
    transaction_timeout_ms: int = setting(
        "transactionTimeOut",
        integer(0, kinds.LONG_MAX),
        6000,
        "Age from which on a transaction without a decision is checked (ms).",
    )
    transaction_check_max: int = setting(
        "transactionCheckMax",
        integer(1),
        15,
        "How often a producer is asked about a transaction before it is given up.",
    )
    transaction_check_interval_ms: int = setting(
        "transactionCheckInterval",
        integer(1, kinds.LONG_MAX),
        30_000,
        "Time between two checks of open transactions (ms).",
    )
    transaction_op_msg_max_size: int = setting(
        "transactionOpMsgMaxSize",
        integer(1, 1_048_576),
        4096,
        "Bytes of decisions about transactions that are written down in one record.",
    )
    transaction_op_batch_interval_ms: int = setting(
        "transactionOpBatchInterval",
        integer(1, 600_000),
        3000,
        "Time until decisions about transactions are written down (ms).",
    )
    start_accept_send_request_ms: int = setting(
        "startAcceptSendRequestTimeStamp",
        integer(0, kinds.LONG_MAX),
        0,
        "Sends before this time (ms since 1970) are refused.",
    )
    reject_pull_consumer_enable: bool = setting(
        "rejectPullConsumerEnable",
        FLAG,
        False,
        "Whether consumers that pull by themselves are refused.",
    )
    long_polling_enable: bool = setting(
        "longPollingEnable",
        FLAG,
        True,
        "Whether a pull that finds nothing waits as long as the client allows.",
    )
    short_polling_time_ms: int = setting(
        "shortPollingTimeMills",
        integer(1, 60_000),
        1000,
        "How long such a pull waits when long polling is off (ms).",
    )
    use_server_side_reset_offset: bool = setting(
        "useServerSideResetOffset",
        FLAG,
        True,
        "Whether resetting a group's offsets is done by the broker.",
    )
    notify_consumer_ids_changed_enable: bool = setting(
        "notifyConsumerIdsChangedEnable",
        FLAG,
        True,
        "Whether group members are told when one joins or leaves.",
    )
    lock_max_live_ms: int = setting(
        "rocketmq.broker.rebalance.lockMaxLiveTime",
        integer(100),
        60_000,
        "How long a queue lock of an orderly consumer lives without renewal (ms); clients renew every 20 s. "
        "A system property of the JVM in Apache.",
    )
    store_reply_message_enable: bool = setting(
        "storeReplyMessageEnable",
        FLAG,
        True,
        "Whether replies to requests are also stored, in the topic named after the cluster.",
    )
    channel_expired_timeout_ms: int = setting(
        "channelExpiredTimeout",
        integer(1000, kinds.LONG_MAX),
        120_000,
        "A client silent for so long is dropped (ms).",
    )
    enable_property_filter: bool = setting(
        "enablePropertyFilter",
        FLAG,
        False,
        "Whether consumers may filter by properties (SQL92). Without a file of settings it is true: "
        "a broker to try things with takes them all.",
    )
    filter_support_retry: bool = setting(
        "filterSupportRetry",
        FLAG,
        False,
        "Whether an SQL92 subscription of a retry topic filters each message by what the group "
        "subscribes of the topic that the message was for.",
    )
    consumer_offset_update_version_step: int = setting(
        "consumerOffsetUpdateVersionStep",
        integer(1, kinds.LONG_MAX),
        500,
        "Commits between two changes of the version of the offset table.",
    )
    delay_offset_update_version_step: int = setting(
        "delayOffsetUpdateVersionStep",
        integer(1, kinds.LONG_MAX),
        200,
        "Steps of delayed delivery between two changes of the version of delayOffset.json.",
    )
    flush_consumer_offset_interval_ms: int = setting(
        "flushConsumerOffsetInterval",
        integer(10),
        5000,
        "How often consumer offsets are written to their file (ms).",
    )
    revive_queue_num: int = setting(
        "reviveQueueNum",
        integer(1, 900),
        8,
        "Queues of the topic that check points of pops go to. With fewer than before, those in the "
        "queues that are left over are still worked off.",
    )
    revive_interval_ms: int = setting(
        "reviveInterval",
        integer(10, 60_000),
        1000,
        "How often the broker looks for popped messages that were not acknowledged in time (ms).",
    )
    pop_from_retry_probability: int = setting(
        "popFromRetryProbability",
        integer(0, 100),
        20,
        "Of 100 pops, how many look into the retry topic first; the others do so last.",
    )
    enable_retry_topic_v2: bool = setting(
        "enableRetryTopicV2",
        FLAG,
        False,
        "Whether retry topics of pops have a `+` between group and topic instead of a `_`.",
    )
    retrieve_message_from_pop_retry_topic_v1: bool = setting(
        "retrieveMessageFromPopRetryTopicV1",
        FLAG,
        True,
        "With `enableRetryTopicV2`: whether every second pop looks into the retry topic with a `_`, "
        "where there still may be messages.",
    )
    init_pop_offset_by_check_msg_in_mem: bool = setting(
        "initPopOffsetByCheckMsgInMem",
        FLAG,
        True,
        "Whether a group that pops a queue for the first time and wants the newest messages gets "
        "all of a queue that is young.",
    )
    enable_pop_message_threshold: bool = setting(
        "enablePopMessageThreshold",
        FLAG,
        False,
        "Whether a queue hands nothing out to a group that has too many messages of it.",
    )
    pop_inflight_message_threshold: int = setting(
        "popInflightMessageThreshold",
        integer(1, kinds.LONG_MAX),
        10_000,
        "How many unacknowledged messages of one queue are too many.",
    )
    append_ck_async: bool = setting(
        "appendCkAsync",
        FLAG,
        False,
        "With synchronous flush: whether a pop is answered before its check point is on the disk.",
    )
    append_ack_async: bool = setting(
        "appendAckAsync",
        FLAG,
        False,
        "With synchronous flush: whether an acknowledgement of a popped message is answered before "
        "it is on the disk.",
    )
    pop_response_return_actual_retry_topic: bool = setting(
        "popResponseReturnActualRetryTopic",
        FLAG,
        False,
        "Whether a message that is popped from a retry topic shows that topic instead of its own.",
    )
    enable_notify_after_pop_order_lock_release: bool = setting(
        "enableNotifyAfterPopOrderLockRelease",
        FLAG,
        True,
        "Whether a waiting ordered pop is answered as soon as the queue is free again.",
    )
    pop_polling_size: int = setting(
        "popPollingSize",
        integer(0),
        1024,
        "How many pops may wait for one topic, group and queue; as many notifications.",
    )
    max_pop_polling_size: int = setting(
        "maxPopPollingSize",
        integer(0, kinds.LONG_MAX),
        100_000,
        "How many pops may wait in all; as many notifications.",
    )
    pop_long_polling_force_notify_interval: int = setting(
        "popLongPollingForceNotifyInterval",
        integer(0, kinds.LONG_MAX),
        800,
        "Of so many messages that arrive in a queue, one answers a waiting pop even if its filter "
        "does not match, so that the group's progress moves on; 0 is never.",
    )
    default_message_request_mode: MessageRequestMode = setting(  # noqa: RUF009 - declares a field
        "defaultMessageRequestMode",
        kinds.choice(MessageRequestMode),
        MessageRequestMode.PULL,
        "How consumers whose queues the broker assigns read them, unless set for a topic and group.",
    )
    default_pop_share_queue_num: int = setting(
        "defaultPopShareQueueNum",
        integer(-1),
        -1,
        "How many consumers behind it a consumer that pops shares the queues of, by default; with 0 "
        "or less all pop all queues.",
    )
    server_load_balancer_enable: bool = setting(
        "serverLoadBalancerEnable",
        FLAG,
        True,
        "Whether the broker, when asked for an assignment, divides the queues; if not, each "
        "consumer hears of all.",
    )
    load_balance_poll_name_server_interval_ms: int = setting(
        "loadBalancePollNameServerInterval",
        integer(100, kinds.LONG_MAX),
        30_000,
        "How often name servers are asked for the queues of topics that consumers want assigned (ms).",
    )
    enable_single_topic_register: bool = setting(
        "enableSingleTopicRegister",
        FLAG,
        False,
        "Whether name servers are told of a changed topic without a word about the others. A broker with few "
        "topics tells them all, which is right in any case.",
    )
    enable_split_registration: bool = setting(
        "enableSplitRegistration",
        FLAG,
        False,
        "Whether topics are registered in pieces. Not for name servers with "
        "`deleteTopicWithBrokerRegistration`: these drop what a piece does not name.",
    )
    split_registration_size: int = setting(
        "splitRegistrationSize", integer(2), 800, "Topics in such a piece."
    )
    register_nameserver_period_ms: int = setting(
        "registerNameServerPeriod",
        integer(0, clamp=(10_000, 60_000)),
        30_000,
        "How often the broker renews its registration at name servers (ms).",
    )
    register_broker_timeout_ms: int = setting(
        "registerBrokerTimeoutMills",
        integer(100, 60_000),
        3000,
        "How long one registration at one name server may take (ms). Apache: 24000; here that is also how long "
        "a name server that hangs goes unnoticed.",
    )

    config_black_list: str = setting(
        "configBlackList",
        kinds.text(0, 1000),
        "configBlackList;brokerConfigPath",
        "Settings that administrators may not change while the broker runs, separated by `;`.",
    )

    @property
    def fast_listen_port(self) -> int | None:
        """The second port, or None where it is off."""
        return self.listen_port - 2 if self.fast_port and self.listen_port else None
