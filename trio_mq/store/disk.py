"""The file seam: everything that the store does to a disk goes through :class:`Disk` and :class:`File`.

All calls are synchronous. Short ones (a write to the page cache, a look into a directory) are made where they
are needed; long ones (syncs, scans, cold reads) are handed to :meth:`Disk.run`, which takes them off the loop.
Two implementations: :class:`RealDisk` here, and :class:`trio_mq.testing.disk.MemoryDisk`, which forgets what
was not synced when it crashes. Both pass the same tests.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

import attrs
import trio

from trio_mq.errors import StoreLocked

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


@attrs.frozen
class DiskUsage:
    """Sizes of the file system that holds a path, in bytes."""

    total: int
    used: int
    free: int

    @property
    def used_percent(self) -> int:
        """Share in use, rounded down, as `df` would say for an ordinary user."""
        return 100 * self.used // max(1, self.used + self.free)


class File(Protocol):
    """One open file. Positions and sizes are bytes; there is no shared file position."""

    path: str

    def read(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""
        ...

    def read_cached(self, size: int, offset: int) -> bytes | None:
        """As :meth:`read`, but None where the answer would have to wait for the disk."""
        ...

    def next_data(self, offset: int) -> int:
        """The first position from `offset` on that may hold anything but zeros; the length where none does."""
        ...

    def will_need(self, size: int, offset: int) -> None:
        """Say that a range will be read soon, so that the system can fetch it meanwhile. Waits for nothing."""
        ...

    def write(self, data: Buffer, offset: int) -> None:
        """Write all of `data` at `offset`; an OSError means that some of it may be there."""
        ...

    def size(self) -> int:
        """Length of the file."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it with zeros (sparse)."""
        ...

    def sync(self) -> None:
        """Make the content durable (fdatasync), mapped writes included."""
        ...

    def map(self, size: int) -> memoryview:
        """The first `size` bytes as writable memory; the caller releases it before the file is cut."""
        ...

    def close(self) -> None:
        """Give the file back; a second call does nothing."""
        ...


class DirectoryLock(Protocol):
    """Held while a store is open."""

    def release(self) -> None:
        """Let go of the lock."""
        ...


class Disk(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False, readonly: bool = False) -> File:
        """Open a file; FileNotFoundError unless it exists or `create` is set."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""
        ...

    def is_dir(self, path: str) -> bool:
        """Whether a directory is there."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Sorted names in a directory, empty when there is none."""
        ...

    def size(self, path: str) -> int:
        """Length of a file."""
        ...

    def modified_ms(self, path: str) -> int:
        """Time of the last change of a file, ms since the epoch."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; no error when it is not there."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all it holds; no error when it is not there."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename, replacing `new` in one step."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make names in a directory durable."""
        ...

    def usage(self, path: str) -> DiskUsage:
        """Sizes of the file system that holds `path`."""
        ...

    def lock(self, path: str, content: bytes) -> DirectoryLock:
        """Take the lock file `path` for this process, or raise :class:`StoreLocked` with the owner."""
        ...

    async def run(self, call: Callable[[], T]) -> T:
        """Run a blocking call off the loop."""
        ...


