"""Messages that nobody acknowledges come back; those that are acknowledged do not. On the mock clock."""

from __future__ import annotations

import random

import attrs
import pytest
import trio

from tests.broker.pop.popping import Consumer, Taken, bodies_of
from tests.broker.support import BROKER, GROUP, STORE, TOPIC, Bench, request, send, serving
from trio_mq.broker.pop import revive
from trio_mq.broker.pop.checkpoints import REVIVE_GROUP
from trio_mq.broker.put import Letter
from trio_mq.config import FlushDiskType
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.admin import DeleteTopicRequest
from trio_mq.protocol.headers.pop import AckMessageRequest
from trio_mq.store.retention import Pressure
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
RETRY = f"%RETRY%{GROUP}_{TOPIC}"
#: By then a message with an invisible time of 3 s is back.
BACK_S = 7


async def test_b085_what_is_not_acknowledged_comes_back(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=2)
        bench.put(b"a", b"b", b"c", tags="X")
        consumer = Consumer(bench)
        a, b, c = consumer.pop(invisible_ms=3000)
        consumer.ack(b)
        assert consumer.pop() == []
        await trio.sleep(BACK_S)
        again = consumer.pop(invisible_ms=3000)
        assert bodies_of(again) == [b"a", b"c"]
        for one in again:
            assert one.message.reconsume_times == 1
            props = one.message.property_map
            assert props["1ST_POP_TIME"] == str(a.receipt.pop_time_ms)
            assert props["ORIGIN_GROUP"] == GROUP
            assert props["TAGS"] == "X"
            assert one.topic == RETRY
            assert (one.message.queue_id, one.message.topic) == (0, TOPIC)
        assert again[0].message.born_timestamp_ms == a.message.born_timestamp_ms
        consumer.ack(again[0])
        await trio.sleep(BACK_S)
        (last,) = consumer.pop()
        assert last.body == again[1].body
        assert last.message.reconsume_times == 2
        assert last.message.property_map["1ST_POP_TIME"] == str(a.receipt.pop_time_ms)
        consumer.ack(last)
        await trio.sleep(70)
        assert consumer.pop() == []
        assert bench.topics.get(RETRY).read_queue_nums == 1
        assert c.message.reconsume_times == 0


async def test_b080_batches_come_back_and_are_acknowledged_together(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=8)
        first = [b"%d" % i for i in range(10)]
        for i, body in enumerate(first):
            bench.put(body, queue_id=i % 8)
        consumer = Consumer(bench)
        assert bodies_of(consumer.pop(30, 3000)) == first
        await trio.sleep(6)
        for i in range(20):
            bench.put(b"n%d" % i, queue_id=i % 8)
        found: list[Taken] = []
        while more := consumer.pop(30, 3000):
            found += more
        assert len(found) == len(set(bodies_of(found))) == 30
        assert consumer.batch_ack(found).code == ResponseCode.SUCCESS
        await trio.sleep(6)
        assert consumer.pop() == []


