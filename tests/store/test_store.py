"""The store as the broker sees it: append and commit, failures, start, clean stop, and power cuts under sync flush."""

from __future__ import annotations

import errno
import logging
import os

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.store.stores import (
    BORN,
    HOST,
    ROOT,
    SEGMENT_BYTES,
    bodies,
    empty_store,
    open_small,
    recovered_store,
    running,
    send,
    send_many,
    tree,
)
from trio_mq.config import FlushDiskType
from trio_mq.errors import ConfigError, LocalProtocolError, StoreFull, StoreLocked
from trio_mq.protocol.layout import MAGIC_V1, MAGIC_V2, index_key_hash
from trio_mq.protocol.message import Host, tags_code_of
from trio_mq.protocol.record import Whole, check, decode
from trio_mq.store.checkpoint import AbortMarker
from trio_mq.store.disk import RealDisk
from trio_mq.store.queues import ConsumeQueue
from trio_mq.testing.clock import DEFAULT_START_MS
from trio_mq.testing.disk import MemoryDisk

SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}


def record_at(store, offset: int):
    data = store.reader.record(offset)
    assert data is not None
    return decode(data)


# -- appending


def test_a_record_has_every_field():
    store = empty_store(MemoryDisk())
    queue = store.queues.obtain("Topic", 3)
    queue.next_offset = 7
    offset = store.append(
        queue,
        b"hello",
        b"TAGS\x01TagA\x02KEYS\x01k\x02",
        token=None,
        flag=-5,
        sys_flag=0x1 | 0x8,
        born_timestamp_ms=123,
        born_host=BORN,
        reconsume_times=2,
        prepared_transaction_offset=99,
        now_ms=456,
    )
    assert (offset, queue.next_offset) == (0, 8)
    store.commit()
    message = record_at(store, 0)
    assert message.magic == MAGIC_V1
    assert (message.topic, message.queue_id, message.queue_offset) == ("Topic", 3, 7)
    assert (message.flag, message.sys_flag) == (-5, 0x9)
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (123, 456)
    assert (message.born_host, message.store_host) == (Host("127.0.0.1", 5000), HOST)
    assert (message.reconsume_times, message.prepared_transaction_offset) == (2, 99)
    assert (message.body, message.property_map) == (b"hello", {"TAGS": "TagA", "KEYS": "k"})
    assert message.body_crc == 907060870
    assert isinstance(queue, ConsumeQueue)
    assert store.reader.entries(queue, 7, 1) == [(0, message.size, tags_code_of(b"TagA"))]


def test_long_topics_and_ipv6_hosts_make_other_records():
    store = empty_store(MemoryDisk(), host=Host("::1", 10911))
    queue = store.queues.obtain("T" * 200, 0)
    send(store, queue, b"x", born_host=Host("2001:db8::1", 9).packed, sys_flag=0x10)
    store.commit()
    message = record_at(store, 0)
    assert (message.magic, message.sys_flag) == (MAGIC_V2, 0x30)
    assert message.store_host == Host("::1", 10911)


def test_messages_are_visible_after_the_commit_and_not_before():
    store = empty_store(MemoryDisk())
    queue = store.queues.obtain("T", 0)
    offsets = [send(store, queue, b"%d" % n) for n in range(3)]
    assert queue.next_offset == 3
    assert queue.max_offset == 0
    assert store.confirmed == 0
    store.commit()
    assert queue.max_offset == 3
    assert store.confirmed == store.log.written
    assert bodies(store, queue) == [b"0", b"1", b"2"]
    assert offsets == sorted(offsets)
    store.commit()
    assert store.queue("T", 0) is queue
    assert store.queue("T", 1) is None


def test_a_commit_costs_one_write():
    disk = MemoryDisk()
    store = empty_store(disk)
    queue = store.queues.obtain("T", 0)
    send_many(store, queue, 1)
    before = len(disk.operations)
    for _ in range(10):
        send(store, queue)
    store.commit()
    assert [o.kind for o in disk.operations[before:]] == ["write"]
    assert store.times.count == 2


def test_segments_roll_and_offsets_go_on():
    store = empty_store(MemoryDisk())
    queue = store.queues.obtain("T", 0)
    offsets = send_many(store, queue, 120)
    assert store.log.segments.starts == [n * SEGMENT_BYTES for n in range(3)]
    for number, offset in enumerate(offsets):
        data = store.log.read(SEGMENT_BYTES, offset)
        verdict = check(data, 0, len(data), expected_offset=offset)
        assert isinstance(verdict, Whole)
        assert verdict.queue_offset == number
    assert bodies(store, queue) == [b"body %d" % n for n in range(120)]


