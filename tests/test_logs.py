"""Log lines as text and as JSON: subsystem, offset, one line per event."""

from __future__ import annotations

import io
import json
import logging
import os
import time
from collections.abc import Callable, Iterator

import pytest

from trio_mq import logs

MOMENT_MS = 1_795_982_400_123  # 2026-11-29T20:00:00.123Z


@pytest.fixture
def zone() -> Iterator[Callable[[str], None]]:
    before = os.environ.get("TZ")

    def use(name: str) -> None:
        os.environ["TZ"] = name
        time.tzset()

    yield use
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("trio_mq")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def record(message: str, *args: object, name: str = "trio_mq.store.flush") -> logging.LogRecord:
    made = logging.LogRecord(name, logging.INFO, "f.py", 1, message, args, None)
    made.created = MOMENT_MS / 1000
    return made


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("UTC", "2026-11-29T20:00:00.123+00:00"),
        ("CST-8", "2026-11-30T04:00:00.123+08:00"),
        ("IST-5:30", "2026-11-30T01:30:00.123+05:30"),
        ("NST3:30", "2026-11-29T16:30:00.123-03:30"),
    ],
)
def test_c080_times_are_local_and_carry_their_offset(
    zone: Callable[[str], None], name: str, text: str
) -> None:
    """C080: log times follow TZ and say so."""
    zone(name)
    assert logs.local_time(MOMENT_MS) == text
    assert logs.TextFormatter().format(record("x")).startswith(text + " INFO  store: x")
    assert json.loads(logs.JsonFormatter().format(record("x")))["time"] == text


def test_the_line_has_level_subsystem_and_text(zone: Callable[[str], None]) -> None:
    zone("UTC")
    line = logs.TextFormatter().format(record("recovered %d records", 1070))
    assert line == "2026-11-29T20:00:00.123+00:00 INFO  store: recovered 1070 records"


@pytest.mark.parametrize(
    ("logger", "name"),
    [
        ("trio_mq.store", "store"),
        ("trio_mq.store.flush", "store"),
        ("trio_mq", "trio_mq"),
        ("trio", "trio"),
        ("other.library", "other.library"),
    ],
)
def test_loggers_show_as_their_subsystem(logger: str, name: str) -> None:
    assert logs.subsystem(logger) == name


def test_a_peers_text_cannot_forge_a_line() -> None:
    line = logs.TextFormatter().format(record("client %s", "a\nERROR\x1b[31m\u2028\udc80ü"))
    assert "\n" not in line
    assert line.endswith(r"client a\nERROR\x1b[31m\u2028\udc80ü")


def failed() -> logging.LogRecord:
    try:
        raise OSError("no room")
    except OSError as error:
        made = record("cannot save")
        made.exc_info = (type(error), error, error.__traceback__)
        return made


def test_a_traceback_is_indented_below_its_line() -> None:
    first, *rest = logs.TextFormatter().format(failed()).split("\n")
    assert first.endswith("store: cannot save")
    assert rest[-1] == "    OSError: no room"
    assert all(line.startswith("    ") for line in rest)


def test_json_is_one_object_per_line_with_the_traceback_inside() -> None:
    line = logs.JsonFormatter().format(failed())
    assert "\n" not in line
    item = json.loads(line)
    assert item["exception"].endswith("OSError: no room")
    assert {key: item[key] for key in ("level", "subsystem", "logger", "message")} == {
        "level": "INFO",
        "subsystem": "store",
        "logger": "trio_mq.store.flush",
        "message": "cannot save",
    }


def test_json_survives_any_text() -> None:
    line = logs.JsonFormatter().format(record("%s", "\udc80\n\u2028ü"))
    assert line.isascii()
    assert json.loads(line)["message"] == "\udc80\n\u2028ü"


def test_set_up_holds_the_level_for_our_loggers_and_warnings_for_others() -> None:
    stream = io.StringIO()
    logs.set_up(level="debug", stream=stream)
    logging.getLogger("trio_mq.net").debug("ours")
    logging.getLogger("somebody").info("theirs")
    logging.getLogger("somebody").warning("their warning")
    lines = stream.getvalue().splitlines()
    assert [line.partition(" ")[2] for line in lines] == [
        "DEBUG net: ours",
        "WARN  somebody: their warning",
    ]


def test_set_up_twice_writes_each_line_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.set_up(stream=first)
    logs.set_up(stream=second, as_json=True)
    logging.getLogger("trio_mq.net").info("x")
    logging.getLogger("trio_mq.net").debug("below the level")
    assert first.getvalue() == ""
    assert json.loads(second.getvalue())["message"] == "x"


def test_a_reader_that_went_away_stops_nobody() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    logs.set_up(stream=Gone())
    logging.getLogger("trio_mq.net").info("x")


def test_a_wrong_call_is_still_shown(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(stream=io.StringIO())
    handler = next(h for h in logging.getLogger().handlers if isinstance(h, logs.LogHandler))
    handler.handle(record("%d", "no number"))
    assert "Logging error" in capsys.readouterr().err
