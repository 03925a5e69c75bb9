"""Statistics by name, lags of groups, times of what was consumed, producers, access of groups, clones."""

from __future__ import annotations

import pytest
import trio

from tests.broker.processors.conftest import BROKER, HOST, FakePeer
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumerData,
    ConsumeStatsList,
    ConsumeTimeSpanBody,
    GroupForbidden,
    MessageQueue,
    ProducerTableInfo,
    QueueTimeSpan,
    SubscriptionData,
    TopicConfig,
)
from trio_mq.protocol.headers.admin import (
    GetConsumeStatsInBrokerRequest,
    QueryConsumeTimeSpanRequest,
    UpdateGroupForbiddenRequest,
    ViewBrokerStatsDataRequest,
)
from trio_mq.protocol.headers.offset import CloneGroupOffsetRequest

TIMES, CLONE, VIEW, ALL_GROUPS, PRODUCERS, FORBIDDEN = 303, 314, 315, 317, 328, 353


def mq(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, BROKER, queue_id)


async def test_statistics_by_name(bench):
    bench.topics.update(TopicConfig("T", 1, 1), None)
    bench.put("T", 0, 20)
    reply = bench.ask(VIEW, ViewBrokerStatsDataRequest("TOPIC_PUT_NUMS", "T"))
    data = bodies.decode(BrokerStatsData, reply.body)
    assert data.stats_minute == BrokerStatsItem(20, 2.0, 1.0)
    assert (data.stats_hour.sum, data.stats_day.sum) == (20, 20)
    missing = bench.ask(VIEW, ViewBrokerStatsDataRequest("TOPIC_PUT_NUMS", "X"))
    assert (missing.code, missing.remark) == (1, "The stats <TOPIC_PUT_NUMS> <X> not exist")
    unknown = bench.ask(VIEW, ViewBrokerStatsDataRequest("WHAT", "T"))
    assert unknown.code == 1
    assert "TOPIC_PUT_SIZE" in unknown.remark


async def test_a_deleted_group_is_counted_no_more(bench):
    bench.put("T")
    bench.groups.obtain("G")
    bench.store.queue("T", 0).traffic.got("G", 1, 100)
    request = ViewBrokerStatsDataRequest("GROUP_GET_NUMS", "T@G")
    assert bench.ask(VIEW, request).code == 0
    assert bench.ask(207, ext={"groupName": "G", "cleanOffset": "true"}).code == 0
    assert bench.ask(VIEW, request).code == 1


async def test_progress_of_all_groups(bench, autojump_clock):
    bench.topics.update(TopicConfig("T", 1, 1), None)
    bench.topics.update(TopicConfig("Ordered", 1, 1, order=True), None)
    for topic in ("T", "Ordered"):
        bench.put(topic, 0, 5)
        bench.offsets.commit("G", topic, 0, 2)
        bench.offsets.pulled("G", topic, 0, 3)
    bench.groups.obtain("G")
    reply = bench.ask(ALL_GROUPS, GetConsumeStatsInBrokerRequest())
    found = bodies.decode(ConsumeStatsList, reply.body)
    assert (found.broker_addr, found.total_diff, found.total_inflight_diff) == (str(HOST), 6, 2)
    mine = next(table["G"] for table in found.consume_stats_list if "G" in table)
    assert {name.topic for one in mine for name in one.offset_table} == {"T", "Ordered"}
    ordered = bench.ask(ALL_GROUPS, GetConsumeStatsInBrokerRequest(order=True))
    assert bodies.decode(ConsumeStatsList, ordered.body).total_diff == 3


async def test_times_of_what_was_consumed(bench, autojump_clock):
    bench.topics.update(TopicConfig("T", 2, 2), None)
    start_ms = bench.clock.now_ms()
    for _ in range(3):
        bench.put("T", 0)
        await trio.sleep(1)
    request = QueryConsumeTimeSpanRequest("T", "G")

    def spans() -> tuple[QueueTimeSpan, ...]:
        body = bench.ask(TIMES, request).body
        return bodies.decode(ConsumeTimeSpanBody, body).consume_time_span_set

    assert spans() == (
        QueueTimeSpan(mq(0), start_ms, start_ms + 2000, start_ms, 3000),
        QueueTimeSpan(mq(1), -1, -1, -1, 0),
    )
    bench.offsets.commit("G", "T", 0, 2)
    assert spans()[0] == QueueTimeSpan(mq(0), start_ms, start_ms + 2000, start_ms + 1000, 1000)
    bench.offsets.commit("G", "T", 0, 3)
    assert spans()[0].delay_time == 0
    assert bench.ask(TIMES, QueryConsumeTimeSpanRequest("X", "G")).code == 17


async def test_all_producers(bench, autojump_clock):
    seen_ms = bench.clock.now_ms()
    bench.beat(FakePeer(5), "p1", producers=("PA", "PB"))
    await trio.sleep(3)
    data = bodies.decode(ProducerTableInfo, bench.ask(PRODUCERS).body).data
    assert sorted(data) == ["PA", "PB"]
    (info,) = data["PA"]
    assert (info.client_id, info.remote_ip) == ("p1", "/10.0.0.9:5")
    assert info.last_update_timestamp == seen_ms


async def test_a_group_is_forbidden_a_topic_and_allowed_it_again(bench):
    def ask(readable: bool | None = None) -> GroupForbidden:
        request = UpdateGroupForbiddenRequest("G", "T", readable)
        return bodies.decode(GroupForbidden, bench.ask(FORBIDDEN, request).body)

    assert ask() == GroupForbidden("T", "G", readable=True)
    assert ask(readable=False).readable is False
    assert bench.groups.is_forbidden("G", "T")
    assert ask().readable is False
    assert ask(readable=True).readable is True
    assert not bench.groups.is_forbidden("G", "T")


async def test_offsets_are_cloned(bench):
    for topic in ("A", "B"):
        bench.topics.update(TopicConfig(topic, 2, 2), None)
        bench.offsets.commit("Src", topic, 0, 7)
    assert bench.ask(CLONE, CloneGroupOffsetRequest("Src", "D1", "A")).code == 0
    assert bench.offsets.topics_of("D1") == ["A"]
    assert bench.offsets.query("D1", "A", 0) == 7
    assert bench.ask(CLONE, CloneGroupOffsetRequest("Src", "D2")).code == 0
    assert bench.offsets.topics_of("D2") == ["A", "B"]
    assert bench.ask(CLONE, CloneGroupOffsetRequest("Src", "D3", "X")).code == 17
    nothing = bench.ask(CLONE, CloneGroupOffsetRequest("Nobody", "D4", "A"))
    assert (nothing.code, bench.offsets.topics_of("D4")) == (0, [])
    assert "nothing copied" in nothing.remark


@pytest.mark.parametrize("offline", [False, True])
async def test_a_connected_source_clones_what_it_subscribes(bench, offline):
    for topic in ("A", "B"):
        bench.topics.update(TopicConfig(topic, 1, 1), None)
        bench.offsets.commit("Src", topic, 0, 7)
    subscription = SubscriptionData("A", "*", sub_version=1)
    bench.beat(FakePeer(6), "c1", ConsumerData("Src", subscription_data_set=(subscription,)))
    bench.ask(CLONE, CloneGroupOffsetRequest("Src", "D", offline=offline))
    assert bench.offsets.topics_of("D") == (["A", "B"] if offline else ["A"])
