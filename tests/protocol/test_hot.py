"""The fast readers say the same as the ordinary way, or step back."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.errors import HeaderError
from trio_mq.protocol import command, headers
from trio_mq.protocol.headers import hot
from trio_mq.protocol.names import camel

READERS: list[tuple[Any, Any]] = [
    (hot.decode_send_v2, headers.SendMessageRequestV2),
    (hot.decode_send, headers.SendMessageRequest),
    (hot.decode_pull, headers.PullMessageRequest),
]
IDS = ["v2", "v1", "pull"]

SEND = headers.SendMessageRequestV2(
    "PG",
    "主题",
    "TBW102",
    4,
    3,
    0,
    1_700_000_000_000,
    0,
    "KEYS\x01k\x02",
    0,
    False,
    None,
    False,
    "b-a",
)
PULL = headers.PullMessageRequest(
    "CG", "T", 0, 2**40, 32, 3, 7, 15_000, 1_700_000_000_000_000_000, "*", "TAG"
)


def header_bytes(ext: dict[str, Any] | None, **others: Any) -> bytes:
    fields = {
        "code": 310,
        "extFields": ext,
        "flag": 0,
        "language": "JAVA",
        "opaque": 5,
        "version": 493,
    }
    return json.dumps({**fields, **others}, ensure_ascii=False).encode()


def ordinary(header: bytes, cls: type) -> tuple[command.Command, Any]:
    found = command.decode((0, header, b""))
    return found, headers.decode(cls, found.ext)


def as_dict(fields: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(fields, name) for name in fields.__struct_fields__}


@pytest.mark.parametrize(("read", "cls"), READERS, ids=IDS)
def test_fields_are_those_of_the_header_class(read: Any, cls: type) -> None:
    value = PULL if cls is headers.PullMessageRequest else cls(**attrs.asdict(SEND))
    found = read(header_bytes(headers.encode(value), flag=2))
    assert (found.code, found.opaque, found.flag, found.version) == (310, 5, 2, 493)
    assert as_dict(found.ext) == attrs.asdict(value)


# The texts that real peers send, and many that none does.
VALUES = st.sampled_from(
    ["0", "1", "-1", "true", "false", "2147483647", "2147483648", "9223372036854775808"]
) | st.text(max_size=4)


@given(st.data(), st.sampled_from(READERS))
def test_what_passes_means_the_same(data: st.DataObject, reader: tuple[Any, Any]) -> None:
    read, cls = reader
    short = getattr(cls, "SHORT", {})
    value = PULL if cls is headers.PullMessageRequest else cls(**attrs.asdict(SEND))
    ext: dict[str, Any] = headers.encode(value)
    names = [*ext, *short.values(), "unknown"]
    for name in data.draw(st.lists(st.sampled_from(names), max_size=3)):
        ext[name] = data.draw(VALUES)
    for name in data.draw(st.lists(st.sampled_from(sorted(ext)), max_size=1)):
        del ext[name]
    header = header_bytes(ext)
    try:
        found = read(header)
    except msgspec.DecodeError:
        return
    try:
        sent, expected = ordinary(header, cls)
    except HeaderError:
        # Numbers with a point or an exponent, and null, are the only texts that just the fast way takes.
        only_here = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|null", re.IGNORECASE)
        odd = [text for text in ext.values() if only_here.fullmatch(text) and not text.isdecimal()]
        assert odd, ext
        return
    assert (found.code, found.opaque, found.flag, found.version) == (
        sent.code,
        sent.opaque,
        sent.flag,
        sent.version,
    )
    for name, item in as_dict(found.ext).items():
        wire = short.get(name, camel(name))
        if ext.get(wire) not in ("1", "0", "null"):
            assert item == getattr(expected, name), name


@pytest.mark.parametrize(("read", "cls"), READERS, ids=IDS)
@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"null",
        b'{"code":310,"opaque":1}',
        b'{"code":310,"opaque":1,"extFields":null}',
        b'{"code":310,"opaque":1,"extFields":{}}',
        b'{"code":310,"opaque":1,"extFields":{"b":"\xff"}}',
    ],
)
def test_unusual_headers_step_back(read: Any, cls: type, header: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read(header)


@pytest.mark.parametrize(
    "change",
    [
        {"e": "x"},
        {"e": ""},
        {"e": "2147483648"},
        {"e": None},
        {"g": "9223372036854775808"},
        {"m": "yes"},
        {"b": 5},
    ],
)
def test_bad_values_step_back(change: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        hot.decode_send_v2(header_bytes({**headers.encode(SEND), **change}))


@pytest.mark.parametrize(
    "others", [{"opaque": 2**31}, {"code": "x"}, {"flag": None}, {"version": 1.5}]
)
def test_a_bad_frame_of_fields_steps_back(others: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        hot.decode_send_v2(header_bytes(headers.encode(SEND), **others))


def test_numbers_and_booleans_need_not_be_text() -> None:
    found = hot.decode_send_v2(
        header_bytes({**headers.encode(SEND), "e": 7, "m": True, "k": False})
    )
    assert (found.ext.queue_id, found.ext.batch, found.ext.unit_mode) == (7, True, False)


def test_properties_that_spell_null_are_text() -> None:
    assert (
        hot.decode_send_v2(header_bytes({**headers.encode(SEND), "i": "null"})).ext.properties
        == "null"
    )


def test_a_header_without_optional_fields() -> None:
    required = {name: text for name, text in headers.encode(SEND).items() if name in "abcdefgh"}
    found = hot.decode_send_v2(
        b'{"code":320,"opaque":1,"extFields":%b}' % json.dumps(required).encode()
    )
    assert (found.flag, found.version, found.ext.properties, found.ext.batch) == (0, 0, None, False)
