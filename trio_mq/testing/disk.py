"""A disk in memory that knows what was synced, forgets the rest in a crash, and fails on demand.

In: the calls of :class:`trio_mq.store.disk.Disk`, made by any code under test. Out: the answers
that the real disk gives, and after :meth:`MemoryDisk.crash` what a machine would find after a power
cut. Called by tests only. Which damage a crash may do, and why:

* **Writes** since the last `sync` of that file: each one is lost, kept, or torn at 512-byte
  sectors, and in any order, because the page cache writes back as it likes. A lost write may still
  have made the file longer: the gap reads as zeros, as after a real power cut. Changes of mapped
  memory are lost or kept by pages of 4096 bytes.
* **Names** (created, renamed and removed files and directories) since the last `sync_dir` of their
  directory: by default a prefix of them survives, as with a journal; with `reorder_names` any
  subset does, which POSIX permits. A rename happens completely or not at all. A file without a
  surviving name is gone, synced or not.
* **After a failed sync** the bytes it was about stay doubtful: a later sync that succeeds does not
  cover them. That is what Linux does, so code that shrugs off a failed sync loses data here too.

Bytes and names that were synced always survive. One seed gives one outcome.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Callable
from typing import Literal, TypeVar

import attrs
import trio

from trio_mq.clock import Clock
from trio_mq.errors import StoreLocked
from trio_mq.store.disk import Buffer, DirectoryLock, DiskUsage, File
from trio_mq.testing.disk_state import FileContent, Keep, Names, Node

T = TypeVar("T")

OperationKind = Literal[
    "create",
    "write",
    "truncate",
    "sync",
    "make_dirs",
    "remove",
    "remove_tree",
    "rename",
    "sync_dir",
    "lock",
]
DEFAULT_CAPACITY_BYTES = 1 << 40
"""Room on the disk unless a test says otherwise: more than any test writes."""


class PowerCut(BaseException):
    """The machine went off; not an Exception, so that no handler under test swallows it."""


@attrs.frozen
class Operation:
    """One call that changes the disk; `number` counts them from 1."""

    number: int
    kind: OperationKind
    path: str


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
        return self._open_node().content.live.read(size, offset)

    def read_cached(self, size: int, offset: int) -> bytes | None:
        """See :class:`trio_mq.store.disk.File`; None while the disk is set to `cold`."""
        content = self._open_node().content
        return None if self._disk.cold else content.live.read(size, offset)

    def next_data(self, offset: int) -> int:
        """See :class:`trio_mq.store.disk.File`."""
        return self._open_node().content.live.next_data(offset)

    def write(self, data: Buffer, offset: int) -> None:
        """See :class:`trio_mq.store.disk.File`; one that fails or is cut off leaves its half."""
        content = self._changing()
        payload = bytes(data)
        try:
            self._disk.step("write", self.path)
            self._disk.take_room(max(0, offset + len(payload) - content.live.allocated))
        except (OSError, PowerCut):
            content.write(payload[: len(payload) // 2], offset)
            raise
        content.write(payload, offset)
        self._touch()

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
        """See :class:`trio_mq.store.disk.File`; changes through it count as no operation."""
        content = self._changing()
        if size > content.live.size:
            raise ValueError("mmap length is greater than file size")
        self._disk.take_room(max(0, size - content.live.allocated))
        return content.map(size)

    def close(self) -> None:
        """See :class:`trio_mq.store.disk.File`."""
        self._node = None

    def _open_node(self) -> Node:
        self._disk.check_power()
        if self._node is None or self._boot != self._disk.boots:
            raise _os_error(errno.EBADF, self.path)
        return self._node

    def _changing(self) -> FileContent:
        node = self._open_node()
        if self._readonly:
            raise _os_error(errno.EBADF, self.path)
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


class MemoryDisk:
    """A file system in memory; see the head of the module for what it may lose.

    `capacity_bytes` is what fits before writes fail with ENOSPC; holes in files take no room.
    `clock` gives modification times; without one, every change is one millisecond after the last.
    """

    def __init__(
        self, *, clock: Clock | None = None, capacity_bytes: int = DEFAULT_CAPACITY_BYTES
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.cold = False
        """While true, :meth:`File.read_cached` finds nothing in the cache."""
        self.run_delay_s = 0.0
        """How long :meth:`run` waits (in Trio's time) before it makes the call: a slow disk."""
        self.boots = 0
        self.operations: list[Operation] = []
        self._clock = clock
        self._ticks_ms = 0
        self._names = Names()
        self._locks: dict[str, str] = {}
        self._faults: list[tuple[Callable[[Operation], bool], int | None]] = []
        self._off = False

    # -- faults and crashes

    def fail_at(self, count: int, error: int = errno.ENOSPC) -> None:
        """Let the `count`-th changing operation from now (1 = the next) fail once with `error`."""
        number = len(self.operations) + count
        self.fail_when(lambda operation: operation.number == number, error)

    def fail_when(self, matches: Callable[[Operation], bool], error: int = errno.EIO) -> None:
        """Let each operation that `matches` fail with the errno `error`, until :meth:`heal`."""
        self._faults.append((matches, error))

    def kill_at(self, count: int) -> None:
        """Cut the power at the `count`-th changing operation from now: it raises :class:`PowerCut`.

        From then on every call raises it, until :meth:`crash` starts the machine again.
        """
        number = len(self.operations) + count
        self._faults.append((lambda operation: operation.number == number, None))

    def heal(self) -> None:
        """Forget all faults that were asked for."""
        self._faults.clear()

    def crash(self, seed: int, *, keep: Keep = "some", reorder_names: bool = False) -> None:
        """Cut the power now (if it is not cut yet) and start again with what survived.

        `keep` says how much of what was not synced survives: `some` lets the seed decide, `none`
        and `all` are the two ends. Afterwards open files are dead (EBADF), locks are free, and
        faults are forgotten.
        """
        self._names.crash(random.Random(seed), keep=keep, reorder=reorder_names)
        self._locks.clear()
        self._faults.clear()
        self._off = False
        self.boots += 1

    def step(self, kind: OperationKind, path: str) -> None:
        """Count a changing operation, and let it fail if a fault was asked for."""
        self.check_power()
        operation = Operation(len(self.operations) + 1, kind, path)
        self.operations.append(operation)
        for matches, error in self._faults:
            if not matches(operation):
                continue
            if error is None:
                self._off = True
                raise PowerCut(f"power cut at operation {operation.number}: {kind} {path}")
            raise _os_error(error, path)

    def check_power(self) -> None:
        """Raise :class:`PowerCut` while the machine is off."""
        if self._off:
            raise PowerCut("the machine is off")

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
            raise _os_error(errno.EISDIR, path)
        node = self._names.find(path)
        if node is None:
            if not create or not self._names.is_dir(posixpath.dirname(path)):
                raise _os_error(errno.ENOENT, path)
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
            raise _os_error(errno.ENOTDIR, path)
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
            raise _os_error(errno.EEXIST, path)
        self.step("make_dirs", path)
        self._names.make_dirs(path)

    def remove(self, path: str) -> None:
        """See :class:`trio_mq.store.disk.Disk`."""
        self.check_power()
        path = posixpath.normpath(path)
        if self._names.is_dir(path):
            raise _os_error(errno.EISDIR, path)
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
            raise _os_error(errno.ENOENT, old)
        if self._names.is_dir(new):
            raise _os_error(errno.EISDIR, new)
        self.step("rename", new)
        self._names.rename(old, new)

    def sync_dir(self, path: str) -> None:
        """See :class:`trio_mq.store.disk.Disk`."""
        self.check_power()
        path = posixpath.normpath(path)
        if not self._names.is_dir(path):
            raise _os_error(errno.ENOENT, path)
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
            raise _os_error(errno.ENOENT, path)
        return node


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
