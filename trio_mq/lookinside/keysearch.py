"""Index files as they lie on the disk, read only, and the search for a key in them.

In: the paths of index files. Out: headers, entries, and log offsets of records that may have a key. The index of a
running broker maps its files for writing; here they are read, a bit at a time. Called by `cat`, `ls` and `verify`.
Format: ``docs/reference/store-format.md``; source: Apache IndexFile, IndexService.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from trio_mq.lookinside.view import StoreView
from trio_mq.protocol.layout import (
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT,
    INDEX_SLOT_SIZE,
    IndexEntry,
    IndexHeader,
    index_entry_position,
    index_file_size,
    index_slot_position,
    unpack_index_entry,
    unpack_index_header,
)
from trio_mq.store.disk import File
from trio_mq.store.index import NAME_DIGITS

#: Entries looked at in one chain.
CHAIN_LIMIT = 1_000_000


@attrs.frozen(eq=False)
class IndexFileView:
    """One index file. `fault` says why its entries cannot be read, empty when they can."""

    path: str
    size: int
    slots: int
    capacity: int
    header: IndexHeader
    fault: str
    _file: File

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.path.rpartition("/")[2]

    @property
    def count(self) -> int:
        """Entries that are in use; the first has number 1."""
        return 0 if self.fault else self.header.index_count - 1

    def entries(self, number: int, count: int) -> bytes:
        """The bytes of some entries."""
        at = index_entry_position(number, self.slots)
        return self._file.read(count * INDEX_ENTRY_SIZE, at)

    def entry(self, number: int) -> IndexEntry:
        """One entry."""
        return unpack_index_entry(self.entries(number, 1))

    def slot_values(self, first: int, count: int) -> bytes:
        """The bytes of some slots."""
        return self._file.read(count * INDEX_SLOT_SIZE, index_slot_position(first))

    def search(self, key_hash: int) -> Iterator[int]:
        """Log offsets of entries with a hash, newest first; ends at a link that does not go backwards."""
        if self.fault:
            return
        number = INDEX_SLOT.unpack(self.slot_values(key_hash % self.slots, 1))[0]
        for _ in range(CHAIN_LIMIT):
            if not 0 < number <= self.count:
                return
            found, log_offset, _, previous = self.entry(number)
            if found == key_hash:
                yield log_offset
            if previous >= number:
                return
            number = previous

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_index(view: StoreView) -> list[IndexFileView]:
    """All index files, in the order of the records that they know."""
    directory = f"{view.root}/index"
    slots, capacity = view.settings.max_hash_slot_num, view.settings.max_index_num
    found = []
    for name in view.base.list_dir(directory):
        path = f"{directory}/{name}"
        if name.isascii() and name.isdigit() and len(name) == NAME_DIGITS:
            found.append(_open(view, path, slots, capacity))
    return sorted(found, key=lambda f: (f.header.end_log_offset, f.header.begin_log_offset))


def _open(view: StoreView, path: str, slots: int, capacity: int) -> IndexFileView:
    file = view.base.open(path, readonly=True)
    size, expected = file.size(), index_file_size(slots, capacity)
    head = file.read(INDEX_HEADER_SIZE, 0)
    header = IndexHeader(0, 0, 0, 0, 0, 1)
    fault = ""
    if len(head) == INDEX_HEADER.size:
        header = unpack_index_header(head)
    if size != expected:
        fault = f"has {size} bytes instead of {expected}"
    elif header.index_count > capacity:
        fault = f"counts {header.index_count - 1} entries, but has room for {capacity - 1}"
    return IndexFileView(path, size, slots, capacity, header, fault, file)
