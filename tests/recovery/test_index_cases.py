"""Cases from the field about the key index: dropped, stale, damaged and unsynced files."""

from __future__ import annotations

import pytest

from trio_mq.protocol.layout import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT,
    index_entry_position,
    index_key_hash,
    index_slot_position,
    unpack_index_header,
)
from trio_mq.protocol.record import decode
from trio_mq.store.checkpoint import read_marks
from trio_mq.store.store import Store

from .stores import World, keyed


def index_files(world: World) -> list[str]:
    """Paths of the index files, oldest first."""
    return [world.path(f"index/{name}") for name in world.disk.list_dir(world.path("index"))]


def assert_all_keys(store: Store, offsets: list[int]) -> None:
    for n, offset in enumerate(offsets):
        assert offset in keyed(store, f"k{n}"), f"k{n}"
        assert keyed(store, f"k{n}").count(offset) == 1
    for tag in (0, 1):
        found = keyed(store, f"T#tag{tag}")
        assert [o for n, o in enumerate(offsets) if n % 2 == tag] == found


def without_marks(world: World) -> None:
    """Make the checkpoint one that Apache wrote, whose index time is that of the last full file: never here."""
    data = bytearray(world.read(world.path("checkpoint")))
    data[16:24] = bytes(8)
    data[40:64] = bytes(24)
    world.write(world.path("checkpoint"), bytes(data))


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("count", [60, 450])
async def test_c031_no_key_is_lost_by_a_crash(world: World, marked: bool, count: int):
    """p4."""
    offsets = await world.filled(count)
    offsets += await world.filled(0)
    if not marked:
        without_marks(world)
    world.crash()
    files = len(index_files(world))
    assert files == (1 if count == 60 else 3)
    async with world.life() as store:
        assert_all_keys(store, offsets)
        # Nothing that a sync has covered is made again.
        assert (world.report.records == 0) is marked


async def test_c031_an_index_that_a_kill_left_in_the_middle_of_a_change(world: World):
    """Slots point to entries that the header does not count yet: chains must not break there."""
    offsets = await world.filled(100, kill=True)
    path = index_files(world)[0]
    header = unpack_index_header(world.read(path))
    back = header._replace(index_count=header.index_count - 30)
    entry_at = index_entry_position(back.index_count - 1, world.settings.max_hash_slot_num)
    last = INDEX_ENTRY.unpack(world.read(path)[entry_at : entry_at + INDEX_ENTRY.size])
    world.write(path, INDEX_HEADER.pack(*back._replace(end_log_offset=last[1])))
    async with world.life() as store:
        assert_all_keys(store, offsets)


async def test_c031_after_a_crash_a_start_begins_where_everything_was_synced(world: World):
    first = await world.filled(200)
    safe = read_marks(world.checkpoint()).safe_offset
    assert safe > first[-1]
    more = await world.filled(10, kill=True)
    async with world.life() as store:
        assert world.report.walked_from == safe
        assert world.report.records == 10
        assert more[-1] in keyed(store, "k9")


async def test_c032_a_clean_stop_leaves_the_index_on_the_disk(world: World):
    await world.filled(0)
    async with world.life() as store:
        offsets = [world.send(store, b"%d" % n, keys=f"k{n}") for n in range(10)]
        stored_ms = world.clock.now_ms()
    data = world.read(index_files(world)[0])
    header = unpack_index_header(data)
    assert header.index_count == 11
    assert (header.begin_log_offset, header.end_log_offset) == (offsets[0], offsets[-1])
    assert header.end_timestamp_ms == world.checkpoint().index_timestamp_ms == stored_ms
    for n in range(10):
        key_hash = index_key_hash(f"T#k{n}")
        at = index_slot_position(key_hash % world.settings.max_hash_slot_num)
        assert INDEX_SLOT.unpack_from(data, at)[0] > 0


