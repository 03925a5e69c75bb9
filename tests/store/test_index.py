"""The key index: bytes as Apache's, searches, roll-over, full disks, and putting right what a crash left."""

from __future__ import annotations

import errno
import os
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_stores as golden
from trio_mq.protocol.layout import (
    INDEX_ENTRY,
    INDEX_SLOT,
    IndexHeader,
    index_entry_position,
    index_file_size,
    index_key_hash,
    index_slot_position,
    unpack_index_header,
)
from trio_mq.protocol.record import decode, keys_for_index
from trio_mq.store.disk import RealDisk
from trio_mq.store.index import KeyIndex
from trio_mq.store.indexfile import IndexFile, Keys
from trio_mq.store.keys import KeyHasher, absolute
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk

SLOTS, ENTRIES = 7, 20
START_MS = 1_700_000_000_000


def small(disk=None, *, slots: int = SLOTS, entries: int = ENTRIES, clock=None) -> KeyIndex:
    return KeyIndex(
        disk or MemoryDisk(),
        "/index",
        slots=slots,
        entries=entries,
        now_ms=(clock or ManualClock()).now_ms,
    )


def keys(*rows: tuple[int, int, int]) -> Keys:
    return Keys(*(list(column) for column in zip(*rows, strict=True)))


def insert(index: KeyIndex, *rows: tuple[int, int, int]) -> None:
    """Add (hash, log offset, time) rows, as the dispatcher does."""
    done = 0
    while done < len(rows):
        done += index.insert(keys(*rows), done)


def found(index: KeyIndex, key_hash: int, *, limit: int = 100, begin: int = 0, end: int = 1 << 60):
    return index.search(key_hash, limit, begin, end)


def reopened(index: KeyIndex) -> KeyIndex:
    index.close()
    again = small(index.disk, slots=index.slots, entries=index.entries)
    again.load()
    return again


# -- hashes


def test_absolute_values_of_java_hashes():
    assert absolute(5) == 5
    assert absolute(-5) == 5
    assert absolute(-(1 << 31)) == 0
    assert absolute((1 << 31) - 1) == (1 << 31) - 1
    assert absolute(-1111208162) == 1111208162


KEY_TEXTS = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\x01\x02 "), min_size=1
)


@given(st.lists(st.tuples(st.sampled_from(["T", "Topic-with-a-name", "%RETRY%g"]), KEY_TEXTS)))
def test_hashes_equal_those_of_the_joined_text(pairs):
    hasher = KeyHasher()
    for topic, key in pairs * 2:  # the second time from what is remembered
        data = f"UNIQ_KEY\x01{key}\x02TAGS\x01{key}\x02".encode()
        expected = [index_key_hash(f"{topic}#{key}"), index_key_hash(f"{topic}#T#{key}")]
        assert hasher.keys(topic, data) == expected


def test_several_keys_and_two_spaces_c137():
    hasher = KeyHasher()
    data = b"KEYS\x01k1 k2  k3\x02UNIQ_KEY\x01u\x02"
    assert hasher.keys("T", data) == [index_key_hash(f"T#{k}") for k in ("u", "k1", "k2", "k3")]
    assert hasher.keys("T", b"KEYS\x01 \x02TAGS\x01a\x02") == [index_key_hash("T#T#a")]
    assert hasher.keys("T", b"OTHER\x01x\x02") == []


def test_what_is_remembered_is_bounded():
    hasher = KeyHasher()
    for number in range(25_000):
        hasher.keys(f"T{number}", b"UNIQ_KEY\x01%032d\x02TAGS\x01%d\x02" % (number * 10**5, number))
    sizes = [len(known) for known in vars(hasher).values()]
    assert max(sizes) <= 25_000
    assert hasher.keys("T1", b"UNIQ_KEY\x01abcdefgh\x02") == [index_key_hash("T1#abcdefgh")]


def test_key_hashes_of_golden_records_agree_with_the_codec():
    hasher = KeyHasher()
    for _, data in golden.raw_records("clean"):
        message = decode(data)
        texts = keys_for_index(message.topic, message.properties, 0)
        expected = [index_key_hash(text) for text in texts]
        assert hasher.keys(message.topic, message.properties) == expected


# -- bytes


