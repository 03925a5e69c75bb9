"""From the copied log into queues and index while the slave runs: what waits, what is seen, what is passed over."""

import logging

import attrs
import pytest
import trio

from tests import golden_stores as golden
from tests.ha.copies import Copying, Original, original, picture, read_all, record_ends
from tests.recovered import SIZES
from tests.recovery.stores import HOST, World, entries, everything, keyed
from trio_mq.config import StoreSettings
from trio_mq.protocol.layout import BATCH_QUEUE_ENTRY_SIZE, PRE_BLANK_SIZE
from trio_mq.recovery.recover import recover
from trio_mq.store.disk import RealDisk
from trio_mq.store.store import Store, open_parts
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk


def many_at_once(running):
    """Let all records be taken over many at once, as far as they are usual."""
    running.copy._takeover.load_bulk()
    running.copy._takeover.bulk_bytes = 1


def counted(monkeypatch, running):
    """How often the loop looks at the log."""
    looks = []
    step = running.copy._takeover._step
    monkeypatch.setattr(
        running.copy._takeover, "_step", lambda limit: looks.append(limit) or step(limit)
    )
    return looks


async def plain(count=100, **changes):
    """A master's log of usual records: runs of them can be taken over at once."""
    world = World.make(MemoryDisk(), "/master", **changes)
    async with world.life() as store:
        for n in range(count):
            world.send(store, b"body %d" % n, "T", n % 2, tags="t", keys=f"k{n}")
        store.commit()
        return Original.of(store)


# -- waiting


async def test_a_part_of_a_record_waits_for_the_rest_without_being_looked_at(
    autojump_clock, monkeypatch
):
    master = await original(30)
    begin, end = master.ends[4], master.ends[5]
    async with Copying.make(master).life() as running:
        await running.take(master, begin + 8)
        looks = counted(monkeypatch, running)
        for at in range(begin + 9, end):
            await running.take(master, at)
        assert (looks, running.copy.dispatched) == ([], begin)
        await running.take(master, end)
        assert running.copy.dispatched == end


async def test_the_end_of_a_segment_is_passed_when_all_of_it_is_there(autojump_clock):
    master = await original(60)
    segment = master.segment_bytes
    blank = max(end for end in master.ends if end < segment)
    async with Copying.make(master).life() as running:
        await running.take(master, segment - 1)
        assert running.copy.dispatched == blank
        await running.take(master, segment)
        assert running.copy.dispatched == segment
        assert running.copy.damage is None


async def test_what_is_on_the_disk_only_is_fetched_by_a_worker_thread(autojump_clock):
    master = await original(60)
    copying = Copying.make(master)
    async with copying.life() as running:
        copying.disk.cold = True
        run, warmed = copying.disk.run, []

        async def noted(call):
            warmed.append(call)
            copying.disk.cold = False
            try:
                return await run(call)
            finally:
                copying.disk.cold = len(warmed) < 5

        copying.disk.run = noted
        await running.take(master, master.end)
        assert warmed
        assert running.copy.dispatched == master.end


# -- who sees it


@pytest.mark.parametrize("columns", [False, True])
async def test_who_waits_for_a_queue_is_told_of_its_new_records(autojump_clock, columns):
    master = await plain(100)
    async with Copying.make(master).life() as running:
        if columns:
            many_at_once(running)
        queue = running.store.queues.obtain("T", 1)
        queue.watched = 1
        told = []
        running.store.dispatcher.listeners.append(told.extend)
        await running.take(master, master.end)
        assert [arrival.queue_offset for arrival in told] == list(range(50))
        assert {arrival.queue for arrival in told} == {queue}
        assert queue.traffic.messages == 100


async def test_many_records_at_once_give_what_single_ones_give(autojump_clock):
    master = await plain(400, mapped_file_size_commit_log=1 << 20)
    seen = []
    for columns in (False, True):
        async with Copying.make(master).life() as running:
            if columns:
                many_at_once(running)
            await running.take(master, master.end)
            store = running.store
            store.dispatcher.finish()
            traffic = store.queues.traffic["T"]
            seen.append((picture(store), traffic.messages, traffic.bytes, store.flusher.newest_ms))
    assert seen[0] == seen[1]
    assert seen[0][0] == master.picture


async def test_an_empty_queue_begins_with_the_offset_of_its_first_record(autojump_clock):
    master = await plain(200)
    begin = 2 * master.segment_bytes
    async with Copying.make(master).life() as running:
        running.copy.append(begin, master.piece(begin, 3 * master.segment_bytes))
        await running.take(master, master.end)
        for queue_id in (0, 1):
            queue, theirs = running.store.queue("T", queue_id), master.picture.queues["T", queue_id]
            assert 0 < queue.min_offset < queue.max_offset == theirs.max_offset
            mine = picture(running.store).queues["T", queue_id].entries
            assert theirs.entries.endswith(mine[-20 * (queue.max_offset - queue.min_offset) :])


