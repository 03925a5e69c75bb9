"""Behaviours section 1: plain send forms (B001 to B011)."""

from __future__ import annotations

import pytest

from .conftest import Cluster
from .drivers import ClientError
from .java_client import Java, Queue, text, texts, unique
from .polling import wait_for
from .raw import RawClient, Sender, binary_frame, short
from .scenes import all_queues, bodies, exactly, got, push, sender, stored


def test_b001_synchronous_send_fills_every_field(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    body = "a plain message of thirty-six bytes!"
    assert len(body) == 36
    sent = java.producer(cluster.ns).send_ok([text(topic, body)])[0]
    assert sent.msg_id
    assert sent.offset_msg_id
    assert sent.msg_id != sent.offset_msg_id
    assert sent.broker == "b1"
    assert 0 <= sent.queue < 8
    assert sent.queue_offset == 0


def test_b002_ten_to_every_queue_by_message_queue(java: Java, cluster3: Cluster) -> None:
    topic = cluster3.topic()
    consumer = push(java, cluster3, (topic, "*"))
    producer = java.producer(cluster3.ns)
    wanted = []
    for i, queue in enumerate(all_queues(topic, cluster3)):
        messages = texts(topic, 10, f"q{i}")
        for n, sent in enumerate(producer.send_ok(messages, to=queue)):
            assert (sent.broker, sent.queue, sent.queue_offset) == (queue.broker, queue.queue, n)
        wanted += messages
    exactly(consumer, 240)
    assert got(consumer) == bodies(wanted)
    received = consumer.received()
    assert not any("POP_CK" in m.properties for m in received)
    assert sorted({Queue(m.topic, m.broker or "", m.queue) for m in received}) == all_queues(
        topic, cluster3
    )


def test_b003_consume_statistics_list_every_queue(java: Java, cluster3: Cluster) -> None:
    topic, group = cluster3.topic(), cluster3.group()
    consumer = push(java, cluster3, (topic, "*"), group=group)

    def listed() -> bool:
        consumer.persist()
        try:
            return len(cluster3.admin.consume_stats(group, topic).queues) == 24
        except ClientError:
            return False

    wait_for(listed, "24 queues in the consume statistics", timeout_s=120)
    producer = java.producer(cluster3.ns)
    for i, queue in enumerate(all_queues(topic, cluster3)):
        producer.send_ok(texts(topic, 10, f"q{i}"), to=queue)
    exactly(consumer, 240)
    consumer.stop()
    stats = cluster3.admin.consume_stats(group, topic)
    assert [(q["consumerOffset"], q["brokerOffset"]) for q in stats.queues] == [(10, 10)] * 24


def test_b004_asynchronous_sends(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    consumer = push(java, cluster, (topic, "*"))
    messages = texts(topic, 20)
    results = java.producer(cluster.ns).send_ok(messages, mode="async", callback_s=10)
    assert len(results) == 20
    exactly(consumer, 20)
    assert got(consumer) == bodies(messages)


@pytest.mark.parametrize("by_selector", [False, True], ids=["by_queue", "by_selector"])
def test_b005_asynchronous_sends_to_one_queue(
    java: Java, cluster3: Cluster, by_selector: bool
) -> None:
    topic = cluster3.topic()
    consumer = push(java, cluster3, (topic, "*"))
    producer = java.producer(cluster3.ns)
    for broker in ("b1", "b2"):
        report = producer.send_all(
            texts(topic, 20, broker), "async", to=Queue(topic, broker, 0), by_selector=by_selector,
            callback_s=5 if by_selector else 10,
        )  # fmt: skip
        assert report.complete
        assert all(r.ok and (r.broker, r.queue) == (broker, 0) for r in report.results)
        assert report.shown == (24 if by_selector else 0)
    exactly(consumer, 40)
    assert {m.queue for m in consumer.received()} == {0}


def test_b006_one_way_sends(java: Java, cluster3: Cluster) -> None:
    topic = cluster3.topic()
    consumer = push(java, cluster3, (topic, "*"))
    producer = java.producer(cluster3.ns)
    free = texts(topic, 20, "free")
    producer.send_all(free, "oneway")
    exactly(consumer, 20)
    aimed = texts(topic, 20, "queue")
    producer.send_all(aimed, "oneway", to=Queue(topic, "b1", 0))
    for broker in ("b1", "b2"):
        messages = texts(topic, 20, f"selector-{broker}")
        producer.send_all(messages, "oneway", to=Queue(topic, broker, 0), by_selector=True)
        aimed += messages
    exactly(consumer, 80)
    assert got(consumer) == bodies(free + aimed)
    assert {m.queue for m in consumer.received() if not (m.body or "").startswith("free")} == {0}


def test_b007_a_negative_queue_id_lets_the_broker_choose(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    report = java.producer(cluster.ns).send_all(
        texts(topic, 1), "async", to=Queue(topic, "b1", -100), callback_s=5
    )
    assert report.complete
    assert report.results[0].ok
    chosen = report.results[0].queue
    assert 0 <= chosen < 8
    with RawClient(cluster.brokers[0].address) as client:
        assert [(r.queue_id, r.body) for r in stored(client, topic, 1)] == [(chosen, b"m-0")]


def test_b008_two_producers_of_one_group(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    group, instance = unique("P"), unique("instance")
    first = java.producer(cluster.ns, group, instance=instance)
    second = java.producer(cluster.ns, group)
    with pytest.raises(ClientError) as refused:
        java.producer(cluster.ns, group, instance=instance)
    assert refused.value.kind == "MQClientException"
    first.send_ok(texts(topic, 3, "first"))
    second.send_ok(texts(topic, 3, "second"))


def test_b009_an_unknown_topic_is_created_with_four_queues(java: Java, cluster: Cluster) -> None:
    topic = unique("Auto")
    java.producer(cluster.ns).send_ok(texts(topic, 1))
    queues = wait_for(lambda: cluster.admin.route(topic)["queues"], "a route of the new topic")
    assert queues == [{"broker": "b1", "read": 4, "write": 4, "perm": 6}]


def test_b010_three_codes_store_the_same_ordinary_message(cluster: Cluster) -> None:
    topic = cluster.topic()
    by_hand = sender(cluster, topic)
    props = "KEYS\x01k\x02TAGS\x01t\x02UNIQ_KEY\x01U1\x02WAIT\x01true\x02"
    replies = [
        by_hand.send(b"same body", 3, props),
        by_hand.send_v2(b"same body", 3, props),
        by_hand.send_v2(b"same body", 3, props, code=320),
    ]
    assert [(r.code, r.ext["queueId"], r.ext["queueOffset"]) for r in replies] == [
        (0, "3", str(i)) for i in range(3)
    ]
    found = stored(by_hand.client, topic, 3)
    assert [(r.queue_id, r.queue_offset, r.body, r.sys_flag) for r in found] == [
        (3, i, b"same body", 0) for i in range(3)
    ]
    assert found[0].properties == found[1].properties == found[2].properties
    assert found[0].properties["UNIQ_KEY"] == "U1"


def test_b011_a_compressed_body_is_stored_as_it_came(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    consumer = push(java, cluster, (topic, "*"))
    body = "compress me " * 300
    assert 3000 < len(body) <= 4096
    producer = java.producer(cluster.ns, compressOver=1024)
    sent = producer.send_ok([text(topic, body)])[0]
    exactly(consumer, 1)
    assert got(consumer) == [body]
    with RawClient(cluster.brokers[0].address) as client:
        record = stored(client, topic, 1)[0]
    assert record.sys_flag & 1
    assert len(record.stored_body) < 200
    assert record.body == body.encode()
    assert record.queue_id == sent.queue


def test_b011_bodies_above_4096_bytes_are_compressed_by_default(
    java: Java, cluster: Cluster
) -> None:
    topic = cluster.topic()
    java.producer(cluster.ns).send_ok([text(topic, "x" * 5000), text(topic, "y" * 4000)])
    with RawClient(cluster.brokers[0].address) as client:
        found = sorted(stored(client, topic, 2), key=lambda r: r.log_offset)
    assert [(r.sys_flag & 1, len(r.body)) for r in found] == [(1, 5000), (0, 4000)]


def test_b010_a_binary_header_is_accepted(cluster: Cluster) -> None:
    topic = cluster.topic()
    with RawClient(cluster.brokers[0].address) as client:
        fields = short(Sender(client, topic).fields(2, "TAGS\x01t\x02"))
        client.send(binary_frame(310, fields, b"binary", opaque=77))
        assert client.reply(77).code == 0
        assert [(r.queue_id, r.body) for r in stored(client, topic, 1)] == [(2, b"binary")]


def test_the_fast_port_serves_producers_and_heartbeats(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    consumer = push(java, cluster, (topic, "*"), vip=True)
    messages = texts(topic, 20)
    java.producer(cluster.ns, vip=True).send_ok(messages)
    exactly(consumer, 20)
    assert got(consumer) == bodies(messages)
