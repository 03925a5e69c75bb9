"""Behaviours section 2: refused sends and limits (B012 to B021)."""

from __future__ import annotations

import pytest

from .conftest import Cluster, Workshop
from .drivers import ClientError
from .java_client import Java, Queue, text, texts, unique
from .raw import RawClient, Sender
from .scenes import exactly, push, sender, stored, total, wait_total

MAX_BODY = 4_194_304
MAX_PROPERTIES = 32_767


@pytest.mark.parametrize(
    ("odd", "error", "code"),
    [
        ("null message", "NullPointerException", 0),
        ("null body", "MQClientException", 13),
        ("empty body", "MQClientException", 13),
        ("null topic", "MQClientException", None),
        ("empty topic", "MQClientException", None),
        ("large body", "MQClientException", 13),
    ],
)
def test_b012_the_client_refuses(
    java: Java, cluster: Cluster, odd: str, error: str, code: int | None
) -> None:
    topic = cluster.topic(1)
    result = java.producer(cluster.ns).odd(odd, topic)
    assert result.error is not None
    assert result.error.kind == error
    if code is not None:
        assert result.error.code == code
    assert total(cluster, topic) == 0


def test_b012_the_broker_refuses_a_body_over_the_limit(cluster: Cluster) -> None:
    topic = cluster.topic(1)
    by_hand = sender(cluster, topic)
    assert by_hand.send_v2(b"x" * (MAX_BODY + 1)).code == 13
    assert by_hand.send_v2(b"fits").code == 0
    assert [r.body for r in stored(by_hand.client, topic, 1, queues=1)] == [b"fits"]


@pytest.mark.parametrize("size", [131_072, MAX_BODY])
def test_b013_large_bodies_are_stored(java: Java, cluster: Cluster, size: int) -> None:
    topic = cluster.topic(1)
    consumer = push(java, cluster, (topic, "*"))
    producer = java.producer(cluster.ns, compressOver=MAX_BODY + 1, timeoutMs=15_000)
    producer.send_ok([{"topic": topic, "random": size, "seed": 7}])
    exactly(consumer, 1)
    assert consumer.received()[0].body_length == size


