"""Two real brokers whose packets are dropped: nobody is told, both notice, and it heals without an operator.

With Apache's brokers: ``tests/interop/ha/test_packets.py``.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import pytest

from tests.ha.netns.sender import Sender
from tests.ha.netns.world import World, needs_namespaces
from tests.system.client import Client
from tests.system.processes import Serving, Starter, pause, wait_for
from trio_mq.protocol.codes import RequestCode, ResponseCode

TOPIC = "T"
MASTER, SLAVE, CLIENT = "master", "slave", "client"
PORT, HA_PORT, NAMES_PORT = 10911, 10912, 9876
SEGMENT_BYTES = 65536
#: haHousekeepingInterval of most tests, s; and how much later than that a silent end may be noticed.
SILENCE_S, LATE_S = 2.0, 2.0
#: A slave waits for five seconds before it connects again; TCP sends again what was dropped after pauses that double.
HEALED_S = 15.0

pytestmark = [pytest.mark.slow, needs_namespaces()]


@attrs.define(eq=False)
class Pair:
    """A master with the name server in its process, and a slave, each on a host of its own."""

    world: World
    serve: Starter
    settings: tuple[str, ...]
    master: Serving = attrs.field(init=False)
    slave: Serving = attrs.field(init=False)
    sender: Sender = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.sender = Sender(TOPIC, self.client)

    def start_master(self) -> None:
        """Start the master, on the store that it has."""
        with self.world.inside(MASTER) as host:
            self.master = self.serve(
                *("--listen", f"{host}:{PORT}", "--nameserver-listen", f"{host}:{NAMES_PORT}"),
                *("--set", "brokerRole=SYNC_MASTER", "--set", "inSyncReplicas=2", *self.settings),
                store=self.serve.home / MASTER,
            )

    def start_slave(self) -> None:
        """Start the slave, on the store that it has."""
        with self.world.inside(SLAVE) as host:
            names = f"{self.world.address[MASTER]}:{NAMES_PORT}"
            self.slave = self.serve(
                *("--listen", f"{host}:{PORT}", "--no-nameserver", "--nameserver", names),
                *("--set", "brokerRole=SLAVE", "--set", "brokerId=1", "--set", "slaveReadEnable=true"),
                *self.settings,
                store=self.serve.home / SLAVE,
            )  # fmt: skip

    @contextmanager
    def client(self, host: str = MASTER, timeout_s: float = 20.0) -> Iterator[Client]:
        """A connection of the client's host."""
        with self.world.inside(CLIENT):
            made = Client(f"{self.world.address[host]}:{PORT}", timeout_s)
        with made:
            yield made

    def status(self, host: str) -> dict:
        """What a broker tells of its replication."""
        with self.client(host) as client:
            answer = client.call(RequestCode.GET_BROKER_HA_STATUS)
        assert answer.code == ResponseCode.SUCCESS, answer
        return json.loads(answer.body)

    def links(self) -> int:
        """How many slaves are connected, as the master sees it."""
        return len(self.status(MASTER)["haConnectionInfo"])

    def is_following(self) -> bool:
        """Whether the slave's link is up, as the slave sees it."""
        return bool(self.status(SLAVE)["haClientRuntimeInfo"]["activated"])

    def agrees(self) -> bool:
        """Whether both have all of the log, and know it."""
        told = self.status(MASTER)
        end = told["masterCommitLogMaxOffset"]
        has = self.status(SLAVE)["haClientRuntimeInfo"]
        acks = [slave["slaveAckOffset"] for slave in told["haConnectionInfo"]]
        return bool(has["activated"]) and has["maxOffset"] == end and end in acks

    def check_same(self) -> None:
        """Stop both; their logs are the same byte for byte, with all that was acknowledged, and nothing twice."""
        wait_for(self.agrees, "both have the same log", limit_s=HEALED_S, every_s=0.2)
        end = self.status(MASTER)["masterCommitLogMaxOffset"]
        with self.client(SLAVE) as client:
            found = [message.body for message in client.all_of(TOPIC)]
        self.sender.check(found)
        assert self.slave.stop().code == 0
        assert self.master.stop().code == 0
        assert self._log(SLAVE, end) == self._log(MASTER, end)

    def _log(self, host: str, end: int) -> bytes:
        files = sorted((self.serve.home / host / "commitlog").iterdir())
        return b"".join(file.read_bytes() for file in files)[:end]


def settings(silence_s: float = SILENCE_S) -> tuple[str, ...]:
    """Options that both brokers have."""
    values = {
        "brokerName": "pair",
        "mappedFileSizeCommitLog": SEGMENT_BYTES,
        "mappedFileSizeConsumeQueue": 20000,
        "maxHashSlotNum": 100,
        "maxIndexNum": 1000,
        "slaveTimeout": 1000,
        "haHousekeepingInterval": int(silence_s * 1000),
        "haSendHeartbeatInterval": int(silence_s * 250),
    }
    return tuple(itertools.chain(*(("--set", f"{key}={value}") for key, value in values.items())))


@pytest.fixture
def world():
    with World(MASTER, SLAVE, CLIENT) as made:
        yield made


