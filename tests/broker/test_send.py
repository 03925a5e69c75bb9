"""Sends: which are taken, how they are stored, and which refusal the others get."""

from __future__ import annotations

from itertools import pairwise

import attrs
import pytest

from tests.broker.support import (
    BROKER,
    HOST,
    STORE,
    FakePeer,
    messages,
    props,
    pull,
    request,
    send,
    serving,
    texts,
)
from trio_mq.config import BrokerSettings
from trio_mq.protocol import properties
from trio_mq.protocol.bodies import SubscriptionGroupConfig
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.admin import DeleteSubscriptionGroupRequest
from trio_mq.protocol.message import (
    BatchItem,
    Host,
    join_batch,
    parse_offset_message_id,
    split_batch,
    tags_code,
)

OWN = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"


@pytest.fixture
async def bench(autojump_clock):
    async with serving() as made:
        made.create()
        yield made


def text_of(items):
    return join_batch([BatchItem(*item) for item in items])


def batch(bench, items, **fields):
    """The reply to a batch of (flag, body, properties) items."""
    fields = {
        "code": RequestCode.SEND_BATCH_MESSAGE,
        "batch": True,
        "properties": props(WAIT="true"),
    } | fields
    return bench.ask(send(body=text_of(items), **fields))


# -- one message


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.SEND_MESSAGE, {}),
        (RequestCode.SEND_MESSAGE_V2, {}),
        (RequestCode.SEND_BATCH_MESSAGE, {"batch": False}),
    ],
)
@pytest.mark.parametrize("long_way", [False, True])
async def test_b001_b010_every_form_of_a_send_is_one_ordinary_message(
    autojump_clock, bench, code, fields, long_way
):
    peer = FakePeer("10.1.2.3")
    frame = send(
        body=b"body",
        code=code,
        long_way=long_way,
        queue_id=2,
        flag=0,
        properties=props(TAGS="TagA", KEYS="k1 k2", UNIQ_KEY="ID1", n="ö"),
        reconsume_times=3,
        **fields,
    )
    reply = bench.ask(frame, peer)
    (stored,) = bench.stored()
    assert reply.code == ResponseCode.SUCCESS
    assert reply.ext["queueId"] == "2"
    assert reply.ext["queueOffset"] == "0"
    assert reply.ext["transactionId"] == "ID1"
    assert (reply.ext["MSG_REGION"], reply.ext["TRACE_ON"]) == ("DefaultRegion", "true")
    assert parse_offset_message_id(reply.ext["msgId"]) == (HOST, stored.log_offset)
    assert (stored.topic, stored.queue_id, stored.queue_offset) == ("T", 2, 0)
    assert (stored.body, stored.flag, stored.sys_flag, stored.reconsume_times) == (b"body", 0, 0, 3)
    assert stored.born_host == peer.address
    assert stored.store_host == HOST
    assert stored.born_timestamp_ms == 1_699_999_999_999
    assert stored.store_timestamp_ms == bench.clock.now_ms()
    assert (
        stored.properties
        == "TAGS\x01TagA\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01ID1\x02n\x01ö\x02".encode() + OWN
    )
    (entry,) = bench.store.reader.entries(bench.store.queue("T", 2), 0, 9)
    assert entry == (stored.log_offset, stored.size, tags_code("TagA"))


async def test_offsets_rise_by_one_in_a_queue_and_are_those_of_the_record(autojump_clock, bench):
    peer = FakePeer()
    bench.hand(peer, *(send(body=b"%d" % n, queue_id=n % 2) for n in range(6)))
    replies = peer.take()
    assert [r.ext["queueOffset"] for r in replies] == ["0", "0", "1", "1", "2", "2"]
    assert peer.writes == 1
    for reply in replies:
        _, offset = parse_offset_message_id(reply.ext["msgId"])
        seen = bench.ask(request(RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(offset)}))
        (message,) = messages(seen)
        assert message.log_offset == offset
        assert str(message.queue_offset) == reply.ext["queueOffset"]


async def test_a_message_without_a_unique_id_gets_one(autojump_clock, bench):
    reply = bench.ask(send())
    (stored,) = bench.stored()
    unique = stored.property_map["UNIQ_KEY"]
    assert len(unique) == 32
    assert reply.ext["transactionId"] == unique
    assert bench.ask(send()).ext["transactionId"] != unique


