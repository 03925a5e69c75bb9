"""Single messages by id, by key and by tag, and raw queue entries."""

from __future__ import annotations

import attrs
import pytest

from tests.broker.support import (
    COLLIDING,
    STORE,
    FakePeer,
    props,
    request,
    send,
    serving,
    texts,
)
from trio_mq.broker.processors import query as queries
from trio_mq.protocol import bodies, record
from trio_mq.protocol.bodies import QueryConsumeQueueReplyBody
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.query import (
    QueryConsumeQueueRequest,
    QueryMessageRequest,
    ViewMessageRequest,
)
from trio_mq.protocol.message import java_hash, parse_offset_message_id, tags_code


@pytest.fixture
async def bench(autojump_clock):
    async with serving() as made:
        made.create()
        yield made


def view(bench, offset):
    return bench.ask(request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset)))


def query(bench, key, topic="T", *, max_num=32, begin=0, end=2**62, **more):
    header = QueryMessageRequest(topic, key, max_num, begin, end, **more)
    return bench.ask(request(RequestCode.QUERY_MESSAGE, header))


# -- by id


async def test_b118_view_by_the_id_of_the_answer(autojump_clock, bench):
    peer = FakePeer()
    bench.hand(peer, *(send(body=b"%d" % n) for n in range(20)))
    for number, reply in enumerate(peer.take()):
        _, offset = parse_offset_message_id(reply.ext["msgId"])
        seen = view(bench, offset)
        assert (seen.code, texts(seen)) == (0, [b"%d" % number])


async def test_b122_places_without_a_record(autojump_clock, bench):
    bench.put(b"a", b"b")
    first, second = bench.stored()
    inside = record.pack(0, 0, 0, 12_345, 0, 0, b"\0" * 8, 0, b"\0" * 8, 0, 0, b"x", b"T", b"")
    bench.put(inside)
    at = bench.stored()[2].log_offset
    for offset in (-1, 1, second.log_offset - 1, at + 88, bench.store.log.end, 2**62, -(2**63)):
        reply = view(bench, offset)
        assert (reply.code, reply.body) == (ResponseCode.SYSTEM_ERROR, b""), offset
        assert str(offset) in reply.remark
    assert bench.store.log.read(4, at + 88) == inside[:4], (
        "there is something that looks like a record"
    )
    assert texts(view(bench, first.log_offset)) == [b"a"]


async def test_a_record_that_is_broken_is_no_message(autojump_clock, bench, caplog):
    bench.put(b"a" * 50, properties=props(KEYS="k"))
    bench.put(b"b", properties=props(KEYS="k"))
    (first, _) = bench.stored()
    bench.store.log.segments.write(b"\x7f", first.log_offset + 84)  # the length of its body
    assert view(bench, first.log_offset).code == ResponseCode.SYSTEM_ERROR
    assert "no message can be read" in caplog.text
    assert texts(query(bench, "k")) == [b"b"]


# -- by key


async def test_b119_all_messages_with_a_key_oldest_first(autojump_clock, bench):
    for number in range(20):
        bench.put(b"%d" % number, properties=props(KEYS="k", n=str(number)), queue_id=number % 4)
    bench.put(b"other", properties=props(KEYS="other"))
    reply = query(bench, "k", max_num=20)
    assert texts(reply) == [b"%d" % n for n in range(20)]
    assert int(reply.ext["indexLastUpdatePhyoffset"]) == bench.stored()[-1].log_offset
    assert int(reply.ext["indexLastUpdateTimestamp"]) == bench.stored()[-1].store_timestamp_ms
    assert len(texts(query(bench, "k", max_num=5))) == 5


async def test_b120_at_most_64_whatever_is_asked_for(autojump_clock, bench):
    bench.put(*(b"%d" % n for n in range(100)), properties=props(KEYS="k"))
    assert len(texts(query(bench, "k", max_num=500))) == 64
    assert len(texts(query(bench, "k", max_num=0))) == 1


async def test_c137_each_of_several_keys_finds_its_message(autojump_clock, bench):
    bench.put(b"m", properties=props(KEYS="k1 k2  k3"))
    bench.put(b"long", properties=props(KEYS="k11"))
    for key in ("k1", "k2", "k3"):
        assert texts(query(bench, key)) == [b"m"]
    for key in ("k", "k1 k2", "", " ", "K1"):
        assert query(bench, key).code == ResponseCode.QUERY_NOT_FOUND


async def test_c035_b121_keys_and_topics_with_one_hash(autojump_clock, bench):
    """Case C035: Aa and BB have one Java hash, so have the topics' names."""
    one, two = COLLIDING
    topics = (f"{one}Topic", f"{two}Topic")
    assert java_hash(f"{topics[0]}#{one}") == java_hash(f"{topics[1]}#{two}")
    for topic, key in zip(topics, COLLIDING, strict=True):
        bench.create(topic)
        bench.put(key.encode(), topic=topic, properties=props(KEYS=key))
    assert query(bench, two, topics[0]).code == ResponseCode.QUERY_NOT_FOUND
    assert texts(query(bench, one, topics[0])) == [one.encode()]
    assert texts(query(bench, two, topics[1])) == [two.encode()]
    for topic in (f"x{one}{one}", f"x{two}{two}"):
        bench.create(topic)
        bench.put(topic.encode(), topic=topic, properties=props(KEYS=one))
    assert texts(query(bench, one, f"x{one}{one}", max_num=10)) == [f"x{one}{one}".encode()]


