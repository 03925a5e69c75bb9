"""The blocking consumer over pop, at a broker in a thread."""

from __future__ import annotations

import pytest

from tests.blocking.brokers import broker
from tests.blocking.support import Thread, client_threads, until
from trio_mq import Message
from trio_mq.blocking import Producer, SimpleConsumer

COUNT = 20


@pytest.fixture(scope="module")
def ns():
    with broker() as address:
        yield address
    assert client_threads() == set()


def topic_with_messages(ns, name: str) -> str:
    with Producer(ns) as producer:
        for number in range(COUNT):
            producer.send(Message(name, b"%d" % number))
    return name


def consumer_of(ns, topic, **options) -> SimpleConsumer:
    return SimpleConsumer(ns, topic + "-G", subscribe={topic: "*"}, from_where="first", **options)


def test_receive_and_settle(ns) -> None:
    topic = topic_with_messages(ns, "Received")
    got = []
    with consumer_of(ns, topic) as consumer:
        while len(got) < COUNT:
            got += consumer.receive(4, await_s=5)
        first, second, third = got[:3]
        first.ack()
        second.change_invisible(30)
        consumer.change_invisible(third, 40)
        assert second.expires_s < third.expires_s
        assert third.receipt.queue_offset == third.queue_offset
        consumer.ack(*got)
        assert all(message.settled for message in got)
        assert consumer.receive(1, await_s=0.05) == []
    assert {message.body for message in got} == {b"%d" % number for number in range(COUNT)}


def test_loops_of_two_threads(ns) -> None:
    topic = topic_with_messages(ns, "Looped")
    got: list[bytes] = []

    def work() -> None:
        for message in consumer:
            with message:
                got.append(message.body)

    with consumer_of(ns, topic) as consumer:
        threads = [Thread(work), Thread(work)]
        until(lambda: len(got) == COUNT, "all messages")
        consumer.unsubscribe(topic)
        consumer.subscribe(topic)
    for thread in threads:
        thread.ended()
    assert len(set(got)) == COUNT


def test_the_end_of_the_block_ends_a_receive(ns) -> None:
    topic = topic_with_messages(ns, "Waited")
    got = []
    with consumer_of(ns, topic) as consumer:
        while len(got) < COUNT:
            got += consumer.receive(16)
        thread = Thread(lambda: list(consumer))
    thread.ended()
