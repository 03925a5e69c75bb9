"""Records of the log: one by its offset, or all from an offset on, past whatever damage lies between them.

In: the log's files. Out: :class:`Raw` records, and news of what holds none. Called by everything in this room that
needs more of a record than its queue entry says. Walking is recovery's (:mod:`trio_mq.recovery.survey`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from trio_mq.protocol.record import StoredMessage, decode
from trio_mq.protocol.verdict import Whole, check
from trio_mq.recovery.lots import Lot
from trio_mq.recovery.survey import Bad, Blank, Missing, Unwritten, survey
from trio_mq.store.segments import Segments

#: Read at once for a record of unknown size; a longer one is read again.
GUESS_BYTES = 4096
#: Longest record that is read for the size it claims.
RECORD_LIMIT_BYTES = 64 * 1024 * 1024
#: What the magic numbers of both record versions begin with, and where it is in a record.
MAGIC = b"\xda\xa3\x20"
MAGIC_AT = 4
#: Bytes looked at in one go while the last record of a file is searched from behind.
BACK_BYTES = 1024 * 1024

#: Told of a range of the log without records: begin, end, reason.
Trouble = Callable[[int, int, str], None]


class Raw(NamedTuple):
    """A record: its bytes as they are, and what dispatch knows of it."""

    data: bytes
    whole: Whole

    @property
    def log_offset(self) -> int:
        """Where it is."""
        return self.whole.log_offset

    def decoded(self) -> StoredMessage:
        """All fields."""
        return decode(self.data)


def record_at(segments: Segments, log_offset: int, *, check_crc: bool = False) -> Raw | None:
    """The whole record at a log offset, None where there is none."""
    if log_offset < 0 or not segments.has(log_offset):
        return None
    room = segments.segment_of(log_offset) + segments.segment_bytes - log_offset
    data = segments.read(min(GUESS_BYTES, room), log_offset)
    if data[MAGIC_AT : MAGIC_AT + len(MAGIC)] != MAGIC:
        return None
    size = int.from_bytes(data[:4], "big", signed=True)
    if not 0 < size <= min(room, RECORD_LIMIT_BYTES):
        return None
    data = data[:size] if size <= len(data) else segments.read(size, log_offset)
    verdict = check(data, 0, len(data), check_crc=check_crc, expected_offset=log_offset)
    return Raw(data, verdict) if isinstance(verdict, Whole) else None


def walk(segments: Segments, begin: int | None, trouble: Trouble) -> Iterator[Raw]:
    """All whole records from a log offset on, in order; `trouble` is told of ranges without any."""
    for piece in survey(segments, begin=begin):
        if isinstance(piece, Bad):
            trouble(piece.begin, piece.end, piece.reason)
        elif isinstance(piece, Missing):
            trouble(piece.begin, piece.end, "the file is missing")
        elif not isinstance(piece, Blank | Unwritten):
            yield from lot_records(segments, piece)


def lot_records(segments: Segments, lot: Lot) -> Iterator[Raw]:
    """The records of a piece of the log with their bytes."""
    data = segments.read(lot.end - lot.begin, lot.begin)
    for whole in lot.records():
        at = whole.log_offset - lot.begin
        yield Raw(data[at : at + whole.size], whole)


def first_record(segments: Segments, start: int) -> Raw | None:
    """The record that a file of the log begins with."""
    return record_at(segments, start)


def last_record(segments: Segments, start: int, stop: int) -> Raw | None:
    """The last whole record between a file's start and `stop`, found by its magic and its own offset."""
    high = stop
    while high > start:
        begin = max(start, high - BACK_BYTES)
        # A magic may lie across the border to what was looked at before.
        data = segments.read(min(high + MAGIC_AT + len(MAGIC), stop) - begin, begin)
        at = data.rfind(MAGIC)
        while at >= 0:
            found = record_at(segments, begin + at - MAGIC_AT)
            if found is not None:
                return found
            at = data.rfind(MAGIC, 0, at + len(MAGIC) - 1)
        high = begin
    return None
