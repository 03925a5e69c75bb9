"""The same answers as Apache's evaluator, on the table that it filled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.sql92.expressions import EXPRESSIONS, MESSAGES
from trio_mq.protocol.properties import encode
from trio_mq.sql92.errors import Sql92Error
from trio_mq.sql92.parse import compile_expression

HEAD, *ROWS = map(
    json.loads, (Path(__file__).parent / "apache-5.4.0.jsonl").read_text("utf-8").splitlines()
)
# A property with an empty value is none in the stored form, so such messages are asked about by name only.
RAW = [encode(one) if all(one.values()) else None for one in MESSAGES]


def answers(expression: str) -> str:
    """As the table has them."""
    try:
        made = compile_expression(expression)
    except Sql92Error:
        return "error"
    found = [made.matches(one) for one in MESSAGES]
    for raw, one in zip(RAW, found, strict=True):
        assert raw is None or made.accepts(raw) == one
    return "".join("01"[one] for one in found)


def test_the_table_is_of_these_expressions_and_messages():
    assert HEAD == {"messages": MESSAGES}
    assert [row["expression"] for row in ROWS] == EXPRESSIONS
    assert len(EXPRESSIONS) > 400


def test_every_kind_of_answer_is_in_the_table():
    seen = {row["answers"] for row in ROWS}
    assert {"error", "0" * len(MESSAGES), "1" * len(MESSAGES)} < seen
    assert sum(row["answers"] == "error" for row in ROWS) > 100
    for at in range(len(MESSAGES)):
        assert {"0", "1"} <= {one[at] for one in seen - {"error"}}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["expression"][:60])
def test_answers_are_apaches(row):
    assert answers(row["expression"]) == row["answers"]
