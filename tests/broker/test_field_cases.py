"""Cases from the field that go through the whole broker, from a request to the files and back."""

from __future__ import annotations

import logging

from tests.broker.support import GROUP, props, pull, request, send, serving, texts
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.offset import ResetOffsetRequest
from trio_mq.protocol.message import BatchItem, join_batch
from trio_mq.testing.disk import MemoryDisk


async def test_c058_forced_cleaning_names_the_groups_it_hurts_and_moves_them(
    autojump_clock, caplog
):
    """C058: the log has the range and the group; its next pull says 'offset moved' to the new minimum."""
    caplog.set_level(logging.INFO)
    disk = MemoryDisk()
    async with serving(disk) as bench:
        bench.create()
        bench.put(*(b"%d" % n + b"x" * 9_000 for n in range(30)))
        bench.offsets.commit("behind", "T", 0, 3)
        bench.offsets.commit("ahead", "T", 0, 29)
        segments = bench.store.log.segments
        first, second, *_ = segments.starts
        for start in segments.starts:
            disk.set_modified_ms(segments.path(start), bench.clock.now_ms())
        capacity, disk.capacity_bytes = disk.capacity_bytes, disk.usage("/").used * 100 // 86
        await bench.store.cleaner.clean()
        disk.capacity_bytes = capacity
        queue = bench.store.queue("T", 0)
        assert queue.min_offset > 3
        (expires,) = [m for m in caplog.messages if "expires" in m and f"offsets {first} to" in m]
        assert f"offsets {first} to {second}" in expires
        assert "diskSpaceCleanForciblyRatio" in expires
        (hurt,) = [m for m in caplog.messages if "loses messages" in m]
        for part in ("group behind", "T queue 0", "offset 3", f"before {queue.min_offset}"):
            assert part in hurt
        moved = bench.ask(pull(3, group="behind"))
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert int(moved.ext["nextBeginOffset"]) == queue.min_offset
        got = bench.ask(pull(queue.min_offset, group="behind"))
        assert texts(got)[0].startswith(b"%dx" % queue.min_offset)


async def test_c077_a_reset_to_the_time_of_a_batch_is_to_its_first_message(autojump_clock):
    """C077: a hundred messages of one send, so of one time, between others."""
    async with serving() as bench:
        bench.create(queues=1)
        bench.groups.obtain(GROUP)
        bench.put(b"before", b"before")
        bench.clock.set(bench.clock.now_ms() + 5_000)
        batch_ms = bench.clock.now_ms()
        items = join_batch([BatchItem(0, b"%d" % n, b"") for n in range(100)])
        sent = bench.ask(
            send("T", items, batch=True, code=RequestCode.SEND_BATCH_MESSAGE, properties=props())
        )
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        bench.clock.set(batch_ms + 5_000)
        bench.put(b"after")
        assert [m.store_timestamp_ms for m in bench.stored()[2:-1]] == [batch_ms] * 100
        header = ResetOffsetRequest(GROUP, "T", batch_ms, force=True)
        reply = bench.ask(request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header))
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        assert bench.offsets.query(GROUP, "T", 0) == 2
        # the next pull is told of it
        assert int(bench.ask(pull(50)).ext["nextBeginOffset"]) == 2
