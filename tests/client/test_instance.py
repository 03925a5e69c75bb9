"""The base of all clients, on a simulated cluster: opening, routes, heartbeats, leaving; and cancelled anywhere."""

import gc
import logging

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.client.scripted import Scripted, route_of, serving
from trio_mq import Admin, Consumer, Producer, PullConsumer, SimpleConsumer
from trio_mq.client import instance as instances
from trio_mq.client.instance import open_instance
from trio_mq.client.options import ClientOptions, Credentials
from trio_mq.config import Address
from trio_mq.errors import NoRoute, NotOpen, PeerRefused, PeerUnavailable
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import ConsumerData
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.testing.cluster import SimulatedCluster
from trio_mq.testing.links import MemoryNetwork

B1, B2 = "10.1.0.1:10911", "10.1.0.2:10911"


def options(cluster, **others):
    return ClientOptions.of(cluster.nameserver, **others)


async def members(instance, address, group="G"):
    header = headers.GetConsumerListByGroupRequest(consumer_group=group)
    accept = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    reply = await instance.ask(address, code, header, accept=accept)
    if reply.code:
        return ()
    return bodies.decode(bodies.ConsumerIdList, reply.body).consumer_id_list


# -- opening


async def test_a_silent_name_server_is_named_after_the_time_out(autojump_clock):
    """C182, on a server that accepts and never answers."""
    network = MemoryNetwork()
    async with serving(network, {"ns:9876": Scripted(silent=True)}):
        for start_timeout_s, took_s in ((1.5, 1.5), (10, 3)):
            began_s = trio.current_time()
            opening = open_instance(ClientOptions.of("ns:9876", start_timeout_s=start_timeout_s))
            with pytest.raises(PeerUnavailable, match="ns:9876"):
                await opening.__aenter__()
            assert trio.current_time() - began_s == pytest.approx(took_s, abs=0.01)


async def test_a_name_server_that_refuses_to_tell_is_one_that_answers(autojump_clock):
    """Access control, say: the refusal leaves with its code, not as one that nobody gave."""
    no = Command(ResponseCode.NO_PERMISSION, remark="who are you")
    async with serving(
        MemoryNetwork(), {"ns:9876": Scripted({RequestCode.GET_BROKER_CLUSTER_INFO: no})}
    ):
        with pytest.raises(PeerRefused, match="ns:9876 refused .* with code 16: who are you"):  # noqa: RUF043
            await open_instance(ClientOptions.of("ns:9876")).__aenter__()


async def test_requests_are_signed(autojump_clock):
    names = Scripted()
    async with serving(MemoryNetwork(), {"ns:9876": names}):  # noqa: SIM117
        async with open_instance(
            ClientOptions.of("ns:9876", credentials=Credentials("me", "secret"))
        ):
            pass
    assert names.asked[0].ext["AccessKey"] == "me"
    assert names.asked[0].ext["Signature"]


# -- routes


async def test_a_route_is_asked_for_once_and_kept_fresh(autojump_clock):
    async with SimulatedCluster() as cluster, open_instance(options(cluster)) as instance:
        await cluster.create_topic("T", 2)
        told = []
        instance.route_changed.append(told.append)
        assert len((await instance.route("T")).publish_queues) == 2
        assert await instance.route("T") is instance.routes.topics["T"]
        await cluster.create_topic("T", 3)
        assert len((await instance.route("T")).publish_queues) == 2
        await trio.sleep(31)
        assert len((await instance.route("T")).publish_queues) == 3
        assert told == ["T", "T"], "only changes are told"


async def test_an_unknown_topic_says_what_to_do(autojump_clock):
    async with SimulatedCluster() as cluster, open_instance(options(cluster)) as instance:
        with pytest.raises(NoRoute, match=r"topic T: .*create it .* 10\.2\.0\.1:9876") as caught:
            await instance.route("T")
        assert caught.value.topic == "T"
        assert len((await instance.route("T", to_send=True)).publish_queues) == 4


