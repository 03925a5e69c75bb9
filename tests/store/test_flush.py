"""Durability: group commit, deadlines, what the checkpoint may say, and syncs that fail."""

from __future__ import annotations

import errno
import logging

import pytest
import trio
import trio.testing

from tests.store.stores import empty_store, running, send, send_many
from trio_mq.config import FlushDiskType
from trio_mq.store import flush
from trio_mq.store.checkpoint import CheckpointFile, read_marks
from trio_mq.store.store import Store
from trio_mq.testing.clock import DEFAULT_START_MS
from trio_mq.testing.disk import MemoryDisk

SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
LOG_SYNC = "/store/commitlog/"


def log_syncs(disk: MemoryDisk) -> int:
    return sum(1 for o in disk.operations if o.kind == "sync" and LOG_SYNC in o.path)


def saved(store: Store):
    """The checkpoint as it is on the disk."""
    file = CheckpointFile(store.parts.disk, store.parts.checkpoint.path)
    file.load()
    return file.value


# -- sync flush


async def test_nothing_is_visible_or_answered_before_it_is_durable(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk, **SYNC)
    async with running(store):
        await trio.sleep(1.5)
        disk.run_delay_s = 0.05
        queue = store.queues.obtain("T", 0)
        done: list[tuple[str, bool]] = []
        send(store, queue, b"one")
        store.commit()
        store.flusher.wait_durable(store.log.written, lambda ok: done.append(("one", ok)))
        assert store.log.written > store.log.durable.value
        assert queue.max_offset == 0
        assert store.confirmed == 0
        await trio.sleep(0.04)
        assert not done
        await trio.sleep(0.02)
        assert done == [("one", True)]
        assert queue.max_offset == 1
        assert store.confirmed == store.log.written
        store.flusher.wait_durable(store.log.written, lambda ok: done.append(("at once", ok)))
        assert done[-1] == ("at once", True)
        disk.run_delay_s = 0


async def test_visibility_comes_before_the_answer(autojump_clock):
    store = empty_store(MemoryDisk(), **SYNC)
    async with running(store):
        queue = store.queues.obtain("T", 0)
        seen: list[int] = []
        send(store, queue)
        store.commit()
        store.flusher.wait_durable(store.log.written, lambda _: seen.append(queue.max_offset))
        await trio.sleep(1)
        assert seen == [1]


async def test_a_message_that_nobody_waits_for_is_synced_as_well(autojump_clock):
    """WAIT=false: the sender is answered at once, consumers see the message when it is durable."""
    store = empty_store(MemoryDisk(), **SYNC)
    async with running(store):
        queue = store.queues.obtain("T", 0)
        send(store, queue)
        store.commit()
        await trio.sleep(0.01)
        assert queue.max_offset == 1


async def test_senders_share_a_sync_c097(autojump_clock):
    """100 senders and a disk that takes 50 ms: a few syncs, each for all that was written before it began."""
    disk = MemoryDisk()
    store = empty_store(disk, **SYNC, mapped_file_size_commit_log=1 << 20)
    async with running(store):
        await trio.sleep(1.5)
        disk.run_delay_s = 0.05
        queue = store.queues.obtain("T", 0)
        times: list[float] = []

        async def sender() -> None:
            for _ in range(5):
                began = trio.current_time()
                send(store, queue)
                store.commit()
                sent, answered = trio.open_memory_channel[bool](1)
                store.flusher.wait_durable(store.log.written, sent.send_nowait)
                assert await answered.receive()
                times.append(trio.current_time() - began)

        before = log_syncs(disk)
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(sender)
        assert len(times) == 500
        assert max(times) <= 0.11
        assert log_syncs(disk) - before <= 12
        counts = store.flusher.times
        assert counts.count == log_syncs(disk) - 1  # and one when the segment was made
        assert 0.04 < counts.last_s < 0.06
        assert store.flusher.slow_text() == "syncing the commit log took 50 ms the last time"
        disk.run_delay_s = 0


async def test_a_sender_waits_no_longer_than_the_limit(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk, **SYNC, sync_flush_timeout_ms=2000)
    async with running(store):
        await trio.sleep(1.5)
        disk.run_delay_s = 5
        queue = store.queues.obtain("T", 0)
        answers: list[tuple[bool, float]] = []
        began = trio.current_time()
        for _ in range(3):
            send(store, queue)
            store.commit()
            store.flusher.wait_durable(
                store.log.written, lambda ok: answers.append((ok, trio.current_time() - began))
            )
            await trio.sleep(0.5)
        await trio.sleep(0.4)
        assert store.flusher.slow_text() == "syncing the commit log has taken 1900 ms so far"
        await trio.sleep(3)
        assert [ok for ok, _ in answers] == [False] * 3
        assert [2 <= at - n * 0.5 <= 2.2 for n, (_, at) in enumerate(answers)] == [True] * 3
        await trio.sleep(20)
        assert queue.max_offset == 3  # stored all the same
        assert len(answers) == 3
        disk.run_delay_s = 0


