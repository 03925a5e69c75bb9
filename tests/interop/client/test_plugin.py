"""The pytest plugin's broker in a process, for tests of applications that are written in Java or Go."""

from __future__ import annotations

import pytest

from tests.interop.drivers import ClientError
from tests.interop.go_client import Go, wait_go
from tests.interop.java_client import Java, text, texts
from tests.interop.polling import wait_for
from tests.interop.scenes import bodies
from trio_mq import Message, blocking


def test_java_and_python_share_a_topic(
    java: Java, rocketmq_broker, rocketmq_topic, rocketmq_group, rocketmq_producer
):
    nameserver = rocketmq_broker.nameserver
    consumer = java.push(nameserver, rocketmq_group, (rocketmq_topic, "*"))
    rocketmq_producer.send(Message(rocketmq_topic, b"from python"))
    java.producer(nameserver).send_ok(texts(rocketmq_topic, 3, "java"))
    wait_for(lambda: consumer.count() >= 4, "messages of both")
    assert sorted(consumer.bodies()) == ["from python", "java-0", "java-1", "java-2"]


def test_go_and_python_share_a_topic(go: Go, rocketmq_broker, rocketmq_topic, rocketmq_group):
    nameserver = rocketmq_broker.nameserver
    messages = texts(rocketmq_topic, 3, "go")
    go.producer(nameserver).send(messages)
    consumer = go.push(nameserver, rocketmq_group, (rocketmq_topic, "*"), first=True)
    wait_go([consumer], 3)
    assert sorted(consumer.bodies()) == sorted(bodies(messages))
    with blocking.Producer(nameserver) as producer:
        producer.send(Message(rocketmq_topic, b"from python"))
    wait_go([consumer], 4)


def test_java_asks_a_busy_broker_again(java: Java, rocketmq_broker, rocketmq_topic):
    producer = java.producer(rocketmq_broker.nameserver)
    producer.send(text(rocketmq_topic, "first"))
    busy = rocketmq_broker.faults.error("SEND_MESSAGE", code=2, remark="[BUSY]", times=2)
    producer.send(text(rocketmq_topic, "second"))
    assert busy.hits == 2
    slow = rocketmq_broker.faults.delay("SEND_MESSAGE", 0.3)
    producer.send(text(rocketmq_topic, "third"))
    assert slow.hits == 1


def test_java_hears_a_refusal(java: Java, rocketmq_broker, rocketmq_topic):
    producer = java.producer(rocketmq_broker.nameserver)
    rocketmq_broker.faults.error("SEND_MESSAGE", code=13, remark="too heavy", times=None)
    with pytest.raises(ClientError, match="too heavy") as caught:
        producer.send(text(rocketmq_topic, "x"))
    assert caught.value.code == 13


@pytest.mark.rocketmq(queues=1)
def test_java_survives_a_connection_that_is_closed(java: Java, rocketmq_broker, rocketmq_topic):
    """A try that was cut off is made again."""
    producer = java.producer(rocketmq_broker.nameserver)
    cut = rocketmq_broker.faults.close("SEND_MESSAGE")
    assert producer.send(text(rocketmq_topic, "one")).queue_offset == 0
    assert cut.hits == 1
