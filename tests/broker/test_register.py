"""The registrar against our own name server over a network in memory, on a clock that jumps."""

import zlib

import attrs
import pytest
import trio

from trio_mq.broker import registrations
from trio_mq.broker.register import Registrar
from trio_mq.broker.role import Role
from trio_mq.broker.topics import TopicTable
from trio_mq.config import Address, BrokerSettings
from trio_mq.config.ha import BrokerRole, HASettings
from trio_mq.config.nameserver import NameServerSettings
from trio_mq.nameserver.nameserver import NameServer
from trio_mq.net.requests import Reply
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import TopicConfig
from trio_mq.protocol.codes import RequestCode
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.hosts import MemoryHost
from trio_mq.testing.links import MemoryNetwork, serve_stream

NS1, NS2, NS3 = (Address(f"ns{n}", 9876) for n in (1, 2, 3))
BROKER = Address("10.0.0.1", 10911)
SETTINGS = BrokerSettings(broker_name="b-a", cluster="c1")


class Recorder(NameServer):
    """A name server that keeps what it was asked, with the time."""

    def __init__(self, **settings):
        super().__init__(NameServerSettings(**settings))
        self.asked = []
        handle = self.requests.handle

        def recording(peer, command, now_ms):
            self.asked.append((round(trio.current_time(), 2), command))
            handle(peer, command, now_ms)

        self.requests.handle = recording

    def times(self, code=RequestCode.REGISTER_BROKER):
        """When requests of a code arrived, in seconds since the first."""
        found = [at for at, command in self.asked if command.code == code]
        return [round(at - found[0], 2) for at in found]

    def last(self, code=RequestCode.REGISTER_BROKER):
        return [command for _, command in self.asked if command.code == code][-1]

    def addresses(self, topic="TBW102"):
        route = self.routes.route(topic)
        return {} if route is None else dict(route.broker_datas[0].broker_addrs)


def topics_of(command):
    body = bodies.decode(bodies.RegisterBrokerBody, command.body)
    return body.topic_config_serialize_wrapper.topic_config_table


@pytest.fixture
def network():
    return MemoryNetwork()


@pytest.fixture
def clock():
    return TrioClock()


@pytest.fixture
def topics(clock):
    return TopicTable(SETTINGS, clock)


async def start_server(network, nursery, address=NS1, **settings):
    server = Recorder(**settings)
    await nursery.start(server.run)
    nursery.start_soon(network.listen(address).serve, lambda stream: serve_stream(stream, server))
    return server


def registrar_for(network, topics, *nameservers, settings=SETTINGS):
    registrar = Registrar(
        settings,
        BROKER,
        topics,
        nameservers=nameservers or (NS1,),
        ha_address="10.0.0.1:10912",
        connect=network.connect,
    )
    topics.changed = registrar.topic_changed
    return registrar


async def test_registers_at_start_after_ten_seconds_and_then_each_period(
    network, nursery, topics, autojump_clock
):
    server = await start_server(network, nursery)
    registrar = registrar_for(network, topics)
    await nursery.start(registrar.run)
    assert await registrar.registered_once(1)
    await trio.sleep(105)
    assert server.times() == [0, 10, 40, 70, 100]
    assert len(network.attempts) == 1  # one connection for all of it


@pytest.mark.parametrize(("period_ms", "second_gap"), [(1, 10), (45_000, 45), (10**9, 60)])
async def test_period_is_clamped(network, nursery, topics, period_ms, second_gap, autojump_clock):
    server = await start_server(network, nursery)
    settings = attrs.evolve(SETTINGS, register_nameserver_period_ms=period_ms)
    await nursery.start(registrar_for(network, topics, settings=settings).run)
    await trio.sleep(75)
    assert server.times()[:3] == [0, 10, 10 + second_gap]


