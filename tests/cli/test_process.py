"""``trio-mq serve`` as a process of its own: ready line, exit codes, signals."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

START_LIMIT_S = 30
FREE_PORTS = ("--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0")

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts ``serve`` with some options; whatever still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def begin(*options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "trio_mq", "serve", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=START_LIMIT_S)[1]
    return line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_is_ready_with_its_addresses_and_ends_well(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    """C080, C169: the log carries offsets; a store path of three new levels is created."""
    store = tmp_path / "a" / "b" / "c"
    process = start(*FREE_PORTS, "--store", str(store), "--ready-json")
    ready = json.loads(ready_line(process))
    assert ready.keys() >= {"nameserver", "broker", "store", "recovery", "ready_s"}
    assert ready["store"] == str(store)
    for name in ("nameserver", "broker"):
        host, _, port = ready[name].rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
    process.send_signal(number)
    out, err = process.communicate(timeout=START_LIMIT_S)
    assert process.returncode == 0
    assert out == ""
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"
    lines = err.splitlines()
    assert lines
    assert all(re.match(rf"{stamp} (DEBUG|INFO |WARN |ERROR) \w+: ", line) for line in lines)


def test_what_is_taken_has_its_exit_code_and_one_line(start: Start, tmp_path: Path) -> None:
    first = start(*FREE_PORTS, "--store", str(tmp_path / "s"), "--ready-json")
    broker = json.loads(ready_line(first))["broker"]
    locked = start(*FREE_PORTS, "--store", str(tmp_path / "s"), "--log-level", "error")
    taken = start(
        "--listen", broker, "--no-fast-port", "--nameserver-listen", "127.0.0.1:0",
        "--store", str(tmp_path / "t"), "--log-level", "error",
    )  # fmt: skip
    for process, code in ((locked, 21), (taken, 31)):
        out, err = process.communicate(timeout=START_LIMIT_S)
        assert process.returncode == code
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1


def test_c059_a_bad_setting_ends_before_anything_is_made(start: Start, tmp_path: Path) -> None:
    """C059: refused at start with the legal range."""
    store = tmp_path / "s"
    process = start("--store", str(store), "--set", "fileReservedTime=0.1")
    _, err = process.communicate(timeout=START_LIMIT_S)
    assert process.returncode == 2
    assert err == (
        "error: --set: fileReservedTime = '0.1': not a whole number; legal: whole hours, 1 or more\n"
    )
    assert not store.exists()
