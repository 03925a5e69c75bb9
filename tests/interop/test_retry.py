"""Behaviours section 11: retry and dead letters of pushed messages (B076 to B078), and B044; cases C131, C145, C146."""

from __future__ import annotations

import json
import time

import attrs
import pytest

from .conftest import Cluster
from .failing import ALWAYS, by_body, failing, outcomes
from .go_client import Go
from .java_client import Java, text, texts, unique
from .polling import sleep
from .raw import RawClient, Record, Reply, Sender, properties
from .scenes import QUIET_S, stored


def record_of(client: RawClient, topic: str, body: bytes = b"m", **props: str) -> Record:
    """Send one message to queue 0 of a topic and read its record."""
    reply = Sender(client, topic).send(body, props=properties({"UNIQ_KEY": unique("K"), **props}))
    assert reply.code == 0, reply.remark
    return stored(client, topic, 1)[0]


def send_back(client: RawClient, record: Record, group: str, **fields: str) -> Reply:
    """CONSUMER_SEND_MSG_BACK, as a client sends it."""
    ext = {
        "offset": str(record.log_offset),
        "group": group,
        "delayLevel": "0",
        "originMsgId": "whatever",
        "originTopic": record.topic,
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }
    return client.call(36, {**ext, **fields})


def set_group(client: RawClient, group: str, **settings: object) -> None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
    body = json.dumps({"groupName": group, "consumeEnable": True, **settings}).encode()
    reply = client.call(200, body=body)
    assert reply.code == 0, reply.remark


