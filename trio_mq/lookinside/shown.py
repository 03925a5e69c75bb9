"""A record as text for people and as JSON for programs.

In: a decoded record. Out: lines. The JSON form is that of an export too, so what `cat` prints can be imported. The
fields are described in ``docs/reference/message-lines.md``.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from trio_mq.errors import ProtocolError
from trio_mq.protocol import properties
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.message import BatchItem, offset_message_id, split_batch
from trio_mq.protocol.record import StoredMessage


class BodyForm(Enum):
    """How a body is shown. AUTO: as text when it is UTF-8 without control characters, else in hex (JSON: base64)."""

    AUTO = "auto"
    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"
    NONE = "none"


def body_of(message: StoredMessage, *, decompress: bool) -> tuple[bytes, str]:
    """The body to show, and why a compressed one could not be inflated."""
    if decompress:
        try:
            return message.plain_body, ""
        except ProtocolError as error:
            return message.body, str(error)
    return message.body, ""


def as_line(
    message: StoredMessage, *, decompress: bool = False, form: BodyForm = BodyForm.BASE64
) -> str:
    """A message as one line of JSON."""
    body, problem = body_of(message, decompress=decompress)
    fields: dict[str, Any] = {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "logOffset": message.log_offset,
        "size": message.size,
        "messageId": offset_message_id(message.store_host, message.log_offset),
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": str(message.born_host),
        "storeTimestamp": message.store_timestamp_ms,
        "storeHost": str(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": message.property_map,
    }
    if not properties_fit(message.properties):
        fields["propertiesBase64"] = base64.b64encode(message.properties).decode()
    if decompress and body is not message.body:
        fields["bodyDecompressed"] = True
    if problem:
        fields["bodyProblem"] = problem
    fields |= _body_field(body, form)
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def properties_fit(data: bytes) -> bool:
    """Whether the map of properties gives the same bytes again."""
    try:
        return properties.encode(properties.parse(data)) == data
    except ProtocolError:
        return False


def _body_field(body: bytes, form: BodyForm) -> dict[str, str]:
    if form is BodyForm.NONE:
        return {}
    if form is BodyForm.HEX:
        return {"bodyHex": body.hex()}
    if form is BodyForm.TEXT or (form is BodyForm.AUTO and printable(body) is not None):
        return {"bodyText": body.decode("utf-8", "replace")}
    return {"bodyBase64": base64.b64encode(body).decode()}


def printable(body: bytes) -> str | None:
    """A body as text, None when it is not UTF-8 or has control characters."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    plain = text.translate({9: None, 10: None, 13: None})
    return text if not plain or plain.isprintable() else None


def as_text(
    message: StoredMessage, *, decompress: bool = False, form: BodyForm = BodyForm.AUTO
) -> str:
    """A message for people: what it is on one line, then times, properties and body, indented."""
    body, problem = body_of(message, decompress=decompress)
    lines = [
        f"{message.log_offset}  {_safe(message.topic)}/{message.queue_id}@{message.queue_offset}  "
        f"{moment(message.store_timestamp_ms)}  {message.size} bytes",
        f"  born {moment(message.born_timestamp_ms)} at {message.born_host}, "
        f"stored at {message.store_host}, flag {message.flag}, sysFlag {message.sys_flag:#x}"
        + (f", consumed {message.reconsume_times} times" if message.reconsume_times else ""),
    ]
    lines += [f"  {_safe(name)}: {_safe(value)}" for name, value in message.property_map.items()]
    if problem:
        lines.append(f"  the body cannot be decompressed: {problem}")
    items = _items(message, body)
    if form is not BodyForm.NONE and items is None:
        lines += _body_lines(body, form)
    for number, item in enumerate(items or ()):
        lines.append(f"  message {message.queue_offset + number} of the batch, flag {item.flag}")
        pairs = properties.parse(item.properties).items()
        lines += [f"    {_safe(name)}: {_safe(value)}" for name, value in pairs]
        if form is not BodyForm.NONE:
            lines += [f"  {line}" for line in _body_lines(item.body, form)]
    return "\n".join(lines)


def _items(message: StoredMessage, body: bytes) -> list[BatchItem] | None:
    """The messages in one record of a batch queue; None for any other record."""
    if not message.sys_flag & MessageFlag.INNER_BATCH:
        return None
    try:
        return split_batch(body)
    except ProtocolError:
        return None


def _body_lines(body: bytes, form: BodyForm) -> list[str]:
    text = printable(body) if form is BodyForm.AUTO else None
    if form is BodyForm.TEXT:
        text = _safe(body.decode("utf-8", "replace"))
    if text is not None:
        kind, shown = "text", text.splitlines() or [""]
    elif form is BodyForm.BASE64:
        kind, shown = "base64", [base64.b64encode(body).decode()]
    else:
        data = body.hex(" ", 4)
        kind, shown = "hex", [data[at : at + 72] for at in range(0, len(data), 72)]
    return [f"  body ({len(body)} bytes, {kind}):", *(f"    {line}" for line in shown)]


def _safe(text: str) -> str:
    """Text that a terminal takes as text."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def moment(ms: int) -> str:
    """A time in UTC; the number where there is no such time."""
    try:
        at = datetime.fromtimestamp(ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return at.strftime("%Y-%m-%dT%H:%M:%S") + f".{ms % 1000:03d}Z"


def parse_moment(text: str) -> int | None:
    """Milliseconds since the epoch: of a number of them, or of an ISO time (UTC unless it says otherwise)."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)
