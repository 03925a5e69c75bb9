"""What administrators ask about a running broker: queues, groups, connections.

In: typed requests. Out: replies. Called by the remoting face. A look into the store may raise
ColdData; the face asks again then. Rules: Apache AdminBrokerProcessor.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from trio_mq.broker.members import Client, Members
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.stats import BrokerStats
from trio_mq.broker.topics import TopicTable
from trio_mq.config import Settings
from trio_mq.errors import RequestRefused
from trio_mq.net.requests import Call, Reply, RequestTable
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import (
    Connection,
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    MessageQueue,
    OffsetWrapper,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QuerySubscriptionReplyBody,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from trio_mq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from trio_mq.protocol.headers.admin import (
    GetConsumeStatsRequest,
    GetTopicStatsInfoRequest,
    QuerySubscriptionByConsumerRequest,
    QueryTopicConsumeByWhoRequest,
    QueryTopicsByConsumerRequest,
)
from trio_mq.protocol.headers.heartbeat import (
    GetConsumerConnectionListRequest,
    GetProducerConnectionListRequest,
)
from trio_mq.store.queues import BaseQueue
from trio_mq.store.store import Store


class Statistics:
    """Answers about topics, groups and connections."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        members: Members,
        stats: BrokerStats,
        address: str,
    ) -> None:
        self._settings = settings
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._members = members
        self._stats = stats
        self._address = address

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequest, self.topic)
        table.add(RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequest, self.group)
        table.add(RequestCode.GET_ALL_CONSUMER_OFFSET, None, self.all_offsets)
        table.add(
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            GetConsumerConnectionListRequest,
            self.consumers,
        )
        table.add(
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            GetProducerConnectionListRequest,
            self.producers,
        )
        table.add(RequestCode.GET_ALL_PRODUCER_INFO, None, self.all_producers)
        table.add(
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, QueryTopicConsumeByWhoRequest, self.groups_of
        )
        table.add(
            RequestCode.QUERY_TOPICS_BY_CONSUMER, QueryTopicsByConsumerRequest, self.topics_of
        )
        table.add(
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
            QuerySubscriptionByConsumerRequest,
            self.subscription,
        )

    # -- queues

    def topic(self, _: Call, request: GetTopicStatsInfoRequest) -> Reply:
        """GET_TOPIC_STATS_INFO (202): bounds of all queues."""
        config = self._topics.require(request.topic)
        table: dict[MessageQueue, TopicOffset] = {}
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            queue = self._store.queue(request.topic, queue_id)
            offset = TopicOffset()
            if queue is not None:
                last_ms = self.store_time_ms(queue, queue.max_offset - 1)
                offset = TopicOffset(queue.min_offset, queue.max_offset, max(0, last_ms))
            table[self.queue_name(request.topic, queue_id)] = offset
        return Reply(body=bodies.encode(TopicStatsTable(table, self._stats.put_tps(request.topic))))

    def group(self, _: Call, request: GetConsumeStatsRequest) -> Reply:
        """GET_CONSUME_STATS (208): how far a group is in each queue."""
        table: dict[MessageQueue, OffsetWrapper] = {}
        tps = 0.0
        for topic in self._topics_to_show(request):
            config = self._topics.get(topic)
            tps += self._stats.get_tps(request.consumer_group, topic)
            for queue_id in range(0 if config is None else config.read_queue_nums):
                name = self.queue_name(topic, queue_id)
                table[name] = self.progress(request.consumer_group, topic, queue_id)
        return Reply(body=bodies.encode(ConsumeStats(table, tps)))

    def _topics_to_show(self, request: GetConsumeStatsRequest) -> Iterable[str]:
        """Topics as asked for; without a list, only those that a connected group subscribes."""
        if request.topic_list:
            return sorted(set(filter(None, request.topic_list.split(";"))))
        group = request.consumer_group
        topics = [request.topic] if request.topic else self._offsets.topics_of(group)
        return self.subscribed(group, topics)

    def subscribed(self, group: str, topics: Iterable[str]) -> Iterable[str]:
        """Those topics that a connected group subscribes; all of them when nobody is connected."""
        live = self._members.consumer_group(group)
        if live is None or not live.subscriptions:
            return topics
        return [topic for topic in topics if topic in live.subscriptions]

    def progress(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        """How far a group is in a queue."""
        queue = self._store.queue(topic, queue_id)
        consumed = max(0, self._offsets.query(group, topic, queue_id) or 0)
        pulled = self._offsets.pull_offset(group, topic, queue_id) or 0
        last_ms = 0 if queue is None else self.store_time_ms(queue, consumed - 1)
        return OffsetWrapper(
            broker_offset=0 if queue is None else queue.max_offset,
            consumer_offset=consumed,
            pull_offset=max(consumed, pulled),
            last_timestamp=max(0, last_ms),
        )

    def store_time_ms(self, queue: BaseQueue, offset: int) -> int:
        """Store time of a message, -1 when it is not there."""
        if not queue.min_offset <= offset < queue.max_offset:
            return -1
        log_offset = queue.log_offset_at(offset)
        return -1 if log_offset < 0 else self._store.reader.store_time_ms(log_offset)

    def queue_name(self, topic: str, queue_id: int) -> MessageQueue:
        """A queue of this broker."""
        return MessageQueue(topic, self._settings.broker.broker_name, queue_id)

    def all_offsets(self, _: Call, __: None) -> Reply:
        """GET_ALL_CONSUMER_OFFSET (43)."""
        return Reply(body=self._offsets.encoded())

    # -- connections

    def consumers(self, _: Call, request: GetConsumerConnectionListRequest) -> Reply:
        """GET_CONSUMER_CONNECTION_LIST (203)."""
        group = self._members.consumer_group(request.consumer_group)
        if group is None:
            raise RequestRefused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"no consumer of group {request.consumer_group} is connected",
            )
        body = ConsumerConnection(
            _connections(group.clients.values()),
            dict(group.subscriptions),
            group.consume_type,
            group.message_model,
            group.consume_from_where,
        )
        return Reply(body=bodies.encode(body))

    def producers(self, _: Call, request: GetProducerConnectionListRequest) -> Reply:
        """GET_PRODUCER_CONNECTION_LIST (204)."""
        clients = self._members.producers(request.producer_group)
        if not clients:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"no producer of group {request.producer_group} is connected",
            )
        return Reply(body=bodies.encode(ProducerConnection(_connections(clients))))

    def all_producers(self, call: Call, _: None) -> Reply:
        """GET_ALL_PRODUCER_INFO (328): the members of all producer groups."""
        now_s = trio.current_time()
        table = {
            group: tuple(
                ProducerInfo(
                    client.client_id,
                    f"/{client.peer.address}",
                    _language(client.language),
                    client.version,
                    call.now_ms - round(1000 * (now_s - client.seen_s)),
                )
                for client in self._members.producers(group)
            )
            for group in self._members.producer_groups
        }
        return Reply(body=bodies.encode(ProducerTableInfo(table)))

    def groups_of(self, _: Call, request: QueryTopicConsumeByWhoRequest) -> Reply:
        """QUERY_TOPIC_CONSUME_BY_WHO (300): groups that subscribe a topic, or once did."""
        groups = {
            *self._members.subscribers(request.topic),
            *self._offsets.groups_of(request.topic),
        }
        return Reply(body=bodies.encode(GroupList(tuple(sorted(groups)))))

    def topics_of(self, _: Call, request: QueryTopicsByConsumerRequest) -> Reply:
        """QUERY_TOPICS_BY_CONSUMER (343): topics that a group has offsets in."""
        topics = tuple(self._offsets.topics_of(request.group))
        return Reply(body=bodies.encode(TopicList(topics, self._address)))

    def subscription(self, _: Call, request: QuerySubscriptionByConsumerRequest) -> Reply:
        """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""
        topic = request.topic or ""
        found = self._members.subscription(request.group, topic)
        return Reply(body=bodies.encode(QuerySubscriptionReplyBody(request.group, topic, found)))


def _connections(clients: Iterable[Client]) -> tuple[Connection, ...]:
    return tuple(
        Connection(
            client.client_id,
            str(client.peer.address),
            _language(client.language),
            client.version,
        )
        for client in clients
    )


def _language(code: int | None) -> str:
    try:
        return LanguageCode(code if code is not None else LanguageCode.OTHER).name
    except ValueError:
        return LanguageCode.OTHER.name
