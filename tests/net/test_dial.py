"""Connecting, and the pool of links. Each test under both backends."""

import socket

import anyio
import pytest

from trio_mq.config.addresses import Address
from trio_mq.errors import PeerUnavailable
from trio_mq.net.dial import connect, open_pool
from trio_mq.net.link import open_link
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.testing.links import MemoryNetwork

NS1, NS2 = Address("ns1", 9876), Address("ns2", 9876)
SHORT_S = 0.02
ASK = Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)


def echo(link, command):
    """A peer's answer that names the request."""
    return Command(code=0, remark=str(command.code), body=command.body)


async def serve_echo(stream, on_request=echo):
    async with open_link(stream, NS1, on_request=on_request):
        await anyio.sleep_forever()


def test_pool_keeps_one_link_for_each_address(run_on):
    async def main():
        network = MemoryNetwork()
        async with anyio.create_task_group() as tasks:
            for address in (NS1, NS2):
                tasks.start_soon(network.listen(address).serve, serve_echo)
            async with open_pool(connect=network.connect) as pool, anyio.create_task_group() as ask:
                for _ in range(5):
                    ask.start_soon(pool.call, NS1, ASK)
                    ask.start_soon(pool.call, NS2, ASK)
            assert sorted(address.host for _, address in network.attempts) == ["ns1", "ns2"]
            tasks.cancel_scope.cancel()

    run_on(main)


def test_pool_connects_again_after_the_peer_came_back(run_on):
    async def main():
        network = MemoryNetwork()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(network.listen(NS1).serve, serve_echo)
            async with open_pool(connect=network.connect) as pool:
                assert (await pool.call(NS1, ASK)).remark == "106"
                network.close(NS1)
                with pytest.raises(PeerUnavailable, match="ns1:9876"):
                    await pool.call(NS1, ASK)
                tasks.start_soon(network.listen(NS1).serve, serve_echo)
                assert (await pool.call(NS1, ASK)).remark == "106"
            tasks.cancel_scope.cancel()

    run_on(main)


def test_c100_callers_of_a_dead_address_share_one_attempt(run_on):
    async def main():
        network = MemoryNetwork()
        network.listen(NS1)
        network.partition(NS1)
        failures = []

        async def ask(pool):
            try:
                await pool.call(NS1, ASK, 60)
            except PeerUnavailable as error:
                failures.append(str(error))

        async with open_pool(connect=network.connect, connect_timeout_s=SHORT_S) as pool:
            started = anyio.current_time()
            async with anyio.create_task_group() as tasks:
                for _ in range(50):
                    tasks.start_soon(ask, pool)
            assert len(network.attempts) == 1
            assert anyio.current_time() - started < 10 * SHORT_S
            # The next caller is not told an old story: it tries.
            with pytest.raises(PeerUnavailable):
                await pool.call(NS1, ASK, 60)
            assert len(network.attempts) == 2
        assert len(failures) == 50
        assert "ns1:9876: no answer within 0.02 s" in failures[0]

    run_on(main)


