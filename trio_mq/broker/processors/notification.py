"""NOTIFICATION and POLLING_INFO: is there something to pop, and how many wait for it.

In: typed requests. Out: replies; a notification that finds nothing waits as a pop does, and is looked at again when
something arrives or a queue is free. Called by the remoting face, and by the ordered batches when a queue is free
again. Rules: Apache NotificationProcessor, PollingInfoProcessor, PopMessageProcessor.notifyLongPollingRequestIfNeed.
"""

from __future__ import annotations

from functools import partial

from trio_mq.broker.groups import GroupTable
from trio_mq.broker.names import pop_retry_topics
from trio_mq.broker.pop.access import readable_topic, require_consuming, require_reads
from trio_mq.broker.pop.ledger import PopLedger
from trio_mq.broker.pop.orders import PopOrders
from trio_mq.broker.pop.polls import Held, PopPolls, deadline_s
from trio_mq.broker.topics import TopicTable
from trio_mq.clock import Clock
from trio_mq.config import BrokerSettings
from trio_mq.errors import RequestRefused
from trio_mq.net.requests import DEFERRED, Call, Deferred, Reply, RequestTable
from trio_mq.protocol.bodies import TopicConfig
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.headers.pop import (
    NotificationReply,
    NotificationRequest,
    PollingInfoReply,
    PollingInfoRequest,
)
from trio_mq.store.store import Store


class Notifications:
    """Answers whether there is something to pop. `pops` and `waiting` are the pops and notifications that wait."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        ledger: PopLedger,
        orders: PopOrders,
        pops: PopPolls,
        waiting: PopPolls,
        settings: BrokerSettings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._ledger = ledger
        self._orders = orders
        self._pops = pops
        self._waiting = waiting
        self._settings = settings
        self._clock = clock

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.NOTIFICATION, NotificationRequest, self.notification)
        table.add(RequestCode.POLLING_INFO, PollingInfoRequest, self.polling_info)

    def notification(self, call: Call, request: NotificationRequest) -> Reply | Deferred:
        """NOTIFICATION (200054): true at once, or when something comes, false when the poll time is over."""
        until_s = deadline_s(request.born_time or call.now_ms, request.poll_time, call.now_ms)
        return self._look(call, request, until_s)

    def polling_info(self, _: Call, request: PollingInfoRequest) -> Reply:
        """POLLING_INFO (200055): how many pops wait for exactly this topic, group and queue."""
        self._check(request)
        number = self._pops.waiting(request.topic, request.consumer_group, request.queue_id)
        return Reply(header=PollingInfoReply(number))

    def unlocked(self, topic: str, group: str, queue_id: int) -> None:
        """A queue of an ordered group is free again: if it has something, whoever waits looks again."""
        if self._has_more(topic, group, queue_id):
            self._pops.wake(topic, group, queue_id)
            self._waiting.wake(topic, group, queue_id)

    def _look(self, call: Call, request: NotificationRequest, until_s: float) -> Reply | Deferred:
        topic = self._check(request)
        if self._has_message(request, topic):
            return Reply(header=NotificationReply(has_msg=True))
        held = self._waiting.hold(
            call.peer,
            request.topic,
            request.consumer_group,
            request.queue_id,
            until_s,
            None,
            partial(self._look_again, call, request, until_s),
        )
        if held is Held.HELD:
            return DEFERRED
        full = held is Held.FULL
        return Reply(header=NotificationReply(has_msg=False, polling_full=full))

    def _look_again(self, call: Call, request: NotificationRequest, until_s: float) -> None:
        try:
            reply = self._look(call, request, until_s)
        except RequestRefused as refusal:  # the topic or the group has gone meanwhile
            reply = Reply(refusal.code, remark=refusal.remark)
        if not isinstance(reply, Deferred):
            call.respond(reply)

    def _has_message(self, request: NotificationRequest, topic: TopicConfig) -> bool:
        """Whether a pop would find something. An ordered one does not look into the retry topic."""
        group, queue_id = request.consumer_group, request.queue_id
        queue_ids = range(topic.read_queue_nums) if queue_id < 0 else (queue_id,)
        if request.order:
            now_ms = self._clock.now_ms()
            return any(
                self._has_more(request.topic, group, number)
                and not self._orders.blocked(
                    request.topic, group, number, request.attempt_id, 0, now_ms
                )
                for number in queue_ids
            )
        if any(self._has_more(request.topic, group, number) for number in queue_ids):
            return True
        for name in pop_retry_topics(request.topic, group):
            retry = self._topics.get(name)
            numbers = range(0 if retry is None else retry.read_queue_nums)
            if any(self._has_more(name, group, number) for number in numbers):
                return True
        return False

    def _has_more(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether a queue has messages that the group has not popped."""
        queue = self._store.queue(topic, queue_id)
        if queue is None:
            return False
        offset = self._ledger.next_offset(group, topic, queue_id)
        return queue.max_offset > (queue.min_offset if offset is None else offset)

    def _check(self, request: NotificationRequest | PollingInfoRequest) -> TopicConfig:
        """Apache's checks in Apache's order."""
        require_reads(self._settings)
        topic = readable_topic(self._topics, request.topic, request.queue_id)
        require_consuming(self._groups, request.consumer_group)
        return topic
