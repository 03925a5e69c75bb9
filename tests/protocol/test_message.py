"""Hashes, hosts, ids, batch bodies and compressed bodies. Fixed vectors were printed by Apache's classes."""

from __future__ import annotations

import sys
import zlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies as my
from tests.golden_stores import NAMES, decoded, raw_records
from trio_mq.errors import BodyError, HeaderError, LocalProtocolError
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.message import (
    BatchItem,
    Host,
    UniqueIds,
    decompress,
    java_hash,
    join_batch,
    offset_message_id,
    parse_offset_message_id,
    split_batch,
    tags_code,
    tags_code_of,
)
from trio_mq.protocol.record import decode

# --- hashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("TagA || TagB", 1359775119),
        ("T#ABC", 78683027),
        ("TopicTest#ORDER_1", -1111208162),
        ("polygenelubricants", -2147483648),
        ("héllo ☃ 𝄞", 617529785),
        ("标签", 857175),
        ("𝄞", 1772394),
        ("x" * 256, -1577615360),
        ("x" * 257, -1661435784),
        ("ü" * 300 + "𝄞", -142925718),
    ],
)
def test_java_hash(text: str, expected: int) -> None:
    assert java_hash(text) == expected


@given(st.text(max_size=600))
def test_java_hash_is_the_loop_over_units(text: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFF_FFFF
    assert java_hash(text) & 0xFFFF_FFFF == value
    assert -(1 << 31) <= java_hash(text) < 1 << 31


def test_tags_code() -> None:
    assert tags_code(None) == tags_code("") == tags_code_of(b"") == 0
    assert tags_code("TagA") == tags_code_of(b"TagA") == tags_code_of(b"TagA") == 2598919
    assert tags_code_of("标签".encode()) == 857175
    long = "t" * 500
    assert tags_code_of(long.encode()) == tags_code(long)


# --- hosts and ids --------------------------------------------------------------------------------


@given(my.HOSTS)
def test_host_round_trip(host: Host) -> None:
    assert Host.unpack(host.packed) == host
    assert Host.parse(str(host)) == host
    assert len(host.packed) == (20 if host.is_v6 else 8)


def test_host_of_a_mapped_address_keeps_its_sixteen_bytes() -> None:
    packed = bytes(10) + b"\xff\xff\x0a\x00\x00\x01" + b"\x00\x00\x2a\x9f"
    assert Host.unpack(packed).packed == packed


def test_host_scope_is_not_stored() -> None:
    assert Host("fe80::1%eth0", 1).packed == Host("fe80::1", 1).packed


def test_host_keeps_any_stored_port() -> None:
    packed = b"\x7f\x00\x00\x01\xff\xff\xff\xff"
    assert Host.unpack(packed) == Host("127.0.0.1", -1)
    assert Host.unpack(packed).packed == packed


def test_host_errors() -> None:
    with pytest.raises(LocalProtocolError, match=r"localhost.*numeric"):
        _ = Host("localhost", 1).packed
    with pytest.raises(BodyError, match="8 or 20 bytes, not 7"):
        Host.unpack(bytes(7))
    for text in ("10.0.0.1", "10.0.0.1:", "10.0.0.1:x", "host:1", "10.0.0.1:65536", "::1", ""):
        with pytest.raises(HeaderError, match="is not an address like"):
            Host.parse(text)
    assert Host.parse("/127.0.0.1:10911") == Host("127.0.0.1", 10911)
    assert Host.parse("[::1]:10911") == Host("::1", 10911)


@pytest.mark.parametrize(
    ("host", "log_offset", "text"),
    [
        (Host("127.0.0.1", 10911), 0x1234, "7F00000100002A9F0000000000001234"),
        (Host("fe80::1", 10911), -1, "FE80000000000000000000000000000100002A9FFFFFFFFFFFFFFFFF"),
    ],
)
def test_offset_message_id(host: Host, log_offset: int, text: str) -> None:
    assert offset_message_id(host, log_offset) == text
    assert parse_offset_message_id(text) == (host, log_offset)
    assert parse_offset_message_id(text.lower()) == (host, log_offset)


@given(my.HOSTS, my.INT64)
def test_offset_message_id_round_trip(host: Host, log_offset: int) -> None:
    assert parse_offset_message_id(offset_message_id(host, log_offset)) == (host, log_offset)


@pytest.mark.parametrize(
    "text", ["", "7F", "X" * 32, "7F" * 17, "7F " * 10 + "7F", "7F" * 15 + "  ", "7F" * 40]
)
def test_bad_offset_message_id(text: str) -> None:
    with pytest.raises(HeaderError, match="32 or 56 hex digits"):
        parse_offset_message_id(text)


def test_unique_id_fields() -> None:
    ids = UniqueIds("10.0.0.1", 0x1_4711, 0xCAFE, UTC)
    now = datetime(2026, 11, 3, 0, 0, 1, 234_000, UTC)
    now_ms = int(now.timestamp() * 1000)
    elapsed = 2 * 24 * 3_600_000 + 1234
    assert ids.create(now_ms) == f"0A00000147110000CAFE{elapsed:08X}0000"
    assert ids.create(now_ms) == f"0A00000147110000CAFE{elapsed:08X}0001"
    assert len(UniqueIds("::1", 1, 1, UTC).create(now_ms)) == 56


def test_unique_id_counts_from_the_local_month() -> None:
    zone = timezone(timedelta(hours=8))
    ids = UniqueIds("10.0.0.1", 1, 1, zone)
    december = int(datetime(2026, 12, 1, 0, 0, tzinfo=zone).timestamp() * 1000)
    november_days = 30
    last = ids.create(december - 1)
    assert int(last[20:28], 16) == november_days * 24 * 3_600_000 - 1
    assert int(ids.create(december)[20:28], 16) == 0
    january = int(datetime(2027, 1, 1, 0, 0, tzinfo=zone).timestamp() * 1000)
    assert int(ids.create(january + 5)[20:28], 16) == 5
    assert int(ids.create(december - 2)[20:28], 16) == november_days * 24 * 3_600_000 - 2


def test_unique_id_counter_wraps() -> None:
    ids = UniqueIds("10.0.0.1", 1, 1, UTC)
    made = [ids.create(1_700_000_000_000) for _ in range(0x1_0001)]
    assert made[0xFFFF].endswith("FFFF")
    assert made[0x1_0000] == made[0]
    assert len(set(made)) == 0x1_0000


# --- batches --------------------------------------------------------------------------------------

# Two messages: flag 7, TAGS, KEYS and a body; then one without body, tags and keys.
APACHE_BATCH = bytes.fromhex(
    "00000034000000000000000000000007000000026869001c4b455953016b310257414954017472756502544147530154616741"
    "020000002000000000000000000000000000000000000a57414954017472756502"
)
APACHE_ITEMS = [
    BatchItem(7, b"hi", b"KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01TagA\x02"),
    BatchItem(0, b"", b"WAIT\x01true\x02"),
]


def test_batch_of_the_java_client() -> None:
    assert split_batch(APACHE_BATCH) == APACHE_ITEMS
    assert join_batch(APACHE_ITEMS) == APACHE_BATCH


@given(st.lists(my.BATCH_ITEMS, min_size=1, max_size=5))
def test_batch_round_trip(items: list[BatchItem]) -> None:
    assert split_batch(join_batch(items)) == items


def test_batch_errors_name_the_item() -> None:
    with pytest.raises(BodyError, match="at least one"):
        split_batch(b"")
    with pytest.raises(BodyError, match="item 1 at byte 52: only 3 bytes"):
        split_batch(APACHE_BATCH[:55])
    with pytest.raises(BodyError, match="item 0 at byte 0: its body length 2147483647"):
        split_batch(APACHE_BATCH[:16] + b"\x7f\xff\xff\xff" + APACHE_BATCH[20:])
    with pytest.raises(BodyError, match="its body length -1"):
        split_batch(APACHE_BATCH[:16] + b"\xff\xff\xff\xff" + APACHE_BATCH[20:])
    with pytest.raises(BodyError, match="item 0 at byte 0: its properties length -1"):
        split_batch(APACHE_BATCH[:22] + b"\xff\xff" + APACHE_BATCH[24:])
    with pytest.raises(BodyError, match="item 1 at byte 52: its properties length 10"):
        split_batch(APACHE_BATCH[:-1])
    with pytest.raises(BodyError, match="it says 51 bytes and has 52"):
        split_batch(b"\x00\x00\x00\x33" + APACHE_BATCH[4:])


@given(st.lists(my.BATCH_ITEMS, min_size=1, max_size=3), st.data())
def test_a_broken_batch_splits_into_itself_or_raises(
    items: list[BatchItem], data: st.DataObject
) -> None:
    body = bytearray(join_batch(items))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    try:
        found = split_batch(cut)
    except BodyError:
        return
    assert sum(22 + len(item.body) + len(item.properties) for item in found) == len(cut)


def test_join_batch_refuses_long_properties() -> None:
    with pytest.raises(LocalProtocolError, match="item 1 has 32768 bytes"):
        join_batch([BatchItem(0, b"", b""), BatchItem(0, b"", b"x" * 32768)])


# --- compressed bodies ----------------------------------------------------------------------------

ZLIB = MessageFlag.COMPRESSED | MessageFlag.COMPRESSION_ZLIB
LZ4 = MessageFlag.COMPRESSED | MessageFlag.COMPRESSION_LZ4
ZSTD = MessageFlag.COMPRESSED | MessageFlag.COMPRESSION_ZSTD
TEXT = b"compress me " * 500


def test_plain_bodies_stay() -> None:
    assert decompress(b"abc", 0) == b"abc"
    assert decompress(b"abc", MessageFlag.COMPRESSION_ZLIB) == b"abc"


@pytest.mark.parametrize("flag", [ZLIB, MessageFlag.COMPRESSED])
def test_zlib(flag: int) -> None:
    body = zlib.compress(TEXT)
    assert decompress(body, flag) == TEXT
    assert decompress(body, flag, max_bytes=len(TEXT)) == TEXT
    with pytest.raises(BodyError, match="inflates to more than 5999 bytes"):
        decompress(body, flag, max_bytes=len(TEXT) - 1)
    with pytest.raises(BodyError, match="ends in the middle"):
        decompress(body[:-1], flag)
    with pytest.raises(BodyError, match="is broken"):
        decompress(b"not zlib", flag)


def test_a_bomb_does_not_inflate() -> None:
    bomb = zlib.compress(bytes(10_000_000))
    with pytest.raises(BodyError, match="more than 1000000 bytes"):
        decompress(bomb, ZLIB, max_bytes=1_000_000)


# TEXT as Apache's CompressorFactory compresses it at level 5.
APACHE_LZ4 = bytes.fromhex(
    "04224d186070732d000000cf636f6d7072657373206d65200c00"
    "ffffffffffffffffffffffffffffffffffffffffffffff635073206d652000000000"
)
APACHE_ZSTD = bytes.fromhex("28b52ffd0058a4000060636f6d7072657373206d6520010061f7be2401010000")


@pytest.mark.parametrize(("flag", "body"), [(LZ4, APACHE_LZ4), (ZSTD, APACHE_ZSTD)])
def test_bodies_that_need_the_extra(flag: int, body: bytes) -> None:
    assert decompress(body, flag) == TEXT
    assert decompress(body, flag, max_bytes=len(TEXT)) == TEXT
    with pytest.raises(BodyError, match="inflates to more than 5999 bytes"):
        decompress(body, flag, max_bytes=len(TEXT) - 1)
    with pytest.raises(BodyError, match="is broken"):
        decompress(body[:-1], flag)
    with pytest.raises(BodyError, match="is broken"):
        decompress(b"neither of them", flag)


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_unknown_compression(kind: int) -> None:
    with pytest.raises(BodyError, match=f"unknown compression {kind}"):
        decompress(b"", MessageFlag.COMPRESSED | kind << 8)


@pytest.mark.parametrize(("flag", "package"), [(LZ4, "lz4.frame"), (ZSTD, "zstandard")])
def test_missing_package_names_the_extra(
    flag: int, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LocalProtocolError, match=r"install trio-mq\[compression\]"):
        decompress(b"x", flag)


@pytest.mark.parametrize("name", NAMES)
def test_bodies_that_the_java_client_compressed(name: str) -> None:
    seen = 0
    for row, (_, raw) in zip(decoded(name), raw_records(name), strict=True):
        message = decode(raw)
        plain = message.plain_body
        assert (len(plain), zlib.crc32(plain)) == (row["plainBodyLength"], row["plainBodyCRC32"])
        seen += bool(row["sysFlag"] & MessageFlag.COMPRESSED)
    assert seen >= 6
