"""The cleaner at work: refusing and taking messages again, expiry with its news, full disks of every kind."""

from __future__ import annotations

import errno
import logging
import time

import pytest
import trio

from tests.store.stores import (
    bodies,
    empty_store,
    fails_in,
    running,
    send,
    send_many,
    settings,
)
from trio_mq.errors import StoreFull
from trio_mq.protocol.layout import index_key_hash
from trio_mq.store.disk import DiskUsage
from trio_mq.store.retention import HOUR_MS, Expired, RaisedMinimum
from trio_mq.testing.clock import DEFAULT_START_MS, ManualClock, TrioClock
from trio_mq.testing.disk import MemoryDisk


def no_cleaning_hour() -> tuple[int, ...]:
    """An hour of the day that a test's clock does not show."""
    return ((time.localtime(DEFAULT_START_MS / 1000).tm_hour + 12) % 24,)


def cleaning_hour() -> tuple[int, ...]:
    return tuple(range(24))


def filled(disk: MemoryDisk, clock=None, **changes):
    """A store of six segments, whose messages have keys, with two queues."""
    clock = clock or ManualClock()
    changes = {"delete_when": no_cleaning_hour()} | changes
    store = empty_store(disk, clock=clock, **changes)
    queues = [store.queues.obtain("T", n) for n in range(2)]
    number = 0
    while len(store.log.segments.starts) < 6:
        body = b"body %d" % number + b"." * 500
        send(store, queues[number % 2], body, props=b"KEYS\x01k%d\x02" % number)
        store.commit()
        number += 1
    return store


def age(disk: MemoryDisk, store, *hours: float) -> None:
    for start, hour in zip(store.log.segments.starts, hours, strict=False):
        path = store.log.segments.path(start)
        disk.set_modified_ms(path, int(DEFAULT_START_MS - hour * HOUR_MS))


# -- refusing


async def test_a_full_disk_refuses_and_a_freed_one_takes_again_c056(autojump_clock, caplog):
    disk = MemoryDisk(capacity_bytes=1_000_000)
    store = empty_store(disk, clean_resource_interval_ms=10_000)
    queue = store.queues.obtain("T", 0)
    async with running(store):
        send_many(store, queue, 3)
        disk.make_dirs("/other")
        filler = disk.open("/other/filler", create=True)
        filler.write(bytes(950_000), 0)
        await trio.sleep(10.1)
        with pytest.raises(StoreFull) as caught:
            send(store, queue)
        for part in ("/store", "95 %", "90 %", "diskSpaceWarningLevelRatio"):
            assert part in str(caught.value)  # case C055
        store.commit()
        assert store.log.end == store.log.written
        assert len(bodies(store, queue)) == 3  # reading goes on
        filler.truncate(0)
        filler.close()
        await trio.sleep(10.1)
        send_many(store, queue, 3, first=3)
        assert bodies(store, queue) == [b"body %d" % n for n in range(6)]
    assert not disk.exists("/store/abort")
    assert "there is room again for /store" in caplog.text
    assert sum("disk full" in r.message for r in caplog.records) == 1


async def test_a_write_that_fails_refuses_until_a_write_works_again(autojump_clock, caplog):
    """ENOSPC by a quota: the disk's usage says nothing about it."""
    disk = MemoryDisk()
    store = empty_store(disk)
    queue = store.queues.obtain("T", 0)
    async with running(store):
        send_many(store, queue, 2)
        await trio.sleep(1)
        disk.fail_when(lambda o: o.kind == "write" and "/store" in o.path, errno.EDQUOT)
        send(store, queue, b"lost", token="lost")
        send(store, store.queues.obtain("T", 1), b"lost", token="lost too")
        store.commit()
        assert store.failed == ["lost", "lost too"]
        store.failed.clear()
        assert queue.next_offset == 2
        with pytest.raises(StoreFull, match=r"/store/commitlog/.*quota.*% used.*diskSpaceWarning"):
            send(store, queue)
        await trio.sleep(60)  # some rounds of the cleaner later
        assert store.refusal is not None
        disk.heal()
        await trio.sleep(10.1)
        assert store.refusal is None
        send_many(store, queue, 2, first=2)
        assert bodies(store, queue) == [b"body %d" % n for n in range(4)]
        assert store.queues.get("T", 1).max_offset == 0  # type: ignore[union-attr]
    for said in ("cannot write to", "the list of queues cannot be written"):
        assert sum(said in r.message for r in caplog.records) == 1
    assert disk.list_dir("/store") == [
        "checkpoint", "commitlog", "consumequeue", "index", "lock", "queuelist.json",
    ]  # fmt: skip


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue", "index", "checkpoint"])
@pytest.mark.parametrize("kind", ["write", "create"])
async def test_no_room_for_any_kind_of_file_is_survived(autojump_clock, folder, kind):
    """Whatever cannot be written: nothing acknowledged is lost, and everything goes on when there is room."""
    disk = MemoryDisk()
    store = empty_store(disk, max_index_num=30)
    sent: list[bytes] = []
    queue = store.queues.obtain("T", 0)

    def try_to_send(count: int) -> int:
        refused = 0
        for _ in range(count):
            body = b"%d" % len(sent)
            try:
                send(store, queue, body, props=b"KEYS\x01k%d\x02" % len(sent))
            except StoreFull:
                refused += 1
                continue
            store.commit()
            if store.failed:
                store.failed.clear()
                refused += 1
            else:
                sent.append(body)
        return refused

    async with running(store):
        assert try_to_send(30) == 0
        await trio.sleep(2)
        disk.fail_when(lambda o: o.kind == kind and f"/store/{folder}" in o.path, errno.ENOSPC)
        refused = 0
        for _ in range(20):
            refused += try_to_send(10)
            assert bodies(store, queue) == sent
            await trio.sleep(1)
        if (folder, kind) != ("checkpoint", "create"):  # that file is there already
            assert refused > 0
        disk.heal()
        await trio.sleep(10.1)
        assert try_to_send(30) == 0
        await trio.sleep(2)
    again = disk.list_dir("/store")
    assert "abort" not in again
    assert [int(name) for name in disk.list_dir("/store/commitlog")] == [
        n * 4096 for n in range(len(disk.list_dir("/store/commitlog")))
    ]


