"""What lies at a position of the commit log: a whole record, a segment's end, a torn tail, damage.

In: a buffer (usually the map of a segment file) and a position. Out: one :data:`Verdict`; never an
exception, and never a read behind the record's own end. Recovery and dispatch call :func:`check`
for every record, so it reads only what it needs and keeps the common case flat.

Rules and their order: Apache's CommitLog.checkMessageAndReturnSize, then rules of our own, which
``strict`` and ``expected_offset`` switch on.
"""

from __future__ import annotations

import mmap
import re
import struct
from typing import Final, NamedTuple, TypeAlias

import attrs

from trio_mq.protocol import properties as props
from trio_mq.protocol.layout import (
    FIXED_RECORD_SIZE,
    IPV6_HOST_EXTRA,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
)
from trio_mq.protocol.message import tags_code_of

try:
    from isal.isal_zlib import crc32 as crc32  # 2 to 15 times faster, for short bodies too
except ImportError:
    from zlib import crc32 as crc32

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"

_CRC_COPY_BYTES: Final = 65_536  # longer bodies are read in place


def body_crc(body: bytes) -> int:
    """What a record keeps of its body: CRC-32 without the top bit."""
    return crc32(body) & 0x7FFF_FFFF


# --- property CRC ------------------------------------------------------------------------------

CRC_TAIL_SIZE: Final = 20
_CRC_TAIL_START: Final = b"__CRC32#\x01"


def crc_tail(value: int) -> bytes:
    """The 20 bytes that end a sealed record: the property ``__CRC32#``.

    Its ten digits stand in reverse, as Apache writes them (MessageDecoder.createCrc32).
    """
    return b"%b%b\x02" % (_CRC_TAIL_START, (b"%010d" % value)[::-1])


def tail_crc(text: bytes) -> int:
    """The number that a ``__CRC32#`` value stands for, -1 if it is none."""
    digits = text[::-1]
    return int(digits) if digits.isdigit() else -1


# --- verdicts ----------------------------------------------------------------------------------


class Whole(NamedTuple):
    """A record that passed every rule, with what dispatch needs of it.

    A NamedTuple, since recovery makes one for each record. ``tags_code`` is the hash of the tags;
    for a record of the schedule topic with ``delay_level`` above 0 the queue entry takes the time
    of delivery instead, which the caller computes from its table of levels. ``base_offset`` and
    ``batch_size`` describe an inner batch (the queue offset and 1 for anything else).
    """

    size: int
    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    store_timestamp_ms: int
    tags_code: int
    prepared_transaction_offset: int
    properties: bytes
    delay_level: int | None = None
    base_offset: int = 0
    batch_size: int = 1


@attrs.frozen
class Blank:
    """The end of a segment, told by the magic alone; what it claims as size is not to be used."""

    claimed_size: int


@attrs.frozen
class Torn:
    """A cut or unwritten tail: a record that was not finished, or none.

    ``claimed_size`` is as in :class:`Damaged`.
    """

    reason: str
    claimed_size: int = -1


@attrs.frozen
class Damaged:
    """A record that breaks a rule.

    ``size`` is Apache's answer: the bytes that dispatch may skip, or -1 if it cannot go on.
    ``claimed_size`` is what the record says of its size if that stays inside the buffer, else -1;
    a walk may look there for a next record. ``rule`` counts as Apache checks, 0 are our own.
    """

    size: int
    reason: str
    claimed_size: int = -1
    rule: int = 0


Verdict: TypeAlias = Whole | Blank | Torn | Damaged

# Size, magic, body CRC, queue id, queue offset, log offset, flags, store time, prepared transaction
# offset, body length; by the two IPv6 bits of the flags.
_HEADS: Final = {
    hosts: struct.Struct(f">iiii4xqqi8x{born}xq{store}x4xqi")
    for hosts, born, store in ((0, 8, 8), (0x10, 20, 8), (0x20, 8, 20), (0x30, 20, 20))
}
_HEAD_V4: Final = _HEADS[0]
_MIN_SIZE: Final = FIXED_RECORD_SIZE + 1
_SHORT: Final = struct.Struct(">h")
_TAGS: Final = b"TAGS\x01"
_PAIR_END: Final = b"\x02"
_INNER_NUM: Final = b"INNER_NUM\x01"

_TOPIC_CACHE_ENTRIES: Final = 10_000  # 127 bytes each; a log with more topics only gets slower
_topics: dict[bytes, str] = {}