@pytest.mark.parametrize("disk", [MemoryDisk(), RealDisk()], ids=["memory", "real"])
def test_golden_records_give_the_very_bytes_of_apache(disk, tmp_path):
    """Keys of all records of the clean store, fed in lots of any size, give Apache's index file."""
    index = KeyIndex(
        disk,
        str(tmp_path / "index"),
        slots=golden.HASH_SLOTS,
        entries=golden.MAX_INDEX_NUM,
        now_ms=ManualClock().now_ms,
    )
    hasher, rng = KeyHasher(), random.Random(5)
    rows: list[tuple[int, int, int]] = []
    for offset, data in golden.raw_records("clean"):
        message = decode(data)
        if message.sys_flag & 0xC == 0xC:
            continue
        ms = message.store_timestamp_ms
        rows += [(h, offset, ms) for h in hasher.keys(message.topic, message.properties)]
        if rng.random() < 0.2:
            insert(index, *rows)
            rows.clear()
    if rows:
        insert(index, *rows)
    ((_, theirs),) = golden.read_files("clean", "index").items()
    mine = index.files[0].memory.tobytes()
    assert unpack_index_header(mine) == unpack_index_header(theirs)
    assert mine == theirs
    index.close()


def test_entries_headers_and_chains_of_a_first_file():
    index = small()
    insert(index, (3, 100, START_MS + 999), (10, 200, START_MS + 2500), (4, 200, START_MS + 2500))
    file = index.files[0]
    assert file.header == IndexHeader(START_MS + 999, START_MS + 2500, 100, 200, 2, 4)
    # 3 and 10 share slot 3; seconds are whole ones since the begin
    assert [file.entry(n) for n in (1, 2, 3)] == [(3, 100, 0, 0), (10, 200, 1, 1), (4, 200, 1, 0)]
    slots = [INDEX_SLOT.unpack_from(file.memory, index_slot_position(n))[0] for n in range(SLOTS)]
    assert slots == [0, 0, 0, 2, 3, 0, 0]
    assert index.end_log_offset == 200
    assert index.end_timestamp_ms == START_MS + 2500


def test_times_before_the_begin_count_as_none_and_large_ones_are_capped():
    index = small()
    insert(index, (1, 1, START_MS), (2, 2, START_MS - 5000), (3, 3, START_MS + (1 << 42)))
    assert [index.files[0].entry(n)[2] for n in (1, 2, 3)] == [0, 0, (1 << 31) - 1]
    index = small()
    insert(index, (1, 1, 0), (2, 2, 5000))  # a begin of 0 is no time at all
    assert index.files[0].entry(2)[2] == 0


def test_a_slot_with_nonsense_begins_a_new_chain():
    index = small()
    insert(index, (3, 1, START_MS))
    file = index.files[0]
    for nonsense in (-1, file.header.index_count + 1, 1000):
        INDEX_SLOT.pack_into(file.memory, index_slot_position(3), nonsense)
        before = file.header
        insert(index, (3, 2, START_MS))
        assert file.entry(before.index_count)[3] == 0
        assert file.header.hash_slot_count == before.hash_slot_count + 1


def test_a_full_file_is_followed_by_one_that_begins_at_its_end():
    clock = ManualClock(START_MS)
    index = small(clock=clock)
    rows = [(n, n * 10, START_MS + n * 1000) for n in range(ENTRIES + 4)]
    insert(index, *rows)
    first, second = index.files
    assert first.full
    assert first.header.index_count == ENTRIES  # entry 0 is never used
    assert second.header.index_count == 6
    # Apache: the first entry's time is counted from the end of the file before, then the begin is reset
    assert second.header.begin_timestamp_ms == START_MS + 19_000
    assert [second.entry(n)[2] for n in (1, 2, 3)] == [1, 1, 2]
    assert first.path < second.path
    assert [
        name for name in index.disk.list_dir("/index") if len(name) == 17
    ] == index.disk.list_dir("/index")
    for n in range(ENTRIES + 4):
        assert n * 10 in found(index, n, begin=START_MS + n * 1000, end=START_MS + n * 1000)


