"""Ordered pops and notifications by hand.

In: a connection, topic and group. Out: popped messages, and how often each was handed out before, as the Java client
reads it off the answer. Formats: Apache ExtraInfoUtil, NotificationRequestHeader. Nothing of ``trio_mq`` is used here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs

from .java_client import unique
from .polling import now_ms, wait_for
from .pops import Popped, Pops, create_group, create_topic, send
from .raw import RawClient, Reply

NOTIFICATION, POLLING_INFO, RESET_OFFSET, MAX_OFFSET = 200054, 200055, 222, 30
CONSUME_STATS = 208
ILLEGAL = 13


@attrs.frozen
class Turn:
    """One message of an ordered pop; `times` is how often it was handed out before."""

    popped: Popped
    times: int

    @property
    def body(self) -> bytes:
        return self.popped.body


@attrs.define
class OrderedPops(Pops):
    """An ordered pop consumer of one topic."""

    def fields(self, count: int = 32, invisible_s: float = 60, **overrides: str) -> dict[str, str]:
        """Header of an ordered POP_MESSAGE."""
        return super().fields(count, invisible_s, **{"order": "true", **overrides})

    def turns(
        self,
        count: int = 1,
        invisible_s: float = 3,
        *,
        wait_s: float = 30,
        attempt: str | None = None,
    ) -> list[Turn]:
        """Messages of one pop, none when nothing is found in time."""
        more = {} if attempt is None else {"attemptId": attempt}
        reply = self.ask(count, invisible_s, pollTime=str(int(wait_s * 1000)), **more)
        found = self.taken(reply)
        if not found:
            return []
        times = order_counts(reply)
        turns = [
            Turn(one, times.get(f"qo{one.queue_id}%{one.offset}", times[str(one.queue_id)]))
            for one in found
        ]
        assert [turn.times for turn in turns] == [
            times.get(f"qo{one.queue_id}%{one.offset}", 0) for one in found
        ], "the least of a queue is that of messages which are new"
        return turns

    def is_blocked(self) -> bool:
        """Whether nothing is to be had now."""
        return self.turns(32, wait_s=0) == []

    def ack_ok(self, *turns: Turn) -> None:
        """Acknowledge messages one by one."""
        for turn in turns:
            reply = self.ack(turn.popped)
            assert reply.code == 0, reply.remark

    def reset(self, offset: int, queue_id: int = 0) -> None:
        """Set the group to a place in a queue."""
        fields = {
            "topic": self.topic,
            "group": self.group,
            "timestamp": "-1",
            "isForce": "true",
            "queueId": str(queue_id),
            "offset": str(offset),
        }
        reply = self.client.call(RESET_OFFSET, fields)
        assert reply.code == 0, reply.remark

    def notification(
        self, *, poll_s: float = 0.5, order: bool = True, attempt: str | None = None
    ) -> dict[str, str]:
        """Header of NOTIFICATION for all queues."""
        more = {} if attempt is None else {"attemptId": attempt}
        return {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": "-1",
            "pollTime": str(int(poll_s * 1000)),
            "bornTime": str(now_ms()),
            "order": str(order).lower(),
            **more,
        }

    def end(self, queue_id: int = 0) -> int:
        """Offset behind the last message of a queue."""
        reply = self.client.call(MAX_OFFSET, {"topic": self.topic, "queueId": str(queue_id)})
        assert reply.code == 0, reply.remark
        return int(reply.ext["offset"])

    def progress(self) -> list[int]:
        """The group's offset in each queue, as statistics tell it."""
        fields = {"consumerGroup": self.group, "topic": self.topic}
        reply = self.client.call(CONSUME_STATS, fields)
        assert reply.code == 0, reply.remark
        return [one["consumerOffset"] for one in reply.json()["offsetTable"].values()]

    def polling(self, queue_id: int = -1) -> int:
        """How many pops wait."""
        fields = {"consumerGroup": self.group, "topic": self.topic, "queueId": str(queue_id)}
        reply = self.client.call(POLLING_INFO, fields)
        assert reply.code == 0, reply.remark
        return int(reply.ext["pollingNum"])


def order_counts(reply: Reply) -> dict[str, int]:
    """Counts of an answer by ``<queue>`` and ``qo<queue>%<offset>``."""
    entries = [entry.split(" ") for entry in reply.ext["orderCountInfo"].split(";")]
    assert all(kind == "0" for kind, _, _ in entries)
    return {key: int(count) for _, key, count in entries}


def has_msg(reply: Reply) -> bool:
    """The answer to a notification."""
    assert reply.code == 0, reply.remark
    return reply.ext["hasMsg"] == "true"


def told(turns: Sequence[Turn]) -> list[tuple[str, int]]:
    """Bodies and counts."""
    return [(turn.body.decode(), turn.times) for turn in turns]


def fifo(address: str, messages: int) -> OrderedPops:
    """A consumer of a new topic of type FIFO with one queue, which has messages 0, 1, ..."""
    made = OrderedPops(connect(address), unique("Fifo"), unique("FG"))
    create_topic(made.client, made.topic, 1, attributes="+message.type=FIFO")
    create_group(made.client, made.group)
    send(made.client, made.topic, *(b"%d" % number for number in range(messages)))
    # Apache's queues follow its log by a moment.
    wait_for(lambda: made.end() == messages, "all are in the queue", timeout_s=5)
    return made


def connect(address: str) -> RawClient:
    """A connection that waits longer than a pop does."""
    return RawClient(address, timeout_s=40)


def first_answer(*clients: RawClient, within_s: float = 5) -> tuple[RawClient, Reply]:
    """The connection that hears something first, and what."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        for client in clients:
            try:
                return client, client.read(0.02)
            except TimeoutError:
                pass
    raise TimeoutError(f"none of {len(clients)} connections heard anything within {within_s} s")