def test_c100_a_dead_address_does_not_hold_up_another(run_on):
    async def main():
        network = MemoryNetwork()
        network.listen(NS1)
        network.partition(NS1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(network.listen(NS2).serve, serve_echo)
            async with open_pool(connect=network.connect) as pool:
                tasks.start_soon(pool.link, NS1)
                with anyio.fail_after(1):
                    await pool.call(NS2, ASK)
                tasks.cancel_scope.cancel()

    run_on(main)


def test_caller_that_gives_up_while_connecting_leaves_the_attempt_to_the_next(run_on):
    async def main():
        network = MemoryNetwork(delay_s=SHORT_S)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(network.listen(NS1).serve, serve_echo)
            async with open_pool(connect=network.connect) as pool:
                with pytest.raises(PeerUnavailable, match="no answer within"):
                    await pool.call(NS1, ASK, SHORT_S / 4)
                assert (await pool.call(NS1, ASK, 5)).remark == "106"
            tasks.cancel_scope.cancel()

    run_on(main)


def test_timeout_of_a_call_covers_connecting(run_on):
    async def main():
        network = MemoryNetwork()
        network.listen(NS1)
        network.partition(NS1)
        async with open_pool(connect=network.connect) as pool:
            with anyio.fail_after(2), pytest.raises(PeerUnavailable, match=r"within 0\.02 s"):
                await pool.call(NS1, ASK, SHORT_S)
            with anyio.fail_after(2), pytest.raises(PeerUnavailable, match=r"within 0\.02 s"):
                await pool.send_oneway(NS1, ASK, SHORT_S)

    run_on(main)


def test_peer_that_is_leaving_is_asked_once_more_on_a_new_link(run_on):
    async def main():
        network = MemoryNetwork()
        asked = []

        def leaving(link, command):
            asked.append(command.code)
            return Command(code=ResponseCode.GO_AWAY if len(asked) == 1 else 0)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(network.listen(NS1).serve, lambda s: serve_echo(s, leaving))
            async with open_pool(connect=network.connect) as pool:
                assert (await pool.call(NS1, ASK)).code == 0
            assert (len(asked), len(network.attempts)) == (2, 2)
            tasks.cancel_scope.cancel()

    run_on(main)


def test_dropped_address_is_closed_and_can_come_back(run_on):
    async def main():
        network = MemoryNetwork()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(network.listen(NS1).serve, serve_echo)
            async with open_pool(connect=network.connect) as pool:
                link = await pool.link(NS1)
                await pool.drop(NS1)
                assert link.closed
                await pool.drop(NS2)
                assert await pool.link(NS1) is not link
            tasks.cancel_scope.cancel()

    run_on(main)


def test_requests_of_peers_reach_the_callback_of_the_pool(run_on):
    async def main():
        network = MemoryNetwork()
        got = []
        answered = anyio.Event()

        async def notify(stream):
            async with open_link(stream, NS1) as link:
                got.append((await link.call(Command(code=309, body=b"m"))).body)
                answered.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(network.listen(NS1).serve, notify)
            async with open_pool(connect=network.connect, on_request=echo) as pool:
                await pool.link(NS1)
                await answered.wait()
            tasks.cancel_scope.cancel()
        assert got == [b"m"]

    run_on(main)


def test_an_error_of_the_block_leaves_as_itself(run_on):
    async def main():
        with pytest.raises(KeyError, match="mine"):
            async with open_pool():
                raise KeyError("mine")

    run_on(main)


def test_connect_over_tcp_never_delays_small_writes(run_on):
    async def main():
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve_echo)
            async with open_pool() as pool:
                address = Address("localhost", port)
                assert (await pool.call(address, ASK)).remark == "106"
            stream = await connect(Address("127.0.0.1", port))
            raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            await stream.aclose()
            tasks.cancel_scope.cancel()

    run_on(main, real_time=True)


def test_refused_connection_names_address_reason_and_next_step(run_on):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

        async def main():
            with pytest.raises(PeerUnavailable) as caught:
                await connect(Address("127.0.0.1", port))
            text = str(caught.value)
            assert text.startswith(f"127.0.0.1:{port}: cannot connect: ")
            assert "refused" in text
            assert "check the address" in text

        run_on(main, real_time=True)


def test_tcp_carries_much_in_both_directions_and_tells_the_end(run_on):
    async def main():
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        body = bytes(range(256)) * 40_000

        async def echo(stream):
            async with stream:
                while True:
                    try:
                        await stream.send(await stream.receive())
                    except anyio.EndOfStream:
                        return

        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            stream = await connect(Address("127.0.0.1", port))

            async def send():
                rest = memoryview(body)
                while rest:
                    taken = stream.send_nowait(rest)
                    rest = rest[taken:]
                    if rest:
                        await stream.send(rest[:100_000])
                        rest = rest[100_000:]
                await stream.send_eof()

            tasks.start_soon(send)
            got = bytearray()
            while len(got) < len(body):
                got += await stream.receive(100_000)
            assert got == body
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
            await stream.aclose()
            assert stream.send_nowait(b"x") == 0
            with pytest.raises(anyio.ClosedResourceError):
                await stream.receive()
            tasks.cancel_scope.cancel()

    run_on(main, real_time=True)


def test_closing_wakes_the_task_that_reads(run_on):
    async def main():
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)

        async def hold(stream):
            async with stream:
                await anyio.sleep_forever()

        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, hold)
            stream = await connect(Address("127.0.0.1", port))

            async def read():
                with pytest.raises(anyio.ClosedResourceError):
                    await stream.receive()

            async with anyio.create_task_group() as reading:
                reading.start_soon(read)
                await anyio.sleep(0.02)
                await stream.aclose()
            tasks.cancel_scope.cancel()

    run_on(main, real_time=True)
