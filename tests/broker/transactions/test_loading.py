"""What a start makes of the log: commits whose op records are missing, whatever lies between them."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.broker.support import STORE, serving
from tests.broker.transactions.support import COMMIT, Producer, delivered, halves, progress
from trio_mq.broker.transactions import loading
from trio_mq.broker.transactions.half import op_letter
from trio_mq.broker.transactions.ledger import Fate
from trio_mq.protocol.message import Host


@pytest.mark.parametrize("host", ["192.168.1.5", "2001:db8::5"])
@pytest.mark.parametrize("lot", [200, 1024 * 1024])
async def test_commits_are_found_between_other_records(autojump_clock, monkeypatch, host, lot):
    """Also behind records that are longer than what is looked at in one go, and in the next segment."""
    monkeypatch.setattr(loading, "LOG_BYTES", lot)
    where = Host(host, 10911)
    async with serving(clean_stop=False, host=where) as bench:
        bench.create()
        producer = Producer(bench)
        sent = [producer.half(b"%d" % number) for number in range(6)]
        for number, at in enumerate(sent[:4]):
            for _ in range(8):
                bench.put(b"x" * 3000, queue_id=1)
            producer.end(at, COMMIT)
            assert number < 4
        assert bench.store.log.end > STORE.mapped_file_size_commit_log
        bench.broker.transactions.transactions.ops._pending.clear()
        disk, clock = bench.disk, bench.clock
    async with serving(disk, clock=clock, host=where) as bench:
        ledger = bench.broker.transactions.transactions.ledger
        assert [ledger.fate(number) for number in range(6)] == [Fate.COMMITTED] * 4 + [
            Fate.OPEN
        ] * 2
        await trio.sleep(4)
        await trio.sleep(60)
        assert progress(bench) == (4, 1)  # which names them now


async def test_progress_that_lies_outside_the_queue_is_taken_back(autojump_clock):
    async with serving() as bench:
        bench.create()
        producer = Producer(bench)
        producer.start()
        producer.half(b"x")
        for topic in ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
            bench.offsets.commit("CID_RMQ_SYS_TRANS", topic, 0, 99)
        disk, clock = bench.disk, bench.clock
    async with serving(disk, clock=clock) as bench:
        assert bench.broker.transactions.transactions.ledger.begin == 1
        producer = Producer(bench)
        producer.start()
        producer.half(b"y")
        await trio.sleep(50)
        assert [check.message.body for check in producer.checks()] == [b"y"]


async def test_progress_of_a_kill_lies_behind_and_copies_are_recognised(autojump_clock):
    """The offsets were not saved since the first round: the old places are seen again, and not asked about."""
    async with serving(clean_stop=False) as bench:
        bench.create()
        producer = Producer(bench)
        producer.start()
        producer.half(b"x")
        producer.half(b"y")
        await trio.sleep(100)
        assert len(halves(bench)) == 2 + 3 * 2
        disk, clock = bench.disk, bench.clock
        bench.offsets.remove_group("CID_RMQ_SYS_TRANS")
        await bench.tables.offsets.persist()
    async with serving(disk, clock=clock) as bench:
        ledger = bench.broker.transactions.transactions.ledger
        assert (ledger.begin, ledger.copied, ledger.open_count(8)) == (0, 2, 2)
        producer = Producer(bench)
        producer.start()
        await trio.sleep(31)
        checks = producer.checks()
        assert sorted(check.message.body for check in checks) == [b"x", b"y"]
        for check in checks:
            producer.end(check, COMMIT)
        await trio.sleep(60)
        assert sorted(delivered(bench)) == [b"x", b"y"]
        assert producer.checks() == []


async def test_an_unreadable_op_record_or_half_does_not_stop_a_start(autojump_clock):
    settings = attrs.evolve(STORE, flush_interval_commit_log_ms=10)
    async with serving(store=settings) as bench:
        bench.create()
        producer = Producer(bench)
        sent = [producer.half(b"%d" % number) for number in range(3)]
        producer.end(sent[1], COMMIT)
        await trio.sleep(5)
        bench.put(b"after", queue_id=1)
        (op,) = [m for m in bench.stored() if m.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC"]
        disk, clock, path = bench.disk, bench.clock, bench.store.log.segments.path(0)
    file = disk.open(path)
    for at in (sent[0].log_offset, op.log_offset):
        file.write(b"\xff" * 50, at + 4)
    file.close()
    async with serving(disk, clock=clock, store=settings) as bench:
        producer = Producer(bench)
        producer.start()
        await trio.sleep(50)
        # The commit is known from its message.
        assert [check.message.body for check in producer.checks()] == [b"2"]
        assert bench.store.queue("T", 0).max_offset == 1


async def test_op_records_about_halves_that_are_not_there_cost_nothing(autojump_clock):
    """A damaged one names a place far behind the end."""
    async with serving() as bench:
        bench.create()
        producer = Producer(bench)
        sent = producer.half(b"x")
        service = bench.broker.transactions.transactions
        service.putter.put(op_letter([2**62, 1], 1, bench.store.host.packed))
        disk, clock = bench.disk, bench.clock
    async with serving(disk, clock=clock) as bench:
        producer = Producer(bench)
        producer.start()
        producer.half(b"y")
        await trio.sleep(61)
        first, *_ = producer.checks()
        assert first.header.msg_id == sent.unique_id
        assert progress(bench)[1] >= 1
