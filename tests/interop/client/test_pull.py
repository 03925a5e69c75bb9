"""The pull consumer at brokers of both kinds, and beside Apache's own."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import pytest

from tests.backends import both
from trio_mq import ClientError, Message, MessageQueue, Producer, PullConsumer


async def send(cluster, topic, numbers, **fields):
    async with Producer(cluster.ns) as producer:
        queues = await producer.queues(topic)
        for number in numbers:
            message = Message(topic, str(number).encode(), **fields)
            await producer.send(message, queue=queues[number % len(queues)])


def numbers(messages):
    return sorted(int(message.body) for message in messages)


async def poll(consumer, count, within_s=15.0):
    found = []
    with anyio.fail_after(within_s):
        while len(found) < count:
            found += await consumer.poll(count - len(found))
    return found


@both
async def test_c185_progress_is_kept_unless_it_is_asked_not_to(cluster):
    topic, group = cluster.topic(2), cluster.group()
    await send(cluster, topic, range(20))
    consumer_of = {"subscribe": {topic: "*"}, "from_where": "first"}
    async with PullConsumer(cluster.ns, group, **consumer_of) as consumer:
        first = await poll(consumer, 8)
    async with PullConsumer(cluster.ns, group, **consumer_of, auto_commit=False) as consumer:
        unsaved = await poll(consumer, 12)
        assert numbers(first + unsaved) == list(range(20))
    async with PullConsumer(cluster.ns, group, **consumer_of) as consumer:
        assert numbers(await poll(consumer, 12)) == numbers(unsaved)
        await consumer.commit()
        assert [await consumer.committed(q) for q in sorted(consumer.assignment)] == [10, 10]


@both
async def test_places_in_chosen_queues(cluster):
    topic, group = cluster.topic(2), cluster.group()
    await send(cluster, topic, range(0, 20, 2))
    await anyio.sleep(0.02)
    when = datetime.now(UTC)
    await anyio.sleep(0.02)
    await send(cluster, topic, range(20, 30, 2))
    queue = MessageQueue(topic, "b1", 0)
    async with PullConsumer(cluster.ns, group, assign=[queue], from_where="first") as consumer:
        assert consumer.assignment == {queue}
        assert numbers(await poll(consumer, 15)) == list(range(0, 30, 2))
        await consumer.seek(queue, when)
        assert consumer.position(queue) == 10
        assert numbers(await poll(consumer, 5)) == list(range(20, 30, 2))
        await consumer.seek(queue, 14)
        assert await consumer.lag() == {queue: 1}
        await consumer.seek_to_end()
        assert await consumer.poll(timeout_s=0.1) == []
        await consumer.seek_to_begin(queue)
        consumer.pause(queue)
        assert await consumer.poll(timeout_s=0.1) == []
        consumer.resume(queue)
        assert numbers(await poll(consumer, 2)) == [0, 2]
        with pytest.raises(ClientError, match="it goes from 0 to 15"):
            await consumer.seek(queue, 99)


@both
async def test_a_group_goes_on_where_apache_s_client_has_left_it_and_the_other_way(cluster, java):
    topic, group = cluster.topic(1), cluster.group()
    await send(cluster, topic, range(10), tags="a")
    await send(cluster, topic, range(10, 20), tags="b")
    arguments = {"subscribe": {topic: "a || b"}, "from_where": "first"}
    async with PullConsumer(cluster.ns, group, **arguments) as consumer:
        assert numbers(await poll(consumer, 8)) == list(range(8))
    lite = await anyio.to_thread.run_sync(
        lambda: java.lite(cluster.ns, group, (topic, "*"), batch=5)
    )
    theirs = await anyio.to_thread.run_sync(lambda: lite.poll_until(5))
    await anyio.to_thread.run_sync(lite.commit)
    await anyio.to_thread.run_sync(lite.stop)
    done = 8 + len(theirs)
    assert [int(message.body) for message in theirs] == list(range(8, done))
    async with PullConsumer(cluster.ns, group, **arguments) as consumer:
        assert numbers(await poll(consumer, 20 - done)) == list(range(done, 20))