async def test_c103_without_automatic_topics_the_text_names_that_way_out(autojump_clock, caplog):
    caplog.set_level(logging.WARNING, "trio_mq.client")
    async with (
        SimulatedCluster(broker={"auto_create_topic_enable": False}) as cluster,
        open_instance(options(cluster)) as instance,
    ):
        with pytest.raises(NoRoute, match="autoCreateTopicEnable"):
            await instance.route("T", to_send=True)
        await trio.sleep(120)
    assert caplog.text == "", (
        "nobody wants that topic any more: nothing is said of it again and again"
    )


async def test_routes_that_cannot_be_read_are_told_and_end_nothing(autojump_clock, caplog):
    names = Scripted({RequestCode.GET_ROUTEINFO_BY_TOPIC: route_of("T", {"b1": B1})})
    async with serving(MemoryNetwork(), {"ns:9876": names, B1: Scripted()}):  # noqa: SIM117
        async with open_instance(ClientOptions.of("ns:9876")) as instance:
            instance.producer_groups.add("P")
            await instance.route("T")
            for broken in (b"{", b"[]", b'{"brokerDatas":[{"brokerAddrs":5}]}'):
                names.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = Command(0, body=broken)
                await trio.sleep(31)
            bad = route_of("T", {"b1": B1, "b2": "nowhere:at-all"})
            names.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = bad
            await trio.sleep(31)
            assert instance.routes.address("b1") == Address("10.1.0.1", 10911)
            assert instance.routes.address("b2") is None
    assert "stays as it is" in caplog.text


async def test_connections_that_no_route_needs_any_more_are_closed_and_no_others(autojump_clock):
    names = Scripted({RequestCode.GET_ROUTEINFO_BY_TOPIC: route_of("T", {"b1": B1})})
    network = MemoryNetwork()
    other = Address("10.3.0.1", 10911)
    peers = {"ns:9876": names, B1: Scripted(), B2: Scripted(), str(other): Scripted()}
    async with serving(network, peers):  # noqa: SIM117
        async with open_instance(ClientOptions.of("ns:9876")) as instance:
            instance.producer_groups.add("P")
            await instance.route("T")
            await instance.ask(other, RequestCode.GET_BROKER_RUNTIME_INFO)
            await trio.sleep(1)
            names.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = route_of("T", {"b1": B2})
            await trio.sleep(70)
            assert instance.living_link(Address("10.1.0.1", 10911)) is None
            assert instance.living_link(Address("10.1.0.2", 10911)) is not None
            assert instance.living_link(other) is not None, "an administrator's own"


# -- heartbeats


async def test_brokers_are_told_at_once_and_every_30_s(autojump_clock):
    names = Scripted({RequestCode.GET_ROUTEINFO_BY_TOPIC: route_of("T", {"b1": B1, "b2": B2})})
    one, other = Scripted(), Scripted()
    async with serving(MemoryNetwork(), {"ns:9876": names, B1: one, B2: other}):  # noqa: SIM117
        async with open_instance(ClientOptions.of("ns:9876")) as instance:
            instance.consumers["G"] = lambda: ConsumerData("G")
            await instance.route("T")
            await trio.sleep(95)
    for peer in (one, other):
        assert peer.times(RequestCode.HEART_BEAT) == [0, 30, 60, 90]
        assert peer.times(RequestCode.UNREGISTER_CLIENT) == [95]


async def test_many_topics_do_not_mean_many_first_heartbeats(autojump_clock):
    names = Scripted({RequestCode.GET_ROUTEINFO_BY_TOPIC: route_of("T", {"b1": B1})})
    broker = Scripted()
    async with serving(MemoryNetwork(), {"ns:9876": names, B1: broker}):  # noqa: SIM117
        async with open_instance(ClientOptions.of("ns:9876")) as instance:
            instance.producer_groups.add("P")
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(instance.route, f"T{number}")
            await trio.sleep(10)
    assert broker.times(RequestCode.HEART_BEAT) == [0]


