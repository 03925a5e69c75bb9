"""A whole cluster in memory: real name servers and real brokers, whose machines fail when a test says so.

In: how many of each, and their settings. Out: :class:`SimulatedCluster`, an async context manager; its network, disks
and wall clock are those of :mod:`trio_mq.testing`, so that under Trio's mock clock (``autojump_clock``) hours pass in
no time and nothing depends on the machine. Called by tests of clients and servers.

    async with SimulatedCluster(brokers=2) as cluster, trio_mq.Producer(cluster.nameserver) as producer:
        await cluster.brokers[0].kill()

Clients that are opened inside the block live in the cluster's world. :meth:`SimulatedCluster.client_at` puts them on a
machine of their own, which can be parted from brokers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import attrs
import trio

from trio_mq.client import world
from trio_mq.client.lifetime import Owner
from trio_mq.client.world import World
from trio_mq.config import BrokerRole, BrokerSettings, HASettings, Settings, StoreSettings
from trio_mq.config.nameserver import NameServerSettings
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.hosts import MemoryHost
from trio_mq.testing.links import MemoryNetwork
from trio_mq.testing.nodes import BrokerNode, NameServerNode, Node, Wrap
from trio_mq.testing.topics import create_topic

__all__ = ["BrokerNode", "NameServerNode", "Node", "SimulatedCluster"]

BROKER_PORT: Final = 10911
NAMESERVER_PORT: Final = 9876
#: Small files: a store takes some kilobytes, and a long test still rolls them.
STORE: Final = StoreSettings(
    path="/store",
    mapped_file_size_commit_log=1 << 22,
    mapped_file_size_consume_queue=6_000,
    max_hash_slot_num=500,
    max_index_num=2_000,
)
#: Time of the mock clock in which name servers have to know a broker that has started.
REGISTERED_LIMIT_S: Final = 30.0


class SimulatedCluster(Owner):
    """See the module.

    Brokers are called ``broker-a``, ``broker-b``, ... of ``DefaultCluster``, at 10.1.0.1, 10.1.0.2, ...; name servers
    are at 10.2.0.1, ... Every broker registers at all of them. `broker`, `store`, `names` and `ha` change settings of
    all machines by their Python names, as in ``broker={"auto_create_topic_enable": False}``. `delay_s` is what one
    message takes over the network. `wrap` puts something between brokers and their network, faults say.

    Leaving the block stops all machines in order; after an error in it they are just cancelled.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        nameservers: int = 1,
        broker: Mapping[str, Any] | None = None,
        store: Mapping[str, Any] | None = None,
        names: Mapping[str, Any] | None = None,
        ha: Mapping[str, Any] | None = None,
        delay_s: float = 0.0,
        clock: TrioClock | None = None,
        wrap: Wrap | None = None,
    ) -> None:
        self.network = MemoryNetwork(delay_s)
        self.clock = clock or TrioClock()
        self.brokers: list[BrokerNode] = []
        self.nameservers: list[NameServerNode] = []
        self._counts = brokers, nameservers
        self._broker = BrokerSettings(fast_port=False)
        self._broker = attrs.evolve(self._broker, **(broker or {}))
        self._store = attrs.evolve(STORE, **(store or {}))
        kv = NameServerSettings(enabled=False, kv_config_path="/namesrv/kvConfig.json")
        self._names = attrs.evolve(kv, **(names or {}))
        self._ha = attrs.evolve(HASettings(), **(ha or {}))
        self._wrap = wrap
        self._nursery: trio.Nursery

    # -- what clients need

    @property
    def nameserver(self) -> str:
        """All name servers, as clients are given them."""
        return ";".join(str(node.address) for node in self.nameservers)

    @property
    def world(self) -> World:
        """The world of clients on a machine of their own."""
        return World(self.network.connect, self.clock, world.at_once)

    @contextmanager
    def client_at(self, host: str) -> Iterator[str]:
        """Clients that are opened inside the block are on the machine `host`, say "10.9.0.2"."""
        machine = MemoryHost(self.network, host)
        with world.using(World(machine.connect, self.clock, world.at_once)):
            yield host

    async def create_topic(self, topic: str, queues: int = 4, *nodes: BrokerNode) -> None:
        """Make a topic on those brokers, or on all of them, and let name servers know it."""
        with world.using(self.world):
            for node in nodes or self.brokers:
                await create_topic(str(node.address), topic, queues)

    # -- machines

    def add_broker(
        self, name: str | None = None, host: str | None = None, **broker: Any
    ) -> BrokerNode:
        """One more broker, which is not started yet: a slave or a second master, say. `broker` changes settings."""
        number = len(self.brokers)
        host = host or f"10.1.0.{number + 1}"
        settings = attrs.evolve(
            self._broker,
            broker_name=name or f"broker-{chr(ord('a') + number)}",
            nameservers=tuple(node.address for node in self.nameservers),
        )
        made = Settings(
            broker=attrs.evolve(settings, **broker),
            store=self._store,
            nameserver=self._names,
            ha=self._ha,
        )
        node = BrokerNode(host, BROKER_PORT, made, **self._common())
        node.wrap = self._wrap
        self.brokers.append(node)
        return node

    def add_slave(self, master: BrokerNode, **ha: Any) -> BrokerNode:
        """A slave of a broker, which is not started yet; `ha` changes settings of replication.

        It finds its master through the name servers, or by ``master_address`` in `ha`.
        """
        ids = [n.settings.broker.broker_id for n in self.brokers if n.name == master.name]
        node = self.add_broker(master.name, broker_id=max(ids) + 1)
        own = attrs.evolve(master.settings.ha, role=BrokerRole.SLAVE, **ha)
        node.settings = attrs.evolve(node.settings, ha=own)
        return node

    def add_nameserver(self, host: str | None = None) -> NameServerNode:
        """One more name server, which is not started yet; brokers that are added later register there."""
        host = host or f"10.2.0.{len(self.nameservers) + 1}"
        settings = Settings(nameserver=self._names)
        node = NameServerNode(host, NAMESERVER_PORT, settings, **self._common())
        self.nameservers.append(node)
        return node

    def _common(self) -> dict[str, Any]:
        return {"network": self.network, "clock": self.clock, "nursery": self._nursery}

    def node(self, name: str) -> BrokerNode:
        """The first broker of that name."""
        return next(node for node in self.brokers if node.name == name)

    async def start(self, *nodes: BrokerNode) -> None:
        """Start brokers, and wait until they are registered at all name servers that run."""
        for node in nodes:
            await node.start()
        await self.registered(*nodes)

    async def registered(self, *nodes: BrokerNode) -> None:
        """Wait until name servers that run, and are not parted from everybody, hand out the brokers' addresses."""
        with trio.fail_after(REGISTERED_LIMIT_S):
            # Registrations come when they come, and the mock clock makes a look cost nothing.
            while not all(  # noqa: ASYNC110
                self.knows(names, node) for names in self.nameservers for node in nodes
            ):
                await trio.sleep(0.01)

    def knows(self, names: NameServerNode, node: BrokerNode) -> bool:
        """Whether a name server hands out the broker's address; True of one that is down or parted."""
        if not names.running or self.network.is_severed(names.host):
            return True
        assert names.nameserver is not None, "a running one has its name server"
        known = names.nameserver.routes.cluster_info().broker_addr_table.get(node.name)
        return known is not None and str(node.address) in known.broker_addrs.values()

    # -- the network between all of them

    def partition(self, one: str, *others: str) -> None:
        """Let nothing pass between host `one` and the others, or, without others, between it and anybody."""
        for other in others or (None,):
            self.network.sever(one, other)

    def heal(self) -> None:
        """End all partitions."""
        self.network.mend()

    # -- life

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        brokers, nameservers = self._counts
        self.clock.now_ms()  # begins now, not when somebody first looks
        failure: Exception | None = None
        async with trio.open_nursery() as self._nursery:
            for _ in range(nameservers):
                await self.add_nameserver().start()
            await self.start(*[self.add_broker() for _ in range(brokers)])
            try:
                with world.using(self.world):
                    yield
                await self._stop()
            except Exception as error:
                failure = error
            self._nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _stop(self) -> None:
        """All at once, brokers first: they say farewell to name servers."""
        self.heal()
        for nodes in (self.brokers, self.nameservers):
            async with trio.open_nursery() as stopping:
                for node in nodes:
                    stopping.start_soon(node.stop)

    def __repr__(self) -> str:
        at = ", ".join(str(node.address) for node in self.brokers)
        return f"<SimulatedCluster of {at or 'no brokers'}>"
