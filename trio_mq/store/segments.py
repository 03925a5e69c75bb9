"""Equal-sized files under one global offset: the commit log, and each consume queue, is one such row of files.

In: offsets and bytes from the log and the queues. Out: bytes, or :class:`ColdData` where the disk would have to be
waited for. A file is named by the offset of its first byte, 20 decimal digits, and always has its full size
(sparse). Open files belong to one thread at a time: to worker threads during a start, then to the loop; what a
worker does later, it does with files that it opens itself.
Format: ``docs/reference/store-format.md``; source: Apache MappedFileQueue, MappedFile.
"""

from __future__ import annotations

import errno
import logging
import resource
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TypeVar

from trio_mq.errors import ForeignFormat
from trio_mq.store.disk import Buffer, Disk, File

T = TypeVar("T")

log = logging.getLogger("trio_mq.store.segments")

NAME_DIGITS = 20
#: Open files of one pool, whatever the process may have: files are opened when they are used. Few are enough, and state
#: files need descriptors, too.
LEAST_FILES, MOST_FILES = 8, 4096
#: Open files of one row that a thread has for itself.
LENT_FILES = 4
#: Bytes that are made zeros in one go.
CLEAR_BYTES = 1024 * 1024


class ColdData(Exception):
    """Data is on the disk only: run :attr:`warm` off the loop, then ask again. Not an error of anybody."""

    def __init__(self, warm: Callable[[], object]) -> None:
        super().__init__("data is not in memory")
        self.warm = warm


def warmed(call: Callable[[], T]) -> T:
    """The result of a call that may need data from the disk, waiting for it. For worker threads."""
    while True:
        try:
            return call()
        except ColdData as cold:
            cold.warm()


