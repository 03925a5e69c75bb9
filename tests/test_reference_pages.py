"""The generated pages of docs/reference are up to date and leave nothing out."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer

import trio_mq
from trio_mq.cli import tree
from trio_mq.config.known import apache_keys
from trio_mq.config.settings import catalogue
from trio_mq.errors import TrioMQError

DOCS = Path(__file__).resolve().parent.parent / "docs"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    return loaded("generate")


def test_the_api_page_is_what_its_generator_writes_and_names_everything() -> None:
    generate = loaded("generate_api")
    page = generate.page()
    assert generate.PAGE.read_text("utf-8") == page, "stale: run `just docs`"
    names = [name for name in trio_mq.__all__ if not name.startswith("_")]
    assert [name for name in names if f"# {name}\n" not in page] == []
    assert "object at 0x" not in page


@pytest.mark.parametrize("name", ["settings.md", "cli.md", "exit-codes.md"])
def test_the_page_is_what_the_generator_writes(generate: ModuleType, name: str) -> None:
    assert generate.read(name) == generate.pages()[name], "stale: run `just docs`"


def test_check_fails_for_a_stale_page(
    generate: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(generate, "REFERENCE", tmp_path / "reference")
    monkeypatch.setattr(sys, "argv", ["generate.py"])
    assert generate.main() == 0
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert generate.main() == 0
    (tmp_path / "reference" / "cli.md").write_text("old")
    assert generate.main() == 1
    assert capsys.readouterr().err.startswith("docs/reference/cli.md is stale")


def test_every_key_of_ours_and_apaches_is_on_the_settings_page(generate: ModuleType) -> None:
    page = generate.pages()["settings.md"]
    keys = {info.meta.key for info in catalogue()} | apache_keys().keys()
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_every_verb_and_option_is_on_the_cli_page(generate: ModuleType) -> None:
    def verbs(command: object, path: str = "") -> dict[str, list[str]]:
        children = getattr(command, "commands", None)
        if children is None:
            options = [name for param in command.params for name in param.opts]  # type: ignore[attr-defined]
            return {path.strip(): options}
        found: dict[str, list[str]] = {}
        for name, child in children.items():
            found |= verbs(child, f"{path} {name}")
        return found

    real = verbs(typer.main.get_command(tree.make()))
    assert real == {
        verb.path: [o.parameter if o.is_argument else o.name for o in verb.table]
        for verb in tree.verbs()
    }
    names = {option.name for verb in tree.verbs() for option in verb.table}
    page = generate.pages()["cli.md"]
    assert all(f"`{name}`" in page for name in names)
    assert all(f"## trio-mq {path}" in page for path in real)


def test_no_two_kinds_of_error_share_an_exit_code(generate: ModuleType) -> None:
    codes = [error.exit_code for error in generate.own_codes()]
    assert len(codes) == len(set(codes))
    assert TrioMQError.exit_code not in codes
    page = generate.pages()["exit-codes.md"]
    assert all(f"| {code} |" in page for code in codes)
