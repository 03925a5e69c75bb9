"""The clients for plain threads against the broker under test, beside Java's."""

from __future__ import annotations

import threading  # noqa: TID251  (plain threads are what is tested)

import pytest

from tests.interop.calls import ask
from tests.interop.conftest import Cluster
from tests.interop.java_client import Java, text, texts, unique
from tests.interop.polling import wait_for
from trio_mq import Message, TransactionState, reply_to
from trio_mq.blocking import Admin, Consumer, Producer, PullConsumer, SimpleConsumer

COUNT = 24
BODIES = {b"m-%d" % number for number in range(COUNT)}


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("trio-mq")] == []


def test_java_gets_what_threads_send(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic(2)
    with Producer(cluster.ns, unique("P")) as producer:

        def send(numbers: range) -> None:
            for number in numbers:
                producer.send(Message(topic, b"m-%d" % number))

        threads = [threading.Thread(target=send, args=(range(n, COUNT, 4),)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with producer.pipeline() as pipeline:
            pending = [pipeline.send(Message(topic, b"p-%d" % n)) for n in range(COUNT)]
    assert len({one.receipt.offset_message_id for one in pending}) == COUNT
    consumer = java.push(cluster.ns, cluster.group(), (topic, "*"), start="FIRST_OFFSET")
    consumer.wait(2 * COUNT)
    assert {body.encode() for body in consumer.bodies()} == BODIES | {
        b"p-%d" % n for n in range(COUNT)
    }


def test_loops_and_handlers_get_what_java_sends(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic(4)
    java.producer(cluster.ns).send_ok(texts(topic, COUNT))
    looped, handled = [], []
    with Consumer(cluster.ns, unique("G"), subscribe={topic: "*"}, from_where="first") as consumer:
        for message in consumer:
            with message:
                looped.append(message.body)
            if len(looped) == COUNT:
                break
    assert set(looped) == BODIES
    with Consumer(cluster.ns, unique("G"), subscribe={topic: "*"}, from_where="first") as consumer:
        thread = threading.Thread(
            target=consumer.run, args=(lambda message: handled.append(message.body), 3)
        )
        thread.start()
        wait_for(lambda: len(handled) == COUNT, "all messages are handled")
    thread.join()
    assert set(handled) == BODIES


def test_pull_and_simple_consumers(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic(2)
    java.producer(cluster.ns).send_ok(texts(topic, COUNT))
    pulled, popped = [], []
    group = cluster.group()
    with PullConsumer(cluster.ns, group, subscribe={topic: "*"}, from_where="first") as pull:
        while len(pulled) < COUNT:
            pulled += [message.body for message in pull.poll(7)]
    with PullConsumer(cluster.ns, group, subscribe={topic: "*"}, from_where="first") as pull:
        assert pull.poll(timeout_s=0.2) == []
    with SimpleConsumer(
        cluster.ns, cluster.group(), subscribe={topic: "*"}, from_where="first"
    ) as simple:
        while len(popped) < COUNT:
            found = simple.receive(8, await_s=10)
            simple.ack(*found)
            popped += [message.body for message in found]
    assert set(pulled) == set(popped) == BODIES
    assert len(pulled) == len(popped) == COUNT


def test_requests_transactions_and_administration(java: Java, cluster: Cluster) -> None:
    topic, questions = cluster.topic(1), cluster.topic(1)
    with (
        Producer(cluster.ns, unique("P")) as producer,
        Consumer(cluster.ns, unique("G"), subscribe={questions: "*"}, from_where="first") as asked,
        Admin(cluster.ns) as admin,
    ):

        def answer(message) -> None:
            producer.send(reply_to(message, message.body.upper()))

        thread = threading.Thread(target=asked.run, args=(answer, 2))
        thread.start()
        assert producer.request(Message(questions, b"of python"), 10).body == b"OF PYTHON"
        assert ask(java.producer(cluster.ns), text(questions, "of java")).body == "OF JAVA"

        def local(half) -> TransactionState:
            assert threading.current_thread() is threading.main_thread()
            assert sum(admin.max_offsets(topic).values()) == 0
            return TransactionState.COMMIT

        producer.send_in_transaction(Message(topic, b"x"), local)
        wait_for(lambda: sum(admin.max_offsets(topic).values()) == 1, "the commit")
    thread.join()
