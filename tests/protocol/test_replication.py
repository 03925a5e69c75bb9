"""Any split of the stream gives the same bytes at the same offsets; a header that lies ends it, and is named."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.errors import FrameError
from trio_mq.protocol.replication import (
    MAX_BODY_BYTES,
    PIECE_HEADER,
    PieceReader,
    ReportReader,
    encode_header,
    encode_report,
    first_offset,
)

OFFSETS = st.integers(0, (1 << 63) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
#: Offset and body of a piece; offsets leave room for the body, as those of a log do.
PIECES = st.lists(st.tuples(st.integers(0, 1 << 62), st.binary(max_size=50)), max_size=6)
CUTS = st.lists(st.integers(0, 10_000), max_size=12)

Span = tuple[int, bytes]


def parts(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(edges)]


def stream(pieces: list[Span]) -> bytes:
    return b"".join(encode_header(offset, len(body)) + body for offset, body in pieces)


def joined(fed: list[bytes]) -> list[Span]:
    """What a reader makes of it, with the parts of one body put together; `left` has to count down to that."""
    reader, found = PieceReader(), list[Span]()
    begun: tuple[int, bytes] | None = None
    for data in fed:
        for piece in reader.feed(data):
            offset, body = (piece.offset, b"") if begun is None else begun
            assert piece.offset == offset + len(body), "the parts of a body follow each other"
            begun = (offset, body + bytes(piece.body))
            if not piece.left:
                found.append(begun)
                begun = None
    return found


# -- reports ---------------------------------------------------------------------------------------------------


def test_a_report_is_the_vector_of_the_specification() -> None:
    assert encode_report(4096) == bytes.fromhex("0000000000001000")


@given(st.lists(INT64, max_size=8), CUTS)
def test_any_split_gives_the_same_reports(offsets: list[int], cuts: list[int]) -> None:
    reader = ReportReader()
    data = b"".join(map(encode_report, offsets))
    assert [found for part in parts(data, cuts) for found in reader.feed(part)] == offsets


@pytest.mark.parametrize("cut", range(25))
def test_three_reports_cut_once_at_every_byte(cut: int) -> None:
    data = b"".join(map(encode_report, (1, 1 << 40, 3)))
    reader = ReportReader()
    first = reader.feed(data[:cut])
    assert first == [1, 1 << 40, 3][: cut // 8], "only what is complete is told"
    assert first + reader.feed(data[cut:]) == [1, 1 << 40, 3]


@given(OFFSETS, st.integers(0, 63))
def test_a_flipped_bit_of_a_report_is_another_offset(offset: int, bit: int) -> None:
    data = bytearray(encode_report(offset))
    data[bit // 8] ^= 1 << bit % 8
    assert ReportReader().feed(bytes(data)) != [offset]


# -- pieces ----------------------------------------------------------------------------------------------------


def test_headers_are_the_vectors_of_the_specification() -> None:
    assert encode_header(1 << 30, 0) == bytes.fromhex("000000004000000000000000")
    assert encode_header(4096, 3) + b"abc" == bytes.fromhex("000000000000100000000003616263")


@given(PIECES, CUTS)
def test_any_split_gives_the_same_pieces(pieces: list[Span], cuts: list[int]) -> None:
    assert joined(parts(stream(pieces), cuts)) == pieces


def test_three_pieces_cut_twice_at_every_byte() -> None:
    pieces = [(4096, b"abcde"), (4101, b""), (4101, b"fgh")]
    data = stream(pieces)
    for one, other in itertools.combinations_with_replacement(range(len(data) + 1), 2):
        assert joined([data[:one], data[one:other], data[other:]]) == pieces


@given(PIECES, st.integers(0, 10_000))
def test_a_stream_that_is_cut_gives_a_prefix_of_its_bytes(pieces: list[Span], cut: int) -> None:
    data = stream(pieces)
    data = data[: cut % (len(data) + 1)]
    expected, at = list[Span](), 0
    for offset, body in pieces:
        at += PIECE_HEADER.size
        if at <= len(data):
            expected.append((offset, data[at : at + len(body)]))
        at += len(body)
    found = [(piece.offset, bytes(piece.body)) for piece in PieceReader().feed(data)]
    # A body of which nothing has come yet is not told of.
    assert found == [
        (o, b) for (o, b), (_, whole) in zip(expected, pieces, strict=False) if b or not whole
    ]


@given(PIECES.filter(bool), st.integers(0, 1_000_000), CUTS)
def test_a_flipped_bit_shows_or_moves_nothing_else(
    pieces: list[Span], at: int, cuts: list[int]
) -> None:
    """In a body it is in that byte; in a header the sizes, offsets or the count of pieces show it, or the reader."""
    data = bytearray(stream(pieces))
    bit = at % (8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    reader, size = PieceReader(), 0
    try:
        for part in parts(bytes(data), cuts):
            size += sum(len(piece.body) for piece in reader.feed(part))
    except FrameError:
        return
    assert size <= len(data), "never more bytes than came"
    whole = PieceReader().feed(bytes(data))
    assert sum(len(piece.body) for piece in whole) == size
    assert [(p.offset, bytes(p.body), p.left) for p in whole] != [(*piece, 0) for piece in pieces]


@pytest.mark.parametrize("size", [0, 1, 32_768, MAX_BODY_BYTES])
def test_legal_sizes(size: int) -> None:
    reader = PieceReader()
    found = reader.feed(encode_header(7, size))
    assert [(piece.offset, bytes(piece.body)) for piece in found] == ([] if size else [(7, b"")])
    assert sum(len(piece.body) for piece in reader.feed(bytes(size))) == size


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, -1),
        (0, MAX_BODY_BYTES + 1),
        (0, (1 << 31) - 1),
        (0, -(1 << 31)),
        (-1, 5),
        (-(1 << 63), 0),
    ],
)
def test_hostile_headers_are_refused_before_any_body(offset: int, size: int) -> None:
    header = struct.pack(">qi", offset, size)
    for cut in range(PIECE_HEADER.size):
        reader = PieceReader()
        assert reader.feed(header[:cut]) == []
        with pytest.raises(FrameError, match="master") as refused:
            reader.feed(header[cut:])
        assert str(offset) in str(refused.value)
        assert str(size) in str(refused.value)


@given(st.binary(max_size=300), CUTS)
def test_any_bytes_end_in_the_same_way_however_they_are_split(data: bytes, cuts: list[int]) -> None:
    def outcome(fed: list[bytes]) -> tuple[bytes, str]:
        reader, taken, refusal = PieceReader(), b"", ""
        try:
            for part in fed:
                for piece in reader.feed(part):
                    taken += bytes(piece.body)
        except FrameError as error:
            refusal = str(error)
        return taken, refusal

    whole, split = outcome([data]), outcome(parts(data, cuts))
    assert split[1] == whole[1]
    # What came before a lie may be told before it, if it came alone.
    assert split[0].startswith(whole[0]) if whole[1] else split[0] == whole[0]


# -- where a stream begins -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reported", "from_start", "expected"),
    [
        pytest.param(0, False, 0x40000000, id="empty: the newest file"),
        pytest.param(0, True, 4096, id="empty: all"),
        pytest.param(1, False, 1, id="before the log"),
        pytest.param(0x40000123, False, 0x40000123, id="all"),
        pytest.param(0x40000200, True, 0x40000200, id="more than all"),
    ],
)
def test_first_offset(reported: int, from_start: bool, expected: int) -> None:
    found = first_offset(
        reported,
        log_start=4096,
        log_end=0x40000123,
        segment_bytes=1 << 30,
        from_start=from_start,
    )
    assert found == expected
