"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME: what becomes of popped messages.

In: receipts. Out: acknowledgements in the revive topic, or new check points that say when a message is visible again;
for ordered pops, changes of the queue's order. A receipt that came too late is as good as any other: the message is
then seen twice. Rules and their order: Apache AckMessageProcessor, ChangeInvisibleTimeProcessor.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.pop.checkpoints import Ack, Checkpoint, Key
from trio_mq.broker.pop.ledger import Acknowledged, PopLedger
from trio_mq.broker.pop.orders import PopOrders
from trio_mq.broker.pop.polls import PopPolls
from trio_mq.broker.put import Putter
from trio_mq.broker.topics import TopicTable
from trio_mq.clock import Clock
from trio_mq.config import BrokerSettings
from trio_mq.errors import RequestRefused, StoreFull
from trio_mq.net.requests import DEFERRED, Call, Deferred, Reply, RequestTable
from trio_mq.protocol import bodies, jsondialect
from trio_mq.protocol.bodies import BatchAck, BatchAckBody
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.pop import (
    AckMessageRequest,
    ChangeInvisibleTimeReply,
    ChangeInvisibleTimeRequest,
)
from trio_mq.protocol.receipts import ORDER_REVIVE_QUEUE, Receipt, parse_receipt, real_topic
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.pop")

#: Most messages that one entry of a batch acknowledges: a pop hands out 32, and its offsets lie close together.
MAX_BITS = 65_536


