"""Property texts: the mapping, single values found in the bytes, and changes that leave the rest alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies as my
from tests.golden_stores import NAMES, decoded, raw_records
from trio_mq.errors import LocalProtocolError
from trio_mq.protocol import properties as props
from trio_mq.protocol.record import decode


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", {}),
        (b"a\x01b\x02", {"a": "b"}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01\x02c\x01d\x02", {"c": "d"}),
        (b"\x01b\x02c\x01d\x02", {"c": "d"}),
        (b"ab\x02c\x01d\x02", {"c": "d"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x011\x02a\x012\x02", {"a": "2"}),
        (b"a\x011\x02a\x01\x02", {"a": "1"}),
        (b"\x02\x02a\x01b\x02\x02", {"a": "b"}),
        ("n\x01ü\x02".encode(), {"n": "ü"}),
        (b"a\x01\xff\x02", {"a": "\ufffd"}),
    ],
)
def test_parse_as_apache_does(data: bytes, expected: dict[str, str]) -> None:
    assert props.parse(data) == expected


def test_encode_ends_every_pair_and_leaves_out_none() -> None:
    assert props.encode({"a": "1", "b": None, "c": "ü"}) == "a\x011\x02c\x01ü\x02".encode()


def test_encode_writes_a_lone_surrogate_as_java_does() -> None:
    assert props.encode({"a": "x\ud800"}) == b"a\x01x?\x02"


@pytest.mark.parametrize(
    ("name", "value"), [("", "v"), ("a\x01", "v"), ("a\x02", "v"), ("a", "\x02")]
)
def test_encode_refuses_what_would_read_differently(name: str, value: str) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be stored"):
        props.encode({name: value})


@given(my.PROPERTY_MAPS)
def test_round_trip(mapping: dict[str, str]) -> None:
    assert props.parse(props.encode(mapping)) == mapping


@given(my.property_texts(), st.sampled_from(["TAGS", "XTAGS", "KEYS", "v"]))
def test_get_agrees_with_parse(data: bytes, name: str) -> None:
    value = props.get(data, name.encode())
    found = None if value is None else value.decode("utf-8", "replace")
    assert found == props.parse(data).get(name)


@given(my.property_texts())
def test_remove_takes_one_name_and_nothing_else(data: bytes) -> None:
    left = props.remove(data, b"TAGS")
    expected = props.parse(data)
    expected.pop("TAGS", None)
    assert props.parse(left) == expected
    assert props.get(left, b"TAGS") is None


def test_remove_keeps_the_other_bytes() -> None:
    text = b"XTAGS\x01TAGS\x02TAGS\x01a\x02KEYS\x01TAGS\x01b\x02TAGS\x01\x02Z\x01z"
    assert props.remove(text, b"TAGS") == b"XTAGS\x01TAGS\x02KEYS\x01TAGS\x01b\x02Z\x01z"
    assert props.remove(text, b"Z") == text[:-3]
    assert props.remove(text, b"AGS") == text


@given(my.property_texts())
def test_append_adds_one_pair(data: bytes) -> None:
    longer = props.append(data, b"CLUSTER", b"c")
    assert longer.startswith(data)
    assert props.parse(longer) == props.parse(data) | {"CLUSTER": "c"}


def test_append_ends_an_unended_text_first() -> None:
    assert props.append(b"a\x01b", b"c", b"d") == b"a\x01b\x02c\x01d\x02"
    assert props.append(b"a\x01b\x02", b"c", b"d") == b"a\x01b\x02c\x01d\x02"
    assert props.append(b"", b"c", b"d") == b"c\x01d\x02"


@pytest.mark.parametrize("name", NAMES)
def test_parse_reads_apaches_records(name: str) -> None:
    for row, (_, raw) in zip(decoded(name), raw_records(name), strict=True):
        data = decode(raw).properties
        assert props.parse(data) == row["properties"]
        for key, value in row["properties"].items():
            assert props.get(data, key.encode()) == value.encode()
