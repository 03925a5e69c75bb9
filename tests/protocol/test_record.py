"""The record codec and its verdicts, against Apache's records, fixed vectors and every kind of
damage."""

from __future__ import annotations

import mmap
import struct
import zlib

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_stores as golden
from tests import strategies as my
from trio_mq.errors import BodyError, LocalProtocolError
from trio_mq.protocol import properties as props
from trio_mq.protocol import record
from trio_mq.protocol.message import Host
from trio_mq.protocol.record import (
    MAGIC_V1,
    MAGIC_V2,
    Blank,
    Damaged,
    StoredMessage,
    Torn,
    Whole,
    blank,
    check,
    decode,
    encode,
    keys_for_index,
    pack,
    record_size,
    seal,
    tail_crc,
)
from trio_mq.protocol.verdict import crc_tail, java_integer

# The example of the format page: topic T, body hi, one tag.
EXAMPLE = bytes.fromhex(
    "00000068 daa320a7 58932aac 00000000 00000000 0000000000000000 0000000000000000"
    "00000000 0000018bcfe56800 0a000001 00001388 0000018bcfe56801 0a000002 00002a9f"
    "00000000 0000000000000000 00000002 6869 01 54 000a 54414753015461674102"
)


def make(
    *,
    body: bytes = b"hello",
    topic: bytes = b"T",
    properties: bytes = b"TAGS\x01TagA\x02",
    log_offset: int = 0,
    sys_flag: int = 0,
) -> bytes:
    born = bytes(20 if sys_flag & 0x10 else 8)
    store = bytes(20 if sys_flag & 0x20 else 8)
    return pack(3, 0, 7, log_offset, sys_flag, 1, born, 2, store, 0, 0, body, topic, properties)


def put(raw: bytes, at: int, layout: str, value: int) -> bytes:
    """The record with one number changed."""
    changed = bytearray(raw)
    struct.pack_into(layout, changed, at, value)
    return bytes(changed)


def verdict(raw: bytes, **options: bool) -> record.Verdict:
    return check(raw, 0, len(raw), **options)


# --- the codec ------------------------------------------------------------------------------------


def test_example() -> None:
    message = decode(EXAMPLE)
    assert message.size == len(EXAMPLE) == 104
    assert (message.topic, message.body, message.property_map) == ("T", b"hi", {"TAGS": "TagA"})
    assert (message.born_host, message.born_timestamp_ms) == (Host("10.0.0.1", 5000), 1700000000000)
    assert (message.store_host, message.store_timestamp_ms) == (
        Host("10.0.0.2", 10911),
        1700000000001,
    )
    assert encode(message) == EXAMPLE
    assert check(EXAMPLE, 0, 104, expected_offset=0) == Whole(
        104, "T", 0, 0, 0, 0, 1700000000001, 2598919, 0, b"TAGS\x01TagA\x02"
    )


def test_crc_vectors() -> None:
    """p18."""
    assert record.body_crc(b"hello") == 907060870
    assert record.body_crc(b"") == 0
    assert crc_tail(907060870) == b"__CRC32#\x010780607090\x02"
    assert tail_crc(b"0780607090") == 907060870
    assert tail_crc(b"0000000000") == 0
    assert tail_crc(b"") == tail_crc(b"12x") == -1


@pytest.mark.parametrize("name", golden.NAMES)
def test_every_record_of_apache(name: str) -> None:
    for row, (offset, raw) in zip(golden.decoded(name), golden.raw_records(name), strict=True):
        message = decode(raw)
        found = {
            "offset": message.log_offset,
            "size": message.size,
            "magic": message.magic,
            "topic": message.topic,
            "queueId": message.queue_id,
            "queueOffset": message.queue_offset,
            "flag": message.flag,
            "sysFlag": message.sys_flag,
            "bornTimestamp": message.born_timestamp_ms,
            "bornHost": message.born_host.ip,
            "storeTimestamp": message.store_timestamp_ms,
            "storeHost": f"/{message.store_host}",
            "reconsumeTimes": message.reconsume_times,
            "preparedTransactionOffset": message.prepared_transaction_offset,
            "bodyCRC": message.body_crc,
            "plainBodyLength": len(message.plain_body),
            "plainBodyCRC32": zlib.crc32(message.plain_body),
            "properties": message.property_map,
        }
        assert found == row
        assert offset == message.log_offset
        assert encode(message) == raw
        assert _pack(message) == raw


