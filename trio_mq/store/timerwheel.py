"""The timer wheel: for each span of time the chain of units in the timer log that are due then.

In: times and positions in the timer log. Out: slots; and which time comes next. The file has a slot for each second
(or other precision) of 14 days and is sparse; of it only a byte for each slot is in memory, and the slots that have
changed since the last save. Called by :mod:`trio_mq.broker.timerstate`. Looking up a slot runs on the loop and raises
:class:`~trio_mq.store.segments.ColdData` rather than wait; loading and saving are for worker threads.
Format: ``docs/reference/store-format.md``; source: Apache TimerWheel, Slot.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple

from trio_mq.errors import ForeignFormat
from trio_mq.store.disk import Disk, File
from trio_mq.store.segments import ColdData, read_file

SLOT: Final = Struct(">qqqii")
SLOT_SIZE: Final = SLOT.size
#: Slots that messages are put into ahead of time, at most; the file has twice as many.
WINDOW_SLOTS: Final = 7 * 24 * 3600
_LOT_BYTES: Final = 2048 * SLOT_SIZE


class Slot(NamedTuple):
    """`time_ms` is the begin of its span; positions of its first and last unit; how many messages wait in it."""

    time_ms: int
    first: int
    last: int
    waiting: int


class TimerWheel:
    """The wheel of one store."""

    def __init__(
        self, disk: Disk, path: str, precision_ms: int, window_slots: int = WINDOW_SLOTS
    ) -> None:
        self._disk = disk
        self.path = path
        self.precision_ms = precision_ms
        self.window_slots = window_slots
        self._slots = 2 * window_slots
        self._bytes = self._slots * SLOT_SIZE
        self._file: File | None = None
        #: One byte for each slot: whether something waits in it.
        self._used = bytearray(self._slots)
        #: Slots by number that differ from the file; those of a save that is on its way are there, too.
        self._changed: dict[int, Slot | None] = {}
        self._saving: Mapping[int, Slot | None] = {}

    @property
    def span_ms(self) -> int:
        """Time that the wheel covers: a slot is used again after it."""
        return self._slots * self.precision_ms

    @property
    def dirty(self) -> bool:
        """Whether there is something to save."""
        return bool(self._changed)

    def floor(self, time_ms: int) -> int:
        """The begin of the span that a time lies in."""
        return time_ms - time_ms % self.precision_ms

    def _number(self, time_ms: int) -> int:
        return time_ms // self.precision_ms % self._slots

    # -- slots -----------------------------------------------------------------------------------------------

    def get(self, time_ms: int) -> Slot | None:
        """The slot of a time if something waits in it."""
        slot = self._at(self._number(time_ms))
        return slot if slot is not None and slot.time_ms == self.floor(time_ms) else None

    def occupant(self, time_ms: int) -> Slot | None:
        """What waits in the slot where a time belongs, be it for that time or for another, whole turns away."""
        return self._at(self._number(time_ms))

    def find(self, time_ms: int) -> Slot | None:
        """As :meth:`occupant`, waiting for the disk if need be; for worker threads."""
        return self._at(self._number(time_ms), wait=True)

    def _at(self, number: int, *, wait: bool = False) -> Slot | None:
        if not self._used[number]:
            return None
        if number in self._changed:
            return self._changed[number]
        if number in self._saving:
            return self._saving[number]
        if self._file is None:
            self._file = self._disk.open(self.path)
        at = number * SLOT_SIZE
        data = self._file.read(SLOT_SIZE, at) if wait else self._file.read_cached(SLOT_SIZE, at)
        if data is None:
            raise ColdData(lambda: read_file(self._disk, self.path, SLOT_SIZE, at))
        return self._slot(SLOT.unpack(data))

    def _slot(self, fields: tuple[int, ...]) -> Slot:
        return Slot(fields[0] * self.precision_ms, fields[1], fields[2], fields[3])

    def put(self, slot: Slot) -> None:
        """Change a slot."""
        number = self._number(slot.time_ms)
        self._changed[number] = slot
        self._used[number] = 1

    def clear(self, slot: Slot) -> None:
        """Empty a slot: everything in it was delivered."""
        number = self._number(slot.time_ms)
        self._changed[number] = None
        self._used[number] = 0

    def next(self, from_ms: int) -> Slot | None:
        """The first slot from a time on in which something waits."""
        begin_ms = self.floor(from_ms)
        behind: Slot | None = None
        for number in self._used_from(self._number(from_ms)):
            slot = self._at(number)
            assert slot is not None, "something waits in a used slot"
            if begin_ms <= slot.time_ms < begin_ms + self.span_ms:
                return slot  # within one turn, the order of numbers is that of times
            if slot.time_ms >= begin_ms and (behind is None or slot.time_ms < behind.time_ms):
                behind = slot  # the clock was set back by more than a turn
        return behind

    def _used_from(self, begin: int) -> Iterator[int]:
        find = self._used.find
        number = find(1, begin)
        while number >= 0:
            yield number
            number = find(1, number + 1)
        number = find(1, 0, begin)
        while number >= 0:
            yield number
            number = find(1, number + 1, begin)

    # -- starting and saving ---------------------------------------------------------------------------------

    def load(self) -> bool:
        """Look for the file; whether there is none. Blocking. :meth:`stored` tells what is in it.

        Raises :class:`ForeignFormat` for a file of another size. A new one is made by the first save.
        """
        size = self._disk.size(self.path) if self._disk.exists(self.path) else 0
        if size not in (0, self._bytes):
            raise ForeignFormat(
                f"{self.path} has {size} bytes, a timer wheel has {self._bytes}. To have it made again from the timer "
                f"log: mv '{self.path}' '{self.path}.lost'"
            )
        if size:
            self._file = self._disk.open(self.path)
        return not size

    def stored(self) -> Iterator[Slot]:
        """Slots in the file that say something, in the order of the file. Blocking."""
        if self._file is None:
            return
        at, end = 0, self._bytes
        while at < end:
            found = self._file.next_data(at)
            at = found - found % SLOT_SIZE
            if at >= end:
                return
            data = self._file.read(min(_LOT_BYTES, end - at), at)
            at += len(data)
            if data.count(0) == len(data):
                continue
            for fields in SLOT.iter_unpack(data):
                if fields[0] > 0:
                    yield self._slot(fields)

    def use(self, slot: Slot) -> None:
        """Something waits in a slot that was found in the file."""
        self._used[self._number(slot.time_ms)] = 1

    def save_call(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """A blocking call that saves what has changed by now, and one for the loop if the first one failed."""
        assert not self._saving, "one save at a time"
        changed, self._changed = self._changed, {}
        self._saving = changed

        def save() -> None:
            if changed:
                self._write(changed)

        def failed() -> None:
            self._changed = {**changed, **self._changed}
            self._saving = {}

        return save, failed

    def _write(self, changed: Mapping[int, Slot | None]) -> None:
        """Write slots and sync them."""
        file = self._disk.open(self.path, create=True)
        try:
            is_new = file.size() < self._bytes
            if is_new:
                file.truncate(self._bytes)
            for begin, data in self._runs(changed):
                file.write(data, begin * SLOT_SIZE)
            file.sync()
        finally:
            file.close()
        if is_new:
            self._disk.sync_dir(posixpath.dirname(self.path))

    def _runs(self, changed: Mapping[int, Slot | None]) -> Iterator[tuple[int, bytes]]:
        """The bytes of slots, neighbours together, with the number of the first."""
        begin, run = 0, bytearray()
        for number in sorted(changed):
            if run and number * SLOT_SIZE != begin * SLOT_SIZE + len(run):
                yield begin, bytes(run)
                run.clear()
            if not run:
                begin = number
            slot = changed[number]
            run += (
                bytes(SLOT_SIZE)
                if slot is None
                else SLOT.pack(
                    slot.time_ms // self.precision_ms, slot.first, slot.last, slot.waiting, 0
                )
            )
        if run:
            yield begin, bytes(run)

    def saved(self) -> None:
        """The last save was good."""
        self._saving = {}

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