def test_names_stay_in_order_when_the_clock_goes_back(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    clock = ManualClock(START_MS)
    index = small(clock=clock)
    for number in range(4):
        insert(index, *[(1, number, START_MS)] * (ENTRIES - 1))
        clock.advance(-3_600_000 if number < 2 else 0)
    names = [file.path.rpartition("/")[2] for file in index.files]
    assert names == [
        "20231114221320000",
        "20231114221320001",
        "20231114221320002",
        "20231114221320003",
    ]
    monkeypatch.undo()
    time.tzset()


def test_names_are_local_times(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    index = small(clock=ManualClock(START_MS + 123))
    insert(index, (1, 1, START_MS))
    assert index.files[0].path == "/index/20231115061320123"
    monkeypatch.undo()
    time.tzset()


def test_the_first_call_makes_a_file_keys_or_not():
    index = small()
    assert index.insert(Keys([], [], [])) == 0
    assert len(index.files) == 1
    assert index.end_log_offset == 0
    assert index.insert(Keys([], [], [])) == 0
    assert len(index.files) == 1


def test_files_are_sparse(tmp_path):
    index = KeyIndex(
        RealDisk(),
        str(tmp_path / "i"),
        slots=5_000_000,
        entries=20_000_000,
        now_ms=ManualClock().now_ms,
    )
    insert(index, *[(n * 65_537, n, START_MS) for n in range(100)])
    stat = os.stat(index.files[0].path)
    assert stat.st_size == index_file_size(5_000_000, 20_000_000) == 420_000_040
    assert stat.st_blocks * 512 < 2_000_000
    index.close()


# -- searches


def test_hits_are_newest_first_and_limited():
    index = small()
    insert(index, *[(3, n, START_MS + n * 1000) for n in range(50)])
    assert len(index.files) == 3
    assert found(index, 3) == list(range(49, -1, -1))
    assert found(index, 3, limit=25) == list(range(49, 24, -1))
    assert found(index, 10) == []  # the same slot
    assert found(index, 2) == []


@given(st.integers(0, 60_000), st.integers(0, 60_000))
def test_time_bounds_lose_nothing_and_let_in_less_than_a_second(begin, end):
    index = small()
    times = [START_MS + n * 700 for n in range(60)]
    insert(index, *[(3, n, ms) for n, ms in enumerate(times)])
    hits = found(index, 3, begin=START_MS + begin, end=START_MS + end)
    inside = [n for n, ms in enumerate(times) if START_MS + begin <= ms <= START_MS + end]
    around = [
        n for n, ms in enumerate(times) if START_MS + begin - 1000 < ms < START_MS + end + 1000
    ]
    assert set(inside) <= set(hits) <= set(around)
    assert hits == sorted(hits, reverse=True)


def test_the_first_key_of_a_later_file_is_found_at_its_own_time():
    index = small()
    insert(index, *[(1, n, START_MS) for n in range(ENTRIES - 1)])
    late_ms = START_MS + 1_000_000
    insert(index, (2, 500, late_ms), (2, 501, late_ms + 1000))
    assert found(index, 2, begin=late_ms, end=late_ms) == [500]


@pytest.mark.parametrize("link", [3, 4, 5, 1000, -1])
def test_a_damaged_chain_ends_the_search_c037(link):
    index = small()
    insert(index, *[(3, n * 10, START_MS) for n in range(1, 6)])
    file = index.files[0]
    entry = (3, 30, 0, link)
    INDEX_ENTRY.pack_into(file.memory, index_entry_position(3, SLOTS), *entry)
    began = time.monotonic()
    assert found(index, 3) == [50, 40, 30]
    INDEX_SLOT.pack_into(file.memory, index_slot_position(3), 1000)
    assert found(index, 3) == []
    assert time.monotonic() - began < 1


# -- loading


def test_load_finds_everything_again():
    index = small()
    insert(index, *[(3, n, START_MS + n) for n in range(30)])
    again = reopened(index)
    assert found(again, 3) == list(range(29, -1, -1))
    assert again.indexed_to == 30
    insert(again, (3, 30, START_MS + 30))
    assert found(again, 3)[0] == 30


def test_load_orders_files_by_their_records():
    index = small()
    insert(index, *[(3, n, START_MS + n) for n in range(30)])
    paths = [file.path for file in index.files]
    index.close()
    index.disk.rename(paths[1], "/index/00000000000000001")
    again = small(index.disk)
    again.load()
    assert [file.path for file in again.files] == [paths[0], "/index/00000000000000001"]
    again.close()


@pytest.mark.parametrize("size", [0, 10, index_file_size(SLOTS, ENTRIES) + 1])
def test_files_of_another_size_are_dropped_and_told_c038(size):
    index = small()
    insert(index, (3, 1, START_MS))
    path = "/index/20990101000000000"
    file = index.disk.open(path, create=True)
    file.truncate(size)
    index.disk.open("/index/notes", create=True)
    index.close()
    again = small(index.disk)
    (note,) = again.load()
    assert f"{path} has {size} bytes instead of {index_file_size(SLOTS, ENTRIES)}" in note
    assert again.unusable == [path]
    assert not index.disk.exists(path)
    assert index.disk.exists("/index/notes")
    assert found(again, 3) == [1]


def test_a_header_with_more_entries_than_fit_is_dropped_and_one_with_missing_ones_noticed_c038():
    index = small()
    insert(index, *[(3, n, START_MS) for n in range(1, 5)])
    file = index.files[0]
    assert file.ends_well
    file.header = file.header._replace(index_count=8)
    file.store_header()
    index.close()
    again = small(index.disk)
    assert again.load() == []
    assert not again.files[0].ends_well
    again.files[0].header = file.header._replace(index_count=ENTRIES + 1)
    again.files[0].store_header()
    again.close()
    last = small(index.disk)
    (note,) = last.load()
    assert "more entries" in note
    assert last.files == []


def test_a_file_that_lost_its_header_is_dropped_so_that_its_keys_come_back():
    index = small()
    insert(index, *[(3, n, START_MS) for n in range(1, 31)])
    first, second = index.files
    first.memory[:40] = bytes(40)
    index.close()
    again = small(index.disk)
    (note,) = again.load()
    assert again.unusable == [first.path]
    assert f"{first.path} is empty, but not the last one" in note
    assert [file.path for file in again.files] == [second.path]
    again.files[0].memory[:40] = bytes(40)
    again.close()
    last = small(index.disk)
    assert last.load() == []  # the last one may be new
    assert len(last.files) == 1


def test_a_last_file_that_lost_its_header_is_not_the_last_one_any_more():
    """Found by the crash sweep: keys were inserted into a third file, and the next start removed the second one."""
    index = small()
    insert(index, *[(3, n, START_MS) for n in range(1, 31)])
    first, second = index.files
    second.memory[:40] = bytes(40)
    index.close()
    again = small(index.disk)
    again.load()
    assert again.unusable == [second.path]
    assert [file.path for file in again.files] == [first.path]


# -- full disks


def test_a_key_that_found_no_room_is_inserted_later():
    disk = MemoryDisk()
    index = small(disk, slots=5000, entries=2000)
    rows = [(n * 13, n, START_MS + n) for n in range(900)]
    insert(index, *rows[:10])
    disk.fail_when(lambda operation: operation.kind == "write", errno.ENOSPC)
    before = index.files[0].memory.tobytes()
    with pytest.raises(OSError):
        index.insert(keys(*rows[10:]))
    assert index.files[0].memory.tobytes() == before
    assert found(index, 13) == [1]
    disk.heal()
    insert(index, *rows[10:])
    for key_hash, log_offset, _ in rows:
        assert found(index, key_hash) == [log_offset]


@pytest.mark.parametrize("kind", ["create", "truncate", "write"])
def test_a_file_that_cannot_be_made_leaves_nothing(kind):
    disk = MemoryDisk()
    index = small(disk)
    rows = [(n, n, START_MS) for n in range(ENTRIES + 3)]
    insert(index, *rows[: ENTRIES - 1])
    disk.fail_when(lambda operation: operation.kind == kind, errno.ENOSPC)
    for _ in range(2):
        with pytest.raises(OSError):
            index.insert(keys(*rows), ENTRIES - 1)
    assert len(index.files) == len(disk.list_dir("/index")) == 1
    disk.heal()
    done = ENTRIES - 1
    assert index.insert(keys(*rows), done) == 4
    assert [found(index, n) for n in range(ENTRIES + 3)] == [[n] for n in range(ENTRIES + 3)]


def test_no_page_is_touched_through_memory_before_it_has_room(tmp_path):
    """A mapped write without room on the disk would kill the process; so each page is written the ordinary way."""
    writes: list[tuple[int, int]] = []
    index = small(RealDisk(), slots=5000, entries=2000)
    index.directory = str(tmp_path / "index")
    insert(index, (1, 1, START_MS))
    file = index.files[0]
    write = file.file.write

    def counted(data, offset):
        writes.append((offset, len(data)))
        write(data, offset)

    file.file.write = counted  # type: ignore[method-assign]
    rows = [(n * 31, n, START_MS) for n in range(2, 1500)]
    insert(index, *rows)
    insert(index, *rows[:100])
    pages = {offset // 4096 for offset, _ in writes}
    assert len(pages) == len(writes)  # each one once
    touched = file.memory.tobytes()
    for page in range(len(touched) // 4096):
        if any(touched[page * 4096 : page * 4096 + 4096]):
            assert page in pages or page in (0, file.entries_at // 4096)
    index.close()


# -- durability


def test_what_a_sync_covered_survives():
    for seed in range(10):
        disk = MemoryDisk()
        index = small(disk)
        insert(index, *[(3, n, START_MS) for n in range(25)])
        call = index.sync_call()
        assert call is not None
        call()
        assert index.sync_call() is None
        disk.crash(seed, keep="none")
        again = small(disk)
        assert again.load() == []
        assert found(again, 3) == list(range(24, -1, -1))


def test_a_sync_that_failed_or_was_too_early_is_due_again():
    disk = MemoryDisk()
    index = small(disk)
    assert index.sync_call() is None
    insert(index, (3, 1, START_MS))
    call = index.sync_call()
    assert call is not None
    disk.fail_when(lambda operation: operation.kind == "sync")
    with pytest.raises(OSError):
        call()
    disk.heal()
    assert index.sync_call() is not None
    insert(index, (3, 2, START_MS))
    call()  # covers the first only, as far as is known
    assert index.sync_call() is not None
    index.sync_call()()
    assert index.sync_call() is None
    index.doubt()
    assert index.sync_call() is not None


def test_files_that_expire_during_a_sync_do_not_matter():
    index = small()
    insert(index, *[(3, n, START_MS) for n in range(40)])
    call = index.sync_call()
    assert call is not None
    index.expire(30)
    call()
    assert index.sync_call() is None or len(index.files) == 2


# -- expiry and cutting


def test_expired_files_go_but_never_the_last():
    index = small()
    insert(index, *[(3, n, START_MS) for n in range(60)])
    assert [file.header.end_log_offset for file in index.files] == [18, 37, 56, 59]
    index.expire(18)
    assert len(index.files) == 4
    index.expire(19)
    assert len(index.files) == 3
    index.expire(10_000)
    assert len(index.files) == 1
    assert len(index.disk.list_dir("/index")) == 1
    assert found(index, 3) == [59, 58, 57]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), min_size=1, max_size=60),
    st.integers(0, 130),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), max_size=20),
)
def test_truncate_forgets_and_later_inserts_chain_on(rows, cut, more):
    index = small()
    offset, all_rows = 0, []
    for key_hash, step in rows:
        offset += step
        all_rows.append((key_hash, offset, START_MS + offset * 500))
    insert(index, *all_rows)
    index.indexed_to = offset + 1
    index.truncate(cut)
    kept = [row for row in all_rows if row[1] < cut]
    assert index.indexed_to <= max(cut, 0) or index.indexed_to == offset + 1
    for key_hash in range(31):
        assert found(index, key_hash) == [o for h, o, _ in reversed(kept) if h == key_hash]
    offset = max(cut, offset)
    for key_hash, step in more:
        offset += step
        kept.append((key_hash, offset, START_MS + offset * 500))
        insert(index, kept[-1])
    again = reopened(index)
    for key_hash in range(31):
        assert found(again, key_hash) == [o for h, o, _ in reversed(kept) if h == key_hash]
    for file in again.files:
        assert file.ends_well


