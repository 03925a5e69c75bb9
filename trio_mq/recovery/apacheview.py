"""What Apache's broker would do with the log of the same store: where its recovery begins, and where it ends.

In: the segments of a log, the checkpoint, how far queues know the log. Out: an :class:`ApacheView`. Changes nothing;
blocks, for worker threads. Called by :mod:`trio_mq.offline` when a log is damaged, so that an operator can compare.
Rules: Apache RocketMQ 5.4.0 CommitLog.recoverNormally, recoverAbnormally, isMappedFileMatchedRecover and
checkMessageAndReturnSize; none of our own rules counts here.
"""

from __future__ import annotations

from typing import Final

import attrs

from trio_mq.protocol.layout import Checkpoint
from trio_mq.protocol.verdict import Blank, Verdict, Whole
from trio_mq.recovery.iterators import HEAD_BYTES, verdict_at
from trio_mq.recovery.paths import Path
from trio_mq.recovery.survey import Bad, Lot, Unwritten, survey
from trio_mq.recovery.survey import Blank as BlankPiece
from trio_mq.store.segments import Segments

#: So many log files Apache's recovery goes back, prepared ones included (commitLogRecoverMaxNum).
FILES_BACK: Final = 10


@attrs.frozen
class ApacheView:
    """Offsets in bytes of the log. `taken` counts records that pass Apache's rules and not ours.

    `reason` says what Apache's broker would find at `end`; None where nothing was written.
    """

    begin: int
    end: int
    taken: int = 0
    reason: str | None = None


def apache_view(
    segments: Segments,
    checkpoint: Checkpoint,
    *,
    crashed: bool,
    dispatched_to: int,
    path: Path,
    check_crc: bool,
) -> ApacheView:
    """Where Apache's recovery of a log begins and ends. `dispatched_to`: end of the furthest record in a queue."""
    begin = _begin(segments, checkpoint, crashed, dispatched_to, check_crc)
    return _Walk(segments, path, check_crc).run(begin)


def _begin(
    segments: Segments, checkpoint: Checkpoint, crashed: bool, dispatched_to: int, check_crc: bool
) -> int:
    """The last file that begins with a record of which the checkpoint, or a queue, knows; else the first of ten."""
    starts = segments.starts[-FILES_BACK:]
    for start in reversed(starts[1:]):
        record = _verdict(segments, start, check_crc)
        if not isinstance(record, Whole) or record.store_timestamp_ms == 0:
            continue
        if crashed and record.store_timestamp_ms <= checkpoint.min_timestamp_ms:
            return start
        if not crashed and record.log_offset <= dispatched_to:
            return start
    return starts[0] if starts else segments.start


def _verdict(segments: Segments, offset: int, check_crc: bool) -> Verdict:
    """What lies at an offset by Apache's rules alone."""
    end = segments.segment_of(offset) + segments.segment_bytes
    return verdict_at(segments.read, offset, end, check_crc=check_crc, strict=False)


class _Walk:
    def __init__(self, segments: Segments, path: Path, check_crc: bool) -> None:
        self._segments = segments
        self._path = path
        self._check_crc = check_crc
        self._taken = 0

    def run(self, begin: int) -> ApacheView:
        """Go from record to record until Apache's rules find none."""
        at, stop = begin, None
        while at < self._segments.end:
            at, stop = self._over_ours(at)
            if stop is None:
                break
            at, reason = self._over_strange(stop)
            if reason is not None:
                return ApacheView(begin, at, self._taken, reason or None)
        return ApacheView(begin, at, self._taken)

    def _over_ours(self, at: int) -> tuple[int, int | None]:
        """End of the last record that our rules take from `at` on, and where they take nothing; None for no such."""
        for piece in survey(self._segments, begin=at, check_crc=self._check_crc, path=self._path):
            if isinstance(piece, Bad | Unwritten):
                return at, piece.begin
            if isinstance(piece, BlankPiece) and not self._is_blank(piece.begin):
                return at, piece.begin
            if isinstance(piece, Lot):
                at = piece.end
        return at, None

    def _over_strange(self, at: int) -> tuple[int, str | None]:
        """Pass records that only Apache's rules take, up to one of ours; or say why that ends, "" for zeros."""
        segments = self._segments
        while True:
            verdict = _verdict(segments, at, self._check_crc)
            if isinstance(verdict, Blank):
                following = segments.segment_of(at) + segments.segment_bytes
                return (following, None) if following < segments.end else (at, "")
            if not isinstance(verdict, Whole):
                return at, verdict.reason if any(segments.read(HEAD_BYTES, at)) else ""
            if self._is_ours(at, verdict.size):
                return at, None
            self._taken += 1
            at += verdict.size
            if at == segments.segment_of(at):
                return at, None

    def _is_blank(self, at: int) -> bool:
        return isinstance(_verdict(self._segments, at, self._check_crc), Blank)

    def _is_ours(self, at: int, size: int) -> bool:
        read = self._segments.read
        return isinstance(verdict_at(read, at, at + size, check_crc=self._check_crc), Whole)