@pytest.fixture
def serve(tmp_path, world):
    starter = Starter(tmp_path)
    try:
        yield starter
    finally:
        starter.close()


def started(world, serve, silence_s=SILENCE_S):
    pair = Pair(world, serve, settings(silence_s))
    pair.start_master()
    with pair.client() as client:
        client.create(TOPIC)
    pair.start_slave()
    wait_for(pair.agrees, "the slave follows", limit_s=20, every_s=0.1)
    with pair.client(SLAVE) as client:
        wait_for(
            lambda: client.pull(TOPIC).code != ResponseCode.TOPIC_NOT_EXIST,
            "it knows the topic",
            limit_s=30,
            every_s=0.2,
        )
    with pair.client() as client:
        for number in range(50):
            assert pair.sender.send(client, b"before %d" % number) == ResponseCode.SUCCESS
    return pair


def closed_within(pair, silence_s):
    """Both sides close the link: how long that takes, s."""
    began_s = time.monotonic()
    wait_for(lambda: not pair.links(), "the master closes", limit_s=silence_s + LATE_S, every_s=0.1)
    left_s = began_s + silence_s + LATE_S - time.monotonic()
    wait_for(lambda: not pair.is_following(), "the slave closes", limit_s=left_s, every_s=0.1)
    return time.monotonic() - began_s


def test_a_partition_is_noticed_by_both_and_heals(world, serve):
    pair = started(world, serve)
    with world.partition(MASTER, SLAVE):
        with pair.client() as client:
            assert pair.sender.send(client, b"alone") == ResponseCode.FLUSH_SLAVE_TIMEOUT
        took_s = closed_within(pair, SILENCE_S)
        assert took_s > SILENCE_S / 4, "nobody was told"
        with pair.client() as client:
            assert pair.sender.send(client, b"still alone") == ResponseCode.FLUSH_SLAVE_TIMEOUT
        with pair.client(SLAVE) as client:
            assert client.pull(TOPIC).code == ResponseCode.SUCCESS, "it still serves what it has"
    wait_for(pair.agrees, "it heals", limit_s=HEALED_S, every_s=0.1)
    with pair.client() as client:
        assert pair.sender.send(client, b"together") == ResponseCode.SUCCESS
    pair.check_same()


@pytest.mark.parametrize(
    ("sender", "receiver"), [(MASTER, SLAVE), (SLAVE, MASTER)], ids=["deaf slave", "deaf master"]
)
def test_one_who_hears_nothing_closes_and_the_other_notices(world, serve, sender, receiver):
    pair = started(world, serve)
    with world.partition(sender, receiver, both=False):
        with pair.client() as client:
            assert pair.sender.send(client, b"alone") == ResponseCode.FLUSH_SLAVE_TIMEOUT
        # The one that still hears is told by nobody either: its own bytes are not acknowledged, or it gets no reports.
        closed_within(pair, 2 * SILENCE_S)
    wait_for(pair.agrees, "it heals", limit_s=HEALED_S, every_s=0.1)
    with pair.client() as client:
        assert pair.sender.send(client, b"together") == ResponseCode.SUCCESS
    pair.check_same()


def test_short_partitions_under_load_lose_nothing_and_repeat_nothing(world, serve):
    pair = started(world, serve)
    with pair.sender.load():
        for number in range(8):
            sender, receiver = (MASTER, SLAVE) if number % 2 else (SLAVE, MASTER)
            with world.partition(sender, receiver, both=number % 3 != 0):
                pause(0.3 + 0.4 * number)
            pause(0.7)
        wait_for(lambda: pair.links() == 1 and pair.is_following(), "it heals", limit_s=HEALED_S)
    pair.check_same()
    assert set(pair.sender.codes) <= {ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT}
    assert pair.sender.codes.count(ResponseCode.SUCCESS) > 50


@pytest.mark.parametrize("host", [MASTER, SLAVE])
def test_one_that_dies_behind_a_partition_comes_back(world, serve, host):
    pair = started(world, serve)
    with world.partition(MASTER, SLAVE):
        with pair.client() as client:
            assert pair.sender.send(client, b"alone") == ResponseCode.FLUSH_SLAVE_TIMEOUT
        if host == MASTER:
            pair.master.kill()
            pair.start_master()
        else:
            pair.slave.kill()
            wait_for(lambda: not pair.links(), "the master closes", limit_s=SILENCE_S + LATE_S)
    if host == SLAVE:
        pair.start_slave()
    wait_for(pair.agrees, "it heals", limit_s=30, every_s=0.1)
    with pair.client() as client:
        assert pair.sender.send(client, b"together") == ResponseCode.SUCCESS
    pair.check_same()


def test_with_the_usual_settings_both_close_after_twenty_seconds(world, serve):
    pair = started(world, serve, 20.0)
    with world.partition(MASTER, SLAVE):
        took_s = closed_within(pair, 20.0)
    assert took_s > 10
    wait_for(pair.agrees, "it heals", limit_s=HEALED_S, every_s=0.1)
    pair.check_same()
