"""What administrators measure a broker by: statistics by name, lags of all groups, times of what was consumed.

In: VIEW_BROKER_STATS_DATA (315), GET_BROKER_CONSUME_STATS (317), QUERY_CONSUME_TIME_SPAN (303). Out: replies. A look
into the store may raise ColdData; the face asks again then. Called by the remoting face. Rules: Apache
AdminBrokerProcessor.
"""

from __future__ import annotations

from trio_mq.broker.groups import GroupTable
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.processors.statistics import Statistics
from trio_mq.broker.stats import NAMES, BrokerStats, Snapshot
from trio_mq.broker.topics import TopicTable
from trio_mq.clock import Clock
from trio_mq.errors import RequestRefused
from trio_mq.net.requests import Call, Reply, RequestTable
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpanBody,
    MessageQueue,
    QueueTimeSpan,
)
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.admin import (
    GetConsumeStatsInBrokerRequest,
    QueryConsumeTimeSpanRequest,
    ViewBrokerStatsDataRequest,
)
from trio_mq.store.store import Store


class Figures:
    """Answers with numbers. `progress` knows how far a group is in a queue."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        progress: Statistics,
        clock: Clock,
        address: str,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._stats = stats
        self._progress = progress
        self._clock = clock
        self._address = address

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStatsDataRequest, self.view)
        table.add(RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerRequest, self.groups)
        table.add(RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequest, self.times)

    def view(self, _: Call, request: ViewBrokerStatsDataRequest) -> Reply:
        """VIEW_BROKER_STATS_DATA (315): one statistic over a minute, an hour and a day."""
        spans = self._stats.spans(request.stats_name, request.stats_key)
        if spans is None:
            known = "" if request.stats_name in NAMES else f"; known names: {', '.join(NAMES)}"
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{request.stats_name}> <{request.stats_key}> not exist{known}",
            )
        body = BrokerStatsData(_item(spans.minute), _item(spans.hour), _item(spans.day))
        return Reply(body=bodies.encode(body))

    def groups(self, _: Call, request: GetConsumeStatsInBrokerRequest) -> Reply:
        """GET_BROKER_CONSUME_STATS (317): how far each group is in each of its topics."""
        found, lag, in_flight = [], 0, 0
        for group in self._groups:
            name = group.group_name
            of_group = []
            for topic in self._progress.subscribed(name, self._offsets.topics_of(name)):
                config = self._topics.get(topic)
                if config is None or (request.order and not config.order):
                    continue
                stats = self._of(name, topic, config.write_queue_nums)
                of_group.append(stats)
                for queue in stats.offset_table.values():
                    lag += queue.broker_offset - queue.consumer_offset
                    in_flight += queue.pull_offset - queue.consumer_offset
            found.append({name: tuple(of_group)})
        return Reply(
            body=bodies.encode(ConsumeStatsList(self._address, tuple(found), lag, in_flight))
        )

    def _of(self, group: str, topic: str, queues: int) -> ConsumeStats:
        table = {
            self._progress.queue_name(topic, queue_id): self._progress.progress(
                group, topic, queue_id
            )
            for queue_id in range(queues)
        }
        return ConsumeStats(table, self._stats.get_tps(group, topic))

    def times(self, _: Call, request: QueryConsumeTimeSpanRequest) -> Reply:
        """QUERY_CONSUME_TIME_SPAN (303): store times of the oldest, the newest and the last consumed message."""
        config = self._topics.require(request.topic)
        spans = tuple(
            self._span(request.group, self._progress.queue_name(request.topic, queue_id))
            for queue_id in range(config.write_queue_nums)
        )
        return Reply(body=bodies.encode(ConsumeTimeSpanBody(spans)))

    def _span(self, group: str, name: MessageQueue) -> QueueTimeSpan:
        queue = self._store.queue(name.topic, name.queue_id)
        if queue is None or queue.max_offset <= queue.min_offset:
            return QueueTimeSpan(name, -1, -1, -1)
        time_of = self._progress.store_time_ms
        consumed = self._offsets.query(group, name.topic, name.queue_id) or 0
        oldest_ms = self._store.reader.earliest_store_time_ms(queue)
        delay_ms = 0
        if consumed < queue.max_offset:
            next_ms = time_of(queue, max(consumed, queue.min_offset))
            delay_ms = max(0, self._clock.now_ms() - next_ms) if next_ms > 0 else 0
        return QueueTimeSpan(
            name,
            min_time_stamp=oldest_ms,
            max_time_stamp=time_of(queue, queue.max_offset - 1),
            consume_time_stamp=time_of(queue, consumed - 1) if consumed > 0 else oldest_ms,
            delay_time=delay_ms,
        )


def _item(snapshot: Snapshot) -> BrokerStatsItem:
    return BrokerStatsItem(snapshot.sum, snapshot.tps, snapshot.average)
