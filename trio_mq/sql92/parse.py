"""From the text of an SQL92 expression to a function of a message's properties.

In: the text. Out: a :class:`Filter`, or :class:`Sql92Error` with the place. Called by the broker's filters, which
keep the results. The grammar is that of Apache's SelectorParser.jj; lark makes the parser from it when this module is
loaded, which takes some ten milliseconds, so it is loaded by the first expression only.
"""

from __future__ import annotations

from typing import Final, NoReturn

import attrs
from lark import Lark, Token, Transformer, UnexpectedToken

from trio_mq.protocol.properties import parse as parse_properties
from trio_mq.sql92 import operands
from trio_mq.sql92.errors import NotComparable, Sql92Error
from trio_mq.sql92.operands import Condition, Part, Properties
from trio_mq.sql92.tokens import KEYWORDS, LITERALS, SIGNS, Tokens

MAX_CHARACTERS: Final = 32 * 1024
"""Longest expression: it is parsed while others wait, at some 2 us a character."""

_GRAMMAR = f"""
start: or
?or: and | and (OR and)+ -> either
?and: equality | equality (AND equality)+ -> both
?equality: comparison
  | equality EQUAL comparison -> equals
  | equality NOT_EQUAL comparison -> differs
  | equality IS NULL -> is_null
  | equality IS NOT NULL -> is_not_null
?comparison: unary
  | comparison (LESS | LESS_EQUAL | GREATER | GREATER_EQUAL) unary -> ordered
  | comparison (CONTAINS | STARTSWITH | ENDSWITH) STRING -> searched
  | comparison NOT (CONTAINS | STARTSWITH | ENDSWITH) STRING -> not_searched
  | comparison BETWEEN unary AND unary -> between
  | comparison NOT BETWEEN unary AND unary -> not_between
  | comparison IN texts -> one_of
  | comparison NOT IN texts -> none_of
texts: OPEN STRING (COMMA STRING)* CLOSE
?unary: primary
  | PLUS unary -> positive
  | MINUS unary -> negative
  | NOT unary -> no
?primary: STRING -> text
  | DECIMAL -> whole
  | FLOAT -> double
  | TRUE -> true
  | FALSE -> false
  | NULL -> null
  | NAME -> named
  | OPEN or CLOSE -> inner
%declare {" ".join(sorted([*KEYWORDS, *LITERALS, *SIGNS.values()]))}
"""


def _place(token: Token) -> int:
    assert token.start_pos is not None
    return token.start_pos + 1


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


