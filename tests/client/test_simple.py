"""A consumer over pop, on a simulated cluster and under a mock clock."""

from __future__ import annotations

import logging

import anyio
import pytest
import trio

from trio_mq import (
    ConfigError,
    Message,
    NotOpen,
    Producer,
    ReceiptExpired,
    SimpleConsumer,
    Sql,
)
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.cluster import SimulatedCluster


@pytest.fixture
def one():
    return SimulatedCluster()


@pytest.fixture
def two():
    return SimulatedCluster(brokers=2, delay_s=0.005)


def consumer_of(cluster, topics="T", group="G", **more):
    topics = dict.fromkeys(topics.split(), "*") if isinstance(topics, str) else topics
    more = {"from_where": "first", **more}
    return SimpleConsumer(cluster.nameserver, group, subscribe=topics, **more)


async def send(cluster, *bodies, topic="T", at=None, **fields):
    """Send messages, to the queues of one broker if it is named."""
    async with Producer(cluster.nameserver) as producer:
        queues = [q for q in await producer.queues(topic) if at in (None, q.broker_name)]
        for number, body in enumerate(bodies):
            message = Message(topic, body.encode(), **fields)
            await producer.send(message, queue=queues[number % len(queues)])


async def gather(consumer, count, within_s=60.0):
    """Messages of several receives. Not one long one: brokers with two kinds of retry topic look into one each time."""
    found = []
    with trio.fail_after(within_s):
        while len(found) < count:
            found += await consumer.receive(count - len(found), await_s=5)
    return found


def bodies(messages):
    return sorted(message.body.decode() for message in messages)


# -- receiving and settling


async def test_what_is_acknowledged_does_not_come_again(one, autojump_clock):
    async with one as cluster:
        await cluster.create_topic("T")
        await send(cluster, "a", "b", "c")
        async with consumer_of(cluster) as consumer:
            found = await gather(consumer, 3)
            assert bodies(found) == ["a", "b", "c"]
            await found[0].ack()
            await consumer.ack(*found)
            assert all(message.settled for message in found)
            await trio.sleep(100)
            assert await consumer.receive(await_s=10) == []


async def test_a_receive_answers_at_once_when_there_are_messages_and_after_its_time_when_not(
    two, autojump_clock
):
    async with two as cluster:
        await cluster.create_topic("T")
        async with consumer_of(cluster) as consumer:
            for await_s in (0, 0.05, 1, 20):
                began = trio.current_time()
                assert await consumer.receive(await_s=await_s) == []
                assert await_s - 0.001 < trio.current_time() - began < await_s + 0.5
            await send(cluster, "a")
            began = trio.current_time()
            assert len(await consumer.receive(await_s=0)) == 1
            assert trio.current_time() - began < 0.1


async def test_iterating_acknowledges_at_the_end_of_each_block(one, autojump_clock):
    async with one as cluster:
        await cluster.create_topic("T")
        await send(cluster, *map(str, range(40)))
        seen = []
        async with consumer_of(cluster) as consumer:
            async for message in consumer:
                async with message:
                    seen.append(message)
                if len(seen) == 40:
                    break
            await trio.sleep(100)
            assert await consumer.receive(await_s=1) == []
        assert bodies(seen) == sorted(map(str, range(40)))


async def test_a_message_that_fails_comes_again_ten_seconds_later_and_knows_it(
    one, autojump_clock, caplog
):
    async with one as cluster:
        await cluster.create_topic("T")
        await send(cluster, "bad", tags="x", keys=["k"])
        async with consumer_of(cluster) as consumer:
            (message,) = await gather(consumer, 1)
            began = trio.current_time()
            async with message:
                raise ValueError("it failed")
            assert message.settled
            (again,) = await gather(consumer, 1)
            assert 10 <= trio.current_time() - began < 15
            assert again.message_id == message.message_id
            assert (again.topic, again.reconsume_times) == ("T", 1)
            assert (again.tags, again.keys, again.body) == ("x", ["k"], b"bad")
            assert again.queue.topic == "%RETRY%G_T"
            await again.retry(delay_level=2)  # a minute
            began = trio.current_time()
            (again,) = await gather(consumer, 1, 90)
            assert 60 <= trio.current_time() - began < 65
            assert again.reconsume_times == 2
            await again.ack()
            assert await consumer.receive(await_s=100) == []
    assert [r.message for r in caplog.records if r.levelno >= logging.ERROR] == [
        f"message {message.message_id} of topic T failed and is asked for again"
    ]


