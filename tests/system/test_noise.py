"""Random bytes at every port, and more connections than there may be: others are served, and all afterwards."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from contextlib import ExitStack

import pytest

from tests.ports import free_port
from tests.system.client import Client, Gone, pull_header, send_header
from tests.system.processes import SMALL_FILES, Serving, Starter, wait_for
from trio_mq.protocol import command, headers
from trio_mq.protocol.codes import RequestCode, ResponseCode, SerializeType
from trio_mq.protocol.command import Command

pytestmark = pytest.mark.slow

SECONDS = 3.0
SEED = int(os.environ.get("NOISE_SEED", "20261129"))
CODES = [*(int(code) for code in RequestCode), 0, -1, 99_999]
TEXTS = [
    "0",
    "-1",
    "7",
    str(1 << 31),
    str(-(1 << 63)),
    str(1 << 64),
    "x",
    "",
    "true",
    "1e9",
    "\x01\x02",
    "9" * 300,
]
TOPICS = ["Noise", "", "%RETRY%x", "a b", "\u2603", "x" * 300, "TBW102", "../up"]
BODIES = [b"", b"x", b"{" * 3000, b'{"a":' * 200, b"[]", b"null", b'{"clientID":1}']
MB = 1_000_000


def noise(chance: random.Random) -> bytes:
    """One attack: plain noise, a frame around noise, a request that parses, or one with a few bits flipped."""
    kind = chance.randrange(6)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 3000))
    if kind == 1:
        inner = chance.randbytes(chance.randrange(150))
        word = chance.randrange(4) << 24 | chance.choice([len(inner), len(inner) // 2, 1 << 20])
        return struct.pack(">II", 4 + len(inner), word) + inner
    if kind == 2:
        return struct.pack(">I", chance.randrange(1 << 32)) + chance.randbytes(40)
    data = bytearray(command.encode(request(chance)))
    if kind == 3:
        for _ in range(chance.randrange(1, 5)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == 4:
        del data[chance.randrange(len(data)) :]
    return bytes(data)


def request(chance: random.Random) -> Command:
    """A request that parses, whose values may make no sense."""
    topic = chance.choice(TOPICS)
    if chance.random() < 0.5:
        header: object = send_header(topic, chance.randrange(-2, 9), chance.choice(TEXTS))
    else:
        header = pull_header(topic, chance.randrange(-2, 9), chance.randrange(-9, 1 << 40))
    ext = headers.encode(header)
    for name in chance.sample(sorted(ext), chance.randrange(4)):
        ext[name] = chance.choice(TEXTS)
    code = chance.choice(CODES)
    return Command(
        code,
        ext,
        chance.choice([*BODIES, chance.randbytes(50)]),
        flag=chance.choice([0, 0, 0, 1, 2, 3]),
        serialize=SerializeType(int(code < 1 << 15 and chance.random() < 0.5)),
    )


def attack(address: str, chance: random.Random) -> None:
    """One connection: some noise, a look at what comes back, and away."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5) as victim:
            for _ in range(chance.randrange(1, 6)):
                victim.sendall(noise(chance))
            victim.settimeout(0.005)
            victim.recv(1 << 16)
    except (ConnectionError, TimeoutError):
        pass


def test_noise_at_every_port_harms_nobody(serve: Starter) -> None:
    """Three seconds; a client that behaves is served all the time and loses nothing."""
    broker, names = free_port(), free_port()
    running: Serving = serve(
        "--listen", f"127.0.0.1:{broker}", "--nameserver-listen", f"127.0.0.1:{names}",
        "--set", "mappedFileSizeCommitLog=4194304",
    )  # fmt: skip
    ports = [running.broker, f"127.0.0.1:{broker - 2}", running.nameserver]
    chance = random.Random(SEED)
    attacks = sent = 0
    with running.client() as client, Client(running.nameserver) as asking:
        client.create("Good")
        end_s = time.monotonic() + SECONDS
        while time.monotonic() < end_s:
            attack(ports[attacks % 3], chance)
            attacks += 1
            if attacks % 10 == 0:
                assert client.sent("Good", b"%d" % sent) == sent
                assert asking.route("Good").broker_datas
                sent += 1
        assert attacks > 30, "the machine is far too busy for this test"
        assert [m.body for m in client.all_of("Good")] == [b"%d" % n for n in range(sent)]
    for port in ports:
        with Client(port) as client:
            assert client.call(99_999).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert running.child.anonymous_bytes() < 120 * MB
    assert "Traceback" not in running.log
    ended = running.stop()
    assert ended.code == 0
    assert "Traceback" not in ended.err
    again = serve("--set", "mappedFileSizeCommitLog=4194304")
    assert again.recovery["clean"]
    with again.client() as client:
        assert client.max_offset("Good") == sent


def test_more_connections_than_descriptors_leave_some_for_the_store(serve: Starter) -> None:
    """New queues get their files, what is connected goes on, and there is one line about it."""
    running = serve(*SMALL_FILES, most_files=80)
    address = running.broker.partition(":")[0], int(running.broker.partition(":")[2])
    with ExitStack() as stack:
        client = stack.enter_context(running.client())
        client.create("T")
        for _ in range(100):
            stack.enter_context(socket.create_connection(address, timeout=5))
        wait_for(lambda: "cannot accept connections" in running.log, "some are too many")
        for number in range(30):
            assert client.sent(f"New{number}", bytes(5000)) == 0
        assert client.sent("T", b"one") == 0

    def one_more() -> bool:
        try:
            with running.client() as client:
                return client.sent("T", b"two") == 1
        except (Gone, OSError):
            return False

    wait_for(one_more, "connections are accepted again")
    assert running.log.count("cannot accept connections") == 1
    assert "cannot write" not in running.log
    assert running.stop().code == 0
