"""The numpy way of inserting keys gives the very bytes of the plain way, whatever comes in."""

from __future__ import annotations

import builtins
import errno

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies as my
from trio_mq.protocol import properties
from trio_mq.protocol.layout import INDEX_SLOT, index_key_hash, index_slot_position
from trio_mq.store import dispatch
from trio_mq.store.index import KeyIndex
from trio_mq.store.indexfile import Keys
from trio_mq.store.keys import KeyHasher
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk

pytest.importorskip("numpy")

from trio_mq.store.bulkindex import BulkHasher

START_MS = 1_700_000_000_000
Record = tuple[str, bytes, int, int]


def index(slots: int = 7, entries: int = 40, disk: MemoryDisk | None = None) -> KeyIndex:
    return KeyIndex(
        disk or MemoryDisk(), "/i", slots=slots, entries=entries, now_ms=ManualClock().now_ms
    )


def plain(records: list[Record]) -> Keys:
    hashes: list[int] = []
    log_offsets: list[int] = []
    times_ms: list[int] = []
    for topic, data, log_offset, ms in records:
        found = KeyHasher().keys(topic, data)
        hashes += found
        log_offsets += [log_offset] * len(found)
        times_ms += [ms] * len(found)
    return Keys(hashes, log_offsets, times_ms)


def insert(into: KeyIndex, keys) -> None:
    done = into.insert(keys, 0)
    while done < keys.total:
        done += into.insert(keys, done)


def files(of: KeyIndex) -> list[bytes]:
    return [file.memory.tobytes() for file in of.files]


KEY = st.one_of(
    st.sampled_from(["a", "order-1", "7F000001A1B418B4AAC2000000000003", "k" * 300]),
    my.TEXT.filter(bool),
)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["T", "Topic", "%RETRY%g"]),
        st.one_of(
            my.property_texts(),
            st.fixed_dictionaries(
                {},
                optional={
                    properties.UNIQ_KEY: KEY,
                    properties.KEYS: st.lists(KEY, min_size=1, max_size=3).map(" ".join),
                    properties.TAGS: KEY,
                    "OTHER": KEY,
                },
            ).map(properties.encode),
        ),
        st.integers(1, 500),
        st.integers(-2000, 5000),
    ),
    max_size=25,
)


def placed(rows: list[Record], first: int, ms: int) -> list[Record]:
    """Steps of offsets and times made into offsets and times."""
    result, offset = [], first
    for topic, data, step, later in rows:
        result.append((topic, data, offset, ms))
        offset, ms = offset + step, ms + later
    return result


@given(RECORDS)
def test_hashes_are_the_same(rows):
    records = placed(rows, 0, START_MS)
    keys = BulkHasher(KeyHasher()).keys(records)
    expected = plain(records)
    assert keys.hashes.tolist() == expected.hashes
    assert keys.log_offsets.tolist() == expected.log_offsets
    assert keys.times_ms.tolist() == expected.times_ms
    assert keys.total == expected.total


@given(st.lists(RECORDS, max_size=4), st.sampled_from([START_MS, 0, -5]), st.integers(1, 9))
def test_files_are_byte_for_byte_the_same(lots, ms, slots):
    """Over several files, several lots, times that go back, and slots that many keys share."""
    one, two = index(slots), index(slots)
    hasher = BulkHasher(KeyHasher())
    offset = 0
    for rows in lots:
        records = placed(rows, offset, ms)
        offset += 10_000
        insert(one, plain(records))
        insert(two, hasher.keys(records))
        assert files(one) == files(two)
        assert [file.header for file in one.files] == [file.header for file in two.files]
    assert [file.path for file in one.files] == [file.path for file in two.files]


@given(RECORDS, RECORDS, st.lists(st.tuples(st.integers(0, 6), st.integers(-2, 90)), max_size=4))
def test_slots_with_nonsense_are_treated_the_same(before, after, damage):
    both = index(), index()
    hasher = BulkHasher(KeyHasher())
    for into in both:
        insert(into, plain(placed(before, 0, START_MS)))
        for slot, value in damage:
            INDEX_SLOT.pack_into(into.files[0].memory, index_slot_position(slot), value)
    records = placed(after, 20_000, START_MS + 5000)
    insert(both[0], plain(records))
    insert(both[1], hasher.keys(records))
    assert files(both[0]) == files(both[1])


def test_long_times_are_capped_alike():
    records = [("T", b"KEYS\x01a\x02", n, START_MS + n * (1 << 43)) for n in range(4)]
    one, two = index(), index()
    insert(one, plain(records))
    insert(two, BulkHasher(KeyHasher()).keys(records))
    assert files(one) == files(two)


def test_nothing_to_do():
    empty = BulkHasher(KeyHasher()).keys([])
    assert empty.total == 0
    into = index()
    assert into.insert(empty) == 0
    assert len(into.files) == 1


def test_an_index_without_room_is_left_as_it_was():
    disk = MemoryDisk()
    into = index(5000, 3000, disk)
    hasher = BulkHasher(KeyHasher())
    records = [("T", b"KEYS\x01key-%d\x02" % n, n, START_MS) for n in range(1500)]
    insert(into, hasher.keys(records[:10]))
    disk.fail_when(lambda operation: operation.kind == "write", errno.ENOSPC)
    before = files(into)
    with pytest.raises(OSError):
        into.insert(hasher.keys(records[10:]))
    assert files(into) == before
    disk.heal()
    insert(into, hasher.keys(records[10:]))
    for number in range(1500):
        assert into.search(index_key_hash(f"T#key-{number}"), 9, 0, 1 << 60) == [number]


# -- in the dispatcher


def filled_dispatcher(count: int):
    from tests.store.test_dispatch import Parts

    parts = Parts()
    parts.index.entries = 50_000
    parts.index.slots = 10_000
    parts.dispatcher.apply([parts.stored(n) for n in range(count)])
    return parts


def test_a_long_backlog_takes_the_fast_way_and_ends_the_same(monkeypatch):
    fast, slow = filled_dispatcher(5000), filled_dispatcher(5000)
    fast.dispatcher.finish()
    monkeypatch.setattr(dispatch, "BULK_FROM", 1 << 40)
    slow.dispatcher.finish()
    assert fast.dispatcher._bulk is not None
    assert slow.dispatcher._bulk is None
    assert files(fast.index) == files(slow.index)
    assert fast.index.indexed_to == slow.index.indexed_to == 5000 * 100


def test_a_short_one_does_not_import_anything():
    parts = filled_dispatcher(dispatch.BULK_FROM - 1)
    parts.dispatcher.finish()
    assert parts.dispatcher._bulk is None


def test_without_numpy_the_plain_way_is_taken(monkeypatch):
    real_import = builtins.__import__

    def no_numpy(name, *rest):
        if name == "trio_mq.store.bulkindex":
            raise ImportError("No module named 'numpy'")
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_numpy)
    parts = filled_dispatcher(3000)
    parts.dispatcher.finish()
    assert parts.dispatcher._bulk is None
    assert all(parts.has_key(n) for n in range(0, 3000, 100))


async def test_the_import_is_made_off_the_loop(autojump_clock, nursery):
    parts = filled_dispatcher(3000)
    runs: list[object] = []
    run = parts.disk.run

    async def noted(call):
        runs.append(call)
        return await run(call)

    parts.disk.run = noted  # type: ignore[method-assign]
    await nursery.start(parts.dispatcher.run)
    await trio.sleep(1)
    assert len(runs) == 1
    assert parts.dispatcher._bulk is not None
    assert parts.dispatcher.index_backlog == 0