@pytest.mark.parametrize("end", ["close", "kill"])
async def test_a_batch_may_come_before_the_table_of_topics_says_so(autojump_clock, end):
    master = await original(40)
    copying = Copying.make(master)
    copying.world.batch_topics.clear()
    async with copying.life(end=end) as running:
        await running.take(master, master.end // 2)
    async with copying.life(end=end) as running:
        await running.take(master, master.end)
        assert running.store.queue("B", 0).is_batch
    copying.world.batch_topics.add("B")
    async with copying.life() as running:
        await running.take(master, master.end)
        running.store.dispatcher.finish()
        assert picture(running.store).queues == master.picture.queues


async def test_records_of_a_topic_that_was_deleted_go_to_its_new_queue(autojump_clock):
    master = await plain(200)
    half = master.ends[100]
    async with Copying.make(master).life() as running:
        await running.take(master, half + 20)
        old = running.store.queue("T", 0)
        running.store.drop_topic("T")
        await running.take(master, master.end)
        new = running.store.queue("T", 0)
        assert new is not old
        first = new.log_offset_at(new.min_offset)
        # The record that lay at the end in part when the topic went is of the deleted one.
        assert first in (master.ends[101], master.ends[102])
        assert new.max_offset == master.picture.queues["T", 0].max_offset
        running.store.dispatcher.finish()
        offsets = [offset for n in range(200) for offset in keyed(running.store, f"k{n}")]
        assert half in offsets, "the index has it all the same"


async def two_lives(first=70, second=70, **changes):
    """A master's log with a topic that was deleted and made again."""
    world = World.make(MemoryDisk(), "/master", **changes)
    async with world.life() as store:
        for n in range(first):
            world.send(store, b"old %d" % n, "T", n % 4 % 3)
            world.send(store, b"other %d" % n, "Other", n % 2)
        store.commit()
        store.drop_topic("T")
        for n in range(second):
            world.send(store, b"new %d" % n, "T", n % 2)
            world.send(store, b"other %d" % n, "Other", n % 2)
        store.commit()
        return Original.of(store)


@pytest.mark.parametrize("second", [1, 70, 300])
@pytest.mark.parametrize("columns", [False, True])
async def test_a_topic_that_is_made_again_begins_anew(autojump_clock, columns, second):
    """The master tells nothing of it; Apache's slaves pass its records over until there are more than before."""
    master = await two_lives(second=second)
    async with Copying.make(master).life() as running:
        if columns:
            many_at_once(running)
        await running.take(master, master.end, step=5000)
        assert picture(running.store).queues["T", 0] == master.picture.queues["T", 0]
        if second > 1:
            assert picture(running.store).queues == master.picture.queues
        assert running.store.queue("T", 0).max_offset == -(-second // 2)


@pytest.mark.parametrize(
    ("end", "waits_s"),
    [
        ("close", 0.0),
        ("kill", 8.0),
        ("1", 8.0),
        *(
            pytest.param(str(end), waits_s, marks=pytest.mark.slow)
            for end in range(2, 8)
            for waits_s in (0.0, 8.0, 70.0)
        ),
    ],
)
async def test_a_topic_that_was_made_again_is_so_after_a_restart(autojump_clock, end, waits_s):
    master = await two_lives()
    stops = [*master.ends[130:240:15], master.end]
    copying = Copying.make(master)
    for stop in stops:
        async with copying.life(end=end) as running:
            await running.take(master, stop)
            await trio.sleep(waits_s)
    async with copying.life() as running:
        await running.take(master, master.end)
        assert picture(running.store).queues == master.picture.queues


async def test_a_topic_that_was_made_again_is_found_when_its_queues_are_made_anew(autojump_clock):
    master = await two_lives()
    for with_list in (True, False):
        copying = Copying.make(master)
        async with copying.life() as running:
            await running.take(master, master.end)
        copying.disk.remove_tree("/slave/consumequeue")
        if not with_list:
            copying.disk.remove("/slave/queuelist.json")
        copying.disk.remove("/slave/checkpoint")
        async with copying.life() as running:
            assert picture(running.store).queues == master.picture.queues


async def test_an_index_that_takes_no_keys_keeps_no_message_back(autojump_clock):
    master = await plain(300)
    copying = Copying.make(master)
    async with copying.life() as running:
        many_at_once(running)
        copying.disk.fail_when(lambda o: "/index" in o.path, error=5)
        await running.take(master, master.end)
        assert running.store.queue("T", 0).max_offset == 150
        assert running.store.dispatcher.index_backlog
        copying.disk.heal()
        await running.store.cleaner.clean()
        running.store.dispatcher.finish()
        assert picture(running.store) == master.picture


# -- damage


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("what", ["body", "magic", "size"])
async def test_damage_is_told_once_and_passed_over(autojump_clock, caplog, what, columns):
    master = await plain(60)
    begin = master.ends[9]
    at, byte = {"body": (begin + 90, 0xFF), "magic": (begin + 5, 0), "size": (begin + 2, 0xFF)}[
        what
    ]
    data = master.log[:at] + bytes([byte]) + master.log[at + 1 :]
    damaged = attrs.evolve(master, log=data)
    async with Copying.make(master).life() as running:
        if columns:
            many_at_once(running)
        with caplog.at_level(logging.ERROR):
            await running.take(damaged, master.end)
        queue = running.store.queue("T", 0)
        assert running.copy.dispatched == master.end
        assert running.copy.damage.startswith(f"at offset {begin}: ")
        told = [r.getMessage() for r in caplog.records if f"offset {begin}" in r.getMessage()]
        assert len(told) == 2, "that there is no record, and where it goes on"
        assert read_all(running.store.log.read, 0, master.end) == data, "it is copied all the same"
        sizes = [size for _, size, _ in entries(queue)]
        assert [n for n, size in enumerate(sizes) if size == PRE_BLANK_SIZE] == [5]
        assert len(sizes) == 30


async def test_damage_at_the_end_waits_for_what_comes_behind(autojump_clock, caplog):
    master = await plain(60)
    begin, end = master.ends[9], master.ends[10]
    damaged = attrs.evolve(master, log=master.log[: begin + 4] + b"junk" + master.log[begin + 8 :])
    copying = Copying.make(master)
    async with copying.life() as running:
        await running.take(damaged, end)
        assert running.copy.dispatched == begin
        await running.take(damaged, end + 30)
        assert running.copy.dispatched == begin
    # What follows may be anything: the next start looks at it, and cuts it off.
    assert copying.disk.exists("/slave/abort")
    async with copying.life() as running:
        assert running.copy.end == begin
        await running.take(master, master.end)
        assert picture(running.store).queues == master.picture.queues


async def test_files_that_expired_before_they_were_taken_over_are_told(autojump_clock, caplog):
    master = await plain(200)
    async with Copying.make(master).life() as running:
        segment = master.segment_bytes
        for stop in master.stops(0, 3 * segment):
            running.copy.append(running.copy.end, master.piece(running.copy.end, stop))
        running.store.log.segments.drop_segment(0)
        await running.take(master, master.end)
        assert running.copy.dispatched == master.end
        assert f"log offsets 0 to {segment} expired before they were dispatched" in caplog.text


# -- the ends of lives


async def test_c008_a_slave_that_was_killed_replays_little(autojump_clock):
    """Its checkpoint advances as a master's does."""
    master = await plain(400)
    copying = Copying.make(master)
    async with copying.life(end="kill") as running:
        begin = 0
        for end in range(master.segment_bytes, master.end, master.segment_bytes):
            await running.take(master, end)
            await trio.sleep(11)
            begin = running.copy.dispatched
        await running.take(master, master.end)
    assert begin > 8 * master.segment_bytes
    async with copying.life() as running:
        report = copying.world.report
        assert not report.clean
        assert report.walked_from >= begin - master.segment_bytes
        assert report.records <= sum(1 for end in master.ends if end > report.walked_from)
        assert running.copy.dispatched == running.copy.end
        await running.take(master, master.end)
        assert picture(running.store).queues == master.picture.queues


@pytest.mark.parametrize("columns", [False, True])
async def test_c071_nothing_is_seen_that_is_not_durable(autojump_clock, columns):
    master = await plain(300)
    copying = Copying.make(master, sync=True)
    half = master.ends[150]
    async with copying.life(end="5") as running:
        if columns:
            many_at_once(running)
        await running.take(master, half)
        await running.synced()
        copying.disk.run_delay_s = 60.0
        await running.take(master, master.end)
        assert running.copy.kept.value == running.store.confirmed == half
        assert running.copy.dispatched <= half
        assert all(queue.indexed_to <= half for queue in running.store.queues)
        copying.disk.run_delay_s = 0.0
    async with copying.life() as running:
        end = running.copy.end
        assert half <= end <= master.end
        assert running.store.confirmed == running.copy.kept.value == end
        assert all(queue.indexed_to <= end for queue in running.store.queues)
        await running.take(master, master.end)
        await running.synced()
        assert picture(running.store).queues == master.picture.queues


async def test_a_clean_stop_leaves_a_log_that_ends_with_a_record(autojump_clock, caplog):
    master = await original(30)
    copying = Copying.make(master)
    async with copying.life() as running:
        await running.take(master, master.ends[6] + 33)
    caplog.clear()
    async with copying.life() as running:
        assert copying.world.report.clean
        assert copying.world.report.cut_bytes == 0
        assert running.copy.end == master.ends[6]
        assert [r for r in caplog.records if r.levelno > logging.INFO] == []


async def test_a_torn_end_after_a_kill_is_nothing_to_be_warned_of(autojump_clock, caplog):
    master = await original(30)
    copying = Copying.make(master)
    async with copying.life(end="kill") as running:
        await running.take(master, master.ends[6] + 33)
        running.store.dispatcher.finish()
    caplog.clear()
    async with copying.life() as running:
        assert running.copy.end == master.ends[6]
        assert copying.world.report.cut_bytes
        assert [r for r in caplog.records if r.levelno > logging.INFO] == []


async def test_a_slave_that_has_lost_its_log_begins_anew(autojump_clock):
    """A power cut took the name of its first file, and left files of queues."""
    master = await original(60)
    copying = Copying.make(master)
    async with copying.life(end="kill") as running:
        await running.take(master, master.end)
        running.store.dispatcher.finish()
    copying.disk.remove_tree("/slave/commitlog")
    async with copying.life() as running:
        assert (running.copy.end, list(running.store.queues)) == (0, [])
        await running.take(master, master.end)
        running.store.dispatcher.finish()
        assert picture(running.store) == master.picture


async def test_what_a_stop_has_no_time_for_is_taken_over_by_the_next_start(
    autojump_clock, monkeypatch
):
    master = await plain(200)
    copying = Copying.make(master)
    async with copying.life() as running:

        async def endless():
            await trio.sleep(1)
            return True

        monkeypatch.setattr(running.copy._takeover, "_go_on_alone", endless)
        await running.take(master, 100)
        running.copy.append(100, master.piece(100, 3000))
    assert copying.disk.exists("/slave/abort")
    async with copying.life() as running:
        assert running.copy.end == running.copy.dispatched == master.whole_before(3000)
        await running.take(master, master.end)
        assert picture(running.store).queues == master.picture.queues


async def test_old_files_of_a_slave_expire_as_on_a_master(autojump_clock):
    master = await plain(200)
    copying = Copying.make(master)
    async with copying.life() as running:
        await running.take(master, master.end)
        segments = running.store.log.segments
        now_ms = copying.world.clock.now_ms()
        for number, start in enumerate(segments.starts):
            copying.disk.set_modified_ms(segments.path(start), now_ms if number > 1 else 0)
        running.store.cleaner._settings = attrs.evolve(
            copying.world.settings, delete_when=tuple(range(24))
        )
        await running.store.cleaner.clean()
        assert segments.start == 2 * master.segment_bytes
        queue = running.store.queue("T", 0)
        assert queue.log_offset_at(queue.min_offset) >= segments.start


# -- stores of a real broker


@pytest.mark.parametrize("name", golden.NAMES)
async def test_a_golden_store_that_is_copied_in_pieces_has_the_same_queues(
    autojump_clock, tmp_path, name
):
    sizes = SIZES | {"mapped_file_size_batch_consume_queue": 300_000 * BATCH_QUEUE_ENTRY_SIZE}
    settings = StoreSettings(path=str(golden.unpack(name, tmp_path)), **sizes)
    parts = open_parts(RealDisk(), settings, ManualClock(), lambda topic: topic == "GoldBCQ")
    try:
        await recover(parts)
        store = Store(parts, ManualClock(), HOST)
        commit_log = store.log
        data = read_all(commit_log.read, 0, commit_log.written)
        wanted, bodies = picture(store).queues, everything(store)
    finally:
        parts.release()
    master = Original(
        data, list(record_ends(data, golden.SEGMENT_SIZE)), picture(store), golden.SEGMENT_SIZE
    )
    copying = Copying.make(master, **sizes)
    copying.world.batch_topics = {"GoldBCQ"}
    at = 0
    for end, step in ((20_000, 777), (90_000, 4096), (master.end, 1 << 20)):
        async with copying.life(end="close" if at else "kill") as running:
            await running.take(master, min(end, master.end), step)
            at = running.copy.end
            if at == master.end:
                assert everything(running.store) == bodies
                seen = picture(running.store).queues
                assert {k: (q.min_offset, q.max_offset) for k, q in seen.items()} == {
                    k: (q.min_offset, q.max_offset) for k, q in wanted.items()
                }
    assert at == master.end
