"""The body of a pull or pop answer as messages.

In: records one after another, the queue that they were read from. Out: messages in order, each decoded no further than
it has to be. Pure. Called by :mod:`.fetch` and by every other consumer. Source of the rules: Apache PullAPIWrapper,
MessageDecoder.decodesBatch, decodeMessage.

A record that breaks the format does not stop the queue: it is logged with its place and passed over, and what can still
be read after it is delivered (Apache's client drops the rest of the answer without a word). A body that cannot be
inflated raises where the application asks for it, so that the message is failed on, retried, and at last a dead letter:
another consumer may have the package that is missing here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import Final

import attrs

from trio_mq.client.messages import COMPRESSED_BODY_AT, ReceivedMessage, Settler
from trio_mq.client.options import without_namespace
from trio_mq.errors import BodyError, LocalProtocolError
from trio_mq.protocol import properties as props
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.layout import FIXED_RECORD_SIZE, IPV6_HOST_EXTRA, MAGIC_V1, MAGIC_V2
from trio_mq.protocol.message import split_batch
from trio_mq.protocol.record import decode as decode_record

log = logging.getLogger("trio_mq.client")

#: Size, magic, queue offset, flags, body length; of a record whose hosts are IPv4.
_HEAD_V4: Final = Struct(">ii12xq8xi44xi")
_INT: Final = Struct(">i")
_SHORT: Final = Struct(">h")
_BODY_LENGTH_AT: Final = 84
_BODY_AT: Final = 88
_COMPRESSED: Final = int(MessageFlag.COMPRESSED)
_HOSTS_V6: Final = int(MessageFlag.BORN_HOST_V6 | MessageFlag.STORE_HOST_V6)
_BATCH: Final = int(MessageFlag.INNER_BATCH | MessageFlag.NEED_UNWRAP)
_UNUSUAL: Final = _COMPRESSED | _HOSTS_V6 | int(MessageFlag.NEED_UNWRAP)


@attrs.define
class Source:
    """Where an answer comes from, and what every message of it gets.

    `queue` is as the application names it. `tags` are checked by their exact text; empty lets all pass. Of a retry
    topic, messages get the topic that they were sent to first. `namespace` is taken off that topic.
    """

    queue: MessageQueue
    settler: Settler | None = None
    tags: frozenset[str] = frozenset()
    is_retry: bool = False
    namespace: str | None = None


def read(
    data: bytes, source: Source, first_offset: int = 0, offset_delta: int = 0
) -> list[ReceivedMessage]:
    """All messages of an answer; of a batch that begins before `first_offset`, those from there on.

    `offset_delta` is what the broker wants added to queue offsets (queues that moved between brokers).
    """
    found: list[ReceivedMessage] = []
    add, make = found.append, ReceivedMessage.of_record
    queue, settler, topic = source.queue, source.settler, source.queue.topic
    plain = not (source.is_retry or source.tags)
    pos, end = 0, len(data)
    while pos < end:
        try:
            size, magic, queue_offset, sys_flag, body_length = _HEAD_V4.unpack_from(data, pos)
            if sys_flag & _HOSTS_V6:
                body_at = _BODY_AT + (sys_flag & _HOSTS_V6).bit_count() * IPV6_HOST_EXTRA
                (body_length,) = _INT.unpack_from(data, pos + body_at - 4)
            else:
                body_at = _BODY_AT
            raw = data[pos : pos + size]
            properties_at = _check(raw, size, magic, body_at, body_length)
        except (StructError, BodyError, IndexError) as error:
            pos = _after_broken(data, pos, source, error)
            continue
        pos += size
        queue_offset += offset_delta
        if sys_flag & _UNUSUAL:
            if sys_flag & _BATCH == _BATCH:
                found += _read_batch(raw, source, queue_offset, first_offset)
                continue
            if sys_flag & _COMPRESSED:
                body_at, body_length = COMPRESSED_BODY_AT, 0
        if not plain:
            topic_or_none = _topic_of(raw[properties_at:], source)
            if topic_or_none is None:
                continue
            topic = topic_or_none
        add(make(raw, body_at, body_at + body_length, queue, queue_offset, settler, topic))
    return found


def _check(raw: bytes, size: int, magic: int, body_at: int, body_length: int) -> int:
    """Where the properties of a record begin; BodyError when its lengths do not add up."""
    topic_at = body_at + body_length
    if body_length < 0 or not FIXED_RECORD_SIZE <= size == len(raw):
        raise BodyError(f"it says {size} bytes and {body_length} bytes of body")
    if magic == MAGIC_V1:
        properties_at = topic_at + 1 + raw[topic_at] + 2
    elif magic == MAGIC_V2:
        properties_at = topic_at + 2 + _SHORT.unpack_from(raw, topic_at)[0] + 2
    else:
        raise BodyError(f"magic {magic & 0xFFFF_FFFF:#010x} is not one of a record")
    if properties_at + _SHORT.unpack_from(raw, properties_at - 2)[0] != size:
        raise BodyError(f"it says {size} bytes and its fields have others")
    return properties_at


def _after_broken(data: bytes, pos: int, source: Source, error: Exception) -> int:
    """Log a record that cannot be read; where the next one begins, or the end when that is not known."""
    room = len(data) - pos
    size = _INT.unpack_from(data, pos)[0] if room >= 4 else 0
    known = FIXED_RECORD_SIZE <= size < room
    log.error(
        "%s@%s:%d: a record of an answer cannot be read and is passed over%s: %s",
        source.queue.topic, source.queue.broker_name, source.queue.queue_id,
        "" if known else f", and so are the {room} bytes that follow", error,
    )  # fmt: skip
    return pos + size if known else len(data)


def _topic_of(properties: bytes, source: Source) -> str | None:
    """The topic that a message is shown with; None for one that was not asked for."""
    if source.tags:
        tag = props.get(properties, b"TAGS")
        if tag is None or str(tag, "utf-8", "replace") not in source.tags:
            return None
    if source.is_retry:
        real = props.get(properties, b"RETRY_TOPIC")
        if real is not None:
            return without_namespace(source.namespace, str(real, "utf-8", "replace"))
    return source.queue.topic


def _read_batch(
    raw: bytes, source: Source, queue_offset: int, first_offset: int
) -> Iterator[ReceivedMessage]:
    """The messages of a record that holds a batch; the record itself when it is broken, as with Apache."""
    record = decode_record(raw)
    try:
        parts = [
            (attrs.evolve(record, body=item.body, properties=item.properties, flag=item.flag), item.body)
            for item in split_batch(record.plain_body)
        ]  # fmt: skip
    except (BodyError, LocalProtocolError) as error:
        log.error(
            "%s@%s:%d offset %d: a batch cannot be taken apart: %s",
            source.queue.topic, source.queue.broker_name, source.queue.queue_id, queue_offset, error,
        )  # fmt: skip
        parts = [(record, record.body)]
        first_offset = 0
    for number, (part, body) in enumerate(parts):
        topic = _topic_of(part.properties, source)
        if topic is not None and queue_offset + number >= first_offset:
            message = ReceivedMessage(part, source.queue, body, source.settler, topic)
            message.queue_offset = queue_offset + number
            message.size_bytes = len(body)
            yield message
