"""Topics: what is asked for, and what the answers become."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import trio_mq
from tests.client.admin.scripted import B1, B2, NS, administered, no, ok
from trio_mq.client.admin.topics import attribute_words, ms_of, permission_of
from trio_mq.errors import BrokersFailed, ConfigError, PeerRefused
from trio_mq.protocol import headers
from trio_mq.protocol.bodies import GroupList, MessageQueue, TopicConfig, TopicList
from trio_mq.protocol.codes import Perm, RequestCode

CREATE, CONFIG = RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.GET_TOPIC_CONFIG
PUT_KV = RequestCode.PUT_KV_CONFIG


# -- pure


@pytest.mark.parametrize(
    ("text", "perm"), [("rw", 6), ("r", 4), ("w", 2), ("wr", 6), (Perm.READ, 4)]
)
def test_permissions(text, perm):
    assert permission_of(text) == perm


@pytest.mark.parametrize("text", ["", "x", "rr", "rwx"])
def test_what_is_no_permission(text):
    with pytest.raises(ConfigError, match="write 'rw', 'r' or 'w'"):
        permission_of(text)


def test_attributes_as_a_request_carries_them():
    assert attribute_words({}, {}) is None
    assert attribute_words({"message.type": "FIFO", "a": "b"}, {}) == "+message.type=FIFO,+a=b"
    assert attribute_words({"a": None, "b": None, "c": "d"}, {"a": ""}) == "-a,+c=d"
    for bad in ({"a,b": "c"}, {"a": "b,c"}, {"": "x"}, {"-a": "b"}, {"a": "b=c"}):
        with pytest.raises(ConfigError, match="not allowed"):
            attribute_words(bad, {})


def test_times_need_a_zone():
    assert ms_of(datetime.fromtimestamp(1.5, UTC)) == 1500
    with pytest.raises(ConfigError, match="no time zone"):
        ms_of(datetime(2026, 1, 1))


# -- requests


async def test_a_topic_is_made_on_all_masters():
    async with administered(B1, B2) as (admin, there):
        for peer in there.brokers.values():
            peer.answers[CREATE] = ok()
        made = await admin.create_topic(
            "T", queues=4, write_queues=2, permission="r", attributes={"message.type": "FIFO"}
        )
        assert made == TopicConfig("T", 4, 2, 4, attributes={"message.type": "FIFO"})
        for peer in there.brokers.values():
            (asked,) = peer.requests(CREATE)
            assert headers.decode(
                headers.CreateTopicRequest, asked.ext
            ) == headers.CreateTopicRequest(
                "T", "TBW102", 4, 2, 4, "SINGLE_TAG", 0, False, "+message.type=FIFO"
            )
        assert there.nameserver.requests(PUT_KV) == []


async def test_the_queues_of_an_ordered_topic_are_kept_by_name_servers():
    async with administered(B1, B2) as (admin, there):
        there.nameserver.answers[PUT_KV] = ok()
        for peer in there.brokers.values():
            peer.answers[CREATE] = ok()
        await admin.create_topic("T", queues=4, order=True)
        (asked,) = there.nameserver.requests(PUT_KV)
    assert asked.ext == {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b1:4;b2:4"}


async def test_a_change_keeps_what_is_not_given():
    old = TopicConfig("T", 4, 4, 6, topic_sys_flag=1, attributes={"a": "b"})
    async with administered(B1, B2) as (admin, there):
        there.brokers[B1].answers |= {CREATE: ok(), CONFIG: ok(old)}
        there.brokers[B2].answers[CONFIG] = no(17)
        found = await admin.update_topic("T", permission="r", attributes={"a": None, "gone": None})
        assert dict(found) == {"b1": old}
        (asked,) = there.brokers[B1].requests(CREATE)
        assert headers.decode(headers.CreateTopicRequest, asked.ext) == headers.CreateTopicRequest(
            "T", "TBW102", 4, 4, 4, "SINGLE_TAG", 1, False, "-a"
        )
        assert there.brokers[B2].requests(CREATE) == []


async def test_a_change_of_what_is_nowhere_or_half_known():
    async with administered(B1, B2) as (admin, there):
        for peer in there.brokers.values():
            peer.answers[CONFIG] = no(17)
        with pytest.raises(PeerRefused) as caught:
            await admin.update_topic("T", permission="r")
        assert caught.value.code == 17
        there.brokers[B1].answers |= {CREATE: ok(), CONFIG: ok(TopicConfig("T"))}
        there.brokers[B2].answers[CONFIG] = no(1, "busy")
        with pytest.raises(PeerRefused, match="busy"):
            await admin.update_topic("T", permission="r")
        assert there.brokers[B1].requests(CREATE) == []


async def test_a_deleted_topic_is_gone_everywhere():
    delete, forget = RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV
    async with administered(B1, B2) as (admin, there):
        there.brokers[B1].answers[delete] = ok()
        there.brokers[B2].answers[delete] = no(17)
        there.nameserver.answers |= {forget: ok(), RequestCode.DELETE_KV_CONFIG: ok()}
        await admin.delete_topic("T")
        (asked,) = there.nameserver.requests(forget)
        assert asked.ext == {"topic": "T"}
        there.brokers[B2].answers[delete] = no(1, "cannot")
        with pytest.raises(BrokersFailed, match="cannot"):
            await admin.delete_topic("T")


async def test_lists_leave_out_what_brokers_make_for_themselves():
    listed = ("T", "%RETRY%G", "%DLQ%G", "TBW102", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC",
              "SCHEDULE_TOPIC_XXXX", "b1", "c1", "c1_REPLY_TOPIC", "A")  # fmt: skip
    async with administered(B1) as (admin, there):
        there.nameserver.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = ok(
            TopicList(listed)
        )
        there.nameserver.answers[RequestCode.GET_TOPICS_BY_CLUSTER] = ok(TopicList(("B",)))
        assert await admin.topics() == ("A", "T")
        assert await admin.topics(internal=True) == tuple(sorted(listed))
        assert await admin.topics(cluster="c1") == ("B",)


async def test_route_config_and_groups():
    who = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    async with administered(B1, B2) as (admin, there):
        there.topic("T", 2)
        for number, peer in enumerate(there.brokers.values()):
            peer.answers |= {
                CONFIG: ok(TopicConfig("T", number)),
                who: ok(GroupList((f"g{number}", "g"))),
            }
        route = await admin.topic_route("T")
        assert [(q.broker_name, q.queue_id) for q in route.read_queues] == [
            ("b1", 0), ("b1", 1), ("b2", 0), ("b2", 1)]  # fmt: skip
        configs = await admin.topic_config("T")
        assert {name: config.read_queue_nums for name, config in configs.items()} == {
            "b1": 0,
            "b2": 1,
        }
        assert list(await admin.groups_of("T")) == ["g", "g0", "g1"]
        with pytest.raises(trio_mq.NoRoute, match=r"topic nowhere: .*create it"):
            await admin.topic_stats("nowhere")


async def test_offsets_of_places(autojump_clock):
    async with administered(B1, B2, down=(B2,)) as (admin, there):
        there.topic("T", 2)
        there.brokers[B1].answers |= {
            RequestCode.GET_MIN_OFFSET: ok(header=headers.GetMinOffsetReply(3)),
            RequestCode.GET_MAX_OFFSET: lambda asked: ok(
                header=headers.GetMaxOffsetReply(10 + int(asked.ext["queueId"]))
            ),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: ok(header=headers.SearchOffsetReply(7)),
        }
        assert {q.queue_id: at for q, at in (await admin.min_offsets("T")).items()} == {0: 3, 1: 3}
        assert {q.queue_id: at for q, at in (await admin.max_offsets("T")).items()} == {
            0: 10,
            1: 11,
        }
        found = await admin.offsets_at("T", datetime.fromtimestamp(5, UTC))
        assert set(found.values()) == {7}
        assert [failure.address for failure in found.failures] == [B2]
        asked = there.brokers[B1].requests(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)[0]
        assert (asked.ext["timestamp"], asked.ext["boundaryType"]) == ("5000", "lower")
        assert (await admin.offsets("T", 4)).keys() == {
            MessageQueue("T", b, n) for b in ("b1", "b2") for n in (0, 1)
        }


async def test_a_namespace_is_put_before_names():
    async with administered(B1, namespace="ns") as (admin, there):
        there.brokers[B1].answers[CREATE] = ok()
        made = await admin.create_topic("T")
        assert made.topic_name == "ns%T"
        with pytest.raises(trio_mq.ConfigError, match="topic: 'a b' holds ' '"):
            await admin.create_topic("a b")
    assert NS in repr(admin)
