"""Behaviours section 6: clustering and rebalance (B045 to B050), and B056 of section 7: locks of queues."""

from __future__ import annotations

import json

import pytest

from .conftest import Cluster
from .java_client import (
    Java,
    Push,
    expect_together,
    texts,
    together,
    unique,
    wait_all_queues,
    wait_assigned,
)
from .polling import sleep, wait_for
from .raw import RawClient, heartbeat
from .scenes import bodies, exactly, got, members

HEART_BEAT, CONSUMER_LIST, IDS_CHANGED, UNREGISTER, LOCK, UNLOCK = 34, 38, 40, 35, 41, 42


def hand_over(cluster: Cluster, group: str, topic: str, consumers: list[Push]) -> None:
    """Offsets to the broker first: they go one-way, so a stop alone may be overtaken by the next owner."""

    def all_committed() -> bool:
        for consumer in consumers:
            consumer.persist()
        return cluster.admin.consume_stats(group, topic).lag == 0

    wait_for(all_committed, "every offset is committed", every_s=0.2)


@pytest.mark.parametrize(("count", "messages"), [(2, 400), (4, 600)])
def test_b045_shares_are_even(java: Java, cluster3: Cluster, count: int, messages: int) -> None:
    topic = cluster3.topic()
    consumers = members(java, cluster3, topic, count)
    sent = texts(topic, messages)
    java.producer(cluster3.ns).send_ok(sent)
    exactly(consumers, messages)
    assert got(*consumers) == bodies(sent)
    share = messages // count
    assert all(0.9 * share <= c.count() <= 1.1 * share for c in consumers)


def test_b046_the_last_one_left_takes_all(java: Java, cluster3: Cluster) -> None:
    topic, group = cluster3.topic(), cluster3.group()
    first, second = members(java, cluster3, topic, 2, group)
    producer = java.producer(cluster3.ns)
    producer.send_ok(texts(topic, 400, "old"))
    exactly([first, second], 400)
    before = first.count()
    assert 180 <= before <= 220
    hand_over(cluster3, group, topic, [first, second])
    second.halt()
    new = texts(topic, 400, "new")
    producer.send_ok(new)
    first.wait(before + 400, timeout_s=60)
    assert sorted(first.bodies(before)) == bodies(new)
    exactly([first, second], 800)


def test_b047_two_of_three_stay(java: Java, cluster3: Cluster) -> None:
    topic, group = cluster3.topic(), cluster3.group()
    *left, last = members(java, cluster3, topic, 3, group)
    producer = java.producer(cluster3.ns)
    producer.send_ok(texts(topic, 400, "old"))
    exactly([*left, last], 400)
    before = [c.count() for c in left]
    hand_over(cluster3, group, topic, [*left, last])
    last.stop()
    wait_assigned(left, topic, 24)
    producer.send_ok(texts(topic, 400, "new"))
    exactly(left, sum(before) + 400)
    assert all(180 <= c.count() - old <= 220 for c, old in zip(left, before, strict=True))


def test_b048_the_queue_listener_hears_of_a_second_consumer(java: Java, cluster3: Cluster) -> None:
    topic, group = cluster3.topic(), cluster3.group()
    first = java.push(cluster3.ns, group, (topic, "*"))
    wait_all_queues([first], topic, 24)
    heard = len(first.changes())
    java.push(cluster3.ns, group, (topic, "*"))
    change = wait_for(
        lambda: [c for c in first.changes()[heard:] if c["topic"] == topic],
        "the listener fires",
        timeout_s=30,
    )[-1]
    assert change == {"topic": topic, "all": 24, "mine": 12, "part": True}