def test_a_batch_lies_in_one_segment():
    store = empty_store(MemoryDisk())
    queue = store.queues.obtain("T", 0)
    send(store, queue, b"a" * 3000)
    store.make_room(1500)
    assert send(store, queue, b"b" * 600) == SEGMENT_BYTES
    store.make_room(1000)
    assert send(store, queue, b"b" * 600) < SEGMENT_BYTES * 2
    store.commit()
    assert len(bodies(store, queue)) == 3


def test_what_no_segment_can_hold_is_refused_and_changes_nothing():
    store = empty_store(MemoryDisk())
    queue = store.queues.obtain("T", 0)
    send(store, queue, b"first")
    for call in (
        lambda: send(store, queue, b"x" * SEGMENT_BYTES),
        lambda: store.make_room(SEGMENT_BYTES - 7),
    ):
        with pytest.raises(LocalProtocolError, match=r"segment of 4096 bytes \(mappedFileSizeComm"):
            call()
    send(store, queue, b"second")
    store.commit()
    assert bodies(store, queue) == [b"first", b"second"]


def test_a_field_that_is_too_long_uses_no_offset_p23():
    store = empty_store(MemoryDisk(), mapped_file_size_commit_log=1 << 20)
    queue = store.queues.obtain("T", 0)
    with pytest.raises(LocalProtocolError):
        send(store, queue, props=b"x" * 32_768)
    assert (queue.next_offset, store.log.end) == (0, 0)
    send(store, queue)
    store.commit()
    assert queue.max_offset == 1


def test_inner_batches_take_an_offset_for_each_message():
    store = empty_store(MemoryDisk())
    queue = store.queues.obtain("Batches", 0)
    send(store, queue, count=10)
    send(store, queue, count=1)
    store.commit()
    assert (queue.next_offset, queue.max_offset) == (11, 11)


def test_held_pulls_are_told_in_the_commit():
    store = empty_store(MemoryDisk())
    queue = store.queues.obtain("T", 0)
    told: list[int] = []
    queue.watched = 1
    store.dispatcher.listeners.append(lambda hits: told.extend(hit.tags_code for hit in hits))
    send(store, queue, props=b"TAGS\x01a\x02")
    send(store, queue)
    assert told == []
    store.commit()
    assert told == [tags_code_of(b"a"), 0]


# -- writes that fail


def test_staged_messages_of_a_failed_write_are_forgotten_everywhere():
    disk = MemoryDisk()
    store = empty_store(disk)
    one, two = store.queues.obtain("T", 1), store.queues.obtain("T", 2)
    send_many(store, one, 2)
    end = store.log.end
    disk.fail_at(1, errno.ENOSPC)
    for number in range(3):
        send(store, one, b"lost", token=("one", number))
        send(store, two, b"lost", token=("two", number))
    store.commit()
    assert store.failed == [(q, n) for n in range(3) for q in ("one", "two")]
    assert (one.next_offset, two.next_offset, store.log.end) == (2, 0, end)
    assert (one.max_offset, two.max_offset) == (2, 0)
    assert store.dispatcher.index_backlog == 2
    with pytest.raises(StoreFull, match="No space left on device"):
        send(store, one)
    store.make_room(100)  # says nothing by itself
    store.commit()
    assert len(store.failed) == 6


def test_a_failed_write_in_the_middle_of_a_receive_fails_only_what_came_after():
    """The roll commits what was staged before; its senders succeeded."""
    disk = MemoryDisk()
    store = empty_store(disk)
    queue = store.queues.obtain("T", 0)
    send(store, queue, b"a" * 3000, token="stays")
    disk.fail_when(lambda o: f"{SEGMENT_BYTES:020d}" in o.path, errno.ENOSPC)
    with pytest.raises(StoreFull):
        send(store, queue, b"b" * 3000, token="refused")
    store.commit()
    assert store.failed == []
    assert bodies(store, queue) == [b"a" * 3000]


def test_a_commit_that_fails_in_a_roll_refuses_the_next_message():
    disk = MemoryDisk()
    store = empty_store(disk)
    queue = store.queues.obtain("T", 0)
    send_many(store, queue, 1)
    send(store, queue, b"a" * 3000, token="lost")
    disk.fail_when(lambda o: o.kind == "write", errno.ENOSPC)
    with pytest.raises(StoreFull):
        send(store, queue, b"b" * 3000, token="refused")
    assert store.failed == ["lost"]
    assert (queue.next_offset, queue.max_offset) == (1, 1)
    assert store.log.segments.starts == [0]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 1500), st.booleans()), max_size=40),
    st.sets(st.integers(1, 40), max_size=6),
)
def test_whatever_fails_consumers_see_what_was_acknowledged_and_nothing_else(steps, failures):
    """Any of the first operations may fail; messages that were not failed are there, once, in order, without holes."""
    disk = MemoryDisk()
    store = empty_store(disk)
    for number in failures:
        disk.fail_at(number, errno.ENOSPC)
    good: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    staged: list[tuple[int, bytes]] = []

    def settle() -> None:
        store.commit()
        failed = set(store.failed)
        store.failed.clear()
        for number, (queue_id, body) in enumerate(staged):
            if number not in failed:
                good[queue_id].append(body)
        staged.clear()
        if store.refusal is not None:
            store.cleaner.refusal = None  # as the cleaner does when a write works again

    for queue_id, size, commit in steps:
        body = b"%d:" % queue_id + b"." * size
        try:
            send(store, store.queues.obtain("T", queue_id), body, token=len(staged))
        except StoreFull:
            settle()
        else:
            staged.append((queue_id, body))
            if commit:
                settle()
    settle()
    for queue_id, sent in good.items():
        queue = store.queues.obtain("T", queue_id)
        assert bodies(store, queue) == sent
        assert queue.max_offset == queue.next_offset == len(sent)


