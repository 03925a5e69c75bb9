"""Java properties text as it comes: from editors on any system, with every escape Java knows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.config.properties import FILE_MAX_BYTES, Entry, parse
from trio_mq.errors import ConfigError


def pairs(text: str | bytes) -> list[tuple[str, str]]:
    data = text if isinstance(text, bytes) else text.encode()
    return [(entry.key, entry.value) for entry in parse(data, "broker.conf")]


@pytest.mark.parametrize(
    "line", ["key=value", "key = value", "key:value", "key value", "  key\t=value"]
)
def test_key_and_value_are_separated_as_java_does(line: str) -> None:
    assert pairs(line) == [("key", "value")]


def test_comments_and_blank_lines_are_skipped_and_lines_counted() -> None:
    text = "# one\n\n  ! two\n \t \nkey=1\n"
    assert parse(text.encode(), "f") == [Entry("key", "1", 5)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_c166_every_line_end_and_blanks_behind_a_value(end: str) -> None:
    """C166: a blank, a tab or a carriage return after a value is not part of it."""
    text = end.join(["enableLmq = true ", "fileReservedTime = 168\t ", "a=b"]) + end
    assert pairs(text) == [("enableLmq", "true"), ("fileReservedTime", "168"), ("a", "b")]


def test_c166_byte_order_mark_is_not_part_of_the_first_key() -> None:
    """C166: files saved by some editors begin with a byte order mark."""
    assert pairs(b"\xef\xbb\xbfbrokerName=a\r\n") == [("brokerName", "a")]


def test_continued_lines_lose_their_indent_and_keep_their_first_number() -> None:
    text = "a=1\nnamesrvAddr = one:1;\\\n    two:2;\\\r\n\tthree:3\nb=2"
    assert parse(text.encode(), "f") == [
        Entry("a", "1", 1),
        Entry("namesrvAddr", "one:1;two:2;three:3", 2),
        Entry("b", "2", 5),
    ]


def test_a_comment_is_not_continued() -> None:
    assert pairs("# comment \\\nkey=1") == [("key", "1")]


def test_a_file_may_end_inside_a_continued_line() -> None:
    assert pairs("key=1\\") == [("key", "1")]


def test_an_even_number_of_backslashes_ends_the_line() -> None:
    assert pairs("path=C:\\\\\nkey=1") == [("path", "C:\\"), ("key", "1")]


def test_escapes() -> None:
    assert pairs(r"a\ b\=c = \u0041\t\q\\") == [("a b=c", "A\tq\\")]


def test_two_escapes_make_a_character_beyond_the_first_plane() -> None:
    assert pairs(r"k=\ud83d\ude00") == [("k", "\U0001f600")]


def test_half_of_such_a_character_is_replaced() -> None:
    assert pairs(r"k=a\ud83db") == [("k", "a�b")]


@pytest.mark.parametrize("text", [r"k=\u12", r"k=\u12g4", "k=\\u"])
def test_a_cut_escape_names_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^broker.conf:2: \\u needs four hexadecimal"):
        pairs("\n" + text)


def test_a_value_may_hold_separators_and_may_be_missing() -> None:
    assert pairs("a=b=c:d\nempty=\nalone\n") == [("a", "b=c:d"), ("empty", ""), ("alone", "")]


def test_a_line_without_a_key_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^broker.conf:1: no key before the value 'x'"):
        pairs("= x")


def test_utf8_is_read_as_such_and_other_bytes_as_latin1() -> None:
    assert pairs("k=Köln".encode()) == [("k", "Köln")]
    assert pairs("k=Köln".encode("latin-1")) == [("k", "Köln")]


def test_files_that_are_no_text_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"broker.conf is UTF-16 text; save it as UTF-8"):
        pairs("k=1".encode("utf-16"))
    with pytest.raises(ConfigError, match=r"broker.conf is not text"):
        pairs(b"k=\0")
    with pytest.raises(ConfigError, match=rf"has {FILE_MAX_BYTES + 1} bytes, more than"):
        pairs(b"#" * (FILE_MAX_BYTES + 1))


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        entries = parse(text.encode("utf-8", "replace"), "f")
    except ConfigError:
        return
    assert all(entry.key == entry.key.strip() and entry.key for entry in entries)
    assert [entry.line for entry in entries] == sorted({entry.line for entry in entries})


@given(st.dictionaries(st.from_regex(r"[a-zA-Z0-9]+", fullmatch=True), st.text()))
def test_escaped_text_comes_back(settings: dict[str, str]) -> None:
    lines = []
    for key, value in settings.items():
        units = value.encode("utf-16-be", "surrogatepass")
        escaped = "".join(
            f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)
        )
        lines.append(f"{key}={escaped}")
    expected = [
        (key, value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip())
        for key, value in settings.items()
    ]
    assert pairs("\n".join(lines)) == expected
