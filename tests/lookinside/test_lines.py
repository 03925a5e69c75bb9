"""Messages as lines of JSON: what is written is read back, and what no store can hold is refused with its reason."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.lookinside.lines import BadLine, Line, parse
from trio_mq.lookinside.shown import BodyForm, as_line
from trio_mq.protocol import properties, record
from trio_mq.protocol.message import BatchItem, Host, join_batch

NOW_MS = 1_700_000_000_000
NAMES = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=8)


def stored(
    body: bytes, props: bytes, *, sys_flag: int = 0, born: Host | None = None
) -> record.StoredMessage:
    host = Host("10.0.0.2", 10911)
    born = born or Host("10.0.0.1", 5000)
    flags = sys_flag | (0x10 if born.is_v6 else 0)
    packed = record.pack(
        *(3, 7, 11, 4096, flags, 1000, born.packed, 2000, host.packed, 2, 5, body, b"T", props)
    )
    return record.decode(packed)


@given(
    body=st.binary(max_size=50),
    props=st.one_of(
        st.binary(max_size=40).filter(lambda b: b"INNER_" not in b and b"__CRC32#" not in b),
        st.dictionaries(NAMES, NAMES, max_size=4).map(properties.encode),
    ),
    born=st.sampled_from([Host("10.0.0.1", 5000), Host("2001:db8::1", 65535)]),
    form=st.sampled_from([BodyForm.BASE64, BodyForm.HEX]),
)
def test_a_line_gives_the_message_back(
    body: bytes, props: bytes, born: Host, form: BodyForm
) -> None:
    message = stored(body, props, born=born)
    line = parse(as_line(message, form=form), now_ms=NOW_MS)
    assert line == Line(
        topic="T",
        queue_id=3,
        flag=7,
        sys_flag=message.sys_flag,
        born_timestamp_ms=1000,
        born_host=born,
        reconsume_times=2,
        prepared_transaction_offset=5,
        body=body,
        properties=props,
    )


def test_a_line_by_hand_needs_topic_and_body() -> None:
    line = parse('{"topic": "T", "bodyText": "héllo"}', now_ms=NOW_MS)
    assert (line.topic, line.queue_id, line.body) == ("T", 0, "héllo".encode())
    assert (line.born_timestamp_ms, line.born_host) == (NOW_MS, Host("127.0.0.1", 0))
    assert (line.sys_flag, line.properties, line.count) == (0, b"", 1)


def test_a_decompressed_body_is_imported_as_such() -> None:
    import zlib

    message = stored(zlib.compress(b"plain"), b"", sys_flag=0x301)
    line = parse(as_line(message, decompress=True), now_ms=NOW_MS)
    assert (line.body, line.sys_flag) == (b"plain", 0)
    kept = parse(as_line(message), now_ms=NOW_MS)
    assert (kept.body, kept.sys_flag) == (message.body, 0x301)


def test_the_checksum_over_a_record_is_left_out() -> None:
    message = stored(b"x", b"A\x01b\x02__CRC32#\x010123456789\x02")
    assert parse(as_line(message), now_ms=NOW_MS).properties == b"A\x01b\x02"


def test_an_inner_batch_says_how_many_messages_it_has() -> None:
    body = join_batch([BatchItem(0, b"a", b""), BatchItem(0, b"b", b"")])
    good = stored(body, b"INNER_NUM\x012\x02INNER_BASE\x0111\x02", sys_flag=0xC0)
    line = parse(as_line(good), now_ms=NOW_MS)
    assert line.is_batch
    assert line.count == 2
    wrong = stored(body, b"INNER_NUM\x013\x02", sys_flag=0xC0)
    with pytest.raises(BadLine, match="INNER_NUM"):
        parse(as_line(wrong), now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"topic": None}, "topic is None"),
        ({"topic": ""}, "topic is ''"),
        ({"queueId": -1}, "must not be negative"),
        ({"queueId": 65536}, "queueId is 65536"),
        ({"queueId": "1"}, "not a number"),
        ({"queueId": True}, "not a number"),
        ({"flag": 1 << 31}, "flag is"),
        ({"bornTimestamp": 1.5}, "not a number"),
        ({"bornHost": "nowhere"}, "is not an address"),
        ({"sysFlag": 4}, "a prepared transaction"),
        ({"sysFlag": 12}, "a rolled back transaction"),
        ({"properties": []}, "properties is not an object"),
        ({"properties": {"a": 1}}, "properties is not an object"),
        ({"properties": {"a\x01b": "c"}}, "cannot be stored"),
        ({"properties": {"a": "x" * 40_000}}, "bytes of properties"),
        ({"properties": {"INNER_NUM": "3"}}, "INNER_NUM without"),
        ({"propertiesBase64": "*"}, "propertiesBase64 cannot be read"),
        ({"bodyText": None}, "bodyText is None"),
        ({"bodyHex": "zz", "bodyText": ...}, "bodyHex cannot be read"),
        ({"bodyBase64": "a", "bodyText": ...}, "bodyBase64 cannot be read"),
        ({"bodyBase64": "", "bodyText": "x"}, "one of bodyBase64"),
        ({"bodyText": ...}, "one of bodyBase64"),
    ],
)
def test_a_bad_line_is_refused(change: dict[str, object], word: str) -> None:
    fields: dict[str, object] = {"topic": "T", "bodyText": "x", **change}
    text = json.dumps({key: value for key, value in fields.items() if value is not ...})
    with pytest.raises(BadLine) as caught:
        parse(text, now_ms=NOW_MS)
    assert word in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "nonsense", "[" * 100_000])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(BadLine):
        parse(text, now_ms=NOW_MS)


def test_properties_that_a_map_cannot_hold_are_kept_as_bytes() -> None:
    odd = b"A\x011\x02A\x012\x02"
    fields = json.loads(as_line(stored(b"", odd)))
    assert base64.b64decode(fields["propertiesBase64"]) == odd
    assert fields["properties"] == {"A": "2"}
