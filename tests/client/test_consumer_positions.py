"""Where consumers begin and go on, and what they subscribe, on a simulated cluster."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest
import trio

import trio_mq
from tests.client.received import bodies, nothing_comes, receive
from tests.client.simulations import NOTHING_IN_MEMORY, consumer, send, simulated
from trio_mq import Consumer
from trio_mq.client import world
from trio_mq.errors import (
    ClientError,
    ConfigError,
    NoRoute,
    PeerRefused,
    PeerUnavailable,
)

# -- where to begin


async def test_a_new_group_begins_at_the_end_when_it_is_told_so(autojump_clock):
    async with simulated(store=NOTHING_IN_MEMORY) as cluster:
        await send(cluster, *[b"old"] * 8)
        async with consumer(cluster, from_where="last") as receiving:
            await send(cluster, b"new")
            assert bodies(await receive(receiving, 1)) == [b"new"]


async def test_c118_the_place_to_begin_is_fixed_when_the_block_begins(autojump_clock):
    async with simulated(store=NOTHING_IN_MEMORY) as cluster:
        await send(cluster, b"old")
        async with consumer(cluster, from_where="last") as receiving:
            receiving.pause()
            await send(cluster, *[b"%02d" % i for i in range(20)])
            await trio.sleep(60)
            receiving.resume()
            assert bodies(await receive(receiving, 20)) == [b"%02d" % i for i in range(20)]


async def test_a_new_group_begins_at_a_time(autojump_clock):
    async with simulated(queues=1, store=NOTHING_IN_MEMORY) as cluster:
        await send(cluster, b"old")
        await trio.sleep(100)
        then = datetime.fromtimestamp(world.current().clock.now_ms() / 1000, UTC)
        await send(cluster, b"new")
        async with consumer(cluster, from_where=then) as receiving:
            assert bodies(await receive(receiving, 1)) == [b"new"]


# -- filters and subscriptions


async def test_only_wanted_tags_come(autojump_clock):
    async with simulated() as cluster, consumer(cluster, subscribe={"T": "a || b"}) as receiving:
        await send(cluster, b"a", tags="a")
        await send(cluster, b"c", tags="c")
        await send(cluster, b"none")
        await send(cluster, b"b", tags="b")
        assert bodies(await receive(receiving, 2)) == [b"a", b"b"]
        await nothing_comes(receiving, 20.0)


async def test_a_condition_chooses_messages(autojump_clock):
    wanted = {"T": trio_mq.Sql("amount > 100")}
    async with (
        simulated(enable_property_filter=True) as cluster,
        consumer(cluster, subscribe=wanted) as receiving,
    ):
        await send(cluster, b"small", properties={"amount": "7"})
        await send(cluster, b"large", properties={"amount": "700"})
        assert bodies(await receive(receiving, 1)) == [b"large"]


async def test_a_condition_that_no_broker_takes_is_refused_at_the_start(autojump_clock):
    async with simulated(enable_property_filter=True) as cluster:
        with pytest.raises(PeerRefused, match="the condition of group G on topic T"):
            async with consumer(cluster, subscribe={"T": trio_mq.Sql("amount >")}):
                pass


def test_c125_sql_in_a_tag_expression_is_refused():
    with pytest.raises(ConfigError, match=r"looks like SQL .* write trio_mq\.Sql\('Tag=test AND"):
        Consumer("127.0.0.1:1", "G", subscribe={"T": "Tag=test AND creator=xx"})


async def test_topics_come_and_go_while_a_consumer_runs(autojump_clock):
    async with simulated() as cluster, consumer(cluster) as receiving:
        await cluster.create_topic("U", 2)
        await send(cluster, b"u1", topic="U")
        await receiving.subscribe("U")
        assert bodies(await receive(receiving, 1)) == [b"u1"]
        await receiving.unsubscribe("U")
        assert {queue.topic for queue in receiving.assignment} == {"T", "%RETRY%G"}
        await send(cluster, b"u2", topic="U")
        await send(cluster, b"t")
        assert bodies(await receive(receiving, 1)) == [b"t"]
        await receiving.subscribe("U")
        assert bodies(await receive(receiving, 1)) == [b"u2"], "from where it was left"


async def test_a_subscription_to_nowhere_is_refused_later_and_told_at_the_start(
    autojump_clock, caplog
):
    with caplog.at_level(logging.WARNING):
        async with (
            simulated() as cluster,
            consumer(cluster, subscribe={"T": "*", "nowhere": "*"}) as receiving,
        ):
            await send(cluster, b"1")
            assert bodies(await receive(receiving, 1)) == [b"1"]
            with pytest.raises(NoRoute):
                await receiving.subscribe("also_nowhere")
            await cluster.create_topic("nowhere", 1)
            await send(cluster, b"found", topic="nowhere")
            assert bodies(await receive(receiving, 1, limit_s=60)) == [b"found"]
    assert "consumes topic nowhere later" in caplog.text


# -- queues and positions


async def test_seeks_go_anywhere_in_a_queue(autojump_clock):
    async with simulated(queues=1) as cluster, consumer(cluster) as receiving:
        await send(cluster, *[b"%d" % i for i in range(5)])
        assert len(await receive(receiving, 5)) == 5
        (queue,) = (queue for queue in receiving.assignment if queue.topic == "T")
        await receiving.seek(queue, 3)
        assert bodies(await receive(receiving, 2)) == [b"3", b"4"]
        await receiving.seek(queue, "begin")
        assert bodies(await receive(receiving, 1)) == [b"0"]
        await receiving.seek(queue, "end")
        await send(cluster, b"5")
        assert bodies(await receive(receiving, 1)) == [b"5"]
        await trio.sleep(10)
        then = datetime.fromtimestamp(world.current().clock.now_ms() / 1000, UTC)
        await send(cluster, b"6")
        await receive(receiving, 1)
        await receiving.seek(queue, then)
        assert bodies(await receive(receiving, 1)) == [b"6"]
        with pytest.raises(ClientError, match="is not assigned to this consumer of group G"):
            await receiving.seek(trio_mq.MessageQueue("T", "elsewhere", 0), 0)


async def test_lag_counts_what_is_not_settled(autojump_clock):
    async with simulated(queues=1) as cluster, consumer(cluster) as receiving:
        await send(cluster, *[b"x"] * 5)
        await receive(receiving, 2)
        lags = {queue.topic: lag for queue, lag in (await receiving.lag()).items()}
        assert lags == {"T": 3, "%RETRY%G": 0}


async def test_a_commit_is_there_when_it_returns(autojump_clock):
    async with simulated(queues=1) as cluster:
        await send(cluster, b"1", b"2")
        async with consumer(cluster, auto_commit_s=10_000) as receiving:
            await receive(receiving, 2)
            await receiving.commit()
            (queue,) = (queue for queue in receiving.assignment if queue.topic == "T")
            assert await receiving._member.store.read(queue) == 2
            await cluster.brokers[0].stop()
            with pytest.raises(PeerUnavailable, match=r"10\.1\.0\.1"):
                await receiving.commit()


async def test_positions_are_stored_every_few_seconds(autojump_clock):
    async with simulated(queues=1) as cluster:
        await send(cluster, b"1", b"2")
        async with consumer(cluster) as receiving:
            await receive(receiving, 2)
            await trio.sleep(6)
            await cluster.brokers[0].stop()  # so that nothing is told at the end
        await cluster.brokers[0].start()
        await cluster.registered(*cluster.brokers)
        async with consumer(cluster) as receiving:
            await nothing_comes(receiving, 20.0)


async def test_paused_queues_are_silent(autojump_clock):
    async with simulated(queues=2) as cluster, consumer(cluster) as receiving:
        first, second = sorted(queue for queue in receiving.assignment if queue.topic == "T")
        receiving.pause(first)
        await send(cluster, *[b"x"] * 4)
        assert {message.queue for message in await receive(receiving, 2)} == {second}
        await nothing_comes(receiving, 20.0)
        receiving.resume(first)
        assert {message.queue for message in await receive(receiving, 2)} == {first}


async def test_messages_that_take_too_long_are_given_to_others(autojump_clock):
    async with simulated() as cluster, consumer(cluster, consume_timeout_s=60) as receiving:
        await send(cluster, b"slow")
        message = await anext(receiving)
        await trio.sleep(90)
        (again,) = await receive(receiving, 1)
        assert (again.body, again.reconsume_times) == (b"slow", 1)
        await message.ack()  # too late, and harmless


async def test_a_slow_application_holds_only_so_many_messages(autojump_clock):
    async with simulated(queues=1) as cluster, consumer(cluster, pull_threshold=10) as receiving:
        await send(cluster, *[b"x"] * 200)
        await trio.sleep(5)
        held = sum(queue.count for queue in receiving._member.assigned.process_queues())
        assert 10 < held <= 10 + 32
        assert len(await receive(receiving, 200)) == 200
