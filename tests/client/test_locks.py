"""Locks of queues at the real broker, on a simulated network and under a mock clock."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio

from trio_mq.client.instance import open_instance
from trio_mq.client.locks import QueueLocks
from trio_mq.client.options import ClientOptions
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.testing.cluster import SimulatedCluster

ONE, TWO = (MessageQueue("T", "broker-a", number) for number in range(2))


@asynccontextmanager
async def locks_of(cluster, interval_s=20.0):
    async with open_instance(ClientOptions.of(cluster.nameserver)) as instance:
        await instance.route("T")
        yield QueueLocks(instance, "G", interval_s)


def held(locks, *queues):
    return [locks.is_locked(queue, trio.current_time()) for queue in queues]


async def renew(locks, queues, seconds, look_s):
    """What :meth:`Orderly.keep` does."""
    until = trio.current_time() + seconds
    while trio.current_time() < until:
        await trio.sleep(look_s)
        await locks.renew(queues)


async def test_a_queue_has_one_owner_until_it_unlocks(autojump_clock):
    async with SimulatedCluster() as cluster:
        await cluster.create_topic("T")
        async with locks_of(cluster) as mine, locks_of(cluster) as other:
            await mine.lock([ONE, TWO])
            await other.lock([ONE, TWO])
            assert held(mine, ONE, TWO) == [True, True]
            assert held(other, ONE, TWO) == [False, False]
            await mine.unlock([ONE])
            await other.lock([ONE, TWO])
            assert held(mine, ONE, TWO) == [False, True]
            assert held(other, ONE, TWO) == [True, False]


async def test_c109_locks_that_live_for_three_seconds_are_renewed_in_time(autojump_clock):
    async with SimulatedCluster(broker={"lock_max_live_ms": 3000}) as cluster:
        await cluster.create_topic("T")
        async with locks_of(cluster, interval_s=1.0) as mine, locks_of(cluster) as other:
            await mine.lock([ONE])
            stolen = []

            async def steal():
                for _ in range(200):
                    await trio.sleep(0.3)
                    await other.lock([ONE])
                    stolen.extend(held(other, ONE))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(steal)
                await renew(mine, [ONE], 61.0, 0.25)
            assert held(mine, ONE) == [True]
            assert len(stolen) == 200
            assert not any(stolen)


async def test_c109_a_lock_that_lives_too_short_is_told_with_the_setting(autojump_clock, caplog):
    async with SimulatedCluster(broker={"lock_max_live_ms": 3000}) as cluster:
        await cluster.create_topic("T")
        async with locks_of(cluster) as mine, locks_of(cluster) as other:
            await mine.lock([ONE])
            await trio.sleep(5)
            await other.lock([ONE])
            await mine.lock([ONE])
            assert held(mine, ONE) == [False]
            assert held(other, ONE) == [True]
    told = [r.message for r in caplog.records if "was lost before its time" in r.message]
    assert len(told) == 1
    assert "lock_interval_s" in told[0]
    assert "lockMaxLiveTime" in told[0]


async def test_a_lock_counts_for_one_and_a_half_intervals_when_its_broker_is_silent(
    autojump_clock, caplog
):
    async with SimulatedCluster() as cluster:
        await cluster.create_topic("T")
        async with locks_of(cluster) as mine:
            await mine.lock([ONE])
            cluster.brokers[0].partition()
            await renew(mine, [ONE], 29, 1)
            assert held(mine, ONE) == [True]
            await trio.sleep(2)
            assert held(mine, ONE) == [False]
            cluster.heal()
            await renew(mine, [ONE], 5, 1)
            assert held(mine, ONE) == [False]  # its holder has to begin anew
            await mine.lock([ONE])
            assert held(mine, ONE) == [True]
    told = [r.message for r in caplog.records if "locks of queues at broker broker-a" in r.message]
    assert 1 <= len(told) <= 3


@pytest.mark.parametrize("seconds", [0.1, 30])
async def test_a_broker_that_was_started_again_knows_no_locks_and_ours_do_not_count(
    autojump_clock, seconds
):
    async with SimulatedCluster() as cluster:
        await cluster.create_topic("T")
        async with locks_of(cluster) as mine, locks_of(cluster) as other:
            await mine.lock([ONE])
            (node,) = cluster.brokers
            await node.kill()
            await trio.sleep(seconds)
            assert held(mine, ONE) == [False]
            await cluster.start(node)
            await other.lock([ONE])
            await renew(mine, [ONE], 3, 1)
            assert (held(mine, ONE), held(other, ONE)) == ([False], [True])
