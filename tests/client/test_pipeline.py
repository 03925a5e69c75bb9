"""Pipelined sends: the window, the order, failures, and leaving early."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.client.sendpeers import NS, Cluster, refusing, silent, using
from trio_mq import (
    ClientError,
    ConfigError,
    Message,
    MessageQueue,
    NotOpen,
    PeerRefused,
    PeerUnavailable,
    Producer,
    SendFailed,
    SendStatus,
)
from trio_mq.errors import LocalProtocolError
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.command import Command


@pytest.fixture
async def cluster(nursery):
    found = Cluster({"b1": 2, "b2": 2})
    await nursery.start(found.run)
    with using(found):
        yield found


def messages(count):
    return [Message("T", b"%d" % number) for number in range(count)]


async def test_all_are_sent_and_have_their_receipts(autojump_clock, cluster):
    async with Producer(NS) as producer, producer.pipeline() as pipeline:
        pending = [await pipeline.send(message) for message in messages(50)]
        receipts = [await each for each in pending]
        assert [r.message_id for r in receipts] == [each.message_id for each in pending]
        assert all(receipt.status is SendStatus.OK for receipt in receipts)
        assert [each.receipt for each in pending] == receipts
    assert sorted(int(send.body) for send in cluster.sends) == list(range(50))


async def test_messages_to_one_queue_keep_their_order(autojump_clock, cluster):
    queue = MessageQueue("T", "b1", 0)
    async with Producer(NS) as producer, producer.pipeline() as pipeline:
        for message in messages(300):
            await pipeline.send(message, queue=queue)
    assert [int(send.body) for send in cluster.of("b1")] == list(range(300))


async def test_keyed_messages_keep_their_order_in_their_queue(autojump_clock, cluster):
    async with Producer(NS) as producer, producer.pipeline() as pipeline:
        for number in range(100):
            key = f"k{number % 5}"
            await pipeline.send(Message("T", b"%d" % number, sharding_key=key))
    for remainder in range(5):
        mine = [s for s in cluster.sends if s.properties["__SHARDINGKEY"] == f"k{remainder}"]
        assert len({(s.broker, s.queue_id) for s in mine}) == 1
        assert [int(s.body) for s in mine] == list(range(remainder, 100, 5))


async def test_no_more_than_the_window_are_on_their_way(autojump_clock, cluster):
    cluster.delays_s.update(b1=1.0, b2=1.0)
    async with Producer(NS, send_timeout_s=60) as producer:
        async with producer.pipeline(window=8) as pipeline:
            for number, message in enumerate(messages(40)):
                await pipeline.send(message)
                assert len(pipeline._on_way) <= 8
                assert trio.current_time() >= number // 8 * 1.0
        assert len(cluster.sends) == 40


@pytest.mark.parametrize("window", [1, 2])
async def test_the_smallest_windows_work(autojump_clock, cluster, window):
    async with Producer(NS) as producer, producer.pipeline(window) as pipeline:
        for message in messages(10):
            await pipeline.send(message)
    assert len(cluster.sends) == 10


async def test_a_window_of_none_is_refused(autojump_clock, cluster):
    async with Producer(NS) as producer:
        with pytest.raises(ConfigError, match="window: 0 is below 1"):
            async with producer.pipeline(0):
                pytest.fail("opened")


async def test_leaving_waits_for_all(autojump_clock, cluster):
    cluster.delays_s.update(b1=2.0, b2=2.0)
    async with Producer(NS) as producer:
        async with producer.pipeline() as pipeline:
            pending = [await pipeline.send(message) for message in messages(5)]
            with pytest.raises(ClientError, match="is on its way"):
                _ = pending[0].receipt
        assert all(each.done for each in pending)


async def test_failed_tries_are_repeated_at_the_other_broker(autojump_clock, cluster):
    cluster.answers["b1"] = refusing(14)
    async with Producer(NS) as producer, producer.pipeline() as pipeline:
        pending = [await pipeline.send(message) for message in messages(20)]
        assert {(await each).queue.broker_name for each in pending} == {"b2"}
    assert len(cluster.of("b1")) == 10
    assert sorted(int(send.body) for send in cluster.of("b2")) == list(range(20))


async def test_a_dead_broker_costs_no_message(autojump_clock, cluster):
    cluster.stop("b1")
    async with Producer(NS) as producer, producer.pipeline() as pipeline:
        pending = [await pipeline.send(message) for message in messages(20)]
        assert {(await each).queue.broker_name for each in pending} == {"b2"}


async def test_a_connection_that_breaks_costs_no_message(autojump_clock, cluster):
    cluster.answers["b1"] = silent
    async with Producer(NS) as producer, producer.pipeline() as pipeline:
        pending = [await pipeline.send(message) for message in messages(20)]
        await wait_all_tasks_blocked()
        cluster.stop("b1")
        assert {(await each).queue.broker_name for each in pending} == {"b2"}


async def test_leaving_raises_the_first_failure(autojump_clock, cluster):
    cluster.answers.update(b1=refusing(13, "too odd"), b2=refusing(13, "too odd"))
    async with Producer(NS) as producer:
        with pytest.raises(PeerRefused, match="too odd"):
            async with producer.pipeline() as pipeline:
                await pipeline.send(Message("T", b"x"))
        cluster.answers.clear()
        assert await producer.send(Message("T", b"x"))


async def test_leaving_raises_no_failure_that_was_awaited(autojump_clock, cluster):
    cluster.answers.update(b1=refusing(2), b2=refusing(2))
    async with Producer(NS) as producer, producer.pipeline() as pipeline:
        pending = [await pipeline.send(message) for message in messages(3)]
        for each in pending:
            with pytest.raises(SendFailed, match="in 3 tries"):
                await each
            with pytest.raises(SendFailed):
                _ = each.receipt


async def test_keyed_messages_are_tried_once(autojump_clock, cluster):
    cluster.answers.update(b1=refusing(2), b2=refusing(2))
    async with Producer(NS) as producer, producer.pipeline() as pipeline:
        pending = await pipeline.send(Message("T", b"x", sharding_key="k"))
        with pytest.raises(SendFailed, match="in 1 try"):
            await pending


async def test_failures_that_nobody_awaits_end_it_after_a_window(autojump_clock, cluster):
    cluster.answers.update(b1=refusing(13), b2=refusing(13))
    started = 0

    async def send_all(producer):
        nonlocal started
        async with producer.pipeline(window=16) as pipeline:
            for message in messages(1000):
                await pipeline.send(message)
                started += 1

    async with Producer(NS) as producer:
        with pytest.raises(PeerRefused):
            await send_all(producer)
    assert started <= 32


async def test_time_is_up_for_each_by_itself(autojump_clock, cluster):
    cluster.answers.update(b1=silent, b2=silent)
    async with Producer(NS, send_timeout_s=3) as producer, producer.pipeline() as pipeline:
        began_s = trio.current_time()
        slow = await pipeline.send(Message("T", b"x"))
        quick = await pipeline.send(Message("T", b"x"), timeout_s=0.5)
        with pytest.raises(SendFailed, match=r"within 0\.5 s"):
            await quick
        assert trio.current_time() - began_s == pytest.approx(0.5, abs=0.01)
        with pytest.raises(SendFailed, match="within 3 s") as caught:
            await slow
        assert isinstance(caught.value.failures[0], PeerUnavailable)
        assert trio.current_time() - began_s == pytest.approx(3, abs=0.01)


async def test_a_status_is_a_success_or_tried_again_as_asked(autojump_clock, cluster):
    cluster.answers["b1"] = lambda send: cluster.stored(send, 10)
    queue = MessageQueue("T", "b1", 0)
    async with Producer(NS) as producer, producer.pipeline() as pipeline:
        pending = await pipeline.send(Message("T", b"x"), queue=queue)
        assert (await pending).status is SendStatus.FLUSH_DISK_TIMEOUT
    cluster.sends.clear()
    producer = Producer(NS, retry_another_broker_when_not_store_ok=True)
    async with producer, producer.pipeline() as pipeline:
        for _ in range(4):
            assert (await (await pipeline.send(Message("T", b"x")))).status is SendStatus.OK
    assert cluster.of("b1")


async def test_go_away_retires_the_connection_and_its_other_answers_come(autojump_clock, cluster):
    count = 0

    def answer(send):
        nonlocal count
        count += 1
        return Command(ResponseCode.GO_AWAY) if count == 1 else cluster.stored(send)

    cluster.answers["b1"] = answer
    async with Producer(NS) as producer, producer.pipeline() as pipeline:
        pending = [await pipeline.send(message) for message in messages(20)]
        for each in pending:
            assert (await each).status is SendStatus.OK
        assert len(cluster.sends) == 21
        await pipeline.send(Message("T", b"x"), queue=MessageQueue("T", "b1", 0))
        await pipeline.flush()
    assert len(cluster.network.wires(cluster.addresses["b1"])) == 2


async def test_slow_brokers_are_avoided_when_latency_counts(autojump_clock, cluster):
    cluster.delays_s["b1"] = 0.7
    producer = Producer(NS, send_latency_fault_enable=True)
    async with producer, producer.pipeline() as pipeline:
        for message in messages(4):
            await pipeline.send(message)
        await pipeline.flush()
        before = len(cluster.of("b1"))
        for message in messages(10):
            await pipeline.send(message)
    assert len(cluster.of("b1")) == before


async def test_an_error_in_the_block_waits_for_nothing(autojump_clock, cluster):
    cluster.answers.update(b1=silent, b2=silent)
    kept = []

    async def fail(producer):
        async with producer.pipeline() as pipeline:
            kept.append(await pipeline.send(Message("T", b"x")))
            raise ValueError("mine")

    async with Producer(NS) as producer:
        began_s = trio.current_time()
        with pytest.raises(ValueError, match="mine"):
            await fail(producer)
        assert trio.current_time() - began_s < 0.1
        with pytest.raises(ClientError, match="left before its answer came; it may be stored"):
            await kept[0]
        cluster.answers.clear()
        assert await producer.send(Message("T", b"x"))


async def test_a_cancelled_block_waits_for_nothing_and_tasks_that_wait_are_told(
    autojump_clock, cluster
):
    cluster.answers.update(b1=silent, b2=silent)
    told = []

    async def wait(pending):
        with pytest.raises(ClientError, match="left before its answer"):
            await pending
        told.append(pending)

    async with Producer(NS) as producer, trio.open_nursery() as nursery:
        with trio.move_on_after(0.5) as scope:
            async with producer.pipeline() as pipeline:
                nursery.start_soon(wait, await pipeline.send(Message("T", b"x")))
                await trio.sleep_forever()
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert told
        assert await trio.to_thread.run_sync(lambda: True)


async def test_a_send_that_is_cancelled_while_it_waits_for_room_is_not_sent(
    autojump_clock, cluster
):
    cluster.delays_s.update(b1=1.0, b2=1.0)
    async with Producer(NS) as producer, producer.pipeline(window=2) as pipeline:
        for message in messages(2):
            await pipeline.send(message)
        with trio.move_on_after(0.5) as scope:
            await pipeline.send(Message("T", b"never"))
        assert scope.cancelled_caught
        await pipeline.flush()
        await pipeline.send(Message("T", b"later"))
    assert sorted(send.body for send in cluster.sends) == [b"0", b"1", b"later"]


async def test_what_cannot_be_sent_is_told_at_once_and_takes_no_room(autojump_clock, cluster):
    async with Producer(NS) as producer, producer.pipeline(window=2) as pipeline:
        for _ in range(5):
            with pytest.raises(LocalProtocolError, match="body is empty"):
                await pipeline.send(Message("T", b""))
        assert await (await pipeline.send(Message("T", b"x")))


async def test_a_closed_pipeline_says_so(autojump_clock, cluster):
    async with Producer(NS) as producer:
        async with producer.pipeline() as pipeline:
            pass
        with pytest.raises(NotOpen, match="pipeline is closed"):
            await pipeline.send(Message("T", b"x"))
    with pytest.raises(NotOpen, match="is closed"):
        producer.pipeline()


async def test_many_tasks_may_send(autojump_clock, cluster):
    cluster.delays_s.update(b1=0.01, b2=0.01)

    async def send_some(pipeline, name):
        for number in range(50):
            await pipeline.send(Message("T", f"{name} {number}".encode()))

    async def send_all(pipeline):
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(send_some, pipeline, name)

    async with Producer(NS) as producer, producer.pipeline(window=4) as pipeline:
        await send_all(pipeline)
    assert len({send.body for send in cluster.sends}) == 150
