"""Behaviours section 9: timers and recall (B063 to B070), and how late timers fire with real clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .conftest import STANDARD, Cluster, MakeCluster, Workshop
from .java_client import Java, unique
from .polling import now_ms, sleep
from .pops import POP, Pops
from .raw import RawClient, Record
from .scenes import stored
from .timers import TIMED, Handle, five_kinds, raw_recall, raw_send, recall

RECALLS = {"recallMessageEnable": "true", "appendTopicForTimerDeleteKey": "true"}


@pytest.fixture(scope="session")
def timed(make_cluster: MakeCluster) -> Cluster:
    """One master that takes recalls."""
    return make_cluster(1, {**STANDARD, **RECALLS})


@pytest.fixture
def client(timed: Cluster) -> Iterator[RawClient]:
    with RawClient(timed.brokers[0].address) as made:
        yield made


def popped(timed: Cluster, client: RawClient, topic: str, within_s: float) -> list[str]:
    """What a pop consumer gets in that time, one pop a second."""
    consumer = Pops(client, topic, timed.group(), timed.brokers[0].name)
    found: list[str] = []
    until = now_ms() + int(1000 * within_s)
    while now_ms() < until:
        found += [one.body.decode() for one in consumer.pop(16)]
        sleep(1)
    return sorted(found)


def test_b063_a_handle_of_another_topic_takes_nothing_back(
    java: Java, timed: Cluster, client: RawClient
) -> None:
    mine, other = timed.topic(1), timed.topic(1)
    producer = java.producer(timed.ns)
    for one in five_kinds(producer, mine, 5, 2).values():
        if one.handle is None:
            continue
        handle = Handle.of(one.handle)
        foreign = Handle(other, handle.broker, handle.ms, handle.id)
        assert recall(producer, other, foreign.text) == handle.id
    assert popped(timed, client, mine, 12) == ["at", "level", "ms", "plain", "sec"]


def test_b064_all_kinds_come(java: Java, timed: Cluster, client: RawClient) -> None:
    topic = timed.topic(1)
    five_kinds(java.producer(timed.ns), topic, 1, 1)
    assert popped(timed, client, topic, 6) == ["at", "level", "ms", "plain", "sec"]


def test_b065_recalled_messages_do_not_come(java: Java, timed: Cluster, client: RawClient) -> None:
    topic = timed.topic(1)
    producer = java.producer(timed.ns)
    sent = five_kinds(producer, topic, 5, 2)
    assert {kind for kind, one in sent.items() if one.handle} == set(TIMED)
    for one in sent.values():
        if one.handle is not None:
            assert recall(producer, topic, one.handle) == one.msgId
    assert popped(timed, client, topic, 12) == ["level", "plain"]


def test_b066_an_unknown_message_is_recalled_for_nothing(
    java: Java, timed: Cluster, client: RawClient
) -> None:
    topic = timed.topic(1)
    handle = Handle(
        topic, timed.brokers[0].name, now_ms() + 30_000, "7F000001000000000000000000000001"
    )
    assert recall(java.producer(timed.ns), topic, handle.text) == handle.id
    assert popped(timed, client, topic, 3) == []


def test_b067_what_is_in_a_handle(timed: Cluster, client: RawClient) -> None:
    topic = timed.topic(1)
    for ms in (now_ms() + 30_000, (now_ms() + 40_000) // 1000 * 1000):
        unique_id = unique("ID")
        reply = raw_send(client, topic, "m", unique_id, TIMER_DELIVER_MS=ms)
        assert reply.code == 0, reply.remark
        handle = Handle.of(reply.ext["recallHandle"])
        assert (handle.topic, handle.broker) == (topic, timed.brokers[0].name)
        assert handle.id == unique_id
        assert handle.ms == (ms - 1) // 1000 * 1000 + 1


def test_b068_recalls_that_are_refused(timed: Cluster, client: RawClient, cluster: Cluster) -> None:
    topic, other = timed.topic(1), timed.topic(1)
    name = timed.brokers[0].name
    good = Handle(topic, name, now_ms() + 30_000, "ID")
    assert raw_recall(client, unique("Unknown"), good.text).code == 17
    assert raw_recall(client, topic, "no handle").code == 604
    assert raw_recall(client, topic, "bm8gaGFuZGxl").code == 604
    assert raw_recall(client, other, good.text).code == 604
    assert raw_recall(client, topic, Handle(topic, "b9", good.ms, "ID").text).code == 604
    assert raw_recall(client, topic, Handle(topic, name, now_ms() - 1, "ID").text).code == 604
    far = Handle(topic, name, now_ms() + 259_200_000 + 5_000, "ID")
    assert raw_recall(client, topic, far.text).code == 604
    assert raw_recall(client, topic, good.text).code == 0
    # By default brokers take none at all.
    plain = cluster.topic(1)
    with RawClient(cluster.brokers[0].address) as closed:
        handle = Handle(plain, cluster.brokers[0].name, now_ms() + 30_000, "ID")
        assert raw_recall(closed, plain, handle.text).code == 16


def test_b069_timers_that_are_refused(timed: Cluster, client: RawClient) -> None:
    topic = timed.topic(1)
    assert raw_send(client, topic, "far", TIMER_DELAY_SEC=259_201).code == 13
    assert raw_send(client, topic, "far", TIMER_DELAY_MS=259_201_000).code == 13
    assert raw_send(client, topic, "far", TIMER_DELIVER_MS=now_ms() + 259_205_000).code == 13
    for name in ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"):
        assert raw_send(client, topic, "odd", **{name: "soon"}).code == 13
    assert raw_send(client, topic, "good", TIMER_DELAY_SEC=259_000).code == 0


def test_b069_without_a_wheel(workshop: Workshop) -> None:
    server = workshop.alone(settings={**STANDARD, "timerWheelEnable": "false"})
    server.start()
    cluster = workshop.cluster(server)
    topic = cluster.topic(1)
    with RawClient(server.address) as client:
        assert raw_send(client, topic, "timed", TIMER_DELAY_SEC=1).code == 1
        consumer = Pops(client, topic, cluster.group(), server.name)
        assert client.call(POP, consumer.fields()).code == 1
        assert raw_send(client, topic, "plain").code == 0


def test_b070_a_time_that_is_over(timed: Cluster, client: RawClient) -> None:
    topic = timed.topic(1)
    for ms in (now_ms() - 1, now_ms() - 3_600_000, 0, -5):
        reply = raw_send(client, topic, "past", TIMER_DELIVER_MS=ms)
        assert reply.code == 0
        assert "recallHandle" not in reply.ext
    assert len(stored(client, topic, 4, 1)) == 4


def late(record: Record) -> int:
    """How late a message went to its own topic, ms."""
    return int(record.properties["TIMER_DEQUEUE_MS"]) - int(record.properties["TIMER_DELIVER_MS"])


def test_timers_come_in_their_second(timed: Cluster, client: RawClient) -> None:
    """Apache fires at the end of each second; trio-mq at the ms asked for."""
    topic = timed.topic(1)
    begin = now_ms() + 3000
    for number in range(100):
        raw_send(client, topic, str(number), TIMER_DELIVER_MS=begin + 20 * number)
    records = stored(client, topic, 100, 1)
    assert now_ms() >= begin + 1980
    lags = [late(record) for record in records]
    assert min(lags) >= 0
    assert max(lags) <= (2500 if timed.kind == "apache" else 0)
    for record in records:
        assert record.properties["REAL_TOPIC"] == topic
        assert record.properties["REAL_QID"] == "0"
        assert record.properties.keys() >= {"TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
