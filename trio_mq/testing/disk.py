"""A disk in memory that knows what was synced, forgets the rest in a crash, and fails on demand.

In: the calls of :class:`trio_mq.store.disk.Disk`, made by any code under test. Out: the answers
that the real disk gives, and after :meth:`MemoryDisk.crash` what a machine would find after a power
cut. Called by tests only. Which damage a crash may do, and why:

* **Writes** since the last `sync` of that file: each one is lost, kept, or torn at 512-byte
  sectors, and in any order, because the page cache writes back as it likes. A lost write may still
  have made the file longer: the gap reads as zeros, as after a real power cut. A write that was on
  its way counts up to any sector.
* **Mapped memory**: what has changed in it before an operation counts as writes of whole pages of
  4096 bytes, so a crash may leave any state that a page ever had, or a mixture of its sectors.
* **Names** (created, renamed and removed files and directories) since the last `sync_dir` of their
  directory: by default a prefix of them survives, as with a journal; with `reorder_names` any
  subset does, which POSIX permits. A rename happens completely or not at all. A file without a
  surviving name is gone, synced or not.
* **After a failed sync** the bytes it was about stay doubtful: a later sync that succeeds does not
  cover them. That is what Linux does, so code that shrugs off a failed sync loses data here too.

Bytes and names that were synced always survive. One seed gives one outcome.

Short of a crash, operations fail (:meth:`MemoryDisk.fail_when`), reads fail
(:meth:`MemoryDisk.fail_reads`), and a write takes only a part of the data, so that the rest is an
operation of its own (:meth:`MemoryDisk.short_when`), as it is where the real disk calls `pwrite`
again. :meth:`MemoryDisk.clone` copies a disk as it is, at any moment, for next to nothing:
one crash can be recovered from many times, and a power cut after each operation of a long run
needs that run only once (:attr:`MemoryDisk.before`).
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Callable
from typing import Self, TypeVar

import trio

from trio_mq.clock import Clock
from trio_mq.errors import StoreLocked
from trio_mq.store.disk import Buffer, DirectoryLock, DiskUsage, File
from trio_mq.testing.disk_faults import Faults, Operation, OperationKind, PowerCut, os_error
from trio_mq.testing.disk_names import Names
from trio_mq.testing.disk_state import FileContent, Keep, Node

__all__ = ["MemoryDisk", "Operation", "PowerCut"]

T = TypeVar("T")

DEFAULT_CAPACITY_BYTES = 1 << 40
"""Room on the disk unless a test says otherwise: more than any test writes."""


class MemoryFile:
    """An open file of a :class:`MemoryDisk`, with the contract of the real one."""

    def __init__(self, disk: MemoryDisk, path: str, node: Node, *, readonly: bool) -> None:
        self.path = path
        self._disk = disk
        self._node: Node | None = node
        self._readonly = readonly
        self._boot = disk.boots

    def read(self, size: int, offset: int) -> bytes:
        """See :class:`trio_mq.store.disk.File`."""
        content = self._open_node().content
        self._disk.check_read(self.path, offset, size)
        return content.live.read(size, offset)

    def read_cached(self, size: int, offset: int) -> bytes | None:
        """See :class:`trio_mq.store.disk.File`; None while the disk is set to `cold`."""
        content = self._open_node().content
        if self._disk.cold:
            return None
        self._disk.check_read(self.path, offset, size)
        return content.live.read(size, offset)

    def next_data(self, offset: int) -> int:
        """See :class:`trio_mq.store.disk.File`."""
        return self._open_node().content.live.next_data(offset)

    def will_need(self, size: int, offset: int) -> None:
        """See :class:`trio_mq.store.disk.File`; everything is in memory."""

    def write(self, data: Buffer, offset: int) -> None:
        """See :class:`trio_mq.store.disk.File`; one that fails leaves its half.

        Goes on after a short write, as the real one does.
        """
        content = self._changing()
        payload = bytes(data)
        done = self._write_once(content, payload, offset)
        while done < len(payload):
            done += self._write_once(content, payload[done:], offset + done)

    def _write_once(self, content: FileContent, payload: bytes, offset: int) -> int:
        """One operation; how many bytes it took."""
        content.begin(payload, offset)
        count = len(payload)
        try:
            if self._disk.step("write", self.path):
                count = -(-count // 2)
            self._disk.take_room(max(0, offset + count - content.live.allocated))
        except OSError:
            content.end()
            content.write(payload[: len(payload) // 2], offset)
            raise
        content.end()
        content.write(payload[:count], offset)
        self._touch()
        return count

    def size(self) -> int:
        """See :class:`trio_mq.store.disk.File`."""
        return self._open_node().content.live.size

    def truncate(self, size: int) -> None:
        """See :class:`trio_mq.store.disk.File`."""
        content = self._changing()
        self._disk.step("truncate", self.path)
        content.truncate(size)
        self._touch()

    def sync(self) -> None:
        """See :class:`trio_mq.store.disk.File`."""
        content = self._open_node().content
        try:
            self._disk.step("sync", self.path)
        except OSError:
            content.doubt()
            raise
        content.sync()

    def map(self, size: int) -> memoryview:
        """See :class:`trio_mq.store.disk.File`; changes through it are seen at the next operation."""
        content = self._changing()
        if size > content.live.size:
            raise ValueError("mmap length is greater than file size")
        self._disk.take_room(max(0, size - content.live.allocated))
        memory = content.map(size)
        self._disk.watch_mapped(content)
        return memory

    def close(self) -> None:
        """See :class:`trio_mq.store.disk.File`."""
        self._node = None

    def _open_node(self) -> Node:
        self._disk.check_power()
        if self._node is None or self._boot != self._disk.boots:
            raise os_error(errno.EBADF, self.path)
        return self._node

    def _changing(self) -> FileContent:
        node = self._open_node()
        if self._readonly:
            raise os_error(errno.EBADF, self.path)
        return node.content

    def _touch(self) -> None:
        if self._node is not None:
            self._node.modified_ms = self._disk.now_ms()


class MemoryLock:
    """A held lock of a :class:`MemoryDisk`."""

    def __init__(self, held: dict[str, str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        """Let go of the lock; the file stays."""
        self._held.pop(self._path, None)


class MemoryDisk(Faults):
    """A file system in memory; see the head of the module for what it may lose.

    `capacity_bytes` is what fits before writes fail with ENOSPC; holes in files take no room.
    `clock` gives modification times; without one, every change is one millisecond after the last.
    """

    def __init__(
        self, *, clock: Clock | None = None, capacity_bytes: int = DEFAULT_CAPACITY_BYTES
    ) -> None:
        super().__init__()
        self.capacity_bytes = capacity_bytes
        self.cold = False
        """While true, :meth:`File.read_cached` finds nothing in the cache."""
        self.run_delay_s = 0.0
        """How long :meth:`run` waits (in Trio's time) before it makes the call: a slow disk."""
        self.boots = 0
        self._clock = clock
        self._ticks_ms = 0
        self._names = Names()
        self._locks: dict[str, str] = {}
        self._mapped: dict[FileContent, None] = {}

    # -- faults and crashes

    def clone(self, *, clock: Clock | None = None) -> Self:
        """A disk of its own with the same content, what is not synced included, and without faults.

        No file of it is open and no lock held: it is what :meth:`crash` would start from. Its
        operations count from 1. Bytes are shared until one of the two disks changes them.
        """
        copy = type(self)(clock=clock or self._clock, capacity_bytes=self.capacity_bytes)
        copy._ticks_ms = self._ticks_ms
        copy._names = self._names.copy()
        return copy

    def fill(self, room_bytes: int = 0) -> None:
        """Let the disk be full but for so many bytes: what takes no more room still works."""
        self.capacity_bytes = self._names.used_bytes() + room_bytes

    def make_room(self) -> None:
        """End :meth:`fill`."""
        self.capacity_bytes = DEFAULT_CAPACITY_BYTES

    def files(self) -> dict[str, bytes]:
        """What is in all files now, by path."""
        return {
            path: node.content.live.read(node.content.live.size, 0)
            for path, node in self._names.files()
        }

    def kill(self) -> None:
        """End the process, as kill -9 does: the machine goes on, so nothing is lost, and nothing synced.

        Of a write on its way, the pages of its first half are there. Open files are dead and locks
        free.
        """
        self._names.kill()
        self._boot()

    def crash(self, seed: int, *, keep: Keep = "some", reorder_names: bool = False) -> None:
        """Cut the power now (if it is not cut yet) and start again with what survived.

        `keep` says how much of what was not synced survives: `some` lets the seed decide, `none`
        and `all` are the two ends. Afterwards open files are dead (EBADF), locks are free, and
        faults are forgotten.
        """
        self._names.crash(random.Random(seed), keep=keep, reorder=reorder_names)
        self._boot()

    def _boot(self) -> None:
        self._locks.clear()
        self._mapped.clear()
        self.heal()
        self._off = False
        self.boots += 1

    def step(self, kind: OperationKind, path: str) -> bool:
        """See :meth:`Faults.step`; what has changed in mapped memory until now comes first."""
        for content in self._mapped:
            content.note_mapped()
        return super().step(kind, path)

    def watch_mapped(self, content: FileContent) -> None:
        """Look at mapped memory before each operation from now on."""
        if content.is_noted:
            self._mapped[content] = None

    def take_room(self, size: int) -> None:
        """Raise ENOSPC if `size` more bytes do not fit."""
        if self.capacity_bytes == DEFAULT_CAPACITY_BYTES or not size:
            return  # spares tests that do not care the sum over all files
        if self._names.used_bytes() + size > self.capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def now_ms(self) -> int:
        """Time of a change, ms since the epoch."""
        self._ticks_ms += 1
        return self._ticks_ms if self._clock is None else self._clock.now_ms()

    # -- the Disk protocol

    def open(self, path: str, *, create: bool = False, readonly: bool = False) -> File:
        """See :class:`trio_mq.store.disk.Disk`."""
        self.check_power()
        path = posixpath.normpath(path)
        if self._names.is_dir(path):
            raise os_error(errno.EISDIR, path)
        node = self._names.find(path)
        if node is None:
            if not create or not self._names.is_dir(posixpath.dirname(path)):
                raise os_error(errno.ENOENT, path)
            self.step("create", path)
            node = Node(modified_ms=self.now_ms())
            self._names.bind(path, node)
        return MemoryFile(self, path, node, readonly=readonly)

    def exists(self, path: str) -> bool:
        """See :class:`trio_mq.store.disk.Disk`."""
        self.check_power()
        path = posixpath.normpath(path)
        return self._names.is_dir(path) or self._names.find(path) is not None

    def is_dir(self, path: str) -> bool:
        """See :class:`trio_mq.store.disk.Disk`."""
        self.check_power()
        return self._names.is_dir(posixpath.normpath(path))

    def list_dir(self, path: str) -> list[str]:
        """See :class:`trio_mq.store.disk.Disk`."""
        self.check_power()
        path = posixpath.normpath(path)
        if self._names.find(path) is not None:
            raise os_error(errno.ENOTDIR, path)
        return self._names.children(path)

    def size(self, path: str) -> int:
        """See :class:`trio_mq.store.disk.Disk`."""
        return self._existing(path).content.live.size

    def modified_ms(self, path: str) -> int:
        """See :class:`trio_mq.store.disk.Disk`."""
        return self._existing(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Pretend that a file was last changed at `modified_ms`."""
        self._existing(path).modified_ms = modified_ms

    def make_dirs(self, path: str) -> None:
        """See :class:`trio_mq.store.disk.Disk`."""
        self.check_power()
        path = posixpath.normpath(path)
        if self._names.is_dir(path):
            return
        if self._names.find(path) is not None:
            raise os_error(errno.EEXIST, path)
        self.step("make_dirs", path)
        self._names.make_dirs(path)

    def remove(self, path: str) -> None:
        """See :class:`trio_mq.store.disk.Disk`."""
        self.check_power()
        path = posixpath.normpath(path)
        if self._names.is_dir(path):
            raise os_error(errno.EISDIR, path)
        if self._names.find(path) is not None:
            self.step("remove", path)
            self._names.unbind(path)

    def remove_tree(self, path: str) -> None:
        """See :class:`trio_mq.store.disk.Disk`."""
        self.check_power()
        path = posixpath.normpath(path)
        if self._names.is_dir(path):
            self.step("remove_tree", path)
            self._names.remove_tree(path)

    def rename(self, old: str, new: str) -> None:
        """See :class:`trio_mq.store.disk.Disk`; files only."""
        self.check_power()
        old, new = posixpath.normpath(old), posixpath.normpath(new)
        if self._names.find(old) is None or not self._names.is_dir(posixpath.dirname(new)):
            raise os_error(errno.ENOENT, old)
        if self._names.is_dir(new):
            raise os_error(errno.EISDIR, new)
        self.step("rename", new)
        self._names.rename(old, new)

    def sync_dir(self, path: str) -> None:
        """See :class:`trio_mq.store.disk.Disk`."""
        self.check_power()
        path = posixpath.normpath(path)
        if not self._names.is_dir(path):
            raise os_error(errno.ENOENT, path)
        self.step("sync_dir", path)
        self._names.sync(path)

    def usage(self, path: str) -> DiskUsage:
        """See :class:`trio_mq.store.disk.Disk`."""
        self.check_power()
        used = self._names.used_bytes()
        return DiskUsage(self.capacity_bytes, used, max(0, self.capacity_bytes - used))

    def lock(self, path: str, content: bytes) -> DirectoryLock:
        """See :class:`trio_mq.store.disk.Disk`."""
        self.check_power()
        path = posixpath.normpath(path)
        if path in self._locks:
            raise StoreLocked(f"{path} is locked by another process ({self._locks[path]})")
        file = self.open(path, create=True)
        self.step("lock", path)
        file.write(content, 0)
        self._locks[path] = content.decode(errors="replace")
        return MemoryLock(self._locks, path)

    async def run(self, call: Callable[[], T]) -> T:
        """See :class:`trio_mq.store.disk.Disk`; the call is made inline, after a checkpoint."""
        await trio.sleep(self.run_delay_s)
        return call()

    def _existing(self, path: str) -> Node:
        self.check_power()
        node = self._names.find(posixpath.normpath(path))
        if node is None:
            raise os_error(errno.ENOENT, path)
        return node