async def test_many_hits_that_are_not_meant_do_not_hide_those_that_are(autojump_clock, bench):
    bench.put(b"wanted", properties=props(KEYS="BB"))
    bench.put(*(b"%d" % n for n in range(200)), properties=props(KEYS="Aa"))
    assert texts(query(bench, "BB")) == [b"wanted"]


async def test_b123_the_unique_key(autojump_clock, bench):
    bench.put(b"mine", properties=props(UNIQ_KEY="U", KEYS="k"))
    bench.put(b"named alike", properties=props(UNIQ_KEY="V", KEYS="U"))
    assert texts(query(bench, "U", unique_key=True, max_num=1)) == [b"mine"]
    assert texts(query(bench, "U", index_type="U", unique_key=True)) == [b"mine"]
    assert texts(query(bench, "U")) == [b"mine", b"named alike"]
    bench.put(*(b"%d" % n for n in range(40)), properties=props(UNIQ_KEY="W"))
    assert len(texts(query(bench, "W", unique_key=True, max_num=1))) == 32


async def test_by_tag(autojump_clock, bench):
    bench.put(b"a", tags="A")
    bench.put(b"b", tags="B")
    bench.put(b"key", properties=props(KEYS="T#A A"))
    assert texts(query(bench, "A", index_type="T")) == [b"a"]
    assert query(bench, "C", index_type="T").code == ResponseCode.QUERY_NOT_FOUND


async def test_the_times_bound_what_is_found(autojump_clock, bench):
    start = bench.clock.now_ms()
    for number in range(5):
        bench.clock.set(start + 10_000 * number)
        bench.put(b"%d" % number, properties=props(KEYS="k"))
    reply = query(bench, "k", begin=start + 10_000, end=start + 30_000)
    assert texts(reply) == [b"1", b"2", b"3"]
    assert query(bench, "k", begin=start + 50_000).code == ResponseCode.QUERY_NOT_FOUND
    assert query(bench, "k", end=start - 1).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_message_can_be_found_the_moment_it_was_sent(autojump_clock, bench):
    """Keys reach their file on a tick; a query does not wait for that."""
    bench.put(b"m", properties=props(KEYS="now"))
    assert bench.store.dispatcher.index_backlog
    assert texts(query(bench, "now")) == [b"m"]


async def test_large_messages_come_as_many_as_a_frame_takes(autojump_clock, bench, monkeypatch):
    monkeypatch.setattr(queries, "ANSWER_BYTES", 25_000)
    bench.put(*(bytes([n]) * 10_000 for n in range(4)), properties=props(KEYS="k"))
    bench.put(b"x" * 30_000, properties=props(KEYS="large"))
    assert [text[0] for text in texts(query(bench, "k"))] == [2, 3]  # the newest ones
    assert len(texts(query(bench, "large"))) == 1


async def test_b122_nothing_found(autojump_clock, bench):
    reply = query(bench, "nothing")
    assert (reply.code, reply.body) == (ResponseCode.QUERY_NOT_FOUND, b"")
    assert "nothing" in reply.remark
    assert query(bench, "k", "Unknown").code == ResponseCode.QUERY_NOT_FOUND


async def test_without_an_index_nothing_is_found_by_key(autojump_clock):
    async with serving(store=attrs.evolve(STORE, message_index_enable=False)) as bench:
        bench.create()
        bench.put(b"m", properties=props(KEYS="k"))
        assert query(bench, "k").code == ResponseCode.QUERY_NOT_FOUND


# -- queue entries


def entries(bench, **fields):
    header = QueryConsumeQueueRequest(**{"topic": "T", "queue_id": 0, "count": 10} | fields)
    return bench.ask(request(RequestCode.QUERY_CONSUME_QUEUE, header))


async def test_raw_entries_of_a_queue(autojump_clock, bench):
    bench.put(*(b"%d" % n for n in range(70)), tags="A")
    stored = bench.stored()

    def places(reply):
        body = bodies.decode(QueryConsumeQueueReplyBody, reply.body)
        assert (body.min_queue_index, body.max_queue_index) == (0, 70)
        assert {data.tags_code for data in body.queue_data} <= {tags_code("A")}
        return [data.physic_offset for data in body.queue_data]

    offsets = [message.log_offset for message in stored]
    assert places(entries(bench)) == offsets[:10]
    assert places(entries(bench, index=3, count=2)) == offsets[3:5]
    assert places(entries(bench, index=-5, count=2)) == offsets[:2]
    assert places(entries(bench, index=68, count=10)) == offsets[68:]
    assert places(entries(bench, index=70)) == []
    assert places(entries(bench, index=2**62)) == []
    assert places(entries(bench, count=0)) == places(entries(bench, count=-1)) == []
    # one answer ends where a file of the queue ends; a client asks on from there
    assert places(entries(bench, count=1000))[:60] == offsets[:60]


async def test_entries_of_what_is_not_there(autojump_clock, bench):
    assert entries(bench, topic="Unknown").code == ResponseCode.TOPIC_NOT_EXIST
    assert entries(bench, topic=None).code == ResponseCode.TOPIC_NOT_EXIST
    reply = entries(bench, queue_id=3)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "queue 3" in reply.remark
    bench.create("B", queue_type="BatchCQ")
    bench.put(b"m", topic="B")
    assert entries(bench, topic="B").code == ResponseCode.SYSTEM_ERROR
