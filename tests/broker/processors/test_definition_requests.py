"""Topics and groups over the wire: created, changed, read, deleted; answered when saved."""

from __future__ import annotations

import errno

import pytest
import trio

from tests.broker.processors.conftest import BROKER, FakePeer, make_bench
from trio_mq.broker.processors.definitions import PAGE_SIZE
from trio_mq.protocol import bodies, jsondialect
from trio_mq.protocol.bodies import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
)
from trio_mq.protocol.headers.admin import (
    CreateTopicRequest,
    DeleteSubscriptionGroupRequest,
    DeleteTopicRequest,
    GetAllSubscriptionGroupRequest,
    GetAllTopicConfigRequest,
    GetSubscriptionGroupConfigRequest,
    GetTopicConfigRequest,
)

UPDATE_TOPIC, ALL_TOPICS, UPDATE_GROUP, ALL_GROUPS, DELETE_GROUP = 17, 21, 200, 201, 207
DELETE_TOPIC, SYSTEM_TOPICS, TOPIC, GROUP = 215, 305, 351, 352


def create(topic: str, queues: int = 4, **more) -> CreateTopicRequest:
    return CreateTopicRequest(topic, "TBW102", queues, queues, 6, "SINGLE_TAG", **more)


# -- topics


async def test_a_topic_is_created_changed_and_read(bench):
    assert bench.ask(UPDATE_TOPIC, create("T", attributes="+message.type=FIFO")).code == 0
    assert bench.ask(UPDATE_TOPIC, create("T", 8, order=True, topic_sys_flag=1)).code == 0
    reply = bench.ask(TOPIC, GetTopicConfigRequest("T"))
    assert jsondialect.loads(reply.body) == {
        "attributes": {"message.type": "FIFO"},
        "order": True,
        "perm": 6,
        "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 1,
        "writeQueueNums": 8,
    }
    version = bench.topics.version
    assert bench.ask(UPDATE_TOPIC, create("T", 8, order=True, topic_sys_flag=1)).code == 0
    assert bench.topics.version == version


@pytest.mark.parametrize(
    ("request_", "code", "told"),
    [
        (create("a b"), 29, "illegal"),
        (create("t" * 128), 29, "128 characters"),
        (create("TBW102"), 29, "belongs to the broker"),
        (create("T", attributes="+message.type=MIXED"), 29, "enableMixedMessageType"),
        (create("T", attributes="+no.such=1"), 1, "no.such"),
        (create("T", -1), 29, "readQueueNums is -1"),
    ],
)
async def test_what_is_refused(bench, request_, code, told):
    reply = bench.ask(UPDATE_TOPIC, request_)
    assert reply.code == code
    assert told in reply.remark
    assert bench.ask(TOPIC, GetTopicConfigRequest("T")).code == 17


async def test_a_deleted_topic_is_gone_with_its_queues_offsets_and_pop_retry_topics(bench):
    for topic in ("T", "%RETRY%G_T", "%RETRY%G+T", "%RETRY%G"):
        bench.topics.create_retry(topic, 2)
        bench.put(topic, 1, 3)
        bench.offsets.commit("G", topic, 1, 2)
    assert bench.ask(DELETE_TOPIC, DeleteTopicRequest("T")).code == 0
    assert bench.offsets.topics_of("G") == ["%RETRY%G"]
    assert bench.store.queue("T", 1) is None
    assert bench.store.queue("%RETRY%G", 1) is not None
    left = [topic for topic in bench.topics if topic.topic_name.startswith(("T", "%"))]
    assert [topic.topic_name for topic in left if topic.perm == 6] == ["%RETRY%G"]
    assert "T" not in bench.disk.list_dir("/store/consumequeue")
    assert bench.ask(DELETE_TOPIC, DeleteTopicRequest("T")).code == 0
    assert bench.ask(DELETE_TOPIC, DeleteTopicRequest(" ")).code == 29
    assert bench.ask(DELETE_TOPIC, DeleteTopicRequest("SELF_TEST_TOPIC")).code == 29


async def test_all_topics_at_once_for_peers_that_know_no_pages(bench):
    reply = bench.ask(ALL_TOPICS, GetAllTopicConfigRequest())
    found = bodies.decode(TopicConfigSerializeWrapper, reply.body)
    assert found.topic_config_table.keys() == {t.topic_name for t in bench.topics}
    assert found.data_version == bench.topics.version
    assert reply.ext == {"totalTopicNum": str(len(bench.topics))}
    keys = jsondialect.loads(reply.body).keys()
    assert keys == {
        "dataVersion",
        "mappingDataVersion",
        "topicConfigTable",
        "topicQueueMappingDetailMap",
        "topicQueueMappingInfoMap",
    }


async def test_topics_by_page(bench):
    every = sorted(t.topic_name for t in bench.topics)
    version = bodies.encode(bench.topics.version).decode()

    def page(start: int, version: str | None, count: int | None) -> list[str]:
        reply = bench.ask(ALL_TOPICS, GetAllTopicConfigRequest(start, version, count))
        assert reply.ext == {"totalTopicNum": str(len(every))}
        return list(bodies.decode(TopicConfigSerializeWrapper, reply.body).topic_config_table)

    assert page(0, None, 3) == every[:3]
    assert page(3, version, 3) == every[3:6]
    assert page(3, version, None) == every[3:]
    assert page(len(every), version, 3) == []
    old = bodies.encode(DataVersion(99)).decode()
    assert page(3, old, 3) == every[:3]  # the order of names has changed: from the start
    assert page(3, "no json", 3) == every[:3]
    assert PAGE_SIZE == 2000


