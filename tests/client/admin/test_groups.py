"""Groups: what is asked for, and what the answers become; and moving them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import trio_mq
from tests.client.admin.scripted import B1, B2, administered, no, ok
from trio_mq.client.admin.groups import members_of
from trio_mq.client.admin.places import reset_header
from trio_mq.errors import BrokersFailed, ConfigError
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import (
    Connection,
    ConsumerConnection,
    ConsumeStats,
    MessageModel,
    MessageQueue,
    OffsetWrapper,
    ProducerConnection,
    ResetOffsetBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicList,
)
from trio_mq.protocol.codes import RequestCode

ALL, PUT = (
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
)
RESET, WRITE = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET
QUERY = RequestCode.QUERY_CONSUMER_OFFSET
Q = MessageQueue("T", "b1", 0)


def table(*configs: SubscriptionGroupConfig):
    return ok(SubscriptionGroupWrapper({config.group_name: config for config in configs}))


async def test_lists_leave_out_what_brokers_make_for_themselves():
    own = ("TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS")
    async with administered(B1, B2) as (admin, there):
        there.brokers[B1].answers[ALL] = table(*map(SubscriptionGroupConfig, ("G", *own)))
        there.brokers[B2].answers[ALL] = table(*map(SubscriptionGroupConfig, ("G", "F")))
        assert list(await admin.groups()) == ["F", "G"]
        assert list(await admin.groups(internal=True)) == sorted(["F", "G", *own])


async def test_a_group_is_made_on_all_masters():
    async with administered(B1, B2) as (admin, there):
        for peer in there.brokers.values():
            peer.answers[PUT] = ok()
        made = await admin.create_group("G", retry_max_times=3, attributes={"a": "b"})
        assert made == SubscriptionGroupConfig("G", retry_max_times=3, attributes={"a": "b"})
        for peer in there.brokers.values():
            (asked,) = peer.requests(PUT)
            sent = bodies.decode(SubscriptionGroupConfig, asked.body)
            assert sent == SubscriptionGroupConfig("G", retry_max_times=3, attributes={"+a": "b"})


async def test_a_change_keeps_what_is_not_given_and_makes_nothing():
    """Asked for a group that is not there, brokers would make it: all are asked for instead."""
    old = SubscriptionGroupConfig("G", retry_queue_nums=4, broker_id=2, attributes={"a": "b"})
    async with administered(B1, B2) as (admin, there):
        there.brokers[B1].answers |= {ALL: table(old), PUT: ok()}
        there.brokers[B2].answers |= {ALL: table(), PUT: ok()}
        found = await admin.update_group("G", consume_enable=False)
        assert dict(found) == {"b1": old}
        (asked,) = there.brokers[B1].requests(PUT)
        sent = bodies.decode(SubscriptionGroupConfig, asked.body)
        assert sent == SubscriptionGroupConfig(
            "G", consume_enable=False, retry_queue_nums=4, broker_id=2
        )
        assert there.brokers[B2].requests(PUT) == []
        assert there.brokers[B2].requests(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG) == []
        with pytest.raises(trio_mq.ClientError, match=rf"group other is not at {B1}, {B2}"):
            await admin.group_config("other")


async def test_a_deleted_group_takes_its_topics_along():
    delete = RequestCode.DELETE_TOPIC_IN_BROKER
    async with administered(B1) as (admin, there):
        there.brokers[B1].answers |= {RequestCode.DELETE_SUBSCRIPTIONGROUP: ok(), delete: ok()}
        there.nameserver.answers |= {
            RequestCode.DELETE_TOPIC_IN_NAMESRV: ok(),
            RequestCode.DELETE_KV_CONFIG: ok(),
        }
        await admin.delete_group("G", delete_offsets=False)
        (asked,) = there.brokers[B1].requests(RequestCode.DELETE_SUBSCRIPTIONGROUP)
        assert asked.ext == {"groupName": "G", "cleanOffset": "false"}
        assert [each.ext["topic"] for each in there.brokers[B1].requests(delete)] == [
            "%RETRY%G",
            "%DLQ%G",
        ]


def test_a_client_that_several_brokers_tell_of_counts_once():
    one, two = Connection("c1", "10.0.0.7:1", "JAVA", 493), Connection("c2", "10.0.0.8:1")
    found = members_of([[one, two], [Connection("c1", "10.0.0.7:2", "JAVA", 493)]])
    assert [(m.client_id, m.address, m.language, m.version) for m in found] == [
        ("c1", "10.0.0.7:1", "JAVA", 493),
        ("c2", "10.0.0.8:1", "OTHER", 0),
    ]


async def test_who_is_connected():
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    connected = ConsumerConnection(
        (Connection("c1", "10.0.0.7:1"),),
        {"T": SubscriptionData("T", "a || b")},
        message_model=MessageModel.BROADCASTING,
    )
    async with administered(B1, B2) as (admin, there):
        there.brokers[B1].answers[code] = no(206)
        there.brokers[B2].answers[code] = ok(connected)
        found = await admin.consumers("G")
        assert found.online
        assert [member.client_id for member in found.members] == ["c1"]
        assert found.subscriptions["T"].sub_string == "a || b"
        assert found.message_model is MessageModel.BROADCASTING
        there.brokers[B2].answers[code] = no(206)
        assert not (await admin.consumers("G")).online
        producers = RequestCode.GET_PRODUCER_CONNECTION_LIST
        there.brokers[B1].answers[producers] = no(1)
        there.brokers[B2].answers[producers] = ok(
            ProducerConnection((Connection("p", "10.0.0.6:1"),))
        )
        assert [member.client_id for member in await admin.producers("G")] == ["p"]


async def test_topics_of_a_group():
    code = RequestCode.QUERY_TOPICS_BY_CONSUMER
    async with administered(B1, B2) as (admin, there):
        there.brokers[B1].answers[code] = ok(TopicList(("T", "%RETRY%G")))
        there.brokers[B2].answers[code] = ok(TopicList(("S", "T")))
        assert list(await admin.topics_of("G")) == ["S", "T"]


async def test_progress_of_a_group_adds_up():
    code = RequestCode.GET_CONSUME_STATS
    retry = MessageQueue("%RETRY%G", "b2", 0)
    async with administered(B1, B2) as (admin, there):
        there.brokers[B1].answers[code] = ok(ConsumeStats({Q: OffsetWrapper(10, 7, 8, 1_000)}, 1.5))
        there.brokers[B2].answers[code] = ok(ConsumeStats({retry: OffsetWrapper(2, 0, 0, 0)}, 0.5))
        found = await admin.progress("G")
    assert (found.lag, found.consume_tps, found.of("T").lag) == (5, 2.0, 3)
    assert list(found.queues) == [retry, Q]
    at = found.queues[Q]
    assert (at.lag, at.inflight, at.last_consumed_at) == (3, 1, datetime.fromtimestamp(1, UTC))
    assert found.queues[retry].last_consumed_at is None


async def test_offsets_of_a_group():
    def answer(asked):
        if asked.ext["queueId"] == "1":
            return no(22)
        return ok(header=headers.QueryConsumerOffsetReply(5))

    async with administered(B1) as (admin, there):
        there.topic("T", 2)
        there.brokers[B1].answers |= {QUERY: answer, WRITE: ok()}
        assert dict(await admin.consumer_offsets("G", "T")) == {Q: 5}
        await admin.set_consumer_offset("G", Q, 9)
        (asked,) = there.brokers[B1].requests(WRITE)
        assert asked.ext == {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": "0",
            "commitOffset": "9",
        }


# -- moving


@pytest.mark.parametrize(
    ("to", "queue", "fields"),
    [
        ("begin", None, (0, -1, None)),
        ("end", None, (-1, -1, None)),
        (datetime.fromtimestamp(2, UTC), None, (2000, -1, None)),
        (datetime.fromtimestamp(2, UTC), MessageQueue("T", "b1", 3), (2000, 3, None)),
        (17, MessageQueue("T", "b1", 3), (0, 3, 17)),
    ],
)
def test_the_request_that_moves_a_group(to, queue, fields):
    made = reset_header("G", "T", to, queue)
    assert (made.timestamp, made.queue_id, made.offset) == fields
    assert (made.group, made.topic, made.force) == ("G", "T", True)


async def test_a_move_on_all_brokers():
    async with administered(B1, B2) as (admin, there):
        there.topic("T")
        for name, peer in zip(("b1", "b2"), there.brokers.values(), strict=True):
            peer.answers[RESET] = ok(ResetOffsetBody({MessageQueue("T", name, 0): 4}))
        assert await admin.reset_offsets("G", "T", "end") == {
            Q: 4,
            MessageQueue("T", "b2", 0): 4,
        }
        assert await admin.reset_offsets("G", "T", 4, queue=Q) == {Q: 4}
        assert len(there.brokers[B2].requests(RESET)) == 1


async def test_a_broker_that_would_ask_consumers_is_told_the_offsets_when_nobody_is_online():
    async with administered(B1) as (admin, there):
        there.topic("T", 2)
        there.brokers[B1].answers |= {
            RESET: no(206),
            WRITE: ok(),
            RequestCode.GET_MAX_OFFSET: ok(header=headers.GetMaxOffsetReply(8)),
        }
        found = await admin.reset_offsets("G", "T", "end")
        assert found == {Q: 8, MessageQueue("T", "b1", 1): 8}
        assert [each.ext["commitOffset"] for each in there.brokers[B1].requests(WRITE)] == [
            "8",
            "8",
        ]


async def test_moves_that_mean_nothing():
    async with administered(B1) as (admin, there):
        there.topic("T")
        for to, queue, text in (
            (5, None, "say which: queue="),
            (5, MessageQueue("T", "b1", 9), "no queue 9 on b1"),
            (5, MessageQueue("T", "b9", 0), "no queue 0 on b9"),
            ("middle", None, "no place"),
            (datetime(2026, 1, 1), None, "no time zone"),
        ):
            with pytest.raises(ConfigError, match=text):
                await admin.reset_offsets("G", "T", to, queue=queue)
        assert there.brokers[B1].requests(RESET) == []


async def test_a_clone_writes_all_or_tells(autojump_clock):
    async with administered(B1, B2) as (admin, there):
        there.topic("T")
        for peer in there.brokers.values():
            peer.answers |= {QUERY: ok(header=headers.QueryConsumerOffsetReply(5)), WRITE: ok()}
        assert await admin.clone_offsets("G", "H", "T") == {Q: 5, MessageQueue("T", "b2", 0): 5}
        (asked,) = there.brokers[B2].requests(WRITE)
        assert (asked.ext["consumerGroup"], asked.ext["commitOffset"]) == ("H", "5")
        there.brokers[B2].answers[QUERY] = no(1, "broken")
        with pytest.raises(BrokersFailed, match="nothing was changed"):
            await admin.clone_offsets("G", "H", "T")
        assert len(there.brokers[B1].requests(WRITE)) == 1
