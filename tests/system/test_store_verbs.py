"""``trio-mq store`` beside a whole broker that is being written to, and before one that serves what was imported."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.system.client import Client
from tests.system.processes import SMALL_FILES, Starter

pytestmark = pytest.mark.slow

QUEUES = 4


def store(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end."""
    return subprocess.run(
        [sys.executable, "-m", "trio_mq", "store", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def fill(client: Client, topic: str, count: int) -> None:
    """Create a topic and send some messages to it."""
    client.create(topic, QUEUES)
    for number in range(count):
        client.sent(topic, b"body %d" % number, number % QUEUES, f"KEYS\x01k{number}\x02")


async def test_a_store_that_is_being_written_is_sound(serve: Starter) -> None:
    """Nothing that a broker is just writing is taken for damage."""
    running, ended = serve(*SMALL_FILES), trio.Event()
    root = str(serve.store)

    def send_on() -> None:
        with running.client() as other:
            number = 0
            while not ended.is_set():
                other.sent(
                    "T", b"more" * 50, number % QUEUES, f"KEYS\x01m{number}\x02TAGS\x01t\x02"
                )
                number += 1

    with running.client() as client:
        fill(client, "T", 200)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, send_on)
            try:
                for _ in range(2):
                    done = await trio.to_thread.run_sync(partial(store, "verify", root, "--json"))
                    found = json.loads(done.stdout)
                    assert (done.returncode, found["findings"]) == (0, []), done.stdout
                    assert found["counted"]["records"] >= 200
                listed = await trio.to_thread.run_sync(partial(store, "ls", root, "--json"))
                assert json.loads(listed.stdout)["abort"] is True
                shown = await trio.to_thread.run_sync(
                    partial(store, "cat", root, "--topic", "T", "--key", "k17", "--format", "json")
                )
                assert json.loads(shown.stdout)["bodyText"] == "body 17"
            finally:
                ended.set()
    assert running.stop().code == 0
    assert store("verify", root).returncode == 0


def test_clients_consume_what_was_imported(serve: Starter, tmp_path: Path) -> None:
    source, target, lines = serve.store, tmp_path / "other", str(tmp_path / "lines")
    first = serve(*SMALL_FILES)
    with first.client() as client:
        fill(client, "Orders", 100)
        before = [client.all_of("Orders", queue_id) for queue_id in range(QUEUES)]
    assert first.stop().code == 0
    assert store("export", str(source), "--topic", "Orders", "--out", lines).returncode == 0
    sizes = [option for option in SMALL_FILES if "=" in option]
    given = [word for size in sizes for word in ("--set", size)]
    done = store("import", str(target), lines, "--topic-map", "Orders=Copied", *given)
    assert (done.returncode, done.stdout) == (0, "100 messages imported into Copied\n"), done.stderr

    second = serve(*SMALL_FILES, store=target)
    assert second.recovery["clean"] is True
    with second.client() as client, Client(second.nameserver) as names:
        (queues,) = names.route("Copied").queue_datas
        assert (queues.read_queue_nums, queues.write_queue_nums) == (QUEUES, QUEUES)
        for queue_id in range(QUEUES):
            after = client.all_of("Copied", queue_id)
            assert [m.body for m in after] == [m.body for m in before[queue_id]]
            assert [m.properties for m in after] == [m.properties for m in before[queue_id]]
            assert [m.queue_offset for m in after] == list(range(25))
            assert client.sent("Copied", b"and more", queue_id) == 25
    assert second.stop().code == 0
    assert store("verify", str(target)).returncode == 0