def test_truncate_notes_what_it_did_and_zeroes_what_is_gone():
    index = small()
    insert(index, *[(3, n, START_MS) for n in range(1, 31)])
    first, second = (file.path for file in index.files)
    notes = index.truncate(15)
    assert notes == [
        f"{second} indexes only records behind 15 and is dropped",
        f"{first} is cut back to the records before 15",
    ]
    file = index.files[0]
    assert file.header.index_count == 15
    assert file.header.end_log_offset == 14
    assert file.header.hash_slot_count == 1
    at = index_entry_position(15, SLOTS)
    assert not any(file.memory[at:].tobytes())
    assert index.truncate(15) == []


def crashed(disk: MemoryDisk, seed: int, rows, synced: int) -> KeyIndex:
    """An index of which `synced` rows were durable when the power went."""
    index = small(disk, slots=600, entries=4000)
    insert(index, *rows[:synced])
    call = index.sync_call()
    if call is not None:
        call()
    insert(index, *rows[synced:])
    disk.crash(seed)
    again = small(disk, slots=600, entries=4000)
    again.load()
    return again


@pytest.mark.parametrize("seed", range(30))
def test_after_a_power_cut_everything_that_was_synced_is_found(seed):
    """Pages of the mapped file were lost or kept as they liked; a cut to the synced offset puts all right."""
    rng = random.Random(seed)
    rows = [(rng.randrange(800), n + 1, START_MS + n) for n in range(900)]
    synced = rng.randrange(1, len(rows))
    index = crashed(MemoryDisk(), seed, rows, synced)
    index.truncate(rows[synced][1])
    expected: dict[int, list[int]] = {}
    for key_hash, log_offset, _ in rows[:synced]:
        expected.setdefault(key_hash, []).insert(0, log_offset)
    for key_hash in range(800):
        assert found(index, key_hash) == expected.get(key_hash, [])
    insert(index, *rows[synced:])
    for key_hash, log_offset, _ in rows[synced:]:
        expected.setdefault(key_hash, []).insert(0, log_offset)
    for key_hash in range(800):
        assert found(index, key_hash) == expected.get(key_hash, [])