async def test_a_group_may_lie_in_two_segments_p22(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk, **SYNC)
    async with running(store):
        queue = store.queues.obtain("T", 0)
        done: list[bool] = []
        send(store, queue, b"a" * 2000)
        send(store, queue, b"b" * 3000)
        store.commit()
        store.flusher.wait_durable(store.log.written, done.append)
        await trio.sleep(1)
        assert done == [True]
        assert store.log.segments.starts == [0, 4096]
    for seed in range(5):
        disk.crash(seed, keep="none")
        data = disk.open(f"/store/commitlog/{4096:020d}").read(4096, 0)
        assert b"b" * 3000 in data


async def test_a_failed_sync_ends_the_store(autojump_clock, caplog):
    disk = MemoryDisk()
    store = empty_store(disk, **SYNC)
    queue = store.queues.obtain("T", 0)
    answers: list[bool] = []
    with caplog.at_level(logging.CRITICAL), pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            send(store, queue)
            store.commit()
            disk.fail_when(lambda o: o.kind == "sync" and LOG_SYNC in o.path, errno.EIO)
            store.flusher.wait_durable(store.log.written, answers.append)
            await trio.sleep(60)
    assert caught.group_contains(OSError)
    assert answers == []  # nobody is told that the message is safe
    assert queue.max_offset == 0
    assert "cannot be synced" in caplog.text
    assert store.refusal is not None


# -- async flush


async def test_async_flush_syncs_by_interval_and_amount(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(
        disk,
        mapped_file_size_commit_log=1 << 20,
        flush_interval_commit_log_ms=500,
        flush_commit_log_least_pages=4,
        flush_commit_log_thorough_interval_ms=10_000,
    )
    async with running(store):
        await trio.sleep(1.5)  # the first round of everything
        queue = store.queues.obtain("T", 0)
        send(store, queue, b"x" * 20_000)
        store.commit()
        assert queue.max_offset == 1  # visible at once
        before = log_syncs(disk)
        await trio.sleep(0.6)
        assert log_syncs(disk) == before + 1
        assert store.log.durable.value == store.log.written
        await trio.sleep(20)
        assert log_syncs(disk) == before + 1  # nothing new


async def test_a_little_is_synced_after_the_thorough_interval(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk, flush_commit_log_thorough_interval_ms=10_000)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.flusher.run_log)
        send(store, store.queues.obtain("T", 0))
        store.commit()
        await trio.sleep(9)
        assert store.log.durable.value == 0
        await trio.sleep(2)
        assert store.log.durable.value == store.log.written
        nursery.cancel_scope.cancel()


async def test_whoever_waits_under_async_flush_is_told_as_well(autojump_clock):
    store = empty_store(MemoryDisk())
    async with running(store):
        done: list[bool] = []
        send(store, store.queues.obtain("T", 0))
        store.commit()
        store.flusher.wait_durable(store.log.written, done.append)
        await trio.sleep(0.6)
        assert done == [True]


async def test_the_next_segment_is_prepared_and_a_full_disk_does_not_matter_yet(
    autojump_clock, caplog
):
    disk = MemoryDisk()
    store = empty_store(disk)
    async with running(store):
        queue = store.queues.obtain("T", 0)
        disk.fail_when(lambda o: f"{4096:020d}" in o.path, errno.ENOSPC)
        send(store, queue, b"x" * 2500)
        store.commit()
        with caplog.at_level(logging.WARNING):
            await trio.sleep(9)
        assert [r.message for r in caplog.records if "prepared" in r.message] == [
            f"the next log segment cannot be prepared: [Errno 28] No space left on device: "
            f"'/store/commitlog/{4096:020d}'"
        ]
        assert store.refusal is None
        disk.heal()
        await trio.sleep(12)
        assert disk.size(f"/store/commitlog/{4096:020d}") == 4096
        assert store.log.segments.starts == [0]
    assert not disk.exists(f"/store/commitlog/{4096:020d}")  # a clean stop removes it


# -- queues, index, checkpoint


async def test_the_checkpoint_follows_what_is_durable(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk, mapped_file_size_commit_log=1 << 20)
    queue = store.queues.obtain("T", 0)
    async with running(store):
        send_many(store, queue, 10, now_ms=DEFAULT_START_MS + 5, props=b"KEYS\x01k\x02")
        await trio.sleep(1.5)
        value = saved(store)
        assert value.physic_timestamp_ms == DEFAULT_START_MS + 5
        assert value.logics_timestamp_ms == DEFAULT_START_MS + 5
        assert value.index_timestamp_ms == DEFAULT_START_MS + 5
        assert value.confirm_log_offset == store.log.written
        assert read_marks(value).safe_offset == store.log.written


async def test_the_checkpoint_advances_under_load_too(autojump_clock):
    """Between two ticks some queue always has unwritten entries; that must not hold the checkpoint back."""
    disk = MemoryDisk()
    store = empty_store(
        disk, mapped_file_size_commit_log=1 << 22, mapped_file_size_consume_queue=200_000
    )
    queue = store.queues.obtain("T", 0)
    async with running(store):
        for round_ in range(300):
            now_ms = DEFAULT_START_MS + round_ * 10
            for _ in range(20):
                send(store, queue, now_ms=now_ms)
            store.commit()
            await trio.sleep(0.01)
        behind_ms = DEFAULT_START_MS + 2990 - saved(store).logics_timestamp_ms
        assert behind_ms < 1500


