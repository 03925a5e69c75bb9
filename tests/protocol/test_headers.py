"""Typed headers: every class against the peer's list of fields, and the rules of reading and writing."""

from __future__ import annotations

import types
from typing import Any, get_args, get_type_hints

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import facts
from trio_mq.errors import HeaderError
from trio_mq.protocol import headers
from trio_mq.protocol.headers import core
from trio_mq.protocol.names import wire_name

CLASSES = {
    name: cls
    for name in dir(headers)
    if isinstance(cls := getattr(headers, name), type) and attrs.has(cls)
}

# Fields that the peer adds to many headers and that we do not read.
COMMON = {"lo", "ns", "nsd", "bname", "oway"}

# Pairs that the peer writes beside the fields of a class.
BESIDE = {
    "QueryMessageRequest": {"_UNIQUE_KEY_QUERY"},
    "SendMessageReply": {"MSG_REGION", "TRACE_ON"},
    "HeartbeatReply": {"IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE"},
}

# Required by the peer's classes, but older peers do not send them.
LENIENT = {
    ("GetAllTopicConfigRequest", "topicSeq"),
    ("GetAllSubscriptionGroupRequest", "groupSeq"),
    ("CreateTopicRequest", "order"),
}

# The peer's class, where the rule does not find it.
IRREGULAR = {
    "GetConsumeStatsInBrokerRequest": "GetConsumeStatsInBrokerHeader",
    "QueryCorrectionOffsetRequest": "QueryCorrectionOffsetHeader",
    "ResetMasterFlushOffsetRequest": "ResetMasterFlushOffsetHeader",
    "SendMessageRequestV2": "SendMessageRequestHeader",
}


def peer_fields(name: str) -> dict[str, str]:
    regular = (
        name.removesuffix("Reply") + "ResponseHeader" if name.endswith("Reply") else name + "Header"
    )
    found = facts.load("headers.json")
    if name == "HeartbeatReply":
        return {}
    fields: dict[str, str] = found[IRREGULAR.get(name, regular)]["fields"]
    return fields


def inner_type(hint: Any) -> Any:
    return (
        next((a for a in get_args(hint) if a is not types.NoneType), hint)
        if type(None) in get_args(hint)
        else hint
    )


@pytest.mark.parametrize("name", CLASSES)
def test_fields_are_the_peers(name: str) -> None:
    theirs = peer_fields(name)
    ours = {wire_name(field): field for field in attrs.fields(CLASSES[name])}
    assert set(ours) - BESIDE.get(name, set()) - COMMON == set(theirs) - COMMON
    hints = get_type_hints(CLASSES[name], include_extras=True)
    for wire, field in ours.items():
        if wire not in theirs:
            continue
        java, *required = theirs[wire].split()
        kind = inner_type(hints[field.name])
        expected = {
            "String": str,
            "Integer": headers.I32,
            "int": headers.I32,
            "Long": headers.I64,
            "long": headers.I64,
        }
        assert kind == expected.get(java, kind), wire
        if java in ("Boolean", "boolean"):
            assert kind is bool, wire
        is_required = field.default is attrs.NOTHING
        if is_required:
            assert required, f"{wire}: the peer does without"
        if required and java[0].isupper() and (name, wire) not in LENIENT:
            assert is_required, f"{wire}: the peer insists on it"


def test_the_short_names_are_those_of_version_2() -> None:
    short = headers.SendMessageRequestV2.SHORT
    by_letter = {letter: name for name, letter in short.items()}
    assert "".join(sorted(by_letter)) == "abcdefghijklmn"
    assert list(short) == [field.name for field in attrs.fields(headers.SendMessageRequest)]
    assert (by_letter["b"], by_letter["e"], by_letter["i"]) == ("topic", "queue_id", "properties")
    assert (by_letter["l"], by_letter["m"], by_letter["n"]) == (
        "max_reconsume_times",
        "batch",
        "broker_name",
    )


def value_strategy(hint: Any) -> st.SearchStrategy[Any]:
    kind = inner_type(hint)
    if kind is str:
        values: st.SearchStrategy[Any] = st.text(max_size=10)
    elif kind is bool:
        values = st.booleans()
    elif kind in (headers.I32, headers.I64):
        bits = kind.__metadata__[0]
        values = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    else:
        values = st.sampled_from(kind)
    return values if kind is hint else st.none() | values


@st.composite
def any_header(draw: st.DrawFn) -> object:
    cls = CLASSES[draw(st.sampled_from(sorted(CLASSES)))]
    hints = get_type_hints(cls, include_extras=True)
    values = {
        field.name: draw(value_strategy(hints[field.name]))
        for field in attrs.fields(cls)
        if field.default is attrs.NOTHING or draw(st.booleans())
    }
    return cls(**values)


