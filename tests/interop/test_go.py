"""Apache's Go client v2 as producer and consumer, alone and beside the Java client."""

from __future__ import annotations

from .conftest import Cluster
from .go_client import Go, wait_go
from .java_client import Java, texts
from .polling import wait_for
from .scenes import bodies, exactly, got, push, wait_total


def test_every_way_of_sending(go: Go, java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    consumer = push(java, cluster, (topic, "*"))
    producer = go.producer(cluster.ns)
    sync = texts(topic, 20, "sync", tags="A", keys="k", props={"own": "h\u00e9llo"})
    results = producer.send(sync)
    assert all(r.broker == "b1" and 0 <= r.queue < 8 and r.msgId and r.offsetMsgId for r in results)
    rest = {mode: texts(topic, 20, mode) for mode in ("async", "oneway", "batch")}
    for mode, messages in rest.items():
        producer.send(messages, mode)
    exactly(consumer, 80)
    assert got(consumer) == bodies(sync + [m for messages in rest.values() for m in messages])
    first = next(m for m in consumer.received() if m.body == "sync-0")
    assert (first.tags, first.keys, first.properties["own"]) == ("A", "k", "h\u00e9llo")
    assert cluster.admin.view(topic, results[0].offsetMsgId).body == "sync-0"


def test_sends_to_a_queue_fill_it_in_order(go: Go, java: Java, cluster: Cluster) -> None:
    topic = cluster.topic()
    messages = [{**m, "queue": 5} for m in texts(topic, 30)]
    sent = go.producer(cluster.ns).send(messages)
    assert [(r.queue, r.queueOffset) for r in sent] == [(5, i) for i in range(30)]


def test_push_consumer_gets_what_java_sends(go: Go, java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    messages = texts(topic, 100, tags="A", keys="k")
    java.producer(cluster.ns).send_ok(messages)
    consumer = go.push(cluster.ns, group, (topic, "*"), first=True)
    wait_go([consumer], 100)
    assert consumer.bodies() == bodies(messages)
    assert all(r.properties["KEYS"] == "k" for r in consumer.received())
    large = "x" * 6000
    java.producer(cluster.ns).send_ok([{"topic": topic, "body": large}])
    wait_go([consumer], 101)
    assert large in consumer.bodies(), "a body that Java compressed"


def test_push_consumer_with_a_tag(go: Go, java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    producer = java.producer(cluster.ns)
    producer.send_ok(texts(topic, 20, "b", tags="B") + texts(topic, 20, "a", tags="A"))
    consumer = go.push(cluster.ns, group, (topic, "A || C"), first=True)
    wait_go([consumer], 20)
    assert consumer.bodies() == bodies(texts(topic, 20, "a"))


def test_two_push_consumers_share_a_topic(go: Go, java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    consumers = [go.push(cluster.ns, group, (topic, "*"), first=True) for _ in range(2)]
    producer = java.producer(cluster.ns)
    messages = texts(topic, 200)
    producer.send_ok(messages)
    wait_go(consumers, 200)
    assert sorted({b for c in consumers for b in c.bodies()}) == bodies(messages)


def test_one_group_of_a_java_and_a_go_consumer(go: Go, java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    java_one = push(java, cluster, (topic, "*"), group=group)
    # Started at the last offset, it would pass over what comes between its two questions where that is.
    go_one = go.push(cluster.ns, group, (topic, "*"), first=True)
    messages = texts(topic, 100)
    go.producer(cluster.ns).send(messages)
    expected = set(bodies(messages))
    seen: set[str] = set()

    def all_there() -> bool:
        seen.update(java_one.bodies(), go_one.bodies())
        return seen >= expected

    wait_for(all_there, "every message reached one of the two", timeout_s=60)
    assert seen == expected


def test_broadcasting(go: Go, java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    # Each keeps its own place; at the last offset it would pass over what comes before it has asked where that is.
    listeners = [
        go.push(cluster.ns, group, (topic, "*"), broadcast=True, first=True) for _ in range(2)
    ]
    messages = texts(topic, 16)
    java.producer(cluster.ns).send_ok(messages)
    for listener in listeners:
        wait_go([listener], 16)
        assert listener.bodies() == bodies(messages)


def test_pull_consumer(go: Go, java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    messages = texts(topic, 64)
    java.producer(cluster.ns).send_ok(messages)
    wait_total(cluster, topic, 64)
    consumer = go.pull(cluster.ns, group, topic)
    assert sorted(r.body for r in consumer.poll(64)) == bodies(messages)
    stats = {q["queue"]: q["max"] for q in cluster.admin.stats(topic)}
    queue = max(stats, key=lambda q: stats[q])
    pulled = consumer.pull_from(topic, "b1", queue, 1, 32)
    assert (pulled.status, pulled.min, pulled.max) == (0, 0, stats[queue])
    assert [r.queueOffset for r in pulled.messages] == list(range(1, stats[queue]))


def test_go_goes_on_where_go_stopped(go: Go, java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    producer = java.producer(cluster.ns)
    producer.send_ok(texts(topic, 40, "old"))
    first = go.push(cluster.ns, group, (topic, "*"), first=True)
    wait_go([first], 40)
    # The client counts a message as consumed only after its handler has returned, so a stop right behind the last
    # message may commit the offset before it.
    wait_for(
        lambda: cluster.admin.consume_stats(group, topic).lag == 0, "all is committed", every_s=0.2
    )
    first.stop()
    new = texts(topic, 40, "new")
    producer.send_ok(new)
    second = go.push(cluster.ns, group, (topic, "*"), first=True)
    wait_go([second], 40)
    assert second.bodies() == bodies(new)
