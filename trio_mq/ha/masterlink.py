"""One connection of a slave to its master: pieces of the log in, reports of how far they are kept out.

In: a connected stream and the log that it continues. Out: a :class:`LinkEnd`, which says why the connection is of no
use any more; nothing that the master or the disk does raises. Called by :mod:`trio_mq.ha.replica`. Format:
:mod:`trio_mq.protocol.replication`; source: Apache DefaultHAClient.

Two tasks: one reads and appends, one reports. A body is appended as it comes, so a connection that breaks inside of one
keeps what has arrived: the next report asks for the rest.
"""

from __future__ import annotations

import enum
from typing import Final, Protocol

import attrs
import trio

from trio_mq.config.ha import HASettings
from trio_mq.errors import FrameError, StoreError
from trio_mq.ha.copylog import LogsDiffer
from trio_mq.ha.flow import Meter
from trio_mq.net.streams import BROKEN, RawStream
from trio_mq.protocol.replication import Piece, PieceReader, encode_report
from trio_mq.tasks import Watermark

#: Most bytes of one receive: large enough that a call costs nothing beside its bytes, small enough for the loop.
RECEIVE_BYTES: Final = 256 * 1024
#: Pieces of less are joined before they are appended: a write costs as much as copying some thousand bytes.
SMALL_BYTES: Final = 16 * 1024
#: Time without a chance for other tasks.
STEP_S: Final = 0.004


class Copied(Protocol):
    """What a link needs of :class:`trio_mq.ha.copylog.LogCopy`."""

    kept: Watermark

    @property
    def end(self) -> int:
        """Where the next byte goes; 0 in an empty log."""
        ...

    @property
    def segment_bytes(self) -> int:
        """Length of the log's files."""
        ...

    def append(self, offset: int, data: bytes | memoryview) -> None:
        """Write at the end. LogsDiffer, OSError or StoreError; nothing has changed then."""
        ...


class EndKind(enum.Enum):
    """Why a connection ended."""

    CLOSED = "closed"
    SILENT = "silent"
    BAD_BYTES = "bad bytes"
    MISMATCH = "mismatch"
    SEGMENTS = "segments"
    DISK = "disk"
    CHECKABLE = "checkable"


@attrs.frozen
class LinkEnd:
    """How a connection ended: what kind of end, and a sentence for people."""

    kind: EndKind
    reason: str


class _Ended(Exception):
    """Leaves the reading."""

    def __init__(self, kind: EndKind, reason: str) -> None:
        super().__init__(reason)
        self.end = LinkEnd(kind, reason)


class Traffic:
    """What went over the connections to masters. Times are Trio's; None before the first."""

    def __init__(self) -> None:
        self.last_read_s: float | None = None
        self.last_write_s: float | None = None
        self.meter = Meter(0.0)

    def read(self, size: int, now_s: float) -> None:
        """Bytes came."""
        self.last_read_s = now_s
        self.meter.add(size, now_s)