async def test_retry_topics_of_the_second_kind_are_consumed_and_acknowledged(autojump_clock):
    async with SimulatedCluster(broker={"enable_retry_topic_v2": True}) as cluster:
        await cluster.create_topic("T")
        await send(cluster, "a", "b")
        async with consumer_of(cluster) as consumer:
            for message in await gather(consumer, 2):
                await message.change_invisible(0)
            again = await gather(consumer, 2)
            assert {message.queue.topic for message in again} == {"%RETRY%G+T"}
            await again[0].change_invisible(30)
            await consumer.ack(*again)
            assert await consumer.receive(await_s=100) == []


async def test_a_message_can_be_made_a_dead_letter(one, autojump_clock):
    async with one as cluster:
        await cluster.create_topic("T")
        await send(cluster, "bad")
        async with consumer_of(cluster) as consumer:
            (message,) = await gather(consumer, 1)
            await message.retry(-1)
            assert await consumer.receive(await_s=100) == []
        async with consumer_of(cluster, "%DLQ%G", "readers") as readers:
            (dead,) = await gather(readers, 1)
            assert dead.body == b"bad"


async def test_a_message_that_came_too_often_becomes_a_dead_letter(one, autojump_clock, caplog):
    async with one as cluster:
        await cluster.create_topic("T")
        await send(cluster, "bad", "good")
        async with consumer_of(cluster, max_reconsume_times=2) as consumer:
            times = []
            with trio.move_on_after(120):
                async for message in consumer:
                    if message.body == b"bad":
                        times.append(message.reconsume_times)
                        await message.change_invisible(1)
                    else:
                        await message.ack()
            assert times == [0, 1, 2]
        async with consumer_of(cluster, "%DLQ%G", "readers") as readers:
            assert bodies(await gather(readers, 1)) == ["bad"]
    assert "is a dead letter now" in caplog.text


# -- time


async def test_more_time_can_be_asked_for(one, autojump_clock):
    async with one as cluster:
        await cluster.create_topic("T")
        await send(cluster, "a")
        async with consumer_of(cluster, invisible_s=10) as consumer:
            (message,) = await gather(consumer, 1)
            for _ in range(10):
                await trio.sleep(8)
                await message.change_invisible(10)
            await message.ack()
            assert await consumer.receive(await_s=30) == []


async def test_settling_when_the_time_is_over_is_an_error_with_the_next_step(one, autojump_clock):
    async with one as cluster:
        await cluster.create_topic("T")
        await send(cluster, "a")
        async with consumer_of(cluster) as consumer, consumer_of(cluster) as other:
            (message,) = await consumer.receive(invisible_s=5)
            await trio.sleep(10)
            assert bodies(await gather(other, 1)) == ["a"]
            with pytest.raises(ReceiptExpired, match=r"settled 5\.\d+ s after.*larger invisible_s"):
                await message.ack()
            with pytest.raises(ReceiptExpired):
                await message.change_invisible(5)


async def test_a_block_that_ends_too_late_is_logged_and_the_loop_goes_on(
    one, autojump_clock, caplog
):
    async with one as cluster:
        await cluster.create_topic("T")
        await send(cluster, "a")
        async with consumer_of(cluster, invisible_s=5) as consumer:
            async for message in consumer:
                async with message:
                    await trio.sleep(0 if message.reconsume_times else 6)
                if message.reconsume_times:
                    break
    assert f"message {message.message_id} comes again: " in caplog.text


