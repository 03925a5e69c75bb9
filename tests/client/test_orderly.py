"""Consumption in order: what is handed out when, and whole consumers on a simulated cluster."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import pairwise

import pytest
import trio

from tests.client.received import message_at
from trio_mq import ConfigError, Consumer, Message, Outcome, Producer
from trio_mq.client.orderly import OrderedReady
from trio_mq.client.processqueue import ProcessQueue
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.testing.cluster import SimulatedCluster

# -- handing out


def queue_of(queue_id, count, start=0):
    queue = MessageQueue("T", "b1", queue_id)
    process = ProcessQueue(queue, start)
    process.put([message_at(start + i, queue=queue) for i in range(count)])
    return process


def places(messages):
    return [(m.queue.queue_id, m.queue_offset) for m in messages if m is not None]


def done(ready, message):
    queue = ready.returned(message)
    queue.settle(message)
    ready.free(queue.queue)


async def test_one_message_of_each_queue_at_a_time():
    ready = OrderedReady()
    ready.add(queue_of(0, 3))
    ready.add(queue_of(1, 3))
    first, second, third = ready.take(), ready.take(), ready.take()
    assert places([first, second, third]) == [(0, 0), (1, 0)]
    done(ready, second)
    assert places([ready.take(), ready.take()]) == [(1, 1)]
    done(ready, first)
    assert places([ready.take(), ready.take()]) == [(0, 1)]


async def test_messages_that_come_while_one_is_in_hand_wait_for_it():
    ready, queue = OrderedReady(), queue_of(0, 1)
    ready.add(queue)
    first = ready.take()
    queue.put([message_at(1, queue=queue.queue)])
    ready.add(queue)
    assert ready.take() is None
    done(ready, first)
    assert places([ready.take()]) == [(0, 1)]


async def test_a_queue_that_is_not_locked_hands_out_nothing():
    ready, queue, ours = OrderedReady(), queue_of(0, 2), []
    ready.may_hand_out = lambda queue: queue in ours
    ready.add(queue)
    assert ready.take() is None
    ours.append(queue.queue)
    ready.add(queue)
    assert places([ready.take()]) == [(0, 0)]


async def test_after_a_seek_the_next_message_waits_for_the_one_in_hand():
    ready, before = OrderedReady(), queue_of(0, 2)
    ready.add(before)
    first = ready.take()
    before.drop()
    ready.add(queue_of(0, 2, start=7))
    assert ready.take() is None
    done(ready, first)
    assert places([ready.take()]) == [(0, 7)]


async def test_what_is_abandoned_holds_up_nobody():
    ready, queue = OrderedReady(), queue_of(0, 2)
    ready.add(queue)
    first = ready.take()
    ready.abandon()
    await ready.idle(queue.queue)
    assert ready.returned(first) is None


# -- consumers


@pytest.fixture
def small():
    return SimulatedCluster(delay_s=0.001)


class Work:
    """Handlers of several members, and what they have seen: per queue, who saw which offset."""

    def __init__(self, work_s=0.0, outcome=lambda message: None):
        self.seen = defaultdict(list)
        self.at_work = {}
        self.most_at_once = 0
        self.work_s = work_s
        self.outcome = outcome

    async def handle(self, who, message):
        key = message.queue
        assert key not in self.at_work, f"{key}: {self.at_work[key]} and {who} at the same time"
        self.at_work[key] = who
        self.most_at_once = max(self.most_at_once, len(self.at_work))
        try:
            await trio.sleep(self.work_s)
            self.seen[key.queue_id].append((who, message.queue_offset))
            return self.outcome(message)
        finally:
            del self.at_work[key]

    def offsets(self, queue_id):
        return [offset for _, offset in self.seen[queue_id]]

    def count(self):
        return sum(len(set(self.offsets(queue_id))) for queue_id in self.seen)

    async def until(self, count, within_s=120):
        with trio.fail_after(within_s):
            while self.count() < count:  # noqa: ASYNC110  (virtual time)
                await trio.sleep(0.05)

    def check(self, queues, each, repeats=0):
        """Every offset of every queue, in order; each owner may repeat a few from where it begins."""
        for queue_id in range(queues):
            found = self.offsets(queue_id)
            assert sorted(set(found)) == list(range(each)), queue_id
            assert len(found) - each <= repeats, (queue_id, found)
            steps = [b - a for a, b in pairwise(found)]
            assert all(step == 1 or -repeats < step <= 0 for step in steps), found


def consumer_of(cluster, **more):
    more = {"from_where": "first", "orderly": True, **more}
    return Consumer(cluster.nameserver, "G", subscribe={"T": "*"}, **more)


async def send(cluster, count, first=0, queues=4):
    async with Producer(cluster.nameserver) as producer:
        known = await producer.queues("T")
        for number in range(first, first + count):
            body = str(number).encode()
            await producer.send(Message("T", body), queue=known[number % queues])


async def member(cluster, work, who, *, stop=None, task_status=trio.TASK_STATUS_IGNORED, **more):
    """One member of the group, until `stop` is set."""
    async with consumer_of(cluster, **more) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, partial(work.handle, who))
        task_status.started(consumer)
        await (trio.Event() if stop is None else stop).wait()
        nursery.cancel_scope.cancel()


async def test_queues_go_on_beside_each_other_each_in_its_order(small, autojump_clock):
    async with small as cluster:
        await cluster.create_topic("T")
        await send(cluster, 80)
        work = Work(work_s=0.1)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(member, cluster, work, "a"))
            began = trio.current_time()
            await work.until(80)
            assert trio.current_time() - began < 4
            nursery.cancel_scope.cancel()
        work.check(4, 20)
        assert work.most_at_once == 4


async def test_iterating_gives_the_next_message_of_a_queue_when_the_one_before_is_settled(
    small, autojump_clock
):
    async with small as cluster:
        await cluster.create_topic("T", 1)
        await send(cluster, 5, queues=1)
        async with consumer_of(cluster) as consumer:
            first = await anext(consumer)
            with trio.move_on_after(10) as waiting:
                await anext(consumer)
            assert waiting.cancelled_caught
            await first.ack()
            assert (await anext(consumer)).queue_offset == 1


async def test_a_message_that_fails_comes_again_after_a_second_before_the_others(
    small, autojump_clock
):
    async with small as cluster:
        await cluster.create_topic("T", 2)
        await send(cluster, 20, queues=2)
        times = []

        def outcome(message):
            if message.body == b"4":
                times.append((trio.current_time(), message.reconsume_times))
                return Outcome.ACK if message.reconsume_times == 3 else Outcome.RETRY
            return None

        work = Work(outcome=outcome)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(member, cluster, work, "a"))
            await work.until(20)
            nursery.cancel_scope.cancel()
        assert [count for _, count in times] == [0, 1, 2, 3]
        gaps = [b - a for (a, _), (b, _) in pairwise(times)]
        assert all(0.99 < gap < 1.1 for gap in gaps)
        assert work.offsets(0) == [0, 1, 2, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9]
        assert work.offsets(1) == list(range(10))


async def test_at_the_limit_a_message_becomes_a_dead_letter_and_its_queue_goes_on(
    small, autojump_clock
):
    async with small as cluster:
        await cluster.create_topic("T", 1)
        await send(cluster, 3, queues=1)
        work = Work(outcome=lambda message: message.body != b"1")
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(member, cluster, work, "a", max_reconsume_times=2))
            await work.until(3)
            nursery.cancel_scope.cancel()
        assert work.offsets(0) == [0, 1, 1, 1, 2]
        dead = Consumer(
            cluster.nameserver, "readers", subscribe={"%DLQ%G": "*"}, from_where="first"
        )
        async with dead as consumer:
            with trio.fail_after(60):
                message = await anext(consumer)
            assert message.body == b"1"
            assert message.properties["RETRY_TOPIC"] == "T"


async def test_members_hand_queues_over_without_a_moment_of_two_owners(small, autojump_clock):
    async with small as cluster:
        await cluster.create_topic("T")
        work, leave = Work(work_s=0.05), trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(member, cluster, work, "a"))
            await send(cluster, 400)
            await work.until(40)
            nursery.start_soon(partial(member, cluster, work, "b", stop=leave))
            await work.until(200)
            leave.set()
            await work.until(400)
            nursery.cancel_scope.cancel()
        work.check(4, 100)
        owners = [{who for who, _ in work.seen[queue_id]} for queue_id in range(4)]
        assert sorted(map(len, owners)) == [1, 1, 2, 2]


async def test_a_long_handler_keeps_its_queue_until_it_is_done(small, autojump_clock):
    """The new owner waits, though it has long been told that the queue is its own."""
    async with small as cluster:
        await cluster.create_topic("T", 1)
        await send(cluster, 2, queues=1)
        work = Work(work_s=100)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(member, cluster, work, "z", instance_name="z"))
            await trio.sleep(1)
            await nursery.start(partial(member, cluster, work, "a", instance_name="a"))
            await trio.sleep(50)
            assert work.at_work == {MessageQueue("T", "broker-a", 0): "z"}
            await work.until(2, 400)
            nursery.cancel_scope.cancel()
        assert work.seen[0] == [("z", 0), ("a", 1)]


async def test_order_is_kept_when_the_broker_is_started_again(small, autojump_clock):
    async with small as cluster:
        await cluster.create_topic("T")
        await send(cluster, 200)
        work = Work(work_s=0.1)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(member, cluster, work, "a"))
            await nursery.start(partial(member, cluster, work, "b"))
            await work.until(60)
            (node,) = cluster.brokers
            await node.kill()
            await trio.sleep(5)
            await cluster.start(node)
            await work.until(200)
            nursery.cancel_scope.cancel()
        # What was not stored when the broker was killed comes again, from the last stored position on.
        work.check(4, 50, repeats=40)


@pytest.mark.parametrize("later_s", [0.1 * tenth for tenth in range(10)])
async def test_a_connection_that_breaks_for_a_moment_stops_no_queue(small, autojump_clock, later_s):
    """Its messages are all here, so no pull wakes a queue again that was not ours when its turn came."""
    async with small as cluster:
        await cluster.create_topic("T", 1)
        await send(cluster, 30, queues=1)
        (node,) = cluster.brokers
        work = Work(work_s=0.1)
        with cluster.client_at("10.9.0.1"):
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(member, cluster, work, "a"))
                await work.until(5)
                await trio.sleep(later_s)
                for wire in cluster.network.between("10.9.0.1", node.host):
                    wire.reset()
                await work.until(30, 10)
                nursery.cancel_scope.cancel()
        work.check(1, 30, repeats=15)


async def test_a_lock_that_is_lost_stops_handing_out_until_it_is_ours_again(autojump_clock, caplog):
    async with SimulatedCluster(delay_s=0.001) as cluster:
        await cluster.create_topic("T", 1)
        (node,) = cluster.brokers
        work = Work(work_s=1)
        with cluster.client_at("10.9.0.1"):
            consumer = consumer_of(cluster)
            async with consumer, trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, partial(work.handle, "a"))
                await send(cluster, 100, queues=1)
                await work.until(10)
                cluster.partition("10.9.0.1", node.host)
                await trio.sleep(60)
                seen = work.count()
                assert seen <= 10 + 31  # the lock counts for 30 s
                cluster.heal()
                await work.until(100, 300)
                nursery.cancel_scope.cancel()
        work.check(1, 100, repeats=42)
    assert any("is not ours any more" in record.message for record in caplog.records)


async def test_a_block_that_is_left_lets_others_go_on_at_once(small, autojump_clock):
    async with small as cluster:
        await cluster.create_topic("T", 1)
        await send(cluster, 10, queues=1)
        async with consumer_of(cluster) as consumer:
            for _ in range(4):
                async with await anext(consumer):
                    pass
            await anext(consumer)  # in hand, and never settled
        async with consumer_of(cluster) as consumer:
            with trio.fail_after(1):
                assert (await anext(consumer)).queue_offset == 4


async def test_a_message_that_is_never_settled_comes_again_when_its_time_is_over(
    small, autojump_clock, caplog
):
    async with small as cluster:
        await cluster.create_topic("T", 1)
        await send(cluster, 2, queues=1)
        async with consumer_of(cluster, consume_timeout_s=30) as consumer:
            first = await anext(consumer)
            with trio.fail_after(35):
                again = await anext(consumer)
            assert again.message_id == first.message_id
            await first.ack()  # too late: it is another one's by now
            await again.ack()
            assert (await anext(consumer)).queue_offset == 1
    assert f"message {first.message_id} of topic T is not settled after 30 s" in caplog.text


async def test_seek_and_pause_of_queues_in_order(small, autojump_clock):
    async with small as cluster:
        await cluster.create_topic("T", 1)
        await send(cluster, 10, queues=1)
        async with consumer_of(cluster) as consumer:
            async with await anext(consumer) as first:
                pass
            consumer.pause(first.queue)
            with trio.move_on_after(10) as waiting:
                await anext(consumer)
            assert waiting.cancelled_caught
            await consumer.seek(first.queue, 7)
            consumer.resume(first.queue)
            async with await anext(consumer) as message:
                assert message.queue_offset == 7
            await consumer.commit()
        async with consumer_of(cluster) as consumer:
            assert (await anext(consumer)).queue_offset == 8


def test_broadcasting_knows_no_order():
    with pytest.raises(ConfigError, match="broadcasting group shares no queues"):
        Consumer("127.0.0.1:9876", "G", subscribe={"T": "*"}, orderly=True, model="broadcasting")
