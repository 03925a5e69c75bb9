"""Every Python example of the client's pages runs as it is written, and prints what the page says.

An example begins with a comment that names its file. Those of a page that has a ``test_*.py`` are one project, whose
test is run by pytest; others are programs. The page's address of the name server becomes that of a broker of this
test. An ``output`` block behind an example is all that it prints.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import attrs
import pytest

from tests.system.processes import Starter

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    DOCS / "start.md",
    *(
        DOCS / "howto" / f"{name}.md"
        for name in ("produce", "consume", "trio", "asyncio-fastapi", "threads-django")
    ),
]
WRITTEN_NAMESERVER = "127.0.0.1:9876"
PLUGIN = "trio_mq.testing.pytest"
LIMIT_S = 90
EXAMPLE = re.compile(
    r"^```python\n# (\w+\.py)\n(.*?)^```\n(?:\n```output\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)


@attrs.frozen
class Example:
    """A program in a page."""

    page: Path
    name: str
    text: str
    output: str | None

    def __str__(self) -> str:
        return f"{self.page.stem}-{self.name}"


def examples() -> list[Example]:
    return [
        Example(page, name, text, output or None)
        for page in PAGES
        for name, text, output in EXAMPLE.findall(page.read_text("utf-8"))
    ]


PROJECTS = {e.page for e in examples() if e.name.startswith("test_")}
PROGRAMS = [
    e for e in examples() if e.page not in PROJECTS or e.output is not None
]  # of a page with a test, what stands by itself says what it prints


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    starter = Starter(tmp_path_factory.mktemp("broker"))
    try:
        yield starter().ready["nameserver"]
    finally:
        starter.close()


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_every_python_block_of_these_pages_is_an_example() -> None:
    blocks = {page: page.read_text("utf-8").count("```python\n") for page in PAGES}
    found = [e.page for e in examples()]
    assert blocks == {page: found.count(page) for page in PAGES}
    assert all(blocks.values())


@pytest.mark.parametrize("example", PROGRAMS, ids=str)
def test_program(example: Example, nameserver: str, tmp_path: Path) -> None:
    text = example.text.replace(WRITTEN_NAMESERVER, nameserver)
    (tmp_path / example.name).write_text(text, "utf-8")
    done = run([sys.executable, "-W", "error", example.name], tmp_path)
    assert done.returncode == 0, done.stderr
    assert example.output is not None, f"{example}: the page does not say what it prints"
    assert done.stdout == example.output


@pytest.mark.parametrize("page", sorted(PROJECTS), ids=lambda page: page.stem)
def test_project(page: Path, tmp_path: Path) -> None:
    for example in examples():
        if example.page == page and example.output is None:
            (tmp_path / example.name).write_text(example.text, "utf-8")
    points = entry_points(group="pytest11")
    is_installed = any(
        point.value == PLUGIN for point in points
    )  # not where the tree is only on the path
    command = [sys.executable, "-m", "pytest", "-q", *([] if is_installed else ["-p", PLUGIN])]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
