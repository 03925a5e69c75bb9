"""Asking brokers and name servers on an administrator's behalf: whom, all at the same time, and what of failures.

In: arguments of :class:`trio_mq.Admin`. Out: :class:`AdminBase`, on which the families of requests stand
(:mod:`.topics`, :mod:`.groups` and so on). Source of the rules: Apache MQAdminExt (DefaultMQAdminExtImpl), which asks
one broker after the other and ends with the first that fails; here all are asked at once.

Failure policy: a question to several brokers is answered with what was told, and `failures` names the others. A change
that some made and others did not raises BrokersFailed. When nobody did it, the error is that of the first refusal, or
PeerUnavailable with all addresses.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import attrs

from trio_mq.client.admin.values import Answers
from trio_mq.client.instance import Instance, open_instance
from trio_mq.client.lifetime import Owner, only
from trio_mq.client.options import (
    ClientOptions,
    Credentials,
    check_group,
    check_topic,
    with_namespace,
)
from trio_mq.client.routes import MASTER_ID, TopicRoute
from trio_mq.config.addresses import Address
from trio_mq.errors import (
    BrokerFailure,
    BrokersFailed,
    ConfigError,
    NoRoute,
    PeerRefused,
    PeerUnavailable,
    ProtocolError,
    TrioMQError,
)
from trio_mq.net.address import parse_address
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import BrokerData, ClusterInfo, TopicRouteData
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command

T = TypeVar("T")

#: Requests of one call that run at the same time: a thousand brokers, or queues, are asked in turns.
AT_ONCE = 32

_EXPECTED = (PeerUnavailable, PeerRefused, ProtocolError)


@attrs.frozen
class Target:
    """Somebody to ask: the name is the broker's."""

    name: str
    address: Address


