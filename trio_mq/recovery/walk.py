"""The log's records one after the other, from an offset to the end of what is valid.

In: the segments of a log, and the way to read them (:mod:`trio_mq.recovery.iterators`). Out: lots of whole records, and
at the end where and why the walk stopped. Changes nothing. Blocks: for worker threads, one at a time.
Rules: Apache CommitLog.recoverNormally, recoverAbnormally; verdicts: :mod:`trio_mq.protocol.verdict`.
"""

from __future__ import annotations

from collections.abc import Iterator

from trio_mq.protocol.verdict import Blank, Verdict, Whole
from trio_mq.recovery.iterators import HEAD_BYTES, ReadAhead, messages
from trio_mq.recovery.lots import Lot
from trio_mq.recovery.paths import Path
from trio_mq.store.segments import Segments


class Walk:
    """One walk. `end` moves with the records; `reason` says why it ended, None when nothing was written there.

    With `holes_to`, a file that is missing behind that offset ends the walk, too.
    """

    def __init__(
        self,
        segments: Segments,
        start: int,
        *,
        path: Path = Path.BATCH,
        check_crc: bool = True,
        holes_to: int | None = None,
    ) -> None:
        self.start = start
        self.end = start
        #: End of the last record; `end` may be behind it, at the start of a new segment.
        self.records_end = start
        self.reason: str | None = None
        #: Whether the end of a segment ended the walk, since no segment follows.
        self.at_blank = False
        #: Records handed on, and the latest of their store times in ms.
        self.records = 0
        self.newest_ms = 0
        #: Ranges without a file, between two that exist.
        self.missing: list[tuple[int, int]] = []
        self._segments = segments
        self._path = path
        self._check_crc = check_crc
        self._holes_to = holes_to
        self._left = [s for s in segments.starts if s + segments.segment_bytes > start]

    def lots(self) -> Iterator[Lot]:
        """Lots of records to the end of the walk; `end` and the counts include a lot when it is handed on."""
        segments, read = self._segments, ReadAhead(self._segments)
        while self._left:
            segment = self._left.pop(0)
            if segment > self.end and self._holes_to is not None and self.end >= self._holes_to:
                self.reason = f"at offset {self.end}: the next file is missing"
                break
            if segment > self.end:
                # A file between two others is gone: what is behind it is as good as before.
                self.missing.append((self.end, segment))
                self.end = segment
            segment_end = segment + segments.segment_bytes
            found = messages(self._path, read, self.end, segment_end, check_crc=self._check_crc)
            for lot in found:
                self.end = self.records_end = lot.end
                self.records += lot.count
                self.newest_ms = max(self.newest_ms, lot.newest_ms)
                yield lot
            if found.verdict is not None:
                self._stop(found.verdict, segment_end)

    def _stop(self, verdict: Verdict, segment_end: int) -> None:
        """Note why the records of a segment end, and whether the walk goes on with the next one."""
        assert not isinstance(verdict, Whole), "only what is no record ends a walk"
        if isinstance(verdict, Blank):
            if self._left:
                self.end = segment_end
            else:
                self.at_blank = True  # the next record goes where the blank is
            return
        self._left.clear()
        at = self.end
        if self.missing and self.missing[-1][1] == at:
            # Nothing follows the missing file, so the log ends before it: there a power cut took a name.
            self.end = self.missing.pop()[0]
        if any(self._segments.read(HEAD_BYTES, at)):
            self.reason = f"at offset {at}: {verdict.reason}"
