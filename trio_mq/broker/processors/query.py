"""VIEW_MESSAGE_BY_ID, QUERY_MESSAGE and QUERY_CONSUME_QUEUE: single messages and queue entries.

In: typed requests. Out: stored records as they are. May raise ColdData: the face asks again then.
Rules: Apache QueryMessageProcessor, DefaultMessageStore.queryMessage, AdminBrokerProcessor.queryConsumeQueue.
"""

from __future__ import annotations

import logging

from trio_mq.broker.topics import TopicTable
from trio_mq.config import StoreSettings
from trio_mq.errors import BodyError, RequestRefused
from trio_mq.net.requests import Call, Reply, RequestTable
from trio_mq.protocol import bodies, properties
from trio_mq.protocol.bodies import ConsumeQueueData, QueryConsumeQueueReplyBody
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.query import (
    QueryConsumeQueueRequest,
    QueryMessageReply,
    QueryMessageRequest,
    ViewMessageRequest,
)
from trio_mq.protocol.layout import index_key_hash
from trio_mq.protocol.record import StoredMessage, decode
from trio_mq.store.queues import ConsumeQueue
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.query")

#: Index hits of which the real key is compared for one query; most of them match.
HITS = 1000
#: Most queue entries of one answer.
ENTRIES = 1000
#: Most bytes of messages in one answer, unless the first one alone has more: a frame has to hold them.
ANSWER_BYTES = 8 * 1024 * 1024
_TAG_PREFIX = "T#"


class Queries:
    """Looks up single messages."""

    def __init__(self, store: Store, topics: TopicTable, settings: StoreSettings) -> None:
        self._store = store
        self._topics = topics
        self._settings = settings

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest, self.view)
        table.add(RequestCode.QUERY_MESSAGE, QueryMessageRequest, self.query)
        table.add(RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueueRequest, self.entries)

    def view(self, _call: Call, request: ViewMessageRequest) -> Reply:
        """The record at a log offset."""
        record = self._record(request.offset)
        if record is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"there is no message at log offset {request.offset}"
            )
        return Reply(body=record[0])

    def _record(self, log_offset: int) -> tuple[bytes, StoredMessage] | None:
        """The record at a log offset as it is, and decoded; None where there is none, or a broken one."""
        data = self._store.reader.record(log_offset)
        if data is None:
            return None
        try:
            message = decode(data)
        except BodyError as error:
            log.warning("no message can be read at log offset %d: %s", log_offset, error)
            return None
        # A body may hold something that looks like a record; but not one that says it is here.
        return (data, message) if message.log_offset == log_offset else None

    def query(self, _call: Call, request: QueryMessageRequest) -> Reply:
        """Records of a topic with a key, the unique key, or a tag; oldest first."""
        limit = self._settings.default_query_max_num if request.unique_key else request.max_num
        limit = max(1, min(limit, self._settings.max_msgs_num_batch))
        kind = request.index_type or ("U" if request.unique_key else "K")
        key = _TAG_PREFIX + request.key if kind == "T" else request.key
        # A backlog of keys that are not in their file yet is short, but a client asks at once.
        while self._store.dispatcher.index_backlog and self._store.dispatcher.index_chunk():
            pass
        hits = self._store.index.search(
            index_key_hash(f"{request.topic}#{key}"),
            HITS,
            request.begin_timestamp,
            request.end_timestamp,
        )
        records: dict[int, bytes] = {}
        size = 0
        for log_offset in hits:
            record = self._record(log_offset)
            if record is None or not _matches(record[1], request, kind):
                continue
            size += len(record[0])
            if records and size > ANSWER_BYTES:
                break
            records[log_offset] = record[0]
            if len(records) >= limit:
                break
        if not records:
            raise RequestRefused(
                ResponseCode.QUERY_NOT_FOUND,
                f"no message of topic {request.topic} with key {request.key} between "
                f"{request.begin_timestamp} and {request.end_timestamp}",
            )
        index = self._store.index
        return Reply(
            header=QueryMessageReply(index.end_timestamp_ms, index.end_log_offset),
            body=b"".join(records[offset] for offset in sorted(records)),
        )

    def entries(self, _call: Call, request: QueryConsumeQueueRequest) -> Reply:
        """Raw entries of a queue."""
        if request.topic is None or request.topic not in self._topics:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {request.topic} does not exist"
            )
        queue = self._store.queue(request.topic, request.queue_id)
        if not isinstance(queue, ConsumeQueue):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"topic {request.topic} has no simple queue {request.queue_id}",
            )
        first = max(request.index, queue.min_offset)
        count = max(0, min(request.count, ENTRIES, queue.max_offset - first))
        found = self._store.reader.entries(queue, first, count) if count else []
        data = tuple(
            ConsumeQueueData(physic_offset=offset, physic_size=size, tags_code=code)
            for offset, size, code in found
        )
        body = QueryConsumeQueueReplyBody(
            queue_data=data, max_queue_index=queue.max_offset, min_queue_index=queue.min_offset
        )
        return Reply(body=bodies.encode(body))


def _matches(message: StoredMessage, request: QueryMessageRequest, kind: str) -> bool:
    """Whether a message really has the key: the index knows hashes only (case C035)."""
    if message.topic != request.topic:
        return False
    if not request.begin_timestamp <= message.store_timestamp_ms <= request.end_timestamp:
        return False
    props = message.property_map
    if kind == "T":
        return props.get(properties.TAGS) == request.key
    if props.get(properties.UNIQ_KEY) == request.key:
        return True
    return not request.unique_key and request.key in props.get(properties.KEYS, "").split(" ")
