"""Headers between brokers and name servers, and between the brokers of one name.

In and out: see :mod:`.core`. Fields are those of the peers' classes of the same names with
``Header`` at the end. Addresses are ``host:port``; broker id 0 is the master.
"""

from __future__ import annotations

from trio_mq.protocol.values import value

from .core import I32, I64


@value
class RegisterBrokerRequest:
    """REGISTER_BROKER (103). ``body_crc32`` 0 means that the body is not checked."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: I64
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I32 | None = None


@value
class RegisterBrokerReply:
    """Answer to 103; a replica learns its master here."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@value
class UnRegisterBrokerRequest:
    """UNREGISTER_BROKER (104)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


@value
class QueryDataVersionRequest:
    """QUERY_DATA_VERSION (322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


@value
class QueryDataVersionReply:
    """Answer to 322."""

    changed: bool


@value
class BrokerHeartbeatRequest:
    """BROKER_HEARTBEAT (904)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: I64 | None = None
    epoch: I32 | None = None
    max_offset: I64 | None = None
    confirm_offset: I64 | None = None
    # The peers' spelling.
    heartbeat_timeout_mills: I64 | None = None
    election_priority: I32 | None = None


@value
class GetBrokerMemberGroupRequest:
    """GET_BROKER_MEMBER_GROUP (901)."""

    cluster_name: str
    broker_name: str


@value
class NotifyMinBrokerIdChangeRequest:
    """NOTIFY_MIN_BROKER_ID_CHANGE (905), name server to broker, one-way."""

    min_broker_id: I64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


@value
class ExchangeHAInfoRequest:
    """EXCHANGE_BROKER_HA_INFO (906)."""

    master_ha_address: str | None = None
    master_flush_offset: I64 | None = None
    master_address: str | None = None


@value
class ExchangeHAInfoReply:
    """Answer to 906."""

    master_ha_address: str | None = None
    master_flush_offset: I64 | None = None
    master_address: str | None = None
