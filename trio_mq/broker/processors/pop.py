"""POP_MESSAGE: the broker chooses queues, hands messages out for a time, and remembers that it did.

In: a pop request. Out: messages with what their receipts are made of, or a wait until there are some. First all
queues are read, which may stop for data that is only on the disk; then everything is changed at once: check points,
offsets, orders. Rules and their order: Apache PopMessageProcessor.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import attrs

from trio_mq.broker.filters import EVERYTHING, Filters, MessageFilter
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.names import INTERNAL_TOPIC_MAX_LENGTH, pop_retry_topics
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.pop.access import readable_topic, require_consuming, require_reads
from trio_mq.broker.pop.checkpoints import Checkpoint
from trio_mq.broker.pop.ledger import HandedOut, PopLedger
from trio_mq.broker.pop.orders import PopOrders
from trio_mq.broker.pop.polls import Held, PopPolls, deadline_s
from trio_mq.broker.pop.queuereads import QueueRead, QueueReads, records
from trio_mq.broker.put import Putter
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings
from trio_mq.errors import RequestRefused, StoreFull
from trio_mq.net.requests import DEFERRED, Call, Deferred, Peer, Reply, RequestTable
from trio_mq.protocol import headers, properties
from trio_mq.protocol.bodies import TopicConfig
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers.pop import PopMessageReply, PopMessageRequest
from trio_mq.protocol.layout import MAX_TOPIC_V1_BYTES
from trio_mq.protocol.receipts import (
    ORDER_REVIVE_QUEUE,
    Receipt,
    kind_of,
    offsets_entry,
    start_entry,
)
from trio_mq.protocol.record import MAGIC_V1, MAGIC_V2, decode, encode, record_size
from trio_mq.store.store import Store

#: Most messages of one pop: a check point has one bit of an int for each.
MAX_MESSAGES = 32
#: A request that is so much older than its own poll time is not looked at any more.
TOO_LATE_MS = 500


@attrs.define
class _Taking:
    """A pop in progress: what was read so far, and what it became."""

    request: PopMessageRequest
    wanted: MessageFilter
    reads: list[QueueRead] = attrs.field(factory=list)
    count: int = 0
    rest: int = 0
    revive_queue_id: int = ORDER_REVIVE_QUEUE
    order_counts: list[str] = attrs.field(factory=list)

    def add(self, read: QueueRead) -> None:
        """Note what one queue has."""
        self.reads.append(read)
        self.count += len(read.numbers)
        self.rest += read.rest

    def header(self, pop_time_ms: int) -> PopMessageReply:
        """The reply's header."""
        reads = [read for read in self.reads if read.numbers]
        starts = [start_entry(read.topic, read.queue_id, read.start) for read in reads]
        offsets = [offsets_entry(read.topic, read.queue_id, read.numbers) for read in reads]
        return PopMessageReply(
            pop_time=pop_time_ms,
            invisible_time=self.request.invisible_time,
            revive_qid=self.revive_queue_id,
            rest_num=self.rest,
            start_offset_info=";".join(starts),
            msg_offset_info=";".join(offsets),
            order_count_info=";".join(self.order_counts) if self.request.order else None,
        )


