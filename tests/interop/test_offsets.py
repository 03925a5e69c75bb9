"""Behaviours section 14: offsets, as far as no pop is needed (B099 to B106, B114 to B117).

Standard set-up of that section: long polling is off.
"""

from __future__ import annotations

import json

import pytest

from .conftest import Cluster
from .java_client import Java, Queue, Received, texts, wait_all_queues
from .polling import holds_for, now_ms, wait_for
from .raw import RawClient, pull_fields
from .scenes import all_queues, exactly, push, wait_total

QUERY_OFFSET, UPDATE_OFFSET, PULL, RESET = 14, 15, 11, 222


def fill(java: Java, cluster: Cluster, topic: str, each: int, prefix: str) -> int:
    """``each`` messages to every queue, in batches; how many in all."""
    producer = java.producer(cluster.ns)
    queues = all_queues(topic, cluster)
    for i, queue in enumerate(queues):
        producer.batch(texts(topic, each, f"{prefix}{i}"), to=queue)
    return each * len(queues)


@pytest.mark.parametrize("each", [10, 100])
def test_b099_b100_b101_lag_and_pull_lag(java: Java, cluster3_short: Cluster, each: int) -> None:
    cluster = cluster3_short
    topic, group = cluster.topic(), cluster.group()
    consumer = push(java, cluster, (topic, "*"), group=group)
    sent = fill(java, cluster, topic, each, "first")
    consumer.wait(sent)

    def lags() -> tuple[int, int, int]:
        parts = [cluster.admin.consume_stats(group, topic, b.address) for b in cluster.brokers]
        return (
            sum(p.lag for p in parts),
            sum(p.pull_lag for p in parts),
            sum(p.in_flight for p in parts),
        )

    # B099: all consumed.
    wait_for(lambda: lags() == (0, 0, 0), "no lag at all", timeout_s=10)
    for broker in cluster.brokers:
        for q in cluster.admin.consume_stats(group, topic, broker.address).queues:
            assert q["brokerOffset"] == q["consumerOffset"] == each
    # B100: pulled, not consumed.
    consumer.hold(True)
    assert fill(java, cluster, topic, 10, "held") == 240
    wait_for(lambda: lags()[:2] == (240, 0), "lag 240, pull lag 0", timeout_s=10)
    # B101: not even pulled.
    consumer.hold(False)
    consumer.wait(sent + 240)
    wait_for(lambda: lags()[:2] == (0, 0), "no lag after the hold", timeout_s=10)
    consumer.stop()
    fill(java, cluster, topic, 10, "stopped")
    wait_for(lambda: lags()[:2] == (240, 240), "lag 240, pull lag 240", timeout_s=10)


def test_b102_and_b103_a_live_group_reads_again_after_a_reset(
    java: Java, cluster3_short: Cluster
) -> None:
    cluster = cluster3_short
    topic = cluster.topic()
    by_queue, by_time = cluster.group(), cluster.group()
    began = now_ms() - 60_000
    queue_reader = push(java, cluster, (topic, "*"), group=by_queue)
    time_reader = push(java, cluster, (topic, "*"), group=by_time)
    assert fill(java, cluster, topic, 100, "m") == 2400
    for reader, group in ((queue_reader, by_queue), (time_reader, by_time)):
        reader.wait(2400)
        wait_for(
            lambda g=group: cluster.admin.consume_stats(g, topic).lag == 0, "no lag", timeout_s=10
        )
    for broker in cluster.brokers:
        reset = cluster.admin.reset_queue(broker.address, topic, by_queue, 3, 0)
        assert reset == {Queue(topic, broker.name, 3): 0}
        reset = cluster.admin.reset_time(broker.address, topic, by_time, began)
        assert reset == {Queue(topic, broker.name, q): 0 for q in range(8)}
    queue_reader.wait(2400 + 300, timeout_s=180)
    time_reader.wait(2400 + 2400, timeout_s=180)
    again = {m.queue for m in queue_reader.received(2400)}
    assert again == {3}


def test_b104_a_reset_without_queue_and_offset_means_all_queues(
    java: Java, cluster3_short: Cluster
) -> None:
    cluster = cluster3_short
    topic, group = cluster.topic(), cluster.group()
    fill(java, cluster, topic, 10, "m")
    wait_total(cluster, topic, 240)
    with RawClient(cluster.brokers[0].address) as client:
        ext = {"topic": topic, "group": group, "timestamp": "-1", "isForce": "true"}
        reply = client.call(RESET, ext)
    assert reply.code == 0, reply.remark
    offsets = {dict(k)["queueId"]: v for k, v in reply.json()["offsetTable"].items()}
    assert offsets == dict.fromkeys(range(8), 10)


