"""Fixtures: the drivers (one JVM, one Go process a session), clusters of the kind under test, names.

``--broker trio`` (default) tests trio-mq; ``--broker apache`` runs the same tests against Apache's own
broker, so that a test that is wrong about the peer shows. With CI=true a missing tool is a failure
instead of a skip.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from . import peers, raw, servers
from .drivers import Driver
from .go_client import Go
from .java_client import Admin, Java, unique
from .servers import Kind, Server

# The standard set-up of the behaviours, as far as normal messages meet it.
STANDARD = {
    "maxTransferCountOnMessageInMemory": "1024",
    "maxTransferCountOnMessageInDisk": "1024",
    "maxIndexNum": "1000",
    "maxHashSlotNum": "4000",
    "mappedFileSizeCommitLog": "104857600",
}
SHORT_POLLING = {**STANDARD, "longPollingEnable": "false", "shortPollingTimeMills": "500"}
QUEUES = 8
# A consumer may share queues out again 0.1 s after the last time instead of 1 s: that is waiting, not behaviour.
QUICK = "-Drocketmq.client.rebalance.minInterval=100"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The kind of broker under test."""
    parser.addoption(
        "--broker", choices=["trio", "apache"], default="trio", help="which broker is tested"
    )


def pytest_report_header(config: pytest.Config) -> str:
    """Say what is tested."""
    return f"broker under test: {config.getoption('--broker')}"


@pytest.fixture(scope="session")
def kind(request: pytest.FixtureRequest) -> Kind:
    """``trio`` or ``apache``."""
    return request.config.getoption("--broker")


@pytest.fixture(scope="session", autouse=True)
def tools() -> None:
    """Skip all when a tool is missing; in CI that is a failure."""
    missing = peers.missing_tools()
    if missing and os.environ.get("CI") == "true":
        pytest.fail(f"the interop tests need {', '.join(missing)}")
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


@pytest.fixture(scope="session")
def java_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The JVM with Apache's clients."""
    home = tmp_path_factory.mktemp("java")
    command = peers.java(
        home,
        peers.compiled(peers.HERE / "java"),
        "Driver",
        jvm=(*peers.FAST_JVM, "-Xmx768m", QUICK),
    )
    driver = Driver(command, home / "driver.log")
    yield driver
    driver.close()


@pytest.fixture
def java(java_driver: Driver) -> Iterator[Java]:
    """Java clients, shut down at the end of the test."""
    java = Java(java_driver)
    yield java
    java.close()


@pytest.fixture(scope="session")
def go_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The Go process with Apache's Go client v2."""
    home = tmp_path_factory.mktemp("go")
    driver = Driver([str(peers.go_driver())], home / "driver.log", {"HOME": str(home)})
    yield driver
    driver.close()


@pytest.fixture
def go(go_driver: Driver) -> Iterator[Go]:
    """Go clients, shut down at the end of the test."""
    go = Go(go_driver)
    yield go
    go.close()


@pytest.fixture(autouse=True)
def raw_connections() -> Iterator[None]:
    """Close the hand-made connections that a test left open."""
    yield
    while raw.OPEN:
        raw.OPEN.pop().close()


@attrs.define
class Cluster:
    """Brokers b1, b2, ... with one name server, and an admin client for them."""

    kind: Kind
    brokers: list[Server]
    nameservers: list[servers.ApacheNameServer]
    admin: Admin

    @property
    def ns(self) -> str:
        """Address of the name server."""
        return self.brokers[0].nameservers[0]

    @property
    def queues(self) -> int:
        """Queues of a topic with 8 on each master."""
        return QUEUES * len(self.brokers)

    def topic(self, queues: int = QUEUES, prefix: str = "T", **options: object) -> str:
        """A new topic, ready on all masters."""
        name = unique(prefix)
        self.admin.topic(name, queues, **options)
        return name

    def group(self) -> str:
        """A new group, on all masters."""
        name = unique("G")
        self.admin.group(name)
        return name

    def discard(self) -> None:
        """End all processes."""
        for server in [*self.brokers, *self.nameservers]:
            server.discard()


MakeCluster = Callable[..., Cluster]


@pytest.fixture(scope="session")
def make_cluster(
    kind: Kind, java_driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeCluster]:
    """Starts clusters; the session ends them."""
    made: list[Cluster] = []
    java = Java(java_driver)

    def make(masters: int, settings: dict[str, str], **options: object) -> Cluster:
        home = tmp_path_factory.mktemp("cluster")
        first, nameservers = servers.alone(kind, home, settings=settings, **options)
        brokers = [first]
        first.start()
        for i in range(2, masters + 1):
            brokers.append(
                servers.joining(
                    kind, home, f"b{i}", first.nameservers[0], settings=settings, **options
                )
            )
            brokers[-1].start()
        cluster = Cluster(kind, brokers, nameservers, java.admin(first.nameservers[0]))
        made.append(cluster)
        return cluster

    yield make
    java.close()
    for cluster in made:
        cluster.discard()


@pytest.fixture(scope="session")
def cluster(make_cluster: MakeCluster) -> Cluster:
    """One master."""
    return make_cluster(1, STANDARD)


@pytest.fixture(scope="session")
def cluster3(make_cluster: MakeCluster) -> Cluster:
    """Three masters: topics have 24 queues."""
    return make_cluster(3, STANDARD)


@pytest.fixture(scope="session")
def cluster3_short(make_cluster: MakeCluster) -> Cluster:
    """Three masters without long polling: the set-up of the offset rows."""
    return make_cluster(3, SHORT_POLLING)


@attrs.define
class Workshop:
    """Single servers for tests that kill, restart or misuse them; whatever still runs at the end is killed."""

    kind: Kind
    home: Path
    java: Java
    made: list[object] = attrs.field(factory=list)

    def alone(self, name: str = "b1", kind: Kind | None = None, **options: object) -> Server:
        """A broker with its own name server, not started."""
        home = self.home / unique("alone")
        server, nameservers = servers.alone(kind or self.kind, home, name, **options)
        self.made += [server, *nameservers]
        return server

    def joining(
        self, name: str, nameserver: str, kind: Kind | None = None, **options: object
    ) -> Server:
        """A broker that registers with a name server, not started."""
        server = servers.joining(
            kind or self.kind, self.home / unique("joining"), name, nameserver, **options
        )
        self.made.append(server)
        return server

    def nameserver(self) -> servers.ApacheNameServer:
        """Apache's name server, started."""
        nameserver = servers.ApacheNameServer(home=self.home / unique("namesrv"))
        self.made.append(nameserver)
        nameserver.start()
        return nameserver

    def cluster(self, *brokers: Server, kind: Kind | None = None) -> Cluster:
        """Brokers that run, with an admin client."""
        return Cluster(
            kind or self.kind, list(brokers), [], self.java.admin(brokers[0].nameservers[0])
        )

    def close(self) -> None:
        """Clients first: their farewell needs a broker."""
        self.java.close()
        for server in reversed(self.made):
            server.discard()


@pytest.fixture
def workshop(kind: Kind, tmp_path: Path, java: Java) -> Iterator[Workshop]:
    """Servers of one test."""
    workshop = Workshop(kind, tmp_path, java)
    yield workshop
    workshop.close()
