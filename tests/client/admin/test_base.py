"""Whom an administrator asks, and what of failures."""

from __future__ import annotations

import pytest

import trio_mq
from tests.client.admin.scripted import B1, B2, B3, NS, administered, cluster, no, ok
from trio_mq import Admin
from trio_mq.client.admin.base import Target, none_did_it, targets_of
from trio_mq.config.addresses import Address
from trio_mq.errors import BrokerFailure, BrokersFailed, PeerRefused, PeerUnavailable
from trio_mq.protocol.bodies import BrokerData, TopicConfig, TopicOffset, TopicStatsTable
from trio_mq.protocol.bodies import MessageQueue as Q
from trio_mq.protocol.codes import RequestCode

STATS, CREATE = RequestCode.GET_TOPIC_STATS_INFO, RequestCode.UPDATE_AND_CREATE_TOPIC


def stats(broker: str, count: int):
    return ok(TopicStatsTable({Q("T", broker, 0): TopicOffset(0, count, 1_700_000_000_000)}, 0.5))


# -- pure


def test_the_master_is_asked_and_a_replica_only_while_there_is_none():
    both = BrokerData("c", "b2", {1: "10.0.0.2:1", 0: "10.0.0.1:1"})
    replicas = BrokerData("c", "b1", {2: "10.0.0.4:1", 1: "10.0.0.3:1"})
    nobody = BrokerData("c", "b3", {})
    found = targets_of([both, replicas, nobody], False)
    assert [(t.name, str(t.address)) for t in found] == [("b1", "10.0.0.3:1"), ("b2", "10.0.0.1:1")]
    assert targets_of([both, replicas], True) == [Target("b2", Address("10.0.0.1", 1))]


def test_the_error_when_nobody_did_it():
    down = [
        BrokerFailure(f"b{n}", f"10.0.0.{n}:1", PeerUnavailable(f"10.0.0.{n}:1: no"))
        for n in (1, 2)
    ]
    refusals = [
        BrokerFailure(
            f"b{n}", f"10.0.0.{n}:1", PeerRefused(29, "bad", address=f"10.0.0.{n}:1", what="x")
        )
        for n in (1, 2)
    ]
    assert none_did_it(tuple(refusals)) is refusals[0].error
    assert none_did_it((down[0],)) is down[0].error
    every = none_did_it(tuple(down))
    assert isinstance(every, PeerUnavailable)
    assert "10.0.0.1:1" in str(every)
    assert "10.0.0.2:1" in str(every)
    mixed = none_did_it((down[0], refusals[1]))
    assert isinstance(mixed, BrokersFailed)
    assert (mixed.done, mixed.code) == ((), 29)


def test_a_failure_names_the_address_once():
    away = PeerUnavailable("10.0.0.1:1: cannot connect")
    assert str(BrokerFailure("b1", "10.0.0.1:1", away)) == "10.0.0.1:1: cannot connect"
    assert (
        str(BrokerFailure("b1", "10.0.0.1:1", PeerUnavailable("gone"))) == "b1 at 10.0.0.1:1: gone"
    )


# -- questions


async def test_a_broker_that_is_down_is_told_and_hides_nothing(autojump_clock):
    async with administered(B1, B2, B3, down=(B2,)) as (admin, there):
        there.topic("T")
        there.brokers[B1].answers[STATS] = stats("b1", 5)
        there.brokers[B3].answers[STATS] = stats("b3", 7)
        found = await admin.topic_stats("T")
    assert {queue.broker_name: at.messages for queue, at in found.queues.items()} == {
        "b1": 5,
        "b3": 7,
    }
    assert found.messages == 12
    assert found.put_tps == 1.0
    (failure,) = found.failures
    assert (failure.name, failure.address) == ("b2", B2)
    assert isinstance(failure.error, PeerUnavailable)


async def test_brokers_are_asked_at_the_same_time(autojump_clock):
    """Three that never answer cost one time-out, and not three."""
    async with administered(B1, B2, B3, call_timeout_s=5.0) as (admin, there):
        there.topic("T")
        for address in (B1, B2, B3):
            there.brokers[address].answers[STATS] = None
        began = trio_now()
        with pytest.raises(PeerUnavailable) as caught:
            await admin.topic_stats("T")
        assert trio_now() - began < 6
    assert all(address in str(caught.value) for address in (B1, B2, B3))


