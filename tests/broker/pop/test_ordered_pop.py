"""Ordered pops of a whole broker on a clock that jumps: blocks, attempts, wakes, restarts."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.broker.pop.popping import Consumer
from tests.broker.support import GROUP, STORE, TOPIC, FakePeer, serving
from trio_mq.testing.disk import MemoryDisk

POP_STORE = attrs.evolve(STORE, mapped_file_size_consume_queue=6_000)


@pytest.fixture
async def bench(autojump_clock):
    async with serving(store=POP_STORE) as made:
        made.create(queues=1)
        yield made


def counts(reply) -> list[int]:
    """How often each message was handed out before."""
    entries = dict(entry[2:].rsplit(" ", 1) for entry in reply.ext["orderCountInfo"].split(";"))
    (queue,) = [key for key in entries if not key.startswith("qo")]
    _, _, offsets = reply.ext["msgOffsetInfo"].split(" ")
    return [int(entries.get(f"qo{queue}%{o}", entries[queue])) for o in offsets.split(",")]


def ordered(consumer, count=32, invisible_ms=10_000, **fields):
    """Bodies and counts of an ordered pop that is answered at once."""
    reply = consumer.ask(count, invisible_ms, order=True, **fields)
    taken = consumer.taken(reply)
    return [(one.body, n) for one, n in zip(taken, counts(reply) if taken else (), strict=True)]


async def test_c110_a_lost_answer_is_given_again(autojump_clock, bench):
    """C110: the same attempt id gets the same batch, uncounted, while others of the group ask as well."""
    bench.put(b"0", b"1", b"2")
    consumers = [Consumer(bench) for _ in range(4)]
    mine, *others = consumers
    assert ordered(mine, 2, attempt_id="x") == [(b"0", 0), (b"1", 0)]
    for _ in range(5):  # the answers are lost
        assert [ordered(one, 2, attempt_id=f"y{n}") for n, one in enumerate(others)] == [[]] * 3
        assert ordered(mine, 2, attempt_id="x") == [(b"0", 0), (b"1", 0)]
    await trio.sleep(9)
    assert ordered(mine, 2, attempt_id="x") == [(b"0", 0), (b"1", 0)]
    await trio.sleep(9.9)
    assert ordered(others[0], 2) == [], "the batch is out anew since it was given again"
    await trio.sleep(0.2)
    assert ordered(others[0], 3, attempt_id="z") == [(b"0", 1), (b"1", 1), (b"2", 0)]
    assert ordered(mine, 2, attempt_id="x") == [], "its time is over"


async def test_c110_a_lost_answer_after_an_acknowledgement(autojump_clock, bench):
    """What was acknowledged does not come again with the attempt."""
    bench.put(b"0", b"1", b"2")
    consumer = Consumer(bench)
    first, _ = consumer.pop(2, 10_000, order=True, attempt_id="x")
    assert consumer.ack(first).code == 0
    assert ordered(consumer, 2, attempt_id="x") == [(b"1", 0), (b"2", 0)]


async def test_b098_a_batch_with_a_foreign_message_is_noted_all_the_same(autojump_clock, bench):
    """B098: the answer is 13, and what was handed out is acknowledged."""
    bench.put(b"0", b"1", b"2")
    consumer = Consumer(bench)
    first, second = consumer.pop(2, 10_000, order=True)
    foreign = attrs.evolve(second, receipt=attrs.evolve(second.receipt, queue_offset=2))
    assert consumer.batch_ack([first, foreign, second]).code == 13
    assert ordered(consumer, 2) == [(b"2", 0)]


async def test_b089_an_acknowledgement_wakes_who_waits(autojump_clock, bench):
    """B089."""
    bench.put(b"0", b"1")
    consumer, other = Consumer(bench), Consumer(bench, peer=FakePeer())
    (first,) = consumer.pop(1, 10_000, order=True)
    bench.hand(other.peer, other.frame(1, 10_000, order=True, poll_time=30_000))
    await trio.sleep(1)
    assert other.peer.take() == []
    assert consumer.ack(first).code == 0
    await trio.sleep(0.1)
    assert [one.body for one in other.taken(other.peer.one())] == [b"1"]


async def test_who_waits_hears_when_the_block_is_over(autojump_clock, bench):
    bench.put(b"0")
    consumer, other = Consumer(bench), Consumer(bench, peer=FakePeer())
    assert ordered(consumer, 1, 3_000) == [(b"0", 0)]
    start_s = trio.current_time()
    bench.hand(other.peer, other.frame(1, 3_000, order=True, poll_time=30_000))
    reply = await bench.next(other.peer)
    assert trio.current_time() - start_s == pytest.approx(3.0, abs=0.05)
    assert counts(reply) == [1]


async def test_one_queue_that_is_blocked_leaves_the_others_free(autojump_clock, bench):
    bench.create("U", 3)
    for number in range(3):
        bench.put(b"%d" % number, topic="U", queue_id=number)
    consumer = Consumer(bench, topic="U")
    bodies = [consumer.pop(1, 10_000, order=True)[0].body for _ in range(3)]
    assert sorted(bodies) == [b"0", b"1", b"2"]
    assert consumer.pop(1, 10_000, order=True) == []


async def test_ordered_pops_leave_the_retry_topic_alone(autojump_clock, bench):
    retry = f"%RETRY%{GROUP}_{TOPIC}"
    bench.create(retry, 1)
    bench.put(b"again", topic=retry)
    assert ordered(Consumer(bench)) == []


async def test_what_is_out_survives_a_restart(autojump_clock):
    disk = MemoryDisk()
    async with serving(disk, store=POP_STORE) as bench:
        bench.create(queues=1)
        bench.put(b"0", b"1")
        consumer = Consumer(bench)
        first, _ = consumer.pop(2, 60_000, order=True, attempt_id="x")
        assert consumer.ack(first).code == 0
        clock = bench.clock
    async with serving(disk, store=POP_STORE, clock=clock) as bench:
        consumer = Consumer(bench)
        assert ordered(consumer, 2) == []
        assert ordered(consumer, 2, attempt_id="x", invisible_ms=60_000) == [(b"1", 0)]
        other = Consumer(bench, peer=FakePeer())
        bench.hand(other.peer, other.frame(2, 3_000, order=True, poll_time=300_000))
        await trio.sleep(59)
        assert other.peer.take() == []
        await trio.sleep(2)
        assert counts(other.peer.one()) == [1]


async def test_after_a_crash_it_is_given_again_and_none_is_lost(autojump_clock):
    """What was out and when is saved every ten seconds; the group's offset is at the first that is not done."""
    disk = MemoryDisk()
    async with serving(disk, store=POP_STORE, clean_stop=False) as bench:
        bench.create(queues=1)
        bench.put(b"0", b"1", b"2")
        consumer = Consumer(bench)
        first, *_ = consumer.pop(3, 60_000, order=True)
        assert consumer.ack(first).code == 0
        clock = bench.clock
        await trio.sleep(6)  # offsets are saved
    async with serving(disk, store=POP_STORE, clock=clock) as bench:
        assert ordered(Consumer(bench), 3) == [(b"1", 0), (b"2", 0)]
