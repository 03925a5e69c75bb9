"""kill -9 of a master, again and again under load, while each send waits for the slave: what was acknowledged is there.

Five rounds, which is enough for a change that breaks it; ``KILL_ROUNDS=50`` in the environment makes more of them, at
seven seconds each: the slave waits for five before it connects again.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import attrs
import pytest

from tests.ports import free_port
from tests.system.client import Client, Gone, send_header
from tests.system.processes import Serving, Starter, wait_for
from trio_mq.protocol import command, headers
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("KILL_ROUNDS", "5"))
TOPIC, QUEUES = "T", 4
WINDOW = 64
SEGMENT_BYTES = 1 << 20
FILES = (
    "--set", f"mappedFileSizeCommitLog={SEGMENT_BYTES}", "--set", "mappedFileSizeConsumeQueue=20000",
    "--set", "maxHashSlotNum=1000", "--set", "maxIndexNum=10000",
)  # fmt: skip


def body_of(number: int) -> bytes:
    """The message with a number; lengths differ."""
    return b"%d:" % number + b"x" * (number % 700)


@attrs.define
class Pair:
    """A slave that stays, with the name server in its process, and a master that is started anew each round."""

    serve: Starter
    flush: str
    port: int
    slave: Serving
    #: Queue offset of each message that was acknowledged, and of those that the slave has, by number.
    acked: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    found: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    #: Where to read on at the slave, by queue.
    read_to: Counter[int] = attrs.field(factory=Counter)

    def start_master(self) -> Serving:
        """Start it, and wait until the slave has all that it has."""
        master = self.serve(
            *("--broker-name", "pair", "--flush", self.flush, "--no-nameserver"),
            *("--listen", f"127.0.0.1:{self.port}", "--nameserver", self.slave.nameserver),
            *("--set", "brokerRole=SYNC_MASTER", "--set", "inSyncReplicas=2", *FILES),
            store=self.serve.home / "master",
        )
        with master.client() as client:
            wait_for(lambda: is_in_sync(client), "the slave is in sync")
        return master

    def load_and_kill(self, first: int, enough: int) -> None:
        """Send messages numbered from `first` on, and kill the master after so many acknowledgements."""
        master = self.start_master()
        acked = 0
        with master.client() as client:
            try:
                for answer in client.pipeline(frames(first), WINDOW):
                    if answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT:
                        continue  # a machine with much else to do: stored, and nothing is promised about it
                    assert answer.code == ResponseCode.SUCCESS, answer
                    queue = int(answer.ext["queueId"])
                    self.acked[answer.opaque] = queue, int(answer.ext["queueOffset"])
                    acked += 1
                    if acked == enough:
                        master.kill()
            except Gone:
                pass
        assert acked >= enough

    def check_slave(self) -> None:
        """All that was acknowledged is there, where the answer said, and everything once."""

        def has_all() -> bool:
            with self.slave.client() as client:
                for queue in range(QUEUES):
                    for message in client.all_of(TOPIC, queue, self.read_to[queue]):
                        assert message.queue_offset == self.read_to[queue]
                        self.read_to[queue] += 1
                        number = int(message.body.partition(b":")[0])
                        assert message.body == body_of(number)
                        assert number not in self.found, "it is there twice"
                        self.found[number] = queue, message.queue_offset
            return self.acked.keys() <= self.found.keys()

        wait_for(has_all, "all that was acknowledged is at the slave", limit_s=5)
        assert {number: self.found[number] for number in self.acked} == self.acked


def frames(number):
    """Sends without end."""
    while True:
        ext = headers.encode(send_header(TOPIC, number % QUEUES, f"KEYS\x01k{number}\x02"))
        request = Command(RequestCode.SEND_MESSAGE_V2, ext, body_of(number), opaque=number)
        yield command.encode(request)
        number += 1


def status(client: Client) -> dict:
    """What a broker tells of its replication."""
    answer = client.call(RequestCode.GET_BROKER_HA_STATUS)
    assert answer.code == ResponseCode.SUCCESS, answer
    return json.loads(answer.body)


def is_in_sync(client: Client) -> bool:
    """Whether a slave has all that the master has."""
    told = status(client)
    end = told["masterCommitLogMaxOffset"]
    return any(slave["slaveAckOffset"] == end for slave in told["haConnectionInfo"])


def log_bytes(store: Path, end: int) -> bytes:
    """A log from its start."""
    files = sorted((store / "commitlog").iterdir())
    assert [int(file.name) for file in files] == list(
        range(0, len(files) * SEGMENT_BYTES, SEGMENT_BYTES)
    )
    return b"".join(file.read_bytes() for file in files)[:end]


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_master_is_killed_again_and_again_and_the_slave_has_all_that_was_acknowledged(
    serve: Starter, flush: str
) -> None:
    port = free_port()
    slave = serve(
        *("--broker-name", "pair", "--flush", flush, "--set", "brokerRole=SLAVE"),
        *("--set", "brokerId=1", "--set", "slaveReadEnable=true", *FILES),
        store=serve.home / "slave",
    )
    pair = Pair(serve, flush, port, slave)
    master = pair.start_master()
    with master.client() as client:
        client.create(TOPIC, QUEUES)
    with slave.client() as client:
        wait_for(
            lambda: client.pull(TOPIC).code != ResponseCode.TOPIC_NOT_EXIST, "it knows the topic"
        )
    master.kill()
    rng = random.Random(flush)
    for number in range(ROUNDS if flush == "async" else min(ROUNDS, 5)):
        pair.load_and_kill(number * 1_000_000, rng.randrange(1, 3000))
        pair.check_slave()
    with slave.client() as client:
        end = status(client)["haClientRuntimeInfo"]["maxOffset"]
    assert slave.stop().code == 0
    assert log_bytes(serve.home / "slave", end) == log_bytes(serve.home / "master", end)
