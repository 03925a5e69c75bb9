"""Functions of applications: coroutine functions are awaited, plain ones run in worker threads.

In: a handler, a check, a local transaction. Out: what it returns, or raises. Called by every part of a client that
calls back. A plain function may wait (for a database, say), which inside the event loop would stop the whole client.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import anyio.to_thread

P = ParamSpec("P")
T = TypeVar("T")


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling it only makes a coroutine; false for a lambda around one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


async def called(
    function: Callable[P, Awaitable[T] | T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call it where it belongs. A plain function that was started runs to its end, whatever is cancelled."""

    def call() -> Awaitable[T] | T:
        return function(*args, **kwargs)

    result = call() if is_async(function) else await anyio.to_thread.run_sync(call)
    if inspect.isawaitable(result):
        return await result
    return result
