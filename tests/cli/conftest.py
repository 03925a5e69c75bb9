"""A broker for the verbs that talk to one: a process of its own, for all tests of this folder."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.cli.running import Result, run
from trio_mq.cli.online import NAMESERVER_VARIABLE

FREE_PORTS = ("--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0")
_numbers = itertools.count(1)


@attrs.frozen
class Cluster:
    """Where it is, and a way to run ``trio-mq`` with it."""

    nameserver: str
    broker: str

    def run(self, *arguments: str) -> Result:
        """A verb that has to end well."""
        result = run(*arguments)
        assert (result.code, result.err) == (0, ""), (arguments, result)
        return result

    def json(self, *arguments: str) -> Any:
        """What it prints with ``--json``."""
        return json.loads(self.run(*arguments, "--json").out)

    def lines(self, *arguments: str) -> list[Any]:
        """The same of a verb that prints one object a line."""
        return [json.loads(line) for line in self.run(*arguments, "--json").out.splitlines()]

    def topic(self, queues: int = 1) -> str:
        """A new one."""
        name = f"T{next(_numbers)}"
        self.run("topic", "create", name, "--queues", str(queues))
        return name

    def group(self) -> str:
        """A new one."""
        name = f"G{next(_numbers)}"
        self.run("group", "create", name)
        return name


@contextmanager
def serving_process(store: Path, broker_name: str) -> Iterator[Cluster]:
    """A broker as a process."""
    command = [sys.executable, "-m", "trio_mq", "serve", *FREE_PORTS, "--no-fast-port", "--store", str(store),
               "--broker-name", broker_name, "--ready-json", "--log-level", "error"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=10)[1]
        ready = json.loads(line)
        yield Cluster(ready["nameserver"], ready["broker"])
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests."""
    with serving_process(tmp_path_factory.mktemp("serving") / "store", "b1") as cluster:
        yield cluster


@pytest.fixture
def cluster(serving: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The broker, as the environment of commands names it."""
    monkeypatch.setenv(NAMESERVER_VARIABLE, serving.nameserver)
    return serving
