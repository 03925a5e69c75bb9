"""The stage of replication: how it ends, whenever that comes."""

import attrs
import trio

from tests.ha.copies import Copying, original
from tests.ha.masters import ha_settings
from trio_mq.config import Settings
from trio_mq.ha.service import Replication
from trio_mq.testing.hosts import MemoryHost
from trio_mq.testing.links import MemoryNetwork


def replication(running):
    host = MemoryHost(MemoryNetwork(), "slave")
    port = host.listen("slave", 10912, purpose="port for slaves")
    settings = attrs.evolve(Settings(), ha=ha_settings())
    return Replication(settings, running.store, host, port)


async def test_a_stop_during_the_start_ends_it_too(autojump_clock):
    """What slaves are fed by is shielded until it is told to stop."""
    master = await original(3)
    async with Copying.make(master).life() as running:
        for end_after in range(6):
            stage = replication(running)
            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stage.run)
                    for _ in range(end_after):
                        await trio.lowlevel.checkpoint()
                    nursery.cancel_scope.cancel()
