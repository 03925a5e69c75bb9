"""Calls from the broker to clients: answers, time-outs, closed connections, limits."""

from __future__ import annotations

from functools import partial

import attrs
import pytest
import trio

from tests.broker.support import FakePeer
from trio_mq.broker import clientcalls
from trio_mq.broker.clientcalls import ClientCalls, Unanswered
from trio_mq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers.heartbeat import NotifyConsumerIdsChangedRequest

CODE = 307


@pytest.fixture
async def calls(nursery):
    calls = ClientCalls()
    await nursery.start(calls.run)
    return calls


def ask(calls: ClientCalls, peer: FakePeer, **more) -> list[Command | Unanswered]:
    """Make a call; the list gets what is heard."""
    heard: list[Command | Unanswered] = []
    calls.call(peer, CODE, {"a": "b"}, b"body", heard.append, **more)
    return heard


def reply(request: Command, body: bytes = b"yes") -> Command:
    return Command(0, body=body, flag=FLAG_RESPONSE, opaque=request.opaque)


async def test_a_response_belongs_to_the_call_with_its_number(autojump_clock, calls):
    peer = FakePeer()
    first, second = ask(calls, peer), ask(calls, peer)
    one, two = peer.take()
    assert (one.code, one.ext, one.body, one.flag) == (CODE, {"a": "b"}, b"body", 0)
    assert one.opaque != two.opaque
    calls.answered(peer, reply(two, b"second"))
    assert first == []
    assert [heard.body for heard in second] == [b"second"]
    calls.answered(peer, reply(one))
    assert [heard.body for heard in first] == [b"yes"]
    assert len(calls) == 0


async def test_only_the_right_connection_is_heard_and_only_once(autojump_clock, calls):
    peer, other = FakePeer(), FakePeer()
    heard = ask(calls, peer)
    request = peer.one()
    calls.answered(other, reply(request, b"not asked"))
    assert heard == []
    calls.answered(peer, reply(request))
    calls.answered(peer, reply(request, b"again"))
    assert [h.body for h in heard] == [b"yes"]


async def test_a_client_that_does_not_answer(autojump_clock, calls):
    peer = FakePeer()
    heard, long = ask(calls, peer), ask(calls, peer, timeout_s=60)
    await trio.sleep(9.9)
    assert heard == []
    await trio.sleep(0.3)
    assert (heard, long) == ([Unanswered.TIMEOUT], [])
    calls.answered(peer, reply(peer.take()[0]))
    assert heard == [Unanswered.TIMEOUT]
    await trio.sleep(51)
    assert long == [Unanswered.TIMEOUT]
    assert len(calls) == 0


async def test_a_closed_connection_ends_its_calls_only(autojump_clock, calls):
    peer, other = FakePeer(), FakePeer()
    heard, others = [ask(calls, peer) for _ in range(3)], ask(calls, other)
    calls.dropped(peer)
    assert heard == [[Unanswered.GONE]] * 3
    assert others == []
    assert len(calls) == 1
    other.close()
    assert ask(calls, other) == [Unanswered.GONE]


async def test_the_number_of_calls_is_limited(autojump_clock, calls, monkeypatch):
    monkeypatch.setattr(clientcalls, "MAX_CALLS", 5)
    monkeypatch.setattr(clientcalls, "MAX_CALLS_OF_PEER", 3)
    peers = [FakePeer() for _ in range(3)]
    outcomes = [[ask(calls, peer) for _ in range(4)] for peer in peers]
    assert outcomes[0] == [[], [], [], [Unanswered.TOO_MANY]]
    assert outcomes[1] == [[], [], [Unanswered.TOO_MANY], [Unanswered.TOO_MANY]]
    assert len(peers[1].take()) == 2
    assert len(calls) == 5
    calls.dropped(peers[0])
    assert ask(calls, peers[2]) == []


async def test_answered_calls_do_not_pile_up(autojump_clock, calls, monkeypatch):
    monkeypatch.setattr(clientcalls, "MAX_CALLS_OF_PEER", 10)
    peer = FakePeer()
    for _ in range(1000):
        heard = ask(calls, peer)
        calls.answered(peer, reply(peer.one()))
        assert len(heard) == 1
    assert len(calls._deadlines) <= 11


async def test_a_listener_that_fails_hurts_nobody(autojump_clock, calls, caplog):
    peer = FakePeer()

    def fail(_outcome: object) -> None:
        raise ValueError("a bad answer")

    calls.call(peer, CODE, {}, b"", fail)
    calls.answered(peer, reply(peer.one()))
    assert "could not be used" in caplog.text
    caplog.clear()
    heard = ask(calls, peer)
    calls.answered(peer, reply(peer.one()))
    assert len(heard) == 1


async def test_one_way_requests_wait_for_nothing(autojump_clock, calls):
    peer = FakePeer()
    tell = partial(calls.tell, peer, 40, NotifyConsumerIdsChangedRequest("G"))
    tell()
    told = peer.one()
    assert (told.code, told.flag, told.ext) == (40, FLAG_ONEWAY, {"consumerGroup": "G"})
    calls.answered(peer, attrs.evolve(told, flag=FLAG_RESPONSE))
    assert len(calls) == 0
    peer.close()
    tell()
    assert peer.take() == []
