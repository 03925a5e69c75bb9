"""The simulated cluster: real servers, whose machines fail on command, in no time."""

import time

import pytest
import trio

import trio_mq
from trio_mq import Message
from trio_mq.client.instance import open_instance
from trio_mq.client.options import ClientOptions
from trio_mq.config.store import FlushDiskType
from trio_mq.errors import AddressInUse, NoRoute, PeerUnavailable, SendFailed, StoreFull
from trio_mq.protocol.codes import RequestCode
from trio_mq.testing.cluster import SimulatedCluster

RUNTIME = RequestCode.GET_BROKER_RUNTIME_INFO


def client(cluster):
    return open_instance(ClientOptions.of(cluster.nameserver, call_timeout_s=2))


async def addresses(cluster, name="broker-a", topic="T"):
    """Where a fresh client is told that a broker is."""
    async with client(cluster) as instance:
        route = await instance.route(topic)
        return [str(address) for address in route.brokers.get(name, {}).values()]


async def test_clients_find_all_brokers_by_any_name_server(autojump_clock):
    async with SimulatedCluster(brokers=2, nameservers=2) as cluster:
        assert cluster.nameserver == "10.2.0.1:9876;10.2.0.2:9876"
        await cluster.create_topic("T", 2)
        for nameserver in cluster.nameserver.split(";"):
            async with trio_mq.Producer(nameserver) as producer:
                names = [queue.broker_name for queue in await producer.queues("T")]
                assert names == ["broker-a"] * 2 + ["broker-b"] * 2
                receipt = await producer.send(Message("T", b"hello"))
                assert receipt.status is trio_mq.SendStatus.OK
    assert not any(node.running for node in cluster.brokers + cluster.nameservers)


async def test_a_start_costs_little(autojump_clock):
    best_s = []
    for _ in range(5):
        began_s = time.perf_counter()
        async with SimulatedCluster(brokers=1, nameservers=1):
            best_s.append(time.perf_counter() - began_s)
    assert min(best_s) < 0.1  # 0.02 where nothing else runs


async def test_time_stands_on_the_mock_clock(autojump_clock):
    async with SimulatedCluster() as cluster:
        began_ms = cluster.clock.now_ms()
        await trio.sleep(3600)
        assert cluster.clock.now_ms() - began_ms == 3_600_000
        async with trio_mq.Producer(cluster.nameserver) as producer:
            await producer.send(Message("T", b"an hour later"))


async def test_settings_by_their_python_names(autojump_clock):
    async with (
        SimulatedCluster(broker={"auto_create_topic_enable": False}) as cluster,
        trio_mq.Producer(cluster.nameserver) as producer,
    ):
        with pytest.raises(NoRoute):
            await producer.send(Message("T", b"nowhere"))


@pytest.mark.parametrize("how", ["stop", "kill", "crash"])
async def test_a_broker_that_comes_back_has_what_it_confirmed(autojump_clock, how):
    sync = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    async with SimulatedCluster(store=sync) as cluster:
        (node,) = cluster.brokers
        async with trio_mq.Producer(cluster.nameserver) as producer:
            for number in range(20):
                await producer.send(Message("T", b"%d" % number))
        await getattr(node, how)(*([1] if how == "crash" else []))
        assert not node.running
        async with client(cluster) as instance:
            with pytest.raises(PeerUnavailable, match=str(node.address)):
                await instance.ask(node.address, RUNTIME)
        await cluster.start(node)
        consumer = trio_mq.Consumer(
            cluster.nameserver, "G", subscribe={"T": "*"}, from_where="first"
        )
        got = set()
        async with consumer:
            with trio.fail_after(60):
                async for message in consumer:
                    async with message:
                        got.add(message.body)
                    if len(got) == 20:
                        break


async def test_an_unclean_end_is_recovered_from(autojump_clock):
    async with SimulatedCluster() as cluster:
        (node,) = cluster.brokers
        assert node.found.recovery.clean
        await node.restart()
        assert node.found.recovery.clean
        await node.kill()
        await node.start()
        assert not node.found.recovery.clean


async def test_a_killed_broker_is_forgotten_and_a_moved_one_found(autojump_clock):
    async with SimulatedCluster(brokers=2, nameservers=2) as cluster:
        one = cluster.node("broker-a")
        await cluster.create_topic("T")
        await one.kill()
        await trio.sleep(1)
        assert await addresses(cluster) == []
        one.move("10.1.0.77")
        await cluster.start(one)
        assert await addresses(cluster) == ["10.1.0.77:10911"]


