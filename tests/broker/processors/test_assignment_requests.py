"""QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE: who reads what, how, and that it survives a restart."""

from __future__ import annotations

import json

import attrs
import pytest

from tests.broker.support import BROKER, GROUP, TOPIC, FakePeer, request, serving
from trio_mq.config.broker import MessageRequestMode
from trio_mq.protocol.bodies import MessageModel, QueryAssignmentBody, SetMessageRequestModeBody
from trio_mq.protocol.codes import RequestCode


@pytest.fixture
async def bench(autojump_clock):
    async with serving() as made:
        made.create()
        yield made


def members(bench, count):
    """Clients of the group; their ids."""
    peers = [FakePeer() for _ in range(count)]
    for peer in peers:
        bench.beat(peer, TOPIC)
    return sorted(f"client@{peer.address.port}" for peer in peers)


def query(client_id, *, topic=TOPIC, strategy="AVG", model=MessageModel.CLUSTERING, group=GROUP):
    body = QueryAssignmentBody(topic, group, client_id, strategy, model)
    return request(RequestCode.QUERY_ASSIGNMENT, body=body)


async def assigned(bench, client_id, **fields):
    """(broker, queue id, mode) of all queues; None for no list."""
    reply = await bench.answer(query(client_id, **fields))
    assert reply.code == 0, reply.remark
    body = json.loads(reply.body)
    if "messageQueueAssignments" not in body:
        return None
    return [
        (one["messageQueue"]["brokerName"], one["messageQueue"]["queueId"], one["mode"])
        for one in body["messageQueueAssignments"]
    ]


async def set_mode(bench, mode="POP", share=0, *, topic=TOPIC, group=GROUP):
    body = SetMessageRequestModeBody(topic, group, mode, share)
    return await bench.answer(request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body))


async def test_queues_are_divided(autojump_clock, bench):
    first, second = members(bench, 2)
    assert await assigned(bench, first) == [("b-a", 0, "PULL"), ("b-a", 1, "PULL")]
    assert await assigned(bench, second) == [("b-a", 2, "PULL"), ("b-a", 3, "PULL")]
    circle = await assigned(bench, second, strategy="AVG_BY_CIRCLE")
    assert circle == [("b-a", 1, "PULL"), ("b-a", 3, "PULL")]
    assert await assigned(bench, "stranger") == []


async def test_all_pop_all_queues_or_those_of_some(autojump_clock, bench):
    first, second, third, fourth = members(bench, 4)
    assert (await set_mode(bench)).code == 0
    assert await assigned(bench, first) == [("b-a", -1, "POP")]
    assert await assigned(bench, "stranger") == [("b-a", -1, "POP")]
    assert (await set_mode(bench, share=1)).code == 0
    assert await assigned(bench, first) == [("b-a", 0, "POP"), ("b-a", 1, "POP")]
    assert await assigned(bench, fourth) == [("b-a", 3, "POP"), ("b-a", 0, "POP")]
    assert (await set_mode(bench, "PULL")).code == 0
    assert await assigned(bench, third) == [("b-a", 2, "PULL")]
    assert await assigned(bench, second) == [("b-a", 1, "PULL")]


async def test_everybody_hears_a_broadcast(autojump_clock, bench):
    found = await assigned(bench, "anybody", model=MessageModel.BROADCASTING)
    assert [queue_id for _, queue_id, _ in found] == [0, 1, 2, 3]


async def test_keep_what_you_have(autojump_clock, bench):
    """Without a list: the topic, the group or the strategy is not known."""
    (client,) = members(bench, 1)
    assert await assigned(bench, client, topic="nothing") is None
    assert await assigned(bench, client, group="nobody") is None
    assert await assigned(bench, client, strategy="MACHINE_ROOM") is None
    assert await assigned(bench, " ") is None


async def test_an_lmq_has_one_queue_here(autojump_clock, bench):
    (client,) = members(bench, 1)
    assert await assigned(bench, client, topic="%LMQ%x") == [("b-a", 0, "PULL")]


async def test_settings_say_what_holds_for_all_others(autojump_clock):
    popping = attrs.evolve(
        BROKER, default_message_request_mode=MessageRequestMode.POP, default_pop_share_queue_num=1
    )
    async with serving(broker=popping) as bench:
        bench.create()
        bench.create(f"%RETRY%{GROUP}", 1)
        first, *_ = members(bench, 4)
        assert await assigned(bench, first) == [("b-a", 0, "POP"), ("b-a", 1, "POP")]
        retry = await assigned(bench, first, topic=f"%RETRY%{GROUP}")
        assert retry == [("b-a", 0, "PULL")]
    async with serving(broker=attrs.evolve(BROKER, server_load_balancer_enable=False)) as bench:
        bench.create(queues=2)
        found = await assigned(bench, "anybody")
        assert found == [("b-a", 0, "PULL"), ("b-a", 1, "PULL")]


async def test_a_mode_survives_the_broker(autojump_clock, bench):
    """It is on the disk when it is answered."""
    assert (await set_mode(bench, share=2)).code == 0
    bench.disk.crash(1, keep="none")
    saved = json.loads(bench.disk.open("/store/config/messageRequestMode.json").read(1000, 0))
    assert saved["messageRequestModeMap"][TOPIC][GROUP]["popShareQueueNum"] == 2


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (16, {"topic": f"%RETRY%{GROUP}"}),
        (17, {"topic": "nothing"}),
        (1, {"mode": "PUSH"}),
    ],
)
async def test_modes_that_are_refused(autojump_clock, bench, code, fields):
    reply = await set_mode(bench, **fields)
    assert reply.code == code
    assert reply.remark


async def test_the_mode_of_an_unknown_group_is_refused(autojump_clock):
    async with serving(broker=attrs.evolve(BROKER, auto_create_subscription_group=False)) as bench:
        bench.create()
        assert (await set_mode(bench)).code == 26


async def test_all_modes_for_a_broker_that_follows(bench):
    assert (await set_mode(bench, share=3)).code == 0
    reply = await bench.answer(request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE))
    mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 3}
    assert json.loads(reply.body) == {"messageRequestModeMap": {TOPIC: {GROUP: mode}}}
