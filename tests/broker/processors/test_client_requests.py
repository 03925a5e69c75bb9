"""Heartbeats, goodbyes, member lists, locks, and who is told of what."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.broker.processors.conftest import FakePeer, make_bench
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import (
    CheckClientBody,
    ConsumerData,
    ConsumerIdList,
    ConsumeType,
    HeartbeatData,
    LockBatchBody,
    LockBatchReplyBody,
    MessageModel,
    MessageQueue,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from trio_mq.protocol.codes import FLAG_ONEWAY, VERSION
from trio_mq.protocol.headers.heartbeat import (
    GetConsumerListByGroupRequest,
    UnregisterClientRequest,
)

HEART_BEAT, UNREGISTER, MEMBERS, NOTIFY, LOCK, UNLOCK, CHECK = 34, 35, 38, 40, 41, 42, 46


def group(name="G", *topics, model=MessageModel.CLUSTERING, **more) -> ConsumerData:
    subs = tuple(SubscriptionData(topic, sub_version=1) for topic in topics or ("T",))
    return ConsumerData(name, message_model=model, subscription_data_set=subs, **more)


def told(peer: FakePeer) -> list[str]:
    """Groups that a client was told to share anew."""
    found = [c for c in peer.take() if c.code == NOTIFY and not c.is_response]
    assert all(c.flag == FLAG_ONEWAY for c in found)
    return [c.ext["consumerGroup"] for c in found]


# -- heartbeats


async def test_the_answer_to_a_heartbeat_of_version_1(bench):
    reply = bench.ask(HEART_BEAT, body=HeartbeatData("c1", (), (group(),)))
    assert reply.code == 0
    assert reply.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert reply.version == VERSION


async def test_version_2_is_asked_for_its_subscriptions_only_if_they_changed(bench):
    peer = FakePeer(1)
    whole = HeartbeatData("c1", (), (group(),), heartbeat_fingerprint=7)
    short = attrs.evolve(whole, consumer_data_set=(ConsumerData("G"),), without_sub=True)
    assert bench.ask(HEART_BEAT, body=short, peer=peer).ext["IS_SUB_CHANGE"] == "true"
    assert bench.ask(HEART_BEAT, body=whole, peer=peer).ext["IS_SUB_CHANGE"] == "false"
    assert bench.ask(HEART_BEAT, body=short, peer=peer).ext["IS_SUB_CHANGE"] == "false"


async def test_a_heartbeat_creates_the_group_and_its_retry_topic(bench):
    bench.groups.update(SubscriptionGroupConfig("Two", retry_queue_nums=2))
    bench.beat(FakePeer(1), "c1", group("G"), group("Two"), group("Unit", unit_mode=True))
    assert "G" in bench.groups
    assert bench.topics.get("%RETRY%G") == TopicConfig("%RETRY%G", 1, 1, 6)
    assert bench.topics.get("%RETRY%Two").read_queue_nums == 2
    assert bench.topics.get("%RETRY%Unit").topic_sys_flag == 2


async def test_the_retry_topic_of_an_ordered_topic_is_ordered_and_stays_so(bench):
    bench.topics.update(TopicConfig("O", order=True), None)
    peer = FakePeer(1)
    bench.beat(peer, "c1", group("G", "O"))
    assert bench.topics.is_ordered("%RETRY%G")
    peer.take()
    revision = bench.topics.revision
    short = HeartbeatData("c1", (), (ConsumerData("G"),), 7, True)
    bench.ask(HEART_BEAT, body=short, peer=peer)
    assert bench.topics.revision == revision


async def test_groups_that_cannot_be_are_skipped_in_silence():
    bench = await make_bench(auto_create_subscription_group=False)
    reply = bench.ask(HEART_BEAT, body=HeartbeatData("c1", (ProducerData("PG"),), (group(),)))
    assert reply.code == 0
    assert bench.members.consumer_group("G") is None
    assert "%RETRY%G" not in bench.topics
    assert bench.members.producer_groups == ["PG"]


async def test_consumers_that_pull_can_be_kept_out():
    bench = await make_bench(reject_pull_consumer_enable=True)
    pull = group("P", consume_type=ConsumeType.CONSUME_ACTIVELY)
    bench.beat(FakePeer(1), "c1", pull, group("G"))
    assert bench.members.consumer_group("P") is None
    assert bench.members.consumer_group("G") is not None


async def test_a_heartbeat_that_does_not_parse_is_answered(bench):
    reply = bench.ask(HEART_BEAT, body=b'{"clientID":')
    assert reply.code == 1
    reply = bench.ask(HEART_BEAT, body=b"{}")
    assert reply.code == 1
    assert "client_id" in reply.remark


# -- telling members


async def test_all_members_are_told_of_a_new_one(bench):
    first, second = FakePeer(1), FakePeer(2)
    bench.beat(first, "c1", group())
    assert told(first) == ["G"]
    bench.beat(second, "c2", group())
    assert told(first) == told(second) == ["G"]
    bench.beat(second, "c2", group())
    assert told(first) == told(second) == []


async def test_b050_a_closed_connection_is_told_at_once(bench):
    """B050."""
    first, second = FakePeer(1), FakePeer(2)
    bench.beat(first, "c1", group())
    bench.beat(second, "c2", group())
    told(first), told(second)
    second.closed = True
    bench.clients.disconnected(second)
    assert told(first) == ["G"]
    assert bench.members.client_ids("G") == ["c1"]


async def test_settings_and_groups_can_keep_it_quiet():
    quiet = await make_bench(notify_consumer_ids_changed_enable=False)
    peer = FakePeer(1)
    quiet.beat(peer, "c1", group())
    assert told(peer) == []
    bench = await make_bench()
    bench.groups.update(SubscriptionGroupConfig("G", notify_consumer_ids_changed_enable=False))
    bench.beat(peer, "c1", group("G"), group("H"), group("B", model=MessageModel.BROADCASTING))
    assert told(peer) == ["H"]


async def test_silent_clients_are_closed_and_the_others_told(bench, autojump_clock):
    silent, lively = FakePeer(1), FakePeer(2)
    bench.beat(silent, "c1", group())
    bench.beat(lively, "c2", group())
    await trio.sleep(100)
    bench.beat(lively, "c2", group())
    told(lively)
    await trio.sleep(21)
    bench.clients.expire()
    assert silent.closed
    assert not lively.closed
    assert told(lively) == ["G"]


# -- goodbyes and lists


async def test_unregister_takes_out_of_the_groups_and_frees_locks(bench):
    first, second = FakePeer(1), FakePeer(2)
    bench.beat(first, "c1", group(), producers=["PG"])
    bench.beat(second, "c2", group())
    queue = MessageQueue("T", "b-a", 0)
    bench.ask(LOCK, body=LockBatchBody("G", "c1", frozenset({queue})))
    told(first), told(second)
    reply = bench.ask(UNREGISTER, UnregisterClientRequest("c1", "PG", "G"), peer=first)
    assert (reply.code, reply.ext) == (0, {})
    assert told(second) == ["G"]
    assert bench.members.producer_groups == []
    assert bench.members.client_ids("G") == ["c2"]
    assert bench.locks.owner("G", queue, trio.current_time()) is None
    assert bench.ask(UNREGISTER, UnregisterClientRequest("c9"), peer=first).code == 0


async def test_the_list_of_members(bench):
    bench.beat(FakePeer(2), "c2", group())
    bench.beat(FakePeer(1), "c1", group())
    reply = bench.ask(MEMBERS, GetConsumerListByGroupRequest("G"))
    assert bodies.decode(ConsumerIdList, reply.body).consumer_id_list == ("c1", "c2")
    reply = bench.ask(MEMBERS, GetConsumerListByGroupRequest("X"))
    assert reply.code == 1
    assert "group X" in reply.remark


async def test_a_missing_field_is_named(bench):
    reply = bench.ask(MEMBERS, ext={})
    assert reply.code == 1
    assert "consumerGroup" in reply.remark


# -- check of a client's filter


@pytest.mark.parametrize(("kind", "code"), [("TAG", 0), ("", 0), ("SQL92", 1), ("XPATH", 1)])
async def test_b035_only_tags_are_filtered(bench, kind, code):
    """B035."""
    data = SubscriptionData("T", "a > 1", expression_type=kind)
    reply = bench.ask(CHECK, body=CheckClientBody("c1", "G", data))
    assert reply.code == code
    if code:
        assert f"does not support consumer to filter message by {kind}" in reply.remark


# -- locks


async def test_b056_locks(bench, autojump_clock):
    """B056: the queue is missing in the other's answer until 60 s have passed."""
    queues = [MessageQueue("T", "b-a", number) for number in range(3)]

    def lock(client: str, *numbers: int) -> set[int]:
        body = LockBatchBody("G", client, frozenset(queues[n] for n in numbers))
        reply = bench.ask(LOCK, body=body)
        assert reply.code == 0
        found = bodies.decode(LockBatchReplyBody, reply.body).lock_ok_mq_set
        return {queue.queue_id for queue in found}

    assert lock("X", 0, 1) == {0, 1}
    assert lock("Y", 1, 2) == {2}
    bench.send_oneway(UNLOCK, body=LockBatchBody("G", "X", frozenset({queues[1]})))
    assert lock("Y", 1, 2) == {1, 2}
    await trio.sleep(61)
    assert lock("Y", 0) == {0}
    await trio.sleep(61)
    bench.clients.expire()
    assert len(bench.locks.recent_losses) == 4