def test_b105_commits_are_ignored_while_a_reset_is_pending(
    java: Java, cluster3_short: Cluster
) -> None:
    cluster = cluster3_short
    topic, group = cluster.topic(), cluster.group()
    fill(java, cluster, topic, 10, "m")
    wait_total(cluster, topic, 240)
    key = {"consumerGroup": group, "topic": topic, "queueId": "3"}
    with RawClient(cluster.brokers[0].address) as client:
        assert client.call(UPDATE_OFFSET, {**key, "commitOffset": "7"}).code == 0
        assert client.call(QUERY_OFFSET, key).ext["offset"] == "7"
        ext = {
            "topic": topic, "group": group, "queueId": "3", "offset": "4", "timestamp": "-1",
            "isForce": "true",
        }  # fmt: skip
        assert client.call(RESET, ext).code == 0
        assert client.call(UPDATE_OFFSET, {**key, "commitOffset": "9"}).code == 0
        assert client.call(QUERY_OFFSET, key).ext["offset"] == "4"
        first = client.call(PULL, pull_fields(group, topic, 3, 9))
        assert (first.code, first.ext["nextBeginOffset"]) == (21, "4")
        second = client.call(PULL, pull_fields(group, topic, 3, 9))
        assert (second.code, second.ext["nextBeginOffset"]) == (0, "10")
        assert client.call(UPDATE_OFFSET, {**key, "commitOffset": "9"}).code == 0
        assert client.call(QUERY_OFFSET, key).ext["offset"] == "9"


def test_b106_resets_that_are_refused(java: Java, cluster3_short: Cluster) -> None:
    cluster = cluster3_short
    topic, group = cluster.topic(), cluster.group()
    fill(java, cluster, topic, 10, "m")
    wait_total(cluster, topic, 240)
    with RawClient(cluster.brokers[0].address) as client:

        def reset(topic: str, group: str, offset: int) -> int:
            ext = {
                "topic": topic, "group": group, "queueId": "0", "offset": str(offset),
                "timestamp": "-1", "isForce": "true",
            }  # fmt: skip
            return client.call(RESET, ext).code

        assert reset(f"{topic}_unknown", group, 4) == 17
        assert reset(topic, f"{group}_unknown", 4) == 26
        assert reset(topic, group, 12) == 1
        assert reset(topic, group, 11) == 0
        assert reset(topic, group, 0) == 0


def test_b114_no_stored_offset_and_a_first_offset_consumer(
    java: Java, cluster3_short: Cluster
) -> None:
    cluster = cluster3_short
    topic, group = cluster.topic(), cluster.group()
    java.producer(cluster.ns).send_ok(texts(topic, 10))
    for broker in cluster.brokers:
        with RawClient(broker.address) as client:
            for queue in range(8):
                ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
                reply = client.call(QUERY_OFFSET, {**ext, "setZeroIfNotFound": "false"})
                assert reply.code == 22
    consumer = java.push(cluster.ns, group, (topic, "*"), start="FIRST_OFFSET")
    exactly(consumer, 10, timeout_s=15)


def test_b115_no_stored_offset_and_a_young_topic(java: Java, cluster3_short: Cluster) -> None:
    cluster = cluster3_short
    topic, group = cluster.topic(), cluster.group()
    java.producer(cluster.ns).send_ok(texts(topic, 10))
    wait_total(cluster, topic, 10)
    for queue, stats in zip(all_queues(topic, cluster), cluster.admin.stats(topic), strict=True):
        broker = next(b for b in cluster.brokers if b.name == queue.broker)
        with RawClient(broker.address) as client:
            ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue.queue)}
            reply = client.call(QUERY_OFFSET, ext)
            # An empty queue has no message 0 that could be in memory.
            wanted = (0, "0") if stats["max"] else (22, None)
            assert (reply.code, reply.ext.get("offset")) == wanted
    consumer = java.push(cluster.ns, group, (topic, "*"), start="LAST_OFFSET")
    exactly(consumer, 10, timeout_s=15)


def test_b116_a_consumer_that_cannot_learn_its_offset_does_not_guess(
    java: Java, cluster3_short: Cluster
) -> None:
    """The answers of the broker are turned into failures where they reach the client."""
    cluster = cluster3_short
    topic, group = cluster.topic(), cluster.group()
    java.producer(cluster.ns).send_ok(texts(topic, 10))
    lost = java.push(cluster.ns, group, (topic, "*"), start="FIRST_OFFSET", unknown=True)
    holds_for(
        lambda: not lost.assigned(topic) and not lost.count(), "no queue, no message", seconds=3
    )
    lost.stop()
    consumer = java.push(cluster.ns, cluster.group(), (topic, "*"), start="FIRST_OFFSET")
    exactly(consumer, 10, timeout_s=15)


