"""Times, durations and places in a topic, as they are written on a command line.

In: texts of options. Out: datetimes, timedeltas, :data:`trio_mq.client.admin.Place`, queues; ConfigError says what can
be written. Called by the verbs that talk to a cluster. Pure but for the time of now, which is an argument.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from trio_mq.errors import ConfigError

if TYPE_CHECKING:
    from trio_mq.client.admin import Place
    from trio_mq.protocol.bodies import MessageQueue

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_QUEUE: Final = re.compile(r"(.+):(\d{1,6})", re.ASCII)
PLACES: Final = (
    "begin, end, a time (2026-11-29T18:20, with +08:00 if it is not UTC), a while ago (90s, 10m, 2h, 7d), "
    "or an offset"
)


def duration(text: str) -> timedelta | None:
    """``90s``, ``1.5h``; None when it is none."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    try:
        return timedelta(seconds=float(found[1]) * _UNITS_S[found[2]])
    except OverflowError:
        return None


def time(text: str) -> datetime | None:
    """An ISO time, in UTC unless it says otherwise; None when it is none."""
    if text.isdecimal():
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def place(option: str, text: str, now: datetime) -> Place:
    """A place in each queue of a topic."""
    if text == "begin":
        return "begin"
    if text == "end":
        return "end"
    if text.isascii() and text.isdecimal():
        return int(text)
    ago = duration(text)
    try:
        at = now - ago if ago is not None else time(text)
    except OverflowError:
        at = None
    if at is None:
        raise ConfigError(f"{option} {text!r} is no place; write {PLACES}")
    return at


def moment(option: str, text: str, now: datetime) -> datetime:
    """A time, or a while ago."""
    found = place(option, text, now)
    if not isinstance(found, datetime):
        raise ConfigError(
            f"{option} {text!r} is no time; write 2026-11-29T18:20, or a while ago: 90s, 10m, 2h, 7d"
        )
    return found


def queue(option: str, text: str, topic: str) -> MessageQueue:
    """``BROKER:ID``."""
    from trio_mq.protocol.bodies import MessageQueue

    found = _QUEUE.fullmatch(text)
    if found is None:
        raise ConfigError(f"{option} {text!r} is no queue; write BROKER:ID, say broker-a:0")
    return MessageQueue(topic, found[1], int(found[2]))