@pytest.mark.parametrize("size", [1, 2, 5, 7, 2000])
async def test_an_apache_slave_gets_all_topics_though_it_stops_one_short(bench, size):
    for number in range(17 - len(bench.topics) % 7):
        bench.ask(UPDATE_TOPIC, create(f"T{number}"))
        found: set[str] = set()
        asked, version = 0, ""
        while True:  # its way to ask; with one topic a page, nobody can help it
            reply = bench.ask(ALL_TOPICS, GetAllTopicConfigRequest(asked, version, size))
            table = jsondialect.loads(reply.body)
            found |= table["topicConfigTable"].keys()
            asked += len(table["topicConfigTable"])
            version = jsondialect.dumps(table["dataVersion"]).decode()
            if asked >= int(reply.ext["totalTopicNum"]) - 1:
                break
        missing = {t.topic_name for t in bench.topics} - found
        assert len(missing) == (1 if size == 1 else 0)


async def test_system_topics(bench):
    reply = bench.ask(SYSTEM_TOPICS)
    names = bodies.decode(TopicList, reply.body).topic_list
    assert BROKER in names
    assert list(names) == bench.topics.system_names


# -- groups


async def test_a_group_is_created_changed_read_and_deleted(bench):
    assert bench.ask(UPDATE_GROUP, body=SubscriptionGroupConfig("G", retry_max_times=3)).code == 0
    reply = bench.ask(GROUP, GetSubscriptionGroupConfigRequest("G"))
    assert bodies.decode(SubscriptionGroupConfig, reply.body).retry_max_times == 3
    bench.offsets.commit("G", "T", 0, 5)
    assert bench.ask(DELETE_GROUP, DeleteSubscriptionGroupRequest("G")).code == 0
    assert "G" not in bench.groups
    assert bench.offsets.query("G", "T", 0) == 5
    assert bench.ask(DELETE_GROUP, DeleteSubscriptionGroupRequest("G", True)).code == 0
    assert bench.offsets.query("G", "T", 0) is None


async def test_b020_an_illegal_group(bench):
    """B020."""
    reply = bench.ask(UPDATE_GROUP, body=SubscriptionGroupConfig("g" * 121))
    assert reply.code == 29
    assert "121 characters" in reply.remark
    assert bench.ask(UPDATE_GROUP, body=b"").code == 1


async def test_an_unknown_group(bench):
    assert bench.ask(GROUP, GetSubscriptionGroupConfigRequest("New")).code == 0
    strict = await make_bench(auto_create_subscription_group=False)
    reply = strict.ask(GROUP, GetSubscriptionGroupConfigRequest("New"))
    assert reply.code == 26
    assert "New" in reply.remark


async def test_all_groups_and_pages(bench):
    bench.groups.set_readable("TOOLS_CONSUMER", "T", readable=False)
    reply = bench.ask(ALL_GROUPS, GetAllSubscriptionGroupRequest())
    found = bodies.decode(SubscriptionGroupWrapper, reply.body)
    assert len(found.subscription_group_table) == 8
    assert found.forbidden_table == {"TOOLS_CONSUMER": {"T": 4}}
    assert reply.ext == {"totalGroupNum": "8"}
    version = bodies.encode(bench.groups.version).decode()
    reply = bench.ask(ALL_GROUPS, GetAllSubscriptionGroupRequest(7, version, 5))
    found = bodies.decode(SubscriptionGroupWrapper, reply.body)
    assert list(found.subscription_group_table) == ["TOOLS_CONSUMER"]


# -- answers wait for the disk


async def test_a_change_is_answered_when_it_is_saved(autojump_clock, nursery):
    bench = await make_bench(saver=True)
    await nursery.start(bench.saver.run)
    bench.disk.run_delay_s = 0.2
    peer = FakePeer(1)
    assert bench.ask(UPDATE_TOPIC, create("T"), peer=peer) is None
    assert bench.ask(UPDATE_GROUP, body=SubscriptionGroupConfig("G"), peer=peer) is None
    await trio.sleep(0.1)
    assert peer.take() == []
    await trio.sleep(1)
    assert [reply.code for reply in peer.take()] == [0, 0]
    bench.disk.crash(1, keep="none")
    saved = bench.disk.open("/store/config/topics.json")
    assert b'"T":{' in saved.read(saved.size(), 0)
    assert bench.ask(UPDATE_TOPIC, create("T"), peer=peer).code == 0  # nothing to save


async def test_a_change_that_cannot_be_saved_says_so(autojump_clock, nursery):
    bench = await make_bench(saver=True)
    await nursery.start(bench.saver.run)
    bench.disk.fail_when(lambda op: op.path.endswith("topics.json.tmp"), errno.ENOSPC)
    peer = FakePeer(1)
    bench.ask(UPDATE_TOPIC, create("T"), peer=peer)
    await trio.testing.wait_all_tasks_blocked()
    (reply,) = peer.take()
    assert reply.code == 1
    for part in ("in effect but not saved", "topics.json", "No space left"):
        assert part in reply.remark
    assert bench.topics.get("T") == TopicConfig("T", 4, 4, 6)
