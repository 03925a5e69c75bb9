"""What clients need of the world besides Trio or asyncio: connections, the wall clock, threads for small files.

In: nothing, or a simulated network and clock of a test. Out: the :class:`World` that clients opened from here use.
A context variable and no argument, so that an application under test needs no way to pass it through.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import anyio
import attrs

from trio_mq.clock import Clock, SystemClock
from trio_mq.net import dial

T = TypeVar("T")


@attrs.frozen
class World:
    """How to connect, where timestamps come from, and where functions run that may block."""

    connect: dial.Connect = dial.connect
    clock: Clock = attrs.field(factory=SystemClock)
    #: Under a mock clock a thread counts as idle, and time would fly: :func:`at_once` is for such tests.
    in_thread: Callable[..., Awaitable[Any]] = anyio.to_thread.run_sync


async def at_once(function: Callable[..., T], *args: object) -> T:
    """Call a function here and now."""
    return function(*args)


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
