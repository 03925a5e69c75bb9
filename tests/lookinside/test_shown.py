"""Records as text and as JSON; times."""

from __future__ import annotations

import json
import zlib

import pytest

from trio_mq.lookinside.shown import BodyForm, as_line, as_text, moment, parse_moment
from trio_mq.protocol.message import BatchItem, join_batch

from .test_lines import stored


def test_text_tells_place_times_properties_and_body() -> None:
    text = as_text(stored(b"hello\nworld", b"TAGS\x01a\x02KEYS\x01k1 k2\x02"))
    assert text.splitlines() == [
        "4096  T/3@11  1970-01-01T00:00:02.000Z  121 bytes",
        "  born 1970-01-01T00:00:01.000Z at 10.0.0.1:5000, stored at 10.0.0.2:10911, flag 7, sysFlag 0x0, "
        "consumed 2 times",
        "  TAGS: a",
        "  KEYS: k1 k2",
        "  body (11 bytes, text):",
        "    hello",
        "    world",
    ]


@pytest.mark.parametrize(
    ("body", "form", "shown"),
    [
        (b"\xff\0", BodyForm.AUTO, {"bodyBase64": "/wA="}),
        (b"a\x1b[1m", BodyForm.AUTO, {"bodyBase64": "YRtbMW0="}),
        ("é".encode(), BodyForm.AUTO, {"bodyText": "é"}),
        (b"", BodyForm.AUTO, {"bodyText": ""}),
        (b"\xff", BodyForm.TEXT, {"bodyText": "�"}),
        (b"ab", BodyForm.HEX, {"bodyHex": "6162"}),
        (b"ab", BodyForm.BASE64, {"bodyBase64": "YWI="}),
        (b"ab", BodyForm.NONE, {}),
    ],
)
def test_forms_of_a_body(body: bytes, form: BodyForm, shown: dict[str, str]) -> None:
    fields = json.loads(as_line(stored(body, b""), form=form))
    assert {key: value for key, value in fields.items() if key.startswith("body")} == shown


def test_what_is_no_text_is_hex_for_people() -> None:
    lines = as_text(stored(b"\xff\x00\x01\x02\x03", b"")).splitlines()
    assert lines[-2:] == ["  body (5 bytes, hex):", "    ff 00010203"]
    assert as_text(stored(b"\xff", b""), form=BodyForm.BASE64).endswith("    /w==")
    assert "body" not in as_text(stored(b"x", b""), form=BodyForm.NONE)


def test_messages_of_a_batch_are_shown_one_by_one() -> None:
    body = join_batch([BatchItem(0, b"a", b"TAGS\x01x\x02"), BatchItem(3, b"\xff", b"")])
    lines = as_text(stored(body, b"INNER_NUM\x012\x02", sys_flag=0xC0)).splitlines()
    assert lines[3:] == [
        "  message 11 of the batch, flag 0",
        "    TAGS: x",
        "    body (1 bytes, text):",
        "      a",
        "  message 12 of the batch, flag 3",
        "    body (1 bytes, hex):",
        "      ff",
    ]
    broken = as_text(stored(body[:-1], b"", sys_flag=0xC0))
    assert "body (" in broken


def test_a_terminal_gets_no_control_characters() -> None:
    text = as_text(stored(b"\x1b[2J", b"A\x01\x1b[2J\x02"), form=BodyForm.TEXT)
    assert "\x1b" not in text


def test_a_body_that_cannot_be_decompressed_is_shown_as_it_is() -> None:
    message = stored(b"no zlib", b"", sys_flag=0x301)
    assert "cannot be decompressed" in as_text(message, decompress=True)
    fields = json.loads(as_line(message, decompress=True, form=BodyForm.TEXT))
    assert fields["bodyText"] == "no zlib"
    assert "broken" in fields["bodyProblem"]
    assert "bodyDecompressed" not in fields
    good = stored(zlib.compress(b"plain"), b"", sys_flag=0x1)
    assert as_text(good, decompress=True).endswith("    plain")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
        ("2023-11-15T06:13:20+08:00", 1_700_000_000_000),
        ("2023-11-14", 1_699_920_000_000),
        ("yesterday", None),
        ("", None),
    ],
)
def test_times_are_read(text: str, ms: int | None) -> None:
    assert parse_moment(text) == ms


def test_times_are_written() -> None:
    assert moment(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert moment(1 << 62) == f"{1 << 62} ms"
    assert parse_moment(moment(1_700_000_000_123)) == 1_700_000_000_123
