"""Tables of a slave on a whole cluster: they become the master's, and a slave that is promoted goes on from them."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random

import attrs
import pytest
import trio

from tests.broker.timer_support import out_of
from tests.client.simulations import consumer, send
from tests.marks import first_fast
from trio_mq import Message, Producer, TransactionState
from trio_mq.broker.follow import PERIOD_S, ItemState
from trio_mq.config.ha import BrokerRole
from trio_mq.protocol import jsondialect
from trio_mq.protocol.bodies import SetMessageRequestModeBody
from trio_mq.testing.cluster import SimulatedCluster
from trio_mq.testing.nodes import BrokerNode

TOPIC = "T"
#: Until the slave has what its master has just got.
FOLLOWED_S = PERIOD_S + 2.0


@asynccontextmanager
async def pair(**settings):
    """A master, its slave which follows, and a topic of two queues."""
    async with SimulatedCluster(**settings) as cluster:
        (master,) = cluster.brokers
        slave = cluster.add_slave(master)
        await cluster.start(slave)
        await cluster.create_topic(TOPIC, 2, master)
        yield cluster, master, slave


def tables(node: BrokerNode):
    """What a slave copies, as a broker has it in memory."""
    broker = node.inside.broker
    files = broker._tables
    found = {file.path: file.table.to_json() for file in files.files}
    copied = ("topics", "subscriptionGroup", "consumerOffset", "delayOffset", "messageRequestMode")
    found = {path.rpartition("/")[2].removesuffix(".json"): v for path, v in found.items()}
    found = {name: found[name] for name in copied}
    found["timermetrics"] = broker.timers.metrics.to_json()
    return jsondialect.loads(jsondialect.dumps(found, standard=True))


async def promote(slave: BrokerNode) -> None:
    """Start the store of a slave as a master: what an operator does when the master is lost."""
    await slave.stop()
    await start_as_master(slave)


async def start_as_master(slave: BrokerNode) -> None:
    settings = slave.settings
    slave.settings = attrs.evolve(
        settings,
        broker=attrs.evolve(settings.broker, broker_id=0),
        ha=attrs.evolve(settings.ha, role=BrokerRole.ASYNC_MASTER),
    )
    await slave.start()


def came(node: BrokerNode) -> Counter[bytes]:
    """What consumers of the topic get from a broker, and how often."""
    assert node.inside is not None
    queues = (out_of(node.inside.store, TOPIC, queue_id) for queue_id in range(2))
    return Counter(one.record.body for queue in queues for one in queue)


def slow_down(slave: BrokerNode) -> None:
    """Let a slave take nothing more of its master's log, while all else goes on."""
    replica = slave.inside.replication.replica
    replica._copy.append = lambda *_: _raise()


def _raise():
    raise OSError(28, "no space left on device")


async def read(cluster, count):
    """Let a consumer take so many messages, and end in order."""
    async with consumer(cluster) as reading:
        await take(reading, count)


async def take(reading, count):
    if count <= 0:
        return
    with trio.fail_after(60):
        async for message in reading:
            async with message:
                count -= 1
            if not count:
                return


def numbered(prefix, count):
    return [b"%s-%d" % (prefix, number) for number in range(count)]


async def test_each_table_becomes_the_masters(autojump_clock):
    async with pair() as (cluster, master, slave):
        await cluster.create_topic("U", 7, master)
        await send(cluster, *numbered(b"m", 10))
        await send(cluster, *numbered(b"level", 3), delay_level=1)
        await send(cluster, *numbered(b"timer", 3), deliver_after=timedelta(seconds=100))
        await read(cluster, 10)
        mode = SetMessageRequestModeBody(TOPIC, "G", "POP", 3)
        master.inside.broker._tables.modes.table.set_mode(mode)
        await trio.sleep(FOLLOWED_S)
        theirs, ours = tables(master), tables(slave)
        assert ours == theirs
        assert sum(theirs["consumerOffset"]["offsetTable"]["T@G"].values()) == 10
        assert theirs["delayOffset"]["offsetTable"]["1"] == 3
        assert theirs["timermetrics"]["timingCount"]["T"]["count"] == 3
        assert slave.inside.broker.timers.state.checkpoint.primary_queue_offset == 3
        assert {v.state for v in slave.inside.replication.tables.views} == {ItemState.GOOD}
        await master.stop()
        await slave.restart()
        assert tables(slave) == theirs, "it is all in its files"


async def test_c070_delayed_messages_at_a_promoted_slave(autojump_clock):
    """C070: at most one sync period of repeats, none lost; levels, and timers of any time."""
    async with pair() as (cluster, master, slave):
        level, timer = numbered(b"level", 100), numbered(b"timer", 100)
        await send(cluster, *level, delay_level=1)
        await send(cluster, *timer, deliver_after=timedelta(seconds=2))
        await trio.sleep(4)
        assert came(master).keys() == {*level, *timer}
        await trio.sleep(FOLLOWED_S)
        since = numbered(b"since", 10)
        await send(cluster, *since[:5], delay_level=1)
        await send(cluster, *since[5:], deliver_after=timedelta(seconds=1))
        await trio.sleep(3)
        assert came(master).keys() == {*level, *timer, *since}
        ahead = numbered(b"ahead", 20)
        await send(cluster, *ahead[:10], delay_level=4)
        await send(cluster, *ahead[10:], deliver_after=timedelta(seconds=30))
        await trio.sleep(0.5)
        await master.kill()
        await trio.sleep(40)  # what is due meanwhile comes when there is a master
        await promote(slave)
        await trio.sleep(40)
        counts = came(slave)
        assert counts.keys() == {*level, *timer, *since, *ahead}
        repeated = {body for body, count in counts.items() if count > 1}
        assert repeated <= set(since)
        assert max(counts.values()) <= 2


