"""Log lines: one per event, with the time and its offset, the level, the subsystem and the text.

In: records of the standard logging of this process; loggers are named ``trio_mq.<subsystem>`` and
below. Out: text lines or JSON lines on a stream, stderr as a rule, since stdout belongs to what a
command prints. Called once by the command line.

::

    2026-11-29T20:00:00.123+00:00 INFO  store: recovered 1,070 records
    {"time":"2026-11-29T20:00:00.123+00:00","level":"INFO","subsystem":"store", …}
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final, TextIO

ROOT: Final = "trio_mq"
LEVELS: Final = ("debug", "info", "warning", "error")
_SHORT: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}


def local_time(now_ms: int) -> str:
    """ISO 8601 text of a moment (ms since the epoch) in the process's time zone, with offset."""
    seconds, millis = divmod(now_ms, 1000)
    local = time.localtime(seconds)
    # the offset comes out as +0800; ISO 8601 wants a colon when the time has them
    offset = time.strftime("%z", local)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}.{millis:03}{offset[:3]}:{offset[3:5]}"


def subsystem(logger: str) -> str:
    """``store`` for the logger ``trio_mq.store`` and those below it; others as they are."""
    root, _, below = logger.partition(".")
    return below.partition(".")[0] if root == ROOT and below else logger


def one_line(text: str) -> str:
    """Text with control characters escaped: what a peer sends cannot forge a line of ours."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


class TextFormatter(logging.Formatter):
    """Lines for people; a traceback follows its line, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The text of a record, without a line end."""
        level = _SHORT.get(record.levelname, record.levelname)
        head = f"{local_time(int(record.created * 1000))} {level:<5}"
        line = f"{head} {subsystem(record.name)}: {one_line(record.getMessage())}"
        if record.exc_info and record.exc_info[0] is not None:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {part}" for part in trace.split("\n"))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line, for collectors."""

    def format(self, record: logging.LogRecord) -> str:
        """The object of a record as ASCII text, without a line end."""
        item = {
            "time": local_time(int(record.created * 1000)),
            "level": record.levelname,
            "subsystem": subsystem(record.name),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            item["exception"] = self.formatException(record.exc_info)
        return json.dumps(item, separators=(",", ":"))


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream; a reader that went away must not stop the process that logs."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line when the stream is the reason; a mistake in the call is shown as usual."""
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handleError(record)


def set_up(*, level: str = "info", as_json: bool = False, stream: TextIO | None = None) -> None:
    """Send what is logged at `level` (one of :data:`LEVELS`) or above to `stream` (stderr)."""
    handler = LogHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger()
    for old in [known for known in root.handlers if isinstance(known, LogHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    # other people's libraries are only heard when something is wrong
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level.upper())