async def test_keys_of_messages_sent_while_the_index_had_no_room_are_found_later(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk, max_index_num=20)
    queue = store.queues.obtain("T", 0)
    async with running(store):
        for number in range(15):
            send(store, queue, props=b"KEYS\x01k%d\x02" % number)
        store.commit()
        await trio.sleep(1)
        disk.fail_when(fails_in("/index"), errno.ENOSPC)
        for number in range(15, 40):
            send(store, queue, props=b"KEYS\x01k%d\x02" % number)
        store.commit()
        await trio.sleep(5)
        assert store.refusal is not None
        disk.heal()
        await trio.sleep(10.1)
        assert store.refusal is None
        for number in range(40):
            hits = store.index.search(index_key_hash(f"T#k{number}"), 10, 0, 1 << 60)
            assert len(hits) == 1


async def test_a_roll_without_room_refuses_and_comes_back(autojump_clock):
    disk = MemoryDisk()
    store = empty_store(disk)
    queue = store.queues.obtain("T", 0)
    async with running(store):
        send(store, queue, b"a" * 3000)
        store.commit()
        disk.fail_when(lambda o: o.kind == "create" and "commitlog" in o.path, errno.ENOSPC)
        with pytest.raises(StoreFull, match="commitlog"):
            send(store, queue, b"b" * 3000)
        await trio.sleep(30)
        assert store.refusal is not None  # a write at the log's end works, a new file does not
        disk.heal()
        await trio.sleep(10.1)
        send(store, queue, b"b" * 3000)
        store.commit()
        assert bodies(store, queue) == [b"a" * 3000, b"b" * 3000]


async def test_a_log_on_a_disk_of_its_own_counts_too(autojump_clock):
    class TwoDisks(MemoryDisk):
        def usage(self, path):
            percent = 95 if path.startswith("/log") else 10
            return DiskUsage(100, percent, 100 - percent)

    disk = TwoDisks()
    disk.make_dirs("/log")
    store = empty_store(disk, commit_log_path="/log")
    await store.cleaner.clean()
    assert store.refusal is not None
    assert "/log is 95 % used" in store.refusal


async def test_a_usage_that_cannot_be_told_does_not_end_the_cleaner(autojump_clock, caplog):
    class Odd(MemoryDisk):
        broken = True

        def usage(self, path):
            if self.broken:
                raise OSError(errno.EIO, "Input/output error")
            return super().usage(path)

    disk = Odd()
    store = empty_store(disk)
    async with running(store):
        await trio.sleep(25)
        assert sum("cannot be cleaned" in r.message for r in caplog.records) == 3
        disk.broken = False
        await trio.sleep(10)
        send_many(store, store.queues.obtain("T", 0), 1)


# -- expiry


async def test_segments_expire_by_age_at_their_hour(autojump_clock):
    disk = MemoryDisk()
    store = filled(disk, delete_when=cleaning_hour())
    age(disk, store, 100, 80, 71, 100, 1, 0)
    await store.cleaner.clean()
    assert store.log.segments.starts == [n * 4096 for n in range(2, 6)]
    assert store.log.start == 8192
    assert len(disk.list_dir("/store/commitlog")) == 4


async def test_outside_their_hour_old_segments_stay_unless_room_is_short(autojump_clock):
    disk = MemoryDisk()
    store = filled(disk)
    age(disk, store, 100, 80, 1, 1, 1, 0)
    await store.cleaner.clean()
    assert len(store.log.segments.starts) == 6
    disk.capacity_bytes = disk.usage("/").used * 100 // 78
    await store.cleaner.clean()
    assert store.log.segments.starts[0] == 8192
    assert store.refusal is None