@pytest.mark.parametrize(
    "unique", ["with space", 'quo"te', "back\\slash", "tab\there", "öäü", "日本"]
)
async def test_any_unique_id_comes_back_as_it_was(autojump_clock, bench, unique):
    assert bench.ask(send(properties=props(UNIQ_KEY=unique))).ext["transactionId"] == unique


async def test_a_region_with_signs_of_formatting_and_of_json(autojump_clock):
    region = 'a%d"b\\%%ö'
    async with serving(broker=attrs.evolve(BROKER, region_id=region)) as bench:
        bench.create()
        reply = bench.ask(send())
        assert reply.ext["MSG_REGION"] == region
        (stored,) = bench.stored()
        assert stored.property_map["MSG_REGION"] == region


async def test_b011_compressed_bodies_and_their_flags_are_stored_as_they_are(autojump_clock, bench):
    flags = 0x1 | 0x2 | 0x100  # compressed, several tags, LZ4
    bench.put(b"\x00compressed", sys_flag=flags | 0xF0)
    (stored,) = bench.stored()
    assert (stored.body, stored.sys_flag) == (b"\x00compressed", flags)


async def test_hosts_of_both_kinds_have_their_flags(autojump_clock):
    """C092: an IPv6 client, an IPv6 broker."""
    v6 = Host("fd00::1", 10911)
    async with serving(host=v6) as bench:
        bench.create()
        for ip in ("10.0.0.1", "fd00::2"):
            assert bench.ask(send(), FakePeer(ip)).code == 0
        first, second = bench.stored()
        assert (first.sys_flag, second.sys_flag) == (0x20, 0x30)
        assert (second.born_host.ip, second.store_host) == ("fd00::2", v6)
        reply = bench.ask(send(), FakePeer("fd00::2"))
        assert len(reply.ext["msgId"]) == 56
        assert parse_offset_message_id(reply.ext["msgId"])[0] == v6


# -- properties


async def test_client_properties_end_before_ours_begin(autojump_clock, bench):
    """C124: the last separator is missing, and TAGS stays what it was."""
    bench.put(b"m", properties="UNIQ_KEY\x01I\x02TAGS\x01TagA")
    (stored,) = bench.stored()
    assert stored.properties == b"UNIQ_KEY\x01I\x02TAGS\x01TagA\x02" + OWN
    assert stored.property_map["TAGS"] == "TagA"


async def test_what_only_the_broker_says_is_not_taken_from_a_client(autojump_clock, bench):
    given = props(CRC="x", CLUSTER="other", TRACE_ON="false", MSG_REGION="elsewhere", POP_CK="1 2")
    bench.put(b"m", properties=props(UNIQ_KEY="I") + given.replace("CRC", "__CRC32#"))
    bench.put(b"m", properties="UNIQ_KEY\x01I\x02__CRC32#\x011234")
    bench.put(b"m", properties="__CRC32#\x011\x02UNIQ_KEY\x01I\x02__CRC32#\x012\x02")
    assert [s.properties for s in bench.stored()] == [b"UNIQ_KEY\x01I\x02" + OWN] * 3


async def test_names_that_only_look_special_stay(autojump_clock, bench):
    text = props(
        UNIQ_KEY="I", MYDELAY="5", XTRAN_MSG="true", MYPOP_CK="v", X="TIMER_x", A__CRC32="1"
    )
    bench.put(b"m", properties=text)
    (stored,) = bench.stored()
    assert stored.properties == text.encode() + OWN


async def test_b015_c130_properties_of_32767_bytes_with_those_of_the_broker(autojump_clock, bench):
    head = props(UNIQ_KEY="I")
    room = 32_767 - len(OWN) - len(head) - len("p\x01\x02")
    peer = FakePeer()
    bench.hand(
        peer,
        send(properties=head + props(p="x" * room)),
        send(properties=head + props(p="x" * (room + 1))),
    )
    refused, stored = sorted(peer.take(), key=lambda r: -r.code)
    assert stored.code == 0
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "32768 bytes" in refused.remark
    assert "32767 are allowed" in refused.remark
    (record,) = bench.stored()
    assert len(record.properties) == 32_767
    assert record.property_map["CLUSTER"] == "DefaultCluster"