@pytest.mark.parametrize("crashed", [True, False])
async def test_c034_an_index_of_another_store_is_made_anew(world: World, crashed: bool):
    async with world.life() as store:
        for n in range(150):
            world.send(store, b"other %d" % n, "Other", tags="x", keys=f"k{n}")
    old = index_files(world)
    for folder in ("commitlog", "consumequeue"):
        world.disk.remove_tree(world.path(folder))
    kept = {path: world.read(path) for path in old}
    world.disk.remove_tree(world.path("index"))
    world.clock.advance(1000)
    offsets = await world.filled(40)
    world.disk.remove_tree(world.path("index"))
    for path, data in kept.items():
        world.write(path, data)
    if crashed:
        world.crash()
    async with world.life() as store:
        assert any("index" in note and "another log" in note for note in world.report.notes)
        assert_all_keys(store, offsets)
        assert not set(old) & set(index_files(world))
        new = world.send(store, b"new", keys="new")
        store.commit()
        store.dispatcher.finish()
        assert keyed(store, "new") == [new]


@pytest.mark.parametrize("damage", ["itself", "forward", "outside"])
async def test_c037_a_damaged_chain_ends_a_search(world: World, damage: str):
    async with world.life() as store:
        offsets = [world.send(store, b"%d" % n, keys="same") for n in range(5)]
    path = index_files(world)[0]
    slots = world.settings.max_hash_slot_num
    at = index_entry_position(3, slots)
    entry = INDEX_ENTRY.unpack(world.read(path)[at : at + INDEX_ENTRY.size])
    wrong = {"itself": 3, "forward": 5, "outside": 2_000_000}[damage]
    world.write(path, INDEX_ENTRY.pack(*entry[:3], wrong), at)
    async with world.life() as store:
        assert keyed(store, "same") == offsets[2:]


@pytest.mark.parametrize("crashed", [True, False])
@pytest.mark.parametrize("damage", ["empty", "short", "count", "header"])
@pytest.mark.parametrize("which", [0, 1])
async def test_c038_a_damaged_file_is_made_again(
    world: World, crashed: bool, damage: str, which: int
):
    offsets = await world.filled(450)
    path = index_files(world)[which]
    if damage in ("empty", "short"):
        world.resize(path, 0 if damage == "empty" else 10)
    else:
        header = unpack_index_header(world.read(path))
        count = 1_000_000 if damage == "count" else header.index_count - 7
        world.write(path, INDEX_HEADER.pack(*header._replace(index_count=count)))
    if crashed:
        without_marks(world)
        world.crash()
    async with world.life() as store:
        assert_all_keys(store, offsets)
        if damage != "header":
            assert any(path in note for note in world.report.notes)


@pytest.mark.parametrize("stop", ["clean", "crash", "unmarked"])
@pytest.mark.parametrize(
    "damage", ["count", "small end", "large end", "zeros", "no header", "last entry"]
)
@pytest.mark.parametrize("which", [0, 1, 2])
async def test_what_a_careful_start_leaves_of_a_damaged_file_is_sound_to_the_next(
    world: World, stop: str, damage: str, which: int
):
    """Header and entries contradict each other, which a clean start sees, too."""
    offsets = await world.filled(450)
    path = index_files(world)[which]
    header = unpack_index_header(world.read(path))
    last = header.index_count - 1
    if damage == "last entry":
        at = index_entry_position(last, world.settings.max_hash_slot_num)
        world.write(path, bytes(INDEX_ENTRY.size), at)
    elif damage in ("zeros", "no header"):
        world.write(path, bytes(28 if damage == "zeros" else 400))
    else:
        wrong = {
            "count": {"index_count": last - 6},
            "small end": {"end_log_offset": header.begin_log_offset},
            "large end": {"end_log_offset": 1 << 40},
        }[damage]
        world.write(path, INDEX_HEADER.pack(*header._replace(**wrong)))
    if stop == "unmarked":
        without_marks(world)
    if stop != "clean":
        world.crash()
    async with world.life() as store:
        assert_all_keys(store, offsets)
    before = world.files()
    async with world.life() as store:
        assert world.report.clean
        assert world.report.records == 1
        assert_all_keys(store, offsets)
    assert world.files() == before


