"""Room for the changes of an :class:`trio_mq.store.overlay.OverlayDisk`: pages, and memory that can be mapped.

In: pages of files that a rehearsal changes. Out: the same pages. The first few MiB stay in memory, the rest goes to a
temporary file without a name, so that a rehearsal which makes all queues again does not grow. Without room for that
file, memory has to do. Called by :mod:`trio_mq.store.overlaid`, from any worker thread.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterator
from contextlib import suppress
from threading import Lock  # noqa: TID251 - part of the disk seam, which worker threads call
from typing import Final, Protocol

PAGE_BYTES: Final = 4096
#: Pages that stay in memory, all files together.
MEMORY_BYTES: Final = 4 * 1024 * 1024
#: Bytes that are written to mapped memory of a file before its pages are let go.
LET_GO_BYTES: Final = 16 * 1024 * 1024
#: Where the temporary file may be. Not the working directory, as Python's own list has it: that may be the store.
_FOLDERS: Final = ("/var/tmp", "/tmp")  # noqa: S108 - the file never gets a name
_PAGEMAP: Final = "/proc/self/pagemap"
_IN_MEMORY, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61
_PAGEMAP_ENTRIES: Final = 1 << 16

#: A page in memory, or where it is in the temporary file.
Held = bytearray | int


class Scratch:
    """Pages of all changed files of one overlay. `folder` says where the temporary file is to be."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES, folder: str | None = None) -> None:
        self._lock = Lock()
        self._folders = _folders() if folder is None else (folder,)
        self._fd = _open_unnamed(self._folders)
        self._room = memory_bytes
        self._end = 0
        if self._fd >= 0:
            weakref.finalize(self, os.close, self._fd)

    @property
    def file_bytes(self) -> int:
        """Length of the temporary file."""
        return self._end

    def keep(self, data: bytes) -> list[Held]:
        """Keep some pages; returns where each of them is, those in the temporary file side by side."""
        count = len(data) // PAGE_BYTES
        assert count * PAGE_BYTES == len(data), "whole pages"
        with self._lock:
            in_memory = min(count, self._room // PAGE_BYTES) if self._fd >= 0 else count
            self._room -= in_memory * PAGE_BYTES
            at = self._end
            self._end += len(data) - in_memory * PAGE_BYTES
        rest = data[in_memory * PAGE_BYTES :]
        if rest:
            try:
                _write_all(self._fd, rest, at)
            except OSError:
                in_memory, rest = count, b""  # the disk of temporary files is full
        pages = range(0, in_memory * PAGE_BYTES, PAGE_BYTES)
        held: list[Held] = [bytearray(data[n : n + PAGE_BYTES]) for n in pages]
        held += range(at, at + len(rest), PAGE_BYTES)
        return held

    def read(self, size: int, position: int) -> bytes:
        """Bytes of pages that lie in the temporary file."""
        data = os.pread(self._fd, size, position)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                raise OSError(errno.EIO, "the temporary file of the rehearsal got shorter")
            data += more
        return data

    def change(self, held: Held, inside: int, data: bytes | memoryview) -> None:
        """Overwrite bytes of one page, from `inside` it on."""
        if isinstance(held, int):
            _write_all(self._fd, data, held + inside)
        else:
            held[inside : inside + len(data)] = data

    def new_map(self, size: int) -> Mapped:
        """Zeros of their own that can be mapped: of a temporary file if there can be one, else of memory."""
        fd = _open_unnamed(self._folders)
        if fd < 0:
            return OwnMap(mmap.mmap(-1, size))
        try:
            os.ftruncate(fd, size)
            return FileMap(fd, size)
        except OSError:
            os.close(fd)
            return OwnMap(mmap.mmap(-1, size))


def _folders() -> tuple[str, ...]:
    chosen = os.environ.get("TMPDIR")
    return (chosen, *_FOLDERS) if chosen else _FOLDERS


def _open_unnamed(folders: tuple[str, ...]) -> int:
    """Descriptor of a new temporary file in the first folder that can have one; -1 where none can."""
    for folder in folders:
        with suppress(OSError), tempfile.TemporaryFile(buffering=0, dir=folder) as file:
            return os.dup(file.fileno())
    return -1


def _write_all(fd: int, data: bytes | memoryview, position: int) -> None:
    done = os.pwrite(fd, data, position)
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], position + done)


# -- mapped memory -------------------------------------------------------------------------------------------