async def test_a_crash_is_silent(autojump_clock):
    async with SimulatedCluster() as cluster:
        (node,) = cluster.brokers
        await cluster.create_topic("T")
        async with client(cluster) as instance:
            await instance.ask(node.address, RUNTIME)
            await node.crash(seed=7)
            with pytest.raises(PeerUnavailable, match=r"no answer to .* within 2 s"):
                await instance.ask(node.address, RUNTIME)
            assert await addresses(cluster) == [str(node.address)], "nobody was told"
            await node.start()
            await instance.ask(node.address, RUNTIME)


async def test_name_servers_come_and_go(autojump_clock):
    async with SimulatedCluster(nameservers=2) as cluster:
        one, other = cluster.nameservers
        await cluster.create_topic("T")
        await one.kill()
        assert await addresses(cluster) == ["10.1.0.1:10911"]
        await other.stop()
        with pytest.raises(PeerUnavailable, match=r"10\.2\.0\.1:9876"):
            await addresses(cluster)
        await one.start()
        await cluster.registered(*cluster.brokers)
        assert await addresses(cluster) == ["10.1.0.1:10911"]


async def test_a_parted_broker_is_reached_again_when_it_is_healed(autojump_clock):
    async with SimulatedCluster(brokers=2) as cluster:
        one = cluster.node("broker-a")
        async with client(cluster) as instance:
            await instance.ask(one.address, RUNTIME)
            one.partition()
            with pytest.raises(PeerUnavailable, match="no answer"):
                await instance.ask(one.address, RUNTIME)
            one.heal()
            await instance.ask(one.address, RUNTIME)


async def test_a_client_on_a_machine_of_its_own_is_parted_alone(autojump_clock):
    async with SimulatedCluster() as cluster:
        (node,) = cluster.brokers
        with cluster.client_at("10.9.0.7") as mine:
            async with client(cluster) as instance:
                node.partition(mine)
                with pytest.raises(PeerUnavailable, match="no answer"):
                    await instance.ask(node.address, RUNTIME)
                async with trio_mq.Producer(cluster.nameserver) as theirs:
                    with pytest.raises(SendFailed):
                        await theirs.send(Message("T", b"from the same machine"))
        async with trio_mq.Producer(cluster.nameserver) as elsewhere:
            await elsewhere.send(Message("T", b"from another one"))
        cluster.heal()


async def test_a_slow_broker_answers_late(autojump_clock):
    async with SimulatedCluster() as cluster:
        (node,) = cluster.brokers
        async with client(cluster) as instance:
            await instance.ask(node.address, RUNTIME)
            node.delay(0.5)
            began_s = trio.current_time()
            await instance.ask(node.address, RUNTIME)
            assert trio.current_time() - began_s == pytest.approx(1)
            node.delay(0)


async def test_a_broker_that_cannot_start_says_why(autojump_clock):
    async with SimulatedCluster() as cluster:
        double = cluster.add_broker("broker-z", host="10.1.0.1")
        with pytest.raises(AddressInUse, match=r"10\.1\.0\.1:10911"):
            await double.start()
        assert not double.running


async def test_a_stop_that_a_full_disk_spoils_says_why(autojump_clock):
    async with SimulatedCluster() as cluster:
        node = cluster.brokers[0]
        await cluster.create_topic("T", 1)
        async with trio_mq.Producer(cluster.nameserver) as producer:
            await producer.send(Message("T", b"later", delay_level=1))
        await trio.sleep(5)
        node.disk.fill()
        with pytest.raises(StoreFull, match="cannot save /store/config/delayOffset"):
            await node.stop()
        assert not node.running
        node.disk.make_room()
        await node.start()


async def test_an_error_in_the_block_leaves_as_itself(autojump_clock):
    with pytest.raises(LookupError, match="mine"):
        async with SimulatedCluster():
            raise LookupError("mine")


async def test_a_second_master_and_a_slave_join(autojump_clock):
    async with SimulatedCluster() as cluster:
        slave = cluster.add_broker("broker-a", broker_id=1)
        await cluster.start(slave)
        assert await addresses(cluster, topic="TBW102") == ["10.1.0.1:10911", "10.1.0.2:10911"]


async def test_the_same_seed_gives_the_same_run(autojump_clock):
    async def run(seed):
        async with SimulatedCluster() as cluster:
            (node,) = cluster.brokers
            async with trio_mq.Producer(cluster.nameserver) as producer:
                for number in range(30):
                    await producer.send(Message("T", b"%d" % number))
                    await trio.sleep(0.03)
            await node.crash(seed)
            await cluster.start(node)
            async with client(cluster) as instance:
                reply = await instance.ask(node.address, RUNTIME)
            return {path: len(data) for path, data in node.disk.files().items()}, reply.code

    assert await run(3) == await run(3)
