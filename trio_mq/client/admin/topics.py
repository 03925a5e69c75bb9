"""Topics: list, create, change, delete, look at; and offsets of their queues.

In: names, settings of topics. Out: values of :mod:`.values`, the peers' TopicConfig, routes. Called by users of
:class:`trio_mq.Admin`. Source of the rules: Apache MQAdminExt, and what mqadmin's topicList, updateTopic, deleteTopic
and topicStatus do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

import attrs

from trio_mq.client.admin.base import AdminBase, Target, targets_of
from trio_mq.client.admin.values import Answers, QueueStats, Several, TopicStats, moment
from trio_mq.client.routes import TopicRoute
from trio_mq.errors import BrokerFailure, ConfigError, NoRoute
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import (
    GroupList,
    MessageQueue,
    TopicConfig,
    TopicList,
    TopicStatsTable,
)
from trio_mq.protocol.codes import Perm, RequestCode, ResponseCode
from trio_mq.protocol.topics import AUTO_CREATE_TOPIC, DLQ_PREFIX, RETRY_PREFIX

#: The name servers' settings that fix the queues of ordered topics (Apache: NamesrvUtil).
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
#: Topics that brokers make for themselves (Apache: TopicValidator), besides those named after brokers and clusters.
SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC, "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)  # fmt: skip
_INTERNAL_PREFIXES = ("rmq_sys_", "RMQ_SYS_", RETRY_PREFIX, DLQ_PREFIX)

#: A place in a queue: its ends, a queue offset, or the first message stored at or after a time.
Place = Literal["begin", "end"] | int | datetime


class TopicAdmin(AdminBase):
    """See the module."""

    async def topics(
        self, *, cluster: str | None = None, internal: bool = False
    ) -> tuple[str, ...]:
        """Names of topics, sorted. With `internal` those too that brokers make for themselves and for groups."""
        self._check_open()
        if cluster is None:
            reply = await self._instance.ask_nameserver(
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
            )
        else:
            header = headers.GetTopicsByClusterRequest(cluster=cluster)
            reply = await self._instance.ask_nameserver(
                RequestCode.GET_TOPICS_BY_CLUSTER, header, about=f"cluster {cluster}"
            )
        names = bodies.decode(TopicList, reply.body).topic_list
        if internal:
            return tuple(sorted(names))
        info = await self._cluster_info()
        clusters, brokers = info.cluster_addr_table, info.broker_addr_table
        replies = {f"{name}_REPLY_TOPIC" for name in clusters}
        own = {*SYSTEM_TOPICS, *clusters, *brokers, *replies}
        return tuple(
            sorted(n for n in names if n not in own and not n.startswith(_INTERNAL_PREFIXES))
        )

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: str | Perm = "rw",
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> TopicConfig:
        """Make a topic on all masters, or set an existing one to these values.

        `queues` are on each broker; `permission` is ``"r"``, ``"w"`` or ``"rw"``. `attributes` are Apache's, say
        ``{"message.type": "FIFO"}``. With `order`, name servers keep the number of its queues for producers even while
        a broker is away. BrokersFailed when only some brokers did it.
        """
        self._check_open()
        name = self._topic(topic)
        config = TopicConfig(
            name,
            queues if read_queues is None else read_queues,
            queues if write_queues is None else write_queues,
            int(permission_of(permission)),
            order=order,
            attributes=dict(attributes or {}),
        )
        targets = await self._wanted(cluster, broker)
        words = attribute_words(config.attributes, {})
        await self._put_topic(targets, dict.fromkeys(targets, config), words)
        return config

    async def update_topic(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: str | Perm | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Answers[str, TopicConfig]:
        """Change what is given on each broker that has the topic, and leave the rest; attributes of None go.

        The configs that hold now, by broker name. PeerRefused (TOPIC_NOT_EXIST) when no broker has it.
        """
        self._check_open()
        name = self._topic(topic)
        given: dict[str, Any] = {
            "read_queue_nums": read_queues,
            "write_queue_nums": write_queues,
            "perm": None if permission is None else int(permission_of(permission)),
            "order": order,
        }
        changes = {key: value for key, value in given.items() if value is not None}
        targets = await self._wanted(cluster, broker)
        found, failures = await self._each(targets, lambda target: self._config(target, name))
        if any(code_of(failure) != ResponseCode.TOPIC_NOT_EXIST for failure in failures):
            raise next(f.error for f in failures if code_of(f) != ResponseCode.TOPIC_NOT_EXIST)
        configs = {target: attrs.evolve(old, **changes) for target, old in found.items()}
        old_attributes = {key for config in found.values() for key in config.attributes}
        words = attribute_words(attributes or {}, dict.fromkeys(old_attributes, ""))
        await self._put_topic(list(configs), configs, words)
        return await self._read(configs, lambda target: self._config(target, name))

    async def _put_topic(
        self, targets: Iterable[Target], configs: Mapping[Target, TopicConfig], words: str | None
    ) -> None:
        wanted = list(targets)

        async def put(target: Target) -> None:
            config = configs[target]
            header = headers.CreateTopicRequest(
                topic=config.topic_name,
                default_topic=AUTO_CREATE_TOPIC,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm,
                topic_filter_type=config.topic_filter_type,
                topic_sys_flag=config.topic_sys_flag,
                order=config.order,
                attributes=words,
            )
            about = f"topic {config.topic_name}"
            await self._ask(target, RequestCode.UPDATE_AND_CREATE_TOPIC, header, about=about)

        name = next(iter(configs.values())).topic_name
        await self._change(f"topic {name}", wanted, put)
        ordered = {t.name: configs[t].write_queue_nums for t in wanted if configs[t].order}
        if ordered:
            await self._put_order(name, ordered)

    async def _put_order(self, topic: str, queues: Mapping[str, int]) -> None:
        text = ";".join(f"{name}:{count}" for name, count in sorted(queues.items()))
        header = headers.PutKVConfigRequest(namespace=ORDER_TOPIC_CONFIG, key=topic, value=text)
        await self._change(
            f"order of topic {topic}",
            self._nameservers(),
            lambda target: self._ask(target, RequestCode.PUT_KV_CONFIG, header),
        )

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages and its offsets, on all masters and in all name servers.

        A topic that is not there is no error. BrokersFailed when only some did it: it may come back from the others.
        """
        self._check_open()
        name = self._topic(topic)
        header = headers.DeleteTopicRequest(topic=name)
        there = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        await self._change(
            f"delete topic {name}",
            await self._brokers(cluster, masters=True),
            lambda target: self._ask(
                target,
                RequestCode.DELETE_TOPIC_IN_BROKER,
                header,
                about=f"topic {name}",
                accept=there,
            ),
        )
        gone = headers.DeleteTopicFromNamesrvRequest(topic=name, cluster_name=cluster)
        order = headers.DeleteKVConfigRequest(namespace=ORDER_TOPIC_CONFIG, key=name)

        async def forget(target: Target) -> None:
            about = f"topic {name}"
            await self._ask(target, RequestCode.DELETE_TOPIC_IN_NAMESRV, gone, about=about)
            await self._ask(target, RequestCode.DELETE_KV_CONFIG, order, about=about)

        await self._change(f"delete topic {name}", self._nameservers(), forget)

    # -- looking

    async def topic_route(self, topic: str) -> TopicRoute:
        """Which brokers serve a topic, where, and with which queues. NoRoute when none does."""
        self._check_open()
        return await self._route(self._topic(topic))

    async def topic_config(self, topic: str) -> Answers[str, TopicConfig]:
        """The settings of a topic, by broker name. NoRoute when no broker serves it."""
        self._check_open()
        name = self._topic(topic)
        return await self._read(await self._serving(name), lambda t: self._config(t, name))

    async def topic_stats(self, topic: str) -> TopicStats:
        """Smallest and largest offset of each queue, and when the last message came."""
        self._check_open()
        name = self._topic(topic)
        header = headers.GetTopicStatsInfoRequest(topic=name)

        async def one(target: Target) -> TopicStatsTable:
            code = RequestCode.GET_TOPIC_STATS_INFO
            reply = await self._ask(target, code, header, about=f"topic {name}")
            return bodies.decode(TopicStatsTable, reply.body)

        found = await self._read(await self._serving(name), one)
        queues = {
            queue: QueueStats(at.min_offset, at.max_offset, moment(at.last_update_timestamp))
            for table in found.values()
            for queue, at in table.offset_table.items()
        }
        put_tps = sum(table.topic_put_tps for table in found.values())
        return TopicStats(
            name, dict(sorted(queues.items(), key=queue_order)), put_tps, found.failures
        )

    async def groups_of(self, topic: str) -> Several[str]:
        """Groups that consume a topic, or once did."""
        self._check_open()
        name = self._topic(topic)
        header = headers.QueryTopicConsumeByWhoRequest(topic=name)

        async def one(target: Target) -> tuple[str, ...]:
            code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
            reply = await self._ask(target, code, header, about=f"topic {name}")
            return bodies.decode(GroupList, reply.body).group_list

        found = await self._read(await self._serving(name), one)
        groups = {group for listed in found.values() for group in listed}
        return Several(tuple(sorted(groups)), found.failures)

    # -- offsets

    async def min_offsets(self, topic: str) -> Answers[MessageQueue, int]:
        """The offset of the first message that each queue still has."""
        return await self.offsets(topic, "begin")

    async def max_offsets(self, topic: str) -> Answers[MessageQueue, int]:
        """The offset that the next message of each queue will get."""
        return await self.offsets(topic, "end")

    async def offsets_at(self, topic: str, at: datetime) -> Answers[MessageQueue, int]:
        """The first message of each queue that was stored at that time or later; the end where there is none."""
        return await self.offsets(topic, at)

    async def offsets(self, topic: str, place: Place) -> Answers[MessageQueue, int]:
        """The offset of a place in each queue that can be read."""
        self._check_open()
        route = await self._route(self._topic(topic))
        return await self._offsets(route, dict.fromkeys(route.read_queues, place))

    async def _offsets(
        self, route: TopicRoute, places: Mapping[MessageQueue, Place]
    ) -> Answers[MessageQueue, int]:
        targets = {t.name: t for t in targets_of(route.data.broker_datas, False)}

        async def one(queue: MessageQueue) -> int:
            return await self._offset(targets[queue.broker_name], queue, places[queue])

        wanted = [queue for queue in places if queue.broker_name in targets]
        found, failed = await self._gather(wanted, one)
        failures: dict[str, BrokerFailure] = {}
        for queue in wanted:
            if queue in failed:
                target = targets[queue.broker_name]
                failures[target.name] = BrokerFailure(
                    target.name, str(target.address), failed[queue]
                )
        if failures and not found:
            raise next(iter(failures.values())).error
        return Answers({q: found[q] for q in wanted if q in found}, tuple(failures.values()))

    async def _offset(self, target: Target, queue: MessageQueue, place: Place) -> int:
        """One queue's; a number stands for itself."""
        if isinstance(place, int):
            return place
        about = f"queue {queue.queue_id} of topic {queue.topic}"
        topic, number = queue.topic, queue.queue_id
        header: object
        if place == "begin":
            code, header = RequestCode.GET_MIN_OFFSET, headers.GetMinOffsetRequest(topic, number)
        elif place == "end":
            code, header = RequestCode.GET_MAX_OFFSET, headers.GetMaxOffsetRequest(topic, number)
        else:
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            header = headers.SearchOffsetRequest(topic, number, ms_of(place))
        reply = await self._ask(target, code, header, about=about)
        return headers.decode(headers.GetMaxOffsetReply, reply.ext).offset

    # -- helpers

    async def _serving(self, topic: str) -> list[Target]:
        """An address of each broker that serves a topic."""
        route = await self._route(topic)
        targets = targets_of(route.data.broker_datas, False)
        if not targets:
            raise NoRoute(f"topic {topic}: its route names no address of a broker", topic=topic)
        return targets

    async def _config(self, target: Target, topic: str) -> TopicConfig:
        header = headers.GetTopicConfigRequest(topic=topic)
        code = RequestCode.GET_TOPIC_CONFIG
        reply = await self._ask(target, code, header, about=f"topic {topic}")
        return bodies.decode(TopicConfig, reply.body)