async def test_queues_index_and_readers_follow(autojump_clock):
    disk = MemoryDisk()
    store = filled(disk, delete_when=cleaning_hour(), max_index_num=8)
    store.dispatcher.finish()
    news: list[Expired] = []
    store.cleaner.expired = news.append
    queues = list(store.queues)
    before = {queue.queue_id: bodies(store, queue) for queue in queues}
    count = {queue.queue_id: queue.max_offset for queue in queues}
    files = len(store.index.files)
    age(disk, store, 100, 100, 100, 1, 1, 0)
    await store.cleaner.clean()
    start = store.log.start
    assert start == 3 * 4096
    for queue in queues:
        assert 0 < queue.min_offset < queue.max_offset == count[queue.queue_id]
        assert queue.log_offset_at(queue.min_offset) >= start
        assert bodies(store, queue) == before[queue.queue_id][queue.min_offset :]
    assert len(store.index.files) < files
    assert news == [
        Expired(
            0, start, False, tuple(RaisedMinimum("T", q.queue_id, 0, q.min_offset) for q in queues)
        )
    ]


async def test_forced_cleaning_tells_offsets_and_ends_when_there_is_room_c058(
    autojump_clock, caplog
):
    disk = MemoryDisk()
    store = filled(disk)
    store.dispatcher.finish()
    news: list[Expired] = []
    store.cleaner.expired = news.append
    age(disk, store, 2, 2, 1, 1, 1, 0)
    used = disk.usage("/").used
    disk.capacity_bytes = (used - 4096) * 100 // 85 + 1000  # one segment less is enough
    await store.cleaner.clean()
    assert store.log.start == 4096
    assert (news[0].log_begin, news[0].log_end, news[0].forced) == (0, store.log.start, True)
    assert [raised.old_offset for raised in news[0].raised] == [0, 0]
    (line,) = [r.message for r in caplog.records if "expires" in r.message]
    assert "offsets 0 to 4096" in line
    assert "diskSpaceCleanForciblyRatio" in line


async def test_forced_cleaning_may_be_switched_off(autojump_clock):
    disk = MemoryDisk()
    store = filled(disk, clean_file_forcibly_enable=False)
    age(disk, store, *[1] * 6)
    disk.capacity_bytes = disk.usage("/").used * 100 // 99
    await store.cleaner.clean()
    assert len(store.log.segments.starts) == 6
    assert store.refusal is not None


async def test_a_pause_is_made_after_each_segment_and_only_some_go(autojump_clock):
    disk = MemoryDisk()
    store = filled(disk, delete_when=cleaning_hour(), delete_file_batch_max=3)
    age(disk, store, *[100] * 6)
    began = trio.current_time()
    await store.cleaner.clean()
    assert trio.current_time() - began == pytest.approx(0.3)
    assert len(store.log.segments.starts) == 3
    await store.cleaner.clean()
    assert len(store.log.segments.starts) == 1
    await store.cleaner.clean()
    assert len(store.log.segments.starts) == 1  # the last one always stays


async def test_expiry_during_traffic_and_the_cold(autojump_clock):
    """Queue entries that have to be fetched from the disk, while messages go on arriving."""
    disk = MemoryDisk()
    clock = TrioClock()
    store = filled(disk, clock, delete_when=cleaning_hour())
    store.queues.write_tails()
    age(disk, store, 100, 100, 1, 1, 1, 0)
    queue = store.queues.obtain("T", 0)
    async with running(store):
        disk.cold, disk.run_delay_s = True, 0.01
        with trio.move_on_after(0.5):
            while True:
                send(store, queue, b"more", now_ms=clock.now_ms())
                store.commit()
                await trio.sleep(0.05)
                disk.cold = not disk.cold
        disk.cold, disk.run_delay_s = False, 0
        await trio.sleep(1)
        assert store.log.start == 8192
        assert queue.log_offset_at(queue.min_offset) >= 8192
        assert bodies(store, queue)[-1] == b"more"


async def test_an_expired_segment_does_not_come_back_after_a_crash(autojump_clock):
    disk = MemoryDisk()
    store = filled(disk, delete_when=cleaning_hour())
    age(disk, store, 100, 1, 1, 1, 1, 0)
    await store.cleaner.clean()
    await store.flusher.sync_log()
    disk.crash(3, keep="none")
    assert disk.list_dir("/store/commitlog")[0] == f"{4096:020d}"


async def test_the_schedule_is_told_at_the_start_c059(autojump_clock, caplog):
    store = empty_store(MemoryDisk(), delete_when=(4, 16))
    with caplog.at_level(logging.INFO):
        async with running(store):
            pass
    (line,) = [r.message for r in caplog.records if "deleteWhen" in r.message]
    assert line.startswith(
        "log segments expire 72 h after their last write (fileReservedTime), in hour 04, 16"
    )
    assert "next time 20" in line
    assert settings().delete_when == (4,)
