"""Behaviours section 15: queries by id and key (B118 to B123)."""

from __future__ import annotations

import pytest

from .conftest import Cluster
from .drivers import ClientError
from .java_client import Java, texts
from .polling import now_ms, wait_for
from .raw import RawClient, records
from .scenes import bodies, exactly, push, wait_total

QUERY, VIEW = 12, 33
NO_MESSAGE = 208


def keyed(cluster: Cluster, topic: str, key: str, count: int, begin: int) -> list[str]:
    """Sorted bodies of a query by key, from begin - 5 s to now + 5 s; empty when there is none."""
    try:
        hits = cluster.admin.query(topic, key, count, begin - 5000, now_ms() + 5000)
    except ClientError as error:
        if error.code != NO_MESSAGE:
            raise
        return []
    return sorted(m.body or "" for m in hits)


def test_b118_view_by_offset_id(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    consumer = push(java, cluster, (topic, "*"))
    sent = java.producer(cluster.ns).send_ok(texts(topic, 20))
    exactly(consumer, 20)
    offset_ids = {s.msg_id: s.offset_msg_id for s in sent}
    for message in consumer.received():
        seen = cluster.admin.view(topic, offset_ids[message.msg_id])
        assert (seen.body, seen.queue, seen.queue_offset) == (
            message.body, message.queue, message.queue_offset,
        )  # fmt: skip


def test_b119_twenty_with_one_key(java: Java, cluster3: Cluster) -> None:
    topic, begin = cluster3.topic(), now_ms()
    messages = texts(topic, 20, keys="the-key")
    java.producer(cluster3.ns).send_ok(messages)
    wait_total(cluster3, topic, 20)
    wait_for(
        lambda: keyed(cluster3, topic, "the-key", 20, begin) == bodies(messages),
        "all 20 are found",
        timeout_s=10,
    )


def test_b120_each_broker_gives_64_at_most(java: Java, cluster3: Cluster) -> None:
    topic, begin = cluster3.topic(), now_ms()
    messages = texts(topic, 500, keys="many")
    java.producer(cluster3.ns).send_ok(messages)
    wait_total(cluster3, topic, 500)
    hits = wait_for(
        lambda: len(found := keyed(cluster3, topic, "many", 500, begin)) >= 192 and found,
        "64 of each broker",
        timeout_s=10,
    )
    assert len(hits) == 192
    assert set(hits) <= set(bodies(messages))


def test_b121_keys_with_one_hash(java: Java, cluster: Cluster) -> None:
    begin = now_ms()
    base = cluster.topic(1)
    # One Java hash for "Aa" and "BB", so the index hashes of these topics and keys are equal too.
    topics = {name: f"{base}{name}" for name in ("Aa", "BB", "AaAa", "BBBB")}
    for topic in topics.values():
        cluster.admin.topic(topic, 1)
    producer = java.producer(cluster.ns)
    producer.send_ok(texts(topics["Aa"], 1, keys="Aa"))
    producer.send_ok(texts(topics["BB"], 1, keys="BB"))
    producer.send_ok(texts(topics["AaAa"], 1, "first", keys="Aa"))
    producer.send_ok(texts(topics["BBBB"], 1, "second", keys="Aa"))
    wait_for(
        lambda: keyed(cluster, topics["BBBB"], "Aa", 10, begin) == ["second-0"],
        "the last one is indexed",
        timeout_s=10,
    )
    assert keyed(cluster, topics["Aa"], "BB", 10, begin) == []
    assert keyed(cluster, topics["Aa"], "Aa", 10, begin) == ["m-0"]
    assert keyed(cluster, topics["AaAa"], "Aa", 10, begin) == ["first-0"]


def test_b122_nothing_to_find(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    java.producer(cluster.ns).send_ok(texts(topic, 20))
    for wrong in ("no id at all", None):
        with pytest.raises(ClientError):
            cluster.admin.view(topic, wrong)
    with RawClient(cluster.brokers[0].address) as client:
        assert client.call(VIEW, {"offset": str(1 << 40), "topic": topic}).code == 1
        assert client.call(VIEW, {"offset": "3", "topic": topic}).code == 1
        ext = {
            "topic": topic, "key": "nobody", "maxNum": "32", "beginTimestamp": "0",
            "endTimestamp": str(now_ms()),
        }  # fmt: skip
        assert client.call(QUERY, ext).code == 22
        assert client.call(VIEW, {"offset": "-1", "topic": topic}).code == 1
        assert client.call(QUERY, ext).code == 22, "the connection stays usable"


def test_b123_view_by_unique_id(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    sent = java.producer(cluster.ns).send_ok(texts(topic, 3))

    def viewed() -> list[str | None]:
        try:
            return [cluster.admin.view(topic, s.msg_id).body for s in sent]
        except ClientError:
            return []

    assert wait_for(viewed, "all are indexed", timeout_s=10) == ["m-0", "m-1", "m-2"]
    with RawClient(cluster.brokers[0].address) as client:
        ext = {
            "topic": topic, "key": sent[1].msg_id, "maxNum": "1", "beginTimestamp": "0",
            "endTimestamp": str(now_ms() + 5000), "_UNIQUE_KEY_QUERY": "true",
        }  # fmt: skip
        reply = client.call(QUERY, ext)
        assert (reply.code, [r.body for r in records(reply.body)]) == (0, [b"m-1"])


def test_b123_the_limit_of_a_unique_id_query_is_32(cluster: Cluster) -> None:
    from .scenes import sender

    by_hand = sender(cluster, cluster.topic(1))
    for i in range(40):
        assert by_hand.send(b"%d" % i, props="UNIQ_KEY\x01SAME\x02").code == 0
    wait_total(cluster, by_hand.topic, 40)
    ext = {
        "topic": by_hand.topic, "key": "SAME", "maxNum": "1", "beginTimestamp": "0",
        "endTimestamp": str(now_ms() + 5000), "_UNIQUE_KEY_QUERY": "true",
    }  # fmt: skip

    def hits() -> int:
        reply = by_hand.client.call(QUERY, ext)
        return len(records(reply.body)) if reply.code == 0 else 0

    assert wait_for(lambda: hits() >= 32 and hits(), "32 hits", timeout_s=10) == 32