async def test_messages_that_wait_in_the_client_stay_its_own(one, autojump_clock):
    """Ten messages are taken at a time, each takes most of the invisible time."""
    async with one as cluster:
        await cluster.create_topic("T", 1)
        await send(cluster, *map(str, range(10)))
        seen = []
        async with consumer_of(cluster, invisible_s=30) as consumer, consumer_of(cluster) as other:
            async for message in consumer:
                async with message:
                    await trio.sleep(25)
                    seen.append((int(message.body), message.reconsume_times))
                assert await other.receive(await_s=0) == []
                if len(seen) == 10:
                    break
        assert sorted(seen) == [(number, 0) for number in range(10)]


async def test_messages_are_given_back_when_the_application_does_not_come_for_them(
    one, autojump_clock
):
    async with one as cluster:
        await cluster.create_topic("T", 1)
        await send(cluster, *map(str, range(10)))
        async with consumer_of(cluster, invisible_s=30) as consumer, consumer_of(cluster) as other:
            message = await anext(consumer)
            await trio.sleep(100)  # the application hangs
            found = await gather(other, 10)
            assert bodies(found) == sorted(map(str, range(10)))
            assert message.body in [one.body for one in found]


async def test_a_message_is_handed_out_with_all_of_its_time(two, autojump_clock):
    async with two as cluster:
        await cluster.create_topic("T")
        async with consumer_of(cluster, invisible_s=30) as consumer:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.receive)
                await trio.sleep(1)
                await send(cluster, "a", at="broker-a")
                await send(cluster, "b", at="broker-b")
            await trio.sleep(10)
            (second,) = await consumer.receive(await_s=0)
            assert second.expires_s - trio.current_time() > 29
            (third,) = [await consumer.receive(await_s=0)]
            assert third == []


# -- several brokers


async def test_c184_messages_of_one_broker_do_not_wait_for_the_other_one(two, autojump_clock):
    async with two as cluster:
        await cluster.create_topic("T")
        latencies = []

        async def receive(consumer):
            async for message in consumer:
                async with message:
                    latencies.append(trio.current_time() - float(message.body))
                if len(latencies) == 100:
                    return

        async with consumer_of(cluster) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(receive, consumer)
            async with Producer(cluster.nameserver) as producer:
                queues = [q for q in await producer.queues("T") if q.broker_name == "broker-b"]
                for number in range(100):
                    body = str(trio.current_time()).encode()
                    await producer.send(Message("T", body), queue=queues[number % 4])
                    await trio.sleep(0.01 + number % 7 * 0.3)
        assert sorted(latencies)[98] < 0.2, "p99"


async def test_what_another_broker_brings_beside_is_for_the_next_receive(two, autojump_clock):
    async with two as cluster:
        await cluster.create_topic("T")
        async with consumer_of(cluster) as consumer:
            found = []

            async def receive():
                found.extend(await consumer.receive(1))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                await trio.sleep(1)
                await send(cluster, "a", at="broker-a")
            await send(cluster, "b", at="broker-b")  # its poll still waits
            await trio.sleep(1)
            began = trio.current_time()
            found += await consumer.receive(1)
            assert trio.current_time() - began < 0.001
            assert bodies(found) == ["a", "b"]
            await consumer.ack(*found)
            assert await consumer.receive(await_s=90) == []


async def test_a_stock_at_all_brokers_is_taken_from_one_at_a_time(two, autojump_clock):
    async with two as cluster:
        await cluster.create_topic("T")
        async with consumer_of(cluster) as consumer, consumer_of(cluster) as other:
            await send(cluster, *map(str, range(64)))
            await gather(consumer, 20)  # nobody knew who has any: each broker gave 20
            await gather(consumer, 20)
            assert len(await gather(consumer, 8)) == 8
            began = trio.current_time()
            assert len(await gather(other, 16)) == 16
            assert trio.current_time() - began < 1


async def test_cancelling_a_receive_loses_nothing(two, autojump_clock):
    async with two as cluster:
        await cluster.create_topic("T")
        async with consumer_of(cluster) as consumer:
            with trio.move_on_after(1):
                await consumer.receive()
            await send(cluster, *map(str, range(8)))
            found = []
            for _ in range(20):
                with trio.move_on_after(0.004):
                    found += await consumer.receive()
            found += await consumer.receive(await_s=5)
            found += await consumer.receive(await_s=5)
            assert bodies(found) == list(map(str, range(8)))
            assert {message.reconsume_times for message in found} == {0}


