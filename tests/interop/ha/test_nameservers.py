"""A pair at two name servers that do not know each other, Apache's and ours: either may be away."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.interop.java_client import Java, texts, unique
from tests.interop.polling import sleep, wait_for
from tests.interop.raw import RawClient
from tests.interop.servers import Process, Server, TrioServer, registered
from tests.ports import free_port

from .conftest import Bench
from .loads import check, everything, load
from .pairs import Pair

ROUTE = 105


@pytest.fixture
def with_two(bench: Bench, request: pytest.FixtureRequest) -> Iterator[tuple[Pair, TrioServer]]:
    """The mixed pair, registered at Apache's name server and at that of a broker of ours with another name."""
    port = free_port()
    home = TrioServer(
        name=unique("home"), home=bench.home / unique("home"), nameservers=[f"127.0.0.1:{port}"],
        nameserver_port=port,
    )  # fmt: skip
    home.start()
    kind = request.config.getoption("--broker")
    kinds = "trio-apache" if kind == "trio" else "apache-apache"
    both = [bench.nameserver.address, home.nameserver]
    try:
        pair = bench.pair(kinds, through_proxy=False, nameservers=both)
        pair.start()
        yield pair, home
    finally:
        home.discard()


def addresses(nameserver: str, topic: str, name: str) -> dict[str, str]:
    """Id to address of the brokers of a name, as the route of a topic tells them."""
    with RawClient(nameserver) as client:
        route = client.call(ROUTE, {"topic": topic})
    assert route.code == 0
    (data,) = [d for d in route.json()["brokerDatas"] if d["brokerName"] == name]
    return {str(k): v for k, v in data["brokerAddrs"].items()}


def begin_again(server: Server, answering: str) -> None:
    """Start a broker that registers at all of its name servers, of which only one can say so."""
    server.process = Process(server.command(), server.home, server.name, server.environment())
    everywhere, server.nameservers = server.nameservers, [answering]
    server.wait_ready()
    server.nameservers = everywhere


def test_either_name_server_may_be_away(
    with_two: tuple[Pair, TrioServer], bench: Bench, java: Java
) -> None:
    pair, home = with_two
    name = unique("T")
    java.admin(pair.ns).topic(name, 4, brokers=[pair.name])
    wanted = {"0": pair.master.address, "1": pair.slave.address}
    for nameserver in pair.nameservers:
        wait_for(
            lambda ns=nameserver: addresses(ns, name, pair.name) == wanted,
            f"{nameserver} knows both brokers", timeout_s=15,
        )  # fmt: skip
    running = load(java, pair.ns, name)
    theirs = bench.nameserver.process
    assert theirs is not None
    os.killpg(theirs.pid, signal.SIGSTOP)  # it takes connections, and says nothing
    try:
        # With one name server silent, the slave still finds its master after both were away.
        pair.master.kill()
        begin_again(pair.master, home.nameserver)
        pair.wait_caught_up()
        running.wait_more(50)
        assert java.producer(home.nameserver).send_ok(texts(name, 5, prefix="beside"))
    finally:
        os.killpg(theirs.pid, signal.SIGCONT)
    home.kill()
    sleep(0.5)
    running.wait_more(50)
    acked, failed = running.stop()
    wait_for(
        lambda: registered(bench.nameserver.address).get(pair.name) == pair.master.address,
        "Apache's name server knows the master again", timeout_s=40,
    )  # fmt: skip
    pair.check_same()
    found = everything(java, bench.nameserver.address, name, pair.name)
    check(acked, failed, [m for m in found if not (m.body or "").startswith("beside")])
