"""What the disk in memory remembers of a file: bytes as seen now, as last synced, and as a crash leaves them.

In: writes and syncs, from :class:`trio_mq.testing.disk.MemoryDisk`. Out: the present content, and after
:meth:`FileContent.crash` one of those that a power cut permits. Copies share their bytes until one of them changes,
so that a disk can be copied before each of its operations. Names are in :mod:`trio_mq.testing.disk_names`.
"""

from __future__ import annotations

import random
from typing import Literal

import attrs

SECTOR_BYTES = 512
"""Smallest piece that a disk writes as a whole."""

PAGE_BYTES = 4096
"""Smallest piece of a mapped file that is written back as a whole, unless the power goes meanwhile."""

NOTED_BYTES = 1 << 20
"""Mapped files that are larger are not looked at before each operation, only when they are synced or crash."""

Keep = Literal["some", "none", "all"]


@attrs.define(eq=False)
class Bytes:
    """Content of a file: `size` bytes, of which all behind `data` are zeros that take no room."""

    data: bytearray | bytes = attrs.field(factory=bytearray)
    size: int = 0

    @property
    def allocated(self) -> int:
        """Bytes that take room."""
        return len(self.data)

    def own(self) -> bytearray:
        """The bytes, to be changed."""
        if not isinstance(self.data, bytearray):
            self.data = bytearray(self.data)
        return self.data

    def share(self) -> Bytes:
        """A copy; both have the same bytes until one of them is changed."""
        if not isinstance(self.data, bytes):
            self.data = bytes(self.data)
        return Bytes(self.data, self.size)

    def read(self, size: int, offset: int) -> bytes:
        """As `pread`: fewer bytes only at the end of the file."""
        size = max(0, min(size, self.size - offset))
        got = bytes(self.data[offset : offset + size])
        return got + bytes(size - len(got))

    def next_data(self, offset: int) -> int:
        """As `lseek` for data, as if the file system knew about single zeros."""
        behind = self.data[offset:]
        data_bytes = len(behind.lstrip(b"\0"))
        return offset + len(behind) - data_bytes if data_bytes else max(offset, self.size)

    def write(self, piece: bytes, offset: int) -> None:
        """As `pwrite`: nothing to write leaves the length alone."""
        if not piece:
            return
        data, end = self.own(), offset + len(piece)
        if len(data) < end:
            data.extend(bytes(end - len(data)))
        data[offset:end] = piece
        self.size = max(self.size, end)

    def truncate(self, size: int) -> None:
        """As `ftruncate`."""
        if size < len(self.data):
            del self.own()[size:]
        self.size = size


@attrs.frozen
class Write:
    """A write that is not synced yet."""

    offset: int
    piece: bytes

    def apply(self, content: Bytes) -> None:
        """Make it in `content`."""
        content.write(self.piece, self.offset)

    def begun(self, share: float, unit_bytes: int) -> Write:
        """The first part of it: a share of all, rounded so that it ends where a unit of the file does, or it does."""
        end = self.offset + round(share * (len(self.piece) + unit_bytes))
        count = max(0, end - end % unit_bytes - self.offset)
        return Write(self.offset, self.piece[:count])

    def tear(self, content: Bytes, rng: random.Random) -> None:
        """Make some sectors of it in `content`, or only its length, or nothing."""
        end = self.offset + len(self.piece)
        outcome = rng.choice(("lost", "longer", "torn", "kept"))
        if outcome == "kept":
            self.apply(content)
        elif outcome == "longer":
            content.size = max(content.size, end)
        elif outcome == "torn":
            start = self.offset
            while start < end:
                stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
                if rng.random() < 0.5:
                    content.write(self.piece[start - self.offset : stop - self.offset], start)
                start = stop


@attrs.frozen
class Truncate:
    """A new length that is not synced yet."""

    size: int

    def apply(self, content: Bytes) -> None:
        """Make it in `content`."""
        content.truncate(self.size)

    def tear(self, content: Bytes, rng: random.Random) -> None:
        """Make it in `content`, or not."""
        if rng.random() < 0.5:
            self.apply(content)


