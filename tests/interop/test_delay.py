"""Behaviours section 10: delay levels (B071, B072), and the cases C079 and C142 with real clients."""

from __future__ import annotations

from .conftest import Cluster
from .failing import failing
from .java_client import Java, texts

#: Level to the range that the delay of each message lies in, ms (behaviours, B071).
RANGES = {1: (1_000, 5_000), 2: (5_000, 10_000), 3: (10_000, 30_000), 4: (30_000, 60_000)}
COUNT = 100


def test_b071_c079_levels_come_after_their_delay(java: Java, cluster: Cluster) -> None:
    """C079 with it: nothing is stored in its own topic before it was due."""
    topics = {level: cluster.topic() for level in RANGES}
    consumers = {level: failing(java, cluster, topic, 0) for level, topic in topics.items()}
    for level, topic in topics.items():
        java.producer(cluster.ns).send_ok(texts(topic, COUNT, delayLevel=level))
    for level, (least_ms, most_ms) in RANGES.items():
        tries = consumers[level].wait_done(COUNT, most_ms / 1000 + 10)
        assert {t.body for t in tries} == {m["body"] for m in texts(topics[level], COUNT)}
        assert len(tries) == COUNT
        delays = [t.at - t.born for t in tries]
        assert least_ms <= min(delays), level
        assert max(delays) <= most_ms, level
        assert all(t.stored - t.born >= least_ms for t in tries)
        assert {t.topic for t in tries} == {topics[level]}
