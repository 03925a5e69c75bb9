"""Op records: how many decisions one holds, when they are written, and what a full store does to them."""

from __future__ import annotations

import attrs
import trio

from tests.broker.support import BROKER, serving
from tests.broker.transactions.support import COMMIT, Producer, ops


async def test_a_record_holds_what_fits_and_the_rest_goes_into_others(autojump_clock):
    settings = attrs.evolve(BROKER, transaction_op_msg_max_size=10)
    async with serving(broker=settings) as bench:
        bench.create()
        producer = Producer(bench)
        for at in [producer.half() for _ in range(12)]:
            producer.end(at, COMMIT)
        await trio.sleep(0.01)
        assert ops(bench) == [b"0,1,2,3,4,", b"5,6,7,8,9,", b"10,11,"]


async def test_they_wait_for_the_interval_and_are_written_by_a_stop(autojump_clock):
    async with serving() as bench:
        bench.create()
        producer = Producer(bench)
        producer.end(producer.half(), COMMIT)
        await trio.sleep(2.9)
        assert ops(bench) == []
        await trio.sleep(0.2)
        assert ops(bench) == [b"0,"]
        producer.end(producer.half(), COMMIT)
        disk, clock = bench.disk, bench.clock
    async with serving(disk, clock=clock) as bench:
        assert ops(bench) == [b"0,", b"1,"]


async def test_a_full_store_keeps_them_waiting(autojump_clock):
    async with serving() as bench:
        bench.create()
        producer = Producer(bench)
        producer.end(producer.half(), COMMIT)
        bench.disk.fail_when(lambda op: op.kind == "write" and "/commitlog/" in op.path)
        await trio.sleep(20)
        assert ops(bench) == []
        bench.disk.heal()
        await trio.sleep(20)
        assert ops(bench) == [b"0,"]