# -- opening


def test_a_second_store_on_the_folder_is_refused_and_the_lock_given_back(tmp_path):
    disk = MemoryDisk()
    store = empty_store(disk)
    with pytest.raises(StoreLocked):
        open_small(disk)
    store.parts.release()
    store.parts.release()
    open_small(disk).release()
    with pytest.raises(ConfigError, match="mapperFileSizeBatchConsumeQueue"):
        open_small(disk, mapped_file_size_batch_consume_queue=100)
    open_small(disk).release()


def test_a_folder_that_cannot_be_used_is_told():
    disk = MemoryDisk()
    disk.open("/file", create=True)
    with pytest.raises(ConfigError, match=r"cannot use the store folder /file: .*--store"):
        open_small(disk, "/file")


async def test_a_start_leaves_its_process_id():
    disk = MemoryDisk()
    store = empty_store(disk)
    await store.start()
    assert AbortMarker(disk, f"{ROOT}/abort").owner() == str(os.getpid())
    disk.crash(1, keep="none")
    assert AbortMarker(disk, f"{ROOT}/abort").present


async def test_a_start_without_room_is_refused():
    disk = MemoryDisk()
    store = empty_store(disk)
    disk.fail_when(lambda o: o.path.endswith("/abort"), errno.ENOSPC)
    with pytest.raises(StoreFull, match=r"cannot write to the store /store: No space"):
        await store.start()


# -- closing


async def test_a_clean_stop_makes_everything_durable_c032(autojump_clock):
    for seed in range(5):
        disk = MemoryDisk()
        store = empty_store(disk, mapped_file_size_commit_log=20_000)
        queue = store.queues.obtain("T", 0)
        async with running(store):
            for number in range(100):
                send(store, queue, b"%d" % number, props=b"KEYS\x01k%d\x02" % number)
            store.commit()
        disk.crash(seed, keep="none")
        assert not disk.exists(f"{ROOT}/abort")
        again = await recovered_store(disk, mapped_file_size_commit_log=20_000)
        assert bodies(again, again.queue("T", 0)) == [b"%d" % n for n in range(100)]
        for number in range(100):
            hits = again.index.search(index_key_hash(f"T#k{number}"), 10, 0, 1 << 60)
            assert len(hits) == 1
        value = again.parts.checkpoint.value
        assert (value.physic_timestamp_ms, value.logics_timestamp_ms) == (DEFAULT_START_MS,) * 2
        assert value.index_timestamp_ms == DEFAULT_START_MS
        again.parts.release()


async def test_a_stop_makes_waiting_messages_durable_and_visible(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk, **SYNC)
    queue = store.queues.obtain("T", 0)
    answers: list[bool] = []
    async with running(store):
        send(store, queue, b"last")
        store.commit()
        store.flusher.wait_durable(store.log.written, answers.append)
    assert answers == [True]
    assert not disk.exists(f"{ROOT}/abort")
    again = await recovered_store(disk)
    assert bodies(again, again.queue("T", 0)) == [b"last"]


async def test_a_stop_with_something_staged_stores_it(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk)
    await store.start()
    send(store, store.queues.obtain("T", 0), b"staged")
    await store.close()
    again = await recovered_store(disk)
    assert bodies(again, again.queue("T", 0)) == [b"staged"]


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue", "index", "checkpoint"])
async def test_the_abort_marker_stays_when_something_cannot_be_written_p14(
    autojump_clock, folder, caplog
):
    disk = MemoryDisk()
    store = empty_store(disk)
    await store.start()
    send_many(store, store.queues.obtain("T", 0), 5, props=b"KEYS\x01k\x02")
    disk.fail_when(lambda o: f"{ROOT}/{folder}" in o.path, errno.ENOSPC)
    await store.close()
    assert disk.exists(f"{ROOT}/abort")
    assert "the abort marker stays" in caplog.text
    disk.heal()
    again = await recovered_store(disk)
    assert bodies(again, again.queue("T", 0)) == [b"body %d" % n for n in range(5)]


