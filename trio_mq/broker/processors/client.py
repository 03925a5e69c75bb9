"""Requests about clients: heartbeats, goodbyes, group members, queue locks; and news to the members.

In: typed requests and their bodies, closed connections, and a look at the clock now and then. Out:
replies, and NOTIFY_CONSUMER_IDS_CHANGED (40) to the members of groups that changed. Called by the
remoting face and by the broker's periodic work. Rules: Apache ClientManageProcessor,
DefaultConsumerIdsChangeListener, AdminBrokerProcessor (locks).
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from trio_mq.broker.clientcalls import ClientCalls
from trio_mq.broker.filters import Filters
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.locks import QueueLocks
from trio_mq.broker.members import Members
from trio_mq.broker.names import retry_topic
from trio_mq.broker.saver import Saver
from trio_mq.broker.subscriptions import is_tag_type
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings
from trio_mq.errors import RequestRefused, StoreError
from trio_mq.net.requests import DEFERRED, Call, Deferred, Peer, Reply, RequestTable
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import (
    CheckClientBody,
    ConsumerData,
    ConsumerIdList,
    ConsumeType,
    HeartbeatData,
    LockBatchBody,
    LockBatchReplyBody,
)
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.heartbeat import (
    GetConsumerListByGroupRequest,
    HeartbeatReply,
    NotifyConsumerIdsChangedRequest,
    UnregisterClientRequest,
)


class Clients:
    """Keeps the table of members and the locks, and tells members about each other."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        members: Members,
        locks: QueueLocks,
        settings: BrokerSettings,
        calls: ClientCalls,
        filters: Filters,
        saver: Saver | None = None,
    ) -> None:
        self._saver = saver
        self._filters = filters
        self._calls = calls
        self._topics = topics
        self._groups = groups
        self._members = members
        self._locks = locks
        self._settings = settings

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.HEART_BEAT, None, self.heartbeat)
        table.add(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequest, self.unregister)
        table.add(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequest, self.consumers
        )
        table.add(RequestCode.CHECK_CLIENT_CONFIG, None, self.check)
        table.add(RequestCode.LOCK_BATCH_MQ, None, self.lock)
        table.add(RequestCode.UNLOCK_BATCH_MQ, None, self.unlock)

    # -- requests

    def heartbeat(self, call: Call, _: None) -> Reply | Deferred:
        """HEART_BEAT (34): register the client in its groups."""
        data = bodies.decode(HeartbeatData, call.command.body)
        topics_before = self._topics.version
        changes = self._members.heartbeat(
            data,
            call.peer,
            language=call.command.language,
            version=call.command.version,
            now_s=trio.current_time(),
            accepts=lambda consumer: self._accept(consumer, data),
        )
        reply = Reply(header=HeartbeatReply(sub_change=changes.subscription_changed))
        saver = self._saver
        if saver is None or saver.published is None or topics_before is self._topics.version:
            self._tell(changes.notify)
            return reply
        # Its retry topic is new. A client shares queues out when it hears from us, and next after 20 s: it should
        # find the topic at its name server, or its first retries come that late.

        def known(_error: StoreError | None) -> None:
            self._tell(changes.notify)
            call.respond(reply)

        saver.soon(known)
        return DEFERRED

    def _accept(self, consumer: ConsumerData, data: HeartbeatData) -> bool:
        """Whether a consumer may join its group, whose retry topic is made ready then."""
        if (
            self._settings.reject_pull_consumer_enable
            and consumer.consume_type is ConsumeType.CONSUME_ACTIVELY
        ):
            return False
        group = self._groups.obtain(consumer.group_name)
        if group is None:
            return False
        subscriptions = consumer.subscription_data_set
        ordered = any(self._topics.is_ordered(sub.topic) for sub in subscriptions)
        self._topics.create_retry(
            retry_topic(group.group_name),
            group.retry_queue_nums,
            # a heartbeat without its topics does not say whether one of them is ordered
            order=None if data.without_sub else ordered,
            unit_sub=consumer.unit_mode,
        )
        return True

    def unregister(self, call: Call, request: UnregisterClientRequest) -> Reply:
        """UNREGISTER_CLIENT (35): the client leaves, and gives its queues back."""
        changes = self._members.unregister(
            call.peer,
            producer_group=request.producer_group,
            consumer_group=request.consumer_group,
        )
        if request.consumer_group is not None:
            self._locks.release_client(request.consumer_group, request.client_id)
        self._tell(changes.notify)
        return Reply()

    def consumers(self, _: Call, request: GetConsumerListByGroupRequest) -> Reply:
        """GET_CONSUMER_LIST_BY_GROUP (38)."""
        ids = self._members.client_ids(request.consumer_group)
        if not ids:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"no consumer of group {request.consumer_group} is connected",
            )
        return Reply(body=bodies.encode(ConsumerIdList(tuple(ids))))

    def check(self, call: Call, _: None) -> Reply:
        """CHECK_CLIENT_CONFIG (46): whether we can filter as a consumer wants."""
        wanted = bodies.decode(CheckClientBody, call.command.body).subscription_data
        if not is_tag_type(wanted.expression_type):  # tags are for the client to look at
            self._filters.of(wanted.expression_type, wanted.sub_string)
        return Reply()

    def lock(self, call: Call, _: None) -> Reply:
        """LOCK_BATCH_MQ (41): the queues that the client holds now."""
        body = bodies.decode(LockBatchBody, call.command.body)
        outcome = self._locks.lock(
            body.consumer_group, body.client_id, body.mq_set, trio.current_time()
        )
        return Reply(body=bodies.encode(LockBatchReplyBody(frozenset(outcome.held))))

    def unlock(self, call: Call, _: None) -> Reply:
        """UNLOCK_BATCH_MQ (42)."""
        body = bodies.decode(LockBatchBody, call.command.body)
        self._locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        return Reply()

    # -- events

    def disconnected(self, peer: Peer) -> None:
        """A connection has closed: its client leaves all groups at once."""
        self._tell(self._members.remove_peer(peer).notify)

    def expire(self) -> None:
        """Drop clients that were silent too long, and locks that were not renewed."""
        now_s = trio.current_time()
        changes = self._members.expire(now_s)
        for client in changes.gone:
            client.peer.close()
        self._locks.expire(now_s)
        self._tell(changes.notify)

    def _tell(self, groups: Iterable[str]) -> None:
        """Let the members of groups share the queues anew."""
        if not self._settings.notify_consumer_ids_changed_enable:
            return
        for name in groups:
            config = self._groups.get(name)
            if config is not None and not config.notify_consumer_ids_changed_enable:
                continue
            header = NotifyConsumerIdsChangedRequest(name)
            for client in self._members.consumers(name):
                self._calls.tell(client.peer, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
