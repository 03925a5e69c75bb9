"""One changed file of an overlay: what was changed is kept beside the file, everything else is read from it.

In: reads and writes from :class:`trio_mq.store.overlay.OverlayFile`, with the file of the base as it was opened for
reading. Out: bytes as they would be, and how many of them differ. Three layers, the upper ones first: memory that was
mapped, pages that were written, the base.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Protocol

from trio_mq.store.disk import Buffer, File, RealFile
from trio_mq.store.scratch import PAGE_BYTES, Held, Mapped, PrivateMap, Scratch, got_shorter

#: Bytes that are copied or compared in one go.
PIECE_BYTES: Final = 1024 * 1024
#: What a page is: as in the base (or zeros behind it), zeros, or kept by the scratch.
_BASE, _ZERO, _HELD = 0, 1, 2
_NOT = (re.compile(rb"[^\x00]"), re.compile(rb"[^\x01]"), re.compile(rb"[^\x02]"))
#: A position behind every file.
NO_DATA: Final = 1 << 62


class BaseFile:
    """A file of the base, open for reading, or (`file` None) one that does not exist: no bytes."""

    def __init__(self, file: File | None, path: str) -> None:
        self.file = file
        self.path = path
        self._seen = 0 if file is None else file.size()

    def size(self) -> int:
        """Length of the file now."""
        return 0 if self.file is None else self.file.size()

    def read(self, size: int, offset: int) -> bytes:
        """Bytes of the file, as :meth:`trio_mq.store.disk.File.read`; an OSError when they were there before."""
        data = b"" if self.file is None else self.file.read(size, offset)
        if len(data) < size and offset + len(data) < self._seen:
            raise got_shorter(self.path)
        return data

    def fetch(self, size: int, offset: int, *, cached: bool = False) -> bytes | None:
        """All of a range that was there; None when the disk would have to be waited for and `cached` is set."""
        if not cached or self.file is None:
            data: bytes | None = self.read(size, offset)
        else:
            data = self.file.read_cached(size, offset)
        if data is not None and len(data) < size:
            raise got_shorter(self.path)
        return data

    def next_data(self, offset: int) -> int:
        """See :class:`Readable`."""
        if self.file is None:
            return NO_DATA
        found, size = self.file.next_data(offset), self.file.size()
        if size < self._seen:
            raise got_shorter(self.path)
        return found if found < size else NO_DATA

    def map_private(self, size: int) -> PrivateMap | None:
        """The first bytes as memory of our own, unread; None where the base has no such thing."""
        if not isinstance(self.file, RealFile):
            return None
        if self.file.size() < size:
            raise got_shorter(self.path)
        return PrivateMap(self.file.map_private(size), self.path)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self.file is not None:
            self.file.close()


class Readable(Protocol):
    """Something with bytes."""

    def read(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end."""
        ...

    def next_data(self, offset: int) -> int:
        """The first position from `offset` on that may hold anything but zeros; :data:`NO_DATA` where none does."""
        ...


