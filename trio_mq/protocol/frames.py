"""Byte stream to frames, for any split of the bytes; and one frame back to bytes.

In: whatever a socket returned. Out: ``(serialize type, header, body)`` of every complete frame.
Called by the link of every connection; :mod:`trio_mq.protocol.command` gives the header its
meaning. Format: ``length u32, serialize type u8, header length u24, header, body`` with ``length``
counting everything after itself (Apache: ``NettyDecoder``, ``NettyEncoder``, ``RemotingCommand``).
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeAlias

from trio_mq.errors import FrameError, LocalProtocolError

RawFrame: TypeAlias = tuple[int, bytes, bytes]
"""Serialize type (0 or 1), header bytes, body bytes."""

FRAME_MAX_BYTES: Final = 16_777_216
"""Largest frame, its length field included: what the peers allow, so that one frame cannot eat all
memory."""

_HEAD: Final = Struct(">II")
_LENGTH_BYTES: Final = 4
_HEAD_BYTES: Final = 8
_HEADER_MAX_BYTES: Final = 0xFFFFFF
_SERIALIZE_TYPES: Final = 2


class FrameReader:
    """Cuts a byte stream into frames.

    ``failure`` is ``None`` until a frame lies about its length or its kind; then it holds the
    error, the frames before it have been returned, and nothing is read any more. The connection has
    to be closed, because there is no way to find the next frame.
    """

    __slots__ = ("_limit", "_pieces", "_wanted", "buffered_bytes", "failure")

    def __init__(self, max_bytes: int = FRAME_MAX_BYTES) -> None:
        self.failure: FrameError | None = None
        self.buffered_bytes = 0
        self._limit = max_bytes - _LENGTH_BYTES
        # A large frame arrives in hundreds of pieces: they are joined once, when the frame is
        # complete.
        self._pieces: list[bytes] = []
        self._wanted = 0

    def feed(self, data: bytes) -> list[RawFrame]:
        """All frames that ``data`` completes, in order. Never raises: look at ``failure``
        afterwards."""
        if self.failure is not None:
            return []
        if self._pieces:
            self._pieces.append(data)
            self.buffered_bytes += len(data)
            if self.buffered_bytes < self._wanted:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
            self.buffered_bytes = 0
        frames: list[RawFrame] = []
        limit = self._limit
        unpack = _HEAD.unpack_from
        append = frames.append
        start = 0
        stop = len(data)
        last_head = stop - _HEAD_BYTES
        wanted = 0
        # The loop runs once per message of every producer: it keeps to local names and one slice
        # per part.
        while start <= last_head:
            length, word = unpack(data, start)
            header_length = word & 0xFFFFFF
            if length > limit or header_length + 4 > length or word > 0x1FFFFFF:
                self._fail(length, word)
                return frames
            end = start + 4 + length
            if end > stop:
                wanted = end - start
                break
            body = start + 8 + header_length
            append((word >> 24, data[start + 8 : body], data[body:end]))
            start = end
        if start < stop:
            self._keep(data[start:] if start else data, wanted)
        return frames

    def _keep(self, rest: bytes, wanted: int) -> None:
        """Hold the first bytes of an incomplete frame; a false length is told as soon as its four
        bytes are there."""
        if not wanted:
            wanted = _LENGTH_BYTES
            if len(rest) >= _LENGTH_BYTES:
                wanted = _HEAD_BYTES
                length = int.from_bytes(rest[:_LENGTH_BYTES], "big")
                if length > self._limit or length < _LENGTH_BYTES:
                    self._fail(length, 0)
                    return
        self._pieces.append(rest)
        self.buffered_bytes = len(rest)
        self._wanted = wanted

    def _fail(self, length: int, word: int) -> None:
        total = length + _LENGTH_BYTES
        header_length = word & _HEADER_MAX_BYTES
        if length > self._limit:
            limit = self._limit + _LENGTH_BYTES
            problem = (
                f"frame of {total} bytes is over the limit of {limit}: is it another protocol?"
            )
        elif length < _LENGTH_BYTES:
            problem = (
                f"frame length {length} has no room for the header length ({_LENGTH_BYTES} bytes)"
            )
        elif header_length + _LENGTH_BYTES > length:
            problem = f"header of {header_length} bytes does not fit into a frame of {total} bytes"
        else:
            problem = f"unknown serialize type {word >> 24}; known are 0 (JSON) and 1 (ROCKETMQ)"
        self.failure = FrameError(problem)


def encode_frame(serialize_type: int, header: bytes, body: bytes) -> bytes:
    """One whole frame with its length; :class:`LocalProtocolError` when it would be over a limit of
    the format."""
    header_length = len(header)
    length = 4 + header_length + len(body)
    if length + _LENGTH_BYTES > FRAME_MAX_BYTES:
        raise LocalProtocolError(
            f"frame of {length + _LENGTH_BYTES} bytes (body {len(body)}) is over the limit "
            f"of {FRAME_MAX_BYTES}; send less at once"
        )
    if not 0 <= serialize_type < _SERIALIZE_TYPES:
        raise LocalProtocolError(f"unknown serialize type {serialize_type}; known are 0 and 1")
    return b"".join((_HEAD.pack(length, serialize_type << 24 | header_length), header, body))
