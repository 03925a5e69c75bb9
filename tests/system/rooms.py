"""A store on a small disk that a test fills and empties: a real one where it may be mounted, else one in memory.

In: settings in Apache's names. Out: a broker's address, and a disk behind it that is as full as a test wants.
"""

from __future__ import annotations

import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.system.client import Client
from tests.system.processes import FREE, Starter
from trio_mq.clock import SystemClock
from trio_mq.config import load
from trio_mq.errors import TrioMQError
from trio_mq.system import Ready, run_system
from trio_mq.testing.disk import MemoryDisk

CAPACITY_BYTES = 8 * 1024 * 1024
PIECE = bytes(64 * 1024)
SMALL = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "2000",
}


class Room(ABC):
    """A small disk with a broker's store on it."""

    #: Where the store is.
    path: str

    @abstractmethod
    def fill(self, percent: int) -> None:
        """Fill the disk to a share of its size; 100 leaves no byte."""

    @abstractmethod
    def empty(self) -> None:
        """Take away what :meth:`fill` has written."""

    @abstractmethod
    def run(
        self, settings: Mapping[str, str], scenario: Callable[[Client], None], *, kill: bool = False
    ) -> str:
        """Run a broker with `settings` on it, and `scenario` with a connection to it. Returns the log.

        At the end the broker is stopped in order, or with `kill` all at once.
        """

    @abstractmethod
    def refused(self, settings: Mapping[str, str]) -> tuple[int, str]:
        """Exit code and text of a start that must not succeed."""


class MountedRoom(Room):
    """A small tmpfs, and a process."""

    def __init__(self, folder: Path, starter: Starter) -> None:
        self._folder = folder
        self._starter = starter
        self.path = str(folder / "store")

    def fill(self, percent: int) -> None:
        """See :class:`Room`."""
        with (self._folder / "filler").open("ab", buffering=0) as filler:
            while True:
                stat = os.statvfs(self._folder)
                used = stat.f_blocks - stat.f_bfree
                if 100 * used >= percent * stat.f_blocks:
                    return
                filler.write(bytes(stat.f_frsize))

    def empty(self) -> None:
        """See :class:`Room`."""
        (self._folder / "filler").unlink()

    def run(
        self, settings: Mapping[str, str], scenario: Callable[[Client], None], *, kill: bool = False
    ) -> str:
        """See :class:`Room`."""
        running = self._starter(*_options(settings), store=Path(self.path))
        with running.client() as client:
            scenario(client)
        if kill:
            running.kill()
        else:
            assert running.stop().code == 0
        return running.log

    def refused(self, settings: Mapping[str, str]) -> tuple[int, str]:
        """See :class:`Room`."""
        ended = self._starter.refused(*_options(settings), store=Path(self.path))
        return ended.code, ended.line


def _options(settings: Mapping[str, str]) -> list[str]:
    return [part for k, v in settings.items() for part in ("--set", f"{k}={v}")]


class MemoryRoom(Room):
    """A disk in memory, and a system in this process with real sockets."""

    path = "/store"

    def __init__(self, log: Callable[[], str]) -> None:
        self._disk = MemoryDisk(capacity_bytes=CAPACITY_BYTES)
        self._log = log
        self._token: trio.lowlevel.TrioToken | None = None

    def fill(self, percent: int) -> None:
        """See :class:`Room`."""
        self._call(partial(self._fill, percent))

    def _fill(self, percent: int) -> None:
        filler = self._disk.open("/filler", create=True)
        while (usage := self._disk.usage("/")).used * 100 < percent * usage.total:
            piece = bytes(min(len(PIECE), max(1, usage.total * percent // 100 - usage.used)))
            try:
                filler.write(piece, filler.size())
            except OSError:  # not a byte is left
                return

    def empty(self) -> None:
        """See :class:`Room`."""
        self._call(partial(self._disk.remove, "/filler"))

    def _call(self, call: Callable[[], object]) -> None:
        """Make a call where the system runs, if it does."""
        if self._token is None:
            call()
        else:
            trio.from_thread.run_sync(call, trio_token=self._token)

    def run(
        self, settings: Mapping[str, str], scenario: Callable[[Client], None], *, kill: bool = False
    ) -> str:
        """See :class:`Room`."""
        trio.run(self._run, settings, scenario, kill)
        return self._log()

    def refused(self, settings: Mapping[str, str]) -> tuple[int, str]:
        """See :class:`Room`."""
        with pytest.raises(BaseExceptionGroup) as caught:
            trio.run(self._serve, settings, trio.Event(), lambda _: None)
        group = caught.value
        errors = group.split(TrioMQError)[0]
        assert errors is not None
        error = errors
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        return error.exit_code, str(error)

    async def _run(
        self, settings: Mapping[str, str], scenario: Callable[[Client], None], kill: bool
    ) -> None:
        ready: list[Ready] = []
        stop, is_ready = trio.Event(), trio.Event()

        def told(found: Ready) -> None:
            ready.append(found)
            is_ready.set()

        def act() -> None:
            with Client(ready[0].broker) as client:
                scenario(client)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, settings, stop, told)
            await is_ready.wait()
            self._token = trio.lowlevel.current_trio_token()
            await trio.to_thread.run_sync(act)
            self._token = None
            if kill:
                nursery.cancel_scope.cancel()
            stop.set()

    async def _serve(
        self, settings: Mapping[str, str], stop: trio.Event, told: Callable[[Ready], None]
    ) -> None:
        host, _, port = FREE.partition(":")
        given = {
            "storePathRootDir": self.path,
            "bindAddress": host,
            "listenPort": port,
            "nameserverEnable": "false",
            **settings,
        }
        found = load(overrides=[f"{k}={v}" for k, v in given.items()])
        began_s = time.perf_counter()
        await run_system(found, self._disk, SystemClock(), stop, began_s=began_s, ready=told)


@contextmanager
def mounted(folder: Path) -> Iterator[bool]:
    """A tmpfs at `folder`; whether that is permitted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={CAPACITY_BYTES}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        done = False
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
