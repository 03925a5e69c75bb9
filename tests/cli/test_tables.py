"""What is printed for people: on a terminal, and elsewhere."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from datetime import UTC, datetime

from tests.cli.running import Terminal
from trio_mq.cli import tables

HEADS = ("name", "count", "told", "since")
ROWS = [
    ("short", 5, True, None),
    (
        "a [bold]longer[/bold] name\x1b[31m",
        12345,
        False,
        datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC),
    ),
]


def printed(out: io.StringIO, work: Callable[[], None]) -> str:
    with contextlib.redirect_stdout(out):
        work()
    return out.getvalue()


def test_columns_line_up_where_no_terminal_is() -> None:
    text = printed(io.StringIO(), lambda: tables.print_table(HEADS, ROWS, "Title"))
    assert text.splitlines() == [
        "Title",
        "name                                count  told  since",
        "short                                   5  yes   -",
        "a [bold]longer[/bold] name\\x1b[31m  12345  no    2026-01-02T03:04:05.678Z",
    ]


def test_a_terminal_gets_a_table(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = printed(Terminal(), lambda: tables.print_table(HEADS, ROWS, "Title"))
    assert "Title" in text
    assert "─" in text
    assert "\x1b[1;36m" in text  # headings have a colour
    # what others wrote is neither markup nor commands to the terminal
    assert "a [bold]longer[/bold] name\\x1b[31m" in text
    assert "\x1b[31m" not in text


def test_a_table_without_rows() -> None:
    text = printed(io.StringIO(), lambda: tables.print_table(("a", "bc"), []))
    assert text == "a  bc\n"


def test_names_and_values() -> None:
    pairs = [("name", "x"), ("longer name", None), ("map", {"a": 1, "b": "c"}), ("rate", 1.25)]
    assert printed(io.StringIO(), lambda: tables.print_pairs(pairs)).splitlines() == [
        "name         x",
        "longer name  -",
        "map          a=1, b=c",
        "rate         1.2",
    ]


def test_json_keeps_what_others_write() -> None:
    assert (
        printed(io.StringIO(), lambda: tables.print_json({"a": "ü\x1b"}))
        == '{\n  "a": "ü\\u001b"\n}\n'
    )
    assert tables.time_field(datetime.fromtimestamp(1.5, UTC)) == 1500
    assert tables.time_field(None) is None
