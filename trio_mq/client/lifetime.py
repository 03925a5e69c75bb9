"""Life of a client: opened once by ``async with``, owner of its tasks, gone when the block is left.

In: a ``_running`` context manager of each kind of client. Out: :class:`Owner`, the base of all of them, and
:func:`background`, the task group that every part of a client uses: leaving its block cancels and awaits the tasks,
an error of the block leaves as itself, and one of a task ends the block and leaves as itself too, never in a group.

What must still be said when a block is left by a cancellation (offsets, farewells) is said under a shield with a time
limit, over links that live in :func:`sheltered`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.abc

from trio_mq.errors import NotOpen

log = logging.getLogger("trio_mq.client")

T = TypeVar("T")


class Owner(ABC):
    """An async context manager that can be entered once, and works only inside its block."""

    _state = "new"
    _context: AbstractAsyncContextManager[Any]

    @abstractmethod
    def _running(self) -> AbstractAsyncContextManager[Any]:
        """Everything that lives as long as the block."""

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise NotOpen(f"{self!r} was opened before; make a new one for each block")
        self._state = "opening"
        self._context = self._running()
        try:
            await self._context.__aenter__()
        except BaseException:
            self._state = "closed"
            raise
        self._state = "open"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self._state = "closed"
        return await self._context.__aexit__(kind, error, traceback)

    def _check_open(self) -> None:
        """Raise NotOpen unless the block is running."""
        if self._state != "open":
            how = "is closed" if self._state == "closed" else "is not open yet"
            raise NotOpen(f"{self!r} {how}: use it inside its `async with` block")


def only(error: BaseException) -> BaseException:
    """The one error in nested groups; the group itself when there are several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def background() -> AsyncIterator[anyio.abc.TaskGroup]:
    """Tasks that live as long as the block."""
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except Exception as error:
                failure = error
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if failure is None or not isinstance(group, ExceptionGroup):
            raise only(group) from None
        log.error("a task failed while its block ended with %r", failure, exc_info=group)
    if failure is not None:
        raise failure


@asynccontextmanager
async def together() -> AsyncIterator[anyio.abc.TaskGroup]:
    """Tasks that are all waited for. The first error of one ends the others and leaves as itself."""
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        errors = group.split(Exception)[0]
        raise first(errors or group) from None


def first(error: BaseException) -> BaseException:
    """The first error in nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def sheltered(
    context: Callable[[], AbstractAsyncContextManager[T]],
    stop: anyio.Event,
    *,
    task_status: anyio.abc.TaskStatus[T] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Keep a context open until `stop` is set, whatever is cancelled around; `started` with what it gives.

    Whoever starts this sets `stop` in a ``finally``: nothing else ends it.
    """
    with anyio.CancelScope(shield=True):
        async with context() as made:
            task_status.started(made)
            await stop.wait()


async def forever(
    period_s: float, work: Callable[[], Awaitable[object]], *, first_s: float
) -> None:
    """Do `work` after `first_s`, and again `period_s` after each end, until cancelled."""
    await anyio.sleep(first_s)
    while True:
        await work()
        await anyio.sleep(period_s)
