"""The JSON of bodies and state files as the peers write it, which is more than JSON.

In: bytes or text. Out: dicts, lists and scalars (and back). Called by
:mod:`trio_mq.protocol.bodies` and by the reader of the broker's state files. The peers use fastjson
(``RemotingSerializable``). Its maps have unquoted integer keys, ``{0:"x"}``, and whole objects as
keys, ``{{"brokerName":"b","queueId":0,"topic":"T"}:7}``; older ones use single quotes, and files
edited by hand have a comma too many at the end. All of it is read. Written are integer and object
keys as the peers do, keys in order, nulls left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import msgspec

from trio_mq.errors import BodyError, LocalProtocolError

MAX_DEPTH: Final = 64
"""Nesting that is read; the peers' deepest body has eight levels, and each level takes stack."""


@attrs.frozen(order=True)
class MessageQueue:
    """One queue of a topic at one broker name; the only object that is a key in the peers' maps."""

    topic: str
    broker_name: str
    queue_id: int


def loads(data: bytes | str) -> Any:
    """The value in ``data``; :class:`BodyError` with the position when there is none.

    Integer keys become ``int`` when they are unquoted and stay ``str`` when they are quoted; an
    object as a key becomes a :class:`MessageQueue`.
    """
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        pass
    else:
        _check_depth(data, value)
        return value
    # Not plain JSON, or nothing at all: the slow reader knows more, and says where it fails.
    return _Reader(data if isinstance(data, str) else _decode_utf8(data)).read()


def dumps(value: Any, *, standard: bool = False) -> bytes:
    """``value`` in the peers' dialect, without blanks.

    ``standard`` quotes integer keys, for readers of plain JSON; it cannot express a
    :class:`MessageQueue` as a key and raises :class:`LocalProtocolError`.
    """
    pieces: list[bytes] = []
    try:
        _write(value, pieces, standard)
    except RecursionError:
        raise LocalProtocolError("the value is nested too deep, or contains itself") from None
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"{error.object!r} is not valid text") from None
    return b"".join(pieces)


# --- reading

_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_INTEGER: Final = re.compile(r"-?\d{1,20}(?![\w.])")
_NUMBER: Final = re.compile(r"-?\d{1,400}(\.\d{1,400})?([eE][+-]?\d{1,4})?(?![\w.])")
_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_DOUBLE_QUOTED: Final = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_SINGLE_QUOTED: Final = re.compile(r"'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL)
_ESCAPE_OR_SPECIAL: Final = re.compile(r'\\.|["\x01-\x1f]', re.DOTALL)
_WORDS: Final[Mapping[str, Any]] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
}