def test_b014_a_large_property(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic(1)
    consumer = push(java, cluster, (topic, "*"))
    producer = java.producer(cluster.ns)
    value = "\u4e2d" * 10_240
    producer.send_ok([text(topic, "fits", props={"wide": value})])
    with pytest.raises(ClientError) as refused:
        producer.send(text(topic, "too much", props={"wide": "\u4e2d" * 32_769}))
    assert (refused.value.kind, refused.value.code) == ("MQBrokerException", 13)
    exactly(consumer, 1)
    assert consumer.received()[0].properties["wide"] == value


def test_b015_properties_text_may_have_32767_bytes(cluster: Cluster) -> None:
    topic = cluster.topic(1)
    by_hand = sender(cluster, topic)
    head = "UNIQ_KEY\x01U\x02k\x01"
    assert by_hand.send_v2(b"small", props=f"{head}v\x02").code == 0
    added = stored(by_hand.client, topic, 1, queues=1)[0].properties_length - len(f"{head}v\x02")
    assert added > 0, "the broker adds properties of its own"
    room = MAX_PROPERTIES - added - len(head) - 1
    assert by_hand.send_v2(b"full", props=f"{head}{'v' * room}\x02").code == 0
    assert by_hand.send_v2(b"over", props=f"{head}{'v' * (room + 1)}\x02").code == 13
    found = stored(by_hand.client, topic, 2, queues=1)
    assert [r.body for r in found] == [b"small", b"full"]
    assert found[1].properties_length == MAX_PROPERTIES


def test_b016_user_properties_come_back(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    consumer = push(java, cluster, (topic, "*"))
    values = {"ascii": "plain", "wide": "h\u00e9llo \u2603 \U0001d11e"}
    java.producer(cluster.ns).send_ok(
        [text(topic, name, props={name: value}) for name, value in values.items()]
    )
    exactly(consumer, 2)
    assert {m.body: m.properties[m.body or ""] for m in consumer.received()} == values


def test_b017_a_queue_id_beyond_the_topic(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    report = java.producer(cluster.ns).send_all(
        texts(topic, 1), "async", to=Queue(topic, "b1", 100), callback_s=5
    )
    assert report.complete
    error = report.results[0].error
    assert error is not None
    assert error.code == 29
    by_hand = sender(cluster, topic)
    assert by_hand.send_v2(b"x", queue_id=8).code == 29
    assert by_hand.send_v2(b"x", queue_id=7).code == 0
    assert [r.body for r in stored(by_hand.client, topic, 1)] == [b"x"]


@pytest.mark.parametrize("topic", [" ", "n" * 128, "blank inside", "dot.inside", "\u00fcmlaut"])
def test_b018_illegal_topic_names(cluster: Cluster, topic: str) -> None:
    by_hand = sender(cluster, topic)
    assert by_hand.send(b"x").code == 29


def test_b018_the_longest_topic_names(cluster: Cluster) -> None:
    with RawClient(cluster.brokers[0].address) as client:
        longest = unique("n" * 100).ljust(127, "n")
        assert Sender(client, longest).send(b"x").code == 0
        assert [r.topic for r in stored(client, longest, 1, queues=4)] == [longest]
        # Legal in length, so the next check answers: there is no such group.
        assert Sender(client, "%RETRY%".ljust(255, "n")).send(b"x").code == 26
        assert Sender(client, "%RETRY%".ljust(256, "n")).send(b"x").code == 29
        # Dead letter names may be as long, but a send to one stays within 127 bytes.
        assert Sender(client, "%DLQ%".ljust(256, "n")).send(b"x").code == 29
        assert Sender(client, "%DLQ%".ljust(255, "n")).send(b"x").code == 13
        dead = unique("%DLQ%").ljust(127, "n")
        assert Sender(client, dead).send(b"dead").code == 0
        assert [r.body for r in stored(client, dead, 1, queues=4)] == [b"dead"]


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    ],
)
def test_b019_system_topics_take_no_sends(cluster: Cluster, topic: str) -> None:
    by_hand = sender(cluster, topic)
    assert by_hand.send(b"x").code == 16
    assert by_hand.send_v2(b"x").code == 16


def test_b019_no_topic_is_created_when_that_is_off(workshop: Workshop) -> None:
    server = workshop.alone(settings={"autoCreateTopicEnable": "false"})
    server.start()
    with RawClient(server.address) as client:
        assert Sender(client, "NeverMade").send(b"x").code == 17


def test_b020_group_names(java: Java, cluster: Cluster) -> None:
    def create(name: str) -> int:
        body = f'{{"groupName":"{name}"}}'.encode()
        with RawClient(cluster.brokers[0].address) as client:
            return client.call(200, body=body).code

    longest = unique("G").ljust(120, "g")
    assert create(longest) == 0
    assert create(longest + "g") == 29
    assert create("blank inside") == 29
    with pytest.raises(ClientError) as refused:
        java.producer(cluster.ns, "blank inside")
    assert refused.value.kind == "MQClientException"


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        ("async null selector", "callback"),
        ("async throwing selector", "callback"),
        ("oneway null queue", "NullPointerException"),
        ("oneway null selector", "MQClientException"),
        ("oneway throwing selector", "MQClientException"),
    ],
)
def test_b021_failures_that_reach_no_broker(
    java: Java, cluster: Cluster, odd: str, error: str
) -> None:
    topic = cluster.topic(1)
    result = java.producer(cluster.ns).odd(odd, topic)
    assert result.error is not None
    assert (
        (result.thrown, result.error.kind) == (True, error)
        if error != "callback"
        else not result.thrown
    )
    assert total(cluster, topic) == 0


@pytest.mark.parametrize("odd", ["async null callback", "async null queue"])
def test_b021_an_asynchronous_send_needs_no_callback_and_no_queue(
    java: Java, cluster: Cluster, odd: str
) -> None:
    topic = cluster.topic(1)
    assert java.producer(cluster.ns).odd(odd, topic).error is None
    wait_total(cluster, topic, 1)