@pytest.mark.parametrize(
    ("messages", "start", "join", "leave"),
    [
        (100, 1, 1, 0),
        (100, 1, 2, 0),
        (100, 2, 0, 1),
        (100, 3, 0, 2),
        (150, 1, 1, 1),
        (150, 1, 2, 2),
    ],
)
def test_b049_nothing_is_lost_while_consumers_come_and_go(
    java: Java, cluster3: Cluster, messages: int, start: int, join: int, leave: int
) -> None:
    topic, group = cluster3.topic(), cluster3.group()
    consumers = members(java, cluster3, topic, start, group)
    sending = java.producer(cluster3.ns).background(topic, prefix="m", count=messages, gapMs=25)
    sleep(0.8)
    joined = [java.push(cluster3.ns, group, (topic, "*")) for _ in range(join)]
    if join and leave:
        sleep(1.2)
    for consumer in (joined or consumers[1:])[:leave]:
        consumer.halt()
    acked, unknown = sending.join()
    assert (len(acked), unknown) == (messages, [])
    expect_together([*consumers, *joined], messages, distinct=True)


def test_b050_a_cut_connection_leaves_the_group_at_once(java: Java, cluster3: Cluster) -> None:
    topic, group = cluster3.topic(), cluster3.group()
    survivor = java.push(cluster3.ns, group, (topic, "*"))
    wait_all_queues([survivor], topic, 24)
    lost, watcher = unique("raw@lost"), unique("raw@watcher")
    clients = [(RawClient(b.address), RawClient(b.address)) for b in cluster3.brokers]
    for cut, watching in clients:
        assert cut.call(HEART_BEAT, body=heartbeat(lost, group, topic)).code == 0
        assert watching.call(HEART_BEAT, body=heartbeat(watcher, group, topic)).code == 0
    wait_assigned([survivor], topic, 8)
    for cut, watching in clients:
        listed = watching.call(CONSUMER_LIST, {"consumerGroup": group}).json()["consumerIdList"]
        assert set(listed) == {lost, watcher, survivor.client_id}
        watching.requests.clear()
        cut.close()
        wait_for(
            lambda w=watching: (
                lost not in w.call(CONSUMER_LIST, {"consumerGroup": group}).json()["consumerIdList"]
            ),
            "the lost client is not listed",
            timeout_s=5,
        )
        if not any(r.code == IDS_CHANGED for r in watching.requests):
            told = watching.read(5)
            assert told.code == IDS_CHANGED
            assert told.flag & 2, "nobody answers that request"
            assert told.ext["consumerGroup"] == group
    wait_assigned([survivor], topic, 12)
    for _, watching in clients:
        ext = {"clientID": watcher, "consumerGroup": group}
        assert watching.call(UNREGISTER, ext).code == 0
        watching.close()
    wait_assigned([survivor], topic, 24)


def test_b056_a_locked_queue(cluster: Cluster) -> None:
    topic, group = cluster.topic(1), cluster.group()
    queue = {"brokerName": "b1", "queueId": 0, "topic": topic}

    def body(client_id: str) -> bytes:
        return json.dumps(
            {
                "clientId": client_id,
                "consumerGroup": group,
                "mqSet": [queue],
                "onlyThisBroker": False,
            }
        ).encode()

    def locked(client: RawClient, client_id: str) -> list[object]:
        reply = client.call(LOCK, body=body(client_id))
        assert reply.code == 0
        return reply.json()["lockOKMQSet"]

    with RawClient(cluster.brokers[0].address) as x, RawClient(cluster.brokers[0].address) as y:
        assert locked(x, "X") == [queue]
        assert locked(y, "Y") == []
        assert locked(x, "X") == [queue], "its owner may ask again"
        assert y.call(UNLOCK, body=body("Y")).code == 0
        assert locked(y, "Y") == [], "only the owner unlocks"
        assert x.call(UNLOCK, body=body("X")).code == 0
        assert locked(y, "Y") == [queue]
        assert locked(x, "X") == []


def test_clustering_with_two_consumers_sees_nothing_twice(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    consumers = members(java, cluster, topic, 2)
    messages = texts(topic, 200)
    java.producer(cluster.ns).send_ok(messages)
    exactly(consumers, 200)
    assert got(*consumers) == bodies(messages)
    assert together(consumers, 0, 0, distinct=True) == 200
