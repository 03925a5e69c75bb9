"""Tables for people and JSON for programs.

In: headings and rows, or fields. Out: text on stdout: a table of rich's on a terminal, aligned columns elsewhere.
Called by the verbs that talk to a cluster. rich is loaded for a terminal only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from trio_mq.cli.online import write


def print_json(fields: Mapping[str, object]) -> None:
    """One object."""
    write(json.dumps(fields, indent=2, ensure_ascii=False) + "\n")


def print_lines(names: Iterable[str]) -> None:
    """One name a line."""
    write("".join(f"{name}\n" for name in names))


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """A name and a value a line."""
    rows = [(name, cell(value)) for name, value in pairs]
    width = max((len(name) for name, _ in rows), default=0)
    write("".join(f"{name:<{width}}  {value}".rstrip() + "\n" for name, value in rows))


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Rows under headings; numbers at the right of their column."""
    found = [list(row) for row in rows]
    right = [bool(found) and all(_is_number(row[at]) for row in found) for at in range(len(heads))]
    texts = [[cell(value) for value in row] for row in found]
    if sys.stdout.isatty():
        _rich(heads, texts, right, title)
        return
    if title:
        write(f"{title}\n")
    widths = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]
    for row in (list(heads), *texts):
        cells = [
            text.rjust(width) if at_right else text.ljust(width)
            for text, width, at_right in zip(row, widths, right, strict=True)
        ]
        write("  ".join(cells).rstrip() + "\n")


def _rich(
    heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[bool], title: str
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title or None, title_justify="left", box=box.SIMPLE_HEAD, header_style="bold cyan"
    )
    for head, at_right in zip(heads, right, strict=True):
        table.add_column(head, justify="right" if at_right else "left", overflow="fold")
    for row in rows:
        # As text: what brokers tell is no markup.
        table.add_row(*map(Text, row))
    console = Console(file=sys.stdout)
    with console.capture() as capture:
        console.print(table)
    write(capture.get())


def cell(value: object) -> str:
    """A value as people read it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, datetime):
        return shown_time(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def shown_time(at: datetime) -> str:
    """In UTC, to the millisecond."""
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def time_field(at: datetime | None) -> int | None:
    """For JSON: ms since 1970, as the peers have it; null where there is none."""
    return None if at is None else round(at.timestamp() * 1000)


def _is_number(value: object) -> bool:
    """Or the lack of one."""
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