def test_slots_beyond_the_header_are_linked_back():
    """A kill between entries and header leaves slots that point to entries that do not count."""
    index = small()
    insert(index, *[(3, n, START_MS) for n in range(1, 6)])
    file = index.files[0]
    header = file.header
    insert(index, *[(3, n, START_MS) for n in range(6, 9)])
    file.header = header
    file.store_header()
    again = reopened(index)
    assert found(again, 3) == []
    assert again.truncate(100) == []
    assert found(again, 3) == [5, 4, 3, 2, 1]


def test_a_torn_chain_is_linked_anew():
    index = small()
    insert(index, *[(n % 4, n, START_MS) for n in range(1, 11)])
    file = index.files[0]
    for number in (7, 8, 9, 10):
        INDEX_ENTRY.pack_into(file.memory, index_entry_position(number, SLOTS), 0, 0, 0, 0)
    index.truncate(7)
    assert [found(index, n) for n in range(4)] == [[4], [5, 1], [6, 2], [3]]


def test_count_before_is_a_search_by_log_offset():
    index = small()
    insert(index, *[(1, n, START_MS) for n in (10, 10, 20, 30)])
    file: IndexFile = index.files[0]
    assert [file.count_before(n) for n in (0, 10, 11, 20, 25, 30, 31, 99)] == [
        1,
        1,
        3,
        3,
        4,
        4,
        5,
        5,
    ]


