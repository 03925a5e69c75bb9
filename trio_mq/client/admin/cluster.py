"""Clusters, brokers and name servers: who there is, how they are, their settings; and what a consumer says of itself.

In: names of clusters and brokers, settings. Out: values of :mod:`.values`. Called by users of
:class:`trio_mq.Admin`. Source of the rules: Apache MQAdminExt, and what mqadmin's clusterList, brokerStatus,
getBrokerConfig, updateBrokerConfig, updateKvConfig, wipeWritePerm and consumerStatus do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from trio_mq.client.admin.base import AdminBase, Target
from trio_mq.client.admin.values import (
    Broker,
    BrokerStatus,
    ConsumeRates,
    QueueInHand,
    RunningInfo,
    Several,
    moment,
)
from trio_mq.errors import ConfigError, PeerRefused, PeerUnavailable
from trio_mq.net.address import parse_address
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import ClusterInfo, ConsumerRunningInfo, KVTable
from trio_mq.protocol.codes import RequestCode, ResponseCode

#: A broker passes the question on to the client, and waits 10 s for it.
ASK_CLIENT_S = 12.0


class ClusterAdmin(AdminBase):
    """See the module."""

    # -- brokers

    async def brokers(self, cluster: str | None = None) -> tuple[Broker, ...]:
        """All brokers that name servers know, replicas too; nothing is asked of the brokers."""
        self._check_open()
        return brokers_of(await self._cluster_info(), cluster)

    async def clusters(self) -> dict[str, tuple[str, ...]]:
        """Broker names by cluster."""
        self._check_open()
        table = (await self._cluster_info()).cluster_addr_table
        return {cluster: tuple(sorted(names)) for cluster, names in sorted(table.items())}

    async def cluster_status(self, cluster: str | None = None) -> Several[BrokerStatus]:
        """How all brokers are, replicas too; `failures` tells those that do not answer."""
        self._check_open()
        brokers = brokers_of(await self._cluster_info(), cluster)
        by_target = {Target(b.name, parse_address(b.address)): b for b in brokers}

        async def one(target: Target) -> BrokerStatus:
            return BrokerStatus(by_target[target], await self._runtime(target))

        found, failures = await self._each(by_target, one)
        return Several(tuple(found.values()), failures)

    async def broker_status(self, broker: str) -> BrokerStatus:
        """How one broker is, by its name (the master) or by ``host:port``."""
        self._check_open()
        target = await self._broker(broker)
        known = brokers_of(await self._cluster_info(), None)
        address = str(target.address)
        default = Broker("", target.name, -1, address)
        found = next((each for each in known if each.address == address), default)
        return BrokerStatus(found, await self._runtime(target))

    async def _runtime(self, target: Target) -> Mapping[str, str]:
        reply = await self._ask(target, RequestCode.GET_BROKER_RUNTIME_INFO)
        return bodies.decode(KVTable, reply.body).table

    async def broker_config(self, broker: str) -> dict[str, str]:
        """The settings that are in force at one broker."""
        self._check_open()
        target = await self._broker(broker)
        reply = await self._ask(target, RequestCode.GET_BROKER_CONFIG)
        return settings_of(reply.body)

    async def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of one broker while it runs; PeerRefused when it does not take one of them."""
        self._check_open()
        if not settings:
            raise ConfigError("settings: none is given; say which shall change")
        body = "".join(f"{key}={value}\n" for key, value in settings.items())
        target = await self._broker(broker)
        about = ", ".join(settings)
        await self._ask(target, RequestCode.UPDATE_BROKER_CONFIG, body=body.encode(), about=about)

    # -- name servers

    async def kv(self, namespace: str) -> dict[str, str]:
        """All settings that name servers keep in a namespace, say ``ORDER_TOPIC_CONFIG``."""
        self._check_open()
        reply = await self._instance.ask_nameserver(
            RequestCode.GET_KVLIST_BY_NAMESPACE,
            headers.GetKVListByNamespaceRequest(namespace=namespace),
            about=f"namespace {namespace}",
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if reply.code != ResponseCode.SUCCESS or not reply.body:
            return {}
        return dict(bodies.decode(KVTable, reply.body).table)

    async def kv_get(self, namespace: str, key: str) -> str | None:
        """One of them, None when it is not set."""
        self._check_open()
        reply = await self._instance.ask_nameserver(
            RequestCode.GET_KV_CONFIG,
            headers.GetKVConfigRequest(namespace=namespace, key=key),
            about=f"{key} in namespace {namespace}",
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if reply.code != ResponseCode.SUCCESS:
            return None
        return headers.decode(headers.GetKVConfigReply, reply.ext).value

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Set one at all name servers."""
        self._check_open()
        header = headers.PutKVConfigRequest(namespace=namespace, key=key, value=value)
        await self._tell_nameservers(RequestCode.PUT_KV_CONFIG, header, f"{key} in {namespace}")

    async def kv_delete(self, namespace: str, key: str) -> None:
        """Take one away from all name servers. One that is not there is no error."""
        self._check_open()
        header = headers.DeleteKVConfigRequest(namespace=namespace, key=key)
        await self._tell_nameservers(RequestCode.DELETE_KV_CONFIG, header, f"{key} in {namespace}")

    async def _tell_nameservers(self, code: RequestCode, header: object, about: str) -> None:
        await self._change(
            about,
            self._nameservers(),
            lambda target: self._ask(target, code, header, about=about),
        )

    async def wipe_write_permission(self, broker: str) -> dict[str, int]:
        """Let producers leave a broker: name servers show its topics as not writable, until it registers again
        with a change or :meth:`add_write_permission` is called. Numbers of topics, by address of the name server.
        """
        self._check_open()
        header = headers.WipeWritePermOfBrokerRequest(broker_name=broker)

        async def one(target: Target) -> int:
            code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
            reply = await self._ask(target, code, header, about=f"broker {broker}")
            return headers.decode(headers.WipeWritePermOfBrokerReply, reply.ext).wipe_topic_count

        return await self._counted(f"write permission of {broker}", one)

    async def add_write_permission(self, broker: str) -> dict[str, int]:
        """The other direction."""
        self._check_open()
        header = headers.AddWritePermOfBrokerRequest(broker_name=broker)

        async def one(target: Target) -> int:
            code = RequestCode.ADD_WRITE_PERM_OF_BROKER
            reply = await self._ask(target, code, header, about=f"broker {broker}")
            return headers.decode(headers.AddWritePermOfBrokerReply, reply.ext).add_topic_count

        return await self._counted(f"write permission of {broker}", one)

    async def _counted(self, what: str, ask: Callable[[Target], Awaitable[int]]) -> dict[str, int]:
        found = await self._change(what, self._nameservers(), ask)
        return {str(target.address): count for target, count in found.items()}

    # -- a running consumer

    async def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> RunningInfo:
        """What a connected consumer says of itself; with `stacks` what its threads do, where it tells that.

        PeerRefused when it is not connected, or does not answer its broker in time.
        """
        self._check_open()
        name = self._group(group)
        header = headers.GetConsumerRunningInfoRequest(
            consumer_group=name, client_id=client_id, jstack_enable=stacks
        )
        failure: PeerRefused | PeerUnavailable | None = None
        for target in await self._brokers():
            try:
                reply = await self._ask(
                    target,
                    RequestCode.GET_CONSUMER_RUNNING_INFO,
                    header,
                    about=f"client {client_id} of group {name}",
                    timeout_s=ASK_CLIENT_S,
                )
            except (PeerRefused, PeerUnavailable) as error:
                failure = failure or error
            else:
                told = bodies.decode(ConsumerRunningInfo, reply.body)
                return running_info_of(name, client_id, told)
        assert failure is not None, "there is a broker, or asking for them fails"
        raise failure


def brokers_of(info: ClusterInfo, cluster: str | None) -> tuple[Broker, ...]:
    """All addresses, by cluster, name and id; ConfigError for a cluster that is not there."""
    if cluster is not None and cluster not in info.cluster_addr_table:
        known = ", ".join(sorted(info.cluster_addr_table)) or "none"
        raise ConfigError(f"cluster: the name server knows no {cluster!r}; it knows {known}")
    found = [
        Broker(data.cluster, data.broker_name, broker_id, address)
        for data in info.broker_addr_table.values()
        for broker_id, address in data.broker_addrs.items()
        if cluster in (None, data.cluster)
    ]
    return tuple(sorted(found, key=lambda broker: (broker.cluster, broker.name, broker.broker_id)))


def settings_of(body: bytes) -> dict[str, str]:
    """Lines of ``key=value``, by key; nothing in them is escaped."""
    lines = (line.partition("=") for line in body.decode("utf-8", "replace").splitlines())
    return dict(sorted((key.strip(), value.strip()) for key, sign, value in lines if sign))


def running_info_of(group: str, client_id: str, told: ConsumerRunningInfo) -> RunningInfo:
    """The client's words as values. What a client leaves out is 0, or not there."""
    return RunningInfo(
        group,
        client_id,
        dict(told.properties),
        tuple(sorted(told.subscription_set, key=lambda subscription: subscription.topic)),
        {queue: queue_in_hand(fields) for queue, fields in told.mq_table.items()},
        {topic: rates_of(fields) for topic, fields in sorted(told.status_table.items())},
        told.jstack,
    )


def queue_in_hand(fields: Mapping[str, Any]) -> QueueInHand:
    """One queue, as Java (``droped``) and Go (``dropped``) tell of it."""
    return QueueInHand(
        _whole(fields, "commitOffset"),
        _whole(fields, "cachedMsgCount"),
        _whole(fields, "cachedMsgMinOffset"),
        _whole(fields, "cachedMsgMaxOffset"),
        fields.get("locked") is True,
        fields.get("droped") is True or fields.get("dropped") is True,
        moment(_whole(fields, "lastPullTimestamp")),
        moment(_whole(fields, "lastConsumeTimestamp")),
    )


def rates_of(fields: Mapping[str, Any]) -> ConsumeRates:
    """Rates of one topic."""
    return ConsumeRates(
        _real(fields, "pullRT"),
        _real(fields, "pullTPS"),
        _real(fields, "consumeRT"),
        _real(fields, "consumeOKTPS"),
        _real(fields, "consumeFailedTPS"),
        _whole(fields, "consumeFailedMsgs"),
    )


def _whole(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0


def _real(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0