async def test_b014_properties_beyond_the_limit_of_any_record(autojump_clock, bench):
    reply = bench.ask(send(properties=props(p="中" * 32_769)))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.stored() == []
    assert bench.ask(send(properties=props(p="中" * 10_240))).code == 0


# -- bodies


async def test_b012_b013_c130_bodies_at_the_limit(autojump_clock):
    limit = 40_000
    async with serving(store=attrs.evolve(STORE, max_message_size=limit)) as bench:
        bench.create()
        codes = [
            bench.ask(send(body=b"x" * size)).code for size in (limit - 1, limit, limit + 1, 0)
        ]
        assert codes == [0, 0, 13, 13]
        assert len(bench.stored()) == 2
        remark = bench.ask(send(body=b"x" * (limit + 1))).remark
        assert "40001 bytes" in remark
        assert "40000 are allowed" in remark
        assert "maxMessageSize" in remark
        assert "empty" in bench.ask(send(body=b"")).remark


async def test_a_body_that_no_segment_holds_is_refused_and_the_next_one_taken(
    autojump_clock, bench
):
    reply = bench.ask(send(body=b"x" * 65_536))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "mappedFileSizeCommitLog" in reply.remark
    assert bench.ask(send()).ext["queueOffset"] == "0"


# -- topics and queues


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("", 29),
        ("   ", 29),
        ("n" * 127, 0),
        ("n" * 128, 29),
        ("n" * 255, 29),
        ("with space", 29),
        ("ünicode", 29),
        ("with@sign", 29),
        ("%RETRY%CG", 0),
        ("%RETRY%" + "n" * 120, 0),
        ("%RETRY%" + "n" * 121, 26),  # the name of a group may have 120
        ("%DLQ%" + "n" * 122, 0),
        ("%DLQ%" + "n" * 123, 13),
        ("%DLQ%" + "n" * 251, 29),
        ("SCHEDULE_TOPIC_XXXX", 16),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 16),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 16),
        ("TRANS_CHECK_MAX_TIME_TOPIC", 16),
        ("SELF_TEST_TOPIC", 16),
        ("OFFSET_MOVED_EVENT", 16),
    ],
)
async def test_b018_b019_c133_names_of_topics(autojump_clock, bench, topic, code):
    bench.groups.obtain("CG")
    reply = await bench.answer(send(topic))
    assert reply.code == code, reply.remark
    assert len(bench.stored()) == (code == 0)
    if code and len(topic) > 127:
        assert str(121 if code == 26 else len(topic)) in reply.remark
        assert "127" in reply.remark or "255" in reply.remark or "120" in reply.remark


async def test_b009_c103_a_send_to_an_unknown_topic_creates_it(autojump_clock, bench):
    """First send to a new topic: its answer waits until the topic is saved, so that nobody finds no route."""
    peer = FakePeer()
    bench.hand(peer, send("New", default_topic_queue_nums=4))
    assert peer.take() == []
    assert [s.topic for s in bench.stored()] == ["New"]
    assert (await bench.next(peer)).code == 0
    assert b'"New"' in read(bench.disk, "/store/config/topics.json")
    assert bench.topics.get("New").write_queue_nums == 4
    assert (await bench.answer(send("Wide", default_topic_queue_nums=100))).code == 0
    assert bench.topics.get("Wide").write_queue_nums == 8
    assert bench.ask(send("New")).ext["queueOffset"] == "1"


def read(disk, path):
    return disk.open(path).read(disk.size(path), 0)


async def test_b019_c103_without_auto_creation_the_remark_says_how_to_create(autojump_clock):
    async with serving(broker=attrs.evolve(BROKER, auto_create_topic_enable=False)) as bench:
        reply = bench.ask(send("Unknown"))
        assert reply.code == ResponseCode.TOPIC_NOT_EXIST
        assert "mqadmin updateTopic" in reply.remark
        assert bench.stored() == []


async def test_b007_queue_minus_100_is_some_queue_and_the_answer_names_it(autojump_clock, bench):
    replies = [bench.ask(send(queue_id=-100)) for _ in range(60)]
    stored = bench.stored()
    assert [int(r.ext["queueId"]) for r in replies] == [s.queue_id for s in stored]
    assert {s.queue_id for s in stored} == {0, 1, 2, 3}
    for queue_id in range(4):
        offsets = [s.queue_offset for s in stored if s.queue_id == queue_id]
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("queue_id", [4, 100, 2**31 - 1])
async def test_b017_a_queue_that_the_topic_does_not_have(autojump_clock, bench, queue_id):
    reply = bench.ask(send(queue_id=queue_id))
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert f"queue id {queue_id}" in reply.remark
    assert "4 queues" in reply.remark
    assert bench.stored() == []