class _Reader:
    """Recursive descent over one text; ``_at`` is the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def read(self) -> Any:
        if "\0" in self._text:
            self._at = self._text.index("\0")
            raise self._problem("NUL byte; a file that was torn?")
        value = self._value()
        if self._peek():
            raise self._problem("expected the end")
        return value

    def _value(self) -> Any:
        match self._peek():
            case "{":
                return self._object()
            case "[":
                return self._array()
            case '"' | "'":
                return self._string()
            case _:
                return self._scalar()

    def _object(self) -> dict[Any, Any]:
        self._open()
        found: dict[Any, Any] = {}
        while self._peek() != "}":
            key = self._key()
            if self._peek() != ":":
                raise self._problem("expected ':' after a key")
            self._at += 1
            found[key] = self._value()
            self._comma("}")
        self._close()
        return found

    def _array(self) -> list[Any]:
        self._open()
        found: list[Any] = []
        while self._peek() != "]":
            found.append(self._value())
            self._comma("]")
        self._close()
        return found

    def _open(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._problem(f"nested deeper than {MAX_DEPTH} levels")
        self._at += 1

    def _close(self) -> None:
        self._depth -= 1
        self._at += 1

    def _comma(self, close: str) -> None:
        """After an item: a comma, or the end. One comma before the end is let pass."""
        following = self._peek()
        if following == ",":
            self._at += 1
        elif following != close:
            raise self._problem(f"expected ',' or '{close}'")

    def _key(self) -> Any:
        following = self._peek()
        if following in ('"', "'"):
            return self._string()
        if following == "{":
            start = self._at
            return self._queue(self._object(), start)
        if match := _INTEGER.match(self._text, self._at):
            self._at = match.end()
            return int(match[0])
        if match := _NAME.match(self._text, self._at):
            self._at = match.end()
            return match[0]
        raise self._problem("expected a key")

    def _queue(self, found: dict[Any, Any], start: int) -> MessageQueue:
        match found:
            case {"topic": str(topic), "brokerName": str(broker), "queueId": int(queue)}:
                return MessageQueue(topic, broker, queue)
        self._at = start
        raise self._problem("an object as a key needs 'topic', 'brokerName' and 'queueId'")

    def _string(self) -> str:
        single = self._text[self._at] == "'"
        match = (_SINGLE_QUOTED if single else _DOUBLE_QUOTED).match(self._text, self._at)
        if match is None:
            raise self._problem("string without a closing quote")
        # The peers let tabs and their like stand unescaped.
        inner = _ESCAPE_OR_SPECIAL.sub(_standard_escape, match[1])
        try:
            value = msgspec.json.decode(f'"{inner}"', type=str)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise self._problem(f"broken string ({error})") from None
        self._at = match.end()
        return value

    def _scalar(self) -> Any:
        if match := _NAME.match(self._text, self._at):
            if match[0] not in _WORDS:
                raise self._problem("expected a value")
            self._at = match.end()
            return _WORDS[match[0]]
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            raise self._problem("expected a value")
        self._at = match.end()
        is_float = match[1] is not None or match[2] is not None
        return float(match[0]) if is_float else int(match[0])

    def _peek(self) -> str:
        """The next character that is not blank; nothing at the end."""
        match = _BLANKS.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _problem(self, what: str) -> BodyError:
        found = self._text[self._at : self._at + 20]
        shown = repr(found) if found else "the end"
        return BodyError(f"JSON, character {self._at}: {what}, found {shown}")


def _standard_escape(match: re.Match[str]) -> str:
    """An escape or special character inside either kind of quotes, as plain JSON writes it."""
    found = match[0]
    if len(found) > 1:
        return "'" if found == "\\'" else found
    return '\\"' if found == '"' else f"\\u{ord(found):04x}"


def _decode_utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"JSON, byte {error.start}: not UTF-8") from None


def _check_depth(data: bytes | str, value: Any) -> None:
    """The same limit for plain JSON; walked only when there are enough brackets to reach it."""
    raw = data.encode() if isinstance(data, str) else data
    if raw.count(b"{") + raw.count(b"[") <= MAX_DEPTH:
        return
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for node in level
            if type(node) is dict or type(node) is list
            for item in (node.values() if type(node) is dict else node)
        ]
        if not level:
            return
    if any(type(node) is dict or type(node) is list for node in level):
        raise BodyError(f"JSON: nested deeper than {MAX_DEPTH} levels")


# --- writing

_scalar_bytes: Final = msgspec.json.Encoder().encode


def _write(value: Any, pieces: list[bytes], standard: bool) -> None:
    if isinstance(value, MessageQueue):
        pieces.append(_queue_bytes(value))
    elif isinstance(value, Mapping):
        _write_object(value, pieces, standard)
    elif isinstance(value, (list, tuple)):
        _write_array(value, pieces, standard)
    elif isinstance(value, (set, frozenset)):
        _write_array(sorted(value), pieces, standard)
    else:
        pieces.append(_scalar_bytes(value))


def _write_object(value: Mapping[Any, Any], pieces: list[bytes], standard: bool) -> None:
    separator = b"{"
    for key in sorted(value, key=_rank):
        item = value[key]
        if item is None:
            continue
        pieces.append(separator)
        if isinstance(key, str):
            pieces.append(_scalar_bytes(key))
        elif isinstance(key, MessageQueue):
            if standard:
                raise LocalProtocolError(f"{key} cannot be a key in plain JSON")
            pieces.append(_queue_bytes(key))
        else:
            pieces.append(b'"%d"' % key if standard else b"%d" % key)
        pieces.append(b":")
        _write(item, pieces, standard)
        separator = b","
    pieces.append(b"{}" if separator == b"{" else b"}")


def _write_array(value: Iterable[Any], pieces: list[bytes], standard: bool) -> None:
    separator = b"["
    for item in value:
        pieces.append(separator)
        _write(item, pieces, standard)
        separator = b","
    pieces.append(b"[]" if separator == b"[" else b"]")


def _queue_bytes(queue: MessageQueue) -> bytes:
    return b'{"brokerName":%b,"queueId":%d,"topic":%b}' % (
        _scalar_bytes(queue.broker_name),
        queue.queue_id,
        _scalar_bytes(queue.topic),
    )


def _rank(key: Any) -> tuple[int, Any]:
    """Order of keys: each kind in its own order, so that equal maps are equal bytes."""
    return (0 if isinstance(key, str) else 1 if isinstance(key, int) else 2, key)
