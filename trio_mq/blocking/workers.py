"""Threads for the plain functions of applications: handlers of messages, transaction checks.

In: a function, called by a coroutine of the portal. Out: its result. Owned by a :class:`.twin.Twin`, which ends them
with its block. Trio's own worker threads would wait for more work for ten seconds after that. Threads are kept from
call to call, so that what a handler keeps by thread (a connection to a database) is there again.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading  # noqa: TID251  (plain threads are what this package is for)
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import ParamSpec, TypeVar

import trio

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("trio_mq.client")

#: A function that runs cannot be stopped; the end of its client waits so long for it, and then leaves it.
ABANDON_S = 1.0


class Workers:
    """At most so many threads, started when they are needed. Calls beyond that wait for their turn."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in one of the threads. When cancelled, the function runs on unheard."""
        outcome: Future[T] = Future()
        done, token = trio.Event(), trio.lowlevel.current_trio_token()

        def ended() -> None:
            self._busy -= 1
            done.set()

        def work() -> None:
            settle(outcome, functools.partial(function, *args, **kwargs))
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(ended)

        self._busy += 1
        if self._busy > len(self._threads) < self._most:
            self._start()
        self._work.put(work)
        await done.wait()
        return outcome.result()

    def close(self, grace_s: float = ABANDON_S) -> None:
        """Let the threads end, and wait for that as long as the time lasts. Called when the portal has ended."""
        for _ in self._threads:
            self._work.put(None)
        end_s = time.monotonic() + grace_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        left = sum(thread.is_alive() for thread in self._threads)
        if left:
            log.warning("%d functions of %s still run after its end, and cannot be stopped; nobody hears of them",
                        left, self._name)  # fmt: skip

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self._name} worker", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def settle(outcome: Future[T], function: Callable[[], T]) -> None:
    """Keep what a function returns or raises."""
    try:
        outcome.set_result(function())
    except BaseException as error:
        outcome.set_exception(error)