async def test_a_restarted_broker_is_greeted_with_its_first_connection(autojump_clock):
    async with SimulatedCluster() as cluster, open_instance(options(cluster)) as instance:
        await cluster.create_topic("T")
        (node,) = cluster.brokers
        instance.consumers["G"] = lambda: ConsumerData("G")
        await instance.route("T")
        await trio.sleep(1)
        async with open_instance(options(cluster)) as watching:
            assert await members(watching, node.address) == (instance.client_id,)
            await node.restart()
            await trio.sleep(2)
            assert await members(watching, node.address) == ()
            await instance.ask(node.address, RequestCode.GET_BROKER_RUNTIME_INFO)
            await trio.sleep(0.1)
            assert await members(watching, node.address) == (instance.client_id,)


async def test_a_connection_that_answers_no_heartbeat_is_given_up(autojump_clock):
    """Half-open: what waits over it would wait for nobody."""
    async with SimulatedCluster() as cluster, open_instance(options(cluster)) as instance:
        await cluster.create_topic("T")
        (node,) = cluster.brokers
        instance.producer_groups.add("P")
        await instance.route("T")
        await trio.sleep(1)
        link = instance.living_link(node.address)
        for wire in cluster.network.wires(node.address):
            wire.cut()
        await trio.sleep(40)
        assert link.closed
        await instance.ask(node.address, RequestCode.GET_BROKER_RUNTIME_INFO)


async def test_a_broker_that_refuses_heartbeats_is_asked_again_with_the_next_round(
    autojump_clock, caplog
):
    names = Scripted({RequestCode.GET_ROUTEINFO_BY_TOPIC: route_of("T", {"b1": B1})})
    broker = Scripted({RequestCode.HEART_BEAT: Command(ResponseCode.SYSTEM_ERROR, remark="no")})
    async with serving(MemoryNetwork(), {"ns:9876": names, B1: broker}):  # noqa: SIM117
        async with open_instance(ClientOptions.of("ns:9876")) as instance:
            instance.producer_groups.add("P")
            await instance.route("T")
            await trio.sleep(40)
    assert len(broker.times(RequestCode.HEART_BEAT)) in (2, 3)
    assert "heartbeat failed" in caplog.text


async def test_a_question_that_nobody_handles_is_refused(autojump_clock):
    names = Scripted({RequestCode.GET_ROUTEINFO_BY_TOPIC: route_of("T", {"b1": B1})})
    broker = Scripted()
    async with serving(MemoryNetwork(), {"ns:9876": names, B1: broker}):  # noqa: SIM117
        async with open_instance(ClientOptions.of("ns:9876")) as instance:
            await instance.ask(Address("10.1.0.1", 10911), RequestCode.GET_BROKER_RUNTIME_INFO)
            broker.ask(Command(RequestCode.GET_CONSUMER_RUNNING_INFO))
            await trio.sleep(1)
    (reply,) = broker.replies
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert instance.client_id in reply.remark


# -- leaving, errors, cancellation


async def test_brokers_are_told_that_a_client_leaves(autojump_clock):
    async with SimulatedCluster() as cluster, open_instance(options(cluster)) as watching:
        await cluster.create_topic("T")
        (node,) = cluster.brokers
        async with open_instance(options(cluster)) as instance:
            instance.consumers["G"] = lambda: ConsumerData("G")
            await instance.route("T")
            await instance.heartbeat()
            assert await members(watching, node.address) == (instance.client_id,)
        assert await members(watching, node.address) == ()


@pytest.mark.parametrize("ends", ["normally", "error", "cancelled"])
async def test_the_farewell_is_bounded_when_nobody_answers(autojump_clock, ends):
    async with SimulatedCluster(brokers=2) as cluster:
        await cluster.create_topic("T")
        began_s = None
        with trio.CancelScope() as scope:
            try:
                async with open_instance(options(cluster)) as instance:
                    instance.consumers["G"] = lambda: ConsumerData("G")
                    await instance.route("T")
                    await instance.heartbeat()
                    for node in (*cluster.brokers, *cluster.nameservers):
                        node.partition()
                    began_s = trio.current_time()
                    if ends == "error":
                        raise LookupError("mine")
                    if ends == "cancelled":
                        scope.cancel()
                        await trio.sleep_forever()
            except LookupError:
                assert ends == "error"
        took_s = trio.current_time() - began_s
        assert took_s <= instances.FAREWELL_S + 1.1


