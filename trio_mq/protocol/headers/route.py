"""Headers of routes and of the name server's settings.

In and out: see :mod:`.core`. Fields are those of the peers' classes of the same names with
``Header`` at the end.
"""

from __future__ import annotations

import attrs

from .core import I32


@attrs.frozen
class GetRouteInfoRequest:
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


@attrs.frozen
class PutKVConfigRequest:
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


@attrs.frozen
class GetKVConfigRequest:
    """GET_KV_CONFIG (101)."""

    namespace: str
    key: str


@attrs.frozen
class GetKVConfigReply:
    """Answer to 101."""

    value: str | None = None


@attrs.frozen
class DeleteKVConfigRequest:
    """DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


@attrs.frozen
class GetKVListByNamespaceRequest:
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


@attrs.frozen
class WipeWritePermOfBrokerRequest:
    """WIPE_WRITE_PERM_OF_BROKER (205)."""

    broker_name: str


@attrs.frozen
class WipeWritePermOfBrokerReply:
    """Answer to 205."""

    wipe_topic_count: I32


@attrs.frozen
class AddWritePermOfBrokerRequest:
    """ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


@attrs.frozen
class AddWritePermOfBrokerReply:
    """Answer to 327."""

    add_topic_count: I32


@attrs.frozen
class DeleteTopicFromNamesrvRequest:
    """DELETE_TOPIC_IN_NAMESRV (216); without ``cluster_name`` in all clusters."""

    topic: str
    cluster_name: str | None = None


@attrs.frozen
class RegisterTopicRequest:
    """REGISTER_TOPIC_IN_NAMESRV (217)."""

    topic: str


@attrs.frozen
class GetTopicsByClusterRequest:
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str
