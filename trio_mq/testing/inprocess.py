"""A broker and a name server in the process of a test on Trio, with a store in memory.

In: settings, and Trio's clock. Out: :func:`open_broker`, a block in which they serve. Called by the pytest plugin;
other test runners may use it as well. Under a mock clock they live on a simulated network, and so do all clients that
are opened in the block: delays, retries and transaction checks come as soon as nothing else is left to do. Under a real
clock they listen on free ports of 127.0.0.1.

A system that breaks ends the block with its error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import trio

from trio_mq.client import world
from trio_mq.client.lifetime import background
from trio_mq.clock import Clock
from trio_mq.config import Settings
from trio_mq.net.network import TCP, Network
from trio_mq.system import Ready, run_system
from trio_mq.testing.broker import RocketMQBroker
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk
from trio_mq.testing.faults import Faults, RuleBook
from trio_mq.testing.faulty import FaultyNetwork
from trio_mq.testing.hosts import MemoryHost
from trio_mq.testing.links import MemoryNetwork
from trio_mq.testing.settings import HOST, settings_of


def has_mock_clock() -> bool:
    """Whether this Trio run is in virtual time."""
    testing = sys.modules.get("trio.testing")  # who has one of its clocks has loaded it
    return testing is not None and isinstance(trio.lowlevel.current_clock(), testing.MockClock)


@asynccontextmanager
async def open_broker(settings: Mapping[str, str] | None = None) -> AsyncIterator[RocketMQBroker]:
    """A broker for the block. `settings` are those of docs/reference/settings.md; ConfigError for wrong ones.

    The store is forgotten at the end. An error of the block leaves as itself.
    """
    wanted = settings_of("/store", settings or {})
    network: Network = TCP
    here = world.World()
    if has_mock_clock():
        simulated = MemoryNetwork()
        network = MemoryHost(simulated, HOST)
        here = world.World(connect=simulated.connect, clock=TrioClock())
    book, stop = RuleBook(), trio.Event()
    with world.using(here):
        async with background() as tasks:
            try:
                serve = partial(_serve, wanted, FaultyNetwork(network, book), here.clock, stop)
                found: Ready = await tasks.start(serve)
                assert found.nameserver is not None, "the settings say so"
                yield RocketMQBroker(found.nameserver, found.broker, "inprocess", Faults(book))
            finally:
                stop.set()


async def _serve(
    settings: Settings,
    network: Network,
    clock: Clock,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[Ready],
) -> None:
    # Only `stop` ends it: in their order its parts take no time to end, while a broker that is cancelled together with
    # its name server waits for a farewell that never comes. Every step of a stop has a time limit of its own.
    with trio.CancelScope(shield=True):
        await run_system(
            settings,
            MemoryDisk(),
            clock,
            stop,
            began_s=time.perf_counter(),
            ready=task_status.started,
            network=network,
        )
