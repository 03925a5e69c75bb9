"""Popped messages: what a pop's answer holds, how long a message is ours, and what acknowledges it.

In: answers to POP_MESSAGE, messages to acknowledge. Out: :class:`PoppedMessage`, bodies of BATCH_ACK_MESSAGE. Pure,
apart from the messages themselves, whose settler talks to the broker. Called by :mod:`.simple` and its parts. Source
of the rules: Apache MQClientAPIImpl.processPopResponse, ExtraInfoUtil, ConsumeMessagePopConcurrentlyService.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final, Protocol

import attrs

from trio_mq.client.messages import COMPRESSED_BODY_AT, Outcome, ReceivedMessage
from trio_mq.errors import BodyError, PeerRefused, PeerUnavailable, ReceiptExpired
from trio_mq.protocol import properties as props
from trio_mq.protocol import record as records
from trio_mq.protocol.bodies import BatchAck, MessageQueue
from trio_mq.protocol.headers import PopMessageReply
from trio_mq.protocol.receipts import (
    NORMAL,
    Receipt,
    kind_of,
    offsets_in,
    parse_receipt,
    real_topic,
    starts_in,
)
from trio_mq.protocol.record import StoredMessage

log = logging.getLogger("trio_mq.client")

#: Seconds until a failed message comes again, by the number of failures (Apache: popDelayLevel).
RETRY_DELAYS_S: Final = (
    10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
_LMQ_PREFIX: Final = "%LMQ%"


@attrs.frozen
class Popped:
    """A record and the receipt that acknowledges it."""

    record: StoredMessage
    receipt: Receipt


def popped(header: PopMessageReply, body: bytes, topic: str, broker_name: str) -> list[Popped]:
    """The messages of an answer. The receipt is made from the lists in its header, unless the broker made it.

    Brokers make it for messages of retry topics, whose names they hide. RemoteProtocolError for what does not fit.
    """
    starts, offsets = starts_in(header.start_offset_info), offsets_in(header.msg_offset_info)
    taken: dict[tuple[str, int], Iterator[int]] = {}
    found = []
    for record in decode_all(body):
        given = record.property_map.get(props.POP_CK)
        if given is not None:
            found.append(Popped(record, parse_receipt(given)))
            continue
        place = _place(record, topic)
        if place not in starts:
            raise BodyError(
                f"a pop of {topic} at {broker_name} gave a message of queue {place[1]} and no start offset of it"
            )
        # The list is in the order of the records; a light queue's offset stands in the list only.
        numbers = taken.setdefault(place, iter(offsets.get(place, ())))
        receipt = Receipt(
            starts[place],
            header.pop_time,
            header.invisible_time,
            header.revive_qid,
            place[0],
            broker_name,
            place[1],
            next(numbers, record.queue_offset),
        )
        found.append(Popped(record, receipt))
    return found


def _place(record: StoredMessage, topic: str) -> tuple[str, int]:
    if topic.startswith(_LMQ_PREFIX):
        return NORMAL, 0  # stored in another topic; a light topic has one queue
    return kind_of(record.topic), record.queue_id


def decode_all(body: bytes) -> Iterator[StoredMessage]:
    """The records of an answer, one behind the other."""
    at = 0
    while at < len(body):
        record = records.decode(body, at)
        yield record
        at += record.size


class PopSettler(Protocol):
    """What a popped message asks of its consumer."""

    async def settle(self, message: ReceivedMessage, outcome: Outcome, delay_level: int) -> None:
        """See :class:`.messages.Settler`."""
        ...

    async def change_invisible(self, message: PoppedMessage, invisible_s: float) -> None:
        """Let the broker keep the message back for so long from now on."""
        ...


class PoppedMessage(ReceivedMessage):
    """A message that is the consumer's until its invisible time is over.

    In ``async with message:`` the block's end acknowledges; when that fails, or comes too late, it is logged and the
    message comes again. :meth:`ack` by hand raises instead.
    """

    __slots__ = ("_keeper", "expires_s", "receipt")

    def __init__(
        self,
        popped: Popped,
        topic: str,
        shown: str,
        group: str,
        settler: PopSettler,
        expires_s: float,
    ) -> None:
        """`topic` and `group` are names as brokers know them, `shown` is what the application calls the topic."""
        record, receipt = popped.record, popped.receipt
        source = real_topic(topic, group, receipt.kind)
        super().__init__(
            record,
            MessageQueue(source, receipt.broker_name, receipt.queue_id),
            b"",
            settler,
            shown,
        )
        # One that cannot be inflated raises where the application asks for it, and is retried.
        self._body, self._raw = None, (b"", COMPRESSED_BODY_AT, 0)
        self.queue_offset = receipt.queue_offset
        self._keeper = settler
        #: What acknowledges it; a new one with each change of the invisible time.
        self.receipt = receipt
        #: When the broker gives it to another consumer, on the clock of :func:`anyio.current_time`.
        self.expires_s = expires_s

    async def change_invisible(self, invisible_s: float) -> None:
        """Keep it for so many seconds from now on; 0 gives it back at once. ReceiptExpired when that comes too late."""
        await self._keeper.change_invisible(self, invisible_s)

    def mark_settled(self) -> None:
        """It was acknowledged together with others; not for applications."""
        self._settled = True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            return await super().__aexit__(kind, error, traceback)
        except (PeerUnavailable, PeerRefused, ReceiptExpired) as failure:
            log.warning("message %s comes again: %s", self.message_id, failure)
            return error is not None


def retry_delay_s(delay_level: int, reconsume_times: int) -> float:
    """How long a failed message stays away: by the level that is asked for, or by the number of failures."""
    level = delay_level or reconsume_times
    return RETRY_DELAYS_S[min(level, len(RETRY_DELAYS_S) - 1)]


def batch_acks(group: str, topic: str, receipts: Iterable[Receipt]) -> tuple[BatchAck, ...]:
    """The entries of BATCH_ACK_MESSAGE: one for all messages that one pop took of one queue."""
    offsets: dict[Receipt, list[int]] = {}
    for receipt in receipts:
        alike = attrs.evolve(receipt, queue_offset=-1)
        offsets.setdefault(alike, []).append(receipt.queue_offset - receipt.start_offset)
    return tuple(
        BatchAck(
            consumer_group=group,
            topic=topic,
            queue_id=pop.queue_id,
            revive_queue_id=pop.revive_queue_id,
            start_offset=pop.start_offset,
            pop_time=pop.pop_time_ms,
            invisible_time=pop.invisible_ms,
            retry=pop.kind,
            bit_set=_bit_set(numbers),
        )
        for pop, numbers in offsets.items()
    )


def _bit_set(numbers: Iterable[int]) -> str:
    """A bit set as Java writes it: little-endian bytes, in base64."""
    value = 0
    for number in numbers:
        value |= 1 << number
    return base64.b64encode(value.to_bytes((value.bit_length() + 7) // 8, "little")).decode()