def permission_of(text: str | Perm) -> Perm:
    """``"rw"``, ``"r"``, ``"w"``, or Perm as it is."""
    if isinstance(text, Perm):
        return text
    bits = {"r": Perm.READ, "w": Perm.WRITE}
    if not text or set(text) - bits.keys() or len(set(text)) != len(text):
        raise ConfigError(f"permission: {text!r} is none; write 'rw', 'r' or 'w'")
    return Perm(sum(bits[letter] for letter in text))


def attribute_words(
    wanted: Mapping[str, str | None], there: Mapping[str, str] | Iterable[str]
) -> str | None:
    """Attributes as a request carries them: ``+key=value`` sets one, ``-key`` takes one of those there away."""
    words = []
    for key, value in wanted.items():
        if any(sign in f"{key}{value or ''}" for sign in ",+=") or not key or key.startswith("-"):
            raise ConfigError(
                f"attributes: {key!r}={value!r}: commas and the signs + - = are not allowed"
            )
        if value is not None:
            words.append(f"+{key}={value}")
        elif key in set(there):
            words.append(f"-{key}")
    return ",".join(words) or None


def queue_order(entry: tuple[MessageQueue, object]) -> tuple[str, str, int]:
    """How queues are listed."""
    queue = entry[0]
    return queue.topic, queue.broker_name, queue.queue_id


def ms_of(at: datetime) -> int:
    """A time as the peers write it; ConfigError for one that says no zone."""
    if at.tzinfo is None:
        raise ConfigError(f"time {at.isoformat()}: it has no time zone; say datetime.now(UTC)")
    return round(at.timestamp() * 1000)


def code_of(failure: BrokerFailure) -> int | None:
    """The peer's response code of a failure."""
    return getattr(failure.error, "code", None)
