"""What a whole log holds, also behind damage: counts, damage, and records that lie behind an offset.

In: the segments of a log. Out: a :class:`LogPicture`, and records of a part of the log one by one. Nothing is changed,
and memory does not grow with the log. Called by :mod:`trio_mq.offline` for reports; the pieces come from
:mod:`trio_mq.recovery.survey`. What blocks says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final

import attrs

from trio_mq.protocol.properties import get as get_property
from trio_mq.protocol.verdict import Whole
from trio_mq.recovery.paths import Path
from trio_mq.recovery.survey import Bad, Blank, Lot, Missing, Piece, Unwritten, survey
from trio_mq.store.disk import Disk
from trio_mq.store.segments import Segments

#: Pieces (64 KiB mostly) that are looked at in one call to a worker thread: a stop is noticed, and progress told.
PIECES_AT_ONCE: Final = 256
#: Damaged places that are told one by one; of a log with more of them, the rest is counted.
SPANS_TOLD: Final = 1000
#: Keys of lost records that are told without being asked for all.
KEYS_TOLD: Final = 100
_NOTHING: Final = "nothing is written here, but behind it"

Progress = Callable[[str, int, int], None]
"""Told of a phase, an offset, and the end as far as it is known; offsets in bytes of the log."""


@attrs.frozen
class Span:
    """A part of the log without a record that can be read, and why. Offsets in bytes."""

    begin: int
    end: int
    reason: str


@attrs.frozen
class QueueCount:
    """So many records of one queue."""

    topic: str
    queue_id: int
    records: int


@attrs.frozen
class LogPicture:
    """All of a log. Offsets in bytes; `end` is that of the files, `records_end` that of the last whole record.

    `missing` are files that lack between others, `damaged` the other parts without a record;
    `more_damaged` counts those that are not listed.
    """

    start: int = 0
    end: int = 0
    files: int = 0
    segment_bytes: int = 0
    records: int = 0
    records_end: int = 0
    newest_ms: int = 0
    queues: tuple[QueueCount, ...] = ()
    damaged: tuple[Span, ...] = ()
    more_damaged: int = 0
    missing: tuple[Span, ...] = ()

    def spans_before(self, offset: int) -> list[Span]:
        """Everything without a record that begins before an offset, in order."""
        spans = (*self.damaged, *self.missing)
        return sorted((span for span in spans if span.begin < offset), key=lambda s: s.begin)


def counts(found: Mapping[tuple[str, int], int]) -> tuple[QueueCount, ...]:
    """Counts by queue, sorted."""
    return tuple(QueueCount(topic, number, n) for (topic, number), n in sorted(found.items()))


class _Painter:
    """Takes pieces, and keeps what a picture needs of them."""

    def __init__(self, start: int) -> None:
        self.at = start
        self.records = 0
        self.records_end = start
        self.newest_ms = 0
        self.queues: dict[tuple[str, int], int] = {}
        self.damaged: list[Span] = []
        self.more = 0
        self.missing: list[Span] = []
        self._unwritten: Unwritten | None = None

    def take_some(self, pieces: Iterator[Piece]) -> bool:
        """Take some pieces; whether there were any. Blocking."""
        before = self.at
        for piece in islice(pieces, PIECES_AT_ONCE):
            self._take(piece)
            self.at = piece.end
        return self.at > before

    def _take(self, piece: Piece) -> None:
        if isinstance(piece, Lot):
            self.records += piece.count
            self.records_end = piece.end
            self.newest_ms = max(self.newest_ms, piece.newest_ms)
            for queue, count in piece.by_queue().items():
                self.queues[queue] = self.queues.get(queue, 0) + count
        elif isinstance(piece, Unwritten):
            if self._unwritten is None:
                self._unwritten = piece
            return
        elif isinstance(piece, Missing):
            self.missing.append(Span(piece.begin, piece.end, "the file is missing"))
            return
        elif isinstance(piece, Bad):
            self._damage(Span(piece.begin, piece.end, piece.reason))
        if self._unwritten is not None and not isinstance(piece, Blank):
            # A part of zeros with something behind was written once.
            self._damage(Span(self._unwritten.begin, self._unwritten.end, _NOTHING))
            self._unwritten = None

    def _damage(self, span: Span) -> None:
        if len(self.damaged) < SPANS_TOLD:
            self.damaged.append(span)
        else:
            self.more += 1


async def look(
    disk: Disk, segments: Segments, *, path: Path, check_crc: bool, progress: Progress | None
) -> LogPicture:
    """Go through all of a log, whose files are found already."""
    painter = _Painter(segments.start)
    pieces = survey(segments, check_crc=check_crc, path=path)
    while await disk.run(partial(painter.take_some, pieces)):
        if progress is not None:
            progress("survey", painter.at, segments.end)
    return LogPicture(
        start=segments.start,
        end=segments.end,
        files=len(segments.starts),
        segment_bytes=segments.segment_bytes,
        records=painter.records,
        records_end=painter.records_end,
        newest_ms=painter.newest_ms,
        queues=counts(painter.queues),
        damaged=tuple(sorted(painter.damaged, key=lambda span: span.begin)),
        more_damaged=painter.more,
        missing=tuple(painter.missing),
    )


# -- records behind a cut ------------------------------------------------------------------------------------


@attrs.frozen
class LostRecord:
    """A record that can be read and that a start cuts off. `message_id` is what its producer called it, or empty."""

    log_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    keys: tuple[str, ...]
    size: int
    store_timestamp_ms: int
    reason: str

    @classmethod
    def of(cls, record: Whole, reason: str) -> LostRecord:
        """What is told of a record."""
        text = record.properties
        keys = str(get_property(text, b"KEYS") or b"", "utf-8", "replace")
        return cls(
            log_offset=record.log_offset,
            topic=record.topic,
            queue_id=record.queue_id,
            queue_offset=record.base_offset,
            message_id=str(get_property(text, b"UNIQ_KEY") or b"", "utf-8", "replace"),
            keys=tuple(key for key in keys.split(" ") if key),
            size=record.size,
            store_timestamp_ms=record.store_timestamp_ms,
            reason=reason,
        )


@attrs.frozen
class Lost:
    """What a start throws away that could be read: records, their bytes, and where they belong.

    `keys` are the first ones; `all_keys` says whether there are no others. `begin` and `end` are log offsets.
    """

    begin: int = 0
    end: int = 0
    records: int = 0
    bytes: int = 0
    queues: tuple[QueueCount, ...] = ()
    keys: tuple[str, ...] = ()
    all_keys: bool = True

    @property
    def topics(self) -> list[str]:
        """Whose records they are."""
        return sorted({queue.topic for queue in self.queues})


def lots(segments: Segments, begin: int, end: int, *, path: Path, check_crc: bool) -> Iterator[Lot]:
    """Runs of whole records between two log offsets. Blocking."""
    if begin >= end or segments.empty:
        return
    for piece in survey(segments, begin=begin, check_crc=check_crc, path=path):
        if piece.begin >= end:
            return
        if isinstance(piece, Lot):
            yield piece


class _Loss:
    """Takes lots behind a cut, and counts what is lost with them."""

    def __init__(self, begin: int) -> None:
        self.begin = self.end = self.at = begin
        self.records = self.bytes = 0
        self.queues: dict[tuple[str, int], int] = {}
        self.keys: dict[str, None] = {}
        self.all_keys = True

    def take_some(self, found: Iterator[Lot]) -> bool:
        """Take some lots; whether there were any. Blocking."""
        taken = False
        for lot in islice(found, PIECES_AT_ONCE):
            taken = True
            if not self.records:
                self.begin = lot.begin
            self.records += lot.count
            self.bytes += lot.end - lot.begin
            self.end = self.at = lot.end
            for queue, count in lot.by_queue().items():
                self.queues[queue] = self.queues.get(queue, 0) + count
            self._take_keys(lot)
        return taken

    def _take_keys(self, lot: Lot) -> None:
        if not self.all_keys:
            return
        for record in lot.records():
            lost = LostRecord.of(record, "")
            for key in lost.keys or ((lost.message_id,) if lost.message_id else ()):
                if key not in self.keys and len(self.keys) == KEYS_TOLD:
                    self.all_keys = False
                    return
                self.keys[key] = None


async def look_behind(
    disk: Disk,
    segments: Segments,
    begin: int,
    end: int,
    *,
    path: Path,
    check_crc: bool,
    progress: Progress | None,
) -> Lost:
    """What can be read between two log offsets."""
    loss = _Loss(begin)
    found = lots(segments, begin, end, path=path, check_crc=check_crc)
    while await disk.run(partial(loss.take_some, found)):
        if progress is not None:
            progress("cut", loss.at, end)
    return Lost(
        begin=loss.begin,
        end=loss.end,
        records=loss.records,
        bytes=loss.bytes,
        queues=counts(loss.queues),
        keys=tuple(loss.keys),
        all_keys=loss.all_keys,
    )