class AdminBase(Owner):
    """See the module."""

    _instance: Instance

    def __init__(
        self,
        nameserver: str | Iterable[str],
        *,
        namespace: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        credentials: Credentials | None = None,
        start_timeout_s: float = 10.0,
        call_timeout_s: float = 5.0,
    ) -> None:
        self._options = ClientOptions.of(
            nameserver,
            namespace=namespace,
            instance_name=instance_name,
            unit_name=unit_name,
            credentials=credentials,
            start_timeout_s=start_timeout_s,
            call_timeout_s=call_timeout_s,
            # Routes are asked for when they are wanted, and nobody has to know us: no periodic work, which would also
            # close the links to brokers that no route of ours names.
            route_interval_s=math.inf,
            heartbeat_interval_s=math.inf,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(str, self._options.nameservers))}>"

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        async with open_instance(self._options) as self._instance:
            yield

    # -- names

    def _topic(self, topic: str) -> str:
        return with_namespace(self._options.namespace, check_topic(topic))

    def _group(self, group: str) -> str:
        return with_namespace(self._options.namespace, check_group(group))

    # -- whom to ask

    async def _cluster_info(self) -> ClusterInfo:
        reply = await self._instance.ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO)
        return bodies.decode(ClusterInfo, reply.body)

    async def _brokers(self, cluster: str | None = None, *, masters: bool = False) -> list[Target]:
        """One address of each broker name: the master's, or for reading that of another one while there is none."""
        info = await self._cluster_info()
        names = set(info.broker_addr_table)
        if cluster is not None:
            if cluster not in info.cluster_addr_table:
                known = ", ".join(sorted(info.cluster_addr_table)) or "none"
                raise ConfigError(
                    f"cluster: the name server knows no {cluster!r}; it knows {known}"
                )
            names &= set(info.cluster_addr_table[cluster])
        targets = targets_of((info.broker_addr_table[name] for name in sorted(names)), masters)
        if not targets:
            where = f"cluster {cluster}" if cluster else "the cluster"
            raise PeerUnavailable(
                f"{where} has no {'master' if masters else 'broker'} now; start one, and see that it registers at "
                f"{', '.join(map(str, self._options.nameservers))}"
            )
        return targets

    async def _broker(self, broker: str) -> Target:
        """The broker that is meant by a name, or by ``host:port``."""
        if ":" in broker:
            return Target(broker, parse_address(broker, what="broker"))
        table = (await self._cluster_info()).broker_addr_table
        if broker not in table:
            known = ", ".join(sorted(table)) or "none"
            raise ConfigError(f"broker: the name server knows no {broker!r}; it knows {known}")
        return targets_of([table[broker]], False)[0]

    async def _wanted(self, cluster: str | None, broker: str | None) -> list[Target]:
        """Where a change has to be made: one broker, or all masters (of one cluster)."""
        if broker is not None:
            return [await self._broker(broker)]
        return await self._brokers(cluster, masters=True)

    async def _route(self, topic: str) -> TopicRoute:
        """The route of a topic, fresh; NoRoute without one."""
        reply = await self._instance.ask_nameserver(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            headers.GetRouteInfoRequest(topic=topic, accept_standard_json_only=True),
            about=f"topic {topic}",
            accept=(ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST),
        )
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoRoute(
                f"topic {topic}: the name server knows no broker that serves it; "
                f"check its name, or create it (trio-mq topic create)",
                topic=topic,
            )
        return TopicRoute(topic, bodies.decode(TopicRouteData, reply.body))

    def _nameservers(self) -> list[Target]:
        return [Target("name server", address) for address in self._options.nameservers]

    # -- asking

    async def _ask(
        self,
        target: Target,
        code: RequestCode,
        header: Any = None,
        body: bytes = b"",
        *,
        about: str = "",
        accept: tuple[int, ...] = (ResponseCode.SUCCESS,),
        timeout_s: float | None = None,
    ) -> Command:
        return await self._instance.ask(
            target.address, code, header, body, about=about, accept=accept, timeout_s=timeout_s
        )

    async def _each(
        self, targets: Iterable[Target], ask: Callable[[Target], Awaitable[T]]
    ) -> tuple[dict[Target, T], tuple[BrokerFailure, ...]]:
        """Ask all at the same time; the first error, or one with all addresses, when nobody answers."""
        wanted = list(targets)
        found, failed = await self._gather(wanted, ask)
        failures = tuple(
            BrokerFailure(target.name, str(target.address), failed[target])
            for target in wanted
            if target in failed
        )
        if failures and not found:
            raise none_did_it(failures)
        return {target: found[target] for target in wanted if target in found}, failures

    async def _gather(
        self, keys: Iterable[Any], ask: Callable[[Any], Awaitable[T]]
    ) -> tuple[dict[Any, T], dict[Any, TrioMQError]]:
        """What `ask` gives for each key, and what went wrong for others; at most :data:`AT_ONCE` run."""
        found: dict[Any, T] = {}
        failed: dict[Any, TrioMQError] = {}
        room = anyio.Semaphore(AT_ONCE)

        async def one(key: Any) -> None:
            async with room:
                try:
                    found[key] = await ask(key)
                except _EXPECTED as error:
                    failed[key] = error

        try:
            async with anyio.create_task_group() as asking:
                for key in keys:
                    asking.start_soon(one, key)
        except BaseExceptionGroup as group:
            raise only(group) from None
        return found, failed

    async def _read(
        self, targets: Iterable[Target], ask: Callable[[Target], Awaitable[T]]
    ) -> Answers[str, T]:
        """What each says, by broker name."""
        found, failures = await self._each(targets, ask)
        return Answers({target.name: said for target, said in found.items()}, failures)

    async def _change(
        self, what: str, targets: Iterable[Target], ask: Callable[[Target], Awaitable[T]]
    ) -> dict[Target, T]:
        """Let all make a change; BrokersFailed when only some did."""
        found, failures = await self._each(targets, ask)
        if failures:
            done = tuple(str(target.address) for target in found)
            raise BrokersFailed(
                f"{what}: done at {', '.join(done)}, but not everywhere: {texts_of(failures)}; "
                f"do it again when the others can",
                done=done,
                failures=failures,
            )
        return found


def targets_of(brokers: Iterable[BrokerData], masters: bool) -> list[Target]:
    """One address of each broker: the master's; else the one with the least id, unless it has to be a master."""
    found = []
    for broker in sorted(brokers, key=lambda broker: broker.broker_name):
        addresses = broker.broker_addrs
        if addresses and (MASTER_ID in addresses or not masters):
            text = addresses[MASTER_ID if MASTER_ID in addresses else min(addresses)]
            name = broker.broker_name
            found.append(Target(name, parse_address(text, what=f"address of {name}")))
    return found


def texts_of(failures: Iterable[BrokerFailure]) -> str:
    """All failures in one line."""
    return " | ".join(map(str, failures))


def none_did_it(failures: tuple[BrokerFailure, ...]) -> TrioMQError:
    """The error of a request that nobody answered well."""
    if len(failures) == 1 or all(isinstance(f.error, PeerRefused) for f in failures):
        return failures[0].error
    if all(isinstance(failure.error, PeerUnavailable) for failure in failures):
        return PeerUnavailable(f"no broker answers: {texts_of(failures)}")
    return BrokersFailed(f"no broker did it: {texts_of(failures)}", done=(), failures=failures)