class Popper:
    """Answers pops."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        putter: Putter,
        ledger: PopLedger,
        orders: PopOrders,
        polls: PopPolls,
        filters: Filters,
        settings: BrokerSettings,
        handle_again: Callable[[Peer, Command], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._putter = putter
        self._ledger = ledger
        self._orders = orders
        self._polls = polls
        self._filters = filters
        self._settings = settings
        self._reads = QueueReads(store, offsets, ledger, settings)
        self._random = random.Random()
        #: Handles a request again that has waited.
        self._handle_again = handle_again

    def fill(self, table: RequestTable) -> None:
        """Answer POP_MESSAGE."""
        table.add(RequestCode.POP_MESSAGE, None, self.pop)

    def pop(self, call: Call, _header: None) -> Reply | Deferred:
        """Answer now, or when a message arrives, or when its time is over. May raise ColdData, nothing changed."""
        command, now_ms = call.command, call.now_ms
        if command.ext.get("bornTime", "0") == "0":
            command = attrs.evolve(command, ext={**command.ext, "bornTime": str(now_ms)})
        request = headers.decode(PopMessageRequest, command.ext)
        topic = self._check(request, now_ms)
        taking = _Taking(request, self._wanted(request))
        self._read(taking, topic, now_ms)
        end = self._take(taking, now_ms)
        if taking.count:
            return self._answer(call, taking, end)
        held = self._polls.hold(
            call.peer,
            request.topic,
            request.consumer_group,
            request.queue_id,
            deadline_s(request.born_time, request.poll_time, now_ms),
            taking.wanted.matches,
            partial(self._handle_again, call.peer, command),
        )
        if held is Held.HELD:
            if taking.rest > 0:
                self._polls.wake(request.topic, request.consumer_group, request.queue_id)
            return DEFERRED
        code = ResponseCode.POLLING_FULL if held is Held.FULL else ResponseCode.POLLING_TIMEOUT
        return Reply(code, taking.header(now_ms), remark="NO_MESSAGE_IN_QUEUE")

    # -- checks ----------------------------------------------------------------------------------------------

    def _check(self, request: PopMessageRequest, now_ms: int) -> TopicConfig:
        """Apache's checks in Apache's order."""
        settings = self._settings
        late_ms = now_ms - request.born_time - request.poll_time
        if late_ms > TOO_LATE_MS:
            raise RequestRefused(
                ResponseCode.POLLING_TIMEOUT,
                f"the pop came {late_ms} ms after its time was over (bornTime + pollTime); "
                f"are the clocks of client and broker the same?",
            )
        require_reads(settings)
        if request.max_msg_nums > MAX_MESSAGES:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{request.max_msg_nums} messages are wanted, one pop gives {MAX_MESSAGES} at most",
            )
        if not self._store.parts.settings.timer_wheel_enable:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "pops need the timer, which is off in this broker; set timerWheelEnable=true",
            )
        topic = readable_topic(self._topics, request.topic, request.queue_id)
        retry, _ = pop_retry_topics(request.topic, request.consumer_group)
        # What is not acknowledged must be able to come back.
        if len(retry) > INTERNAL_TOPIC_MAX_LENGTH:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the names of topic and group make a retry topic of {len(retry)} characters, "
                f"{INTERNAL_TOPIC_MAX_LENGTH} are allowed; use shorter names",
            )
        require_consuming(self._groups, request.consumer_group)
        return topic

    def _wanted(self, request: PopMessageRequest) -> MessageFilter:
        if not request.exp:
            return EVERYTHING
        try:
            return self._filters.of(request.exp_type, request.exp)
        except RequestRefused as refusal:  # whatever is wrong, the peers say that it does not parse
            code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
            raise RequestRefused(code, refusal.remark) from refusal

    # -- reading ---------------------------------------------------------------------------------------------

    def _read(self, taking: _Taking, topic: TopicConfig, now_ms: int) -> None:
        """Look into the queues of the topic and its retry topic until there is enough; changes nothing."""
        request, settings = taking.request, self._settings
        drawn = self._random.randrange(100)
        retry = None
        if not request.order:
            v1, v2 = pop_retry_topics(request.topic, request.consumer_group)
            use_v1 = not settings.enable_retry_topic_v2 or (
                settings.retrieve_message_from_pop_retry_topic_v1 and drawn % 2 == 0
            )
            retry = self._topics.get(v1 if use_v1 else v2)
        retry_first = drawn < settings.pop_from_retry_probability
        if retry is not None and retry_first:
            self._read_topic(taking, retry, drawn, now_ms)
        if request.queue_id < 0:
            self._read_topic(taking, topic, drawn, now_ms)
        else:
            self._read_queue(taking, topic.topic_name, request.queue_id, now_ms)
        if retry is not None and not retry_first and taking.count < request.max_msg_nums:
            self._read_topic(taking, retry, drawn, now_ms)

    def _read_topic(self, taking: _Taking, topic: TopicConfig, first: int, now_ms: int) -> None:
        """All queues, from a random one on, so that none is always the last."""
        for number in range(topic.read_queue_nums):
            queue_id = (first + number) % topic.read_queue_nums
            self._read_queue(taking, topic.topic_name, queue_id, now_ms)

    def _read_queue(self, taking: _Taking, topic: str, queue_id: int, now_ms: int) -> None:
        request = taking.request
        group = request.consumer_group
        if request.order and self._is_blocked(request, topic, queue_id, now_ms):
            return
        left = request.max_msg_nums - taking.count
        if self._ledger.too_many(topic, group, queue_id):
            left = 0
        taking.add(self._reads.read(topic, group, queue_id, request.init_mode, left, taking.wanted))

    def _is_blocked(
        self, request: PopMessageRequest, topic: str, queue_id: int, now_ms: int
    ) -> bool:
        group = request.consumer_group
        if self._offsets.pending_reset(group, topic, queue_id) is not None:
            return False  # what was handed out before a reset blocks nothing
        attempt, invisible_ms = request.attempt_id, request.invisible_time
        return self._orders.blocked(topic, group, queue_id, attempt, invisible_ms, now_ms)

    # -- taking ----------------------------------------------------------------------------------------------

    def _take(self, taking: _Taking, now_ms: int) -> int:
        """Hand out what was read; the log offset behind the check points, 0 without any.

        When the check points cannot be stored nothing is handed out.
        """
        request = taking.request
        group = request.consumer_group
        for read in taking.reads:
            if read.reset:
                self._offsets.take_reset(group, read.topic, read.queue_id)
                self._orders.clear(group, read.topic, read.queue_id)
                self._ledger.reset(group, read.topic, read.queue_id)
            if read.commit is not None:
                self._offsets.commit(group, read.topic, read.queue_id, read.commit, client="a pop")
        if request.order:
            self._take_in_order(taking, now_ms)
            return 0
        taking.revive_queue_id = self._ledger.next_revive_queue()
        handed = [
            HandedOut(self._checkpoint(request, read, now_ms), read.next_offset)
            for read in taking.reads
            if read.numbers
        ]
        end = 0
        if handed:
            try:
                end = self._ledger.hand_out(handed, taking.revive_queue_id)
            except StoreFull as full:
                raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, str(full)) from full
        for read in taking.reads:
            if read.passed:
                self._ledger.skip(group, read.topic, read.queue_id, read.next_offset)
        return end

    def _checkpoint(self, request: PopMessageRequest, read: QueueRead, now_ms: int) -> Checkpoint:
        start = read.start
        return Checkpoint(
            start_offset=start,
            pop_time_ms=now_ms,
            invisible_ms=request.invisible_time,
            count=len(read.numbers),
            queue_id=read.queue_id,
            topic=read.topic,
            group=request.consumer_group,
            deltas=[number - start for number in read.numbers],
            broker_name=self._settings.broker_name,
        )

    def _take_in_order(self, taking: _Taking, now_ms: int) -> None:
        """The group's offset stays at the first message until all are acknowledged."""
        request = taking.request
        group = request.consumer_group
        for read in taking.reads:
            if read.numbers:
                told = self._orders.update(
                    request.attempt_id,
                    read.topic,
                    group,
                    read.queue_id,
                    now_ms,
                    request.invisible_time,
                    read.numbers,
                )
                taking.order_counts.append(told)
                self._offsets.commit(group, read.topic, read.queue_id, read.start, client="a pop")
            elif read.passed:
                self._offsets.commit(
                    group, read.topic, read.queue_id, read.next_offset, client="a pop"
                )

    # -- answering -------------------------------------------------------------------------------------------

    def _answer(self, call: Call, taking: _Taking, end: int) -> Reply | Deferred:
        """Messages and the makings of their receipts, once the check points are safe."""
        request = taking.request
        if taking.rest > 0:
            # One arrival wakes one consumer, which may leave some for others.
            self._polls.wake(request.topic, request.consumer_group, request.queue_id)
        if call.command.is_oneway:
            return DEFERRED
        body = b"".join(
            [self._body(taking, read, call.now_ms) for read in taking.reads if read.data]
        )
        self._count(taking)
        reply = Reply(header=taking.header(call.now_ms), body=body, remark="FOUND")
        if end and not self._settings.append_ck_async:
            return self._putter.answer(call, end, reply)
        return reply

    def _count(self, taking: _Taking) -> None:
        """Add to the statistics of the group."""
        for read in taking.reads:
            queue = self._store.queue(read.topic, read.queue_id)
            if read.numbers and queue is not None:
                queue.traffic.got(taking.request.consumer_group, len(read.numbers), len(read.data))

    def _body(self, taking: _Taking, read: QueueRead, pop_time_ms: int) -> bytes:
        """The records of one queue; those of a retry topic show the topic that the consumer knows."""
        own = read.topic == taking.request.topic
        if own or self._settings.pop_response_return_actual_retry_topic:
            return read.data
        data = read.data
        return b"".join(
            [
                self._as_own(data[begin:end], offset, taking, read, pop_time_ms)
                for offset, begin, end in records(data)
            ]
        )

    def _as_own(
        self, record: bytes, offset: int, taking: _Taking, read: QueueRead, pop_time_ms: int
    ) -> bytes:
        """A record with the topic of the request, and its receipt inside: the client cannot make it any more."""
        message = decode(record)
        props, topic = message.properties, taking.request.topic
        if properties.get(props, b"POP_CK") is None:
            receipt = Receipt(
                read.start,
                pop_time_ms,
                taking.request.invisible_time,
                taking.revive_queue_id,
                kind_of(read.topic),
                self._settings.broker_name,
                read.queue_id,
                offset,
            )
            props = properties.append(props, b"POP_CK", receipt.text.encode())
        size = record_size(len(message.body), len(topic.encode()), len(props), message.sys_flag)
        return encode(
            attrs.evolve(
                message,
                size=size,
                topic=topic,
                properties=props,
                magic=MAGIC_V1 if len(topic.encode()) <= MAX_TOPIC_V1_BYTES else MAGIC_V2,
            )
        )
