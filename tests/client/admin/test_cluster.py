"""Clusters, brokers, name servers, and what a consumer says of itself."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.client.admin.scripted import B1, B2, administered, no, ok
from trio_mq.client.admin.cluster import brokers_of, queue_in_hand, settings_of
from trio_mq.client.admin.values import Answers, Broker, BrokerStatus, Several
from trio_mq.errors import ConfigError, PeerRefused
from trio_mq.protocol import headers
from trio_mq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerRunningInfo,
    KVTable,
    MessageQueue,
    SubscriptionData,
)
from trio_mq.protocol.codes import RequestCode

RUNTIME, RUNNING = RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_CONSUMER_RUNNING_INFO
TABLE = {
    "brokerVersionDesc": "V5_4_0",
    "bootTimestamp": "1700000000000",
    "putTps": "12.5 3.0 1.0",
    "getTransferredTps": "7.25 2.0 1.0",
    "commitLogDiskRatio": "0.34",
    "msgPutTotalTodayNow": "150",
    "msgPutTotalTodayMorning": "100",
    "msgGetTotalTodayNow": "30",
    "msgGetTotalTodayMorning": "0",
}


def test_brokers_by_cluster_name_and_id():
    table = {
        "b2": BrokerData("c2", "b2", {0: "10.0.0.2:1"}),
        "b1": BrokerData("c1", "b1", {1: "10.0.0.3:1", 0: "10.0.0.1:1"}),
    }
    info = ClusterInfo(table, {"c1": ("b1",), "c2": ("b2",)})
    assert brokers_of(info, None) == (
        Broker("c1", "b1", 0, "10.0.0.1:1"),
        Broker("c1", "b1", 1, "10.0.0.3:1"),
        Broker("c2", "b2", 0, "10.0.0.2:1"),
    )
    assert [broker.name for broker in brokers_of(info, "c2")] == ["b2"]
    with pytest.raises(ConfigError, match="it knows c1, c2"):
        brokers_of(info, "c3")


def test_the_figures_of_a_broker():
    broker = Broker("c1", "b1", 0, B1)
    status = BrokerStatus(broker, TABLE)
    assert (status.version, status.put_tps, status.get_tps) == ("V5_4_0", 12.5, 7.25)
    assert (status.put_today, status.get_today, status.disk_ratio) == (50, 30, 0.34)
    assert status.boot_at == datetime.fromtimestamp(1_700_000_000, UTC)
    silent = BrokerStatus(broker, {"putTps": "", "getTransferredTps": "NaN?", "bootTimestamp": "x"})
    assert (silent.version, silent.put_tps, silent.get_tps, silent.boot_at) == ("", 0.0, 0.0, None)


def test_settings_are_lines():
    text = b"b=1\nnothing here\na = x=y \n\npath=C:\\new\n"
    assert settings_of(text) == {"a": "x=y", "b": "1", "path": "C:\\new"}


def test_results_are_collections():
    answers = Answers({"b1": 1})
    assert (answers["b1"], len(answers), list(answers), dict(answers)) == (1, 1, ["b1"], {"b1": 1})
    several = Several(("a", "b"))
    assert (several[0], several[:1], len(several), list(several)) == ("a", ("a",), 2, ["a", "b"])


async def test_status_of_all_brokers(autojump_clock):
    async with administered(B1, B2, down=(B2,)) as (admin, there):
        there.brokers[B1].answers[RUNTIME] = ok(KVTable(TABLE))
        found = await admin.cluster_status()
        assert [(status.broker.name, status.version) for status in found] == [("b1", "V5_4_0")]
        assert [failure.address for failure in found.failures] == [B2]
        for broker in ("b1", B1):
            status = await admin.broker_status(broker)
            assert status.broker == Broker("c1", "b1", 0, B1)
        assert await admin.clusters() == {"c1": ("b1", "b2")}
        assert [broker.address for broker in await admin.brokers("c1")] == [B1, B2]


async def test_settings_of_a_broker():
    async with administered(B1) as (admin, there):
        there.brokers[B1].answers |= {
            RequestCode.GET_BROKER_CONFIG: ok(b"fileReservedTime=72\n"),
            RequestCode.UPDATE_BROKER_CONFIG: ok(),
        }
        assert await admin.broker_config("b1") == {"fileReservedTime": "72"}
        await admin.update_broker_config("b1", {"fileReservedTime": "48", "a": "b"})
        (asked,) = there.brokers[B1].requests(RequestCode.UPDATE_BROKER_CONFIG)
        assert asked.body == b"fileReservedTime=48\na=b\n"
        with pytest.raises(ConfigError, match="none is given"):
            await admin.update_broker_config("b1", {})
        there.brokers[B1].answers[RequestCode.UPDATE_BROKER_CONFIG] = no(16, "black list")
        with pytest.raises(PeerRefused, match=rf"{B1} refused .* for rocketmqHome .*black list"):
            await admin.update_broker_config("b1", {"rocketmqHome": "/x"})


async def test_what_name_servers_keep():
    async with administered(B1) as (admin, there):
        answers = there.nameserver.answers
        answers[RequestCode.GET_KVLIST_BY_NAMESPACE] = ok(KVTable({"a": "b"}))
        answers[RequestCode.GET_KV_CONFIG] = ok(header=headers.GetKVConfigReply("b"))
        answers[RequestCode.PUT_KV_CONFIG] = answers[RequestCode.DELETE_KV_CONFIG] = ok()
        assert await admin.kv("n") == {"a": "b"}
        assert await admin.kv_get("n", "a") == "b"
        await admin.kv_put("n", "a", "c")
        await admin.kv_delete("n", "a")
        (put,) = there.nameserver.requests(RequestCode.PUT_KV_CONFIG)
        assert put.ext == {"namespace": "n", "key": "a", "value": "c"}
        answers[RequestCode.GET_KVLIST_BY_NAMESPACE] = answers[RequestCode.GET_KV_CONFIG] = no(22)
        assert (await admin.kv("n"), await admin.kv_get("n", "a")) == ({}, None)


async def test_write_permissions():
    async with administered(B1) as (admin, there):
        there.nameserver.answers |= {
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: ok(header=headers.WipeWritePermOfBrokerReply(3)),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: ok(header=headers.AddWritePermOfBrokerReply(4)),
        }
        assert list((await admin.wipe_write_permission("b1")).values()) == [3]
        assert list((await admin.add_write_permission("b1")).values()) == [4]


def test_a_queue_in_hand_as_java_and_go_tell_of_it():
    java = queue_in_hand(
        {"commitOffset": 5, "cachedMsgCount": 2, "cachedMsgMinOffset": 5, "cachedMsgMaxOffset": 6,
         "locked": True, "droped": True, "lastPullTimestamp": 1000, "lastConsumeTimestamp": 0}
    )  # fmt: skip
    assert (java.commit_offset, java.cached_messages, java.locked, java.dropped) == (
        5,
        2,
        True,
        True,
    )
    assert (java.last_pull_at, java.last_consume_at) == (datetime.fromtimestamp(1, UTC), None)
    assert queue_in_hand({"dropped": True}).dropped
    assert not queue_in_hand({}).dropped


async def test_what_a_consumer_says_of_itself():
    told = ConsumerRunningInfo(
        {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
        (SubscriptionData("T"),),
        {MessageQueue("T", "b1", 0): {"commitOffset": 5}},
        {},
        {"T": {"consumeOKTPS": 1.5, "consumeRT": 20, "consumeFailedMsgs": 3}},
        jstack="stacks",
    )
    async with administered(B1, B2) as (admin, there):
        there.brokers[B1].answers[RUNNING] = no(1, "not connected here")
        there.brokers[B2].answers[RUNNING] = ok(told)
        found = await admin.running_info("G", "c1", stacks=True)
        assert (found.group, found.client_id, found.stacks) == ("G", "c1", "stacks")
        assert found.queues[MessageQueue("T", "b1", 0)].commit_offset == 5
        rates = found.rates["T"]
        assert (rates.consume_ok_tps, rates.consume_ms, rates.consume_failed_messages) == (
            1.5,
            20.0,
            3,
        )
        assert there.brokers[B2].requests(RUNNING)[0].ext["jstackEnable"] == "true"
        there.brokers[B2].answers[RUNNING] = no(1, "neither here")
        with pytest.raises(
            PeerRefused, match=f"{B1} refused .*client c1 of group G.*not connected here"
        ):
            await admin.running_info("G", "c1")
