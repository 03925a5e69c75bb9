"""Moving a group to another place in a topic, on an administrator's order.

In: INVOKE_BROKER_TO_RESET_OFFSET (222). Out: the offsets that were set, by queue. The broker sets
them itself and lets the next pull of each queue hear of it; or, with the setting
useServerSideResetOffset=false, it asks the group's clients to do so (220), as older brokers did.
Called by the remoting face. A look into the store may raise ColdData; nothing has been changed
then. Rules: Apache AdminBrokerProcessor.resetOffsetInner, Broker2Client.resetOffset.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import attrs

from trio_mq.broker.clientcalls import ClientCalls
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.members import Client, Members
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings
from trio_mq.errors import RequestRefused
from trio_mq.net.requests import Call, Reply, RequestTable
from trio_mq.protocol import bodies, jsondialect
from trio_mq.protocol.bodies import MessageQueue, ResetOffsetBody, TopicConfig
from trio_mq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from trio_mq.protocol.headers.offset import ResetOffsetRequest
from trio_mq.store.queues import BaseQueue
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.admin")


class Resets:
    """Resets consumer offsets."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        members: Members,
        settings: BrokerSettings,
        calls: ClientCalls,
    ) -> None:
        self._calls = calls
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._members = members
        self._settings = settings

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetRequest, self.reset)

    def reset(self, call: Call, request: ResetOffsetRequest) -> Reply:
        """INVOKE_BROKER_TO_RESET_OFFSET (222)."""
        topic = self._topics.require(request.topic)
        if request.group not in self._groups:
            raise self._groups.missing(request.group)
        if self._settings.use_server_side_reset_offset:
            targets = self._targets(request, topic)
            for queue_id, offset in targets.items():
                self._offsets.assign_reset(request.group, request.topic, queue_id, offset)
        else:
            targets = self._gentle_targets(request, topic)
            self._ask_clients(request, targets)
        log.info(
            "group %s reset in %s to %s by %s",
            *(request.group, request.topic, targets, call.peer.address),
        )
        return Reply(body=bodies.encode(ResetOffsetBody(self._by_queue(request.topic, targets))))

    # -- by the broker

    def _targets(self, request: ResetOffsetRequest, topic: TopicConfig) -> dict[int, int]:
        """Offset by queue id: one queue by offset or time, or all by time."""
        if request.queue_id < 0:
            return {
                queue_id: self._by_time(request, queue_id)
                for queue_id in range(topic.read_queue_nums)
            }
        if request.queue_id >= max(topic.read_queue_nums, topic.write_queue_nums):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {request.queue_id}: topic {request.topic} has {topic.read_queue_nums} "
                "queues, from 0",
            )
        if request.offset is None or request.offset == -1:
            return {request.queue_id: self._by_time(request, request.queue_id)}
        low, high = self._bounds(request.topic, request.queue_id)
        if not low <= request.offset <= high + 1:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"offset {request.offset} is not in {request.topic} queue {request.queue_id}, "
                f"which has {low} to {high}",
            )
        return {request.queue_id: request.offset}

    def _by_time(self, request: ResetOffsetRequest, queue_id: int) -> int:
        """The offset at the request's time; the end if that is negative or the queue is empty."""
        low, high = self._bounds(request.topic, queue_id)
        if request.timestamp < 0 or low >= high:
            return high
        queue = self._queue(request.topic, queue_id)
        return self._store.reader.offset_by_time(queue, request.timestamp)

    def _bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        queue = self._queue(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def _queue(self, topic: str, queue_id: int) -> BaseQueue | None:
        return self._store.queue(topic, queue_id)

    # -- by the clients

    def _gentle_targets(self, request: ResetOffsetRequest, topic: TopicConfig) -> dict[int, int]:
        """Offset by queue id: back in time, and forward only if that is forced."""
        targets: dict[int, int] = {}
        for queue_id in range(topic.write_queue_nums):
            stored = self._offsets.query(request.group, request.topic, queue_id)
            if stored is None:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"group {request.group} has no offset in {request.topic} queue {queue_id}, so "
                    "there is nothing to reset",
                )
            by_time = self._by_time(request, queue_id)
            targets[queue_id] = by_time if request.force else min(by_time, stored)
        return targets

    def _ask_clients(self, request: ResetOffsetRequest, targets: Mapping[int, int]) -> None:
        clients = self._members.consumers(request.group)
        if not clients:
            raise RequestRefused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"no consumer of group {request.group} is connected, and only consumers can reset "
                "their offsets; start one, or set useServerSideResetOffset=true",
            )
        table = self._by_queue(request.topic, targets)
        header = attrs.evolve(request, queue_id=-1, offset=None)
        code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        for client in clients:
            self._calls.tell(client.peer, code, header, _body_for(client, table))

    def _by_queue(self, topic: str, targets: Mapping[int, int]) -> dict[MessageQueue, int]:
        broker = self._settings.broker_name
        return {MessageQueue(topic, broker, number): offset for number, offset in targets.items()}


def _body_for(client: Client, table: Mapping[MessageQueue, int]) -> bytes:
    """The offsets as a client reads them: the C++ one knows no objects as keys."""
    if client.language != LanguageCode.CPP:
        return bodies.encode(ResetOffsetBody(table))
    rows = [
        {
            "topic": queue.topic,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "offset": offset,
        }
        for queue, offset in table.items()
    ]
    return jsondialect.dumps({"offsetTable": rows})