async def test_queues_that_are_only_read_may_be_named_as_with_apache(autojump_clock, bench):
    bench.topics.update(
        attrs.evolve(bench.topics.get("T"), write_queue_nums=1, read_queue_nums=3), None
    )
    assert [bench.ask(send(queue_id=n)).code for n in range(4)] == [0, 0, 0, 29]
    assert {bench.ask(send(queue_id=-1)).ext["queueId"] for _ in range(20)} == {"0"}
    bench.topics.update(attrs.evolve(bench.topics.get("T"), write_queue_nums=0), None)
    reply = bench.ask(send(queue_id=-1))
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert "writeQueueNums is 0" in reply.remark


@pytest.mark.parametrize("perm", [0, 2, 4, 6])
async def test_a_topics_own_permission_does_not_stop_a_send_as_with_apache(
    autojump_clock, bench, perm
):
    """Clients avoid such a topic by its route; what comes is stored."""
    bench.create("P", perm=perm)
    assert bench.ask(send("P")).code == 0


async def test_a_broker_that_may_not_be_written_refuses_ordered_topics_only(autojump_clock):
    """Apache's quirk: brokerPermission counts here for ordered topics; routes tell clients the rest."""
    async with serving(broker=attrs.evolve(BROKER, broker_permission=4)) as bench:
        bench.create("Plain")
        bench.create("Ordered")
        bench.topics.update(attrs.evolve(bench.topics.get("Ordered"), order=True), None)
        assert bench.ask(send("Plain")).code == 0
        reply = bench.ask(send("Ordered"))
        assert reply.code == ResponseCode.NO_PERMISSION
        assert "brokerPermission" in reply.remark


async def test_sends_before_the_configured_start(autojump_clock):
    async with serving() as early:
        start_ms = early.clock.now_ms() + 60_000
    settings = BrokerSettings(broker_name="b-a", start_accept_send_request_ms=start_ms)
    async with serving(broker=settings, clock=early.clock) as bench:
        bench.create()
        reply = bench.ask(send())
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "startAcceptSendRequestTimeStamp" in reply.remark
        bench.clock.set(start_ms)
        assert bench.ask(send()).code == 0


async def test_a_topic_that_changed_is_checked_anew(autojump_clock, bench):
    assert bench.ask(send(queue_id=3)).code == 0
    bench.topics.update(
        attrs.evolve(bench.topics.get("T"), write_queue_nums=2, read_queue_nums=2), None
    )
    assert bench.ask(send(queue_id=3)).code == 29
    bench.topics.delete("T")
    bench.store.drop_topic("T")
    reply = await bench.answer(send(queue_id=0))
    assert (reply.code, reply.ext["queueOffset"]) == (0, "0")


@pytest.mark.parametrize("automatic", [False, True])
async def test_a_retry_topic_needs_its_group(autojump_clock, automatic):
    """As everywhere, an unknown group is made where that is allowed (Apache: findSubscriptionGroupConfig)."""
    broker = attrs.evolve(BROKER, auto_create_subscription_group=automatic)
    code = 0 if automatic else ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    async with serving(broker=broker) as bench:
        reply = await bench.answer(send("%RETRY%Nobody", queue_id=-1))
        assert reply.code == code
        assert automatic or "Nobody" in reply.remark
        bench.groups.update(SubscriptionGroupConfig("Nobody"))
        assert (await bench.answer(send("%RETRY%Nobody"))).code == 0
        delete = DeleteSubscriptionGroupRequest("Nobody")
        deleted = await bench.answer(request(RequestCode.DELETE_SUBSCRIPTIONGROUP, delete))
        assert deleted.code == 0
        assert (await bench.answer(send("%RETRY%Nobody"))).code == code


# -- messages that go somewhere else first


