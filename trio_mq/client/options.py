"""What all kinds of client have in common: where the cluster is, who asks, and for how long.

In: arguments of the public classes. Out: :class:`ClientOptions`, checked. Names and defaults are those of Apache's
ClientConfig; units are in the names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from trio_mq.config.addresses import Address
from trio_mq.errors import ConfigError
from trio_mq.net.address import parse_address_list
from trio_mq.protocol.topics import DLQ_PREFIX, RETRY_PREFIX

#: Characters that topics and groups may have (Apache: TopicValidator, Validators).
_NAME_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789%|_-")
MAX_TOPIC_LENGTH = 127
MAX_GROUP_LENGTH = 255


@attrs.frozen
class Credentials:
    """How requests are signed for clusters with access control (Apache: SessionCredentials)."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    security_token: str | None = attrs.field(default=None, repr=False)


@attrs.frozen
class ClientOptions:
    """Settings of one client. Times are in seconds."""

    nameservers: tuple[Address, ...]
    instance_name: str | None = None
    unit_name: str | None = None
    namespace: str | None = None
    credentials: Credentials | None = None
    #: The time in which one name server has to answer for a client to open.
    start_timeout_s: float = 10.0
    #: One request to a name server or a broker (Apache: mqClientApiTimeout).
    call_timeout_s: float = 3.0
    #: Apache: pollNameServerInterval.
    route_interval_s: float = 30.0
    #: Apache: heartbeatBrokerInterval.
    heartbeat_interval_s: float = 30.0

    @classmethod
    def of(cls, nameserver: str | Iterable[str], **others: object) -> ClientOptions:
        """From ``"host:port;host:port"`` or several texts; ConfigError for a bad one, or for none."""
        text = nameserver if isinstance(nameserver, str) else ";".join(nameserver)
        found = parse_address_list(text, what="nameserver")
        if not found:
            raise ConfigError(
                "nameserver: no address is given; write host:port, say 127.0.0.1:9876"
            )
        options = cls(found, **others)  # type: ignore[arg-type]  # the public classes are typed
        for name in (field.name for field in attrs.fields(cls) if field.name.endswith("_s")):
            if getattr(options, name) <= 0:
                raise ConfigError(f"{name}: {getattr(options, name)} is not a time above 0")
        return options


def check_topic(topic: str) -> str:
    """A topic as the peers' clients accept it; ConfigError says what is wrong."""
    return _checked("topic", topic, MAX_TOPIC_LENGTH)


def check_group(group: str) -> str:
    """A group as the peers' clients accept it; ConfigError says what is wrong."""
    return _checked("group", group, MAX_GROUP_LENGTH)


def _checked(what: str, name: str, longest: int) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"{what}: {name!r} is empty or no text; give it a name")
    if len(name) > longest:
        raise ConfigError(
            f"{what}: {name[:40]}... has {len(name)} characters, {longest} are the most"
        )
    bad = sorted(set(name) - _NAME_CHARACTERS)
    if bad:
        raise ConfigError(
            f"{what}: {name!r} holds {bad[0]!r}; letters, digits and %|_- are allowed"
        )
    return name


def with_namespace(namespace: str | None, name: str) -> str:
    """A topic or group inside a legacy namespace (Apache: NamespaceUtil.wrapNamespace)."""
    if not namespace:
        return name
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix + with_namespace(namespace, name[len(prefix) :])
    return name if name.startswith(f"{namespace}%") else f"{namespace}%{name}"


def without_namespace(namespace: str | None, name: str) -> str:
    """The other direction (Apache: NamespaceUtil.withoutNamespace)."""
    if not namespace:
        return name
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix + without_namespace(namespace, name[len(prefix) :])
    return name.removeprefix(f"{namespace}%")


def texts(values: str | Sequence[str]) -> tuple[str, ...]:
    """One text or several, as several."""
    return (values,) if isinstance(values, str) else tuple(values)
