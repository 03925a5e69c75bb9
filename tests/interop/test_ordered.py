"""Behaviours section 7: ordered consumption (B051 to B055); it needs the broker's locks of queues.

"Ordered": per queue the bodies, sent as rising numbers, arrive rising.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from .conftest import Cluster
from .java_client import (
    Java,
    Producer,
    Push,
    Queue,
    expect_together,
    text,
    wait_all_queues,
    wait_assigned,
)
from .scenes import all_queues, exactly


def orderly(java: Java, cluster: Cluster, group: str, topic: str, tag: str = "*") -> Push:
    """A consumer with an orderly listener that begins at the first message."""
    return java.push(cluster.ns, group, (topic, tag), orderly=True, start="FIRST_OFFSET")


def listeners(
    java: Java, cluster: Cluster, topic: str, count: int = 1, tag: str = "*"
) -> list[Push]:
    """Consumers of one group with an orderly listener.

    They begin at the first message: Java's asks once more where to begin when it pulls an ordered queue for the first
    time, and from the end it would leave out what was sent since the queue became its own.
    """
    group = cluster.group()
    consumers = [orderly(java, cluster, group, topic, tag) for _ in range(count)]
    wait_assigned(consumers, topic, cluster.queues)
    return consumers


def fill(producer: Producer, queues: Sequence[Queue], numbers: range, tag: str = "T1") -> int:
    """Rising numbers to each queue; how many in all."""
    for queue in queues:
        producer.batch([text(queue.topic, f"{n:05d}", tags=tag) for n in numbers], to=queue)
    return len(queues) * len(numbers)


def ordered(consumers: Sequence[Push], repeats: bool = False) -> None:
    """Each consumer saw each queue rising; with ``repeats`` one may come again directly after itself."""
    for consumer in consumers:
        seen: dict[Queue, str] = {}
        for m in consumer.received():
            queue = Queue(m.topic, m.broker or "", m.queue)
            last, body = seen.get(queue, ""), m.body or ""
            assert last < body or (repeats and last == body), f"{body} after {last} in {queue}"
            seen[queue] = body


@pytest.mark.parametrize("case", ["every queue", "one queue", "three queues"])
def test_b051_one_consumer(java: Java, cluster3: Cluster, case: str) -> None:
    topic = cluster3.topic()
    consumers = listeners(java, cluster3, topic)
    queues, producer = all_queues(topic, cluster3), java.producer(cluster3.ns)
    if case == "one queue":
        sent = fill(producer, queues[:1], range(20))
    elif case == "three queues":
        sent = fill(producer, [queues[0], queues[1], queues[-1]], range(10))
    else:
        sent = fill(producer, queues, range(10))
    exactly(consumers, sent)
    ordered(consumers)


@pytest.mark.parametrize(("count", "each"), [(2, 10), (4, 20)])
def test_b052_shares_are_even_and_ordered(
    java: Java, cluster3: Cluster, count: int, each: int
) -> None:
    topic = cluster3.topic()
    consumers = listeners(java, cluster3, topic, count)
    sent = fill(java.producer(cluster3.ns), all_queues(topic, cluster3), range(each))
    exactly(consumers, sent)
    ordered(consumers)
    assert all(108 <= c.count() <= 132 for c in consumers)


@pytest.mark.parametrize("count", [2, 3])
def test_b053_the_last_consumer_stops(java: Java, cluster3: Cluster, count: int) -> None:
    topic = cluster3.topic()
    consumers = listeners(java, cluster3, topic, count)
    queues, producer = all_queues(topic, cluster3), java.producer(cluster3.ns)
    fill(producer, queues, range(10))
    consumers[-1].halt()
    fill(producer, queues, range(10, 20))
    expect_together(consumers, 480, timeout_s=60)
    ordered(consumers, repeats=True)
    seen = {(m.broker, m.queue, m.body) for c in consumers for m in c.received()}
    assert len(seen) == 480


@pytest.mark.parametrize(("tag", "mixed"), [("*", False), ("T1", False), ("T1", True)])
def test_b054_with_tags(java: Java, cluster3: Cluster, tag: str, mixed: bool) -> None:
    topic = cluster3.topic()
    consumers = listeners(java, cluster3, topic, tag=tag)
    queues, producer = all_queues(topic, cluster3), java.producer(cluster3.ns)
    if mixed:
        fill(producer, queues, range(5), "T2")
    wanted = fill(producer, queues, range(5, 10), "T1")
    exactly(consumers, wanted)
    ordered(consumers)


def test_b055_two_groups_and_two_tags(java: Java, cluster3: Cluster) -> None:
    topic = cluster3.topic()
    (first,) = listeners(java, cluster3, topic, tag="T1")
    (second,) = listeners(java, cluster3, topic, tag="T2")
    (both,) = listeners(java, cluster3, topic, tag="T1||T2")
    queues, producer = all_queues(topic, cluster3), java.producer(cluster3.ns)
    fill(producer, queues, range(10), "T1")
    fill(producer, queues, range(10, 20), "T2")
    for consumer, wanted in ((first, 240), (second, 240), (both, 480)):
        exactly(consumer, wanted)
        ordered([consumer])


def test_locks_are_given_back_to_the_next_consumer(java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    first = orderly(java, cluster, group, topic)
    wait_all_queues([first], topic, 8)
    queues, producer = all_queues(topic, cluster), java.producer(cluster.ns)
    fill(producer, queues, range(5))
    exactly(first, 40)
    first.stop()
    second = orderly(java, cluster, group, topic)
    fill(producer, queues, range(5, 10))
    exactly(second, 40, timeout_s=40)
    ordered([second])
