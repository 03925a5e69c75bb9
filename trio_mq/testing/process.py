"""A broker in a process of its own, for tests of any kind: its start, its faults, its certain end.

In: an empty folder and settings. Out: :class:`BrokerProcess`. Called by the pytest plugin, once for all tests of a
process that want the same settings; other test runners may use it as well. Everything blocks, for milliseconds, so it
works in plain, Trio and asyncio tests.

The child (:mod:`.serve`) is told what to do by lines of JSON and answers each with one; its first line says that it is
ready. It ends when its standard input does, which is the case as soon as this process is gone, however that happened.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import sysconfig
import threading  # noqa: TID251 - tests may ask from several threads, and nothing here is async
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import trio_mq
from trio_mq.errors import ConfigError, PeerUnavailable
from trio_mq.testing.broker import TOPIC_QUEUES, RocketMQBroker
from trio_mq.testing.faults import Faults, Rule

#: From the start to the ready line, on a machine that compiles all modules first and has other things to do.
START_LIMIT_S: Final = 30.0
#: One question to the child.
ANSWER_LIMIT_S: Final = 10.0
#: What it gets to go by itself.
END_LIMIT_S: Final = 2.0
#: Processes of one pool that run at the same time; one takes about 60 MB.
MOST_PROCESSES: Final = 4
#: What is shown of its log when it has failed.
SHOWN_LINES: Final = 20


class BrokerProcess:
    """A broker and its name server on free ports of 127.0.0.1. `close` it, or leave its ``with`` block.

    `folder` is for the store, which is removed at the end, and for the log, which stays. `settings` are those of
    docs/reference/settings.md, over the small files of a test. Raises ConfigError for settings that no broker takes,
    PeerUnavailable when it does not start; the text has the last lines of its log.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "broker.log"
        self._store = folder / "store"
        self._lock = threading.Lock()
        self._read = bytearray()
        self._topics: list[str] = []
        self._groups: list[str] = []
        given = [f"{key}={value}" for key, value in (settings or {}).items()]
        self._process = self._started([str(self._store), *given])
        try:
            ready = self._line(START_LIMIT_S)
        except BaseException:
            self.close()
            raise
        #: What a test is given.
        self.broker = RocketMQBroker(
            ready["nameserver"], ready["broker"], "subprocess", Faults(_Remote(self))
        )

    def _started(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        # -P: a file of the application under test must not stand in for a module of ours
        command = [sys.executable, "-P", "-m", "trio_mq.testing.serve", *arguments]
        with self.log.open("wb") as log:
            return subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                # an interrupt at the terminal is for pytest, which then ends this process in its turn
                start_new_session=True,
            )

    def __enter__(self) -> RocketMQBroker:
        return self.broker

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def create_topic(self, name: str, queues: int = TOPIC_QUEUES) -> None:
        """Make a topic, so that consumers that start before the first send find it at once."""
        self.ask("topic", name=name, queues=queues)
        self._topics.append(name)

    def will_forget(self, group: str) -> None:
        """Let the next :meth:`reset` delete a group that clients make."""
        self._groups.append(group)

    def reset(self) -> None:
        """Between two tests: take off all faults, delete topics that were made here, and groups with all they have."""
        self.ask("clear")
        if self._topics or self._groups:
            topics, self._topics = self._topics, []
            groups, self._groups = self._groups, []
            self.ask("forget", topics=topics, groups=groups)

    def ask(self, what: str, **fields: Any) -> Any:
        """Let the child do something; what it answers. PeerUnavailable when it does not."""
        line = json.dumps({"do": what, **fields}).encode() + b"\n"
        with self._lock:
            try:
                _pipe(self._process.stdin).write(line)
                _pipe(self._process.stdin).flush()
            except (OSError, ValueError) as error:
                raise self._failure(f"cannot be asked for {what!r}: {error}") from error
            answer = self._line(ANSWER_LIMIT_S)
        if "error" in answer:
            raise PeerUnavailable(
                f"the broker of this test could not do {what!r}: {answer['error']}"
            )
        return answer.get("value")

    def _line(self, limit_s: float) -> dict[str, Any]:
        out = _pipe(self._process.stdout).fileno()
        readable = select.poll()
        readable.register(out, select.POLLIN)
        until_s = time.monotonic() + limit_s
        while b"\n" not in self._read:
            if not readable.poll(max(0.0, until_s - time.monotonic()) * 1000):
                self._process.kill()  # a late answer would be taken for that to the next question
                raise self._failure(f"gave no answer within {limit_s:g} s")
            data = os.read(out, 65536)
            if not data:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_LIMIT_S)
                raise self._failure(f"ended with exit code {self._process.poll()}")
            self._read += data
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read[:] = rest
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self, what: str) -> ConfigError | PeerUnavailable:
        lines = self.log.read_text("utf-8", "replace").splitlines()[-SHOWN_LINES:]
        told = "".join(f"\n    {line}" for line in lines)
        kind = ConfigError if self._process.poll() == ConfigError.exit_code else PeerUnavailable
        return kind(
            f"the broker of this test {what}; its log, {self.log}, ends with{told or ' nothing'}"
        )

    def check(self) -> None:
        """Raise PeerUnavailable, with the end of its log, unless it still runs."""
        if not self.runs:
            raise self._failure(f"ended by itself with exit code {self._process.returncode}")

    def close(self) -> None:
        """End the process, and remove its store. A second call does nothing."""
        process = self._process
        with suppress(OSError):
            _pipe(process.stdin).close()
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _pipe(process.stdout).close()
        shutil.rmtree(self._store, ignore_errors=True)


class BrokerPool:
    """Brokers in processes, one for each set of settings, started when the first test wants it.

    The one that was not asked for the longest ends when there are too many. Not for several tests at the same time.
    """

    def __init__(self, make_folder: Callable[[], Path]) -> None:
        self._make_folder = make_folder
        self._running: dict[tuple[tuple[str, str], ...], BrokerProcess] = {}

    def get(self, settings: Mapping[str, str]) -> BrokerProcess:
        """The broker with these settings; a new one when the old one has ended."""
        key = tuple(sorted(settings.items()))
        found = self._running.pop(key, None)
        if found is not None and not found.runs:
            found.close()
            found = None
        while len(self._running) >= MOST_PROCESSES:
            self._running.pop(next(iter(self._running))).close()
        self._running[key] = found = found or BrokerProcess(self._make_folder(), settings)
        return found

    def close(self) -> None:
        """End all of them."""
        while self._running:
            self._running.popitem()[1].close()


class _Remote:
    """The rules in the other process."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process

    def add(self, rule: Rule) -> int:
        return int(self._process.ask("add", rule=rule.as_fields()))

    def remove(self, number: int) -> None:
        self._process.ask("remove", number=number)

    def hits(self, number: int) -> int:
        return int(self._process.ask("hits", number=number))

    def clear(self) -> None:
        self._process.ask("clear")


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "both were asked for"
    return pipe


def _environment() -> dict[str, str]:
    """The environment of the child: it finds this very package, also one that is not installed."""
    root = str(Path(trio_mq.__file__).parent.parent)
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{before}{os.pathsep}{root}" if before else root}
