"""Every blocking client has what its async original has: the same names, parameters, defaults and docstrings."""

from __future__ import annotations

import inspect

import pytest

import trio_mq
from trio_mq import blocking
from trio_mq.client import pipeline
from trio_mq.client.admin import Reading
from trio_mq.client.popping import PoppedMessage

CLIENTS = ["Producer", "Consumer", "PullConsumer", "SimpleConsumer", "Admin"]
PAIRS = [
    (getattr(trio_mq, name), getattr(blocking, name)) for name in (*CLIENTS, "ReceivedMessage")
]
PAIRS += [
    (PoppedMessage, blocking.PoppedMessage),
    (pipeline.Pipeline, blocking.Pipeline),
    (pipeline.PendingSend, blocking.PendingSend),
    (Reading, blocking.Reading),
]
#: What only the async ones need: made by clients and not by applications.
INNER = {"of_record", "renewed", "mark_settled", "awaited"}
#: Protocols of the language, and how plain threads have them.
SAME = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__await__": "wait",
}


def parameters(function) -> list[tuple[str, object, object]]:
    """Names, kinds and defaults; annotations of functions that are passed differ."""
    signature = inspect.signature(function)
    return [(p.name, p.kind, p.default) for p in signature.parameters.values() if p.name != "self"]


def public(kind: type) -> set[str]:
    """What an application may use."""
    names = {SAME.get(name, name) for name in dir(kind)} - INNER
    return {name for name in names if not name.startswith("_") or name in SAME.values()} - (
        {"settle"} if kind is trio_mq.SimpleConsumer else set()
    )


@pytest.mark.parametrize(("original", "twin"), PAIRS, ids=lambda kind: kind.__qualname__)
def test_nothing_is_missing(original, twin) -> None:
    assert public(original) <= public(twin)


@pytest.mark.parametrize(("original", "twin"), PAIRS, ids=lambda kind: kind.__qualname__)
def test_parameters_and_docstrings_are_the_same(original, twin) -> None:
    for name in sorted(public(original)):
        found, expected = getattr(twin, name), getattr(original, name, None)
        if expected is None or not callable(expected):
            continue
        assert parameters(found) == parameters(expected), name
        assert not inspect.iscoroutinefunction(found), name
        assert name.startswith("_") or found.__doc__, name


@pytest.mark.parametrize("name", CLIENTS)
def test_constructors_take_the_same(name) -> None:
    original, twin = getattr(trio_mq, name), getattr(blocking, name)
    assert inspect.signature(twin) == inspect.signature(original)
    assert twin.__doc__