class Naming:
    """Makes errors of the system name a path: calls on a descriptor do not, and users have to know it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = self._path


class RealFile:
    """A file of the operating system. Its errors name its path."""

    def __init__(self, path: str, flags: int) -> None:
        self.path = path
        self._naming = Naming(path)
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def read(self, size: int, offset: int) -> bytes:
        """See :class:`File`."""
        with self._naming:
            data = os.pread(self._fd, size, offset)
            while data and len(data) < size:
                more = os.pread(self._fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        return data

    def read_cached(self, size: int, offset: int) -> bytes | None:
        """See :class:`File`."""
        buffer = bytearray(size)
        try:
            with self._naming:
                got = os.preadv(self._fd, [buffer], offset, _READ_NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            return self.read(size, offset)  # this file system cannot tell (tmpfs on older kernels)
        if got == size:
            return bytes(buffer)
        return self.read(size, offset) if offset + got >= self.size() else None

    def next_data(self, offset: int) -> int:
        """See :class:`File`."""
        try:
            with self._naming:
                return os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return max(offset, self.size())
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            return offset  # this file system does not know its holes

    def will_need(self, size: int, offset: int) -> None:
        """See :class:`File`."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_WILLNEED)

    def write(self, data: Buffer, offset: int) -> None:
        """See :class:`File`."""
        with self._naming:
            done = os.pwrite(self._fd, data, offset)
            while done < len(data):
                done += os.pwrite(self._fd, memoryview(data)[done:], offset + done)

    def size(self) -> int:
        """See :class:`File`."""
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        """See :class:`File`."""
        with self._naming:
            os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """See :class:`File`."""
        with self._naming:
            os.fdatasync(self._fd)

    def map(self, size: int) -> memoryview:
        """See :class:`File`."""
        with self._naming:
            return memoryview(mmap.mmap(self._fd, size))

    def map_private(self, size: int) -> memoryview:
        """As :meth:`map`, but changes never reach the file. It has to stay as long while the memory is read."""
        return memoryview(mmap.mmap(self._fd, size, access=mmap.ACCESS_COPY))

    def close(self) -> None:
        """See :class:`File`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_READ_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class RealLock:
    """An exclusive lock on byte 0 of a lock file, which Apache's brokers respect."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Let go of the lock; the file stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealDisk:
    """The file system of the machine."""

    def open(self, path: str, *, create: bool = False, readonly: bool = False) -> File:
        """See :class:`Disk`."""
        flags = os.O_RDONLY if readonly else os.O_RDWR
        return RealFile(path, flags | (os.O_CREAT if create else 0))

    def exists(self, path: str) -> bool:
        """See :class:`Disk`."""
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        """See :class:`Disk`."""
        return os.path.isdir(path)

    def list_dir(self, path: str) -> list[str]:
        """See :class:`Disk`."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        """See :class:`Disk`."""
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        """See :class:`Disk`."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def make_dirs(self, path: str) -> None:
        """See :class:`Disk`."""
        os.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        """See :class:`Disk`."""
        with suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        """See :class:`Disk`."""
        shutil.rmtree(path, ignore_errors=True)

    def rename(self, old: str, new: str) -> None:
        """See :class:`Disk`."""
        os.replace(old, new)

    def sync_dir(self, path: str) -> None:
        """See :class:`Disk`."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with Naming(path):
                os.fsync(fd)
        finally:
            os.close(fd)

    def usage(self, path: str) -> DiskUsage:
        """See :class:`Disk`."""
        stat = os.statvfs(path)
        total = stat.f_blocks * stat.f_frsize
        return DiskUsage(
            total=total,
            used=total - stat.f_bfree * stat.f_frsize,
            free=stat.f_bavail * stat.f_frsize,
        )

    def lock(self, path: str, content: bytes) -> DirectoryLock:
        """See :class:`Disk`."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except OSError as error:
            owner = _lock_owner(fd)
            os.close(fd)
            raise StoreLocked(
                f"{path} is locked by another process ({error.strerror})", owner=owner
            ) from error
        with Naming(path):
            os.pwrite(fd, content, 0)
        return RealLock(fd)

    async def run(self, call: Callable[[], T]) -> T:
        """See :class:`Disk`."""
        return await trio.to_thread.run_sync(call)


#: What fcntl reads and writes about a lock on Linux: type, whence, start, length, process id.
_FLOCK = struct.Struct("hhqqi4x")


def _lock_owner(fd: int) -> int | None:
    """Id of the process that holds byte 0 of a lock file; None when the system does not tell.

    Nor does it for a process outside of this container or on another machine.
    """
    if sys.platform != "linux":  # elsewhere the fields have another order
        return None
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    try:
        told = fcntl.fcntl(fd, fcntl.F_GETLK, asked)
    except OSError:
        return None
    kind, _, _, _, process_id = _FLOCK.unpack(told)
    return process_id if kind != fcntl.F_UNLCK and process_id > 0 else None


def lock_owner(path: str) -> int | None:
    """Id of the process that holds a lock file, without taking the lock; None when nobody does or nobody tells.

    Not to be called by a process that may hold it itself: closing the file would let go of its lock.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _lock_owner(fd)
    finally:
        os.close(fd)
