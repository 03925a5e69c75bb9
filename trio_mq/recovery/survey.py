"""All of a log, piece by piece, also what lies behind damage: for reports, which have to tell what there is.

In: the segments of a log. Out: pieces in order of their offsets, without gaps between them: whole records, ends of
segments, damage, what was never written, missing files. Changes nothing. Where a start would end the log is not
decided here (:mod:`trio_mq.recovery.walk`); a record that lies behind damage is found by its magic and by the offset
that it holds. Blocks: for worker threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

import attrs

from trio_mq.protocol.verdict import Blank as BlankVerdict
from trio_mq.protocol.verdict import Damaged, Torn, Verdict, Whole
from trio_mq.recovery.iterators import RECORD_MAGIC, ReadAhead, messages, verdict_at
from trio_mq.recovery.lots import Lot as Lot
from trio_mq.recovery.paths import Path
from trio_mq.store.segments import Segments

#: Bytes of the log that are searched for a record, or for anything but zeros, in one go.
SEARCH_BYTES: Final = 1024 * 1024
_MAGIC_AT: Final = 4


@attrs.frozen
class Blank:
    """The end of a segment, told by a blank record."""

    begin: int
    end: int


@attrs.frozen
class Bad:
    """Bytes that are no whole record; the next one, or whatever else is there, begins at `end`.

    `torn` when they may be a record whose writing was cut off, else something was damaged.
    """

    begin: int
    end: int
    reason: str
    torn: bool = False


@attrs.frozen
class Unwritten:
    """Zeros up to the end of a segment."""

    begin: int
    end: int


@attrs.frozen
class Missing:
    """A file between two others is gone."""

    begin: int
    end: int


Piece: TypeAlias = Lot | Blank | Bad | Unwritten | Missing


def survey(
    segments: Segments,
    *,
    begin: int | None = None,
    check_crc: bool = True,
    path: Path = Path.BATCH,
) -> Iterator[Piece]:
    """All pieces of a log from `begin`, where a record should be, else from its start.

    Lots cover 256 KiB at most, but for a single larger record; the other pieces can be as large as a segment.
    """
    at = segments.start if begin is None else begin
    read = ReadAhead(segments)
    for start in segments.starts:
        end = start + segments.segment_bytes
        if end <= at:
            continue
        if start > at:
            yield Missing(at, start)
            at = start
        while at < end:
            found = messages(path, read, at, end, check_crc=check_crc)
            yield from found
            if found.verdict is None:
                break
            piece = _between(segments, found.offset, end, found.verdict, check_crc=check_crc)
            yield piece
            at = piece.end
        at = end


def _between(
    segments: Segments, begin: int, end: int, verdict: Verdict, *, check_crc: bool
) -> Blank | Bad | Unwritten:
    """What lies where a run of records ends, up to the next one or to the end of the segment."""
    if isinstance(verdict, BlankVerdict):
        return Blank(begin, end)
    assert isinstance(verdict, Torn | Damaged), "a whole record does not end a run"
    following = next_whole(segments, begin + 1, end, check_crc=check_crc)
    if following is not None:
        return Bad(begin, following, verdict.reason)
    written = written_end(segments, begin, end)
    if written == begin:
        return Unwritten(begin, end)
    return Bad(begin, end, verdict.reason, torn=isinstance(verdict, Torn))


def next_whole(segments: Segments, begin: int, end: int, *, check_crc: bool) -> int | None:
    """The first whole record in a part of one segment, found by its magic and its own offset; None without one."""
    read = segments.read
    position = begin + _MAGIC_AT
    # Files are sparse: what was never written is not read.
    while position < end and (position := max(position, segments.next_data(position))) < end:
        piece = read(min(SEARCH_BYTES, end - position), position)
        if not piece:
            return None
        at = piece.find(RECORD_MAGIC)
        while at >= 0:
            found = position + at - _MAGIC_AT
            if isinstance(verdict_at(read, found, end, check_crc=check_crc), Whole):
                return found
            at = piece.find(RECORD_MAGIC, at + 1)
        # A magic may lie across the end of the piece.
        position += max(1, len(piece) - len(RECORD_MAGIC) + 1)
    return None


def written_end(segments: Segments, begin: int, end: int) -> int:
    """End of what is not zero in a part of one segment; `begin` where nothing is."""
    last = position = begin
    while position < end and (position := max(position, segments.next_data(position))) < end:
        piece = segments.read(min(SEARCH_BYTES, end - position), position)
        used = len(piece.rstrip(b"\0"))
        if used:
            last = position + used
        position += SEARCH_BYTES
    return last