class _Actions(Transformer[Token, Part]):
    """What the rules of the grammar make; called from the inside out, and refuses where Apache does."""

    def start(self, items: list[Part]) -> Condition:
        return operands.condition(items[0], 1)

    def either(self, items: list[Part | Token]) -> Condition:
        return operands.either(*_joined(items))

    def both(self, items: list[Part | Token]) -> Condition:
        return operands.both(*_joined(items))

    def equals(self, items: tuple[Part, Token, Part]) -> Condition:
        left, sign, right = items
        return operands.equals(left, right, _place(sign))

    def differs(self, items: tuple[Part, Token, Part]) -> Condition:
        return operands.no(self.equals(items), _place(items[1]))

    def is_null(self, items: tuple[Part, Token, Token]) -> Condition:
        return operands.is_null(items[0], _place(items[1]))

    def is_not_null(self, items: tuple[Part, Token, Token, Token]) -> Condition:
        place = _place(items[1])
        return operands.no(operands.is_null(items[0], place), place)

    def ordered(self, items: tuple[Part, Token, Part]) -> Condition:
        left, sign, right = items
        return operands.ordered(left, str(sign), right, _place(sign))

    def searched(self, items: tuple[Part, Token, Token]) -> Condition:
        part, word, text = items
        return operands.searched(part, word.type, _unquoted(text), _place(word), negated=False)

    def not_searched(self, items: tuple[Part, Token, Token, Token]) -> Condition:
        part, _, word, text = items
        return operands.searched(part, word.type, _unquoted(text), _place(word), negated=True)

    def between(self, items: tuple[Part, Token, Part, Token, Part]) -> Condition:
        part, word, low, _, high = items
        return operands.between(part, low, high, _place(word), negated=False)

    def not_between(self, items: tuple[Part, Token, Token, Part, Token, Part]) -> Condition:
        part, _, word, low, _, high = items
        return operands.between(part, low, high, _place(word), negated=True)

    def texts(self, items: list[Token]) -> list[str]:
        return [_unquoted(token) for token in items[1::2]]

    def one_of(self, items: tuple[Part, Token, list[str]]) -> Condition:
        part, word, texts = items
        return operands.one_of(part, texts, _place(word), negated=False)

    def none_of(self, items: tuple[Part, Token, Token, list[str]]) -> Condition:
        part, _, word, texts = items
        return operands.one_of(part, texts, _place(word), negated=True)

    def positive(self, items: tuple[Token, Part]) -> Part:
        return items[1]

    def negative(self, items: tuple[Token, Part]) -> Part:
        return operands.negative(items[1], _place(items[0]))

    def no(self, items: tuple[Token, Part]) -> Condition:
        place = _place(items[0])
        return operands.no(operands.condition(items[1], place), place)

    def text(self, items: list[Token]) -> Part:
        return operands.text(_unquoted(items[0]))

    def whole(self, items: list[Token]) -> Part:
        return operands.whole(str(items[0]), _place(items[0]))

    def double(self, items: list[Token]) -> Part:
        return operands.double(str(items[0]), _place(items[0]))

    def true(self, _: list[Token]) -> Part:
        return operands.constant(True)

    def false(self, _: list[Token]) -> Part:
        return operands.constant(False)

    def null(self, _: list[Token]) -> Part:
        return operands.constant(None)

    def named(self, items: list[Token]) -> Part:
        return operands.named(str(items[0]))

    def inner(self, items: tuple[Token, Part, Token]) -> Part:
        return items[1]


def _joined(items: list[Part | Token]) -> tuple[list[Condition], int]:
    """Conditions between words, and the place of the first word."""
    word = items[1]
    assert isinstance(word, Token)
    place = _place(word)
    parts = [operands.condition(part, place) for part in items[::2] if not isinstance(part, Token)]
    return parts, place


_PARSER = Lark(_GRAMMAR, parser="lalr", lexer=Tokens, transformer=_Actions())


@attrs.frozen
class Filter:
    """A compiled expression. What stands from character `ignored_from` on is no part of it."""

    test: operands.Test
    ignored_from: int | None = None

    def accepts(self, properties: bytes) -> bool:
        """Whether a message passes, by the raw text of its properties; never raises."""
        return self.matches(parse_properties(properties))

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties passes: only what is known to be true does."""
        try:
            return self.test(properties) is True
        except NotComparable:
            return False


def compile_expression(text: str) -> Filter:
    """The filter of an expression; :class:`Sql92Error` for one that Apache refuses, is too long or nested too deep.

    What follows a whole expression without being part of it is not looked at, as with Apache: ``a = 1 b = 2`` means
    ``a = 1``, and so does ``a = 1 + 2``, for there is no arithmetic.
    """
    if len(text) > MAX_CHARACTERS:
        raise Sql92Error(
            f"an expression has at most {MAX_CHARACTERS} characters, this one {len(text)}",
            MAX_CHARACTERS + 1,
        )
    made: object
    ignored_from = None
    try:
        made = _PARSER.parse(text)
    except UnexpectedToken as error:
        made = _ended_before(error, text)
        ignored_from = _place(error.token)
    assert isinstance(made, Condition)
    return Filter(made.evaluate, ignored_from)


def _ended_before(error: UnexpectedToken, text: str) -> object:
    """The expression that ends before the token that does not fit; Sql92Error when it does not end there."""
    parser = error.interactive_parser
    if parser is not None and error.token.type != "$END":
        try:
            return parser.feed_token(Token.new_borrow_pos("$END", "", error.token))
        except UnexpectedToken:
            pass
    _refuse(error, text)


def _refuse(error: UnexpectedToken, text: str) -> NoReturn:
    token = error.token
    if token.type == "$END":
        raise Sql92Error("the expression ends too early", len(text) + 1) from None
    shown = str(token) if len(token) <= 40 else f"{token[:40]}..."
    raise Sql92Error(f"{shown} does not fit here", _place(token)) from None
