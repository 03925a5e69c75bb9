"""Consumers in clustering groups: receiving, retries, sharing with Java's consumers, positions, ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from functools import partial

import anyio
import pytest

import trio_mq
from tests.backends import both, until
from tests.client.received import bodies, nothing_comes, receive
from tests.interop.java_client import Queue, text, texts
from tests.interop.raw import RawClient
from tests.ports import free_port
from trio_mq import Consumer, Message, Outcome, PeerRefused, Producer, Sql

ONE_PER_SECOND = {"messageDelayLevel": "1s 1s 1s 1s 1s 1s"}
QUERY_OFFSET = 14


async def send(cluster, topic, *bodies, **fields):
    async with Producer(cluster.ns) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **fields))


@both
async def test_javas_messages_arrive_as_they_were_sent(cluster, java):
    topic, group = cluster.topic(2), cluster.group()
    async with Consumer(cluster.ns, group, subscribe={topic: "*"}) as consumer:
        sent = java.producer(cluster.ns).send(
            text(topic, "ä body", tags="new", keys="k1 k2", flag=7, props={"own": "värde"})
        )
        (message,) = await receive(consumer, 1)
        assert message.body.decode() == "ä body"
        assert (message.topic, message.tags, message.keys) == (topic, "new", ["k1", "k2"])
        assert (message.properties["own"], message.record.flag) == ("värde", 7)
        assert (message.message_id, message.offset_message_id) == (sent.msg_id, sent.offset_msg_id)
        assert (message.queue.queue_id, message.queue_offset) == (sent.queue, sent.queue_offset)


@both
async def test_what_was_acknowledged_does_not_come_again(cluster):
    topic, group = cluster.topic(2), cluster.group()
    make = partial(Consumer, cluster.ns, group, subscribe={topic: "*"}, from_where="first")
    await send(cluster, topic, b"1", b"2", b"3")
    async with make() as consumer:
        await receive(consumer, 3)
    await send(cluster, topic, b"4")
    async with make() as consumer:
        assert bodies(await receive(consumer, 1)) == [b"4"]
        await nothing_comes(consumer, 1.0)


@both
async def test_a_failed_message_comes_again_and_at_last_is_a_dead_letter(workshop):
    broker = workshop.alone(settings=ONE_PER_SECOND)
    broker.start()
    cluster = workshop.cluster(broker)
    topic, group = cluster.topic(1), cluster.group()
    async with Consumer(
        cluster.ns, group, subscribe={topic: "*"}, max_reconsume_times=1
    ) as consumer:
        await send(cluster, topic, b"cursed", tags="t")
        seen = []
        with anyio.fail_after(30):
            async for message in consumer:
                seen.append((message.topic, message.tags, message.reconsume_times))
                await message.retry()
                if len(seen) == 2:
                    break
        assert seen == [(topic, "t", 0), (topic, "t", 1)]
    dead = f"%DLQ%{group}"
    async with Consumer(
        cluster.ns, cluster.group(), subscribe={dead: "*"}, from_where="first"
    ) as doctor:
        assert bodies(await receive(doctor, 1)) == [b"cursed"]


@both
async def test_a_handler_is_run_on_several_messages_at_a_time(cluster):
    topic, group = cluster.topic(4), cluster.group()
    done, most, running = [], 0, 0

    async def handler(message):
        nonlocal most, running
        running += 1
        most = max(most, running)
        await anyio.sleep(0.05)
        running -= 1
        done.append(message.body)
        return Outcome.ACK

    async with Consumer(
        cluster.ns, group, subscribe={topic: "*"}
    ) as consumer, anyio.create_task_group() as tasks:  # fmt: skip
        tasks.start_soon(consumer.run, handler, 5)
        await send(cluster, topic, *[b"%d" % i for i in range(20)])
        await until(lambda: len(done) == 20)
        tasks.cancel_scope.cancel()
    assert sorted(done) == sorted(b"%d" % i for i in range(20))
    assert 2 <= most <= 5


@both
async def test_c107_closing_waits_for_handlers_and_repeats_nothing(cluster):
    topic, group = cluster.topic(4), cluster.group()
    make = partial(Consumer, cluster.ns, group, subscribe={topic: "*"}, from_where="first")
    await send(cluster, topic, *[b"%02d" % i for i in range(30)])
    done, began = [], []

    async def handler(message):
        began.append(message.body)
        await anyio.sleep(1)
        done.append(message.body)

    async with anyio.create_task_group() as tasks, make() as consumer:
        tasks.start_soon(consumer.run, handler, 20)
        await until(lambda: len(began) == 20)
    assert sorted(done) == sorted(began)
    async with make() as consumer:
        rest = await receive(consumer, 10)
        await nothing_comes(consumer, 1.0)
    assert sorted([*done, *bodies(rest)]) == [b"%02d" % i for i in range(30)]


RESTARTED = """
import signal, sys, trio, trio_mq

