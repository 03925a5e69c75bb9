"""What pops leave in the revive topic: check points (``ck``) and acknowledgements (``ack``, ``bAck``).

In: their fields, or the body of a record. Out: the other one, and the property text of the record. Pure; called by
:mod:`trio_mq.broker.pop.ledger`, which writes them, and :mod:`trio_mq.broker.pop.revive`, which reads them. The JSON
is that of the peers byte for byte, so that a store with open pops can go to an Apache broker and come back. Apache:
PopCheckPoint, AckMsg, BatchAckMsg, PopMessageProcessor.buildCkMsg.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import attrs
import msgspec

from trio_mq.errors import BodyError

CK_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""The group whose offsets say how far the revive topic is worked off."""

ACK_INTERVAL_MS: Final = 1000
"""A check point is read so much before its messages are due, so that it comes before their acknowledgements."""

LOG_END: Final = b"POP_LOG_END"
"""Property of a check point: the end of the log when its messages were popped. Peers pass it over.

Without it, offsets of a topic that was deleted and made again would bring back messages that nobody popped."""

MOST_MESSAGES: Final = 127
"""Of one check point: the peers have a byte for their number. Clients can send such records by hand, too."""

Key: TypeAlias = tuple[str, str, int, int, int, str]
"""Topic, group, queue id, start offset, pop time and broker name: what a check point and its acks have in common."""

#: Names that old brokers gave to the fields of an acknowledgement.
_LONG_NAMES: Final = {
    "ackOffset": "ao",
    "startOffset": "so",
    "consumerGroup": "c",
    "topic": "t",
    "queueId": "q",
    "popTime": "pt",
    "brokerName": "bn",
    "ackOffsetList": "aol",
}


class Checkpoint(msgspec.Struct):
    """Messages of one queue that were handed out by one pop.

    `deltas` are their queue offsets less `start_offset`; without them the messages are the `count` ones from the
    start. `re_puts` says how often a broker could not revive it and stored it anew.
    """

    start_offset: int = msgspec.field(name="so")
    pop_time_ms: int = msgspec.field(name="pt")
    invisible_ms: int = msgspec.field(name="it")
    count: int = msgspec.field(name="n")
    queue_id: int = msgspec.field(name="q")
    topic: str = msgspec.field(name="t")
    group: str = msgspec.field(name="c")
    deltas: list[int] | None = msgspec.field(name="d", default=None)
    broker_name: str | None = msgspec.field(name="bn", default=None)
    bits: int = msgspec.field(name="bm", default=0)
    re_puts: str | None = msgspec.field(name="rp", default=None)

    @property
    def key(self) -> Key:
        """See :data:`Key`."""
        return _key_of(self)

    @property
    def due_ms(self) -> int:
        """When messages that nobody acknowledged are visible again."""
        return self.pop_time_ms + self.invisible_ms

    def offsets(self) -> list[int]:
        """Queue offsets of its messages."""
        start = self.start_offset
        if self.deltas:
            return [start + delta for delta in self.deltas[: self.count]]
        return list(range(start, start + self.count))

    def encode(self) -> bytes:
        """The body of its record."""
        deltas = ",".join(map(str, self.deltas or ()))
        name = "" if self.broker_name is None else f'"bn":{_text(self.broker_name)},'
        # Apache's revive time is a sum of two other fields, which its JSON library writes down as well.
        re_puts = "" if self.re_puts is None else f'"rp":{_text(self.re_puts)},'
        return (
            f'{{"bm":{self.bits},{name}"c":{_text(self.group)},"d":[{deltas}],"it":{self.invisible_ms},'
            f'"n":{self.count},"pt":{self.pop_time_ms},"q":{self.queue_id},"reviveTime":{self.due_ms},"ro":0,{re_puts}'
            f'"so":{self.start_offset},"t":{_text(self.topic)}}}'
        ).encode()


