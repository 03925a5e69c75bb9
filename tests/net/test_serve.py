"""Listeners and connections over real sockets of this machine: frames, noise, slow readers, ends of all kinds.

The clients here are plain sockets. Tests that wait for time to pass run on a clock that jumps.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import resource
import socket
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.lowlevel

from trio_mq.errors import AddressInUse, ConfigError
from trio_mq.net import serve as serving
from trio_mq.net.serve import listen, serve
from trio_mq.protocol.frames import FRAME_MAX_BYTES, FrameReader, encode_frame

FRAME = encode_frame(0, b"{header}", b"body")
LIMIT_S = 10


class Echo:
    """A handler that sends every frame back, and notes what it sees."""

    def __init__(self):
        self.peers = []
        self.receives = []
        self.gone = []

    def opened(self, peer):
        self.peers.append(peer)

    def received(self, peer, frames):
        self.receives.append(len(frames))
        for kind, header, body in frames:
            peer.write(encode_frame(kind, header, body))

    def disconnected(self, peer):
        assert peer.closed
        self.gone.append(peer)


@asynccontextmanager
async def server(handler, host="127.0.0.1", **options):
    """A server with one listener; its address."""
    listener = listen(host, 0, purpose="test")
    async with trio.open_nursery() as nursery:
        await nursery.start(
            lambda task_status: serve([listener], handler, task_status=task_status, **options)
        )
        yield listener.address
        nursery.cancel_scope.cancel()


_opened: list[trio.SocketStream] = []


async def connect(address):
    """A client, which the end of its test closes if it does not."""
    stream = await trio.open_tcp_stream(address.ip, address.port)
    _opened.append(stream)
    return stream


@pytest.fixture(autouse=True)
def _close_clients():
    yield
    while _opened:
        _opened.pop().socket._sock.close()  # Trio's own close works inside of Trio only


async def read_frames(stream, count):
    """The next frames that arrive."""
    reader, frames = FrameReader(), []
    while len(frames) < count:
        data = await stream.receive_some()
        assert data, "the connection was closed"
        frames += reader.feed(data)
    return frames


async def read_end(stream):
    """What arrives until the other side closes."""
    data = b""
    try:
        while more := await stream.receive_some():
            data += more
    except trio.BrokenResourceError:
        pass
    return data


async def still_serves(address):
    stream = await connect(address)
    await stream.send_all(FRAME)
    assert await read_frames(stream, 1) == [(0, b"{header}", b"body")]
    await stream.aclose()


# -- frames


async def test_frames_of_one_send_are_one_call_and_one_answer():
    handler = Echo()
    async with server(handler) as address:
        stream = await connect(address)
        await stream.send_all(FRAME * 3)
        assert len(await read_frames(stream, 3)) == 3
        assert sum(handler.receives) == 3
        peer = handler.peers[0]
        assert peer.address.ip == "127.0.0.1"
        assert peer.address.port == stream.socket.getsockname()[1]
        assert peer.local_address == address
        assert peer.packed_address == peer.address.packed


async def test_any_split_of_the_bytes():
    handler = Echo()
    async with server(handler) as address:
        stream = await connect(address)
        stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in FRAME * 2:
            await stream.send_all(bytes([byte]))
            await trio.lowlevel.checkpoint()
        assert len(await read_frames(stream, 2)) == 2


async def test_the_largest_frame_there_and_back():
    async with server(Echo()) as address:
        stream = await connect(address)
        body = random.randbytes(FRAME_MAX_BYTES - 8 - 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, encode_frame(0, b"{}", body))
            assert await read_frames(stream, 1) == [(0, b"{}", body)]


async def test_many_connections():
    handler = Echo()
    async with server(handler) as address:
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(still_serves, address)
        await eventually(lambda: len(handler.gone) == 100)
    assert len(handler.peers) == 100


async def eventually(condition):
    """Wait until something in another task has happened."""
    with trio.fail_after(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - what is looked at has no event
            await trio.sleep(0.005)


# -- noise


@pytest.mark.parametrize(
    ("noise", "logged"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 300, "TLS"),  # C158
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP"),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", "over the limit"),
        (b"\x7f\xff\xff\xff" + b"x" * 10, "over the limit"),
        (b"\xff\xff\xff\xff" + b"x" * 10, "over the limit"),
        (b"\x00\x00\x00\x00", "no room"),
        (b"\x00\x00\x00\x03", "no room"),
        (b"\x00\x00\x00\x10\x00\x00\x00\xff" + b"x" * 12, "does not fit"),
        (b"\x00\x00\x00\x10\x07\x00\x00\x01" + b"x" * 12, "unknown serialize type 7"),
        (b"\x01\x00\x00\x00\x00\x00\x00\x01", "over the limit"),
    ],
)
async def test_bytes_that_are_no_frame_end_that_connection_only(noise, logged, caplog):
    handler = Echo()
    async with server(handler) as address:
        stays = await connect(address)
        stream = await connect(address)
        await stream.send_all(noise)
        with trio.fail_after(LIMIT_S):
            assert await read_end(stream) == b""
        await eventually(lambda: handler.gone)
        assert logged in caplog.text
        assert str(handler.gone[0].address) in caplog.text
        await stays.send_all(FRAME)
        assert len(await read_frames(stays, 1)) == 1
        await still_serves(address)


async def test_frames_before_a_lying_one_are_answered():
    handler = Echo()
    async with server(handler) as address:
        stream = await connect(address)
        await stream.send_all(FRAME * 2 + b"\xff\xff\xff\xff")
        with trio.fail_after(LIMIT_S):
            assert await read_end(stream) == FRAME * 2


async def test_random_bytes(caplog):
    """Every connection ends or waits for more; the others are served."""
    caplog.set_level(logging.ERROR)
    seed = random.Random(5)
    handler = Echo()
    async with server(handler) as address:
        streams = [await connect(address) for _ in range(50)]
        for stream in streams:
            with suppress(trio.BrokenResourceError):
                await stream.send_all(seed.randbytes(seed.randrange(1, 300)))
        await still_serves(address)
        for stream in streams:
            await stream.aclose()
        await eventually(lambda: len(handler.gone) == len(handler.peers))
        await still_serves(address)
    assert caplog.text == ""


async def test_half_a_frame_and_a_client_that_resets():
    handler = Echo()
    async with server(handler) as address:
        half, reset = await connect(address), await connect(address)
        await half.send_all(FRAME[:10])
        await half.aclose()
        await reset.send_all(FRAME[:10])
        reset.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await reset.aclose()
        await eventually(lambda: len(handler.gone) == 2)
        assert handler.receives == []
        await still_serves(address)


# -- faults of handlers


class Faulty(Echo):
    def __init__(self, fault):
        super().__init__()
        self._fault = fault

    def received(self, peer, frames):
        if frames[0][2] == b"fault":
            raise self._fault
        super().received(peer, frames)


@pytest.mark.parametrize("fault", [KeyError("ours"), OSError(errno.EMFILE, "too many files")])
async def test_a_fault_in_a_handler_ends_its_connection_only(caplog, fault):
    handler = Faulty(fault)
    async with server(handler) as address:
        stream = await connect(address)
        await stream.send_all(encode_frame(0, b"{}", b"fault"))
        assert await read_end(stream) == b""
        await eventually(lambda: handler.gone)
        assert "ended by an internal error" in caplog.text
        await still_serves(address)


async def test_a_fault_at_the_end_of_a_connection_still_closes_its_socket(caplog):
    class Handler(Echo):
        def disconnected(self, peer):
            super().disconnected(peer)
            raise KeyError("ours")

    handler = Handler()
    async with server(handler) as address:
        stream = await connect(address)
        await stream.send_eof()
        assert await read_end(stream) == b""
        await eventually(lambda: handler.gone)
        assert handler.gone[0]._sock.fileno() == -1


async def test_a_handler_may_close_its_peer_after_an_answer():
    class Handler(Echo):
        def received(self, peer, frames):
            super().received(peer, frames)
            peer.close()
            peer.close()
            peer.write(b"never sent")

    handler = Handler()
    async with server(handler) as address:
        stream = await connect(address)
        await stream.send_all(FRAME)
        assert await read_end(stream) == FRAME
        await eventually(lambda: len(handler.gone) == 1)


async def test_peers_can_be_written_to_at_any_time():
    handler = Echo()
    async with server(handler) as address:
        stream = await connect(address)
        await eventually(lambda: handler.peers)
        peer = handler.peers[0]
        peer.write(FRAME)
        peer.write(b"")
        peer.write(FRAME)
        assert len(await read_frames(stream, 2)) == 2
        await stream.aclose()
        await eventually(lambda: peer.closed)
        peer.write(FRAME)  # nothing happens
        assert peer.stalled


# -- slow readers


class Answers(Echo):
    """Answers each frame with as many bytes as its body says, and stops when its peer has stalled."""

    def __init__(self):
        super().__init__()
        self.handled = 0

    def received(self, peer, frames):
        self.receives.append(len(frames))
        for number, (_, _, body) in enumerate(frames, 1):
            peer.write(encode_frame(0, b"{}", b"x" * int(body)))
            self.handled += 1
            if peer.stalled:
                return number if number < len(frames) else None
        return None


def ask(size, count=1):
    return encode_frame(0, b"{}", b"%d" % size) * count


async def test_a_peer_that_does_not_read_is_not_read_from():
    handler = Answers()
    async with server(handler) as address:
        stream = await connect(address)
        await stream.send_all(ask(1_000_000, 60))
        await eventually(lambda: handler.peers and handler.peers[0].stalled)
        await trio.sleep(0.05)
        handled = handler.handled
        assert 4 <= handled < 40, "about what the limit and the sockets hold"
        assert handler.peers[0]._backlog_bytes <= serving.BACKLOG_LIMIT_BYTES + 1_100_000
        await still_serves_numbers(address)
        frames = await read_frames(stream, 60)
        assert [len(body) for _, _, body in frames] == [1_000_000] * 60
        assert handler.handled == 61
        await stream.send_all(ask(10))
        assert len(await read_frames(stream, 1)) == 1
        assert not handler.peers[0].stalled
        assert handler.peers[0]._backlog_bytes == 0


async def still_serves_numbers(address):
    stream = await connect(address)
    await stream.send_all(ask(5))
    assert await read_frames(stream, 1) == [(0, b"{}", b"xxxxx")]
    await stream.aclose()


async def test_answers_stay_whole_and_in_order_however_they_leave():
    handler = Answers()
    async with server(handler) as address:
        stream = await connect(address)
        sizes = [random.Random(3).choice([0, 10, 1_000, 300_000]) for _ in range(200)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, b"".join(ask(size) for size in sizes))
            frames = await read_frames(stream, len(sizes))
        assert [len(body) for _, _, body in frames] == sizes


async def test_a_peer_that_never_reads_is_cut_off(monkeypatch, caplog):
    """News that nobody asked for pile up only so far."""
    monkeypatch.setattr(serving, "BACKLOG_MAX_BYTES", 20_000_000)
    handler = Echo()
    async with server(handler) as address:
        stream = await connect(address)
        await eventually(lambda: handler.peers)
        peer = handler.peers[0]
        for _ in range(60):
            peer.write(encode_frame(0, b"{}", b"x" * 1_000_000))
        assert peer.closed
        assert "does not take its replies" in caplog.text
        await eventually(lambda: handler.gone)
        await still_serves(address)
        await stream.aclose()


async def test_a_peer_that_goes_with_answers_waiting():
    handler = Answers()
    async with server(handler) as address:
        for _ in range(3):
            stream = await connect(address)
            await stream.send_all(ask(1_000_000, 30))
            await eventually(lambda: handler.peers[-1].stalled)
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await stream.aclose()
        await eventually(lambda: len(handler.gone) == 3)
        await still_serves_numbers(address)


# -- time


async def test_idle_connections_are_closed_and_busy_ones_not(autojump_clock):
    handler = Echo()
    async with server(handler) as address:
        idle, half, busy = [await connect(address) for _ in range(3)]
        await half.send_all(FRAME[:5])
        began = trio.current_time()
        for _ in range(13):
            await trio.sleep(10)
            await busy.send_all(FRAME)
            await read_frames(busy, 1)
        assert trio.current_time() - began >= 120
        assert await read_end(idle) == b""
        assert await read_end(half) == b""
        assert len(handler.gone) == 2
        assert handler.peers[2].closed is False


async def test_the_idle_limit_counts_writes_too(autojump_clock):
    handler = Echo()
    async with server(handler, idle_limit_s=12) as address:
        stream = await connect(address)
        await trio.sleep(0.1)
        for _ in range(5):
            await trio.sleep(10)
            handler.peers[0].write(FRAME)
        assert len(await read_frames(stream, 5)) == 5
        began = trio.current_time()
        assert await read_end(stream) == b""
        assert 11 <= trio.current_time() - began <= 14


# -- stopping


async def test_a_stop_closes_listeners_and_connections_and_tells_nobody_of_each():
    handler = Echo()
    async with server(handler) as address:
        streams = [await connect(address) for _ in range(20)]
        await eventually(lambda: len(handler.peers) == 20)
    assert handler.gone == []
    assert all(peer.closed for peer in handler.peers)
    for stream in streams:
        assert await read_end(stream) == b""
    with pytest.raises(OSError):
        await connect(address)
    # the port is free again
    listen("127.0.0.1", address.port, purpose="test").sock.close()


async def test_a_stop_with_answers_waiting_does_not_wait_for_them():
    handler = Answers()
    async with server(handler) as address:
        stream = await connect(address)
        await stream.send_all(ask(1_000_000, 30))
        await eventually(lambda: handler.peers and handler.peers[0].stalled)
    await stream.aclose()


# -- listening


def test_a_port_in_use_is_told_with_the_option():
    first = listen("127.0.0.1", 0, purpose="broker (--listen)")
    with first.sock, pytest.raises(AddressInUse) as caught:
        listen("127.0.0.1", first.address.port, purpose="broker (--listen)")
    text = str(caught.value)
    assert caught.value.exit_code == 31
    for part in ("--listen", f"127.0.0.1:{first.address.port}", "another port"):
        assert part in text


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("203.0.113.7", "cannot listen on 203.0.113.7:0"),
        ("no such host", "cannot resolve"),
        ("a" * 300, "cannot resolve"),
    ],
)
def test_an_address_that_is_not_ours(host, said):
    with pytest.raises(ConfigError, match=said) as caught:
        listen(host, 0, purpose="broker (--listen)")
    assert "--listen" in str(caught.value)


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@needs_ipv6
async def test_ipv6(caplog):
    handler = Echo()
    async with server(handler, "::1") as address:
        assert str(address) == f"[::1]:{address.port}"
        await still_serves(address)
        assert handler.peers[0].address.ip == "::1"
        assert len(handler.peers[0].packed_address) == 20
        with pytest.raises(AddressInUse, match=rf"\[::1\]:{address.port}"):
            listen("::1", address.port, purpose="test")


@needs_ipv6
async def test_all_addresses_of_both_kinds():
    """An IPv4 client of a listener for both kinds is an IPv4 client."""
    handler = Echo()
    async with server(handler, "::") as address:
        for ip in ("127.0.0.1", "::1"):
            stream = await trio.open_tcp_stream(ip, address.port)
            await stream.send_all(FRAME)
            await read_frames(stream, 1)
            assert handler.peers[-1].address.ip == ip
            await stream.aclose()


def test_a_name_is_listened_on_at_its_ipv4_address():
    listener = listen("localhost", 0, purpose="test")
    with listener.sock:
        assert listener.address.ip == "127.0.0.1"


async def test_several_listeners_with_one_handler():
    handler = Echo()
    listeners = [listen("127.0.0.1", 0, purpose="test") for _ in range(2)]
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, listeners, handler)
        for listener in listeners:
            await still_serves(listener.address)
        nursery.cancel_scope.cancel()


# -- accepting


async def test_out_of_descriptors_is_waited_out(caplog):
    """EMFILE: those that are connected go on, the others are accepted when there is room."""
    handler = Echo()
    async with server(handler) as address:
        first = await connect(address)
        await first.send_all(FRAME)
        await read_frames(first, 1)
        waiting = [socket.create_connection((address.ip, address.port)) for _ in range(2)]
        await eventually(lambda: len(handler.peers) == 3)
        more = socket.socket()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        spare = []
        try:
            while True:
                try:
                    spare.append(os.dup(0))
                except OSError:
                    break
            more.connect((address.ip, address.port))
            await eventually(lambda: "cannot accept" in caplog.text)
            await trio.sleep(0.25)
            await first.send_all(FRAME)
            assert len(await read_frames(first, 1)) == 1
            assert caplog.text.count("cannot accept") == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in spare:
                os.close(fd)
        await eventually(lambda: len(handler.peers) == 4)
        assert "accepted again" in caplog.text
        for sock in (*waiting, more):
            sock.close()


async def test_a_client_that_left_before_it_was_accepted(monkeypatch, autojump_clock, caplog):
    """ECONNABORTED is that client's affair: no pause, no line in the log."""
    handler = Echo()
    failures = [errno.ECONNABORTED, errno.EPROTO]

    class Listener(socket.socket):
        def accept(self):
            if failures:
                raise OSError(failures.pop(0), "gone")
            return super().accept()

    bound = listen("127.0.0.1", 0, purpose="test")
    sock = Listener(fileno=bound.sock.detach())
    sock.setblocking(False)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, [serving.Listener(sock, bound.address)], handler)
        await still_serves(bound.address)
        assert (failures, caplog.text) == ([], "")
        assert trio.current_time() < 0.05
        nursery.cancel_scope.cancel()
