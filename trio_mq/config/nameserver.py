"""Settings of the name server in this process.

Defaults are those of Apache RocketMQ 5.4.0 (NamesrvConfig), except where the text of a setting says
otherwise.
"""

from __future__ import annotations

import attrs

from trio_mq.config import kinds
from trio_mq.config.addresses import Address
from trio_mq.config.declare import setting
from trio_mq.config.kinds import FLAG, integer


@attrs.frozen(kw_only=True)
class NameServerSettings:
    """The name server of this process."""

    enabled: bool = setting(
        "nameserverEnable", FLAG, True, "Whether this process has a name server."
    )
    listen: Address = setting(  # noqa: RUF009 - declares a field
        "nameserverListen",
        kinds.LISTEN_ADDRESS,
        Address("127.0.0.1", 9876),
        "Where the name server listens. A file for Apache's name server would say `listenPort`.",
    )
    kv_config_path: str | None = setting(
        "kvConfigPath",
        kinds.OPTIONAL_PATH,
        None,
        "File for key-value settings. Apache keeps it in `namesrv` of the home directory.",
        default_text="`namesrv/kvConfig.json` in the store",
    )
    scan_not_active_broker_interval_ms: int = setting(
        "scanNotActiveBrokerInterval",
        integer(10, kinds.LONG_MAX),
        5000,
        "How often silent brokers are looked for (ms).",
    )
    order_message_enable: bool = setting(
        "orderMessageEnable",
        FLAG,
        False,
        "Whether routes carry the order configuration of a topic.",
    )
    return_order_topic_config_to_broker: bool = setting(
        "returnOrderTopicConfigToBroker",
        FLAG,
        True,
        "Whether a registration is answered with order configurations.",
    )
    enable_topic_list: bool = setting(
        "enableTopicList", FLAG, True, "Whether the topics of one cluster may be listed."
    )
    enable_all_topic_list: bool = setting(
        "enableAllTopicList", FLAG, True, "Whether all topics may be listed."
    )
    support_acting_master: bool = setting(
        "supportActingMaster",
        FLAG,
        False,
        "Whether the slave with the smallest id stands in for a lost master.",
    )
    notify_min_broker_id_changed: bool = setting(
        "notifyMinBrokerIdChanged",
        FLAG,
        False,
        "Whether brokers are told when the smallest id of their name changes.",
    )
    delete_topic_with_broker_registration: bool = setting(
        "deleteTopicWithBrokerRegistration",
        FLAG,
        False,
        "Whether a topic goes when its broker registers without it.",
    )
    need_wait_for_service: bool = setting(
        "needWaitForService",
        FLAG,
        False,
        "Whether routes are refused until brokers had time to register.",
    )
    wait_seconds_for_service: int = setting(
        "waitSecondsForService", integer(0), 45, "How long routes are refused in that case (s)."
    )