async def test_registration_says_what_the_peers_expect(network, nursery, topics, autojump_clock):
    server = await start_server(network, nursery)
    registrar = registrar_for(network, topics)
    await nursery.start(registrar.run)
    assert await registrar.registered_once(1)
    command = server.last()
    header = headers.decode(headers.RegisterBrokerRequest, command.ext)
    assert header == headers.RegisterBrokerRequest(
        broker_name="b-a",
        broker_addr="10.0.0.1:10911",
        cluster_name="c1",
        ha_server_addr="10.0.0.1:10912",
        broker_id=0,
        enable_acting_master=False,
        compressed=False,
        body_crc32=zlib.crc32(command.body) & 0x7FFFFFFF,
    )
    assert topics_of(command).keys() == {config.topic_name for config in topics}
    assert len(topics_of(command)) >= 2
    assert server.addresses() == {0: "10.0.0.1:10911"}


async def test_changed_topic_is_told_at_once(network, nursery, topics, autojump_clock):
    server = await start_server(network, nursery)
    registrar = registrar_for(network, topics)
    await nursery.start(registrar.run)
    await registrar.registered_once(1)
    await trio.sleep(3)
    topics.create_if_absent(TopicConfig("NEW", 4, 4, 6))
    await trio.sleep(0.1)
    assert server.times() == [0, 3]
    assert server.routes.route("NEW").queue_datas[0].write_queue_nums == 4


async def test_changes_during_a_registration_are_told_with_the_next(
    network, nursery, topics, autojump_clock
):
    network.delay_s = 0.2
    server = await start_server(network, nursery)
    registrar = registrar_for(network, topics)
    await nursery.start(registrar.run)
    await registrar.registered_once(1)
    for n in range(50):
        topics.create_if_absent(TopicConfig(f"NEW{n}"))
        await trio.sleep(0.01)
    await trio.sleep(1)
    assert len(server.times()) <= 4
    assert all(server.routes.route(f"NEW{n}") is not None for n in range(50))


async def test_of_a_large_table_only_changed_topics_are_sent(
    network, nursery, topics, monkeypatch, autojump_clock
):
    monkeypatch.setattr(registrations, "WHOLE_TABLE_TOPICS", 5)
    server = await start_server(network, nursery)
    registrar = registrar_for(network, topics)
    await nursery.start(registrar.run)
    await registrar.registered_once(1)
    topics.create_if_absent(TopicConfig("NEW"))
    await trio.sleep(0.1)
    assert topics_of(server.last()).keys() == {"NEW"}
    assert server.addresses("NEW") == server.addresses("TBW102") == {0: str(BROKER)}
    topics.delete("NEW")  # there is nothing to send but the rest
    await trio.sleep(0.1)
    assert len(topics_of(server.last())) == len(topics)
    await trio.sleep(11)
    assert len(topics_of(server.last())) == len(topics)


async def test_name_server_that_forgot_us_gets_everything_again(
    network, nursery, topics, monkeypatch, autojump_clock
):
    monkeypatch.setattr(registrations, "WHOLE_TABLE_TOPICS", 5)
    server = await start_server(network, nursery)
    registrar = registrar_for(network, topics)
    await nursery.start(registrar.run)
    await registrar.registered_once(1)
    server.routes.unregister("b-a", str(BROKER))
    topics.create_if_absent(TopicConfig("NEW"))  # alone it would be refused, as a first one
    await trio.sleep(2)
    assert server.addresses("NEW") == server.addresses("TBW102") == {0: str(BROKER)}


async def test_name_server_that_hangs_delays_no_other(network, nursery, topics, autojump_clock):
    first = await start_server(network, nursery, NS1)
    network.listen(NS2)
    network.partition(NS2)
    third = await start_server(network, nursery, NS3)
    registrar = registrar_for(network, topics, NS1, NS2, NS3)
    await nursery.start(registrar.run)
    started = trio.current_time()
    assert await registrar.registered_once(1, NS1)
    assert await registrar.registered_once(1, NS3)
    assert trio.current_time() - started < 0.1
    topics.create_if_absent(TopicConfig("NEW"))
    await trio.sleep(0.1)
    assert first.addresses("NEW") == third.addresses("NEW") == {0: str(BROKER)}
    await trio.sleep(10)
    states = {state.address: state for state in registrar.states}
    assert states[NS1].registered
    assert not states[NS2].registered
    assert "ns2:9876: no answer within 3 s" in states[NS2].failure


