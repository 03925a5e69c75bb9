"""Replies to requests: pushed to who asked, stored, answered."""

from __future__ import annotations

import attrs
import pytest

from tests.broker.support import BROKER, STORE, FakePeer, props, raw, request, send, serving
from trio_mq.config import BrokerSettings, FlushDiskType
from trio_mq.protocol import properties
from trio_mq.protocol.bodies import HeartbeatData, ProducerData
from trio_mq.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.message import offset_message_id
from trio_mq.testing.disk import MemoryDisk

REPLY, REPLY_V2, PUSH, BEAT = 324, 325, 326, 34
TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = props(MSG_TYPE="reply", CORRELATION_ID="7", REPLY_TO_CLIENT="asker", TTL="3000")


@pytest.fixture
async def bench():
    async with serving() as bench:
        yield bench


def asker(bench, client_id: str = "asker") -> FakePeer:
    """A producer that sends requests."""
    peer = FakePeer()
    body = HeartbeatData(client_id, (ProducerData("PG"),), ())
    bench.hand(peer, request(BEAT, body=body))
    peer.take()
    return peer


def reply(code: int = REPLY_V2, body: bytes = b"the answer", **fields):
    fields = {"properties": PROPERTIES, "flag": 0} | fields
    if code == REPLY_V2:
        return send(TOPIC, body, code=code, **fields)
    frame = send(TOPIC, body, code=RequestCode.SEND_MESSAGE, **fields)
    return (frame[0], frame[1].replace(b'{"code":10,', b'{"code":324,'), frame[2])


def took(bench, peer: FakePeer, pushed: Command, code: int = 0, remark: str | None = None) -> None:
    """The asking client says what it did with a reply."""
    bench.hand(peer, raw(Command(code, flag=FLAG_RESPONSE, opaque=pushed.opaque, remark=remark)))


@pytest.mark.parametrize("code", [REPLY, REPLY_V2])
async def test_a_reply_goes_to_who_asked_then_into_the_store(autojump_clock, bench, code):
    client, consumer = asker(bench), FakePeer()
    bench.hand(consumer, reply(code))
    assert (consumer.take(), bench.stored()) == ([], [])
    pushed = client.one()
    assert (pushed.code, pushed.flag, pushed.body) == (PUSH, 0, b"the answer")
    assert pushed.ext["topic"] == TOPIC
    assert pushed.ext["bornHost"] == f"{consumer.address.ip}:{consumer.address.port}"
    assert pushed.ext["storeHost"] == "192.168.1.5:10911"
    found = properties.parse(pushed.ext["properties"].encode())
    assert found.pop("PUSH_REPLY_TIME") == pushed.ext["storeTimestamp"]
    assert found == properties.parse(PROPERTIES.encode())
    took(bench, client, pushed)
    told, (record,) = consumer.one(), bench.stored()
    assert told.code == ResponseCode.SUCCESS
    assert told.ext == {
        "msgId": offset_message_id(bench.store.host, record.log_offset),
        "queueId": "0", "queueOffset": "0", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    assert (record.topic, record.body) == (TOPIC, b"the answer")
    assert properties.parse(record.properties) == properties.parse(PROPERTIES.encode())


async def test_replies_that_reach_nobody_are_stored_and_refused(autojump_clock, bench):
    consumer = FakePeer()
    bench.hand(consumer, reply())
    told = consumer.one()
    assert (told.code, "<asker> not found" in told.remark) == (ResponseCode.SYSTEM_ERROR, True)
    bench.hand(consumer, reply(properties=props(MSG_TYPE="reply")))
    told = consumer.one()
    assert (told.code, "REPLY_TO_CLIENT" in told.remark) == (ResponseCode.SYSTEM_ERROR, True)
    client = asker(bench)
    bench.hand(consumer, reply())
    took(bench, client, client.one(), 1, "nobody waits for it")
    told = consumer.one()
    assert (told.code, "nobody waits" in told.remark) == (ResponseCode.SYSTEM_ERROR, True)
    bench.hand(consumer, reply())
    told = await bench.next(consumer)
    assert (told.code, "in time" in told.remark) == (ResponseCode.SYSTEM_ERROR, True)
    client.close()
    bench.face.disconnected(client)
    bench.hand(consumer, reply())
    assert consumer.one().code == ResponseCode.SYSTEM_ERROR
    assert len(bench.stored()) == 5


async def test_a_client_that_reconnected_is_asked_on_its_new_connection(autojump_clock, bench):
    old, new = asker(bench), asker(bench)
    bench.hand(FakePeer(), reply())
    assert (old.take(), len(new.take())) == ([], 1)
    new.close()
    bench.face.disconnected(new)
    bench.hand(FakePeer(), reply())
    assert len(old.take()) == 1


async def test_replies_are_checked_as_sends_are(autojump_clock, bench):
    client = asker(bench)
    for bad, code in (
        (reply(queue_id=5), ResponseCode.INVALID_PARAMETER),
        (reply(body=b""), ResponseCode.MESSAGE_ILLEGAL),
        (reply(properties=PROPERTIES + "x" * 40_000), ResponseCode.MESSAGE_ILLEGAL),
        (send("SCHEDULE_TOPIC_XXXX", code=REPLY_V2), ResponseCode.NO_PERMISSION),
    ):
        assert bench.ask(bad).code == code
    assert (client.take(), bench.stored()) == ([], [])


async def test_replies_need_not_be_stored(autojump_clock):
    settings = BrokerSettings(broker_name="b-a", store_reply_message_enable=False)
    async with serving(broker=settings) as bench:
        client, consumer = asker(bench), FakePeer()
        bench.hand(consumer, reply())
        took(bench, client, client.one())
        told = consumer.one()
        assert (told.code, told.ext["msgId"], told.ext["queueOffset"]) == (0, "0", "0")
        assert bench.stored() == []


async def test_a_reply_that_cannot_be_stored_was_given_all_the_same(autojump_clock, bench, caplog):
    client, consumer = asker(bench), FakePeer()
    bench.hand(consumer, reply())
    bench.store.cleaner.refusal = "the disk is full"
    took(bench, client, client.one())
    told = consumer.one()
    assert (told.code, told.ext["msgId"]) == (0, "0")
    assert "not stored" in caplog.text


async def test_under_sync_flush_the_answer_waits_for_the_disk(autojump_clock):
    store = attrs.evolve(STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    async with serving(MemoryDisk(), broker=BROKER, store=store) as bench:
        client, consumer = asker(bench), FakePeer()
        bench.hand(consumer, reply())
        took(bench, client, client.one())
        assert consumer.take() == []
        assert (await bench.next(consumer)).code == ResponseCode.SUCCESS
        assert bench.store.log.durable.value == bench.store.log.written
