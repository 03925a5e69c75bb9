"""From a command to a processor and back: headers, refusals, faults, one-way requests."""

from __future__ import annotations

import attrs
import pytest

from trio_mq.errors import BodyError, HeaderError, RequestRefused, StoreFull
from trio_mq.net.requests import DEFERRED, Call, Reply, RequestTable
from trio_mq.protocol import command as commands
from trio_mq.protocol.codes import FLAG_ONEWAY, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FRAME_MAX_BYTES, FrameReader
from trio_mq.protocol.headers.offset import GetMaxOffsetReply, GetMaxOffsetRequest
from trio_mq.protocol.message import Host


class Peer:
    """The other end of a connection."""

    address = Host("10.0.0.9", 4_000)

    def __init__(self):
        self.closed = False
        self.written = []

    def write(self, data):
        self.written += [commands.decode(frame) for frame in FrameReader().feed(data)]

    def close(self):
        self.closed = True


def handle(table, code=30, *, flag=0, peer=None, **ext):
    """The replies to a request."""
    peer = peer or Peer()
    table.handle(peer, Command(code, ext, b"body", flag, 7), 1_234)
    return peer.written


def table_of(process, header=GetMaxOffsetRequest):
    table = RequestTable("test server")
    table.add(30, header, process)
    return table


def test_a_processor_gets_a_typed_header_and_its_reply_is_sent():
    seen = []

    def process(call, header):
        seen.append((call.now_ms, call.command.body, header))
        return Reply(header=GetMaxOffsetReply(5), body=b"data", ext={"more": "x"})

    (reply,) = handle(table_of(process), topic="T", queueId="3")
    assert seen == [(1_234, b"body", GetMaxOffsetRequest("T", 3))]
    assert (reply.code, reply.opaque, reply.is_response) == (0, 7, True)
    assert (reply.ext, reply.body) == ({"offset": "5", "more": "x"}, b"data")


def test_without_a_header_type_fields_do_not_matter():
    (reply,) = handle(
        table_of(lambda call, header: Reply(remark=repr(header)), header=None), junk="1"
    )
    assert reply.remark == "None"


@pytest.mark.parametrize("fields", [{}, {"topic": "T"}, {"topic": "T", "queueId": "x"}])
def test_a_field_that_is_missing_or_wrong_is_named(fields):
    (reply,) = handle(table_of(lambda *_: Reply()), **fields)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert ("topic" if not fields else "queueId") in reply.remark


def test_an_unknown_code_is_named():
    (reply,) = handle(table_of(lambda *_: Reply()), code=4711)
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert reply.remark == "request code 4711 is not supported by this test server"


def raising(error):
    def process(*_):
        raise error

    return process


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (RequestRefused(17, "no such topic"), 17, "no such topic"),
        (HeaderError("bad header"), 1, "bad header"),
        (BodyError("bad body"), 1, "bad body"),
        (StoreFull("full"), 1, "StoreFull: full"),
        (KeyError("k"), 1, "KeyError: 'k'"),
        (RecursionError(), 1, "RecursionError: "),
    ],
)
def test_what_goes_wrong_is_an_answer(error, code, remark, caplog):
    (reply,) = handle(table_of(raising(error), header=None))
    assert (reply.code, reply.remark) == (code, remark)
    expected = isinstance(error, (RequestRefused, HeaderError, BodyError))
    assert ("request code 30 from 10.0.0.9:4000 failed" in caplog.text) is not expected


def test_errors_that_the_owner_deals_with_get_out():
    table = table_of(raising(BlockingIOError()), header=None)
    table.passed_on = (BlockingIOError,)
    with pytest.raises(BlockingIOError):
        handle(table)


@pytest.mark.parametrize(
    "process", [lambda *_: Reply(), raising(RequestRefused(17, "x")), raising(KeyError("x"))]
)
def test_one_way_requests_are_processed_and_never_answered(process):
    table = table_of(process)
    assert handle(table, flag=FLAG_ONEWAY, topic="T", queueId="3") == []
    assert handle(table, flag=FLAG_ONEWAY) == []
    assert handle(table, code=4711, flag=FLAG_ONEWAY) == []


def test_a_deferred_reply_comes_later_once_its_peer_is_there():
    calls = []

    def process(call, _header):
        calls.append(call)
        return DEFERRED

    table, peer, gone = table_of(process, header=None), Peer(), Peer()
    assert handle(table, peer=peer) == handle(table, peer=gone) == []
    gone.closed = True
    for call in calls:
        call.respond(Reply(remark="late"))
    assert [reply.remark for reply in peer.written] == ["late"]
    assert gone.written == []


def test_a_reply_that_no_frame_holds_says_so(caplog):
    (reply,) = handle(table_of(lambda *_: Reply(body=b"x" * FRAME_MAX_BYTES), header=None))
    assert (reply.code, reply.body) == (ResponseCode.SYSTEM_ERROR, b"")
    assert str(FRAME_MAX_BYTES) in reply.remark
    assert "request code 30" in caplog.text


def test_a_code_has_one_processor():
    table = table_of(lambda *_: Reply())
    assert table.codes == [30]
    with pytest.raises(AssertionError, match="30"):
        table.add(30, None, lambda *_: Reply())


def test_a_reply_is_a_value():
    call = Call(Peer(), Command(30, {}), 0)
    assert attrs.fields(Call)[0].name == "peer"
    call.respond(Reply())
    assert call.peer.written[0].code == 0