async def test_hanging_name_server_is_found_when_it_comes_to_life(
    network, nursery, topics, autojump_clock
):
    server = await start_server(network, nursery)
    network.partition(NS1)
    registrar = registrar_for(network, topics)
    await nursery.start(registrar.run)
    assert not await registrar.registered_once(20)
    network.heal(NS1)
    assert await registrar.registered_once(15)
    assert server.addresses() == {0: str(BROKER)}


async def test_name_server_that_starts_later_is_found_soon(
    network, nursery, topics, caplog, autojump_clock
):
    registrar = registrar_for(network, topics)
    await nursery.start(registrar.run)
    await trio.sleep(5)
    assert "ns1:9876: connection refused" in registrar.states[0].failure
    assert caplog.text.count("connection refused") == 1  # said once, not at every try
    await start_server(network, nursery)
    assert await registrar.registered_once(8.1)


async def test_restarted_name_server_knows_us_again_without_waiting_for_the_period(
    network, nursery, topics, autojump_clock
):
    await start_server(network, nursery)
    registrar = registrar_for(network, topics)
    await nursery.start(registrar.run)
    await registrar.registered_once(1)
    await trio.sleep(15)
    network.close(NS1)
    await trio.sleep(0.1)
    assert not registrar.states[0].registered
    again = await start_server(network, nursery)
    await trio.sleep(2)
    assert again.addresses() == {0: str(BROKER)}


async def test_half_open_connection_is_replaced_after_one_timeout(
    network, nursery, topics, autojump_clock
):
    server = await start_server(network, nursery)
    registrar = registrar_for(network, topics)
    await nursery.start(registrar.run)
    await registrar.registered_once(1)
    network.wires(NS1)[0].cut()
    topics.create_if_absent(TopicConfig("NEW"))
    await trio.sleep(3 + 1 + 0.1)  # the time limit, and the first pause
    assert server.addresses("NEW") == {0: str(BROKER)}
    assert len(network.wires(NS1)) == 2


async def test_refusal_is_shown_with_its_remark_and_tried_again(
    network, nursery, topics, autojump_clock
):
    server = await start_server(network, nursery)
    answers = [Reply(16, remark="not you")]
    process = server.requests.process

    def refuse(call):
        return answers.pop() if answers else process(call)

    server.requests.process = refuse
    registrar = registrar_for(network, topics)
    await nursery.start(registrar.run)
    await trio.sleep(0.1)
    assert registrar.states[0].failure == "ns1:9876: refused with code 16: not you"
    assert await registrar.registered_once(2)
    assert registrar.states[0].failure is None


async def test_c074_clock_steps_do_not_stop_registrations(
    network, nursery, clock, topics, autojump_clock
):
    clock.set(clock.now_ms() + 25 * 365 * 86_400_000)
    server = await start_server(network, nursery)
    registrar = registrar_for(network, topics)
    topics.create_if_absent(TopicConfig("FUTURE"))
    await nursery.start(registrar.run)
    await registrar.registered_once(1)
    await trio.sleep(15)
    clock.set(1_700_000_000_000)
    await trio.sleep(20)
    topics.create_if_absent(TopicConfig("PRESENT"))
    await trio.sleep(20)
    assert server.times() == [0, 10, 35]
    assert server.addresses("FUTURE") == server.addresses("PRESENT") == {0: str(BROKER)}
    await trio.sleep(300)
    assert server.addresses("PRESENT") == {0: str(BROKER)}


async def test_c091_new_address_is_told_at_once_and_the_old_one_leaves_nothing(
    network, nursery, topics, autojump_clock
):
    server = await start_server(network, nursery)
    registrar = registrar_for(network, topics)
    await nursery.start(registrar.run)
    await registrar.registered_once(1)
    await trio.sleep(5)
    registrar.advertise(Address("192.168.1.5", 20911), "192.168.1.5:20912")
    await trio.sleep(0.9)
    assert server.addresses() == {0: "192.168.1.5:20911"}
    assert server.last().ext["haServerAddr"] == "192.168.1.5:20912"
    assert server.last(RequestCode.UNREGISTER_BROKER).ext["brokerAddr"] == "10.0.0.1:10911"
    await trio.sleep(200)
    assert server.addresses() == {0: "192.168.1.5:20911"}
    assert len(network.attempts) == 1