@pytest.mark.parametrize(
    ("text", "topic", "queue_id"),
    [
        (props(DELAY="3"), "SCHEDULE_TOPIC_XXXX", 2),
        (props(DELAY="18"), "SCHEDULE_TOPIC_XXXX", 17),
        (props(DELAY="19"), "SCHEDULE_TOPIC_XXXX", 17),  # B072
        (props(DELAY="0"), "T", 0),
        (props(DELAY="-1"), "T", 0),
        (props(TIMER_DELAY_SEC="1"), "rmq_sys_wheel_timer", 0),
        (props(TIMER_DELAY_MS="1"), "rmq_sys_wheel_timer", 0),
        (props(TIMER_DELIVER_MS="1"), "T", 0),  # B070: over since 1970
        (props(TRAN_MSG="true"), "RMQ_SYS_TRANS_HALF_TOPIC", 0),
        (props(TRAN_MSG="True"), "RMQ_SYS_TRANS_HALF_TOPIC", 0),
        (props(TRAN_MSG="false"), "T", 0),
        (props(TRAN_MSG="true", DELAY="3"), "RMQ_SYS_TRANS_HALF_TOPIC", 0),  # C154
    ],
)
async def test_messages_that_wait_are_stored_where_their_service_looks(
    autojump_clock, bench, text, topic, queue_id
):
    reply = bench.ask(send(properties=text))
    (stored,) = bench.stored()
    assert (reply.code, stored.topic, stored.queue_id) == (0, topic, queue_id)
    assert (reply.ext["queueId"], reply.ext["queueOffset"]) == ("0", "0")
    waits = stored.topic != "T"
    found = stored.property_map
    assert (found.get("REAL_TOPIC"), found.get("REAL_QID")) == (
        ("T", "0") if waits else (None,) * 2
    )
    assert ("recallHandle" in reply.ext) is (topic == "rmq_sys_wheel_timer")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (props(DELAY="x"), "DELAY"),
        (props(TIMER_DELAY_SEC="soon"), "TIMER_DELAY_SEC"),
        (props(TIMER_DELAY_SEC="259201"), "timerMaxDelaySec"),
        (props(TIMER_DELIVER_MS="9" * 30), "TIMER_DELIVER_MS"),
        (props(INNER_NUM="3"), "INNER_NUM"),
    ],
)
async def test_b069_what_cannot_wait_is_refused_and_not_stored(autojump_clock, bench, text, named):
    reply = bench.ask(send(properties=text))
    assert (reply.code, bench.stored()) == (ResponseCode.MESSAGE_ILLEGAL, [])
    assert named in (reply.remark or "")


@pytest.mark.parametrize("bits", [0x4, 0x8, 0xC])
async def test_flags_of_a_transaction_without_its_property(autojump_clock, bench, bits):
    assert bench.ask(send(sys_flag=bits)).code == ResponseCode.MESSAGE_ILLEGAL
    assert batch(bench, [(0, b"m", b"")], sys_flag=bits).code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.stored() == []


@pytest.mark.parametrize(
    ("text", "queue_id", "kept"),
    [
        (props(_SYS_MSG_PRIORITY_="2"), 2, True),
        (props(_SYS_MSG_PRIORITY_="9"), 3, True),
        (props(_SYS_MSG_PRIORITY_="-1"), 0, False),
        (props(_SYS_MSG_PRIORITY_="high"), 0, False),
        (props(_SYS_MSG_PRIORITY_="2", __SHARDINGKEY="s"), 0, False),
    ],
)
async def test_a_priority_is_a_queue(autojump_clock, bench, text, queue_id, kept):
    reply = bench.ask(send(properties=text))
    (stored,) = bench.stored()
    assert (int(reply.ext["queueId"]), stored.queue_id) == (queue_id, queue_id)
    assert (properties.PRIORITY in stored.property_map) is kept


# -- batches


async def test_b057_b059_a_batch_is_a_record_for_each_message(autojump_clock, bench):
    items = [(n, b"m%d" % n, props(UNIQ_KEY=f"I{n}", TAGS="ab"[n % 2]).encode()) for n in range(10)]
    bench.put(b"before")
    reply = batch(bench, items, queue_id=0)
    stored = bench.stored()[1:]
    assert [(s.flag, s.body, s.properties) for s in stored] == items
    assert [s.queue_offset for s in stored] == list(range(1, 11))
    assert (reply.ext["queueOffset"], reply.ext["queueId"]) == ("1", "0")
    ids = [parse_offset_message_id(text) for text in reply.ext["msgId"].split(",")]
    assert ids == [(HOST, s.log_offset) for s in stored]
    assert "batchUniqId" not in reply.ext
    assert batch(bench, items).ext["queueOffset"] == "11"


