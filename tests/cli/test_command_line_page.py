"""Every example of the page of the command line runs as it is written, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cluster, serving_process

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "command-line.md"
BLOCKS = re.compile(r"^```(sh|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT_S = 120
#: What differs from run to run.
VARYING = (
    (re.compile(r"\b[0-9A-F]{32}\b"), "<id>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "<time>"),
    (re.compile(r" +"), " "),
)


def plain(text: str) -> str:
    for pattern, word in VARYING:
        text = pattern.sub(word, text)
    return text


def examples() -> list[tuple[str, str]]:
    """Commands, and what the page says that they print."""
    found: list[tuple[str, str]] = []
    for kind, text in BLOCKS.findall(PAGE.read_text("utf-8")):
        if kind == "sh":
            found.append((text, ""))
        else:
            found[-1] = (found[-1][0], text)
    return found


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    shim = tmp_path / "bin" / "trio-mq"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m trio_mq "$@"\n')
    shim.chmod(0o755)
    written = examples()
    assert len(written) > 8
    with serving_process(tmp_path / "store", "broker-a") as cluster:
        for commands, output in written:
            done = in_shell(commands, tmp_path, cluster)
            assert done.returncode == 0, (commands, done.stdout)
            if output:
                assert plain(done.stdout) == plain(output), commands


def in_shell(commands: str, folder: Path, cluster: Cluster) -> subprocess.CompletedProcess[str]:
    """Run them with the addresses of this test; stderr and stdout in one, as people see them."""
    script = commands.replace("127.0.0.1:9876", cluster.nameserver)
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(PAGE.parents[2]),
        "NAMESRV_ADDR": cluster.nameserver,
    }
    return subprocess.run(
        ["bash", "-ec", script], cwd=folder, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
