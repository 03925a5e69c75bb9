"""Slots and entries of index files, told by their content."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_mq.protocol.layout import (
    INDEX_ENTRY,
    INDEX_HEADER,
    IndexHeader,
    index_entry_position,
    index_file_size,
)
from trio_mq.recovery.indexsizes import Split, find_split, possible, split_of, usual_splits
from trio_mq.store.indexfile import IndexFile, Keys
from trio_mq.testing.disk import MemoryDisk

PATH = "/index"


def filled(disk: MemoryDisk, slots: int, entries: int, keys: list[tuple[int, int]]) -> int:
    """Make an index file with keys (hash, log offset); returns its length."""
    made = IndexFile.create(disk, PATH, slots, entries, IndexHeader(0, 0, 0, 0, 0, 1))
    if keys:
        made.insert(Keys([k for k, _ in keys], [o for _, o in keys], [5_000] * len(keys)))
    made.close()
    return index_file_size(slots, entries)


def found(disk: MemoryDisk, length: int) -> Split | None:
    file = disk.open(PATH, readonly=True)
    try:
        return find_split(file, length)
    finally:
        file.close()


@settings(max_examples=150, deadline=None)
@given(
    slots=st.integers(1, 300),
    entries=st.integers(2, 400),
    data=st.data(),
)
def test_what_a_file_was_made_with_is_found(slots, entries, data):
    count = data.draw(st.integers(1, min(entries - 1, 60)))
    hashes = data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count))
    first = data.draw(st.integers(1, 1 << 40))
    steps = data.draw(st.lists(st.integers(0, 5000), min_size=count, max_size=count))
    offsets = [first + sum(steps[:n]) for n in range(count)]
    disk = MemoryDisk()
    length = filled(disk, slots, entries, list(zip(hashes, offsets, strict=True)))
    split = found(disk, length)
    assert split is not None
    assert index_file_size(split.slots, split.entries) == length
    assert split == Split(slots, entries)


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param([(77, 0), (5, 0), (99, 300), (1234, 900)], id="log begins at 0"),
        pytest.param([(77, 0)], id="one key, of the record at 0"),
        pytest.param([(77, 0), (78, 0), (177, 0)], id="three keys, all of the record at 0"),
        pytest.param([(0, 100)], id="a hash of 0"),
        pytest.param([(7, 100), (7, 100), (7, 100)], id="one key three times"),
    ],
)
def test_files_that_are_hard_to_tell(keys):
    disk = MemoryDisk()
    length = filled(disk, 123, 456, keys)
    assert found(disk, length) == Split(123, 456)


def test_a_file_without_entries_tells_nothing():
    disk = MemoryDisk()
    assert found(disk, filled(disk, 100, 400, [])) is None
    assert list(usual_splits(index_file_size(100, 400))) == [Split(100, 400)]
    assert list(usual_splits(index_file_size(100, 401))) == []


def test_the_default_is_known_by_its_length():
    assert list(usual_splits(420_000_040)) == [Split(5_000_000, 20_000_000)]


def test_the_length_of_the_default_with_other_numbers():
    """The content wins: five slots more and one entry less have the same length."""
    disk = MemoryDisk()
    length = filled(disk, 105, 399, [(n * 977, 1000 + n) for n in range(50)])
    assert list(usual_splits(length)) == [Split(100, 400)]
    assert found(disk, length) == Split(105, 399)


def test_a_torn_end_does_not_hide_the_beginning():
    """The header reached the disk, the last entry did not."""
    disk = MemoryDisk()
    length = filled(disk, 123, 456, [(n * 977, 1000 + n) for n in range(50)])
    file = disk.open(PATH)
    file.write(bytes(20 * 10), index_entry_position(41, 123))
    assert found(disk, length) == Split(123, 456)


def test_content_that_is_no_index_gives_nothing():
    disk = MemoryDisk()
    file = disk.open(PATH, create=True)
    file.write(bytes(range(256)) * 40, 0)
    assert find_split(file, 10_240) is None
    file.write(INDEX_HEADER.pack(1, 2, 3, 4, 5, 6), 0)
    assert find_split(file, 10_240) is None
    file.write(INDEX_ENTRY.pack(9, 3, 0, 0), 500)
    assert find_split(file, 10_240) is None


@given(st.integers(0, 100_000), st.integers(-5, 1000))
def test_lengths(length, slots):
    split = split_of(length, slots)
    if split is not None:
        assert possible(length)
        assert index_file_size(split.slots, split.entries) == length
