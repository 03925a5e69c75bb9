"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: checks, and records staged in the store.

In: a typed send request and its body, from the remoting face. Out: a :class:`Sent`, which is true only after the
store's next commit (and, under sync flush, sync). Checks are made once for a topic and queue and remembered until a
topic changes; what remains per message is the message itself. Rules and their order: Apache SendMessageProcessor,
AbstractSendMessageProcessor.msgCheck, HookUtils.checkBeforePutMessage.
"""

from __future__ import annotations

import os
import random
from typing import TypeAlias

import attrs

from trio_mq.broker import names
from trio_mq.broker.groups import GroupTable
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
from trio_mq.protocol.record import record_size
from trio_mq.store.queues import BaseQueue
from trio_mq.store.store import Store

RETRY_PREFIX = "%RETRY%"
#: Property names that need a closer look; any other message takes the short way.
_SPECIAL = (
    b"DELAY\x01",
    b"TRAN_MSG\x01",
    b"TIMER_",
    b"POP_CK\x01",
    b"__CRC32#\x01",
    b"_SYS_MSG_PRIORITY_\x01",
)
#: Names that the broker sets itself; a message that brings one of them has it replaced.
_OWN = (properties.MSG_REGION, properties.TRACE_ON, properties.CLUSTER)
_INNER_BATCH = int(MessageFlag.INNER_BATCH | MessageFlag.NEED_UNWRAP)


#: A send request as the ordinary or one of the short ways reads it: the same fields.
SendRequest: TypeAlias = SendMessageRequest | SendFields | SendFieldsV2


@attrs.frozen
class Sent:
    """What a reply says: log offsets of the records, queue and offset of the first message, unique id."""

    log_offsets: tuple[int, ...]
    queue_id: int
    queue_offset: int
    unique_id: bytes
    wait: bool
    batch_unique_id: bytes = b""


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
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._settings = settings
        self._clock = clock
        self._max_body = store_settings.max_message_size
        self._ids = UniqueIds(host.ip, os.getpid(), random.getrandbits(32))
        self._own_properties = properties.encode(
            {
                properties.MSG_REGION: settings.region_id,
                properties.TRACE_ON: "true" if settings.trace_on else "false",
                properties.CLUSTER: settings.cluster,
            }
        )
        #: Queues that messages may be sent to, for as long as no topic changes.
        self._checked: dict[tuple[str, int], BaseQueue] = {}
        self._checked_version: object = None
        #: Counters for the runtime information.
        self.messages = 0
        self.bytes = 0

    # -- the queue -------------------------------------------------------------------------------------------

    def _queue(self, request: SendRequest) -> BaseQueue:
        """The queue that a request means; made once and then remembered."""
        if self._checked_version is not self._topics.version:
            self._checked.clear()
            self._checked_version = self._topics.version
        queue = self._checked.get((request.topic, request.queue_id))
        if queue is not None:
            return queue
        return self._check(request)

    def _check(self, request: SendRequest) -> BaseQueue:
        settings = self._settings
        if self._clock.now_ms() < settings.start_accept_send_request_ms:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "this broker does not take messages yet (startAcceptSendRequestTimeStamp)",
            )
        config = self._topics.for_send(
            request.topic,
            request.default_topic,
            request.default_topic_queue_nums,
            unit_mode=bool(request.unit_mode),
        )
        if len(request.topic) > names.TOPIC_MAX_LENGTH and not request.topic.startswith(
            RETRY_PREFIX
        ):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the topic name has {len(request.topic)} characters; a message can be sent to one of "
                f"{names.TOPIC_MAX_LENGTH} at most, or to a retry topic",
            )
        if config.order and not settings.broker_permission & Perm.WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker {settings.broker_name} refuses messages (brokerPermission)",
            )
        if request.topic.startswith(RETRY_PREFIX):
            group = request.topic[len(RETRY_PREFIX) :]
            if self._groups.get(group) is None:
                raise RequestRefused(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    f"subscription group {group} does not exist; create it, or let "
                    f"autoCreateSubscriptionGroup do so",
                )
        queues = max(config.read_queue_nums, config.write_queue_nums)
        queue_id = request.queue_id
        if queue_id >= queues:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queue id {queue_id} is too large: topic {request.topic} has {queues} queues, from 0",
            )
        if queue_id < 0:
            return self._store.queues.obtain(
                request.topic, random.randrange(max(1, config.write_queue_nums))
            )
        queue = self._store.queues.obtain(request.topic, queue_id)
        self._checked[request.topic, queue_id] = queue
        return queue

    # -- one message -----------------------------------------------------------------------------------------

    def send(
        self, request: SendRequest, body: bytes, born_host: bytes, now_ms: int, token: object
    ) -> Sent:
        """Stage one message. `token` names it in :attr:`Store.failed`, should it not be written."""
        queue = self._queue(request)
        if not 0 < len(body) <= self._max_body:
            self._refuse_body(body)
        props = request.properties.encode() if request.properties else b""
        for name in _SPECIAL:
            if name in props:
                props = self._treat(props)
                break
        if queue.is_batch and b"INNER_NUM\x01" in props:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, "only the broker sets the property INNER_NUM"
            )
        unique_id = properties.get(props, b"UNIQ_KEY")
        if not unique_id:
            unique_id = self._ids.create(now_ms).encode()
            props = properties.append(props, b"UNIQ_KEY", unique_id)
        props = self._with_own(props)
        queue_offset = queue.next_offset
        log_offset = self._store.append(
            queue,
            body,
            props,
            token=token,
            flag=request.flag,
            sys_flag=_sys_flag(request.sys_flag, born_host),
            born_timestamp_ms=request.born_timestamp,
            born_host=born_host,
            reconsume_times=request.reconsume_times or 0,
            now_ms=now_ms,
        )
        self.messages += 1
        self.bytes += len(body)
        wait = not self._store.is_sync or properties.get(props, b"WAIT") != b"false"
        return Sent((log_offset,), queue.queue_id, queue_offset, unique_id, wait)

    def _with_own(self, props: bytes) -> bytes:
        """The properties with those of the broker added, within the limit of the format."""
        if b"MSG_REGION\x01" in props or b"TRACE_ON\x01" in props or b"CLUSTER\x01" in props:
            for name in _OWN:
                props = properties.remove(props, name.encode())
        if props and props[-1] != 2:
            props += b"\x02"
        props += self._own_properties
        if len(props) > MAX_PROPERTIES_BYTES:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message properties have {len(props)} bytes with those of the broker, "
                f"{MAX_PROPERTIES_BYTES} are allowed; use fewer or shorter properties",
            )
        return props

    def _refuse_body(self, body: bytes) -> None:
        if not body:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "the message has no body")
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message body has {len(body)} bytes, {self._max_body} are allowed (maxMessageSize)",
        )

    def _treat(self, props: bytes) -> bytes:
        """Properties that ask for more than storing: what cannot be kept as a promise is refused."""
        found = properties.parse(props)
        level = found.get(properties.DELAY, "0")
        if level.isdecimal() and int(level) > 0:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"delay level {level}: this broker does not deliver delayed messages; "
                f"send without a delay, or use an Apache broker",
            )
        for name in (
            properties.TIMER_DELAY_SEC,
            properties.TIMER_DELAY_MS,
            properties.TIMER_DELIVER_MS,
        ):
            if name in found:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"property {name}: this broker does not deliver timed messages; "
                    f"send without it, or use an Apache broker",
                )
        if found.get(properties.TRAN_MSG) == "true":
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                "this broker does not take transactional messages; use an Apache broker for them",
            )
        for name in (properties.POP_CK, "__CRC32#", properties.PRIORITY):
            if name in found:
                props = properties.remove(props, name.encode())
        return props

    # -- batches ---------------------------------------------------------------------------------------------

    def send_batch(
        self, request: SendRequest, body: bytes, born_host: bytes, now_ms: int, token: object
    ) -> Sent:
        """Stage a batch: a record per message, or one record for all on a topic with batch queues."""
        if request.topic.startswith(RETRY_PREFIX):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch cannot be sent to the retry topic {request.topic}; send its messages one by one",
            )
        queue = self._queue(request)
        if not 0 < len(body) <= self._max_body:
            self._refuse_body(body)
        props = request.properties.encode() if request.properties else b""
        for name in _SPECIAL:
            if name in props:
                self._treat(props)
        if request.sys_flag & 0xC:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be part of a transaction"
            )
        try:
            items = split_batch(body)
        except BodyError as error:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"batch refused: {error}") from error
        wait = not self._store.is_sync or properties.get(props, b"WAIT") != b"false"
        unique_id = properties.get(props, b"UNIQ_KEY") or b""
        for item in items:
            self._check_item(item)
        if queue.is_batch and unique_id:
            return self._inner_batch(
                request, queue, body, props, len(items), unique_id, born_host, now_ms, token, wait
            )
        return self._records(request, queue, items, unique_id, born_host, now_ms, token, wait)

    def _check_item(self, item: BatchItem) -> None:
        props = item.properties
        if b"DELAY\x01" in props or b"TIMER_" in props or b"TRAN_MSG\x01" in props:
            self._treat(props)
        if len(props) > MAX_PROPERTIES_BYTES:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a message of the batch has {len(props)} bytes of properties, "
                f"{MAX_PROPERTIES_BYTES} are allowed",
            )

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
        sys_flag = _sys_flag(request.sys_flag, born_host)
        topic_length = len(queue.topic_bytes)
        store.make_room(
            sum(
                record_size(len(item.body), topic_length, len(item.properties), sys_flag)
                for item in items
            )
        )
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
        self.messages += len(items)
        return Sent(offsets, queue.queue_id, queue_offset, unique_id, wait)

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
        for name in (properties.INNER_NUM, properties.INNER_BASE):
            props = properties.remove(props, name.encode())
        props = properties.append(props, b"INNER_NUM", b"%d" % count)
        props = properties.append(props, b"INNER_BASE", b"%d" % queue_offset)
        log_offset = self._store.append(
            queue,
            body,
            self._with_own(props),
            token=token,
            flag=request.flag,
            sys_flag=_sys_flag(request.sys_flag, born_host) | _INNER_BATCH,
            born_timestamp_ms=request.born_timestamp,
            born_host=born_host,
            reconsume_times=request.reconsume_times or 0,
            count=count,
            now_ms=now_ms,
        )
        self.messages += count
        return Sent((log_offset,), queue.queue_id, queue_offset, unique_id, wait, unique_id)


def _sys_flag(sys_flag: int, born_host: bytes) -> int:
    """The client's flags without those that only the broker knows: address kinds and inner batches."""
    sys_flag &= ~(0x30 | _INNER_BATCH)
    return sys_flag | (MessageFlag.BORN_HOST_V6 if len(born_host) > 8 else 0)
