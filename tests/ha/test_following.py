"""A slave of a whole simulated cluster: it finds its master, copies, is away, is ahead, and comes back."""

import logging
from itertools import pairwise

import attrs
import pytest
import trio

from tests.ha.following import copied, forward, lose_tail, replica, send
from tests.ha.synchronous import TOPIC, in_sync, log_end, primary, sync_cluster
from trio_mq import Message, Producer, SendStatus
from trio_mq.config import Address, FlushDiskType
from trio_mq.config.ha import BrokerRole
from trio_mq.ha.states import LinkState
from trio_mq.testing.cluster import SimulatedCluster
from trio_mq.testing.topics import forget


def pair(**ha):
    """A master, and one slave in sync; no send waits for it."""
    return sync_cluster(role=BrokerRole.ASYNC_MASTER, in_sync_replicas=1, **ha)


async def test_a_slave_finds_its_master_through_name_servers_and_copies_it(autojump_clock):
    async with pair() as cluster:
        master, slave = cluster.brokers
        await send(cluster)
        await copied(master, slave)
        view = replica(slave).view
        assert view.master == str(Address(master.host, 10912))
        assert (view.state, view.reconnects, view.max_offset) == (
            LinkState.TRANSFER,
            0,
            log_end(master),
        )


async def test_c064_an_idle_pair_keeps_its_connection(autojump_clock):
    async with pair() as cluster:
        master, slave = cluster.brokers
        await send(cluster)
        await copied(master, slave)
        await trio.sleep(90)
        assert len(cluster.network.wires(Address(master.host, 10912))) == 1
        view = replica(slave).view
        assert (view.state, view.reconnects) == (LinkState.TRANSFER, 0)
        assert view.read_age_s <= 5
        assert view.write_age_s <= 5
        assert primary(master).slaves[0].silent_s <= 5


