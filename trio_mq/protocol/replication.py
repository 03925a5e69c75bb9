"""The stream between a master and its slaves: log bytes one way, offsets the other.

In: bytes as they come from a socket, cut anywhere. Out: offsets that a slave reports, and pieces of the log that a
master sends. Pure: no I/O, no clock. Called by :mod:`trio_mq.ha`. Format: ``docs/reference/wire-format.md``; source:
Apache DefaultHAClient, DefaultHAConnection. All numbers are big-endian and signed.

Master to slave, any number of::

    8 bytes  log offset of the first byte of the body
    4 bytes  length of the body; 0 is a heartbeat
    body     bytes of the log, cut anywhere, never across the end of a segment

Slave to master, any number of::

    8 bytes  the end of the slave's log; the first one asks for the stream
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from trio_mq.errors import FrameError

REPORT: Final = Struct(">q")
PIECE_HEADER: Final = Struct(">qi")
#: Most bytes in the body of a piece: the buffer of Apache's slaves less the header.
MAX_BODY_BYTES: Final = 4 * 1024 * 1024 - PIECE_HEADER.size


class Piece(NamedTuple):
    """A part of the log, or a heartbeat without one. `offset` is that of its first byte, or of the next one; `left`
    counts the bytes of the same body that are still to come.
    """

    offset: int
    body: bytes | memoryview
    left: int = 0


def encode_report(log_end: int) -> bytes:
    """What a slave says: how far its log goes."""
    return REPORT.pack(log_end)


def encode_header(offset: int, size: int) -> bytes:
    """What stands before `size` bytes of the log; with 0 it is a heartbeat."""
    return PIECE_HEADER.pack(offset, size)


def first_offset(
    reported: int, *, log_start: int, log_end: int, segment_bytes: int, from_start: bool
) -> int:
    """Where the stream of a slave begins that reports so much (Apache: DefaultHAConnection.WriteSocketService).

    An empty slave gets the newest segment, or with `from_start` the whole log; any other one what it lacks.
    """
    if reported:
        return reported
    return log_start if from_start else log_end - log_end % segment_bytes


class ReportReader:
    """Bytes of a slave to the offsets that it reports."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """The offsets that are complete now, in order."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        return [offset for (offset,) in REPORT.iter_unpack(data[:whole])]


class PieceReader:
    """Bytes of a master to pieces of its log.

    The parts of a body are handed out as they come, each with its own offset, so that a slave waits for no body to be
    complete: a body that is cut short by the end of the connection loses nothing, since the slave asks for the rest.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._offset = 0
        self._left = 0

    def feed(self, data: bytes) -> list[Piece]:
        """What is complete now. FrameError for a length that no master sends."""
        pieces: list[Piece] = []
        view = memoryview(self._rest + data if self._rest else data)
        at, end = 0, len(view)
        while at < end:
            if self._left:
                size = min(self._left, end - at)
                self._left -= size
                pieces.append(Piece(self._offset, view[at : at + size], self._left))
                self._offset += size
                at += size
                continue
            if end - at < PIECE_HEADER.size:
                break
            offset, size = PIECE_HEADER.unpack_from(view, at)
            if offset < 0 or not 0 <= size <= MAX_BODY_BYTES:
                raise FrameError(
                    f"a piece of the log with offset {offset} and {size} bytes; legal are 0 to "
                    f"{MAX_BODY_BYTES} bytes. Is the other end the HA port of a master that replicates in "
                    f"the default mode (no controller)?"
                )
            at += PIECE_HEADER.size
            self._offset, self._left = offset, size
            if not size:
                pieces.append(Piece(offset, b""))
        self._rest = bytes(view[at:])
        return pieces