def check(  # long and flat: a call per rule would double the cost of a record
    buf: Buffer,
    pos: int,
    end: int,
    *,
    check_crc: bool = True,
    read_body: bool = True,
    expected_offset: int | None = None,
    force_property_crc: bool = False,
    check_dup: bool = False,
    strict: bool = True,
) -> Verdict:
    """What ``buf[pos:end]`` begins with; ``end`` is the end of the segment, at most ``len(buf)``.

    ``check_crc`` with ``read_body``: the body CRC has to fit. ``force_property_crc``: the CRC over
    the whole record has to be there and to fit, the body is then not checked by itself.
    ``check_dup``: records with properties need a ``DUP_INFO`` of two parts.

    Our own rules. ``expected_offset``: the record has to say that it lies there, so that older
    bytes at a new place are not taken for a message. ``strict``: properties must not end in NUL
    (Apache accepts such a record, which was cut before its properties were written), and a CRC at
    the end of the properties is checked also if it is not forced.
    """
    room = end - pos
    if room < _MIN_SIZE:
        return check_start(buf, pos, room)
    head = _HEAD_V4.unpack_from(buf, pos)
    size, magic, crc, queue_id, queue_offset, log_offset, sys_flag, store_ms, prepared, body = head
    if size > room or (magic != MAGIC_V1 and magic != MAGIC_V2):
        return check_start(buf, pos, room)
    body_at = pos + 88
    record_end = pos + size
    if sys_flag & 0x30:
        body_at += IPV6_HOST_EXTRA * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
        if body_at > record_end:
            return _short_record(size)
        head = _HEADS[sys_flag & 0x30].unpack_from(buf, pos)
        store_ms, prepared, body = head[7:]
    topic_at = body_at + body if body > 0 else body_at
    topic_length_at = topic_at
    topic_at += 1 if magic == MAGIC_V1 else 2
    if topic_at + 2 > record_end:
        lost = read_body and (body > size or (check_crc and not force_property_crc))
        return _overrun("body", body, size, lost or topic_at + 2 - pos > room)

    # Rule 6.
    if check_crc and read_body and body > 0 and not force_property_crc:
        if body < _CRC_COPY_BYTES:
            actual = crc32(buf[body_at:topic_length_at]) & 0x7FFF_FFFF
        else:
            actual = _crc_in_place(buf, body_at, topic_length_at)
        if actual != crc:
            return Damaged(-1, f"body CRC is {actual}, the record says {crc}", size, 6)

    if magic == MAGIC_V1:
        topic_length = buf[topic_length_at]
        if topic_length > 127:
            topic_length -= 256
    else:
        (topic_length,) = _SHORT.unpack_from(buf, topic_length_at)
    if topic_length < 0:
        return Damaged(-1, f"topic length {topic_length} is negative", size, 5)
    properties_at = topic_at + topic_length + 2
    if properties_at > record_end:
        lost = topic_length > size or properties_at - pos > room
        return _overrun("topic", topic_length, size, lost)
    topic_bytes = buf[topic_at : properties_at - 2]
    if type(topic_bytes) is not bytes:  # a bytearray or a view; bytes and maps give bytes
        topic_bytes = bytes(topic_bytes)
    topic = _topics.get(topic_bytes) or _topic(topic_bytes)
    (properties_length,) = _SHORT.unpack_from(buf, properties_at - 2)

    tags_code = 0
    delay_level = None
    properties = b""
    used_end = properties_at
    if properties_length > 0:
        used_end += properties_length
        if used_end > record_end:
            lost = properties_length > size or used_end - pos > room
            return _overrun("properties", properties_length, size, lost)
        raw = buf[properties_at:used_end]
        properties = raw if type(raw) is bytes else bytes(raw)
        if strict and not properties[-1]:
            return Torn(f"properties of {properties_length} bytes end in NUL", size)
        if check_dup and not _has_dup_info(properties):  # rule 7
            return Damaged(-1, "DUP_INFO is missing or has not two parts", size, 7)
        at = properties.rfind(_TAGS)
        if at >= 0:  # properties.get, unrolled; the odd cases go there
            tags_end = properties.find(_PAIR_END, at)
            tags = properties[at + 5 : tags_end if tags_end >= 0 else None]
            if not tags or (at and properties[at - 1] != 2):
                tags = props.get(properties, b"TAGS") or b""
            tags_code = tags_code_of(tags)
        if topic == SCHEDULE_TOPIC:  # rule 8
            delay = props.get(properties, b"DELAY")
            if delay is not None:
                delay_level = java_integer(delay, 32)
                if delay_level is None:
                    return Damaged(-1, f"DELAY {delay!r} is not a number", size, 8)

    # Rule 9, and our own form of it.
    if check_crc and (force_property_crc or (strict and properties[-20:-11] == _CRC_TAIL_START)):
        why = _wrong_property_crc(buf, pos, record_end, properties)
        if why:
            return Damaged(-1, why, size, 9 if force_property_crc else 0)
    if used_end != record_end:
        return Damaged(size, f"half message: {size} bytes claimed, {used_end - pos} used", size, 10)
    base_offset, batch_size = queue_offset, 1
    if properties.find(_INNER_NUM) >= 0:  # rule 11; "in" is four times slower
        inner = _inner_batch(properties)
        if inner is None:
            return Damaged(-1, "INNER_NUM or INNER_BASE is not a number", size, 11)
        if inner:
            base_offset, batch_size = inner
    if expected_offset is not None and log_offset != expected_offset:
        return Damaged(
            size, f"record of offset {log_offset} lies at offset {expected_offset}", size
        )
    fields = (
        size, topic, queue_id, queue_offset, log_offset, sys_flag, store_ms, tags_code,
        prepared, properties, delay_level, base_offset, batch_size,
    )  # fmt: skip
    return _new_whole(Whole, fields)


