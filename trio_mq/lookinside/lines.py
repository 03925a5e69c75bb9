"""Messages as lines of JSON, read back: what an import takes.

In: a line, as an export or ``store cat --format json`` writes it, or by hand. Out: a :class:`Line`, or
:class:`BadLine` with the reason. Everything that a store could not hold is refused here, before anything is written.
The format is described in ``docs/reference/message-lines.md``.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from trio_mq.errors import ProtocolError, TrioMQError
from trio_mq.protocol import properties
from trio_mq.protocol.codes import TRANSACTION_MASK, MessageFlag
from trio_mq.protocol.layout import MAX_PROPERTIES_BYTES
from trio_mq.protocol.message import Host, split_batch

#: Most queues of a topic; a queue id has to be below.
MAX_QUEUES: Final = 65_536
_INT, _LONG = 1 << 31, 1 << 63
_INNER_BATCH: Final = int(MessageFlag.INNER_BATCH)
_COMPRESSION: Final = 0x701
_HOSTS_V6: Final = 0x30
_BORN_V6: Final = 0x10
_UNDECIDED: Final = {
    int(MessageFlag.TRANSACTION_PREPARED): "a prepared transaction",
    int(MessageFlag.TRANSACTION_ROLLBACK): "a rolled back transaction",
}
_BODIES: Final = ("bodyBase64", "bodyText", "bodyHex")


class BadLine(TrioMQError):
    """A line that is no message, or one that a store cannot hold."""


@attrs.frozen
class Line:
    """A message to be stored. `count` is how many messages its record has, `properties` their text."""

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: bytes
    count: int = 1

    @property
    def is_batch(self) -> bool:
        """Whether the record needs a batch queue."""
        return bool(self.sys_flag & _INNER_BATCH)


def parse(text: str, *, now_ms: int) -> Line:
    """The message of a line. What is not given is 0, empty, now, or the address of nobody."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"it is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadLine("it is not a JSON object")
    try:
        line = _message(fields, now_ms)
    except (ProtocolError, UnicodeEncodeError) as error:
        raise BadLine(str(error)) from None
    if len(line.properties) > MAX_PROPERTIES_BYTES:
        raise BadLine(
            f"{len(line.properties)} bytes of properties; {MAX_PROPERTIES_BYTES} are the most a record can hold"
        )
    return line


def _message(fields: Mapping[str, Any], now_ms: int) -> Line:
    sys_flag = _number(fields, "sysFlag", 0, _INT)
    what = _UNDECIDED.get(sys_flag & TRANSACTION_MASK)
    if what:
        raise BadLine(f"sysFlag {sys_flag:#x} says that it is {what}, which no queue holds")
    if fields.get("bodyDecompressed") is True:
        sys_flag &= ~_COMPRESSION
    host = Host.parse(_text(fields, "bornHost", "127.0.0.1:0"))
    sys_flag = sys_flag & ~_HOSTS_V6 | (_BORN_V6 if host.is_v6 else 0)
    body, data = _body(fields), _properties(fields)
    topic = _text(fields, "topic", None)
    queue_id = _number(fields, "queueId", 0, MAX_QUEUES)
    if queue_id < 0:
        raise BadLine(f"queueId is {queue_id}; it must not be negative")
    return Line(
        topic=topic,
        queue_id=queue_id,
        flag=_number(fields, "flag", 0, _INT),
        sys_flag=sys_flag,
        born_timestamp_ms=_number(fields, "bornTimestamp", now_ms, _LONG),
        born_host=host,
        reconsume_times=_number(fields, "reconsumeTimes", 0, _INT),
        prepared_transaction_offset=_number(fields, "preparedTransactionOffset", 0, _LONG),
        body=body,
        properties=data,
        count=_batch_count(sys_flag, body, data),
    )


def _batch_count(sys_flag: int, body: bytes, data: bytes) -> int:
    number = properties.get(data, b"INNER_NUM")
    if not sys_flag & _INNER_BATCH:
        if number is not None:
            raise BadLine("property INNER_NUM without bit 0x80 of sysFlag")
        return 1
    found = len(split_batch(body))
    if number is None or number != b"%d" % found:
        raise BadLine(f"an inner batch of {found} messages says INNER_NUM {number!r}")
    return found


def _body(fields: Mapping[str, Any]) -> bytes:
    given = [name for name in _BODIES if name in fields]
    if len(given) != 1:
        raise BadLine(f"one of {', '.join(_BODIES)} has to be there, not {len(given)}")
    name = given[0]
    value = _text(fields, name, None, empty=True)
    try:
        if name == "bodyBase64":
            return base64.b64decode(value, validate=True)
        return bytes.fromhex(value) if name == "bodyHex" else value.encode()
    except (ValueError, binascii.Error) as error:
        raise BadLine(f"{name} cannot be read: {error}") from None


def _properties(fields: Mapping[str, Any]) -> bytes:
    if "propertiesBase64" in fields:
        try:
            data = base64.b64decode(
                _text(fields, "propertiesBase64", None, empty=True), validate=True
            )
        except (ValueError, binascii.Error) as error:
            raise BadLine(f"propertiesBase64 cannot be read: {error}") from None
    else:
        given = fields.get("properties", {})
        if not isinstance(given, dict) or not all(isinstance(v, str) for v in given.values()):
            raise BadLine("properties is not an object of texts")
        data = properties.encode(given)
    return without_checksum(data)


def without_checksum(data: bytes) -> bytes:
    """Properties without the checksum over their record: it is of one place in one log."""
    return properties.remove(data, b"__CRC32#")


def _text(fields: Mapping[str, Any], name: str, default: str | None, *, empty: bool = False) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str) or not (value or empty):
        raise BadLine(
            f"{name} is missing" if name not in fields else f"{name} is {value!r}, not a text"
        )
    return value


def _number(fields: Mapping[str, Any], name: str, default: int, limit: int) -> int:
    value = fields.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadLine(f"{name} is {value!r}, not a number")
    if not -limit <= value < limit:
        raise BadLine(f"{name} is {value}; legal: {-limit} to {limit - 1}")
    return value
