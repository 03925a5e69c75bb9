"""Parts of an expression, compiled: each is a function of a message's properties.

In: parts and the operator between them, from the parser, inside out. Out: the part that they make, or
:class:`Sql92Error` at the operator where Apache refuses the same. Called by the parser's actions only. Rules: Apache
ConstantExpression, PropertyExpression, UnaryExpression, UnaryInExpression, ComparisonExpression, LogicExpression.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from trio_mq.sql92.errors import Sql92Error
from trio_mq.sql92.tokens import MAX_DEPTH, TOO_DEEP
from trio_mq.sql92.values import (
    INT_MAX,
    LONG_MAX,
    Long,
    Value,
    compare,
    equal,
    less_or_more,
    reader_of,
)

Properties: TypeAlias = Mapping[str, str]
Evaluate: TypeAlias = Callable[[Properties], Value]
Test: TypeAlias = Callable[[Properties], bool | None]

_ORDERS: Final[dict[str, Callable[[int, int], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@attrs.frozen
class Operand:
    """A part that has a value. What stands as such in the text (`is_literal`), or is the negative of a number, is
    known without a message (`is_known`, `value`). `name` is that of the property, if it is one.
    """

    evaluate: Evaluate
    depth: int = 1
    is_known: bool = False
    is_literal: bool = False
    value: Value = None
    name: str | None = None


@attrs.frozen
class Condition:
    """A part that is true, false or unknown (None). `is_literal` for TRUE, FALSE and NULL."""

    evaluate: Test
    depth: int = 1
    is_literal: bool = False
    value: bool | None = None


Part: TypeAlias = Operand | Condition


# -- literals and properties ---------------------------------------------------------------------------------


def _known(value: Value, *, is_literal: bool) -> Operand:
    return Operand(lambda _: value, 1, is_known=True, is_literal=is_literal, value=value)


def constant(value: bool | None) -> Condition:
    """TRUE, FALSE and NULL."""
    return Condition(lambda _: value, 1, is_literal=True, value=value)


def text(value: str) -> Operand:
    """A text in quotes."""
    return _known(value, is_literal=True)


def whole(digits: str, position: int) -> Operand:
    """A whole number; Java's Integer when it fits into one, else Long."""
    digits = digits.rstrip("lL")
    number = int(digits) if len(digits) < 20 else LONG_MAX + 1
    if number > LONG_MAX:
        raise Sql92Error(f"{digits[:40]} is greater than {LONG_MAX}", position)
    return _known(number if number <= INT_MAX else Long(number), is_literal=True)


def double(digits: str, position: int) -> Operand:
    """A number with a point or an exponent. 0.0 is refused: the peers take the smallest positive one for the least."""
    number = float(digits)
    if math.isinf(number):
        raise Sql92Error(f"{digits[:40]} is greater than any double", position)
    if number == 0:
        raise Sql92Error(
            f"{digits[:40]} is less than the smallest positive double; write 0 for it", position
        )
    return _known(number, is_literal=True)


def named(name: str) -> Operand:
    """A property of the message, unknown when it has none of that name."""
    return Operand(lambda properties: properties.get(name), name=name)


# -- helpers -------------------------------------------------------------------------------------------------


def _deeper(position: int, *parts: Part) -> int:
    depth = 1 + max(part.depth for part in parts)
    if depth > MAX_DEPTH:
        raise Sql92Error(TOO_DEEP, position)
    return depth


def condition(part: Part, position: int) -> Condition:
    """A part where something true or false is wanted: a property is taken, though its text is neither."""
    if isinstance(part, Condition):
        return part
    if part.name is None:
        raise Sql92Error(
            "a condition is wanted here, not a value; compare it with another", position
        )
    name = part.name
    return Condition(lambda properties: None if properties.get(name) is None else False)


# -- logic ---------------------------------------------------------------------------------------------------


def either(parts: Sequence[Condition], position: int) -> Condition:
    """OR of all: true with the first that is true, else unknown when one is."""
    tests = tuple(part.evaluate for part in parts)

    def evaluate(properties: Properties) -> bool | None:
        answer: bool | None = False
        for test in tests:
            found = test(properties)
            if found:
                return True
            if found is None:
                answer = None
        return answer

    return Condition(evaluate, _deeper(position, *parts))


def both(parts: Sequence[Condition], position: int) -> Condition:
    """AND of all: false with the first that is false, else unknown when one is."""
    tests = tuple(part.evaluate for part in parts)

    def evaluate(properties: Properties) -> bool | None:
        answer: bool | None = True
        for test in tests:
            found = test(properties)
            if found is None:
                answer = None
            elif not found:
                return False
        return answer

    return Condition(evaluate, _deeper(position, *parts))


def no(part: Condition, position: int) -> Condition:
    """NOT."""
    test = part.evaluate

    def evaluate(properties: Properties) -> bool | None:
        found = test(properties)
        return None if found is None else not found

    return Condition(evaluate, _deeper(position, part))


