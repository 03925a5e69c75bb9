"""The remoting face: what is answered, when, and what stays silent."""

from __future__ import annotations

import errno
import json
import logging

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.support import (
    GROUP,
    STORE,
    SUSPEND,
    FakePeer,
    java,
    messages,
    oneway,
    props,
    pull,
    raw,
    request,
    send,
    serving,
    texts,
)
from trio_mq.broker import cold
from trio_mq.config import FlushDiskType
from trio_mq.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode, SerializeType
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers.offset import GetMaxOffsetRequest, SearchOffsetRequest
from trio_mq.protocol.headers.query import QueryMessageRequest
from trio_mq.protocol.message import BatchItem, join_batch
from trio_mq.testing.disk import MemoryDisk

SYNC = attrs.evolve(STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
OK = ResponseCode.SUCCESS


@pytest.fixture
async def bench(autojump_clock):
    async with serving() as made:
        made.create()
        yield made


def codes(peer):
    return [reply.code for reply in peer.take()]


# -- every request has one answer, and one-way requests have none


async def test_unknown_codes_are_named(autojump_clock, bench):
    """Codes that are not served, and codes that nobody knows."""
    for code in (301, 1014, 200_071, 9_999, -1):
        reply = bench.ask(request(code))
        assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert str(code) in reply.remark
        assert reply.is_response


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (java(310, {"b": "T"}, b"x", 0, 1), "producer_group"),
        (java(10, {"topic": "T"}, b"x", 0, 1), "producerGroup"),
        (java(11, {"topic": "T"}, b"", 0, 1), "consumerGroup"),
        (java(11, {"consumerGroup": "CG", "topic": "T", "queueId": "x"}, b"", 0, 1), "queueId"),
        (java(30, {"topic": "T"}, b"", 0, 1), "queueId"),
        (java(320, {}, b"", 0, 1), "a"),
    ],
)
async def test_a_missing_or_bad_field_is_named_and_the_connection_stays(
    autojump_clock, bench, frame, field
):
    peer = FakePeer()
    reply = bench.ask(frame, peer)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert field in reply.remark or field[0] in reply.remark
    assert not peer.closed
    assert bench.ask(send(), peer).code == OK


async def test_one_way_requests_are_never_answered(autojump_clock, bench):
    """Successes, refusals, unknown codes, bad fields, broken bodies: all the same silence."""
    bench.put(b"a")
    peer = FakePeer()
    frames = [
        send(body=b"stored"),
        send(body=b""),
        send("no such name!"),
        send(queue_id=99),
        send(properties=props(DELAY="3")),
        send(long_way=True, queue_id=99),
        java(310, {"b": "T"}, b"x", 0, 1),
        pull(),
        pull(1, sys_flag=SUSPEND),
        pull("Unknown"),
        request(9_999),
        request(RequestCode.HEART_BEAT, body=b"{"),
        request(RequestCode.GET_MAX_OFFSET),
        request(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest("T", 0)),
    ]
    for frame in frames:
        bench.hand(peer, oneway(frame))
    bench.hand(peer, *map(oneway, frames))
    await trio.sleep(20)
    assert peer.take() == []
    assert not peer.closed
    taken = [b"a", b"stored", b"hello", b"stored", b"hello"]
    # Those with a delay were taken, too, and are delivered by now.
    assert [m.body for m in bench.stored()] == [*taken, b"hello", b"hello"]


