"""What clients need of the world besides Trio or asyncio: connections and the wall clock.

In: nothing, or a simulated network and clock of a test. Out: the :class:`World` that clients opened from here use.
A context variable and no argument, so that an application under test needs no way to pass it through.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import attrs

from trio_mq.clock import Clock, SystemClock
from trio_mq.net import dial


@attrs.frozen
class World:
    """How to connect, and where timestamps come from."""

    connect: dial.Connect = dial.connect
    clock: Clock = attrs.field(factory=SystemClock)


_current: ContextVar[World | None] = ContextVar("trio_mq_world", default=None)


def current() -> World:
    """The world of clients that are opened in this context."""
    return _current.get() or World()


@contextmanager
def using(world: World) -> Iterator[World]:
    """Let clients that are opened inside the block, in this task and its children, live in another world."""
    token = _current.set(world)
    try:
        yield world
    finally:
        _current.reset(token)
