"""Requests about places in queues: consumer offsets, bounds, search by time.

In: typed requests. Out: replies; queue offsets count messages, times are ms since the epoch. Called
by the remoting face. A look into the store may raise ColdData; nothing has been changed then, and
the face asks again. Rules: Apache ConsumerManageProcessor, AdminBrokerProcessor.
"""

from __future__ import annotations

from trio_mq.broker.attributes import QUEUE_TYPE
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.offsets import Commit, ConsumerOffsets
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings
from trio_mq.errors import RequestRefused
from trio_mq.net.requests import Call, Reply, RequestTable
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.offset import (
    BoundaryType,
    GetEarliestMsgStoretimeReply,
    GetEarliestMsgStoretimeRequest,
    GetMaxOffsetReply,
    GetMaxOffsetRequest,
    GetMinOffsetReply,
    GetMinOffsetRequest,
    QueryConsumerOffsetReply,
    QueryConsumerOffsetRequest,
    SearchOffsetReply,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from trio_mq.store.store import Store


class Offsets:
    """Answers where groups and queues are."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        settings: BrokerSettings,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._settings = settings

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequest, self.update)
        table.add(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequest, self.query)
        table.add(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest, self.maximum)
        table.add(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequest, self.minimum)
        table.add(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetRequest, self.search)
        table.add(
            RequestCode.GET_EARLIEST_MSG_STORETIME, GetEarliestMsgStoretimeRequest, self.earliest
        )

    def update(self, call: Call, request: UpdateConsumerOffsetRequest) -> Reply:
        """UPDATE_CONSUMER_OFFSET (15): a group tells how far it is."""
        group = request.consumer_group
        if group not in self._groups:
            raise self._groups.missing(group)
        self._topics.require(request.topic)
        if request.queue_id < 0 or request.commit_offset < 0:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queue id {request.queue_id}, offset {request.commit_offset}: neither may be "
                "below 0",
            )
        outcome = self._offsets.commit(
            group,
            request.topic,
            request.queue_id,
            request.commit_offset,
            client=str(call.peer.address),
        )
        if outcome is Commit.IGNORED:
            return Reply(remark="Offset has been previously reset")
        return Reply()

    def query(self, _: Call, request: QueryConsumerOffsetRequest) -> Reply:
        """QUERY_CONSUMER_OFFSET (14): how far a group is.

        A group without an offset hears 0 where it can have the whole queue cheaply, and
        QUERY_NOT_FOUND (22) otherwise: it starts by its own rule then.
        """
        topic, queue_id = request.topic, request.queue_id
        offset = self._offsets.query(request.consumer_group, topic, queue_id)
        if offset is not None:
            return Reply(header=QueryConsumerOffsetReply(offset))
        if request.set_zero_if_not_found is not False and self._is_young(topic, queue_id):
            return Reply(header=QueryConsumerOffsetReply(0))
        raise RequestRefused(
            ResponseCode.QUERY_NOT_FOUND,
            f"group {request.consumer_group} has no offset in {topic} queue {queue_id} yet",
        )

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Whether a queue still has its first message, and that is recent."""
        queue = self._store.queue(topic, queue_id)
        if queue is None or queue.min_offset > 0:
            return False
        first = self._store.reader.messages(queue, 0, 1, None)
        return first.count > 0 and not first.lags

    def maximum(self, _: Call, request: GetMaxOffsetRequest) -> Reply:
        """GET_MAX_OFFSET (30): the offset that the next message will have."""
        queue = self._store.queue(request.topic, request.queue_id)
        return Reply(header=GetMaxOffsetReply(0 if queue is None else queue.max_offset))

    def minimum(self, _: Call, request: GetMinOffsetRequest) -> Reply:
        """GET_MIN_OFFSET (31): the offset of the first message that is still there.

        An empty batch queue has -1, as Apache's BatchConsumeQueue before its first message.
        """
        queue = self._store.queue(request.topic, request.queue_id)
        if queue is None or queue.max_offset == 0:
            config = self._topics.get(request.topic)
            batch = config is not None and config.attributes.get(QUEUE_TYPE) == "BatchCQ"
            return Reply(header=GetMinOffsetReply(-1 if batch else 0))
        return Reply(header=GetMinOffsetReply(queue.min_offset))

    def search(self, _: Call, request: SearchOffsetRequest) -> Reply:
        """SEARCH_OFFSET_BY_TIMESTAMP (29): the offset at a store time."""
        offset = self._store.reader.offset_by_time(
            self._store.queue(request.topic, request.queue_id),
            request.timestamp,
            upper=request.boundary_type is BoundaryType.UPPER,
        )
        return Reply(header=SearchOffsetReply(offset))

    def earliest(self, _: Call, request: GetEarliestMsgStoretimeRequest) -> Reply:
        """GET_EARLIEST_MSG_STORETIME (32): -1 without a message."""
        queue = self._store.queue(request.topic, request.queue_id)
        time_ms = self._store.reader.earliest_store_time_ms(queue)
        return Reply(header=GetEarliestMsgStoretimeReply(time_ms))
