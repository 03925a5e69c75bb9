"""Walks over the log: any window gives the same records, and every end has its reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.protocol.record import MAGIC_V1, Whole, blank, pack
from trio_mq.recovery.walk import RECORD_LIMIT_BYTES, Walk
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


def run(walk: Walk, segments: Segments) -> list[Whole]:
    found: list[Whole] = []
    while (wanted := walk.wanted()) is not None:
        for records in walk.look(segments.read(*wanted)):
            found += records
    assert walk.records == len(found)
    return found


@given(
    window=st.integers(1, 1200),
    lengths=st.lists(st.integers(0, 500), max_size=20),
    tail=st.sampled_from(["zero", "garbage", "torn", "blank"]),
)
def test_any_window_gives_the_same_records(window, lengths, tail):
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
    whole = Walk(segments, 0)
    expected = run(whole, segments)
    assert len(expected) == len(lengths)
    assert whole.end == at
    assert whole.at_blank is (tail == "blank")
    assert (whole.reason is None) is (tail in ("zero", "blank"))
    walk = Walk(segments, 0, window_bytes=window)
    assert run(walk, segments) == expected
    assert (walk.end, walk.at_blank, walk.damaged) == (whole.end, whole.at_blank, whole.damaged)
    assert (walk.reason is None) is (whole.reason is None)
    for start in [r.log_offset for r in expected]:
        later = Walk(segments, start, window_bytes=window)
        assert run(later, segments) == [r for r in expected if r.log_offset >= start]
        assert later.end == whole.end


def test_a_blank_at_the_very_end_of_a_window_is_one():
    """Its size leads out of the window, and must not be taken for that of a torn record."""
    segments = segments_of(filled(0), filled(SIZE), b"")
    inside = len(filled(0)) - 8
    per_segment = inside // len(record(0, b"x" * 90))
    for window in range(inside, inside + 20):
        walk = Walk(segments, 0, window_bytes=window)
        assert len(run(walk, segments)) == 2 * per_segment
        assert walk.reason is None
        assert walk.end == 2 * SIZE


def test_a_missing_file_is_passed_over_and_told():
    segments = segments_of(filled(0), None, filled(2 * SIZE), b"")
    walk = Walk(segments, 0)
    found = run(walk, segments)
    assert walk.missing == [(SIZE, 2 * SIZE)]
    assert {r.log_offset // SIZE for r in found} == {0, 2}
    assert walk.end == 3 * SIZE
    assert walk.records_end < walk.end


@pytest.mark.parametrize("last", [b"", b"\xff" * 50])
def test_a_missing_file_with_nothing_behind_it_ends_the_log(last: bytes):
    segments = segments_of(filled(0), None, last)
    walk = Walk(segments, 0)
    run(walk, segments)
    assert (walk.end, walk.missing) == (SIZE, [])
    assert (walk.reason is None) is not any(last)


def test_all_kinds_of_hosts_and_both_versions():
    data = b""
    for flag in (0, 0x10, 0x20, 0x30):
        for topic in (b"T", b"L" * 200):
            data += record(len(data), b"b" * flag, topic, flag)
    segments = segments_of(data, size=4000)
    walk = Walk(segments, 0, window_bytes=64)
    found = run(walk, segments)
    assert len(found) == 8
    assert [r.store_timestamp_ms - 1_700_000_000_000 for r in found] == [
        r.log_offset for r in found
    ]
    assert {len(r.topic) for r in found} == {1, 200}
    assert walk.end == len(data)
    assert walk.newest_ms == found[-1].store_timestamp_ms


@pytest.mark.parametrize("claims", [0, 7, 89, -5, 5000, RECORD_LIMIT_BYTES + 1, 2**31 - 1])
def test_a_lying_size_ends_the_walk_and_is_never_read_for(claims: int):
    first = record(0)
    head = (claims & 0xFFFFFFFF).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big", signed=True)
    segments = segments_of(first + head + bytes(100))
    asked: list[tuple[int, int]] = []
    walk = Walk(segments, 0, window_bytes=150)
    while (wanted := walk.wanted()) is not None:
        asked.append(wanted)
        list(walk.look(segments.read(*wanted)))
    assert walk.end == len(first)
    assert walk.reason.startswith(f"at offset {len(first)}: ")
    assert all(size <= SIZE for size, _ in asked)


def test_a_huge_claim_inside_a_segment_is_not_read_for():
    size = 2 * RECORD_LIMIT_BYTES
    head = (RECORD_LIMIT_BYTES + 1).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big", signed=True)
    segments = segments_of(record(0) + head + b"\1" * 100, size=size)
    walk = Walk(segments, 0)
    largest = 0
    while (wanted := walk.wanted()) is not None:
        largest = max(largest, wanted[0])
        list(walk.look(segments.read(*wanted)))
    assert walk.end == len(record(0))
    assert largest <= 4 * 1024 * 1024


def test_what_is_torn_is_no_damage_and_what_is_wrong_is():
    good = record(0)
    torn = record(len(good), b"z" * 950)
    whole = record(len(good), b"z" * 800)
    for tail, damaged in (
        (torn[: SIZE - len(good)], False),
        (b"\xff" * 100, True),
        (record(len(good) + 1), True),
        (whole[:300] + bytes(len(whole) - 301) + whole[-1:], True),
    ):
        segments = segments_of((good + tail)[:SIZE])
        walk = Walk(segments, 0)
        run(walk, segments)
        assert (walk.end, walk.damaged) == (len(good), damaged)


def test_a_walk_that_begins_behind_all_files_is_over():
    segments = segments_of(filled(0))
    walk = Walk(segments, SIZE)
    assert walk.wanted() is None
    assert (walk.end, walk.records, walk.reason) == (SIZE, 0, None)


def test_a_file_that_is_shorter_than_it_was_ends_the_walk():
    segments = segments_of(filled(0), filled(SIZE))
    walk = Walk(segments, 0, window_bytes=300)
    while (wanted := walk.wanted()) is not None:
        size, offset = wanted
        list(walk.look(segments.read(max(0, min(size, SIZE + 500 - offset)), offset)))
    assert SIZE < walk.end < 2 * SIZE