async def test_b058_a_batch_of_one(autojump_clock, bench):
    given = props(KEYS="the key", TAGS="the tag", WAIT="false", BUYER_ID="b").encode()
    reply = batch(bench, [(123, b"one", given)])
    (stored,) = bench.stored()
    assert (stored.flag, stored.properties) == (123, given)
    assert "," not in reply.ext["msgId"]


async def test_a_batch_with_the_long_names_is_a_batch_too(autojump_clock, bench):
    reply = bench.ask(
        send(
            body=text_of([(0, b"a", b""), (0, b"b", b"")]),
            code=RequestCode.SEND_MESSAGE,
            batch=True,
        )
    )
    assert reply.code == 0
    assert [s.body for s in bench.stored()] == [b"a", b"b"]


async def test_c124_messages_of_a_batch_end_with_a_separator(autojump_clock, bench):
    given = [b"TAGS\x01TagA", b"UNIQ_KEY\x01I\x02TAGS\x01TagA", b"TAGS\x01TagA\x02", b""]
    batch(bench, [(0, b"m", text) for text in given])
    stored = bench.stored()
    assert [s.property_map.get("TAGS") for s in stored] == ["TagA", "TagA", "TagA", None]
    assert [s.properties[-1:] for s in stored] == [b"\x02", b"\x02", b"\x02", b""]
    entries = bench.store.reader.entries(bench.store.queue("T", 0), 0, 9)
    assert [(s.log_offset, s.size) for s in stored] == [entry[:2] for entry in entries]
    assert [entry[2] for entry in entries] == [tags_code("TagA")] * 3 + [0]


async def test_messages_of_a_batch_lose_what_a_client_may_not_say(autojump_clock, bench):
    given = [
        b"__CRC32#\x0112\x02a\x01b\x02",
        b"a\x01b\x02__CRC32#\x0112",
        b"POP_CK\x011 2\x02a\x01b\x02",
    ]
    batch(bench, [(0, b"m", text) for text in given])
    assert [s.properties for s in bench.stored()] == [b"a\x01b\x02"] * 3


async def test_properties_of_a_message_in_a_batch_at_the_limit(autojump_clock, bench):
    whole = b"p\x01" + b"x" * 32_764 + b"\x02"
    assert len(whole) == 32_767
    assert batch(bench, [(0, b"m", whole)]).code == 0
    unended = b"p\x01" + b"x" * 32_765
    reply = batch(bench, [(0, b"first", b""), (0, b"m", unended)])
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "message 1" in reply.remark
    assert "32768 bytes" in reply.remark
    assert len(bench.stored()) == 1


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (props(DELAY="2"), 13),
        (props(TIMER_DELIVER_MS="2"), 13),
        (props(TRAN_MSG="true"), 13),
    ],
)
async def test_c139_a_batch_with_one_bad_message_is_refused_as_a_whole(
    autojump_clock, bench, bad, code
):
    for items, header in (
        ([(0, b"good", b""), (0, b"bad", bad.encode())], ""),
        ([(0, b"good", b"")], bad),
    ):
        reply = batch(bench, items, properties=header)
        assert reply.code == code
        assert reply.remark
    assert bench.stored() == []
    assert bench.store.queues.obtain("T", 0).next_offset == 0


async def test_b061_a_batch_to_a_retry_topic_or_to_a_long_one(autojump_clock, bench):
    bench.groups.obtain("CG")
    assert batch(bench, [(0, b"m", b"")], topic="%RETRY%CG").code == 13
    reply = await bench.answer(
        send("%DLQ%" + "n" * 123, text_of([(0, b"m", b"")]), batch=True, code=320)
    )
    assert reply.code == 13
    assert bench.stored() == []


async def test_b062_a_batch_over_the_limit(autojump_clock):
    async with serving(store=attrs.evolve(STORE, max_message_size=1000)) as bench:
        bench.create()
        reply = batch(bench, [(0, b"x" * 500, b"")] * 2)
        assert reply.code == 13
        assert "1044 bytes" in reply.remark
        assert "1000 are allowed" in reply.remark
        assert bench.stored() == []


