"""Connections in memory: the contract that they share with TCP, and the faults that TCP cannot do
on command."""

from contextlib import asynccontextmanager

import anyio
import pytest
import trio.testing

from trio_mq.config.addresses import Address
from trio_mq.errors import PeerUnavailable
from trio_mq.testing.links import CAPACITY_BYTES, MemoryNetwork, memory_pair, serve_stream

NS = Address("ns1", 9876)


@asynccontextmanager
async def tcp_pair():
    accepted = []
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as tasks:

            async def keep(stream):
                accepted.append(stream)
                connected.set()
                await anyio.sleep_forever()

            connected = anyio.Event()
            tasks.start_soon(listener.serve, keep)
            ours = await anyio.connect_tcp("127.0.0.1", port)
            await connected.wait()
            yield ours, accepted[0]
            await ours.aclose()
            await accepted[0].aclose()
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def in_memory_pair():
    yield memory_pair()


@pytest.fixture(params=[tcp_pair, in_memory_pair], ids=["tcp", "memory"])
def pair(request):
    return request.param


async def test_bytes_arrive_in_order_and_in_pieces_as_asked(pair):
    async with pair() as (one, other):
        await one.send(b"hello ")
        await one.send(b"world")
        got = b""
        while len(got) < 11:
            piece = await other.receive(4)
            assert 0 < len(piece) <= 4
            got += piece
        assert got == b"hello world"
        await other.send(b"back")
        assert await one.receive() == b"back"


async def test_bytes_sent_before_a_close_arrive_before_the_end(pair):
    async with pair() as (one, other):
        await one.send(b"last words")
        await one.aclose()
        assert await other.receive() == b"last words"
        with pytest.raises(anyio.EndOfStream):
            await other.receive()


async def test_half_close_leaves_the_other_direction_open(pair):
    async with pair() as (one, other):
        await one.send_eof()
        with pytest.raises(anyio.EndOfStream):
            await other.receive()
        await other.send(b"still here")
        assert await one.receive() == b"still here"


async def test_a_closed_end_refuses_work(pair):
    async with pair() as (one, _):
        await one.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await one.send(b"x")
        with pytest.raises(anyio.ClosedResourceError):
            await one.receive()


async def test_sending_to_a_closed_end_breaks(pair):
    async with pair() as (one, other):
        await other.aclose()
        with pytest.raises(anyio.BrokenResourceError):  # noqa: PT012
            for _ in range(1000):  # TCP finds out with the second packet
                await one.send(b"x" * 1000)


async def test_a_sender_waits_for_a_reader(pair):
    async with pair() as (one, other):
        large = b"x" * 16_000_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.send, large)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert len(nursery.child_tasks) == 1
            got = 0
            while got < len(large):
                got += len(await other.receive())


async def test_capacity_bounds_what_is_in_flight(autojump_clock):
    one, _ = memory_pair()
    with trio.move_on_after(1) as scope:
        await one.send(b"x" * (CAPACITY_BYTES + 1))
    assert scope.cancelled_caught
    one, _ = memory_pair()
    with trio.fail_after(1):
        await one.send(b"x" * CAPACITY_BYTES)


async def test_delay_holds_bytes_and_keeps_their_order(autojump_clock):
    one, other = memory_pair(delay_s=2)
    began = trio.current_time()
    await one.send(b"a")
    await trio.sleep(1)
    await one.send(b"b")
    assert await other.receive() == b"a"
    assert trio.current_time() - began == pytest.approx(2)
    assert await other.receive() == b"b"
    assert trio.current_time() - began == pytest.approx(3)


async def test_a_cut_wire_swallows_bytes_and_says_nothing(autojump_clock):
    one, other = memory_pair()
    await one.send(b"in flight")
    one.wire.cut()
    await one.send(b"lost")
    await other.aclose()
    with trio.move_on_after(60) as scope:
        await one.receive()
    assert scope.cancelled_caught


async def test_a_healed_wire_delivers_what_was_in_flight_and_what_comes(autojump_clock):
    one, other = memory_pair()
    await one.send(b"in flight,")
    one.wire.cut()
    await one.send(b"lost,")
    one.wire.heal()
    await one.send(b"new")
    assert await other.receive() + await other.receive() == b"in flight,new"


async def test_a_reset_reaches_both_ends_even_while_they_wait(autojump_clock):
    one, other = memory_pair()

    async def expect_reset(stream):
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_reset, one)
        nursery.start_soon(expect_reset, other)
        await trio.testing.wait_all_tasks_blocked()
        one.wire.reset()
    with pytest.raises(anyio.BrokenResourceError):
        await one.send(b"x")


async def test_streams_have_trios_names_too(autojump_clock):
    one, other = memory_pair()
    await one.send_all(b"abc")
    assert await other.receive_some(2) == b"ab"
    assert await other.receive_some() == b"c"
    await one.aclose()
    assert await other.receive_some() == b""


async def test_network_connects_refuses_and_black_holes(autojump_clock):
    network = MemoryNetwork(delay_s=0.5)
    with pytest.raises(PeerUnavailable, match="ns1:9876: connection refused"):
        await network.connect(NS)
    listener = network.listen(NS)
    began = trio.current_time()
    ours = await network.connect(NS)
    assert trio.current_time() - began == pytest.approx(0.5)
    theirs = await listener.accept()
    await ours.send(b"hi")
    assert await theirs.receive() == b"hi"
    network.partition(NS)
    began = trio.current_time()
    with pytest.raises(PeerUnavailable, match="no answer within 3 s"):
        await network.connect(NS, 3.0)
    assert trio.current_time() - began == pytest.approx(3)
    network.heal(NS)
    await network.connect(NS)
    network.close(NS)
    with pytest.raises(anyio.BrokenResourceError):
        await ours.receive()
    with pytest.raises(PeerUnavailable, match="refused"):
        await network.connect(NS)


class Handler:
    """Records what a listener's handler is told; answers each frame with its body."""

    def __init__(self):
        self.events = []

    def opened(self, peer):
        self.events.append("opened")

    def received(self, peer, frames):
        self.events += [body for _, _, body in frames]
        for _, header, body in frames:
            if body == b"close":
                peer.close()
            peer.write(header + body)

    def disconnected(self, peer):
        assert peer.closed
        self.events.append("disconnected")


def frame(body):
    return (4 + 2 + len(body)).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"{}" + body


async def test_a_handler_is_served_as_behind_a_socket(autojump_clock):
    handler = Handler()
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, theirs, handler)
        await ours.send(frame(b"one") + frame(b"two"))
        assert await ours.receive() + await ours.receive() == b"{}one{}two"
        await ours.aclose()
    assert handler.events == ["opened", b"one", b"two", "disconnected"]


@pytest.mark.parametrize("last", [frame(b"close"), b"GET / HTTP/1.1\r\n"])
async def test_a_handler_or_a_broken_frame_ends_the_stream(autojump_clock, last):
    handler = Handler()
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, theirs, handler)
        await ours.send(last)
        assert await ours.receive_some() == b""
    assert handler.events[-1] == "disconnected"
