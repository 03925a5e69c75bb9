"""Administration of a simulated cluster: real name servers and brokers, machines that fail."""

from __future__ import annotations

import pytest
import trio

from trio_mq import Admin, Message, Producer
from trio_mq.errors import BrokersFailed, PeerUnavailable
from trio_mq.testing.cluster import SimulatedCluster

ME = "10.9.0.2"


async def sent(cluster: SimulatedCluster, topic: str, count: int) -> None:
    async with Producer(cluster.nameserver) as producer:
        queues = await producer.queues(topic)
        for n in range(count):
            await producer.send(Message(topic, b"%d" % n), queue=queues[n % len(queues)])
            await trio.sleep(0.01)  # so that their times tell their order


async def test_a_broker_that_cannot_be_reached_is_told_and_hides_nothing(autojump_clock):
    async with SimulatedCluster(brokers=2) as cluster:
        with cluster.client_at(ME):
            async with Admin(cluster.nameserver) as admin:
                await admin.create_topic("T", queues=1)
                await sent(cluster, "T", 10)
                there, away = cluster.brokers
                cluster.partition(ME, away.host)
                found = await admin.topic_stats("T")
                assert [(q.broker_name, at.messages) for q, at in found.queues.items()] == [
                    ("broker-a", 5)
                ]
                (failure,) = found.failures
                assert (failure.name, failure.address) == ("broker-b", str(away.address))
                reading = await admin.read("T")
                assert [m.body async for m in reading] == [b"0", b"2", b"4", b"6", b"8"]
                assert [f.address for f in reading.failures] == [str(away.address)]
                status = await admin.cluster_status()
                assert [s.broker.name for s in status] == ["broker-a"]
                with pytest.raises(BrokersFailed) as caught:
                    await admin.create_group("G")
                assert caught.value.done == (str(there.address),)
                cluster.heal()
                await admin.create_group("G")
                assert (await admin.group_config("G")).keys() == {"broker-a", "broker-b"}
                assert [m.body async for m in await admin.read("T")] == [
                    b"%d" % n for n in range(10)
                ]


async def test_nobody_can_be_reached(autojump_clock):
    async with SimulatedCluster(brokers=2) as cluster:
        with cluster.client_at(ME):
            async with Admin(cluster.nameserver, call_timeout_s=5.0) as admin:
                await admin.create_topic("T", queues=1)
                for node in cluster.brokers:
                    cluster.partition(ME, node.host)
                began = trio.current_time()
                with pytest.raises(PeerUnavailable) as caught:
                    await admin.topic_stats("T")
                assert trio.current_time() - began < 6
                assert all(str(node.address) in str(caught.value) for node in cluster.brokers)


async def test_following_over_a_restart(autojump_clock):
    async with SimulatedCluster(brokers=1) as cluster, Admin(cluster.nameserver) as admin:
        await admin.create_topic("T", queues=2)
        await sent(cluster, "T", 2)
        reading = await admin.read("T", follow=True)
        assert [(await anext(reading)).body for _ in range(2)] == [b"0", b"1"]
        (node,) = cluster.brokers
        await node.stop()

        async def back() -> None:
            await trio.sleep(20)
            await cluster.start(node)
            await sent(cluster, "T", 2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(back)
            assert {(await anext(reading)).body for _ in range(2)} == {b"0", b"1"}


async def test_a_long_life_with_many_topics(autojump_clock):
    """An administrator that stays open goes on after minutes without a word, and over a restart of its broker."""
    async with SimulatedCluster(brokers=1) as cluster, Admin(cluster.nameserver) as admin:
        for number in range(5):
            await admin.create_topic(f"T{number}", queues=1)
        await trio.sleep(120)
        assert (await admin.topic_stats("T3")).messages == 0
        (node,) = cluster.brokers
        await node.stop()
        await cluster.start(node)
        assert (await admin.topic_stats("T3")).messages == 0
        assert await admin.topics() == ("T0", "T1", "T2", "T3", "T4")