_new_whole = tuple.__new__  # skips the argument parsing of a NamedTuple's constructor


def check_start(buf: Buffer, pos: int, room: int) -> Verdict:
    """Rules 1 to 5 in their order, for anything that cannot be a record of these lengths.

    Looks at 8 bytes, or what there is of them; `room` is what lies between them and the end of the segment, which
    need not be in the buffer.
    """
    if room <= 4:
        return Torn(f"only {max(room, 0)} bytes are left")
    size = int.from_bytes(buf[pos : pos + 4], "big", signed=True)
    if size > room:
        return Torn(f"record claims {size} bytes, {room} are left")
    if room < 8:
        return Torn(f"only {room} bytes are left")
    magic = int.from_bytes(buf[pos + 4 : pos + 8], "big", signed=True)
    if magic == MAGIC_BLANK:
        return Blank(size)
    if magic == 0:
        return Torn("nothing was written here (magic is zero)")
    if magic not in (MAGIC_V1, MAGIC_V2):
        return Damaged(-1, f"magic {magic & 0xFFFF_FFFF:#010x} is not one of a record", rule=4)
    return _short_record(size)


def _short_record(size: int) -> Damaged:
    return Damaged(-1, f"record claims {size} bytes, which is less than its fixed fields", rule=5)


def _overrun(what: str, length: int, size: int, lost: bool) -> Damaged:
    """The verdict on a field that leads out of the record.

    Apache reads such a field as long as the buffer and the claimed size allow, then fails on what
    it read (``lost``) or on the sum of the lengths. We tell the two apart without reading.
    """
    if size < _MIN_SIZE:
        return _short_record(size)
    reason = f"{what} of {length} bytes leads out of the record of {size} bytes"
    return Damaged(-1, reason, size, 5) if lost else Damaged(size, reason, size, 10)


def _crc_in_place(buf: Buffer, start: int, end: int) -> int:
    """CRC of a range, without a copy of long ones."""
    if end - start < _CRC_COPY_BYTES:
        return crc32(buf[start:end]) & 0x7FFF_FFFF
    with memoryview(buf) as view, view[start:end] as part:
        return crc32(part) & 0x7FFF_FFFF


def _topic(name: bytes) -> str:
    topic = str(name, "utf-8", "replace")
    if len(_topics) < _TOPIC_CACHE_ENTRIES:
        _topics[name] = topic
    return topic


def _has_dup_info(properties: bytes) -> bool:
    """Whether ``DUP_INFO`` has two parts, as Java's split counts them: empty last ones do not."""
    info = props.get(properties, b"DUP_INFO")
    return info is not None and len(info.rstrip(b"_").split(b"_")) == 2


def _wrong_property_crc(buf: Buffer, pos: int, end: int, properties: bytes) -> str:
    """What is wrong with the CRC over the whole record, "" if it fits (Apache: rule 9)."""
    text = props.get(properties, b"__CRC32#")
    if text is None:
        return "properties have no CRC"
    expected = tail_crc(text)
    actual = _crc_in_place(buf, pos, end - CRC_TAIL_SIZE)
    return "" if actual == expected else f"CRC is {actual}, the properties say {expected}"


_JAVA_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")


def java_integer(text: bytes, bits: int) -> int | None:
    """The number that Java reads from a text, or None if it is none or needs more bits."""
    if len(text) > 64 or not _JAVA_INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def _inner_batch(properties: bytes) -> tuple[int, int] | tuple[()] | None:
    """Base offset and count of an inner batch; () for others; None if they are no numbers."""
    base = props.get(properties, b"INNER_BASE")
    count = props.get(properties, b"INNER_NUM")
    if base is None or count is None:
        return ()
    base_offset, batch_size = java_integer(base, 64), java_integer(count, 16)
    return None if base_offset is None or batch_size is None else (base_offset, batch_size)
