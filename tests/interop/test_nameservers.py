"""Name servers and brokers of both kinds, mixed."""

from __future__ import annotations

import pytest

from .conftest import Cluster, Workshop
from .drivers import ClientError
from .java_client import Java, Queue, texts, unique
from .polling import wait_for
from .raw import RawClient
from .scenes import bodies, exactly, got, push
from .servers import registered

ROUTE, TOPICS, WIPE, ADD_PERM = 105, 206, 205, 327
PUT_KV, GET_KV, DELETE_KV, LIST_KV = 100, 101, 102, 219


def produce_and_consume(java: Java, cluster: Cluster, topic: str) -> None:
    """The main job through this name server."""
    consumer = push(java, cluster, (topic, "*"))
    messages = texts(topic, 40)
    java.producer(cluster.ns).send_ok(messages)
    exactly(consumer, 40)
    assert got(consumer) == bodies(messages)


def test_an_apache_broker_at_our_name_server(workshop: Workshop, java: Java) -> None:
    ours = workshop.alone("b1")
    ours.start()
    theirs = workshop.joining("peer", ours.nameservers[0], kind="apache")
    theirs.start()
    cluster = workshop.cluster(ours)
    assert cluster.admin.masters() == {"b1": ours.address, "peer": theirs.address}
    topic = unique("OnPeer")
    cluster.admin.topic(topic, 4, brokers=["peer"])
    assert [q["broker"] for q in cluster.admin.route(topic)["queues"]] == ["peer"]
    produce_and_consume(java, cluster, topic)
    both = cluster.topic(4)
    assert {q.broker for q in java.producer(cluster.ns).queues(both)} == {"b1", "peer"}
    theirs.kill()
    wait_for(
        lambda: registered(ours.nameservers[0]) == {"b1": ours.address},
        "a broker whose connection is gone is dropped at once",
        timeout_s=10,
    )
    with RawClient(ours.nameservers[0]) as client:
        assert client.call(ROUTE, {"topic": topic}).code == 17


def test_our_broker_at_apaches_name_server(workshop: Workshop, java: Java) -> None:
    nameserver = workshop.nameserver()
    ours = workshop.joining("b1", nameserver.address)
    ours.start()
    cluster = workshop.cluster(ours)
    produce_and_consume(java, cluster, cluster.topic(4))
    ours.stop()
    wait_for(
        lambda: registered(nameserver.address) == {}, "a broker that stops says so", timeout_s=10
    )


def test_our_broker_at_two_name_servers(workshop: Workshop, java: Java) -> None:
    first = workshop.alone("b1")
    first.start()
    second = workshop.nameserver()
    ours = workshop.joining("b2", first.nameservers[0])
    ours.nameservers.append(second.address)
    ours.start()
    topic = unique("OnBoth")
    admin = workshop.cluster(first).admin
    admin.topic(topic, 4, brokers=["b2"])
    for nameserver in ours.nameservers:
        with RawClient(nameserver) as client:
            wait_for(
                lambda c=client: c.call(ROUTE, {"topic": topic}).code == 0,
                "both know the topic",
                timeout_s=10,
            )
    through_second = Cluster(workshop.kind, [ours], [], java.admin(second.address))
    consumer = push(java, through_second, (topic, "*"))
    java.producer(first.nameservers[0]).send_ok(texts(topic, 10))
    exactly(consumer, 10)


def test_key_values(cluster: Cluster) -> None:
    space = unique("space")
    with RawClient(cluster.ns) as client:
        key = {"namespace": space, "key": "k"}
        assert client.call(GET_KV, key).code == 22
        assert client.call(PUT_KV, {**key, "value": "v"}).code == 0
        assert client.call(GET_KV, key).ext["value"] == "v"
        assert client.call(LIST_KV, {"namespace": space}).json() == {"table": {"k": "v"}}
        assert client.call(DELETE_KV, key).code == 0
        assert client.call(GET_KV, key).code == 22


def test_routes(cluster: Cluster) -> None:
    topic = cluster.topic(4)
    with RawClient(cluster.ns) as client:
        assert client.call(ROUTE, {"topic": f"{topic}_unknown"}).code == 17
        new = client.call(ROUTE, {"topic": topic})
        old = client.call(ROUTE, {"topic": topic}, version=317)
        assert topic in client.call(TOPICS).json()["topicList"]
    assert b'"brokerAddrs":{"0":' in new.body
    assert b'"brokerAddrs":{0:' in old.body
    broker = cluster.brokers[0]
    for reply in (new, old):
        route = reply.json()
        assert route["queueDatas"] == [
            {
                "brokerName": "b1",
                "perm": 6,
                "readQueueNums": 4,
                "writeQueueNums": 4,
                "topicSysFlag": 0,
            }
        ]
        (data,) = route["brokerDatas"]
        assert list(data["brokerAddrs"].values()) == [broker.address]


def test_a_broker_without_write_permission(java: Java, cluster3: Cluster) -> None:
    topic = cluster3.topic()
    producer = java.producer(cluster3.ns, retries=0)
    with RawClient(cluster3.ns) as client:
        assert client.call(WIPE, {"brokerName": "b2"}).code == 0
        wait_for(
            lambda: {q.broker for q in producer.queues(topic)} == {"b1", "b3"},
            "b2 is not offered",
            timeout_s=10,
        )
        assert client.call(ADD_PERM, {"brokerName": "b2"}).code == 0
        wait_for(lambda: len(producer.queues(topic)) == 24, "b2 is back", timeout_s=10)
    producer.send_ok(texts(topic, 1), to=Queue(topic, "b2", 0))


def test_a_client_without_any_name_server(java: Java) -> None:
    with pytest.raises(ClientError):
        java.producer("127.0.0.1:9").send(texts("Nowhere", 1)[0])
