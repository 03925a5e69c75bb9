"""The names on a disk in memory: as seen now, as last synced, and as a crash leaves them.

In: changes of names and syncs of directories, from :class:`trio_mq.testing.disk.MemoryDisk`. Out: the present names,
and after :meth:`Names.crash` one of the states that a power cut permits. No errors of an operating system here.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Iterable
from typing import assert_never

import attrs

from trio_mq.testing.disk_state import Keep, Node


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

    def copy(self, nodes: dict[Node, Node]) -> Tree:
        """The same names for other files; those that `nodes` does not have yet are copied into it."""
        for node in self.files.values():
            if node not in nodes:
                nodes[node] = Node(node.modified_ms, node.content.copy())
        return Tree(
            {path: nodes[node] for path, node in self.files.items()},
            set(self.dirs),
            {path: set(names) for path, names in self.children.items()},
            {nodes[node]: path for node, path in self._path_of.items()},
        )

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

    def copy(self) -> Names:
        """The same names, of copies of the files."""
        nodes: dict[Node, Node] = {}
        copy = Names()
        copy._live, copy._durable = self._live.copy(nodes), self._durable.copy(nodes)
        for change in self._pending:
            if isinstance(change, Bind | Rename):
                if change.node not in nodes:  # removed since
                    nodes[change.node] = Node(change.node.modified_ms, change.node.content.copy())
                change = attrs.evolve(change, node=nodes[change.node])
            copy._pending.append(change)
        return copy

    def find(self, path: str) -> Node | None:
        """The file of that name."""
        return self._live.files.get(path)

    def files(self) -> list[tuple[str, Node]]:
        """All files by path, in order."""
        return sorted(self._live.files.items(), key=lambda item: item[0])

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

    def kill(self) -> None:
        """The process that used the files has ended."""
        for node in self._live.files.values():
            node.content.kill()

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
