"""Commands in both forms of the header: as the peer writes them, and as bad as bytes can be."""

from __future__ import annotations

import contextlib
import json
import struct

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.facts import VECTORS, Vector
from trio_mq.errors import HeaderError, LocalProtocolError
from trio_mq.protocol import command
from trio_mq.protocol.codes import LanguageCode, RequestCode, SerializeType
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader, RawFrame

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
SOME_TEXT = TEXT.filter(bool)
I16 = st.integers(-(2**15), 2**15 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
COMMANDS = st.builds(
    Command,
    code=I16,
    ext=st.dictionaries(SOME_TEXT, SOME_TEXT, max_size=5),
    body=st.binary(max_size=30),
    flag=I32,
    opaque=I32,
    language=st.sampled_from(LanguageCode),
    version=I16,
    remark=st.none() | SOME_TEXT,
    serialize=st.sampled_from(SerializeType),
)


def frame_of(data: bytes) -> RawFrame:
    reader = FrameReader()
    (frame,) = reader.feed(data)
    return frame


def decode_json(header: object) -> Command:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return command.decode((0, data, b""))


# --- the peer's own bytes


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_vectors_are_read(vector: Vector) -> None:
    found = command.decode(frame_of(vector.frame))
    # A binary header cannot tell an empty text from none, and none is left out.
    binary = vector.serialize == "ROCKETMQ"
    expected = {k: v for k, v in vector.ext.items() if v or not binary}
    assert found == Command(
        vector.code,
        expected,
        vector.body,
        vector.flag,
        vector.opaque,
        LanguageCode[vector.language],
        vector.version,
        vector.remark,
        SerializeType[vector.serialize],
    )


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_vectors_are_written_byte_for_byte(vector: Vector) -> None:
    found = command.decode(frame_of(vector.frame))
    in_the_order_of_the_peer = (
        {name: vector.ext[name] for name in ("a", "i", "b", "empty")} if vector.ext else {}
    )
    assert command.encode(attrs.evolve(found, ext=in_the_order_of_the_peer)) == vector.frame


def test_flags() -> None:
    assert not Command(10).is_response
    assert not Command(10).is_oneway
    assert Command(0, flag=1).is_response
    assert Command(34, flag=2).is_oneway
    assert Command(34, flag=3).is_oneway


def test_our_requests_say_who_we_are() -> None:
    header = json.loads(frame_of(command.encode(Command(105, {"topic": "T"}, opaque=7)))[1])
    assert header == {
        "code": 105,
        "extFields": {"topic": "T"},
        "flag": 0,
        "language": "PYTHON",
        "opaque": 7,
        "serializeTypeCurrentRPC": "JSON",
        "version": 493,
    }


def test_zero_is_written_and_none_is_not() -> None:
    _, header, body = frame_of(command.encode(Command(0, flag=1, language=None)))
    assert list(json.loads(header)) == [
        "code",
        "flag",
        "opaque",
        "serializeTypeCurrentRPC",
        "version",
    ]
    assert body == b""


@given(COMMANDS)
def test_round_trip(sent: Command) -> None:
    assert command.decode(frame_of(command.encode(sent))) == sent


# --- JSON headers of other peers


def test_values_of_the_custom_header_become_text_as_they_were_written() -> None:
    found = decode_json(
        b'{"code":10,"extFields":{"a":1,"b":true,"c":1.50,"d":null,"e":"x\\u0001","f":{"g": [1]},"h":-0}}'
    )
    assert found.ext == {
        "a": "1",
        "b": "true",
        "c": "1.50",
        "e": "x\x01",
        "f": '{"g": [1]}',
        "h": "-0",
    }


def test_numbers_may_be_text() -> None:
    found = decode_json({"code": "34", "flag": "1", "opaque": "-5", "version": "493"})
    assert (found.code, found.flag, found.opaque, found.version) == (34, 1, -5, 493)


@pytest.mark.parametrize(
    "header", [{}, {"extFields": None, "remark": None, "language": None, "flag": None}]
)
def test_what_is_not_there_is_zero(header: dict[str, object]) -> None:
    assert decode_json(header) == Command(0, language=None, version=0)


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("GO", LanguageCode.GO),
        ("KLINGON", None),
        (9, LanguageCode.GO),
        ("9", None),
        (99, None),
        (-1, None),
        (None, None),
        (True, None),
        ([], None),
        (9.0, None),
    ],
)
def test_languages(language: object, expected: LanguageCode | None) -> None:
    assert decode_json({"code": 1, "language": language}).language == expected


def test_a_language_as_a_number_beside_a_number_as_text() -> None:
    assert decode_json({"code": "1", "language": 9}).language == LanguageCode.GO


def test_unknown_keys_are_ignored_even_when_deep() -> None:
    assert decode_json({"code": 1, "x": {"y": [1, {"z": None}]}}).code == 1


def test_a_remark_that_is_no_text_becomes_text() -> None:
    assert decode_json({"code": 1, "remark": {"a": 1}}).remark == '{"a": 1}'


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"5",
        b'{"code":}',
        b'{"code":1}x',
        b'{"code":1}\0',
        b'{"code":1,"remark":"\xff"}',
        b'{"code":1,"remark":"\\ud83d"}',
        b'{"code":2147483648}',
        b'{"code":1,"opaque":-2147483649}',
        b'{"code":1.5}',
        b'{"code":"ten"}',
        b'{"code":[]}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":"a=b"}',
        b'{"code":1,"extFields":{"a":1,"b":"\\ud83d"}}',
        b'{"code":1,"x":' + b"[" * 100_000,
        b'{"code":"1","extFields":{"x":' + b"[" * 100_000,
    ],
)
def test_broken_json_headers(header: bytes) -> None:
    with pytest.raises(HeaderError, match="JSON header"):
        decode_json(header)


