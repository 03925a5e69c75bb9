"""C019: while a store recovers, clients and administrators are told how far that is."""

from __future__ import annotations

import pytest
import trio

from tests.broker.support import FakePeer, oneway, pull, request, send
from trio_mq.broker.starting import Progress, StartingFace
from trio_mq.protocol import bodies, command
from trio_mq.protocol.bodies import KVTable
from trio_mq.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader


def at(*told: tuple[str, int, int]) -> Progress:
    progress = Progress(0.0)
    for one in told:
        progress.tell(*one)
    return progress


@pytest.mark.parametrize(
    ("told", "percent"),
    [
        ([], None),
        ([("tails", 0, 0)], None),
        ([("log", 1000, 3000)], 0),
        ([("log", 1000, 3000), ("log", 2000, 3000)], 50),
        ([("log", 1000, 3000), ("log", 3000, 3000)], 100),
        ([("log", 1000, 3000), ("log", 3500, 3000)], 100),
        # it has to begin further back
        ([("log", 1000, 3000), ("log", 2000, 3000), ("log", 0, 3000), ("log", 300, 3000)], 10),
        ([("log", 1000, 3000), ("log", 3000, 3000), ("queues", 0, 40), ("queues", 10, 40)], 25),
        ([("log", 1000, 3000), ("settle", 0, 0)], None),
    ],
)
async def test_the_share_is_that_of_what_a_phase_goes_through(told, percent):
    assert at(*told).percent == percent


async def test_the_share_falls_when_the_end_turns_out_to_be_further_on():
    """Without queues the end that is known may be where recovery is, before the log's files were looked at."""
    progress = at(("log", 100, 100), ("log", 200, 200))
    assert progress.percent == 100
    progress.tell("log", 200, 500)
    assert progress.percent == 25
    assert "offset 200 of 500" in progress.text()
    progress.tell("settle", 0, 0)
    assert progress.percent is None


async def test_c019_every_request_hears_how_far_it_is(autojump_clock):
    """C019: a code that clients try again after, and the progress in the remark."""
    progress = Progress()
    progress.tell("log", 0, 400)
    progress.tell("log", 100, 400)
    await trio.sleep(12)
    face, peer = StartingFace(progress), FakePeer()
    asked = [send(), pull(0), request(RequestCode.HEART_BEAT), request(9999), send(long_way=True)]
    assert face.received(peer, asked) is None
    replies = peer.take()
    assert [reply.code for reply in replies] == [ResponseCode.SERVICE_NOT_AVAILABLE] * len(asked)
    assert len({reply.opaque for reply in replies}) == len(asked)
    for reply in replies:
        assert "recovering 25 % (phase log, offset 100 of 400), for 12 s now" in reply.remark


async def test_c019_runtime_information_is_a_table_of_the_progress(autojump_clock):
    face, peer = StartingFace(at(("log", 0, 400), ("log", 200, 400))), FakePeer()
    face.received(peer, [request(RequestCode.GET_BROKER_RUNTIME_INFO)])
    (reply,) = peer.take()
    assert reply.code == ResponseCode.SUCCESS
    table = bodies.decode(KVTable, reply.body).table
    assert table["brokerActive"] == "false"
    assert table["recoveringPercent"] == "50"
    assert table["recovering"].startswith("recovering 50 %")


async def test_who_expects_no_answer_gets_none():
    face, peer = StartingFace(Progress()), FakePeer()
    answer = Command(RequestCode.PULL_MESSAGE, {}, flag=FLAG_RESPONSE)
    frames = FrameReader().feed(command.encode(answer))
    face.received(peer, [oneway(send()), *frames])
    assert peer.take() == []
    assert not peer.closed


async def test_a_header_that_is_none_closes_the_connection(caplog):
    face, peer = StartingFace(Progress()), FakePeer()
    face.received(peer, [(0, b"nonsense", b""), send()])
    assert peer.closed
    assert "closing connection" in caplog.text
