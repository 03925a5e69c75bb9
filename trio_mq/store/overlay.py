"""A disk that shows another one and keeps every change to itself: what a rehearsal of a start runs on.

In: the calls of :class:`trio_mq.store.disk.Disk`, from any code that would change a store. Out: the answers that a disk
with these changes would give, and :meth:`OverlayDisk.changes`, the list of them. Files of the base are opened for
reading only; nothing in it is created, changed, synced or locked, so it may be read-only, or open in another process.
What that process removes or makes shorter meanwhile is reported as an OSError; what it adds is seen until the first
change of the same file.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar
from weakref import WeakValueDictionary

import attrs

from trio_mq.clock import Clock, SystemClock
from trio_mq.store.disk import Buffer, DirectoryLock, Disk, DiskUsage, File
from trio_mq.store.overlaid import BaseFile, Overlaid, View, differing_bytes
from trio_mq.store.scratch import Scratch

T = TypeVar("T")


@attrs.frozen
class Change:
    """One thing that would be otherwise on the disk. Paths are normalized; sizes are bytes, None without a file.

    `bytes` counts those that differ from the ones before; what lies behind the end of a file, and a file that was
    not there, count as zeros. Of a file that is removed, all count. `old_path` is the name before a `renamed`.
    """

    path: str
    kind: Literal["created", "removed", "changed", "renamed"]
    bytes: int
    size_before: int | None = None
    size: int | None = None
    old_path: str | None = None
    is_dir: bool = False


@attrs.define(eq=False)
class Node:
    """A file, whatever its name is. `path` is None once it is removed, `content` None while no byte is changed."""

    path: str | None
    base_path: str | None
    content: Overlaid | None = None
    modified_ms: int | None = None


class OverlayFile:
    """An open file of an :class:`OverlayDisk`."""

    def __init__(self, disk: OverlayDisk, path: str, node: Node, *, readonly: bool) -> None:
        self.path = path
        self._disk = disk
        self._node: Node | None = node
        self._readonly = readonly
        self._base = disk.open_base(node)

    def read(self, size: int, offset: int) -> bytes:
        """See :class:`trio_mq.store.disk.File`."""
        content = self._open_node().content
        if content is None:
            return self._base.read(size, offset)
        return content.read(size, offset, self._base)

    def read_cached(self, size: int, offset: int) -> bytes | None:
        """See :class:`trio_mq.store.disk.File`."""
        content = self._open_node().content
        if content is not None:
            return content.read_cached(size, offset, self._base)
        return None if self._base.file is None else self._base.file.read_cached(size, offset)

    def next_data(self, offset: int) -> int:
        """See :class:`trio_mq.store.disk.File`."""
        content = self._open_node().content
        if content is not None:
            return content.next_data(offset, self._base)
        return max(offset, min(self._base.next_data(offset), self._base.size()))

    def will_need(self, size: int, offset: int) -> None:
        """See :class:`trio_mq.store.disk.File`."""
        if self._open_node().content is None and self._base.file is not None:
            self._base.file.will_need(size, offset)

    def write(self, data: Buffer, offset: int) -> None:
        """See :class:`trio_mq.store.disk.File`."""
        self._changing().write(data, offset, self._base)

    def size(self) -> int:
        """See :class:`trio_mq.store.disk.File`."""
        content = self._open_node().content
        return self._base.size() if content is None else content.size

    def truncate(self, size: int) -> None:
        """See :class:`trio_mq.store.disk.File`."""
        self._changing().truncate(size)

    def sync(self) -> None:
        """See :class:`trio_mq.store.disk.File`; there is nothing to make durable."""
        self._open_node()

    def map(self, size: int) -> memoryview:
        """See :class:`trio_mq.store.disk.File`."""
        return self._changing().map(size, self._base)

    def close(self) -> None:
        """See :class:`trio_mq.store.disk.File`."""
        self._node = None
        self._base.close()

    def _open_node(self) -> Node:
        if self._node is None:
            raise _os_error(errno.EBADF, self.path)
        return self._node

    def _changing(self) -> Overlaid:
        node = self._open_node()
        if self._readonly:
            raise _os_error(errno.EBADF, self.path)
        return self._disk.content_to_change(node, self._base)


class NoLock:
    """Stands for the lock of a store, which nobody needs who changes nothing."""

    def release(self) -> None:
        """See :class:`trio_mq.store.disk.DirectoryLock`."""


class OverlayDisk:
    """The disk `base` with changes of our own. Files (not folders) can be renamed.

    `scratch` has room for what is changed; by default a few MiB of memory and a temporary file. `clock` gives the times
    of changes.
    """

    def __init__(
        self, base: Disk, *, scratch: Scratch | None = None, clock: Clock | None = None
    ) -> None:
        self.base = base
        self.scratch = Scratch() if scratch is None else scratch
        self._clock = SystemClock() if clock is None else clock
        #: Files that are new, changed or renamed, by path; and those of the base that are just open.
        self._nodes: dict[str, Node] = {}
        self._open: WeakValueDictionary[str, Node] = WeakValueDictionary()
        self._dirs: set[str] = set()
        #: Names of these files and folders, by folder.
        self._names: dict[str, set[str]] = {}
        #: Paths of the base that are removed, with all below.
        self._hidden: set[str] = set()

    # -- for open files --------------------------------------------------------------------------------------

    def open_base(self, node: Node) -> BaseFile:
        """Open what a file shows of the base."""
        path = node.base_path
        if path is None or (node.content is not None and not node.content.base_limit):
            return BaseFile(None, path or "")
        try:
            return BaseFile(self.base.open(path, readonly=True), path)
        except FileNotFoundError as error:
            text = "the file has gone while it was in use, so another process changes the store"
            raise FileNotFoundError(errno.ENOENT, text, path) from error

    def content_to_change(self, node: Node, base: BaseFile) -> Overlaid:
        """The bytes of a file that is about to be changed; from now on it is ours."""
        if node.content is None:
            node.content = Overlaid(self.scratch, base.size())
            if node.path is not None and node.path not in self._nodes:
                self._bind(node.path, node)
        node.modified_ms = self._clock.now_ms()
        return node.content

    # -- names -----------------------------------------------------------------------------------------------

    def _shown(self, path: str) -> bool:
        """Whether a path of the base, if it is there, can be seen."""
        if not self._hidden:
            return True
        while path not in self._hidden:
            above = posixpath.dirname(path)
            if above in ("", path):
                return True
            path = above
        return False

    def _find(self, path: str) -> Node | None:
        """The file at a normalized path, if there is one and it is no folder."""
        node = self._nodes.get(path)
        if node is None and self._shown(path) and self.base.exists(path):
            node = self._open.setdefault(path, Node(path, path))
        return node

    def _bind(self, path: str, node: Node) -> None:
        node.path = path
        self._nodes[path] = node
        self._open.pop(path, None)
        self._names.setdefault(_parent(path), set()).add(posixpath.basename(path))

    def _unbind(self, path: str) -> None:
        """Take away the name of a file; one of the base shows through unless it is hidden."""
        node = self._nodes.pop(path, None) or self._open.pop(path, None)
        if node is not None:
            node.path = None
        self._names.get(_parent(path), set()).discard(posixpath.basename(path))

    def _hide(self, path: str) -> None:
        if self._shown(path) and self.base.exists(path):
            self._hidden.add(path)

    # -- the Disk protocol -----------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, readonly: bool = False) -> File:
        """See :class:`trio_mq.store.disk.Disk`."""
        path = posixpath.normpath(path)
        if self.is_dir(path):
            raise _os_error(errno.EISDIR, path)
        node = self._find(path)
        if node is None:
            if not create or not self.is_dir(_parent(path)):
                raise _os_error(errno.ENOENT, path)
            node = Node(path, None, Overlaid(self.scratch, 0), self._clock.now_ms())
            self._bind(path, node)
        return OverlayFile(self, path, node, readonly=readonly)

    def exists(self, path: str) -> bool:
        """See :class:`trio_mq.store.disk.Disk`."""
        path = posixpath.normpath(path)
        if path in self._nodes or path in self._dirs:
            return True
        return self._shown(path) and self.base.exists(path)

    def is_dir(self, path: str) -> bool:
        """See :class:`trio_mq.store.disk.Disk`."""
        path = posixpath.normpath(path)
        if path in self._nodes:
            return False
        return path in self._dirs or (self._shown(path) and self.base.is_dir(path))

    def list_dir(self, path: str) -> list[str]:
        """See :class:`trio_mq.store.disk.Disk`."""
        path = posixpath.normpath(path)
        if path in self._nodes:
            raise _os_error(errno.ENOTDIR, path)
        names = set(self._names.get(path, ()))
        if self._shown(path):
            found = self.base.list_dir(path)
            if self._hidden:
                found = [name for name in found if _join(path, name) not in self._hidden]
            names.update(found)
        return sorted(names)

    def size(self, path: str) -> int:
        """See :class:`trio_mq.store.disk.Disk`."""
        node = self._existing(path)
        if node.content is not None:
            return node.content.size
        return self.base.size(str(node.base_path))

    def modified_ms(self, path: str) -> int:
        """See :class:`trio_mq.store.disk.Disk`."""
        node = self._existing(path)
        if node.modified_ms is not None:
            return node.modified_ms
        return self.base.modified_ms(str(node.base_path))

    def make_dirs(self, path: str) -> None:
        """See :class:`trio_mq.store.disk.Disk`."""
        path = posixpath.normpath(path)
        missing: list[str] = []
        above = path
        while not self.is_dir(above):
            if self.exists(above):
                raise _os_error(errno.EEXIST if above == path else errno.ENOTDIR, path)
            missing.append(above)
            above = _parent(above)
        for directory in missing:
            self._dirs.add(directory)
            self._names.setdefault(_parent(directory), set()).add(posixpath.basename(directory))

    def remove(self, path: str) -> None:
        """See :class:`trio_mq.store.disk.Disk`."""
        path = posixpath.normpath(path)
        if self.is_dir(path):
            raise _os_error(errno.EISDIR, path)
        self._unbind(path)
        self._hide(path)

    def remove_tree(self, path: str) -> None:
        """See :class:`trio_mq.store.disk.Disk`."""
        path = posixpath.normpath(path)
        if not self.is_dir(path):
            return
        inside = path.rstrip("/") + "/"
        for name in [n for n in (*self._nodes, *self._open) if n.startswith(inside)]:
            self._unbind(name)
        for name in [n for n in self._dirs if n == path or n.startswith(inside)]:
            self._dirs.discard(name)
            self._names.get(_parent(name), set()).discard(posixpath.basename(name))
        self._hide(path)

    def rename(self, old: str, new: str) -> None:
        """See :class:`trio_mq.store.disk.Disk`; files only."""
        old, new = posixpath.normpath(old), posixpath.normpath(new)
        node = None if self.is_dir(old) else self._find(old)
        if node is None or not self.is_dir(_parent(new)):
            raise _os_error(errno.ENOENT, old)
        if self.is_dir(new):
            raise _os_error(errno.EISDIR, new)
        if old != new:
            self._unbind(old)
            self._hide(old)
            self._unbind(new)
            self._bind(new, node)

    def sync_dir(self, path: str) -> None:
        """See :class:`trio_mq.store.disk.Disk`; there is nothing to make durable."""
        if not self.is_dir(path):
            raise _os_error(errno.ENOENT, path)

    def usage(self, path: str) -> DiskUsage:
        """See :class:`trio_mq.store.disk.Disk`; of the base, which changes do not fill."""
        path = posixpath.normpath(path)
        while not self.base.exists(path) and _parent(path) != path:
            path = _parent(path)
        return self.base.usage(path)

    def lock(self, path: str, content: bytes) -> DirectoryLock:
        """Nothing is locked, and nobody is asked."""
        return NoLock()

    async def run(self, call: Callable[[], T]) -> T:
        """See :class:`trio_mq.store.disk.Disk`."""
        return await self.base.run(call)

    def _existing(self, path: str) -> Node:
        path = posixpath.normpath(path)
        node = None if self.is_dir(path) else self._find(path)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        return node

    # -- what was done ---------------------------------------------------------------------------------------

    def changes(self) -> list[Change]:
        """All that is otherwise than in the base, sorted by path. Compares content: blocking.

        A file that was written to and has the same bytes as before is no change.
        """
        found = [
            Change(path, "created", 0, is_dir=True)
            for path in self._dirs
            if not self.base.is_dir(path)
        ]
        moved: set[str] = set()
        for path, node in list(self._nodes.items()):
            change = self._change_of(path, node)
            if change is None:
                continue
            found.append(change)
            if change.old_path is not None:
                moved.add(change.old_path)
        for path in self._hidden:
            if self._shown(posixpath.dirname(path)):
                found += self._removed(path, moved)
        return sorted(found, key=lambda change: change.path)

    def _change_of(self, path: str, node: Node) -> Change | None:
        """What happened to the file that is at `path` now."""
        before_path = path if self.base.exists(path) and not self.base.is_dir(path) else None
        old_path = None
        if before_path is None and node.base_path is not None:
            before_path = old_path = node.base_path
        before = self._base_file(before_path)
        base = before if node.base_path == before_path else self._base_file(node.base_path)
        try:
            content = node.content or Overlaid(self.scratch, base.size())
            if base is before:
                count = content.changed_bytes(base)
            else:
                end = max(content.size, before.size())
                count = differing_bytes(View(content, base), before, 0, end)
            size_before = None if before.file is None else before.size()
            if old_path is not None:
                return Change(path, "renamed", count, size_before, content.size, old_path)
            if size_before is None:
                return Change(path, "created", count, None, content.size)
            if not count and size_before == content.size:
                return None
            return Change(path, "changed", count, size_before, content.size)
        finally:
            before.close()
            base.close()

    def _base_file(self, path: str | None) -> BaseFile:
        """A file of the base, or none if there is none (any more)."""
        if path is None:
            return BaseFile(None, "")
        try:
            return BaseFile(self.base.open(path, readonly=True), path)
        except FileNotFoundError:
            return BaseFile(None, path)

    def _removed(self, path: str, moved: set[str]) -> Iterator[Change]:
        """Files and folders of the base, from `path` on, that cannot be seen any more."""
        if self.base.is_dir(path):
            if not self.is_dir(path):
                yield Change(path, "removed", 0, is_dir=True)
            for name in self.base.list_dir(path):
                yield from self._removed(_join(path, name), moved)
        elif path not in self._nodes and path not in moved:
            try:
                size = self.base.size(path)
            except FileNotFoundError:
                return  # somebody else has removed it, too
            yield Change(path, "removed", size, size)


def _parent(path: str) -> str:
    return posixpath.dirname(path) or "."


def _join(directory: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(directory, name))


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