class Overlaid:
    """Bytes of one changed file. `size` is its length; bytes behind `base_limit` do not come from the base."""

    def __init__(self, scratch: Scratch, size: int) -> None:
        self.size = size
        self.base_limit = size
        #: Length of the base's file when the first change was made.
        self.base_size = size
        self._scratch = scratch
        self._mapped: Mapped | None = None
        self._mapped_to = 0
        self._pages = bytearray()
        self._held: dict[int, Held] = {}

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, size: int, offset: int, base: BaseFile) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end."""
        data = self._read(size, offset, base, cached=False)
        assert data is not None
        return data

    def read_cached(self, size: int, offset: int, base: BaseFile) -> bytes | None:
        """As :meth:`read`; None where the base would have to be waited for."""
        return self._read(size, offset, base, cached=True)

    def _read(self, size: int, offset: int, base: BaseFile, *, cached: bool) -> bytes | None:
        at, end = offset, min(offset + size, self.size)
        pieces: list[bytes] = []
        while at < end:
            piece = self._piece(at, end, base, cached=cached)
            if piece is None:
                return None
            pieces.append(piece)
            at += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _piece(self, at: int, end: int, base: BaseFile, *, cached: bool) -> bytes | None:
        """The longest run of bytes from `at` on that comes from one place."""
        if at < self._mapped_to and self._mapped is not None:
            return self._mapped.read(min(end, self._mapped_to) - at, at)
        page = at // PAGE_BYTES
        kind = self._kind(page)
        if kind == _HELD:
            return self._held_piece(page, at, end)
        end = min(end, self._run_end(page) * PAGE_BYTES)
        if kind == _ZERO or at >= self.base_limit:
            return bytes(end - at)
        return base.fetch(min(end, self.base_limit) - at, at, cached=cached)

    def _held_piece(self, page: int, at: int, end: int) -> bytes:
        held, inside = self._held[page], at % PAGE_BYTES
        if not isinstance(held, int):
            return bytes(held[inside : inside + end - at])
        behind = page + 1
        while (
            behind * PAGE_BYTES < end
            and self._held.get(behind) == held + (behind - page) * PAGE_BYTES
        ):
            behind += 1
        return self._scratch.read(min(end, behind * PAGE_BYTES) - at, held + inside)

    def _kind(self, page: int) -> int:
        return self._pages[page] if page < len(self._pages) else _BASE

    def _run_end(self, page: int) -> int:
        """The first page behind `page` that is of another kind."""
        kind = self._kind(page)
        found = _NOT[kind].search(self._pages, page)
        if found is not None:
            return found.start()
        return NO_DATA if kind == _BASE else len(self._pages)

    def next_data(self, offset: int, base: BaseFile) -> int:
        """The first position from `offset` on that may hold anything but zeros; the length where none does."""
        if offset >= self.size:
            return offset
        if offset < self._mapped_to and self._mapped is not None:
            offset = self._mapped.next_data(offset)
            if offset < self._mapped_to:
                return offset
            offset = self._mapped_to
        held = self._pages.find(_HELD, offset // PAGE_BYTES)
        found = max(offset, held * PAGE_BYTES) if held >= 0 else self.size
        return min(found, self.size, self._next_of_base(offset, base))

    def _next_of_base(self, offset: int, base: BaseFile) -> int:
        """As :meth:`next_data`, for what shows through from the base."""
        while offset < self.base_limit:
            offset = base.next_data(offset)
            page = offset // PAGE_BYTES
            if self._kind(page) != _ZERO:
                break
            offset = self._run_end(page) * PAGE_BYTES
        return offset if offset < self.base_limit else self.size

    # -- changing --------------------------------------------------------------------------------------------

    def write(self, data: Buffer, offset: int, base: BaseFile) -> None:
        """Write all of `data`."""
        view = memoryview(data).cast("B")
        if not len(view):
            return
        at, end = offset, offset + len(view)
        if at < self._mapped_to and self._mapped is not None:
            at = min(end, self._mapped_to)
            self._mapped.write(view[: at - offset], offset)
        # Pages that are changed in part are taken over first. Behind the end of the file there is nothing to take.
        partly = [at] if at < end else []
        if at < end and (end < self.size or end - end % PAGE_BYTES < at):
            partly.append(end)
        for place in partly:
            page = place // PAGE_BYTES
            if place % PAGE_BYTES and self._kind(page) != _HELD:
                self._put(page, self.read(PAGE_BYTES, page * PAGE_BYTES, base), hold=True)
        while at < end:
            page = at // PAGE_BYTES
            if self._kind(page) == _HELD:
                stop = min(end, (page + 1) * PAGE_BYTES)
                self._scratch.change(
                    self._held[page], at % PAGE_BYTES, view[at - offset : stop - offset]
                )
            else:
                held = self._pages.find(_HELD, page)
                stop = min(end, held * PAGE_BYTES) if held >= 0 else end
                self._put(page, bytes(view[at - offset : stop - offset]))
            at = stop
        self.size = max(self.size, end)

    def _put(self, page: int, data: bytes, *, hold: bool = False) -> None:
        """Let pages that are not held be `data`, which is filled up with zeros; only zeros take no room."""
        count = -(-len(data) // PAGE_BYTES) or 1
        data = data.ljust(count * PAGE_BYTES, b"\0")
        if len(self._pages) < page + count:
            self._pages.extend(bytes(page + count - len(self._pages)))
        if not hold and data == bytes(len(data)):
            self._pages[page : page + count] = bytes([_ZERO]) * count
            return
        for number, held in enumerate(self._scratch.keep(data), page):
            self._held[number] = held
        self._pages[page : page + count] = bytes([_HELD]) * count

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it with zeros. What was mapped counts up to the cut."""
        if size < self.size:
            self.base_limit = min(self.base_limit, size)
            self._mapped_to = min(self._mapped_to, size)
            self._drop_held(-(-size // PAGE_BYTES), len(self._pages))
            del self._pages[-(-size // PAGE_BYTES) :]
            held = self._held.get(size // PAGE_BYTES)
            if held is not None:
                inside = size % PAGE_BYTES
                self._scratch.change(held, inside, bytes(PAGE_BYTES - inside))
        self.size = size

    def _drop_held(self, begin: int, end: int) -> None:
        """Forget held pages."""
        page = self._pages.find(_HELD, begin, end)
        while page >= 0:
            del self._held[page]
            page = self._pages.find(_HELD, page + 1, end)

    def map(self, size: int, base: BaseFile) -> memoryview:
        """The first `size` bytes as memory that can be written to; a file of the base is neither read nor copied."""
        if size > self.size or size <= 0:
            raise ValueError("mmap length is greater than file size, or 0")
        if self._mapped is None or self._mapped_to < size:
            self._mapped = self._new_map(size, base)
            self._mapped_to = size
            whole = (
                size // PAGE_BYTES
            )  # the page in which the memory ends goes on counting behind it
            self._drop_held(0, whole)
            self._pages[:whole] = bytes(min(whole, len(self._pages)))
        return self._mapped.memory[:size]

    def _new_map(self, size: int, base: BaseFile) -> Mapped:
        if self._mapped_to == 0 and size <= self.base_limit:
            private = base.map_private(size)
            if private is not None:
                for begin, end in self._written(0, size):
                    private.write(self.read(end - begin, begin, base), begin)
                return private
        mapped = self._scratch.new_map(size)
        at = self.next_data(0, base)
        while at < size:
            piece = self.read(min(PIECE_BYTES, size - at), at, base)
            mapped.write(piece, at)
            at = self.next_data(at + len(piece), base)
        return mapped

    def _written(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Ranges within [`begin`, `end`) that lie in pages of our own, in pieces."""
        page = begin // PAGE_BYTES
        while page * PAGE_BYTES < min(end, len(self._pages) * PAGE_BYTES):
            behind = self._run_end(page)
            if self._kind(page) != _BASE:
                stop = min(end, behind * PAGE_BYTES)
                for at in range(max(begin, page * PAGE_BYTES), stop, PIECE_BYTES):
                    yield at, min(stop, at + PIECE_BYTES)
            page = behind

    # -- comparing -------------------------------------------------------------------------------------------

    def changed_bytes(self, base: BaseFile) -> int:
        """How many bytes differ from the base, where what lies behind the end of either counts as zeros."""
        mine = View(self, base)
        total = 0
        if self._mapped is not None:
            for begin, end in self._mapped.changed():
                total += differing_bytes(mine, base, begin, min(end, self._mapped_to))
        for begin, end in self._written(self._mapped_to, self.base_limit):
            total += differing_bytes(mine, base, begin, end)
        begin = max(self._mapped_to, self.base_limit)
        return total + differing_bytes(mine, base, begin, max(self.size, self.base_size))


class View:
    """A changed file together with the base that shows through."""

    def __init__(self, content: Overlaid, base: BaseFile) -> None:
        self._content = content
        self._base = base

    def read(self, size: int, offset: int) -> bytes:
        """See :class:`Readable`."""
        return self._content.read(size, offset, self._base)

    def next_data(self, offset: int) -> int:
        """See :class:`Readable`."""
        found = self._content.next_data(offset, self._base)
        return found if found < self._content.size else NO_DATA


def differing_bytes(one: Readable, other: Readable, begin: int, end: int) -> int:
    """How many bytes in [`begin`, `end`) differ, where what lies behind the end of either counts as zeros."""
    total, at = 0, begin
    while at < end:
        at = min(one.next_data(at), other.next_data(at))
        size = min(PIECE_BYTES, end - at)
        if size > 0:
            total += _differences(one.read(size, at), other.read(size, at))
        at += max(size, 1)
    return total


def _differences(one: bytes, other: bytes) -> int:
    if one == other:
        return 0
    size = max(len(one), len(other))
    one, other = one.ljust(size, b"\0"), other.ljust(size, b"\0")
    mixed = int.from_bytes(one, "little") ^ int.from_bytes(other, "little")
    return size - mixed.to_bytes(size, "little").count(0)
