"""What fails around a client, on a whole simulated cluster: it goes on, and says what it cannot do."""

import logging

import anyio
import pytest
import trio

from tests.client.failing import collecting, consume, numbers, send_numbers
from trio_mq import Admin, Consumer, Message, Producer, PullConsumer, SimpleConsumer
from trio_mq.errors import NoRoute, PeerUnavailable, SendFailed
from trio_mq.protocol.codes import ResponseCode
from trio_mq.testing.cluster import SimulatedCluster
from trio_mq.testing.faults import Faults, RuleBook
from trio_mq.testing.faulty import FaultyNetwork


def consumer(cluster, group="G", **options):
    return Consumer(
        cluster.nameserver, group, subscribe={"T": "*"}, **({"from_where": "first"} | options)
    )


# -- name servers


async def test_no_name_server_at_the_start(autojump_clock):
    async with SimulatedCluster(nameservers=2) as cluster:
        for names in cluster.nameservers:
            await names.kill()
        began_s = trio.current_time()
        for client in (
            Producer(cluster.nameserver),
            consumer(cluster),
            PullConsumer(cluster.nameserver, "G", subscribe={"T": "*"}),
            SimpleConsumer(cluster.nameserver, "G", subscribe={"T": "*"}),
        ):
            with pytest.raises(PeerUnavailable, match=r"10\.2\.0\.1:9876.*10\.2\.0\.2:9876"):
                await client.__aenter__()
        assert trio.current_time() - began_s < 1, "who is refused is told at once"


async def test_c182_name_servers_that_are_silent_at_the_start(autojump_clock):
    async with SimulatedCluster(nameservers=2) as cluster:
        for names in cluster.nameservers:
            names.partition()
        for start_timeout_s, most_s in ((2, 2), (60, 6)):
            began_s = trio.current_time()
            client = Producer(cluster.nameserver, start_timeout_s=start_timeout_s)
            with pytest.raises(PeerUnavailable, match=r"10\.2\.0\.1:9876.*10\.2\.0\.2:9876"):
                await client.__aenter__()
            assert trio.current_time() - began_s == pytest.approx(most_s)


async def test_one_of_several_name_servers_is_down_at_the_start(autojump_clock):
    async with SimulatedCluster(nameservers=3) as cluster:
        await cluster.nameservers[0].kill()
        cluster.nameservers[1].partition()
        await cluster.create_topic("T")
        began_s = trio.current_time()
        async with Producer(cluster.nameserver) as producer:
            await producer.send(Message("T", b"x"))
        assert trio.current_time() - began_s < 3.1, "the silent one costs one time-out, once"


async def test_name_servers_go_down_later(autojump_clock):
    """What is known stays in use; what is not is told with the name servers' addresses."""
    async with SimulatedCluster(nameservers=2) as cluster, Producer(cluster.nameserver) as producer:
        await cluster.create_topic("T")
        async with consumer(cluster) as receiving:
            await producer.send(Message("T", b"0"))
            for names in cluster.nameservers:
                await names.kill()
            async with collecting(receiving) as got:
                for number in range(1, 5):
                    await producer.send(Message("T", b"%d" % number))
                    await trio.sleep(60)
                await got.reach(5)
            with pytest.raises(PeerUnavailable, match=r"10\.2\.0\.1:9876.*10\.2\.0\.2:9876"):
                await producer.send(Message("other", b"x"))
            for names in cluster.nameservers:
                await names.start()
            await cluster.registered(*cluster.brokers)
            await producer.send(Message("other", b"x"))


async def test_many_questions_pass_over_a_name_server_that_hangs(autojump_clock):
    """Questions at the same time must not push each other back to the one that hangs."""
    async with SimulatedCluster(nameservers=2) as cluster, Producer(cluster.nameserver) as producer:
        cluster.nameservers[0].partition()
        began_s = trio.current_time()
        async with anyio.create_task_group() as asking:
            for number in range(10):
                asking.start_soon(ask_for, producer, f"T{number}")
        assert trio.current_time() - began_s < 3.1 * 3
        began_s = trio.current_time()
        await ask_for(producer, "T99")
        assert trio.current_time() - began_s < 0.1, (
            "the one that answers is asked first from now on"
        )


