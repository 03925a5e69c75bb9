"""The blocking consumer: loops and handlers in plain threads, at a broker in a thread."""

from __future__ import annotations

import logging
import threading
from collections import Counter

import pytest

from tests.blocking.brokers import broker
from tests.blocking.support import Thread, client_threads, interrupted_when, until
from trio_mq import ConfigError, HandlerError, Message, NotOpen, Outcome
from trio_mq.blocking import Admin, Consumer, Producer

TOPIC, GROUP = "Orders", "billing"
COUNT = 60


@pytest.fixture(scope="module")
def ns():
    with broker() as address:
        yield address


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = client_threads()
    yield
    assert client_threads() == before


@pytest.fixture
def topic(ns, request) -> str:
    """A topic of its own with messages 0 to 59 in 4 queues."""
    name = f"T-{request.node.name}"[:60].replace("[", "-").replace("]", "")
    with Producer(ns) as producer, producer.pipeline() as pipeline:
        for number in range(COUNT):
            pipeline.send(Message(name, b"%d" % number))
    return name


def consumer_of(ns, topic, **options) -> Consumer:
    return Consumer(ns, topic + "-G", subscribe={topic: "*"}, from_where="first", **options)


BODIES = {b"%d" % number for number in range(COUNT)}


def committed(ns, topic) -> int:
    with Admin(ns) as admin:
        return sum(admin.consumer_offsets(topic + "-G", topic).values())


def test_a_loop(ns, topic) -> None:
    got = []
    with consumer_of(ns, topic) as consumer:
        for message in consumer:
            with message:
                got.append(message.body)
            assert message.settled
            if len(got) == COUNT:
                break
        assert {queue.topic for queue in consumer.assignment} >= {topic}
        assert sum(consumer.lag().values()) == 0
    assert set(got) == BODIES
    assert committed(ns, topic) == COUNT


def test_loops_in_several_threads_share_messages_and_end_with_the_block(ns, topic) -> None:
    got: list[bytes] = []

    def work() -> None:
        for message in consumer:
            with message:
                got.append(message.body)

    with consumer_of(ns, topic) as consumer:
        threads = [Thread(work) for _ in range(4)]
        until(lambda: len(got) == COUNT, "all messages")
    for thread in threads:
        thread.ended()
    assert set(got) == BODIES
    assert committed(ns, topic) == COUNT


def test_a_failure_in_a_message_block_asks_for_it_again(ns, topic, caplog) -> None:
    with consumer_of(ns, topic) as consumer:
        for message in consumer:
            with message:
                raise ValueError("bad")
            break
        failed = [r for r in caplog.records if message.message_id in r.getMessage()]
        assert [r.exc_info[1].args for r in failed if r.exc_info] == [("bad",)]
        until(lambda: message.settled, "the retry")

        def interrupt() -> None:
            with next(iter(consumer)):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_settling_by_hand(ns, topic) -> None:
    with consumer_of(ns, topic) as consumer:
        messages = iter(consumer)
        first, second, third = next(messages), next(messages), next(messages)
        first.ack()
        first.ack()
        second.retry(3)
        assert (first.settled, second.settled, third.settled) == (True, True, False)
        assert first.topic == topic
        assert first.properties["UNIQ_KEY"] == first.message_id
    with pytest.raises(NotOpen):
        third.ack()


def test_a_handler_in_threads(ns, topic) -> None:
    got, threads = [], Counter()
    together = threading.Barrier(3)

    def handle(message) -> Outcome:
        if threading.current_thread() not in threads:  # its first one waits for those of the others
            threads[threading.current_thread()] = 0
            together.wait(10)
        got.append(message.body)
        threads[threading.current_thread()] += 1
        return Outcome.ACK

    with consumer_of(ns, topic) as consumer:
        running = Thread(lambda: consumer.run(handle, concurrency=3))
        until(lambda: len(got) == COUNT, "all messages")
        with pytest.raises(ConfigError, match="concurrency"):
            consumer.run(handle, concurrency=0)
    running.ended()
    assert set(got) == BODIES
    assert len(threads) == 3
    assert committed(ns, topic) == COUNT


def test_c179_what_a_handler_may_return(ns, topic, caplog) -> None:
    caplog.set_level(logging.ERROR)
    results = iter([None, True, False, Outcome.RETRY, ValueError("bad"), "ok"])
    with consumer_of(ns, topic) as consumer:

        def handle(message) -> object:
            result = next(results)
            if isinstance(result, ValueError):
                raise result
            return result

        with pytest.raises(HandlerError, match="returned 'ok' for message"):
            consumer.run(handle, concurrency=1)
    logged = [record for record in caplog.records if record.exc_info]
    assert [record.exc_info[1].args for record in logged] == [("bad",)]


def test_ctrl_c_in_a_run_lets_handlers_finish(ns, topic) -> None:
    begun, ended = threading.Semaphore(0), []
    release = threading.Event()

    def handle(message) -> None:
        begun.release()
        release.wait(10)
        ended.append(message.body)

    def block() -> None:
        with consumer_of(ns, topic) as consumer:
            try:
                consumer.run(handle, concurrency=2)
            except KeyboardInterrupt:
                release.set()
                raise

    with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: begun.acquire(timeout=0.01)):
        block()
    assert 1 <= len(ended) < 10
    with consumer_of(ns, topic) as consumer:
        assert sum(consumer.lag().values()) == COUNT - len(ended)


def test_pause_seek_and_subscriptions(ns, topic) -> None:
    with consumer_of(ns, topic) as consumer:
        queues = sorted(queue for queue in consumer.assignment if queue.topic == topic)
        consumer.pause(*queues[1:])
        consumer.seek(queues[0], "end")
        consumer.resume()
        for queue in queues[1:]:
            consumer.seek(queue, "end")
        assert sum(consumer.lag().values()) == 0
        consumer.seek(queues[0], 14)
        assert next(iter(consumer)).queue_offset == 14
        consumer.commit()
        consumer.unsubscribe(topic)
        until(lambda: not any(q.topic == topic for q in consumer.assignment), "no queue")
        consumer.subscribe(topic)
        assert any(queue.topic == topic for queue in consumer.assignment)


def test_broadcasting_keeps_its_offsets_in_a_file_and_no_thread(ns, topic, tmp_path) -> None:
    before = set(threading.enumerate())
    by_name = ns.replace("127.0.0.1", "localhost")
    got = []
    with consumer_of(by_name, topic, model="broadcasting", offsets_dir=tmp_path) as consumer:
        for message in consumer:
            with message:
                got.append(message.body)
            if len(got) == COUNT:
                break
    assert set(threading.enumerate()) == before
    assert set(got) == BODIES
    (file,) = tmp_path.rglob("offsets.json")
    assert topic in file.read_text()


def test_c178_a_consumer_is_made_used_and_dropped_anywhere(ns, topic) -> None:
    consumer = consumer_of(ns, topic)
    with pytest.raises(NotOpen, match="not open yet"):
        iter(consumer)
    got = []

    def work() -> None:
        with consumer:
            got.append(next(iter(consumer)).body)

    Thread(work).ended()
    assert got[0] in BODIES
    with pytest.raises(NotOpen, match="is closed"):
        iter(consumer)
    with pytest.warns(ResourceWarning, match="was dropped inside"):
        consumer_of(ns, topic).__enter__()
    until(lambda: not client_threads(), "the end of the thread")
