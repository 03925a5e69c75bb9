"""The command as a whole: help, version, usage errors, exit codes, and what a start loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.running import run
from trio_mq import __version__
from trio_mq.cli import serve
from trio_mq.cli.options import SERVE
from trio_mq.errors import StoreLocked


def test_help_lists_verbs_and_options() -> None:
    top = run("--help")
    assert top.code == 0
    assert "serve" in top.out
    assert "config" in top.out
    verb = run("serve", "--help")
    assert verb.code == 0
    for option in SERVE:
        assert option.name in verb.out
        assert option.help.split()[0] in verb.out


def test_version() -> None:
    result = run("--version")
    assert (result.code, result.out) == (0, f"trio-mq {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--nonsense"],
        ["serve", "stray"],
        ["serve", "--store"],
        ["nonsense"],
        ["config", "x"],
    ],
)
def test_usage_errors_have_exit_code_2_and_no_traceback(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.code == 2
    assert "Error: " in result.err
    assert "Traceback" not in result.err


def test_foreseen_errors_are_one_line_with_their_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(values: object) -> int:
        raise ExceptionGroup("nursery", [StoreLocked("store /s is in use by process 12")])

    monkeypatch.setattr(serve, "serve", locked)
    for arguments in (["serve"], ["serve", "--store", "-dash"]):  # the plain way, and typer's
        result = run(*arguments)
        assert result.code == 21
        assert result.err == "error: store /s is in use by process 12\n"


def test_our_mistakes_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(values: object) -> int:
        raise KeyError("ours")

    monkeypatch.setattr(serve, "serve", broken)
    with pytest.raises(KeyError):
        run("serve")


def test_an_interrupt_before_the_start_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(values: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "serve", interrupted)
    result = run("serve")
    assert (result.code, result.err) == (130, "")


def test_the_exit_code_of_a_verb_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "serve", lambda values: 7)
    assert run("serve").code == 7
    assert run("serve", "--store", "-dash").code == 7


def test_a_plain_start_loads_neither_typer_nor_what_it_needs() -> None:
    """They would cost a quarter of the time to ready, and memory that a broker keeps."""
    script = (
        "import sys\n"
        "from trio_mq.cli import serve\n"
        "serve.serve = lambda values: 0\n"
        "from trio_mq.cli.app import main\n"
        "sys.argv = ['trio-mq', 'serve', '--listen', '127.0.0.1:0', '--ready-json']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as ended:\n"
        "    assert ended.code == 0\n"
        "heavy = {'typer', 'click', 'rich', 'pydantic', 'cattrs', 'trio'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


def test_python_m_runs_the_same_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "trio_mq", "config", "show", "--set", "nonsense=1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert result.returncode == 2
    assert result.stderr == "error: --set: unknown key nonsense\n"
