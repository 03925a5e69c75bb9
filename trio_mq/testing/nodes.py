"""Machines of a simulated cluster: a process that starts, stops, is killed and comes back.

In: a :class:`.links.MemoryNetwork`, a clock, settings. Out: :class:`BrokerNode` and :class:`NameServerNode`, the real
broker (:func:`trio_mq.system.run_system`) and the real name server on a disk in memory. Called by :mod:`.cluster`.

What a dead process still does reaches nobody: its connections are reset, and the next one gets a copy of the disk, with
what a kill or a power cut left of it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import attrs
import trio

from trio_mq.clock import Clock
from trio_mq.config import Address, Settings
from trio_mq.errors import TrioMQError
from trio_mq.nameserver.nameserver import NameServer
from trio_mq.net.network import Network
from trio_mq.store.disk import Disk
from trio_mq.system import Inside, Ready, run_system
from trio_mq.tasks import stage
from trio_mq.testing.clock import MachineClock
from trio_mq.testing.disk import MemoryDisk
from trio_mq.testing.disk_state import Keep
from trio_mq.testing.hosts import MemoryHost
from trio_mq.testing.links import MemoryNetwork

log = logging.getLogger("trio_mq.testing")

#: Puts something between a process and its network: faults, say (:mod:`.faulty`).
Wrap = Callable[[Network], Network]
#: Called once a process serves.
OnReady = Callable[[Ready | None], None]


@attrs.define(eq=False)
class _Process:
    """One life of a node."""

    host: MemoryHost
    stop: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    #: Why it did not stop well.
    failure: TrioMQError | None = None


class Node(ABC):
    """A machine with one process; `settings` count from the next start. Made by the cluster, which owns `nursery`."""

    def __init__(
        self,
        host: str,
        port: int,
        settings: Settings,
        *,
        network: MemoryNetwork,
        clock: Clock,
        nursery: trio.Nursery,
    ) -> None:
        #: Where clients find it. A node that is down may be given another address.
        self.address = Address(host, port)
        self.settings = settings
        self.network = network
        #: The wall clock of this machine: that of all, until a test lets it jump.
        self.clock = MachineClock(clock)
        self.disk = MemoryDisk()
        self.wrap: Wrap | None = None
        #: What the last start of a broker told.
        self.found: Ready | None = None
        self._nursery = nursery
        self._process: _Process | None = None
        self._is_off = False

    @property
    def host(self) -> str:
        """The machine's address on the network."""
        return self.address.host

    @property
    def running(self) -> bool:
        """Whether its process was started, and neither stopped nor killed since."""
        return self._process is not None

    async def start(self) -> None:
        """Start the process; returns once it serves. What keeps it from starting is raised."""
        assert self._process is None, f"{self} runs already"
        if self._is_off:
            self._is_off = False
            self.heal()
        self._process = process = _Process(MemoryHost(self.network, self.host))
        try:
            await self._nursery.start(self._live, process)
        except BaseException:
            self._process = None
            raise

    async def stop(self) -> None:
        """Stop the process in order, and wait for that. What it ends with then, on a full disk say, is raised."""
        process, self._process = self._process, None
        if process is not None:
            process.stop.set()
            await process.ended.wait()
            if process.failure is not None:
                raise process.failure

    async def kill(self) -> None:
        """End the process as ``kill -9`` does: the files are as they were, connections are reset."""
        self.disk = self.disk.clone()
        self.disk.kill()
        await self._end()

    async def crash(self, seed: int, *, keep: Keep = "some") -> None:
        """Cut the power: what was not synced is lost as :meth:`MemoryDisk.crash` says, and peers hear nothing more.

        The next start brings the machine back to the network.
        """
        self.disk = self.disk.clone()
        self.disk.crash(seed, keep=keep)
        self._is_off = True
        self.partition()
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.host.kill()
            process.scope.cancel()
            await trio.lowlevel.checkpoint()

    async def restart(self) -> None:
        """Stop in order, where it runs, and start again."""
        await self.stop()
        await self.start()

    def move(self, host: str, port: int | None = None) -> None:
        """Give the machine another address; it has to be down."""
        assert self._process is None, f"{self} cannot move while it runs"
        self.address = Address(host, port or self.address.port)

    # -- its network

    def partition(self, *others: str) -> None:
        """Let nothing pass between this machine and those hosts, or any other. TCP delivers after :meth:`heal`."""
        for other in others or (None,):
            self.network.sever(self.host, other)

    def deafen(self, *others: str) -> None:
        """Let nothing arrive here of what those hosts, or any other, send; they hear this machine all the same."""
        for other in others or (None,):
            self.network.deafen(self.host, other)

    def throttle(self, bytes_per_s: float | None, *others: str) -> None:
        """Let this machine take no more than that from each of its connections; None ends that."""
        for other in others or (None,):
            self.network.throttle(self.host, bytes_per_s, other)

    def heal(self, *others: str) -> None:
        """End :meth:`partition` and :meth:`deafen`."""
        for other in others or (None,):
            self.network.mend(self.host, other)

    def delay(self, delay_s: float, *others: str) -> None:
        """Let all that this machine sends and gets take longer, in each direction; 0 ends that."""
        for other in others or (None,):
            self.network.slow(self.host, delay_s, other)

    # -- its process

    async def _live(
        self,
        process: _Process,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        def ready(found: Ready | None) -> None:
            self.found = found
            task_status.started()

        network: Network = process.host if self.wrap is None else self.wrap(process.host)
        try:
            with process.scope:
                await self._run(network, self.disk, process.stop, ready)
        except TrioMQError as error:
            if not process.stop.is_set():
                raise
            process.failure = error  # for who stops it
        finally:
            process.ended.set()
            if self._process is process:
                self._process = None

    @abstractmethod
    async def _run(self, network: Network, disk: Disk, stop: trio.Event, ready: OnReady) -> None:
        """The life of the process, until `stop` is set and all has ended."""

    def __str__(self) -> str:
        return f"{type(self).__name__} at {self.address}"


class BrokerNode(Node):
    """A machine with a broker."""

    #: The parts of the one that runs, or ran last, for a test to look into.
    inside: Inside | None = None
    #: Called with them at each start, before anything is served.
    opened: Callable[[Inside], None] | None = None

    @property
    def name(self) -> str:
        """The broker's name, which routes and queues have."""
        return self.settings.broker.broker_name

    async def _run(self, network: Network, disk: Disk, stop: trio.Event, ready: OnReady) -> None:
        at = self.address
        broker = attrs.evolve(
            self.settings.broker, listen_host=at.host, listen_port=at.port, advertise_host=at.host
        )
        nameserver = self.settings.nameserver
        if nameserver.enabled:
            listen = Address(at.host, nameserver.listen.port)
            nameserver = attrs.evolve(nameserver, listen=listen)
        settings = attrs.evolve(self.settings, broker=broker, nameserver=nameserver)
        began_s = trio.current_time()
        run = partial(
            run_system, began_s=began_s, ready=ready, network=network, inside=self._opened
        )
        await run(settings, disk, self.clock, stop)

    def _opened(self, inside: Inside) -> None:
        self.inside = inside
        if self.opened is not None:
            self.opened(inside)


class NameServerNode(Node):
    """A machine with a name server."""

    #: The one that runs, or ran last, for a test to look into.
    nameserver: NameServer | None = None

    async def _run(self, network: Network, disk: Disk, stop: trio.Event, ready: OnReady) -> None:
        port = network.listen(self.host, self.address.port, purpose="name server")
        settings = self.settings.nameserver
        self.nameserver = NameServer(settings, disk=disk, clock=self.clock)
        async with stage() as working:
            await working.start(self.nameserver.run)
            async with stage() as serving:
                await serving.start(network.serve, [port], self.nameserver)
                ready(None)
                await stop.wait()
