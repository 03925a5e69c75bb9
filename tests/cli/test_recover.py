"""``trio-mq recover`` as a command: exit codes, text, JSON, records, salvage, progress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests import golden_stores
from tests.cli.running import Result, run
from tests.offline.looking import snapshot
from tests.offline.test_rehearsal import damaged_behind
from tests.recovery.stores import World
from trio_mq import offline
from trio_mq.cli import progress
from trio_mq.store.disk import RealDisk


@pytest.fixture
def world(tmp_path) -> World:
    """A small store on the disk of the machine."""
    return World.make(RealDisk(), str(tmp_path / "store"))


def filled(world: World, count: int = 60, *, kill: bool = False) -> list[int]:
    return trio.run(lambda: world.filled(count, kill=kill))


def losing(world: World) -> list[int]:
    """A store of which a start would cut 19 records that can be read."""
    return trio.run(damaged_behind, world)


def dry(world: World, *options: str) -> Result:
    """Run a dry run, which changes nothing and prints no error."""
    before = snapshot(world)
    result = run("recover", world.root, "--dry-run", *options)
    assert snapshot(world) == before
    return result


# -- codes ---------------------------------------------------------------------------------------------------


def test_a_sound_store_is_0(world: World):
    filled(world)
    result = dry(world)
    assert result.code == 0
    assert result.out.startswith(f"{world.root}: sound, a start changes nothing (exit code 0)\n")
    assert result.err == ""


def test_a_store_that_a_start_changes_is_1_and_afterwards_0(world: World):
    filled(world, kill=True)
    world.flip(filled_end(world) - 30)
    assert dry(world).code == 1
    result = run("recover", world.root)
    assert result.code == 1
    assert "recovered, something was put right (exit code 1)" in result.out
    assert not os.path.exists(world.path("abort"))
    assert run("recover", world.root).code == 0
    assert dry(world).code == 0


def filled_end(world: World) -> int:
    """Where the log ends."""
    return int(json.loads(dry(world, "--json").out)["phases"]["log"]["log_end"])


def test_a_store_that_loses_records_is_2(world: World):
    losing(world)
    assert dry(world).code == 2
    result = run("recover", world.root)
    assert result.code == 2
    assert "records that could be read were cut off (exit code 2)" in result.out
    assert dry(world).code == 0


@pytest.mark.parametrize("what", ["nothing", "file", "empty", "other"])
def test_what_is_no_store_is_3_with_path_and_reason(tmp_path: Path, what: str):
    path = tmp_path / "there"
    if what == "file":
        path.write_text("text")
    elif what != "nothing":
        path.mkdir()
        if what == "other":
            (path / "photo.jpg").write_bytes(b"x")
    for more in ((), ("--dry-run",)):
        result = run("recover", str(path), *more)
        assert result.code == 3
        assert result.err.startswith(f"error: {path} is no store: ")
        assert result.out == ""
        table = json.loads(run("recover", str(path), "--json", *more).out)
        assert (table["verdict"], table["exit_code"]) == ("failed", 3)
        assert str(path) in table["refusals"][0]
    assert path.exists() is (what != "nothing"), "nothing is made"
    assert what == "file" or sorted(p.name for p in tmp_path.rglob("*.*")) == (
        ["photo.jpg"] if what == "other" else []
    )


def test_a_start_that_is_refused_is_3(world: World):
    filled(world)
    world.resize(world.segment(0), 100)
    for more in ((), ("--dry-run",)):
        result = run("recover", world.root, *more)
        assert result.code == 3
        assert "refused: " in result.out
        assert world.segment(0) in result.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["recover"],
        ["recover", "a", "b"],
        ["recover", "a", "--nonsense"],
        ["recover", "a", "--path", "sideways"],
        ["recover", "a", "--assume", "maybe"],
        ["recover", "a", "--set", "nonsense=1"],
        ["recover", "a", "--set", "mappedFileSizeCommitLog=x"],
        ["recover", "a", "--config", "/nowhere/broker.conf"],
        ["recover", "a", "--salvage", "/nowhere/file"],
        ["recover", "/usr", "--salvage", "/usr/file"],
    ],
)
def test_a_wrong_command_line_is_64(arguments: list[str]):
    result = run(*arguments)
    assert result.code == 64
    assert "rror: " in result.err
    assert "Traceback" not in result.err


def test_a_mistake_of_ours_is_70_with_its_traceback(world: World, monkeypatch):
    def broken(*_: object) -> None:
        raise KeyError("ours")

    filled(world)
    monkeypatch.setattr(offline, "rehearse", broken)
    result = run("recover", world.root, "--dry-run")
    assert result.code == 70
    assert "KeyError: 'ours'" in result.err


def test_an_interrupt_is_130(world: World, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    filled(world)
    monkeypatch.setattr(offline, "rehearse", interrupted)
    assert run("recover", world.root, "--dry-run").code == 130


# -- what is printed -----------------------------------------------------------------------------------------


def test_json_has_the_six_phases_and_what_it_costs(world: World):
    offsets = losing(world)
    result = dry(world, "--json", "--path", "sequential")
    table = json.loads(result.out)
    assert list(table["phases"]) == ["load", "tails", "log", "queues", "metadata", "activation"]
    assert (table["store"], table["done"]) == (world.root, False)
    assert (table["verdict"], table["exit_code"]) == ("loses", 2)
    assert table["phases"]["log"]["log_end"] == offsets[110]
    assert table["phases"]["load"]["clean"] is False
    assert table["phases"]["load"]["log"]["damaged"][0]["begin"] == offsets[110]
    assert (table["lost"]["records"], table["lost"]["topics"]) == (19, ["Late"])
    assert table["lost"]["queues"] == [
        {"topic": "Late", "queue_id": 0, "records": 9},
        {"topic": "Late", "queue_id": 1, "records": 10},
    ]
    assert table["apache"]["log"]["end"] == offsets[110]
    assert table["apache"]["differences"]
    assert "records" not in table


def test_records_are_listed_as_text_and_as_json(world: World):
    offsets = losing(world)
    text = dry(world, "--records").out.split("Records that would be lost")[1].splitlines()[1:]
    assert len(text) == 19
    assert text[0].split()[:3] == [str(offsets[111]), "Late/1", "5"]
    assert "keys late11" in text[0]
    table = json.loads(dry(world, "--records", "--json").out)
    assert [row["log_offset"] for row in table["records"]] == offsets[111:]
    assert table["records"][0] | {"size": 0, "store_timestamp_ms": 0} == {
        "log_offset": offsets[111],
        "topic": "Late",
        "queue_id": 1,
        "queue_offset": 5,
        "message_id": "",
        "keys": ["late11"],
        "size": 0,
        "store_timestamp_ms": 0,
        "reason": table["records"][0]["reason"],
    }


def test_without_a_loss_the_list_is_empty(world: World):
    filled(world)
    assert dry(world, "--records").out.endswith("reason\n  none\n")
    assert json.loads(dry(world, "--records", "--json").out)["records"] == []


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_salvaged_records_come_back_by_an_import(world: World, tmp_path: Path, more: tuple):
    offsets = losing(world)
    path = tmp_path / "salvaged.jsonl"
    result = run("recover", world.root, "--salvage", str(path), *more)
    assert result.code == 2
    assert f"19 records are written to {path}" in result.out
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["logOffset"] for line in lines] == offsets[111:]
    if not more:
        imported = run("store", "import", world.root, str(path))
        assert imported.code == 0, imported.err
        found = json.loads(dry(world, "--json").out)
        assert found["exit_code"] == 0
        assert found["phases"]["load"]["log"]["records"] == 110 + 19


def test_nothing_is_overwritten_by_a_salvage(world: World, tmp_path: Path):
    losing(world)
    path = tmp_path / "salvaged.jsonl"
    path.write_text("precious\n")
    result = run("recover", world.root, "--salvage", str(path))
    assert result.code == 64
    assert "it is there already" in result.err
    assert path.read_text() == "precious\n"
    assert dry(world).code == 2, "and nothing was recovered"


# -- progress ------------------------------------------------------------------------------------------------


def test_progress_is_a_line_now_and_then(world: World, monkeypatch):
    filled(world)
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    lines = dry(world).err.splitlines()
    assert any(line.startswith("reading the log: ") and line.endswith(" %") for line in lines)
    assert dry(world, "--quiet").err == ""


def test_progress_is_a_bar_on_a_terminal(world: World):
    filled(world)
    command = [sys.executable, "-m", "trio_mq", "recover", world.root, "--dry-run"]
    ours, theirs = os.openpty()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=theirs, check=False, timeout=60, env=os.environ
    )
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "reading the log" in shown
    assert b"sound" in done.stdout


def test_a_reader_that_goes_away_is_no_error(world: World):
    losing(world)
    command = [sys.executable, "-m", "trio_mq", "recover", world.root, "--dry-run", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert b"Traceback" not in child.stderr.read()
    assert child.returncode == 2


# -- stores of others ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "records"), [("clean", 314), ("crash", 305)])
def test_stores_of_apache_need_no_settings(tmp_path: Path, name: str, records: int):
    root = golden_stores.unpack(name, tmp_path)
    table = json.loads(run("recover", str(root), "--dry-run", "--json").out)
    load = table["phases"]["load"]
    assert load["log"]["records"] == records
    assert load["log"]["segment_bytes"] == golden_stores.SEGMENT_SIZE
    assert load["clean"] is (name == "clean")
    assert table["exit_code"] == (0 if name == "clean" else 1)
    assert table["lost"]["records"] == 0
    assert run("recover", str(root)).code == table["exit_code"]
    assert run("recover", str(root)).code == 0


def test_the_log_alone_of_a_store_of_apaches(tmp_path: Path):
    root = golden_stores.unpack("crash", tmp_path)
    (tmp_path / "partial").mkdir()
    (root / "commitlog").rename(tmp_path / "partial" / "commitlog")
    result = run("recover", str(tmp_path / "partial"), "--dry-run")
    assert result.code == 1
    assert "305 records of 20 queues" in result.out
    assert "there is only a commit log" in result.out


def test_a_store_that_nobody_may_write_to(world: World):
    losing(world)
    for folder, _, names in os.walk(world.root):
        for name in names:
            os.chmod(os.path.join(folder, name), 0o444)
        os.chmod(folder, 0o555)
    try:
        assert dry(world).code == 2
    finally:
        for folder, _, _ in os.walk(world.root):
            os.chmod(folder, 0o755)
