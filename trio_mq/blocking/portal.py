"""The thread that runs a client for plain threads: Trio inside, ordinary calls outside.

In: coroutine functions and async context managers, from any thread. Out: their results and errors, in the thread that
asked. Called by :mod:`.twin`. It is written on Trio's own entry points and not on anyio's portal: a call costs one
change of threads instead of two, an interrupted call is cancelled, and nothing of it ends by garbage collection, which
in a forked child would wait for a thread that the child does not have.
"""

from __future__ import annotations

import functools
import os
import queue
import socket
import threading  # noqa: TID251  (plain threads are what this package is for)
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Generic, TypeVar

import trio

from trio_mq.blocking.workers import Workers, settle
from trio_mq.errors import ClientError, NotOpen

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")

#: Names of hosts that are looked up at the same time.
OWN_THREADS = 4

#: A waiting thread looks around this often: a Ctrl-C that comes just when it goes to sleep does not wake it.
LOOK_S = 0.5

_CLOSED = "the client was closed while this call waited: end all threads that use it before its `with` block ends"


def awaited(future: Future[T]) -> T:
    """Wait for a result, or the error; an interrupt of this thread (Ctrl-C) ends the waiting in :data:`LOOK_S`."""
    while not future.done():
        with suppress(TimeoutError):
            future.exception(LOOK_S)
    return future.result()


def _next(work: queue.SimpleQueue[T]) -> T:
    """The same for what is put into a queue."""
    while True:
        with suppress(queue.Empty):
            return work.get(timeout=LOOK_S)


class Call(Generic[T]):
    """A coroutine that runs in the portal."""

    def __init__(
        self, function: Callable[[], Awaitable[T]], token: trio.lowlevel.TrioToken
    ) -> None:
        self.future: Future[T] = Future()
        self._function = function
        self._token = token
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Called by the portal."""
        try:
            with self._scope:
                value = await self._function()
                self.future.set_result(value)
        except trio.Cancelled:
            self.future.cancel()
            raise
        except BaseException as error:
            # StopAsyncIteration, KeyboardInterrupt of a callback: all of them belong to who asked.
            self.future.set_exception(error)
        else:
            self.future.cancel()  # does nothing when there is a result

    def result(self) -> T:
        """Wait for it. NotOpen when it was cancelled; an interrupt of this thread (Ctrl-C) cancels it."""
        try:
            return awaited(self.future)
        except CancelledError:
            raise NotOpen(_CLOSED) from None
        except BaseException:
            if not self.future.done():
                self.cancel()
            raise

    def cancel(self) -> None:
        """From any thread, at any time."""
        with suppress(trio.RunFinishedError):  # then the coroutine has ended, too
            self._token.run_sync_soon(self._scope.cancel)


class Portal:
    """A thread with an event loop, from :meth:`start` to :meth:`close`."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._begun: Future[trio.lowlevel.TrioToken] = Future()
        self._stop = trio.Event()
        self._given_up = False
        self._nursery: trio.Nursery | None = None
        #: For what the client itself cannot do without waiting: names of hosts, small files.
        self.workers = Workers(OWN_THREADS, name)
        # A daemon: a client that is never closed must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread and wait until it takes calls."""
        self._thread.start()
        awaited(self._begun)

    def submit(self, function: Callable[[], Awaitable[T]]) -> Call[T]:
        """Start a coroutine. NotOpen after the end and in a forked child, ClientError in the portal's own thread."""
        if self.is_inherited:
            raise NotOpen(
                f"this client belongs to process {self._pid}, from which this one was forked; open a new one here"
            )
        if threading.get_ident() == self._thread.ident:
            raise ClientError(
                "a blocking client was used by a function that it calls inside its own thread, which would wait "
                "for itself; strategies and other such functions must not wait"
            )
        token = self._begun.result()
        call = Call(function, token)
        try:
            token.run_sync_soon(self._begin, call)
        except trio.RunFinishedError:
            raise NotOpen(_CLOSED) from None
        return call

    @property
    def is_inherited(self) -> bool:
        """Whether its thread is in another process, from which this one was forked."""
        return self._pid != os.getpid()

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine to its end and give its result."""
        return self.submit(function).result()

    def stop_soon(self) -> None:
        """Cancel all that runs and let the thread end; does not wait. Does nothing in a forked child."""
        if not self.is_inherited:
            with suppress(trio.RunFinishedError):
                self._begun.result().run_sync_soon(self._stop.set)

    def close(self) -> None:
        """The same, and wait for the thread's end.

        When the start of the thread was interrupted nobody knows whether it runs: if it does, it ends by itself.
        """
        self._given_up = True
        if self._thread.ident is not None and not self.is_inherited:
            self.stop_soon()
            self._thread.join()
            self.workers.close()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            if not self._begun.done():
                self._begun.set_exception(error)
                return
            raise

    async def _main(self) -> None:
        trio.socket.set_custom_hostname_resolver(_Resolver(self.workers))
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._begun.set_result(trio.lowlevel.current_trio_token())
            if not self._given_up:
                await self._stop.wait()
            self._nursery = None
            nursery.cancel_scope.cancel()

    def _begin(self, call: Call[T]) -> None:
        if self._nursery is None:
            call.future.cancel()
        else:
            self._nursery.start_soon(call.run)


def call_with_function(
    portal: Portal,
    method: Callable[[Callable[[A], Awaitable[R]]], Awaitable[T]],
    function: Callable[[A], R],
) -> T:
    """Run `method`, a coroutine function that calls back; `function` runs in this thread, which waits for both.

    What the thread has (a connection to a database in a transaction, say) is there for it.
    """
    work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    async def handed_over(argument: A) -> R:
        outcome: Future[R] = Future()
        done, token = trio.Event(), trio.lowlevel.current_trio_token()

        def run() -> None:
            settle(outcome, functools.partial(function, argument))
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        work.put(run)
        await done.wait()
        return outcome.result()

    call = portal.submit(functools.partial(method, handed_over))
    call.future.add_done_callback(lambda _: work.put(None))
    try:
        while (job := _next(work)) is not None:
            job()
    except BaseException:  # an interrupt of this thread
        call.cancel()
        raise
    return call.result()


class _Resolver(trio.abc.HostnameResolver):
    """Looks up names of hosts in threads that end with the client."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,  # noqa: A002  (Trio's name)
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        return await self._workers.call(
            socket.getaddrinfo, host, port, family=family, type=type, proto=proto, flags=flags
        )

    async def getnameinfo(
        self, sockaddr: tuple[str, int] | tuple[str, int, int, int], flags: int
    ) -> tuple[str, str]:
        return await self._workers.call(socket.getnameinfo, sockaddr, flags)


