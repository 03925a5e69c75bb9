"""Groups: list, create, change, delete; who is connected, and how far they are.

In: names and settings of groups. Out: values of :mod:`.values`, the peers' SubscriptionGroupConfig.
Called by users of :class:`trio_mq.Admin`. Source of the rules: Apache MQAdminExt, and what mqadmin's updateSubGroup,
deleteSubGroup, consumerConnection, producerConnection and consumerProgress do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from trio_mq.client.admin.base import Target, targets_of
from trio_mq.client.admin.topics import TopicAdmin, queue_order
from trio_mq.client.admin.values import (
    Answers,
    GroupMembers,
    GroupProgress,
    Member,
    QueueProgress,
    Several,
    moment,
)
from trio_mq.errors import BrokerFailure, ClientError
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import (
    Connection,
    ConsumerConnection,
    ConsumeStats,
    MessageQueue,
    ProducerConnection,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicList,
)
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.topics import DLQ_PREFIX, RETRY_PREFIX

#: Groups that brokers make for themselves (Apache: MixAll).
SYSTEM_GROUPS = frozenset(
    {
        "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_SYS_RMQ_TRANS", "SCHEDULE_CONSUMER", "DEFAULT_CONSUMER",
    }
)  # fmt: skip
_SYSTEM_PREFIX = "CID_RMQ_SYS_"


class GroupAdmin(TopicAdmin):
    """See the module."""

    async def groups(self, *, cluster: str | None = None, internal: bool = False) -> Several[str]:
        """Names of consumer groups, sorted; with `internal` those too that brokers make for themselves."""
        self._check_open()

        found = await self._read(await self._brokers(cluster), self._group_table)
        names = {name for table in found.values() for name in table}
        if not internal:
            names = {n for n in names - SYSTEM_GROUPS if not n.startswith(_SYSTEM_PREFIX)}
        return Several(tuple(sorted(names)), found.failures)

    async def create_group(
        self,
        group: str,
        *,
        retry_max_times: int = 16,
        retry_queues: int = 1,
        consume_enable: bool = True,
        consume_broadcast_enable: bool = True,
        consume_message_orderly: bool = False,
        consume_timeout_minutes: int = 15,
        attributes: dict[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> SubscriptionGroupConfig:
        """Make a group on all masters, or set an existing one to these values.

        `retry_max_times` failures make a message a dead letter. BrokersFailed when only some brokers did it.
        """
        self._check_open()
        config = SubscriptionGroupConfig(
            self._group(group),
            retry_max_times=retry_max_times,
            retry_queue_nums=retry_queues,
            consume_enable=consume_enable,
            consume_broadcast_enable=consume_broadcast_enable,
            consume_message_orderly=consume_message_orderly,
            consume_timeout_minute=consume_timeout_minutes,
            attributes={f"+{key}": value for key, value in (attributes or {}).items()},
        )
        targets = await self._wanted(cluster, broker)
        await self._put_group(dict.fromkeys(targets, config))
        return attrs.evolve(config, attributes=dict(attributes or {}))

    async def update_group(
        self,
        group: str,
        *,
        retry_max_times: int | None = None,
        retry_queues: int | None = None,
        consume_enable: bool | None = None,
        consume_broadcast_enable: bool | None = None,
        consume_message_orderly: bool | None = None,
        consume_timeout_minutes: int | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Answers[str, SubscriptionGroupConfig]:
        """Change what is given on each broker that has the group, and leave the rest; the configs that hold now.

        ClientError when no broker has it.
        """
        self._check_open()
        name = self._group(group)
        given: dict[str, Any] = {
            "retry_max_times": retry_max_times,
            "retry_queue_nums": retry_queues,
            "consume_enable": consume_enable,
            "consume_broadcast_enable": consume_broadcast_enable,
            "consume_message_orderly": consume_message_orderly,
            "consume_timeout_minute": consume_timeout_minutes,
        }
        # Attributes of a request are words with a sign; without any, brokers keep those that are there.
        changes = {key: value for key, value in given.items() if value is not None}
        targets = await self._wanted(cluster, broker)
        found, failures = await self._configs(targets, name)
        if failures:
            raise failures[0].error
        await self._put_group(
            {target: attrs.evolve(old, attributes={}, **changes) for target, old in found.items()}
        )
        found, failures = await self._configs(found, name)
        return Answers({target.name: config for target, config in found.items()}, failures)

    async def _put_group(self, configs: dict[Target, SubscriptionGroupConfig]) -> None:
        name = next(iter(configs.values())).group_name

        async def put(target: Target) -> None:
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self._ask(
                target, code, body=bodies.encode(configs[target]), about=f"group {name}"
            )

        await self._change(f"group {name}", configs, put)

    async def group_config(self, group: str) -> Answers[str, SubscriptionGroupConfig]:
        """The settings of a group, by name of each broker that has it.

        ClientError when none has it.
        """
        self._check_open()
        name = self._group(group)
        found, failures = await self._configs(await self._brokers(), name)
        return Answers({target.name: config for target, config in found.items()}, failures)

    async def _configs(
        self, targets: Iterable[Target], group: str
    ) -> tuple[dict[Target, SubscriptionGroupConfig], tuple[BrokerFailure, ...]]:
        """The settings of a group where it is there; a refusal when it is nowhere."""
        tables, failures = await self._each(targets, self._group_table)
        found = {target: table[group] for target, table in tables.items() if group in table}
        if not found:
            raise ClientError(
                f"group {group} is not at {', '.join(str(t.address) for t in tables)}; "
                f"check its name, or create it (trio-mq group create)"
            )
        return found, failures

    async def _group_table(self, target: Target) -> Mapping[str, SubscriptionGroupConfig]:
        """All groups of a broker: asked for one that is not there (352), a broker makes it."""
        # No header fields: all groups at once, from every release.
        reply = await self._ask(target, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return bodies.decode(SubscriptionGroupWrapper, reply.body).subscription_group_table

    async def delete_group(
        self, group: str, *, delete_offsets: bool = True, cluster: str | None = None
    ) -> None:
        """Delete a group, its retry topic and its dead letters, on all masters. One that is not there is no error."""
        self._check_open()
        name = self._group(group)
        header = headers.DeleteSubscriptionGroupRequest(
            group_name=name, clean_offset=delete_offsets
        )
        await self._change(
            f"delete group {name}",
            await self._brokers(cluster, masters=True),
            lambda target: self._ask(
                target, RequestCode.DELETE_SUBSCRIPTIONGROUP, header, about=f"group {name}"
            ),
        )
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            await self.delete_topic(prefix + name, cluster=cluster)

    # -- who is there

    async def consumers(self, group: str) -> GroupMembers:
        """The connected consumers of a group, and what they subscribe; no members when nobody is there."""
        self._check_open()
        name = self._group(group)
        header = headers.GetConsumerConnectionListRequest(consumer_group=name)
        online = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)

        async def one(target: Target) -> ConsumerConnection:
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
            reply = await self._ask(target, code, header, about=f"group {name}", accept=online)
            if reply.code != ResponseCode.SUCCESS:
                return ConsumerConnection()
            return bodies.decode(ConsumerConnection, reply.body)

        found = await self._read(await self._brokers(), one)
        told = [connection for connection in found.values() if connection.connection_set]
        first = told[0] if told else ConsumerConnection()
        return GroupMembers(
            name,
            members_of(connection.connection_set for connection in told),
            {topic: sub for said in told for topic, sub in said.subscription_table.items()},
            first.consume_type,
            first.message_model,
            first.consume_from_where,
            found.failures,
        )

    async def producers(self, group: str) -> Several[Member]:
        """The connected producers of a group."""
        self._check_open()
        name = self._group(group)
        header = headers.GetProducerConnectionListRequest(producer_group=name)
        # Brokers have no code of its own for "nobody is connected".
        online = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)

        async def one(target: Target) -> ProducerConnection:
            code = RequestCode.GET_PRODUCER_CONNECTION_LIST
            reply = await self._ask(target, code, header, about=f"group {name}", accept=online)
            if reply.code != ResponseCode.SUCCESS:
                return ProducerConnection()
            return bodies.decode(ProducerConnection, reply.body)

        found = await self._read(await self._brokers(), one)
        return Several(members_of(said.connection_set for said in found.values()), found.failures)

    async def topics_of(self, group: str) -> Several[str]:
        """Topics that a group has offsets in, sorted; its retry topics are left out."""
        self._check_open()
        name = self._group(group)
        header = headers.QueryTopicsByConsumerRequest(group=name)

        async def one(target: Target) -> tuple[str, ...]:
            code = RequestCode.QUERY_TOPICS_BY_CONSUMER
            reply = await self._ask(target, code, header, about=f"group {name}")
            return bodies.decode(TopicList, reply.body).topic_list if reply.body else ()

        found = await self._read(await self._brokers(), one)
        topics = {topic for listed in found.values() for topic in listed}
        own = {topic for topic in topics if topic.startswith(RETRY_PREFIX)}
        return Several(tuple(sorted(topics - own)), found.failures)

    # -- how far they are

    async def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """How far a group is in each queue of its topics, or of one."""
        self._check_open()
        name = self._group(group)
        header = headers.GetConsumeStatsRequest(
            consumer_group=name, topic=None if topic is None else self._topic(topic)
        )

        async def one(target: Target) -> ConsumeStats:
            code = RequestCode.GET_CONSUME_STATS
            reply = await self._ask(target, code, header, about=f"group {name}")
            return bodies.decode(ConsumeStats, reply.body)

        found = await self._read(await self._brokers(), one)
        queues = {
            queue: QueueProgress(
                at.broker_offset, at.consumer_offset, at.pull_offset, moment(at.last_timestamp)
            )
            for stats in found.values()
            for queue, at in stats.offset_table.items()
        }
        tps = sum(stats.consume_tps for stats in found.values())
        return GroupProgress(
            name, dict(sorted(queues.items(), key=queue_order)), tps, found.failures
        )

    async def consumer_offsets(self, group: str, topic: str) -> Answers[MessageQueue, int]:
        """The offset that brokers keep for a group in each queue; queues without one are left out."""
        self._check_open()
        name = self._group(group)
        route = await self._route(self._topic(topic))
        targets = {t.name: t for t in targets_of(route.data.broker_datas, False)}

        async def one(queue: MessageQueue) -> int | None:
            header = headers.QueryConsumerOffsetRequest(
                consumer_group=name,
                topic=queue.topic,
                queue_id=queue.queue_id,
                set_zero_if_not_found=False,
            )
            reply = await self._ask(
                targets[queue.broker_name],
                RequestCode.QUERY_CONSUMER_OFFSET,
                header,
                about=f"group {name} in topic {topic}",
                accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
            )
            if reply.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            return headers.decode(headers.QueryConsumerOffsetReply, reply.ext).offset

        wanted = [queue for queue in route.read_queues if queue.broker_name in targets]
        found, failed = await self._gather(wanted, one)
        failures = {
            queue.broker_name: BrokerFailure(
                queue.broker_name, str(targets[queue.broker_name].address), failed[queue]
            )
            for queue in failed
        }
        if failures and not found:
            raise next(iter(failures.values())).error
        known = {q: offset for q in wanted if (offset := found.get(q)) is not None}
        return Answers(known, tuple(failures.values()))

    async def set_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Write the offset of a group in one queue. A consumer that is connected writes its own soon: see
        :meth:`reset_offsets`, which tells it.
        """
        self._check_open()
        target = await self._broker(queue.broker_name)
        await self._write_offset(target, self._group(group), queue, offset)

    async def _write_offset(
        self, target: Target, group: str, queue: MessageQueue, offset: int
    ) -> None:
        header = headers.UpdateConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        about = f"group {group} in queue {queue.queue_id} of topic {queue.topic}"
        await self._ask(target, RequestCode.UPDATE_CONSUMER_OFFSET, header, about=about)


def members_of(sets: Iterable[Iterable[Connection]]) -> tuple[Member, ...]:
    """Clients that several brokers tell of, each once."""
    found: dict[str, Member] = {}
    for connections in sets:
        for each in connections:
            member = Member(each.client_id, each.client_addr, each.language, each.version)
            found.setdefault(each.client_id, member)
    return tuple(found[client_id] for client_id in sorted(found))
