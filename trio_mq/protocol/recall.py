"""Recall handles: by which a producer takes back a message that waits for a timer.

In and out: the text that a reply to a send carries, and what it names. Called by the send and the recall processor.
Format: Apache RecallMessageHandle (base64url of ``v1 <topic> <broker name> <time> <unique id>``).
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

import attrs

from trio_mq.errors import BodyError

_VERSION: Final = "v1"
_FIELDS: Final = 5


@attrs.frozen
class RecallHandle:
    """What a handle names; `deliver_ms` is -1 when it says no number."""

    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str


def recall_handle(topic: str, broker_name: str, deliver_ms: int, unique_id: str) -> bytes:
    """The handle of a message that is delivered at `deliver_ms`."""
    text = f"{_VERSION} {topic} {broker_name} {deliver_ms} {unique_id}"
    return base64.urlsafe_b64encode(text.encode())


def parse_recall_handle(handle: str) -> RecallHandle:
    """What a handle names. :class:`BodyError` for a text that is none; padding may be missing."""
    try:
        padded = handle + "=" * (-len(handle) % 4)
        text = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise BodyError(f"recall handle {handle[:60]!r} is not base64url: {error}") from None
    fields = text.split(" ")
    if fields[0] != _VERSION or len(fields) < _FIELDS:
        raise BodyError(
            f"recall handle {handle[:60]!r} is not of the form 'v1 topic broker time id'; use the one of the "
            f"send's result"
        )
    _, topic, broker_name, time_text, message_id = fields[:_FIELDS]
    return RecallHandle(topic, broker_name, _number(time_text), message_id)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return -1