async def test_slave_learns_its_master(network, nursery, clock, topics, autojump_clock):
    await start_server(network, nursery)
    await nursery.start(registrar_for(network, topics).run)
    settings = attrs.evolve(SETTINGS, broker_id=1)
    slave = Registrar(
        settings,
        Address("10.0.0.2", 10911),
        TopicTable(settings, clock),
        nameservers=[NS1],
        ha_address="10.0.0.2:10912",
        connect=network.connect,
    )
    await nursery.start(slave.run)
    await trio.sleep(11)
    state = slave.states[0]
    assert (state.master_address, state.ha_address) == ("10.0.0.1:10911", "10.0.0.1:10912")


async def test_order_configurations_are_kept(network, nursery, topics, autojump_clock):
    server = await start_server(network, nursery)
    server.kv.put("ORDER_TOPIC_CONFIG", "T", "b-a:4")
    registrar = registrar_for(network, topics)
    await nursery.start(registrar.run)
    await registrar.registered_once(1)
    assert registrar.states[0].order_topics == {"T": "b-a:4"}


@pytest.mark.parametrize(("allowed", "perm"), [(6, 6), (4, 4), (2, 2), (7, 6), (0, 0)])
async def test_broker_permission_limits_every_topic(
    network, nursery, topics, allowed, perm, autojump_clock
):
    server = await start_server(network, nursery)
    topics.create_if_absent(TopicConfig("T", perm=6))
    settings = attrs.evolve(SETTINGS, broker_permission=allowed)
    registrar = registrar_for(network, topics, settings=settings)
    await nursery.start(registrar.run)
    await registrar.registered_once(1)
    assert server.routes.route("T").queue_datas[0].perm == perm
    # The right to make topics after a template stays while nothing is limited.
    assert bool(server.routes.route("TBW102").queue_datas[0].perm & 1) is (allowed & 6 == 6)


async def test_registered_once_without_name_servers_does_not_wait(
    network, nursery, topics, autojump_clock
):
    registrar = Registrar(SETTINGS, BROKER, topics, nameservers=(), ha_address="")
    await nursery.start(registrar.run)
    with trio.fail_after(0.1):
        assert not await registrar.registered_once(60)


async def stop(registrar, nursery_scope):
    """Cancel a registrar's run; how long it took."""
    before = trio.current_time()
    nursery_scope.cancel()
    await registrar.close()
    return trio.current_time() - before


async def run_in_scope(registrar, task_status=trio.TASK_STATUS_IGNORED):
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await registrar.run()


async def test_c164_stop_unregisters_everywhere(network, nursery, topics, autojump_clock):
    servers = [await start_server(network, nursery, at) for at in (NS1, NS2)]
    registrar = registrar_for(network, topics, NS1, NS2)
    scope = await nursery.start(run_in_scope, registrar)
    await trio.sleep(1)
    assert await stop(registrar, scope) < 0.1
    for server in servers:
        assert server.times(RequestCode.UNREGISTER_BROKER) == [0]
        assert server.addresses() == {}


async def test_c164_black_holed_name_server_costs_a_second_and_no_other_its_notice(
    network, nursery, topics, caplog, autojump_clock
):
    reached = await start_server(network, nursery, NS1)
    await start_server(network, nursery, NS2)
    registrar = registrar_for(network, topics, NS1, NS2)
    scope = await nursery.start(run_in_scope, registrar)
    await trio.sleep(1)
    network.partition(NS2)
    assert await stop(registrar, scope) <= 1.0
    assert reached.addresses() == {}
    assert "not unregistered within 1 s at ns2:9876" in caplog.text


