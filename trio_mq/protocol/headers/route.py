"""Headers of routes and of the name server's settings.

In and out: see :mod:`.core`. Fields are those of the peers' classes of the same names with
``Header`` at the end.
"""

from __future__ import annotations

from trio_mq.protocol.values import value

from .core import I32


@value
class GetRouteInfoRequest:
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


@value
class PutKVConfigRequest:
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


@value
class GetKVConfigRequest:
    """GET_KV_CONFIG (101)."""

    namespace: str
    key: str


@value
class GetKVConfigReply:
    """Answer to 101."""

    value: str | None = None


@value
class DeleteKVConfigRequest:
    """DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


@value
class GetKVListByNamespaceRequest:
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


@value
class WipeWritePermOfBrokerRequest:
    """WIPE_WRITE_PERM_OF_BROKER (205)."""

    broker_name: str


@value
class WipeWritePermOfBrokerReply:
    """Answer to 205."""

    wipe_topic_count: I32


@value
class AddWritePermOfBrokerRequest:
    """ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


@value
class AddWritePermOfBrokerReply:
    """Answer to 327."""

    add_topic_count: I32


@value
class DeleteTopicFromNamesrvRequest:
    """DELETE_TOPIC_IN_NAMESRV (216); without ``cluster_name`` in all clusters."""

    topic: str
    cluster_name: str | None = None


@value
class RegisterTopicRequest:
    """REGISTER_TOPIC_IN_NAMESRV (217)."""

    topic: str


@value
class GetTopicsByClusterRequest:
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str