def pool_limit(share: int) -> int:
    """Open files for a pool that takes one in `share` of what the process may have (connections need some, too)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_FILES
    return max(LEAST_FILES, min(MOST_FILES, soft // share))


class FilePool:
    """Open files by path, least recently used closed first."""

    def __init__(self, disk: Disk, limit: int | None = None) -> None:
        self._disk = disk
        self._limit = pool_limit(share=4) if limit is None else limit
        self._open: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str) -> File:
        """The open file at `path`."""
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        file = self.with_room(lambda: self._disk.open(path))
        self._open[path] = file
        if len(self._open) > self._limit:
            self._shrink(self._limit)
        return file

    def with_room(self, call: Callable[[], T]) -> T:
        """The result of a call that opens a file. When all descriptors are taken, half of the files here are closed."""
        try:
            return call()
        except OSError as error:
            if error.errno != errno.EMFILE or not self._open:
                raise
            self._shrink(len(self._open) // 2)
            return call()

    def _shrink(self, count: int) -> None:
        while len(self._open) > count:
            self._open.popitem(last=False)[1].close()

    def drop(self, path: str) -> None:
        """Close one file."""
        file = self._open.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()


class Segments:
    """A row of files. `start` and `end` are global byte offsets of all that the files can hold."""

    def __init__(self, disk: Disk, pool: FilePool, directory: str, segment_bytes: int) -> None:
        self.disk = disk
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._pool = pool
        self._starts: list[int] = []
        self._paths: dict[int, str] = {}
        #: Changes of names so far, and how many of them are durable. What an earlier process did counts as one.
        self._changes = 1
        self._durable_changes = 0

    # -- the files -------------------------------------------------------------------------------------------

    def load(self, *, mend: bool = False) -> list[str]:
        """Find the files. Returns notes about what was put right (an empty last file, a gap).

        A crash between creating a file and giving it its size leaves an empty last file, which is dropped. With
        `mend` a file that is short is given its size, which is right for files that can be made again from others,
        after a crash. Raises :class:`ForeignFormat` for any other size
        (Apache: MappedFileQueue.doLoad).
        """
        notes: list[str] = []
        names = self._names()
        while names and self.disk.size(f"{self.directory}/{names[-1]}") == 0:
            path = f"{self.directory}/{names.pop()}"
            self.disk.remove(path)
            self._changes += 1
            notes.append(f"{path} was empty and is dropped")
        for name in names:
            notes += self._check(f"{self.directory}/{name}", mend)
        starts = [int(name) for name in names]
        for before, after in pairwise(starts):
            if after - before != self.segment_bytes:
                notes.append(
                    f"{self.directory} has a hole: bytes {before + self.segment_bytes} to {after} are missing"
                )
        self._starts = starts
        self._paths = {start: self.path(start) for start in starts}
        return notes

    def _names(self) -> list[str]:
        """Names of segment files in order; whatever else lies there is passed over."""
        return [
            name
            for name in self.disk.list_dir(self.directory)
            if len(name) == NAME_DIGITS
            and name.isdigit()
            and not self.disk.is_dir(f"{self.directory}/{name}")
        ]

    def _check(self, path: str, mend: bool) -> list[str]:
        """Refuse a file of another size or place, or give it its size if it may be mended."""
        size, wanted = self.disk.size(path), self.segment_bytes
        if int(path[-NAME_DIGITS:]) % wanted:
            raise ForeignFormat(
                f"{path} does not begin at a multiple of {wanted} bytes, the size in the settings; "
                f"start with the segment size that the store was written with"
            )
        if size == wanted:
            return []
        if mend and size < wanted:
            make_segment_file(self.disk, path, wanted)
            return [f"{path} had {size} bytes and gets its full size back"]
        raise ForeignFormat(
            f"{path} has {size} bytes, but the settings say {wanted}; start with the segment size that "
            f"the store was written with. If the file was cut, give it its size back: truncate -s {wanted} '{path}'"
        )

    @property
    def starts(self) -> list[int]:
        """Offsets of the first byte of each file, ascending."""
        return list(self._starts)

    @property
    def empty(self) -> bool:
        """Whether there is no file at all."""
        return not self._starts

    @property
    def start(self) -> int:
        """First offset that a file covers; 0 without files."""
        return self._starts[0] if self._starts else 0

    @property
    def end(self) -> int:
        """Offset behind the last file; 0 without files."""
        return self._starts[-1] + self.segment_bytes if self._starts else 0

    def segment_of(self, offset: int) -> int:
        """Start of the segment that covers `offset`, whether its file exists or not."""
        return offset - offset % self.segment_bytes

    def has(self, offset: int) -> bool:
        """Whether a file covers `offset`."""
        return offset - offset % self.segment_bytes in self._paths

    def path(self, segment: int) -> str:
        """Path of the file that starts at `segment`."""
        return f"{self.directory}/{segment:0{NAME_DIGITS}d}"

    def file(self, segment: int) -> File:
        """The open file that starts at `segment`; it must exist."""
        return self._pool.get(self._paths[segment])

    def create(self, segment: int, *, durable: bool = False) -> None:
        """Create the file that starts at `segment`, full size and sparse: the next one, the first, or a missing one.

        With `durable` its size survives a power cut at once (its name does with the next sync).
        """
        assert segment % self.segment_bytes == 0
        next_or_missing = segment <= self.end and segment not in self._paths
        assert not self._starts or next_or_missing, f"{self.directory}: {segment} is not next"
        if not self._starts:
            self.disk.make_dirs(self.directory)
        path = self.path(segment)
        self._pool.with_room(
            lambda: make_segment_file(self.disk, path, self.segment_bytes, durable=durable)
        )
        self._changes += 1
        insort(self._starts, segment)
        self._paths[segment] = path

    def close(self) -> None:
        """Close the open files."""
        self._pool.close()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Open files of its own for the length of a block, in whatever thread; nobody else uses the row meanwhile."""
        shared, self._pool = self._pool, FilePool(self.disk, LENT_FILES)
        try:
            yield
        finally:
            self._pool.close()
            self._pool = shared

    @contextmanager
    def read_apart(self) -> Iterator[Segments]:
        """The same files, opened anew, for one thread of several that read at the same time."""
        twin = Segments(
            self.disk, FilePool(self.disk, LENT_FILES), self.directory, self.segment_bytes
        )
        twin._starts, twin._paths = self._starts, self._paths
        try:
            yield twin
        finally:
            twin.close()

    # -- the bytes -------------------------------------------------------------------------------------------

    def write(self, data: Buffer, offset: int) -> None:
        """Write within one segment, whose file must exist."""
        segment = offset - offset % self.segment_bytes
        self.file(segment).write(data, offset - segment)

    def read(self, size: int, offset: int) -> bytes:
        """Read within one segment, waiting for the disk if need be."""
        segment = offset - offset % self.segment_bytes
        return self.file(segment).read(size, offset - segment)

    def will_need(self, size: int, offset: int) -> None:
        """Say that a range of one segment will be read soon; see :meth:`trio_mq.store.disk.File.will_need`."""
        segment = offset - offset % self.segment_bytes
        if segment in self._paths:
            self.file(segment).will_need(size, offset - segment)

    def next_data(self, offset: int) -> int:
        """The first offset from here on, in the same segment, that may hold anything but zeros; else its end."""
        segment = offset - offset % self.segment_bytes
        return segment + min(self.segment_bytes, self.file(segment).next_data(offset - segment))

    def read_cached(self, size: int, offset: int) -> bytes:
        """Read within one segment; raises :class:`ColdData` instead of waiting."""
        segment = offset - offset % self.segment_bytes
        position = offset - segment
        data = self.file(segment).read_cached(size, position)
        if data is None:
            path = self.path(segment)
            raise ColdData(lambda: read_file(self.disk, path, size, position))
        return data

    def sync_call(self, begin: int, end: int) -> Callable[[], None]:
        """A blocking call that makes bytes `begin` to `end` durable, and the names of all files; for a worker thread.

        It opens the files anew: the pool may close its own at any time.
        """
        paths = [self.path(s) for s in self._starts if s < end and s + self.segment_bytes > begin]
        changes = self._changes

        def sync() -> None:
            for path in paths:
                try:
                    file = self.disk.open(path)
                except FileNotFoundError:
                    continue  # expired meanwhile
                try:
                    file.sync()
                finally:
                    file.close()
            if self._durable_changes < changes and self.disk.is_dir(self.directory):
                self.disk.sync_dir(self.directory)
                self._durable_changes = max(self._durable_changes, changes)

        return sync

    # -- cutting ---------------------------------------------------------------------------------------------

    def cut(self, end: int) -> list[str]:
        """Forget everything from `end` on: later files go, the rest of the last one becomes zeros.

        Zeroing means that no stale record can come back after a second crash. Returns the removed paths. When
        nothing is left before `end` in the last file, the file stays, so that offsets go on from its name.
        """
        removed: list[str] = []
        while self._starts and self._starts[-1] >= end and len(self._starts) > 1:
            removed.append(self.drop_segment(self._starts[-1]))
        if self._starts and end < self.end:
            self.clear(max(end, self._starts[-1]))
        return removed

    def clear(self, begin: int) -> None:
        """Make everything from `begin` to the end of its file zeros; the file keeps its size at every moment."""
        position, stop = begin, self.segment_of(begin) + self.segment_bytes
        while position < stop and (position := self.next_data(position)) < stop:
            zeros = bytes(min(CLEAR_BYTES, stop - position))
            if self.read(len(zeros), position) != zeros:
                self.write(zeros, position)
            position += len(zeros)

    def detach(self, segment: int) -> str:
        """Forget one file, wherever it is; returns its path, for the caller to remove."""
        self._starts.remove(segment)
        path = self._paths.pop(segment)
        self._pool.drop(path)
        self._changes += 1
        return path

    def drop_segment(self, segment: int) -> str:
        """Remove one file, wherever it is; returns its path."""
        path = self.detach(segment)
        self.disk.remove(path)
        return path

    def drop_all(self) -> None:
        """Remove all files."""
        while self._starts:
            self.drop_segment(self._starts[-1])


def make_segment_file(disk: Disk, path: str, segment_bytes: int, *, durable: bool = False) -> None:
    """Create a file of full size; one that is there already keeps its bytes.

    Nothing is left of a new file when an OSError gets out: after a failed sync nobody knows what of it is on the disk,
    and no later sync would tell.
    """
    is_new = not disk.exists(path)
    try:
        file = disk.open(path, create=True)
        try:
            if file.size() != segment_bytes:
                file.truncate(segment_bytes)
            if durable:
                file.sync()
        finally:
            file.close()
    except OSError:
        if is_new:
            with suppress(OSError):
                disk.remove(path)
        raise


def read_file(disk: Disk, path: str, size: int, position: int) -> bytes:
    """Read a range by path; empty when the file has gone."""
    try:
        file = disk.open(path, readonly=True)
    except FileNotFoundError:
        return b""
    try:
        return file.read(size, position)
    finally:
        file.close()