class MasterLink:
    """A connection; used once."""

    def __init__(
        self, stream: RawStream, copy: Copied, settings: HASettings, traffic: Traffic
    ) -> None:
        self._stream = stream
        self._copy = copy
        self._traffic = traffic
        self._heartbeat_s = settings.send_heartbeat_interval_ms / 1000
        self._silence_s = settings.housekeeping_interval_ms / 1000
        self._end: LinkEnd | None = None
        self._reader = PieceReader()

    async def run(self) -> LinkEnd:
        """Copy until the connection is of no use; the caller closes it.

        Cancelling ends both tasks at once; what was appended stays, and is reported on the next connection.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report, nursery.cancel_scope)
            await self._read()
            nursery.cancel_scope.cancel()
        assert self._end is not None, "both tasks say why they end"
        return self._end

    def _ended(self, end: LinkEnd) -> None:
        if self._end is None:
            self._end = end

    # -- reading ---------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            with trio.CancelScope(deadline=trio.current_time() + self._silence_s) as silence:
                await self._receive(silence)
        except _Ended as ended:
            self._ended(ended.end)
        except BROKEN:
            self._ended(LinkEnd(EndKind.CLOSED, "the connection broke"))
        if silence.cancelled_caught:
            self._ended(LinkEnd(EndKind.SILENT, f"nothing came from it for {self._silence_s:g} s"))

    async def _receive(self, silence: trio.CancelScope) -> None:
        while True:
            data = await self._stream.receive_some(RECEIVE_BYTES)
            if not data:
                raise _Ended(EndKind.CLOSED, "it closed the connection")
            now_s = trio.current_time()
            silence.deadline = now_s + self._silence_s
            self._traffic.read(len(data), now_s)
            try:
                pieces = self._reader.feed(data)
            except FrameError as error:
                raise _Ended(EndKind.BAD_BYTES, str(error)) from error
            if len(pieces) > 2 and len(data) < SMALL_BYTES * len(pieces):
                pieces = joined(pieces, self._copy.segment_bytes)
            for piece in pieces:
                self._take(piece)
                if trio.current_time() - now_s > STEP_S:
                    await trio.lowlevel.checkpoint()
                    now_s = trio.current_time()

    def _take(self, piece: Piece) -> None:
        """Append one piece. Heartbeats are checked too: that of a master whose log went back does not fit."""
        copy = self._copy
        offset, body, left = piece
        if offset != copy.end and copy.end:
            raise _Ended(
                EndKind.MISMATCH,
                f"it sends offset {offset} and this log ends at {copy.end}: they do not continue each other",
            )
        if not body and copy.end:
            return
        last = max(offset, offset + len(body) + left - 1)
        segment = copy.segment_bytes
        if last // segment != offset // segment:
            raise _Ended(
                EndKind.SEGMENTS,
                f"a piece from offset {offset} to {last + 1} crosses the end of a log file, and these have {segment} "
                f"bytes here: the master has larger ones; set mappedFileSizeCommitLog to its value, and begin with "
                f"an empty store",
            )
        try:
            copy.append(offset, body)
        except LogsDiffer as error:
            raise _Ended(EndKind.MISMATCH, str(error)) from error
        except (OSError, StoreError) as error:
            text = error.strerror if isinstance(error, OSError) else None
            raise _Ended(
                EndKind.DISK,
                f"the log cannot be written: {text or error}; what is there is served, free some room on that disk",
            ) from error

    # -- reporting -------------------------------------------------------------------------------------------

    async def _report(self, link: trio.CancelScope) -> None:
        """Tell what is kept: at once, then after each progress, and when nothing was told for a while.

        Several appends share a report when the stream is slower than they are; none waits for another one.
        """
        kept = self._copy.kept
        # The master sends what follows the first report: with SYNC_FLUSH it has to cover what is not durable yet.
        await kept.reached(self._copy.end)
        try:
            while True:
                told = kept.value
                await self._stream.send_all(encode_report(told))
                self._traffic.last_write_s = trio.current_time()
                if kept.value == told:
                    with trio.move_on_after(self._heartbeat_s):
                        await kept.reached(told + 1)
        except BROKEN:
            self._ended(LinkEnd(EndKind.CLOSED, "the connection broke"))
            link.cancel()


def joined(pieces: list[Piece], segment_bytes: int) -> list[Piece]:
    """The same with neighbours in one, as long as they lie in the same segment: fewer writes."""
    found: list[Piece] = []
    parts: list[bytes | memoryview] = []
    begin = end = left = 0

    def finish() -> None:
        if parts:
            found.append(Piece(begin, parts[0] if len(parts) == 1 else b"".join(parts), left))
            parts.clear()

    for piece in pieces:
        goes_on = piece.offset == end and piece.offset // segment_bytes == begin // segment_bytes
        if not (parts and goes_on):
            finish()
            begin = end = piece.offset
        parts.append(piece.body)
        end += len(piece.body)
        left = piece.left
    finish()
    return found
