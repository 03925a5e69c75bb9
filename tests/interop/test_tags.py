"""Behaviours section 3: tags, several tags, several topics (B022 to B032)."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Cluster
from .java_client import (
    Java,
    Push,
    Queue,
    assigned,
    expect_together,
    text,
    texts,
    together,
    wait_assigned,
)
from .polling import holds_for, sleep, wait_for
from .raw import RawClient, pull_fields, records
from .scenes import all_queues, bodies, exactly, got, members, push, wait_total

Messages = list[dict[str, Any]]


def tagged(topic: str, tag: str, count: int = 10, prefix: str = "") -> Messages:
    """Messages with one tag."""
    return texts(topic, count, f"{prefix}{tag}", tags=tag)


def plain(topic: str, count: int = 10) -> Messages:
    """Messages that never had a tag."""
    return texts(topic, count, "plain")


def null_tag(topic: str, count: int = 10) -> Messages:
    """Messages whose tag was set to null."""
    return texts(topic, count, "null", tags=None)


def mixed(*kinds: Messages) -> Messages:
    """One of each in turn."""
    return [m for group in zip(*kinds, strict=True) for m in group]


def test_b022_one_tag(java: Java, cluster: Cluster) -> None:
    only, other = cluster.topic(), cluster.topic()
    first = push(java, cluster, (only, "A"))
    second = push(java, cluster, (other, "A"))
    producer = java.producer(cluster.ns)
    producer.send_ok(tagged(only, "A"))
    producer.send_ok(null_tag(other) + tagged(other, "A") + plain(other))
    exactly(first, 10)
    exactly(second, 10)
    assert got(second) == bodies(tagged(other, "A"))


@pytest.mark.parametrize("expression", ["*", None], ids=["star", "null"])
def test_b023_everything(java: Java, cluster: Cluster, expression: str | None) -> None:
    producer = java.producer(cluster.ns)
    topic = cluster.topic()
    consumer = push(java, cluster, (topic, expression))
    seen = 0
    for kind in (plain(topic), null_tag(topic), tagged(topic, "A")):
        producer.send_ok(kind)
        seen += 10
        exactly(consumer, seen)
    producer.send_ok(mixed(plain(topic), null_tag(topic), tagged(topic, "A")))
    exactly(consumer, seen + 30)


def test_b024_two_tags(java: Java, cluster: Cluster) -> None:
    producer = java.producer(cluster.ns)
    topics = [cluster.topic() for _ in range(4)]
    consumers = [
        push(java, cluster, (topic, "B||none" if i == 1 else "A||B"))
        for i, topic in enumerate(topics)
    ]
    producer.send_ok(tagged(topics[0], "A"))
    producer.send_ok(tagged(topics[1], "A") + tagged(topics[1], "B"))
    producer.send_ok(mixed(tagged(topics[2], "A"), tagged(topics[2], "B")))
    producer.send_ok(mixed(*(tagged(topics[3], tag) for tag in "ABC")))
    exactly(consumers[0], 10)
    exactly(consumers[1], 10)
    assert got(consumers[1]) == bodies(tagged(topics[1], "B"))
    exactly(consumers[2], 20)
    exactly(consumers[3], 20)
    assert got(consumers[3]) == bodies(tagged(topics[3], "A") + tagged(topics[3], "B"))


def test_b025_a_tag_that_nobody_uses(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    nothing = push(java, cluster, (topic, "D"))
    everything = push(java, cluster, (topic, "*"))
    java.producer(cluster.ns).send_ok(mixed(*(tagged(topic, tag) for tag in "ABC")))
    exactly(everything, 30)
    holds_for(lambda: nothing.count() == 0, "nothing matches", seconds=1)


@pytest.mark.parametrize("in_turn", [True, False], ids=["one_after_the_other", "mixed"])
def test_b026_two_groups(java: Java, cluster: Cluster, in_turn: bool) -> None:
    topic = cluster.topic()
    consumers = [push(java, cluster, (topic, e)) for e in ("A", "B", "A||B", "A|| none")]
    a, b = tagged(topic, "A"), tagged(topic, "B")
    java.producer(cluster.ns).send_ok(a + b if in_turn else mixed(a, b))
    for consumer, wanted in zip(consumers, (a, b, a + b, a), strict=True):
        exactly(consumer, len(wanted))
        assert got(consumer) == bodies(wanted)


def test_b027_four_groups(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    consumers = [push(java, cluster, (topic, e)) for e in ("A||B", "A|| none", "A", "*")]
    producer = java.producer(cluster.ns)
    producer.send_ok(plain(topic))
    producer.send_ok(mixed(tagged(topic, "A"), tagged(topic, "B")))
    for consumer, count in zip(consumers, (20, 10, 10, 30), strict=True):
        exactly(consumer, count)


@pytest.mark.parametrize("case", ["starts with it", "starts later", "stops meanwhile"])
def test_b028_a_neighbour_that_subscribes_an_unknown_topic(
    java: Java, cluster: Cluster, case: str
) -> None:
    topic = cluster.topic()
    consumer = push(java, cluster, (topic, "A"))
    producer = java.producer(cluster.ns)
    unknown = f"{topic}_unknown"
    if case == "starts with it":
        java.push(cluster.ns, cluster.group(), (unknown, "*"))
        producer.send_ok(tagged(topic, "A", 20))
        exactly(consumer, 20)
        return
    neighbour = None
    if case == "stops meanwhile":
        neighbour = java.push(cluster.ns, cluster.group(), (unknown, "*"))
    sending = producer.background(topic, prefix="A", tag="A", count=100, gapMs=20)
    sleep(0.7)
    if neighbour is None:
        java.push(cluster.ns, cluster.group(), (unknown, "*"))
    else:
        neighbour.stop()
    acked, unknown_fate = sending.join()
    assert (len(acked), unknown_fate) == (100, [])
    exactly(consumer, 100)


def test_b029_two_tags_with_one_hash(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    consumer = push(java, cluster, (topic, "Aa"))
    pull = java.pull(cluster.ns, cluster.group())
    java.producer(cluster.ns).send_ok(tagged(topic, "BB") + tagged(topic, "Aa"))
    exactly(consumer, 10)
    assert got(consumer) == bodies(tagged(topic, "Aa"))
    found, _ = pull.drain(all_queues(topic, cluster), "Aa")
    assert sorted(m.body or "" for m in found) == bodies(tagged(topic, "Aa"))


def test_b030_a_queue_without_any_match(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic(1)
    queue = Queue(topic, "b1", 0)
    producer = java.producer(cluster.ns)
    for i in range(10):
        producer.batch([text(topic, f"{i}-{n}", tags="B") for n in range(100)], to=queue)
    wait_total(cluster, topic, 1000)
    offset, pulls = 0, 0
    with RawClient(cluster.brokers[0].address) as client:
        while offset < 1000:
            reply = client.call(
                11, pull_fields("TOOLS_CONSUMER", topic, 0, offset, subscription="A")
            )
            assert reply.code == 20, reply.remark
            following = int(reply.ext["nextBeginOffset"])
            assert following > offset, "never an endless loop"
            offset, pulls = following, pulls + 1
        reply = client.call(11, pull_fields("TOOLS_CONSUMER", topic, 0, offset, subscription="A"))
        assert (reply.code, reply.ext["nextBeginOffset"]) == (19, "1000")
        producer.send_ok([text(topic, "wanted", tags="A")], to=queue)
        wait_total(cluster, topic, 1001)
        reply = client.call(11, pull_fields("TOOLS_CONSUMER", topic, 0, offset, subscription="A"))
        assert [r.body for r in records(reply.body)] == [b"wanted"]
    found, unmatched = java.pull(cluster.ns, cluster.group()).drain([queue], "A")
    assert [m.body for m in found] == ["wanted"]
    assert unmatched >= 1


def second_topic(consumers: list[Push], topic: str, tag: str | None, queues: int) -> None:
    """Subscribe at run time and wait until the new topic's queues are shared.

    A client that hears "subscription changed" before it knows the new route does nothing until its next
    20 s are over, so it is reminded.
    """
    for consumer in consumers:
        consumer.subscribe(topic, tag or "*")

    def shared() -> bool:
        for consumer in consumers:
            consumer.rebalance()
        return sum(len(share) for share in assigned(consumers, topic)) == queues

    wait_for(shared, f"{queues} queues of {topic} are shared", every_s=0.2)
    wait_assigned(consumers, topic, queues)


@pytest.mark.parametrize("tag", [None, "T1"])
def test_b031_a_second_topic_at_run_time(java: Java, cluster: Cluster, tag: str | None) -> None:
    first, second = cluster.topic(), cluster.topic()
    consumer = push(java, cluster, (first, "*"))
    second_topic([consumer], second, tag, 8)
    producer = java.producer(cluster.ns)
    if tag:
        producer.send_ok(tagged(second, "T2"))
    wanted = texts(first, 10, "first") + tagged(second, "T1")
    producer.send_ok(wanted)
    exactly(consumer, 20)
    assert got(consumer) == bodies(wanted)


@pytest.mark.parametrize("tag", [None, "T1"])
@pytest.mark.parametrize("groups", [1, 2])
def test_b032_two_consumers_with_a_second_topic(
    java: Java, cluster: Cluster, groups: int, tag: str | None
) -> None:
    first, second = cluster.topic(), cluster.topic()
    producer = java.producer(cluster.ns)
    if groups == 1:
        consumers = members(java, cluster, first, 2)
        second_topic(consumers, second, tag, 8)
    else:
        consumers = [push(java, cluster, (first, "*")) for _ in range(2)]
        for consumer in consumers:
            second_topic([consumer], second, tag, 8)
    if tag:
        producer.send_ok(tagged(second, "T2"))
    wanted = texts(first, 10, "first") + tagged(second, "T1")
    producer.send_ok(wanted)
    expect_together(consumers, 20 * groups)
    assert sorted(set(got(*consumers))) == bodies(wanted)
    sleep(0.3)
    assert together(consumers, 0, 0) == 20 * groups
