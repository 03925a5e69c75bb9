"""What all blocking clients have in common, and how their methods are made of the async ones.

In: an async client (:class:`trio_mq.client.lifetime.Owner`). Out: :class:`Twin`, the same thing with ``with`` instead
of ``async with``. A method that needs no other types is one line, ``send = waits(client.Producer.send)``: it has the
parameters, the docstring and, for type checkers, the signature of the original.

Threads: a twin may be opened in one thread, used in many and closed in any. Ctrl-C in a waiting call cancels that
call. After a fork the child has no part in the parent's clients: there they raise NotOpen and are left without doing
anything; new ones can be opened.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import anyio.to_thread
import attrs

from trio_mq.blocking.portal import Call, Held, Portal
from trio_mq.blocking.workers import Workers
from trio_mq.client import world
from trio_mq.client.lifetime import Owner
from trio_mq.errors import ClientError, NotOpen

A = TypeVar("A")
C = TypeVar("C", bound=Owner)
P = ParamSpec("P")
T = TypeVar("T")


class Twin(Generic[C]):
    """A client for plain threads; works inside its ``with`` block, which can be entered once."""

    def __init__(self, client: C) -> None:
        self._client = client
        self._portal: Portal | None = None
        self._held: Held[C] | None = None
        self._closed = False
        self._waiting = _Waiting()
        self._workers: list[Workers] = []

    def __enter__(self) -> Self:
        if self._portal is not None or self._closed:
            raise NotOpen(f"{self!r} was opened before; make a new one for each block")
        self._portal = Portal(f"trio-mq {type(self).__name__}")
        here = world.current()
        if here.in_thread is anyio.to_thread.run_sync:
            here = attrs.evolve(here, in_thread=self._portal.workers.call)
        try:
            self._portal.start()
            self._held = Held(self._portal, _InWorld(self._client, here), self._waiting.end)
            self._held.enter()
        except BaseException:
            self._closed = True
            self._portal.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._closed:
            return
        self._closed = True
        if self._portal is None or self._held is None or self._portal.is_inherited:
            return
        try:
            # The error of the block is its own affair: a client ends in the same way with one and without.
            self._waiting.end()
            self._held.leave()
        finally:
            self._portal.close()
            for workers in self._workers:
                workers.close()

    def __del__(self) -> None:
        portal: Portal | None = getattr(self, "_portal", None)
        if portal is None or self._closed or portal.is_inherited or sys.is_finalizing():
            return
        portal.stop_soon()
        warnings.warn(
            f"{self!r} was dropped inside its `with` block",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def __repr__(self) -> str:
        return f"<trio_mq.blocking.{type(self).__name__} for {self._client!r}>"

    def _check_open(self) -> Portal:
        """The portal; NotOpen outside the block."""
        if self._portal is None or self._closed:
            how = "is closed" if self._closed else "is not open yet"
            raise NotOpen(f"{self!r} {how}: use it inside its `with` block")
        return self._portal

    def _threads(self, most: int) -> Workers:
        """Threads for functions of the application, which end with the block."""
        workers = Workers(most, f"trio-mq {type(self).__name__}")
        self._workers.append(workers)
        return workers

    def _call(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function in the portal."""
        return self._check_open().call(functools.partial(function, *args, **kwargs))

    def _read(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a plain function there: the state of a client changes in its own thread only."""

        async def reading() -> T:
            return function(*args, **kwargs)

        return self._check_open().call(reading)

    def _settle(self, function: Callable[[], Awaitable[object]], /) -> None:
        """Say what becomes of a message; also while the client closes and waits for just that."""
        portal = self._portal or self._check_open()
        portal.call(function)

    def _wait(self, function: Callable[[], Awaitable[T]]) -> T:
        """As `_call`, for what may wait without an end: the end of the block ends it, with NotOpen."""
        portal = self._check_open()
        with self._waiting.one(portal.submit(function)) as call:
            return call.result()

    def _each(self, source: AsyncIterator[A]) -> Iterator[A]:
        """The items of an async iterator. The end of the client's block ends the loop, also in another thread."""
        self._check_open()
        return self._iterate(source)

    def _iterate(self, source: AsyncIterator[A]) -> Iterator[A]:
        try:
            while True:
                try:
                    item = self._wait(source.__anext__)
                except StopAsyncIteration:
                    return
                except NotOpen:
                    if self._closed:
                        return
                    raise
                yield item
        finally:
            # Not waited for: this may be garbage collection, in any thread and at any place.
            close = getattr(source, "aclose", None)
            if close is not None:
                with suppress(ClientError):
                    self._check_open().submit(close)


class _Waiting:
    """Calls that wait for messages: the end of the block ends them. Knows no twin, so that one can be dropped."""

    def __init__(self) -> None:
        self._calls: set[Call[Any]] = set()
        self._ended = False

    @contextmanager
    def one(self, call: Call[T]) -> Iterator[Call[T]]:
        """While it waits."""
        self._calls.add(call)
        try:
            if self._ended:
                call.cancel()
            yield call
        finally:
            self._calls.discard(call)

    def end(self) -> None:
        """End them, now and from now on."""
        self._ended = True
        for call in tuple(self._calls):
            call.cancel()


class _InWorld(Generic[C]):
    """A client as a context manager that opens in the world of the thread that opens it."""

    def __init__(self, client: C, here: world.World) -> None:
        self._client = client
        self._here = here

    async def __aenter__(self) -> C:
        with world.using(self._here):
            return await self._client.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._client.__aexit__(kind, error, traceback)


def waits(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], T]:
    """The blocking form of an async method of the client."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Twin[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: Callable[P, Awaitable[T]] = getattr(self._client, name)
        return self._call(found, *args, **kwargs)

    return call


def does(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The form for other threads of a method that does not wait."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Twin[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: Callable[P, T] = getattr(self._client, name)
        return self._read(found, *args, **kwargs)

    return call


def made_as(
    original: Callable[P, Any],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """For an ``__init__``: it takes what the original takes."""

    def dress(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        constructor: Any = original
        functools.update_wrapper(init, constructor.__init__, ("__doc__",))
        return init

    return dress