async def test_c164_stop_while_it_never_could_register_is_immediate(
    network, nursery, topics, autojump_clock
):
    network.listen(NS1)
    network.partition(NS1)
    registrar = registrar_for(network, topics, NS1, NS2)
    scope = await nursery.start(run_in_scope, registrar)
    await trio.sleep(20)
    assert await stop(registrar, scope) < 0.01


async def test_b135_b136_one_topic_is_told_without_a_word_about_the_others(
    network, topics, nursery, autojump_clock, monkeypatch
):
    """A name server that drops what a registration does not name keeps the other topics."""
    monkeypatch.setattr(registrations, "WHOLE_TABLE_TOPICS", 5)
    server = await start_server(network, nursery, delete_topic_with_broker_registration=True)
    settings = attrs.evolve(SETTINGS, enable_single_topic_register=True)
    registrar = registrar_for(network, topics, settings=settings)
    await nursery.start(registrar.run)
    assert await registrar.registered_once(5)
    topics.create_if_absent(TopicConfig("T1", 8, 8))
    topics.create_if_absent(TopicConfig("T2", 4, 2))
    await registrar.published(5)
    assert server.times(RequestCode.REGISTER_BROKER) == [0]
    for name, read, write in (("T1", 8, 8), ("T2", 4, 2)):
        (queues,) = server.routes.route(name).queue_datas
        assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums) == (
            "b-a", read, write,
        )  # fmt: skip
    assert server.addresses("TBW102")
    topics.delete("T1")
    await registrar.published(5)
    assert server.routes.route("T1") is None
    assert server.addresses("T2")


async def test_b135_topics_are_registered_in_pieces(network, topics, nursery, autojump_clock):
    for number in range(20):
        topics.create_if_absent(TopicConfig(f"T{number:02d}", 8, 8))
    server = await start_server(network, nursery)
    settings = attrs.evolve(SETTINGS, enable_split_registration=True, split_registration_size=7)
    registrar = registrar_for(network, topics, settings=settings)
    await nursery.start(registrar.run)
    assert await registrar.registered_once(5)
    pieces = [topics_of(c) for _, c in server.asked if c.code == RequestCode.REGISTER_BROKER]
    assert [len(piece) for piece in pieces[:-1]] == [7] * (len(pieces) - 1)
    assert {name for piece in pieces for name in piece} == {config.topic_name for config in topics}
    assert sum(map(len, pieces)) == len(topics)
    assert all(server.routes.route(f"T{number:02d}") for number in range(20))


# -- the others of a name


HA_BROKER = "10.0.0.1:10912"
ACTING = HASettings(role=BrokerRole.SLAVE, enable_slave_acting_master=True)


@attrs.define(eq=False)
class Slave:
    """A slave's registrar, with what it told whoever follows the master."""

    registrar: Registrar
    role: Role
    told: list = attrs.field(factory=list)

    def followed(self):
        found, self.told[:] = list(self.told), []
        return found


def slave_for(network, clock, *nameservers, number=1, ha=ACTING):
    settings = attrs.evolve(SETTINGS, broker_id=number)
    role = Role(ha, number)
    host = f"10.0.0.{number + 1}"
    registrar = Registrar(
        settings,
        Address(host, 10911),
        TopicTable(settings, clock),
        nameservers=nameservers or (NS1,),
        ha_address=f"{host}:10912",
        ha=ha,
        role=role,
        connect=network.connect,
    )
    slave = Slave(registrar, role)
    registrar.master_changed = lambda *found: slave.told.append(
        tuple(None if at is None else str(at) for at in found)
    )
    return slave


def master_for(network, topics, *nameservers, ha=None):
    return Registrar(
        SETTINGS,
        BROKER,
        topics,
        nameservers=nameservers or (NS1,),
        ha_address=HA_BROKER,
        ha=ha or HASettings(enable_slave_acting_master=True),
        connect=network.connect,
    )


