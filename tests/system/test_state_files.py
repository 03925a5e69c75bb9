"""Small files that a crash has spoilt: the start goes on without what does not matter, and says what does."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from tests.system.processes import Starter, wait_for

NULS = bytes(180)
GARBAGE = b"\x93\x00 no JSON \xff" * 9


def made_store(serve: Starter, *bodies: bytes, topic: str = "T") -> Path:
    """A store with some messages and a topic of two queues, closed in order."""
    running = serve()
    with running.client() as client:
        client.create(topic, queues=2)
        for body in bodies:
            client.sent(topic, body)
    assert running.stop().code == 0
    return serve.store


def test_c043_c046_files_of_other_features_that_are_spoilt_stop_nothing(serve: Starter) -> None:
    """C043, C046: NUL bytes in delayOffset.json, empty metrics; their backups too.

    Nothing of that is used here, so the files stay as they are, and one line says so.
    """
    config = made_store(serve, b"one") / "config"
    spoilt = {
        "delayOffset.json": NULS,
        "delayOffset.json.bak": NULS,
        "timermetrics": b"",
        "timermetrics.bak": b"",
        "transactionMetrics": b"",
        "transactionMetrics.bak": b"",
    }
    for name, data in spoilt.items():
        (config / name).write_bytes(data)
    running = serve()
    with running.client() as client:
        assert [m.body for m in client.all_of("T")] == [b"one"]
        client.sent("T", b"two")
    said = [line for line in running.log.splitlines() if "delayOffset.json" in line]
    assert len(said) == 1
    assert " WARN " in said[0]
    for name in ("delayOffset.json", "timermetrics", "transactionMetrics"):
        assert str(config / name) in said[0]
    assert running.stop().code == 0
    assert {name: (config / name).read_bytes() for name in spoilt} == spoilt


def test_c046_a_good_backup_or_no_file_is_nothing_to_say(serve: Starter) -> None:
    """C046: what Apache would load from its backup is no damage; the next start is quiet."""
    config = made_store(serve, b"one") / "config"
    (config / "delayOffset.json").write_bytes(b"")
    (config / "delayOffset.json.bak").write_bytes(b'{"offsetTable":{1:6,18:0,}}')
    running = serve()
    assert "delayOffset" not in running.log


def test_c044_three_bad_files_are_told_at_once_and_the_commands_repair(serve: Starter) -> None:
    """C044: topics, offsets and checkpoint; exit code 22, nothing touched, and what the line says works."""
    store = made_store(serve, b"one", b"two")
    bad = [
        store / "config/topics.json", store / "config/topics.json.bak",
        store / "config/consumerOffset.json", store / "checkpoint",
    ]  # fmt: skip
    for path in bad:
        path.write_bytes(GARBAGE * 100)
    (store / "config/consumerOffset.json.bak").unlink(missing_ok=True)
    before = {path: path.read_bytes() for path in bad}
    ended = serve.refused()
    assert ended.code == 22
    assert ended.out == ""
    assert {path: path.read_bytes() for path in bad} == before
    assert not (store / "abort").exists(), "a start that was refused is no crash"
    line = ended.line
    assert line.startswith("error: ")
    for path in bad:
        assert str(path) in line
        assert f"mv '{path}' '{path}.lost'" in line
    words = shlex.split(line.replace(";", " ; ").replace("&&", " ; "))
    moves = [words[at : at + 3] for at, word in enumerate(words) if word == "mv"]
    assert len(moves) == len(bad)
    for move in moves:
        subprocess.run(move, check=True)
    running = serve()
    with running.client() as client:
        client.create("T", queues=2)
        assert [m.body for m in client.all_of("T")] == [b"one", b"two"]
    assert not running.recovery["clean"], "without a checkpoint a start takes the careful path"


def test_c040_an_empty_file_is_replaced_from_its_backup(serve: Starter) -> None:
    """C040: both are good again after a save, and the empty one has never become the backup."""
    store = made_store(serve, b"one")
    topics = store / "config/topics.json"
    backup = topics.with_suffix(".json.bak")
    assert b'"T"' in topics.read_bytes()
    backup.write_bytes(topics.read_bytes())
    topics.write_bytes(b"")
    running = serve()
    assert [line for line in running.log.splitlines() if str(topics) in line and "WARN" in line]
    with running.client() as client:
        assert client.max_offset("T", 1) == 0, "the topic has its two queues"
        client.create("U")
        wait_for(lambda: b'"U"' in topics.read_bytes(), "topics are saved")
        assert b'"T"' in backup.read_bytes()
    assert running.stop().code == 0
    assert b'"T"' in topics.read_bytes()
    assert b'"T"' in backup.read_bytes()