class Held(Generic[T]):
    """An async context manager that is open from :meth:`enter` to :meth:`leave`, in one task of the portal.

    It may end before: then `on_end` is called in the portal's thread, and `leave` raises what ended it.
    """

    def __init__(
        self,
        portal: Portal,
        context: AbstractAsyncContextManager[T],
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self._portal = portal
        self._context = context
        self._on_end = on_end
        self._entered: Future[T] = Future()
        self._leave = trio.Event()
        self._error: BaseException | None = None
        self._life: Call[bool] | None = None

    def enter(self) -> T:
        """Open it; what it gives, or the error that it raises."""
        self._life = self._portal.submit(self._hold)
        try:
            return awaited(self._entered)
        except CancelledError:
            raise NotOpen(_CLOSED) from None
        except BaseException:
            self._life.cancel()
            raise

    def leave(self, error: BaseException | None = None) -> bool:
        """Close it, as ``__exit__`` does; an interrupt while it closes makes it close by cancellation."""
        assert self._life is not None, "entered"
        self._error = error
        try:
            self._portal.submit(self._let_go).result()
            return self._life.result()
        except BaseException:
            self._life.cancel()
            raise

    async def _let_go(self) -> None:
        self._leave.set()

    async def _hold(self) -> bool:
        try:
            value = await self._context.__aenter__()
        except BaseException as error:
            if isinstance(error, trio.Cancelled):
                self._entered.cancel()
            else:
                self._entered.set_exception(error)
            raise
        try:
            self._entered.set_result(value)
            try:
                await self._leave.wait()
            except BaseException as failure:
                if await self._exit(failure):
                    return True
                raise
            return await self._exit(self._error)
        finally:
            if self._on_end is not None:
                self._on_end()

    async def _exit(self, error: BaseException | None) -> bool:
        kind: type[BaseException] | None = None if error is None else type(error)
        trace: TracebackType | None = None if error is None else error.__traceback__
        return bool(await self._context.__aexit__(kind, error, trace))