def _pack(message: StoredMessage) -> bytes:
    return pack(
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.log_offset,
        message.sys_flag,
        message.born_timestamp_ms,
        message.born_host.packed,
        message.store_timestamp_ms,
        message.store_host.packed,
        message.reconsume_times,
        message.prepared_transaction_offset,
        message.body,
        message.topic.encode(),
        message.properties,
    )


@pytest.mark.parametrize("name", golden.NAMES)
def test_walk_of_apaches_log(name: str) -> None:
    rows = iter(golden.decoded(name))
    blanks = 0
    for start, data in golden.segments(name):
        pos = 0
        while isinstance(found := check(data, pos, len(data), expected_offset=start + pos), Whole):
            row = next(rows)
            assert (found.log_offset, found.size, found.topic) == (
                row["offset"],
                row["size"],
                row["topic"],
            )
            assert props.parse(found.properties) == row["properties"]
            pos += found.size
        if isinstance(found, Blank):
            assert found == Blank(len(data) - pos)
            blanks += 1
        else:
            assert found == Torn("nothing was written here (magic is zero)")
    assert next(rows, None) is None
    assert blanks == 2


@given(my.stored_messages())
def test_round_trip(message: StoredMessage) -> None:
    raw = encode(message)
    assert decode(raw) == message
    assert decode(b"xyz" + raw + b"xyz", 3) == message
    assert _pack(message) == raw
    found = check(raw, 0, len(raw), expected_offset=message.log_offset)
    assert isinstance(found, Whole)
    assert found.size == len(raw) == message.size
    assert found.topic == message.topic
    assert found.store_timestamp_ms == message.store_timestamp_ms
    assert found.prepared_transaction_offset == message.prepared_transaction_offset
    assert found.properties == message.properties


@pytest.mark.parametrize("flags", [0, 0x10, 0x20, 0x30])
@pytest.mark.parametrize("topic_length", [1, 127, 128, 255])
def test_all_versions_and_hosts(flags: int, topic_length: int) -> None:
    """p20."""
    raw = make(topic=b"t" * topic_length, sys_flag=flags)
    hosts = 12 * (flags.bit_count())
    head = (91 if topic_length <= 127 else 92) + hosts
    assert len(raw) == head + 5 + topic_length + 10
    assert len(raw) == record_size(5, topic_length, 10, flags)
    message = decode(raw)
    assert message.magic == (MAGIC_V1 if topic_length <= 127 else MAGIC_V2)
    assert message.born_host == (Host("::", 0) if flags & 0x10 else Host("0.0.0.0", 0))
    assert isinstance(check(raw, 0, len(raw), expected_offset=0), Whole)


def test_pack_refuses_what_the_length_words_cannot_hold() -> None:
    assert len(make(properties=b"p" * 32767)) == 91 + 5 + 1 + 32767
    with pytest.raises(LocalProtocolError, match="properties of 32768 bytes"):
        make(properties=b"p" * 32768)
    with pytest.raises(LocalProtocolError, match="topic of 32768 bytes"):
        make(topic=b"t" * 32768)


def test_pack_forgets_old_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_packers", {})
    monkeypatch.setattr(record, "_PACKERS_LIMIT", 10)
    for length in range(25):
        assert decode(make(body=b"b" * length)).body == b"b" * length
        assert len(record._packers) <= 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"magic": 5}, "magic 5"),
        ({"size": 103}, "says 103 bytes, its fields need 104"),
        ({"sys_flag": 0x10}, "IPv6 bits of flags 0x10 disagree"),
        ({"born_host": Host("::1", 1)}, "IPv6 bits of flags 0x0 disagree"),
        ({"topic": "t" * 128}, "topic of 128 bytes"),
        ({"body_crc": -1}, "negative"),
        ({"properties": b"p" * 40000}, "properties of 40000 bytes"),
    ],
)
def test_encode_refuses_contradictions(change: dict[str, object], message: str) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        encode(attrs.evolve(decode(EXAMPLE), **change))


