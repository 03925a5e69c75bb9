"""Queues whose files are gone, one of many: the list of queues tells, and they are made again from the log."""

from __future__ import annotations

from contextlib import suppress

import pytest

from trio_mq.errors import StoreDamaged
from trio_mq.recovery.recover import Choices, recover
from trio_mq.store.roster import Bounds, QueueRoster
from trio_mq.testing.disk import MemoryDisk, PowerCut

from .stores import QUEUE_FILE_ENTRIES, SEGMENT_BYTES, World, everything, keyed


def names(world: World) -> set[str]:
    return set(world.disk.list_dir(world.path("consumequeue/T")))


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("path_first", ["consumequeue/T/1", "consumequeue/T"])
async def test_one_lost_folder_of_many_is_made_again(world: World, crashed: bool, path_first: str):
    """Pitfall 2: others keep the furthest offset high, and nothing else in the files says that one is gone."""
    await world.filled(90)
    async with world.life() as store:
        world.send(store, b"another topic", "Other")
        store.commit()
        expected = everything(store)
    before = world.files("consumequeue")
    world.disk.remove_tree(world.path(path_first))
    if crashed:
        world.crash()
    async with world.life() as store:
        assert everything(store) == expected
        assert any("have lost their files" in note for note in world.report.notes)
    assert world.files("consumequeue") == before
    await world.restart()
    assert world.report.clean
    assert world.report.notes == []


@pytest.mark.parametrize("crashed", [False, True])
async def test_the_last_file_of_a_queue_is_missed_too(world: World, crashed: bool):
    await world.filled(9 * QUEUE_FILE_ENTRIES)
    async with world.life() as store:
        expected = everything(store)
        world.send(store, b"newest", "Other")
    world.disk.remove(world.queue_file("T", 1, 2 * QUEUE_FILE_ENTRIES))
    if crashed:
        world.crash()
    async with world.life() as store:
        expected["Other", 0] = [b"newest"]
        assert everything(store) == expected


async def test_a_store_of_a_peer_is_asked_for_the_queues_that_groups_have_read(world: World):
    await world.filled(60)
    world.disk.remove(world.path("queuelist.json"))
    world.disk.remove_tree(world.path("consumequeue/T/2"))
    parts = world.open_parts()
    report = await recover(parts, Choices(expected=[("T", 0), ("T", 2), ("Gone", 0)]))
    parts.release()
    assert any("2 queues have lost their files, T/2" in note for note in report.notes)
    assert names(world) == {"0", "1", "2"}
    # Now there is a list; a queue that no record belongs to is not looked for again.
    parts = world.open_parts()
    report = await recover(parts, Choices(expected=[("Gone", 0)]))
    parts.release()
    assert report.notes == []


async def test_a_deleted_topic_is_not_missed(world: World):
    await world.filled(60)
    async with world.life() as store:
        world.send(store, b"stays", "Other")
        store.commit()
        store.drop_topic("T")
    await world.restart()
    assert world.report.clean
    assert world.report.notes == []
    assert not world.disk.is_dir(world.path("consumequeue/T"))


@pytest.mark.parametrize(
    "spoilt", [b"", b"{", b"[]", b'{"version": 9}', b'{"version": 1, "queues": 3}']
)
async def test_a_list_that_cannot_be_read_is_as_good_as_none(world: World, spoilt: bytes):
    await world.filled(60)
    world.resize(world.path("queuelist.json"), 0)
    world.write(world.path("queuelist.json"), spoilt)
    await world.restart()
    assert world.report.notes == []
    roster = QueueRoster(world.disk, world.root)
    roster.load()
    assert roster.listed == {("T", n): Bounds(0, 20) for n in range(3)}


async def test_a_power_cut_at_any_moment_leaves_a_list():
    """The old one or the new one; a half-written one is never taken."""
    for cut in range(1, 12):
        disk = MemoryDisk()
        disk.make_dirs("store")
        disk.sync_dir("")
        roster = QueueRoster(disk, "store")
        roster.save({("T", 0): Bounds(0, 1)})
        disk.kill_at(cut)
        with suppress(PowerCut):
            roster.save({("T", 0): Bounds(0, 2), ("U", 1): Bounds()})
        disk.crash(seed=cut)
        roster.load()
        old, new = {("T", 0): Bounds(0, 1)}, {("T", 0): Bounds(0, 2), ("U", 1): Bounds()}
        assert roster.listed in (old, new)


async def test_a_queue_that_cannot_be_read_stops_the_start_with_its_path(world: World):
    """And its siblings with it, concurrently or not; nothing was changed."""
    await world.filled(90)
    world.crash()
    real_open = world.disk.open

    def open_file(path: str, **how: bool):
        if "consumequeue/T/1" in path:
            raise OSError(5, "Input/output error")
        return real_open(path, **how)

    before = world.derived()
    world.disk.open = open_file
    try:
        for concurrently in (True, False):
            parts = world.open_parts()
            with pytest.raises(StoreDamaged, match=r"consumequeue/T/1.*Input/output error"):
                await recover(parts, Choices(concurrently=concurrently))
            parts.release()
    finally:
        world.disk.open = real_open
    assert world.derived() == before


