"""Walks over the log: both ways find the same records, and every end has its reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.protocol.record import Whole, blank, pack
from trio_mq.recovery.paths import Path
from trio_mq.recovery.walk import Walk
from trio_mq.store.segments import FilePool, Segments
from trio_mq.testing.disk import MemoryDisk

SIZE = 1000
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
HOST_V6 = bytes(15) + b"\1\0\0\x2a\x9f"


def record(log_offset: int, body: bytes = b"body", topic: bytes = b"T", flag: int = 0) -> bytes:
    born = HOST_V6 if flag & 0x10 else HOST
    store = HOST_V6 if flag & 0x20 else HOST
    times = 1_700_000_000_000 + log_offset
    return pack(0, 0, 0, log_offset, flag, times, born, times, store, 0, 0, body, topic, b"")


def segments_of(*files: bytes | None, size: int = SIZE) -> Segments:
    """Segments with the given content, None for a file that is missing."""
    disk = MemoryDisk()
    disk.make_dirs("log")
    for number, data in enumerate(files):
        if data is not None:
            file = disk.open(f"log/{number * size:020d}", create=True)
            file.truncate(size)
            file.write(data, 0)
    segments = Segments(disk, FilePool(disk), "log", size)
    segments.load()
    return segments


def filled(start: int, size: int = SIZE, length: int = 90) -> bytes:
    """A segment of records that ends with a blank."""
    data = b""
    while True:
        following = record(start + len(data), b"x" * length)
        if len(data) + len(following) + 8 > size:
            return data + blank(size - len(data))
        data += following


def run(walk: Walk) -> list[Whole]:
    found: list[Whole] = []
    for lot in walk.lots():
        found += lot.records()
        assert (walk.records, walk.records_end) == (len(found), lot.end)
    return found


@pytest.fixture(params=Path, ids=lambda path: path.value)
def path(request) -> Path:
    """Each way through the log."""
    return request.param


@given(
    lengths=st.lists(st.integers(0, 500), max_size=20),
    tail=st.sampled_from(["zero", "garbage", "torn", "blank"]),
)
def test_both_ways_find_the_same_records_and_the_same_end(lengths, tail):
    files, data = [], b""
    for length in lengths:
        at = len(files) * SIZE + len(data)
        if len(data) + len(record(at, b"x" * length)) + 8 > SIZE:
            files.append(data + blank(SIZE - len(data)))
            data = b""
            at = len(files) * SIZE
        data += record(at, b"x" * length)
    at = len(files) * SIZE + len(data)
    end = {
        "zero": b"",
        "garbage": b"\x12\x34" * 30,
        "torn": record(at, b"y" * 200)[:50],
        "blank": blank(SIZE - len(data)),
    }[tail]
    files.append((data + end)[:SIZE])
    segments = segments_of(*files)
    whole = Walk(segments, 0, path=Path.SEQUENTIAL)
    expected = run(whole)
    assert len(expected) == len(lengths)
    assert whole.end == at
    assert whole.at_blank is (tail == "blank")
    assert (whole.reason is None) is (tail in ("zero", "blank"))
    for start in [0, *(r.log_offset for r in expected)]:
        later = Walk(segments, start, path=Path.BATCH)
        assert run(later) == [r for r in expected if r.log_offset >= start]
        for name in ("end", "at_blank", "reason", "missing"):
            assert getattr(later, name) == getattr(whole, name), name


def test_a_missing_file_is_passed_over_and_told(path: Path):
    segments = segments_of(filled(0), None, filled(2 * SIZE), b"")
    walk = Walk(segments, 0, path=path)
    found = run(walk)
    assert walk.missing == [(SIZE, 2 * SIZE)]
    assert {r.log_offset // SIZE for r in found} == {0, 2}
    assert walk.end == 3 * SIZE
    assert walk.records_end < walk.end


@pytest.mark.parametrize("last", [b"", b"\xff" * 50])
def test_a_missing_file_with_nothing_behind_it_ends_the_log(last: bytes, path: Path):
    segments = segments_of(filled(0), None, last)
    walk = Walk(segments, 0, path=path)
    run(walk)
    assert (walk.end, walk.missing) == (SIZE, [])
    assert (walk.reason is None) is not any(last)


def test_all_kinds_of_hosts_and_both_versions(path: Path):
    data = b""
    for flag in (0, 0x10, 0x20, 0x30):
        for topic in (b"T", b"L" * 200):
            data += record(len(data), b"b" * flag, topic, flag)
    segments = segments_of(data, size=4000)
    walk = Walk(segments, 0, path=path)
    found = run(walk)
    assert len(found) == 8
    assert [r.store_timestamp_ms - 1_700_000_000_000 for r in found] == [
        r.log_offset for r in found
    ]
    assert {len(r.topic) for r in found} == {1, 200}
    assert walk.end == len(data)
    assert walk.newest_ms == found[-1].store_timestamp_ms


def test_what_is_torn_ends_a_walk_and_so_does_what_is_wrong(path: Path):
    good = record(0)
    torn = record(len(good), b"z" * 950)
    whole = record(len(good), b"z" * 800)
    for tail in (
        torn[: SIZE - len(good)],
        b"\xff" * 100,
        record(len(good) + 1),
        whole[:300] + bytes(len(whole) - 301) + whole[-1:],
    ):
        segments = segments_of((good + tail)[:SIZE])
        walk = Walk(segments, 0, path=path)
        run(walk)
        assert walk.end == len(good)
        assert (walk.reason or "").startswith(f"at offset {len(good)}: ")


def test_a_walk_that_begins_behind_all_files_is_over(path: Path):
    segments = segments_of(filled(0))
    walk = Walk(segments, SIZE, path=path)
    assert run(walk) == []
    assert (walk.end, walk.records, walk.reason) == (SIZE, 0, None)


def test_a_file_that_is_shorter_than_it_was_ends_the_walk(path: Path):
    segments = segments_of(filled(0), filled(SIZE))
    segments.file(SIZE).truncate(500)
    walk = Walk(segments, 0, path=path)
    run(walk)
    assert SIZE < walk.end <= SIZE + 500