@attrs.define(eq=False)
class FileContent:
    """Bytes of one file as seen now, as last synced, and the changes between the two.

    `_doubtful` has changes that a failed sync was about, and those behind them that a later sync covered (True).
    """

    live: Bytes = attrs.field(factory=Bytes)
    _durable: Bytes = attrs.field(factory=Bytes)
    _pending: list[Write | Truncate] = attrs.field(factory=list)
    _doubtful: list[tuple[Write | Truncate, bool]] = attrs.field(factory=list)
    _mapped: int = 0
    _noted: bytes = b""
    _arriving: Write | None = None

    # -- changes

    def write(self, piece: bytes, offset: int) -> None:
        """Change the present state."""
        self._change(Write(offset, piece))

    def truncate(self, size: int) -> None:
        """Change the present state."""
        self._change(Truncate(size))

    def _change(self, change: Write | Truncate) -> None:
        self.note_mapped()
        change.apply(self.live)
        self._pending.append(change)
        self._noted = bytes(self.live.data[: self._mapped])

    def begin(self, piece: bytes, offset: int) -> None:
        """A write is on its way: when the power goes now, a part of it counts."""
        self._arriving = Write(offset, piece)

    def end(self) -> None:
        """The write on its way has come to an end, or has failed."""
        self._arriving = None

    # -- mapped memory

    def map(self, size: int) -> memoryview:
        """The first `size` bytes of the present state, to be written without a call."""
        self.note_mapped()
        data = self.live.own()
        if len(data) < size:
            data.extend(bytes(size - len(data)))
        self._mapped = max(self._mapped, size)
        self._noted = bytes(data[: self._mapped])
        return memoryview(data)[:size]

    @property
    def is_noted(self) -> bool:
        """Whether the memory is small enough to be looked at before each operation."""
        return 0 < self._mapped <= NOTED_BYTES

    def note_mapped(self) -> None:
        """Take what was changed in mapped memory since the last look for writes of whole pages.

        So a crash may leave any state that a page had before an operation of the disk.
        """
        if not self._mapped or self.live.data[: self._mapped] == self._noted:
            return
        now = bytes(self.live.data[: self._mapped])
        for at in range(0, self._mapped, PAGE_BYTES):
            page = now[at : at + PAGE_BYTES]
            if page != self._noted[at : at + PAGE_BYTES]:
                self._pending.append(Write(at, page))
        self._noted = now

    # -- durability

    def sync(self) -> None:
        """All changes since the last sync will survive."""
        self.note_mapped()
        if self._doubtful:
            self._doubtful += [(change, True) for change in self._pending]
        else:
            for change in self._pending:
                change.apply(self._durable)
        self._pending.clear()

    def doubt(self) -> None:
        """A sync failed: what it was about may survive, but no later sync promises it."""
        self.note_mapped()
        self._doubtful += [(change, False) for change in self._pending]
        self._pending.clear()

    def kill(self) -> None:
        """The process that changed the file has ended: its mapped memory is gone, its changes are not."""
        self.note_mapped()
        self._mapped, self._noted = 0, b""
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            begun = arriving.begun(0.5, PAGE_BYTES)
            self.write(begun.piece, begun.offset)

    def crash(self, rng: random.Random, keep: Keep) -> None:
        """Forget some of what was not synced; what is left counts as synced."""
        self.note_mapped()
        if self._arriving is not None and keep != "none":
            self._pending.append(self._arriving.begun(rng.random(), SECTOR_BYTES))
        changes = [*self._doubtful, *((change, False) for change in self._pending)]
        for change, is_synced in changes:
            if is_synced or keep == "all":
                change.apply(self._durable)
            elif keep == "some":
                change.tear(self._durable, rng)
        self._doubtful.clear()
        self._pending.clear()
        self._mapped, self._noted, self._arriving = 0, b"", None
        self.live = self._durable.share()

    def copy(self) -> FileContent:
        """The same content, to be changed by itself. Nothing is mapped there."""
        self.note_mapped()
        live = self.live
        return FileContent(
            Bytes(bytes(live.data), live.size) if self._mapped else live.share(),
            self._durable.share(),
            list(self._pending),
            list(self._doubtful),
            arriving=self._arriving,
        )


@attrs.define(eq=False)
class Node:
    """A file, whatever its name is."""

    modified_ms: int
    content: FileContent = attrs.field(factory=FileContent)
