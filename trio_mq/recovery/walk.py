"""The log's records one after the other, from an offset to the end of what is valid.

In: windows of log bytes, which the caller reads off the loop. Out: whole records, some at a time, and at the end
where and why the walk stopped. A :class:`Walk` reads nothing itself and changes nothing.
Rules: Apache CommitLog.recoverNormally, recoverAbnormally; verdicts: :mod:`trio_mq.protocol.verdict`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trio_mq.protocol.layout import MAGIC_BLANK
from trio_mq.protocol.verdict import Blank, Damaged, Verdict, Whole, check
from trio_mq.store.segments import Segments

#: Bytes of the log looked at in one go; a record that is larger is read by itself.
WINDOW_BYTES: Final = 4 * 1024 * 1024
#: Records handed on at once; the loop is free between two such slices.
SLICE_RECORDS: Final = 2000
#: No record is as long: a frame of the protocol has 16 MiB at most. What claims more is never read for its size.
RECORD_LIMIT_BYTES: Final = 64 * 1024 * 1024
#: What the magic numbers of both record versions begin with.
RECORD_MAGIC: Final = b"\xda\xa3\x20"
_BLANK_MAGIC: Final = MAGIC_BLANK.to_bytes(4, "big", signed=True)
_HEAD_BYTES: Final = 8


def claimed_size(window: bytes, at: int) -> int:
    """Bytes that a record says to have; 0 for anything that is no record."""
    if window[at + 4 : at + 7] != RECORD_MAGIC:
        return 0
    return int.from_bytes(window[at : at + 4], "big", signed=True)


class Walk:
    """One walk. `end` moves with the records; `reason` says why it ended, None when nothing was written there."""

    def __init__(
        self,
        segments: Segments,
        start: int,
        *,
        check_crc: bool = True,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.start = start
        self.end = start
        #: End of the last record; `end` may be behind it, at the start of a new segment.
        self.records_end = start
        self.reason: str | None = None
        #: Whether bytes that are no record, or not the one that belongs there, ended the walk. A torn tail is none.
        self.damaged = False
        #: Whether the end of a segment ended the walk, since no segment follows.
        self.at_blank = False
        #: Records handed on, and the latest of their store times in ms.
        self.records = 0
        self.newest_ms = 0
        #: Ranges without a file, between two that exist.
        self.missing: list[tuple[int, int]] = []
        self._check_crc = check_crc
        self._segment_bytes = segments.segment_bytes
        self._left = [s for s in segments.starts if s + segments.segment_bytes > start]
        self._segment_end = -1
        self._usual_bytes = self._window_bytes = max(window_bytes, 2 * _HEAD_BYTES)

    def wanted(self) -> tuple[int, int] | None:
        """Size and log offset of the next window, which lies in one segment; None when the walk is over."""
        if self.end >= self._segment_end:
            if not self._left:
                return None
            segment = self._left.pop(0)
            if segment > self.end:
                # A file between two others is gone: what is behind it is as good as before.
                self.missing.append((self.end, segment))
                self.end = segment
            self._segment_end = segment + self._segment_bytes
        return min(self._window_bytes, self._segment_end - self.end), self.end

    def look(self, window: bytes) -> Iterator[list[Whole]]:
        """The whole records in a window that was wanted, in order, as lists that may be empty."""
        base, room = self.end, len(window)
        if not room:  # the file is shorter than it should be, and ends here
            self._left.clear()
            self._segment_end = base
        # A file that is shorter than it should be ends where it ends.
        complete = room < self._window_bytes or base + room == self._segment_end
        self._window_bytes = self._usual_bytes
        records: list[Whole] = []
        at = 0
        while at < room and (complete or room - at >= _HEAD_BYTES):
            verdict = check(window, at, room, check_crc=self._check_crc, expected_offset=base + at)
            if type(verdict) is not Whole:
                yield self._handed_on(records, base + at)
                if complete or not self._goes_on(window, at):
                    self._stop(verdict, window[at : at + _HEAD_BYTES])
                return
            records.append(verdict)
            at += verdict.size
            if len(records) >= SLICE_RECORDS:
                yield self._handed_on(records, base + at)
                records = []
        yield self._handed_on(records, base + at)

    def _handed_on(self, records: list[Whole], end: int) -> list[Whole]:
        self.end = end
        if records:
            self.records_end = end
        self.records += len(records)
        for record in records:
            if record.store_timestamp_ms > self.newest_ms:
                self.newest_ms = record.store_timestamp_ms
        return records

    def _goes_on(self, window: bytes, at: int) -> bool:
        """Whether the record at `at`, where :attr:`end` is, leads out of the window; the next one holds all of it."""
        claimed = claimed_size(window, at)
        if not len(window) - at < claimed <= min(self._segment_end - self.end, RECORD_LIMIT_BYTES):
            return False
        self._window_bytes = max(self._usual_bytes, claimed)
        return True

    def _stop(self, verdict: Verdict, head: bytes) -> None:
        """Note why the records of a segment end, and whether the walk goes on with the next one."""
        # A blank is known by its magic; its size may lead out of this window, and is never read for.
        if isinstance(verdict, Blank) or head[4:] == _BLANK_MAGIC:
            if self._left:
                self.end = self._segment_end
            else:
                self.at_blank = True  # the next record goes where the blank is
                self._segment_end = self.end
            return
        self._left.clear()
        at = self.end
        if self.missing and self.missing[-1][1] == at:
            # Nothing follows the missing file, so the log ends before it: there a power cut took a name.
            self.end = self.missing.pop()[0]
        self._segment_end = self.end
        if any(head):
            self.damaged = isinstance(verdict, Damaged)
            self.reason = f"at offset {at}: {_text(verdict)}"


def _text(verdict: Verdict) -> str:
    assert not isinstance(verdict, Whole | Blank), "only what is no record ends a walk"
    return verdict.reason