class Mapped(Protocol):
    """Memory that stands for the first bytes of a file. Positions are bytes."""

    memory: memoryview

    def read(self, size: int, position: int) -> bytes:
        """Bytes of the memory, all of which are there."""
        ...

    def write(self, data: bytes | memoryview, position: int) -> None:
        """Change the memory; an OSError when there is no room."""
        ...

    def next_data(self, position: int) -> int:
        """The first position from there on that may hold anything but zeros; the length where none does."""
        ...

    def changed(self) -> Iterator[tuple[int, int]]:
        """Ranges outside of which nothing was changed since the memory was made."""
        ...


class OwnMap:
    """Plain memory."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memoryview(memory)

    def read(self, size: int, position: int) -> bytes:
        """See :class:`Mapped`."""
        return self.memory[position : position + size].tobytes()

    def write(self, data: bytes | memoryview, position: int) -> None:
        """See :class:`Mapped`."""
        self.memory[position : position + len(data)] = data

    def next_data(self, position: int) -> int:
        """See :class:`Mapped`; what is written to the memory is not known."""
        return position

    def changed(self) -> Iterator[tuple[int, int]]:
        """See :class:`Mapped`."""
        yield 0, len(self.memory)


class FileMap:
    """Memory of a temporary file without a name. Read and written through the file: a full disk is an OSError then.

    Now and then its pages are let go; they come back from the file when they are touched again. So what the process
    holds does not grow with an index that is filled.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._mmap = mmap.mmap(fd, size)
        self._written = 0
        self.memory = memoryview(self._mmap)
        weakref.finalize(self, os.close, fd)

    def read(self, size: int, position: int) -> bytes:
        """See :class:`Mapped`."""
        return os.pread(self._fd, size, position)

    def write(self, data: bytes | memoryview, position: int) -> None:
        """See :class:`Mapped`."""
        _write_all(self._fd, data, position)
        self._written += len(data)
        if self._written >= LET_GO_BYTES:
            self._written = 0
            self._mmap.madvise(mmap.MADV_DONTNEED)

    def next_data(self, position: int) -> int:
        """See :class:`Mapped`."""
        try:
            return os.lseek(self._fd, position, os.SEEK_DATA)
        except OSError as error:
            return len(self.memory) if error.errno == errno.ENXIO else position

    def changed(self) -> Iterator[tuple[int, int]]:
        """See :class:`Mapped`; the memory began as zeros."""
        yield 0, len(self.memory)


class PrivateMap:
    """A file of the base, mapped so that changes stay in memory. A base that got shorter is an OSError, no signal."""

    def __init__(self, memory: memoryview, path: str) -> None:
        self.memory = memory
        self._path = path

    def _check(self) -> None:
        source = self.memory.obj
        if isinstance(source, mmap.mmap) and source.size() < len(self.memory):
            raise got_shorter(self._path)

    def read(self, size: int, position: int) -> bytes:
        """See :class:`Mapped`."""
        self._check()
        return self.memory[position : position + size].tobytes()

    def write(self, data: bytes | memoryview, position: int) -> None:
        """See :class:`Mapped`."""
        self._check()
        self.memory[position : position + len(data)] = data

    def next_data(self, position: int) -> int:
        """See :class:`Mapped`; what is written to the memory is not known."""
        return position

    def changed(self) -> Iterator[tuple[int, int]]:
        """See :class:`Mapped`; as the kernel knows it, where it tells."""
        pages = _copied_pages(self.memory)
        if pages is None:
            yield 0, len(self.memory)
            return
        for page in pages:
            yield page * PAGE_BYTES, min(len(self.memory), (page + 1) * PAGE_BYTES)


def got_shorter(path: str) -> OSError:
    """What is raised when bytes are gone that were there."""
    text = "the file got shorter while it was read, so another process changes it"
    return OSError(errno.ESTALE, text, path)


def _copied_pages(memory: memoryview) -> list[int] | None:
    """Pages of a private mapping that were written to: these are no pages of the file any more.

    None where the kernel does not tell (Linux does, in /proc/self/pagemap).
    """
    if mmap.PAGESIZE != PAGE_BYTES:
        return None
    anchor = ctypes.c_char.from_buffer(memory)
    first = ctypes.addressof(anchor) // PAGE_BYTES
    count = -(-len(memory) // PAGE_BYTES)
    del anchor
    pages: list[int] = []
    try:
        fd = os.open(_PAGEMAP, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        for begin in range(0, count, _PAGEMAP_ENTRIES):
            size = 8 * min(_PAGEMAP_ENTRIES, count - begin)
            data = os.pread(fd, size, 8 * (first + begin))
            if len(data) != size:
                return None
            entries = array("Q", data)
            pages += [
                page
                for page, entry in enumerate(entries, begin)
                if entry & (_IN_MEMORY | _SWAPPED) and not entry & _OF_FILE
            ]
    except OSError:
        return None
    finally:
        os.close(fd)
    return pages
