"""Sends that wait for replicas, on a whole simulated cluster: what producers are told, and when."""

from __future__ import annotations

import logging
from collections import Counter

import attrs
import pytest
import trio

from tests.ha.synchronous import (
    DEADLINE_S,
    GRACE_S,
    TOPIC,
    in_sync,
    log_end,
    primary,
    scripted,
    sync_cluster,
)
from trio_mq import Consumer, Message, Producer, SendStatus
from trio_mq.config import FlushDiskType

OK, LATE = SendStatus.OK, SendStatus.FLUSH_SLAVE_TIMEOUT


def message(body=b"m", **more):
    return Message(TOPIC, body, **more)


async def timed(producer, *messages):
    """Statuses of some sends, and how long the last took."""
    began_s = trio.current_time()
    statuses = [(await producer.send(one)).status for one in messages]
    return statuses, trio.current_time() - began_s


async def test_a_send_is_answered_when_the_slave_has_it(autojump_clock):
    async with sync_cluster() as cluster, Producer(cluster.nameserver) as producer:
        master, slave = cluster.brokers
        for number in range(20):
            assert (await producer.send(message(b"%d" % number))).status is OK
            assert log_end(slave) == log_end(master), "the slave has it when the sender hears of it"


async def test_many_sends_at_once_wait_for_one_report(autojump_clock):
    async with sync_cluster() as cluster, Producer(cluster.nameserver) as producer:
        statuses = Counter()

        async def one(number):
            statuses[(await producer.send(message(b"%d" % number))).status] += 1

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(one, number)
        assert statuses == {OK: 200}


# -- nobody there


async def test_without_a_slave_the_status_comes_by_the_deadline(autojump_clock):
    """Scenario 15: stored and delivered all the same; who waits for nothing, and everybody else, notices nothing."""
    async with sync_cluster(slaves=0) as cluster, Producer(cluster.nameserver) as producer:
        (master,) = cluster.brokers
        others = []

        async def hasty():
            while True:
                statuses, took_s = await timed(producer, message(b"hasty", wait_store_ok=False))
                others.append((statuses, took_s))
                await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hasty)
            statuses, took_s = await timed(producer, message())
            nursery.cancel_scope.cancel()
        assert statuses == [LATE]
        assert DEADLINE_S <= took_s <= DEADLINE_S + GRACE_S
        assert len(others) > 20
        assert all(statuses == [OK] and took_s < GRACE_S for statuses, took_s in others)
        async with Consumer(
            cluster.nameserver, "G", subscribe={TOPIC: "*"}, from_where="first"
        ) as c:
            with trio.fail_after(30):
                async for got in c:
                    if got.body == b"m":
                        break
        assert len(primary(master).slaves) == 0


async def test_a_slave_that_comes_releases_those_who_wait(autojump_clock):
    async with sync_cluster(slaves=0) as cluster, Producer(cluster.nameserver) as producer:
        master = cluster.brokers[0]
        await producer.send(message(wait_store_ok=False))
        slave = cluster.add_slave(master)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slave.start)
            statuses, took_s = await timed(producer, message())
        assert statuses == [OK]
        assert took_s < DEADLINE_S


# -- cases from the field


async def test_c061_bytes_that_are_no_slave_do_not_confirm_a_send(autojump_clock, caplog):
    """C061: eight bytes that say "I have everything": that connection is closed, and nothing counts."""
    caplog.set_level(logging.WARNING, "trio_mq.ha")
    async with sync_cluster(slaves=0) as cluster, Producer(cluster.nameserver) as producer:
        (master,) = cluster.brokers
        await producer.send(message(wait_store_ok=False))
        async with scripted(cluster, at=0x7FFF_FFFF_FFFF_FFFF) as stranger:
            statuses, took_s = await timed(producer, message())
            assert statuses == [LATE]
            assert took_s >= DEADLINE_S
            assert stranger.closed.is_set()
        assert primary(master).in_sync_count == 1
        assert primary(master).pushed.value <= log_end(master)
        assert str(0x7FFF_FFFF_FFFF_FFFF) in caplog.text
        assert "10.8.0.1" in caplog.text


async def test_c061_with_a_slave_that_is_honest(autojump_clock):
    async with sync_cluster() as cluster, Producer(cluster.nameserver) as producer:
        slave = cluster.brokers[1]
        slave.partition()
        for at in (0x7FFF_FFFF_FFFF_FFFF, -1, -(1 << 63)):
            async with scripted(cluster, at=at) as stranger:
                assert (await producer.send(message())).status is LATE
                assert stranger.closed.is_set(), at
        slave.heal()
        await in_sync(cluster.brokers[0], 2)
        assert (await producer.send(message())).status is OK


