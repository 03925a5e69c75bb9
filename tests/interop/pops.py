"""Pops by hand: the requests of a pop consumer as frames, with receipts made as the Java client makes them.

In: a connection, topic and group. Out: popped messages with their receipts. Formats: Apache ExtraInfoUtil,
PopMessageRequestHeader, BatchAck. Nothing of ``trio_mq`` is used here.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence

import attrs

from .polling import now_ms
from .raw import RawClient, Record, Reply, Sender, records

POP, ACK, CHANGE, BATCH_ACK = 200050, 200051, 200053, 200151
NOTHING_FOUND, TOO_MANY_WAIT = 210, 209
UPDATE_AND_CREATE_TOPIC, DELETE_TOPIC_IN_BROKER = 17, 215
UPDATE_AND_CREATE_GROUP = 200
SET_MESSAGE_REQUEST_MODE, RESET_OFFSET = 401, 222


def create_topic(
    client: RawClient, topic: str, queues: int = 8, perm: int = 6, **more: str
) -> None:
    """Create or change a topic; `more` are other fields of the request."""
    reply = client.call(
        UPDATE_AND_CREATE_TOPIC,
        {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            **more,
        },
    )
    assert reply.code == 0, reply.remark


def create_group(client: RawClient, group: str, **settings: object) -> None:
    """Create or change a consumer group."""
    body = {"groupName": group, "consumeEnable": True, "brokerId": 0, **settings}
    reply = client.call(UPDATE_AND_CREATE_GROUP, {}, json.dumps(body).encode())
    assert reply.code == 0, reply.remark


def delete_topic(client: RawClient, topic: str) -> Reply:
    """Delete a topic."""
    return client.call(DELETE_TOPIC_IN_BROKER, {"topic": topic})


def pop_mode(client: RawClient, topic: str, group: str, share: int = 8) -> None:
    """Let consumers of a group, whose queues the broker assigns, pop."""
    body = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": share}
    reply = client.call(SET_MESSAGE_REQUEST_MODE, None, json.dumps(body).encode())
    assert reply.code == 0, reply.remark


def reset(consumer: Pops, offset: int, queue_id: int = 0) -> None:
    """Set how far a group is in a queue."""
    fields = {
        "topic": consumer.topic,
        "group": consumer.group,
        "timestamp": "-1",
        "isForce": "true",
        "queueId": str(queue_id),
        "offset": str(offset),
    }
    reply = consumer.client.call(RESET_OFFSET, fields)
    assert reply.code == 0, reply.remark


@attrs.frozen
class Popped:
    """One message, and what acknowledges it."""

    record: Record
    receipt: str
    broker_topic: str
    """Where the broker has it: the topic, or its retry topic."""

    @property
    def body(self) -> bytes:
        return self.record.body

    @property
    def kind(self) -> str:
        """0, or 1 or 2 for a retry topic."""
        return self.receipt.split(" ")[4]

    @property
    def queue_id(self) -> int:
        return int(self.receipt.split(" ")[6])

    @property
    def offset(self) -> int:
        return int(self.receipt.split(" ")[7])


def real_topic(topic: str, group: str, kind: str) -> str:
    """The topic of a kind."""
    return {"0": topic, "1": f"%RETRY%{group}_{topic}", "2": f"%RETRY%{group}+{topic}"}[kind]


@attrs.define
class Pops:
    """A pop consumer of one topic."""

    client: RawClient
    topic: str
    group: str
    broker: str = "b1"

    def fields(self, count: int = 32, invisible_s: float = 60, **overrides: str) -> dict[str, str]:
        """Header of POP_MESSAGE; without `pollTime` it does not wait."""
        return {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": "-1",
            "maxMsgNums": str(count),
            "invisibleTime": str(int(invisible_s * 1000)),
            "pollTime": "0",
            "bornTime": str(now_ms()),
            "initMode": "0",
            "exp": "*",
            "expType": "TAG",
            "order": "false",
            **overrides,
        }

    def ask(self, count: int = 32, invisible_s: float = 60, **overrides: str) -> Reply:
        """The answer to a pop, whatever it is."""
        return self.client.call(POP, self.fields(count, invisible_s, **overrides))

    def pop(self, count: int = 32, invisible_s: float = 60, **overrides: str) -> list[Popped]:
        """Messages of one pop, none when nothing is found."""
        return self.taken(self.ask(count, invisible_s, **overrides))

    def wait(self, wait_s: float, count: int = 32, invisible_s: float = 60) -> list[Popped]:
        """Messages of one pop that waits for them."""
        return self.pop(count, invisible_s, pollTime=str(int(wait_s * 1000)))

    def gather(self, count: int, within_s: float, invisible_s: float = 60) -> list[Popped]:
        """Messages of several pops, until there are so many or the time is over."""
        found: list[Popped] = []
        until = time.monotonic() + within_s
        while len(found) < count and (left := until - time.monotonic()) > 0:
            found += self.wait(min(left, 5), min(32, count - len(found)), invisible_s)
        return found

    def taken(self, reply: Reply) -> list[Popped]:
        """The messages in an answer, with their receipts."""
        if reply.code == NOTHING_FOUND:
            return []
        assert reply.code == 0, (reply.code, reply.remark)
        ext = reply.ext
        starts = {}
        for entry in filter(None, ext["startOffsetInfo"].split(";")):
            kind, queue_id, start = entry.split(" ")
            starts[kind, queue_id] = start
        offsets = {}
        for entry in filter(None, ext["msgOffsetInfo"].split(";")):
            kind, queue_id, numbers = entry.split(" ")
            offsets[kind, queue_id] = numbers.split(",")
        assert starts.keys() == offsets.keys()
        found = []
        for record in records(reply.body):
            receipt = record.properties.get("POP_CK")
            if receipt is None:
                key = "0", str(record.queue_id)
                assert str(record.queue_offset) in offsets[key]
                place = f"0 {self.broker} {record.queue_id} {record.queue_offset}"
                times = f"{ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']}"
                receipt = f"{starts[key]} {times} {place}"
            kind = receipt.split(" ")[4]
            assert record.topic == self.topic
            found.append(Popped(record, receipt, real_topic(self.topic, self.group, kind)))
        assert sum(map(len, offsets.values())) == len(found)
        return found

    def ack(self, popped: Popped, **overrides: str) -> Reply:
        """Acknowledge one message."""
        return self.client.call(ACK, self.ack_fields(popped, **overrides))

    def ack_fields(self, popped: Popped, **overrides: str) -> dict[str, str]:
        """Header of ACK_MESSAGE."""
        return {
            "consumerGroup": self.group,
            "topic": popped.broker_topic,
            "queueId": str(popped.queue_id),
            "extraInfo": popped.receipt,
            "offset": str(popped.offset),
            **overrides,
        }

    def change(self, popped: Popped, invisible_s: float, **overrides: str) -> Reply:
        """Let one message be visible at another time."""
        fields = self.ack_fields(popped, invisibleTime=str(int(invisible_s * 1000)), **overrides)
        return self.client.call(CHANGE, fields)

    def batch_ack(self, several: Sequence[Popped], **overrides: object) -> Reply:
        """Acknowledge messages of several receipts."""
        entries: dict[tuple[str, ...], list[int]] = {}
        for popped in several:
            parts = popped.receipt.split(" ")
            entries.setdefault((*parts[:5], parts[6]), []).append(popped.offset)
        acks = [
            {
                "c": self.group,
                "t": self.topic,
                "r": kind,
                "so": int(start),
                "q": int(queue_id),
                "rq": int(revive),
                "pt": int(pop_time),
                "it": int(invisible),
                "b": bit_set([offset - int(start) for offset in offsets]),
            }
            for (start, pop_time, invisible, revive, kind, queue_id), offsets in entries.items()
        ]
        body = {"acks": acks, "brokerName": self.broker, **overrides}
        return self.client.call(BATCH_ACK, None, json.dumps(body).encode())


def bit_set(numbers: Sequence[int]) -> str:
    """A bit set as Java writes it: little-endian bytes in base64."""
    value = sum(1 << number for number in set(numbers))
    return base64.b64encode(value.to_bytes((value.bit_length() + 7) // 8, "little")).decode()


def send(client: RawClient, topic: str, *bodies: bytes, queue_id: int = 0, props: str = "") -> None:
    """Store messages."""
    sender = Sender(client, topic)
    for body in bodies:
        reply = sender.send_v2(body, queue_id, props)
        assert reply.code == 0, reply.remark
