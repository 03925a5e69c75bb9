"""Offsets at brokers, and where a group without one begins: against scripted brokers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime

import attrs
import pytest
import trio

from tests.client.admin.scripted import B1, B2, NS, cluster, no, ok
from trio_mq.client.instance import open_instance
from trio_mq.client.offsets import (
    RemoteOffsets,
    check_from_where,
    queue_max,
    queue_min,
    queue_offset_at,
    start_offset,
)
from trio_mq.client.options import ClientOptions
from trio_mq.errors import ConfigError, PeerRefused, PeerUnavailable
from trio_mq.protocol import headers
from trio_mq.protocol.bodies import BrokerData, MessageQueue
from trio_mq.protocol.codes import RequestCode, ResponseCode

Q0, Q1 = MessageQueue("T", "b1", 0), MessageQueue("T", "b2", 1)
RETRY = MessageQueue("%RETRY%G", "b1", 0)
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
NOT_STORED = no(ResponseCode.QUERY_NOT_FOUND)


@asynccontextmanager
async def brokers(down=(), **answers):
    async with cluster(B1, B2, down=down) as made:
        made.topic("T", 2)
        for peer in made.brokers.values():
            peer.answers |= {RequestCode[name]: answer for name, answer in answers.items()}
        async with open_instance(ClientOptions.of(NS)) as instance:
            await instance.route("T")
            yield made, instance


def offset_reply(offset):
    return ok(header=headers.GetMaxOffsetReply(offset))


async def test_a_stored_offset_is_read(autojump_clock):
    async with brokers(QUERY_CONSUMER_OFFSET=offset_reply(42)) as (made, instance):
        assert await RemoteOffsets(instance, "G").read(Q1) == 42
        (asked,) = made.brokers[B2].requests(RequestCode.QUERY_CONSUMER_OFFSET)
        assert asked.ext == {"consumerGroup": "G", "topic": "T", "queueId": "1"}


async def test_no_stored_offset_is_none_and_a_failure_is_no_none(autojump_clock):
    async with brokers(QUERY_CONSUMER_OFFSET=NOT_STORED) as (made, instance):
        store = RemoteOffsets(instance, "G")
        assert await store.read(Q0) is None
        made.brokers[B1].answers[RequestCode.QUERY_CONSUMER_OFFSET] = no(1, "disk is broken")
        with pytest.raises(PeerRefused, match=r"disk is broken"):
            await store.read(Q0)
        made.brokers[B1].answers[RequestCode.QUERY_CONSUMER_OFFSET] = None
        with pytest.raises(PeerUnavailable):
            await store.read(Q0)
        with pytest.raises(PeerUnavailable, match=r"broker b9 .*no route names an address"):
            await store.read(MessageQueue("T", "b9", 0))


@pytest.mark.parametrize("wait", [True, False])
async def test_positions_go_to_their_brokers(autojump_clock, wait):
    async with brokers(UPDATE_CONSUMER_OFFSET=ok()) as (made, instance):
        assert await RemoteOffsets(instance, "G").write({Q0: 5, Q1: 6}, wait=wait) == {}
        await trio.sleep(0.1)
        for address, queue_id, offset in ((B1, "0", "5"), (B2, "1", "6")):
            (asked,) = made.brokers[address].requests(RequestCode.UPDATE_CONSUMER_OFFSET)
            assert asked.is_oneway is not wait
            assert (asked.ext["queueId"], asked.ext["commitOffset"]) == (queue_id, offset)


@pytest.mark.parametrize("wait", [True, False])
async def test_a_broker_that_is_down_costs_only_its_own_queues(autojump_clock, wait):
    async with brokers(down=(B1,), UPDATE_CONSUMER_OFFSET=ok()) as (made, instance):
        other = MessageQueue("T", "b1", 1)
        failures = await RemoteOffsets(instance, "G").write({Q0: 5, other: 8, Q1: 6}, wait=wait)
        assert failures.keys() == {Q0, other}
        assert all(isinstance(failure, PeerUnavailable) for failure in failures.values())
        await trio.sleep(0.1)
        assert len(made.brokers[B2].requests(RequestCode.UPDATE_CONSUMER_OFFSET)) == 1


async def test_bounds_of_a_queue_are_asked_for(autojump_clock):
    answers = {
        "GET_MAX_OFFSET": offset_reply(90),
        "GET_MIN_OFFSET": offset_reply(10),
        "SEARCH_OFFSET_BY_TIMESTAMP": offset_reply(55),
    }
    async with brokers(**answers) as (made, instance):
        assert await queue_max(instance, Q0) == 90
        assert await queue_min(instance, Q0) == 10
        assert await queue_offset_at(instance, Q0, NOON) == 55
        (asked,) = made.brokers[B1].requests(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
        assert asked.ext["timestamp"] == str(round(NOON.timestamp() * 1000))
        assert asked.ext["boundaryType"].lower() == "lower"


@pytest.mark.parametrize(
    ("from_where", "queue", "expected"),
    [
        ("last", Q0, 90),
        ("first", Q0, 0),
        (NOON, Q0, 55),
        ("last", RETRY, 0),
        ("first", RETRY, 0),
        (NOON, RETRY, 90),
    ],
)
async def test_a_group_without_offsets_begins_where_apaches_would(
    autojump_clock, from_where, queue, expected
):
    answers = {
        "QUERY_CONSUMER_OFFSET": NOT_STORED,
        "GET_MAX_OFFSET": offset_reply(90),
        "SEARCH_OFFSET_BY_TIMESTAMP": offset_reply(55),
    }
    async with brokers(**answers) as (_, instance):
        store = RemoteOffsets(instance, "G")
        assert await start_offset(instance, store, queue, from_where) == expected


@pytest.mark.parametrize("from_where", ["last", "first", NOON])
async def test_any_stored_offset_wins(autojump_clock, from_where):
    async with brokers(QUERY_CONSUMER_OFFSET=offset_reply(3)) as (_, instance):
        assert await start_offset(instance, RemoteOffsets(instance, "G"), Q0, from_where) == 3


async def test_b116_nothing_is_guessed_when_the_broker_does_not_tell(autojump_clock):
    async with brokers(QUERY_CONSUMER_OFFSET=no(1)) as (_, instance):
        with pytest.raises(PeerRefused):
            await start_offset(instance, RemoteOffsets(instance, "G"), Q0, "first")


def test_places_to_begin_are_checked():
    assert check_from_where("last") == "last"
    assert check_from_where(NOON) == NOON
    with pytest.raises(ConfigError, match="no zone"):
        check_from_where(NOON.replace(tzinfo=None))
    with pytest.raises(ConfigError, match="'now'; give 'last', 'first' or an aware datetime"):
        check_from_where("now")


@pytest.mark.parametrize("wait", [True, False])
async def test_a_slave_keeps_offsets_while_there_is_no_master(autojump_clock, wait):
    """The master's address is in the route until a failure makes us ask for it again; then the slave is asked."""
    answers = {"QUERY_CONSUMER_OFFSET": offset_reply(42), "GET_MAX_OFFSET": offset_reply(90)}
    async with brokers(down=(B1,), UPDATE_CONSUMER_OFFSET=ok(), **answers) as (made, instance):
        only_slave = (BrokerData("c1", "b1", {1: B2}),)
        made.routes["T"] = attrs.evolve(made.routes["T"], broker_datas=only_slave)
        store = RemoteOffsets(instance, "G")
        assert await store.write({Q0: 5}, wait=wait) == {}
        await trio.sleep(0.1)
        (asked,) = made.brokers[B2].requests(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert asked.ext["commitOffset"] == "5"
        assert await store.read(Q0) == 42
        assert await queue_max(instance, Q0) == 90


async def test_a_route_in_doubt_is_asked_for_once_by_all_who_are(autojump_clock):
    async with brokers(down=(B1,)) as (made, instance):
        asked = len(made.nameserver.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC))
        queues = {MessageQueue("T", "b1", number): 5 for number in range(20)}
        failures = await RemoteOffsets(instance, "G").write(queues, wait=True)
        assert failures.keys() == queues.keys()
        instance.doubt_route("T")
        await trio.sleep(0.1)
        assert len(made.nameserver.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == asked + 1
        await trio.sleep(1)
        instance.doubt_route("T")
        await trio.sleep(0.1)
        assert len(made.nameserver.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == asked + 2
