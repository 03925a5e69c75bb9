"""Behaviours section 5: broadcasting (B039 to B043)."""

from __future__ import annotations

import pytest

from .conftest import Cluster
from .java_client import Java, Push, texts, wait_all_queues
from .raw import RawClient
from .scenes import bodies, exactly, got, push

ROUND = 16


def listeners(
    java: Java,
    cluster: Cluster,
    topic: str,
    count: int = 2,
    group: str | None = None,
    tag: str = "*",
) -> list[Push]:
    """Broadcast consumers that all have all queues."""
    group = group or cluster.group()
    consumers = [java.push(cluster.ns, group, (topic, tag), broadcast=True) for _ in range(count)]
    wait_all_queues(consumers, topic, 8)
    return consumers


@pytest.mark.parametrize("groups", [1, 2])
def test_b039_each_gets_everything(java: Java, cluster: Cluster, groups: int) -> None:
    topic = cluster.topic()
    if groups == 1:
        group = cluster.group()
        consumers = listeners(java, cluster, topic, group=group)
    else:
        consumers = [listeners(java, cluster, topic, 1)[0] for _ in range(2)]
    messages = texts(topic, ROUND)
    java.producer(cluster.ns).send_ok(messages)
    for consumer in consumers:
        exactly(consumer, ROUND)
        assert got(consumer) == bodies(messages)
    if groups == 1:
        # Offsets of such a group live with the clients; the broker has none.
        with RawClient(cluster.brokers[0].address) as client:
            for queue in range(8):
                ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
                assert client.call(14, {**ext, "setZeroIfNotFound": "false"}).code == 22


def test_b040_a_late_listener_gets_nothing_old(java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    (first,) = listeners(java, cluster, topic, 1, group)
    producer = java.producer(cluster.ns)
    producer.send_ok(texts(topic, ROUND, "old"))
    exactly(first, ROUND)
    (second,) = listeners(java, cluster, topic, 1, group)
    new = texts(topic, ROUND, "new")
    producer.send_ok(new)
    exactly(first, 2 * ROUND)
    exactly(second, ROUND)
    assert got(second) == bodies(new)


def test_b041_one_stops_the_other_goes_on(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    first, second = listeners(java, cluster, topic)
    producer = java.producer(cluster.ns)
    producer.send_ok(texts(topic, ROUND, "old"))
    for consumer in (first, second):
        exactly(consumer, ROUND)
    second.stop()
    producer.send_ok(texts(topic, ROUND, "new"))
    exactly(first, 2 * ROUND)


def test_b042_with_a_tag(java: Java, cluster: Cluster) -> None:
    topic, other = cluster.topic(), cluster.topic()
    producer = java.producer(cluster.ns)
    consumers = listeners(java, cluster, topic, tag="T")
    producer.send_ok(texts(topic, 20, tags="T"))
    for consumer in consumers:
        exactly(consumer, 20)
    consumers = listeners(java, cluster, other, tag="T")
    wanted = texts(other, 40, "T", tags="T")
    producer.send_ok(texts(other, 40, "U", tags="U") + wanted)
    for consumer in consumers:
        exactly(consumer, 40)
        assert got(consumer) == bodies(wanted)


def test_b043_two_subscriptions_in_one_group(java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    (everything,) = listeners(java, cluster, topic, 1, group, "*")
    (tagged,) = listeners(java, cluster, topic, 1, group, "T")
    java.producer(cluster.ns).send_ok(texts(topic, 40, tags="T"))
    exactly(everything, 40)
    exactly(tagged, 40)


def test_broadcast_and_cluster_groups_do_not_disturb_each_other(
    java: Java, cluster: Cluster
) -> None:
    topic = cluster.topic()
    listener = listeners(java, cluster, topic, 1)[0]
    worker = push(java, cluster, (topic, "*"))
    java.producer(cluster.ns).send_ok(texts(topic, ROUND))
    exactly(listener, ROUND)
    exactly(worker, ROUND)
