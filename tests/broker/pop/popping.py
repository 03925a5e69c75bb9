"""A pop consumer without sockets: pops, acknowledgements and changes as frames to a whole broker."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import attrs

from tests.broker.support import GROUP, TOPIC, Bench, FakePeer, messages, request
from trio_mq.protocol.bodies import BatchAck, BatchAckBody
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import RawFrame
from trio_mq.protocol.headers.pop import (
    AckMessageRequest,
    ChangeInvisibleTimeRequest,
    PopMessageRequest,
)
from trio_mq.protocol.receipts import Receipt, parse_receipt
from trio_mq.protocol.record import StoredMessage

MIN, MAX = 0, 1


@attrs.frozen
class Taken:
    """A popped message with its receipt, and where the broker has it."""

    message: StoredMessage
    receipt: Receipt
    topic: str

    @property
    def body(self) -> bytes:
        return self.message.body


@attrs.define
class Consumer:
    """A pop consumer of one topic."""

    bench: Bench
    topic: str = TOPIC
    group: str = GROUP
    peer: FakePeer = attrs.field(factory=FakePeer)

    def frame(self, count: int = 32, invisible_ms: int = 60_000, **fields: Any) -> RawFrame:
        """A pop that does not wait."""
        made: dict[str, Any] = {
            "consumer_group": self.group,
            "topic": self.topic,
            "queue_id": -1,
            "max_msg_nums": count,
            "invisible_time": invisible_ms,
            "poll_time": 0,
            "born_time": self.bench.clock.now_ms(),
            "init_mode": MIN,
            "exp": "*",
            "exp_type": "TAG",
        } | fields
        return request(RequestCode.POP_MESSAGE, PopMessageRequest(**made))

    def ask(self, count: int = 32, invisible_ms: int = 60_000, **fields: Any) -> Command:
        """The answer to a pop, which comes at once."""
        return self.bench.ask(self.frame(count, invisible_ms, **fields), self.peer)

    def pop(self, count: int = 32, invisible_ms: int = 60_000, **fields: Any) -> list[Taken]:
        """Messages of a pop that is answered at once."""
        return self.taken(self.ask(count, invisible_ms, **fields))

    def taken(self, reply: Command) -> list[Taken]:
        """The messages of an answer."""
        if reply.code == ResponseCode.POLLING_TIMEOUT:
            return []
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        starts = dict(self._entries(reply.ext["startOffsetInfo"]))
        offsets = dict(self._entries(reply.ext["msgOffsetInfo"]))
        assert starts.keys() == offsets.keys()
        found = []
        for message in messages(reply):
            text = message.property_map.get("POP_CK")
            if text is not None:
                receipt = parse_receipt(text)
            else:
                key = "0", message.queue_id
                assert str(message.queue_offset) in offsets[key].split(",")
                receipt = Receipt(
                    int(starts[key]),
                    int(reply.ext["popTime"]),
                    int(reply.ext["invisibleTime"]),
                    int(reply.ext["reviveQid"]),
                    "0",
                    "b-a",
                    message.queue_id,
                    message.queue_offset,
                )
            topic = f"%RETRY%{self.group}{'?_+'[int(receipt.kind)]}{self.topic}"
            found.append(Taken(message, receipt, self.topic if receipt.kind == "0" else topic))
            assert message.topic == self.topic
        return found

    @staticmethod
    def _entries(text: str) -> list[tuple[tuple[str, int], str]]:
        parts = [entry.split(" ") for entry in text.split(";")]
        return [((kind, int(queue_id)), value) for kind, queue_id, value in parts]

    def ack(self, taken: Taken, **fields: Any) -> Command:
        """Acknowledge one message."""
        made = self.fields(taken) | fields
        return self.bench.ask(request(RequestCode.ACK_MESSAGE, AckMessageRequest(**made)))

    def change(self, taken: Taken, invisible_ms: int, **fields: Any) -> Command:
        """Let one message be visible at another time."""
        made = self.fields(taken) | {"invisible_time": invisible_ms} | fields
        header = ChangeInvisibleTimeRequest(**made)
        return self.bench.ask(request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header))

    def fields(self, taken: Taken) -> dict[str, Any]:
        return {
            "consumer_group": self.group,
            "topic": taken.topic,
            "queue_id": taken.receipt.queue_id,
            "extra_info": taken.receipt.text,
            "offset": taken.receipt.queue_offset,
        }

    def batch_ack(self, several: Sequence[Taken]) -> Command:
        """Acknowledge messages of one receipt each."""
        acks = tuple(
            BatchAck(
                self.group,
                self.topic,
                one.receipt.queue_id,
                one.receipt.revive_queue_id,
                one.receipt.start_offset,
                one.receipt.pop_time_ms,
                one.receipt.invisible_ms,
                one.receipt.kind,
                bit_set(one.receipt.queue_offset - one.receipt.start_offset),
            )
            for one in several
        )
        body = BatchAckBody("b-a", acks)
        return self.bench.ask(request(RequestCode.BATCH_ACK_MESSAGE, body=body))


def bit_set(*numbers: int) -> str:
    """As Java writes one."""
    value = sum(1 << number for number in numbers)
    return base64.b64encode(value.to_bytes((value.bit_length() + 7) // 8, "little")).decode()


def bodies_of(several: Sequence[Taken]) -> list[bytes]:
    """Sorted bodies: which queue comes first is random."""
    return sorted(one.body for one in several)
