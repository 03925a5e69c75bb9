"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: checks, and records staged in the store.

In: a typed send request and its body, from the remoting face. Out: a :class:`Sent`, which is true only after the
store's next commit (and safe when :mod:`trio_mq.broker.safety` says so). Checks are made once for a topic and queue
and remembered until a topic changes; what remains per message is the message itself. Rules and their order: Apache
SendMessageProcessor, AbstractSendMessageProcessor.msgCheck, HookUtils.checkBeforePutMessage.
"""

from __future__ import annotations

import os
import random
from typing import Final, NamedTuple, TypeAlias

import trio

from trio_mq.broker.groups import GroupTable
from trio_mq.broker.locks import QueueLocks
from trio_mq.broker.names import DLQ_PREFIX, RETRY_PREFIX, TOPIC_MAX_LENGTH
from trio_mq.broker.promises import (
    DROPPED,
    OWN,
    TERMINATOR,
    TRANSACTION,
    check_size,
    cleaned,
    is_half,
    is_special,
    refuse_what_waits,
)
from trio_mq.broker.redirects import Redirected, Redirects
from trio_mq.broker.retries import RetrySends
from trio_mq.broker.safety import Safety
from trio_mq.broker.topics import TopicTable
from trio_mq.clock import Clock
from trio_mq.config import BrokerSettings, StoreSettings
from trio_mq.errors import BodyError, RequestRefused
from trio_mq.protocol import properties
from trio_mq.protocol.codes import MessageFlag, Perm, ResponseCode
from trio_mq.protocol.headers.hot import SendFields, SendFieldsV2
from trio_mq.protocol.headers.send import SendMessageRequest
from trio_mq.protocol.layout import MAX_PROPERTIES_BYTES
from trio_mq.protocol.message import BatchItem, Host, UniqueIds, split_batch
from trio_mq.protocol.recall import recall_handle
from trio_mq.protocol.record import record_size
from trio_mq.store.queues import BaseQueue
from trio_mq.store.store import Store

# Plain ints: & with an enumeration costs half a microsecond.
_INNER_BATCH: Final = int(MessageFlag.INNER_BATCH | MessageFlag.NEED_UNWRAP)
_BORN_V6: Final = int(MessageFlag.BORN_HOST_V6)
_STORE_V6: Final = int(MessageFlag.STORE_HOST_V6)
#: Flags that a client may set: not those for the kinds of hosts, and not those of inner batches.
_CLIENT_FLAGS: Final = ~(_BORN_V6 | _STORE_V6 | _INNER_BATCH)
_V4_HOST_BYTES: Final = 8

#: A send request as the ordinary or one of the short ways reads it: the same fields.
SendRequest: TypeAlias = SendMessageRequest | SendFields | SendFieldsV2


class Sent(NamedTuple):
    """What a reply says: log offset, queue and queue offset of the (first) message, and its unique id.

    `wait` tells whether the sender wants to know it safe; `log_offsets` are those of all records of a batch;
    `batch_unique_id` is set when the batch is one record, `recall_handle` when a timer can be recalled by it. A
    NamedTuple, since one is made for each message.
    """

    log_offset: int
    queue_id: int
    queue_offset: int
    unique_id: bytes
    wait: bool
    log_offsets: tuple[int, ...] = ()
    batch_unique_id: bytes = b""
    recall_handle: bytes = b""


class Sender:
    """Checks sends and stages their records."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        settings: BrokerSettings,
        store_settings: StoreSettings,
        clock: Clock,
        host: Host,
        redirects: Redirects | None = None,
        safety: Safety | None = None,
    ) -> None:
        self._store = store
        safety = safety or Safety(store)
        self._waits, self._wanted = safety.waits, safety.wanted
        self._topics = topics
        self._groups = groups
        self._settings = settings
        self._clock = clock
        self._redirects = redirects or Redirects(store_settings)
        self._max_body = store_settings.max_message_size
        self._store_flag = _STORE_V6 if store.host.is_v6 else 0
        self._ids = UniqueIds(host.ip, os.getpid(), random.getrandbits(32))
        self._own_properties = properties.encode(
            {
                properties.MSG_REGION: settings.region_id,
                properties.TRACE_ON: "true" if settings.trace_on else "false",
                properties.CLUSTER: settings.cluster,
            }
        )
        #: Where messages to retry topics go; a broker with queue locks sets its own.
        self.retry_sends = RetrySends(topics, groups, QueueLocks())
        #: Queues that messages may be sent to, for as long as no topic changes.
        self._checked: dict[tuple[str, int], BaseQueue] = {}
        self._checked_version: object = None
        #: Sends that were refused for want of room.
        self.failures = 0

    # -- the queue -------------------------------------------------------------------------------------------

    def queue_for(self, request: SendRequest) -> BaseQueue:
        """The queue that a request means, after all checks before a message is taken; these are remembered."""
        if self._checked_version is not self._topics.version:
            self._checked.clear()
            self._checked_version = self._topics.version
        queue = self._checked.get((request.topic, request.queue_id))
        if queue is not None:
            return queue
        return self._check(request)

    def _check(self, request: SendRequest) -> BaseQueue:
        """The checks that hold for all messages to a queue. (A topic's own permission is not among them: clients
        see it in the route, and Apache stores what they send all the same.)"""
        settings, topic, queue_id = self._settings, request.topic, request.queue_id
        if self._clock.now_ms() < settings.start_accept_send_request_ms:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "this broker does not take messages yet (startAcceptSendRequestTimeStamp)",
            )
        if not settings.broker_permission & Perm.WRITE and self._topics.is_ordered(topic):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker {settings.broker_name} refuses messages to ordered topics "
                f"(brokerPermission is {settings.broker_permission})",
            )
        config = self._topics.for_send(
            topic,
            request.default_topic,
            request.default_topic_queue_nums,
            unit_mode=bool(request.unit_mode),
        )
        retry = topic.startswith(RETRY_PREFIX)
        if len(topic) > TOPIC_MAX_LENGTH and not retry:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the topic name has {len(topic)} characters; a message can be sent to one of "
                f"{TOPIC_MAX_LENGTH} at most, or to a retry topic",
            )
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if queue_id >= queues:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queue id {queue_id} is too large: topic {topic} has {queues} queues, from 0",
            )
        if queue_id < 0:
            if config.write_queue_nums < 1:
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER,
                    f"topic {topic} has no queue to write to (writeQueueNums is 0)",
                )
            queue_id = random.randrange(config.write_queue_nums)
        if retry:  # it depends on the message and on the group, so nothing is remembered
            times, most = request.reconsume_times, request.max_reconsume_times
            to = self.retry_sends.topic_of(topic, times, most, trio.current_time())
            return self._store.queues.obtain(to, queue_id if to == topic else 0)
        if request.queue_id < 0:
            return self._store.queues.obtain(topic, queue_id)
        queue = self._store.queues.obtain(topic, queue_id)
        self._checked[topic, queue_id] = queue
        return queue

    # -- one message -----------------------------------------------------------------------------------------

    def send(
        self, request: SendRequest, body: bytes, born_host: bytes, now_ms: int, token: object
    ) -> Sent:
        """Stage one message. `token` names it in :attr:`Store.failed`, should it not be written."""
        queue = self.queue_for(request)
        size = len(body)
        if not 0 < size <= self._max_body:
            raise self._bad_body(size, "message body")
        sys_flag = request.sys_flag & _CLIENT_FLAGS
        props = request.properties.encode() if request.properties else b""
        if is_special(props) or sys_flag & TRANSACTION:
            return self._send_special(request, queue, body, props, born_host, now_ms, token)
        if len(born_host) > _V4_HOST_BYTES:
            sys_flag |= _BORN_V6
        unique_id = properties.get(props, b"UNIQ_KEY")
        if not unique_id:
            unique_id = self._ids.create(now_ms).encode()
            props = properties.append(props, b"UNIQ_KEY", unique_id)
        props = self._with_own(props)
        wait = not self._waits or self._wanted(props)
        queue_offset = queue.next_offset
        log_offset = self._store.append(
            queue,
            body,
            props,
            token=token,
            flag=request.flag,
            sys_flag=sys_flag,
            born_timestamp_ms=request.born_timestamp,
            born_host=born_host,
            reconsume_times=request.reconsume_times or 0,
            now_ms=now_ms,
        )
        fields = (log_offset, queue.queue_id, queue_offset, unique_id, wait, (), b"", b"")
        return tuple.__new__(Sent, fields)

    def _with_own(self, props: bytes) -> bytes:
        """The properties with those of the broker added, within the limit of the format.

        Older ones of the same names have been removed, which :meth:`_send_special` does for all special names.
        """
        if props and props[-1] != TERMINATOR:
            props += b"\x02"
        props += self._own_properties
        if len(props) > MAX_PROPERTIES_BYTES:
            check_size(props)
        return props

    def _bad_body(self, size: int, what: str) -> RequestRefused:
        if not size:
            return RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"the {what} is empty")
        return RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the {what} has {size} bytes, {self._max_body} are allowed (maxMessageSize)",
        )

    def _send_special(
        self,
        request: SendRequest,
        queue: BaseQueue,
        body: bytes,
        props: bytes,
        born_host: bytes,
        now_ms: int,
        token: object,
    ) -> Sent:
        """Stage a message whose properties ask for more than storing: it may go to another queue first."""
        if properties.get(props, b"INNER_NUM") is not None:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                "the property INNER_NUM is for batches, and set by the broker; send without it",
            )
        for name in (*DROPPED, *OWN):
            props = properties.remove(props, name)
        if queue.topic.startswith(DLQ_PREFIX) and request.topic != queue.topic:
            props = properties.remove(props, b"DELAY")  # a dead letter waits for nothing
        unique_id = properties.get(props, b"UNIQ_KEY")
        if not unique_id:
            unique_id = self._ids.create(now_ms).encode()
            props = properties.append(props, b"UNIQ_KEY", unique_id)
        props = self._with_own(props)
        queue, props = self._by_priority(request.topic, queue, props)
        topic, queue_id = queue.topic, queue.queue_id
        to = self._redirected(request, queue, props, now_ms)
        multi, stored_props = self._store.multi, to.properties
        further: tuple[BaseQueue, ...] = ()
        if multi is not None:
            # Refused now also where it waits first, and is given its places later.
            multi.names(topic, props)
            stored_props, further = multi.assign(to.topic, stored_props)
        check_size(stored_props)
        wait = not self._waits or self._wanted(props)
        stored_in = queue if to.topic == topic else self._store.queues.obtain(to.topic, to.queue_id)
        queue_offset = stored_in.next_offset
        log_offset = self._store.append(
            stored_in,
            body,
            stored_props,
            token=token,
            flag=request.flag,
            sys_flag=_with_host_flag(to.sys_flag, born_host),
            born_timestamp_ms=request.born_timestamp,
            born_host=born_host,
            reconsume_times=request.reconsume_times or 0,
            delay_ms=to.delay_ms,
            further=further,
            now_ms=now_ms,
        )
        handle = b""
        if to.timer_out_ms:
            broker, key = self._settings.broker_name, unique_id.decode("utf-8", "replace")
            handle = recall_handle(topic, broker, to.timer_out_ms + 1, key)
        return Sent(log_offset, queue_id, queue_offset, unique_id, wait, recall_handle=handle)

    def _redirected(
        self, request: SendRequest, queue: BaseQueue, props: bytes, now_ms: int
    ) -> Redirected:
        """Where a message with special properties is stored, and how."""
        topic, queue_id, sys_flag = queue.topic, queue.queue_id, request.sys_flag & _CLIENT_FLAGS
        if is_half(props, request.reconsume_times or 0):
            if self._settings.reject_transaction_message:
                raise RequestRefused(
                    ResponseCode.NO_PERMISSION,
                    f"the broker {self._settings.broker_name} takes no transactional messages "
                    f"(rejectTransactionMessage)",
                )
            return self._redirects.half(topic, queue_id, props, sys_flag)
        if sys_flag & TRANSACTION:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                "sysFlag marks a part of a transaction, but the property TRAN_MSG is not true; set both or none",
            )
        return self._redirects.apply(topic, queue_id, props, sys_flag, now_ms)

    def _by_priority(self, topic: str, queue: BaseQueue, props: bytes) -> tuple[BaseQueue, bytes]:
        """The queue of a message with a priority; where that means nothing, the property is removed."""
        priority = properties.get(props, b"_SYS_MSG_PRIORITY_")
        if priority is None:
            return queue, props
        config = self._topics.get(topic)
        if (
            config is None
            or config.write_queue_nums < 1
            or not priority.isdigit()
            or properties.get(props, b"__SHARDINGKEY") is not None
        ):
            return queue, properties.remove(props, b"_SYS_MSG_PRIORITY_")
        queue_id = min(int(priority), config.write_queue_nums - 1)
        return self._store.queues.obtain(topic, queue_id), props

    # -- batches ---------------------------------------------------------------------------------------------

    def send_batch(
        self, request: SendRequest, body: bytes, born_host: bytes, now_ms: int, token: object
    ) -> Sent:
        """Stage a batch: a record per message, or one record for all on a topic with batch queues.

        All of it is checked before any of it is staged.
        """
        topic = request.topic
        if topic.startswith(RETRY_PREFIX):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch cannot be sent to the retry topic {topic}; send its messages one by one",
            )
        queue = self.queue_for(request)
        if not 0 < len(body) <= self._max_body:
            raise self._bad_body(len(body), "batch")
        props = request.properties.encode() if request.properties else b""
        if is_special(props) or request.sys_flag & TRANSACTION:
            refuse_what_waits(props, request.sys_flag)
            for name in (*DROPPED, *OWN, b"_SYS_MSG_PRIORITY_"):
                props = properties.remove(props, name)
        try:
            items = split_batch(body)
        except BodyError as error:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"batch refused: {error}") from error
        for number, (_flag, _body, data) in enumerate(items):
            if data and (data[-1] != TERMINATOR or is_special(data)):
                items[number] = cleaned(number, items[number])
        unique_id = properties.get(props, b"UNIQ_KEY") or b""
        wait = not self._waits or self._wanted(props)
        if queue.is_batch and unique_id:
            return self._inner_batch(
                request, queue, body, props, len(items), unique_id, born_host, now_ms, token, wait
            )
        return self._records(request, queue, items, unique_id, born_host, now_ms, token, wait)

    def _records(
        self,
        request: SendRequest,
        queue: BaseQueue,
        items: list[BatchItem],
        unique_id: bytes,
        born_host: bytes,
        now_ms: int,
        token: object,
        wait: bool,
    ) -> Sent:
        """A record per message, all in one segment."""
        store = self._store
        sys_flag = _with_host_flag(request.sys_flag & _CLIENT_FLAGS, born_host)
        topic_length, hosts = len(queue.topic_bytes), sys_flag | self._store_flag
        size = sum(
            record_size(len(item.body), topic_length, len(item.properties), hosts) for item in items
        )
        store.make_room(size)
        queue_offset = queue.next_offset
        born_ms, reconsume = request.born_timestamp, request.reconsume_times or 0
        append = store.append
        offsets = tuple(
            append(
                queue,
                item.body,
                item.properties,
                token=token,
                flag=item.flag,
                sys_flag=sys_flag,
                born_timestamp_ms=born_ms,
                born_host=born_host,
                reconsume_times=reconsume,
                now_ms=now_ms,
            )
            for item in items
        )
        return Sent(offsets[0], queue.queue_id, queue_offset, unique_id, wait, offsets)

    def _inner_batch(
        self,
        request: SendRequest,
        queue: BaseQueue,
        body: bytes,
        props: bytes,
        count: int,
        unique_id: bytes,
        born_host: bytes,
        now_ms: int,
        token: object,
        wait: bool,
    ) -> Sent:
        """One record that holds the whole batch (Apache: SendMessageProcessor, inner batch)."""
        queue_offset = queue.next_offset
        for name in (b"INNER_NUM", b"INNER_BASE"):
            props = properties.remove(props, name)
        props = properties.append(props, b"INNER_NUM", b"%d" % count)
        props = properties.append(props, b"INNER_BASE", b"%d" % queue_offset)
        log_offset = self._store.append(
            queue,
            body,
            self._with_own(props),
            token=token,
            flag=request.flag,
            sys_flag=_with_host_flag(request.sys_flag & _CLIENT_FLAGS, born_host) | _INNER_BATCH,
            born_timestamp_ms=request.born_timestamp,
            born_host=born_host,
            reconsume_times=request.reconsume_times or 0,
            count=count,
            now_ms=now_ms,
        )
        return Sent(
            log_offset, queue.queue_id, queue_offset, unique_id, wait, (log_offset,), unique_id
        )


def _with_host_flag(sys_flag: int, born_host: bytes) -> int:
    return sys_flag | _BORN_V6 if len(born_host) > _V4_HOST_BYTES else sys_flag
