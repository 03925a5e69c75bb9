"""Any split of the bytes gives the same frames, and a lie ends the stream without losing what came before."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.facts import VECTORS
from trio_mq.errors import LocalProtocolError
from trio_mq.protocol.frames import FRAME_MAX_BYTES, FrameReader, RawFrame, encode_frame

FRAMES = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.binary(max_size=40), st.binary(max_size=60)), max_size=6
)


def feed_in_pieces(reader: FrameReader, data: bytes, cuts: list[int]) -> list[RawFrame]:
    frames: list[RawFrame] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, stop in itertools.pairwise(edges):
        frames += reader.feed(data[start:stop])
    return frames


def head(length: int, serialize_type: int, header_length: int) -> bytes:
    return struct.pack(">II", length, serialize_type << 24 | header_length)


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=12))
def test_any_split_gives_the_same_frames(frames: list[RawFrame], cuts: list[int]) -> None:
    data = b"".join(encode_frame(*frame) for frame in frames)
    reader = FrameReader()
    assert feed_in_pieces(reader, data, cuts) == frames
    assert reader.failure is None
    assert reader.buffered_bytes == 0


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=12))
def test_any_split_of_any_bytes_ends_the_same_way(data: bytes, cuts: list[int]) -> None:
    whole, split = FrameReader(max_bytes=120), FrameReader(max_bytes=120)
    assert feed_in_pieces(split, data, cuts) == whole.feed(data)
    assert str(split.failure) == str(whole.failure)


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_frames_of_the_peer_byte_by_byte(vector) -> None:
    data = VECTORS[0].frame + vector.frame
    reader = FrameReader()
    frames = [frame for at in range(len(data)) for frame in reader.feed(data[at : at + 1])]
    assert reader.failure is None
    assert [encode_frame(*frame) for frame in frames] == [VECTORS[0].frame, vector.frame]
    assert frames[1][2] == vector.body


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_every_truncation_waits_for_more(vector) -> None:
    for end in range(len(vector.frame)):
        reader = FrameReader()
        assert reader.feed(vector.frame[:end]) == []
        assert reader.failure is None
        assert reader.buffered_bytes == end


LIES = {
    "no room for the header length": (head(3, 0, 0), "frame length 3 has no room"),
    "zero length": (head(0, 0, 0), "frame length 0"),
    "over the limit": (head(FRAME_MAX_BYTES - 3, 0, 5), "over the limit of 16777216"),
    "negative length": (head(0xFFFF_FFFF, 0, 5), "over the limit"),
    "header longer than the frame": (head(10, 0, 7), "header of 7 bytes does not fit"),
    "unknown serialize type": (head(10, 2, 6), "unknown serialize type 2"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01", "over the limit"),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", "over the limit"),
}


@pytest.mark.parametrize(("lie", "message"), LIES.values(), ids=LIES.keys())
def test_a_lie_keeps_the_frames_before_it_and_ends_the_stream(lie: bytes, message: str) -> None:
    good = (0, b"{}", b"body")
    reader = FrameReader()
    assert reader.feed(encode_frame(*good) + lie) == [good]
    assert reader.failure is not None
    assert message in str(reader.failure)
    first = reader.failure
    assert reader.feed(encode_frame(*good)) == []
    assert reader.failure is first


@pytest.mark.parametrize("lie", [head(3, 0, 0), head(FRAME_MAX_BYTES, 0, 0)])
def test_a_false_length_is_told_before_the_rest_of_the_head(lie: bytes) -> None:
    reader = FrameReader()
    reader.feed(lie[:3])
    assert reader.failure is None
    reader.feed(lie[3:4])
    assert reader.failure is not None


def test_a_false_header_length_is_told_before_the_body_arrives() -> None:
    reader = FrameReader()
    reader.feed(head(1_000_000, 0, 1_000_000))
    assert reader.failure is not None


def test_the_limit_counts_the_length_field() -> None:
    fits, too_long = FrameReader(max_bytes=20), FrameReader(max_bytes=20)
    assert fits.feed(encode_frame(0, b"", b"x" * 12)) == [(0, b"", b"x" * 12)]
    assert too_long.feed(encode_frame(0, b"", b"x" * 13)) == []
    assert "frame of 21 bytes is over the limit of 20" in str(too_long.failure)


def test_a_large_frame_is_joined_once_and_what_follows_is_kept() -> None:
    big = (1, b"h" * 1000, b"b" * 300_000)
    small = (0, b"", b"s")
    data = encode_frame(*big) + encode_frame(*small) + b"\0\0"
    reader = FrameReader()
    assert feed_in_pieces(reader, data, list(range(0, len(data), 1_448))) == [big, small]
    assert reader.buffered_bytes == 2


def test_the_largest_frame_passes_and_one_byte_more_is_refused() -> None:
    body = bytes(FRAME_MAX_BYTES - 8)
    reader = FrameReader()
    assert [len(frame[2]) for frame in reader.feed(encode_frame(0, b"", body))] == [len(body)]
    with pytest.raises(LocalProtocolError, match=r"over the limit of 16777216; send less"):
        encode_frame(0, b"x", body)


def test_an_unknown_serialize_type_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match="unknown serialize type 2"):
        encode_frame(2, b"", b"")