def trio_now() -> float:
    import trio

    return trio.current_time()


async def test_refused_by_all_is_the_first_refusal():
    async with administered(B1, B2) as (admin, there):
        there.topic("T")
        for address in (B1, B2):
            there.brokers[address].answers[STATS] = no(17, "not here")
        with pytest.raises(
            PeerRefused, match=rf"{B1} refused GET_TOPIC_STATS_INFO \(202\) for topic T"
        ) as caught:
            await admin.topic_stats("T")
    assert caught.value.code == 17


# -- changes


async def test_a_change_that_only_some_made_tells_who(autojump_clock):
    async with administered(B1, B2, down=(B2,)) as (admin, there):
        there.brokers[B1].answers[CREATE] = ok()
        with pytest.raises(
            BrokersFailed, match=rf"topic T: done at {B1}, but not everywhere: {B2}"
        ) as caught:
            await admin.create_topic("T")
    assert caught.value.done == (B1,)
    assert [failure.address for failure in caught.value.failures] == [B2]
    assert caught.value.code is None


async def test_one_broker_by_name_or_address():
    async with administered(B1, B2) as (admin, there):
        for broker in ("b2", B2):
            there.brokers[B2].answers[CREATE] = ok()
            made = await admin.create_topic("T", broker=broker)
            assert made == TopicConfig("T", 8, 8, 6)
        assert len(there.brokers[B2].requests(CREATE)) == 2
        assert there.brokers[B1].asked == []
        with pytest.raises(trio_mq.ConfigError, match=r"knows no 'b7'; it knows b1, b2"):
            await admin.create_topic("T", broker="b7")
        with pytest.raises(trio_mq.ConfigError, match=r"knows no 'other'; it knows c1"):
            await admin.create_topic("T", cluster="other")


async def test_a_cluster_without_brokers():
    async with administered() as (admin, _):
        with pytest.raises(PeerUnavailable, match=rf"no master now.*{NS}"):
            await admin.create_topic("T")


# -- life


async def test_outside_of_its_block_it_says_so():
    async with cluster(B1):
        admin = Admin(NS)
        with pytest.raises(trio_mq.NotOpen, match="not open yet"):
            await admin.topics()
        async with admin:
            assert await admin.clusters() == {"c1": ("b1",)}
        with pytest.raises(trio_mq.NotOpen, match="is closed"):
            await admin.topics()


async def test_no_name_server(autojump_clock):
    async with cluster(B1, down=(NS,)):
        with pytest.raises(PeerUnavailable, match=NS):
            async with Admin(NS, start_timeout_s=3.0):
                pass


async def test_the_next_name_server_is_asked():
    async with cluster(B1), Admin(f"10.0.0.8:9876;{NS}") as admin:
        assert await admin.clusters() == {"c1": ("b1",)}


async def test_a_long_life_keeps_its_links(autojump_clock):
    """No route of ours names the brokers: the sweep of other clients for stale links would close them."""
    import trio

    async with administered(B1) as (admin, there):
        there.brokers[B1].answers[RequestCode.GET_BROKER_CONFIG] = ok(b"a=b\n")
        await admin.broker_config("b1")
        await trio.sleep(3600)
        assert len(there.network.wires(address=Address("10.0.0.1", 10911))) == 1
        assert await admin.broker_config("b1") == {"a": "b"}
        assert there.brokers[B1].requests(RequestCode.HEART_BEAT) == []


async def test_requests_are_signed():
    keys = trio_mq.Credentials("me", "secret")
    async with administered(B1, credentials=keys) as (admin, there):
        there.brokers[B1].answers[RequestCode.GET_BROKER_CONFIG] = ok(b"")
        await admin.broker_config("b1")
    (asked,) = there.brokers[B1].asked
    assert asked.ext["AccessKey"] == "me"
    assert asked.ext["Signature"]
