"""Consumption in order at brokers of both kinds, in one group with Apache's own consumer."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import anyio

from tests.backends import both
from trio_mq import Consumer, Message, Producer


class Seen:
    """A handler that keeps what each queue gave, in order; no two messages of a queue at the same time."""

    def __init__(self, work_s=0.0):
        self.numbers = defaultdict(list)
        self.retried = []
        self._work_s = work_s
        self._at_work = set()

    async def __call__(self, message):
        queue = message.queue.queue_id
        assert queue not in self._at_work
        self._at_work.add(queue)
        await anyio.sleep(self._work_s)
        self._at_work.discard(queue)
        if message.body == b"bad" and message.reconsume_times == 0:
            self.retried.append(message.message_id)
            return False
        if message.body != b"bad":
            self.numbers[queue].append(int(message.body))
        return True

    def count(self):
        return sum(len(set(numbers)) for numbers in self.numbers.values())


async def send(cluster, topic, numbers, queues):
    """Each number to each queue."""
    async with Producer(cluster.ns) as producer:
        known = await producer.queues(topic)
        for number in numbers:
            for queue in known[:queues]:
                await producer.send(Message(topic, str(number).encode()), queue=queue)


async def until(condition, within_s=30.0):
    with anyio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110  (a JVM tells nobody)
            await anyio.sleep(0.05)


def consumer_of(cluster, topic, group, **more):
    return Consumer(
        cluster.ns, group, subscribe={topic: "*"}, from_where="first", orderly=True, **more
    )


@both
async def test_a_failed_message_comes_again_before_the_others(cluster):
    topic, group, seen = cluster.topic(2), cluster.group(), Seen()
    async with Producer(cluster.ns) as producer:
        queue = (await producer.queues(topic))[0]
        for body in ("0", "1", "bad", "2", "3"):
            await producer.send(Message(topic, body.encode()), queue=queue)
    async with consumer_of(cluster, topic, group) as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.run, seen)
        await until(lambda: seen.count() == 4)
        tasks.cancel_scope.cancel()
    assert seen.numbers[0] == [0, 1, 2, 3]
    assert len(seen.retried) == 1


@both
async def test_at_the_limit_a_message_becomes_a_dead_letter(cluster):
    topic, group = cluster.topic(1), cluster.group()
    async with Producer(cluster.ns) as producer:
        for body in ("bad", "good"):
            await producer.send(Message(topic, body.encode(), keys=["k"]))
    tries = []

    async def handler(message):
        tries.append((message.body, message.reconsume_times))
        return message.body == b"good"

    consumer = consumer_of(cluster, topic, group, max_reconsume_times=1)
    async with consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.run, handler)
        await until(lambda: len(tries) == 3)
        tasks.cancel_scope.cancel()
    assert tries == [(b"bad", 0), (b"bad", 1), (b"good", 0)]
    dead = Consumer(
        cluster.ns, cluster.group(), subscribe={f"%DLQ%{group}": "*"}, from_where="first"
    )
    async with dead as readers:
        with anyio.fail_after(20):
            message = await anext(readers)
        assert (message.body, message.keys) == (b"bad", ["k"])
        assert message.properties["RETRY_TOPIC"] == topic


@both(limit_s=120)
async def test_members_of_both_kinds_hand_queues_over_in_order(cluster, java):
    topic, group, seen = cluster.topic(4), cluster.group(), Seen(work_s=0.002)
    await send(cluster, topic, range(20), 4)
    async with consumer_of(cluster, topic, group) as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.run, seen)
        await until(lambda: seen.count() == 80)
        push = await anyio.to_thread.run_sync(
            lambda: java.push(cluster.ns, group, (topic, "*"), orderly=True, start="FIRST_OFFSET")
        )
        await until(lambda: sum(q.topic == topic for q in consumer.assignment) == 2)
        await send(cluster, topic, range(20, 40), 4)
        await until(lambda: seen.count() + push.count() >= 160)
        tasks.cancel_scope.cancel()
    await send(cluster, topic, range(40, 50), 4)
    await until(lambda: seen.count() + push.count() >= 200)
    theirs = await anyio.to_thread.run_sync(push.received)
    both_seen = {queue: list(numbers) for queue, numbers in seen.numbers.items()}
    for message in theirs:
        both_seen[message.queue].append(int(message.body))
    assert sum(map(len, seen.numbers.values())) == 120
    assert both_seen == {queue: list(range(50)) for queue in range(4)}


@both(limit_s=120)
async def test_order_is_kept_when_the_broker_is_started_again(workshop):
    server = workshop.alone(settings={"mappedFileSizeCommitLog": "104857600"})
    await anyio.to_thread.run_sync(server.start)
    cluster = workshop.cluster(server)
    topic, group, seen = cluster.topic(2), cluster.group(), Seen(work_s=0.01)
    await send(cluster, topic, range(100), 2)
    async with consumer_of(cluster, topic, group) as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.run, seen)
        await until(lambda: seen.count() >= 60)
        await anyio.to_thread.run_sync(server.stop)
        await anyio.to_thread.run_sync(server.start)
        await until(lambda: seen.count() == 200, 60)
        tasks.cancel_scope.cancel()
    for numbers in seen.numbers.values():
        # Where it was begun anew something may come twice, and all that follows after it.
        steps = [b - a for a, b in pairwise(numbers)]
        assert sum(step != 1 for step in steps) <= 2, numbers
        assert all(step <= 1 for step in steps), numbers
