"""Times, durations and places, as they are written on a command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from trio_mq.cli import places
from trio_mq.errors import ConfigError
from trio_mq.protocol.bodies import MessageQueue

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("begin", "begin"),
        ("end", "end"),
        ("17", 17),
        ("1800000000000", 1_800_000_000_000),
        ("90s", NOW - timedelta(seconds=90)),
        ("1.5h", NOW - timedelta(minutes=90)),
        ("7d", NOW - timedelta(days=7)),
        ("250ms", NOW - timedelta(milliseconds=250)),
        ("2026-11-29T18:20", datetime(2026, 11, 29, 18, 20, tzinfo=UTC)),
        ("2026-11-29T18:20+08:00", datetime(2026, 11, 29, 10, 20, tzinfo=UTC)),
        ("2026-11-29", datetime(2026, 11, 29, tzinfo=UTC)),
    ],
)
def test_places(text: str, place: object) -> None:
    assert places.place("--from", text, NOW) == place


@pytest.mark.parametrize("text", ["", "soon", "-5", "5x", "h", "2026-13-01", "99999999d", "\u0661"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--from .* is no place; write begin, end, a time"):
        places.place("--from", text, NOW)


def test_times_only() -> None:
    assert places.moment("--at", "10m", NOW) == NOW - timedelta(minutes=10)
    for text in ("begin", "17"):
        with pytest.raises(ConfigError, match=f"--at '{text}' is no time; write"):
            places.moment("--at", text, NOW)


def test_durations() -> None:
    assert places.duration("10s") == timedelta(seconds=10)
    assert [places.duration(text) for text in ("10", "s", "1 s", "9" * 30 + "d")] == [None] * 4


def test_queues() -> None:
    assert places.queue("--queue", "b:1:3", "T") == MessageQueue("T", "b:1", 3)
    for text in ("b", ":1", "b:", "b:x", "b:-1"):
        with pytest.raises(ConfigError, match="is no queue; write BROKER:ID"):
            places.queue("--queue", text, "T")
