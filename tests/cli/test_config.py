"""``trio-mq config show`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import run


def test_c083_show_tells_the_origin_of_each_layer(tmp_path: Path) -> None:
    """C083: listenPort in the file, in ``--set`` and in a flag."""
    conf = tmp_path / "broker.conf"
    conf.write_text("listenPort=20911\nbrokerName=a\nmaxMessageSize=1000\n")
    result = run(
        "config", "show", "--json", "--config", str(conf),
        "--set", "maxMessageSize=2000", "--listen", "127.0.0.1:20931",
    )  # fmt: skip
    assert (result.code, result.err) == (0, "")
    settings = json.loads(result.out)["settings"]
    shown = {
        key: (settings[key]["value"], settings[key]["origin"])
        for key in ("listenPort", "maxMessageSize", "brokerName", "brokerId")
    }
    assert shown == {
        "listenPort": (20931, "--listen"),
        "maxMessageSize": (2000, "--set"),
        "brokerName": ("a", f"{conf}:2"),
        "brokerId": (0, "default"),
    }


def test_c167_show_lists_what_has_no_effect(tmp_path: Path) -> None:
    """C167: notices on stderr, the table on stdout."""
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerIp1=10.0.0.2\nsendMessageThreadPoolNums=16\n")
    result = run("config", "show", "--config", str(conf))
    assert result.code == 0
    assert result.out.startswith("[broker]\n")
    assert result.err == (
        f"note: {conf}:1: unknown key brokerIp1; did you mean brokerIP1?\n"
        "note: known to Apache, not used here: "
        f"sendMessageThreadPoolNums ({conf}:2)\n"
    )


def test_show_creates_nothing(tmp_path: Path) -> None:
    result = run("config", "show", "--store", str(tmp_path / "a" / "b"))
    assert result.code == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("strict", [[], ["--strict-config"]])
def test_c059_a_bad_file_is_one_line_and_exit_code_2(tmp_path: Path, strict: list[str]) -> None:
    """C059: place, key, value and legal range; no traceback."""
    conf = tmp_path / "broker.conf"
    conf.write_text("deleteWhen=25\n")
    result = run("config", "show", "--config", str(conf), *strict)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"error: {conf}:1: deleteWhen = '25': '25' is not an hour of the day; "
        "legal: hours of the day from 0 to 23, several separated by ';'\n"
    )
