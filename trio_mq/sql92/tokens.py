"""From the text of an expression to tokens, one at a time.

In: the text. Out: tokens with their positions; blanks and comments are left out. Called by the parser, which may
stop before the end. Rules: Apache SelectorParser.jj (the token part): always the longest token, keywords in any
case, a line comment only with the end of its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from lark import Token
from lark.lexer import Lexer

from trio_mq.sql92.errors import Sql92Error

#: Names of the tokens with a fixed text.
SIGNS: Final = {
    "<>": "NOT_EQUAL",
    "<=": "LESS_EQUAL",
    ">=": "GREATER_EQUAL",
    "=": "EQUAL",
    "<": "LESS",
    ">": "GREATER",
    "(": "OPEN",
    ")": "CLOSE",
    ",": "COMMA",
    "+": "PLUS",
    "-": "MINUS",
}
KEYWORDS: Final = frozenset(
    {
        *("NOT", "AND", "OR", "BETWEEN", "IN", "IS", "TRUE", "FALSE", "NULL"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    }
)
#: Names of the tokens whose text varies.
LITERALS: Final = ("FLOAT", "DECIMAL", "STRING", "NAME")

#: Parentheses and signs inside each other. What is made of them calls itself as deep for every message.
MAX_DEPTH: Final = 200
TOO_DEEP: Final = f"nested more than {MAX_DEPTH} deep; write it with less inside each other"
_PREFIXES: Final = frozenset({"OPEN", "PLUS", "MINUS", "NOT"})

# Letters are spelled out: with IGNORECASE, others than ASCII ones would match them, too.
_TOKEN = re.compile(
    r"""
    [ \t\n\r\f]*
    (?:
        (?P<end>\Z)
      | (?P<comment>-- | /\*)
      | (?P<FLOAT>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+)
      | (?P<DECIMAL>0 | [1-9][0-9]*[lL]?)
      | (?P<STRING>'(?:''|[^'])*')
      | (?P<NAME>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<SIGN><> | <= | >= | [=<>()+,-])
      | (?P<other>.)
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_LINE_END = re.compile(r"\r\n|\n|\r")


class Tokens(Lexer):
    """The lexer that the parser is made with."""

    def __init__(self, _conf: object) -> None:
        """No settings: the tokens do not depend on the grammar."""

    def lex(self, text: str) -> Iterator[Token]:  # type: ignore[override]  # lark hands the text to such lexers
        """The tokens of a text; :class:`Sql92Error` where none begins."""
        return tokens(text)


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a text; :class:`Sql92Error` where none begins."""
    # A line comment without an end is none, so that a row of minus signs is not looked through again and again.
    last_break = max(text.rfind("\n"), text.rfind("\r"))
    at = opened = prefixes = 0
    while (match := _TOKEN.match(text, at)) and (kind := match.lastgroup) != "end":
        assert kind is not None
        at, start, value = match.end(), match.start(kind), match[kind]
        if kind == "NAME":
            word = value.upper()
            kind = word if word in KEYWORDS else kind
        elif kind == "comment" and (value == "/*" or start < last_break):
            at = _comment_end(text, value, start)
            continue
        elif kind == "comment":
            kind, value, at = "MINUS", "-", start + 1
        elif kind == "SIGN":
            kind = SIGNS[value]
        elif kind == "other":
            raise Sql92Error(_unreadable(value), start + 1)
        opened += (kind == "OPEN") - (kind == "CLOSE")
        prefixes = prefixes + 1 if kind in _PREFIXES else 0
        if opened > MAX_DEPTH or prefixes > MAX_DEPTH:
            raise Sql92Error(TOO_DEEP, start + 1)
        yield Token(kind, value, start)


def _comment_end(text: str, opening: str, start: int) -> int:
    if opening == "--":
        found = _LINE_END.search(text, start)
        assert found is not None
        return found.end()
    close = text.find("*/", start + 2)
    if close < 0:
        raise Sql92Error("the comment that begins here has no end; close it by */", start + 1)
    return close + 2


def _unreadable(character: str) -> str:
    if character == "'":
        return "the text that begins here has no end; close it by ', and write '' for a quote in it"
    return f"{character!r} has no place here; texts stand in single quotes"
