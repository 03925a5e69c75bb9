"""Random bytes at every port for ten seconds, beside clients that work: nothing is lost and the broker still serves.

The seed is printed with a failure; ``TRIO_MQ_FUZZ_SEED`` repeats one, ``TRIO_MQ_FUZZ_SECONDS`` changes the time.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import time

from .conftest import Workshop
from .java_client import Java, texts
from .raw import RawClient, frame, heartbeat, json_frame, pull_fields, short
from .scenes import exactly, push

SECONDS = float(os.environ.get("TRIO_MQ_FUZZ_SECONDS") or 10)
SEED = int(os.environ.get("TRIO_MQ_FUZZ_SEED") or time.time_ns() % 1_000_000)
# Requests that would change what the test looks at (topics, groups, settings, permissions) stay out.
CODES = (
    10,
    11,
    12,
    14,
    15,
    29,
    30,
    31,
    32,
    33,
    34,
    35,
    36,
    38,
    41,
    42,
    46,
    104,
    105,
    106,
    310,
    320,
    322,
    361,
    9999,
)
FIELDS = (
    "topic", "queueId", "consumerGroup", "producerGroup", "offset", "queueOffset", "maxMsgNums", "sysFlag",
    "commitOffset", "suspendTimeoutMillis", "subscription", "expressionType", "properties", "clientID", "key",
    "maxNum", "beginTimestamp", "endTimestamp", "brokerName", "timestamp", "a", "b", "e", "i", "m",
)  # fmt: skip


def noise(chance: random.Random) -> bytes:
    """One attack."""
    kind = chance.randrange(6)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 4000))
    if kind == 1:
        body = chance.randbytes(chance.randrange(0, 200))
        return frame(chance.randbytes(chance.randrange(0, 200)), body, chance.randrange(0, 4))
    if kind == 2:
        return struct.pack(">I", chance.randrange(1 << 32)) + chance.randbytes(64)
    whole = bytearray(request(chance))
    if kind == 3:
        for _ in range(chance.randrange(1, 6)):
            whole[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
    elif kind == 4:
        del whole[chance.randrange(len(whole)) :]
    return bytes(whole)


def request(chance: random.Random) -> bytes:
    """A request that parses, with values that may make no sense."""
    topic = chance.choice(["FuzzTopic", "", "%RETRY%x", "a b", "\u2603", "x" * 300, "TBW102"])
    if chance.random() < 0.3:
        fields = pull_fields(
            "FuzzGroup", topic, chance.randrange(-3, 12), chance.randrange(-5, 1 << 40)
        )
        fields[chance.choice(FIELDS)] = value(chance)
    else:
        fields = {
            name: value(chance) for name in chance.sample(FIELDS, chance.randrange(len(FIELDS)))
        }
        fields["topic"] = topic
    if chance.random() < 0.2:
        fields = {
            **fields,
            **short({"topic": topic, "queueId": value(chance), "properties": value(chance)}),
        }
    body = chance.choice(
        [
            b"",
            b"x",
            chance.randbytes(50),
            heartbeat("fuzz", "FuzzGroup", topic),
            b"{" * 5000,
            b'{"a":' * 300,
        ]
    )
    return json_frame(chance.choice(CODES), fields, body, flag=chance.choice([0, 0, 0, 2]))


def value(chance: random.Random) -> str:
    """A number out of range, or text that is none."""
    return chance.choice(
        [
            "0",
            "-1",
            "1",
            "7",
            str(1 << 31),
            str(-(1 << 63)),
            str(1 << 64),
            "x",
            "",
            "true",
            "1e9",
            "\x01\x02",
            "0" * 500,
        ]
    )


def attack(address: tuple[str, int], chance: random.Random) -> None:
    """One connection: some noise, some reading, and away."""
    try:
        with socket.create_connection(address, timeout=5) as s:
            s.settimeout(0.02)
            for _ in range(chance.randrange(1, 8)):
                s.sendall(noise(chance))
                if chance.random() < 0.5:
                    try:
                        s.recv(1 << 16)
                    except TimeoutError:
                        continue
    except (ConnectionError, TimeoutError):
        pass


def test_random_bytes_at_every_port(workshop: Workshop, java: Java) -> None:
    server = workshop.alone()
    server.start()
    cluster = workshop.cluster(server)
    topic = cluster.topic()
    consumer = push(java, cluster, (topic, "*"))
    working = java.producer(cluster.ns).background(topic, prefix="m", gapMs=20)
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    nameserver_port = int(cluster.ns.rsplit(":", 1)[1])
    ports = [server.port, server.port - 2, nameserver_port]
    end, attacks = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        attack(("127.0.0.1", ports[attacks % len(ports)]), chance)
        attacks += 1
    assert attacks > 10 * SECONDS
    acked, unknown = working.stop()
    assert server.process is not None
    assert server.process.alive()
    assert not unknown, "a client that behaves notices nothing"
    consumer.wait(len(acked))
    late = push(java, cluster, (other := cluster.topic(), "*"))
    java.producer(cluster.ns).send_ok(texts(other, 20))
    exactly(late, 20)
    for port in ports:
        with RawClient(f"127.0.0.1:{port}") as client:
            assert client.call(99_999).code == 3
    if workshop.kind == "trio":
        log = server.process.log.read_text(errors="replace")
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
