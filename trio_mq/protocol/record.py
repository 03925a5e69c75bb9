"""The stored message record: one message as it lies in the commit log, on the wire and on a
replica.

In: record bytes, or the parts of a message. Out: a :class:`StoredMessage`, record bytes, or a
verdict on bytes of unknown health (:mod:`trio_mq.protocol.verdict`, whose names are also here).
Called by the store (append), by recovery and dispatch (:func:`check`), by processors and clients
(:func:`decode`).

Format: Apache's MessageExtEncoder, MessageDecoder, MessageVersion; spelled out in
``docs/reference/store-format.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import attrs

from trio_mq.errors import BodyError, LocalProtocolError
from trio_mq.protocol import properties as props
from trio_mq.protocol.layout import (
    BLANK,
    BLANK_HEADER_SIZE,
    FIXED_RECORD_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_V1_BYTES,
    MAX_TOPIC_V2_BYTES,
)
from trio_mq.protocol.message import HOST_V4_SIZE, HOST_V6_SIZE, Host, decompress
from trio_mq.protocol.verdict import (
    CRC_TAIL_SIZE,
    Blank,
    Buffer,
    Damaged,
    Torn,
    Verdict,
    Whole,
    body_crc,
    check,
    crc32,
    crc_tail,
    tail_crc,
)

__all__ = [
    "CRC_TAIL_SIZE",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "Blank",
    "Damaged",
    "StoredMessage",
    "Torn",
    "Verdict",
    "Whole",
    "blank",
    "body_crc",
    "check",
    "decode",
    "encode",
    "keys_for_index",
    "pack",
    "record_size",
    "seal",
    "tail_crc",
]

_BORN_V6: Final = 0x10
_STORE_V6: Final = 0x20
_HOSTS_V6: Final = 0x30
_ROLLBACK: Final = 0xC


@attrs.frozen
class StoredMessage:
    """One record, field by field, in the order of the format.

    ``body`` and ``properties`` are as stored (compressed, raw text); ``body_crc`` is the number in
    the record, which is not checked here. Offsets and sizes are in bytes, times in ms since the
    epoch.
    """

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: bytes

    @property
    def property_map(self) -> dict[str, str]:
        """The properties by name."""
        return props.parse(self.properties)

    @property
    def plain_body(self) -> bytes:
        """The body as the producer gave it; see :func:`trio_mq.protocol.message.decompress`."""
        return decompress(self.body, self.sys_flag)


# --- writing -----------------------------------------------------------------------------------

_Pack = Callable[..., bytes]
_PACKERS_LIMIT: Final = 20_000
# About 500 bytes each. Bodies of ever new lengths may fill it; then the old ones make room.
_packers: dict[tuple[int, int, int, int], tuple[_Pack, int, int]] = {}


def record_size(
    body_length: int, topic_length: int, properties_length: int, sys_flag: int = 0
) -> int:
    """Bytes of a record; lengths are in bytes, ``sys_flag`` tells which hosts are IPv6.

    Raises :class:`LocalProtocolError` if topic or properties are longer than their length word.
    """
    return _packer((body_length, topic_length, properties_length, sys_flag & _HOSTS_V6))[1]


def pack(
    queue_id: int,
    flag: int,
    queue_offset: int,
    log_offset: int,
    sys_flag: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes,
    topic: bytes,
    properties: bytes,
) -> bytes:
    """One record, from values that are ready: the fast way in.

    Hosts are :attr:`Host.packed`, and the IPv6 bits of ``sys_flag`` have to agree with them. The
    version is V1 up to 127 bytes of topic, then V2. Apache counts characters instead; for the
    names that it allows the two are the same, and for others a V1 length would overflow.

    Raises :class:`LocalProtocolError` if topic or properties are longer than their length word.
    """
    key = (len(body), len(topic), len(properties), sys_flag & 0x30)
    packer = _packers.get(key)
    if packer is None:
        packer = _packer(key)
    write, size, magic = packer
    return write(
        size,
        magic,
        crc32(body) & 0x7FFF_FFFF,
        queue_id,
        flag,
        queue_offset,
        log_offset,
        sys_flag,
        born_timestamp_ms,
        born_host,
        store_timestamp_ms,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        key[0],
        body,
        key[1],
        topic,
        key[2],
        properties,
    )


def _packer(key: tuple[int, int, int, int]) -> tuple[_Pack, int, int]:
    """The packing function, size and magic of all records with these lengths and host kinds."""
    found = _packers.get(key)
    if found is not None:
        return found
    body_length, topic_length, properties_length, hosts = key
    magic = MAGIC_V1 if topic_length <= MAX_TOPIC_V1_BYTES else MAGIC_V2
    _refuse_long(magic, topic_length, properties_length)
    layout = _record_struct(magic, body_length, topic_length, properties_length, hosts)
    if len(_packers) >= _PACKERS_LIMIT:
        del _packers[next(iter(_packers))]
    packer = _packers[key] = (layout.pack, layout.size, magic)
    return packer


def _record_struct(
    magic: int, body_length: int, topic_length: int, properties_length: int, hosts: int
) -> struct.Struct:
    born = HOST_V6_SIZE if hosts & _BORN_V6 else HOST_V4_SIZE
    store = HOST_V6_SIZE if hosts & _STORE_V6 else HOST_V4_SIZE
    width = "b" if magic == MAGIC_V1 else "h"
    return struct.Struct(
        f">iiiiiqqiq{born}sq{store}siqi{body_length}s{width}{topic_length}sh{properties_length}s"
    )


def _refuse_long(magic: int, topic_length: int, properties_length: int) -> None:
    limit = MAX_TOPIC_V1_BYTES if magic == MAGIC_V1 else MAX_TOPIC_V2_BYTES
    if topic_length > limit:
        raise LocalProtocolError(f"topic of {topic_length} bytes: a record takes {limit} at most")
    if properties_length > MAX_PROPERTIES_BYTES:
        raise LocalProtocolError(
            f"properties of {properties_length} bytes: a record takes {MAX_PROPERTIES_BYTES} at "
            "most; use fewer or shorter properties"
        )


def encode(message: StoredMessage) -> bytes:
    """The record of a message, with magic, CRC and size as its fields say.

    Decoding and encoding again gives the same bytes. Raises :class:`LocalProtocolError` when the
    fields contradict each other.
    """
    topic = message.topic.encode("utf-8", "replace")
    if message.magic not in (MAGIC_V1, MAGIC_V2):
        raise LocalProtocolError(f"magic {message.magic} is not one of a record")
    if message.body_crc < 0:
        raise LocalProtocolError(f"body CRC {message.body_crc} is negative; records keep 31 bits")
    _refuse_long(message.magic, len(topic), len(message.properties))
    born, store = message.born_host.packed, message.store_host.packed
    hosts = (_BORN_V6 if len(born) > HOST_V4_SIZE else 0) | (
        _STORE_V6 if len(store) > HOST_V4_SIZE else 0
    )
    if hosts != message.sys_flag & _HOSTS_V6:
        raise LocalProtocolError(
            f"the IPv6 bits of flags {message.sys_flag:#x} disagree with hosts "
            f"{message.born_host} and {message.store_host}"
        )
    lengths = len(message.body), len(topic), len(message.properties)
    layout = _record_struct(message.magic, *lengths, hosts)
    if layout.size != message.size:
        raise LocalProtocolError(
            f"the record says {message.size} bytes, its fields need {layout.size}"
        )
    return layout.pack(
        *(message.size, message.magic, message.body_crc, message.queue_id, message.flag),
        *(message.queue_offset, message.log_offset, message.sys_flag),
        *(message.born_timestamp_ms, born, message.store_timestamp_ms, store),
        *(message.reconsume_times, message.prepared_transaction_offset),
        *(lengths[0], message.body, lengths[1], topic, lengths[2], message.properties),
    )


def blank(remaining: int) -> bytes:
    """The 8 bytes that end a segment with ``remaining`` bytes to its end; the rest stays zero.

    Written when a record and 8 bytes more do not fit (Apache: DefaultAppendMessageCallback).
    """
    assert remaining >= BLANK_HEADER_SIZE, "a segment keeps 8 bytes behind every record"
    return BLANK.pack(remaining, MAGIC_BLANK)


def seal(record: bytes) -> bytes:
    """A record whose properties end in 20 reserved bytes, with the CRC of all the rest there.

    Used when property CRCs are switched on: the caller appends ``bytes(CRC_TAIL_SIZE)`` to the
    properties (after a missing last terminator), packs, and seals. Offsets and store time have to
    be final by then.
    """
    covered = record[:-CRC_TAIL_SIZE]
    return covered + crc_tail(crc32(covered) & 0x7FFF_FFFF)


# --- reading -----------------------------------------------------------------------------------

_HEAD: Final = struct.Struct(">iiiiiqqiq")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_TAIL_OF_HEAD: Final = struct.Struct(">iqi")
_BYTE: Final = struct.Struct(">b")
_SHORT: Final = struct.Struct(">h")


def decode(buf: Buffer, pos: int = 0) -> StoredMessage:
    """The record at ``pos`` (Apache: MessageDecoder.decode), CRCs not checked.

    Raises :class:`BodyError` if there is no complete record, naming the field that does not fit;
    nothing beyond the record is read.
    """
    room = len(buf) - pos
    if room < FIXED_RECORD_SIZE:
        raise BodyError(f"no record at byte {pos}: {room} bytes are left")
    head = _HEAD.unpack_from(buf, pos)
    size, magic, sys_flag = head[0], head[1], head[7]
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise BodyError(f"no record at byte {pos}: magic {magic & 0xFFFF_FFFF:#010x}")
    if not FIXED_RECORD_SIZE <= size <= room:
        raise BodyError(f"record at byte {pos} claims {size} bytes, {room} are left")
    data = bytes(memoryview(buf)[pos : pos + size])
    try:
        return _decode_record(data, head, sys_flag)
    except (struct.error, _FieldError) as error:
        raise BodyError(f"record at byte {pos} is broken: {error}") from None


class _FieldError(ValueError):
    """A field of the record does not fit into it."""


def _decode_record(data: bytes, head: tuple[int, ...], sys_flag: int) -> StoredMessage:
    at = _HEAD.size
    born, at = _take(data, at, HOST_V6_SIZE if sys_flag & _BORN_V6 else HOST_V4_SIZE, "born host")
    (store_timestamp_ms,) = _LONG.unpack_from(data, at)
    at += 8
    store, at = _take(
        data, at, HOST_V6_SIZE if sys_flag & _STORE_V6 else HOST_V4_SIZE, "store host"
    )
    reconsume_times, prepared, body_length = _TAIL_OF_HEAD.unpack_from(data, at)
    body, at = _take(data, at + _TAIL_OF_HEAD.size, max(0, body_length), "body")
    width = _BYTE if head[1] == MAGIC_V1 else _SHORT
    (topic_length,) = width.unpack_from(data, at)
    topic, at = _take(data, at + width.size, topic_length, "topic")
    (properties_length,) = _SHORT.unpack_from(data, at)
    properties, at = _take(data, at + 2, max(0, properties_length), "properties")
    if at != len(data):
        raise _FieldError(f"it says {len(data)} bytes and its fields have {at}")
    size, magic, crc, queue_id, flag, queue_offset, log_offset, _, born_timestamp_ms = head
    return StoredMessage(
        size=size,
        magic=magic,
        body_crc=crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        log_offset=log_offset,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=Host.unpack(born),
        store_timestamp_ms=store_timestamp_ms,
        store_host=Host.unpack(store),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        body=body,
        topic=str(topic, "utf-8", "replace"),
        properties=properties,
    )


def _take(data: bytes, at: int, length: int, what: str) -> tuple[bytes, int]:
    end = at + length
    if length < 0 or end > len(data):
        raise _FieldError(f"{what} of {length} bytes at byte {at} leads out of it")
    return data[at:end], end


def keys_for_index(topic: str, properties: bytes, sys_flag: int) -> list[str]:
    """The texts under which the key index finds a record, in the order they are put.

    The unique key, each of the ``KEYS`` (parted by single spaces, empty ones left out), and
    ``T#`` with the whole ``TAGS``, each as ``topic#key`` (Apache 5.4.0: IndexService.buildIndex).
    Rolled back records have none.
    """
    if sys_flag & _ROLLBACK == _ROLLBACK:
        return []
    keys: list[str] = []
    unique = props.get(properties, b"UNIQ_KEY")
    if unique is not None:
        keys.append(f"{topic}#{str(unique, 'utf-8', 'replace')}")
    own = props.get(properties, b"KEYS")
    if own is not None:
        keys += [f"{topic}#{key}" for key in str(own, "utf-8", "replace").split(" ") if key]
    tags = props.get(properties, b"TAGS")
    if tags is not None:
        keys.append(f"{topic}#T#{str(tags, 'utf-8', 'replace')}")
    return keys
