"""Values of expressions, and how two of them compare: Java's numbers, read from properties' texts.

In: values of an expression's operands. Out: their order, as Apache's ComparisonExpression finds it. Called by compiled
expressions. Properties are texts; a number beside one decides what the text is read as. A text that cannot be read
so ends the whole evaluation (:class:`NotComparable`), unlike an unknown value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final, TypeAlias

from trio_mq.sql92.errors import NotComparable


class Long(int):
    """A whole number beyond 32 bits (Java's Long); a plain int is Java's Integer."""


#: What an operand can be; None is the unknown value.
Value: TypeAlias = str | int | float | bool | None

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1

_BLANKS: Final = "".join(map(chr, range(0x21)))
_DOUBLE = re.compile(
    r"[+-]?(?:(?P<word>NaN|Infinity)"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)


def _whole(text: str, low: int, high: int) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Java takes any decimal digit of the basic plane.
    if not digits.isdecimal() or (not digits.isascii() and max(digits) > "\uffff"):
        raise NotComparable(f"{text[:40]!r} is no whole number")
    digits = digits.lstrip("0") or "0"
    if len(digits) > 40:
        raise NotComparable(f"{text[:40]!r}... is beyond {high}")
    number = -int(digits) if text[0] == "-" else int(digits)
    if not low <= number <= high:
        raise NotComparable(f"{text!r} is beyond {high}")
    return number


def to_int(text: str) -> int:
    """Integer.valueOf."""
    return _whole(text, INT_MIN, INT_MAX)


def to_long(text: str) -> int:
    """Long.valueOf."""
    return Long(_whole(text, LONG_MIN, LONG_MAX))


def to_double(text: str) -> float:
    """Double.valueOf."""
    text = text.strip(_BLANKS)
    match = _DOUBLE.fullmatch(text)
    if match is None:
        raise NotComparable(f"{text[:40]!r} is no number")
    sign = -1.0 if text[0] == "-" else 1.0
    if word := match["word"]:
        return math.copysign(math.nan if word == "NaN" else math.inf, sign)
    if decimal := match["decimal"]:
        return math.copysign(float(decimal), sign)
    try:
        return math.copysign(float.fromhex(match["hex"]), sign)
    except OverflowError:
        return math.copysign(math.inf, sign)


def to_bool(text: str) -> bool:
    """Boolean.valueOf."""
    return text.lower() == "true"


_READ: Final[dict[type, Callable[[str], Value]]] = {
    int: to_int,
    Long: to_long,
    float: to_double,
    bool: to_bool,
}


def reader_of(value: Value) -> Callable[[str], Value]:
    """How a text beside this number or boolean is read."""
    return _READ[type(value)]


def compare(left: Value, right: Value) -> int:
    """Negative, 0 or positive; -1 for what has no order (Apache: ComparisonExpression.__compare). None is not taken.

    :class:`NotComparable` when a text cannot be read as what stands beside it.
    """
    kind, other = type(left), type(right)
    if kind is not other:
        if kind is bool:
            if other is str:
                # Apache converts the wrong side here and fails.
                raise NotComparable("a text on the right of a condition cannot be compared")
            return -1
        if kind is str:
            assert isinstance(left, str)
            left = _READ[other](left)
        elif other is str:
            assert isinstance(right, str)
            right = _READ[kind](right)
        elif other is bool:
            return -1
    if isinstance(left, float) or isinstance(right, float):
        assert left is not None
        assert right is not None
        return _double_order(float(left), float(right))
    return (left > right) - (left < right)  # type: ignore[operator]  # both are texts, or both whole numbers


def _double_order(left: float, right: float) -> int:
    """Double.compare: NaN is above all and equal to itself, -0.0 below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return int(math.copysign(1, left) - math.copysign(1, right)) if left == 0 else 0
    return (left != left) - (right != right)


def less_or_more(left: Value, right: Value) -> int:
    """As :func:`compare`, for ``<`` and its kin: two texts are read as doubles."""
    if isinstance(left, str) and isinstance(right, str):
        return _double_order(to_double(left), to_double(right))
    return compare(left, right)


def equal(left: Value, right: Value) -> bool | None:
    """``left = right``; None when that is unknown (Apache: the comparison of createEqual).

    An unknown value on the left makes the result unknown, one on the right makes it false; two are equal.
    """
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    return compare(left, right) == 0
