"""Whose turn it is to be popped."""

from __future__ import annotations

import attrs

from trio_mq.client.inbox import Asking, Inbox, Source, Turn


@attrs.define(eq=False)
class Kept:
    """As much of a popped message as the inbox looks at."""

    topic: str
    expires_s: float
    receipt: object = None


@attrs.frozen
class Times:
    invisible_ms: int


def inbox_with(*broker_names):
    inbox = Inbox()
    for name in broker_names:
        inbox.sources["T", name] = Source("T", name)
    return inbox, list(inbox.sources.values())


async def test_all_are_asked_to_wait_when_nobody_is_known_to_have_any():
    inbox, (a, b) = inbox_with("a", "b")
    assert inbox.turn(a, 0.0) is None
    inbox.want(8, 30.0, until_s=15.0)
    assert inbox.turn(a, 1.0) == inbox.turn(b, 1.0) == Turn(8, 30.0, 14.0, 1)


async def test_one_that_had_more_is_asked_alone():
    inbox, (a, b, c) = inbox_with("a", "b", "c")
    inbox.want(40, 30.0, until_s=15.0)
    a.has_more = b.has_more = True
    assert inbox.turn(a, 0.0) == Turn(32, 30.0, 0.0, 1)
    assert inbox.turn(c, 0.0) is None
    a.asking = Asking.STOCK
    assert inbox.turn(b, 0.0) is None
    a.asking, a.has_more = Asking.NOTHING, False
    assert inbox.turn(b, 0.0) == Turn(32, 30.0, 0.0, 1)


async def test_nobody_is_asked_while_there_are_messages():
    inbox, (a,) = inbox_with("a")
    inbox.want(8, 30.0, until_s=15.0)
    inbox.add([Kept("T", 60.0)])
    assert inbox.turn(a, 0.0) is None
    assert len(inbox.take(8, 0.0)) == 1
    assert inbox.turn(a, 0.0) is not None


async def test_a_receive_that_does_not_wait_asks_everybody_once():
    inbox, (a, b) = inbox_with("a", "b")
    want = inbox.want(8, 30.0, until_s=0.0)
    assert inbox.turn(a, 0.0) == Turn(8, 30.0, 0.0, 1)
    a.asked_for = want.number
    assert inbox.turn(a, 0.0) is None
    assert not inbox.is_answered(want)
    b.asking = Asking.FAILED
    assert inbox.is_answered(want)


async def test_the_end_of_a_wait_is_no_reason_to_ask_again():
    inbox, (a,) = inbox_with("a")
    inbox.want(8, 30.0, until_s=15.0)
    a.asked_for = 1
    assert inbox.turn(a, 14.0) == Turn(8, 30.0, 1.0, 1)
    assert inbox.turn(a, 14.95) is None


async def test_a_source_that_is_gone_is_not_asked():
    inbox, (a,) = inbox_with("a")
    inbox.want(8, 30.0, until_s=15.0)
    del inbox.sources["T", "a"]
    assert inbox.turn(a, 0.0) is None


async def test_messages_that_are_not_ours_any_more_are_not_handed_out():
    inbox, _ = inbox_with("a")
    inbox.add([Kept("T", 5.0), Kept("T", 9.0), Kept("U", 9.0)])
    assert [message.expires_s for message in inbox.take(8, 6.0)] == [9.0, 9.0]


async def test_messages_are_old_after_half_of_their_time():
    inbox, _ = inbox_with("a")
    young, old = Kept("T", 60.0, Times(60_000)), Kept("T", 29.0, Times(60_000))
    inbox.add([young, old])
    assert inbox.take_old(0.0) == [old]
    inbox.put_back([old])
    assert inbox.take_topic("T") == [old, young]
    assert not inbox.messages
