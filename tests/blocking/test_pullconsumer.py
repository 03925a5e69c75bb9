"""The blocking pull consumer, at a broker in a thread."""

from __future__ import annotations

import pytest

from tests.blocking.brokers import broker
from tests.blocking.support import Thread, client_threads, until
from trio_mq import Message, NotOpen
from trio_mq.blocking import Producer, PullConsumer

COUNT = 30
BODIES = {b"%d" % number for number in range(COUNT)}


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


def test_c185_progress_is_kept_from_block_to_block(ns) -> None:
    topic = topic_with_messages(ns, "Kept")
    got: list[bytes] = []
    while len(got) < COUNT:
        with PullConsumer(ns, "kept", subscribe={topic: "*"}, from_where="first") as consumer:
            got += [message.body for message in consumer.poll(13)]
    assert sorted(got) == sorted(BODIES)


def test_assigned_queues_positions_and_seeks(ns) -> None:
    topic = topic_with_messages(ns, "Assigned")
    with PullConsumer(ns, "assigned", assign=(), auto_commit=False, from_where="first") as consumer:
        first, *others = consumer.queues(topic)
        consumer.assign([first])
        assert consumer.assignment == {first}
        offsets = [message.queue_offset for message in consumer.poll(5)]
        assert offsets == list(range(len(offsets)))
        assert consumer.position(first) == len(offsets)
        assert consumer.committed(first) in (None, 0)
        consumer.commit()
        assert consumer.committed(first) == len(offsets)
        consumer.seek_to_end()
        consumer.seek(first, 2)
        assert consumer.poll(1)[0].queue_offset == 2
        consumer.pause(first)
        assert consumer.poll(timeout_s=0.05) == []
        consumer.resume()
        consumer.seek_to_begin(first)
        assert consumer.poll(1)[0].queue_offset == 0
        assert sum(consumer.lag().values()) > 0
        assert len(others) == 3


def test_a_loop_and_the_end_of_the_block(ns) -> None:
    topic = topic_with_messages(ns, "Looped")
    got: list[bytes] = []
    with PullConsumer(ns, "looped", subscribe={topic: "*"}, from_where="first") as consumer:
        thread = Thread(lambda: [got.append(message.body) for message in consumer])
        until(lambda: len(got) == COUNT, "all messages")
    thread.ended()
    assert set(got) == BODIES


def test_the_end_of_the_block_ends_a_poll(ns) -> None:
    with PullConsumer(ns, "waiting", assign=()) as consumer:
        thread = Thread(lambda: consumer.poll(timeout_s=60))
        until(lambda: consumer._waiting._calls, "the poll")
    with pytest.raises(NotOpen):
        thread.ended()
