"""Which of many alike cases belong to the fast suite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_fast(values: Iterable[Any]) -> list[Any]:
    """Parameters of which the first is always tested, and the others with the slow tests."""
    first, *others = values
    return [first, *(pytest.param(value, marks=pytest.mark.slow) for value in others)]