async def test_queues_with_little_that_is_new_wait_but_not_for_ever(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(
        disk, mapped_file_size_consume_queue=200_000, mapped_file_size_commit_log=1 << 22
    )
    busy, quiet = store.queues.obtain("Busy", 0), store.queues.obtain("Quiet", 0)

    def synced() -> set[str]:
        return {
            o.path.split("/")[3]
            for o in disk.operations
            if o.kind == "sync" and "consumequeue" in o.path
        }

    async with running(store):
        await trio.sleep(1.5)
        before = saved(store).logics_timestamp_ms
        send_many(store, quiet, 5)
        send_many(store, busy, flush.QUEUE_LEAST_BYTES // 20 + 1)
        await trio.sleep(3)
        assert synced() == {"Busy"}
        assert saved(store).logics_timestamp_ms == before  # would say too much
        await trio.sleep(flush.QUEUES_SYNC_S)
        assert synced() == {"Busy", "Quiet"}
        assert saved(store).logics_timestamp_ms == DEFAULT_START_MS


async def test_the_safe_mark_is_the_lower_of_queues_and_index(autojump_clock, monkeypatch):
    disk = MemoryDisk()
    store = empty_store(disk, mapped_file_size_commit_log=1 << 20)
    queue = store.queues.obtain("T", 0)
    async with running(store):
        send_many(store, queue, 4, props=b"KEYS\x01k\x02")
        await trio.sleep(1.5)
        first = read_marks(saved(store)).safe_offset
        assert first == store.log.written
        send_many(store, queue, 4, props=b"KEYS\x01k\x02", now_ms=DEFAULT_START_MS + 7)
        await store.flusher.sync_derived(thorough=True, with_index=False)
        value = saved(store)
        assert value.logics_timestamp_ms == DEFAULT_START_MS + 7
        assert read_marks(value).safe_offset == first
        await trio.sleep(0.1)
        await store.flusher.sync_derived(thorough=False, with_index=True)
        assert read_marks(saved(store)).safe_offset == store.log.written


async def test_without_an_index_queues_alone_count(autojump_clock):
    store = empty_store(MemoryDisk(), message_index_enable=False)
    async with running(store):
        send_many(store, store.queues.obtain("T", 0), 4)
        await trio.sleep(1.5)
        assert read_marks(saved(store)).safe_offset == store.log.written


async def test_entries_are_never_durable_before_their_records(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk)
    send_many(store, store.queues.obtain("T", 0), 5)
    before = len(disk.operations)
    await store.flusher.sync_derived()
    synced = [o.path for o in disk.operations[before:] if o.kind == "sync"]
    assert "/commitlog/" in synced[0]
    assert "/consumequeue/" in synced[1]
    assert synced[-1].endswith("/checkpoint")


async def test_times_never_run_ahead_when_entries_cannot_be_written(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk)
    queue = store.queues.obtain("T", 0)
    disk.fail_when(lambda o: "consumequeue" in o.path, errno.ENOSPC)
    send_many(store, queue, 5)
    await store.flusher.sync_derived()
    assert saved(store).physic_timestamp_ms == DEFAULT_START_MS
    assert saved(store).logics_timestamp_ms == 0
    assert read_marks(saved(store)).safe_offset == 0
    disk.heal()
    await store.flusher.sync_derived()
    assert saved(store).logics_timestamp_ms == DEFAULT_START_MS


async def test_a_checkpoint_without_room_does_not_end_the_store(autojump_clock, caplog):
    disk = MemoryDisk()
    store = empty_store(disk)
    async with running(store):
        disk.fail_when(lambda o: o.path.endswith("/checkpoint"), errno.ENOSPC)
        send(store, store.queues.obtain("T", 0))
        store.commit()
        await trio.sleep(3)
        assert "the checkpoint cannot be written" in caplog.text
        assert store.refusal is not None
        disk.heal()
        await trio.sleep(12)
        assert store.refusal is None
        assert saved(store).logics_timestamp_ms == DEFAULT_START_MS


async def test_a_stop_in_the_middle_of_a_sync_loses_no_note_of_what_is_due(autojump_clock):
    """The index counts as durable only after its sync; one that was cancelled before is made at the end."""
    disk = MemoryDisk()
    store = empty_store(disk)
    async with running(store):
        send_many(store, store.queues.obtain("T", 0), 5, props=b"KEYS\x01k\x02")
        await trio.sleep(0.9)
        disk.run_delay_s = 10  # the first round of syncs begins now, and is cancelled
        await trio.sleep(0.2)
        before = len(disk.operations)
        disk.run_delay_s = 0
    assert any(o.kind == "sync" and "/index/" in o.path for o in disk.operations[before:])
    for seed in range(3):
        disk.crash(seed, keep="none")
        (name,) = disk.list_dir("/store/index")
        header = disk.open(f"/store/index/{name}").read(40, 0)
        assert int.from_bytes(header[36:40], "big") == 6