@pytest.mark.parametrize("crashed", [False, True])
async def test_concurrently_and_in_turn_give_the_same_files(world: World, crashed: bool):
    await world.filled(200, queues=7)
    world.cut_entries("T", 3, 5, 10)
    world.cut_entries("T", 5, 20, 9)
    if crashed:
        world.crash()
    found = []
    untouched = world.files()
    for concurrently in (True, False):
        for path, data in untouched.items():
            world.resize(world.path(path), len(data))
            world.write(world.path(path), data)
        parts = world.open_parts()
        report = await recover(parts, Choices(concurrently=concurrently))
        table = {(q.topic, q.queue_id): (q.min_offset, q.next_offset) for q in parts.queues}
        parts.release()
        found.append((world.derived(), table, report.notes, report.log_end, report.records))
    assert found[0] == found[1]


@pytest.mark.parametrize("kill", [False, True])
async def test_a_topic_deleted_and_made_again_keeps_only_its_new_messages(world: World, kill: bool):
    """Its old records are still in the log, and numbering has begun anew: a replay must not mix the two."""
    offsets = await world.filled(30)
    async with world.life(kill=kill) as store:
        store.drop_topic("T")
        for number in range(2):
            world.send(store, b"new %d" % number)
    expected = [b"new 0", b"new 1"]
    world.disk.remove_tree(world.path("consumequeue/T"))
    world.from_the_start()
    async with world.life() as store:
        assert {key: some for key, some in everything(store).items() if some} == {
            ("T", 0): expected
        }
        assert keyed(store, "k1") == [offsets[1]], "what is in the log is found by key"
    async with world.life(kill=True) as store:
        world.send(store, b"new 2")
    world.from_the_start()
    async with world.life() as store:
        assert everything(store)["T", 0] == [*expected, b"new 2"]


async def test_a_deletion_is_forgotten_when_its_records_have_expired(world: World):
    offsets = await world.filled(200)
    async with world.life() as store:
        store.drop_topic("T")
        world.send(store, b"stays", "Other")
        world.send(store, b"x" * 3000, "Other")
        world.send(store, b"x" * 3000, "Other")
    roster = QueueRoster(world.disk, world.root)
    roster.load()
    assert roster.deleted.keys() == {"T"}
    for start in sorted({offset - offset % SEGMENT_BYTES for offset in offsets}):
        roster.load()
        assert roster.deleted.keys() == {"T"}
        world.disk.remove(world.segment(start))
        await world.restart()
    roster.load()
    assert roster.deleted == {}


@pytest.mark.parametrize("crashed", [False, True])
async def test_the_first_file_of_a_queue_is_missed_too(world: World, crashed: bool):
    """Names may reach the disk in any order: the first file's is gone, those of later ones are there."""
    await world.filled(4 * QUEUE_FILE_ENTRIES, queues=2)
    before = world.files("consumequeue")
    async with world.life() as store:
        expected = everything(store)
    world.disk.remove(world.queue_file("T", 0, 0))
    if crashed:
        world.from_the_start()
    async with world.life() as store:
        assert everything(store) == expected
    assert world.files("consumequeue") == before


@pytest.mark.parametrize("last_is_missing", [False, True])
async def test_files_that_expired_before_a_crash_are_not_missed(
    world: World, last_is_missing: bool
):
    """The list is of the last clean stop, and the queues begin later now: the log is not gone over for that."""
    offsets = await world.filled(6 * QUEUE_FILE_ENTRIES, queues=2)
    async with world.life(kill=True) as store:
        segments = store.log.segments
        for start in sorted({offset - offset % SEGMENT_BYTES for offset in offsets[:150]}):
            world.disk.remove(segments.detach(start))
        for queue in store.queues:
            queue.trim(segments.start)
        left = world.disk.list_dir(world.path("consumequeue/T/0"))
        assert left[0] != "0" * 20
        expected = everything(store)
    if last_is_missing:
        world.disk.remove(world.path(f"consumequeue/T/0/{left[-1]}"))
    async with world.life() as store:
        assert everything(store) == expected
        assert not any("lost their files" in note for note in world.report.notes)
        if not last_is_missing:
            assert world.report.walked_from > segments.start
    assert world.disk.list_dir(world.path("consumequeue/T/0")) == left


async def test_files_that_have_expired_are_not_missed(world: World):
    offsets = await world.filled(6 * QUEUE_FILE_ENTRIES, queues=2)
    gone = {offset - offset % SEGMENT_BYTES for offset in offsets[:150]}
    for start in sorted(gone):
        world.disk.remove(world.segment(start))
    await world.restart()
    left = world.disk.list_dir(world.path("consumequeue/T/0"))
    assert left[0] != "0" * 20
    world.from_the_start()
    await world.restart()
    assert world.disk.list_dir(world.path("consumequeue/T/0")) == left


async def test_what_comes_after_a_deletion_that_the_log_has_lost_is_kept(world: World):
    """A sudden end took what came before a deletion from the log; what is written in its place is not deleted."""
    await world.filled(30)
    async with world.life(kill=True) as store:
        store.queues.drop_topic("T", store.log.end + 1_000_000)
    async with world.life(kill=True) as store:
        world.send(store, b"new life", "T", 1)
    world.disk.remove_tree(world.path("consumequeue/T"))
    async with world.life() as store:
        assert everything(store)["T", 1] == [b"new life"]
