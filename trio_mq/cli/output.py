"""What commands print: settings as a table or JSON, notices as few lines, errors as one.

In: values of :mod:`trio_mq.config` and exceptions. Out: text, and the exit code of an error.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from trio_mq.config import Notice, Settings
from trio_mq.config.settings import catalogue
from trio_mq.errors import TrioMQError

log = logging.getLogger("trio_mq.config")

_PLAIN: Final = (bool, int, str, type(None))


def report(error: BaseException) -> int | None:
    """Print a foreseen error as one line on stderr and return its exit code; None for any other.

    Foreseen are our own errors, what the operating system refuses, and groups of nothing else. A
    group is reported by its first error; the others follow from it or were logged.
    """
    leaf = _first_leaf(error)
    if leaf is None:
        return None
    sys.stderr.write(f"error: {explanation(leaf)}\n")
    return leaf.exit_code if isinstance(leaf, TrioMQError) else 1


def explanation(error: BaseException) -> str:
    """What a foreseen error says, as one line; empty for any other."""
    leaf = _first_leaf(error)
    return "" if leaf is None else " ".join(_explain(leaf).split())


def _first_leaf(error: BaseException) -> TrioMQError | OSError | None:
    if isinstance(error, BaseExceptionGroup):
        leaves = [_first_leaf(part) for part in error.exceptions]
        return None if None in leaves else leaves[0]
    return error if isinstance(error, (TrioMQError, OSError)) else None


def _explain(error: TrioMQError | OSError) -> str:
    """An error's own text; for the operating system's, the path and what it said."""
    if isinstance(error, OSError) and error.strerror:
        if error.filename is not None:
            return f"{os.fsdecode(error.filename)}: {error.strerror}"
        return error.strerror
    return str(error) or type(error).__name__


@attrs.frozen
class NoticeLine:
    """A line about notices; `level` is one of logging's."""

    level: int
    text: str


def notice_lines(notices: Iterable[Notice]) -> Iterator[NoticeLine]:
    """One line for each notice, except that keys without effect are listed together."""
    lost: list[str] = []
    same: list[str] = []
    for notice in notices:
        if notice.kind != "unused":
            yield NoticeLine(logging.WARNING, f"{notice.origin}: {notice.text}")
        else:
            (lost if notice.lost else same).append(f"{notice.key} ({notice.origin})")
    if lost:
        listed = ", ".join(lost)
        yield NoticeLine(logging.WARNING, f"known to Apache, not used here: {listed}")
    if same:
        listed = ", ".join(same)
        yield NoticeLine(logging.INFO, f"not used here, but nothing else was asked for: {listed}")


def log_notices(notices: Iterable[Notice]) -> None:
    """Put notices into the log."""
    for line in notice_lines(notices):
        log.log(line.level, "%s", line.text)


def settings_table(settings: Settings) -> str:
    """Lines of key, value and origin, with a heading for each subsystem."""
    rows: list[tuple[str, str, str]] = []
    section = ""
    for info in catalogue():
        if info.section != section:
            section = info.section
            rows.append((f"[{section}]", "", ""))
        meta = info.meta
        value = meta.kind.show(getattr(getattr(settings, section), info.name))
        rows.append((meta.key, value or "-", settings.origin(meta.key)))
    keys, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"{key:<{keys}}  {value:<{values}}  {origin}".rstrip() for key, value, origin in rows]
    return "\n".join(lines)


def settings_json(settings: Settings) -> str:
    """``settings``: key to value, origin and subsystem; ``notices``: what has no effect."""
    table: dict[str, object] = {}
    for info in catalogue():
        value = getattr(getattr(settings, info.section), info.name)
        table[info.meta.key] = {
            "value": value if isinstance(value, _PLAIN) else info.meta.kind.show(value),
            "origin": settings.origin(info.meta.key),
            "subsystem": info.section,
        }
    notices = [attrs.asdict(notice) for notice in settings.notices]
    return json.dumps({"settings": table, "notices": notices}, indent=2)