async def ask_for(producer, topic):
    assert len(await producer.queues(topic)) == 4


async def test_routes_that_cannot_be_refreshed_stay(autojump_clock, caplog):
    caplog.set_level(logging.WARNING, "trio_mq.client")
    async with SimulatedCluster() as cluster, Producer(cluster.nameserver) as producer:
        await producer.send(Message("T", b"x"))
        (names,) = cluster.nameservers
        names.partition()
        await trio.sleep(100)
        await producer.send(Message("T", b"x"))
        assert "the route of topic T stays as it is" in caplog.text
        names.heal()


# -- brokers


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_broker_restarts_under_a_consumer(autojump_clock, how):
    """Nothing is lost, and the consumer goes on by itself within seconds of the broker."""
    async with (
        SimulatedCluster() as cluster,
        Producer(cluster.nameserver) as producer,
        consumer(cluster) as receiving,
    ):
        (node,) = cluster.brokers
        async with collecting(receiving) as got:
            await send_numbers(producer, range(10))
            await got.reach(10)
            await getattr(node, how)()
            await trio.sleep(5)
            with pytest.raises((SendFailed, NoRoute)):
                await producer.send(Message("T", b"nobody"))
            await cluster.start(node)
            began_s = trio.current_time()
            await send_numbers(producer, range(10, 20))
            await got.reach(20)
            assert trio.current_time() - began_s < 15
        assert got.numbers == numbers(20)


async def test_a_restarted_broker_is_greeted_at_once(autojump_clock):
    """It does not know its clients; they tell it with their first connection, not 30 s later."""
    async with SimulatedCluster() as cluster, consumer(cluster) as receiving:
        (node,) = cluster.brokers
        async with Producer(cluster.nameserver) as producer:
            await producer.send(Message("T", b"x"))
        await trio.sleep(1)
        await node.restart()
        await cluster.registered(node)
        await trio.sleep(8)
        async with Admin(cluster.nameserver) as admin:
            assert len((await admin.consumers(receiving.group)).members) == 1


async def test_sends_go_to_another_broker_while_one_is_down(autojump_clock):
    async with (
        SimulatedCluster(brokers=2) as cluster,
        Producer(cluster.nameserver) as producer,
    ):
        await cluster.create_topic("T")
        await producer.send(Message("T", b"x"))
        await cluster.node("broker-a").kill()
        began_s = trio.current_time()
        for _ in range(16):
            receipt = await producer.send(Message("T", b"x"))
            assert receipt.queue.broker_name == "broker-b"
        assert trio.current_time() - began_s < 1, "who is refused tries the next one at once"


async def test_a_half_open_connection_costs_a_send_one_try(autojump_clock):
    """The broker's machine has lost its power: nobody says so."""
    async with (
        SimulatedCluster(brokers=2) as cluster,
        Producer(cluster.nameserver, send_timeout_s=9, call_timeout_s=2) as producer,
    ):
        await cluster.create_topic("T")
        for _ in range(16):
            await producer.send(Message("T", b"x"))
        await cluster.node("broker-a").crash(seed=1)
        for _ in range(8):
            began_s = trio.current_time()
            with pytest.raises(SendFailed, match=r"10\.1\.0\.1:10911"):
                # one queue of that broker and no other: the error says where, and when
                await producer.send(
                    Message("T", b"x"), queue=first_queue(await producer.queues("T"))
                )
            assert trio.current_time() - began_s <= 9.1
        await trio.sleep(200)  # the name server notices
        receipt = await producer.send(Message("T", b"x"))
        assert receipt.queue.broker_name == "broker-b"


def first_queue(queues):
    return queues[0]


async def test_a_half_open_connection_of_a_consumer_is_noticed(autojump_clock):
    """A pull that waits for messages looks the same as one that nobody will answer."""
    async with SimulatedCluster() as cluster, Producer(cluster.nameserver) as producer:
        (node,) = cluster.brokers
        await cluster.create_topic("T")
        with cluster.client_at("10.9.0.7"):
            async with consumer(cluster) as receiving:
                async with collecting(receiving) as got:
                    await send_numbers(producer, range(5))
                    await got.reach(5)
                    for wire in cluster.network.wires(node.address):
                        if wire.hosts[0] == "10.9.0.7":
                            wire.cut()
                    await send_numbers(producer, range(5, 10))
                    began_s = trio.current_time()
                    await got.reach(10)
                    assert trio.current_time() - began_s < 65
                assert got.numbers == numbers(10)