async def test_b086_a_changed_message_comes_back_after_its_new_time(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a")
        consumer = Consumer(bench)
        (a,) = consumer.pop(invisible_ms=3000)
        assert consumer.change(a, 20_000).code == ResponseCode.SUCCESS
        consumer.ack(a)  # the old receipt is done: this changes nothing
        await trio.sleep(18)
        assert consumer.pop() == []
        await trio.sleep(5)
        (again,) = consumer.pop()
        assert (again.body, again.message.reconsume_times) == (b"a", 1)


async def test_a_waiting_pop_gets_what_comes_back(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a")
        consumer = Consumer(bench)
        consumer.pop(invisible_ms=3000)
        began = trio.current_time()
        reply = await bench.answer(consumer.frame(poll_time=30_000), consumer.peer)
        assert [one.body for one in consumer.taken(reply)] == [b"a"]
        assert 3 <= trio.current_time() - began < 6


@pytest.mark.parametrize("v1_first", [True, False])
async def test_retry_topics_of_the_second_form(autojump_clock, v1_first: bool) -> None:
    v2 = attrs.evolve(
        BROKER,
        enable_retry_topic_v2=True,
        retrieve_message_from_pop_retry_topic_v1=v1_first,
    )
    async with serving(broker=v2) as bench:
        bench.create(queues=1)
        bench.put(b"a")
        consumer = Consumer(bench)
        consumer.pop(invisible_ms=3000)
        await trio.sleep(BACK_S)
        found: list[Taken] = []
        for _ in range(1 if not v1_first else 40):
            found += consumer.pop()
        (a,) = found
        assert a.receipt.kind == "2"
        assert a.topic == f"%RETRY%{GROUP}+{TOPIC}"
        assert consumer.ack(a).code == ResponseCode.SUCCESS
        await trio.sleep(70)
        assert [consumer.pop() for _ in range(10)] == [[]] * 10


@pytest.mark.parametrize("probability", [0, 100])
async def test_the_retry_topic_comes_first_or_last(autojump_clock, probability: int) -> None:
    settings = attrs.evolve(BROKER, pop_from_retry_probability=probability)
    async with serving(broker=settings) as bench:
        bench.create(queues=1)
        bench.put(b"old")
        consumer = Consumer(bench)
        consumer.pop(invisible_ms=3000)
        await trio.sleep(BACK_S)
        bench.put(b"new")
        expected = [b"old", b"new"] if probability else [b"new", b"old"]
        assert [one.body for one in consumer.pop(1) + consumer.pop(1)] == expected


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("clean", [True, False])
async def test_pops_that_are_open_survive_a_restart(
    autojump_clock, clean: bool, sync: bool
) -> None:
    disk, clock = MemoryDisk(), TrioClock()
    kind = FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH
    store = attrs.evolve(STORE, flush_disk_type=kind)
    async with serving(disk, clock=clock, store=store, clean_stop=clean) as bench:
        bench.create(queues=1)
        await bench.broker.saver.close()
        for i in range(6):
            await bench.answer(send(body=b"%d" % i))
        consumer = Consumer(bench)
        reply = await bench.answer(consumer.frame(invisible_ms=10_000), consumer.peer)
        taken = consumer.taken(reply)
        for one in taken[::2]:
            header = AckMessageRequest(**consumer.fields(one))
            acked = await bench.answer(request(RequestCode.ACK_MESSAGE, header))
            assert acked.code == ResponseCode.SUCCESS
        await trio.sleep(6)  # the offsets are saved by then
    async with serving(disk, clock=clock, store=store) as bench:
        consumer = Consumer(bench)
        assert (await bench.answer(consumer.frame(), consumer.peer)).code == 210
        await trio.sleep(10)
        reply = await bench.answer(consumer.frame(), consumer.peer)
        assert bodies_of(consumer.taken(reply)) == [b"1", b"3", b"5"]


async def test_a_crash_before_offsets_are_saved_gives_messages_out_again(autojump_clock) -> None:
    disk, clock = MemoryDisk(), TrioClock()
    async with serving(disk, clock=clock, clean_stop=False) as bench:
        bench.create(queues=1)
        await bench.broker.saver.close()
        bench.put(b"a", b"b")
        consumer = Consumer(bench)
        a, _ = consumer.pop(invisible_ms=10_000)
        consumer.ack(a)
    async with serving(disk, clock=clock) as bench:
        taken = Consumer(bench).pop()
        assert bodies_of(taken) == [b"a", b"b"], "none is lost"


async def test_c112_only_the_unacknowledged_come_back(autojump_clock) -> None:
    """apache/rocketmq#7914, #7724: with the oldest segment of the log expiring meanwhile."""
    chance = random.Random(112)
    async with serving() as bench:
        bench.create(queues=4)
        consumer = Consumer(bench)
        owed: dict[bytes, int] = {}
        for number in range(200):
            for i in range(8):
                bench.put(b"%d.%d" % (number, i), queue_id=i % 4)
            for one in consumer.pop(invisible_ms=20_000):
                if chance.random() < 0.5:
                    consumer.ack(one)
                else:
                    owed[one.body] = one.message.log_offset
            if number == 150:
                oldest = bench.store.log.start
                await bench.store.cleaner._remove([oldest], {oldest: 0}, Pressure())
                assert bench.store.log.start > oldest
            await trio.sleep(0.05)
        await trio.sleep(25)
        back: list[bytes] = []
        while taken := consumer.pop():
            for one in taken:
                assert one.message.reconsume_times == 1
                back.append(one.body)
                consumer.ack(one)
        left = {body for body, log_offset in owed.items() if log_offset >= bench.store.log.start}
        assert 100 < len(left) < len(owed), "some have expired"
        assert sorted(back) == sorted(left)
        await trio.sleep(70)
        assert consumer.pop() == []


async def test_c113_a_topic_that_is_made_anew_gets_nothing_back(autojump_clock) -> None:
    """apache/rocketmq#8479: old check points are dropped once, and bring no wrong messages."""
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(*[b"old%d" % i for i in range(10)])
        consumer = Consumer(bench)
        assert len(consumer.pop(invisible_ms=3000)) == 10
        delete = request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(TOPIC))
        assert (await bench.answer(delete)).code == ResponseCode.SUCCESS
        bench.create(queues=1)
        new = [b"new%d" % i for i in range(3)]
        bench.put(*new)
        await trio.sleep(BACK_S)
        assert bench.broker.pops.reviver.revived == 0
        assert done(bench) == [bench.store.queue(REVIVE, 0).max_offset - 1]
        assert bodies_of(consumer.pop()) == new
        assert consumer.pop() == []


async def test_check_points_of_topics_and_groups_that_are_gone_are_dropped(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a")
        consumer = Consumer(bench)
        consumer.pop(invisible_ms=3000)
        assert bench.topics.delete(TOPIC)
        await trio.sleep(BACK_S)
        assert bench.broker.pops.reviver.revived == 0
        assert done(bench) == [0]


def done(bench: Bench) -> list[int]:
    """How far the revive queues are worked off."""
    return [n for _, n in sorted(bench.offsets.of(REVIVE_GROUP, REVIVE).items())]


async def test_other_records_in_the_revive_topic_are_passed_over(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a")
        for tags in (b"ck", b"ack", b"bAck", b"?"):
            props = b"TAGS\x01%b\x02" % tags
            bench.broker.putter.put(Letter(REVIVE, 0, b"{}", props, 0, bytes(8)))
        consumer = Consumer(bench)
        consumer.pop(invisible_ms=3000)
        await trio.sleep(BACK_S)
        assert bodies_of(consumer.pop()) == [b"a"]


async def test_a_full_disk_is_waited_for(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a")
        consumer = Consumer(bench)
        consumer.pop(invisible_ms=3000)
        await trio.sleep(2.5)
        real, full = bench.broker.putter.put_all, True

        def put_all(letters: list[Letter]) -> object:
            if full and letters[0].topic == RETRY:
                raise OSError(28, "No space left on device")
            return real(letters)

        bench.broker.putter.put_all = put_all
        await trio.sleep(20)
        assert consumer.pop() == []
        full = False
        await trio.sleep(2)
        assert bodies_of(consumer.pop()) == [b"a"]


async def test_more_open_check_points_than_memory_takes_come_back_all(
    autojump_clock, monkeypatch
) -> None:
    monkeypatch.setattr(revive, "MOST_OPEN", 3)
    async with serving(broker=attrs.evolve(BROKER, revive_queue_num=1)) as bench:
        bench.create(queues=1)
        expected = sorted(b"%d" % i for i in range(40))
        bench.put(*expected)
        consumer = Consumer(bench)
        taken = [consumer.pop(1, 3000)[0] for _ in expected]
        for one in taken[::4]:
            consumer.ack(one)
        await trio.sleep(60)
        back: list[Taken] = []
        while more := consumer.pop():
            back += more
        owed = [one.body for number, one in enumerate(taken) if number % 4]
        assert set(owed) <= set(bodies_of(back)), "none is lost"
        assert len(back) == len(set(bodies_of(back)))


async def test_sixteen_retries_leave_nothing_in_memory(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a")
        consumer = Consumer(bench)
        for times in range(17):
            (a,) = consumer.pop(invisible_ms=30_000)
            assert a.message.reconsume_times == times
            await trio.sleep(34)
        lines = bench.broker.pops.reviver._lines.values()
        assert [line for line in lines if line.open or line.by_key] == []


async def test_an_idle_reviver_sleeps(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a")
        consumer = Consumer(bench)
        consumer.pop(invisible_ms=3_600_000)
        rounds = 0
        real = bench.broker.pops.reviver.round

        async def round_() -> bool:
            nonlocal rounds
            rounds += 1
            return await real()

        bench.broker.pops.reviver.round = round_
        await trio.sleep(3590)
        assert rounds <= 1
        await trio.sleep(15)
        assert bodies_of(consumer.pop()) == [b"a"]
        assert rounds < 10