async def test_one_way_requests_that_need_the_disk_are_not_answered_either(
    autojump_clock, bench, monkeypatch
):
    monkeypatch.setattr(cold, "COLD_REQUESTS", 0)
    bench.put(b"a")
    bench.disk.cold = True
    peer = FakePeer()
    bench.hand(peer, oneway(request(RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": "0"})))
    assert peer.take() == []


async def test_answers_to_questions_that_we_never_asked_are_ignored(autojump_clock, bench):
    """Response codes look like request codes: 10, 11 and 12 are both."""
    peer = FakePeer()
    for frame in (
        send(code=10, flag=FLAG_RESPONSE),
        send(flag=FLAG_RESPONSE),
        send(flag=FLAG_RESPONSE | 2),
        pull(flag=FLAG_RESPONSE, sys_flag=SUSPEND),
        send(flag=FLAG_RESPONSE, long_way=True),
        request(0, flag=FLAG_RESPONSE),
        request(9_999, flag=FLAG_RESPONSE),
        request(RequestCode.HEART_BEAT, flag=FLAG_RESPONSE, body=b"x"),
    ):
        bench.hand(peer, frame)
    assert (peer.take(), peer.closed, bench.stored(), len(bench.broker.holds)) == ([], False, [], 0)


async def test_answers_carry_the_number_of_their_question(autojump_clock, bench):
    peer = FakePeer()
    numbers = [0, 5, 2**31 - 1, -(2**31), 5]
    bench.hand(peer, *(send(opaque=n) for n in numbers))
    assert [reply.opaque for reply in peer.take()] == numbers
    for number in numbers:
        assert bench.ask(pull(opaque=number)).opaque == number
        assert bench.ask(request(9_999, opaque=number)).opaque == number


async def test_both_kinds_of_headers_are_answered_in_json(autojump_clock, bench):
    for serialize in SerializeType:
        value = Command(
            RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}, serialize=serialize
        )
        reply = bench.ask(raw(value))
        assert (reply.code, reply.serialize) == (OK, SerializeType.JSON)


# -- headers that cannot be read


@pytest.mark.parametrize(
    "frame",
    [
        (0, b"", b""),
        (0, b"{", b""),
        (0, b'{"code":310,"extFields":{', b""),
        (0, b'{"code":310,"extFields":[1]}', b""),
        (0, b"\xff\xfe", b""),
        (0, b"[" * 100_000, b""),
        (0, b'{"code":310,' + b'"a":{' * 100_000, b""),
        (1, b"\0" * 20, b""),
        (1, b"\xff" * 21, b""),
    ],
)
async def test_a_header_that_does_not_parse_ends_that_connection_only(
    autojump_clock, bench, frame, caplog
):
    peer, other = FakePeer(), FakePeer()
    bench.hand(peer, frame)
    assert peer.closed
    assert str(peer.address) in caplog.text
    assert bench.ask(send(), other).code == OK


async def test_what_came_before_a_broken_header_is_done_and_what_comes_behind_not(
    autojump_clock, bench
):
    class Recorder(FakePeer):
        def close(self):
            self.at_close = codes(self)
            super().close()

    peer = Recorder()
    bench.hand(peer, send(body=b"1"), send(body=b"2"), (0, b"{", b""), send(body=b"3"))
    assert peer.at_close == [OK, OK]
    assert [m.body for m in bench.stored()] == [b"1", b"2"]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([0, 1]), st.binary(max_size=300), st.binary(max_size=50))
def test_any_bytes_end_in_an_answer_silence_or_a_closed_connection(kind, header, body):
    async def main():
        async with serving() as bench:
            peer = FakePeer()
            bench.hand(peer, (kind, header, body))
            assert all(reply.is_response for reply in peer.take())
            assert (
                bench.ask(request(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest("T", 0))).code
                == OK
            )

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


NAMES = [*"abcdefghijklmn", "topic", "queueId", "consumerGroup", "queueOffset", "properties"]
VALUES = st.one_of(
    st.sampled_from(
        ["T", "0", "1", "-1", "true", "false", "", "*", "TBW102", "99999999999999999999"]
    ),
    st.text(max_size=8),
    st.integers(),
    st.booleans(),
    st.none(),
)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([10, 11, 310, 320, 361, 12, 33, 34, 30, 29]),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=15),
    st.binary(max_size=40),
    st.sampled_from([0, 0, 0, 2, 4]),
)
def test_any_fields_end_in_one_answer_or_a_hold(code, fields, body, flag):
    async def main():
        async with serving() as bench:
            bench.create()
            peer = FakePeer()
            header = {"code": code, "opaque": 7, "flag": flag, "extFields": fields}
            text = json.dumps(header, separators=(",", ":")).encode()
            bench.hand(peer, (0, text, body))
            await trio.sleep(2)
            found = peer.take()
            answered = len(found) + len(bench.broker.holds)
            assert answered == (0 if flag & 2 or peer.closed else 1)
            assert all(reply.opaque == 7 for reply in found)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# -- requests that arrive together


