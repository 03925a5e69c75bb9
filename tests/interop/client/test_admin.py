"""Administration: what it changes can be seen, and what it says is what mqadmin and Java clients say."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import anyio
import attrs
import pytest

import trio_mq
from tests.backends import both
from tests.interop.java_client import unique, wait_all_queues
from tests.interop.mqadmin import Mqadmin, plain
from trio_mq import Admin, Message, Producer
from trio_mq.protocol.bodies import MessageModel


async def until(check, what: str, limit_s: float = 20.0):
    """The first true value of an async condition."""
    with anyio.move_on_after(limit_s):
        while True:
            if found := await check():
                return found
            await anyio.sleep(0.05)
    raise TimeoutError(f"{what}: not within {limit_s} s")


async def send(cluster, topic: str, count: int, **fields):
    """Messages m0, m1, ... one after the other over the queues."""
    async with Producer(cluster.ns) as producer:
        queues = await producer.queues(topic)
        return [
            await producer.send(
                Message(topic, b"m%d" % n, keys=[f"k{n}"], tags=f"t{n % 2}", **fields),
                queue=queues[n % len(queues)],
            )
            for n in range(count)
        ]


@both
async def test_a_topic_from_its_creation_to_its_end(cluster):
    topic = unique("A")
    async with Admin(cluster.ns) as admin:
        made = await admin.create_topic(topic, queues=2, attributes={"message.type": "NORMAL"})
        assert dict(await admin.topic_config(topic)) == {"b1": made}
        assert topic in await admin.topics()
        assert topic in await admin.topics(cluster="DefaultCluster")
        assert "TBW102" not in await admin.topics()
        assert "TBW102" in await admin.topics(internal=True)
        changed = await admin.update_topic(
            topic, read_queues=3, write_queues=3, permission="r", attributes={"message.type": None}
        )
        wanted = attrs.evolve(made, read_queue_nums=3, write_queue_nums=3, perm=4, attributes={})
        assert dict(changed) == {"b1": wanted}
        route = await admin.topic_route(topic)
        assert (len(route.read_queues), route.publish_queues) == (3, ())
        stats = await admin.topic_stats(topic)
        assert (len(stats.queues), stats.messages, stats.failures) == (3, 0, ())
        await admin.delete_topic(topic)
        assert topic not in await admin.topics()
        with pytest.raises(trio_mq.NoRoute):
            await admin.topic_route(topic)
        await admin.delete_topic(topic)


@both
async def test_an_ordered_topic_is_known_to_name_servers(cluster):
    topic = unique("A")
    async with Admin(cluster.ns) as admin:
        await admin.create_topic(topic, queues=2, order=True)
        assert (await admin.kv("ORDER_TOPIC_CONFIG"))[topic] == "b1:2"
        await admin.delete_topic(topic)
        assert topic not in await admin.kv("ORDER_TOPIC_CONFIG")


@both
async def test_what_brokers_refuse(cluster):
    async with Admin(cluster.ns) as admin:
        address = cluster.brokers[0].address
        with pytest.raises(
            trio_mq.PeerRefused, match=f"{address} refused UPDATE_AND_CREATE_TOPIC"
        ) as caught:
            await admin.create_topic("SCHEDULE_TOPIC_XXXX")
        assert caught.value.code in (1, 29)
        with pytest.raises(trio_mq.PeerRefused) as caught:
            await admin.update_topic(unique("nowhere"), permission="r")
        assert caught.value.code == 17
        with pytest.raises(trio_mq.PeerRefused) as caught:
            await admin.update_broker_config("b1", {"brokerConfigPath": "/x"})
        assert caught.value.code == 16


@both
async def test_a_group_from_its_creation_to_its_end(cluster):
    group = unique("A")
    async with Admin(cluster.ns) as admin:
        made = await admin.create_group(group, retry_max_times=3)
        assert dict(await admin.group_config(group)) == {"b1": made}
        assert group in await admin.groups()
        changed = await admin.update_group(group, consume_enable=False, retry_queues=2)
        wanted = attrs.evolve(made, consume_enable=False, retry_queue_nums=2)
        assert dict(changed) == {"b1": wanted}
        assert not (await admin.consumers(group)).online
        assert list(await admin.producers(group)) == []
        await admin.delete_group(group)
        assert group not in await admin.groups()
        other = unique("nobody")
        with pytest.raises(trio_mq.ClientError, match=f"group {other} is not at"):
            await admin.group_config(other)
        assert other not in await admin.groups()


@both
async def test_messages_by_id_key_place_and_time(cluster):
    async with Admin(cluster.ns) as admin:
        topic = cluster.topic(2)
        began = datetime.now(UTC) - timedelta(seconds=1)
        receipts = await send(cluster, topic, 4)

        async def indexed():
            return len(await admin.messages_by_key(topic, "k3")) == 1

        await until(indexed, "the last message is in the index")
        for message_id in (receipts[2].offset_message_id, receipts[2].message_id):
            found = await admin.message(message_id, topic)
            assert found is not None
            assert (found.body, found.queue, found.tags) == (b"m2", receipts[2].queue, "t0")
            assert found.message_id == receipts[2].message_id
        (found,) = await admin.messages_by_key(topic, "k1", begin=began)
        assert found.body == b"m1"
        assert list(await admin.messages_by_key(topic, "k1", end=began)) == []
        assert list(await admin.messages_by_key(topic, "k")) == []
        found = await admin.message_at(receipts[3].queue, 1)
        assert found is not None
        assert found.body == b"m3"
        assert await admin.message_at(receipts[3].queue, 2) is None
        absent = receipts[0].message_id[:-4] + "FFFF"
        assert await admin.message(absent, topic) is None


@both
async def test_reading_a_topic(cluster):
    async with Admin(cluster.ns) as admin:
        topic = cluster.topic(2)
        receipts = await send(cluster, topic, 70)
        every = [b"m%d" % n for n in range(70)]
        assert sorted([m.body async for m in await admin.read(topic)]) == sorted(every)
        queue = receipts[0].queue
        part = await admin.read(topic, begin=1, end=4, queues=[queue])
        assert [m.body async for m in part] == [b"m2", b"m4", b"m6"]
        odd = await admin.read(topic, wanted="t1")
        assert sorted([m.body async for m in odd]) == sorted(every[1::2])
        since = datetime.now(UTC) - timedelta(minutes=1)
        assert len([m async for m in await admin.read(topic, begin=since)]) == 70
        assert [m async for m in await admin.read(topic, end=since)] == []
        following = await admin.read(topic, begin="end", follow=True)
        await send(cluster, topic, 1)
        assert (await anext(following)).body == b"m0"


@both
async def test_offsets_and_moves_of_a_group_that_is_offline(cluster):
    async with Admin(cluster.ns) as admin:
        topic, group, other = cluster.topic(2), cluster.group(), cluster.group()
        receipts = await send(cluster, topic, 6)
        first, second = receipts[0].queue, receipts[1].queue

        async def dispatched():
            return dict(await admin.max_offsets(topic)) == {first: 3, second: 3}

        await until(dispatched, "all messages are in their queues")
        assert dict(await admin.min_offsets(topic)) == {first: 0, second: 0}
        now = datetime.now(UTC)
        assert dict(await admin.offsets_at(topic, now + timedelta(hours=1))) == {
            first: 3,
            second: 3,
        }
        assert dict(await admin.offsets_at(topic, now - timedelta(hours=1))) == {
            first: 0,
            second: 0,
        }
        assert await admin.reset_offsets(group, topic, "end") == {first: 3, second: 3}
        assert (await admin.progress(group, topic)).lag == 0
        assert await admin.reset_offsets(group, topic, 1, queue=first) == {first: 1}
        found = await admin.progress(group)
        assert (found.lag, found.queues[first].lag, found.queues[second].lag) == (2, 2, 0)
        assert dict(await admin.consumer_offsets(group, topic)) == {first: 1, second: 3}
        assert await admin.clone_offsets(group, other, topic) == {first: 1, second: 3}
        assert (await admin.progress(other)).lag == 2
        assert await admin.reset_offsets(group, topic, "begin") == {first: 0, second: 0}
        assert (await admin.progress(group)).lag == 6
        assert topic in await admin.topics_of(group)
        assert {group, other} <= set(await admin.groups_of(topic))


@both
async def test_brokers_and_name_servers(cluster):
    broker = cluster.brokers[0].address
    async with Admin(cluster.ns) as admin:
        assert await admin.clusters() == {"DefaultCluster": ("b1",)}
        (status,) = await admin.cluster_status()
        assert (status.broker.name, status.broker.address, status.broker.broker_id) == (
            "b1",
            broker,
            0,
        )
        assert status.version
        assert status.boot_at is not None
        assert 0 < status.disk_ratio < 1
        assert (await admin.broker_status(broker)).broker == status.broker
        before = await admin.broker_config("b1")
        assert before["brokerName"] == "b1"
        await admin.update_broker_config("b1", {"fileReservedTime": "50"})
        assert (await admin.broker_config(broker))["fileReservedTime"] == "50"
        await admin.update_broker_config("b1", {"fileReservedTime": before["fileReservedTime"]})
        await admin.kv_put("AdminTest", "a", "b")
        assert (await admin.kv("AdminTest"), await admin.kv_get("AdminTest", "a")) == (
            {"a": "b"},
            "b",
        )
        await admin.kv_delete("AdminTest", "a")
        assert await admin.kv_get("AdminTest", "a") is None


def test_a_broker_without_write_permission(workshop):
    """Of its own: the permissions of all topics are set anew, of those that were special, too."""
    server = workshop.alone()
    server.start()

    async def main():
        async with Admin(server.nameservers[0]) as admin:
            await admin.create_topic("A", queues=1)
            (wiped,) = (await admin.wipe_write_permission("b1")).values()
            assert wiped > 1
            assert (await admin.topic_route("A")).publish_queues == ()
            assert (await admin.add_write_permission("b1")).keys() == {server.nameservers[0]}
            assert len((await admin.topic_route("A")).publish_queues) == 1

    anyio.run(main)


@both
async def test_who_is_connected_and_a_move_while_they_are(cluster, java):
    topic, group = cluster.topic(2), cluster.group()
    producers = unique("P")
    await send(cluster, topic, 4)
    producer = java.producer(cluster.ns, producers)
    producer.send_all([{"topic": topic, "body": "by java"}])
    consumer = java.push(cluster.ns, group, (topic, "t0 || t1"), start="FIRST_OFFSET")
    wait_all_queues([consumer], topic, 2)
    consumer.wait(4)
    async with Admin(cluster.ns) as admin:
        found = await admin.consumers(group)
        (member,) = found.members
        assert (member.client_id, member.language) == (consumer.client_id, "JAVA")
        assert found.subscriptions[topic].sub_string == "t0 || t1"
        assert found.message_model is MessageModel.CLUSTERING
        assert [each.language for each in await admin.producers(producers)] == ["JAVA"]
        info = await admin.running_info(group, consumer.client_id)
        assert {queue.queue_id for queue in info.queues if queue.topic == topic} == {0, 1}
        assert topic in info.rates
        assert [s.topic for s in info.subscriptions if s.topic == topic] == [topic]
        with pytest.raises(trio_mq.PeerRefused, match="client nobody of group"):
            await admin.running_info(group, "nobody")
        assert sum((await admin.reset_offsets(group, topic, "begin")).values()) == 0
        # A fetch that the broker holds meanwhile hears of the move with the next message.
        await send(cluster, topic, 2)
        await anyio.to_thread.run_sync(consumer.wait, 10)


def test_the_figures_are_those_of_mqadmin(cluster, java_driver):
    """topicStatus, consumerProgress, clusterList, consumerConnection: the same numbers in other words."""
    topic, group = cluster.topic(3), cluster.group()

    async def main():
        await send(cluster, topic, 7)
        async with Admin(cluster.ns) as admin:

            async def dispatched():
                return (await admin.topic_stats(topic)).messages == 7

            await until(dispatched, "all messages are in their queues")
            queue = (await admin.topic_route(topic)).read_queues[1]
            await admin.reset_offsets(group, topic, "end")
            await admin.reset_offsets(group, topic, 1, queue=queue)
            return (
                await admin.topic_stats(topic),
                await admin.progress(group, topic),
                await admin.brokers(),
            )

    stats, progress, brokers = anyio.run(main)
    tool = Mqadmin(java_driver, cluster.brokers[0])
    status = plain(tool.run("topicStatus", "-t", topic))
    for queue, at in stats.queues.items():
        row = rf"(?m)^{queue.broker_name} {queue.queue_id} {at.min_offset} {at.max_offset} "
        assert re.search(row, status), status
    shown = plain(tool.run("consumerProgress", "-g", group, "-t", topic))
    for queue, at in progress.queues.items():
        row = rf"(?m)^{topic} {queue.broker_name} {queue.queue_id} {at.broker_offset} {at.consumer_offset} "
        assert re.search(row, shown), shown
    assert re.search(rf"Consume Diff Total: {progress.lag}\b", shown), shown
    assert progress.lag == 1
    listed = tool.run("clusterList")
    for broker in brokers:
        row = rf"{broker.cluster}\s+{broker.name}\s+{broker.broker_id}\s+{broker.address}"
        assert re.search(row, listed), listed
