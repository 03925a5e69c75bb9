"""A consumer that polls, on a simulated cluster and under a mock clock."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import trio

from trio_mq import (
    ClientError,
    ConfigError,
    Message,
    MessageQueue,
    NoRoute,
    NotOpen,
    PeerUnavailable,
    Producer,
    PullConsumer,
    Sql,
)
from trio_mq.testing.cluster import SimulatedCluster


@pytest.fixture
def one():
    return SimulatedCluster()


def consumer_of(cluster, group="G", **more):
    if "assign" not in more:
        more = {"subscribe": {"T": "*"}, **more}
    return PullConsumer(cluster.nameserver, group, **{"from_where": "first", **more})


async def send(cluster, count, first=0, queues=4, **fields):
    async with Producer(cluster.nameserver) as producer:
        known = await producer.queues("T")
        for number in range(first, first + count):
            message = Message("T", str(number).encode(), **fields)
            await producer.send(message, queue=known[number % queues])


def numbers(messages):
    return sorted(int(message.body) for message in messages)


async def poll_all(consumer, timeout_s=1.0):
    found = []
    while more := await consumer.poll(100, timeout_s):
        found += more
    return found


async def ready(cluster, queues=4, count=20):
    await cluster.create_topic("T", queues)
    await send(cluster, count, queues=queues)


def queue(number=0):
    return MessageQueue("T", "broker-a", number)


# -- progress


async def test_c185_progress_is_kept_between_two_starts(one, autojump_clock):
    async with one as cluster:
        await ready(cluster)
        async with consumer_of(cluster) as consumer:
            first = await consumer.poll()
            assert 1 <= len(first) <= 10
        async with consumer_of(cluster) as consumer:
            rest = await poll_all(consumer)
        assert numbers(first + rest) == list(range(20))
        async with consumer_of(cluster) as consumer:
            assert await consumer.poll(timeout_s=1) == []


async def test_c185_progress_is_kept_while_it_runs(one, autojump_clock):
    """A consumer that dies has stored what it did until a few seconds ago."""
    async with one as cluster:
        await ready(cluster)
        async with consumer_of(cluster) as consumer, consumer_of(cluster, assign=()) as other:
            first = await poll_all(consumer)
            await trio.sleep(5.1)
            assert len(first) == 20
            assert [await other.committed(queue(number)) for number in range(4)] == [5] * 4


async def test_c185_without_progress_of_its_own_only_a_commit_keeps_it(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, queues=1)
        async with consumer_of(cluster, auto_commit=False) as consumer:
            await consumer.poll(5)
            await trio.sleep(20)
        async with consumer_of(cluster, auto_commit=False) as consumer:
            assert numbers(await consumer.poll(5)) == [0, 1, 2, 3, 4]
            await consumer.commit()
            assert numbers(await consumer.poll(5)) == [5, 6, 7, 8, 9]
        async with consumer_of(cluster, auto_commit=False) as consumer:
            assert numbers(await consumer.poll(5)) == [5, 6, 7, 8, 9]
            await consumer.commit({queue(): 17})
            assert await consumer.committed(queue()) == 17
        async with consumer_of(cluster) as consumer:
            assert numbers(await consumer.poll()) == [17, 18, 19]


async def test_what_is_being_worked_on_is_not_stored_as_done(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, queues=1)

        async def work():
            async with consumer_of(cluster) as consumer:
                await consumer.poll(5)
                await consumer.poll(5)
                await trio.sleep(20)
                assert await consumer.committed(queue()) == 5
                raise ValueError("the work failed")

        with pytest.raises(ValueError, match="the work failed"):
            await work()
        async with consumer_of(cluster) as consumer:
            assert numbers(await consumer.poll(5)) == [5, 6, 7, 8, 9]


async def test_a_message_may_be_acknowledged_by_itself_and_not_retried(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, queues=1)
        async with consumer_of(cluster) as consumer:
            found = await consumer.poll(3)
            async with found[0]:
                pass
            assert await consumer.lag() == {queue(): 19}
            with pytest.raises(ClientError, match=r"not retried: read it again with seek"):
                await found[1].retry()


# -- polling


async def test_a_poll_waits_for_the_first_message_and_not_longer_than_its_time(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, count=0)
        async with consumer_of(cluster) as consumer, trio.open_nursery() as nursery:
            began = trio.current_time()
            assert await consumer.poll(timeout_s=3) == []
            assert 2.9 < trio.current_time() - began < 3.2
            assert await consumer.poll(timeout_s=0) == []

            async def later():
                await trio.sleep(2)
                await send(cluster, 1)

            nursery.start_soon(later)
            began = trio.current_time()
            assert numbers(await consumer.poll()) == [0]
            assert 1.9 < trio.current_time() - began < 2.2


async def test_iterating_gives_all_messages_each_queue_in_its_order(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, count=60)
        found = []
        async with consumer_of(cluster) as consumer:
            async for message in consumer:
                found.append(message)
                if len(found) == 60:
                    break
            for number in range(4):
                offsets = [m.queue_offset for m in found if m.queue.queue_id == number]
                assert offsets == list(range(15))
        async with consumer_of(cluster) as consumer:
            assert await consumer.poll(timeout_s=1) == []


async def test_a_poll_that_is_cancelled_loses_nothing(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, count=0)
        async with consumer_of(cluster) as consumer:
            with trio.move_on_after(1):
                await consumer.poll()
            await send(cluster, 4)
            assert numbers(await poll_all(consumer)) == [0, 1, 2, 3]


async def test_two_tasks_that_poll_are_told_of_it(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, count=0)
        async with consumer_of(cluster) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.poll)
            await trio.sleep(1)
            with pytest.raises(ClientError, match="polled by two tasks"):
                await consumer.poll()


async def test_a_poll_that_waits_ends_with_the_block(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, count=0)
        async with trio.open_nursery() as nursery, consumer_of(cluster) as consumer:

            async def poll():
                assert await consumer.poll(timeout_s=1000) == []

            nursery.start_soon(poll)
            await trio.sleep(1)
            began = trio.current_time()
        assert trio.current_time() - began < 5
        with pytest.raises(NotOpen):
            await consumer.poll()


async def test_filters(one, autojump_clock):
    async with SimulatedCluster(broker={"enable_property_filter": True}) as cluster:
        await cluster.create_topic("T")
        await send(cluster, 4, tags="a", properties={"size": "5"})
        await send(cluster, 4, first=4, tags="b", properties={"size": "50"})
        async with consumer_of(cluster, subscribe={"T": "a"}) as consumer:
            assert numbers(await poll_all(consumer)) == [0, 1, 2, 3]
        async with consumer_of(cluster, "S", subscribe={"T": Sql("size > 10")}) as consumer:
            assert numbers(await poll_all(consumer)) == [4, 5, 6, 7]


# -- places


async def test_seeks(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, queues=1, count=5)
        await trio.sleep(60)
        cut = datetime.fromtimestamp(cluster.clock.now_ms() / 1000 - 30, UTC)
        await send(cluster, 5, first=5, queues=1)
        async with consumer_of(cluster) as consumer:
            assert consumer.position(queue()) == 0
            await consumer.seek(queue(), 3)
            assert numbers(await consumer.poll(2)) == [3, 4]
            assert consumer.position(queue()) == 5
            await consumer.seek_to_begin()
            assert numbers(await consumer.poll(1)) == [0]
            await consumer.seek_to_end(queue())
            assert await consumer.poll(timeout_s=1) == []
            await consumer.seek(queue(), cut)
            assert numbers(await poll_all(consumer)) == [5, 6, 7, 8, 9]
            with pytest.raises(ClientError, match="has no offset 11: it goes from 0 to 10"):
                await consumer.seek(queue(), 11)
            with pytest.raises(ClientError, match="not assigned"):
                await consumer.seek(queue(7), 0)
            await consumer.seek(queue(), 10)
            assert await consumer.lag() == {queue(): 0}


async def test_a_seek_is_kept_like_any_other_progress(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, queues=1)
        async with consumer_of(cluster) as consumer:
            await poll_all(consumer)
            await consumer.seek(queue(), 15)
        async with consumer_of(cluster) as consumer:
            assert numbers(await poll_all(consumer)) == [15, 16, 17, 18, 19]


async def test_paused_queues_give_nothing(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, queues=2)
        async with consumer_of(cluster) as consumer:
            consumer.pause(queue(1))
            assert {m.queue.queue_id for m in await poll_all(consumer)} == {0}
            consumer.resume(queue(1))
            assert {m.queue.queue_id for m in await poll_all(consumer)} == {1}
            consumer.pause()
            await send(cluster, 2, queues=2)
            assert await consumer.poll(timeout_s=1) == []
            consumer.resume()
            assert len(await poll_all(consumer)) == 2


async def test_a_group_begins_where_it_is_told(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, queues=1)
        when = datetime.fromtimestamp(cluster.clock.now_ms() / 1000 + 30, UTC)
        await trio.sleep(60)
        await send(cluster, 3, first=100, queues=1)
        async with consumer_of(cluster, "first") as consumer:
            assert len(await poll_all(consumer)) == 23
        async with consumer_of(cluster, "then", from_where=when) as consumer:
            # Brokers answer 0 for a young queue without an offset, whose first message is still in memory.
            assert consumer.position(queue()) in (0, 20)


async def test_no_more_is_held_than_allowed(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, queues=1, count=100)
        async with consumer_of(cluster, pull_threshold=20) as consumer:
            await trio.sleep(5)
            (process,) = consumer._member.assigned.process_queues()
            assert 20 <= process.count <= 30
            assert len(await poll_all(consumer)) == 100


# -- queues


async def test_chosen_queues_are_nobody_s_business(one, autojump_clock):
    async with one as cluster:
        await ready(cluster)
        async with consumer_of(cluster, assign=()) as consumer, consumer_of(cluster) as other:
            known = await consumer.queues("T")
            assert known == tuple(map(queue, range(4)))
            assert await consumer.poll(timeout_s=1) == []
            await consumer.assign([queue(1), queue(2)])
            assert consumer.assignment == {queue(1), queue(2)}
            assert {m.queue.queue_id for m in await poll_all(consumer)} == {1, 2}
            await consumer.assign([queue(2), queue(3)])
            assert {m.queue.queue_id for m in await poll_all(consumer)} == {3}
            with pytest.raises(ClientError, match="has no queue 9"):
                await consumer.assign([queue(9)])
            with pytest.raises(NoRoute):
                await consumer.assign([MessageQueue("nowhere", "broker-a", 0)])
            with pytest.raises(ClientError, match="make it with subscribe="):
                await consumer.subscribe("T")
            with pytest.raises(ClientError, match=r"make it with assign=\(\)"):
                await other.assign([])


async def test_subscribed_queues_are_shared_and_handed_over(one, autojump_clock):
    async with one as cluster:
        await ready(cluster)
        found = []

        async def poll(consumer, until):
            while len(found) < until:
                found.extend(await consumer.poll(timeout_s=0.5))

        async with consumer_of(cluster) as consumer, trio.open_nursery() as nursery:
            await poll(consumer, 20)
            await consumer.commit()  # the last poll is done, too
            async with consumer_of(cluster) as other:
                await trio.sleep(1)
                assert len(consumer.assignment) == len(other.assignment) == 2
                await send(cluster, 20, first=20)
                nursery.start_soon(poll, consumer, 40)
                await poll(other, 40)
                await other.poll(timeout_s=0.5)
            await trio.sleep(1)
            assert len(consumer.assignment) == 4
        assert numbers(found) == list(range(40))


async def test_topics_come_and_go(one, autojump_clock):
    async with one as cluster:
        await ready(cluster, queues=1, count=3)
        await cluster.create_topic("U", 1)
        async with consumer_of(cluster, subscribe={"U": "*"}) as consumer:
            await consumer.subscribe("T")
            assert numbers(await poll_all(consumer)) == [0, 1, 2]
            await consumer.unsubscribe("T")
            assert {found.topic for found in consumer.assignment} == {"U"}


# -- trouble


async def test_a_broker_that_comes_back_is_polled_again(one, autojump_clock):
    async with one as cluster:
        await ready(cluster)
        (node,) = cluster.brokers
        async with consumer_of(cluster) as consumer:
            first = await poll_all(consumer)
            await node.kill()
            assert await consumer.poll(timeout_s=2) == []
            with pytest.raises(PeerUnavailable):
                await consumer.commit()
            await cluster.start(node)
            await send(cluster, 4, first=20)
            with trio.fail_after(60):
                while max(numbers(first)) < 23 or len(set(numbers(first))) < 24:
                    first += await consumer.poll()
            assert set(numbers(first)) == set(range(24))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "give either subscribe"),
        ({"subscribe": {"T": "*"}, "assign": []}, "give either subscribe"),
        ({"subscribe": {"T": "*"}, "batch_size": 0}, "batch_size: 0 is not allowed"),
        ({"subscribe": {"T": "*"}, "batch_size": 2000}, "give 1024 or less"),
        ({"subscribe": {"T": "*"}, "from_where": "middle"}, "from_where"),
        ({"subscribe": {"T": "a = 1"}}, "looks like SQL"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, told):
    with pytest.raises(ConfigError, match=told):
        PullConsumer("127.0.0.1:9876", "G", **arguments)
