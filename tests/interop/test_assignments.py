"""Consumers whose queues the broker assigns, to be pulled or popped: B074, B083, and the requests behind them."""

from __future__ import annotations

import json

import pytest

from .conftest import Cluster, Workshop
from .failing import failing, outcomes
from .java_client import Java, text
from .polling import holds_for, sleep, wait_for
from .raw import RawClient, Reply, heartbeat

QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE, HEART_BEAT = 400, 401, 34
SHARED_BY = 8


def set_mode(cluster: Cluster, topic: str, group: str, mode: str, share: int) -> None:
    """Set the request mode of a group on all brokers."""
    for broker in cluster.brokers:
        with RawClient(broker.address) as client:
            reply = ask_mode(client, topic, group, mode, share)
            assert reply.code == 0, reply.remark


def ask_mode(client: RawClient, topic: str, group: str, mode: str, share: int = 0) -> Reply:
    body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share}
    return client.call(SET_MESSAGE_REQUEST_MODE, None, json.dumps(body).encode())


def assigned(
    client: RawClient,
    topic: str,
    group: str,
    client_id: str,
    strategy: str = "AVG",
    model: str = "CLUSTERING",
) -> list[tuple[str, int, str]] | None:
    """(broker, queue id, mode) in order; None for no list."""
    body = {
        "topic": topic,
        "consumerGroup": group,
        "clientId": client_id,
        "strategyName": strategy,
        "messageModel": model,
    }
    reply = client.call(QUERY_ASSIGNMENT, None, json.dumps(body).encode())
    assert reply.code == 0, reply.remark
    found = reply.json().get("messageQueueAssignments")
    if found is None:
        return None
    queues = [(one["messageQueue"], one["mode"]) for one in found]
    return sorted((queue["brokerName"], queue["queueId"], mode) for queue, mode in queues)


def test_b074_an_orderly_consumer_in_pop_mode(java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(1), cluster.group()
    set_mode(cluster, topic, group, "POP", SHARED_BY)
    consumer = failing(java, cluster, topic, 2, group, assigned=True, orderly=True, suspendMs=1000)
    producer = java.producer(cluster.ns)
    producer.send_ok([text(topic, f"m{number}") for number in range(10)])
    consumer.wait_done(10, 90)
    sleep(2)
    assert outcomes(consumer.tries()) == {True: 20, False: 10}


def test_b083_a_push_consumer_that_pops(java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    set_mode(cluster, topic, group, "POP", SHARED_BY)
    consumer = failing(java, cluster, topic, 0, group, assigned=True)
    java.producer(cluster.ns).send_ok([text(topic, "m")])
    (found,) = consumer.wait_done(1, 30)
    assert found.properties["POP_CK"].split(" ")[5] == "b1"
    holds_for(lambda: len(consumer.tries()) == 1, "it comes once", seconds=27)


def test_queues_of_all_brokers_are_assigned(java: Java, cluster3: Cluster) -> None:
    """Each broker answers with the queues of all three, in both modes."""
    topic, group = cluster3.topic(4), cluster3.group()
    clients = [RawClient(broker.address) for broker in cluster3.brokers]
    ids = ["c1", "c2", "c3", "c4"]
    members = [RawClient(broker.address) for broker in cluster3.brokers for _ in ids]
    for number, member in enumerate(members):
        beat = heartbeat(ids[number % 4], group, topic)
        assert member.call(HEART_BEAT, {}, beat).code == 0
    names = ["b1", "b2", "b3"]
    everything = [(name, number, "PULL") for name in names for number in range(4)]
    for client in clients:
        wait_for(lambda c=client: assigned(c, topic, group, "c1"), "a route", timeout_s=15)
        shares = [assigned(client, topic, group, one) for one in ids]
        assert shares == [everything[3 * n : 3 * n + 3] for n in range(4)]
        circle = [assigned(client, topic, group, one, "AVG_BY_CIRCLE") for one in ids]
        assert circle == [everything[n::4] for n in range(4)]
        assert assigned(client, topic, group, "stranger") == []
        assert assigned(client, topic, group, "c1", model="BROADCASTING") == everything
        assert assigned(client, topic, group, "c1", "NO_SUCH") is None
        assert assigned(client, topic, "nobody", "c1") is None
        assert assigned(client, "no_such_topic", group, "c1") is None
    set_mode(cluster3, topic, group, "POP", 0)
    popped = [(name, -1, "POP") for name in names]
    assert [assigned(client, topic, group, "c2") for client in clients] == [popped] * 3
    set_mode(cluster3, topic, group, "POP", 1)
    shared = [(name, number, "POP") for name, number, _ in everything]
    assert [assigned(client, topic, group, "c2") for client in clients] == [shared[3:9]] * 3
    assert assigned(clients[0], topic, group, "c4") == sorted(shared[9:12] + shared[:3])


@pytest.mark.parametrize(
    ("topic", "group", "code"), [("%RETRY%x", None, 16), ("no_such_topic", None, 17)]
)
def test_modes_that_are_refused(cluster: Cluster, topic: str, group: str | None, code: int) -> None:
    with RawClient(cluster.brokers[0].address) as client:
        reply = ask_mode(client, topic, group or cluster.group(), "POP")
        assert (reply.code, bool(reply.remark)) == (code, True)


def test_a_mode_survives_a_restart(workshop: Workshop) -> None:
    broker = workshop.alone()
    broker.start()
    cluster = workshop.cluster(broker)
    topic, group = cluster.topic(2), cluster.group()
    set_mode(cluster, topic, group, "POP", 0)
    broker.kill()
    broker.start()
    with RawClient(broker.address) as client:
        assert client.call(HEART_BEAT, {}, heartbeat("c1", group, topic)).code == 0
        found = wait_for(lambda: assigned(client, topic, group, "c1"), "a route", timeout_s=15)
    assert found == [("b1", -1, "POP")]