class Ack(msgspec.Struct):
    """Acknowledged messages of one check point: the one at `ack_offset`, or those of `ack_offsets` (a batch)."""

    start_offset: int = msgspec.field(name="so")
    pop_time_ms: int = msgspec.field(name="pt")
    queue_id: int = msgspec.field(name="q")
    topic: str = msgspec.field(name="t")
    group: str = msgspec.field(name="c")
    ack_offset: int = msgspec.field(name="ao", default=-1)
    ack_offsets: list[int] | None = msgspec.field(name="aol", default=None)
    broker_name: str | None = msgspec.field(name="bn", default=None)

    @property
    def key(self) -> Key:
        """The key of its check point; an empty broker name stands for the broker that reads it."""
        return _key_of(self)

    @property
    def tag(self) -> str:
        """The tag of its record."""
        return ACK_TAG if self.ack_offsets is None else BATCH_ACK_TAG

    def offsets(self) -> Sequence[int]:
        """Queue offsets of the acknowledged messages."""
        return (self.ack_offset,) if self.ack_offsets is None else self.ack_offsets

    def encode(self) -> bytes:
        """The body of its record."""
        many = (
            "" if self.ack_offsets is None else f'"aol":[{",".join(map(str, self.ack_offsets))}],'
        )
        name = "" if self.broker_name is None else f'"bn":{_text(self.broker_name)},'
        return (
            f'{{"ao":{self.ack_offset},{many}{name}"c":{_text(self.group)},"pt":{self.pop_time_ms},'
            f'"q":{self.queue_id},"so":{self.start_offset},"t":{_text(self.topic)}}}'
        ).encode()


_read_checkpoint = msgspec.json.Decoder(Checkpoint).decode
_read_ack = msgspec.json.Decoder(Ack).decode


def decode_checkpoint(body: bytes) -> Checkpoint:
    """The check point of a record; BodyError when there is none in it."""
    try:
        found = _read_checkpoint(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyError(f"no check point of a pop: {error}") from None
    if not 0 <= found.count <= MOST_MESSAGES:
        raise BodyError(f"a check point of {found.count} messages; {MOST_MESSAGES} are the most")
    if found.deltas and len(found.deltas) < found.count:
        raise BodyError(
            f"a check point of {found.count} messages has only {len(found.deltas)} offsets"
        )
    return found


def decode_ack(body: bytes) -> Ack:
    """The acknowledgement of a record, with short or long names; BodyError when there is none in it."""
    try:
        return _read_ack(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error)
    try:
        value: Any = msgspec.json.decode(body)
        if isinstance(value, dict):
            return msgspec.convert({_LONG_NAMES.get(k, k): v for k, v in value.items()}, Ack)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    raise BodyError(f"no acknowledgement of a pop: {reason}")


def checkpoint_properties(ck: Checkpoint, log_end: int) -> bytes:
    """Properties of a check point's record: its time, tag and unique key, and the end of the log as it is now."""
    topic, group, queue_id, start_offset, pop_time_ms, broker = ck.key
    return (
        f"TIMER_DELIVER_MS\x01{ck.due_ms - ACK_INTERVAL_MS}\x02TAGS\x01{CK_TAG}\x02UNIQ_KEY\x01"
        f"{topic}@{queue_id}@{start_offset}@{group}@{pop_time_ms}@{broker}@{CK_TAG}\x02"
        f"POP_LOG_END\x01{log_end}\x02"
    ).encode()


def ack_properties(ack: Ack, due_ms: int) -> bytes:
    """Properties of an acknowledgement's record; `due_ms` is when its check point is due."""
    return (
        f"TIMER_DELIVER_MS\x01{due_ms}\x02TAGS\x01{ack.tag}\x02UNIQ_KEY\x01"
        f"{ack.topic}@{ack.queue_id}@{ack.ack_offset}@{ack.group}@{ack.pop_time_ms}@"
        f"{ack.broker_name or 'null'}@{ACK_TAG}\x02"
    ).encode()


@lru_cache(maxsize=10_000)
def _text(value: str) -> str:
    """A name as JSON: there are few of them, and each stands in thousands of records."""
    return json.dumps(value, ensure_ascii=False)


@attrs.define(eq=False)
class Open:
    """A check point on its way to be revived.

    `left` are the queue offsets that nobody has acknowledged; its messages were stored before `log_end`, which an
    Apache broker does not say.
    """

    ck: Checkpoint
    revive_offset: int
    left: set[int]
    log_end: int | None = None


def _key_of(part: Checkpoint | Ack) -> Key:
    return (
        part.topic,
        part.group,
        part.queue_id,
        part.start_offset,
        part.pop_time_ms,
        part.broker_name or "",
    )
