"""What tests of whole pairs do: send, wait until all is copied, lose what is copied, hand connections on."""

import trio

from tests.ha.synchronous import TOPIC, log_end
from trio_mq import Message, Producer
from trio_mq.testing.hosts import MemoryHost


def replica(node):
    """What copies, on a slave."""
    return node.inside.replication.replica


def data(node):
    """The log of a broker, byte for byte."""
    log = node.inside.store.log
    return log.segments.read(log.written, 0) if log.written else b""


async def send(cluster, count=20, size=100):
    """So many messages of about that size."""
    async with Producer(cluster.nameserver) as producer:
        for n in range(count):
            await producer.send(Message(TOPIC, b"%06d" % n * (size // 6)))


async def copied(master, slave, limit_s=30.0):
    """Wait until the slave has all that the master has; how long that took."""
    began_s = trio.current_time()
    with trio.fail_after(limit_s):
        while log_end(slave) != log_end(master):  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.05)
    assert data(slave) == data(master)
    return trio.current_time() - began_s


async def lose_tail(cluster, master, slave):
    """The master loses its newest messages in a power cut, and the slave has them; where both logs end then."""
    await trio.sleep(30)  # all that was sent before is on the disk
    kept = log_end(master)
    await send(cluster, 40)
    await copied(master, slave)
    ahead = log_end(slave)
    await master.crash(1, keep="none")
    await master.start()
    assert log_end(master) == kept < ahead - 4096
    return kept, ahead


async def forward(cluster, at, to):
    """A machine that hands connections to another one."""
    host = MemoryHost(cluster.network, at.host)
    port = host.listen(at.host, at.port, purpose="test")

    async def pump(source, sink):
        while found := await source.receive_some(65536):
            await sink.send_all(found)

    async def joined(stream, _peer):
        far = await host.open_stream(to, 5.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump, stream, far)
            nursery.start_soon(pump, far, stream)

    await cluster._nursery.start(host.serve_streams, [port], joined)
