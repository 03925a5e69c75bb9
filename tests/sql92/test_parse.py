"""Expressions that cannot be used say where and why; hostile ones cost little; messages never make one fail."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.protocol.properties import encode
from trio_mq.sql92.errors import Sql92Error
from trio_mq.sql92.parse import MAX_CHARACTERS, compile_expression
from trio_mq.sql92.tokens import MAX_DEPTH

LONGEST_S = 1.0


def refused(expression: str) -> Sql92Error:
    with pytest.raises(Sql92Error) as caught:
        compile_expression(expression)
    return caught.value


@pytest.mark.parametrize(
    ("expression", "position", "said"),
    [
        ("", 1, "ends too early"),
        ("a = ", 5, "ends too early"),
        ("a = 1 AND (b = 2", 17, "ends too early"),
        ("a == 1", 4, "= does not fit"),
        ("a = 1 AND AND b = 2", 11, "AND does not fit"),
        ("a = #1", 5, "'#' has no place"),
        ('a = "x"', 5, "single quotes"),
        ("a = 'x", 5, "close it by '"),
        ("a = 1 /* x", 7, "close it by */"),
        ("a = 0.0", 5, "write 0 for it"),
        ("a = 1e999", 5, "greater than any double"),
        ("a = 9223372036854775808", 5, "greater than 9223372036854775807"),
        ("a > 'x'", 3, "> does not compare texts"),
        ("a < TRUE", 3, "< does not compare conditions"),
        ("a BETWEEN 5 AND 1", 3, "BETWEEN 5 AND 1: write the lower bound first"),
        ("a = NULL", 3, "write IS NULL"),
        ("TRUE = 1", 6, "cannot be compared with a number"),
        ("1 IN ('x')", 3, "the name of a property"),
        ("a AND 5", 3, "a condition is wanted"),
        ("5", 1, "a condition is wanted"),
    ],
)
def test_an_error_has_its_place_and_says_what_to_do(expression, position, said):
    error = refused(expression)
    assert error.position == position
    assert said in error.problem
    assert str(error) == f"character {position}: {error.problem}"


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 10_000 + "a = 1" + ")" * 10_000,
        "(" * 30_000,
        "NOT " * 8_000 + "a = 1",
        "a = " + "-" * 30_000 + "1",
        "-" * 30_000 + "\n",
        "+" * 30_000 + "a",
        "a = " * 8_000 + "1",
        "a" + " IS NULL" * 3_000,
        "a" + " CONTAINS 'x'" * 2_000,
        "a = 1 OR NOT (" * 2_000 + "a = 1" + ")" * 2_000,
    ],
    ids=lambda text: text[:12],
)
def test_what_is_nested_too_deep_is_refused_at_once(expression):
    began_s = time.perf_counter()
    error = refused(expression)
    assert "nested more than 200 deep" in error.problem or "too early" in error.problem
    assert time.perf_counter() - began_s < LONGEST_S


def test_the_deepest_that_is_taken_can_be_evaluated():
    deep = "a = 1"
    for _ in range(MAX_DEPTH - 2):
        deep = f"NOT ({deep})"
    with pytest.raises(Sql92Error):
        compile_expression(f"NOT (NOT ({deep}))")
    deep = "NOT " * (MAX_DEPTH - 2) + "(a = 1)"
    assert compile_expression(deep).matches({"a": "1"})
    chain = "a" + " = TRUE" * (MAX_DEPTH - 1)
    assert compile_expression(chain).matches({"a": "true"})


@pytest.mark.parametrize(
    "expression",
    [
        "a = 1 OR " * 3_600 + "a = 2",
        "a IN (" + ",".join(f"'{n}'" for n in range(5_000)) + ")",
        "a = '" + "''" * 16_000 + "'",
        "'" * 32_001,
        "/*" * 16_000,
        "/" + "*" * 32_000,
        "a = 1 " + "/**/" * 8_000,
        "--\n" * 10_000 + "a = 1",
        "a" * 32_000,
        "9" * 32_000,
        "." * 32_000,
        "1e" * 16_000,
        "a = 1." + "0" * 32_000 + "1",
        "a b " * 8_000,
    ],
    ids=lambda text: text[:12],
)
def test_long_expressions_do_not_stop_the_loop(expression):
    began_s = time.perf_counter()
    with contextlib.suppress(Sql92Error):
        compile_expression(expression).accepts(encode({"a": "1"}))
    assert time.perf_counter() - began_s < LONGEST_S


def test_an_expression_can_be_too_long():
    error = refused("a = 1 OR " * 4_000 + "a = 2")
    assert error.position == MAX_CHARACTERS + 1
    assert f"at most {MAX_CHARACTERS}" in error.problem
    compile_expression(f"a = '{'x' * (MAX_CHARACTERS - 6)}'")


@pytest.mark.parametrize(
    ("expression", "ignored_from"),
    [
        ("a = 1", None),
        ("a = 1 -- b = 2", 7),
        ("a = 1 + 2", 7),
        ("a = 1 b = 2", 7),
        ("a LIKE 'x'", 3),
        ("(a = 1))", 8),
        ("a = 1 -- b = 2\n", None),
    ],
)
def test_what_stands_behind_a_whole_expression_is_ignored_and_told(expression, ignored_from):
    assert compile_expression(expression).ignored_from == ignored_from


def test_a_message_that_cannot_be_compared_does_not_match_but_what_was_true_before_counts():
    raw = encode({"a": "abc", "s": "x"})
    assert not compile_expression("a > 1 OR s = 'x'").accepts(raw)
    assert compile_expression("s = 'x' OR a > 1").accepts(raw)
    assert not compile_expression("NOT (a > 1)").accepts(raw)


def test_of_two_equal_properties_the_last_counts_and_an_empty_one_is_none():
    assert compile_expression("a = '2'").accepts(b"a\x011\x02a\x012\x02")
    assert compile_expression("a IS NULL").accepts(b"a\x01\x02b\x011\x02")


def test_bytes_that_are_no_text_are_as_in_java():
    assert compile_expression("a = 'x\ufffdy'").accepts(b"a\x01x\xffy\x02")


WORDS = st.sampled_from(
    [
        *"ab()=<>+-,'.#\n",
        *("<>", "<=", ">=", "AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH", "'x'", "''", "1", "2.5", "1e3", "99999999999"),
        *("--", "/*", "*/"),
    ]
)


@given(st.one_of(st.text(), st.lists(WORDS, max_size=30).map(" ".join)), st.binary(max_size=60))
def test_nothing_but_its_own_error_and_no_message_fails(expression, raw):
    try:
        accepts = compile_expression(expression).accepts
    except Sql92Error as error:
        place = error.position
    else:
        place = 1
        assert accepts(raw) in (True, False)
        assert accepts(b"a\x01" + raw + b"\x02b\x011\x02") in (True, False)
    assert 1 <= place <= len(expression) + 1


@given(st.text(alphabet="a=1 \n-/*'", max_size=40))
def test_comments_and_texts_in_any_order(expression):
    with contextlib.suppress(Sql92Error):
        compile_expression(expression)