async def test_whoever_looks_finds_what_was_sent_before(autojump_clock, bench):
    peer = FakePeer()
    bench.hand(
        peer,
        send(),
        send(),
        request(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest("T", 0)),
        send(),
    )
    found = peer.take()
    assert [reply.code for reply in found] == [OK] * 4
    assert found[2].ext["offset"] == "2"


async def test_a_topic_deleted_behind_a_send(autojump_clock, bench):
    """The message is written before its queue goes; nothing of the topic is left or comes back."""
    peer = FakePeer()
    delete = request(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})
    bench.hand(peer, send(), delete)
    await trio.sleep(1)
    assert codes(peer) == [OK, OK]
    assert bench.store.queue("T", 0) is None
    assert not bench.disk.exists("/store/consumequeue/T")


async def test_a_fault_of_ours_does_not_hand_answers_to_somebody_else(
    autojump_clock, bench, monkeypatch
):
    peer, other = FakePeer(), FakePeer()
    monkeypatch.setattr(bench.broker.requests, "handle", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        bench.hand(peer, send(opaque=11), request(34), send(opaque=12))
    assert [reply.opaque for reply in peer.take()] == [11]
    bench.hand(other, send(opaque=21))
    assert [reply.opaque for reply in other.take()] == [21]


async def test_a_send_that_fails_for_a_fault_of_ours(autojump_clock, bench, monkeypatch, caplog):
    monkeypatch.setattr(bench.broker.sender, "send", lambda *_: 1 // 0)
    peer = FakePeer()
    bench.hand(peer, send(), oneway(send()))
    (reply,) = peer.take()
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "ZeroDivisionError: integer division or modulo by zero",
    )
    assert caplog.text.count("a send of") == 2


# -- peers that do not take their answers


async def test_a_stalled_peer_gets_nothing_more_and_the_number_of_what_was_handled(
    autojump_clock, bench
):
    bench.put(*(b"x" * 9_000 for _ in range(3)))
    peer = FakePeer(takes_bytes=30_000)
    frames = [pull(), pull(), pull(), pull()]
    assert bench.face.received(peer, frames) == 2
    assert len(peer.take()) == 2
    other = FakePeer()
    assert bench.face.received(other, frames) is None
    assert len(other.take()) == 4


async def test_sends_before_a_stall_are_answered(autojump_clock, bench):
    bench.put(b"x" * 9_000)
    peer = FakePeer(takes_bytes=100)
    assert bench.face.received(peer, [send(opaque=1), pull(opaque=2), send(opaque=3)]) == 2
    assert {reply.opaque for reply in peer.take()} == {1, 2}
    assert len(bench.stored()) == 2


# -- a disk that is full


async def test_a_full_disk_refuses_all_sends_of_a_receive_and_takes_messages_again(
    autojump_clock, bench
):
    """Case C055, C056: code 14 with the path and the way out; nothing of them is stored or visible."""
    bench.put(b"before")
    end, queue = bench.store.log.end, bench.store.queue("T", 0)
    bench.disk.fail_when(lambda op: op.kind == "write" and "commitlog" in op.path, errno.ENOSPC)
    peer, reader = FakePeer(), FakePeer()
    bench.hand(reader, pull(1, sys_flag=SUSPEND))
    batch = join_batch([BatchItem(0, b"b1", b""), BatchItem(0, b"b2", b"")])
    bench.hand(
        peer,
        send(body=b"1", opaque=1),
        send(body=b"2", opaque=1),
        oneway(send(body=b"3")),
        send(body=batch, batch=True, code=320, opaque=2),
        send(queue_id=99, opaque=3),
    )
    replies = peer.take()
    assert sorted((r.opaque, r.code) for r in replies) == [(1, 14), (1, 14), (2, 14), (3, 29)]
    for reply in replies:
        if reply.code == 14:
            assert "/store" in reply.remark
            assert "No space left on device" in reply.remark
            assert "room" in reply.remark
    assert bench.ask(send()).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (bench.store.log.end, queue.next_offset, queue.max_offset) == (end, 1, 1)
    assert reader.take() == []
    bench.disk.heal()
    await trio.sleep(11)  # one period of cleaning
    assert bench.ask(send(body=b"after")).ext["queueOffset"] == "1"
    assert [m.body for m in bench.stored()] == [b"before", b"after"]
    assert texts(reader.one()) == [b"after"]


async def test_a_send_whose_new_topic_cannot_be_saved_is_answered_with_doubt(autojump_clock, bench):
    """Found by the crash sweep: the sender was told of success, and after a crash there was no such topic."""
    bench.disk.fail_when(lambda op: "topics.json" in op.path, errno.ENOSPC)
    reply = await bench.answer(send("Fresh"))
    assert reply.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert "its topic could not be saved" in reply.remark
    assert "topics.json" in reply.remark
    assert reply.ext["queueOffset"] == "0"
    bench.disk.heal()
    await trio.sleep(6)
    assert (await bench.answer(send("Fresh"))).code == ResponseCode.SUCCESS


async def test_a_disk_that_fills_up_where_the_next_segment_begins(autojump_clock, bench):
    """The first messages of the receive are in the segment before; they are stored, the others refused."""
    bench.put(b"x" * 40_000)
    bench.disk.fail_when(lambda op: op.kind == "create" and "commitlog" in op.path, errno.ENOSPC)
    peer = FakePeer()
    bench.hand(peer, *(send(body=b"%d" % n * 20_000, opaque=n) for n in range(3)))
    assert sorted((r.opaque, r.code) for r in peer.take()) == [(0, 0), (1, 14), (2, 14)]
    assert len(bench.stored()) == 2
    bench.disk.heal()
    await trio.sleep(11)
    bench.put(b"after")
    assert [m.queue_offset for m in bench.stored()] == [0, 1, 2]


async def test_a_half_written_receive_is_written_over(autojump_clock):
    """What is acknowledged afterwards survives a crash, and of the failed sends nothing comes back."""
    disk = MemoryDisk()
    async with serving(disk, clean_stop=False) as bench:
        bench.create()
        bench.put(b"before")
        disk.fail_at(1, errno.EIO)
        assert bench.ask(send(body=b"failed" * 100)).code == 14
        await trio.sleep(11)
        bench.put(b"after")
        await trio.sleep(1)
    disk.crash(1, keep="all")
    async with serving(disk) as again:
        assert texts(again.ask(pull())) == [b"before", b"after"]


async def test_c055_a_disk_over_its_limit(autojump_clock):
    store = attrs.evolve(STORE, disk_space_warning_level_ratio=1, clean_file_forcibly_enable=False)
    async with serving(store=store) as bench:
        bench.create()
        bench.put(b"a" * 60_000)
        bench.disk.capacity_bytes = 1_000_000
        await trio.sleep(11)
        reply = bench.ask(send())
        assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        for part in ("/store", "limit is 1 %", "diskSpaceWarningLevelRatio"):
            assert part in reply.remark
        bench.disk.capacity_bytes = 1 << 40
        await trio.sleep(11)
        assert bench.ask(send()).code == OK


# -- sync flush


async def test_answers_under_sync_flush_wait_for_the_disk(autojump_clock):
    async with serving(store=SYNC) as bench:
        bench.create()
        bench.disk.run_delay_s = 0.05
        peer, hasty = FakePeer(), FakePeer()
        bench.hand(peer, send(body=b"1"), send(body=b"2", queue_id=99), send(body=b"3"))
        bench.hand(hasty, send(body=b"4", properties=props(WAIT="false")))
        assert codes(peer) == [ResponseCode.INVALID_PARAMETER]
        assert codes(hasty) == [OK]
        assert bench.store.log.durable.value < bench.store.log.written
        assert bench.ask(pull()).code == 19
        await trio.sleep(0.2)
        assert codes(peer) == [OK, OK]
        assert peer.writes == 2
        assert bench.store.log.durable.value == bench.store.log.written
        assert texts(bench.ask(pull())) == [b"1", b"3", b"4"]


@pytest.mark.parametrize(
    ("wait", "waits"), [("true", True), ("TRUE", True), ("", True), ("false", False), ("no", False)]
)
async def test_who_wants_to_wait(autojump_clock, wait, waits):
    async with serving(store=SYNC) as bench:
        bench.create()
        bench.disk.run_delay_s = 0.05
        peer = FakePeer()
        for frame in (
            send(properties=props(WAIT=wait)),
            send(
                body=join_batch([BatchItem(0, b"b", b"")]),
                batch=True,
                code=320,
                properties=props(WAIT=wait),
            ),
        ):
            bench.hand(peer, frame)
            assert len(peer.take()) == (not waits)
            await trio.sleep(0.2)
            assert len(peer.take()) == waits


async def test_mixed_wishes_in_one_receive(autojump_clock):
    async with serving(store=SYNC) as bench:
        bench.create()
        bench.disk.run_delay_s = 0.05
        peer = FakePeer()
        no = props(WAIT="false")
        bench.hand(
            peer, send(opaque=1), send(opaque=2, properties=no), oneway(send()), send(opaque=3)
        )
        assert [r.opaque for r in peer.take()] == [2]
        await trio.sleep(0.2)
        assert [r.opaque for r in peer.take()] == [1, 3]


async def test_a_sync_that_takes_too_long_is_code_10_with_the_ids(autojump_clock):
    store = attrs.evolve(SYNC, sync_flush_timeout_ms=1000)
    async with serving(store=store) as bench:
        bench.create()
        bench.disk.run_delay_s = 3
        peer = FakePeer()
        bench.hand(peer, send(opaque=1), oneway(send()), send(opaque=2))
        await trio.sleep(0.9)
        assert peer.take() == []
        await trio.sleep(0.3)
        replies = peer.take()
        assert [(r.opaque, r.code) for r in replies] == [(1, 10), (2, 10)]
        assert [r.ext["queueOffset"] for r in replies] == ["0", "2"]
        assert all(r.ext["msgId"] and r.ext["MSG_REGION"] for r in replies)
        await trio.sleep(5)
        assert peer.take() == []
        assert len(texts(bench.ask(pull()))) == 3, "stored all the same"


async def test_senders_share_a_sync(autojump_clock):
    """Case C097: a slow sync (50 ms) and 100 senders at once: group commit, a few syncs and not a hundred."""
    async with serving(store=SYNC) as bench:
        bench.create()
        await trio.sleep(2)
        bench.disk.run_delay_s = 0.05
        began, peers = len(bench.disk.operations), [FakePeer() for _ in range(100)]
        for peer in peers:
            bench.hand(peer, send())
        await trio.sleep(0.15)
        assert [codes(peer) for peer in peers] == [[OK]] * 100
        syncs = [
            op
            for op in bench.disk.operations[began:]
            if op.kind == "sync" and "commitlog" in op.path
        ]
        assert 1 <= len(syncs) <= 4


async def test_what_was_answered_under_sync_flush_survives_a_power_cut(autojump_clock):
    disk, peer = MemoryDisk(), FakePeer()
    async with serving(disk, store=SYNC, clean_stop=False) as bench:
        bench.create()
        await trio.sleep(0.1)
        for number in range(50):
            bench.hand(peer, send(body=b"%d" % number))
            await trio.sleep(0.001 * (number % 7))
    answered = {int(reply.ext["queueOffset"]) for reply in peer.take()}
    assert len(answered) > 40
    disk.crash(3, keep="none")
    async with serving(disk, store=SYNC) as again:
        got = {m.queue_offset for m in again.stored()}
        assert answered <= got
        assert got == set(range(len(got)))


async def test_a_peer_that_left_before_its_answer(autojump_clock):
    async with serving(store=SYNC) as bench:
        bench.create()
        bench.disk.run_delay_s = 0.05
        gone, stays = FakePeer(), FakePeer()
        bench.hand(gone, send())
        bench.hand(stays, send())
        gone.close()
        bench.face.disconnected(gone)
        await trio.sleep(0.2)
        assert (codes(gone), codes(stays)) == ([], [OK])


async def test_a_new_topic_under_sync_flush(autojump_clock):
    async with serving(store=SYNC) as bench:
        reply = await bench.answer(send("New"))
        assert reply.code == OK
        assert bench.store.log.durable.value == bench.store.log.written


# -- data that is on the disk only


@pytest.fixture
async def cold_bench(autojump_clock):
    """A broker with messages that the page cache has forgotten: each read is found cached the second time only."""
    async with serving() as made:
        made.create()
        made.put(*(bytes([n]) * 9_000 for n in range(20)), properties=props(KEYS="k", TAGS="A"))
        await trio.sleep(1)
        make_cold(made.store)
        yield made


def make_cold(store):
    """Let each range of a file be cached only after it was read once, as a disk does."""
    warm = set()
    disk = store.parts.disk
    opened = disk.open

    class ColdFile:
        def __init__(self, file):
            self._file = file

        def __getattr__(self, name):
            return getattr(self._file, name)

        def read(self, size, offset):
            warm.update(range(offset // 4096, (offset + size) // 4096 + 1))
            return self._file.read(size, offset)

        def read_cached(self, size, offset):
            pages = range(offset // 4096, (offset + size) // 4096 + 1)
            return self._file.read(size, offset) if warm.issuperset(pages) else None

    def open_cold(path, **how):
        return ColdFile(opened(path, **how))

    disk.open = open_cold
    store.log.segments.close()
    store.queues.pool.close()


async def test_a_pull_of_cold_data_is_answered_after_warming(autojump_clock, cold_bench):
    peer = FakePeer()
    cold_bench.hand(peer, pull(0, opaque=5))
    assert peer.take() == []
    reply = await cold_bench.next(peer)
    assert (reply.code, reply.opaque) == (OK, 5)
    assert messages(reply)[0] == cold_bench.stored()[0]


@pytest.mark.parametrize("long_way", [False, True])
async def test_all_of_a_cold_queue_can_be_pulled(autojump_clock, cold_bench, long_way):
    offset, got = 0, []
    while offset < 20:
        reply = await cold_bench.answer(pull(offset, long_way=long_way))
        got += [text[0] for text in texts(reply)]
        offset = int(reply.ext["nextBeginOffset"])
    assert got == list(range(20))


async def test_view_and_query_and_search_of_cold_data(autojump_clock, cold_bench):
    answer = cold_bench.answer
    assert (
        len(texts(await answer(request(RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": "0"})))) == 1
    )
    query = QueryMessageRequest("T", "k", 15, 0, 2**62)
    assert len(texts(await answer(request(RequestCode.QUERY_MESSAGE, query)))) == 15
    search = SearchOffsetRequest("T", 0, cold_bench.clock.now_ms() + 1)
    assert (await answer(request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search))).ext[
        "offset"
    ] == "20"
    entries = {"topic": "T", "queueId": "0", "index": "0", "count": "3"}
    assert (await answer(request(RequestCode.QUERY_CONSUME_QUEUE, ext=entries))).code == OK


async def test_a_cold_pull_can_be_held_and_woken(autojump_clock, cold_bench):
    peer = FakePeer()
    cold_bench.hand(peer, pull(20, sys_flag=SUSPEND))
    await trio.sleep(0.5)
    assert (peer.take(), len(cold_bench.broker.holds)) == ([], 1)
    cold_bench.put(b"new")
    assert texts(await cold_bench.next(peer)) == [b"new"]


async def test_a_cold_pull_commits_once_and_leaves_a_reset_for_its_answer(
    autojump_clock, cold_bench
):
    reply = await cold_bench.answer(pull(3, sys_flag=SUSPEND | 1, commit_offset=3))
    assert reply.code == OK
    assert cold_bench.offsets.query(GROUP, "T", 0) == 3


async def test_a_slow_disk_does_not_delay_others(autojump_clock, cold_bench):
    cold_bench.disk.run_delay_s = 1
    waiting = [FakePeer() for _ in range(40)]
    for number, peer in enumerate(waiting):
        cold_bench.hand(peer, pull(number % 20))
    assert cold_bench.ask(send(body=b"now")).code == OK
    await trio.sleep(60)
    assert all(codes(peer) == [OK] for peer in waiting)


async def test_a_peer_that_leaves_while_the_disk_is_slow(autojump_clock, cold_bench):
    cold_bench.disk.run_delay_s = 1
    peer = FakePeer()
    cold_bench.hand(peer, pull(0))
    await trio.sleep(0.1)
    peer.close()
    await trio.sleep(10)
    assert peer.take() == []


async def test_more_requests_for_the_disk_than_can_wait(autojump_clock, cold_bench, monkeypatch):
    monkeypatch.setattr(cold, "COLD_REQUESTS", 3)
    peer = FakePeer()
    cold_bench.hand(peer, *(pull(0, opaque=n) for n in range(5)))
    refused = peer.take()
    assert [(r.opaque, r.code) for r in refused] == [(3, 2), (4, 2)]
    assert "wait for the disk" in refused[0].remark
    await trio.sleep(1)
    assert codes(peer) == [OK] * 3


async def test_a_cache_that_keeps_nothing_is_told_and_not_asked_for_ever(
    autojump_clock, bench, monkeypatch
):
    monkeypatch.setattr(cold, "COLD_TRIES", 5)
    bench.put(b"a")
    await trio.sleep(1)
    bench.disk.cold = True
    reply = await bench.answer(pull())
    assert reply.code == ResponseCode.SYSTEM_BUSY
    assert "page cache" in reply.remark
    bench.disk.cold = False
    assert texts(bench.ask(pull())) == [b"a"]


async def test_a_sector_that_cannot_be_read_fails_its_request_only(
    autojump_clock, cold_bench, monkeypatch, caplog
):
    """Case C020 in kind: one bad place on the disk is no end of the broker."""

    async def fail(_call):
        raise OSError(errno.EIO, "Input/output error", "/store/commitlog/0")

    with monkeypatch.context() as patch:
        patch.setattr(
            cold_bench.broker.face._cold, "_disk", type("Disk", (), {"run": staticmethod(fail)})()
        )
        reply = await cold_bench.answer(pull(0))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "/store/commitlog/0" in reply.remark
    assert "cannot be read" in caplog.text
    assert (await cold_bench.answer(pull(0))).code == OK


async def test_an_error_of_ours_behind_the_disk(autojump_clock, cold_bench, monkeypatch, caplog):
    peer = FakePeer()
    cold_bench.hand(peer, pull(0))
    monkeypatch.setattr(cold_bench.face, "_one", lambda *_: 1 // 0)
    reply = await cold_bench.next(peer)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "ZeroDivisionError" in reply.remark
    monkeypatch.undo()
    assert (await cold_bench.answer(pull(0))).code == OK


# -- logging


async def test_nothing_is_logged_per_message(autojump_clock, bench, caplog):
    caplog.set_level(logging.DEBUG)
    bench.put(b"warm")
    bench.ask(pull())
    caplog.clear()
    bench.put(*(b"%d" % n for n in range(20)))
    bench.ask(pull())
    assert caplog.records == []
