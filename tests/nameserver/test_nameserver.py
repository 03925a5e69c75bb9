"""The name server's tasks, on a clock that jumps and a disk in memory."""

import errno

import pytest
import trio.testing

from trio_mq.config.addresses import Address
from trio_mq.config.nameserver import NameServerSettings
from trio_mq.nameserver.nameserver import NameServer
from trio_mq.net.dial import open_pool
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.command import Command
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk
from trio_mq.testing.links import MemoryNetwork, serve_stream

NS = Address("ns1", 9876)
PATH = "/store/namesrv/kvConfig.json"
TOPICS = {name: TopicConfig(name) for name in ("T", "U")}


def register(address="10.0.0.1:10911", timeout_ms=None):
    header = headers.RegisterBrokerRequest("b-a", address, "c1", "", 0, timeout_ms)
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(TOPICS))
    return Command(
        code=RequestCode.REGISTER_BROKER, ext=headers.encode(header), body=bodies.encode(body)
    )


def command(code, header=None):
    return Command(code=code, ext=headers.encode(header) if header is not None else {})


PUT = command(100, headers.PutKVConfigRequest("NS", "k", "v"))
GET = command(101, headers.GetKVConfigRequest("NS", "k"))
ROUTE = command(105, headers.GetRouteInfoRequest("T"))


@pytest.fixture
def network():
    return MemoryNetwork()


@pytest.fixture
def disk():
    disk = MemoryDisk()
    disk.make_dirs("/store")
    return disk


async def start(nursery, network, server):
    """Run a name server behind an address."""
    await nursery.start(server.run)
    nursery.start_soon(network.listen(NS).serve, lambda stream: serve_stream(stream, server))


async def test_silent_broker_is_taken_off_and_its_connection_closed(
    network, nursery, autojump_clock
):
    server = NameServer()
    await start(nursery, network, server)
    async with open_pool(connect=network.connect) as pool:
        link = await pool.link(NS)
        assert (await link.call(register(timeout_ms=7_000))).code == 0
        await trio.sleep(5.5)
        assert server.routes.route("T") is not None
        await trio.sleep(5)  # the scan after 10 s finds it
        assert server.routes.route("T") is None
        assert link.closed


async def test_c074_wall_clock_steps_do_not_touch_registrations(network, nursery, autojump_clock):
    clock = TrioClock()
    server = NameServer(clock=clock)
    await start(nursery, network, server)
    async with open_pool(connect=network.connect) as pool:
        clock.set(clock.now_ms() + 25 * 365 * 86_400_000)
        assert (await pool.call(NS, register())).code == 0
        clock.set(1_700_000_000_000)
        assert (await pool.call(NS, register())).code == 0
        await trio.sleep(115)
        assert (await pool.call(NS, ROUTE)).code == 0
        await trio.sleep(11)
        assert (await pool.call(NS, ROUTE)).code == 17


async def test_broker_whose_connection_ends_is_taken_off_at_once(network, nursery, autojump_clock):
    server = NameServer()
    await start(nursery, network, server)
    async with open_pool(connect=network.connect) as pool:
        await pool.call(NS, register())
        assert server.routes.route("T") is not None
        await pool.drop(NS)
        await trio.testing.wait_all_tasks_blocked()
        assert server.routes.route("T") is None


async def test_scan_interval_can_be_changed_while_it_runs(network, nursery, autojump_clock):
    server = NameServer()
    await start(nursery, network, server)
    async with open_pool(connect=network.connect) as pool:
        change = Command(code=318, body=b"scanNotActiveBrokerInterval=1000")
        assert (await pool.call(NS, change)).code == 0
        await trio.sleep(5)
        await pool.call(NS, register(timeout_ms=500))
        await trio.sleep(1.2)
        assert server.routes.route("T") is None


async def test_kv_settings_are_answered_when_they_are_durable(
    network, nursery, autojump_clock, disk
):
    disk.run_delay_s = 0.5
    server = NameServer(NameServerSettings(kv_config_path=PATH), disk=disk)
    await start(nursery, network, server)
    async with open_pool(connect=network.connect) as pool:
        before = trio.current_time()
        assert (await pool.call(NS, PUT)).code == 0
        assert trio.current_time() - before >= 0.5
        disk.crash(1, keep="none")
        again = NameServer(NameServerSettings(kv_config_path=PATH), disk=disk)
        await nursery.start(again.run)
        assert again.kv.get("NS", "k") == "v"


async def test_kv_changes_during_a_save_share_the_next_one(network, nursery, autojump_clock, disk):
    server = NameServer(NameServerSettings(kv_config_path=PATH), disk=disk)
    await start(nursery, network, server)
    disk.run_delay_s = 0.5
    async with open_pool(connect=network.connect) as pool:
        before = trio.current_time()
        async with trio.open_nursery() as asking:
            for n in range(20):
                put = command(100, headers.PutKVConfigRequest("NS", f"k{n}", "v"))
                asking.start_soon(pool.call, NS, put)
        assert trio.current_time() - before < 1.5  # two saves, not twenty
        renames = [op for op in disk.operations if op.kind == "rename" and op.path == PATH]
        assert len(renames) <= 2
    assert len(server.kv.namespace("NS")) == 20


async def test_kv_change_on_a_full_disk_is_answered_with_the_path(
    network, nursery, autojump_clock, disk
):
    server = NameServer(NameServerSettings(kv_config_path=PATH), disk=disk)
    await start(nursery, network, server)
    disk.fail_when(lambda operation: operation.kind == "write", errno.ENOSPC)
    async with open_pool(connect=network.connect) as pool:
        reply = await pool.call(NS, PUT)
        assert reply.code == 1
        assert PATH in reply.remark
        assert "No space left" in reply.remark
        disk.heal()
        assert (await pool.call(NS, PUT)).code == 0  # the saver goes on


async def test_without_a_path_kv_settings_live_in_memory(network, nursery, autojump_clock):
    server = NameServer()
    await start(nursery, network, server)
    async with open_pool(connect=network.connect) as pool:
        assert (await pool.call(NS, PUT)).code == 0
        assert (await pool.call(NS, GET)).ext == {"value": "v"}


async def test_bytes_of_another_protocol_leave_the_others_served(network, nursery, autojump_clock):
    await start(nursery, network, NameServer())
    bad = await network.connect(NS)
    await bad.send(b"GET / HTTP/1.1\r\n\r\n")
    async with open_pool(connect=network.connect) as pool:
        assert (await pool.call(NS, ROUTE)).code == 17
    assert await bad.receive_some() == b""
