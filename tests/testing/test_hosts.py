"""Machines on a network in memory, held against the rules of real sockets."""

import anyio
import pytest
import trio

from trio_mq.config import Address
from trio_mq.errors import AddressInUse, PeerUnavailable
from trio_mq.net.network import TCP
from trio_mq.net.serve import BACKLOG_LIMIT_BYTES, BACKLOG_MAX_BYTES, IDLE_LIMIT_S
from trio_mq.protocol.command import Command
from trio_mq.protocol.command import encode as encode_command
from trio_mq.testing.hosts import MemoryHost
from trio_mq.testing.links import MemoryNetwork


class Echo:
    """Keeps what happens, and answers each frame with its body."""

    def __init__(self):
        self.peers, self.frames, self.gone = [], [], []
        self.reply, self.left = None, trio.Event()

    def opened(self, peer):
        self.peers.append(peer)

    def received(self, peer, frames):
        self.frames.append(len(frames))
        for number, (_, _, body) in enumerate(frames, 1):
            peer.write(body if self.reply is None else self.reply)
            if peer.stalled:
                return number
        return None

    def disconnected(self, peer):
        self.gone.append(peer)
        self.left.set()


def frame(body=b"hello"):
    return encode_command(Command(1, {}, body))


@pytest.fixture(params=["tcp", "memory"])
def network(request):
    return TCP if request.param == "tcp" else MemoryHost(MemoryNetwork(), "127.0.0.1")


@pytest.fixture
def memory():
    return MemoryHost(MemoryNetwork(), "127.0.0.1")


def at(port):
    return Address(port.address.ip, port.address.port)


async def serving(nursery, network, handler, **others):
    port = network.listen("127.0.0.1", 0, purpose="test")
    await nursery.start(
        lambda task_status: network.serve([port], handler, task_status=task_status, **others)
    )
    return at(port)


async def test_frames_of_one_receive_arrive_together_and_are_answered(network, nursery):
    handler = Echo()
    address = await serving(nursery, network, handler)
    async with await network.connect(address, 3.0) as stream:
        await stream.send(frame(b"one") + frame(b"two"))
        got = b""
        while len(got) < 6:
            got += await stream.receive()
        assert got == b"onetwo"
        assert handler.frames == [2]
        (peer,) = handler.peers
        assert peer.address.ip == "127.0.0.1"
        assert peer.packed_address == peer.address.packed
        assert peer.local_address.port == address.port
    with trio.fail_after(3):
        await handler.left.wait()
    assert handler.gone == [peer]
    assert peer.closed


async def test_a_taken_port_is_refused_and_given_back(network):
    port = network.listen("127.0.0.1", 0, purpose="test")
    with pytest.raises(AddressInUse, match=r"test: 127\.0\.0\.1"):
        network.listen("127.0.0.1", port.address.port, purpose="test")
    double = port.double()
    port.close()
    port.close()
    with pytest.raises(AddressInUse):
        network.listen("127.0.0.1", port.address.port, purpose="test")
    double.close()
    with pytest.raises(PeerUnavailable):
        await network.connect(at(port), 3.0)
    network.listen("127.0.0.1", port.address.port, purpose="test").close()


async def test_connections_wait_until_somebody_accepts(network, nursery):
    port = network.listen("127.0.0.1", 0, purpose="test")
    async with await network.connect(at(port), 3.0) as stream:
        await stream.send(frame(b"early"))
        await nursery.start(network.serve, [port], Echo())
        assert await stream.receive() == b"early"


async def test_connections_that_nobody_accepts_are_reset_with_the_port(memory):
    port = memory.listen("0.0.0.0", 0, purpose="test")
    async with await memory.connect(at(port)) as stream:
        port.close()
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()


async def test_a_stop_ends_accepting_and_then_the_connections_and_tells_the_handler_nothing(
    network,
):
    handler = Echo()
    async with trio.open_nursery() as nursery:
        address = await serving(nursery, network, handler)
        stream = await network.connect(address, 3.0)
        await stream.send(frame())
        await stream.receive()
        nursery.cancel_scope.cancel()
    with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
        await stream.receive()
    await stream.aclose()
    assert handler.gone == []
    with pytest.raises(PeerUnavailable):
        await network.connect(address, 3.0)


async def test_bytes_that_are_no_frames_end_the_connection(network, nursery):
    handler = Echo()
    address = await serving(nursery, network, handler)
    async with await network.connect(address, 3.0) as stream:
        await stream.send(b"\xff" * 64)
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()


async def test_a_fault_of_the_handler_ends_one_connection_only(network, nursery, caplog):
    handler = Echo()
    address = await serving(nursery, network, handler)
    async with (
        await network.connect(address, 3.0) as good,
        await network.connect(address, 3.0) as bad,
    ):
        await good.send(frame())
        await good.receive()
        handler.received = None
        await bad.send(frame())
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await bad.receive()
        del handler.received
        await good.send(frame())
        assert await good.receive() == b"hello"
    assert "internal error" in caplog.text


