"""Functions of applications: coroutine functions are awaited, plain ones run in worker threads.

In: a handler, a check, a local transaction. Out: what it returns, or raises. Called by every part of a client that
calls back. A plain function may wait (for a database, say), which inside the event loop would stop the whole client.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import anyio.to_thread

P = ParamSpec("P")
T = TypeVar("T")


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling it only makes a coroutine, and so needs no thread; false for a lambda around one."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


async def called(
    function: Callable[P, Awaitable[T] | T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call it where it belongs. When cancelled, a plain function runs on unheard: nothing can stop it, and a client
    that is left must not wait for it without an end.
    """
    if is_async(function):
        result = function(*args, **kwargs)
    else:
        # In a tuple: Trio takes a coroutine that comes out of a thread for a mistake.
        (result,) = await anyio.to_thread.run_sync(
            lambda: (function(*args, **kwargs),), abandon_on_cancel=True
        )
    if inspect.isawaitable(result):
        return await result
    return result
