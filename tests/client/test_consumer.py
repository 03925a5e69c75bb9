"""The consumer on a simulated cluster: real brokers, virtual time."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.client.received import bodies, nothing_comes, receive, until
from tests.client.simulations import consumer, send, simulated
from trio_mq import Consumer, Message, Outcome, Producer
from trio_mq.errors import (
    ConfigError,
    HandlerError,
    NotOpen,
)

# -- receiving


async def test_messages_are_received_with_all_that_they_were_sent_with(autojump_clock):
    async with simulated() as cluster, consumer(cluster) as receiving:
        sent = await send(cluster, b"hello", tags="new", keys=["42", "43"], properties={"a": "b"})
        (message,) = await receive(receiving, 1)
        assert (message.topic, message.body, message.tags) == ("T", b"hello", "new")
        assert message.keys == ["42", "43"]
        assert message.properties["a"] == "b"
        assert message.message_id == sent[0].message_id
        assert message.offset_message_id == sent[0].offset_message_id
        assert (message.queue, message.queue_offset) == (sent[0].queue, sent[0].queue_offset)
        assert message.reconsume_times == 0
        assert abs(message.stored_at - message.born_at) < timedelta(seconds=5)
        assert message.settled


async def test_large_bodies_come_back_as_they_were_sent(autojump_clock):
    async with simulated() as cluster, consumer(cluster) as receiving:
        await send(cluster, b"x" * 50_000)
        (message,) = await receive(receiving, 1)
        assert message.size_bytes < 5_000, "it travelled compressed"
        assert message.body == b"x" * 50_000


async def test_what_was_acknowledged_does_not_come_again(autojump_clock):
    async with simulated() as cluster:
        await send(cluster, b"1", b"2", b"3")
        async with consumer(cluster) as first:
            await receive(first, 3)
        await send(cluster, b"4")
        async with consumer(cluster) as second:
            assert bodies(await receive(second, 1)) == [b"4"]
            await nothing_comes(second, 20.0)


async def test_what_was_not_acknowledged_comes_again(autojump_clock):
    async with simulated(queues=1) as cluster:
        await send(cluster, b"1", b"2", b"3")
        async with consumer(cluster) as first:
            async for message in first:
                if message.body == b"1":
                    await message.ack()
                if message.body == b"3":
                    await message.ack()
                    break
        async with consumer(cluster) as second:
            assert bodies(await receive(second, 2)) == [b"2", b"3"], (
                "from the first that is missing"
            )


async def test_a_failed_message_comes_again_later_with_its_topic(autojump_clock, caplog):
    async with simulated() as cluster, consumer(cluster) as receiving:
        await send(cluster, b"fails")
        with caplog.at_level(logging.ERROR):
            async for message in receiving:
                async with message:
                    raise ValueError("not now")
                break
        (again,) = await receive(receiving, 1)
        assert (again.topic, again.body, again.reconsume_times) == ("T", b"fails", 1)
        assert again.message_id == message.message_id
        assert again.queue.topic == "%RETRY%G"
        assert caplog.text.count(message.message_id) == 1


async def test_a_message_that_fails_too_often_is_a_dead_letter(autojump_clock):
    async with simulated() as cluster:
        async with consumer(cluster, max_reconsume_times=2) as receiving:
            await send(cluster, b"cursed")
            seen = []
            with trio.move_on_after(60):
                async for message in receiving:
                    seen.append(message.reconsume_times)
                    await message.retry()
            assert seen == [0, 1, 2]
        async with consumer(cluster, "doctor", {"%DLQ%G": "*"}) as dead:
            (letter,) = await receive(dead, 1)
            assert letter.body == b"cursed"


async def test_a_dead_letter_may_be_asked_for_at_once(autojump_clock):
    async with simulated() as cluster, consumer(cluster) as receiving:
        await send(cluster, b"poison")
        async for message in receiving:
            await message.retry(-1)
            break
        async with consumer(cluster, "doctor", {"%DLQ%G": "*"}) as dead:
            assert bodies(await receive(dead, 1)) == [b"poison"]


async def test_several_tasks_share_the_messages(autojump_clock):
    async with simulated() as cluster, consumer(cluster) as receiving:
        got = []

        async def work():
            async for message in receiving:
                async with message:
                    await trio.sleep(1)
                    got.append(message.body)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(work)
            await send(cluster, *[b"%d" % i for i in range(9)])
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        assert Counter(got) == Counter(b"%d" % i for i in range(9))


async def test_leaving_the_block_ends_loops_of_other_tasks(autojump_clock):
    async with simulated() as cluster, trio.open_nursery() as nursery:
        ended = []

        async def work():
            async for _ in receiving:
                pass
            ended.append(1)

        async with consumer(cluster) as receiving:
            nursery.start_soon(work)
            await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        assert ended == [1]
        with pytest.raises(NotOpen, match=r"Consumer of group G.* is closed"):
            aiter(receiving)


async def test_a_consumer_works_only_inside_its_block(autojump_clock):
    async with simulated() as cluster:
        receiving = consumer(cluster)
        with pytest.raises(NotOpen):
            aiter(receiving)
        with pytest.raises(NotOpen):
            _ = receiving.assignment
        for use in (receiving.commit, receiving.lag, lambda: receiving.run(print)):
            with pytest.raises(NotOpen):
                await use()


# -- handlers


async def test_a_handler_gets_all_messages(autojump_clock):
    async with simulated() as cluster, consumer(cluster) as receiving, trio.open_nursery() as tasks:
        got = []

        async def handler(message):
            got.append(message.body)
            return Outcome.RETRY if message.reconsume_times == 0 and message.body == b"3" else None

        tasks.start_soon(receiving.run, handler)
        await send(cluster, *[b"%d" % i for i in range(10)])
        await trio.sleep(10)
        tasks.cancel_scope.cancel()
    assert Counter(got) == Counter([*(b"%d" % i for i in range(10)), b"3"])


async def test_c179_a_wrong_value_of_a_handler_reaches_the_application(autojump_clock):
    async with simulated() as cluster:
        await send(cluster, b"1")

        async def handler(message):
            return "ok"

        with pytest.raises(HandlerError, match="returned 'ok' for message"):
            async with consumer(cluster) as receiving:
                await receiving.run(handler)
        async with consumer(cluster) as receiving:
            assert bodies(await receive(receiving, 1)) == [b"1"]


async def test_c107_closing_waits_for_handlers_and_commits_after_the_last(autojump_clock):
    async with simulated() as cluster:
        await send(cluster, *[b"%02d" % i for i in range(40)])
        done, running = [], []

        async def handler(message):
            running.append(message.body)
            await trio.sleep(1)
            done.append(message.body)

        async with trio.open_nursery() as tasks, consumer(cluster) as receiving:
            tasks.start_soon(receiving.run, handler, 20)
            await until(lambda: len(running) == 20)
        assert sorted(done) == sorted(running)
        assert len(done) == 20
        async with consumer(cluster) as receiving:
            rest = await receive(receiving, 20)
            await nothing_comes(receiving, 20.0)
        assert sorted([*done, *bodies(rest)]) == [b"%02d" % i for i in range(40)], "zero repeats"


async def for_ever(message):
    await trio.sleep_forever()


async def test_c107_handlers_that_do_not_end_are_cancelled_after_the_grace_time(autojump_clock):
    async with simulated() as cluster:
        await send(cluster, b"1")
        async with trio.open_nursery() as tasks, consumer(cluster, close_grace_s=2.0) as receiving:
            tasks.start_soon(receiving.run, for_ever)
            await trio.sleep(5)
            left_at_s = trio.current_time()
        assert trio.current_time() - left_at_s < 4
        async with consumer(cluster) as receiving:
            assert bodies(await receive(receiving, 1)) == [b"1"]


async def test_c106_restarts_in_the_middle_of_work_do_not_double_copies(autojump_clock):
    """Six times: the handler works, is interrupted, and fails."""
    async with simulated() as cluster:
        await send(cluster, b"it")
        handled = 0

        async def handler(message):
            nonlocal handled
            handled += 1
            await trio.sleep(5)
            raise ValueError("failed")

        for _ in range(6):
            with trio.move_on_after(7):
                async with consumer(cluster, close_grace_s=1.0) as receiving:
                    await receiving.run(handler)
        assert 6 <= handled <= 13
        async with consumer(cluster) as receiving:
            assert len(await receive(receiving, 1)) == 1
            await nothing_comes(receiving, 20.0)


# -- groups


async def test_two_members_share_queues_and_a_leaving_one_hands_over_at_once(autojump_clock):
    async with simulated(queues=8) as cluster, consumer(cluster) as first:
        async with consumer(cluster) as second:
            await trio.sleep(2)
            mine, other = first.assignment, second.assignment
            assert not mine & other
            assert sum(queue.topic == "T" for queue in mine) == 4
            assert sum(queue.topic == "T" for queue in other) == 4
        await trio.sleep(1)
        assert sum(queue.topic == "T" for queue in first.assignment) == 8


async def test_b049_nothing_is_lost_or_repeated_while_members_come_and_go(autojump_clock):
    async with simulated(queues=8) as cluster, trio.open_nursery() as tasks:
        got = Counter()

        async def member(for_s):
            async with consumer(cluster) as receiving:
                with trio.move_on_after(for_s):
                    async for message in receiving:
                        async with message:
                            got[message.body] += 1

        tasks.start_soon(member, 60)
        for start_s in range(1, 20, 3):
            tasks.start_soon(member, start_s)
        async with Producer(cluster.nameserver) as producer:
            for i in range(150):
                await producer.send(Message("T", b"%d" % i))
                await trio.sleep(0.1)
    assert got.keys() == {b"%d" % i for i in range(150)}


@pytest.mark.parametrize("strategy", ["average", "by_circle", "consistent_hash"])
async def test_members_of_any_strategy_have_each_queue_once(autojump_clock, strategy):
    async with (
        simulated(queues=8) as cluster,
        consumer(cluster, strategy=strategy) as first,
        consumer(cluster, strategy=strategy) as second,
        consumer(cluster, strategy=strategy) as third,
    ):
        await trio.sleep(2)
        shares = [receiving.assignment for receiving in (first, second, third)]
        counts = Counter(queue for share in shares for queue in share if queue.topic == "T")
        assert set(counts.values()) == {1}
        assert len(counts) == 8


async def test_two_groups_each_get_all(autojump_clock):
    async with simulated() as cluster:
        await send(cluster, b"1", b"2")
        for group in ("G", "H"):
            async with consumer(cluster, group) as receiving:
                assert bodies(await receive(receiving, 2)) == [b"1", b"2"]


# -- namespaces


async def test_a_namespace_is_taken_off_everywhere(autojump_clock):
    async with simulated(topic=None) as cluster:
        await cluster.create_topic("ns%T", 1)
        async with (
            Producer(cluster.nameserver, namespace="ns") as producer,
            consumer(cluster, namespace="ns") as receiving,
        ):
            await producer.send(Message("T", b"1"))
            async for message in receiving:
                await message.retry()
                break
            assert (message.topic, message.queue.topic) == ("T", "T")
            (again,) = await receive(receiving, 1)
            assert (again.topic, again.queue.topic) == ("T", "%RETRY%G")
            topics = {queue.topic for queue in receiving.assignment}
            assert topics == {"T", "%RETRY%G"}
            (queue,) = (queue for queue in receiving.assignment if queue.topic == "T")
            await receiving.seek(queue, "begin")
            assert bodies(await receive(receiving, 1)) == [b"1"]


# -- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "everyone"}, "'everyone'; give 'clustering' or 'broadcasting'"),
        ({"from_where": "now"}, "'now'; give 'last', 'first'"),
        ({"strategy": "fair"}, "'fair' is unknown"),
        ({"pull_batch_size": 0}, "pull_batch_size: 0 is not allowed; give 1 to 1024"),
        ({"pull_threshold": 0}, "pull_threshold"),
        ({"consume_timeout_s": 0}, "consume_timeout_s"),
        ({"close_grace_s": -1}, "close_grace_s"),
        ({"subscribe": {"a b": "*"}}, "holds ' '"),
        ({"group": "a b"}, "group"),
        ({"group": ""}, "group"),
    ],
)
def test_wrong_arguments_are_refused_with_what_is_right(options, message):
    arguments = {"group": "G", "subscribe": {"T": "*"}, **options}
    with pytest.raises(ConfigError, match=message):
        Consumer("127.0.0.1:1", arguments.pop("group"), **arguments)


async def test_handlers_need_somebody_to_run_them(autojump_clock):
    async with simulated() as cluster, consumer(cluster) as receiving:
        with pytest.raises(ConfigError, match="concurrency: 0 is not allowed"):
            await receiving.run(print, concurrency=0)


# -- brokers that go


async def test_c100_fifty_groups_consume_from_a_broker_that_came_back_elsewhere(autojump_clock):
    async with simulated(brokers=2, queues=2) as cluster, AsyncExitStack() as stack:
        got = Counter()

        async def work(receiving, group):
            async for message in receiving:
                async with message:
                    got[group, message.body] += 1

        nursery = await stack.enter_async_context(trio.open_nursery())
        for i in range(50):
            receiving = await stack.enter_async_context(consumer(cluster, f"G{i}"))
            nursery.start_soon(work, receiving, i)
        await send(cluster, b"before")
        moving = cluster.brokers[1]
        await moving.kill()
        moving.move("10.1.0.77")
        await trio.sleep(5)
        await cluster.start(moving)
        began_s = trio.current_time()
        async with Producer(cluster.nameserver) as producer:
            for queue in await producer.queues("T"):
                await producer.send(Message("T", queue.broker_name.encode()), queue=queue)
        await until(lambda: all(got[i, b"broker-b"] == 2 for i in range(50)))
        assert trio.current_time() - began_s < 10
        assert all(got[i, b"broker-a"] == 2 for i in range(50))


async def test_c100_a_broker_that_answers_nothing_holds_up_no_other(autojump_clock):
    async with simulated(brokers=2, queues=2) as cluster:
        silent = cluster.brokers[1]
        silent.partition()
        async with consumer(cluster) as receiving:
            async with Producer(cluster.nameserver) as producer:
                queues = [q for q in await producer.queues("T") if q.broker_name == "broker-a"]
                for i in range(20):
                    began_s = trio.current_time()
                    await producer.send(Message("T", b"%d" % i), queue=queues[i % 2])
                    await receive(receiving, 1)
                    assert trio.current_time() - began_s < 0.1
                    await trio.sleep(1)
            silent.heal()
            await trio.sleep(40)
            await send(cluster, *[b"x"] * 4)
            found = await receive(receiving, 4)
            assert {message.queue.broker_name for message in found} == {"broker-a", "broker-b"}


async def test_a_consumer_starts_without_brokers_and_consumes_when_they_come(autojump_clock):
    async with simulated() as cluster:
        await send(cluster, b"1")
        await cluster.brokers[0].stop()
        async with consumer(cluster) as receiving:
            await nothing_comes(receiving, 20.0)
            await cluster.brokers[0].start()
            assert bodies(await receive(receiving, 1, limit_s=60)) == [b"1"]


async def test_a_broker_that_restarts_costs_no_message_and_repeats_none(autojump_clock):
    async with simulated() as cluster, consumer(cluster) as receiving:
        await send(cluster, b"1", b"2")
        assert len(await receive(receiving, 2)) == 2
        await trio.sleep(6)
        await cluster.brokers[0].restart()
        await send(cluster, b"3")
        assert bodies(await receive(receiving, 1)) == [b"3"]
        await nothing_comes(receiving, 20.0)


async def test_leaving_takes_no_longer_than_its_grace_when_all_brokers_are_silent(autojump_clock):
    async with simulated() as cluster:
        await send(cluster, b"1")
        async with consumer(cluster) as receiving:
            await receive(receiving, 1)
            cluster.brokers[0].partition()
            left_s = trio.current_time()
        assert trio.current_time() - left_s < 6


async def test_a_cancelled_block_stores_positions_all_the_same(autojump_clock):
    async with simulated() as cluster:
        await send(cluster, b"1", b"2")
        with trio.move_on_after(5):
            async with consumer(cluster) as receiving:
                await receive(receiving, 2)
                await trio.sleep_forever()
        async with consumer(cluster) as receiving:
            await nothing_comes(receiving, 20.0)