async def test_a_peer_that_does_not_read_is_not_read_from(memory, nursery):
    handler = Echo()
    handler.reply = b"x" * (BACKLOG_LIMIT_BYTES // 4)
    address = await serving(nursery, memory, handler)
    async with await memory.connect(address) as stream:
        await stream.send(frame() * 20)
        await trio.testing.wait_all_tasks_blocked()
        (peer,) = handler.peers
        assert peer.stalled
        assert handler.frames == [20]
        await stream.send(frame())
        got = 0
        while got < 21 * len(handler.reply):
            got += len(await stream.receive())
        assert not peer.stalled
        assert sum(handler.frames) > 21  # what was not handled came again


async def test_a_peer_that_never_reads_is_cut_off(memory, nursery):
    handler = Echo()
    handler.reply = b"x" * (BACKLOG_MAX_BYTES + 100_000)
    address = await serving(nursery, memory, handler)
    async with await memory.connect(address) as stream:
        await stream.send(frame())
        await trio.testing.wait_all_tasks_blocked()
        assert handler.gone == handler.peers


async def test_a_silent_connection_is_closed_after_a_while(memory, nursery, autojump_clock):
    handler = Echo()
    address = await serving(nursery, memory, handler)
    began = trio.current_time()
    async with await memory.connect(address) as stream:
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
    assert IDLE_LIMIT_S <= trio.current_time() - began <= 1.1 * IDLE_LIMIT_S


async def test_after_a_kill_nothing_gets_out_and_the_port_is_free(nursery, autojump_clock):
    network = MemoryNetwork()
    one, other = MemoryHost(network, "10.0.0.1"), MemoryHost(network, "10.0.0.2")
    handler = Echo()
    ours, theirs = (
        await serving_at(nursery, one, handler),
        await serving_at(nursery, other, handler),
    )
    into, out = await other.connect(ours), await one.connect(theirs)
    one.kill()
    for stream in (into, out):
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()
    with pytest.raises(PeerUnavailable, match="was killed"):
        await one.connect(theirs)
    with pytest.raises(PeerUnavailable, match="refused"):
        await other.connect(ours)
    again = MemoryHost(network, "10.0.0.1")
    again.listen("", ours.port, purpose="the next process")
    await again.connect(theirs)


async def serving_at(nursery, host, handler):
    port = host.listen("", 0, purpose="test")
    await nursery.start(host.serve, [port], handler)
    return at(port)


# -- silence between hosts


@pytest.fixture
async def pair(nursery):
    """A network, and a connection from 10.0.0.1 to an echo at 10.0.0.2."""
    network = MemoryNetwork()
    address = await serving_at(nursery, MemoryHost(network, "10.0.0.2"), Echo())
    return network, address, await network.connect_from("10.0.0.1", address)


async def answer_s(stream):
    """Seconds until a request is answered, None when it is not in a minute."""
    began = trio.current_time()
    await stream.send(frame())
    with trio.move_on_after(60):
        await stream.receive()
        return round(trio.current_time() - began, 6)


async def test_what_is_sent_over_a_severed_wire_arrives_when_it_is_mended(pair, autojump_clock):
    network, address, stream = pair
    for parted in (
        ("10.0.0.1",),
        ("10.0.0.2",),
        ("10.0.0.1", "10.0.0.2"),
        ("10.0.0.2", "10.0.0.1"),
    ):
        network.sever(*parted)
        assert await answer_s(stream) is None
        with pytest.raises(PeerUnavailable, match="no answer within 3 s"):
            await network.connect_from("10.0.0.1", address)
        network.mend(*parted)
        assert await stream.receive() == b"hello"
        assert await answer_s(stream) == 0


async def test_others_are_not_severed(pair, autojump_clock):
    network, address, stream = pair
    network.sever("10.0.0.1", "10.0.0.3")
    network.sever("10.0.0.4")
    assert network.is_severed("10.0.0.4")
    assert not network.is_severed("10.0.0.1")
    assert await answer_s(stream) == 0
    await network.connect_from("10.0.0.3", address)
    network.sever("10.0.0.1")
    network.mend()
    assert await answer_s(stream) == 0


async def test_an_attempt_to_connect_ends_well_when_the_wire_is_mended_in_time(
    pair, nursery, autojump_clock
):
    network, address, _ = pair
    network.sever("10.0.0.2")

    async def mend():
        await trio.sleep(2)
        network.mend("10.0.0.2")

    nursery.start_soon(mend)
    stream = await network.connect_from("10.0.0.1", address)
    assert trio.current_time() == 2
    assert await answer_s(stream) == 0


async def test_a_reset_gets_through_when_the_wire_is_mended(pair, autojump_clock):
    network, _, stream = pair
    network.sever("10.0.0.2")
    network.kill("10.0.0.2")
    with trio.move_on_after(10) as scope:
        await stream.receive()
    assert scope.cancelled_caught
    network.mend("10.0.0.2")
    with pytest.raises(anyio.BrokenResourceError):
        await stream.receive()


async def test_a_slow_host_slows_both_directions(pair, autojump_clock):
    network, address, stream = pair
    network.slow("10.0.0.2", 0.5)
    assert await answer_s(stream) == 1
    network.slow("10.0.0.1", 0.25, "10.0.0.2")
    assert await answer_s(stream) == 1.5
    fresh = await network.connect_from("10.0.0.1", address)
    assert await answer_s(fresh) == 1.5
    other = await network.connect_from("10.0.0.9", address)
    assert await answer_s(other) == 1
    network.slow("10.0.0.2", 0)
    assert await answer_s(stream) == 0.5


async def test_wires_that_are_over_are_forgotten(pair, autojump_clock):
    network, address, _ = pair
    for _ in range(2500):
        async with await network.connect_from("10.0.0.1", address):
            pass
    assert len(network.wires(address)) < 1100
