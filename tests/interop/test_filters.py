"""Behaviours section 4: SQL92 filters (B033 to B037); cases C125, C127, C128."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from .conftest import STANDARD, Cluster, MakeCluster
from .drivers import ClientError
from .failing import failing, outcomes
from .go_client import Go, wait_go
from .java_client import Java, Pull, Queue, text, texts
from .polling import holds_for, sleep
from .pops import Pops
from .raw import RawClient, json_frame, pull_fields, records
from .scenes import all_queues, bodies, exactly, got, push, wait_total

ON = {**STANDARD, "enablePropertyFilter": "true"}
BIT_MAPS = {**ON, "enableCalcFilterBitMap": "true", "enableConsumeQueueExt": "true"}
A_OR_B = "sql:TAGS is not null and TAGS in ('A','B')"
HEART_BEAT, CHECK_CLIENT_CONFIG, PULL = 34, 46, 11
QUEUES = 24


@pytest.fixture(scope="module", params=["alone", "bit_maps"])
def filters(request: pytest.FixtureRequest, make_cluster: MakeCluster) -> Cluster:
    """One master with filters by properties; also with the bit maps that must not change any result."""
    return make_cluster(1, BIT_MAPS if request.param == "bit_maps" else ON)


@pytest.fixture(scope="module")
def without(make_cluster: MakeCluster) -> Cluster:
    """One master without them."""
    return make_cluster(1, {**STANDARD, "enablePropertyFilter": "false"})


@pytest.fixture
def client(filters: Cluster) -> Iterator[RawClient]:
    """A connection by hand."""
    with RawClient(filters.brokers[0].address) as made:
        yield made


def abc(topic: str) -> list[dict[str, object]]:
    """16 messages with each of three tags."""
    return [m for tag in "ABC" for m in texts(topic, 16, tag, tags=tag)]


def numbers(topic: str) -> list[dict[str, object]]:
    """Ten messages with their number as a property."""
    return [text(topic, f"{v}", props={"v": f"{v}"}) for v in range(10)]


def puller(java: Java, cluster: Cluster, topic: str) -> Pull:
    """A pull consumer that knows its broker's version."""
    pull = java.pull(cluster.ns, cluster.group())
    pull.driver.call("pull.beat", consumer=pull.name, topic=topic)
    return pull


def sql_pull(topic: str, expression: str, group: str, offset: int = 0) -> dict[str, str]:
    """Header of a pull with an SQL92 expression in the request."""
    return pull_fields(group, topic, 0, offset, subscription=expression, expressionType="SQL92")


def heartbeat(group: str, topic: str, expression: str, version: int = 1) -> bytes:
    """Body of a heartbeat with an SQL92 subscription."""
    subscription = {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "SQL92",
        "subString": expression,
        "subVersion": version,
        "tagsSet": [],
        "topic": topic,
    }
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    }
    data = {"clientID": "hand@1", "consumerDataSet": [consumer], "producerDataSet": []}
    return json.dumps({**data, "heartbeatFingerprint": 0, "withoutSub": False}).encode()


def check(topic: str, expression: str) -> bytes:
    """Body of CHECK_CLIENT_CONFIG."""
    subscription = {"topic": topic, "subString": expression, "expressionType": "SQL92"}
    body = {"clientId": "hand@1", "group": "G", "namespace": "", "subscriptionData": subscription}
    return json.dumps(body).encode()


def test_b033_push(java: Java, filters: Cluster) -> None:
    topic = filters.topic()
    consumer = push(java, filters, (topic, A_OR_B))
    sleep(1)
    messages = abc(topic)
    java.producer(filters.ns).send_ok(messages)
    exactly(consumer, 32)
    assert got(consumer) == bodies([m for m in messages if m["tags"] != "C"])


def test_b033_push_in_go(java: Java, go: Go, filters: Cluster) -> None:
    topic = filters.topic()
    consumer = go.push(filters.ns, filters.group(), (topic, A_OR_B), first=True)
    java.producer(filters.ns).send_ok(abc(topic))
    wait_go([consumer], 32)
    sleep(0.5)
    assert Counter(body[0] for body in consumer.bodies()) == {"A": 16, "B": 16}


