"""Cases from the field about consume queues: entries that are missing, stale, in holes, or of another kind."""

from __future__ import annotations

import pytest
from attrs import evolve

from trio_mq.errors import StoreDamaged
from trio_mq.protocol.layout import (
    PRE_BLANK,
    QUEUE_ENTRY_SIZE,
    Checkpoint,
    pack_checkpoint,
    pack_queue_entry,
)
from trio_mq.store.store import Store
from trio_mq.testing.disk import MemoryDisk

from .stores import (
    QUEUE_FILE_ENTRIES,
    SEGMENT_BYTES,
    World,
    bodies,
    entries,
    everything,
    keyed,
    messages,
)


def all_offsets(store: Store) -> list[int]:
    """Log offsets of all messages that consumers can read."""
    return sorted(m.log_offset for q in store.queues for m in messages(store, q.topic, q.queue_id))


async def test_c007_entries_of_two_segments_come_back_once(world: World):
    offsets = await world.filled(60, queues=1)
    first = next(n for n, offset in enumerate(offsets) if offset >= SEGMENT_BYTES)
    world.cut_entries("T", 0, first - 3, 4)
    world.cut_entries("T", 0, first + 1, 60 - first - 1)
    world.crash()
    assert world.checkpoint().min_timestamp_ms == 0 or world.checkpoint().logics_timestamp_ms > 0
    async with world.life() as store:
        assert all_offsets(store) == offsets


async def test_c007_a_queue_that_lacks_entries_while_others_have_newer_ones(world: World):
    """The furthest queue says nothing about the others: a record behind a gap sends the walk further back."""
    offsets = await world.filled(200)
    world.clock.advance(100_000)
    more = await world.filled(40)
    world.write(
        world.path("checkpoint"), pack_checkpoint(evolve(world.checkpoint(), rest=bytes(4056)))
    )
    world.cut_entries("T", 0, 10, 71)
    world.disk.remove(world.path("queuelist.json"))  # peers leave no list
    world.crash()
    async with world.life() as store:
        assert all_offsets(store) == offsets + more
        assert "lacks entries" in world.report.walk_reason
        assert world.report.walked_from <= offsets[30]