async def test_c068_a_wrong_address_is_told_and_after_the_repair_sends_are_safe_again(
    autojump_clock, caplog
):
    """Nobody listens where the slave is told to connect, until somebody does."""
    wrong = Address("10.7.0.1", 10912)
    settings = {"role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2}
    async with SimulatedCluster(ha=settings) as cluster:
        master = cluster.brokers[0]
        slave = cluster.add_slave(master, master_address=wrong)
        await slave.start()
        await cluster.create_topic(TOPIC, 4, master)
        async with Producer(cluster.nameserver) as producer:
            sent = await producer.send(Message(TOPIC, b"early"))
            assert sent.status is SendStatus.FLUSH_SLAVE_TIMEOUT
            assert f"cannot reach {wrong}, next try in 5 s" in caplog.text
            assert f"cannot reach {wrong}" in replica(slave).view.last_error
            assert primary(master).slaves == ()
            # The network is repaired: the name leads to the master now.
            await forward(cluster, wrong, Address(master.host, 10912))
            await in_sync(master, 2, 6.0)
            assert (await producer.send(Message(TOPIC, b"late"))).status is SendStatus.OK


@pytest.mark.parametrize("away_s", [0.2, 3, 30])
async def test_a_master_that_comes_back_has_its_slave_again_within_six_seconds(
    autojump_clock, away_s
):
    async with pair() as cluster:
        master, slave = cluster.brokers
        await send(cluster)
        await copied(master, slave)
        await master.kill()
        await trio.sleep(away_s)
        await master.start()
        began_s = trio.current_time()
        await in_sync(master, 2, 6.0)
        assert trio.current_time() - began_s <= 6
        await send(cluster, 5)
        await copied(master, slave)


async def test_c062_a_slave_that_is_ahead_is_told_on_both_sides_and_copies_nothing(
    autojump_clock, caplog
):
    """The master loses its tail in a power cut; the slave has it."""
    async with pair() as cluster:
        master, slave = cluster.brokers
        await send(cluster, 10)
        kept, ahead = await lose_tail(cluster, master, slave)
        await replica(slave).state.reached(LinkState.SUSPEND, 30)
        await trio.sleep(0.1)
        view = replica(slave).view
        assert view.reason.startswith(
            f"slave ahead: this log ends at {ahead}, the master's at {kept}"
        )
        (shown,) = primary(master).slaves
        assert (shown.ahead, shown.reported, shown.behind_bytes) == (True, ahead, 0)
        assert (
            f"reports the log end {ahead}, but the log of this master ends at {kept}" in caplog.text
        )
        assert primary(master).in_sync_count == 1
        assert primary(master).pushed.value == 0
        # The master goes on, past the slave's end: it stays as it is, and says what is different now.
        await send(cluster, 60)
        await trio.sleep(61)
        assert replica(slave).view.reason.startswith("diverged: ")
        assert log_end(slave) == ahead
        assert all(shown.behind_bytes >= 0 for shown in primary(master).slaves)


async def test_c062_what_cuts_a_slave_that_is_ahead_is_a_setting(autojump_clock):
    async with pair() as cluster:
        master, slave = cluster.brokers
        slave.settings = attrs.evolve(
            slave.settings, ha=attrs.evolve(slave.settings.ha, cut_when_ahead=True)
        )
        await slave.restart()
        await send(cluster, 10)
        await lose_tail(cluster, master, slave)
        await send(cluster, 10)
        await copied(master, slave)
        assert replica(slave).state.state is LinkState.TRANSFER
        assert slave.disk.list_dir("/store/quarantine")


async def test_c073_a_slave_that_was_away_catches_up_under_load(autojump_clock):
    """Five seconds away, and producers that never stop: the lag only shrinks, down to nothing."""
    async with pair() as cluster:
        master, slave = cluster.brokers
        cluster.network.throttle(slave.host, 200_000, master.host)
        lags = []

        async def load():
            async with Producer(cluster.nameserver) as producer:
                while True:
                    await producer.send(Message(TOPIC, b"x" * 4000))
                    await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            await trio.sleep(1)
            await slave.stop()
            await trio.sleep(5)
            await slave.start()
            await replica(slave).state.reached(LinkState.TRANSFER, 10)
            for _ in range(20):
                lags.append(log_end(master) - log_end(slave))
                await trio.sleep(0.5)
            nursery.cancel_scope.cancel()
        assert lags[0] > 300_000
        assert all(after < before or after < 20_000 for before, after in pairwise(lags))
        assert lags[-1] < 20_000
        assert replica(slave).view.reconnects == 0
        await copied(master, slave)


async def test_a_slave_with_sync_flush_reports_what_is_durable_through_all_of_it(autojump_clock):
    async with SimulatedCluster(
        store={"flush_disk_type": FlushDiskType.SYNC_FLUSH},
        ha={"role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2},
    ) as cluster:
        master = cluster.brokers[0]
        slave = cluster.add_slave(master)
        await slave.start()
        await cluster.create_topic(TOPIC, 4, master)
        await in_sync(master, 2)
        async with Producer(cluster.nameserver) as producer:
            for n in range(30):
                sent = await producer.send(Message(TOPIC, b"%d" % n))
                assert sent.status is SendStatus.OK
                assert slave.inside.store.log.durable.value == log_end(master)
            cluster.network.sever(master.host, slave.host)
            await trio.sleep(30)
            cluster.network.mend(master.host, slave.host)
            await in_sync(master, 2)
            assert (await producer.send(Message(TOPIC, b"again"))).status is SendStatus.OK


async def test_a_slave_whose_master_is_unreachable_stops_at_once(autojump_clock):
    async with pair() as cluster:
        master, slave = cluster.brokers
        await copied(master, slave)
        for wait_s in (0.0, 21.0, 23.0, 27.5):
            cluster.network.sever(master.host, slave.host)
            await trio.sleep(wait_s)
            began_s = trio.current_time()
            await slave.stop()
            assert trio.current_time() - began_s <= 0.5
            cluster.network.mend(master.host, slave.host)
            await slave.start()
            await in_sync(master, 2)


async def test_each_change_of_state_is_a_line(autojump_clock, caplog):
    caplog.set_level(logging.INFO, "trio_mq.ha")
    async with pair() as cluster:
        master, slave = cluster.brokers
        await copied(master, slave)
        await master.stop()
        await trio.sleep(1)
        await slave.stop()
    told = [
        r.getMessage() for r in caplog.records if r.getMessage().startswith("link to the master")
    ]
    assert [line.split(": ")[1] for line in told] == [
        "READY to TRANSFER",
        "TRANSFER to READY",
        "READY to SHUTDOWN",
    ]


@pytest.mark.parametrize("away_s", [0.0, 25.0])
async def test_a_topic_that_is_made_again_begins_anew_on_the_slave(autojump_clock, away_s):
    """Whether the slave's table of topics heard of the deletion in between, or not; and after its restarts."""

    def queues(node):
        found = node.inside.store.queues.of_topic(TOPIC)
        return {queue.queue_id: queue.max_offset for queue in found if queue.max_offset}

    async with pair() as cluster:
        master, slave = cluster.brokers
        await send(cluster)
        await copied(master, slave)
        await forget(str(master.address), [TOPIC], [])
        await trio.sleep(away_s)
        known = slave.inside.broker.topics.get(TOPIC)
        assert (known is None) == bool(away_s)
        await cluster.create_topic(TOPIC, 4, master)
        await send(cluster, 6)
        await copied(master, slave)
        await trio.sleep(1)
        assert queues(slave) == queues(master)
        assert sum(queues(master).values()) == 6
        for end in (slave.stop, slave.kill):
            await end()
            await slave.start()
            assert queues(slave) == queues(master)