async def handler(message):
    print(message.queue.topic, flush=True)
    await trio.sleep(0.5)
    raise ValueError("failed")

async def main():
    async with trio_mq.Consumer(sys.argv[1], sys.argv[2], subscribe={sys.argv[3]: "*"}, from_where="first",
                                close_grace_s=0.2) as consumer:
        await consumer.run(handler)

try:
    trio.run(main, restrict_keyboard_interrupt_to_checkpoints=True)
except* KeyboardInterrupt:
    pass
"""


def test_c106_interrupts_do_not_double_copies(workshop):
    """A handler that works and fails, in a process that is interrupted six times in the middle of it."""
    broker = workshop.alone(settings=ONE_PER_SECOND)
    broker.start()
    cluster = workshop.cluster(broker)
    topic, group = cluster.topic(1), cluster.group()
    cluster_producer = workshop.java.producer(cluster.ns)
    cluster_producer.send_ok([text(topic, "it")])
    handled = 0
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", RESTARTED, cluster.ns, group, topic],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert process.stdout.readline()  # it has the message
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=20)
        finally:
            process.kill()
        handled += 1 + len(rest.splitlines())
    assert process.returncode == 0
    retried = cluster.admin.max(Queue(f"%RETRY%{group}", "b1", 0))
    assert retried <= handled, "one copy for each try at most"
    assert handled < 2 * 6 + 2, "and no more tries than restarts and their copies"


# -- with others in the group


@both
async def test_two_consumers_share_and_a_leaving_one_hands_over_at_once(cluster):
    topic, group = cluster.topic(8), cluster.group()

    def own(consumer):
        return {queue for queue in consumer.assignment if queue.topic == topic}

    async with Consumer(cluster.ns, group, subscribe={topic: "*"}) as first:
        async with Consumer(cluster.ns, group, subscribe={topic: "*"}) as second:
            await until(lambda: len(own(first)) == len(own(second)) == 4)
            assert not own(first) & own(second)
        with anyio.fail_after(3):
            await until(lambda: len(own(first)) == 8)


@both
async def test_java_and_we_share_a_group_without_loss(cluster, java):
    topic, group = cluster.topic(8), cluster.group()
    theirs = java.push(cluster.ns, group, (topic, "*"))
    ours = []

    async def handler(message):
        ours.append(message.body.decode())

    async with (
        Consumer(cluster.ns, group, subscribe={topic: "*"}) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(consumer.run, handler)

        def shared():
            own = {q.queue_id for q in consumer.assignment if q.topic == topic}
            other = {q.queue for q in theirs.assigned(topic)}
            return len(own) == len(other) == 4 and not own & other

        await until(shared, 40)
        sending = java.producer(cluster.ns)
        first, second = texts(topic, 80, "first"), texts(topic, 80, "second")
        sending.send_ok(first)
        await until(lambda: len(ours) + theirs.count() >= 80)
        assert len(ours) == 40
        got_by_java = theirs.bodies()
        theirs.stop()
        await until(lambda: len([q for q in consumer.assignment if q.topic == topic]) == 8)
        sending.send_ok(second)
        await until(lambda: len(ours) >= 120)
        tasks.cancel_scope.cancel()
    found = Counter([*ours, *got_by_java])
    assert found.keys() == {message["body"] for message in [*first, *second]}
    assert sum(found.values()) == 160, "none twice either"


@both
async def test_java_goes_on_where_we_stopped_and_we_where_it_did(cluster, java):
    topic, group = cluster.topic(2), cluster.group()
    make = partial(Consumer, cluster.ns, group, subscribe={topic: "*"}, from_where="first")
    await send(cluster, topic, b"1", b"2")
    async with make() as consumer:
        await receive(consumer, 2)
    await send(cluster, topic, b"3")
    theirs = java.push(cluster.ns, group, (topic, "*"), start="FIRST_OFFSET")
    await anyio.to_thread.run_sync(theirs.wait, 1)
    assert theirs.bodies() == ["3"]
    theirs.persist()
    theirs.stop()
    await send(cluster, topic, b"4")
    async with make() as consumer:
        assert bodies(await receive(consumer, 1)) == [b"4"]


# -- where to begin


@both
async def test_c118_the_place_to_begin_is_fixed_when_the_block_begins(cluster):
    topic, group = cluster.topic(4), cluster.group()
    async with Consumer(cluster.ns, group, subscribe={topic: "*"}, from_where="last") as consumer:
        await send(cluster, topic, *[b"%03d" % i for i in range(100)])
        assert bodies(await receive(consumer, 100)) == [b"%03d" % i for i in range(100)]


@both
async def test_places_in_queues_are_found_by_the_broker(cluster):
    topic, group = cluster.topic(1), cluster.group()
    async with Consumer(cluster.ns, group, subscribe={topic: "*"}) as consumer:
        await send(cluster, topic, b"0", b"1")
        await receive(consumer, 2)
        await anyio.sleep(0.05)
        then = datetime.now(UTC)
        await anyio.sleep(0.05)
        await send(cluster, topic, b"2")
        await receive(consumer, 1)
        (queue,) = (queue for queue in consumer.assignment if queue.topic == topic)
        assert (await consumer.lag())[queue] == 0
        await consumer.seek(queue, then)
        assert bodies(await receive(consumer, 1)) == [b"2"]
        await consumer.seek(queue, "begin")
        assert bodies(await receive(consumer, 3)) == [b"0", b"1", b"2"]
        await consumer.seek(queue, 1)
        await consumer.commit()
        with RawClient(cluster.brokers[0].address) as raw:
            ext = {"consumerGroup": group, "topic": topic, "queueId": "0"}
            assert int(raw.call(QUERY_OFFSET, ext).ext["offset"]) == 1


# -- filters


TAGS = ["polygenelubricants", "t" * 200, "😀 Ä", "Aa"]


@both
async def test_c122_tags_with_any_hash_are_matched(cluster, java):
    topic = cluster.topic(1)
    sending = java.producer(cluster.ns)
    for number, tag in enumerate(TAGS):
        async with Consumer(cluster.ns, cluster.group(), subscribe={topic: tag}) as consumer:
            sending.send_ok([text(topic, f"other {number}", tags="BB"), text(topic, tag, tags=tag)])
            (message,) = await receive(consumer, 1)
            assert (message.tags, message.body.decode()) == (tag, tag)
            await nothing_comes(consumer, 0.2)


@both
async def test_c125_sql_is_sql_and_a_bad_condition_is_refused(workshop):
    broker = workshop.alone(settings={"enablePropertyFilter": "true"})
    broker.start()
    cluster = workshop.cluster(broker)
    topic = cluster.topic(1)
    with pytest.raises(trio_mq.ConfigError, match=r"trio_mq\.Sql"):
        Consumer(cluster.ns, cluster.group(), subscribe={topic: "Tag=test AND creator=xx"})
    with pytest.raises(PeerRefused, match="condition of group"):
        async with Consumer(cluster.ns, cluster.group(), subscribe={topic: Sql("creator =")}):
            pass
    wanted = {topic: Sql("TAGS = 'test' AND creator = 'xx'")}
    async with Consumer(cluster.ns, cluster.group(), subscribe=wanted) as consumer:
        await send(cluster, topic, b"no", tags="test", properties={"creator": "yy"})
        await send(cluster, topic, b"yes", tags="test", properties={"creator": "xx"})
        assert bodies(await receive(consumer, 1)) == [b"yes"]


# -- brokers that go


@both(limit_s=120, backends=["asyncio"])
async def test_c100_groups_consume_from_a_broker_that_came_back_elsewhere(workshop):
    first = workshop.alone("b1")
    first.start()
    moving = workshop.joining("b2", first.nameservers[0])
    moving.start()
    cluster = workshop.cluster(first, moving)
    topic = cluster.topic(1)
    got = Counter()

    async def work(consumer, number):
        async for message in consumer:
            async with message:
                got[number, message.body] += 1

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            consumer = Consumer(cluster.ns, cluster.group(), subscribe={topic: "*"})
            await tasks.start(partial(_held, consumer, work, number))
        moving.kill()
        await anyio.sleep(1)
        moving.port = free_port()
        await anyio.to_thread.run_sync(moving.start)
        began_s = anyio.current_time()
        async with Producer(cluster.ns) as producer:
            for queue in await producer.queues(topic):
                await producer.send(Message(topic, queue.broker_name.encode()), queue=queue)
        await until(lambda: all(got[n, b"b2"] and got[n, b"b1"] for n in range(10)))
        assert anyio.current_time() - began_s < 10
        tasks.cancel_scope.cancel()


async def _held(consumer, work, number, *, task_status):
    async with consumer:
        task_status.started()
        await work(consumer, number)


def test_no_thread_and_no_line_is_left_when_a_process_ends(cluster):
    topic, group = cluster.topic(1), cluster.group()
    script = (
        "import asyncio, sys, threading, trio_mq\n"
        "async def main():\n"
        "    async with trio_mq.Consumer(sys.argv[1], sys.argv[2], subscribe={sys.argv[3]: '*'}): pass\n"
        "asyncio.run(main())\n"
        "print(threading.active_count())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", script, cluster.ns, group, topic],
        capture_output=True, text=True, timeout=30, env={**os.environ},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("1\n", "")
