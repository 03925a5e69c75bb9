"""``trio-mq recover`` beside and after a whole broker process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.system.client import Client
from tests.system.processes import SMALL_FILES, Serving, Starter
from tests.system.stores import RawStore

pytestmark = pytest.mark.slow

QUEUES = 4


def recover(store: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "trio_mq", "recover", str(store), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def fill(client: Client, count: int) -> None:
    """Create a topic and send some messages to it."""
    client.create("T", QUEUES)
    for number in range(count):
        client.sent("T", b"body %d" % number, number % QUEUES, f"KEYS\x01k{number}\x02")


async def test_a_dry_run_beside_a_running_broker_tells_its_process(serve: Starter) -> None:
    running: Serving = serve(*SMALL_FILES)
    pid, ended = running.child.pid, trio.Event()

    def send_on() -> None:
        with running.client() as other:
            while not ended.is_set():
                other.sent("T", b"more" * 50)

    with running.client() as client:
        fill(client, 120)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, send_on)
            for _ in range(2):
                done = await trio.to_thread.run_sync(recover, serve.store, "--dry-run", "--json")
                assert done.returncode in (0, 1), done.stdout
                check_look(json.loads(done.stdout), pid)
            ended.set()
        text = recover(serve.store, "--dry-run").stdout
        assert f"the store is open in process {pid}" in text

        refused = recover(serve.store)
        assert refused.returncode == 3
        assert f"is open in process {pid}" in refused.stderr
        assert client.sent("T", b"still alive") >= 0


def check_look(table: dict[str, Any], pid: int) -> None:
    """What a dry run tells of a store that is written to."""
    load = table["phases"]["load"]
    assert load["open_in_process"] == pid
    assert load["clean"] is False
    assert load["log"]["records"] >= 120
    assert table["lost"]["records"] == 0


def test_a_killed_brokers_store_is_recovered_offline(serve: Starter) -> None:
    running: Serving = serve(*SMALL_FILES)
    with running.client() as client:
        fill(client, 120)
    running.kill()
    before = recover(serve.store, "--dry-run", "--json")
    assert before.returncode in (0, 1)
    done = recover(serve.store)
    assert done.returncode == before.returncode
    assert not (serve.store / "abort").exists()
    assert recover(serve.store, "--dry-run").returncode == 0
    again: Serving = serve(*SMALL_FILES)
    assert again.recovery["clean"] is True
    with again.client() as client:
        assert sum(len(client.all_of("T", queue_id)) for queue_id in range(QUEUES)) == 120
    again.stop()


MOST_BYTES = 100 * 1024 * 1024
"""Memory of a dry run, whatever the store."""


@pytest.mark.parametrize("with_queues", [True, False])
def test_memory_does_not_grow_with_the_log(tmp_path: Path, with_queues: bool) -> None:
    script = (
        "import sys\n"
        "from trio_mq.cli.app import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    status = dict(line.split(':') for line in open('/proc/self/status'))\n"
        "    print(int(status['VmHWM'].split()[0]) * 1024, file=sys.stderr)\n"
    )
    used = []
    for count in (20_000, 80_000):
        store = RawStore(tmp_path / f"store{count}", 64 * 1024 * 1024)
        store.fill(count, ["A", "B"], 4, b"x" * 400)
        store.close(crashed=True, with_queues=with_queues)
        done = subprocess.run(
            [sys.executable, "-c", script, "recover", str(store.root), "--dry-run", "--quiet"],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode in (0, 1), done.stderr
        assert f"{count} records of 8 queues" in done.stdout
        used.append(int(done.stderr.splitlines()[-1]))
    assert max(used) < MOST_BYTES
    assert used[1] - used[0] < 16 * 1024 * 1024