@pytest.mark.parametrize("behind_s", [3.0, 25.0])
async def test_c070_a_slave_whose_log_is_behind_loses_no_delayed_message(autojump_clock, behind_s):
    """The master's progress comes over another connection than its log, and may be ahead of that."""
    async with pair() as (cluster, master, slave):
        bodies = numbered(b"level", 40)
        await send(cluster, *bodies[:20], delay_level=3)
        await send(cluster, *bodies[20:], deliver_after=timedelta(seconds=10))
        await trio.sleep(5)
        slow_down(slave)
        await trio.sleep(5 + behind_s)
        assert came(master).keys() == set(bodies)
        assert not came(slave), "the log is behind"
        assert slave.inside.replication.tables.master is not None
        await master.kill()
        await promote(slave)
        await trio.sleep(30)
        assert came(slave) == dict.fromkeys(bodies, 1)


async def test_c070_half_messages_are_checked_by_a_promoted_slave(autojump_clock):
    asked = []

    async def check(message):
        asked.append(message.body)
        return TransactionState.COMMIT

    async def say(state):
        async def local(_):
            return state

        return local

    async with (
        pair() as (cluster, master, slave),
        Producer(cluster.nameserver, "P", check_transaction=check) as producer,
    ):
        for body, state in (
            (b"done", TransactionState.COMMIT),
            (b"undone", TransactionState.ROLLBACK),
            (b"open", TransactionState.UNKNOWN),
        ):
            await producer.send_in_transaction(Message(TOPIC, body), await say(state))
        await trio.sleep(FOLLOWED_S)
        await master.kill()
        await promote(slave)
        await cluster.registered(slave)
        await trio.sleep(180)
        assert came(slave) == {b"done": 1, b"open": 1}
        assert set(asked) == {b"open"}


async def test_what_was_read_from_the_slave_is_not_rolled_back_by_a_master_that_returns(
    autojump_clock,
):
    async with pair(ha={"slave_read_enable": True}) as (cluster, master, slave):
        await send(cluster, *numbered(b"m", 20))
        await read(cluster, 5)
        await trio.sleep(FOLLOWED_S)
        await master.kill()
        await trio.sleep(1)
        await read(cluster, 10)
        committed = tables(slave)["consumerOffset"]["offsetTable"]["T@G"]
        assert sum(committed.values()) > 5
        await master.start()
        await cluster.registered(master)
        await trio.sleep(60)
        assert tables(slave)["consumerOffset"]["offsetTable"]["T@G"] == committed
        async with consumer(cluster) as reading:  # as consumers do that lived on
            await take(
                reading, 20 - sum(tables(master)["consumerOffset"]["offsetTable"]["T@G"].values())
            )
        await trio.sleep(FOLLOWED_S)
        assert tables(slave)["consumerOffset"] == tables(master)["consumerOffset"]
        assert sum(tables(slave)["consumerOffset"]["offsetTable"]["T@G"].values()) == 20


async def test_a_slave_without_its_master_keeps_all_and_follows_again(autojump_clock):
    async with pair() as (cluster, master, slave):
        await trio.sleep(FOLLOWED_S)
        await master.stop()
        await trio.sleep(600)
        assert tables(slave)["topics"]["topicConfigTable"].keys() >= {TOPIC}
        await master.start()
        await cluster.registered(master)
        await cluster.create_topic("U", 1, master)
        await trio.sleep(60 + FOLLOWED_S)
        assert "U" in tables(slave)["topics"]["topicConfigTable"]


@pytest.mark.parametrize("seed", first_fast(range(20)))
async def test_c070_whenever_the_master_is_lost(autojump_clock, seed):
    """Delays of all kinds, a network that is slow at times, an end at any moment: none lost, and few come twice."""
    random = Random(seed)
    async with pair(delay_s=0.001) as (cluster, master, slave):
        sent, began_s = {}, trio.current_time()
        ends_s = random.uniform(5, 40)
        number = 0
        while (age_s := trio.current_time() - began_s) < ends_s:
            body = b"%d" % number
            if random.random() < 0.5:
                level = random.choice((1, 2, 3))
                sent[body] = age_s + (1, 5, 10)[level - 1]
                await send(cluster, body, delay_level=level)
            else:
                delay_s = random.uniform(1, 30)
                sent[body] = age_s + delay_s
                await send(cluster, body, deliver_after=timedelta(seconds=delay_s))
            number += 1
            if random.random() < 0.1:
                slave.delay(random.choice((0.0, 0.2, 1.0)), master.host)
            await trio.sleep(random.uniform(0, 1))
        slave.delay(0.0, master.host)
        await trio.sleep(random.uniform(0, 1.5))
        replicated = slave.inside.store.log.written == master.inside.store.log.written
        delivered = came(master)
        lost_s = trio.current_time() - began_s
        await master.kill()
        await trio.sleep(random.uniform(0, 10))
        await promote(slave)
        await trio.sleep(60)
        counts = came(slave)
        if replicated:
            assert counts.keys() == sent.keys()
        repeated = {body for body, count in counts.items() if count > 1}
        assert max(counts.values()) <= 2
        assert repeated <= delivered.keys()
        early = {body for body in repeated if sent[body] < lost_s - PERIOD_S - 5}
        assert not early, "they were delivered before the last sync"