class Acks:
    """Answers acknowledgements and changes of visibility."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        putter: Putter,
        ledger: PopLedger,
        orders: PopOrders,
        polls: PopPolls,
        settings: BrokerSettings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._putter = putter
        self._ledger = ledger
        self._orders = orders
        self._polls = polls
        self._settings = settings
        self._clock = clock
        #: Acknowledgements of the receive that is being handled.
        self._collected: list[tuple[Call, Acknowledged]] = []

    def fill(self, table: RequestTable) -> None:
        """Answer the three requests."""
        table.settle = self.settle
        table.add(RequestCode.ACK_MESSAGE, AckMessageRequest, self.ack)
        table.add(RequestCode.BATCH_ACK_MESSAGE, None, self.batch_ack)
        table.add(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            ChangeInvisibleTimeRequest,
            self.change_invisible,
        )

    # -- acknowledgements ------------------------------------------------------------------------------------

    def ack(self, call: Call, request: AckMessageRequest) -> Reply | Deferred:
        """One message is done."""
        topic, queue_id, offset = request.topic, request.queue_id, request.offset
        low, high = self._bounds(topic, queue_id)
        if not low <= offset <= high:
            raise RequestRefused(
                ResponseCode.NO_MESSAGE,
                f"offset {offset}: queue {queue_id} of topic {topic} has {low} to {high}",
            )
        receipt = parse_receipt(request.extra_info)
        if receipt.is_ordered:
            refusal = self._ack_in_order(
                topic,
                request.consumer_group,
                queue_id,
                (offset,),
                receipt.pop_time_ms,
                receipt.invisible_ms,
            )
            if refusal is not None:
                raise refusal
            return Reply()
        self._check_revive_queue(receipt.revive_queue_id)
        ack = _ack_of(receipt, topic, request.consumer_group, queue_id, offset)
        due_ms = receipt.pop_time_ms + receipt.invisible_ms
        self._collected.append((call, Acknowledged(ack, receipt.revive_queue_id, due_ms)))
        return DEFERRED

    def settle(self) -> None:
        """Write the acknowledgements of one receive, as one record for each check point, and answer them."""
        collected = self._collected
        if not collected:
            return
        self._collected = []
        try:
            end = self._ledger.acknowledge(_joined([one for _, one in collected]))
        except (StoreFull, RequestRefused) as error:
            code: int = ResponseCode.SERVICE_NOT_AVAILABLE
            if isinstance(error, RequestRefused):
                code = error.code
            for call, _ in collected:
                call.respond(Reply(code, remark=str(error)))
            return
        for call, _ in collected:
            reply = self._answer(call, end)
            if not isinstance(reply, Deferred):
                call.respond(reply)

    def batch_ack(self, call: Call, _header: None) -> Reply | Deferred:
        """Several messages of several receipts are done; offsets that a queue does not have are passed over."""
        body = _read_batch(call.command.body) if call.command.body else None
        if body is None or not body.acks:
            raise RequestRefused(
                ResponseCode.NO_MESSAGE, "a batch acknowledgement without acknowledgements"
            )
        found: list[Acknowledged] = []
        refusals: list[RequestRefused | None] = []
        for entry in body.acks:
            topic = real_topic(entry.topic, entry.consumer_group, entry.retry)
            offsets = self._offsets_of(entry, topic)
            if entry.revive_queue_id == ORDER_REVIVE_QUEUE:
                refusals.append(
                    self._ack_in_order(
                        topic,
                        entry.consumer_group,
                        entry.queue_id,
                        offsets,
                        entry.pop_time,
                        entry.invisible_time,
                    )
                )
            elif offsets:
                self._check_revive_queue(entry.revive_queue_id)
                ack = Ack(
                    start_offset=entry.start_offset,
                    pop_time_ms=entry.pop_time,
                    queue_id=entry.queue_id,
                    topic=topic,
                    group=entry.consumer_group,
                    ack_offsets=offsets,
                    broker_name=body.broker_name,
                )
                due_ms = entry.pop_time + entry.invisible_time
                found.append(Acknowledged(ack, entry.revive_queue_id, due_ms))
        reply = self._acknowledge(call, found) if found else Reply()
        for refusal in refusals:
            if refusal is not None and not isinstance(reply, Deferred):
                raise refusal
        return reply

    def _offsets_of(self, entry: BatchAck, topic: str) -> list[int]:
        queue = self._store.queue(topic, entry.queue_id)
        if queue is None:
            log.warning(
                "a batch acknowledgement names queue %d of topic %s, which has no messages",
                *(entry.queue_id, topic),
            )
            return []
        low, high, start = queue.min_offset, queue.max_offset, entry.start_offset
        return [start + bit for bit in _bits(entry.bit_set) if low <= start + bit <= high]

    def _acknowledge(self, call: Call, acks: list[Acknowledged]) -> Reply | Deferred:
        return self._answer(call, self._written(lambda: self._ledger.acknowledge(acks)))

    def _answer(self, call: Call, end: int) -> Reply | Deferred:
        if self._settings.append_ack_async:
            return Reply()
        return self._putter.answer(call, end, Reply())

    def _ack_in_order(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: Sequence[int],
        pop_time_ms: int,
        invisible_ms: int,
    ) -> RequestRefused | None:
        """Note them in the queue's order; when that is free now, whoever waits for it may go on.

        Returns what is to be answered if one was not handed out; the others are noted all the same.
        """
        before = self._offsets.query(group, topic, queue_id)
        if before is not None:
            offsets = [offset for offset in offsets if offset >= before]
        if not offsets:
            return None
        now_ms = self._clock.now_ms()
        done = self._orders.commit(topic, group, queue_id, offsets, pop_time_ms, now_ms)
        if done.next_offset is not None:
            if self._offsets.pending_reset(group, topic, queue_id) is None:
                client = "an ordered ack"
                self._offsets.commit(group, topic, queue_id, done.next_offset, client=client)
            if not self._orders.blocked(topic, group, queue_id, None, invisible_ms, now_ms):
                self._polls.wake(topic, group, queue_id)
        if done.illegal is None:
            return None
        return RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"offset {done.illegal}: the last ordered pop of group {group} from queue {queue_id} of "
            f"topic {topic} had no such message",
        )

    # -- changes of visibility -------------------------------------------------------------------------------

    def change_invisible(self, call: Call, request: ChangeInvisibleTimeRequest) -> Reply | Deferred:
        """Let a message be visible at another time: as if it were popped now, alone, for this time."""
        topic, queue_id, offset = request.topic, request.queue_id, request.offset
        low, high = self._bounds(topic, queue_id)
        if not low <= offset < high:
            raise RequestRefused(
                ResponseCode.NO_MESSAGE,
                f"offset {offset}: queue {queue_id} of topic {topic} has messages {low} to {high - 1}",
            )
        receipt = parse_receipt(request.extra_info)
        if receipt.is_ordered:
            return self._change_in_order(request, receipt)
        self._check_revive_queue(receipt.revive_queue_id)
        now_ms = self._clock.now_ms()
        ck = Checkpoint(
            start_offset=offset,
            pop_time_ms=now_ms,
            invisible_ms=request.invisible_time,
            count=1,
            queue_id=queue_id,
            topic=topic,
            group=request.consumer_group,
            deltas=[0],
            broker_name=receipt.broker_name,
        )
        ack = _ack_of(receipt, topic, request.consumer_group, queue_id, offset)
        due_ms = receipt.pop_time_ms + receipt.invisible_ms
        old = Acknowledged(ack, receipt.revive_queue_id, due_ms)
        end = self._written(lambda: self._ledger.exchange(ck, receipt.revive_queue_id, old))
        header = ChangeInvisibleTimeReply(now_ms, request.invisible_time, receipt.revive_queue_id)
        return self._putter.answer(call, end, Reply(header=header))

    def _change_in_order(self, request: ChangeInvisibleTimeRequest, receipt: Receipt) -> Reply:
        group, topic, queue_id = request.consumer_group, request.topic, request.queue_id
        before = self._offsets.query(group, topic, queue_id)
        if before is not None and request.offset < before:
            return Reply()
        pop_time_ms = receipt.pop_time_ms
        visible_ms = self._clock.now_ms() + request.invisible_time
        self._orders.change_visible(topic, group, queue_id, request.offset, pop_time_ms, visible_ms)
        return Reply(
            header=ChangeInvisibleTimeReply(
                pop_time_ms, visible_ms - pop_time_ms, receipt.revive_queue_id
            )
        )

    # -- checks ----------------------------------------------------------------------------------------------

    def _bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Offsets of a queue's first message and behind its last."""
        config = self._topics.require(topic)
        if not 0 <= queue_id < config.read_queue_nums:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queue id {queue_id}: topic {topic} has {config.read_queue_nums} queues to read",
            )
        queue = self._store.queue(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def _check_revive_queue(self, queue_id: int) -> None:
        """Nobody may make us write queues that no check point is in."""
        if 0 <= queue_id < self._settings.revive_queue_num:
            return
        if queue_id < 0 or self._store.queue(self._ledger.topic, queue_id) is None:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the receipt names queue {queue_id} of the revive topic, which has "
                f"{self._settings.revive_queue_num} (reviveQueueNum)",
            )

    def _written(self, write: Callable[[], int]) -> int:
        try:
            return write()
        except StoreFull as full:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, str(full)) from full