def test_b076_a_failed_message_comes_again_after_10_s(java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    consumer = failing(java, cluster, topic, 1, group)
    java.producer(cluster.ns).send_ok(texts(topic, 10))
    tries = consumer.wait_done(10, 30)
    assert outcomes(tries) == {True: 10, False: 10}
    assert set(map(tuple, by_body(tries).values())) == {(0, 1)}
    first = {t.body: t for t in tries if t.failed}
    for again in (t for t in tries if not t.failed):
        before = first[again.body]
        assert again.topic == before.topic == topic
        assert again.msgId == before.msgId
        assert 10_000 <= again.at - before.at <= 15_000
    with RawClient(cluster.brokers[0].address) as client:
        for record in stored(client, f"%RETRY%{group}", 10, 1):
            assert record.reconsume_times == 1
            assert record.properties["RETRY_TOPIC"] == topic
            assert record.properties["DELAY"] == "3"
            assert len(record.properties["ORIGIN_MESSAGE_ID"]) == 32


@pytest.mark.parametrize("language", ["java", "go"])
def test_b077_tries_end_among_the_dead_letters(
    java: Java, go: Go, cluster: Cluster, language: str
) -> None:
    """The limit of the client counts; each try keeps the ids, and the last failure leads to the dead letters."""
    topic, group = cluster.topic(), cluster.group()
    clients = java if language == "java" else go
    consumer = failing(clients, cluster, topic, ALWAYS, group, delayLevel=1, maxReconsumeTimes=2)
    java.producer(cluster.ns).send_ok(texts(topic, 5))
    # Clients find the queue of a new retry topic with their second or third sharing out, 20 s apart at worst.
    consumer.wait_for(lambda tries: len(tries) >= 15, "3 tries of each", 75)
    with RawClient(cluster.brokers[0].address) as client:
        dead = stored(client, f"%DLQ%{group}", 5, 1)
    tries = consumer.tries()
    assert set(map(tuple, by_body(tries).values())) == {(0, 1, 2)}
    assert {t.topic for t in tries} == {topic}
    assert len({t.msgId for t in tries}) == 5
    assert {r.body.decode() for r in dead} == {t.body for t in tries}
    for record in dead:
        assert record.reconsume_times == 3
        assert record.properties["RETRY_TOPIC"] == topic
        assert int(record.properties.get("DELAY", "0")) <= 0
    sleep(QUIET_S)
    assert len(consumer.tries()) == 15, "no further delivery"


def test_b077_send_back_by_hand(cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    with RawClient(cluster.brokers[0].address) as client:
        record = record_of(client, topic)
        assert send_back(client, record, group, delayLevel="-1").code == 0
        set_group(client, group, retryMaxTimes=0, retryQueueNums=1)
        # A limit of the client wins over that of the group; without one the group's counts.
        assert send_back(client, record, group, maxReconsumeTimes="0").code == 0
        ext = {
            "offset": str(record.log_offset),
            "group": group,
            "delayLevel": "0",
            "originTopic": topic,
        }
        assert client.call(36, ext).code == 0
        dead = stored(client, f"%DLQ%{group}", 3, 1)
        assert [r.reconsume_times for r in dead] == [1, 1, 1]
        assert {r.queue_id for r in dead} == {0}
        set_group(client, group, retryMaxTimes=16, retryQueueNums=0)
        assert send_back(client, record, group).code == 0
        sleep(QUIET_S)
        assert len(stored(client, f"%DLQ%{group}", 3, 1)) == 3, "forgotten"
        set_group(client, group, retryMaxTimes=16, retryQueueNums=1)
        assert (
            send_back(client, attrs.evolve(record, log_offset=record.log_offset + 1), group).code
            == 1
        )
        assert send_back(client, record, "no/such group").code == 26


def test_b078_what_an_ordered_group_gives_up_is_dead_at_once(cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    with RawClient(cluster.brokers[0].address) as client:
        lock = {
            "consumerGroup": group,
            "clientId": "c@1",
            "mqSet": [{"topic": topic, "brokerName": cluster.brokers[0].name, "queueId": 0}],
        }
        assert client.call(41, body=json.dumps(lock).encode()).code == 0
        sender = Sender(client, f"%RETRY%{group}")
        props = {"RETRY_TOPIC": topic, "DELAY": "3", "ORIGIN_MESSAGE_ID": "ORIGIN", "UNIQ_KEY": "U"}
        reply = sender.send(
            b"given up", props=properties(props), reconsumeTimes="1", maxReconsumeTimes="16"
        )
        assert reply.code == 0, reply.remark
        (dead,) = stored(client, f"%DLQ%{group}", 1, 1)
        assert dead.body == b"given up"
        assert dead.reconsume_times == 1
        assert dead.properties["ORIGIN_MESSAGE_ID"] == "ORIGIN"
        assert int(dead.properties.get("DELAY", "0")) <= 0


@pytest.mark.parametrize("language", ["java", "go"])
def test_b078_an_orderly_consumer_gives_a_message_up(
    java: Java, go: Go, cluster: Cluster, language: str
) -> None:
    topic, group = cluster.topic(queues=1), cluster.group()
    clients = java if language == "java" else go
    consumer = failing(clients, cluster, topic, ALWAYS, group, orderly=True, maxReconsumeTimes=2)
    java.producer(cluster.ns).send_ok(texts(topic, 2))
    each = 3 if language == "java" else 4  # Go gives up one try later
    consumer.wait_for(lambda tries: len(tries) >= 2 * each, f"{each} tries of each", 60)
    with RawClient(cluster.brokers[0].address) as client:
        dead = stored(client, f"%DLQ%{group}", 2, 1)
    assert [r.body.decode() for r in dead] == ["m-0", "m-1"]
    assert [t.body for t in consumer.tries()] == ["m-0"] * each + ["m-1"] * each


def test_c146_a_plain_send_to_a_retry_topic_has_the_limit(cluster: Cluster) -> None:
    """What a client sends when a send-back failed: reconsumeTimes counts the try to come."""
    topic, group = cluster.topic(), cluster.group()
    with RawClient(cluster.brokers[0].address) as client:
        sender = Sender(client, f"%RETRY%{group}")
        props = {"RETRY_TOPIC": topic, "ORIGIN_MESSAGE_ID": "ORIGIN", "UNIQ_KEY": "U"}
        for times, body in (("2", b"again"), ("3", b"dead")):
            reply = sender.send(
                body, props=properties(props), reconsumeTimes=times, maxReconsumeTimes="2"
            )
            assert reply.code == 0, reply.remark
        (again,) = stored(client, f"%RETRY%{group}", 1, 1)
        (dead,) = stored(client, f"%DLQ%{group}", 1, 1)
        assert (again.body, again.reconsume_times) == (b"again", 2)
        assert (dead.body, dead.reconsume_times) == (b"dead", 3)
        assert dead.properties["ORIGIN_MESSAGE_ID"] == "ORIGIN"


def test_c145_no_wait_before_the_dead_letters(cluster: Cluster) -> None:
    """One retry allowed, the next level would be 2 h: the second failure is a dead letter at once."""
    topic, group = cluster.topic(), cluster.group()
    with RawClient(cluster.brokers[0].address) as client:
        set_group(client, group, retryMaxTimes=1, retryQueueNums=1)
        record = record_of(client, topic)
        limit = {"maxReconsumeTimes": "1"}
        assert send_back(client, record, group, delayLevel="1", **limit).code == 0
        (again,) = stored(client, f"%RETRY%{group}", 1, 1)
        began_s = time.monotonic()
        assert send_back(client, again, group, delayLevel="18", **limit).code == 0
        (dead,) = stored(client, f"%DLQ%{group}", 1, 1)
        assert time.monotonic() - began_s < 1
        assert dead.reconsume_times == 2
        assert int(dead.properties.get("DELAY", "0")) == 0


def test_c131_a_message_of_full_size_comes_again_and_dies(java: Java, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.group()
    body = b"x" * 4_194_304
    with RawClient(cluster.brokers[0].address) as client:
        record = record_of(client, topic, body)
        assert send_back(client, record, group, delayLevel="1").code == 0
        (again,) = stored(client, f"%RETRY%{group}", 1, 1)
        assert again.body == body
        assert send_back(client, again, group, delayLevel="-1").code == 0
        (dead,) = stored(client, f"%DLQ%{group}", 1, 1)
        assert dead.body == body
        assert dead.properties["RETRY_TOPIC"] == topic


@pytest.mark.parametrize("orderly", [False, True])
def test_b044_a_broadcast_failure_is_dropped(java: Java, cluster: Cluster, orderly: bool) -> None:
    topic, group = cluster.topic(), cluster.group()
    if orderly:
        one, two = (
            failing(java, cluster, topic, 0, group, broadcast=True, orderly=True) for _ in range(2)
        )
        count = 10
    else:
        one = failing(java, cluster, topic, ALWAYS, group, broadcast=True)
        two = failing(java, cluster, topic, 0, group, broadcast=True)
        count = 16
    sleep(2)
    messages = [text(topic, f"m-{i}") for i in range(count)]
    java.producer(cluster.ns).send_ok(messages)
    two.wait_for(lambda tries: len(tries) >= count, "all messages", 30)
    one.wait_for(lambda tries: len(tries) >= count, "all messages", 30)
    sleep(QUIET_S + 1.5)  # a retry of level 1 would have come
    for consumer in (one, two):
        assert sorted(t.body for t in consumer.tries()) == sorted(m["body"] for m in messages)
    if not orderly:
        with RawClient(cluster.brokers[0].address) as client:
            assert client.call(31, {"topic": f"%RETRY%{group}", "queueId": "0"}).code in (0, 17)
            reply = client.call(30, {"topic": f"%RETRY%{group}", "queueId": "0"})
            assert reply.code == 17 or reply.ext["offset"] == "0", "nothing was sent back"


def test_c106_stopping_while_a_message_fails_makes_no_copies_of_copies(
    java: Java, cluster: Cluster
) -> None:
    """Each life of the consumer works for a moment, then fails; it is stopped before that."""
    topic, group = cluster.topic(queues=1), cluster.group()
    java.producer(cluster.ns).send_ok(texts(topic, 1))
    tries = 0
    for _ in range(4):
        consumer = failing(java, cluster, topic, ALWAYS, group, workMs=600, delayLevel=1)
        consumer.wait_for(lambda found: len(found) >= 1, "a try", 75)
        consumer.stop()
        tries += len(consumer.tries())
    sleep(2)
    with RawClient(cluster.brokers[0].address) as client:
        reply = client.call(30, {"topic": f"%RETRY%{group}", "queueId": "0"})
        copies = int(reply.ext["offset"])
    assert copies <= tries, "a copy for each try at most"


def test_c107_a_consumer_that_waits_for_its_handlers_repeats_nothing(
    java: Java, cluster: Cluster
) -> None:
    """Twenty handlers are at work when it closes; what they commit then is where the next one begins."""
    topic, group = cluster.topic(), cluster.group()
    consumer = failing(java, cluster, topic, 0, group, workMs=1000, awaitMs=5000)
    messages = texts(topic, 20)
    java.producer(cluster.ns).send_ok(messages)
    consumer.wait_for(lambda tries: len(tries) >= 20, "all are at work", 30)
    consumer.stop()
    again = failing(java, cluster, topic, 0, group)
    java.producer(cluster.ns).send_ok(texts(topic, 1, "after"))
    again.wait_for(lambda tries: len(tries) >= 1, "the next message", 30)
    sleep(QUIET_S)
    assert [t.body for t in again.tries()] == ["after-0"]
