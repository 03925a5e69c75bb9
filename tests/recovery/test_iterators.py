"""Records out of windows: any window, with columns and without, gives what reading record by record gives."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trio_mq.protocol.record import MAGIC_V1, MAGIC_V2, Whole, blank, pack
from trio_mq.protocol.verdict import Blank
from trio_mq.recovery import iterators
from trio_mq.recovery.iterators import (
    RECORD_LIMIT_BYTES,
    WINDOW_BYTES,
    WINDOWS_AT_ONCE,
    BatchMessageIterator,
    MessageIterator,
    SequentialMessageIterator,
    column_scan,
)

BASE = 1 << 40
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
HOST_V6 = bytes(15) + b"\1\0\0\x2a\x9f"


def record(
    log_offset: int, body: bytes = b"body", topic: bytes = b"T", flag: int = 0, props: bytes = b""
) -> bytes:
    born = HOST_V6 if flag & 0x10 else HOST
    store = HOST_V6 if flag & 0x20 else HOST
    times = 1_700_000_000_000 + log_offset - BASE
    return pack(3, 0, 7, log_offset, flag, times, born, times, store, 0, 0, body, topic, props)


def reader(data: bytes):
    """A call that reads a log which begins at :data:`BASE`, and the reads that were made."""
    asked: list[tuple[int, int]] = []

    def read(size: int, offset: int) -> bytes:
        asked.append((size, offset - BASE))
        return data[offset - BASE : offset - BASE + size]

    return read, asked


def found(iterator: MessageIterator) -> tuple[list[Whole], int, object]:
    """Everything that an iterator says; checks what lots say of themselves."""
    records: list[Whole] = []
    for lot in iterator:
        some = list(lot.records())
        assert lot.count == len(some)
        assert (lot.begin, lot.end) == (some[0].log_offset, some[-1].log_offset + some[-1].size)
        assert lot.newest_ms == max(r.store_timestamp_ms for r in some)
        assert lot.by_queue() == Counter((r.topic, r.queue_id) for r in some)
        records += some
        assert iterator.offset >= lot.end
    return records, iterator.offset, iterator.verdict


@pytest.fixture(params=["columns", "records"])
def columns(request, monkeypatch):
    """With numpy and without."""
    if request.param == "columns":
        pytest.importorskip("numpy")
    else:
        monkeypatch.setattr(iterators, "_scan", [None])


def window_bytes() -> int:
    """What is read at once."""
    return WINDOW_BYTES * (WINDOWS_AT_ONCE if column_scan() else 1)


PROPERTIES = (
    b"",
    b"TAGS\x01TagA\x02",
    b"KEYS\x01a b\x02TAGS\x01x",
    b"INNER_NUM\x012\x02INNER_BASE\x015\x02",
    b"INNER_NUM\x01no\x02INNER_BASE\x015\x02",
    b"DELAY\x013\x02",
    b"DELAY\x01soon\x02",
    b"TAGS\x01a\0",
    b"A\x01b\x02__CRC32#\x011234567890\x02",
)
KINDS = st.tuples(
    st.one_of(st.integers(0, 40), st.integers(0, 900)),
    st.sampled_from([b"T", b"Topic", b"SCHEDULE_TOPIC_XXXX", b"L" * 200]),
    st.sampled_from([0, 0, 0, 0x10, 0x20, 0x30, 4, 8]),
    st.sampled_from(PROPERTIES[:3] * 4 + PROPERTIES),
)


def log_of(kinds) -> bytes:
    data = b""
    for length, topic, flag, props in kinds:
        data += record(BASE + len(data), b"x" * length, topic, flag, props)
    return data


@example(  # a rule that only delayed messages have
    kinds=[((0, b"T", 0, b""), 9), ((0, b"SCHEDULE_TOPIC_XXXX", 0, b"DELAY\x01soon\x02"), 1)],
    window=WINDOW_BYTES,
    tail=b"",
    check_crc=True,
    damage=None,
)
@given(
    kinds=st.lists(st.tuples(KINDS, st.integers(1, 9)), max_size=12),
    window=st.one_of(st.integers(1, 3000), st.just(WINDOW_BYTES)),
    tail=st.sampled_from([b"", blank(100), bytes(50), b"\x12\x34" * 30, b"torn", b"\0\0\0"]),
    check_crc=st.booleans(),
    damage=st.one_of(st.none(), st.tuples(st.integers(0, 1 << 20), st.integers(1, 255))),
)
def test_any_window_gives_what_reading_one_by_one_gives(kinds, window, tail, check_crc, damage):
    data = log_of([kind for kind, times in kinds for _ in range(times)])
    tail = record(BASE + len(data), b"y" * 200)[:130] if tail == b"torn" else tail
    data += tail
    if damage is not None and data:
        at = damage[0] % len(data)
        data = data[:at] + bytes([data[at] ^ damage[1]]) + data[at + 1 :]
    read, _ = reader(data)
    end = BASE + len(data)
    expected = found(SequentialMessageIterator(read, BASE, end, check_crc=check_crc))
    for scan in {None, column_scan()}:
        iterator = BatchMessageIterator(read, BASE, end, check_crc=check_crc, window_bytes=window)
        iterator._scan = scan
        assert found(iterator) == expected


@pytest.mark.usefixtures("columns")
@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("before", [0, 1, 12])
def test_a_record_that_just_fits_a_window_and_ones_that_do_not(before: int, extra: int):
    data, window = b"", window_bytes()
    for _ in range(before):
        data += record(BASE + len(data))
    size = window - len(data) + extra
    data += record(BASE + len(data), b"z" * (size - len(record(BASE, b""))))
    assert len(data) == window + extra
    data += record(BASE + len(data)) + record(0)
    read, _ = reader(data)
    records, offset, verdict = found(BatchMessageIterator(read, BASE, BASE + len(data)))
    assert len(records) == before + 2
    assert offset == BASE + len(data) - len(record(0))
    assert f"lies at offset {offset}" in verdict.reason


@pytest.mark.usefixtures("columns")
def test_a_record_larger_than_a_window_is_read_once():
    window = window_bytes()
    large = record(BASE, b"L" * (5 * window))
    data = large + record(BASE + len(large))
    read, asked = reader(data)
    records, _, _ = found(BatchMessageIterator(read, BASE, BASE + len(data)))
    assert [r.size for r in records] == [len(large), len(data) - len(large)]
    assert [size for size, _ in asked if size > window] == [len(large)]
    assert sum(size for size, _ in asked) < len(data) + 3 * window


@pytest.mark.usefixtures("columns")
@pytest.mark.parametrize("claims", [8, 100, WINDOW_BYTES, 1 << 30, 2**31 - 1, -1])
def test_a_blank_is_known_by_its_magic_whatever_it_claims(claims: int):
    head = (claims & 0xFFFF_FFFF).to_bytes(4, "big") + blank(8)[4:8]
    for count in (0, 1, 200):
        data = log_of([(50, b"T", 0, b"")] * count) + head
        read, asked = reader(data + b"\xff" * 300)
        iterator = BatchMessageIterator(read, BASE, BASE + len(data) + 300)
        records, offset, verdict = found(iterator)
        assert (len(records), offset) == (count, BASE + len(data) - 8)
        assert verdict == Blank(claims)
        assert max(size for size, _ in asked) <= window_bytes()


@pytest.mark.usefixtures("columns")
@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
@pytest.mark.parametrize("claims", [0, 7, 89, -5, -448_299_468, RECORD_LIMIT_BYTES + 1, 2**31 - 1])
def test_a_lying_size_ends_it_and_is_never_read_for(claims: int, magic: int):
    """Cases C016: a negative length; and what would have to be allocated to look at it."""
    first = record(BASE)
    head = (claims & 0xFFFF_FFFF).to_bytes(4, "big") + (magic & 0xFFFF_FFFF).to_bytes(4, "big")
    data = first + head + b"\1" * 100
    for end in (len(data), 1 << 31):
        read, asked = reader(data)
        for iterator in (
            BatchMessageIterator(read, BASE, BASE + end),
            SequentialMessageIterator(read, BASE, BASE + end),
        ):
            records, offset, verdict = found(iterator)
            assert (len(records), offset) == (1, BASE + len(first))
            assert "record claims" in verdict.reason
        assert max(size for size, _ in asked) <= window_bytes()


@pytest.mark.usefixtures("columns")
def test_a_file_that_ends_too_soon_is_told():
    data = log_of([(30, b"T", 0, b"")] * 20)
    for cut in (0, 3, 7, 8, 60):
        read, _ = reader(data[: len(data) - 100 - cut])
        expected = found(SequentialMessageIterator(read, BASE, BASE + len(data)))
        assert found(BatchMessageIterator(read, BASE, BASE + len(data))) == expected
        assert expected[2] is not None


def test_topics_of_one_hash_are_told_apart(monkeypatch):
    pytest.importorskip("numpy")
    from trio_mq.recovery import columns

    kinds = [(5, topic, 0, b"") for topic in (b"TA", b"TB", b"TA", b"LONGER")] * 10
    data = log_of(kinds)
    monkeypatch.setattr(columns, "_WEIGHTS", columns._WEIGHTS * 0)
    read, _ = reader(data)
    (lot,) = BatchMessageIterator(read, BASE, BASE + len(data))
    assert lot.by_queue() == {("TA", 3): 20, ("TB", 3): 10, ("LONGER", 3): 10}


def test_a_usual_log_comes_in_columns():
    """Else the fast way would never be taken, and nobody would notice."""
    pytest.importorskip("numpy")
    from trio_mq.recovery.columns import ColumnLot

    data = log_of([(100, b"T", 0, b"TAGS\x01a\x02")] * 1000)
    read, _ = reader(data)
    lots = list(BatchMessageIterator(read, BASE, BASE + len(data)))
    assert sum(lot.count for lot in lots if isinstance(lot, ColumnLot)) > 950