def test_b117_seek_of_a_lite_pull_consumer(java: Java, cluster3_short: Cluster) -> None:
    cluster = cluster3_short
    topic, group = cluster.topic(), cluster.group()
    queue = Queue(topic, "b2", 5)
    producer = java.producer(cluster.ns)
    producer.batch(texts(topic, 10), to=queue)
    wait_total(cluster, topic, 10)
    lite = java.lite(cluster.ns, group)
    lite.assign([queue])
    lite.seek(queue, "begin")
    assert [m.queue_offset for m in lite.poll_until(10)] == list(range(10))
    lite.seek(queue, 6)
    assert [m.queue_offset for m in lite.poll_until(4)] == [6, 7, 8, 9]
    lite.seek(queue, "end")
    holds_for(lambda: not lite.poll(0.2), "nothing behind the end", seconds=0.6)
    producer.batch(texts(topic, 1, "new"), to=queue)
    got: list[Received] = lite.poll_until(1)
    assert [(m.queue_offset, m.body) for m in got] == [(10, "new-0")]
    with RawClient(cluster.brokers[1].address) as client:
        beyond = client.call(PULL, pull_fields(group, topic, 5, 500))
        assert (beyond.code, beyond.ext["nextBeginOffset"]) == (21, "11")
        at_max = client.call(PULL, pull_fields(group, topic, 5, 11))
        assert (at_max.code, at_max.ext["nextBeginOffset"]) == (19, "11")


def test_offsets_of_unknown_groups_and_topics(cluster: Cluster) -> None:
    topic, group = cluster.topic(1), cluster.group()
    with RawClient(cluster.brokers[0].address) as client:
        ext = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "1"}
        assert client.call(UPDATE_OFFSET, {**ext, "topic": f"{topic}_unknown"}).code == 17
        assert client.call(UPDATE_OFFSET, ext).code == 0


def test_search_by_time(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic(1)
    queue = Queue(topic, "b1", 0)
    producer = java.producer(cluster.ns)
    producer.send_all(texts(topic, 5), to=queue, gap_ms=20)
    wait_total(cluster, topic, 5)
    messages, _ = java.pull(cluster.ns, cluster.group()).drain([queue])
    times = [m.store_timestamp for m in messages]
    assert len(set(times)) == 5
    admin = cluster.admin
    for offset, time_ms in enumerate(times):
        assert admin.search(queue, time_ms) == admin.search(queue, time_ms, upper=True) == offset
    assert (admin.search(queue, times[0] - 1), admin.search(queue, times[0] - 1, upper=True)) == (
        0,
        0,
    )
    assert (admin.search(queue, times[1] + 1), admin.search(queue, times[1] + 1, upper=True)) == (
        2,
        1,
    )
    after = times[-1] + 1
    assert (admin.search(queue, after), admin.search(queue, after, upper=True)) == (5, 4)
    assert admin.offsets(queue) == (0, 5, times[0])


def test_a_new_consumer_of_a_group_goes_on_where_the_last_one_stopped(
    java: Java, cluster: Cluster
) -> None:
    topic, group = cluster.topic(), cluster.group()
    first = push(java, cluster, (topic, "*"), group=group)
    producer = java.producer(cluster.ns)
    producer.send_ok(texts(topic, 40, "old"))
    exactly(first, 40)
    first.stop()
    producer.send_ok(texts(topic, 40, "between"))
    second = java.push(cluster.ns, group, (topic, "*"))
    wait_all_queues([second], topic, 8)
    exactly(second, 40)
    assert all(b.startswith("between") for b in second.bodies())


def test_the_offset_table_survives_in_the_peers_json(cluster: Cluster) -> None:
    topic, group = cluster.topic(1), cluster.group()
    with RawClient(cluster.brokers[0].address) as client:
        ext = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "0"}
        assert client.call(UPDATE_OFFSET, ext).code == 0
    path = cluster.brokers[0].store / "config" / "consumerOffset.json"

    def written() -> bool:
        return path.exists() and f"{topic}@{group}" in path.read_text()

    wait_for(written, "the periodic write of offsets", timeout_s=30, every_s=0.2)
    text = path.read_text()
    assert json.dumps(f"{topic}@{group}") in text
