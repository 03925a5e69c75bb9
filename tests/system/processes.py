"""``trio-mq serve`` as a child process: its ready line, its log, what it costs, and every way to end it.

In: options of the command line. Out: a :class:`Serving`, or the :class:`Ended` of a process that did not come up.
Ports are free ones unless a test gives others.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import attrs

from tests.system.client import Client

T = TypeVar("T")

START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0
FREE = "127.0.0.1:0"
#: Files that a few messages fill, in options.
SMALL_FILES = (
    "--set", "mappedFileSizeCommitLog=65536", "--set", "mappedFileSizeConsumeQueue=2000",
    "--set", "maxHashSlotNum=100", "--set", "maxIndexNum=1000",
)  # fmt: skip


@attrs.frozen
class Ended:
    """How a process ended; `seconds` is the time from the request to do so, or from its start."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def line(self) -> str:
        """What a failed start says last; there is no traceback before it."""
        assert "Traceback" not in self.err, self.err
        return self.err.splitlines()[-1]


class Child:
    """A process that was started and may not be ready."""

    def __init__(
        self, home: Path, options: tuple[str, ...], *, most_files: int | None = None
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.log_path = home / f"serve-{time.monotonic_ns()}.log"
        self.began_s = time.monotonic()
        command = [sys.executable, "-m", "trio_mq", "serve", *options]
        if most_files is not None:
            command = ["sh", "-c", f'ulimit -n {most_files}; exec "$0" "$@"', *command]
        with self.log_path.open("wb") as log:
            self.popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        assert self.popen.stdout is not None
        self._out = self.popen.stdout
        self._out_text = b""

    @property
    def log(self) -> str:
        """Everything on stderr so far."""
        return self.log_path.read_text()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self.popen.pid

    def first_line(self, limit_s: float = START_LIMIT_S) -> str:
        """The first line on stdout; an error with the log when there is none."""
        end_s = self.began_s + limit_s
        while b"\n" not in self._out_text:
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not select.select([self._out], [], [], left_s)[0]:
                raise AssertionError(f"not ready within {limit_s:g} s:\n{self.log}")
            piece = os.read(self._out.fileno(), 65536)
            if not piece:
                self.popen.wait(STOP_LIMIT_S)
                raise AssertionError(f"ended with {self.popen.returncode}:\n{self.log}")
            self._out_text += piece
        return self._out_text.partition(b"\n")[0].decode()

    def tell(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.popen.send_signal(number)

    def ended(self, limit_s: float = STOP_LIMIT_S) -> Ended:
        """Wait for the end."""
        began_s = time.monotonic()
        out, _ = self.popen.communicate(timeout=limit_s)
        return Ended(
            self.popen.returncode,
            (self._out_text + out).decode(),
            self.log,
            time.monotonic() - began_s,
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Ended:
        """Ask for a stop, and wait for the end."""
        self.tell(number)
        return self.ended()

    def kill(self) -> None:
        """kill -9, whatever state it is in."""
        self.popen.kill()
        self.popen.communicate(timeout=STOP_LIMIT_S)

    def close(self) -> None:
        """Forget about its output."""
        self._out.close()

    # -- what it costs

    def cpu_s(self) -> float:
        """Processor time so far, in user code and in the kernel."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def anonymous_bytes(self) -> int:
        """Resident memory that no file backs."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the kernel does not tell RssAnon")

    def open_files(self) -> list[str]:
        """What its file descriptors point to: paths, and ``socket:[inode]``."""
        found = []
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found.append(os.readlink(entry))
        return found

    def listening(self) -> set[int]:
        """The IPv4 ports that it listens on."""
        mine = set(self.open_files())
        table = Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]
        rows = [line.split() for line in table]
        return {
            int(row[1].partition(":")[2], 16)
            for row in rows
            if row[3] == "0A" and f"socket:[{row[9]}]" in mine
        }


@attrs.frozen(eq=False)
class Serving:
    """A process that is ready. `ready` is its ready line."""

    child: Child
    ready: dict[str, Any]

    @property
    def broker(self) -> str:
        """Address that clients are told."""
        return str(self.ready["broker"])

    @property
    def nameserver(self) -> str:
        """Address of the name server in this process."""
        return str(self.ready["nameserver"])

    @property
    def recovery(self) -> dict[str, Any]:
        """What the start found."""
        return dict(self.ready["recovery"])

    @property
    def log(self) -> str:
        """Everything on stderr so far."""
        return self.child.log

    def client(self) -> Client:
        """A connection to the broker."""
        return Client(self.broker)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Ended:
        """Ask for a stop, and wait for the end."""
        return self.child.stop(number)

    def kill(self) -> None:
        """kill -9."""
        self.child.kill()


@attrs.define
class Starter:
    """Starts processes on stores below `home`, and ends what a test has left."""

    home: Path
    children: list[Child] = attrs.field(factory=list)

    @property
    def store(self) -> Path:
        """The store of a test that needs one only."""
        return self.home / "store"

    def begin(
        self,
        *options: str,
        store: Path | None = None,
        plain: bool = False,
        most_files: int | None = None,
    ) -> Child:
        """Start a process and do not wait. Unless `plain`, it gets a store, free ports and ``--ready-json``.

        `most_files` limits its file descriptors.
        """
        usual: tuple[str, ...] = ()
        if not plain:
            folder = str(store or self.store)
            usual = ("--store", folder, "--listen", FREE, "--nameserver-listen", FREE)
            usual += ("--ready-json",)
        # Of an option that is given twice the last one counts: that of the test.
        child = Child(self.home / "logs", (*usual, *options), most_files=most_files)
        self.children.append(child)
        return child

    def __call__(self, *options: str, **how: Any) -> Serving:
        """Start a process and wait until it is ready."""
        child = self.begin(*options, **how)
        return Serving(child, json.loads(child.first_line()))

    def refused(self, *options: str, **how: Any) -> Ended:
        """Start a process that must not come up."""
        return self.begin(*options, **how).ended(START_LIMIT_S)

    def close(self) -> None:
        """End everything."""
        for child in self.children:
            if child.popen.poll() is None:
                child.popen.kill()
                child.popen.wait(STOP_LIMIT_S)
            child.close()


def wait_for(
    condition: Callable[[], T], what: str, *, limit_s: float = 20.0, every_s: float = 0.02
) -> T:
    """The first true value of a condition in another process."""
    end_s = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end_s, f"{what}: not within {limit_s:g} s"
        pause(every_s)


def pause(seconds: float) -> None:
    """Real time passes: the other side is another process."""
    select.select([], [], [], seconds)