def _joined(acks: Sequence[Acknowledged]) -> list[Acknowledged]:
    """Several acknowledgements of one check point as one: what waits in the timer is what costs time."""
    found: dict[tuple[Key, int], list[Acknowledged]] = {}
    for one in acks:
        found.setdefault((one.ack.key, one.revive_queue_id), []).append(one)
    joined: list[Acknowledged] = []
    for several in found.values():
        first = several[0]
        if len(several) > 1:
            offsets = dict.fromkeys(one.ack.ack_offset for one in several)
            ack = msgspec.structs.replace(first.ack, ack_offset=-1, ack_offsets=[*offsets])
            first = first._replace(ack=ack)
        joined.append(first)
    return joined


def _ack_of(receipt: Receipt, topic: str, group: str, queue_id: int, offset: int) -> Ack:
    return Ack(
        start_offset=receipt.start_offset,
        pop_time_ms=receipt.pop_time_ms,
        queue_id=queue_id,
        topic=topic,
        group=group,
        ack_offset=offset,
        broker_name=receipt.broker_name,
    )


#: Names of the fields of an entry as the peers' class has them: they are taken as well as the letters.
_LONG_NAMES = {
    "consumerGroup": "c",
    "topic": "t",
    "retry": "r",
    "startOffset": "so",
    "queueId": "q",
    "reviveQueueId": "rq",
    "popTime": "pt",
    "invisibleTime": "it",
    "bitSet": "b",
}


def _read_batch(body: bytes) -> BatchAckBody:
    """The body of a batch acknowledgement, with short or long names."""
    value: Any = jsondialect.loads(body)
    if isinstance(value, dict) and isinstance(value.get("acks"), list):
        value["acks"] = [
            {_LONG_NAMES.get(name, name): part for name, part in entry.items()}
            if isinstance(entry, dict)
            else entry
            for entry in value["acks"]
        ]
    return bodies.structure(BatchAckBody, value)


def _bits(text: str) -> list[int]:
    """Numbers of the bits that are set in the base64 text of a little-endian bit set (Java: BitSet.valueOf)."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"the bit set {text[:40]!r} of an acknowledgement is no base64",
        ) from None
    if len(data) * 8 > MAX_BITS:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"an acknowledgement has a bit set of {len(data)} bytes, {MAX_BITS // 8} are allowed",
        )
    number = int.from_bytes(data, "little")
    found = []
    while number:
        lowest = number & -number
        found.append(lowest.bit_length() - 1)
        number ^= lowest
    return found