def test_b034_pull(java: Java, filters: Cluster) -> None:
    topic = filters.topic(QUEUES)
    pull = puller(java, filters, topic)
    messages = abc(topic)
    # Alone in its queue, a C is a pull that matches nothing.
    java.producer(filters.ns).send_ok(messages)
    only_c = Queue(topic, "b1", 3)
    java.producer(filters.ns).send_ok(texts(topic, 2, "last", tags="C"), to=only_c)
    wait_total(filters, topic, 50)
    queues = all_queues(topic, filters, QUEUES)
    found, _ = pull.drain(queues, A_OR_B)
    assert sorted(m.body or "" for m in found) == bodies([m for m in messages if m["tags"] != "C"])
    end = pull.pull(only_c, 0, expression="*").max
    nothing = pull.pull(only_c, end - 2, expression=A_OR_B)
    assert (nothing.status, nothing.next) == ("NO_MATCHED_MSG", end)
    assert pull.pull(only_c, end, expression=A_OR_B).status == "NO_NEW_MSG"


def test_b034_lite_pull(java: Java, filters: Cluster) -> None:
    topic = filters.topic()
    lite = java.lite(filters.ns, filters.group(), (topic, A_OR_B), start="FIRST_OFFSET")
    messages = abc(topic)
    java.producer(filters.ns).send_ok(messages)
    found = lite.poll_until(32)
    assert sorted(m.body or "" for m in found) == bodies([m for m in messages if m["tags"] != "C"])


def test_b035_off_is_told_to_clients(java: Java, without: Cluster) -> None:
    topic = without.topic(1)
    with pytest.raises(ClientError) as caught:
        java.push(without.ns, without.group(), (topic, A_OR_B))
    assert "does not support consumer to filter message by SQL92" in str(caught.value)
    with pytest.raises(ClientError) as caught:
        puller(java, without, topic).pull(Queue(topic, "b1", 0), 0, expression=A_OR_B)
    assert caught.value.code == 1
    assert "does not support consumer to filter message by SQL92" in str(caught.value)


def test_b035_c127_off_is_told_with_its_key(without: Cluster) -> None:
    topic, group = without.topic(1), without.group()
    with RawClient(without.brokers[0].address) as client:
        pulled = client.call(PULL, sql_pull(topic, "a = 1", group))
        checked = client.call(CHECK_CLIENT_CONFIG, {}, check(topic, "a = 1"))
    for reply in (pulled, checked):
        assert reply.code == 1
        assert "does not support consumer to filter message by SQL92" in (reply.remark or "")
        assert without.kind == "apache" or "enablePropertyFilter" in (reply.remark or "")


def test_b036_a_condition_that_does_not_parse(
    java: Java, filters: Cluster, client: RawClient
) -> None:
    topic, group = filters.topic(1), filters.group()
    java.producer(filters.ns).send_ok(texts(topic, 1))
    wait_total(filters, topic, 1)
    reply = client.call(CHECK_CLIENT_CONFIG, {}, check(topic, "a > 'x'"))
    assert reply.code == 23
    assert reply.remark
    with pytest.raises(ClientError):
        java.push(filters.ns, group, (topic, "sql:a > 'x'"))
    pop = Pops(client, topic, group).ask(expType="SQL92", exp="a > 'x'")
    assert pop.code == 23
    pulled = client.call(PULL, sql_pull(topic, "a > 'x'", group))
    # Apache takes a filter that it could not make for none, and hands everything out.
    assert pulled.code == (0 if filters.kind == "apache" else 23)


