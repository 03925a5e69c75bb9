"""Answers of Apache's own evaluator of SQL92 expressions: asked through the Java driver, kept in a file.

In: expressions and messages. Out: for each expression ``error``, or a letter for each message: 1 match, 0 none.
``python -m tests.interop.filter_table`` writes the table of ``tests/sql92`` anew.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.sql92.expressions import EXPRESSIONS, MESSAGES

from . import peers
from .drivers import Driver

TABLE = Path(__file__).parent.parent / "sql92" / f"apache-{peers.VERSION}.jsonl"


def answers(
    driver: Driver, expressions: Sequence[str], messages: Sequence[dict[str, str]]
) -> list[str]:
    """What Apache says."""
    found: list[str] = driver.call(
        "filter.evaluate", expressions=list(expressions), properties=list(messages)
    )
    return found


def lines(driver: Driver) -> list[str]:
    """The lines of the table: the messages, then each expression with its answers."""
    found = answers(driver, EXPRESSIONS, MESSAGES)
    rows: list[object] = [{"messages": MESSAGES}]
    rows += [
        {"expression": expression, "answers": one}
        for expression, one in zip(EXPRESSIONS, found, strict=True)
    ]
    return [json.dumps(row) for row in rows]


def main() -> None:
    """Write the table."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        command = peers.java(
            home, peers.compiled(peers.HERE / "java"), "Driver", jvm=peers.FAST_JVM
        )
        driver = Driver(command, home / "driver.log")
        try:
            made = lines(driver)
        finally:
            driver.close()
    TABLE.write_text("\n".join(made) + "\n", "utf-8")


if __name__ == "__main__":
    main()
