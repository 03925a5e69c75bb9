"""The top nursery: what starts in which order, and how it stops.

``trio-mq serve`` runs :func:`run_serve`. Order of a start: ports are taken (one that is not free is told before
anything is touched), the name server begins, tables are loaded, the store is recovered, then come the stages store,
replication, broker, listeners, registration and, on a slave, following, each in a nursery of its own. A stop request
ends the innermost stage, and leaving one stage ends the next one out: first nobody new is told about us, then
connections end, then the broker saves its tables, then slaves get the rest of the log, then the store makes everything
durable and takes the abort marker away.

Failure policy: what a client does never leaves its connection. A registration that fails is tried again for ever. A
disk that fails or a broken invariant leaves its stage, ends the process with its exit code, and leaves the abort
marker for the next start. What goes wrong while a stage closes does not keep the stages around it from closing well;
it is the error that the process ends with.
"""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import attrs
import trio

from trio_mq import process
from trio_mq.broker.broker import Broker
from trio_mq.broker.delayoffsets import DelayOffsets
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.pop.orders import PopOrders
from trio_mq.broker.register import Registrar
from trio_mq.broker.starting import Progress, tell
from trio_mq.broker.tables import BrokerTables, load_tables
from trio_mq.broker.topics import TopicTable
from trio_mq.clock import Clock, SystemClock
from trio_mq.config import Address, Settings
from trio_mq.errors import (
    ForeignFormat,
    StoreDamaged,
    StoreError,
    StoreFull,
    TrioMQError,
)
from trio_mq.ha.service import Replication
from trio_mq.nameserver.nameserver import NameServer
from trio_mq.net import address as addresses
from trio_mq.net.network import TCP, Listening, Network
from trio_mq.net.serve import Handler
from trio_mq.net.supervisor import Supervisor
from trio_mq.ports import Ports, bind
from trio_mq.protocol.message import Host
from trio_mq.recovery.recover import Choices, recover
from trio_mq.recovery.report import RecoveryReport
from trio_mq.store.disk import Disk, RealDisk
from trio_mq.store.store import Store, StoreParts, open_parts
from trio_mq.tasks import leaves, stage

log = logging.getLogger("trio_mq.system")

#: Time after which a worker thread that computes lets the loop go on; Python's own is 5 ms, for each read of a socket.
SWITCH_S = 0.0005
#: Time that a stop may take in all; the last resort for what cannot end by itself.
STOP_LIMIT_S = 8.0
#: Time to register at the name server of this process before it is ready anyway.
REGISTER_LIMIT_S = 3.0
#: Time that the answer to a change of topics waits for name servers to take it.
PUBLISH_LIMIT_S = 1.0
#: Allocations between two looks for garbage: most of what lives here lives long.
GC_THRESHOLD = 50_000


@attrs.frozen
class Ready:
    """What is known once everything serves. Addresses are `host:port`."""

    nameserver: str | None
    broker: str
    store: str
    recovery: RecoveryReport
    ready_s: float

    def as_json(self) -> str:
        """One line for programs that start us."""
        return json.dumps(
            {
                "nameserver": self.nameserver,
                "broker": self.broker,
                "store": self.store,
                "recovery": self.recovery.as_dict(),
                "ready_s": round(self.ready_s, 3),
            }
        )

    def as_text(self) -> str:
        """One line for people."""
        names = f"name server {self.nameserver}, " if self.nameserver else ""
        return f"ready in {self.ready_s:.2f} s: {names}broker {self.broker}, store {self.store}"


@attrs.frozen(eq=False)
class Inside:
    """The parts of a running system, for tests to look into."""

    store: Store
    replication: Replication
    broker: Broker


def run_serve(settings: Settings, *, ready_json: bool, log_json: bool) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Raises TrioMQError when it cannot start or go on."""
    began_s = process.start_s()

    def ready(found: Ready) -> None:
        try:
            print(found.as_json() if ready_json else found.as_text(), flush=True)  # noqa: T201
        except OSError as error:  # whoever wanted to read it has gone
            log.warning("the ready line cannot be written: %s", error)
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 20)

    process.raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_S)
    gc.disable()  # nearly all that a start makes stays: looking for garbage meanwhile finds none
    try:
        trio.run(serve_until_signal, settings, began_s, ready)
    except BaseExceptionGroup as group:
        raise _first_of(group) from group
    return 0


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that explains a group best: one of ours before any other."""
    found = list(leaves(group))
    ours = [e for e in found if isinstance(e, TrioMQError)]
    if ours:
        return ours[0]
    failed = found[0]
    if not isinstance(failed, OSError):
        return failed
    kind = StoreFull if failed.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
    where = f"{failed.filename}: " if failed.filename is not None else ""
    return kind(f"the store's disk failed: {where}{failed.strerror or failed}")


