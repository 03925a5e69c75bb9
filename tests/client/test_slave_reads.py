"""Consumers and their brokers of one name: whom they read while the master is there, slow or gone."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from tests.client.simulations import consumer, send
from trio_mq import Producer
from trio_mq.client import world
from trio_mq.client.fetch import Fetcher
from trio_mq.client.messages import Message
from trio_mq.errors import ClientError
from trio_mq.testing.cluster import SimulatedCluster

#: Time for a slave to get what its master has just got, its tables included.
FOLLOWED_S = 12.0


@asynccontextmanager
async def pair(*, acting=False, reads=True, store=(), nameservers=1):
    """A master, its slave, and a topic of two queues; (cluster, master, slave)."""
    names = {"support_acting_master": True, "notify_min_broker_id_changed": True} if acting else {}
    async with SimulatedCluster(
        brokers=0, nameservers=nameservers, names=names, store=dict(store)
    ) as cluster:
        master = cluster.add_broker()
        master.settings = _with_ha(master.settings, acting=acting, reads=reads)
        await cluster.start(master)
        slave = cluster.add_slave(master)
        await cluster.start(slave)
        await cluster.create_topic("T", 2, master)
        yield cluster, master, slave


def _with_ha(settings, *, acting, reads):
    ha = attrs.evolve(settings.ha, enable_slave_acting_master=acting, slave_read_enable=reads)
    return attrs.evolve(settings, ha=ha)


def numbered(begin, end):
    return [b"%d" % number for number in range(begin, end)]


async def read(cluster, count, *, group="G", for_s=60.0, **options):
    """What a consumer gets that ends in order after so many messages; its positions are stored then."""
    got = []
    with trio.move_on_after(for_s):
        async with consumer(cluster, group, **options) as reading:
            await take(reading, got, count)
    return got


async def take(reading, got, count=None):
    """Messages into `got`, until there are so many."""
    async for message in reading:
        async with message:
            got.append(message.body)
        if len(got) == count:
            return


async def test_without_a_master_a_group_reads_the_slave_and_keeps_its_place_there(autojump_clock):
    async with pair() as (cluster, master, _):
        await send(cluster, *numbered(0, 20))
        first = await read(cluster, 10)
        await trio.sleep(FOLLOWED_S)
        await master.kill()
        await trio.sleep(1)
        second = await read(cluster, 5)
        third = await read(cluster, 100, for_s=30)
        assert len(second) == 5
        assert not set(second) & set(third), "what was committed at the slave is kept there"
        assert set(first) | set(second) | set(third) == set(numbered(0, 20))
        assert len(second) + len(third) <= 10 + 2, "the last message of a batch may be read twice"


@pytest.mark.slow
async def test_a_running_consumer_goes_on_at_the_slave_and_back_at_the_master(autojump_clock):
    async with pair() as (cluster, master, _):
        got = []
        async with consumer(cluster) as reading, trio.open_nursery() as nursery:
            nursery.start_soon(take, reading, got)
            await send(cluster, *numbered(0, 10))
            await trio.sleep(FOLLOWED_S)
            assert len(got) == 10
            reading.pause()
            await send(cluster, *numbered(10, 20))
            await trio.sleep(1)
            await master.kill()
            reading.resume()
            await trio.sleep(5)
            assert len(got) == 20
            await master.start()
            await cluster.registered(master)
            began = trio.current_time()
            await send(cluster, *numbered(20, 30))
            with trio.fail_after(40):
                while len(set(got)) < 30:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            assert trio.current_time() - began < 31, "no later than the refresh of its route"
            nursery.cancel_scope.cancel()
        assert set(got) == set(numbered(0, 30))


async def test_waiting_at_a_slave_without_a_master_is_no_busy_loop(autojump_clock, monkeypatch):
    pulls = []
    pull = Fetcher._pull

    def counted(self, queue):
        pulls.append(trio.current_time())
        return pull(self, queue)

    monkeypatch.setattr(Fetcher, "_pull", counted)
    async with pair() as (cluster, master, _):
        await send(cluster, *numbered(0, 4))
        await trio.sleep(FOLLOWED_S)
        await master.kill()
        # The broken link makes the slave ask the name server, which has seen it, too.
        await trio.sleep(3)
        async with consumer(cluster, "W"):
            await trio.sleep(5)
            pulls.clear()
            await trio.sleep(60)
            assert 8 <= len(pulls) <= 15, "of each of three queues every 15 s"


async def test_slow_readers_are_sent_to_the_slave(autojump_clock):
    """With no memory at all, every reader is far behind: one that the master cannot reach any more reads on."""
    async with pair(store={"access_message_in_memory_max_ratio": 0}) as (cluster, master, _):
        await send(cluster, *numbered(0, 10))
        await trio.sleep(FOLLOWED_S)
        got = []
        with cluster.client_at("10.9.0.7") as host:
            async with consumer(cluster) as reading, trio.open_nursery() as nursery:
                nursery.start_soon(take, reading, got)
                await trio.sleep(2)
                cluster.network.sever(host, master.host)
                with world.using(cluster.world):
                    await send(cluster, *numbered(10, 30))
                await trio.sleep(60)
                assert set(got) == set(numbered(0, 30))
                cluster.heal()
                nursery.cancel_scope.cancel()


@pytest.mark.parametrize("orderly", [False, True])
async def test_acting_master_serves_readers_and_takes_no_sends(orderly, autojump_clock):
    async with pair(acting=True, reads=False) as (cluster, master, _):
        await send(cluster, *numbered(0, 10))
        await trio.sleep(FOLLOWED_S)
        await master.kill()
        await trio.sleep(1)
        assert set(await read(cluster, 10, orderly=orderly)) == set(numbered(0, 10))
        async with Producer(cluster.nameserver, send_timeout_s=3) as producer:
            with pytest.raises(ClientError):
                await producer.send(Message("T", b"no"))
        await master.start()
        await cluster.registered(master)
        await send(cluster, b"again")
        await trio.sleep(FOLLOWED_S)
        assert b"again" in await read(cluster, 11, group="H", for_s=20)


async def test_slave_follows_a_master_that_moved_through_the_name_server_that_is_up(autojump_clock):
    async with pair(nameservers=2) as (cluster, master, _):
        await cluster.nameservers[0].kill()
        await master.stop()
        master.move("10.1.7.7")
        await master.start()
        await cluster.registered(master)
        await send(cluster, *numbered(0, 5))
        await trio.sleep(60)
        await master.kill()
        await trio.sleep(1)
        assert set(await read(cluster, 5)) == set(numbered(0, 5))


@pytest.mark.slow
async def test_brokers_and_clients_go_on_while_any_name_server_is_up(autojump_clock):
    async with (
        pair(nameservers=3) as (cluster, master, _),
        Producer(cluster.nameserver) as producer,
        consumer(cluster) as reading,
    ):
        await producer.send(Message("T", b"0"))
        for number, gone in enumerate(cluster.nameservers[:2], 1):
            await gone.kill()
            await trio.sleep(65)  # routes were refreshed twice
            await producer.send(Message("T", b"%d" % number))
        got = []
        with trio.fail_after(30):
            await take(reading, got, 3)
        assert set(got) == set(numbered(0, 3))
        await cluster.create_topic("NEW", 1, master)
        await producer.send(Message("NEW", b"x"))


async def test_who_leaves_while_its_master_goes_stores_its_place_at_the_slave(autojump_clock):
    """The client hears of the broken link before the name server has given the master's place to the slave."""
    async with pair() as (cluster, master, _):
        await send(cluster, *numbered(0, 20))
        await trio.sleep(FOLLOWED_S)
        got = []

        async def hears_later():
            await trio.sleep(0.5)
            cluster.heal()

        async with trio.open_nursery() as nursery, consumer(cluster) as reading:
            await take(reading, got, 20)
            cluster.partition(master.host, cluster.nameservers[0].host)
            nursery.start_soon(hears_later)
            await master.kill()
        assert len(got) == 20
        assert await read(cluster, 1, for_s=5) == []


async def test_who_leaves_when_its_only_broker_is_gone_does_not_wait_for_it(autojump_clock):
    async with pair() as (cluster, master, slave):
        await slave.kill()
        await send(cluster, *numbered(0, 20))
        await trio.sleep(FOLLOWED_S)
        got = []
        async with consumer(cluster) as reading:
            await take(reading, got, 20)
            await master.kill()
            began = trio.current_time()
        assert trio.current_time() - began < 0.5
