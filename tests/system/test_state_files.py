"""Small files that a crash has spoilt: the start goes on without what does not matter, and says what does."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.system.processes import Starter, wait_for
from tests.system.stores import RawStore

pytestmark = pytest.mark.slow

NULS = bytes(180)
GARBAGE = b"\x93\x00 no JSON \xff" * 9


def made_store(serve: Starter, *bodies: bytes) -> Path:
    """A store with some messages in the first queue of topic T, as a clean stop leaves it."""
    store = RawStore(serve.store)
    for body in bodies:
        store.fill(1, ["T"], 1, body)
    store.close()
    return serve.store


def test_c043_c046_files_of_other_features_that_are_spoilt_stop_nothing(serve: Starter) -> None:
    """C043, C046: NUL bytes in delayOffset.json, empty metrics; their backups too.

    What they held is found again or not used, so the files only get other names, and a line says so.
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
    progress = b'{"offsetTable":{"T@G":[1,2]}}'
    for name, data in {**spoilt, "consumerOrderInfo.json": progress}.items():
        (config / name).write_bytes(data)
    running = serve()
    with running.client() as client:
        assert [m.body for m in client.all_of("T")] == [b"one"]
        client.sent("T", b"two")
    said = [line for line in running.log.splitlines() if " WARN " in line or " ERROR " in line]
    for name, data in spoilt.items():
        (kept,) = config.glob(f"{name}.bad-*")
        assert len([line for line in said if str(kept) in line]) == 1
        assert kept.read_bytes() == data
    assert running.stop().code == 0
    assert (config / "consumerOrderInfo.json").read_bytes() == progress


def test_c050_progress_of_delayed_messages_is_put_right_once(serve: Starter) -> None:
    """C050: levels whose progress lies behind the end of their queues; the second start has nothing to say."""
    config = made_store(serve, b"one") / "config"
    content = b'{"dataVersion":{"counter":3},"offsetTable":{1:6,2:9003}}'
    (config / "delayOffset.json").write_bytes(content)
    for right in (False, True):
        running = serve("--set", "flushDelayOffsetInterval=20")
        with running.client() as client:
            client.pull("T")
        assert ("delayOffset.json has level 2 at 9003" in running.log) is not right
        assert running.stop().code == 0
        assert b'"offsetTable":{1:0,2:0}' in (config / "delayOffset.json").read_bytes()
        assert b'"counter":3' in (config / "delayOffset.json").read_bytes()


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
    assert line.endswith(f"trio-mq recover --dry-run {store}")
    words = shlex.split(line.replace(";", " ; ").replace("&&", " ; "))
    moves = [words[at : at + 3] for at, word in enumerate(words) if word == "mv"]
    assert len(moves) == len(bad)
    for move in moves:
        subprocess.run(move, check=True)
    running = serve()
    with running.client() as client:
        client.create("T")
        assert [m.body for m in client.all_of("T")] == [b"one", b"two"]
    assert not running.recovery["clean"], "without a checkpoint a start takes the careful path"


def test_c040_an_empty_file_is_replaced_from_its_backup(serve: Starter) -> None:
    """C040, C046: both are good again after a save, and the empty one has never become the backup.

    The same goes for the progress of delayed messages.
    """
    config = made_store(serve, b"one") / "config"
    topics, backup = config / "topics.json", config / "topics.json.bak"
    backup.write_bytes(topics.read_bytes())
    topics.write_bytes(b"")
    (config / "delayOffset.json").write_bytes(b"")
    (config / "delayOffset.json.bak").write_bytes(b'{"offsetTable":{1:6,18:0,}}')
    running = serve()
    assert [line for line in running.log.splitlines() if str(topics) in line and "WARN" in line]
    assert [line for line in running.log.splitlines() if "delayOffset.json is empty" in line]
    with running.client() as client:
        assert client.max_offset("T") == 1, "the topic is there"
        client.create("U")
        wait_for(lambda: b'"U"' in topics.read_bytes(), "topics are saved")
        assert b'"T"' in backup.read_bytes()
    assert running.stop().code == 0
    assert b'"T"' in topics.read_bytes()
    assert b'"T"' in backup.read_bytes()