async def test_a_slow_broker_is_slow_and_nothing_else(autojump_clock):
    async with (
        SimulatedCluster() as cluster,
        Producer(cluster.nameserver) as producer,
        consumer(cluster) as receiving,
    ):
        (node,) = cluster.brokers
        await producer.send(Message("T", b"0"))
        node.delay(0.7)
        began_s = trio.current_time()
        await producer.send(Message("T", b"1"))
        assert trio.current_time() - began_s == pytest.approx(1.4)
        async with collecting(receiving) as got:
            await got.reach(2)
            node.delay(2.0)
            with pytest.raises(SendFailed, match="within"):
                await producer.send(Message("T", b"2"))
            node.delay(0)
            await producer.send(Message("T", b"3"))
            await got.reach_number(3)


# -- masters and routes


async def test_a_broker_that_refuses_is_passed_over(autojump_clock):
    """NO_PERMISSION of a master that lost its role, or SERVICE_NOT_AVAILABLE: the send goes to the other one."""
    book = RuleBook()
    async with (
        SimulatedCluster(brokers=2) as cluster,
        Producer(cluster.nameserver) as producer,
    ):
        await cluster.create_topic("T")
        await refuse(cluster.node("broker-a"), book)
        for code in (ResponseCode.NO_PERMISSION, ResponseCode.SERVICE_NOT_AVAILABLE):
            fault = Faults(book).error("SEND_MESSAGE_V2", code=code, times=None)
            for _ in range(8):
                receipt = await producer.send(Message("T", b"x"))
                assert receipt.queue.broker_name == "broker-b"
            assert fault.hits > 0
            fault.remove()


async def test_a_broker_that_closes_the_connection_is_passed_over(autojump_clock):
    book = RuleBook()
    async with (
        SimulatedCluster(brokers=2) as cluster,
        Producer(cluster.nameserver) as producer,
    ):
        await cluster.create_topic("T")
        await refuse(cluster.node("broker-a"), book)
        fault = Faults(book).close("SEND_MESSAGE_V2", times=None)
        for _ in range(8):
            receipt = await producer.send(Message("T", b"x"))
            assert receipt.queue.broker_name == "broker-b"
        assert fault.hits > 0


async def test_a_broker_that_is_alone_and_refuses_is_named_with_its_code(autojump_clock):
    book = RuleBook()
    async with SimulatedCluster() as cluster, Producer(cluster.nameserver) as producer:
        await cluster.create_topic("T")
        await refuse(cluster.node("broker-a"), book)
        Faults(book).error("SEND_MESSAGE_V2", code=16, remark="this is a slave", times=None)
        text = r"topic T: .* 3 tries .*10\.1\.0\.1:10911 refused .* with code 16: this is a slave"
        with pytest.raises(SendFailed, match=text) as caught:
            await producer.send(Message("T", b"x"))
        assert caught.value.code == ResponseCode.NO_PERMISSION


async def test_a_second_master_takes_over(autojump_clock):
    """All that is sent while one master dies arrives, at the other one, and nothing waits for the dead."""
    async with (
        SimulatedCluster(brokers=2) as cluster,
        Producer(cluster.nameserver) as producer,
        consumer(cluster) as receiving,
    ):
        await cluster.create_topic("T")
        async with collecting(receiving) as got:
            await send_numbers(producer, range(10))
            await got.reach(10)
            await cluster.node("broker-a").kill()
            began_s = trio.current_time()
            await send_numbers(producer, range(10, 40))
            await got.reach(40)
            assert trio.current_time() - began_s < 5


async def refuse(node, book):
    """Let a node be one that does what the book says."""
    node.wrap = lambda network: FaultyNetwork(network, book)
    await node.restart()
    await trio.sleep(1)


