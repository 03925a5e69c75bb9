"""Readers of two processes, a master and its slave: when the master is killed the group goes on at the slave.

The rules are tested on a simulated cluster (``tests/client/test_slave_reads.py``), under Trio's mock clock. These tests
run the client under asyncio, too, over real sockets.
"""

from __future__ import annotations

import anyio
import pytest

from tests.backends import both
from tests.ports import free_port
from tests.system.client import Client
from tests.system.processes import Starter, wait_for
from trio_mq import Consumer, Message, Producer
from trio_mq.client.admin import Admin
from trio_mq.protocol import bodies
from trio_mq.protocol.codes import RequestCode

pytestmark = pytest.mark.slow

COUNT = 20


async def take(consumer, count, limit_s):
    """Bodies of so many messages, or of those that come in time."""
    got = []
    with anyio.move_on_after(limit_s):
        async for message in consumer:
            async with message:
                got.append(message.body)
            if len(got) == count:
                break
    return got


def numbered(begin, end):
    return sorted(b"%d" % number for number in range(begin, end))


def has_master(client):
    info = bodies.decode(bodies.ClusterInfo, client.call(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    pair = info.broker_addr_table.get("pair")
    return pair is not None and 0 in pair.broker_addrs


@both(limit_s=120)
async def test_a_group_goes_on_at_the_slave_and_back_at_the_master(serve: Starter):
    port = free_port()
    names = serve("--broker-name", "names")
    common = ("--broker-name", "pair", "--no-nameserver", "--nameserver", names.nameserver,
              "--set", "slaveReadEnable=true")  # fmt: skip

    def start_master():
        """It is registered a moment after it is ready."""
        made = serve(*common, "--listen", f"127.0.0.1:{port}", store=serve.home / "master")
        with Client(names.nameserver) as client:
            wait_for(lambda: has_master(client), "the master is registered")
        return made

    master = start_master()
    async with Admin(names.nameserver) as admin:
        await admin.create_topic("T", queues=2, broker="pair")
    serve(*common, "--set", "brokerRole=SLAVE", "--set", "brokerId=1", store=serve.home / "slave")
    async with Producer(names.nameserver) as producer:
        for number in range(COUNT):
            await producer.send(Message("T", b"%d" % number))
    await anyio.sleep(12)  # a slave's tables follow every ten seconds
    options = {"subscribe": {"T": "*"}, "from_where": "first", "auto_commit_s": 0.2}
    async with Consumer(names.nameserver, "G", **options) as consumer:
        first = await take(consumer, 5, 20)
        await anyio.sleep(1)
        master.kill()
        rest = await take(consumer, COUNT - 5, 20)
        assert sorted(first + rest) == numbered(0, COUNT)
    async with Consumer(names.nameserver, "G", **options) as consumer:
        assert await take(consumer, 1, 3) == [], "the slave has kept its place"
        await anyio.to_thread.run_sync(start_master)
        async with Producer(names.nameserver) as producer:
            for number in range(COUNT, COUNT + 5):
                await producer.send(Message("T", b"%d" % number))
        assert sorted(await take(consumer, 5, 60)) == numbered(COUNT, COUNT + 5)