@given(my.stored_messages(max_body=30), st.data())
def test_decode_of_broken_bytes_raises_only_body_error(
    message: StoredMessage, data: st.DataObject
) -> None:
    raw = bytearray(encode(message))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        found = decode(cut)
    except BodyError:
        return
    assert found.size <= len(cut)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (EXAMPLE[:89], "89 bytes are left"),
        (EXAMPLE[:-1], "claims 104 bytes, 103 are left"),
        (put(EXAMPLE, 4, ">i", 1), "magic 0x00000001"),
        (put(EXAMPLE, 0, ">i", -1), "claims -1 bytes"),
        (put(EXAMPLE, 84, ">i", 99), "body of 99 bytes at byte 88 leads out"),
        (put(EXAMPLE, 90, ">b", -1), "topic of -1 bytes"),
        (put(EXAMPLE, 92, ">h", 11), "properties of 11 bytes"),
        (put(EXAMPLE, 92, ">h", 9), "says 104 bytes and its fields have 103"),
    ],
)
def test_decode_errors(raw: bytes, message: str) -> None:
    with pytest.raises(BodyError, match=message):
        decode(raw)


# --- verdicts: what Apache checks, rule by rule ---------------------------------------------------


def test_rule_1_and_2_cut() -> None:
    assert verdict(b"") == Torn("only 0 bytes are left")
    assert verdict(EXAMPLE[:4]) == Torn("only 4 bytes are left")
    assert verdict(EXAMPLE[:5]) == Torn("record claims 104 bytes, 5 are left")
    assert verdict(EXAMPLE[:103]) == Torn("record claims 104 bytes, 103 are left")
    assert verdict(b"\x00" * 6) == Torn("only 6 bytes are left")


def test_rule_3_blank_by_magic_alone() -> None:
    assert blank(100).hex() == "00000064cbd43194"
    assert verdict(blank(100) + bytes(92)) == Blank(100)
    assert verdict(blank(8)) == Blank(8)
    # The rest of a segment may hold anything, and the stored offset of padding is not one.
    assert check(blank(200) + b"\xff" * 192, 0, 200, expected_offset=4711) == Blank(200)
    assert verdict(struct.pack(">ii", -5, record.MAGIC_BLANK)) == Blank(-5)


def test_rule_4_magic() -> None:
    assert verdict(bytes(4096)) == Torn("nothing was written here (magic is zero)")
    assert verdict(bytes(8)) == Torn("nothing was written here (magic is zero)")
    assert verdict(put(EXAMPLE, 4, ">i", 77)) == Damaged(
        -1, "magic 0x0000004d is not one of a record", rule=4
    )


@pytest.mark.parametrize("size", [-448299468, -1, 0, 7, 8, 90, 91, 103])
def test_rule_5_short_record(size: int) -> None:
    found = verdict(put(EXAMPLE, 0, ">i", size) + bytes(500))
    assert isinstance(found, Damaged)
    assert found.size in (-1, size)


def test_rule_5_lengths_out_of_the_buffer() -> None:
    for raw in (
        put(EXAMPLE, 84, ">i", 0x7FFF_FFFF),
        put(EXAMPLE, 90, ">b", 127),
        put(EXAMPLE, 92, ">h", 32767),
        put(EXAMPLE, 90, ">b", -1),
    ):
        found = verdict(raw)
        assert isinstance(found, Damaged)
        assert (found.size, found.rule, found.claimed_size) == (-1, 5, 104)
    v2 = make(topic=b"t" * 200)
    assert verdict(put(v2, 93, ">h", -200)) == Damaged(
        -1, "topic length -200 is negative", len(v2), 5
    )


def test_rule_6_body_crc() -> None:
    raw = put(EXAMPLE, 88, ">b", 0)
    found = verdict(raw)
    assert isinstance(found, Damaged)
    assert (found.size, found.rule, found.claimed_size) == (-1, 6, 104)
    assert "body CRC" in found.reason
    assert isinstance(verdict(raw, check_crc=False), Whole)
    assert isinstance(verdict(raw, read_body=False), Whole)
    empty = put(make(body=b""), 8, ">i", 5)
    assert isinstance(verdict(empty), Whole)  # Apache: without a body its CRC does not matter


