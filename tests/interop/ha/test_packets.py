"""Packets between a broker of each kind are dropped: each is on a host of its own, and nobody is told.

Between two of ours: ``tests/ha/netns``. The proxy of the other tests here tells both ends when it cuts; a router does
not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ha.netns.sender import Sender
from tests.ha.netns.world import World, needs_namespaces
from tests.interop import servers
from tests.interop.polling import wait_for
from tests.system.client import Client
from tests.system.processes import Starter

from .conftest import MIXED, PAIRS
from .pairs import BACKOFF_S, HOUSEKEEPING_S, MASTER, SETTINGS, SLAVE, Pair, kinds_of, set_role

pytestmark = needs_namespaces()
TOPIC, PORT, NAMES_PORT = "Packets", 10911, 9876


@pytest.fixture
def world() -> Iterator[World]:
    """The test itself is on the host of the clients, and so is the name server: it hears both brokers all the time."""
    with World("master", "slave", "client") as made, made.inside("client"):
        yield made


@pytest.fixture
def nameserver(world: World, tmp_path: Path) -> Iterator[str]:
    """Where it listens."""
    starter, host = Starter(tmp_path), world.address["client"]
    listen = ("--listen", f"{host}:{PORT}", "--nameserver-listen", f"{host}:{NAMES_PORT}")
    try:
        yield starter("--broker-name", "names", *listen).nameserver
    finally:
        starter.close()


def pair_of(kinds: str, world: World, nameserver: str, home: Path) -> Pair:
    """A pair on two hosts; not started."""
    made = []
    for host, kind, role in zip(("master", "slave"), kinds_of(kinds), (MASTER, SLAVE), strict=True):
        address = world.address[host]
        broker = servers.joining(
            kind, home / host, "pair", nameserver, host=address, port=PORT,
            settings={**SETTINGS, "brokerIP2": address},
        )  # fmt: skip
        set_role(broker, role)
        made.append(broker)
    return Pair("pair", [nameserver], *made)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One of each kind; two of Apache's when that is what is tested."""
    apache = metafunc.config.getoption("--broker") == "apache"
    metafunc.parametrize("kinds", PAIRS["apache"] if apache else MIXED)


def test_partitions_heal(kinds: str, world: World, nameserver: str, tmp_path: Path) -> None:
    """Both ways, then one way each; under load. The master gives the slave up, and both agree in the end."""
    pair = pair_of(kinds, world, nameserver, tmp_path)
    sender = Sender(TOPIC, lambda: Client(pair.master.address))
    try:
        for host, broker in (("master", pair.master), ("slave", pair.slave)):
            with world.inside(host):
                broker.start()
        with Client(pair.master.address) as client:
            client.create(TOPIC)
            sender.send(client, b"first")  # an empty slave would begin at the newest file
        pair.wait_caught_up()
        with sender.load(gap_s=0.005):
            for one, other, both in (
                ("master", "slave", True), ("master", "slave", False), ("slave", "master", False),
            ):  # fmt: skip
                with world.partition(one, other, both=both):
                    wait_for(
                        lambda: not pair.master_sees().slaves, "the master has given the slave up",
                        timeout_s=2 * HOUSEKEEPING_S + 2,
                    )  # fmt: skip
                pair.wait_caught_up(timeout_s=HOUSEKEEPING_S + 2 * BACKOFF_S + 10)
        pair.check_same()
        with Client(pair.master.address) as client:  # Apache's slave has no table of topics yet
            sender.check([message.body for message in client.all_of(TOPIC)])
        assert len(sender.acked) > 100
    finally:
        pair.close()
