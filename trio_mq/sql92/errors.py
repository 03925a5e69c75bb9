"""What can be wrong with an expression, and with a message that is held against one.

Raised by the parser and by compiled expressions, caught by the broker's filters. Apache: MQFilterException,
RuntimeException.
"""

from __future__ import annotations


class Sql92Error(ValueError):
    """An expression that cannot be used. `position` is the character in its text, from 1."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"character {position}: {problem}")
        self.problem = problem
        self.position = position


class NotComparable(ValueError):
    """A message's property cannot be compared as the expression wants; such a message does not match."""
