"""kill -9 while every kind of messaging is under load at once: none lost, order kept, copies only around the kill.

The small brother of ``python -m bench.messaging --kill``, with the same loads and the same clients.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.messaging_loads import KILL_SETTINGS, KINDS, Load, Loads, loads, settle_s

from . import peers
from .conftest import Workshop
from .polling import sleep, wait_for

MESSAGES = 2_000
# All kinds together: slow enough that the kill meets each of them in the middle.
PACE = 400
SEED = int(os.environ.get("TRIO_MQ_KILL_SEED") or 0)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Loads]:
    """The process that makes the loads; it lives through the kill."""
    client = loads(tmp_path, (*peers.FAST_JVM, "-Xmx512m"))
    yield client
    client.driver.close()


def begun(running: list[Load], share: float) -> bool:
    """Whether all have begun, and the quickest has this share of its messages acknowledged."""
    counts = [load.progress()[0] for load in running]
    return min(counts) > 0 and max(counts) >= share * MESSAGES


def test_every_kind_survives_a_kill(workshop: Workshop, client: Loads) -> None:
    share = random.Random(SEED or None).uniform(0.2, 0.6)
    server = workshop.alone(settings=KILL_SETTINGS)
    server.start()
    ns = server.nameservers[0]
    running = [client.start(ns, kind, MESSAGES, threads=8, pace=PACE) for kind in KINDS]
    for load in running:
        load.go()
    wait_for(lambda: begun(running, share), f"{share:.0%} are sent", timeout_s=60, every_s=0.02)
    server.kill()
    assert all(load.progress()[0] < MESSAGES for load in running), "killed in the middle"
    server.start()
    for load in running:
        load.wait(patience_s=45)
    sleep(max(map(settle_s, KINDS)))
    faults = {}
    for load in running:
        outcome = load.outcome(patience_s=1, settle_s=0)
        print(f"{load.kind}: {outcome}")
        wrong = outcome.faults(load.kind, killed=True)
        if wrong:
            faults[load.kind] = (wrong, outcome)
    assert not faults, f"killed when {share:.0%} were sent: {faults}"
