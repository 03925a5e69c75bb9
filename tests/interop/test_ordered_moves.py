"""Orderly consumption while queues change hands: through a rebalance, a broker's restart, locks that expire.

Ordered means: of one queue no two messages are worked on at the same time, whoever does it, and none before all
earlier ones have been. After a hand-over some may come again, as at-least-once allows; then from there on in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pytest

from .calls import Orderly, Work, orderly
from .conftest import Cluster, Workshop
from .go_client import Go
from .java_client import Java, Queue, text
from .polling import wait_for
from .raw import RawClient
from .servers import Kind, Server

QUEUES = 4
LOCK, UNLOCK, RUNTIME_INFO = 41, 42, 28


def fill(java: Java, ns: str, topic: str, numbers: range, queues: int = QUEUES) -> int:
    """Rising numbers to each queue; how many in all."""
    producer = java.producer(ns, retries=10, timeoutMs=10_000)
    for queue in range(queues):
        sent = producer.batch([text(topic, str(n)) for n in numbers], to=Queue(topic, "b1", queue))
        assert sent.ok
    return queues * len(numbers)


def works(consumers: Sequence[Orderly]) -> list[Work]:
    """What all of them did, by queue and time."""
    return sorted(work for consumer in consumers for work in consumer.works())


def wait_works(consumers: Sequence[Orderly], count: int, timeout_s: float = 60.0) -> None:
    """Until so many different messages were worked on."""

    def done() -> bool:
        return len({(w.queue, w.number) for w in works(consumers)}) >= count

    wait_for(done, f"{count} messages", timeout_s=timeout_s, every_s=0.1)


def in_order(consumers: Sequence[Orderly]) -> int:
    """Check the order; how many messages came again."""
    repeats = 0
    for queue, group in groupby(works(consumers), key=lambda w: w.queue):
        newest, before = -1, None
        for work in group:
            if before is not None:
                assert before.ended_ms <= work.began_ms, (
                    f"at once in queue {queue}: {before} {work}"
                )
                assert work.number <= before.number + 1, f"a gap in queue {queue}: {before} {work}"
            assert work.number <= newest + 1, f"too early in queue {queue}: {work}"
            repeats += work.number <= newest
            newest, before = max(newest, work.number), work
    return repeats


@pytest.mark.parametrize("clients", ["java", pytest.param("go", marks=pytest.mark.repeats), "both"])
def test_order_through_a_rebalance(java: Java, go: Go, cluster: Cluster, clients: str) -> None:
    topic, group = cluster.topic(QUEUES), cluster.group()
    first = orderly(go if clients == "go" else java, cluster.ns, group, topic)
    consumers = [first]
    sent = fill(java, cluster.ns, topic, range(300))
    wait_works(consumers, 100)
    # The second one takes half of the queues while their messages are worked on.
    consumers.append(orderly(java if clients == "java" else go, cluster.ns, group, topic))
    sent += fill(java, cluster.ns, topic, range(300, 600))
    wait_for(lambda: len(consumers[1].works()) > 50, "the second one works", timeout_s=90)
    # And the first one leaves while there is work: the second one gets all.
    sent += fill(java, cluster.ns, topic, range(600, 700))
    first.halt()
    wait_works(consumers, sent, timeout_s=100)
    assert in_order(consumers) <= 100
    assert {w.queue for w in consumers[1].works()} == set(range(QUEUES))


@pytest.mark.parametrize(
    ("how", "clients"),
    [
        ("stop", "java"),
        pytest.param("stop", "go", marks=pytest.mark.repeats),
        ("kill", "java"),
        ("kill", "go"),
    ],
)
def test_order_through_a_restart_of_the_broker(
    java: Java, go: Go, workshop: Workshop, clients: str, how: str
) -> None:
    server = workshop.alone(settings={"flushConsumerOffsetInterval": "500"})
    server.start()
    cluster = workshop.cluster(server)
    topic, group = cluster.topic(QUEUES), cluster.group()
    client = java if clients == "java" else go
    consumers = [orderly(client, cluster.ns, group, topic) for _ in range(2)]
    sent = fill(java, cluster.ns, topic, range(300))
    wait_works(consumers, 100)
    server.stop() if how == "stop" else server.kill()
    server.start()
    sent += fill(java, cluster.ns, topic, range(300, 400))
    wait_works(consumers, sent, timeout_s=100)
    in_order(consumers)


def life(kind: Kind, ms: int) -> dict[str, object]:
    """Options of a server whose locks live for so long."""
    key = "rocketmq.broker.rebalance.lockMaxLiveTime"
    if kind == "trio":
        return {"settings": {key: str(ms)}}
    return {"jvm": ("-Xms256m", "-Xmx512m", f"-D{key}={ms}")}


def lock(client: RawClient, group: str, who: str, topic: str, code: int = LOCK) -> list[int]:
    """Lock or unlock queue 0 by hand: the queues that are held now."""
    queue = f'{{"brokerName":"b1","queueId":0,"topic":"{topic}"}}'
    body = (
        f'{{"clientId":"{who}","consumerGroup":"{group}","mqSet":[{queue}],"onlyThisBroker":false}}'
    )
    reply = client.call(code, {}, body.encode())
    assert reply.code == 0
    return [q["queueId"] for q in reply.json()["lockOKMQSet"]] if code == LOCK else []


@pytest.fixture
def short(workshop: Workshop, kind: Kind) -> Server:
    """A broker whose locks live for 3 s."""
    server = workshop.alone(**life(kind, 3000))
    server.start()
    return server


def test_the_queue_of_a_client_that_died_is_free_when_its_lock_is_over(
    java: Java, workshop: Workshop, short: Server
) -> None:
    cluster = workshop.cluster(short)
    topic, group = cluster.topic(1), cluster.group()
    sent = fill(java, cluster.ns, topic, range(20), queues=1)
    with RawClient(short.address) as dead:
        assert lock(dead, group, "dead", topic) == [0]
    with RawClient(short.address) as other:
        assert lock(other, group, "other", topic) == []
        wait_for(lambda: lock(other, group, "other", topic) == [0], "the lock is over", timeout_s=6)
        lock(other, group, "other", topic, UNLOCK)
    consumer = orderly(java, cluster.ns, group, topic)
    wait_works([consumer], sent)
    assert in_order([consumer]) == 0


def test_c109_a_client_that_renews_too_late_goes_on_and_is_named(
    go: Go, java: Java, workshop: Workshop, short: Server, kind: Kind
) -> None:
    cluster = workshop.cluster(short)
    topic, group = cluster.topic(QUEUES), cluster.group()
    sent = fill(java, cluster.ns, topic, range(50))
    consumer = orderly(go, cluster.ns, group, topic)
    wait_works([consumer], sent)
    if kind == "trio":  # only we tell

        def lost() -> str:
            with RawClient(short.address) as client:
                return client.call(RUNTIME_INFO).json()["table"].get("lostLocks", "")

        told = wait_for(lost, "the lost lock in the status", timeout_s=25)
        (client_id,) = cluster.admin.consumers(group)
        assert f"{group}: {client_id} lost {topic} queue" in told
    sent += fill(java, cluster.ns, topic, range(50, 100))
    wait_works([consumer], sent, timeout_s=40)
    assert in_order([consumer]) == 0
