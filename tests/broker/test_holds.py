"""Long polls: who is woken, when, and what becomes of those that nobody waits for any more."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.broker.support import (
    BROKER,
    STORE,
    SUSPEND,
    FakePeer,
    props,
    pull,
    send,
    serving,
    texts,
)
from trio_mq.broker import holds as holding
from trio_mq.broker.filters import EVERYTHING, MessageFilter
from trio_mq.broker.holds import Held, Holds
from trio_mq.config import FlushDiskType
from trio_mq.protocol.message import BatchItem, join_batch
from trio_mq.store.dispatch import Arrival

FOUND, NOT_FOUND, RETRY = 0, 19, 20


@pytest.fixture
async def bench(autojump_clock):
    async with serving() as made:
        made.create()
        yield made


def poll(offset=0, **fields):
    """A pull that waits."""
    return pull(offset, sys_flag=SUSPEND, **fields)


def held(bench, *frames):
    """Peers with a held pull each."""
    peers = [FakePeer() for _ in frames]
    for peer, frame in zip(peers, frames, strict=True):
        bench.hand(peer, frame)
        assert peer.take() == []
    return peers


async def test_an_arrival_wakes_the_pulls_of_its_queue(autojump_clock, bench):
    bench.put(b"old")
    mine, also, other = held(bench, poll(1), poll(1), poll(0, queue_id=1))
    assert len(bench.broker.holds) == 3
    bench.put(b"new")
    for peer in (mine, also):
        reply = peer.one()
        assert (reply.code, texts(reply), reply.ext["nextBeginOffset"]) == (FOUND, [b"new"], "2")
    assert other.take() == []
    assert len(bench.broker.holds) == 1
    bench.put(b"second", queue_id=1)
    assert texts(other.one()) == [b"second"]
    assert len(bench.broker.holds) == 0


async def test_a_pull_on_a_queue_that_does_not_exist_yet_is_woken_by_its_first_message(
    autojump_clock, bench
):
    assert bench.store.queue("T", 3) is None
    (peer,) = held(bench, poll(0, queue_id=3))
    bench.put(b"first", queue_id=3)
    assert texts(peer.one()) == [b"first"]


async def test_c098_a_message_that_arrives_while_a_pull_is_parked(autojump_clock, bench):
    """1000 rounds of a pull and a send at the same moment, in either order: nobody waits."""
    consumer, producer = FakePeer(), FakePeer()
    for number in range(1000):
        frames = [(consumer, poll(number)), (producer, send(body=b"%d" % number))]
        for peer, frame in frames if number % 2 else reversed(frames):
            bench.hand(peer, frame)
        assert texts(consumer.one()) == [b"%d" % number]
    assert len(producer.take()) == 1000
    assert trio.current_time() < 0.1


async def test_only_a_matching_tag_wakes(autojump_clock, bench):
    mine, everything = held(bench, poll(subscription="A || B"), poll())
    bench.put(b"c", tags="C")
    assert mine.take() == []
    assert texts(everything.one()) == [b"c"]
    bench.put(b"b", tags="B")
    reply = mine.one()
    assert (texts(reply), reply.ext["nextBeginOffset"]) == ([b"b"], "2")


async def test_one_matching_message_of_many_wakes_once(autojump_clock, bench):
    (mine,) = held(bench, poll(subscription="A"))
    peer = FakePeer()
    bench.hand(peer, *(send(body=tag.encode(), properties=props(TAGS=tag)) for tag in "CCACA"))
    assert texts(mine.one()) == [b"A", b"A"]


async def test_the_periodic_look_moves_a_pull_past_what_did_not_match(autojump_clock, bench):
    (mine,) = held(bench, poll(subscription="A", suspend_timeout_millis=60_000))
    bench.put(*(b"c" for _ in range(10)), tags="C")
    began = trio.current_time()
    reply = await bench.next(mine)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (RETRY, "10")
    assert trio.current_time() - began <= 5.2
    bench.hand(mine, poll(10, subscription="A", suspend_timeout_millis=60_000))
    await trio.sleep(30)
    assert mine.take() == []  # nothing new: it still waits
    bench.put(b"a", tags="A")
    assert texts(mine.one()) == [b"a"]


@pytest.mark.parametrize("timeout_ms", [100, 1_000, 15_000, 20_000])
async def test_the_time_that_the_client_allows(autojump_clock, bench, timeout_ms):
    began = trio.current_time()
    (peer,) = held(bench, poll(0, suspend_timeout_millis=timeout_ms))
    reply = await bench.next(peer)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (NOT_FOUND, "0")
    assert timeout_ms / 1000 <= trio.current_time() - began <= timeout_ms / 1000 + 0.25
    assert len(bench.broker.holds) == 0


@pytest.mark.parametrize("timeout_ms", [0, -5, -(2**63)])
async def test_no_time_at_all(autojump_clock, bench, timeout_ms):
    (peer,) = held(bench, poll(0, suspend_timeout_millis=timeout_ms))
    assert (await bench.next(peer)).code == NOT_FOUND
    assert trio.current_time() < 0.25


async def test_a_very_long_time_is_no_accident(autojump_clock, bench):
    (peer,) = held(bench, poll(0, suspend_timeout_millis=2**63 - 1))
    await trio.sleep(200)
    assert peer.take() == []
    bench.put(b"at last")
    assert texts(peer.one()) == [b"at last"]


async def test_short_polling(autojump_clock):
    settings = attrs.evolve(BROKER, long_polling_enable=False, short_polling_time_ms=500)
    async with serving(broker=settings) as bench:
        bench.create()
        (peer,) = held(bench, poll(0, suspend_timeout_millis=15_000))
        assert (await bench.next(peer)).code == NOT_FOUND
        assert 0.5 <= trio.current_time() <= 0.75


async def test_a_pull_behind_the_end_or_before_the_start_does_not_wait(autojump_clock, bench):
    bench.put(b"a")
    assert [bench.ask(poll(n)).code for n in (2, -1)] == [21, 21]
    assert len(bench.broker.holds) == 0


async def test_inner_batches_wake_too(autojump_clock, bench):
    bench.create("B", queue_type="BatchCQ")
    (peer,) = held(bench, poll(0, topic="B"))
    body = join_batch([BatchItem(0, b"1", b""), BatchItem(0, b"2", b"")])
    bench.put(body, topic="B", batch=True, code=320, properties=props(UNIQ_KEY="U"))
    assert peer.one().ext["nextBeginOffset"] == "2"


async def test_what_is_not_durable_yet_wakes_nobody(autojump_clock):
    store = attrs.evolve(STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    async with serving(store=store) as bench:
        bench.create()
        (peer,) = held(bench, poll())
        bench.disk.run_delay_s = 0.3
        producer = FakePeer()
        bench.hand(producer, send(body=b"m"))
        await trio.sleep(0.2)
        assert (peer.take(), producer.take()) == ([], [])
        assert bench.ask(pull()).code == NOT_FOUND
        await trio.sleep(0.2)
        assert texts(peer.one()) == [b"m"]
        assert producer.one().code == 0


# -- connections that close


async def test_a_closed_connection_leaves_no_pulls_behind(autojump_clock, bench):
    gone, stays = held(bench, poll(), poll())
    bench.hand(gone, poll(0, queue_id=1), poll(0, queue_id=2))
    assert len(bench.broker.holds) == 4
    gone.close()
    bench.face.disconnected(gone)
    assert len(bench.broker.holds) == 1
    bench.put(b"a")
    bench.put(b"a", queue_id=1)
    assert gone.take() == []
    assert texts(stays.one()) == [b"a"]
    assert not bench.store.queue("T", 1).watched


async def test_a_peer_that_closed_a_moment_ago_is_passed_over(autojump_clock, bench):
    gone, stays = held(bench, poll(), poll())
    gone.close()
    bench.put(b"a")
    assert (gone.take(), texts(stays.one())) == ([], [b"a"])


async def test_c163_5000_waiting_pulls_end_quickly(autojump_clock):
    async with serving() as bench:
        bench.create("Wide", queues=50)
        peers = [FakePeer() for _ in range(500)]
        for number, peer in enumerate(peers):
            bench.hand(
                peer, *(poll(0, topic="Wide", queue_id=(number + n) % 50) for n in range(10))
            )
        assert len(bench.broker.holds) == 5000
        await trio.sleep(1)
        stopped_at = trio.current_time()
    assert trio.current_time() - stopped_at < 0.5
    assert all(peer.take() == [] for peer in peers)
    assert not bench.disk.exists("/store/abort")


async def test_5000_connections_that_close_one_by_one(autojump_clock, bench):
    peers = held(bench, *(poll() for _ in range(5000)))
    for peer in peers:
        bench.face.disconnected(peer)
    assert len(bench.broker.holds) == 0


# -- the table itself


@attrs.define(eq=False)
class Queue:
    """A queue as far as holds know it."""

    max_offset: int = 0
    watched: int = 0


def arrival(queue, tags_code=0):
    return Arrival(queue, tags_code, b"", 0)


def hold(holds, queue, peer=None, deadline_s=10.0, codes=None):
    answered = []
    one = Held(peer or FakePeer(), queue, 0, MessageFilter(codes), lambda: answered.append(one))
    assert holds.hold(one, deadline_s)
    return answered


def test_pulls_that_are_over_are_answered_once_in_the_order_of_their_deadlines():
    holds, queue, log = Holds(5.0), Queue(), []
    for number, deadline in enumerate([3.0, 1.0, 2.0, 1.0]):
        one = Held(FakePeer(), queue, 0, EVERYTHING, lambda number=number: log.append(number))
        holds.hold(one, deadline)
    holds.expire(0.9)
    assert log == []
    holds.expire(1.0)
    assert log == [1, 3]
    holds.arrived([arrival(queue), arrival(queue)])
    holds.expire(99)
    assert log == [1, 3, 0, 2]
    assert (len(holds), queue.watched) == (0, 0)


def test_thousands_of_short_holds_leave_nothing_behind():
    """A consumer at the end of a busy queue is held and woken for each message."""
    holds, queue, peer = Holds(5.0), Queue(), FakePeer()
    for _ in range(20_000):
        hold(holds, queue, peer)
        holds.arrived([arrival(queue)])
    assert len(holds) == 0
    assert len(holds._deadlines) <= 2 * holding.SPARE_DEADLINES
    assert not holds._by_queue
    assert not holds._by_peer


def test_too_many_are_not_held(monkeypatch):
    monkeypatch.setattr(holding, "MAX_HELD", 2)
    holds, queue = Holds(5.0), Queue()
    hold(holds, queue)
    hold(holds, queue)
    assert not holds.hold(Held(FakePeer(), queue, 0, EVERYTHING, lambda: None), 1.0)
    holds.arrived([arrival(queue)])
    hold(holds, queue)


async def test_a_pull_that_is_one_too_many_is_answered_at_once(autojump_clock, bench, monkeypatch):
    monkeypatch.setattr(holding, "MAX_HELD", 1)
    held(bench, poll())
    assert bench.ask(poll()).code == NOT_FOUND


def test_a_look_again_answers_only_where_something_moved():
    holds, moved, still = Holds(5.0), Queue(), Queue()
    first, second = hold(holds, moved, codes=frozenset({1})), hold(holds, still)
    moved.max_offset = 1
    holds.look_again()
    assert (len(first), len(second), len(holds)) == (1, 0, 1)


def test_an_answer_may_close_its_peer_and_ask_for_more():
    holds, queue, peer = Holds(5.0), Queue(), FakePeer()

    def answer():
        holds.drop(peer)
        hold(holds, queue)

    holds.hold(Held(peer, queue, 0, EVERYTHING, answer), 1.0)
    holds.hold(Held(peer, queue, 0, EVERYTHING, answer), 1.0)
    holds.arrived([arrival(queue, 5)])
    assert len(holds) == 2