async def test_a_broker_that_dies_keeps_nobody_from_the_other_one_and_comes_back(
    two, autojump_clock, caplog
):
    async with two as cluster:
        await cluster.create_topic("T")
        async with consumer_of(cluster) as consumer:
            assert await consumer.receive(await_s=1) == []
            await cluster.brokers[0].kill()
            await send(cluster, "b", at="broker-b")
            (message,) = await gather(consumer, 1)
            await cluster.brokers[1].kill()
            async with message:
                pass
            assert not message.settled
            await cluster.start(*cluster.brokers)
            await send(cluster, "a", at="broker-a")
            found = await gather(consumer, 2, 120)
            assert bodies(found) == ["a", "b"]
            await consumer.ack(*found)
    warnings = [record.message for record in caplog.records if record.name == "trio_mq.client"]
    assert any(f"message {message.message_id} comes again" in text for text in warnings)
    assert sum("go on when they can" in text for text in warnings) <= 4


async def test_a_broker_whose_clock_is_ahead_is_consumed_without_hurry(one, autojump_clock):
    async with one as cluster:
        await cluster.create_topic("T")
        node = cluster.brokers[0]
        await node.stop()
        node.clock = TrioClock(cluster.clock.now_ms() + 60_000)
        await cluster.start(node)
        async with consumer_of(cluster) as consumer:
            await send(cluster, "a")
            assert bodies(await gather(consumer, 1)) == ["a"]
            calls = count_calls(consumer)
            assert await consumer.receive(await_s=10) == []
            assert len(calls) < 120  # twice each 0.2 s


def count_calls(consumer):
    calls = []
    ask = consumer._instance.ask

    async def counted(*args, **kwargs):
        calls.append(args)
        return await ask(*args, **kwargs)

    consumer._instance.ask = counted
    return calls


# -- subscriptions


async def test_filters_and_several_topics(autojump_clock):
    async with SimulatedCluster(broker={"enable_property_filter": True}) as cluster:
        for topic in ("A", "B"):
            await cluster.create_topic(topic)
        subscribe = {"A": "x || y", "B": Sql("amount > 10")}
        async with consumer_of(cluster, subscribe) as consumer:
            await send(cluster, "1", topic="A", tags="x")
            await send(cluster, "2", topic="A", tags="z")
            await send(cluster, "3", topic="B", properties={"amount": "11"})
            await send(cluster, "4", topic="B", properties={"amount": "9"})
            found = await gather(consumer, 2)
            assert bodies(found) == ["1", "3"]
            assert {message.topic for message in found} == {"A", "B"}
            await consumer.ack(*found)
            assert await consumer.receive(await_s=70) == []


async def test_a_tag_whose_hash_is_that_of_a_wanted_one_is_acknowledged_and_not_handed_out(
    one, autojump_clock
):
    async with one as cluster:
        await cluster.create_topic("T")
        async with consumer_of(cluster, {"T": "Aa"}) as consumer:
            await send(cluster, "no", tags="BB")
            await send(cluster, "yes", tags="Aa")
            found = await gather(consumer, 1)
            assert bodies(found) == ["yes"]
            await consumer.ack(*found)
            assert await consumer.receive(await_s=100) == []


async def test_topics_come_and_go(one, autojump_clock):
    async with one as cluster:
        for topic in ("A", "B"):
            await cluster.create_topic(topic)
            await send(cluster, topic, topic=topic)
        async with consumer_of(cluster, "A") as consumer, consumer_of(cluster, "B") as other:
            assert bodies(await gather(consumer, 1)) == ["A"]
            await consumer.subscribe("B")
            (message,) = await gather(consumer, 1)
            assert message.body == b"B"
            await message.change_invisible(0)
            await trio.sleep(3)  # it lies in the retry topic, and nobody asks
            await consumer.unsubscribe("B")
            assert bodies(await gather(other, 1)) == ["B"]
            assert repr(consumer) == "<SimpleConsumer G of A>"


