"""Functions of applications, called where they belong."""

from __future__ import annotations

import functools
import threading  # noqa: TID251

import anyio
import pytest

from tests.backends import both
from trio_mq.client.functions import called, is_async


async def coroutine(number: int) -> tuple[int, threading.Thread]:
    return number, threading.current_thread()


def plain(number: int) -> tuple[int, threading.Thread]:
    return number, threading.current_thread()


class AsyncCall:
    async def __call__(self, number: int) -> tuple[int, threading.Thread]:
        return await coroutine(number)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (coroutine, True),
        (plain, False),
        (lambda number: coroutine(number), False),
        (AsyncCall(), True),
        (AsyncCall, False),
        (functools.partial(coroutine), True),
        (functools.partial(functools.partial(AsyncCall())), True),
        (functools.partial(plain), False),
    ],
)
def test_what_is_async(function, expected) -> None:
    assert is_async(function) is expected


@both
async def test_coroutine_functions_are_awaited_here() -> None:
    for function in (coroutine, AsyncCall(), functools.partial(coroutine)):
        assert await called(function, 3) == (3, threading.current_thread())


@both
async def test_plain_functions_run_in_a_thread() -> None:
    number, thread = await called(plain, number=4)
    assert number == 4
    assert thread is not threading.current_thread()


@both
async def test_a_coroutine_that_a_plain_function_makes_is_awaited_here() -> None:
    assert await called(lambda n: coroutine(n), 5) == (5, threading.current_thread())


@both
async def test_a_plain_function_that_does_not_end_holds_up_nobody() -> None:
    end = threading.Event()
    with anyio.move_on_after(0.05) as scope:
        await called(end.wait)
    end.set()
    assert scope.cancelled_caught


@both
async def test_errors_leave_as_themselves() -> None:
    async def bad() -> None:
        raise ValueError("bad")

    def worse() -> None:
        raise ValueError("worse")

    with pytest.raises(ValueError, match="bad"):
        await called(bad)
    with pytest.raises(ValueError, match="worse"):
        await called(worse)