async def test_c008_without_times_in_the_checkpoint_the_queues_progress_counts(world: World):
    offsets = await world.filled(300)
    starts = sorted({offset - offset % SEGMENT_BYTES for offset in offsets})
    assert len(starts) >= 8
    world.write(world.path("checkpoint"), pack_checkpoint(Checkpoint()))
    inside = [n for n, offset in enumerate(offsets) if offset >= starts[7] + SEGMENT_BYTES // 2]
    for queue_id in range(3):
        gone = [n for n in inside if n % 3 == queue_id]
        world.cut_entries("T", queue_id, gone[0] // 3, len(gone))
    world.crash()
    world.disk.remove_tree(world.path("index"))
    index_off = World(world.disk, world.root, world.settings)
    async with index_off.life() as store:
        assert all_offsets(store) == offsets
    world.write(world.path("checkpoint"), pack_checkpoint(Checkpoint()))
    world.crash()
    for queue_id in range(3):
        gone = [n for n in inside if n % 3 == queue_id]
        world.cut_entries("T", queue_id, gone[0] // 3, len(gone))
    async with world.life(kill=True) as store:
        assert all_offsets(store) == offsets


async def test_c022_an_empty_last_queue_file(world: World):
    """p10."""
    offsets = await world.filled(QUEUE_FILE_ENTRIES, queues=1)
    world.resize(world.queue_file(first=QUEUE_FILE_ENTRIES), QUEUE_FILE_ENTRIES * QUEUE_ENTRY_SIZE)
    world.crash()
    async with world.life() as store:
        assert store.queue("T", 0).max_offset == QUEUE_FILE_ENTRIES
        assert not world.disk.exists(world.queue_file(first=QUEUE_FILE_ENTRIES))
        assert all_offsets(store) == offsets
        world.send(store, b"next", queue_id=0)
        store.commit()
        assert messages(store)[-1].queue_offset == QUEUE_FILE_ENTRIES


async def test_c022_the_same_after_a_clean_stop(world: World):
    await world.filled(QUEUE_FILE_ENTRIES, queues=1)
    world.resize(world.queue_file(first=QUEUE_FILE_ENTRIES), QUEUE_FILE_ENTRIES * QUEUE_ENTRY_SIZE)
    async with world.life() as store:
        assert world.report.clean
        assert store.queue("T", 0).max_offset == QUEUE_FILE_ENTRIES
        world.send(store, b"next", queue_id=0)
    async with world.life() as store:
        assert bodies(store)[-1] == b"next"


async def test_c023_a_queue_that_loses_all_its_entries(world: World):
    """Its minimum does not stay behind its maximum, and offsets go on."""
    offsets = await world.filled(40, kill=True)
    async with world.life(kill=True) as store:
        late = [world.send(store, b"late %d" % n, "Late") for n in range(5)]
        assert late[0] > offsets[-1]
    world.flip(late[0] + 88)
    async with world.life() as store:
        queue = store.queue("Late", 0)
        assert queue.min_offset == queue.max_offset == queue.next_offset == 0
        for n in range(10):
            world.send(store, b"new %d" % n, "Late")
        store.commit()
        assert bodies(store, "Late") == [b"new %d" % n for n in range(10)]


async def test_c023_the_same_for_a_queue_whose_first_messages_expired(world: World):
    async with world.life(kill=True) as store:
        for n in range(70):
            world.send(store, b"%d" % n, "Old")
        store.commit()
        filler = [world.send(store, b"f" * 600, "F") for _ in range(20)]
        store.commit()
        gone = [s for s in store.log.segments.starts if s < filler[-1] - SEGMENT_BYTES]
        for start in gone:
            store.log.segments.drop_segment(start)
        await store.cleaner.trim()
        assert store.queue("Old", 0).min_offset == 70
        late = world.send(store, b"70", "Old")
    world.flip(late + 88)
    async with world.life() as store:
        queue = store.queue("Old", 0)
        assert queue.min_offset == queue.max_offset == queue.next_offset == 70
        world.send(store, b"again", "Old")
    async with world.life() as store:
        assert [(m.queue_offset, m.body) for m in messages(store, "Old")] == [(70, b"again")]


async def test_c025_a_hole_of_zeros_is_filled_from_the_log(world: World):
    offsets = await world.filled(140, queues=1)
    world.cut_entries("T", 0, 60, 20)
    world.crash()
    async with world.life() as store:
        assert all_offsets(store) == offsets
        assert [entry[0] for entry in entries(store.queue("T", 0))] == offsets


async def test_c025_a_hole_after_a_clean_stop_is_found_where_the_end_is_looked_for(world: World):
    offsets = await world.filled(40, queues=1)
    world.cut_entries("T", 0, 23, 5)  # the first place that a bisection looks at
    async with world.life() as store:
        assert "hole" in world.report.why_careful
        assert all_offsets(store) == offsets


async def test_c025_a_hole_that_is_not_found_after_a_clean_stop_stops_no_consumer(tmp_path):
    """After a clean stop only the begin and the end of a large file are looked at."""
    entry_bytes = QUEUE_ENTRY_SIZE
    disk = MemoryDisk()
    world = World.make(disk, "store", mapped_file_size_consume_queue=1000 * entry_bytes)
    await world.filled(900, queues=1)
    world.write(world.queue_file(), bytes(2 * entry_bytes), 610 * entry_bytes)
    async with world.life() as store:
        assert world.report.clean
        assert {b"body %d" % n for n in range(900) if n not in (610, 611)} == set(bodies(store))
        assert store.queue("T", 0).next_offset == 900


async def test_c025_a_hole_whose_records_are_gone_stops_no_consumer(world: World):
    """p12."""
    async with world.life(kill=True) as store:
        for n in range(100):
            world.send(store, b"%d" % n + b"x" * 100)
        store.commit()
        store.log.segments.drop_segment(0)
        await store.cleaner.trim()
        low = store.queue("T", 0).min_offset
        assert low > 10
    world.cut_entries("T", 0, low - 5, 10)
    async with world.life() as store:
        queue = store.queue("T", 0)
        assert queue.min_offset == low
        assert queue.max_offset == 100
        assert [m.queue_offset for m in messages(store)] == list(range(low, 100))


async def test_c026_a_checkpoint_that_is_newer_than_the_entries_on_the_disk(world: World):
    offsets = await world.filled(200)
    last = world.checkpoint()
    assert last.logics_timestamp_ms >= world.clock.now_ms() - 1
    for queue_id in range(3):
        world.cut_entries("T", queue_id, 34, 33)
    world.crash()
    async with world.life() as store:
        assert all_offsets(store) == offsets
        assert all(offsets[n] in keyed(store, f"k{n}") for n in range(200))


@pytest.mark.parametrize("crashed", [True, False])
async def test_c028_all_queues_are_built_from_the_log(world: World, crashed: bool):
    offsets = await world.filled(120)
    async with world.life() as store:
        before = {key: entries(store.queue(*key)) for key in everything(store)}
    world.disk.remove_tree(world.path("consumequeue"))
    if crashed:
        world.crash()
    async with world.life() as store:
        assert all_offsets(store) == offsets
        assert {key: entries(store.queue(*key)) for key in everything(store)} == before
        assert world.report.walk_reason == "no queue knows a record"


async def test_c028_offsets_are_those_of_the_records_when_the_first_ones_expired(world: World):
    async with world.life() as store:
        for n in range(150):
            world.send(store, b"%d" % n + b"x" * 50, queue_id=n % 2)
        store.commit()
        store.log.segments.drop_segment(0)
        await store.cleaner.trim()
        before = {
            n: (store.queue("T", n).min_offset, store.queue("T", n).max_offset) for n in (0, 1)
        }
        left = all_offsets(store)
        assert before[0][0] > 0
    world.disk.remove_tree(world.path("consumequeue"))
    async with world.life() as store:
        after = {
            n: (store.queue("T", n).min_offset, store.queue("T", n).max_offset) for n in (0, 1)
        }
        assert after == before
        assert all_offsets(store) == left
        assert all(m.queue_offset >= before[0][0] for m in messages(store))


async def test_c053_offsets_go_on_when_the_whole_log_is_gone(world: World):
    await world.filled(90)
    end = world.report.log_end
    world.disk.remove_tree(world.path("commitlog"))
    world.crash()
    async with world.life() as store:
        queue = store.queue("T", 0)
        assert queue.min_offset == queue.max_offset == 30
        at = world.send(store, b"new", queue_id=0)
        assert at >= end
        assert at % SEGMENT_BYTES == 0
        store.commit()
        assert [(m.queue_offset, m.body) for m in messages(store)] == [(30, b"new")]
    async with world.life() as store:
        assert world.report.clean
        assert [(m.queue_offset, m.body) for m in messages(store)] == [(30, b"new")]


async def test_c053_log_offsets_go_on_from_the_last_file(world: World):
    offsets = await world.filled(90, kill=True)
    last = offsets[-1] - offsets[-1] % SEGMENT_BYTES
    for name in world.disk.list_dir(world.path("commitlog")):
        if int(name) < last:
            world.disk.remove(world.path(f"commitlog/{name}"))
    async with world.life() as store:
        assert world.report.log_start == last
        assert store.queue("T", 0).max_offset == 30
        assert world.send(store, b"new") > offsets[-1]
        store.commit()
        assert messages(store)[-1].queue_offset == 30


async def test_c076_store_times_that_went_back(world: World):
    times_s = [100, 160, 40, 170]
    world.clock.set(1_700_000_000_000)
    base = world.clock.now_ms()
    async with world.life(kill=True) as store:
        for n, at_s in enumerate(times_s):
            store._last_ms = 0  # as another broker that lets its clock go back
            world.clock.set(base + at_s * 1000 - 1)
            world.send(store, b"%d" % n + b"x" * 2500)
        assert len(store.log.segments.starts) >= 3
    world.clock.set(base)
    async with world.life() as store:
        assert world.report.cut_reason is None
        assert [m.body[:1] for m in messages(store)] == [b"0", b"1", b"2", b"3"]
        queue = store.queue("T", 0)
        for at_s in (0, 50, 100, 165, 1000):
            for upper in (False, True):
                found = store.reader.offset_by_time(queue, base + at_s * 1000, upper=upper)
                assert queue.min_offset <= found <= queue.max_offset
        world.send(store, b"own")
        store.commit()
        assert messages(store)[-1].store_timestamp_ms >= base + 170_000


# -- pitfalls of the format


async def test_one_lost_queue_after_a_crash_is_built_again_as_far_back_as_it_goes(world: World):
    offsets = await world.filled(200)
    world.disk.remove_tree(world.path("consumequeue/T/1"))
    async with world.life(kill=True) as store:
        world.send(store, b"new", queue_id=1)  # its offset is wrong now, as with any broker
    world.disk.remove_tree(world.path("consumequeue/T/1"))
    async with world.life() as store:
        assert set(offsets) <= set(all_offsets(store)) | {offsets[n] for n in range(1, 200, 3)}


async def test_a_queue_of_blanks_only_takes_records_again(world: World):
    """p11: A queue that holds only fillers says nothing about how far the log was indexed."""
    await world.filled(10)
    world.write(world.queue_file("Blank"), PRE_BLANK * 20)
    world.resize(world.queue_file("Blank"), QUEUE_FILE_ENTRIES * QUEUE_ENTRY_SIZE)
    world.crash()
    async with world.life() as store:
        queue = store.queue("Blank", 0)
        assert queue.min_offset == queue.max_offset == 20
        world.send(store, b"x", "Blank")
        store.commit()
        assert [(m.queue_offset, m.body) for m in messages(store, "Blank")] == [(20, b"x")]


async def test_going_over_the_whole_log_twice_changes_no_entry(world: World):
    """p29."""
    await world.filled(150, kill=True)
    world.from_the_start()
    await world.restart()
    first = world.files("consumequeue", "index", "commitlog")
    world.from_the_start()
    report = await world.restart()
    assert report.records == 150
    assert world.files("consumequeue", "index", "commitlog") == first


async def test_entries_behind_the_logs_end_go(world: World):
    offsets = await world.filled(90, kill=True)
    world.flip(offsets[80] + 88)
    async with world.life() as store:
        assert all_offsets(store) == offsets[:80]
        assert [store.queue("T", n).max_offset for n in range(3)] == [27, 27, 26]
        assert sum("ends at offset" in note for note in world.report.notes) == 3
    report = await world.restart()
    assert report.clean
    assert report.notes == []


async def test_an_expired_first_segment_moves_the_minimum(world: World):
    """p30."""
    offsets = await world.filled(120, kill=True)
    world.disk.remove(world.segment(0))
    async with world.life() as store:
        left = [offset for offset in offsets if offset >= SEGMENT_BYTES]
        assert world.report.log_start == SEGMENT_BYTES
        assert all_offsets(store) == left
        queue = store.queue("T", 0)
        assert queue.min_offset == min(m.queue_offset for m in messages(store))


async def test_a_torn_entry_is_written_again(world: World):
    """Its last bytes lie in a sector that was lost: it looks valid, with another tags code."""
    await world.filled(60, kill=True, queues=1)
    before = world.read(world.queue_file())
    world.write(world.queue_file(), bytes(8), 30 * QUEUE_ENTRY_SIZE + 12)
    world.disk.remove(world.path("checkpoint"))
    async with world.life():
        assert any("torn" in note for note in world.report.notes)
    assert world.read(world.queue_file()) == before


@pytest.mark.parametrize(("at", "size"), [(0, 8), (5, 3), (20, 8), (12, 34), (34, 2)])
async def test_a_torn_entry_of_a_batch_queue_is_written_again(world: World, at: int, size: int):
    world.batch_topics.add("B")
    async with world.life(kill=True) as store:
        for n in range(30):
            world.send_batch(store, [b"x"] * (n % 3 + 1))
    before = world.files("batchconsumequeue")
    file = world.path("batchconsumequeue/B/0/" + f"{460:020d}")
    world.write(file, bytes(size), 3 * 46 + at)
    world.disk.remove(world.path("checkpoint"))
    await world.restart()
    assert world.files("batchconsumequeue") == before


async def test_a_missing_file_between_two_of_a_queue_is_made_again(world: World):
    offsets = await world.filled(180, queues=1)
    world.disk.remove(world.queue_file(first=QUEUE_FILE_ENTRIES))
    world.crash()
    async with world.life() as store:
        assert all_offsets(store) == offsets


async def test_a_topic_made_again_keeps_its_new_messages(world: World):
    """Old records of a deleted topic are no reason to lose those of the new one (pitfall of a replay)."""
    await world.filled(30, kill=True, queues=1)
    async with world.life(kill=True) as store:
        store.drop_topic("T")
        for n in range(5):
            world.send(store, b"new %d" % n)
    world.disk.remove(world.path("checkpoint"))
    async with world.life() as store:
        assert bodies(store) == [b"new %d" % n for n in range(5)]


async def test_a_damaged_queue_offset_does_not_make_a_hole(world: World):
    offsets = await world.filled(30, kill=True, queues=1)
    world.write_log((1 << 40).to_bytes(8, "big"), offsets[20] + 20)
    world.cut_entries("T", 0, 15, 15)
    async with world.life() as store:
        queue = store.queue("T", 0)
        assert [entry[0] for entry in entries(queue)] == offsets
        assert queue.next_offset == 30
        assert any(f"queue offset {1 << 40}" in note for note in world.report.notes)


@pytest.mark.parametrize("topic", ["../out", ".", "a/b"])
async def test_a_topic_that_is_no_name_of_a_folder_gets_no_queue(world: World, topic: str):
    async with world.life(kill=True) as store:
        world.send(store, b"good")
        at = world.send(store, b"bad", "T" * len(topic))
        world.send(store, b"good")
    record = world.read_log(200, at)
    place = record.index(b"T" * len(topic), 90)
    world.write_log(topic.encode(), at + place)
    world.disk.remove_tree(world.path("consumequeue"))
    async with world.life() as store:
        assert bodies(store) == [b"good", b"good"]
        assert any(repr(topic) in note for note in world.report.notes)
    assert not any("out" in name for name in world.files())


# -- kinds of queues


async def test_batch_queues_are_recovered(world: World):
    world.batch_topics.add("B")
    async with world.life(kill=True) as store:
        for n in range(30):
            world.send_batch(store, [b"%d-%d" % (n, m) for m in range(n % 4 + 1)])
        world.send(store, b"single", "B")
        end = store.queue("B", 0).next_offset
    before = world.files("batchconsumequeue")
    async with world.life(kill=True) as store:
        queue = store.queue("B", 0)
        assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, end, end)
        assert len(messages(store, "B")) == 31
    assert world.files("batchconsumequeue") == before
    world.disk.remove_tree(world.path("batchconsumequeue"))
    async with world.life() as store:
        assert store.queue("B", 0).max_offset == end
    assert world.files("batchconsumequeue") == before


async def test_a_batch_queue_is_cut_with_the_log(world: World):
    world.batch_topics.add("B")
    async with world.life(kill=True) as store:
        at = [world.send_batch(store, [b"a", b"b", b"c"]) for _ in range(12)]
    world.flip(at[10] + 88)
    async with world.life() as store:
        assert store.queue("B", 0).max_offset == 30
        assert len(messages(store, "B")) == 10
        world.send_batch(store, [b"x", b"y"])
    async with world.life() as store:
        assert store.queue("B", 0).max_offset == 32


async def test_a_batch_queue_that_loses_all_entries_goes_on_where_it_began(world: World):
    world.batch_topics.add("B")
    async with world.life(kill=True) as store:
        world.send(store, b"first")
        at = world.send_batch(store, [b"a", b"b", b"c"])
    world.flip(at + 88)
    async with world.life() as store:
        queue = store.queue("B", 0)
        assert queue.min_offset == queue.max_offset == queue.next_offset == 0


@pytest.mark.parametrize("batch", [True, False])
async def test_a_folder_of_another_kind_than_its_topic_is_refused(world: World, batch: bool):
    """p15: As Apache: a lost topics.json must not make a batch topic a simple one."""
    world.batch_topics = {"B"} if batch else set()
    async with world.life() as store:
        world.send_batch(store, [b"a", b"b"])
    world.batch_topics = set() if batch else {"B"}
    before = world.files()
    with pytest.raises(StoreDamaged, match=r"topic B has .*topics\.json.*queue\.type"):
        await world.restart()
    assert world.files() == before


async def test_delayed_messages_get_the_time_when_they_are_due(world: World):
    async with world.life(kill=True) as store:
        for level in (1, 18, 99, 0):
            more = {"DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": "0"}
            world.send(store, b"d%d" % level, "SCHEDULE_TOPIC_XXXX", 3, tags="x", more=more)
    world.disk.remove_tree(world.path("consumequeue"))
    async with world.life() as store:
        found = entries(store.queue("SCHEDULE_TOPIC_XXXX", 3))
        stored = [m.store_timestamp_ms for m in messages(store, "SCHEDULE_TOPIC_XXXX", 3)]
        codes = [code - ms for (_, _, code), ms in zip(found, stored, strict=True)]
        assert codes[:3] == [1000, 7_200_000, 7_200_000]
        assert found[3][2] == ord("x")


@pytest.mark.parametrize(
    ("delay_ms", "kept"),
    [(1000, True), (30_000, True), (7_200_000, True), (999, False), (-1000, False), (0, False)],
)
async def test_c142_a_waiting_message_keeps_the_time_of_other_settings(
    world: World, delay_ms: int, kept: bool
):
    """A delay that is no level's is what a power cut left of an entry: it is mended."""
    topic = "SCHEDULE_TOPIC_XXXX"
    async with world.life(kill=True) as store:
        more = {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "0"}
        world.send(store, b"m", topic, 2, more=more)
        store.commit()
        store.dispatcher.write_tails()
        ((log_offset, size, _),) = entries(store.queue(topic, 2))
        (message,) = messages(store, topic, 2)
    stored_ms = message.store_timestamp_ms
    entry = pack_queue_entry(log_offset, size, stored_ms + delay_ms)
    world.write(world.queue_file(topic, 2), entry)
    async with world.life() as store:
        ((_, _, due_ms),) = entries(store.queue(topic, 2))
        assert due_ms == stored_ms + (delay_ms if kept else 10_000)


async def test_prepared_and_rolled_back_records_get_no_entry(world: World):
    async with world.life(kill=True) as store:
        world.send(store, b"plain", keys="k")
        queue = store.queue("T", 0)
        for flag in (0x4, 0xC):
            world.send(store, b"flag %d" % flag, keys=f"k{flag}", sys_flag=flag, count=0)
        world.send(store, b"committed", sys_flag=0x8)
        assert queue.next_offset == 2
    world.disk.remove_tree(world.path("consumequeue"))
    world.disk.remove_tree(world.path("index"))
    async with world.life() as store:
        assert bodies(store) == [b"plain", b"committed"]
        assert keyed(store, "k4") != []
        assert keyed(store, "k12") == []
