"""The commit log: every message, in the order of arrival, in one row of segments.

In: records that the store encodes into :attr:`CommitLog.staging`, adding their size to :attr:`CommitLog.end`. Out:
ranges of stored bytes. Records are staged in memory and written with one call by :meth:`write_staged`; nothing of
a record is visible or acknowledged before that. All calls are synchronous and belong to the loop's thread: an
append needs no lock.

Offsets (bytes, global): ``start <= durable <= written <= end``. Format: ``docs/reference/store-format.md``; source:
Apache CommitLog, DefaultAppendMessageCallback.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from trio_mq.protocol.layout import BLANK_HEADER_SIZE
from trio_mq.protocol.record import blank
from trio_mq.store.disk import Buffer, Disk
from trio_mq.store.segments import FilePool, Segments, make_segment_file, pool_limit
from trio_mq.tasks import Watermark

#: Zeros written behind the end to find out whether the disk takes writes again.
PROBE_BYTES = 64 * 1024


class CommitLog:
    """An append-only log. Made empty or by recovery, which sets the end of what is valid."""

    def __init__(self, disk: Disk, directory: str, segment_bytes: int) -> None:
        self.segments = Segments(
            disk, FilePool(disk, pool_limit(share=16)), directory, segment_bytes
        )
        self.disk = disk
        self.staging = bytearray()
        #: Where the next record goes, staged ones included.
        self.end = 0
        #: Everything before is in the files (survives the end of the process).
        self.written = 0
        #: Everything before is on the disk (survives a power cut).
        self.durable = Watermark()
        #: How often the end of a log that is a copy was given up: what was read of it before may be gone.
        self.cuts = 0
        #: Store time of the newest record that recovery found, ms; stored times never go back behind it.
        self.newest_ms = 0
        #: End of the file that `end` lies in.
        self._segment_end = 0
        self._spare: int | None = None

    def open_at(self, end: int) -> None:
        """Go on appending at `end`, which recovery found to be the end of the valid records."""
        assert not self.staging
        self.end = self.written = end
        self.durable.advance(max(end, self.durable.value))
        segments = self.segments
        self._segment_end = segments.end if not segments.empty else end

    @property
    def start(self) -> int:
        """Offset of the first byte that is still there."""
        return self.segments.start

    # -- appending -------------------------------------------------------------------------------------------

    def fits(self, size: int) -> bool:
        """Whether a record of `size` bytes, and the blank that ends every segment, fit where the log ends."""
        return self.end + size + BLANK_HEADER_SIZE <= self._segment_end

    def roll(self) -> None:
        """Go to the next segment. All that is staged must be written before.

        Raises OSError when the file cannot be made; the log then stays where it is.
        """
        assert not self.staging, "staged records belong to the segment before"
        segment = self._segment_end
        if self.segments.empty:
            segment = self.segments.segment_of(self.end)
        elif self._segment_end - self.end >= BLANK_HEADER_SIZE:
            self.segments.write(blank(self._segment_end - self.end), self.end)
        # A spare has its size durably. Without one this takes a moment, once per segment.
        self.segments.create(segment, durable=self._spare != segment)
        self._spare = None
        self._segment_end = segment + self.segments.segment_bytes
        # A blank is shorter than the room that it stands for: the written position jumps over it.
        self.end = self.written = max(segment, self.end)

    def write_staged(self) -> None:
        """Write all staged records with one call. After an OSError :meth:`forget_staged` is due."""
        if self.staging:
            self.segments.write(self.staging, self.written)
            self.written = self.end
            self.staging.clear()

    def forget_staged(self) -> None:
        """Drop the staged records after a failed write, and what of them is in the file.

        Their bytes are overwritten with zeros as far as that works: a record whose sender was told that it failed
        should not come back after a crash.
        """
        size = len(self.staging)
        self.staging.clear()
        self.end = self.written
        with suppress(OSError):
            self.segments.write(bytes(size), self.written)

    # -- copying another log ---------------------------------------------------------------------------------

    def copy(self, data: Buffer, offset: int) -> None:
        """Write bytes of another log where this one ends; a log without a byte may begin anywhere.

        They may not lead out of one segment. After an OSError the log is as it was before.
        """
        assert not self.staging
        begins = offset != self.end
        assert not begins or self.end == 0
        if begins:
            self._begin(offset)
        elif offset == self._segment_end:
            self.roll()
        try:
            self.segments.write(data, offset)
        except OSError:
            with suppress(OSError):
                self.segments.write(bytes(len(data)), offset)
            if begins:
                self.segments.drop_all()
                self._segment_end = 0
            raise
        if begins:
            self.open_at(offset)
        self.end = self.written = offset + len(data)

    def _begin(self, offset: int) -> None:
        """Have the file, and no other one, that the first byte of an empty log goes to."""
        segment = self.segments.segment_of(offset)
        if self.segments.has(segment):
            return
        if not self.segments.empty:  # the first one, without a byte
            self.drop_spare()
            self.segments.drop_all()
        self._segment_end = 0
        self.segments.create(segment, durable=True)

    def cut_back(self, end: int) -> None:
        """Let the log end earlier, or where it ended before. The files are the caller's: see :meth:`recut`."""
        assert not self.staging
        self.cuts += 1
        self.end = self.written = end
        self.durable.fall_back(end)

    def recut(self, starts: Collection[int]) -> None:
        """Forget the segments that are not among `starts`: their files have gone."""
        for segment in self.segments.starts:
            if segment not in starts and segment > self.end:
                self.segments.detach(segment)
        self._segment_end = self.segments.end
        self._spare = None

    # -- trying ----------------------------------------------------------------------------------------------

    def probe(self) -> None:
        """Try whether the log can be written where it ends; raises OSError if not. Changes nothing that counts."""
        assert not self.staging
        room = min(PROBE_BYTES, self._segment_end - self.written)
        if room > 0 and self.segments.has(self.written):
            self.segments.write(bytes(room), self.written)

    # -- the next segment ------------------------------------------------------------------------------------

    def spare_needed(self) -> bool:
        """Whether the active segment is half full and the next one is not there yet."""
        half = self._segment_end - self.segments.segment_bytes // 2
        return self._spare != self._segment_end and not self.segments.empty and self.end > half

    def needs_segment(self) -> bool:
        """Whether a record may soon need a segment that is not there."""
        return self._spare != self._segment_end and (self.segments.empty or self.spare_needed())

    async def make_spare(self) -> None:
        """Create the next segment's file, durably, in a worker thread. Raises OSError when there is no room."""
        segment = self._segment_end
        path = self.segments.path(segment)

        def make() -> None:
            self.disk.make_dirs(self.segments.directory)
            make_segment_file(self.disk, path, self.segments.segment_bytes, durable=True)
            self.disk.sync_dir(self.segments.directory)

        await self.disk.run(make)
        if segment == self._segment_end:  # else the log has rolled into it meanwhile
            self._spare = segment

    def drop_spare(self) -> None:
        """Remove the file prepared for the next segment, as a clean stop does."""
        segment = self._segment_end
        self._spare = None
        if not self.segments.has(segment):
            self.disk.remove(self.segments.path(segment))

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, size: int, offset: int) -> bytes:
        """`size` bytes at `offset`, fewer at the end of a segment or of what is written.

        Empty when they have expired. Raises :class:`trio_mq.store.segments.ColdData` when the disk would have
        to be waited for.
        """
        size = self._within(size, offset)
        return self.segments.read_cached(size, offset) if size > 0 else b""

    def _within(self, size: int, offset: int) -> int:
        if offset < 0 or not self.segments.has(offset):
            return 0
        segment_end = self.segments.segment_of(offset) + self.segments.segment_bytes
        return min(size, segment_end - offset, self.written - offset)


def reaches(disk: Disk, directory: str) -> int:
    """Log offset up to which the files of a log hold data, as far as the file system tells; blocking, and quick.

    Files are sparse: what was never written is a hole. Where they are not, it is the end of the last file.
    """
    names = [name for name in disk.list_dir(directory) if name.isdigit()]
    if not names:
        return 0
    file = disk.open(f"{directory}/{names[-1]}", readonly=True)
    try:
        size = file.size()
        low, high = 0, size
        while low < high:
            middle = (low + high) // 2
            if file.next_data(middle) >= size:
                high = middle
            else:
                low = middle + 1
        return int(names[-1]) + low
    finally:
        file.close()
