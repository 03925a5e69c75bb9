"""A toy client and its twin, threads that report what they raise, Ctrl-C. Loads little: child processes use it."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

from trio_mq.blocking.twin import Twin, does, made_as, waits
from trio_mq.client.lifetime import Owner, background

LIMIT_S = 20.0


class Toy(Owner):
    """Counts; `fail` says where it fails."""

    def __init__(self, count: int, *, fail: str = "") -> None:
        self.count = count
        self.fail = fail
        self.waiting = False
        self.ended: list[str] = []

    @asynccontextmanager
    async def _running(self):
        if self.fail == "opening":
            raise ValueError("cannot open")
        if self.fail == "opens slowly":
            await anyio.sleep_forever()
        try:
            async with background() as tasks:
                self.broken = anyio.Event()
                tasks.start_soon(self._break)
                yield
        finally:
            if self.fail == "closes slowly":
                with anyio.move_on_after(2, shield=True):
                    await anyio.sleep_forever()
            self.ended.append("block")
        if self.fail == "closing":
            raise ValueError("cannot close")

    async def _break(self) -> None:
        await self.broken.wait()
        raise ValueError("broken inside")

    async def add(self, number: int, *, twice: bool = False) -> int:
        """Add a number."""
        self._check_open()
        await anyio.lowlevel.checkpoint()
        self.count += number * (2 if twice else 1)
        return self.count

    def reset(self, to: int = 0) -> str:
        """Start again; gives the thread's name."""
        self._check_open()
        self.count = to
        return threading.current_thread().name

    async def wait(self) -> None:
        """Until it is cancelled."""
        try:
            self.waiting = True
            await anyio.sleep_forever()
        finally:
            self.ended.append("wait")

    async def wrong(self) -> None:
        """Fail."""
        raise KeyError("wrong")

    async def break_inside(self) -> None:
        """Let a task of its own fail."""
        self.broken.set()

    async def numbers(self) -> AsyncIterator[int]:
        """Three numbers, then nothing for ever."""
        try:
            for number in range(3):
                yield number
            await anyio.sleep_forever()
        finally:
            self.ended.append("numbers")


class BlockingToy(Twin[Toy]):
    """The twin."""

    @made_as(Toy)
    def __init__(self, *args, **kwargs) -> None:
        super().__init__(Toy(*args, **kwargs))

    add = waits(Toy.add)
    wait = waits(Toy.wait)
    wrong = waits(Toy.wrong)
    break_inside = waits(Toy.break_inside)
    reset = does(Toy.reset)

    @property
    def toy(self) -> Toy:
        """What runs inside."""
        return self._client

    def numbers(self) -> Iterator[int]:
        """See the original."""
        return self._each(self._client.numbers())


class Thread(threading.Thread):
    """A thread whose error is raised by :meth:`ended`."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """The thread's work."""
        try:
            self._function()
        except BaseException as error:
            self.error = error

    def ended(self) -> None:
        """Wait for its end; raises its error."""
        self.join(LIMIT_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"{what} does not come"
        time.sleep(0.002)


@contextmanager
def interrupted_when(condition: Callable[[], object]) -> Iterator[None]:
    """Press Ctrl-C once when something has come about."""
    pid = os.getpid()

    def press() -> None:
        until(condition, "the moment for Ctrl-C")
        os.kill(pid, signal.SIGINT)

    thread = Thread(press)
    try:
        yield
    finally:
        thread.ended()


def client_threads() -> set[str]:
    """Names of threads of clients that run."""
    names = {thread.name for thread in threading.enumerate() if thread.ident is not None}
    return {name for name in names if name.startswith("trio-mq")}


def alive(kind: type) -> int:
    """How many objects of a class there are."""
    gc.collect()
    return sum(isinstance(found, kind) for found in gc.get_objects())