def negative(part: Part, position: int) -> Operand:
    """The minus before a part; unknown for all but numbers."""
    if isinstance(part, Operand) and part.is_known:
        value = part.value
        if isinstance(value, str) or value is None:
            return _known(None, is_literal=False)
        return _known(type(value)(-value), is_literal=False)
    evaluate = part.evaluate

    def nothing(properties: Properties) -> Value:
        evaluate(properties)  # it may fail
        return None

    return Operand(nothing, _deeper(position, part))


# -- comparisons ---------------------------------------------------------------------------------------------


def equals(left: Part, right: Part, position: int) -> Condition:
    """``=``."""
    for part in (left, right):
        if part.is_literal and part.value is None:
            raise Sql92Error("NULL cannot be compared; write IS NULL", position)
    if (
        isinstance(left, Condition)
        and left.is_literal
        and isinstance(right, Operand)
        and right.is_literal
    ):
        raise Sql92Error("TRUE and FALSE cannot be compared with a number or a text", position)
    depth = _deeper(position, left, right)
    if isinstance(left, Operand) and isinstance(right, Operand) and left.name and right.is_known:
        return Condition(_property_equals(left.name, right.value), depth)
    one, other = left.evaluate, right.evaluate
    return Condition(lambda properties: equal(one(properties), other(properties)), depth)


def _property_equals(name: str, value: Value) -> Test:
    """A property against what is known; the usual case."""
    if isinstance(value, str):

        def same_text(properties: Properties) -> bool | None:
            found = properties.get(name)
            return None if found is None else found == value

        return same_text
    if value is None:
        return lambda properties: equal(properties.get(name), None)
    read = reader_of(value)

    def same_number(properties: Properties) -> bool | None:
        found = properties.get(name)
        return None if found is None else read(found) == value

    return same_number


def is_null(part: Part, position: int) -> Condition:
    """``IS NULL``: never unknown."""
    evaluate = part.evaluate
    return Condition(lambda properties: evaluate(properties) is None, _deeper(position, part))


def ordered(left: Part, sign: str, right: Part, position: int) -> Condition:
    """``<``, ``<=``, ``>``, ``>=``: between numbers, and properties that are read as such."""
    for part in (left, right):
        if isinstance(part, Condition):
            raise Sql92Error(f"{sign} does not compare conditions, TRUE, FALSE or NULL", position)
        if part.is_literal and isinstance(part.value, str):
            raise Sql92Error(
                f"{sign} does not compare texts; write a number without quotes", position
            )
    assert isinstance(left, Operand)
    assert isinstance(right, Operand)
    answer = _ORDERS[sign]
    depth = _deeper(position, left, right)
    if left.name and right.is_known and right.value is not None:
        return Condition(_property_ordered(left.name, answer, right.value), depth)
    one, other = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        first = one(properties)
        if first is None:
            return None
        second = other(properties)
        if second is None:
            return None
        return answer(less_or_more(first, second), 0)

    return Condition(evaluate, depth)


def _property_ordered(name: str, answer: Callable[[int, int], bool], value: Value) -> Test:
    """A property against a known number; the usual case."""
    read = reader_of(value)

    def evaluate(properties: Properties) -> bool | None:
        found = properties.get(name)
        return None if found is None else answer(compare(read(found), value), 0)

    return evaluate


def between(part: Part, low: Part, high: Part, position: int, *, negated: bool) -> Condition:
    """``BETWEEN``, and with `negated` ``NOT BETWEEN``, which takes bounds in the wrong order, too."""
    if negated:
        return either(
            (ordered(part, "<", low, position), ordered(part, ">", high, position)), position
        )
    least, most = ordered(part, ">=", low, position), ordered(part, "<=", high, position)
    if (
        isinstance(low, Operand)
        and isinstance(high, Operand)
        and low.is_literal
        and high.is_literal
        and compare(high.value, low.value) < 0
    ):
        raise Sql92Error(
            f"BETWEEN {low.value} AND {high.value}: write the lower bound first", position
        )
    return both((least, most), position)


def one_of(part: Part, texts: Sequence[str], position: int, *, negated: bool) -> Condition:
    """``IN`` and ``NOT IN``: for properties and texts only."""
    if isinstance(part, Condition) or part.name is None:
        raise Sql92Error("left of IN stands the name of a property, and nothing else", position)
    name, wanted = part.name, frozenset(texts)

    def evaluate(properties: Properties) -> bool | None:
        found = properties.get(name)
        return None if found is None else (found in wanted) is not negated

    return Condition(evaluate)


_SEARCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def searched(part: Part, word: str, wanted: str, position: int, *, negated: bool) -> Condition:
    """``CONTAINS``, ``STARTSWITH``, ``ENDSWITH``; false, also with NOT, for an empty text and for what is no text."""
    if not wanted:
        return Condition(lambda _: False)
    evaluate, has = part.evaluate, _SEARCHES[word]

    def test(properties: Properties) -> bool | None:
        found = evaluate(properties)
        return isinstance(found, str) and has(found, wanted) is not negated

    return Condition(test, _deeper(position, part))
