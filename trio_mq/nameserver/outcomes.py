"""What goes into the route table and what comes of it, as values.

In: a registration, made by :mod:`trio_mq.nameserver.processors`. Out: outcomes, made by
:mod:`trio_mq.nameserver.routes`. Source: Apache RegisterBrokerResult, NotifyMinBrokerIdChange.
"""

from __future__ import annotations

import attrs

from trio_mq.protocol.bodies import TopicConfigSerializeWrapper

#: How long a broker may be silent when it does not say so itself: two minutes, as with Apache.
DEFAULT_TIMEOUT_S = 120.0


@attrs.frozen
class Registration:
    """One REGISTER_BROKER. `enable_acting_master` None means a broker older than release 5."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    topics: TopicConfigSerializeWrapper
    filter_servers: tuple[str, ...] = ()
    enable_acting_master: bool | None = None
    zone: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S


@attrs.frozen
class MinBrokerChange:
    """The smallest id of a broker name is another one now; `notify` are the connections to tell."""

    broker_name: str
    min_id: int
    min_address: str
    offline_address: str | None
    ha_address: str | None
    notify: tuple[object, ...]


@attrs.frozen
class Registered:
    """A registration was taken, or ignored for its old state version.

    The addresses are those of the living master, for a broker that is not the master itself.
    """

    master_address: str | None = None
    ha_address: str | None = None
    change: MinBrokerChange | None = None
    ignored: bool = False


@attrs.frozen
class Refused:
    """A registration was not taken."""

    reason: str


@attrs.frozen
class Removed:
    """A broker that was taken off. `token` is the connection it was registered over, if known."""

    broker_name: str
    address: str
    token: object = None
    change: MinBrokerChange | None = None