def test_rule_6_large_bodies_are_read_in_place() -> None:
    body = bytes(range(256)) * 1024
    raw = make(body=body)
    with mmap.mmap(-1, len(raw) + 100) as file:
        file[: len(raw)] = raw
        assert isinstance(check(file, 0, len(file)), Whole)
        file[100_000] ^= 1
        found = check(file, 0, len(file))
    assert isinstance(found, Damaged)
    assert found.rule == 6


@pytest.mark.parametrize(
    ("info", "good"),
    [
        (None, False),
        (b"", False),
        (b"a", False),
        (b"a_b", True),
        (b"_b", True),
        (b"a_", False),
        (b"a__b", False),
        (b"a_b_", True),
        (b"__", False),
        (b"_a_b", False),
    ],
)
def test_rule_7_dup_info(info: bytes | None, good: bool) -> None:
    properties = b"K\x01v\x02" + (b"" if info is None else b"DUP_INFO\x01%b\x02" % info)
    raw = make(properties=properties)
    assert isinstance(verdict(raw), Whole)
    found = verdict(raw, check_dup=True)
    assert isinstance(found, Whole if good else Damaged)
    assert isinstance(verdict(make(properties=b""), check_dup=True), Whole)


@pytest.mark.parametrize(
    ("delay", "level"),
    [
        (b"3", 3),
        (b"+3", 3),
        (b"-3", -3),
        (b"03", 3),
        (b"x", None),
        (b" 3", None),
        (b"99999999999", None),
    ],
)
def test_rule_8_delay_level(delay: bytes, level: int | None) -> None:
    properties = b"TAGS\x01TagA\x02DELAY\x01%b\x02" % delay
    found = verdict(make(topic=b"SCHEDULE_TOPIC_XXXX", properties=properties))
    if level is None:
        assert isinstance(found, Damaged)
        assert (found.size, found.rule) == (-1, 8)
    else:
        assert isinstance(found, Whole)
        assert (found.delay_level, found.tags_code) == (level, 2598919)
    other = verdict(make(properties=properties))
    assert isinstance(other, Whole)
    assert other.delay_level is None


def sealed(properties: bytes = b"TAGS\x01TagA\x02") -> bytes:
    return seal(make(properties=properties + bytes(record.CRC_TAIL_SIZE)))


def test_rule_9_property_crc() -> None:
    raw = sealed()
    assert verdict(raw, force_property_crc=True) == verdict(raw)
    assert isinstance(verdict(raw), Whole)
    missing = verdict(EXAMPLE, force_property_crc=True)
    assert missing == Damaged(-1, "properties have no CRC", 104, 9)
    assert isinstance(verdict(EXAMPLE, force_property_crc=True, check_crc=False), Whole)
    for at in (16, 28, 37, 56, 88, 94):  # flags, offsets, times, body, topic: all are covered
        found = verdict(put(raw, at, ">b", 0x3C), force_property_crc=True)
        assert isinstance(found, Damaged)
        assert found.rule == 9


def test_rule_9_replaces_the_body_crc() -> None:
    plain = put(make(properties=bytes(record.CRC_TAIL_SIZE)), 8, ">i", 1)
    raw = seal(plain)
    assert isinstance(verdict(raw, force_property_crc=True), Whole)
    found = verdict(raw)
    assert isinstance(found, Damaged)
    assert found.rule == 6


def test_rule_10_half_message() -> None:
    longer = put(EXAMPLE, 0, ">i", 110) + bytes(6)
    assert verdict(longer) == Damaged(110, "half message: 110 bytes claimed, 104 used", 110, 10)
    inside = verdict(put(EXAMPLE, 92, ">h", 50) + bytes(500))
    assert isinstance(inside, Damaged)
    assert (inside.size, inside.rule) == (104, 10)