async def test_a_topic_that_is_not_there_yet_is_consumed_when_it_is(one, autojump_clock, caplog):
    async with one as cluster, consumer_of(cluster) as consumer:
        assert await consumer.receive(await_s=3) == []
        await cluster.create_topic("T")
        await send(cluster, "a")
        assert bodies(await gather(consumer, 1)) == ["a"]
    waits = [r.message for r in caplog.records if "waits for topic T" in r.message]
    assert len(waits) == 1
    assert "create it" in waits[0]


async def test_a_group_without_offsets_begins_where_it_opened(autojump_clock):
    """Receives may come much later than the block begins. Brokers begin one message before the end, as Apache's do."""
    async with SimulatedCluster(store={"access_message_in_memory_max_ratio": 0}) as cluster:
        await cluster.create_topic("T", 1)
        await send(cluster, *map(str, range(5)))
        async with consumer_of(cluster, from_where="last") as consumer:
            await send(cluster, *map(str, range(10, 15)))
            assert bodies(await gather(consumer, 6)) == ["10", "11", "12", "13", "14", "4"]
            assert await consumer.receive(await_s=1) == []
        async with consumer_of(cluster, group="F", from_where="first") as consumer:
            assert len(await gather(consumer, 10)) == 10


async def test_names_in_a_namespace(one, autojump_clock):
    async with one as cluster:
        await cluster.create_topic("ns%T")
        async with Producer(cluster.nameserver, namespace="ns") as producer:
            await producer.send(Message("T", b"a"))
        async with consumer_of(cluster, namespace="ns") as consumer:
            (message,) = await gather(consumer, 1)
            assert message.topic == "T"
            await message.change_invisible(0)
            (message,) = await gather(consumer, 1)
            assert (message.topic, message.reconsume_times) == ("T", 1)
            await consumer.ack(message)
            assert await consumer.receive(await_s=100) == []


# -- life


async def test_leaving_the_block_gives_back_what_is_not_settled(two, autojump_clock):
    async with two as cluster:
        await cluster.create_topic("T")
        await send(cluster, *map(str, range(20)))
        async with consumer_of(cluster) as consumer:
            message = await anext(consumer)
            began = trio.current_time()
        assert trio.current_time() - began < 1
        async with consumer_of(cluster) as other:
            found = await gather(other, 20)
            assert bodies(found) == sorted(map(str, range(20)))
            assert trio.current_time() - began < 5
        assert message.body.decode() in bodies(found)
        with pytest.raises(NotOpen, match="is closed"):
            await message.ack()


async def test_leaving_the_block_takes_little_time_when_brokers_are_gone(two, autojump_clock):
    async with two as cluster:
        await cluster.create_topic("T")
        await send(cluster, *map(str, range(20)))
        async with consumer_of(cluster) as consumer:
            await consumer.receive(4)
            for node in cluster.brokers:
                node.partition()
            began = trio.current_time()
        assert trio.current_time() - began < 5


async def test_a_receive_that_waits_ends_with_the_block(one, autojump_clock):
    async with one as cluster:
        await cluster.create_topic("T")
        async with trio.open_nursery() as nursery, consumer_of(cluster) as consumer:

            async def receive():
                with pytest.raises(NotOpen):
                    await consumer.receive(await_s=1000)

            nursery.start_soon(receive)
            await trio.sleep(1)
            began = trio.current_time()
        assert trio.current_time() - began < 5
        with pytest.raises(NotOpen):
            await consumer.receive()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"from_where": "middle"}, "from_where: 'middle' is not"),
        ({"invisible_s": 0}, "invisible_s: 0 is not a time"),
        ({"await_s": -1}, "await_s: -1 is not a time"),
        ({"batch_size": 33}, "batch_size: 33 is not a number from 1 to 32"),
        ({"topics": {"T": "a = 1"}}, "looks like SQL"),
        ({"topics": {"": "*"}}, "topic: '' is empty"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, told):
    topics = arguments.pop("topics", {"T": "*"})
    with pytest.raises(ConfigError, match=told):
        SimpleConsumer("127.0.0.1:9876", "G", subscribe=topics, **arguments)
