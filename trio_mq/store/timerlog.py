"""The timer log: which messages wait for which slot of the timer wheel, as chains of units in a row of files.

In: where a message lies in the commit log, and when it is due. Out: the units of a slot, newest first: each one
names the unit before it in its slot, and the wheel (:mod:`trio_mq.store.timerwheel`) names the newest. Units are
never changed. Called by :mod:`trio_mq.broker.timerstate`. Appends and reads run on the loop, reads raise
:class:`~trio_mq.store.segments.ColdData` rather than wait; syncs and scans are for worker threads.
Format: ``docs/reference/store-format.md``; source: Apache TimerLog, TimerMessageStore.recoverAndRevise.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from struct import Struct
from typing import Final, NamedTuple

from trio_mq.protocol.layout import MAGIC_BLANK
from trio_mq.store.disk import Disk
from trio_mq.store.segments import FilePool, Segments

#: Bits of a unit's magic. A unit to roll fires before its message is due, and puts it into the wheel once more.
PLAIN: Final = 1
ROLL: Final = 1 << 1
DELETE: Final = 1 << 2
_MAGIC_MASK: Final = 0xF
NO_UNIT: Final = -1

UNIT: Final = Struct(">iqiqiqiiq")
UNIT_SIZE: Final = UNIT.size
_BLANK: Final = Struct(">iqi")
#: Bytes that a chain is read by: neighbours of one slot often lie side by side.
_CHUNK_BYTES: Final = 80 * UNIT_SIZE
#: Bytes that a scan reads at once.
_SCAN_BYTES: Final = 4096 * UNIT_SIZE
_OPEN_FILES: Final = 4


class TimerUnit(NamedTuple):
    """One unit. `prev` is the position of the unit before it in its slot; times are ms, the delay counts from
    `write_ms`; `log_offset` and `record_size` say where the message is."""

    size: int
    prev: int
    magic: int
    write_ms: int
    delay_ms: int
    log_offset: int
    record_size: int
    topic_hash: int
    reserved: int

    @property
    def time_ms(self) -> int:
        """The slot that it belongs to."""
        return self.write_ms + self.delay_ms

    @property
    def sound(self) -> bool:
        """Whether it can be one: units have no checksum."""
        return (
            self.size == UNIT_SIZE
            and 0 < self.magic <= _MAGIC_MASK
            and self.prev >= NO_UNIT
            and self.log_offset >= 0
            and self.record_size > 0
        )


class TimerLog:
    """The files of a store's timer log. `end` is the position of the next unit."""

    def __init__(self, disk: Disk, directory: str, file_bytes: int) -> None:
        self.disk = disk
        self.segments = Segments(disk, FilePool(disk, _OPEN_FILES), directory, file_bytes)
        self.end = 0
        #: Everything before is in the files; the units behind are in :attr:`_pending`.
        self.written = 0
        #: Everything before is durable.
        self.synced = 0
        self._pending = bytearray()
        self._cached_at, self._cached = 0, b""

    # -- appending -------------------------------------------------------------------------------------------

    def make_room(self) -> None:
        """See to it that one more unit fits into the last file. OSError, and nothing changed, when there is no room.

        A file ends with a blank, which takes 16 bytes at least (Apache: TimerLog.append).
        """
        segments = self.segments
        if not segments.has(self.end):
            self.write()
            segments.create(self.end)
        left = segments.segment_of(self.end) + segments.segment_bytes - self.end
        if left >= UNIT_SIZE + _BLANK.size:
            return
        self.write()
        following = self.end + left
        if not segments.has(following):
            segments.create(following)
        segments.write(_BLANK.pack(left, 0, MAGIC_BLANK), self.end)
        self.end = self.written = following

    def append(
        self,
        prev: int,
        magic: int,
        write_ms: int,
        delay_ms: int,
        log_offset: int,
        record_size: int,
        topic_hash: int,
    ) -> int:
        """Add a unit in memory, after :meth:`make_room`; returns its position. :meth:`write` has to follow."""
        at = self.end
        self._pending += UNIT.pack(
            *(UNIT_SIZE, prev, magic, write_ms, delay_ms, log_offset, record_size, topic_hash, 0)
        )
        self.end = at + UNIT_SIZE
        return at

    def write(self) -> None:
        """Write what is in memory; on an OSError it stays there, and may be tried again."""
        if self._pending:
            self.segments.write(self._pending, self.written)
            self.written = self.end
            self._pending.clear()
            self._cached = b""

    def unit_at(self, at: int) -> int:
        """The position of the unit that a byte belongs to."""
        return at - (at - self.segments.segment_of(at)) % UNIT_SIZE

    def behind(self, at: int) -> int:
        """Where the unit behind the one at a position is, or would be: in the next file, if that is there."""
        at += UNIT_SIZE
        segments = self.segments
        left = segments.segment_of(at) + segments.segment_bytes - at
        is_last = left < UNIT_SIZE + _BLANK.size
        return at + left if is_last and segments.has(at + left) else at

    def sync_call(self) -> Callable[[], None]:
        """A blocking call that makes everything durable that is written by now."""
        begin, end = self.synced, self.written
        call = self.segments.sync_call(begin, end)

        def sync() -> None:
            call()
            self.synced = max(self.synced, end)

        return sync

    # -- reading ---------------------------------------------------------------------------------------------

    def unit(self, at: int) -> TimerUnit | None:
        """The unit at a position; None when there is none, or it is not one."""
        if at >= self.written:
            begin = at - self.written
            data = bytes(self._pending[begin : begin + UNIT_SIZE])
        else:
            data = self._read(at)
        if len(data) < UNIT_SIZE:
            return None
        unit = TimerUnit._make(UNIT.unpack(data))
        return unit if unit.sound else None

    def _read(self, at: int) -> bytes:
        segments = self.segments
        if at < 0 or not segments.has(at):
            return b""
        begin = at - self._cached_at
        if not 0 <= begin <= len(self._cached) - UNIT_SIZE:
            first = max(segments.segment_of(at), at + UNIT_SIZE - _CHUNK_BYTES)
            self._cached = segments.read_cached(at + UNIT_SIZE - first, first)
            self._cached_at = first
            begin = at - first
        return self._cached[begin : begin + UNIT_SIZE]

    # -- starting and cleaning -------------------------------------------------------------------------------

    def load(self, mend: bool) -> list[str]:
        """Find the files; see :meth:`trio_mq.store.segments.Segments.load`. :meth:`open_at` has to follow."""
        return self.segments.load(mend=mend)

    def scan(self, begin: int) -> Iterator[tuple[int, TimerUnit]]:
        """Units from a position on with their positions, up to the first that is none. Blocking; opens files anew."""
        with self.segments.read_apart() as files:
            for segment in files.starts:
                end = segment + files.segment_bytes
                if end <= begin:
                    continue
                at = max(begin, segment)
                at += -(at - segment) % UNIT_SIZE
                stopped = yield from self._scan_file(files, at, end)
                if stopped or not files.has(end):
                    return

    @staticmethod
    def _scan_file(
        files: Segments, at: int, end: int
    ) -> Generator[tuple[int, TimerUnit], None, bool]:
        """The units of one file; returns whether that is the end of the log."""
        while at + UNIT_SIZE <= end:
            size = min(_SCAN_BYTES, (end - at) // UNIT_SIZE * UNIT_SIZE)
            for fields in UNIT.iter_unpack(files.read(size, at)):
                unit = TimerUnit._make(fields)
                if unit.magic == MAGIC_BLANK:
                    return False
                if not unit.sound:
                    return True
                yield at, unit
                at += UNIT_SIZE
        return False

    def open_at(self, end: int) -> None:
        """Let `end` be the end; whatever is behind becomes zeros. Blocking."""
        segments = self.segments
        if not segments.empty and end < segments.start:
            end = segments.start
        self.end = self.written = self.synced = end
        segments.cut(end)
        self._cached = b""

    def expired(self, log_start: int) -> list[int]:
        """Starts of the files whose messages have all left the commit log. Blocking; opens files anew.

        Judged by the last unit of a full file (Apache: deleteExpiredFileByOffsetForTimerLog).
        """
        found: list[int] = []
        with self.segments.read_apart() as files:
            count = (files.segment_bytes - _BLANK.size) // UNIT_SIZE
            for segment in files.starts[:-1]:
                if segment + files.segment_bytes > self.synced:
                    break
                data = files.read(UNIT_SIZE, segment + (count - 1) * UNIT_SIZE)
                unit = TimerUnit._make(UNIT.unpack(data)) if len(data) == UNIT_SIZE else None
                if unit is None or not unit.sound or unit.log_offset >= log_start:
                    break
                found.append(segment)
        return found

    def close(self) -> None:
        """Close the files."""
        self.segments.close()