@pytest.mark.slow
async def test_c065_waiters_are_not_held_up_by_those_who_do_not_wait(autojump_clock):
    """C065: topic A is flooded without waiting, topic B has 100 sends a second that wait. The slave is healthy."""
    async with sync_cluster() as cluster, Producer(cluster.nameserver) as producer:
        await cluster.create_topic("A", 4, cluster.brokers[0])
        seconds, statuses, slowest_s = 3, Counter(), 0.0
        flood = Counter()

        async def waits():
            nonlocal slowest_s
            found, took_s = await timed(producer, message())
            statuses.update(found)
            slowest_s = max(slowest_s, took_s)

        async def floods():
            while True:
                one = Message("A", bytes(1000), wait_store_ok=False)
                flood[(await producer.send(one)).status] += 1
                await trio.sleep(0.003)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(floods)
            async with trio.open_nursery() as waiting:
                for _ in range(100 * seconds):
                    waiting.start_soon(waits)
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert statuses == {OK: 100 * seconds}
        assert slowest_s < 0.5
        assert list(flood) == [OK]
        assert flood[OK] > 1000


async def test_c065_each_has_its_own_deadline(autojump_clock):
    """C065: one that nobody can confirm in time holds up nobody: the next one is confirmed meanwhile."""
    async with (
        sync_cluster(slaves=0) as cluster,
        Producer(cluster.nameserver) as producer,
        scripted(cluster, reports=False) as slave,
    ):
        found = {}

        async def one(name, after_s):
            await trio.sleep(after_s)
            found[name] = await timed(producer, message(name.encode()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "first", 0.0)
            nursery.start_soon(one, "second", 2.0)
            await trio.sleep(3.0)  # the first is late by now
            await slave.report()
        assert found["first"][0] == [LATE]
        assert found["first"][1] == pytest.approx(DEADLINE_S, abs=GRACE_S)
        assert found["second"][0] == [OK]
        assert found["second"][1] == pytest.approx(1.0, abs=GRACE_S)


async def test_c067_our_client_is_told_before_its_own_time_is_over(autojump_clock):
    """C067: a silent slave, a producer with its default of 3 s: the broker's status, no time-out, no second send."""
    async with sync_cluster() as cluster, Producer(cluster.nameserver) as producer:
        master, slave = cluster.brokers
        slave.partition()
        before = log_end(master)
        statuses, took_s = await timed(producer, message())
        assert statuses == [LATE]
        assert DEADLINE_S <= took_s < 3.0
        once = log_end(master) - before
        statuses, _ = await timed(producer, message())
        assert log_end(master) - before == 2 * once, "stored once for each send"


async def test_another_broker_is_tried_only_if_asked_to(autojump_clock):
    """retryAnotherBrokerWhenNotStoreOK."""
    async with sync_cluster(slaves=0) as cluster:
        other = cluster.add_broker("broker-b")
        other.settings = attrs.evolve(
            other.settings, ha=attrs.evolve(other.settings.ha, in_sync_replicas=1)
        )
        await cluster.start(other)
        await cluster.create_topic(TOPIC, 4, other)
        for again, expected in ((False, {LATE, OK}), (True, {OK})):
            found = set()
            async with Producer(
                cluster.nameserver, retry_another_broker_when_not_store_ok=again
            ) as producer:
                for _ in range(8):
                    receipt = await producer.send(message())
                    found.add(receipt.status)
                    assert receipt.status is LATE or receipt.queue.broker_name == "broker-b"
            assert found == expected


# -- several slaves


async def test_one_slave_of_two_is_enough_and_the_slow_one_slows_nobody(autojump_clock):
    """Scenario 16."""
    async with sync_cluster(slaves=2) as cluster, Producer(cluster.nameserver) as producer:
        cluster.brokers[2].throttle(100)
        statuses, took_s = await timed(producer, *[message(bytes(500)) for _ in range(50)])
        assert set(statuses) == {OK}
        assert took_s < 1
        assert log_end(cluster.brokers[1]) == log_end(cluster.brokers[0])
        assert log_end(cluster.brokers[2]) < log_end(cluster.brokers[0])


async def test_both_slaves_are_waited_for_if_asked_to(autojump_clock):
    async with (
        sync_cluster(slaves=2, in_sync_replicas=3) as cluster,
        Producer(cluster.nameserver) as producer,
    ):
        assert (await producer.send(message())).status is OK
        cluster.brokers[2].partition()
        assert (await producer.send(message())).status is LATE
        cluster.brokers[2].heal()
        await in_sync(cluster.brokers[0], 3)
        await trio.sleep(30)
        assert (await producer.send(message())).status is OK


async def test_all_that_are_in_sync_are_waited_for_if_asked_to(autojump_clock):
    async with (
        sync_cluster(slaves=0, in_sync_replicas=1, all_ack_in_sync_state_set=True) as cluster,
        Producer(cluster.nameserver) as producer,
    ):
        assert (await producer.send(message())).status is OK, "there is none"
        async with scripted(cluster, "10.8.0.1"), scripted(cluster, "10.8.0.2") as second:
            assert (await producer.send(message())).status is OK
            second.reports = False
            assert (await producer.send(message())).status is LATE
            second.reports = True


async def test_two_links_from_one_host_count_twice_and_the_older_one_stays(autojump_clock):
    """Scenario 16: connections count, as with Apache."""
    async with (
        sync_cluster(slaves=0, in_sync_replicas=3) as cluster,
        Producer(cluster.nameserver) as producer,
        scripted(cluster, "10.8.0.1") as older,
    ):
        assert (await producer.send(message())).status is LATE
        async with scripted(cluster, "10.8.0.1") as newer:
            assert (await producer.send(message())).status is OK
            assert len(primary(cluster.brokers[0]).slaves) == 2
            assert not older.closed.is_set()
            assert newer.end == older.end == log_end(cluster.brokers[0])


async def test_a_report_after_the_deadline(autojump_clock):
    """The record stays where it is, is not sent again, and the next send is as good as ever."""
    async with sync_cluster() as cluster, Producer(cluster.nameserver) as producer:
        master, slave = cluster.brokers
        slave.delay(4.0, master.host)  # a report is 8 s behind
        before = log_end(master)
        assert (await producer.send(message())).status is LATE
        once = log_end(master) - before
        await trio.sleep(10)
        assert log_end(master) == log_end(slave) == before + once
        slave.delay(0.0, master.host)
        await trio.sleep(10)
        statuses, took_s = await timed(producer, message())
        assert (statuses, took_s < 1) == ([OK], True)


# -- together with sync flush, and without


async def test_with_sync_flush_on_the_slave_its_disk_is_waited_for(autojump_clock):
    async with sync_cluster(slaves=0) as cluster, Producer(cluster.nameserver) as producer:
        slave = cluster.add_slave(cluster.brokers[0])
        store = attrs.evolve(slave.settings.store, flush_disk_type=FlushDiskType.SYNC_FLUSH)
        slave.settings = attrs.evolve(slave.settings, store=store)
        await slave.start()
        await in_sync(cluster.brokers[0], 2)
        slave.disk.run_delay_s = 0.3
        statuses, took_s = await timed(producer, message())
        assert statuses == [OK]
        assert took_s >= 0.3
        end = log_end(cluster.brokers[0])
        await slave.crash(1, keep="none")
        await slave.start()
        assert log_end(slave) == end, "what was answered survives a power cut of the slave"


@pytest.mark.parametrize("settings", [{"in_sync_replicas": 1}, {"in_sync_replicas": 0}])
async def test_a_master_that_wants_nobody_waits_for_nobody(autojump_clock, settings):
    async with (
        sync_cluster(slaves=0, **settings) as cluster,
        Producer(cluster.nameserver) as producer,
    ):
        statuses, took_s = await timed(producer, message())
        assert (statuses, took_s < GRACE_S) == ([OK], True)


async def test_nothing_is_taken_while_too_few_are_in_sync(autojump_clock):
    """IN_SYNC_REPLICAS_NOT_ENOUGH: refused at once, and nothing is stored."""
    settings = {"enable_slave_acting_master": True, "enable_auto_in_sync_replicas": True}
    async with sync_cluster(min_in_sync_replicas=2, **settings) as cluster:
        master, slave = cluster.brokers
        async with Producer(cluster.nameserver) as producer:
            assert (await producer.send(message())).status is OK
            await slave.stop()
            before, began_s = log_end(master), trio.current_time()
            with pytest.raises(Exception, match="in-sync replicas not enough, 1 of the 2"):
                await producer.send(message())
            assert log_end(master) == before
            assert trio.current_time() - began_s < 1
            assert (await producer.send(message(wait_store_ok=False))).status is OK
            await slave.start()
            await in_sync(master, 2)
            await trio.sleep(3)
            assert (await producer.send(message())).status is OK
