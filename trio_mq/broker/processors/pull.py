"""PULL_MESSAGE and LITE_PULL_MESSAGE: checks, the read, and the hold when there is nothing.

In: a typed pull request from the remoting face. Out: the reply's frame, or None when the pull is held; held pulls
come back through the callable that was given. Rules and their order: Apache PullMessageProcessor,
DefaultPullMessageResultHandler.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TypeAlias

import attrs
import trio

from trio_mq.broker.filters import EVERYTHING, Filters, MessageFilter
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.holds import Held, Holds
from trio_mq.broker.members import ConsumerGroup, Members
from trio_mq.broker.names import RETRY_PREFIX
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.role import Role
from trio_mq.broker.subscriptions import is_tag_type
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings
from trio_mq.errors import RequestRefused
from trio_mq.net.requests import Peer, Reply, encode_reply
from trio_mq.protocol.bodies import (
    MessageModel,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from trio_mq.protocol.codes import VERSION, Perm, PullFlag, RequestCode, ResponseCode
from trio_mq.protocol.headers.hot import PullFields
from trio_mq.protocol.headers.pull import PullMessageReply, PullMessageRequest
from trio_mq.store.queues import BaseQueue
from trio_mq.store.reader import Found, Messages
from trio_mq.store.store import Store

_LENGTHS = Struct(">ii")
_SUSPEND, _COMMIT, _SUBSCRIPTION = (
    int(PullFlag.SUSPEND),
    int(PullFlag.COMMIT_OFFSET),
    int(PullFlag.SUBSCRIPTION),
)
_FOUND = (
    b'{"code":0,"extFields":{"forbiddenType":"0","groupSysFlag":"%d","maxOffset":"%d","minOffset":"%d",'
    b'"nextBeginOffset":"%d","suggestWhichBrokerId":"%d","topicSysFlag":"%d"},"flag":1,"language":"PYTHON",'
    b'"opaque":%d,"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":'
    + str(VERSION).encode()
    + b"}"
)
_CODES = {
    Found.FOUND: ResponseCode.SUCCESS,
    Found.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    Found.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    Found.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    Found.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    Found.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    Found.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    Found.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}


#: A pull request as the ordinary or the short way reads it: the same fields.
PullRequest: TypeAlias = PullMessageRequest | PullFields


class Forbidden:
    """Why a pull is not allowed, as the reply says it (Apache: ForbiddenType)."""

    BROKER = 1
    GROUP = 2
    TOPIC = 3
    BROADCASTING = 4
    SUBSCRIPTION = 5


class PullRefused(RequestRefused):
    """A refused pull; the peers expect the offsets in the reply even then."""

    def __init__(self, code: int, remark: str, forbidden_type: int | None = None) -> None:
        super().__init__(code, remark)
        self.forbidden_type = forbidden_type


@attrs.frozen
class _Allowed:
    """What the checks found."""

    group: SubscriptionGroupConfig
    topic: TopicConfig
    filter: MessageFilter


class Puller:
    """Answers pulls."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        members: Members,
        holds: Holds,
        filters: Filters,
        settings: BrokerSettings,
        role: Role | None = None,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._members = members
        self._role = role = role or Role()
        #: On an ordinary master nobody is asked where a reader may go.
        self._is_slave = role.is_slave
        self._suggests = role.is_slave or role.ha.slave_read_enable
        self._holds = holds
        self._filters = filters
        self._settings = settings
        limits = store.parts.settings
        #: Most messages of one answer. What a client asks beyond would only lengthen the scan for a rare tag.
        self._max_count = max(
            limits.max_transfer_count_in_memory, limits.max_transfer_count_in_disk
        )
        #: Pulls that found nothing. What was found is counted with the topic.
        self.missed = 0

    def pull(
        self,
        peer: Peer,
        request: PullRequest,
        code: int,
        opaque: int,
        again: Callable[[], None] | None,
        began_s: float = 0.0,
    ) -> bytes | None:
        """The reply's frame; None when the pull is held and `again` will be called.

        Without `again` this is the second look, and the pull is answered whatever there is. `began_s` is
        when that of which it is a part began, if that is timed. May raise ColdData;
        nothing has been changed then.
        """
        try:
            allowed = self._check(request)
        except RequestRefused as refusal:
            forbidden = refusal.forbidden_type if isinstance(refusal, PullRefused) else None
            header = PullMessageReply(0, 0, 0, 0, forbidden_type=forbidden)
            return encode_reply(opaque, Reply(refusal.code, header, remark=refusal.remark))
        group, topic, queue_id = request.consumer_group, request.topic, request.queue_id
        queue = self._store.queue(topic, queue_id)
        offset = request.queue_offset
        reset = self._offsets.pending_reset(group, topic, queue_id)
        if reset is not None:
            found = Messages(
                Found.OFFSET_RESET,
                reset,
                queue.min_offset if queue else 0,
                queue.max_offset if queue else 0,
            )
            # Its own commit is from before the reset and must not undo it.
            self._offsets.take_reset(group, topic, queue_id)
        else:
            count = min(request.max_msg_nums, self._max_count)
            wanted = allowed.filter
            found = self._store.reader.messages(queue, offset, count, wanted.codes, wanted.accepts)
            if self._is_slave:
                found.next_offset = self._role.corrected(found, offset)
            if again is not None and request.sys_flag & _COMMIT:
                self._offsets.commit(group, topic, queue_id, request.commit_offset)
        self._offsets.pulled(group, topic, queue_id, found.next_offset)
        if found.found is Found.FOUND and queue is not None:
            gets = queue.traffic.got(group, found.count, len(found.data))
            if began_s:
                gets.took(began_s)
            return self._found(request, opaque, allowed, found)
        self.missed += 1
        reply_code = self._role.reply_code(_code_of(found.found, offset))
        if (
            reply_code == ResponseCode.PULL_NOT_FOUND
            and again is not None
            and request.sys_flag & _SUSPEND
            and self._hold(peer, request, queue, allowed.filter, again)
        ):
            return None
        header = PullMessageReply(
            suggest_which_broker_id=self._next_broker(allowed, found),
            next_begin_offset=found.next_offset,
            min_offset=found.min_offset,
            max_offset=found.max_offset,
            topic_sys_flag=allowed.topic.topic_sys_flag,
            group_sys_flag=allowed.group.group_sys_flag,
        )
        return encode_reply(opaque, Reply(reply_code, header, remark=found.found.value))

    def _found(
        self, request: PullRequest, opaque: int, allowed: _Allowed, found: Messages
    ) -> bytes:
        """The reply with messages."""
        header = _FOUND % (
            allowed.group.group_sys_flag,
            found.max_offset,
            found.min_offset,
            found.next_offset,
            self._next_broker(allowed, found),
            allowed.topic.topic_sys_flag,
            opaque,
        )
        data = found.data
        return _LENGTHS.pack(4 + len(header) + len(data), len(header)) + header + data

    def _next_broker(self, allowed: _Allowed, found: Messages) -> int:
        return self._role.suggest(allowed.group, lags=found.lags) if self._suggests else 0

    def _hold(
        self,
        peer: Peer,
        request: PullRequest,
        queue: BaseQueue | None,
        wanted: MessageFilter,
        again: Callable[[], None],
    ) -> bool:
        settings = self._settings
        time_ms = request.suspend_timeout_millis
        if not settings.long_polling_enable:
            time_ms = settings.short_polling_time_ms
        if queue is None:
            queue = self._store.queues.obtain(request.topic, request.queue_id)
        held = Held(peer, queue, request.queue_offset, wanted, again)
        return self._holds.hold(held, trio.current_time() + max(0, time_ms) / 1000)

    # -- checks ----------------------------------------------------------------------------------------------

    def _check(self, request: PullRequest) -> _Allowed:
        """Apache's checks in Apache's order."""
        settings = self._settings
        if self._is_slave:
            refused = self._role.refusal(RequestCode.PULL_MESSAGE)
            if refused is not None:
                raise refused
        if not settings.broker_permission & Perm.READ:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker {settings.broker_name} does not hand out messages (brokerPermission)",
                Forbidden.BROKER,
            )
        name = request.consumer_group
        group = self._groups.obtain(name)
        if group is None:
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group {name} does not exist; create it, or let autoCreateSubscriptionGroup do so",
            )
        if not group.consume_enable:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"subscription group {name} may not consume (consumeEnable)",
                Forbidden.GROUP,
            )
        topic = self._topics.get(request.topic)
        if topic is None:
            raise PullRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {request.topic} does not exist; create it first",
            )
        if not topic.perm & Perm.READ:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"topic {request.topic} may not be read (perm {topic.perm})",
                Forbidden.TOPIC,
            )
        if not 0 <= request.queue_id < topic.read_queue_nums:
            raise PullRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queue id {request.queue_id}: topic {request.topic} has {topic.read_queue_nums} queues to read",
            )
        return _Allowed(group, topic, self._wanted(request, group))

    def _wanted(self, request: PullRequest, group: SubscriptionGroupConfig) -> MessageFilter:
        """What the pull wants: as the request says, or the group's heartbeat."""
        if request.sys_flag & _SUBSCRIPTION:
            return self._filters.of(request.expression_type, request.subscription)
        name = request.consumer_group
        live = self._members.consumer_group(name)
        if live is None:
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"no consumer of group {name} is connected, so its subscription is unknown; "
                f"send a heartbeat first",
            )
        if live.message_model is MessageModel.BROADCASTING and not group.consume_broadcast_enable:
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"subscription group {name} may not broadcast (consumeBroadcastEnable)",
                Forbidden.BROADCASTING,
            )
        if self._groups.is_forbidden(name, request.topic):
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"subscription group {name} is forbidden to read topic {request.topic}",
                Forbidden.SUBSCRIPTION,
            )
        subscription = live.subscription(request.topic)
        if subscription is None:
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"group {name} has not subscribed topic {request.topic}; all its consumers must "
                f"subscribe the same topics",
            )
        if subscription.sub_version < request.sub_version:
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the subscription of group {name} is older than this request; send a heartbeat first",
            )
        return self._subscribed(live, subscription)

    def _subscribed(self, live: ConsumerGroup, subscription: SubscriptionData) -> MessageFilter:
        """The filter of a heartbeat. There is none older than its subscription, so 28 is never answered."""
        if subscription.class_filter_mode:
            return EVERYTHING
        by_tags = is_tag_type(subscription.expression_type)
        try:
            made = self._filters.of(subscription.expression_type, subscription.sub_string)
        except RequestRefused as refusal:
            if by_tags or refusal.code != ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                raise
            raise PullRefused(ResponseCode.FILTER_DATA_NOT_EXIST, refusal.remark) from refusal
        if by_tags or not subscription.topic.startswith(RETRY_PREFIX):
            return made
        if not self._settings.filter_support_retry:
            return made
        return self._filters.of_retries(live.subscription)


def _code_of(found: Found, offset: int) -> int:
    if found in (Found.NO_MATCHED_LOGIC_QUEUE, Found.NO_MESSAGE_IN_QUEUE):
        # An offset into nothing has moved; the start of nothing is where a consumer waits.
        return ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
    return _CODES[found]