@pytest.mark.parametrize("more", [0, 30])
@pytest.mark.parametrize("which", [0, 1])
async def test_entries_that_were_synced_and_are_gone_are_made_again(
    world: World, which: int, more: int
):
    """A crash costs no entry of a record before the safe offset: the search for that offset must not end at a hole."""
    offsets = await world.filled(300)
    async with world.life(kill=True) as store:
        for n in range(300, 300 + more):
            offsets.append(world.send(store, b"x", tags=f"tag{n % 2}", keys=f"k{n}"))
    world.crash()
    path = index_files(world)[which]
    header = unpack_index_header(world.read(path))
    middle = (1 + header.index_count) // 2 - 5
    at = index_entry_position(middle, world.settings.max_hash_slot_num)
    world.write(path, bytes(10 * INDEX_ENTRY.size), at)
    async with world.life() as store:
        assert_all_keys(store, offsets)


@pytest.mark.parametrize("crashed", [True, False])
async def test_a_lost_index_is_made_again(world: World, crashed: bool):
    offsets = await world.filled(100)
    world.disk.remove_tree(world.path("index"))
    if crashed:
        world.crash()
    async with world.life() as store:
        assert_all_keys(store, offsets)
    report = await world.restart()
    assert report.records == 1


async def test_messages_without_keys_do_not_make_every_start_read_the_log(world: World):
    async with world.life() as store:
        for n in range(100):
            world.send(store, b"%d" % n)
    assert (await world.restart()).records == 1
    world.crash()
    assert (await world.restart()).records == 0


async def test_without_an_index_nothing_is_read_for_it(world: World):
    await world.filled(50)
    world.disk.remove_tree(world.path("index"))
    parts = world.open_parts()
    from trio_mq.recovery.recover import Choices, recover

    report = await recover(parts, Choices(index_enabled=False))
    parts.release()
    assert report.records == 1
    assert index_files(world) == []


async def test_names_of_files_do_not_matter_when_the_clock_went_back(world: World):
    """p26: Two files whose names are in the wrong order: records go on into the newer one."""
    offsets = await world.filled(250)
    first, second = index_files(world)[:2]
    swapped = {first: world.read(second), second: world.read(first)}
    for path, data in swapped.items():
        world.write(path, data)
    for crashed in (False, True):
        if crashed:
            world.crash()
        async with world.life() as store:
            assert_all_keys(store, offsets)
            offset = world.send(store, b"x", keys="later")
            store.commit()
            store.dispatcher.finish()
            assert offset in keyed(store, "later")


async def test_the_last_record_is_not_indexed_twice(world: World):
    """p26."""
    offsets = await world.filled(30)
    for crashed in (False, True, True):
        if crashed:
            world.crash()
        async with world.life() as store:
            assert keyed(store, "k29") == [offsets[29]]
            assert decode(store.reader.record(offsets[29])).body == b"body 29"


async def test_the_roll_to_a_new_file_in_the_middle_of_a_record_survives(world: World):
    """Keys of one record lie in two files; a crash right there loses none of them."""
    async with world.life() as store:
        keys = [f"{n}" for n in range(390)]
        for n in range(0, 390, 10):
            world.send(store, b"x", keys=" ".join(keys[n : n + 10]))
        split = world.send(store, b"split", keys=" ".join(f"s{n}" for n in range(30)))
    assert len(index_files(world)) == 2
    header = unpack_index_header(world.read(index_files(world)[1])[:INDEX_HEADER_SIZE])
    assert header.begin_log_offset == split
    for marked in (True, False):
        if not marked:
            without_marks(world)
        world.crash()
        async with world.life() as store:
            assert all(keyed(store, f"s{n}") == [split] for n in range(30))
            assert all(len(keyed(store, key)) == 1 for key in keys)
