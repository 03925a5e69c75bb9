"""Texts read as Java reads them, and the order of what does not compare by itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.sql92.errors import NotComparable
from trio_mq.sql92.values import (
    Long,
    compare,
    equal,
    less_or_more,
    to_bool,
    to_double,
    to_int,
    to_long,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-0", 0),
        ("+7", 7),
        ("007", 7),
        ("2147483647", 2**31 - 1),
        ("-2147483648", -(2**31)),
        ("\u0665", 5),
        ("\uff11\uff12", 12),
        ("0" * 5000 + "1", 1),
    ],
)
def test_whole_numbers(text, number):
    assert to_int(text) == to_long(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "+",
        "+-1",
        " 1",
        "1 ",
        "1.0",
        "1e3",
        "1_0",
        "0x1",
        "x",
        "2147483648",
        "9" * 5000,
        "\U0001d7d8",
        "\u00b2",
    ],
)
def test_what_is_no_int(text):
    with pytest.raises(NotComparable):
        to_int(text)


def test_longs_end_where_javas_do():
    assert to_long("9223372036854775807") == 2**63 - 1
    assert isinstance(to_long("1"), Long)
    for text in ("9223372036854775808", "-9223372036854775809"):
        with pytest.raises(NotComparable):
            to_long(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1.0),
        (" 1.5\t", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1E-2", 0.01),
        ("1f", 1.0),
        ("1.5D", 1.5),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        ("0x1p3", 8.0),
        ("-0X.8P1", -1.0),
        ("1e999", math.inf),
        ("-1e999", -math.inf),
        ("0x1p99999", math.inf),
        ("0x1p-99999", 0.0),
    ],
)
def test_doubles(text, number):
    assert to_double(text) == number


def test_nan_and_minus_zero():
    assert math.isnan(to_double("NaN"))
    assert math.isnan(to_double("-NaN"))
    assert math.copysign(1, to_double("-0.0")) == -1


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "nan",
        "inf",
        "infinity",
        "1_0",
        "e3",
        ".",
        "1e",
        "0x1",
        "x",
        "1 2",
        "\u0665",
        "1ff",
        "--1",
        "\u00a01",
    ],
)
def test_what_is_no_double(text):
    with pytest.raises(NotComparable):
        to_double(text)


def test_booleans():
    assert [to_bool(text) for text in ("true", "TRUE", "True", "true ", "yes", "")] == [
        True
    ] * 3 + [False] * 3


def test_doubles_have_a_whole_order():
    order = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan]
    for i, one in enumerate(order):
        for j, other in enumerate(order):
            assert (compare(one, other) > 0) - (compare(one, other) < 0) == (i > j) - (i < j)


def test_a_text_is_read_as_what_stands_beside_it():
    assert compare("5", 5) == compare(5, "5") == compare("5.0", 5.0) == compare("true", True) == 0
    with pytest.raises(NotComparable):
        compare("5.0", 5)
    with pytest.raises(NotComparable):
        compare("3000000000", 5)
    assert compare("3000000000", Long(2**31)) > 0
    with pytest.raises(NotComparable):
        compare(True, "true")
    assert compare(True, 1) == compare(1, True) == compare(True, 1.0) == -1


def test_two_texts_are_equal_as_texts_and_ordered_as_numbers():
    assert equal("1.0", "1") is False
    assert less_or_more("1.0", "1") == 0
    assert less_or_more("10", "9") > 0
    with pytest.raises(NotComparable):
        less_or_more("a", "b")


def test_the_unknown_on_the_left_is_unknown_and_on_the_right_false():
    assert equal(None, "x") is None
    assert equal("x", None) is False
    assert equal(None, None) is True


@given(st.one_of(st.integers(-(2**31), 2**31 - 1)), st.floats(allow_nan=False))
def test_numbers_of_two_kinds_compare_as_doubles(whole, number):
    wanted = (whole > number) - (whole < number)
    assert compare(whole, number) == wanted or (whole == 0 and number == 0)
    assert compare(number, whole) == -wanted or (whole == 0 and number == 0)


@given(st.floats(allow_nan=False))
def test_doubles_come_back(number):
    assert to_double(repr(number).replace("inf", "Infinity")) == number