def test_rule_10_counts_negative_lengths_as_nothing() -> None:
    no_body = put(make(body=b""), 84, ">i", -7)
    assert isinstance(verdict(no_body), Whole)
    no_properties = put(make(properties=b""), 95, ">h", -7)
    assert isinstance(verdict(no_properties), Whole)
    assert decode(no_body).body == b""
    assert decode(no_properties).properties == b""


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"INNER_NUM\x015\x02INNER_BASE\x0110\x02", (10, 5)),
        (b"INNER_NUM\x010\x02INNER_BASE\x01-1\x02", (-1, 0)),
        (b"INNER_NUM\x015\x02", (7, 1)),
        (b"INNER_BASE\x015\x02", (7, 1)),
        (b"XINNER_NUM\x01a\x02INNER_BASE\x01b\x02", (7, 1)),
        (b"INNER_NUM\x01x\x02INNER_BASE\x0110\x02", None),
        (b"INNER_NUM\x015\x02INNER_BASE\x01x\x02", None),
        (b"INNER_NUM\x0140000\x02INNER_BASE\x011\x02", None),
    ],
)
def test_rule_11_inner_batch(properties: bytes, expected: tuple[int, int] | None) -> None:
    found = verdict(make(properties=properties))
    if expected is None:
        assert isinstance(found, Damaged)
        assert (found.size, found.rule) == (-1, 11)
    else:
        assert isinstance(found, Whole)
        assert (found.base_offset, found.batch_size) == expected


def test_java_integer() -> None:
    assert java_integer(b"2147483647", 32) == 2147483647
    assert java_integer(b"-2147483648", 32) == -2147483648
    assert java_integer(b"2147483648", 32) is None
    for text in (b"", b"+", b"1_0", b"0x1", b"5 ", b"9" * 5000):
        assert java_integer(text, 32) is None


# --- verdicts: our own rules ----------------------------------------------------------------------


@pytest.mark.parametrize("written", [0, 1, 4, 9])
def test_cut_inside_the_properties(written: int) -> None:
    raw = EXAMPLE[: 94 + written] + bytes(10 - written)
    assert verdict(raw) == Torn("properties of 10 bytes end in NUL", 104)
    assert isinstance(verdict(raw, strict=False), Whole)


def test_older_bytes_at_a_new_place() -> None:
    raw = make(log_offset=1000)
    found = check(raw, 0, len(raw), expected_offset=66536)
    assert found == Damaged(len(raw), "record of offset 1000 lies at offset 66536", len(raw), 0)
    assert isinstance(check(raw, 0, len(raw), expected_offset=1000), Whole)
    assert isinstance(check(raw, 0, len(raw)), Whole)


def test_a_crc_at_the_end_is_checked_without_being_forced() -> None:
    raw = put(sealed(), 56, ">q", 99)
    found = verdict(raw)
    assert isinstance(found, Damaged)
    assert (found.size, found.rule) == (-1, 0)
    assert "the properties say" in found.reason
    assert isinstance(verdict(raw, strict=False), Whole)
    assert isinstance(verdict(raw, check_crc=False), Whole)


# --- verdicts: tags, buffers, damage at random ----------------------------------------------------


@given(my.property_texts().filter(lambda text: not text.endswith(b"\x00")))
def test_tags_code_agrees_with_the_parser(properties: bytes) -> None:
    from trio_mq.protocol.message import tags_code

    found = verdict(make(properties=properties))
    assert isinstance(found, Whole)
    assert found.tags_code == tags_code(props.parse(properties).get("TAGS"))


def test_every_kind_of_buffer_gives_the_same() -> None:
    raw = b"junk" + EXAMPLE
    expected = check(raw, 4, len(raw), expected_offset=0)
    assert isinstance(expected, Whole)
    assert check(bytearray(raw), 4, len(raw), expected_offset=0) == expected
    assert check(memoryview(raw), 4, len(raw), expected_offset=0) == expected
    with mmap.mmap(-1, len(raw)) as file:
        file[:] = raw
        found = check(file, 4, len(raw), expected_offset=0)
    assert found == expected
    assert isinstance(found, Whole)
    assert type(found.properties) is bytes


@pytest.mark.parametrize("flags", [0, 0x10, 0x20, 0x30])
@pytest.mark.parametrize("topic", [b"T", b"t" * 200])
def test_every_prefix_is_torn(flags: int, topic: bytes) -> None:
    """p19."""
    raw = make(topic=topic, sys_flag=flags)
    for length in range(len(raw)):
        assert isinstance(check(raw, 0, length), Torn)
        assert isinstance(check(raw[:length], 0, length), Torn)