async def test_a_task_that_fails_ends_the_block_with_its_error(autojump_clock):
    async with SimulatedCluster() as cluster:
        with pytest.raises(LookupError, match="broken"):  # noqa: PT012
            async with open_instance(options(cluster)) as instance:

                async def fails():
                    raise LookupError("broken")

                instance.tasks.start_soon(fails)
                await trio.sleep_forever()


async def test_cancelled_in_every_phase_it_leaves_nothing_behind(autojump_clock):
    """At each moment of opening, asking and leaving, on a network where all of that takes time."""
    async with SimulatedCluster(nameservers=2, delay_s=0.05) as cluster:
        await cluster.create_topic("T")
        before = tasks_of(trio.lowlevel.current_root_task())
        after_s, finished = 0.0, False
        while not finished:
            after_s += 0.013
            with trio.move_on_after(after_s) as scope:
                async with open_instance(options(cluster)) as instance:
                    instance.consumers["G"] = lambda: ConsumerData("G")
                    await instance.route("T")
                    await instance.heartbeat()
                    await instance.ask(
                        cluster.brokers[0].address, RequestCode.GET_BROKER_RUNTIME_INFO
                    )
            finished = not scope.cancelled_caught
            assert trio.current_time() - (scope.deadline - after_s) < after_s + 2.7
        assert after_s > 0.5, "it was cancelled in all phases"
        await trio.sleep(2)
        await wait_all_tasks_blocked()
        assert tasks_of(trio.lowlevel.current_root_task()) <= before + 2


def tasks_of(task):
    return 1 + sum(
        tasks_of(child) for nursery in task.child_nurseries for child in nursery.child_tasks
    )


async def test_cancelled_while_a_name_server_is_silent(autojump_clock):
    async with serving(MemoryNetwork(), {"ns:9876": Scripted(silent=True)}):
        with trio.move_on_after(0.5) as scope:
            await open_instance(ClientOptions.of("ns:9876")).__aenter__()
        assert scope.cancelled_caught
        assert trio.current_time() - (scope.deadline - 0.5) < 2.2


@pytest.mark.slow
async def test_open_and_close_a_thousand_times_leaks_nothing(autojump_clock):
    names = Scripted()
    network = MemoryNetwork()
    async with serving(network, {"ns:9876": names}):
        counts = []
        for _ in range(4):
            for _ in range(250):
                async with open_instance(ClientOptions.of("ns:9876")):
                    pass
            names.asked.clear()
            await trio.sleep(1)
            gc.collect()
            living = sum(not wire.is_over for wire in network.wires(Address("ns", 9876)))
            counts.append((len(gc.get_objects()), living))
        assert counts[-1][1] == 0
        assert counts[-1][0] - counts[-2][0] < 5000


async def test_options_are_values(autojump_clock):
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        ClientOptions.of("a:1").call_timeout_s = 5


async def test_a_client_is_used_inside_its_block_only(autojump_clock):
    """C178: made without a reference, used before and after its block, entered twice: errors that say so."""
    for make in (
        lambda: Producer("a:1"),
        lambda: Consumer("a:1", "G", subscribe={"T": "*"}),
        lambda: PullConsumer("a:1", "G", subscribe={"T": "*"}),
        lambda: SimpleConsumer("a:1", "G", subscribe={"T": "*"}),
        lambda: Admin("a:1"),
    ):
        make()
        client = make()
        with pytest.raises(NotOpen, match="is not open yet"):
            client._check_open()
        with pytest.raises(TypeError):  # noqa: SIM117
            with client:
                pass
