"""What the disk in memory remembers: bytes and names as seen now, and as a crash leaves them.

In: writes, syncs and changes of names, from :class:`trio_mq.testing.disk.MemoryDisk`. Out: the
present state, and after :meth:`Names.crash` one of the states that a power cut permits. No faults
and no errors of an operating system here; those are the disk's.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Iterable
from typing import Literal, assert_never

import attrs

SECTOR_BYTES = 512
"""Smallest piece that a disk writes as a whole."""

PAGE_BYTES = 4096
"""Smallest piece of a mapped file that is written as a whole."""

Keep = Literal["some", "none", "all"]


@attrs.define(eq=False)
class Bytes:
    """Content of a file: `size` bytes, of which all behind `data` are zeros that take no room."""

    data: bytearray = attrs.field(factory=bytearray)
    size: int = 0

    @property
    def allocated(self) -> int:
        """Bytes that take room."""
        return len(self.data)

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
        end = offset + len(piece)
        if len(self.data) < end:
            self.data.extend(bytes(end - len(self.data)))
        self.data[offset:end] = piece
        self.size = max(self.size, end)

    def truncate(self, size: int) -> None:
        """As `ftruncate`."""
        del self.data[size:]
        self.size = size


@attrs.frozen
class Write:
    """A write that is not synced yet."""

    offset: int
    piece: bytes

    def apply(self, content: Bytes) -> None:
        """Make it in `content`."""
        content.write(self.piece, self.offset)

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
    """Bytes of one file as seen now, as last synced, and the changes between the two."""

    live: Bytes = attrs.field(factory=Bytes)
    _durable: Bytes = attrs.field(factory=Bytes)
    _pending: list[Write | Truncate] = attrs.field(factory=list)
    _doubtful: list[Write | Truncate] = attrs.field(factory=list)
    _mapped: int = 0

    def write(self, piece: bytes, offset: int) -> None:
        """Change the present state."""
        self._change(Write(offset, piece))

    def truncate(self, size: int) -> None:
        """Change the present state."""
        self._change(Truncate(size))

    def _change(self, change: Write | Truncate) -> None:
        change.apply(self.live)
        self._pending.append(change)

    def map(self, size: int) -> memoryview:
        """The first `size` bytes of the present state, to be written without a call."""
        missing = size - len(self.live.data)
        if missing > 0:
            self.live.data.extend(bytes(missing))
        self._mapped = max(self._mapped, size)
        return memoryview(self.live.data)[:size]

    def sync(self) -> None:
        """All changes since the last sync will survive."""
        for change in self._pending:
            change.apply(self._durable)
        self._pending.clear()
        if self._mapped:
            self._durable.write(self.live.read(self._mapped, 0), 0)

    def doubt(self) -> None:
        """A sync failed: what it was about may survive, but no later sync promises it."""
        self._doubtful.extend(self._pending)
        self._pending.clear()

    def crash(self, rng: random.Random, keep: Keep) -> None:
        """Forget some of what was not synced; what is left counts as synced."""
        changes = [*self._doubtful, *self._pending]
        for change in changes:
            if keep == "all":
                change.apply(self._durable)
            elif keep == "some":
                change.tear(self._durable, rng)
        for page in range(0, self._mapped, PAGE_BYTES):  # which ones were written, nobody knows
            if keep == "all" or (keep == "some" and rng.random() < 0.5):
                count = min(PAGE_BYTES, self._mapped - page)
                self._durable.write(self.live.read(count, page), page)
        self._doubtful.clear()
        self._pending.clear()
        self._mapped = 0
        self.live = Bytes(bytearray(self._durable.data), self._durable.size)


@attrs.define(eq=False)
class Node:
    """A file, whatever its name is."""

    modified_ms: int
    content: FileContent = attrs.field(factory=FileContent)


@attrs.frozen
class Bind:
    """A file got a name."""

    path: str
    node: Node


@attrs.frozen
class Unbind:
    """A name was removed."""

    path: str


@attrs.frozen
class Rename:
    """A file changed its name."""

    old: str
    new: str
    node: Node


@attrs.frozen
class MakeDir:
    """A directory appeared."""

    path: str


@attrs.frozen
class RemoveDir:
    """A directory disappeared."""

    path: str


Change = Bind | Unbind | Rename | MakeDir | RemoveDir


@attrs.define(eq=False)
class Tree:
    """Names of files, and directories, with what each directory holds."""

    files: dict[str, Node] = attrs.field(factory=dict)
    dirs: set[str] = attrs.field(factory=set)
    children: dict[str, set[str]] = attrs.field(factory=dict)
    _path_of: dict[Node, str] = attrs.field(factory=dict)

    def apply(self, change: Change) -> None:
        """Make one change of names; one that no longer fits changes nothing."""
        match change:
            case Bind(path, node):
                # a file has one name: where its rename is durable already, the old one is history
                if node not in self._path_of:
                    self._bind(path, node)
            case Unbind(path):
                self._unbind(path)
            case Rename(old, new, node):
                if self.files.get(old) is node:
                    self._unbind(old)
                self._bind(new, node)
            case MakeDir(path):
                self.dirs.add(path)
                self.children.setdefault(parent(path), set()).add(path)
            case RemoveDir(path):
                self.dirs.discard(path)
                self.children.get(parent(path), set()).discard(path)
            case _:
                assert_never(change)

    def _bind(self, path: str, node: Node) -> None:
        self._unbind(path)
        earlier = self._path_of.get(node)
        if earlier is not None:
            self._unbind(earlier)
        self.files[path] = node
        self._path_of[node] = path
        self.children.setdefault(parent(path), set()).add(path)

    def _unbind(self, path: str) -> None:
        node = self.files.pop(path, None)
        if node is not None:
            del self._path_of[node]
            self.children[parent(path)].discard(path)

    def without_orphans(self) -> Tree:
        """A copy that lacks what lies in directories that are not there."""
        copy = Tree()
        for path in sorted(self.dirs):  # parents sort before their children
            if is_root(parent(path)) or parent(path) in copy.dirs:
                copy.apply(MakeDir(path))
        for path, node in self.files.items():
            if is_root(parent(path)) or parent(path) in copy.dirs:
                copy.apply(Bind(path, node))
        return copy


class Names:
    """The names on a disk as seen now, as last synced, and the changes between the two."""

    def __init__(self) -> None:
        self._live = Tree()
        self._durable = Tree()
        self._pending: list[Change] = []

    def find(self, path: str) -> Node | None:
        """The file of that name."""
        return self._live.files.get(path)

    def is_dir(self, path: str) -> bool:
        """Whether a directory is there; the root and the working directory always are."""
        return is_root(path) or path in self._live.dirs

    def children(self, path: str) -> list[str]:
        """Sorted names in a directory."""
        return sorted(posixpath.basename(name) for name in self._live.children.get(path, ()))

    def used_bytes(self) -> int:
        """Bytes that take room."""
        return sum(node.content.live.allocated for node in self._live.files.values())

    def bind(self, path: str, node: Node) -> None:
        """Give a file its name."""
        self._change(Bind(path, node))

    def unbind(self, path: str) -> None:
        """Remove a name."""
        self._change(Unbind(path))

    def rename(self, old: str, new: str) -> None:
        """Move a name, replacing `new`."""
        self._change(Rename(old, new, self._live.files[old]))

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents."""
        for directory in reversed(list(ancestors(path))):
            if directory not in self._live.dirs:
                self._change(MakeDir(directory))

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all it holds, from the leaves up."""
        inside = path + "/"
        for name in [name for name in self._live.files if name.startswith(inside)]:
            self._change(Unbind(name))
        for name in sorted((n for n in self._live.dirs if n.startswith(inside)), reverse=True):
            self._change(RemoveDir(name))
        self._change(RemoveDir(path))

    def _change(self, change: Change) -> None:
        self._live.apply(change)
        self._pending.append(change)

    def sync(self, directory: str) -> None:
        """The names in a directory will survive, and so will the way to it.

        Real file systems make a new directory durable together with the first sync inside it.
        """
        way = set(ancestors(directory))
        left: list[Change] = []
        for change in self._pending:
            if directory in _parents(change) or (
                isinstance(change, MakeDir | RemoveDir) and change.path in way
            ):
                self._durable.apply(change)
            else:
                left.append(change)
        self._pending = left

    def crash(self, rng: random.Random, *, keep: Keep, reorder: bool) -> None:
        """Forget some of what was not synced: names, and bytes of the files that keep one."""
        count = len(self._pending)
        if keep == "all":
            kept = self._pending
        elif keep == "none":
            kept = []
        elif reorder:
            kept = [change for change in self._pending if rng.random() < 0.5]
        else:
            kept = self._pending[: rng.randint(0, count)]
        for change in kept:
            self._durable.apply(change)
        self._durable = self._durable.without_orphans()
        self._pending = []
        for path in sorted(self._durable.files):
            self._durable.files[path].content.crash(rng, keep)
        self._live = self._durable.without_orphans()


def ancestors(path: str) -> Iterable[str]:
    """`path` and the directories above it, from the inside out, without the root."""
    while not is_root(path):
        yield path
        path = posixpath.dirname(path)


def parent(path: str) -> str:
    """The directory that holds `path`, spelled as :func:`posixpath.normpath` spells it."""
    return posixpath.dirname(path) or "."


def is_root(path: str) -> bool:
    """Whether a path is one that needs no creating."""
    return path in ("", ".", "/")


def _parents(change: Change) -> set[str]:
    if isinstance(change, Rename):
        return {parent(change.old), parent(change.new)}
    return {parent(change.path)}