@given(
    st.binary(max_size=60)
    | st.builds(lambda text: text.encode(), st.text('{}[]":,code1extFields \\', max_size=60))
)
def test_any_json_header_is_a_command_or_a_header_error(header: bytes) -> None:
    with contextlib.suppress(HeaderError):
        decode_json(header)


def test_text_that_utf8_cannot_hold_is_not_sent() -> None:
    for serialize in SerializeType:
        with pytest.raises(LocalProtocolError, match="not valid text"):
            command.encode(Command(1, {"a": "\ud800"}, serialize=serialize))


# --- binary headers

ROCKETMQ = SerializeType.ROCKETMQ


def binary(
    fixed: bytes, remark: bytes = b"", ext: bytes = b"", ext_length: int | None = None
) -> bytes:
    length = len(ext) if ext_length is None else ext_length
    return fixed + struct.pack(">i", len(remark)) + remark + struct.pack(">i", length) + ext


def pair(key: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value


FIXED = struct.pack(">hBhii", 310, 9, 493, 77, 2)


def test_binary_header_by_hand() -> None:
    header = binary(FIXED, b"r", pair(b"k", "ü".encode()) + pair(b"", b"v") + pair(b"e", b""))
    found = command.decode((1, header, b"body"))
    assert found == Command(310, {"k": "ü"}, b"body", 2, 77, LanguageCode.GO, 493, "r", ROCKETMQ)


def test_binary_language_that_is_unknown() -> None:
    header = binary(struct.pack(">hBhii", 310, 200, 493, 77, 0))
    assert command.decode((1, header, b"")).language is None


def test_binary_header_without_a_language_says_other() -> None:
    sent = Command(310, language=None, serialize=ROCKETMQ)
    assert command.decode(frame_of(command.encode(sent))).language == LanguageCode.OTHER


@pytest.mark.parametrize("vector", [v for v in VECTORS if v.serialize == "ROCKETMQ"], ids=str)
def test_every_truncation_of_a_binary_header_is_an_error(vector: Vector) -> None:
    _, header, _ = frame_of(vector.frame)
    for end in range(len(header)):
        with pytest.raises(HeaderError, match="binary header"):
            command.decode((1, header[:end], b""))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (FIXED + struct.pack(">ii", 5, 0), "remark of 5 bytes, but 4 bytes are left"),
        (FIXED + struct.pack(">ii", -1, 0), "remark of -1 bytes"),
        (binary(FIXED, b"\xff"), "remark is not UTF-8"),
        (binary(FIXED, ext_length=1), "extFields of 1 bytes, but 0 bytes are left"),
        (binary(FIXED, ext_length=-1), "extFields of -1 bytes"),
        (binary(FIXED) + b"\0", "extFields of 0 bytes, but 1 bytes are left"),
        (binary(FIXED, ext=struct.pack(">h", 9) + b"k"), "key in extFields of 9 bytes, but 1"),
        (binary(FIXED, ext=struct.pack(">h", -9) + b"k"), "key in extFields of -9 bytes"),
        (binary(FIXED, ext=pair(b"k", b"v")[:-1]), "value of 'k' in extFields of 1 bytes, but 0"),
        (binary(FIXED, ext=b"\0"), "no room for its length"),
        (binary(FIXED, ext=b"\0\1k\0\0"), "no room for its length"),
        (binary(FIXED, ext=pair(b"\xff", b"v")), "key in extFields is not UTF-8"),
        (binary(FIXED, ext=pair(b"k", b"\xff")), "value of 'k' in extFields is not UTF-8"),
        (b"", "ends after 0 bytes"),
    ],
)
def test_lies_in_a_binary_header(header: bytes, message: str) -> None:
    with pytest.raises(HeaderError, match=message):
        command.decode((1, header, b""))


@given(st.binary(max_size=80), st.binary(max_size=40))
def test_any_binary_header_is_a_command_or_a_header_error(noise: bytes, ext: bytes) -> None:
    for header in (noise, FIXED + noise, binary(FIXED, b"", ext), binary(FIXED, noise, ext)):
        with contextlib.suppress(HeaderError):
            command.decode((1, header, b""))


@pytest.mark.parametrize(
    "sent",
    [
        Command(RequestCode.POP_MESSAGE, serialize=ROCKETMQ),
        Command(-32_769, serialize=ROCKETMQ),
        Command(10, version=32_768, serialize=ROCKETMQ),
        Command(10, opaque=2**31, serialize=ROCKETMQ),
        Command(10, language=256, serialize=ROCKETMQ),
    ],
)
def test_what_does_not_fit_a_binary_header_is_refused(sent: Command) -> None:
    with pytest.raises(LocalProtocolError, match="does not fit the binary header"):
        command.encode(sent)


def test_a_key_that_does_not_fit_a_binary_header_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="key of 32768 bytes, 32767 fit"):
        command.encode(Command(10, {"k" * 32_768: "v"}, serialize=ROCKETMQ))


def test_pop_codes_go_with_a_json_header() -> None:
    sent = Command(RequestCode.POP_MESSAGE)
    assert command.decode(frame_of(command.encode(sent))).code == 200_050