async def test_a_batch_body_that_lies(autojump_clock, bench):
    whole = text_of([(0, b"abc", b"k\x01v\x02")] * 2)
    for body in (whole[:-1], whole[:40], b"\x7f" + whole[1:], whole + b"\0\0", b"\0" * 22):
        reply = bench.ask(send(body=body, batch=True, code=RequestCode.SEND_BATCH_MESSAGE))
        assert reply.code == 13
        assert "batch" in reply.remark
    assert bench.stored() == []


@pytest.mark.parametrize("store_host", [HOST, Host("fd00::1", 10911)])
async def test_a_batch_that_does_not_fit_goes_to_the_next_segment_as_a_whole(
    autojump_clock, store_host
):
    async with serving(host=store_host) as bench:
        bench.create()
        segment = bench.store.log.segments.segment_bytes
        bench.put(b"x" * 1000)
        items = [(0, b"y" * 900, b"")] * 20
        one = 90 + 900 + len("T") + 1 + (12 if store_host.is_v6 else 0)
        # leave room for all but the last bytes of the batch
        room = 20 * one + 8 - 1
        while (left := segment - bench.store.log.end) > room + 1400:
            bench.ask(send(body=b"x" * 1000))
        fill = left - room
        overhead = bench.stored()[0].size - 1000
        bench.ask(send(body=b"z" * (fill - overhead)))
        assert segment - bench.store.log.end == room
        reply = batch(bench, items)
        assert reply.code == 0
        offsets = [parse_offset_message_id(text)[1] for text in reply.ext["msgId"].split(",")]
        assert offsets[0] == segment
        assert [b - a for a, b in pairwise(offsets)] == [one] * 19
        assert [s.body for s in bench.stored()[-20:]] == [b"y" * 900] * 20


async def test_a_batch_larger_than_a_segment(autojump_clock, bench):
    reply = batch(bench, [(0, b"x" * 10_000, b"")] * 7)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "mappedFileSizeCommitLog" in reply.remark
    assert bench.stored() == []


# -- batches on topics with batch queues


async def test_b060_a_batch_is_one_record_on_a_topic_with_batch_queues(autojump_clock, bench):
    bench.create("B", queue_type="BatchCQ")
    items = [(0, b"m%d" % n, props(UNIQ_KEY=f"I{n}").encode()) for n in range(5)]
    unique = props(
        UNIQ_KEY="BATCH", WAIT="true", INNER_NUM="9", INNER_BASE="7", POP_CK="1", TAGS="t"
    )
    for number in range(3):
        reply = batch(bench, items, topic="B", properties=unique)
        assert reply.code == 0
        assert reply.ext["queueOffset"] == str(5 * number)
        assert reply.ext["batchUniqId"] == reply.ext["transactionId"] == "BATCH"
        assert "," not in reply.ext["msgId"]
    first, _, last = bench.stored()
    assert first.sys_flag == last.sys_flag == 0xC0
    assert (first.queue_offset, last.queue_offset) == (0, 10)
    assert last.body == text_of(items)
    assert [item.body for item in split_batch(last.body)] == [b"m%d" % n for n in range(5)]
    assert last.properties == (
        b"UNIQ_KEY\x01BATCH\x02WAIT\x01true\x02TAGS\x01t\x02INNER_NUM\x015\x02INNER_BASE\x0110\x02"
        + OWN
    )
    queue = bench.store.queue("B", 0)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 15, 15)


async def test_other_messages_on_a_topic_with_batch_queues_are_records_of_one(
    autojump_clock, bench
):
    bench.create("B", queue_type="BatchCQ")
    assert bench.ask(send("B", b"single")).ext["queueOffset"] == "0"
    reply = batch(
        bench, [(0, b"a", b""), (0, b"b", b"")], topic="B"
    )  # of an old client, without a unique id
    assert reply.ext["queueOffset"] == "1"
    assert len(reply.ext["msgId"].split(",")) == 2
    assert (
        batch(
            bench, [(0, b"c", b""), (0, b"d", b"")], topic="B", properties=props(UNIQ_KEY="U")
        ).code
        == 0
    )
    assert [(s.sys_flag, s.queue_offset) for s in bench.stored()] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0xC0, 3),
    ]
    reply = bench.ask(pull(0, "B"))
    assert texts(reply)[:3] == [b"single", b"a", b"b"]
    assert reply.ext["nextBeginOffset"] == "5"
