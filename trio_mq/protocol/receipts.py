"""Receipts of popped messages, the lists in a pop's answer, and the names of retry topics.

In: the text of a receipt (property POP_CK, field extraInfo), or its parts. Out: the other one. Pure; called by the
processors of pop and ack, by :mod:`trio_mq.broker.pop.revive` and by clients that pop. A receipt is eight values with
one blank between them: start offset of the pop, time of the pop (ms), invisible time (ms), queue of the revive topic,
kind of topic, broker name, queue id, queue offset of the message. Apache: ExtraInfoUtil, KeyBuilder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from trio_mq.errors import HeaderError, RequestRefused
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.topics import RETRY_PREFIX, pop_retry_topics

ORDER_REVIVE_QUEUE: Final = 999
"""Stands in receipts of ordered pops, which leave nothing in the revive topic."""

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
"""Kinds of topic that a popped message comes from."""

_KINDS: Final = (NORMAL, RETRY_V1, RETRY_V2)
_NUMBERS: Final = "start offset, pop time, invisible time, revive queue"


@attrs.frozen
class Receipt:
    """What a consumer shows to acknowledge a message. `queue_offset` is -1 in receipts of old clients."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    kind: str
    broker_name: str
    queue_id: int
    queue_offset: int = -1

    @property
    def is_ordered(self) -> bool:
        """Whether the pop was an ordered one."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    @property
    def text(self) -> str:
        """As it goes over the wire."""
        return (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue_id} "
            f"{self.kind} {self.broker_name} {self.queue_id} {self.queue_offset}"
        )


def parse_receipt(text: str) -> Receipt:
    """The parts of a receipt; a refusal with SYSTEM_ERROR (1), as with the peers, for any other text."""
    parts = text.split(" ")
    if not 7 <= len(parts) <= 8:
        raise _bad(text, f"it has {len(parts)} parts instead of 8")
    try:
        start_offset, pop_time_ms, invisible_ms, revive_queue_id = map(_number, parts[:4])
        queue_id = _number(parts[6])
        queue_offset = _number(parts[7]) if len(parts) > 7 else -1
    except ValueError:
        raise _bad(
            text, f"one of {_NUMBERS}, queue id and queue offset is no whole number"
        ) from None
    if parts[4] not in _KINDS:
        raise _bad(text, f"the kind of topic {parts[4]!r} is not one of 0, 1 and 2")
    return Receipt(
        start_offset,
        pop_time_ms,
        invisible_ms,
        revive_queue_id,
        parts[4],
        parts[5],
        queue_id,
        queue_offset,
    )


def _number(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError(text)
    return number


def _bad(text: str, why: str) -> RequestRefused:
    return RequestRefused(
        ResponseCode.SYSTEM_ERROR,
        f"{text[:100]!r} is no receipt of a pop: {why}; hand back the one that came with the message",
    )


def kind_of(topic: str) -> str:
    """The kind of a topic, as receipts and answers give it."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def real_topic(topic: str, group: str, kind: str) -> str:
    """Where a message lies that `group` popped of `topic`; a refusal with SYSTEM_ERROR for an unknown kind."""
    if kind == NORMAL:
        return topic
    if kind not in _KINDS:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"the kind of topic {kind[:20]!r} is not one of 0, 1 and 2"
        )
    return pop_retry_topics(topic, group)[0 if kind == RETRY_V1 else 1]


def normal_topic(topic: str, group: str) -> str:
    """The topic whose pops by `group` a retry topic belongs to; any other topic is its own."""
    for prefix in (f"{RETRY_PREFIX}{group}+", f"{RETRY_PREFIX}{group}_"):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


def start_entry(topic: str, queue_id: int, start_offset: int) -> str:
    """One entry of startOffsetInfo; the whole has ``;`` between entries."""
    return f"{kind_of(topic)} {queue_id} {start_offset}"


def offsets_entry(topic: str, queue_id: int, offsets: Iterable[int]) -> str:
    """One entry of msgOffsetInfo."""
    return f"{kind_of(topic)} {queue_id} {','.join(map(str, offsets))}"


def starts_in(text: str | None) -> dict[tuple[str, int], int]:
    """startOffsetInfo as the client reads it: the start offset of each kind and queue; HeaderError for other text."""
    return {place: _whole(rest, text) for place, rest in _entries(text)}


def offsets_in(text: str | None) -> dict[tuple[str, int], list[int]]:
    """msgOffsetInfo as the client reads it: the queue offsets of each kind and queue; HeaderError for other text."""
    return {
        place: [_whole(number, text) for number in rest.split(",")]
        for place, rest in _entries(text)
    }


def _entries(text: str | None) -> Iterator[tuple[tuple[str, int], str]]:
    for entry in (text or "").split(";"):
        if not entry:
            continue
        parts = entry.split(" ")
        if len(parts) != 3:
            raise HeaderError(f"{entry[:80]!r} in a pop's answer is not kind, queue id and offsets")
        yield (parts[0], _whole(parts[1], text)), parts[2]


def _whole(number: str, text: str | None) -> int:
    try:
        return _number(number)
    except ValueError:
        raise HeaderError(
            f"{number[:20]!r} in a pop's answer, {(text or '')[:80]!r}, is no whole number"
        ) from None
