"""Behaviours section 5: broadcasting (B039 to B043), and cases from the field (C118, C119)."""

from __future__ import annotations

import pytest

from .conftest import Cluster, Workshop
from .java_client import Java, Push, texts, wait_all_queues
from .polling import wait_for
from .raw import RawClient, Sender
from .scenes import bodies, exactly, got, push

ROUND = 16
MAX_OFFSET, UNREGISTER_BROKER = 30, 104


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


def test_c118_a_new_listener_misses_nothing_that_is_sent_after_its_start(
    java: Java, cluster: Cluster
) -> None:
    """It starts at the ends of the queues that it was told, however soon the next messages come."""
    topic = cluster.topic()
    producer = java.producer(cluster.ns)
    producer.send_ok(texts(topic, ROUND, "old"))
    (consumer,) = listeners(java, cluster, topic, 1)
    messages = texts(topic, 100, "new")
    with RawClient(cluster.brokers[0].address) as client:
        queues = [{"topic": topic, "queueId": str(number)} for number in range(8)]
        ends = [int(client.call(MAX_OFFSET, queue).ext["offset"]) for queue in queues]
        producer.send_ok(messages)
        again = [int(client.call(MAX_OFFSET, queue).ext["offset"]) for queue in queues]
    assert (sum(ends), sum(again)) == (ROUND, ROUND + 100)
    exactly(consumer, 100)
    assert got(consumer) == bodies(messages)


def test_c119_a_broker_that_was_away_for_a_while(java: Java, workshop: Workshop) -> None:
    """What is sent to a broker while its listeners do not see it is there for them when it is back."""
    settings = {"registerNameServerPeriod": "10000"}
    first = workshop.alone("b1", settings=settings)
    first.start()
    away = workshop.joining("b2", first.nameservers[0], settings=settings)
    away.start()
    cluster = workshop.cluster(first, away)
    topic = cluster.topic(2)
    consumer = java.push(cluster.ns, cluster.group(), (topic, "*"), broadcast=True)
    wait_all_queues([consumer], topic, 4)
    messages = texts(topic, 20, "before")
    java.producer(cluster.ns).send_ok(messages)
    exactly(consumer, 20)
    with RawClient(first.nameservers[0]) as nameserver:
        ext = {
            "brokerName": "b2", "brokerAddr": away.address, "clusterName": "DefaultCluster",
            "brokerId": "0",
        }  # fmt: skip
        assert nameserver.call(UNREGISTER_BROKER, ext).code == 0

    def out_of_sight() -> bool:
        consumer.rebalance()
        return {q.broker for q in consumer.assigned(topic)} == {"b1"}

    wait_for(out_of_sight, "b2 is out of sight", timeout_s=9)
    with RawClient(away.address) as client:
        hand = Sender(client, topic)
        assert all(hand.send(f"away-{n}".encode(), n % 2).code == 0 for n in range(20))
    consumer.wait(40, timeout_s=60)
    assert got(consumer) == sorted([*bodies(messages), *(f"away-{n}" for n in range(20))])
