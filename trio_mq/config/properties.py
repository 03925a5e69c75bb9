"""Java properties text to (key, value, line) entries.

In: the bytes of a file such as Apache's ``broker.conf``. Out: its entries in file order, each with
the number of the line it starts on. Called by :mod:`trio_mq.config.loading`. The syntax is the one of
``java.util.Properties.load``: comments, ``=``, ``:`` or a blank between key and value, continued
lines, escapes. Three things are kinder than Java: a byte order mark is skipped, UTF-8 is read as
such, and blanks after a value are cut (Java keeps them, which turns ``true`` followed by a blank
into false).
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from trio_mq.errors import ConfigError

FILE_MAX_BYTES: Final = 1024 * 1024
"""Real files have a few kilobytes; a larger one was named by mistake and is refused."""

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@attrs.frozen
class Entry:
    """One setting as the file has it; `line` counts from 1."""

    key: str
    value: str
    line: int


def parse(data: bytes, name: str) -> list[Entry]:
    """All entries of a file, repeated keys included; ConfigError names `name` and the line."""
    entries: list[Entry] = []
    text = _text(data, name)
    lines = _LINE_END.split(text)
    number = 0
    while number < len(lines):
        start = number
        logical = lines[number].lstrip(_BLANKS)
        number += 1
        if not logical or logical[0] in "#!":
            continue
        while _is_continued(logical):
            logical = logical[:-1]
            if number == len(lines):
                break
            logical += lines[number].lstrip(_BLANKS)
            number += 1
        raw_key, raw_value = _split(logical)
        where = f"{name}:{start + 1}"
        key = _unescape(raw_key, where).strip()
        if not key:
            raise ConfigError(f"{where}: no key before the value {raw_value.strip()!r}")
        entries.append(Entry(key, _unescape(raw_value, where).strip(), start + 1))
    return entries


def _text(data: bytes, name: str) -> str:
    if len(data) > FILE_MAX_BYTES:
        raise ConfigError(
            f"{name} has {len(data)} bytes, more than the {FILE_MAX_BYTES} that a file of "
            "settings may have"
        )
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"{name} is UTF-16 text; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # what Java takes every properties file for
    if "\0" in text:
        raise ConfigError(f"{name} is not text: it holds zero bytes")
    return text


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Key and value, both still escaped: the key ends at the first bare ``=``, ``:`` or blank."""
    position = 0
    while position < len(line):
        char = line[position]
        if char == "\\":
            position += 2
        elif char in "=:" or char in _BLANKS:
            break
        else:
            position += 1
    key, rest = line[:position], line[position:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:]
    return key, rest


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text
    pieces: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\":
            pieces.append(char)
            continue
        escaped = text[position : position + 1]
        position += 1
        if escaped != "u":
            pieces.append(_ESCAPES.get(escaped, escaped))
            continue
        digits = text[position : position + 4]
        if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
            raise ConfigError(f"{where}: \\u needs four hexadecimal digits, not {digits!r}")
        pieces.append(chr(int(digits, 16)))
        position += 4
    joined = "".join(pieces)
    # Java writes a character outside the first plane as two escapes; a lone half is no character
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
