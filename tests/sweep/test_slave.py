"""Power cuts and kills before each operation of a slave's disk: what comes back is the begin of its master's log.

The slave lives three times: it copies in pieces of random sizes, is stopped cleanly in the middle of a record, copies
on, is killed, and copies to the end, with all its tasks. Where it reported something durable (sync flush), that is
there.
"""

from __future__ import annotations

import random
from itertools import pairwise

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.ha.copies import Copying, Original, Running, original, picture, read_all
from trio_mq.protocol.verdict import Whole
from trio_mq.protocol.verdict import check as check_record
from trio_mq.testing.disk import MemoryDisk


@attrs.frozen
class Moment:
    """The disk before one operation, and what the slave had reported by then."""

    disk: MemoryDisk
    reported: int


async def record(master: Original, seed: int, *, sync: bool, every: int) -> list[Moment]:
    """Copies of a slave's disk through its lives, one in so many."""
    copying = Copying.make(master, sync=sync)
    rng = random.Random(seed)
    moments: list[Moment] = []
    count, reported = 0, 0
    now: Running | None = None

    def before(_: object) -> None:
        nonlocal count, reported
        if now is not None:
            reported = max(reported, now.copy.kept.value)
        count += 1
        if count % every == seed % every:
            moments.append(Moment(copying.disk.clone(), reported))

    copying.disk.before = before
    for part, end in ((0.4, "close"), (0.7, "kill"), (1.0, "close")):
        stop = int(master.end * part)
        async with copying.life(end=end) as running:
            now = running
            while now.copy.end < stop:
                await now.take(master, min(stop, now.copy.end + rng.randint(1, 900)))
                await trio.sleep(rng.choice((0, 0, 0.05, 1.5, 12)))
            reported = max(reported, now.copy.kept.value)
        now = None
        reported = 0 if not sync else reported
    return moments


async def check(master: Original, moment: Moment, crash_seed: int, *, sync: bool) -> None:
    """Let the power go or end the process, start again, and copy the rest."""
    disk = moment.disk
    if crash_seed % 4 == 0:
        disk.kill()
    elif crash_seed % 4 == 1:
        disk.crash(crash_seed, keep="none")
    else:
        disk.crash(crash_seed, reorder_names=crash_seed % 4 == 2)
    copying = Copying.make(master, sync=sync)
    copying = Copying(attrs.evolve(copying.world, disk=disk))
    async with copying.life() as running:
        copy, log = running.copy, running.store.log
        if sync:
            # The end of a segment is taken back when nothing follows it yet.
            least = master.whole_before(moment.reported)
            assert copy.end >= max(end for end in [0, *master.ends] if end < least or not end)
        got = read_all(log.read, log.start, copy.end)
        if got != master.log[: copy.end]:
            assert crash_seed % 4 >= 2, "only a power cut tears what was written"
            assert torn_properties(master, got, moment.reported if sync else 0)
            return
        assert copy.dispatched == copy.end
        assert all(queue.indexed_to <= copy.end for queue in running.store.queues)
        await running.take(master, master.end)
        if sync:
            await running.synced()
        running.store.dispatcher.finish()
        assert picture(running.store) == master.picture


def torn_properties(master: Original, got: bytes, durable: int) -> bool:
    """Whether a log differs only in properties behind what is durable: no CRC covers them, here as at the peers."""
    for begin, end in pairwise([0, *master.ends]):
        stop = begin - begin % master.segment_bytes + master.segment_bytes
        found = check_record(master.log, begin, min(stop, len(master.log)))
        body_end = end - len(found.properties) if isinstance(found, Whole) else end
        if got[begin:body_end] != master.log[begin : min(body_end, len(got))]:
            return False
        if got[body_end:end] != master.log[body_end : min(end, len(got))] and end <= durable:
            return False
    return True


async def sweep(seed: int, every: int) -> None:
    """One workload, cut before one in so many of its operations."""
    sync = bool(seed % 2)
    master = await original(40 + seed % 20)
    for number, moment in enumerate(await record(master, seed, sync=sync, every=every)):
        crash_seed = seed * 1000 + number
        try:
            await check(master, moment, crash_seed, sync=sync)
        except Exception as error:
            error.add_note(f"seed {seed}, moment {number} of one in {every}")
            raise


@pytest.mark.parametrize(
    ("seed", "every"),
    [(1, 17), (2, 17), *(pytest.param(n, 3, marks=pytest.mark.slow) for n in range(10, 14))],
)
def test_a_slave_comes_back_as_the_begin_of_its_master(seed: int, every: int) -> None:
    trio.run(sweep, seed, every, clock=MockClock(autojump_threshold=0))
