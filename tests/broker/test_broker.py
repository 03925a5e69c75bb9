"""The broker as a whole, simulated: clients, time and disk are in memory, and a seed decides what happens.

Nothing here waits in real time: an hour of long polls takes a moment.
"""

from __future__ import annotations

import json
import random

import attrs
import pytest
import trio
import trio.testing

from tests.broker.support import (
    BROKER,
    GROUP,
    STORE,
    SUSPEND,
    FakePeer,
    messages,
    props,
    pull,
    request,
    send,
    serving,
    texts,
)
from tests.marks import first_fast
from trio_mq.config import FlushDiskType
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.offset import (
    QueryConsumerOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from trio_mq.protocol.message import BatchItem, join_batch
from trio_mq.store.retention import Expired, RaisedMinimum
from trio_mq.testing.disk import MemoryDisk

SYNC = attrs.evolve(STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH)


def saved(disk, name):
    path = f"/store/config/{name}"
    return disk.open(path).read(disk.size(path), 0).decode() if disk.exists(path) else ""


# -- periodic work


async def test_topics_and_groups_are_saved_soon_after_a_change(autojump_clock):
    async with serving() as bench:
        told = []
        bench.broker.topic_changed = told.append
        bench.create("Fresh")
        bench.groups.obtain("Group")
        await trio.sleep(0.1)
        assert "Fresh" in saved(bench.disk, "topics.json")
        assert "Group" in saved(bench.disk, "subscriptionGroup.json")
        assert told == ["Fresh"]


async def test_consumer_offsets_are_saved_every_period(autojump_clock):
    settings = attrs.evolve(BROKER, flush_consumer_offset_interval_ms=5000)
    async with serving(broker=settings) as bench:
        bench.create()
        bench.offsets.commit(GROUP, "T", 0, 7)
        await trio.sleep(4.9)
        assert "T@CG" not in saved(bench.disk, "consumerOffset.json")
        await trio.sleep(0.2)
        assert "T@CG" in saved(bench.disk, "consumerOffset.json")


async def test_a_full_disk_ends_nothing_and_tables_are_saved_when_there_is_room(autojump_clock):
    async with serving() as bench:
        bench.create()
        await trio.sleep(1)
        bench.disk.fail_when(lambda op: "/config/" in op.path)
        bench.create("Later")
        bench.offsets.commit(GROUP, "T", 0, 7)
        await trio.sleep(30)
        assert bench.ask(send()).code == ResponseCode.SUCCESS
        bench.disk.heal()
        await trio.sleep(6)
        assert "Later" in saved(bench.disk, "topics.json")
        assert "T@CG" in saved(bench.disk, "consumerOffset.json")


async def test_silent_clients_are_dropped_and_the_others_told(autojump_clock):
    async with serving() as bench:
        bench.create()
        silent, lively = FakePeer(), FakePeer()
        bench.beat(silent, "T")
        bench.beat(lively, "T")
        silent.take()
        for _ in range(5):
            await trio.sleep(30)
            if not silent.closed:
                bench.beat(lively, "T")
        assert silent.closed
        told = [value.code for value in lively.take()]
        assert RequestCode.NOTIFY_CONSUMER_IDS_CHANGED in told
        ids = bench.ask(
            request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": GROUP})
        )
        assert len(json.loads(ids.body)["consumerIdList"]) == 1


async def test_b050_a_closed_connection_leaves_its_groups_and_its_polls(autojump_clock):
    async with serving() as bench:
        bench.create()
        gone, stays = FakePeer(), FakePeer()
        bench.beat(gone, "T")
        bench.beat(stays, "T")
        bench.hand(gone, pull(0, sys_flag=SUSPEND))
        stays.take()
        gone.close()
        bench.face.disconnected(gone)
        assert [c.code for c in stays.take()] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
        assert len(bench.broker.holds) == 0


# -- stop and start


async def test_everything_is_there_after_a_stop(autojump_clock):
    disk = MemoryDisk()
    async with serving(disk) as bench:
        bench.create("T", queues=2)
        bench.create("B", queue_type="BatchCQ")
        bench.put(b"1", b"2", properties=props(KEYS="k"))
        body = join_batch([BatchItem(0, b"x", b""), BatchItem(0, b"y", b"")])
        bench.put(body, topic="B", code=320, batch=True, properties=props(UNIQ_KEY="U"))
        update = UpdateConsumerOffsetRequest(GROUP, "T", 0, 1)
        bench.groups.obtain(GROUP)
        assert bench.ask(request(RequestCode.UPDATE_CONSUMER_OFFSET, update)).code == 0
    async with serving(disk) as again:
        assert again.topics.get("T").read_queue_nums == 2
        assert texts(again.ask(pull(0))) == [b"1", b"2"]
        assert messages(again.ask(pull(1, "B")))[0].sys_flag & 0x80
        query = QueryConsumerOffsetRequest(GROUP, "T", 0)
        assert again.ask(request(RequestCode.QUERY_CONSUMER_OFFSET, query)).ext["offset"] == "1"
        key = {
            "topic": "T",
            "key": "k",
            "maxNum": "9",
            "beginTimestamp": "0",
            "endTimestamp": str(2**62),
        }
        assert texts(again.ask(request(RequestCode.QUERY_MESSAGE, ext=key))) == [b"1", b"2"]
        again.put(b"3")
        assert texts(again.ask(pull(2))) == [b"3"]
        again.put(body, topic="B", code=320, batch=True, properties=props(UNIQ_KEY="V"))
        assert messages(again.ask(pull(2, "B")))[0].property_map["INNER_BASE"] == "2"


async def test_a_day_without_traffic_costs_next_to_nothing(autojump_clock):
    async with serving() as bench:
        bench.create()
        bench.put(b"1")
        await trio.sleep(60)
        before = len(bench.disk.operations)
        await trio.sleep(3600)
        assert len(bench.disk.operations) - before < 10
        assert texts(bench.ask(pull(0))) == [b"1"]


# -- producers, consumers and power cuts


@attrs.define
class World:
    """What a seed has decided, and what the clients know."""

    seed: random.Random
    #: Bodies that were acknowledged, by queue and offset.
    acknowledged: dict[tuple[int, int], bytes] = attrs.field(factory=dict)
    #: What the consumers got, by queue and offset.
    consumed: dict[tuple[int, int], bytes] = attrs.field(factory=dict)
    committed: dict[int, int] = attrs.field(factory=dict)
    sent: int = 0


async def produce(bench, world, queue_id):
    """Send messages one after the other, some of them in batches."""
    peer = FakePeer()
    while True:
        await trio.sleep(world.seed.uniform(0, 0.05))
        bodies = [
            b"%d-%d" % (queue_id, world.sent + n) for n in range(world.seed.choice([1, 1, 3]))
        ]
        world.sent += len(bodies)
        if len(bodies) > 1:
            batch = join_batch([BatchItem(0, body, b"") for body in bodies])
            bench.hand(peer, send(body=batch, batch=True, code=320, queue_id=queue_id))
        else:
            filler = b"." * world.seed.choice([0, 100, 5_000])
            bodies = [bodies[0] + filler]
            bench.hand(peer, send(body=bodies[0], queue_id=queue_id))
        reply = await bench.next(peer)
        assert reply.code == ResponseCode.SUCCESS
        first = int(reply.ext["queueOffset"])
        for number, body in enumerate(bodies):
            assert (queue_id, first + number) not in world.acknowledged
            world.acknowledged[queue_id, first + number] = body


async def consume(bench, world, queue_id):
    """Pull one queue for ever, and commit now and then."""
    peer, offset = FakePeer(), world.committed.get(queue_id, 0)
    while True:
        bench.hand(
            peer, pull(offset, queue_id=queue_id, sys_flag=SUSPEND | 1, commit_offset=offset)
        )
        reply = await bench.next(peer)
        assert reply.code in (0, 19, 20, 21), reply.remark
        for message in messages(reply):
            assert message.queue_offset >= offset
            known = world.consumed.setdefault((queue_id, message.queue_offset), message.body)
            assert known == message.body
        following = int(reply.ext["nextBeginOffset"])
        assert following >= offset or reply.code == 21
        offset = following
        world.committed[queue_id] = offset


@pytest.mark.parametrize("seed", first_fast(range(5)))
async def test_power_cuts_lose_nothing_that_was_acknowledged(autojump_clock, seed):
    """Sync flush, four queues, six lives: each acknowledged message is there, in order, once."""
    world, disk = World(random.Random(seed)), MemoryDisk()
    for life in range(6):
        async with serving(disk, store=SYNC, clean_stop=False) as bench:
            bench.create()
            await trio.sleep(0.1)
            disk.run_delay_s = world.seed.choice([0, 0.002, 0.02])
            for (queue_id, offset), body in world.acknowledged.items():
                (found,) = messages(bench.ask(pull(offset, queue_id=queue_id, max_msg_nums=1)))
                assert (found.queue_offset, found.body) == (offset, body)
            for queue_id in range(4):
                bench.nursery.start_soon(produce, bench, world, queue_id)
                bench.nursery.start_soon(consume, bench, world, queue_id)
            await trio.sleep(world.seed.uniform(0.1, 2))
        disk.run_delay_s = 0
        disk.crash(1000 * seed + life)
        world.committed.clear()  # consumers ask the broker again, which may know less than they do
    assert len(world.acknowledged) > 100
    for key, body in world.consumed.items():
        assert world.acknowledged.get(key, body) == body


@pytest.mark.parametrize("seed", first_fast(range(3)))
async def test_ends_without_a_power_cut_lose_nothing_under_async_flush(autojump_clock, seed):
    """kill -9: the page cache stays, so async flush keeps what was acknowledged too."""
    world, disk = World(random.Random(seed)), MemoryDisk()
    for life in range(5):
        async with serving(disk, clean_stop=False) as bench:
            bench.create()
            await trio.sleep(0.1)
            for queue_id in range(4):
                bench.nursery.start_soon(produce, bench, world, queue_id)
                bench.nursery.start_soon(consume, bench, world, queue_id)
            await trio.sleep(world.seed.uniform(0.1, 2))
        disk.crash(1000 * seed + life, keep="all")
    async with serving(disk) as bench:
        for (queue_id, offset), body in world.acknowledged.items():
            (found,) = messages(bench.ask(pull(offset, queue_id=queue_id, max_msg_nums=1)))
            assert (found.queue_offset, found.body) == (offset, body)
        for queue_id in range(4):
            queue = bench.store.queue("T", queue_id)
            of_queue = [offset for at, offset in world.acknowledged if at == queue_id]
            assert max(of_queue) < queue.max_offset <= len(of_queue) + 2 * 3 * 5
    assert world.consumed.items() <= {**world.consumed, **world.acknowledged}.items()


@pytest.mark.parametrize("seed", first_fast(range(3)))
async def test_orderly_restarts_lose_no_progress(autojump_clock, seed):
    """Every message is consumed once over all restarts: offsets are saved by a stop."""
    world, disk = World(random.Random(seed)), MemoryDisk()
    got = []
    for _ in range(4):
        async with serving(disk) as bench:
            bench.create()
            await trio.sleep(0.1)
            async with trio.open_nursery() as producers:
                for queue_id in range(4):
                    producers.start_soon(produce, bench, world, queue_id)
                await trio.sleep(world.seed.uniform(0.1, 2))
                producers.cancel_scope.cancel()
            for queue_id in range(4):
                query = QueryConsumerOffsetRequest(GROUP, "T", queue_id)
                reply = bench.ask(request(RequestCode.QUERY_CONSUMER_OFFSET, query))
                offset = int(reply.ext["offset"]) if reply.code == 0 else 0
                while (reply := bench.ask(pull(offset, queue_id=queue_id))).code == 0:
                    got += texts(reply)
                    offset = int(reply.ext["nextBeginOffset"])
                bench.groups.obtain(GROUP)
                update = UpdateConsumerOffsetRequest(GROUP, "T", queue_id, offset)
                assert bench.ask(request(RequestCode.UPDATE_CONSUMER_OFFSET, update)).code == 0
    assert len(got) == len(set(got))
    assert set(world.acknowledged.values()) <= set(got)
    assert len(got) <= world.sent


def test_c058_expiry_names_the_groups_that_it_hurts(caplog):
    """A group behind the new minimum is named with both offsets; one that is ahead is not."""

    async def run() -> None:
        disk = MemoryDisk()
        async with serving(disk) as bench:
            offsets = bench.broker._offsets
            offsets.commit("behind", "Orders", 0, 3)
            offsets.commit("ahead", "Orders", 0, 12)
            expired = Expired(0, 1000, True, (RaisedMinimum("Orders", 0, 0, 10),))
            bench.broker.store.cleaner.expired(expired)

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    lines = [r.message for r in caplog.records if "loses messages" in r.message]
    assert len(lines) == 1
    assert "group behind" in lines[0]
    assert "offset 3" in lines[0]
    assert "before 10" in lines[0]
    assert "disk is full" in lines[0]


@pytest.mark.parametrize("index", [True, False])
async def test_p32_a_deleted_topic_does_not_come_back_by_a_crash(autojump_clock, index):
    """p32: its records are still in the log, and a careful start must not make queues of them again."""
    store = attrs.evolve(STORE, message_index_enable=index)
    disk = MemoryDisk()
    async with serving(disk, store=store, clean_stop=False) as bench:
        await trio.sleep(15)  # the next sync of everything is far
        bench.create("Gone")
        bench.put(*[b"old %d" % n for n in range(10)], topic="Gone", properties=props(KEYS="k"))
        bench.create("T")
        bench.put(b"stays")
        deleted = await bench.answer(
            request(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "Gone"})
        )
        await trio.sleep(1.1)
    assert deleted.code == ResponseCode.SUCCESS
    async with serving(disk, store=store) as bench:
        assert bench.topics.get("Gone") is None
        assert bench.store.queue("Gone", 0) is None
        assert texts(bench.ask(pull(0))) == [b"stays"]
        bench.create("Gone")
        bench.put(b"new", topic="Gone")
        assert texts(bench.ask(pull(0, "Gone"))) == [b"new"]
