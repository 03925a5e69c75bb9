"""Bounds, progress, connections, settings and load, as administrators see them."""

from __future__ import annotations

import re

import attrs
import trio

from tests.broker.processors.conftest import BROKER, HOST, FakePeer, make_bench
from trio_mq.broker.names import BENCHMARK_TOPIC as SYSTEM_TOPIC
from trio_mq.broker.processors.runtime import SHOWN
from trio_mq.protocol import bodies, jsondialect
from trio_mq.protocol.bodies import (
    ConsumerConnection,
    ConsumerData,
    ConsumerOffsetWrapper,
    ConsumeStats,
    DataVersion,
    GroupList,
    KVTable,
    MessageQueue,
    OffsetWrapper,
    ProducerConnection,
    SubscriptionData,
    TopicConfig,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from trio_mq.protocol.headers.admin import (
    GetConsumeStatsRequest,
    GetTopicStatsInfoRequest,
    QuerySubscriptionByConsumerRequest,
    QueryTopicConsumeByWhoRequest,
    QueryTopicsByConsumerRequest,
)
from trio_mq.protocol.headers.heartbeat import (
    GetConsumerConnectionListRequest,
    GetProducerConnectionListRequest,
)

CONFIG, RUNTIME, ALL_OFFSETS, TOPIC_STATS, CONSUMERS, PRODUCERS = 26, 28, 43, 202, 203, 204
CONSUME_STATS, GROUPS_OF, TOPICS_OF, SUBSCRIPTION = 208, 300, 343, 345


def mq(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, BROKER, queue_id)


def consumer(*topics: str) -> ConsumerData:
    subs = tuple(SubscriptionData(topic, "A", sub_version=5) for topic in topics)
    return ConsumerData("G", subscription_data_set=subs)


async def test_topic_statistics(bench, autojump_clock):
    bench.topics.update(TopicConfig("T", 2, 3), None)
    bench.put("T", 0, 2)
    await trio.sleep(3)
    last_ms = bench.clock.now_ms()
    bench.put("T", 0)
    reply = bench.ask(TOPIC_STATS, GetTopicStatsInfoRequest("T"))
    assert bodies.decode(TopicStatsTable, reply.body) == TopicStatsTable(
        {mq(0): TopicOffset(0, 3, last_ms), mq(1): TopicOffset(), mq(2): TopicOffset()},
        0.3,  # three in the interval that a new topic begins with
    )
    assert bench.ask(TOPIC_STATS, GetTopicStatsInfoRequest("X")).code == 17


async def test_b003_progress_of_a_group(bench, autojump_clock):
    """B003: also of queues that it has not consumed from yet."""
    bench.topics.update(TopicConfig("T", 2, 2), None)
    bench.put("T", 0, 3)
    await trio.sleep(1)
    stored_ms = bench.clock.now_ms()
    bench.put("T", 0, 6)
    bench.offsets.commit("G", "T", 0, 7)
    bench.offsets.pulled("G", "T", 0, 8)
    reply = bench.ask(CONSUME_STATS, GetConsumeStatsRequest("G"))
    assert bodies.decode(ConsumeStats, reply.body) == ConsumeStats(
        {mq(0): OffsetWrapper(9, 7, 8, stored_ms), mq(1): OffsetWrapper()}
    )


async def test_a_connected_group_is_shown_with_what_it_subscribes(bench):
    for topic in ("T", "Old"):
        bench.topics.update(TopicConfig(topic, 1, 1), None)
        bench.offsets.commit("G", topic, 0, 1)

    def topics(**more) -> set[str]:
        reply = bench.ask(CONSUME_STATS, GetConsumeStatsRequest("G", **more))
        found = bodies.decode(ConsumeStats, reply.body).offset_table
        return {queue.topic for queue in found}

    assert topics() == {"T", "Old"}
    bench.beat(FakePeer(1), "c1", consumer("T"))
    assert topics() == {"T"}
    assert topics(topic="Old") == set()
    assert topics(topic="T") == {"T"}
    assert topics(topic_list="Old;T;;Nope") == {"T", "Old"}


async def test_all_offsets(bench):
    bench.offsets.commit("CG", "T", 0, 5)
    reply = bench.ask(ALL_OFFSETS)
    assert b'"offsetTable":{"T@CG":{0:5}}' in reply.body
    assert bodies.decode(ConsumerOffsetWrapper, reply.body).data_version == DataVersion()


async def test_consumer_connections(bench):
    bench.beat(FakePeer(5000), "c1", consumer("T"))
    reply = bench.ask(CONSUMERS, GetConsumerConnectionListRequest("G"))
    value = jsondialect.loads(reply.body)
    (connection,) = value["connectionSet"]
    assert connection == {
        "clientAddr": "10.0.0.9:5000",
        "clientId": "c1",
        "language": "PYTHON",
        "version": 493,
    }
    assert value["consumeType"] == "CONSUME_PASSIVELY"
    assert value["messageModel"] == "CLUSTERING"
    assert value["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    assert bodies.decode(ConsumerConnection, reply.body).subscription_table["T"].sub_string == "A"
    assert bench.ask(CONSUMERS, GetConsumerConnectionListRequest("X")).code == 206


async def test_producer_connections(bench):
    bench.beat(FakePeer(5000), "p1", producers=["PG"])
    reply = bench.ask(PRODUCERS, GetProducerConnectionListRequest("PG"))
    (connection,) = bodies.decode(ProducerConnection, reply.body).connection_set
    assert connection.client_id == "p1"
    assert bench.ask(PRODUCERS, GetProducerConnectionListRequest("X")).code == 1


async def test_who_consumes_what(bench):
    bench.beat(FakePeer(1), "c1", consumer("T"))
    bench.offsets.commit("Old", "T", 0, 1)
    reply = bench.ask(GROUPS_OF, QueryTopicConsumeByWhoRequest("T"))
    assert bodies.decode(GroupList, reply.body).group_list == ("G", "Old")
    reply = bench.ask(TOPICS_OF, QueryTopicsByConsumerRequest("Old"))
    assert bodies.decode(TopicList, reply.body) == TopicList(("T",), str(HOST))
    reply = bench.ask(SUBSCRIPTION, QuerySubscriptionByConsumerRequest("G", "T"))
    assert jsondialect.loads(reply.body)["subscriptionData"]["subString"] == "A"
    reply = bench.ask(SUBSCRIPTION, QuerySubscriptionByConsumerRequest("G", "X"))
    assert jsondialect.loads(reply.body) == {"group": "G", "topic": "X"}


async def test_settings(bench):
    reply = bench.ask(CONFIG)
    lines = reply.body.decode().splitlines()
    assert f"brokerName={BROKER}" in lines
    assert "autoCreateTopicEnable=true" in lines
    assert "mappedFileSizeCommitLog=65536" in lines
    assert lines == sorted(lines)
    assert jsondialect.loads(reply.ext["version"]).keys() == {
        "counter",
        "stateVersion",
        "timestamp",
    }


async def test_runtime_information(autojump_clock):
    bench = await make_bench()

    def table() -> dict[str, str]:
        return dict(bodies.decode(KVTable, bench.ask(RUNTIME).body).table)

    empty = table()
    assert empty["earliestMessageTimeStamp"] == "-1"
    assert empty["putTps"] == "0.00 0.00 0.00"
    stored_ms = bench.clock.now_ms()
    bench.put("T", 0, 300)
    bench.put(SYSTEM_TOPIC, 0, 30)
    bench.store.queue("T", 0).traffic.got("G", 60, 6000)
    bench.puller.missed += 90
    await trio.sleep(30)
    found = table()
    assert found["putTps"] == "11.00 11.00 11.00"
    assert found["getTransferredTps"] == "2.00 2.00 2.00"
    assert found["getFoundTps"] == "0.03 0.03 0.03"
    assert found["getMissTps"] == "3.00 3.00 3.00"
    assert found["getTotalTps"] == "3.03 3.03 3.03"
    assert found["earliestMessageTimeStamp"] == str(stored_ms)
    assert found["commitLogMinOffset"] == "0"
    assert int(found["commitLogMaxOffset"]) > 900
    assert found["runtime"] == "[ 0 days, 0 hours, 0 minutes, 30 seconds ]"
    assert found["msgPutTotalTodayNow"] == "300", "the broker's own topics do not count there"
    assert found["msgGetTotalTodayNow"] == "60"
    assert found["putMessageTimesTotal"] == "330"
    assert int(found["putMessageSizeTotal"]) == int(found["commitLogMaxOffset"])
    assert found["putMessageDistributeTime"].startswith("[<=0ms]:")
    assert found["putMessageFailedTimes"] == "0"
    assert found["brokerVersionDesc"].startswith("trio-mq")
    assert 0 <= float(found["commitLogDiskRatio"]) <= 1
    # everything that the peers' clusterList reads
    for key in (
        "brokerActive",
        "sendThreadPoolQueueSize",
        "pullThreadPoolQueueSize",
        "ackThreadPoolQueueSize",
        "sendThreadPoolQueueHeadWaitTimeMills",
        "pullThreadPoolQueueHeadWaitTimeMills",
        "ackThreadPoolQueueHeadWaitTimeMills",
        "pageCacheLockTimeMills",
        "timerReadBehind",
        "timerOffsetBehind",
        "timerCongestNum",
        "timerEnqueueTps",
        "timerDequeueTps",
        "msgPutTotalYesterdayMorning",
        "msgGetTotalYesterdayMorning",
        "msgPutTotalTodayMorning",
        "msgGetTotalTodayMorning",
        "msgGetTotalTodayNow",
    ):
        assert found[key], key
    await trio.sleep(15)
    await bench.stats.sample()
    await trio.sleep(12)
    assert table()["putTps"].split()[0] == "0.00"


async def test_what_an_operator_looks_for_is_in_the_runtime_information(autojump_clock):
    """C059, C080, C097, C109, C116: next cleaning with its zone, histograms, lost locks, conflicts of subscriptions."""
    bench = await make_bench()

    def table() -> dict[str, str]:
        return dict(bodies.decode(KVTable, bench.ask(RUNTIME).body).table)

    quiet = table()
    assert not {"subscriptionConflicts", "lostLocks", "notWritable"} & quiet.keys()
    assert re.search(r"deleteWhen\); next time 20\S+[+-]\d\d:\d\d \(\w+\)", quiet["cleaning"])
    assert quiet["appendTimes"].startswith("writing to the commit log: 0 times")
    bench.put("T", 0, 3)
    bench.store.flusher.times.add(0.07)
    first, second = FakePeer(1), FakePeer(2)
    bench.beat(first, "c1", sub("A"))
    bench.beat(second, "c2", sub("*"))
    bench.locks.lock("G", "c1", [mq(0)], trio.current_time())
    await trio.sleep(70)
    bench.locks.lock("G", "c2", [mq(0)], trio.current_time())
    await trio.sleep(5)
    found = table()
    assert re.match(r"writing to the commit log: 1 times.*\(<=\d+ ms: 1\)", found["appendTimes"])
    assert "syncing the commit log: 1 times" in found["flushTimes"]
    assert "<=100 ms: 1" in found["flushTimes"]
    assert found["subscriptionConflicts"] == "G on T: c1: A, c2: *"
    assert found["lostLocks"] == (
        "G: c1 lost T queue 0 5 s ago, 70 s after its last renewal, to c2"
    )


async def test_many_conflicts_and_losses_do_not_flood_the_table(autojump_clock):
    bench = await make_bench()
    for number in range(30):
        bench.locks.lock("G", "c1", [mq(number)], 0.0)
    bench.locks.expire(1000.0)
    lost = bodies.decode(KVTable, bench.ask(RUNTIME).body).table["lostLocks"]
    assert lost.count(" lost T queue ") == SHOWN
    assert "queue 29 " in lost


def sub(tags: str) -> ConsumerData:
    wanted = SubscriptionData(topic="T", sub_string=tags, sub_version=1, expression_type="TAG")
    return attrs.evolve(consumer("T"), subscription_data_set=(wanted,))
