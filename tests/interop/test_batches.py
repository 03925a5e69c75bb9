"""Behaviours section 8: batch sends (B057 to B062)."""

from __future__ import annotations

import struct

import pytest

from .conftest import Cluster
from .drivers import ClientError
from .java_client import Java, Queue, text, texts
from .polling import now_ms, wait_for
from .raw import RawClient, Reply, Sender
from .scenes import exactly, got, push, sender, stored, total, wait_total

MAX_BODY = 4_194_304


def entry(body: bytes, props: str = "", flag: int = 0) -> bytes:
    """One message of a batch body (Apache: MessageDecoder.encodeMessage)."""
    raw = props.encode()
    size = 20 + len(body) + 2 + len(raw)
    return (
        struct.pack(">iiiii", size, 0, 0, flag, len(body))
        + body
        + struct.pack(">h", len(raw))
        + raw
    )


def send_batch(by_hand: Sender, entries: list[bytes], **fields: str) -> Reply:
    """SEND_BATCH_MESSAGE by hand, without a unique id of the batch: as old clients do."""
    return by_hand.send_v2(
        b"".join(entries), props="WAIT\x01true\x02", code=320, batch="true", **fields
    )


def test_b057_every_id_of_a_batch_can_be_viewed(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    messages = texts(topic, 100)
    sent = java.producer(cluster.ns).batch(messages)
    assert sent.ok
    offset_ids, message_ids = sent.offset_msg_id.split(","), sent.msg_id.split(",")
    assert len(set(offset_ids)) == len(set(message_ids)) == 100
    wait_total(cluster, topic, 100)
    wait_for(
        lambda: found(cluster, topic, message_ids[-1]), "the last one is indexed", timeout_s=10
    )
    for message, offset_id, message_id in zip(messages, offset_ids, message_ids, strict=True):
        by_offset = cluster.admin.view(topic, offset_id)
        assert (by_offset.body, by_offset.msg_id) == (message["body"], message_id)
        assert cluster.admin.view(topic, message_id).body == message["body"]


def found(cluster: Cluster, topic: str, message_id: str) -> bool:
    """Whether a message can be viewed by its unique id yet."""
    try:
        cluster.admin.view(topic, message_id)
    except ClientError:
        return False
    return True


def test_b057_a_batch_without_unique_ids(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    by_hand = sender(cluster, topic)
    reply = send_batch(by_hand, [entry(b"old-%d" % i) for i in range(100)])
    assert reply.code == 0
    ids = reply.ext["msgId"].split(",")
    assert len(set(ids)) == 100
    wait_total(cluster, topic, 100)
    assert [cluster.admin.view(topic, i).body for i in ids] == [f"old-{i}" for i in range(100)]


def test_b058_a_batch_of_one_keeps_every_field(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    message = text(
        topic, "one", keys="the key", tags="the tag", wait=False, buyer="buyer", flag=123
    )
    sent = java.producer(cluster.ns).batch([message])
    wait_for(lambda: found(cluster, topic, sent.msg_id), "it is indexed", timeout_s=10)
    for message_id in (sent.offset_msg_id, sent.msg_id):
        seen = cluster.admin.view(topic, message_id)
        assert (seen.topic, seen.body, seen.flag) == (topic, "one", 123)
        assert (seen.keys, seen.tags) == ("the key", "the tag")
        assert seen.properties["WAIT"] == "false"
        assert seen.properties["BUYER_ID"] == "buyer"


def test_b059_batches_in_one_queue(java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(1), cluster.group()
    queue = Queue(topic, "b1", 0)
    assert cluster.admin.offsets(queue)[:2] == (0, 0)
    producer = java.producer(cluster.ns)
    for i in range(10):
        sent = producer.batch(texts(topic, 10, f"batch{i}"), to=queue)
        assert sent.queue_offset == 10 * i
        assert len(sent.msg_id.split(",")) == 10
    wait_total(cluster, topic, 100)
    pulled = java.pull(cluster.ns, group).pull(queue, 5, 100)
    assert (pulled.status, pulled.min, pulled.max) == ("FOUND", 0, 100)
    assert [m.queue_offset for m in pulled.messages] == list(range(5, 100))
    assert [m.body for m in pulled.messages] == [f"batch{i // 10}-{i % 10}" for i in range(5, 100)]


def test_b060_batches_stay_together_in_a_batch_queue(java: Java, cluster3: Cluster) -> None:
    topic, group = cluster3.topic(attributes={"queue.type": "BatchCQ"}), cluster3.group()
    queue = Queue(topic, "b1", 0)
    assert cluster3.admin.max(queue) == 0
    with RawClient(cluster3.brokers[0].address) as client:
        assert client.call(31, {"topic": topic, "queueId": "0"}).ext["offset"] == "-1"
    producer = java.producer(cluster3.ns)
    for i in range(10):
        sent = producer.batch(texts(topic, 10, f"batch{i}"), to=queue)
        assert sent.queue_offset == 10 * i
        assert len(sent.msg_id.split(",")) == 1
    wait_for(lambda: cluster3.admin.max(queue) == 100, "100 in the queue", timeout_s=10)
    pulled = java.pull(cluster3.ns, group).pull(queue, 5, 100)
    assert (pulled.status, pulled.min, pulled.max) == ("FOUND", 0, 100)
    assert [m.queue_offset for m in pulled.messages] == list(range(100))
    assert {(m.topic, m.queue) for m in pulled.messages} == {(topic, 0)}
    for i in range(0, 100, 10):
        one = pulled.messages[i : i + 10]
        assert [m.body for m in one] == [f"batch{i // 10}-{n}" for n in range(10)]
        assert len({(m.born_host, m.born_timestamp, m.store_timestamp) for m in one}) == 1


def test_b061_batches_that_the_client_refuses(java: Java, cluster: Cluster) -> None:
    topic, other = cluster.topic(1), cluster.topic(1)
    producer = java.producer(cluster.ns)
    refused = [
        [text(topic, "a"), text(other, "b")],
        [text(topic, "a", wait=True), text(topic, "b", wait=False)],
        [text(topic, "a"), text(topic, "b", delayLevel=1)],
        [text("%RETRY%G", "a"), text("%RETRY%G", "b")],
    ]
    for messages in refused:
        with pytest.raises(ClientError) as error:
            producer.batch(messages)
        assert error.value.kind in ("MQClientException", "UnsupportedOperationException")
    assert total(cluster, topic) == total(cluster, other) == 0


def test_b061_batches_that_the_broker_refuses(cluster: Cluster) -> None:
    group = cluster.group()
    by_hand = sender(cluster, f"%RETRY%{group}")
    assert send_batch(by_hand, [entry(b"a"), entry(b"b")]).code == 13
    by_hand.topic = f"%DLQ%{'n' * 123}"
    assert len(by_hand.topic) == 128
    assert send_batch(by_hand, [entry(b"a"), entry(b"b")]).code == 13


def test_b062_a_batch_over_the_limit(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic(1)
    half = {"topic": topic, "random": MAX_BODY // 2, "seed": 1}
    with pytest.raises(ClientError) as refused:
        java.producer(cluster.ns).batch([half, half])
    assert (refused.value.kind, refused.value.code) == ("MQClientException", 13)
    by_hand = sender(cluster, topic)
    # Apache ends in an exception of its encoder here (code 1); both codes are final for a client.
    assert send_batch(by_hand, [entry(b"x" * (MAX_BODY // 2))] * 2).code in (1, 13)
    assert send_batch(by_hand, [entry(b"fits")]).code == 0
    assert [r.body for r in stored(by_hand.client, topic, 1, queues=1)] == [b"fits"]


def test_a_batch_is_consumed_as_single_messages(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    consumer = push(java, cluster, (topic, "A"))
    mixed = [text(topic, f"{tag}{i}", tags=tag) for i in range(10) for tag in "AB"]
    began = now_ms()
    java.producer(cluster.ns).batch(mixed)
    exactly(consumer, 10)
    assert got(consumer) == sorted(m["body"] for m in mixed if m["tags"] == "A")
    assert all(began - 2000 <= m.store_timestamp <= now_ms() + 2000 for m in consumer.received())


def test_a_batch_body_that_lies(cluster: Cluster) -> None:
    by_hand = sender(cluster, cluster.topic(1))
    whole = entry(b"abc", "k\x01v\x02")
    lies = [struct.pack(">i", 1 << 30) + whole[4:], struct.pack(">i", -5) + whole[4:], whole[:-1]]
    for body in lies:
        reply = by_hand.send_v2(body, props="WAIT\x01true\x02", code=320, batch="true")
        # Apache takes some of them as they are; ours refuses each.
        assert cluster.kind == "apache" or reply.code != 0
    assert send_batch(by_hand, [whole]).code == 0
    assert stored(by_hand.client, by_hand.topic, 1, queues=1)[-1].body == b"abc"
