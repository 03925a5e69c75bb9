"""Fixtures: pairs of brokers of the kinds under test, with one name server for all.

``--broker trio`` (default) tests the three pairs with trio-mq in them; ``--broker apache`` runs the same tests with
two brokers of Apache's, so that a test that is wrong about the peer shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from tests.interop import servers
from tests.interop.drivers import Driver
from tests.interop.java_client import Admin, Java, unique
from tests.interop.servers import Kind, Server

from .pairs import MASTER, SETTINGS, SLAVE, Pair, kinds_of, set_role
from .proxy import proxy

MIXED = ["apache-trio", "trio-apache"]
PAIRS = {"trio": [*MIXED, "trio-trio"], "apache": ["apache-apache"]}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``pair`` is each pair under test in turn, ``mixed`` those with one broker of each kind."""
    kind = metafunc.config.getoption("--broker")
    if "pair" in metafunc.fixturenames:
        only_mixed = metafunc.definition.get_closest_marker("mixed") and kind == "trio"
        names = MIXED if only_mixed else PAIRS[kind]
        metafunc.parametrize("pair", names, indirect=True, scope="session")


@attrs.define
class Bench:
    """Makes pairs; whatever still runs at the end is killed."""

    home: Path
    nameserver: servers.ApacheNameServer
    made: list[Pair] = attrs.field(factory=list)

    def server(self, kind: Kind, name: str, settings: dict[str, str], **options: object) -> Server:
        """A broker of either role, not started."""
        options.setdefault("nameservers", [self.nameserver.address])
        cls = servers.TrioServer if kind == "trio" else servers.ApacheBroker
        home = self.home / unique(f"{name}-{kind}")
        return cls(name=name, home=home, settings=settings, **options)

    def pair(
        self, kinds: str, *, through_proxy: bool = True, settings: dict[str, str] | None = None,
        flush: str = "async", nameservers: list[str] | None = None,
    ) -> Pair:  # fmt: skip
        """Not started. ``kinds``: the master's and the slave's, such as ``trio-apache``."""
        name = unique("pair")
        master_kind, slave_kind = kinds_of(kinds)
        more = {"nameservers": nameservers} if nameservers else {}
        settings = {**SETTINGS, **(settings or {})}
        master = self.server(master_kind, name, settings, flush=flush, **more)
        slave = self.server(slave_kind, name, settings, flush=flush, **more)
        between = proxy(self.home, master.port + 1) if through_proxy else None
        set_role(master, MASTER)
        set_role(slave, SLAVE, **({"haMasterAddress": between.address} if between else {}))
        pair = Pair(name, master.nameservers, master, slave, between)
        self.made.append(pair)
        return pair

    def close(self) -> None:
        """End all."""
        while self.made:
            self.made.pop().close()


@pytest.fixture(scope="session")
def shared_nameserver(
    tmp_path_factory: pytest.TempPathFactory, tools: None
) -> Iterator[servers.ApacheNameServer]:
    """Apache's, for all pairs: it outlives every broker."""
    nameserver = servers.ApacheNameServer(home=tmp_path_factory.mktemp("namesrv"))
    nameserver.start()
    yield nameserver
    nameserver.discard()


@pytest.fixture(scope="session")
def pair(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    shared_nameserver: servers.ApacheNameServer,
) -> Iterator[Pair]:
    """A pair that runs. A test may do to it what it likes, as long as both run again at its end."""
    bench = Bench(tmp_path_factory.mktemp("pair"), shared_nameserver)
    pair = bench.pair(request.param)
    try:
        pair.start()
        yield pair
    finally:
        bench.close()


@pytest.fixture
def bench(tmp_path: Path, shared_nameserver: servers.ApacheNameServer) -> Iterator[Bench]:
    """Pairs of one test."""
    bench = Bench(tmp_path, shared_nameserver)
    yield bench
    bench.close()


MakeTopic = Callable[..., str]


@pytest.fixture(scope="session")
def admin(java_driver: Driver, shared_nameserver: servers.ApacheNameServer) -> Iterator[Admin]:
    """For topics and groups at any pair."""
    java = Java(java_driver)
    yield java.admin(shared_nameserver.address)
    java.close()


@pytest.fixture
def topic(admin: Admin) -> MakeTopic:
    """Makes topics of four queues at a pair."""

    def make(pair: Pair, queues: int = 4, prefix: str = "T") -> str:
        name = unique(prefix)
        admin.topic(name, queues, brokers=[pair.name])
        return name

    return make
