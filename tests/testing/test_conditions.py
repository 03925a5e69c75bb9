"""What is wrong between hosts in memory: in one direction, after some bytes, slowly, and twice."""

import anyio
import pytest
import trio

from trio_mq.config.addresses import Address
from trio_mq.errors import PeerUnavailable
from trio_mq.testing.clock import MachineClock, TrioClock
from trio_mq.testing.cluster import SimulatedCluster
from trio_mq.testing.disk import MemoryDisk
from trio_mq.testing.links import CAPACITY_BYTES, MemoryNetwork

A, B = "10.0.0.1", "10.0.0.2"
AT = Address(B, 10912)


class Pair:
    """A network with a listener on B and a way to connect from A."""

    def __init__(self):
        self.network = MemoryNetwork()
        self.listener = self.network.listen(AT)

    async def connected(self):
        client = await self.network.connect_from(A, AT)
        return client, await self.listener.accept()


@pytest.fixture
async def pair():
    return Pair()


async def silent(stream, wait_s=60):
    with trio.move_on_after(wait_s) as scope:
        await stream.receive_some()
    return scope.cancelled_caught


async def test_who_is_deaf_is_heard_all_the_same(pair, autojump_clock):
    client, server = await pair.connected()
    pair.network.deafen(B, A)
    await client.send(b"unheard")
    await server.send(b"heard")
    assert await client.receive_some() == b"heard"
    assert await silent(server)
    pair.network.mend(B, A)
    assert await server.receive_some() == b"unheard"


