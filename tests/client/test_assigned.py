"""Queues that are held: starts, losses, seeks, positions; with a store and a pull that a test can watch."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from tests.client.received import message_at
from trio_mq.client.assigned import START_AGAIN_S, AssignedQueues
from trio_mq.client.lifetime import background
from trio_mq.client.ready import Ready
from trio_mq.errors import PeerUnavailable
from trio_mq.protocol.bodies import MessageQueue

Q0, Q1 = MessageQueue("T", "b1", 0), MessageQueue("T", "b1", 1)


class Store:
    def __init__(self):
        self.offsets, self.writes, self.failing, self.slow_s = {}, [], set(), 0.0

    async def read(self, queue):
        return self.offsets.get(queue)

    async def write(self, positions, *, wait):
        await trio.sleep(self.slow_s)
        self.writes.append((dict(positions), wait))
        failed = {q: PeerUnavailable(f"{q} is down") for q in positions if q in self.failing}
        self.offsets.update({q: at for q, at in positions.items() if q not in failed})
        return failed


class Fetch:
    """Pulls that do nothing until they are told to begin anew at an offset."""

    def __init__(self):
        self.running, self._moves = {}, {}

    async def run(self, queue):
        self.running[queue.queue] = queue
        send, receive = self._moves[queue.queue] = trio.open_memory_channel(1)
        with send, receive:
            try:
                return await receive.receive()
            finally:
                if self.running.get(queue.queue) is queue:
                    del self.running[queue.queue]

    def move(self, queue, offset):
        self._moves[queue][0].send_nowait(offset)


@attrs.define(eq=False)
class Holding:
    assigned: AssignedQueues
    store: Store
    fetch: Fetch
    ready: Ready
    starts: dict


@asynccontextmanager
async def holding(**options):
    store, fetch, ready = Store(), Fetch(), Ready()
    starts = {Q0: 10, Q1: 20}

    async def start(queue):
        stored = await store.read(queue)
        found = starts[queue] if stored is None else stored
        if isinstance(found, Exception):
            raise found
        return found

    async with background() as tasks:
        assigned = AssignedQueues(tasks, fetch, store, ready, start=start, **options)
        yield Holding(assigned, store, fetch, ready, starts)


def process(it, queue=Q0):
    return it.assigned.process_queue(queue)


async def test_queues_that_are_taken_start_where_they_are_told(autojump_clock):
    async with holding() as it:
        it.assigned.take([Q0, Q1])
        assert it.assigned.queues == {Q0, Q1}
        await it.assigned.started()
        assert it.assigned.positions() == {Q0: 10, Q1: 20}
        await wait_all_tasks_blocked()
        assert it.fetch.running.keys() == {Q0, Q1}


async def test_a_queue_whose_start_is_unknown_is_tried_again_and_holds_up_nobody(
    autojump_clock, caplog
):
    async with holding() as it:
        it.starts[Q0] = PeerUnavailable("b1 is down")
        with caplog.at_level(logging.WARNING):
            it.assigned.take([Q0, Q1])
            await it.assigned.started()
            await trio.sleep(3 * START_AGAIN_S)
        assert it.assigned.positions() == {Q1: 20}
        assert caplog.text.count("b1 is down") == 1
        it.starts[Q0] = 11
        await trio.sleep(2 * START_AGAIN_S)
        assert it.assigned.positions() == {Q0: 11, Q1: 20}


async def test_a_queue_that_is_given_up_stores_its_position_and_is_not_handed_out(autojump_clock):
    async with holding() as it:
        it.assigned.take([Q0])
        await it.assigned.started()
        old = process(it)
        old.put([message_at(10, queue=Q0), message_at(11, queue=Q0)])
        old.next_offset = 12
        it.ready.add(old)
        old.settle(it.ready.take())
        it.assigned.give_up([Q0])
        assert it.assigned.queues == frozenset()
        assert it.ready.take() is None
        await wait_all_tasks_blocked()
        assert it.store.writes == [({Q0: 11}, True)]
        assert it.fetch.running == {}


async def test_a_queue_that_comes_back_begins_where_it_was_left(autojump_clock):
    async with holding() as it:
        it.assigned.take([Q0])
        await it.assigned.started()
        process(it).next_offset = 15
        it.store.slow_s = 2.0
        it.assigned.give_up([Q0])
        it.assigned.take([Q0])  # before the store has it
        await it.assigned.started()
        assert it.assigned.positions() == {Q0: 15}


async def test_a_queue_that_never_started_leaves_without_a_position(autojump_clock):
    async with holding() as it:
        it.starts[Q0] = PeerUnavailable("down")
        it.assigned.take([Q0])
        await wait_all_tasks_blocked()
        it.assigned.give_up([Q0])
        await trio.sleep(5)
        assert it.store.writes == []
        assert it.assigned.process_queues() == []


async def test_a_seek_begins_anew_and_old_messages_do_not_count(autojump_clock):
    async with holding() as it:
        it.assigned.take([Q0])
        await it.assigned.started()
        old = process(it)
        old.put([message_at(10, queue=Q0)])
        message = old.take()
        it.assigned.seek(Q0, 3)
        await it.assigned.started()
        old.settle(message)
        assert it.assigned.positions() == {Q0: 3}
        assert process(it) is not old
        await wait_all_tasks_blocked()
        assert it.fetch.running == {Q0: process(it)}


async def test_an_offset_that_is_not_there_is_followed_and_stored(autojump_clock):
    async with holding() as it:
        it.assigned.take([Q0])
        await it.assigned.started()
        old = process(it)
        await wait_all_tasks_blocked()
        it.fetch.move(Q0, 500)
        await trio.sleep(0.2)
        assert old.dropped
        assert it.assigned.positions() == {Q0: 500}
        assert it.store.writes == [({Q0: 500}, False)]


async def test_a_pause_lasts_over_seeks_and_losses_until_it_is_lifted(autojump_clock):
    async with holding() as it:
        it.assigned.take([Q0, Q1])
        it.assigned.pause([Q0])
        await it.assigned.started()
        assert process(it).paused
        it.assigned.seek(Q0, 4)
        await it.assigned.started()
        assert process(it).paused
        process(it).put([message_at(4, queue=Q0)])
        it.ready.add(process(it))
        assert it.ready.take() is None
        it.assigned.resume([Q0])
        assert it.ready.take().queue_offset == 4
        assert not process(it, Q1).paused


async def test_positions_that_are_not_stored_are_told_once_until_they_are(autojump_clock, caplog):
    async with holding() as it:
        it.assigned.take([Q0, Q1])
        await it.assigned.started()
        it.store.failing = {Q0}
        with caplog.at_level(logging.WARNING):
            await it.assigned.commit_quietly()
            await it.assigned.commit_quietly()
            assert caplog.text.count("are not stored yet") == 1
            it.store.failing = set()
            await it.assigned.commit_quietly()
            it.store.failing = {Q0}
            await it.assigned.commit_quietly()
        assert caplog.text.count("are not stored yet") == 2
        assert it.store.offsets == {Q0: 10, Q1: 20}


async def test_a_commit_says_what_failed(autojump_clock):
    async with holding() as it:
        it.assigned.take([Q0, Q1])
        await it.assigned.started()
        it.store.failing = {Q1}
        failures = await it.assigned.commit(wait=True)
        assert failures.keys() == {Q1}
        assert it.store.writes == [({Q0: 10, Q1: 20}, True)]


async def test_positions_of_an_application_that_keeps_them_are_left_alone(autojump_clock):
    async with holding(keeps_positions=False) as it:
        it.assigned.take([Q0])
        await it.assigned.started()
        await wait_all_tasks_blocked()
        it.fetch.move(Q0, 500)
        await trio.sleep(0.2)
        it.assigned.give_up([Q0])
        await trio.sleep(1)
        assert it.store.writes == []


async def test_the_application_sees_its_own_names(autojump_clock):
    async with holding(shown=lambda queue: attrs.evolve(queue, topic="shown")) as it:
        it.assigned.take([Q0])
        await it.assigned.started()
        assert process(it).shown == MessageQueue("shown", "b1", 0)
        assert process(it).queue == Q0
