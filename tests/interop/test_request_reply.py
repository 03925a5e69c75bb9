"""Request and reply: a message that waits for its answer, by Java and Go clients, in both forms."""

from __future__ import annotations

import pytest

from .calls import ask, go_ask, go_asker, go_replier, replier
from .conftest import Cluster
from .drivers import ClientError
from .go_client import Go
from .java_client import Java, text
from .polling import wait_for
from .raw import RawClient, properties
from .scenes import stored

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


@pytest.mark.parametrize("form", ["sync", "async"])
def test_java_asks_and_java_answers(java: Java, cluster: Cluster, form: str) -> None:
    topic = cluster.topic()
    answers = replier(java, cluster.ns, topic)
    producer = java.producer(cluster.ns)
    for number in range(20):
        reply = ask(producer, text(topic, f"question {number} of {form}"), form=form)
        assert reply.body == f"QUESTION {number} OF {form.upper()}"
        assert reply.topic == REPLY_TOPIC
        assert reply.properties["MSG_TYPE"] == "reply"
        assert {"CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "PUSH_REPLY_TIME", "ARRIVE_TIME"} <= (
            reply.properties.keys()
        )
    wait_for(lambda: len(answers.results()) == 20, "all replies are answered")
    assert all(r.ok and r.offset_msg_id for r in answers.results())
    with RawClient(cluster.brokers[0].address) as client:
        kept = [r.stored_body.decode() for r in stored(client, REPLY_TOPIC, 20, queues=1)]
    assert {f"QUESTION {n} OF {form.upper()}" for n in range(20)} <= set(kept)


@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_request_that_nobody_answers(java: Java, cluster: Cluster, form: str) -> None:
    topic = cluster.topic()
    replier(java, cluster.ns, topic)
    producer = java.producer(cluster.ns)
    with pytest.raises(ClientError, match="timeout") as error:
        ask(producer, text(topic, "silence please"), form=form, ttl_ms=2000)
    assert error.value.kind == "RequestTimeoutException"


@pytest.mark.parametrize("form", ["request", "requestAsync"])
def test_go_asks_and_go_answers(go: Go, cluster: Cluster, form: str) -> None:
    topic = cluster.topic()
    go_replier(go, cluster.ns, topic)
    name = go_asker(go, cluster.ns, cluster.topic(1))
    for number in range(5):
        assert go_ask(go, name, text(topic, f"go {number}"), form=form) == f"GO {number}"


def test_java_and_go_answer_each_other(java: Java, go: Go, cluster: Cluster) -> None:
    for_go, for_java = cluster.topic(), cluster.topic()
    replier(java, cluster.ns, for_java)
    go_replier(go, cluster.ns, for_go)
    assert ask(java.producer(cluster.ns), text(for_go, "from java")).body == "FROM JAVA"
    name = go_asker(go, cluster.ns, cluster.topic(1))
    assert go_ask(go, name, text(for_java, "from go")) == "FROM GO"


def test_replies_to_nobody(cluster: Cluster) -> None:
    fields = {
        "producerGroup": "PG", "topic": REPLY_TOPIC, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1",
        "flag": "0", "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
    }  # fmt: skip
    with RawClient(cluster.brokers[0].address) as client:
        for props in ({"MSG_TYPE": "reply"}, {"MSG_TYPE": "reply", "REPLY_TO_CLIENT": "gone"}):
            told = client.call(324, {**fields, "properties": properties(props)}, b"answer")
            assert told.code == 1
            assert told.remark
        assert client.call(324, {**fields, "queueId": "9", "properties": ""}, b"answer").code == 29
