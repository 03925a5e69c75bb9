"""When sends are answered: rules of waiting, disk and replicas side by side, refusals."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.broker.replicas import (
    LATE,
    NO_WAIT,
    OK,
    REFUSED,
    SYNC_FLUSH,
    TWO,
    FakeReplicas,
    FakeSlave,
    codes,
    replicated,
)
from tests.broker.support import (
    FakePeer,
    oneway,
    props,
    pull,
    send,
    serving,
    texts,
)
from trio_mq.broker.safety import PutStatus, Safety
from trio_mq.config.ha import BrokerRole, HASettings
from trio_mq.errors import RequestRefused
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.message import BatchItem, join_batch

# -- the rules of waiting


@pytest.mark.parametrize(
    ("settings", "in_sync", "needed"),
    [
        ({"role": BrokerRole.ASYNC_MASTER, "in_sync_replicas": 2}, 2, None),
        ({"role": BrokerRole.SLAVE, "in_sync_replicas": 2}, 2, None),
        ({}, 2, None),
        ({"in_sync_replicas": 0}, 2, None),
        ({"in_sync_replicas": 2}, 1, 2),
        ({"in_sync_replicas": 3}, 5, 3),
        ({"min_in_sync_replicas": 2}, 2, None),
        ({"in_sync_replicas": 3, "enable_auto_in_sync_replicas": True}, 1, 3),
        ({"all_ack_in_sync_state_set": True}, 1, None),
        ({"all_ack_in_sync_state_set": True}, 4, 4),
        ({"all_ack_in_sync_state_set": True, "in_sync_replicas": 2}, 1, 2),
        ({"all_ack_in_sync_state_set": True, "role": BrokerRole.ASYNC_MASTER}, 3, None),
    ],
)
async def test_how_many_replicas_a_put_waits_for(autojump_clock, settings, in_sync, needed):
    """Without a slave that acts as master. Apache: CommitLog.handleHA."""
    replicas = FakeReplicas(in_sync_count=in_sync)
    ha = HASettings(**{"role": BrokerRole.SYNC_MASTER} | settings)
    async with serving() as bench:
        safety, told = Safety(bench.store, ha, replicas), []
        assert safety.refusal() is None
        safety.when_safe(100, told.append)
        assert [(end, n) for end, n, _ in replicas.waits] == ([(100, needed)] if needed else [])
        assert told == ([] if needed else [PutStatus.PUT_OK])
        assert safety.waits is safety.waits_for_replicas
        assert safety.waits or not needed


@pytest.mark.parametrize(
    ("wanted", "auto", "least", "in_sync", "alive", "needed"),
    [
        (2, False, 1, 1, None, None),
        (2, False, 1, 2, None, 2),
        (2, False, 1, 2, 1, None),
        (3, True, 1, 1, None, 1),
        (3, True, 1, 2, None, 2),
        (3, True, 1, 3, 2, 2),
        (3, True, 2, 1, None, None),
        (3, True, 2, 2, 1, None),
        (3, True, 2, 2, 9, 2),
        (2, True, 3, 3, None, 3),
        (1, True, 2, 1, None, None),
        (1, True, 2, 2, None, 2),
        (1, False, 2, 1, None, 1),
    ],
)
async def test_how_many_where_a_slave_may_act_as_master(
    autojump_clock, wanted, auto, least, in_sync, alive, needed
):
    """`needed` None is a refusal. Apache: CommitLog.calcNeedAckNums."""
    replicas = FakeReplicas(in_sync_count=in_sync)
    ha = HASettings(
        role=BrokerRole.SYNC_MASTER,
        in_sync_replicas=wanted,
        enable_slave_acting_master=True,
        enable_auto_in_sync_replicas=auto,
        min_in_sync_replicas=least,
    )
    async with serving() as bench:
        safety = Safety(bench.store, ha, replicas)
        safety.alive_replicas = lambda: alive
        if needed is None:
            with pytest.raises(RequestRefused, match="in-sync replicas not enough") as refused:
                safety.check()
            assert refused.value.code == REFUSED
            return
        safety.check()
        safety.when_safe(100, lambda _: None)
        assert [n for _, n, _ in replicas.waits] == ([needed] if needed > 1 else [])


def test_the_codes_are_those_of_the_peers():
    assert {status.name: int(status.code) for status in PutStatus} == {
        "PUT_OK": 0,
        "FLUSH_DISK_TIMEOUT": 10,
        "FLUSH_SLAVE_TIMEOUT": 12,
        "IN_SYNC_REPLICAS_NOT_ENOUGH": 1,
    }


async def test_replicas_that_nobody_knows_are_not_passed_over(autojump_clock):
    async with serving() as bench:
        with pytest.raises(AssertionError):
            Safety(bench.store, TWO)


# -- sends


async def test_a_send_is_answered_when_a_slave_has_it(autojump_clock):
    async with replicated() as (bench, slaves):
        peer, hasty = FakePeer(), FakePeer()
        bench.hand(peer, send(body=b"1"), send(body=b"2"))
        bench.hand(hasty, send(body=b"3", properties=NO_WAIT))
        assert (codes(peer), codes(hasty)) == ([], [OK])
        assert texts(bench.ask(pull())) == [b"1", b"2", b"3"], "visible before"
        assert slaves.finish(True) == 1, "the sends of a receive share a waiter"
        assert codes(peer) == [OK, OK]
        assert peer.writes == 1


async def test_batches_and_old_sends_wait_too(autojump_clock):
    async with replicated() as (bench, slaves):
        peer = FakePeer()
        batch = join_batch([BatchItem(0, b"a", b""), BatchItem(0, b"b", b"")])
        for frame in (
            send(body=batch, batch=True, code=320),
            send(code=RequestCode.SEND_MESSAGE),
            send(properties=props(DELAY="1")),
            send(long_way=True),
        ):
            bench.hand(peer, frame)
            assert codes(peer) == []
            (end, needed, _) = slaves.waits[0]
            assert (end, needed) == (bench.store.log.written, 2)
            slaves.finish(True)
            assert codes(peer) == [OK]


async def test_who_waits_for_nothing_passes_those_who_wait(autojump_clock):
    async with replicated() as (bench, slaves):
        peer = FakePeer()
        frames = send(opaque=1), send(opaque=2, properties=NO_WAIT), oneway(send()), send(opaque=3)
        bench.hand(peer, *frames)
        assert [reply.opaque for reply in peer.take()] == [2]
        slaves.finish(True)
        assert [reply.opaque for reply in peer.take()] == [1, 3]
        bench.hand(peer, oneway(send()))
        assert not slaves.waits, "nobody is told"


async def test_a_late_slave_is_code_12_with_the_ids(autojump_clock):
    async with replicated() as (bench, slaves):
        slaves.slaves[0].ack_offset = 0
        peer = FakePeer()
        bench.hand(peer, send(opaque=1), oneway(send()), send(opaque=2))
        lacks = bench.store.log.written
        slaves.finish(False)
        replies = peer.take()
        assert [(r.opaque, r.code) for r in replies] == [(1, LATE), (2, LATE)]
        assert [r.ext["queueOffset"] for r in replies] == ["0", "2"]
        assert all(r.ext["msgId"] and r.ext["MSG_REGION"] for r in replies)
        remark = replies[0].remark
        assert remark.startswith("stored, but only this broker has it after 2500 ms (slaveTimeout)")
        assert f"slave 10.1.0.2:40000 lacks {lacks} bytes" in remark
        assert len(texts(bench.ask(pull()))) == 3, "stored all the same"


@pytest.mark.parametrize(
    ("slaves", "text"),
    [
        ([], "only this broker has it after 2500 ms (slaveTimeout): no slave is connected; start"),
        ([FakeSlave()], "slave 10.1.0.2:40000 has not told yet what it has;"),
        ([FakeSlave(ack_offset=999, ahead=True)], "10.1.0.2:40000 is ahead of this broker, and"),
        ([FakeSlave(ack_offset=100)], "this broker and 1 slaves have it after 2500 ms"),
        ([FakeSlave(ack_offset=100)], "all slaves that are connected have it; start one more"),
        (
            [FakeSlave(ack_offset=n) for n in (90, 91, 92, 93, 94, 100)],
            "slave 10.1.0.2:40000 lacks 10 bytes, 10.1.0.2:40000 lacks 9 bytes, "
            "10.1.0.2:40000 lacks 8 bytes and 2 more; see `trio-mq status`",
        ),
    ],
)
async def test_the_remark_says_who_lacks_what(autojump_clock, slaves, text):
    async with serving() as bench:
        safety = Safety(bench.store, TWO, FakeReplicas(slaves))
        assert text in safety.remark(PutStatus.FLUSH_SLAVE_TIMEOUT, 100)


async def test_nothing_is_stored_without_enough_replicas(autojump_clock):
    ha = attrs.evolve(TWO, enable_slave_acting_master=True)
    replicas = FakeReplicas([], in_sync_count=1)
    async with replicated(ha, replicas=replicas) as (bench, _):
        batch = join_batch([BatchItem(0, b"a", b"")])
        for frame in (
            send(),
            send(properties=props(DELAY="1")),
            send(properties=props(TRAN_MSG="true", PGROUP="PG"), sys_flag=4),
            send(body=batch, batch=True, code=320),
        ):
            reply = bench.ask(frame)
            assert reply.code == REFUSED
            assert "not stored: in-sync replicas not enough, 1 of the 2" in reply.remark
            assert "no slave is connected" in reply.remark
        assert bench.store.log.written == 0
        assert bench.ask(send(properties=NO_WAIT)).code == OK
        bench.broker.role.alive_replicas = 1
        replicas.in_sync_count = 2
        assert bench.ask(send()).code == REFUSED, "the other one has gone, say name servers"
        bench.broker.role.alive_replicas = 2
        peer = FakePeer()
        bench.hand(peer, send())
        replicas.finish(True)
        assert codes(peer) == [OK]


async def test_a_new_topic_and_a_slave_that_is_late(autojump_clock):
    """Who waits for nothing hears of the new topic as soon as it is saved."""
    async with replicated() as (bench, slaves):
        peer = FakePeer()
        bench.hand(peer, send("New", opaque=1), send("New", opaque=2, properties=NO_WAIT))
        await trio.sleep(0.1)
        assert [(r.opaque, r.code) for r in peer.take()] == [(2, OK)]
        slaves.finish(False)
        assert [(r.opaque, r.code) for r in peer.take()] == [(1, LATE)]


# -- together with sync flush


@pytest.mark.parametrize("slave_first", [True, False])
@pytest.mark.parametrize(
    ("disk_s", "slave", "code"),
    [(0.2, True, 0), (0.2, False, 12), (3.0, True, 10), (3.0, False, 12)],
)
async def test_disk_and_slaves_side_by_side(autojump_clock, slave_first, disk_s, slave, code):
    """A slave that is late overrides the disk; otherwise the slower one decides when."""
    store = attrs.evolve(SYNC_FLUSH, sync_flush_timeout_ms=1000)
    async with replicated(store=store) as (bench, slaves):
        peer, began_s = FakePeer(), trio.current_time()
        bench.disk.run_delay_s = disk_s
        bench.hand(peer, send())
        await trio.sleep(0.1 if slave_first else 2.0)
        assert codes(peer) == []
        slaves.finish(slave)
        await peer.written()
        took_s = trio.current_time() - began_s
        assert codes(peer) == [code]
        disk_known_s = min(disk_s, 1.1)
        slave_known_s = 0.1 if slave_first else 2.0
        expected_s = max(disk_known_s, slave_known_s) if slave else slave_known_s
        assert took_s == pytest.approx(expected_s, abs=0.15)
        await trio.sleep(5)
        assert peer.take() == [], "answered once"


async def test_what_is_not_on_the_disk_is_not_seen_whatever_slaves_say(autojump_clock):
    async with replicated(store=SYNC_FLUSH) as (bench, slaves):
        bench.disk.run_delay_s = 0.5
        peer = FakePeer()
        bench.hand(peer, send())
        slaves.finish(True)
        assert (codes(peer), bench.ask(pull()).code) == ([], 19)
        await trio.sleep(1)
        assert (codes(peer), len(texts(bench.ask(pull())))) == ([OK], 1)
