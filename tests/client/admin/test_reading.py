"""Reading a topic without being a consumer."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest
import trio

import trio_mq
from tests.client.admin.scripted import (
    B1,
    B2,
    Queue,
    administered,
    no,
    ok,
    record,
    serve_queues,
)
from trio_mq.client.admin.reading import TOOLS_GROUP, Cursor, pull_request
from trio_mq.client.subscription import Sql, parse
from trio_mq.errors import ConfigError
from trio_mq.protocol import headers
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import RequestCode

PULL = RequestCode.PULL_MESSAGE
T0 = 1_700_000_000_000
Q = MessageQueue("T", "b1", 0)
ALL = parse("T", None)


def reply(following: int) -> headers.PullMessageReply:
    return headers.PullMessageReply(0, following, 0, 10)


# -- one queue, pure


@pytest.mark.parametrize(
    ("code", "following", "end", "then"),
    [
        (0, 7, 10, 7),
        (19, 5, 10, 10),  # the end came nearer: nothing more is to be had
        (19, 5, None, 5),
        (20, 8, 10, 8),
        (20, 5, 10, 5),
        (21, 6, 10, 6),  # the messages before were deleted
        (21, 3, 10, 10),
        (21, 3, None, 3),  # the queue was emptied: a reading that follows begins again
    ],
)
def test_where_a_cursor_goes_on(code, following, end, then):
    cursor = Cursor(Q, B1, 5, end)
    assert cursor.take(code, reply(following), [], ALL) == (then != 5)
    assert cursor.next == then
    assert cursor.is_done == (end is not None and then >= end)


def test_a_request_is_answered_at_once_and_commits_nothing():
    made = pull_request(Q, 5, parse("T", Sql("a > 1")), 3)
    assert (made.consumer_group, made.sys_flag, made.commit_offset) == (TOOLS_GROUP, 4, 0)
    assert (made.suspend_timeout_millis, made.max_msg_nums, made.queue_offset) == (0, 3, 5)
    assert (made.subscription, made.expression_type) == ("a > 1", "SQL92")


# -- whole topics


async def bodies_of(reading) -> list[bytes]:
    return [message.body async for message in reading]


async def test_messages_of_all_queues_come_in_the_order_of_their_times():
    async with administered(B1, B2) as (admin, there):
        there.topic("T", 2)
        for at, peer in enumerate(there.brokers.values()):
            serve_queues(
                peer,
                {
                    q: Queue([record(n, b"%d" % (4 * n + 2 * at + q), queue_id=q, at_ms=T0 + 4 * n + 2 * at + q)
                              for n in range(5)])
                    for q in (0, 1)
                },
            )  # fmt: skip
        reading = await admin.read("T")
        assert await bodies_of(reading) == [b"%d" % n for n in range(20)]
        assert reading.failures == ()


async def test_a_part_by_offsets_times_and_queues():
    async with administered(B1) as (admin, there):
        there.topic("T", 2)
        peer = there.brokers[B1]
        queue = Queue([record(n, b"%d" % n, at_ms=T0 + n) for n in range(3, 10)], min_offset=3)
        serve_queues(peer, {0: queue, 1: Queue([])})
        peer.answers[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = lambda asked: ok(
            header=headers.SearchOffsetReply(int(asked.ext["timestamp"]) - T0)
        )
        one = [Q]
        assert await bodies_of(await admin.read("T", begin=4, end=7, queues=one)) == [
            b"4",
            b"5",
            b"6",
        ]
        assert await bodies_of(await admin.read("T", begin=0, end=5, queues=one)) == [b"3", b"4"]
        assert await bodies_of(await admin.read("T", begin=8, end=99, queues=one)) == [b"8", b"9"]
        assert await bodies_of(await admin.read("T", begin="end")) == []
        assert await bodies_of(await admin.read("T", begin={Q: 9})) == [b"9"]
        since, until = (datetime.fromtimestamp((T0 + n) / 1000, UTC) for n in (5, 7))
        found = await bodies_of(await admin.read("T", begin=since, end=until, queues=one))
        assert found == [b"5", b"6"]
        with pytest.raises(ConfigError, match=r"has no MessageQueue.*it has b1:0, b1:1"):
            await admin.read("T", queues=[MessageQueue("T", "b1", 7)])


async def test_only_what_is_wanted():
    """Brokers choose by hashes; the exact text is looked at again."""
    async with administered(B1) as (admin, there):
        there.topic("T")
        serve_queues(
            there.brokers[B1],
            {0: Queue([record(n, b"%d" % n, TAGS="ab"[n % 2]) for n in range(5)])},
        )
        assert await bodies_of(await admin.read("T", wanted="b || c")) == [b"1", b"3"]
        assert there.brokers[B1].requests(PULL)[0].ext["subscription"] == "b || c"


async def test_a_broker_that_fails_is_told_and_hides_nothing(autojump_clock):
    async with administered(B1, B2) as (admin, there):
        there.topic("T")
        for peer, name in zip(there.brokers.values(), "xy", strict=True):
            serve_queues(
                peer, {0: Queue([record(n, b"%s%d" % (name.encode(), n)) for n in range(3)])}
            )
        there.brokers[B2].answers[PULL] = no(1, "broken")
        reading = await admin.read("T")
        assert await bodies_of(reading) == [b"x0", b"x1", b"x2"]
        (failure,) = reading.failures
        assert failure.address == B2
        there.brokers[B2].answers[RequestCode.GET_MAX_OFFSET] = no(1, "broken")
        reading = await admin.read("T")
        assert await bodies_of(reading) == [b"x0", b"x1", b"x2"]
        assert [failure.name for failure in reading.failures] == ["b2"]


async def test_following_waits_for_more(autojump_clock):
    queue = Queue([record(0, b"old")])
    async with administered(B1) as (admin, there):
        there.topic("T")
        serve_queues(there.brokers[B1], {0: queue})
        reading = await admin.read("T", begin="end", follow=True)
        with trio.move_on_after(60) as waited:
            await anext(reading)
        assert waited.cancelled_caught
        asked = len(there.brokers[B1].requests(PULL))
        assert 100 < asked < 200  # two looks a second
        queue.records += [record(1, b"new"), record(2, b"newer"), record(3, b"newest")]
        assert [(await anext(reading)).body for _ in range(3)] == [b"new", b"newer", b"newest"]


async def test_following_goes_on_when_a_broker_is_back(autojump_clock, caplog):
    queue = Queue([record(0, b"old")])
    async with administered(B1) as (admin, there):
        there.topic("T")
        peer = there.brokers[B1]
        serve_queues(peer, {0: queue})
        pull = peer.answers[PULL]
        reading = await admin.read("T", follow=True)
        peer.answers[PULL] = no(14, "starting")
        with caplog.at_level(logging.WARNING, "trio_mq.client"), trio.move_on_after(10):
            await anext(reading)
        assert caplog.text.count("reading goes on without it") == 1
        peer.answers[PULL] = pull
        assert (await anext(reading)).body == b"old"
        assert reading.failures == ()


async def test_a_topic_that_nobody_may_read():
    async with administered(B1) as (admin, there):
        there.topic("T", 0)
        with pytest.raises(trio_mq.NoRoute, match="no queue that can be read"):
            await admin.read("T")