@pytest.mark.parametrize("flags", [0, 0x30])
def test_every_torn_page(flags: int) -> None:
    """The rest of a record that never reached the disk reads as zeros; it is never taken for
    whole."""
    raw = make(sys_flag=flags)
    for length in range(len(raw)):
        unwritten = raw[:length] + bytes(len(raw) - length + 200)
        if unwritten[: len(raw)] != raw:
            assert isinstance(check(unwritten, 0, len(unwritten)), Torn | Damaged)


@given(my.stored_messages(max_body=200), st.data())
def test_a_flipped_body_bit_is_noticed(message: StoredMessage, data: st.DataObject) -> None:
    if not message.body:
        return
    raw = bytearray(encode(message))
    at = (
        88
        + 12 * (message.sys_flag & 0x30).bit_count()
        + data.draw(st.integers(0, len(message.body) - 1))
    )
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    found = verdict(bytes(raw))
    assert isinstance(found, Damaged)
    assert (found.rule, found.claimed_size) == (6, message.size)


@given(my.stored_messages(max_body=60), st.data())
def test_damage_anywhere_stays_inside_the_record(
    message: StoredMessage, data: st.DataObject
) -> None:
    """Whatever is flipped, the verdict does not depend on what lies behind the record."""
    raw = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    options = {
        "check_crc": data.draw(st.booleans()),
        "strict": data.draw(st.booleans()),
        "force_property_crc": data.draw(st.booleans()),
    }
    size = int.from_bytes(raw[:4], "big", signed=True)
    alone = check(bytes(raw), 0, len(raw), **options)
    assert isinstance(alone, Whole | Blank | Torn | Damaged)
    if isinstance(alone, Whole):
        assert alone.size == len(raw)
    if 0 <= size <= len(raw):
        buffers = [bytes(raw) + filler * 40_000 for filler in (b"\x00", b"\xff", b"\x02")]
        found = [check(buffer, 0, len(buffer), **options) for buffer in buffers]
        assert found[0] == found[1] == found[2]


def test_a_length_out_of_the_record_says_whether_dispatch_may_skip_it() -> None:
    raw = put(EXAMPLE, 84, ">i", 15) + bytes(500)
    found = [
        verdict(raw),
        verdict(raw, check_crc=False),
        verdict(raw, read_body=False, check_crc=False),
        verdict(put(raw, 84, ">i", 200), check_crc=False),
        verdict(put(raw, 84, ">i", 200), check_crc=False, read_body=False),
        verdict(put(raw, 84, ">i", 2000), check_crc=False, read_body=False),
    ]
    sizes = [damage.size for damage in found if isinstance(damage, Damaged)]
    assert sizes == [-1, 104, 104, -1, 104, -1]


@given(st.binary(max_size=200))
def test_any_bytes_get_a_verdict(data: bytes) -> None:
    for magic in (MAGIC_V1, MAGIC_V2):
        for raw in (data, data[:4] + struct.pack(">i", magic) + data[8:]):
            assert not isinstance(verdict(raw), Whole) or len(raw) > 90


# --- index keys -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "sys_flag", "expected"),
    [
        (b"", 0, []),
        (b"UNIQ_KEY\x01U1\x02", 0, ["Topic#U1"]),
        (b"KEYS\x01a  b \x02UNIQ_KEY\x01U1\x02", 0, ["Topic#U1", "Topic#a", "Topic#b"]),
        (b"TAGS\x01x || y\x02KEYS\x01a\x02", 0x4, ["Topic#a", "Topic#T#x || y"]),
        (b"TAGS\x01x\x02", 0x8, ["Topic#T#x"]),
        (b"TAGS\x01x\x02KEYS\x01a\x02", 0xC, []),
        (b"KEYS\x01 \x02", 0, []),
    ],
)
def test_keys_for_index(properties: bytes, sys_flag: int, expected: list[str]) -> None:
    assert keys_for_index("Topic", properties, sys_flag) == expected
