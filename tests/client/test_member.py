"""One member of a group: what brokers hear of it, and what it makes of queues."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
import trio

from tests.client.admin.scripted import B1, NS, cluster, no, ok
from trio_mq.client.member import MemberSpec, open_member
from trio_mq.client.options import ClientOptions
from trio_mq.client.subscription import Sql
from trio_mq.errors import ClientError, PeerRefused
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import ConsumerIdList, HeartbeatData, MessageModel, MessageQueue
from trio_mq.protocol.codes import RequestCode, ResponseCode


@asynccontextmanager
async def member(subscribe=None, *, namespace=None, answers=(), start=True, **spec):
    async with cluster(B1) as made:
        topic = f"{namespace}%T" if namespace else "T"
        made.topic(topic, 2)
        group = f"{namespace}%G" if namespace else "G"
        made.topic(f"%RETRY%{group}")
        broker = made.brokers[B1]
        broker.answers |= {
            RequestCode.HEART_BEAT: ok(),
            RequestCode.UNREGISTER_CLIENT: ok(),
            RequestCode.CHECK_CLIENT_CONFIG: ok(),
            RequestCode.QUERY_CONSUMER_OFFSET: no(ResponseCode.QUERY_NOT_FOUND),
            RequestCode.UPDATE_CONSUMER_OFFSET: ok(),
            RequestCode.GET_MAX_OFFSET: ok(header=headers.GetMaxOffsetReply(90)),
            RequestCode.GET_MIN_OFFSET: ok(header=headers.GetMinOffsetReply(4)),
            RequestCode.PULL_MESSAGE: None,
            **dict(answers),
        }
        options = ClientOptions.of(NS, namespace=namespace)
        async with open_member(
            MemberSpec(options, "G", subscribe or {"T": "a || b"}, **spec)
        ) as it:
            broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = ok(
                ConsumerIdList((it.instance.client_id,))
            )
            if start:
                await it.start()
            yield it, broker


def beats(broker):
    return [
        bodies.decode(HeartbeatData, one.body).consumer_data_set[0]
        for one in broker.requests(RequestCode.HEART_BEAT)
    ]


async def test_brokers_hear_what_a_member_wants(autojump_clock):
    async with member() as (_, broker):
        told = beats(broker)[-1]
        assert (told.group_name, told.consume_type, told.message_model, told.consume_from_where) == (
            "G", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET",
        )  # fmt: skip
        wanted = {one.topic: one for one in told.subscription_data_set}
        assert wanted.keys() == {"T", "%RETRY%G"}
        assert (wanted["T"].sub_string, wanted["T"].tags_set) == ("a || b", {"a", "b"})
        assert wanted["%RETRY%G"].sub_string == "*"
        assert wanted["T"].sub_version > 0


async def test_broadcasting_members_want_no_retries(autojump_clock, tmp_path):
    spec = {"model": MessageModel.BROADCASTING, "offsets_dir": tmp_path}
    async with member(**spec) as (it, broker):
        told = beats(broker)[-1]
        assert told.message_model == "BROADCASTING"
        assert [one.topic for one in told.subscription_data_set] == ["T"]
        assert it.assigned.queues == {MessageQueue("T", "b1", 0), MessageQueue("T", "b1", 1)}
        (pull, *_) = broker.requests(RequestCode.PULL_MESSAGE)
        assert int(pull.ext["sysFlag"]) & 1 == 0, "no position travels"


@pytest.mark.parametrize(
    ("from_where", "told"),
    [
        ("first", "CONSUME_FROM_FIRST_OFFSET"),
        (datetime(2026, 1, 1, tzinfo=UTC), "CONSUME_FROM_TIMESTAMP"),
    ],
)
async def test_where_it_begins_is_told(autojump_clock, from_where, told):
    answers = {RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: ok(header=headers.SearchOffsetReply(9))}
    async with member(from_where=from_where, answers=answers) as (_, broker):
        assert beats(broker)[-1].consume_from_where == told


async def test_a_member_is_known_before_it_asks_who_is_in_the_group(autojump_clock):
    async with member() as (_, broker):
        codes = [one.code for one in broker.asked]
        assert codes.index(RequestCode.HEART_BEAT) < codes.index(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP
        )


async def test_conditions_are_compiled_by_a_broker_before_the_start(autojump_clock):
    async with member({"T": Sql("a = 1")}) as (_, broker):
        (asked,) = broker.requests(RequestCode.CHECK_CLIENT_CONFIG)
        body = bodies.decode(bodies.CheckClientBody, asked.body)
        assert (body.group, body.subscription_data.sub_string) == ("G", "a = 1")
        assert body.subscription_data.expression_type == "SQL92"


async def test_tags_are_not_asked_about(autojump_clock):
    async with member() as (_, broker):
        assert broker.requests(RequestCode.CHECK_CLIENT_CONFIG) == []


async def test_a_condition_that_is_refused_ends_the_start(autojump_clock):
    refusal = {RequestCode.CHECK_CLIENT_CONFIG: no(23, "line 1: what?")}
    async with member({"T": Sql("a =")}, answers=refusal, start=False) as (it, _):
        with pytest.raises(PeerRefused, match="line 1: what"):
            await it.start()


async def test_a_new_subscription_is_told_with_a_newer_version(autojump_clock):
    async with member() as (it, broker):
        before = {one.topic: one.sub_version for one in beats(broker)[-1].subscription_data_set}
        await it.subscribe("T", "c")
        after = {one.topic: one for one in beats(broker)[-1].subscription_data_set}
        assert after["T"].sub_string == "c"
        assert after["T"].sub_version > before["T"]
        await it.unsubscribe("T")
        told = beats(broker)[-1].subscription_data_set
        assert [one.topic for one in told] == ["%RETRY%G"]
        assert {queue.topic for queue in it.assigned.queues} == {"%RETRY%G"}


async def test_places_in_queues_are_offsets(autojump_clock):
    async with member() as (it, _):
        queue = MessageQueue("T", "b1", 0)
        assert await it.offset_of(queue, 7) == 7
        assert await it.offset_of(queue, "begin") == 4
        assert await it.offset_of(queue, "end") == 90


async def test_queues_have_the_applications_names_outside(autojump_clock):
    async with member(namespace="ns") as (it, _):
        shown, wire = MessageQueue("T", "b1", 0), MessageQueue("ns%T", "b1", 0)
        assert it.group == "ns%G"
        assert it.shown(wire) == shown
        assert it.wire(shown) == it.wire(wire) == wire
        assert it.own(shown) == wire
        assert {it.shown(queue).topic for queue in it.assigned.queues} == {"T", "%RETRY%G"}
        with pytest.raises(ClientError, match="`assignment` has those that are"):
            it.own(MessageQueue("T", "b1", 9))


async def test_lag_is_what_is_not_settled(autojump_clock):
    async with member(from_where="first") as (it, _):
        assert await it.lag() == {
            MessageQueue("T", "b1", 0): 90,
            MessageQueue("T", "b1", 1): 90,
            MessageQueue("%RETRY%G", "b1", 0): 90,
        }


async def test_a_lag_that_a_broker_does_not_tell_is_an_error(autojump_clock):
    async with member(from_where="first") as (it, broker):
        broker.answers[RequestCode.GET_MAX_OFFSET] = no(1, "broken")
        with pytest.raises(PeerRefused, match="broken"):
            await it.lag()


async def test_positions_are_stored_now_and_then_and_at_the_end(autojump_clock):
    async with member(auto_commit_s=5.0) as (_, broker):
        await trio.sleep(12)
        stored = broker.requests(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert len(stored) == 2 * 3
        assert all(one.is_oneway for one in stored)
    last = broker.requests(RequestCode.UPDATE_CONSUMER_OFFSET)[6:]
    assert len(last) == 3
    assert not any(one.is_oneway for one in last), "it is sure that they are stored"
    codes = [one.code for one in broker.asked]
    assert codes[-1] == RequestCode.UNREGISTER_CLIENT, "and only then others are told"


async def test_an_application_that_keeps_positions_is_left_alone(autojump_clock):
    async with member(auto_commit_s=None) as (_, broker):
        await trio.sleep(60)
        pulls = broker.requests(RequestCode.PULL_MESSAGE)
        assert pulls
        assert all(int(one.ext["sysFlag"]) & 1 == 0 for one in pulls)
    assert broker.requests(RequestCode.UPDATE_CONSUMER_OFFSET) == []