@given(any_header())
def test_round_trip(value: object) -> None:
    ext = headers.encode(value)
    assert all(type(text) is str for text in ext.values())
    found = headers.decode(type(value), ext)
    # None is not written, so a field whose default is something else comes back as its default.
    assert headers.encode(found) == {**headers.encode(found), **ext}
    assert (
        attrs.evolve(found, **{f.name: getattr(value, f.name) for f in attrs.fields(type(value))})
        == value
    )
    for field in attrs.fields(type(value)):
        if getattr(value, field.name) is not None:
            assert getattr(found, field.name) == getattr(value, field.name)


@pytest.mark.parametrize("name", CLASSES)
def test_a_missing_field_is_named(name: str) -> None:
    cls = CLASSES[name]
    short = getattr(cls, "SHORT", {})
    required = [field for field in attrs.fields(cls) if field.default is attrs.NOTHING]
    full = {short.get(field.name, wire_name(field)): "1" for field in required}
    headers.decode(cls, full)
    for missing in full:
        with pytest.raises(HeaderError, match=rf"{name}: required field '{missing}'.* is missing"):
            headers.decode(cls, {k: v for k, v in full.items() if k != missing})


OFFSET = {"topic": "T", "queueId": "3", "timestamp": "1700000000000"}


def test_reading_by_hand() -> None:
    found = headers.decode(headers.SearchOffsetRequest, {**OFFSET, "bname": "b", "unknown": "x"})
    assert found == headers.SearchOffsetRequest(
        "T", 3, 1_700_000_000_000, headers.BoundaryType.LOWER
    )


def test_writing_by_hand() -> None:
    reply = headers.SendMessageReply("ID", 3, 2**40, trace_on=True)
    assert headers.encode(reply) == {
        "msgId": "ID",
        "queueId": "3",
        "queueOffset": "1099511627776",
        "TRACE_ON": "true",
    }
    assert headers.encode(headers.HeartbeatReply(sub_change=False)) == {
        "IS_SUPPORT_HEART_BEAT_V2": "true",
        "IS_SUB_CHANGE": "false",
    }
    assert headers.encode(headers.LockBatchMqRequest()) == {}


@pytest.mark.parametrize(
    "text", ["", "x", "1.0", " 1", "1 ", "1_0", "0x1", "--1", "+", "-", "²", "1" * 5000]
)
def test_what_is_no_integer(text: str) -> None:
    with pytest.raises(
        HeaderError, match=r"SearchOffsetRequest: field 'queueId' is .* a 32-bit integer is needed"
    ):
        headers.decode(headers.SearchOffsetRequest, {**OFFSET, "queueId": text})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-1", -1),
        ("+7", 7),
        ("007", 7),
        ("2147483647", 2**31 - 1),
        ("-2147483648", -(2**31)),
    ],
)
def test_what_is_an_integer(text: str, value: int) -> None:
    found = headers.decode(
        headers.SearchOffsetRequest, {**OFFSET, "queueId": text, "timestamp": text}
    )
    assert (found.queue_id, found.timestamp) == (value, value)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("queueId", "2147483648"),
        ("queueId", "-2147483649"),
        ("timestamp", "9223372036854775808"),
        ("timestamp", "-9223372036854775809"),
    ],
)
def test_integers_stay_in_their_bits(field: str, text: str) -> None:
    with pytest.raises(HeaderError, match=f"field '{field}' is '{text}'"):
        headers.decode(headers.SearchOffsetRequest, {**OFFSET, field: text})


def test_a_bad_value_is_not_shown_whole() -> None:
    with pytest.raises(HeaderError) as caught:
        headers.decode(headers.SearchOffsetRequest, {**OFFSET, "queueId": "x" * 1_000_000})
    assert len(str(caught.value)) < 200


def test_a_short_name_is_explained() -> None:
    ext = dict.fromkeys("acdefgh", "1")
    with pytest.raises(HeaderError, match=r"required field 'b' \(topic\) is missing"):
        headers.decode(headers.SendMessageRequestV2, ext)
    with pytest.raises(HeaderError, match=r"field 'e' \(queueId\) is 'q', but"):
        headers.decode(headers.SendMessageRequestV2, {**ext, "b": "T", "e": "q"})


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("1", False), ("", False)]
)
def test_booleans_are_true_only_as_a_word(text: str, value: bool) -> None:
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "0", "setZeroIfNotFound": text}
    assert headers.decode(headers.QueryConsumerOffsetRequest, ext).set_zero_if_not_found is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("upper", "upper"),
        ("UPPER", "upper"),
        ("lower", "lower"),
        ("LOWER", "lower"),
        ("odd", "lower"),
    ],
)
def test_any_other_boundary_is_the_lower_one(text: str, value: str) -> None:
    found = headers.decode(headers.SearchOffsetRequest, {**OFFSET, "boundaryType": text})
    assert found.boundary_type == headers.BoundaryType(value)
    assert headers.encode(found)["boundaryType"] == value


def test_a_field_of_another_type_is_our_own_mistake() -> None:
    @attrs.frozen
    class Wrong:
        rate: float

    with pytest.raises(AssertionError, match="no header field can be a <class 'float'>"):
        core.decode(Wrong, {"rate": "1.0"})
