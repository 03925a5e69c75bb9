"""Resets of consumer offsets by the broker, and by the clients where that is set."""

from __future__ import annotations

import pytest
import trio

from tests.broker.processors.conftest import BROKER, FakePeer, make_bench
from trio_mq.protocol import bodies, jsondialect
from trio_mq.protocol.bodies import ConsumerData, MessageQueue, ResetOffsetBody, TopicConfig
from trio_mq.protocol.codes import FLAG_ONEWAY, LanguageCode
from trio_mq.protocol.headers.offset import QueryConsumerOffsetRequest, ResetOffsetRequest

QUERY, RESET_CLIENT, RESET = 14, 220, 222


async def make(**settings):
    bench = await make_bench(**settings)
    bench.topics.update(TopicConfig("T", 2, 2), None)
    bench.groups.obtain("G")
    return bench


def offsets(reply) -> dict[int, int]:
    assert reply.code == 0, reply.remark
    table = bodies.decode(ResetOffsetBody, reply.body).offset_table
    assert all((queue.topic, queue.broker_name) == ("T", BROKER) for queue in table)
    return {queue.queue_id: offset for queue, offset in table.items()}


async def test_one_queue_to_an_offset():
    bench = await make()
    bench.put("T", 0, 10)
    bench.offsets.commit("G", "T", 0, 9)
    reply = bench.ask(RESET, ResetOffsetRequest("G", "T", 0, queue_id=0, offset=4))
    assert offsets(reply) == {0: 4}
    assert bench.offsets.pending_reset("G", "T", 0) == 4
    assert bench.ask(QUERY, QueryConsumerOffsetRequest("G", "T", 0)).ext == {"offset": "4"}


@pytest.mark.parametrize(("offset", "code"), [(-2, 1), (0, 0), (10, 0), (11, 0), (12, 1)])
async def test_b106_the_range_of_offsets(offset, code):
    """B106: from min to max + 1."""
    bench = await make()
    bench.put("T", 0, 10)
    reply = bench.ask(RESET, ResetOffsetRequest("G", "T", 0, queue_id=0, offset=offset))
    assert reply.code == code
    if code:
        assert "0 to 10" in reply.remark
        assert bench.offsets.pending_reset("G", "T", 0) is None


async def test_b106_below_the_first_message_that_is_left():
    """B106."""
    bench = await make()
    bench.put("T", 0, 10)
    bench.store.queue("T", 0).min_offset = 5
    assert bench.ask(RESET, ResetOffsetRequest("G", "T", 0, queue_id=0, offset=4)).code == 1


async def test_b106_unknown_topic_group_and_queue():
    """B106."""
    bench = await make()
    assert bench.ask(RESET, ResetOffsetRequest("G", "X", 0)).code == 17
    assert bench.ask(RESET, ResetOffsetRequest("X", "T", 0)).code == 26
    assert bench.ask(RESET, ResetOffsetRequest("G", "T", 0, queue_id=2, offset=0)).code == 29


async def test_b103_all_queues_by_time(autojump_clock):
    """B103."""
    bench = await make()
    bench.put("T", 0, 3)
    bench.put("T", 1, 2)
    await trio.sleep(10)
    middle_ms = bench.clock.now_ms()
    bench.put("T", 0, 4)
    reply = bench.ask(RESET, ResetOffsetRequest("G", "T", middle_ms))
    assert offsets(reply) == {0: 3, 1: 2}
    assert offsets(bench.ask(RESET, ResetOffsetRequest("G", "T", 0))) == {0: 0, 1: 0}


async def test_b104_without_queue_and_offset_and_with_time_minus_1_it_is_the_end():
    """B104."""
    bench = await make()
    bench.put("T", 0, 3)
    fields = {"group": "G", "topic": "T", "timestamp": "-1", "isForce": "true"}
    assert offsets(bench.ask(RESET, ext=fields)) == {0: 3, 1: 0}
    reply = bench.ask(RESET, ResetOffsetRequest("G", "T", -1, queue_id=0, offset=-1))
    assert offsets(reply) == {0: 3}


async def test_c115_an_offline_group_and_queues_without_messages():
    """C115: stored although nobody is connected; a queue without messages gets its end, not 0."""
    bench = await make()
    bench.topics.create_retry("%RETRY%G", 1)
    bench.put("T", 0, 6)
    bench.store.queue("T", 0).min_offset = 6  # all of them have expired
    assert offsets(bench.ask(RESET, ResetOffsetRequest("G", "T", 1_000))) == {0: 6, 1: 0}
    assert bench.offsets.of("G", "T") == {0: 6, 1: 0}
    assert bench.ask(RESET, ResetOffsetRequest("G", "%RETRY%G", 1_000)).code == 0
    assert bench.offsets.of("G", "%RETRY%G") == {0: 0}


# -- useServerSideResetOffset=false: the clients do it


def clients_asked(peer: FakePeer):
    return [c for c in peer.take() if c.code == RESET_CLIENT and not c.is_response]


async def test_clients_are_asked_where_the_broker_must_not():
    bench = await make(use_server_side_reset_offset=False)
    bench.put("T", 0, 10)
    bench.put("T", 1, 10)
    for queue_id in (0, 1):
        bench.offsets.commit("G", "T", queue_id, 5)
    peer = FakePeer(1)
    bench.beat(peer, "c1", ConsumerData("G"))
    peer.take()
    assert offsets(bench.ask(RESET, ResetOffsetRequest("G", "T", -1))) == {0: 5, 1: 5}
    reply = bench.ask(RESET, ResetOffsetRequest("G", "T", -1, force=True))
    assert offsets(reply) == {0: 10, 1: 10}
    gentle, forced = clients_asked(peer)
    assert forced.flag == FLAG_ONEWAY
    assert forced.ext["topic"] == "T"
    assert forced.ext["group"] == "G"
    assert bodies.decode(ResetOffsetBody, gentle.body).offset_table == {
        MessageQueue("T", BROKER, 0): 5,
        MessageQueue("T", BROKER, 1): 5,
    }
    assert bench.offsets.query("G", "T", 0) == 5  # the client's next commit will tell


async def test_a_cpp_client_gets_a_list():
    bench = await make(use_server_side_reset_offset=False)
    for queue_id in (0, 1):
        bench.offsets.commit("G", "T", queue_id, 0)
    peer = FakePeer(1)
    bench.beat(peer, "c1", ConsumerData("G"))
    bench.members.consumer("G", "c1").language = LanguageCode.CPP
    bench.ask(RESET, ResetOffsetRequest("G", "T", -1))
    (asked,) = clients_asked(peer)
    rows = jsondialect.loads(asked.body)["offsetTable"]
    assert rows[0] == {"brokerName": BROKER, "offset": 0, "queueId": 0, "topic": "T"}
    assert len(rows) == 2


async def test_nobody_to_ask_or_nothing_to_reset():
    bench = await make(use_server_side_reset_offset=False)
    reply = bench.ask(RESET, ResetOffsetRequest("G", "T", -1))
    assert reply.code == 1
    assert "nothing to reset" in reply.remark
    for queue_id in (0, 1):
        bench.offsets.commit("G", "T", queue_id, 0)
    reply = bench.ask(RESET, ResetOffsetRequest("G", "T", -1))
    assert reply.code == 206
    assert "useServerSideResetOffset" in reply.remark
