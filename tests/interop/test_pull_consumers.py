"""Consumers that drive their own pulls: DefaultMQPullConsumer and DefaultLitePullConsumer, and long polling."""

from __future__ import annotations

import time

from .conftest import Cluster
from .java_client import Java, Queue, texts
from .polling import sleep, wait_for
from .raw import RawClient, heartbeat, json_frame, pull_fields, records
from .scenes import all_queues, bodies, sender, wait_total

PULL, LITE_PULL, HEART_BEAT = 11, 361, 34
SUSPEND = 2


def test_pull_consumer_reads_everything(java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    pull = java.pull(cluster.ns, group)
    messages = texts(topic, 100, tags="A") + texts(topic, 20, "other", tags="B")
    java.producer(cluster.ns).send_ok(messages)
    wait_total(cluster, topic, 120)
    queues = pull.queues(topic)
    assert queues == all_queues(topic, cluster)
    everything, _ = pull.drain(queues)
    assert sorted(m.body or "" for m in everything) == bodies(messages)
    tagged, _ = pull.drain(queues, "A")
    assert len(tagged) == 100
    pull.commit(queues[0], 3)
    assert pull.committed(queues[0]) == 3
    end = pull.pull(queues[0], 10_000)
    assert end.status == "OFFSET_ILLEGAL"
    assert end.next == end.max


def test_a_held_pull_is_woken_by_the_first_message(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic(1)
    queue = Queue(topic, "b1", 0)
    pull = java.pull(cluster.ns, cluster.group())
    held = pull.begin_pull(queue, 0)
    sleep(0.5)
    began = time.monotonic()
    java.producer(cluster.ns).send_ok(texts(topic, 1), to=queue)
    answer = held.result(20)
    assert answer["status"] == "FOUND"
    assert [m["body"] for m in answer["messages"]] == ["m-0"]
    assert time.monotonic() - began < 3, "woken by the message, not by the end of the hold"


def test_lite_pull_shares_queues_and_commits(java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    producer = java.producer(cluster.ns)
    messages = texts(topic, 60)
    lite = java.lite(cluster.ns, group, (topic, "*"), start="FIRST_OFFSET")
    producer.send_ok(messages)
    got = lite.poll_until(60)
    assert sorted(m.body or "" for m in got) == bodies(messages)
    lite.commit()
    queues = all_queues(topic, cluster)
    wait_for(
        lambda: sum(max(lite.committed(q), 0) for q in queues) == 60, "60 committed", timeout_s=10
    )
    lite.stop()
    producer.send_ok(texts(topic, 8, "new"))
    again = java.lite(cluster.ns, group, (topic, "*"))
    assert sorted(m.body or "" for m in again.poll_until(8)) == bodies(texts(topic, 8, "new"))


def test_lite_pull_with_a_tag(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    lite = java.lite(cluster.ns, cluster.group(), (topic, "A || B"), start="FIRST_OFFSET")
    wanted = texts(topic, 10, "a", tags="A") + texts(topic, 10, "b", tags="B")
    java.producer(cluster.ns).send_ok(texts(topic, 10, "c", tags="C") + wanted)
    assert sorted(m.body or "" for m in lite.poll_until(20)) == bodies(wanted)


def test_a_held_pull_ends_with_code_19_when_its_time_is_over(cluster: Cluster) -> None:
    topic, group = cluster.topic(1), cluster.group()
    with RawClient(cluster.brokers[0].address) as client:
        began = time.monotonic()
        fields = pull_fields(
            group, topic, 0, 0, sysFlag=str(4 | SUSPEND), suspendTimeoutMillis="1500"
        )
        reply = client.call(PULL, fields)
        took = time.monotonic() - began
    assert (reply.code, reply.ext["nextBeginOffset"]) == (19, "0")
    # Apache looks at its held pulls every 5 s only.
    assert 1.4 <= took <= 8


def test_a_held_pull_is_not_woken_by_another_tag(cluster: Cluster) -> None:
    by_hand = sender(cluster, cluster.topic(1))
    group = cluster.group()
    with RawClient(cluster.brokers[0].address) as client:
        # A hold that the tag filter of the waiting request decides on, so the subscription must be known.
        assert client.call(HEART_BEAT, body=heartbeat("held", group, by_hand.topic, "A")).code == 0
        fields = pull_fields(
            group, by_hand.topic, 0, 0, sysFlag=str(4 | SUSPEND), suspendTimeoutMillis="15000",
            subscription="A",
        )  # fmt: skip
        client.send(json_frame(PULL, fields, opaque=4711))
        assert client.silent_for(0.5)
        assert by_hand.send(b"not wanted", props="TAGS\x01B\x02").code == 0
        assert client.silent_for(0.7)
        assert by_hand.send(b"wanted", props="TAGS\x01A\x02").code == 0
        reply = client.reply(4711)
    assert reply.code == 0
    assert [r.body for r in records(reply.body)] == [b"wanted"]
    assert reply.ext["nextBeginOffset"] == "2"


def test_lite_pull_code_answers_as_pull_does(cluster: Cluster) -> None:
    by_hand = sender(cluster, cluster.topic(1))
    assert by_hand.send(b"x").code == 0
    wait_total(cluster, by_hand.topic, 1)
    fields = pull_fields("TOOLS_CONSUMER", by_hand.topic, 0, 0)
    replies = [by_hand.client.call(code, fields) for code in (PULL, LITE_PULL)]
    assert [r.code for r in replies] == [0, 0]
    assert replies[0].body == replies[1].body
    assert replies[0].ext == replies[1].ext
