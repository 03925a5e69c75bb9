"""A connection of which one end has gone without a word, between a slave and its master."""

import trio

from trio_mq import Message, Producer
from trio_mq.ha.states import LinkState
from trio_mq.testing.cluster import SimulatedCluster

REMOTING, HA = 10911, 10912


async def test_questions_get_a_new_connection_when_the_old_one_is_half_open(autojump_clock):
    async with SimulatedCluster() as cluster, Producer(cluster.nameserver) as producer:
        (master,) = cluster.brokers
        await cluster.create_topic("T", 1)
        slave = cluster.add_slave(master)
        await slave.start()
        await producer.send(Message("T", b"x"))
        for _ in range(
            2
        ):  # the second time its log is not empty, and what it knows of the master is remembered
            for wire in cluster.network.between(master.host, slave.host, HA):
                wire.reset()
            await trio.sleep(6)
        replica = slave.inside.replication.replica
        assert replica.state.state is LinkState.TRANSFER
        before = replica.view.reconnects
        for wire in cluster.network.between(master.host, slave.host, REMOTING):
            wire.cut()
        for wire in cluster.network.between(master.host, slave.host, HA):
            wire.reset()
        # five seconds of pause, three for the question that nobody hears, and five again
        await trio.sleep(12.9)
        assert replica.state.state is LinkState.READY, "nothing is copied without an answer"
        await trio.sleep(1)
        assert replica.state.state is LinkState.TRANSFER
        assert replica.view.reconnects == before + 1
