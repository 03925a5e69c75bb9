"""The states of a link: what follows what, and waiting for one."""

import logging
from itertools import product

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_mq.ha.states import TRANSITIONS, LinkState, StateWatch

S = LinkState


def test_the_numbers_are_the_peers():
    """HAConnectionState of Apache RocketMQ, in its order."""
    assert [(state.name, state.value) for state in S] == [
        ("READY", 0),
        ("HANDSHAKE", 1),
        ("TRANSFER", 2),
        ("SUSPEND", 3),
        ("SHUTDOWN", 4),
    ]


@pytest.mark.parametrize(("before", "after"), [p for p in product(S, S) if p[0] is not p[1]])
async def test_the_table_says_what_follows_what(before, after):
    link = StateWatch("a link", before)
    if after in TRANSITIONS[before]:
        link.move(after)
        assert link.state is after
    else:
        with pytest.raises(AssertionError, match=f"a link: {before.name} to {after.name}"):
            link.move(after)
        assert link.state is before


def test_nothing_follows_a_shutdown_and_everything_may_be_shut_down():
    assert not TRANSITIONS[S.SHUTDOWN]
    assert all(S.SHUTDOWN in TRANSITIONS[state] for state in S if state is not S.SHUTDOWN)


async def test_each_change_is_a_line_with_its_reason(autojump_clock, caplog):
    caplog.set_level(logging.INFO)
    link = StateWatch("a link")
    await trio.sleep(3)
    link.move(S.TRANSFER, "from there")
    link.move(S.TRANSFER, "from elsewhere")  # the same state: only the reason is another one
    link.move(S.READY)
    assert [record.getMessage() for record in caplog.records] == [
        "a link: READY to TRANSFER: from there",
        "a link: TRANSFER to READY",
    ]
    assert (link.reason, link.since_s) == ("", 3.0)


async def test_a_state_is_waited_for(autojump_clock):
    link = StateWatch("a link")
    found = {}

    async def wait(state, timeout_s):
        found[state, timeout_s] = (await link.reached(state, timeout_s), trio.current_time())

    async with trio.open_nursery() as nursery:
        for state, timeout_s in [(S.READY, 9), (S.TRANSFER, 9), (S.TRANSFER, 1), (S.SUSPEND, 9)]:
            nursery.start_soon(wait, state, timeout_s)
        await trio.sleep(2)
        link.move(S.TRANSFER)
        await trio.sleep(1)
        link.move(S.READY)
    assert found == {
        (S.READY, 9): (True, 0.0),
        (S.TRANSFER, 1): (False, 1.0),
        (S.TRANSFER, 9): (True, 2.0),
        (S.SUSPEND, 9): (False, 9.0),
    }


async def test_a_link_that_is_shut_down_reaches_nothing_more(autojump_clock):
    link = StateWatch("a link")

    async def stop():
        await trio.sleep(2)
        link.move(S.SHUTDOWN)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop)
        assert not await link.reached(S.TRANSFER, 100)
        assert trio.current_time() == 2
    assert await link.reached(S.SHUTDOWN, 0)


async def test_a_wait_that_is_cancelled_leaves_nothing(autojump_clock):
    link = StateWatch("a link")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.reached, S.TRANSFER, 100)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    link.move(S.TRANSFER)
    assert await link.reached(S.TRANSFER, 0)