async def test_slave_is_told_its_master_once_and_when_it_moves(
    network, nursery, clock, topics, autojump_clock
):
    await start_server(network, nursery)
    master = master_for(network, topics, ha=HASettings())
    scope = await nursery.start(run_in_scope, master)
    await master.registered_once(1)
    slave = slave_for(network, clock, ha=HASettings(role=BrokerRole.SLAVE))
    await nursery.start(slave.registrar.run)
    await trio.sleep(100)
    assert slave.followed() == [(str(BROKER), HA_BROKER)]
    master.advertise(Address("10.0.0.9", 10911), "10.0.0.9:10912")
    await trio.sleep(31)
    assert slave.followed() == [("10.0.0.9:10911", "10.0.0.9:10912")]
    await stop(master, scope)
    await trio.sleep(31)
    assert slave.followed() == [(None, None)]
    assert slave.role.master_is_gone
    assert not slave.role.acts_as_master


async def test_slave_asks_at_once_when_its_link_says_that_something_happened(
    network, nursery, clock, topics, autojump_clock
):
    await start_server(network, nursery)
    master = master_for(network, topics, ha=HASettings())
    scope = await nursery.start(run_in_scope, master)
    slave = slave_for(network, clock, ha=HASettings(role=BrokerRole.SLAVE))
    await nursery.start(slave.registrar.run)
    await trio.sleep(15)
    await stop(master, scope)
    slave.registrar.ask_again()
    await trio.sleep(0.1)
    assert slave.role.master_is_gone


async def test_name_servers_that_are_all_away_prove_nothing(
    network, nursery, clock, topics, autojump_clock
):
    await start_server(network, nursery)
    await nursery.start(master_for(network, topics).run)
    slave = slave_for(network, clock)
    await nursery.start(slave.registrar.run)
    await trio.sleep(15)
    assert slave.followed() == [(str(BROKER), HA_BROKER)]
    network.close(NS1)
    await trio.sleep(300)
    assert slave.followed() == []
    assert not slave.role.master_is_gone


async def test_signs_of_life_are_given_where_a_slave_may_act(
    network, nursery, clock, topics, autojump_clock
):
    server = await start_server(network, nursery)
    await nursery.start(master_for(network, topics).run)
    await trio.sleep(5.5)
    header = headers.decode(headers.RegisterBrokerRequest, server.last().ext)
    assert (header.enable_acting_master, header.heartbeat_timeout_millis) == (True, 10_000)
    assert server.times(RequestCode.BROKER_HEARTBEAT) == [0, 1, 2, 3, 4]
    assert server.times(RequestCode.GET_BROKER_MEMBER_GROUP) == [0, 1, 2, 3, 4]
    beat = headers.decode(
        headers.BrokerHeartbeatRequest, server.last(RequestCode.BROKER_HEARTBEAT).ext
    )
    assert (beat.broker_addr, beat.broker_name, beat.broker_id) == (str(BROKER), "b-a", 0)


async def test_members_that_cannot_be_read_are_told_once_and_change_nothing(
    network, nursery, clock, topics, autojump_clock, caplog
):
    server = await start_server(network, nursery)
    await nursery.start(master_for(network, topics).run)
    slave = slave_for(network, clock)
    code = RequestCode.GET_BROKER_MEMBER_GROUP
    del server.requests._entries[code]
    server.requests.add(code, None, lambda call, _: Reply(body=b'{"brokerMemberGroup":7}'))
    await nursery.start(slave.registrar.run)
    await trio.sleep(9.5)
    assert len(server.times(RequestCode.REGISTER_BROKER)) == 2, "one of each broker"
    assert len(server.times(code)) == 18
    assert caplog.text.count("members of our name cannot be read") == 2
    assert slave.followed() == [(str(BROKER), HA_BROKER)]


async def test_no_signs_of_life_otherwise(network, nursery, topics, autojump_clock):
    server = await start_server(network, nursery)
    await nursery.start(registrar_for(network, topics).run)
    await trio.sleep(20)
    assert server.times() == [0, 10]
    assert {command.code for _, command in server.asked} == {RequestCode.REGISTER_BROKER}
    header = headers.decode(headers.RegisterBrokerRequest, server.last().ext)
    assert header.heartbeat_timeout_millis is None


