"""Settings of the broker: what is answered, where it listens, what name servers
are told.

Defaults are those of Apache RocketMQ 5.4.0 (BrokerConfig, NettyServerConfig),
except where the text of a setting says otherwise.
"""

from __future__ import annotations

import platform

import attrs

from trio_mq.config import kinds
from trio_mq.config.addresses import Address
from trio_mq.config.declare import setting
from trio_mq.config.kinds import FLAG, integer


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
    channel_expired_timeout_ms: int = setting(
        "channelExpiredTimeout",
        integer(1000, kinds.LONG_MAX),
        120_000,
        "A client silent for so long is dropped (ms).",
    )
    consumer_offset_update_version_step: int = setting(
        "consumerOffsetUpdateVersionStep",
        integer(1, kinds.LONG_MAX),
        500,
        "Commits between two changes of the version of the offset table.",
    )
    flush_consumer_offset_interval_ms: int = setting(
        "flushConsumerOffsetInterval",
        integer(10),
        5000,
        "How often consumer offsets are written to their file (ms).",
    )
    register_nameserver_period_ms: int = setting(
        "registerNameServerPeriod",
        integer(0, clamp=(10_000, 60_000)),
        30_000,
        "How often the broker renews its registration at name servers (ms).",
    )

    @property
    def fast_listen_port(self) -> int | None:
        """The second port, or None where it is off."""
        return self.listen_port - 2 if self.fast_port and self.listen_port else None
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
