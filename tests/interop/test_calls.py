"""What a broker asks of a consumer: its running info, its offsets, to consume one message, to reset."""

from __future__ import annotations

import time

import pytest

from .calls import Directly, consume_directly, consumer_status, running_info
from .conftest import Cluster, Workshop
from .drivers import ClientError
from .go_client import Go, wait_go
from .java_client import Java, texts
from .polling import wait_for
from .raw import RawClient, heartbeat
from .scenes import exactly, push, wait_total


def test_running_info_of_a_java_consumer(java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    consumer = push(java, cluster, (topic, "*"), group=group)
    info = running_info(cluster.admin, group, consumer.client_id, jstack=True)
    assert topic in info.topics
    assert [q.queue for q in info.queues if q.topic == topic] == list(range(8))
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info.jstack is not None
    assert "ConsumeMessageThread" in info.jstack or "PullMessageService" in info.jstack
    assert running_info(cluster.admin, group, consumer.client_id).jstack is None
    consumer.stop()
    with pytest.raises(ClientError):
        running_info(cluster.admin, group, consumer.client_id)


def test_running_info_of_a_go_consumer(go: Go, java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    go.push(cluster.ns, group, (topic, "*"), first=True)
    client_id = wait_for(lambda: _ids(cluster, group), "the Go consumer is known")[0]
    info = running_info(cluster.admin, group, client_id)
    assert topic in info.topics
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"


def _ids(cluster: Cluster, group: str) -> list[str]:
    try:
        return cluster.admin.consumers(group)
    except ClientError:
        return []


@pytest.mark.parametrize("orderly", [False, True])
def test_a_java_consumer_consumes_one_message_directly(
    java: Java, cluster: Cluster, orderly: bool
) -> None:
    topic, group = cluster.topic(), cluster.group()
    consumer = push(java, cluster, (topic, "*"), group=group, orderly=orderly)
    sent = java.producer(cluster.ns).send_ok(texts(topic, 3))
    exactly(consumer, 3)
    wait_total(cluster, topic, 3)
    told = consume_directly(cluster.admin, group, consumer.client_id, topic, sent[1].offset_msg_id)
    assert told == Directly("CR_SUCCESS", order=orderly, autoCommit=True, remark=None)
    assert consumer.bodies().count("m-1") == 2
    with pytest.raises(ClientError):
        consume_directly(cluster.admin, group, "nobody", topic, sent[1].offset_msg_id)


def test_a_go_consumer_consumes_one_message_directly(go: Go, java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    consumer = go.push(cluster.ns, group, (topic, "*"), first=True)
    sent = java.producer(cluster.ns).send_ok(texts(topic, 3))
    wait_go([consumer], 3)
    (client_id,) = cluster.admin.consumers(group)
    told = consume_directly(cluster.admin, group, client_id, topic, sent[1].offset_msg_id)
    assert told.result == "CR_SUCCESS"
    assert consumer.bodies().count("m-1") == 2


def test_consumers_tell_their_offsets(go: Go, java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(2), cluster.group()
    consumer = push(java, cluster, (topic, "*"), group=group)
    java.producer(cluster.ns).send_ok(texts(topic, 20))
    exactly(consumer, 20)

    def told() -> bool:
        found = consumer_status(cluster.admin, topic, group)
        return sum(found[consumer.client_id].values()) == 20

    wait_for(told, "the consumer tells that it has consumed all")
    assert list(consumer_status(cluster.admin, topic, group, consumer.client_id)) == [
        consumer.client_id
    ]
    assert consumer_status(cluster.admin, topic, group, "another") == {}
    of_go = cluster.group()
    go_consumer = go.push(cluster.ns, of_go, (topic, "*"), first=True)
    wait_go([go_consumer], 20)
    (client_id,) = cluster.admin.consumers(of_go)
    assert list(consumer_status(cluster.admin, topic, of_go)) == [client_id]


@pytest.mark.parametrize("client", ["java", "go"])
def test_clients_reset_their_offsets_themselves(
    client: str, workshop: Workshop, java: Java, go: Go
) -> None:
    server = workshop.alone(settings={"useServerSideResetOffset": "false"})
    server.start()
    cluster = workshop.cluster(server)
    topic, group = cluster.topic(1), cluster.group()
    if client == "java":
        consumer = push(java, cluster, (topic, "*"), group=group)
        java.producer(cluster.ns).send_ok(texts(topic, 10))
        exactly(consumer, 10)
        consumer.persist()
    else:
        java.producer(cluster.ns).send_ok(texts(topic, 10))
        of_go = go.push(cluster.ns, group, (topic, "*"), first=True)
        wait_go([of_go], 10)
    wait_for(
        lambda: cluster.admin.consume_stats(group, topic).lag == 0, "all is committed", every_s=0.2
    )
    assert list(cluster.admin.reset_time(server.address, topic, group, 0).values()) == [0]
    if client == "java":
        consumer.wait(20, timeout_s=40)
    else:
        wait_go([of_go], 20, timeout_s=40)


def test_a_client_that_does_not_answer_is_given_up(cluster: Cluster) -> None:
    group, topic = cluster.group(), cluster.topic(1)
    address = cluster.brokers[0].address
    with RawClient(address) as silent, RawClient(address) as admin:
        assert silent.call(34, {}, heartbeat("silent", group, topic)).code == 0
        began_s = time.monotonic()
        ext = {"consumerGroup": group, "clientId": "silent", "jstackEnable": "false"}
        told = admin.call(307, ext)
        assert told.code == 207
        assert 9 < time.monotonic() - began_s < 14
        asked = silent.read()
        while asked.code != 307:  # the broker tells of itself as a member first (40)
            asked = silent.read()
        assert (asked.flag, asked.ext["clientId"]) == (0, "silent")