@pytest.mark.parametrize("notify", [True, False])
async def test_slave_acts_as_the_master_while_that_is_gone(
    network, nursery, clock, topics, notify, autojump_clock
):
    """With a notice at once, without one when the members are asked for the next time."""
    await start_server(network, nursery, notify_min_broker_id_changed=notify)
    master = master_for(network, topics)
    scope = await nursery.start(run_in_scope, master)
    await master.registered_once(1)
    slave = slave_for(network, clock)
    await nursery.start(slave.registrar.run)
    await trio.sleep(2.5)
    assert slave.followed() == [(str(BROKER), HA_BROKER)]
    assert slave.role.alive_replicas == 2
    await stop(master, scope)
    await trio.sleep(0.01 if notify else 1.01)
    assert slave.role.acts_as_master
    assert slave.followed() == [(None, None)]
    await nursery.start(master_for(network, topics).run)
    await trio.sleep(0.01 if notify else 1.01)
    assert not slave.role.acts_as_master
    assert not slave.role.master_is_gone
    assert slave.followed()[-1] == (str(BROKER), HA_BROKER)


async def test_master_that_hangs_is_gone_after_its_time(
    network, nursery, clock, topics, autojump_clock
):
    """brokerNotActiveTimeoutMillis goes to the name server with the registration."""
    await start_server(network, nursery, notify_min_broker_id_changed=True)
    hung = Registrar(
        SETTINGS,
        BROKER,
        topics,
        nameservers=[NS1],
        ha_address=HA_BROKER,
        ha=HASettings(enable_slave_acting_master=True),
        connect=MemoryHost(network, "10.0.0.1").connect,
    )
    await nursery.start(hung.run)
    slave = slave_for(network, clock)
    await nursery.start(slave.registrar.run)
    await trio.sleep(3)
    network.sever("10.0.0.1", None)
    began = trio.current_time()
    with trio.fail_after(20):
        while not slave.role.acts_as_master:  # noqa: ASYNC110
            await trio.sleep(0.1)
    assert 9 <= trio.current_time() - began <= 16  # ten seconds, and the scan is every five


async def test_of_two_slaves_the_one_with_the_smaller_id_acts(
    network, nursery, clock, topics, autojump_clock
):
    await start_server(network, nursery, notify_min_broker_id_changed=True)
    slaves = [slave_for(network, clock, number=number) for number in (1, 2)]
    scopes = [await nursery.start(run_in_scope, slave.registrar) for slave in slaves]
    await trio.sleep(2.5)
    assert [slave.role.acts_as_master for slave in slaves] == [True, False]
    await stop(slaves[0].registrar, scopes[0])
    await trio.sleep(0.1)
    assert slaves[1].role.acts_as_master


async def test_one_name_server_that_lost_the_master_does_not_make_it_gone(
    network, nursery, clock, topics, autojump_clock
):
    servers = [
        await start_server(network, nursery, at, notify_min_broker_id_changed=True)
        for at in (NS1, NS2)
    ]
    await nursery.start(master_for(network, topics, NS1, NS2).run)
    slave = slave_for(network, clock, NS1, NS2)
    await nursery.start(slave.registrar.run)
    await trio.sleep(3)
    for gone in servers[0].routes.expire(1e9):
        servers[0]._gone(gone, "of the test")
    await trio.sleep(0.5)
    assert not slave.role.master_is_gone
    assert slave.followed() == [(str(BROKER), HA_BROKER)]


async def test_registration_may_take_as_long_as_the_setting_says(
    network, nursery, topics, autojump_clock
):
    await start_server(network, nursery)
    network.delay_s = 2.5  # each way
    settings = attrs.evolve(SETTINGS, register_broker_timeout_ms=4000)
    registrar = registrar_for(network, topics, settings=settings)
    await nursery.start(registrar.run)
    assert not await registrar.registered_once(20)
    assert "(103) within 4 s" in registrar.states[0].failure
    settings = attrs.evolve(SETTINGS, register_broker_timeout_ms=6000)
    registrar = registrar_for(network, topics, settings=settings)
    await nursery.start(registrar.run)
    assert await registrar.registered_once(20)
