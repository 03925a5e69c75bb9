"""Handing out: fairness, waiting, waking, ending."""

from __future__ import annotations

import anyio
import trio
from trio.testing import wait_all_tasks_blocked

from tests.client.received import message_at
from trio_mq.client.processqueue import ProcessQueue
from trio_mq.client.ready import MESSAGES_PER_TURN, Ready
from trio_mq.protocol.bodies import MessageQueue


def queue_of(queue_id, count, start=0):
    queue = MessageQueue("T", "b1", queue_id)
    process = ProcessQueue(queue, start)
    process.put([message_at(start + i, queue=queue) for i in range(count)])
    return process


async def take(ready, count):
    return [await ready.next() for _ in range(count)]


async def test_queues_take_turns_whatever_their_backlog():
    ready = Ready()
    ready.add(queue_of(0, 1000))
    ready.add(queue_of(1, 2))
    found = [message.queue.queue_id for message in await take(ready, 6)]
    assert found == [0, 1, 0, 1, 0, 0]


async def test_a_queue_that_comes_twice_has_one_turn():
    ready, queue = Ready(), queue_of(0, 4)
    ready.add(queue)
    ready.add(queue)
    ready.add(queue_of(1, 4))
    assert [message.queue.queue_id for message in await take(ready, 4)] == [0, 1, 0, 1]


async def test_a_message_wakes_one_task_and_two_wake_two(autojump_clock):
    ready, got = Ready(), []

    async def wait():
        got.append(await ready.next())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        ready.add(queue_of(0, 1))
        await wait_all_tasks_blocked()
        assert len(got) == 1
        ready.add(queue_of(1, 2))
        await wait_all_tasks_blocked()
        assert len(got) == 3


async def test_a_wake_up_that_meets_a_cancelled_task_goes_on_to_the_next_one(autojump_clock):
    ready, got = Ready(), []

    async def wait():
        got.append(await ready.next())

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def leaving():
            with scope:
                await wait()

        nursery.start_soon(leaving)
        await wait_all_tasks_blocked()
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        scope.cancel()
        ready.add(queue_of(0, 1))  # in the same moment
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert got[0].queue_offset == 0


async def test_closing_ends_all_who_wait_and_hands_out_nothing_more(autojump_clock):
    ready, got = Ready(), []

    async def wait():
        got.append(await ready.next())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        ready.close()
    ready.add(queue_of(0, 5))
    assert got == [None, None]
    assert await ready.next() is None
    assert ready.take_now() is None


async def test_paused_and_dropped_queues_are_left_out_until_they_come_again(autojump_clock):
    ready, paused, dropped = Ready(), queue_of(0, 2), queue_of(1, 2)
    for queue in (paused, dropped, queue_of(2, 1)):
        ready.add(queue)
    paused.pause()
    dropped.drop()
    assert (await ready.next()).queue.queue_id == 2
    assert ready.take() is None
    paused.resume()
    ready.add(paused)
    assert [message.queue_offset for message in await take(ready, 2)] == [0, 1]


async def test_a_backlog_lets_other_tasks_run():
    ready, ran = Ready(), []
    ready.add(queue_of(0, 10 * MESSAGES_PER_TURN))

    async def other():
        while True:
            ran.append(1)
            await anyio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(10 * MESSAGES_PER_TURN):
            if ready.take_now() is None:
                await ready.next()
        nursery.cancel_scope.cancel()
    assert len(ran) >= 9


async def test_messages_know_when_they_were_handed_out(autojump_clock):
    ready = Ready()
    await trio.sleep(50)
    ready.add(queue_of(0, 1))
    message = await ready.next()
    assert message.taken_at_s == anyio.current_time()
