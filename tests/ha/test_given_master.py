"""A slave that no name server helps: `haMasterAddress` is all that it is told."""

import attrs
import pytest
import trio

from tests.ha.following import copied, forward, lose_tail, replica, send
from tests.ha.synchronous import HA_PORT, TOPIC, log_end
from trio_mq.config import Address
from trio_mq.ha.states import LinkState
from trio_mq.testing.cluster import SimulatedCluster


def nameless(cluster, address=None):
    """A slave of the first broker, without name servers; it is not started yet."""
    master = cluster.brokers[0]
    slave = cluster.add_slave(master, master_address=address or Address(master.host, HA_PORT))
    alone = attrs.evolve(slave.settings.broker, nameservers=())
    slave.settings = attrs.evolve(slave.settings, broker=alone)
    return slave


def knows(node, topic):
    return node.inside.broker.topics.get(topic) is not None


async def test_it_has_the_log_and_the_tables_of_its_master(autojump_clock, caplog):
    async with SimulatedCluster() as cluster:
        (master,) = cluster.brokers
        await cluster.create_topic(TOPIC, 4, master)
        slave = nameless(cluster)
        await slave.start()
        await send(cluster)
        await copied(master, slave)
        await trio.sleep(11)
        assert knows(slave, TOPIC)
        await cluster.create_topic("LATER", 4, master)
        await trio.sleep(11)
        assert knows(slave, "LATER")
    assert "without a check of the log" not in caplog.text


async def test_c062_it_notices_that_it_is_ahead(autojump_clock):
    async with SimulatedCluster() as cluster:
        (master,) = cluster.brokers
        await cluster.create_topic(TOPIC, 4, master)
        slave = nameless(cluster)
        await slave.start()
        kept, ahead = await lose_tail(cluster, master, slave)
        assert log_end(master) == kept < log_end(slave) == ahead
        await replica(slave).state.reached(LinkState.SUSPEND, 30)
        assert replica(slave).view.reason.startswith("slave ahead")


@pytest.mark.parametrize("answers", [True, False], ids=["another broker", "nobody"])
async def test_what_is_below_a_forwarded_port_is_not_taken_for_the_master(
    autojump_clock, caplog, answers
):
    """The log is copied as it comes then, with a warning, and no table follows."""
    far = Address("10.7.0.1", 20912)
    async with SimulatedCluster(brokers=2) as cluster:
        master, stranger = cluster.brokers
        await cluster.create_topic(TOPIC, 4, master)
        await cluster.create_topic("STRANGE", 4, stranger)
        await forward(cluster, far, Address(master.host, HA_PORT))
        if answers:
            await forward(cluster, attrs.evolve(far, port=far.port - 1), stranger.address)
        slave = nameless(cluster, far)
        await slave.start()
        await send(cluster)
        await copied(master, slave)
        await trio.sleep(60)
        assert not knows(slave, TOPIC)
        assert not knows(slave, "STRANGE")
    told = [r.message for r in caplog.records if "without a check of the log" in r.message]
    assert len(told) == 1
    if answers:
        assert (
            "at 10.7.0.1:20911, the usual place, is no broker with slaves at port 20912" in told[0]
        )
