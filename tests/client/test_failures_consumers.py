"""What fails around consumers that keep their own positions, or locks of queues, on a simulated cluster."""

import pytest
import trio

from tests.client.failing import collecting, send_numbers
from trio_mq import Consumer, Message, Producer
from trio_mq.testing.cluster import SimulatedCluster


def broadcasting(cluster, folder, **options):
    return Consumer(
        cluster.nameserver,
        "G",
        subscribe={"T": "*"},
        model="broadcasting",
        offsets_dir=folder,
        **options,
    )


async def test_c118_what_is_sent_right_after_the_start_arrives(autojump_clock, tmp_path):
    """The place where "last" is, is settled when the block begins, not with the first pull."""
    async with SimulatedCluster() as cluster, Producer(cluster.nameserver) as producer:
        await cluster.create_topic("T")
        await producer.send(Message("T", b"999"))
        async with broadcasting(cluster, tmp_path) as receiving:
            await send_numbers(producer, range(100))
            async with collecting(receiving) as got:
                await got.reach(100)
                await trio.sleep(40)
            assert sorted(got.numbers) == list(range(100)), "and nothing from before"


async def test_c119_a_broker_that_was_away_is_gone_on_with(autojump_clock, tmp_path):
    """Its place is kept, also in the file, while no route names it and nothing can be read there."""
    async with SimulatedCluster(brokers=2) as cluster, Producer(cluster.nameserver) as producer:
        await cluster.create_topic("T", 2)
        away = cluster.node("broker-a")
        with cluster.client_at("10.9.0.7") as mine:
            async with broadcasting(cluster, tmp_path) as receiving, collecting(receiving) as got:
                await send_numbers(producer, range(8))
                await got.reach(8)
                away.partition(mine, *(names.host for names in cluster.nameservers))
                await trio.sleep(300)  # the name server takes it off
                queues = [q for q in await producer.queues("T") if q.broker_name == "broker-b"]
                assert queues
                away.heal(*(names.host for names in cluster.nameservers))
                await cluster.registered(away)
                await trio.sleep(35)
                await send_numbers(producer, range(8, 24))
                await trio.sleep(30)
                assert len(got.numbers) < 24, "the consumer is still parted from it"
                away.heal(mine)
                await got.reach(24)
            assert len(got.bodies) == 24, "and nothing twice"


async def test_c119_the_place_outlives_a_restart_of_the_consumer_while_the_broker_is_away(
    autojump_clock, tmp_path
):
    async with SimulatedCluster(brokers=2) as cluster, Producer(cluster.nameserver) as producer:
        await cluster.create_topic("T", 2)
        away = cluster.node("broker-a")
        async with broadcasting(cluster, tmp_path) as receiving, collecting(receiving) as got:
            await send_numbers(producer, range(8))
            await got.reach(8)
        await away.kill()
        await trio.sleep(1)
        async with broadcasting(cluster, tmp_path) as receiving, collecting(receiving) as got:
            await trio.sleep(60)
            await cluster.start(away)
            await trio.sleep(35)
            await send_numbers(producer, range(8, 16))
            await got.reach(8)
            await trio.sleep(40)
            assert sorted(got.bodies) == sorted(b"%d" % number for number in range(8, 16))


# -- locks


def ordered(cluster, **options):
    return Consumer(
        cluster.nameserver, "G", subscribe={"T": "*"}, orderly=True, from_where="first", **options
    )


async def test_a_lock_that_expires_while_its_consumer_is_cut_off_goes_to_another(autojump_clock):
    """The one that was cut off hands out nothing more of that queue, and order holds in what both have done."""
    async with SimulatedCluster() as cluster, Producer(cluster.nameserver) as producer:
        await cluster.create_topic("T", 1)
        (node,) = cluster.brokers
        order = []
        await send_numbers(producer, range(5))

        async def follow(name):
            async with ordered(cluster) as consumer:
                async for message in consumer:
                    async with message:
                        order.append((name, int(message.body)))

        async with trio.open_nursery() as nursery:
            with cluster.client_at("10.9.0.7") as mine:
                nursery.start_soon(follow, "one")
            await trio.sleep(30)
            assert [number for _, number in order] == list(range(5))
            nursery.start_soon(follow, "other")
            await trio.sleep(1)
            node.partition(mine)
            await send_numbers(producer, range(5, 10))
            await trio.sleep(180)
            assert order[5:] == [("other", number) for number in range(5, 10)]
            node.heal(mine)
            await send_numbers(producer, range(10, 15))
            await trio.sleep(180)
            assert [number for _, number in order] == list(range(15))
            nursery.cancel_scope.cancel()


async def test_c109_a_short_lock_life_does_not_lose_the_lock_of_one_who_lives(autojump_clock):
    """Locks live for 3 s, and are renewed in time when the consumer is told so."""
    settings = {"lock_max_live_ms": 3000}
    async with (
        SimulatedCluster(broker=settings) as cluster,
        Producer(cluster.nameserver) as producer,
    ):
        await cluster.create_topic("T", 1)
        async with ordered(cluster, lock_interval_s=1.0) as consumer:
            async with collecting(consumer) as got:
                for number in range(60):
                    await producer.send(Message("T", b"%d" % number))
                    await trio.sleep(1)
                await got.reach(60)
            assert got.bodies == [b"%d" % number for number in range(60)]


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_locks_are_taken_again_of_a_broker_that_restarts(autojump_clock, how):
    """It has forgotten them all."""
    async with SimulatedCluster() as cluster, Producer(cluster.nameserver) as producer:
        await cluster.create_topic("T", 2)
        (node,) = cluster.brokers
        async with ordered(cluster) as consumer, collecting(consumer) as got:
            await send_numbers(producer, range(6))
            await got.reach(6)
            await trio.sleep(6)  # positions are stored
            await getattr(node, how)()
            await cluster.start(node)
            await send_numbers(producer, range(6, 12))
            await got.reach(12)