def test_drop_all():
    index = small()
    insert(index, *[(3, n, START_MS) for n in range(30)])
    index.indexed_to = 30
    index.drop_all()
    assert (index.files, index.indexed_to, index.disk.list_dir("/index")) == ([], 0, [])
    assert (index.end_log_offset, index.end_timestamp_ms) == (-1, 0)
    insert(index, (3, 1, START_MS))
    assert found(index, 3) == [1]


def test_an_entry_that_reached_the_disk_in_part_is_not_kept_for_its_small_offset():
    """Found by the crash sweep: the hash of an entry was on the disk, but not its log offset."""
    index = small()
    insert(index, *[(n, n, START_MS) for n in range(10)])
    file = index.files[0]
    at = index_entry_position(6, SLOTS)
    file.memory[at + 4 : at + INDEX_ENTRY.size] = bytes(INDEX_ENTRY.size - 4)
    file.memory[at + INDEX_ENTRY.size : at + 5 * INDEX_ENTRY.size] = bytes(4 * INDEX_ENTRY.size)
    again = reopened(index)
    assert again.files[0].count_before(4) == 5
    again.truncate(4)
    insert(again, *[(n, n, START_MS) for n in range(4, 8)])
    assert [again.files[0].entry(n)[1] for n in range(1, 9)] == list(range(8))