async def test_what_a_deaf_host_sends_is_not_acknowledged_so_it_gets_stuck(pair, autojump_clock):
    client, server = await pair.connected()
    pair.network.deafen(B)
    with trio.move_on_after(60) as scope:
        for _ in range(2 * CAPACITY_BYTES // 1024):
            await server.send(b"x" * 1024)
            await client.receive_some(1024)
    assert scope.cancelled_caught
    pair.network.mend(B)
    with trio.fail_after(1):
        await server.send(b"x" * CAPACITY_BYTES)


async def test_nobody_connects_while_one_of_both_is_deaf(pair, autojump_clock):
    for host in (A, B):
        pair.network.deafen(host)
        with pytest.raises(PeerUnavailable, match="no answer within 3 s"):
            await pair.network.connect_from(A, AT)
        pair.network.mend(host)
    await pair.connected()


async def test_a_close_and_a_reset_pass_in_the_open_direction_only(pair, autojump_clock):
    client, server = await pair.connected()
    pair.network.deafen(B)
    await server.aclose()
    assert await client.receive_some() == b""
    pair.network.mend()
    client, server = await pair.connected()
    pair.network.deafen(B)
    client.wire.reset()
    with pytest.raises(anyio.BrokenResourceError):
        await client.receive_some()
    assert await silent(server)
    pair.network.mend()
    with pytest.raises(anyio.BrokenResourceError):
        await server.receive_some()


async def test_who_was_deaf_when_the_other_died_hears_of_it_afterwards(pair, autojump_clock):
    client, server = await pair.connected()
    pair.network.deafen(A, B)
    client.wire.reset()
    await server.aclose()
    assert pair.network.between(A, B) == [client.wire], "one end knows nothing yet"
    assert await silent(client)
    pair.network.mend()
    with pytest.raises(anyio.BrokenResourceError):
        await client.receive_some()
    assert pair.network.between(A, B) == []


async def test_others_hear_a_host_that_one_is_deaf_to(pair, autojump_clock):
    pair.network.deafen(B, "10.0.0.9")
    client, server = await pair.connected()
    await client.send(b"x")
    assert await server.receive_some() == b"x"


@pytest.mark.parametrize("ending", ["reset", "end", "silence"])
@pytest.mark.parametrize("count", range(13))
async def test_a_connection_ends_after_so_many_bytes(pair, count, ending, autojump_clock):
    pair.network.cut_next(B, A, count, ending=ending)
    client, server = await pair.connected()
    for piece in (b"0123", b"4567", b"89ab", b"cdef"):
        await server.send(piece)
    got = b""
    with trio.move_on_after(60) as scope:
        try:
            while data := await client.receive_some(5):
                got += data
        except anyio.BrokenResourceError:
            assert ending == "reset"
    assert got == b"0123456789abcdef"[:count]
    assert scope.cancelled_caught == (ending == "silence")
    client, server = await pair.connected()
    await server.send(b"the next one is whole")
    assert await client.receive_some() == b"the next one is whole"


async def test_a_cut_waits_for_the_direction_and_port_that_are_meant(pair, autojump_clock):
    pair.network.cut_next(B, A, 3, port=80)
    client, server = await pair.connected()
    await server.send(b"whole")
    assert await client.receive_some() == b"whole"
    pair.network.cut_next(A, B, 3, port=AT.port)
    client, server = await pair.connected()
    await server.send(b"whole")
    assert await client.receive_some() == b"whole"
    await client.send(b"halves")
    assert await server.receive_some() == b"hal"
    with pytest.raises(anyio.BrokenResourceError):
        await server.receive_some()


async def test_a_connection_in_use_is_cut_or_reset(pair, autojump_clock):
    client, server = await pair.connected()
    (wire,) = pair.network.between(B, A, AT.port)
    assert pair.network.between(A, B, 80) == []
    wire.direction(A).stop_after(2, "end")
    await client.send(b"abc")
    assert await server.receive_some() == b"ab"
    assert await server.receive_some() == b""
    wire.reset()
    with pytest.raises(anyio.BrokenResourceError):
        await client.receive_some()
    assert pair.network.between(A, B) == []


async def test_nothing_comes_after_what_was_lost(pair, autojump_clock):
    client, server = await pair.connected()
    direction = client.wire.direction(A)
    direction.stop_after(2, "silence")
    await client.send(b"abcd")
    direction.stop_after(100, "end")
    await client.send(b"efgh")
    assert await server.receive_some() == b"ab"
    assert await silent(server)


async def test_a_slow_receiver_takes_so_many_bytes_per_second(pair, autojump_clock):
    client, server = await pair.connected()
    pair.network.throttle(A, 1000)
    began_s = trio.current_time()
    await server.send(b"x" * 5000)
    got = 0
    while got < 5000:
        got += len(await client.receive_some(4000))
    assert trio.current_time() - began_s == pytest.approx(4.9)
    await client.send(b"y" * 5000)
    assert len(await server.receive_some()) == 5000, "the other direction is as fast as ever"
    pair.network.throttle(A, None)
    await server.send(b"x" * 5000)
    assert len(await client.receive_some(4000)) == 4000
    assert len(await client.receive_some()) == 1000
    assert trio.current_time() - began_s == pytest.approx(5)


async def test_a_connection_is_made_twice(pair, autojump_clock):
    pair.network.twin_next(AT)
    client, server = await pair.connected()
    twin = await pair.listener.accept()
    await client.send(b"both")
    assert await server.receive_some() == await twin.receive_some() == b"both"
    await twin.send(b"lost" * CAPACITY_BYTES)
    await server.send(b"heard")
    assert await client.receive_some() == b"heard"
    await client.aclose()
    assert await server.receive_some() == b""
    assert await silent(twin)
    assert len(pair.listener.wires) == 2


async def test_the_clock_of_one_machine_jumps(autojump_clock):
    everywhere = TrioClock()
    one, other = MachineClock(everywhere), MachineClock(everywhere)
    one.jump(-5000)
    await trio.sleep(1)
    assert other.now_ms() - one.now_ms() == 5000
    assert other.now_ms() == everywhere.now_ms()


async def test_a_running_broker_sees_its_clock_jump(autojump_clock):
    async with SimulatedCluster(brokers=2, nameservers=1) as cluster:
        one, other = cluster.brokers
        before_ms = cluster.clock.now_ms()
        one.clock.jump(3_600_000)
        assert one.clock.now_ms() - other.clock.now_ms() == 3_600_000
        assert cluster.clock.now_ms() == before_ms


def test_a_full_disk_takes_what_takes_no_room():
    disk = MemoryDisk()
    file = disk.open("/a", create=True)
    file.write(b"x" * 100, 0)
    disk.fill(room_bytes=10)
    file.write(b"y" * 100, 0)
    file.write(b"z" * 10, 100)
    with pytest.raises(OSError, match="No space"):
        file.write(b"z", 110)
    assert disk.usage("/").free == 0
    disk.make_room()
    file.write(b"z", 110)