def test_b036_a_heartbeat_whose_condition_does_not_parse(
    filters: Cluster, client: RawClient
) -> None:
    topic, group = filters.topic(1), filters.group()
    ask = pull_fields(group, topic, 0, 0, sysFlag="0", subVersion="1")
    assert client.call(PULL, ask).code == 24
    assert client.call(HEART_BEAT, {}, heartbeat(group, topic, "a > 'x'")).code == 0
    assert client.call(PULL, ask).code == 27
    assert client.call(PULL, {**ask, "subVersion": "2"}).code == 25
    assert client.call(HEART_BEAT, {}, heartbeat(group, topic, "a > 1", 2)).code == 0
    assert client.call(PULL, {**ask, "subVersion": "2"}).code == 19


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("v BETWEEN 3 AND 5", ["3", "4", "5"]),
        ("v > 7", ["8", "9"]),
        ("v IS NULL", []),
        ("missing = 1", []),
        ("missing <> 1", []),
        ("missing IS NULL AND v = 0", ["0"]),
    ],
)
def test_b037_numbers(java: Java, filters: Cluster, expression: str, wanted: list[str]) -> None:
    topic = filters.topic(1)
    java.producer(filters.ns).send_ok(numbers(topic))
    wait_total(filters, topic, 10)
    pull = puller(java, filters, topic)
    found, unmatched = pull.drain([Queue(topic, "b1", 0)], f"sql:{expression}")
    assert [m.body for m in found] == wanted
    assert wanted or unmatched == 1


def test_b037_numbers_pushed(java: Java, filters: Cluster) -> None:
    topic = filters.topic()
    consumers = [
        push(java, filters, (topic, f"sql:{expression}"))
        for expression in ("v BETWEEN 3 AND 5", "v > 7", "v IS NULL", "missing = 1")
    ]
    java.producer(filters.ns).send_ok(numbers(topic))
    exactly(consumers[0], 3)
    exactly(consumers[1], 2)
    holds_for(lambda: not any(map(len, map(got, consumers[2:]))), "nothing matches", seconds=1)


def test_b037_numbers_popped(java: Java, filters: Cluster, client: RawClient) -> None:
    topic, group = filters.topic(1), filters.group()
    java.producer(filters.ns).send_ok(numbers(topic))
    wait_total(filters, topic, 10)
    pops = Pops(client, topic, group)
    found = pops.pop(expType="SQL92", exp="v > 7")
    assert [one.body for one in found] == [b"8", b"9"]
    assert pops.pop(expType="SQL92", exp="v > 7") == [], "the others were passed over"


def test_a_held_pull_is_woken_by_what_it_wants(java: Java, filters: Cluster) -> None:
    topic, group = filters.topic(1), filters.group()
    producer = java.producer(filters.ns)

    def ask(offset: int) -> dict[str, str]:
        fields = sql_pull(topic, "v = 5", group, offset)
        return {**fields, "sysFlag": "6", "suspendTimeoutMillis": "15000"}

    with RawClient(filters.brokers[0].address) as held:
        held.send(json_frame(PULL, ask(0)))
        sleep(0.5)
        producer.send_ok([text(topic, "no", props={"v": "4"})])
        sleep(0.2)
        producer.send_ok([text(topic, "yes", props={"v": "5"})])
        began = time.monotonic()
        reply = held.read(10)
        if reply.code == 20:  # the look at all held pulls, every 5 s, came in between
            reply = held.call(PULL, ask(int(reply.ext["nextBeginOffset"])))
    assert reply.code == 0
    assert [r.body for r in records(reply.body)] == [b"yes"]
    assert time.monotonic() - began < 3, "woken by the message, not by the next look"


@pytest.mark.parametrize("expression", ["A", "sql:TAGS = 'A'"], ids=["tag", "sql"])
def test_c128_a_retried_message_comes(java: Java, filters: Cluster, expression: str) -> None:
    topic, group = filters.topic(), filters.group()
    consumer = failing(java, filters, topic, 1, group, delayLevel=1, expression=expression)
    java.producer(filters.ns).send_ok(texts(topic, 5, tags="A") + texts(topic, 5, "b", tags="B"))
    tries = consumer.wait_done(5, 30)
    assert outcomes(tries) == {True: 5, False: 5}


def test_c125_the_text_of_a_condition_as_a_tag_matches_nothing(
    java: Java, filters: Cluster
) -> None:
    topic = filters.topic(1)
    java.producer(filters.ns).send_ok([text(topic, "m", tags="test", props={"creator": "xx"})])
    wait_total(filters, topic, 1)
    pull = puller(java, filters, topic)
    queue = Queue(topic, "b1", 0)
    assert pull.pull(queue, 0, expression="TAGS=test AND creator=xx").status == "NO_MATCHED_MSG"
    meant = "sql:TAGS='test' AND creator='xx'"
    assert pull.pull(queue, 0, expression=meant).status == "FOUND"