async def serve_until_signal(
    settings: Settings, began_s: float, ready: Callable[[Ready], None]
) -> None:
    """Run the system, and end it in order when a signal asks for that."""
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        await nursery.start(_watch_signals, stop)
        await run_system(settings, RealDisk(), SystemClock(), stop, began_s=began_s, ready=ready)
        nursery.cancel_scope.cancel()


async def _watch_signals(
    stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            if stop.is_set():
                log.error("second signal: ending at once; the next start recovers")
                os._exit(128 + number)
            log.info("stopping: %s", signal.Signals(number).name)
            stop.set()


async def run_system(
    settings: Settings,
    disk: Disk,
    clock: Clock,
    stop: trio.Event,
    *,
    began_s: float,
    ready: Callable[[Ready], None],
    network: Network = TCP,
    inside: Callable[[Inside], None] = lambda _: None,
) -> None:
    """Everything, from bound sockets to a closed store. Returns after `stop` was set and all has ended.

    `inside` is called once the parts are made, before anything is served.
    """
    failures: list[TrioMQError] = []
    supervisor = Supervisor.of()
    async with AsyncExitStack() as stack:
        ports = bind(settings, disk, network)
        stack.callback(ports.close)
        nameserver = await _start_nameserver(settings, disk, clock, ports, stack)
        # A stop during a long recovery ends it at once; the abort marker is still there then.
        async with _until(stop):
            advertised, host = await _advertised(settings, ports)
            progress = Progress()
            async with stage() as telling:
                telling.start_soon(tell, progress, network, ports.broker, supervisor)
                parts, tables, report = await _recovered_store(
                    settings, disk, clock, stack, progress
                )
        if stop.is_set():
            return
        store = Store(parts, clock, host, follows=settings.ha.is_slave)
        await store.start()
        await stack.enter_async_context(_running("store", store.run, failures, store.close))
        replication = Replication(settings, store, network, ports.ha)
        replicating = _running("replication", replication.run, failures, replication.close)
        await stack.enter_async_context(replicating)
        ha_address = Address(settings.ha.advertise_host or advertised.host, ports.ha.address.port)
        broker = _make_broker(
            settings, store, tables, clock, advertised, replication, ha_address, network
        )
        inside(Inside(store, replication, broker))
        await stack.enter_async_context(_running("broker", broker.run, failures, broker.close))
        await stack.enter_async_context(_listening(ports, ports.broker, broker.face))
        nameservers = _nameservers(settings, nameserver)
        registrar = _make_registrar(
            settings, broker, replication, advertised, ha_address, nameservers, network
        )
        registration = _running("registration", registrar.run, failures, registrar.close)
        await stack.enter_async_context(registration)
        if settings.ha.is_slave:
            await stack.enter_async_context(_running("following", replication.follow, failures))
        if nameserver is not None:
            async with _until(stop):
                await registrar.registered_once(REGISTER_LIMIT_S)
        if not stop.is_set():
            found = Ready(
                nameserver=None if nameserver is None else str(nameserver),
                broker=str(advertised),
                store=settings.store.path,
                recovery=report,
                ready_s=time.perf_counter() - began_s,
            )
            ready(found)
            supervisor.ready(found.as_text())
            await stop.wait()
            supervisor.stopping()
    if failures:
        raise failures[0]


def _make_broker(
    settings: Settings,
    store: Store,
    tables: BrokerTables,
    clock: Clock,
    advertised: Address,
    replication: Replication,
    ha_address: Address,
    network: Network,
) -> Broker:
    """A broker that also answers for its replication."""
    broker = Broker(settings, store, tables, clock, str(advertised), replication.primary)
    broker.pops.routes.connect = network.connect
    if broker.role.puts:  # a slave's tables may be ahead of its log
        tables.clamp_progress(store.queues)
    runtime = replication.runtime(clock, address=str(advertised), ha_address=str(ha_address))
    runtime.fill(broker.requests)
    broker.runtime_sources.append(runtime.rows)
    if replication.copy is not None:
        replication.tables = broker.follower(replication.copy.kept, network.connect)
    return broker


def _make_registrar(
    settings: Settings,
    broker: Broker,
    replication: Replication,
    advertised: Address,
    ha_address: Address,
    nameservers: list[Address],
    network: Network,
) -> Registrar:
    """What registers a broker, and tells who needs it where the master is."""
    registrar = Registrar(
        settings.broker,
        advertised,
        broker.topics,
        nameservers=nameservers,
        ha_address=str(ha_address),
        ha=settings.ha,
        role=broker.role,
        connect=network.connect,
    )
    registrar.master_changed = replication.master_told
    replication.link_changed = registrar.ask_again
    broker.topic_changed = registrar.topic_changed
    broker.permission_changed = registrar.permission_changed
    broker.pops.routes.nameservers = nameservers
    broker.saver.published = partial(registrar.published, PUBLISH_LIMIT_S)
    return registrar


@asynccontextmanager
async def _until(stop: trio.Event) -> AsyncIterator[None]:
    """A block that ends early when `stop` is set."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_on, stop, nursery.cancel_scope)
        yield
        nursery.cancel_scope.cancel()


async def _cancel_on(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


async def _advertised(settings: Settings, ports: Ports) -> tuple[Address, Host]:
    """The address that clients are told, and the numeric one that message ids carry."""
    mine = settings.broker
    chosen = addresses.choose_advertised(
        configured=mine.advertise_host,
        listen_host=mine.listen_host,
        interfaces=addresses.system_interfaces(),
        default_route=addresses.default_route_address(),
    )
    address = Address(chosen.host, mine.advertise_port or ports.broker[0].address.port)
    log.info("clients are told %s (%s)", address, chosen.reason)
    return address, await addresses.resolve(address)


async def _start_nameserver(
    settings: Settings, disk: Disk, clock: Clock, ports: Ports, stack: AsyncExitStack
) -> Address | None:
    if not ports.nameserver:
        return None
    nameserver = NameServer(settings.nameserver, disk=disk, clock=clock)
    await stack.enter_async_context(_running("name server", nameserver.run, []))
    await stack.enter_async_context(_listening(ports, ports.nameserver, nameserver))
    at = ports.nameserver[0].address
    return Address(at.ip, at.port)


def _nameservers(settings: Settings, own: Address | None) -> list[Address]:
    found = list(settings.broker.nameservers)
    if own is not None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(own.host, own.host)
        found.insert(0, Address(host, own.port))
    return list(dict.fromkeys(found))


async def _recovered_store(
    settings: Settings, disk: Disk, clock: Clock, stack: AsyncExitStack, progress: Progress
) -> tuple[StoreParts, BrokerTables, RecoveryReport]:
    """Lock, load the tables, recover. On an error or a stop the files are let go as they are."""
    try:
        return await _recovered(settings, disk, clock, stack, progress)
    except (StoreDamaged, ForeignFormat) as error:
        store = shlex.quote(settings.store.path)
        raise type(error)(
            f"{error}\nTo see all that is wrong with this store: trio-mq recover --dry-run {store}"
        ) from error


async def _recovered(
    settings: Settings, disk: Disk, clock: Clock, stack: AsyncExitStack, progress: Progress
) -> tuple[StoreParts, BrokerTables, RecoveryReport]:
    topics = TopicTable(settings.broker, clock)
    parts = open_parts(disk, settings.store, clock, lambda topic: _is_batch(topics, topic))
    stack.callback(parts.release)
    damages: list[str] = []
    try:
        await disk.run(parts.checkpoint.load)
    except StoreDamaged as error:
        damages.append(str(error))  # told together with the tables that are damaged (case C044)
    tables = await load_tables(
        disk,
        f"{settings.store.path}/config",
        clock,
        topics=topics,
        groups=GroupTable(settings.broker, clock),
        offsets=ConsumerOffsets(settings.broker, clock),
        delays=DelayOffsets(clock, settings.broker.delay_offset_update_version_step),
        orders=PopOrders(
            clock, tell_unlocked=settings.broker.enable_notify_after_pop_order_lock_release
        ),
        damages=damages,
        lmq=settings.store.enable_lmq,
    )
    choices = attrs.evolve(
        Choices.of(parts.settings),
        copied=settings.ha.is_slave,
        progress=progress.tell,
        expected=tables.read_queues(),
    )
    report = await recover(parts, choices)
    return parts, tables, report


def _is_batch(topics: TopicTable, topic: str) -> bool:
    config = topics.get(topic)
    return config is not None and config.attributes.get("queue.type") == "BatchCQ"


# -- stages --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _running(
    name: str,
    run: Callable[..., Awaitable[None]],
    failures: list[TrioMQError],
    close: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[None]:
    """A subsystem's `run` around a block; `close` is called after it has ended, bounded and shielded.

    An error of the block or of `run` gets out, and nothing is closed. One of `close` is noted in `failures`.
    """
    async with stage() as nursery:
        await nursery.start(run)
        yield
    if close is None:
        return
    with trio.move_on_after(STOP_LIMIT_S, shield=True) as scope:
        try:
            await close()
        except TrioMQError as error:
            log.error("the %s did not close well: %s", name, error)
            failures.append(error)
    if scope.cancelled_caught:
        failures.append(StoreError(f"the {name} did not close within {STOP_LIMIT_S:g} s"))
        log.error("%s", failures[-1])


@asynccontextmanager
async def _listening(
    ports: Ports, listeners: list[Listening], handler: Handler
) -> AsyncIterator[None]:
    async with stage() as nursery:
        await nursery.start(ports.network.serve, listeners, handler)
        yield