async def test_a_broker_gets_a_new_address(autojump_clock):
    async with (
        SimulatedCluster() as cluster,
        Producer(cluster.nameserver) as producer,
        consumer(cluster) as receiving,
    ):
        (node,) = cluster.brokers
        async with collecting(receiving) as got:
            await send_numbers(producer, range(5))
            await got.reach(5)
            await node.kill()
            node.move("10.1.0.99")
            await cluster.start(node)
            began_s = trio.current_time()
            with pytest.raises(SendFailed):  # nobody has told the producer; now it looks again
                await producer.send(Message("T", b"5"))
            await trio.sleep(0.1)
            await send_numbers(producer, range(5, 10))
            await got.reach(10)
            assert trio.current_time() - began_s < 10


async def test_queues_are_added(autojump_clock):
    async with (
        SimulatedCluster() as cluster,
        Producer(cluster.nameserver) as producer,
        consumer(cluster) as receiving,
    ):
        await cluster.create_topic("T", 2)
        assert len(await producer.queues("T")) == 2
        async with collecting(receiving) as got:
            await send_numbers(producer, range(2))
            await got.reach(2)
            await cluster.create_topic("T", 6)
            await trio.sleep(45)
            assert len(await producer.queues("T")) == 6
            await send_numbers(producer, range(2, 14))
            await got.reach(14)


async def test_a_broker_leaves_for_good(autojump_clock):
    """Its queues are not sent to any more, and not waited for."""
    async with (
        SimulatedCluster(brokers=2) as cluster,
        Producer(cluster.nameserver) as producer,
        consumer(cluster) as receiving,
    ):
        await cluster.create_topic("T", 2)
        async with collecting(receiving) as got:
            await send_numbers(producer, range(8))
            await got.reach(8)
            await cluster.node("broker-b").stop()
            await trio.sleep(60)
            assert {queue.broker_name for queue in await producer.queues("T")} == {"broker-a"}
            assert {queue.broker_name for queue in receiving.assignment} == {"broker-a"}
            await send_numbers(producer, range(8, 16))
            await got.reach(16)


async def test_c100_fifty_groups_go_on_at_the_new_address_of_a_broker(autojump_clock):
    """C100: a dead address holds up nothing, not even its own new one."""
    async with SimulatedCluster(brokers=2) as cluster, Producer(cluster.nameserver) as producer:
        await cluster.create_topic("T", 2)
        node = cluster.node("broker-a")
        async with consume(cluster, [f"G{number}" for number in range(50)]) as groups:
            await send_numbers(producer, range(4))
            for got in groups:
                await got.reach(4)
            await node.kill()
            cluster.network.sever(
                node.host
            )  # the old address is silent, which is worse than refusing
            node.move("10.1.0.99")
            await cluster.start(node)
            began_s = trio.current_time()
            queue = next(q for q in await fresh_queues(cluster) if q.broker_name == "broker-a")
            async with Producer(cluster.nameserver) as fresh:
                await fresh.send(Message("T", b"4"), queue=queue)
            for got in groups:
                await got.reach(5)
            assert trio.current_time() - began_s < 10


async def fresh_queues(cluster):
    async with Producer(cluster.nameserver) as fresh:
        return await fresh.queues("T")


# -- leaving


@pytest.mark.parametrize("silent", [True, False])
async def test_leaving_is_bounded_whatever_is_down(autojump_clock, silent):
    async with SimulatedCluster(brokers=2, nameservers=2) as cluster:
        await cluster.create_topic("T")
        async with Producer(cluster.nameserver) as producer:
            await producer.send(Message("T", b"0"))
            async with consumer(cluster) as receiving:
                async with collecting(receiving) as got:
                    await got.reach(1)
                for node in (*cluster.brokers, *cluster.nameservers):
                    if silent:
                        node.partition()
                    else:
                        await node.kill()
                began_s = trio.current_time()
            consumer_s = trio.current_time() - began_s
            began_s = trio.current_time()
        assert consumer_s < 10
        assert trio.current_time() - began_s < 4


async def test_a_cancelled_client_leaves_in_bounded_time_too(autojump_clock):
    async with SimulatedCluster() as cluster:
        await cluster.create_topic("T")
        (node,) = cluster.brokers
        began_s = None
        with trio.CancelScope() as scope:
            async with consumer(cluster), Producer(cluster.nameserver) as producer:
                await producer.send(Message("T", b"x"))
                node.partition()
                began_s = trio.current_time()
                scope.cancel()
                await trio.sleep_forever()
        assert trio.current_time() - began_s < 12
