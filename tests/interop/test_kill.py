"""kill -9 under load: with sync flush every acknowledged message is there, in order, once per queue offset.

Twenty rounds in CI, fewer elsewhere (``TRIO_MQ_KILL_ROUNDS``).
"""

from __future__ import annotations

import os
import random

import pytest

from .conftest import Workshop
from .java_client import Acked, Java, Queue, Received
from .polling import sleep, wait_for

QUEUES = 4
ROUNDS = int(os.environ.get("TRIO_MQ_KILL_ROUNDS") or (20 if os.environ.get("CI") == "true" else 5))
SEED = 20_240


def number(body: str) -> int:
    """Bodies end in a number that rises within a queue."""
    return int(body.rstrip("x").rsplit(":", 1)[1])


def check(found: list[Received], starts: dict[int, int], acked: list[Acked]) -> dict[int, int]:
    """One queue after the other: offsets without a gap, bodies rising, all acknowledged ones in their places."""
    ends = dict(starts)
    for queue in range(QUEUES):
        mine = [m for m in found if m.queue == queue]
        assert [m.queue_offset for m in mine] == list(
            range(starts[queue], starts[queue] + len(mine))
        )
        numbers = [number(m.body or "") for m in mine]
        assert numbers == sorted(set(numbers)), "in order, and none twice"
        ends[queue] += len(mine)
    places = {(m.queue, m.queue_offset): (m.body or "").rstrip("x") for m in found}
    lost = [a for a in acked if places.get((a.queue, a.queue_offset)) != a.body]
    assert not lost, f"{len(lost)} of {len(acked)} acknowledged messages are lost: {lost[:3]}"
    return ends


@pytest.mark.parametrize("filler", [0, 900], ids=["short", "1KB"])
def test_no_acknowledged_message_is_lost(workshop: Workshop, java: Java, filler: int) -> None:
    rounds = ROUNDS if workshop.kind == "trio" else min(ROUNDS, 3)
    if filler:
        rounds = max(1, rounds // 4)
    chance = random.Random(SEED)
    server = workshop.alone(flush="sync", settings={"mappedFileSizeCommitLog": "4194304"})
    server.start()
    cluster = workshop.cluster(server)
    topic, group = cluster.topic(QUEUES), cluster.group()
    queues = [Queue(topic, "b1", q) for q in range(QUEUES)]
    producer = java.producer(cluster.ns, timeoutMs=1000, retries=0)
    everything: list[Acked] = []
    starts = dict.fromkeys(range(QUEUES), 0)
    for turn in range(rounds):
        load = producer.background(
            topic, queues=queues, prefix="", first=turn * 1_000_000, filler=filler
        )
        wait_for(lambda b=load: b.count() >= 100, "the load runs", timeout_s=60)
        sleep(chance.uniform(0.0, 0.4))
        server.kill()
        acked, _unknown = load.stop()
        everything += acked
        server.start()
        pull = java.pull(cluster.ns, group)
        offsets = {q: starts[q.queue] for q in queues}
        found, _ = pull.drain(queues, offsets=offsets)
        pull.leave()
        starts = check(found, starts, acked)
    pull = java.pull(cluster.ns, group)
    found, _ = pull.drain(queues)
    assert check(found, dict.fromkeys(range(QUEUES), 0), everything) == starts
    assert len(everything) >= 100 * rounds
    # And it takes new ones at the right places.
    sent = producer.send_ok([{"topic": topic, "body": "after:1"}] * QUEUES)
    assert all(s.queue_offset >= starts[s.queue] for s in sent)