async def test_the_abort_marker_goes_when_the_disk_took_writes_again(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk)
    async with running(store):
        queue = store.queues.obtain("T", 0)
        send_many(store, queue, 1)
        disk.fail_at(1, errno.ENOSPC)
        send(store, queue)
        store.commit()
        assert store.refusal is not None
        await trio.sleep(11)
        assert store.refusal is None
    assert not disk.exists(f"{ROOT}/abort")


async def test_a_slow_disk_does_not_hold_up_the_stop_for_ever(autojump_clock, caplog):
    disk = MemoryDisk()
    store = empty_store(disk)
    await store.start()
    send_many(store, store.queues.obtain("T", 0), 1)
    disk.run_delay_s = 60
    began = trio.current_time()
    with caplog.at_level(logging.ERROR):
        await store.close()
    assert trio.current_time() - began < 6
    assert "closing took more than 5 s" in caplog.text
    assert disk.exists(f"{ROOT}/abort")
    open_small(disk).release()  # the lock is free


async def test_closing_may_be_cancelled_around_and_still_ends_in_order(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk)
    await store.start()
    send_many(store, store.queues.obtain("T", 0), 1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.close()
    assert not disk.exists(f"{ROOT}/abort")


# -- again and again


async def test_store_times_do_not_go_back_over_a_restart_c076(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk)
    await store.start()
    send(store, store.queues.obtain("T", 0), now_ms=5000)
    await store.close()
    again = await recovered_store(disk)
    offset = send(again, again.queues.obtain("T", 0), now_ms=3000)
    again.commit()
    assert record_at(again, offset).store_timestamp_ms == 5000


@pytest.mark.parametrize("real", [False, True])
async def test_stores_go_on_where_they_ended(real, tmp_path):
    disk = RealDisk() if real else MemoryDisk()
    root = str(tmp_path / "store")
    sent: list[bytes] = []
    for life in range(4):
        store = await recovered_store(disk, root)
        queue = store.queues.obtain("T", 0)
        assert queue.next_offset == queue.max_offset == len(sent)
        assert bodies(store, queue) == sent
        await store.start()
        for number in range(30):
            sent.append(b"life %d number %d" % (life, number))
            send(store, queue, sent[-1], props=b"KEYS\x01k%d\x02" % len(sent))
            if number % 7 == 0:
                store.commit()
        await store.close()
    store = await recovered_store(disk, root)
    assert bodies(store, store.queue("T", 0)) == sent
    for number in range(1, len(sent) + 1):
        (hit,) = store.index.search(index_key_hash(f"T#k{number}"), 10, 0, 1 << 60)
        assert record_at(store, hit).body == sent[number - 1]
    files = tree(disk, root)
    assert {size for path, size in files.items() if "/commitlog/" in path} == {SEGMENT_BYTES}
    assert {size for path, size in files.items() if "/consumequeue/" in path} == {200}
    store.parts.release()


@pytest.mark.parametrize("seed", range(25))
async def test_a_power_cut_loses_nothing_that_was_acknowledged_p22(autojump_clock, seed):
    """Sync flush: all acknowledged messages are there after the cut, in order, and none twice."""
    disk = MemoryDisk()
    store = empty_store(disk, **SYNC)
    acknowledged: list[bytes] = []
    every: list[bytes] = []
    async with trio.open_nursery() as nursery:
        await store.start()
        await nursery.start(store.run)
        queue = store.queues.obtain("T", 0)
        for number in range(60):
            disk.run_delay_s = 0.002 * (seed % 4)
            body = b"%d" % number + b"." * (number * 37 % 700)
            every.append(body)
            send(store, queue, body, props=b"KEYS\x01k%d\x02" % number)
            store.commit()
            store.flusher.wait_durable(
                store.log.written, lambda ok, body=body: acknowledged.append(body) if ok else None
            )
            await trio.sleep(0.001 * (number % 5) + 0.02 * (number % 17 == seed % 17))
        nursery.cancel_scope.cancel()
    disk.crash(seed)
    disk.run_delay_s = 0
    again = await recovered_store(disk, **SYNC)
    found = bodies(again, again.queue("T", 0))
    assert found == every[: len(found)]
    assert len(found) >= len(acknowledged) > 0
    assert acknowledged == every[: len(acknowledged)]
    queue = again.queues.obtain("T", 0)
    assert queue.next_offset == len(found)
    for number in range(len(found)):
        hits = again.index.search(index_key_hash(f"T#k{number}"), 10, 0, 1 << 60)
        assert [record_at(again, hit).body for hit in hits] == [every[number]]
