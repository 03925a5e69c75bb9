"""What consumers are asked through the broker: 307, 309, 223."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.broker.support import FakePeer, raw, request, serving
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import (
    ConsumerData,
    ConsumerStatusBody,
    HeartbeatData,
    MessageQueue,
    SubscriptionData,
)
from trio_mq.protocol.codes import FLAG_RESPONSE, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers.heartbeat import (
    ConsumeMessageDirectlyResultRequest,
    GetConsumerRunningInfoRequest,
)
from trio_mq.protocol.headers.offset import GetConsumerStatusRequest
from trio_mq.protocol.message import offset_message_id
from trio_mq.protocol.record import decode

RUNNING_INFO, DIRECTLY, STATUS, ASK_STATUS, BEAT = 307, 309, 223, 221, 34


def join(bench, client_id: str, *, group: str = "G", version: int = 493) -> FakePeer:
    """A consumer that sends heartbeats."""
    peer = FakePeer()
    consumer = ConsumerData(group, subscription_data_set=(SubscriptionData("T", sub_version=1),))
    body = bodies.encode(HeartbeatData(client_id, (), (consumer,)))
    bench.hand(peer, raw(Command(BEAT, body=body, opaque=1, version=version)))
    for other in bench.broker.members.consumers(group):
        other.peer.take()
    return peer


def answer(bench, peer: FakePeer, asked: Command, code: int = 0, **more) -> None:
    """The consumer answers."""
    bench.hand(peer, raw(Command(code, flag=FLAG_RESPONSE, opaque=asked.opaque, **more)))


@pytest.fixture
async def bench():
    async with serving() as bench:
        bench.create("T")
        yield bench


async def test_running_info_is_what_the_consumer_says(autojump_clock, bench):
    consumer, other, admin = join(bench, "c1"), join(bench, "c2"), FakePeer()
    consumer.take()
    header = GetConsumerRunningInfoRequest("G", "c1", jstack_enable=True)
    bench.hand(admin, request(RUNNING_INFO, header, opaque=77))
    asked = consumer.one()
    assert (asked.code, asked.flag, other.take(), admin.take()) == (RUNNING_INFO, 0, [], [])
    assert asked.ext == {"consumerGroup": "G", "clientId": "c1", "jstackEnable": "true"}
    answer(bench, consumer, asked, body=b'{"jstack":"main"}', remark="fine", ext={"x": "y"})
    told = admin.one()
    assert (told.opaque, told.code, told.flag) == (77, 0, FLAG_RESPONSE)
    assert (told.body, told.remark, told.ext) == (b'{"jstack":"main"}', "fine", {"x": "y"})


async def test_what_a_consumer_refuses_is_told_too(autojump_clock, bench):
    consumer, admin = join(bench, "c1"), FakePeer()
    bench.hand(admin, request(RUNNING_INFO, GetConsumerRunningInfoRequest("G", "c1")))
    answer(bench, consumer, consumer.one(), 1, remark="no such group here")
    told = admin.one()
    assert (told.code, told.remark) == (1, "no such group here")


async def test_consumers_that_cannot_be_asked(autojump_clock, bench):
    told = bench.ask(request(RUNNING_INFO, GetConsumerRunningInfoRequest("G", "c1")))
    assert (told.code, "none" in told.remark) == (ResponseCode.SYSTEM_ERROR, True)
    join(bench, "c2")
    told = bench.ask(request(RUNNING_INFO, GetConsumerRunningInfoRequest("G", "c1")))
    assert told.code == ResponseCode.SYSTEM_ERROR
    assert "<G> <c1> not online" in told.remark
    assert "c2" in told.remark
    join(bench, "old", version=61)
    told = bench.ask(request(RUNNING_INFO, GetConsumerRunningInfoRequest("G", "old")))
    assert (told.code, "61" in told.remark) == (ResponseCode.SYSTEM_ERROR, True)


async def test_a_consumer_that_is_silent_and_one_that_goes(autojump_clock, bench):
    consumer, admin = join(bench, "c1"), FakePeer()
    bench.hand(admin, request(RUNNING_INFO, GetConsumerRunningInfoRequest("G", "c1")))
    told = await bench.next(admin)
    assert (told.code, "10 s" in told.remark) == (ResponseCode.CONSUME_MSG_TIMEOUT, True)
    bench.hand(admin, request(RUNNING_INFO, GetConsumerRunningInfoRequest("G", "c1")))
    consumer.close()
    bench.face.disconnected(consumer)
    told = admin.one()
    assert (told.code, "closed" in told.remark) == (ResponseCode.SYSTEM_ERROR, True)


async def test_a_message_is_consumed_directly(autojump_clock, bench):
    bench.put(b"first", b"second", topic="T")
    second = bench.stored()[1]
    consumer, admin = join(bench, "c1"), FakePeer()
    message_id = offset_message_id(bench.store.host, second.log_offset)
    header = ConsumeMessageDirectlyResultRequest("G", "c1", message_id, topic="T")
    bench.hand(admin, request(DIRECTLY, header, ext=None))
    asked = consumer.one()
    assert decode(asked.body).body == b"second"
    assert asked.ext == {
        "consumerGroup": "G", "clientId": "c1", "msgId": message_id, "topic": "T",
        "brokerName": "b-a", "topicSysFlag": "0", "groupSysFlag": "0",
    }  # fmt: skip
    answer(bench, consumer, asked, body=b'{"consumeResult":"CR_SUCCESS"}')
    assert admin.one().body == b'{"consumeResult":"CR_SUCCESS"}'


@pytest.mark.parametrize(
    ("message_id", "says"),
    [
        (None, "msgId"),
        ("C0A8010500002A9F00000000000003E8", "no message at log offset 1000"),
        ("7F000001ABCD", "offset id"),
        ("C0A8010500002A9F0000000000000004", "no message"),
    ],
)
async def test_messages_that_cannot_be_consumed(autojump_clock, bench, message_id, says):
    bench.put(b"body", topic="T")
    consumer = join(bench, "c1")
    header = ConsumeMessageDirectlyResultRequest("G", "c1", message_id)
    told = bench.ask(request(DIRECTLY, header))
    assert (told.code, consumer.take()) == (ResponseCode.SYSTEM_ERROR, [])
    assert says in told.remark


def offsets(asked: Command, **table: int) -> bytes:
    assert (asked.code, asked.ext) == (ASK_STATUS, {"topic": "T", "group": "G"})
    queues = {MessageQueue("T", "b-a", int(number[1:])): o for number, o in table.items()}
    return bodies.encode(ConsumerStatusBody({}, queues))


async def test_offsets_by_what_all_consumers_say(autojump_clock, bench):
    one, two, admin = join(bench, "c1"), join(bench, "c2"), FakePeer()
    bench.hand(admin, request(STATUS, GetConsumerStatusRequest("T", "G")))
    first, second = one.one(), two.one()
    answer(bench, two, second, body=offsets(second, q1=9))
    assert admin.take() == []
    answer(bench, one, first, body=offsets(first, q0=5, q2=0))
    found = bodies.decode(ConsumerStatusBody, admin.one().body)
    queue = MessageQueue("T", "b-a", 0)
    assert found.consumer_table == {
        "c1": {queue: 5, attrs.evolve(queue, queue_id=2): 0},
        "c2": {attrs.evolve(queue, queue_id=1): 9},
    }


async def test_consumers_whose_offsets_are_not_heard_are_left_out(autojump_clock, bench, caplog):
    silent, bad, refusing, good = (join(bench, f"c{n}") for n in range(4))
    admin = FakePeer()
    began_s = trio.current_time()
    bench.hand(admin, request(STATUS, GetConsumerStatusRequest("T", "G")))
    answer(bench, bad, bad.one(), body=b"{")
    answer(bench, refusing, refusing.one(), 1, remark="no")
    asked = good.one()
    answer(bench, good, asked, body=offsets(asked, q0=5))
    assert len(silent.take()) == 1
    found = bodies.decode(ConsumerStatusBody, (await bench.next(admin)).body)
    assert list(found.consumer_table) == ["c3"]
    assert trio.current_time() - began_s == pytest.approx(5, abs=0.2)
    assert "c1: its offsets cannot be read" in caplog.text
    assert "c0 did not answer in time" in caplog.text


async def test_offsets_of_one_consumer_or_of_nobody(autojump_clock, bench):
    told = bench.ask(request(STATUS, GetConsumerStatusRequest("T", "G")))
    assert (told.code, "[G]" in told.remark) == (ResponseCode.SYSTEM_ERROR, True)
    one, two, admin = join(bench, "c1"), join(bench, "c2"), FakePeer()
    bench.hand(admin, request(STATUS, GetConsumerStatusRequest("T", "G", "c2")))
    asked = two.one()
    assert one.take() == []
    answer(bench, two, asked, body=offsets(asked, q0=5))
    assert len(bodies.decode(ConsumerStatusBody, admin.one().body).consumer_table) == 1
    told = bench.ask(request(STATUS, GetConsumerStatusRequest("T", "G", "another")))
    assert bodies.decode(ConsumerStatusBody, told.body).consumer_table == {}
    join(bench, "old", version=27)
    told = bench.ask(request(STATUS, GetConsumerStatusRequest("T", "G")))
    assert (told.code, "27" in told.remark) == (ResponseCode.SYSTEM_ERROR, True)
