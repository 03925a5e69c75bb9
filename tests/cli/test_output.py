"""What people read: one line for an error, few lines for notices, settings as a table and JSON."""

from __future__ import annotations

import json
import logging

import pytest

from trio_mq.cli import output
from trio_mq.config import Notice, load
from trio_mq.config.settings import catalogue
from trio_mq.errors import ConfigError, StoreDamaged, StoreError, StoreLocked


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("f:1: key"), 2, "error: f:1: key\n"),
        (StoreLocked("two\nlines"), 21, "error: two lines\n"),
        (StoreError(), 20, "error: StoreError\n"),
        (
            PermissionError(13, "Permission denied", "/ro/a/b"),
            1,
            "error: /ro/a/b: Permission denied\n",
        ),
        (OSError(28, "No space left on device"), 1, "error: No space left on device\n"),
        (OSError("odd"), 1, "error: odd\n"),
        (
            ExceptionGroup("g", [ExceptionGroup("h", [StoreDamaged("bad")]), OSError(5, "I/O")]),
            22,
            "error: bad\n",
        ),
    ],
)
def test_foreseen_errors_are_one_line_and_a_code(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output.report(error) == code
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize(
    "error", [ValueError("x"), ExceptionGroup("g", [ConfigError("x"), KeyError("y")])]
)
def test_our_mistakes_are_not_hidden(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert output.report(error) is None
    assert capsys.readouterr() == ("", "")


def test_keys_without_effect_share_a_line() -> None:
    notices = [
        Notice("unused", "a", "f:1", "a is known", lost=True),
        Notice("unknown", "b", "f:2", "unknown key b"),
        Notice("unused", "c", "f:3", "c is known", lost=True),
        Notice("unused", "d", "f:4", "d is known", lost=False),
        Notice("note", "e", "--set", "e has the effect of 5"),
    ]
    lines = [(line.level, line.text) for line in output.notice_lines(notices)]
    assert lines == [
        (logging.WARNING, "f:2: unknown key b"),
        (logging.WARNING, "--set: e has the effect of 5"),
        (logging.WARNING, "known to Apache, not used here: a (f:1), c (f:3)"),
        (logging.INFO, "not used here, but nothing else was asked for: d (f:4)"),
    ]


def test_c083_the_table_shows_value_and_origin() -> None:
    """C083: ``config show`` tells where a value comes from."""
    lines = output.settings_table(load(overrides=["listenPort=20911"])).splitlines()
    rows = {line.split()[0]: line.split() for line in lines}
    assert rows["listenPort"] == ["listenPort", "20911", "--set"]
    assert rows["brokerId"] == ["brokerId", "0", "default"]
    assert rows["brokerIP1"] == ["brokerIP1", "-", "default"]
    assert rows["deleteWhen"] == ["deleteWhen", "04", "default"]
    assert [line for line in lines if line.startswith("[")] == [
        "[broker]",
        "[store]",
        "[ha]",
        "[nameserver]",
    ]


def test_c083_json_has_every_setting_with_type_and_origin() -> None:
    """C083: the same for programs."""
    shown = json.loads(
        output.settings_json(
            load(
                overrides=[
                    "brokerId=1",
                    "brokerRole=SLAVE",
                    "transferMsgByHeap=false",
                    "diskMaxUsedSpaceRatio=99",
                ]
            )
        )
    )
    settings = shown["settings"]
    assert settings.keys() == {info.meta.key for info in catalogue()}
    assert settings["brokerId"] == {"value": 1, "origin": "--set", "subsystem": "broker"}
    assert settings["autoCreateTopicEnable"]["value"] is True
    assert settings["flushDiskType"]["value"] == "ASYNC_FLUSH"
    assert settings["nameserverListen"]["value"] == "127.0.0.1:9876"
    assert settings["deleteWhen"]["value"] == "04"
    assert settings["brokerIP1"]["value"] is None
    assert [notice["kind"] for notice in shown["notices"]] == ["unused", "note"]
