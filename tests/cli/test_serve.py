"""``trio-mq serve``: what it hands to the system, and how the system's end becomes an exit code."""

from __future__ import annotations

import gc
import json
import logging
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.cli.running import run
from trio_mq.config import Settings
from trio_mq.errors import AddressInUse


@attrs.define
class FakeSystem:
    """Stands in for ``trio_mq.system``: notes the call, and ends as it is told."""

    ends: int | Exception = 0
    calls: list[tuple[Settings, bool, bool]] = attrs.field(factory=list)

    def run_serve(self, settings: Settings, *, ready_json: bool, log_json: bool) -> int:
        self.calls.append((settings, ready_json, log_json))
        logging.getLogger("trio_mq.system").info("running")
        logging.getLogger("trio_mq.system").debug("in detail")
        if isinstance(self.ends, Exception):
            raise self.ends
        return self.ends


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSystem]:
    fake = FakeSystem()
    module = types.ModuleType("trio_mq.system")
    module.run_serve = fake.run_serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trio_mq.system", module)
    root, ours = logging.getLogger(), logging.getLogger("trio_mq")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield fake
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def test_serve_hands_over_settings_and_flags(system: FakeSystem) -> None:
    assert run("serve", "--listen", "127.0.0.1:0", "--ready-json").code == 0
    assert run("serve", "--log-json").code == 0
    assert gc.isenabled()
    (first, ready, log), (second, *others) = system.calls
    assert first.broker.listen_port == 0
    assert (ready, log) == (True, False)
    assert second.broker.listen_port == 10911
    assert others == [False, True]


def test_the_exit_code_is_the_systems(system: FakeSystem) -> None:
    system.ends = 22
    assert run("serve").code == 22
    system.ends = AddressInUse("127.0.0.1:10911 is in use; take another port with --listen")
    result = run("serve")
    assert result.code == 31
    assert result.err.endswith(
        "error: 127.0.0.1:10911 is in use; take another port with --listen\n"
    )


def test_c169_what_the_system_refuses_is_path_and_text(system: FakeSystem) -> None:
    """C169: a store below a read-only directory ends with one line and no traceback."""
    system.ends = PermissionError(13, "Permission denied", "/ro/a/b")
    result = run("serve", "--store", "/ro/a/b")
    assert result.code == 1
    assert result.err.splitlines()[-1] == "error: /ro/a/b: Permission denied"


def test_log_lines_go_to_stderr_at_the_level_asked_for(system: FakeSystem) -> None:
    result = run("serve")
    assert result.out == ""
    assert [line.split(" ", 1)[1] for line in result.err.splitlines()] == ["INFO  system: running"]
    assert "in detail" in run("serve", "--log-level", "debug").err
    assert run("serve", "--log-level", "error").err == ""
    (line,) = run("serve", "--log-json").err.splitlines()
    assert json.loads(line)["message"] == "running"


def test_a_wrong_level_is_refused_before_anything_starts(system: FakeSystem) -> None:
    result = run("serve", "--log-level", "loud")
    assert result.code == 2
    assert result.err == "error: --log-level 'loud': legal: debug, info, warning, error\n"
    assert system.calls == []


def test_c167_notices_are_logged(system: FakeSystem, tmp_path: Path) -> None:
    """C167: a misspelt key warns at the start, with the nearest known one."""
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerIp1=10.0.0.2\ntransferMsgByHeap=false\n")
    lines = run("serve", "--config", str(conf)).err.splitlines()
    assert [line.split(" ", 1)[1] for line in lines[:2]] == [
        f"WARN  config: {conf}:1: unknown key brokerIp1; did you mean brokerIP1?",
        f"WARN  config: known to Apache, not used here: transferMsgByHeap ({conf}:2)",
    ]
    strict = run("serve", "--config", str(conf), "--strict-config")
    assert strict.code == 2
    assert strict.err.startswith("error: strict settings: ")
