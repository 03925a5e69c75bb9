"""NOTIFICATION and POLLING_INFO: true at once or later, false in the end; who waits, and the refusals."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.broker.support import BROKER, GROUP, STORE, TOPIC, FakePeer, request, serving
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.headers.pop import (
    NotificationRequest,
    PollingInfoRequest,
    PopMessageRequest,
)

POP_STORE = attrs.evolve(STORE, mapped_file_size_consume_queue=6_000)


@pytest.fixture
async def bench(autojump_clock):
    async with serving(store=POP_STORE) as made:
        made.create()
        yield made


def notification(bench, *, queue_id=-1, poll_ms=500, order=False, attempt=None, **names):
    header = NotificationRequest(
        names.get("group", GROUP),
        names.get("topic", TOPIC),
        queue_id,
        poll_ms,
        bench.clock.now_ms(),
        order,
        attempt,
    )
    return request(RequestCode.NOTIFICATION, header)


def pop(bench, *, poll_ms=0, queue_id=-1, order=False, attempt=None, count=32):
    header = PopMessageRequest(
        GROUP,
        TOPIC,
        queue_id,
        count,
        10_000,
        poll_ms,
        bench.clock.now_ms(),
        0,
        order=order,
        attempt_id=attempt,
    )
    return request(RequestCode.POP_MESSAGE, header)


def waiting(bench, *, queue_id=-1, group=GROUP):
    reply = bench.ask(request(RequestCode.POLLING_INFO, PollingInfoRequest(group, TOPIC, queue_id)))
    assert reply.code == 0
    return int(reply.ext["pollingNum"])


def held(bench, frame):
    peer = FakePeer()
    bench.hand(peer, frame)
    assert peer.take() == []
    return peer


def has_msg(reply):
    assert reply.code == 0, reply.remark
    assert reply.ext["pollingFull"] == "false"
    return reply.ext["hasMsg"] == "true"


async def test_b084_one_message_answers_one_notification(autojump_clock, bench):
    """B084."""
    first, second = held(bench, notification(bench)), held(bench, notification(bench))
    bench.put(b"x")
    await trio.sleep(0.1)
    answers = [(peer, peer.take()) for peer in (first, second)]
    ((reply,),) = [found for _, found in answers if found]
    assert has_msg(reply)
    (still,) = [peer for peer, found in answers if not found]
    assert bench.ask(pop(bench)).code == 0
    await trio.sleep(0.25)
    assert still.take() == []
    await trio.sleep(0.15)
    assert not has_msg(still.one())


async def test_what_is_there_is_told_at_once(autojump_clock, bench):
    bench.put(b"x", queue_id=2)
    assert has_msg(bench.ask(notification(bench)))
    assert has_msg(bench.ask(notification(bench, queue_id=2)))
    held(bench, notification(bench, queue_id=1))
    assert bench.ask(pop(bench)).code == 0
    held(bench, notification(bench))


async def test_nothing_is_told_at_once_without_a_poll_time(autojump_clock, bench):
    assert not has_msg(bench.ask(notification(bench, poll_ms=0)))


async def test_the_retry_topic_counts(autojump_clock, bench):
    peer = held(bench, notification(bench))
    retry = f"%RETRY%{GROUP}_{TOPIC}"
    bench.create(retry, 1)
    bench.put(b"again", topic=retry)
    await trio.sleep(0.1)
    assert has_msg(peer.one())
    assert has_msg(bench.ask(notification(bench)))
    held(bench, notification(bench, order=True))


async def test_b095_b096_ordered_notifications_know_their_own_attempt(autojump_clock, bench):
    """B095, B096: a queue that is blocked for others has something for who repeats the attempt."""
    first = held(bench, notification(bench, order=True, attempt="x"))
    second = held(bench, notification(bench, order=True, attempt="x"))
    bench.put(b"x")
    await trio.sleep(0.1)
    answered = [peer for peer in (first, second) if has_one(peer)]
    assert len(answered) == 1
    assert bench.ask(pop(bench, order=True, attempt="x")).code == 0
    other = held(bench, notification(bench, order=True, attempt="y"))
    assert has_msg(bench.ask(notification(bench, order=True, attempt="x")))
    await trio.sleep(0.6)
    (late,) = [peer for peer in (first, second) if peer not in answered]
    assert has_msg(late.one())
    assert not has_msg(other.one())


def has_one(peer):
    found = peer.take()
    return bool(found) and has_msg(found[0])


async def test_a_queue_that_is_free_again_answers(autojump_clock, bench):
    bench.put(b"x")
    assert bench.ask(pop(bench, order=True)).code == 0
    peer = held(bench, notification(bench, order=True, poll_ms=60_000))
    await trio.sleep(9.9)
    assert peer.take() == []
    await trio.sleep(0.2)
    assert has_msg(peer.one())


async def test_a_queue_that_is_free_and_empty_answers_nobody(autojump_clock, bench):
    bench.put(b"x")
    assert bench.ask(pop(bench, order=True)).code == 0
    bench.offsets.commit(GROUP, TOPIC, 0, 1)
    peer = held(bench, notification(bench, poll_ms=60_000))
    await trio.sleep(11)
    assert peer.take() == []


async def test_waiting_pops_are_counted_by_key(autojump_clock, bench):
    for queue_id in (-1, -1, 2):
        held(bench, pop(bench, poll_ms=10_000, queue_id=queue_id))
    held(bench, notification(bench))
    assert (waiting(bench), waiting(bench, queue_id=2), waiting(bench, queue_id=1)) == (2, 1, 0)
    assert waiting(bench, group="OTHER") == 0
    bench.put(b"x")
    await trio.sleep(0.1)
    assert waiting(bench) == 1


async def test_too_many_are_told_so(autojump_clock):
    broker = attrs.evolve(BROKER, pop_polling_size=1)
    async with serving(broker=broker, store=POP_STORE) as bench:
        bench.create()
        held(bench, notification(bench))
        held(bench, notification(bench))
        reply = bench.ask(notification(bench))
        assert (reply.code, reply.ext["hasMsg"], reply.ext["pollingFull"]) == (0, "false", "true")


async def test_a_topic_that_goes_is_told(autojump_clock, bench):
    peer = held(bench, notification(bench, poll_ms=60_000))
    bench.topics.delete(TOPIC)
    await trio.sleep(0.1)
    assert peer.one().code == 17


async def test_a_closed_connection_is_forgotten(autojump_clock, bench):
    peer = held(bench, notification(bench))
    bench.face.disconnected(peer)
    assert len(bench.broker.pops.notification_polls) == 0


async def test_the_refusals_are_those_of_the_peers(autojump_clock):
    broker = attrs.evolve(BROKER, auto_create_subscription_group=False)
    async with serving(broker=broker, store=POP_STORE) as bench:
        bench.create("unreadable", perm=2)
        bench.create()
        for code, names in (
            (17, {"topic": "nothing"}),
            (16, {"topic": "unreadable"}),
            (26, {}),
        ):
            reply = bench.ask(notification(bench, **names))
            assert reply.code == code, reply.remark
        assert bench.ask(notification(bench, queue_id=4)).code == 29
        polling = PollingInfoRequest(GROUP, TOPIC, -1)
        assert bench.ask(request(RequestCode.POLLING_INFO, polling)).code == 26


async def test_a_broker_that_may_not_be_read_refuses(autojump_clock):
    async with serving(broker=attrs.evolve(BROKER, broker_permission=2)) as bench:
        bench.create()
        assert bench.ask(notification(bench)).code == 16


async def test_a_group_that_may_not_consume_is_refused(autojump_clock, bench):
    bench.groups.update(attrs.evolve(bench.groups.require(GROUP), consume_enable=False))
    reply = bench.ask(notification(bench))
    assert reply.code == 16
    assert GROUP in reply.remark
