"""A handler that does what rules say, around one that answers everything."""

from __future__ import annotations

import pytest
import trio

from trio_mq.net.requests import Reply, encode_reply, requests_in
from trio_mq.protocol import command as commands
from trio_mq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader
from trio_mq.testing.faults import Faults, RuleBook
from trio_mq.testing.faulty import FaultyHandler
from trio_mq.testing.links import MemoryPeer


class Answering:
    """Answers each request with its own code in the remark; `late` holds replies back until they are let go."""

    def __init__(self):
        self.seen, self.opened_by, self.gone, self.late = [], [], [], None
        self.stall_after = None

    def opened(self, peer):
        self.opened_by.append(peer)

    def disconnected(self, peer):
        self.gone.append(peer)

    def received(self, peer, frames):
        replies = []
        for command in requests_in(peer, frames):
            if command.code == 666:
                raise RuntimeError("a bug")
            self.seen.append((peer, command.code))
            if not command.is_oneway:
                replies.append(encode_reply(command.opaque, Reply(remark=f"did {command.code}")))
        if self.late is not None:
            self.late += replies
        elif replies:
            peer.write(b"".join(replies))  # as a broker does: all of a receive with one write
        return None


def frame(code, opaque=0, flag=0):
    (one,) = FrameReader().feed(commands.encode(Command(code, opaque=opaque, flag=flag)))
    return one


def told(peer):
    """What a peer was sent: opaque, code, remark."""
    found = [commands.decode(one) for one in FrameReader().feed(b"".join(peer.written))]
    return [(command.opaque, command.code, command.remark) for command in found]


@pytest.fixture
def inner():
    return Answering()


@pytest.fixture
def book():
    return RuleBook()


@pytest.fixture
def faults(book):
    return Faults(book)


@pytest.fixture
def peer():
    return MemoryPeer()


@pytest.fixture
async def handler(inner, book, peer):
    async with trio.open_nursery() as nursery:
        handler = FaultyHandler(inner, book, nursery)
        handler.opened(peer)
        yield handler
        nursery.cancel_scope.cancel()


async def test_without_rules_everything_passes(handler, inner, peer):
    assert handler.received(peer, [frame(10, 1), frame(34, 2)]) is None
    assert told(peer) == [(1, 0, "did 10"), (2, 0, "did 34")]
    handler.disconnected(peer)
    (face,) = inner.opened_by
    assert inner.gone == [face]
    assert {by for by, _ in inner.seen} == {face}  # a broker knows its peers by identity
    assert face.address == peer.address


async def test_an_error_answers_in_place_of_the_handler(handler, inner, faults, peer):
    fault = faults.error(10, code=2, remark="busy")
    handler.received(peer, [frame(34, 1), frame(310, 2), frame(310, 3)])
    assert told(peer) == [(1, 0, "did 34"), (2, 2, "busy"), (3, 0, "did 310")]
    assert [code for _, code in inner.seen] == [34, 310]
    assert fault.hits == 1


async def test_a_one_way_request_is_never_answered(handler, inner, faults, peer):
    faults.error(10)
    handler.received(peer, [frame(10, 1, FLAG_ONEWAY)])
    assert told(peer) == []
    assert inner.seen == []


async def test_a_dropped_reply_leaves_the_others(handler, inner, faults, peer):
    faults.drop_reply(10)
    inner.late = []
    handler.received(peer, [frame(10, 1), frame(10, 2), frame(34, 3)])
    peer_face = inner.opened_by[0]
    peer_face.write(b"".join(inner.late))
    assert told(peer) == [(2, 0, "did 10"), (3, 0, "did 34")]
    assert [code for _, code in inner.seen] == [10, 10, 34]


async def test_requests_of_the_broker_are_no_replies(handler, inner, faults, peer):
    """They count by themselves: one with the same number gets out."""
    faults.drop_reply(10)
    inner.late = []
    handler.received(peer, [frame(10, 1)])
    asked = commands.encode(Command(40, opaque=1))
    inner.opened_by[0].write(asked + inner.late[0])
    assert told(peer) == [(1, 40, None)]


async def test_answers_of_clients_meet_no_rule(handler, inner, faults, peer):
    fault = faults.close(0)
    handler.received(peer, [frame(0, 1, FLAG_RESPONSE)])
    assert fault.hits == 0
    assert not peer.closed


async def test_close_ends_the_connection_and_what_comes_after(handler, inner, faults, peer):
    faults.close(10)
    assert handler.received(peer, [frame(34, 1), frame(10, 2), frame(34, 3)]) == 2
    assert peer.closed
    assert told(peer) == [(1, 0, "did 34")]
    assert [code for _, code in inner.seen] == [34]


async def test_a_delayed_request_is_overtaken(handler, inner, faults, peer, autojump_clock):
    faults.delay(10, 5)
    handler.received(peer, [frame(10, 1), frame(34, 2)])
    await trio.sleep(4.9)
    assert told(peer) == [(2, 0, "did 34")]
    await trio.sleep(0.2)
    assert told(peer) == [(2, 0, "did 34"), (1, 0, "did 10")]


async def test_a_delayed_request_of_a_closed_connection_is_gone(
    handler, inner, faults, peer, autojump_clock
):
    faults.delay(10, 5)
    handler.received(peer, [frame(10, 1)])
    peer.close()
    await trio.sleep(6)
    assert inner.seen == []


async def test_a_bug_in_a_delayed_request_costs_its_connection_only(
    handler, faults, peer, autojump_clock, caplog
):
    faults.delay(666, 1)
    handler.received(peer, [frame(666, 1)])
    await trio.sleep(2)
    assert peer.closed
    assert "a delayed request of" in caplog.text


async def test_a_header_that_does_not_parse_is_left_to_the_handler(handler, faults, peer):
    faults.close(10)
    handler.received(peer, [(0, b"{no json", b"")])
    assert peer.closed
    assert faults.close(10).hits == 0
