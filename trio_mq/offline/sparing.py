"""A key index for rehearsals: it takes the first keys as ever, and only counts what comes after them.

In: keys of records, from the dispatcher. Out: index files in an overlay, as exact as a start would make them when
there are few keys; else their number. To fill hundreds of megabytes that nobody will read would only cost time and
room. Called by :mod:`trio_mq.offline.rehearsal`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from trio_mq.store.index import KeyIndex
from trio_mq.store.indexfile import SomeKeys
from trio_mq.store.store import StoreParts

#: Keys that are inserted in earnest: more than a crash leaves to be inserted again, fewer than a rebuild has.
KEYS_INSERTED: Final = 100_000


class SparingIndex(KeyIndex):
    """All index files of a store. `added` counts all keys that came, `spared` those of them that are in no file."""

    limit: int = KEYS_INSERTED
    #: Whether slots point to entries that are not there any more, so that none can be followed.
    is_loose: bool = False
    added: int = 0
    spared: int = 0

    def insert(self, keys: SomeKeys, begin: int = 0) -> int:
        """See :class:`trio_mq.store.index.KeyIndex`."""
        if self.added < self.limit:
            count = super().insert(keys, begin)
        else:
            if not self.files:
                self._roll()
            count = keys.total - begin
            self.spared += count
        self.added += count
        return count

    def truncate(self, log_offset: int) -> list[str]:
        """See :class:`trio_mq.store.index.KeyIndex`. Where many keys go, what stays is counted and not linked anew."""
        staying = [f for f in self.files if f.header.begin_log_offset < log_offset]
        if staying:
            newest = staying[-1]
            kept = newest.count_before(log_offset)
            if self.is_loose or newest.header.index_count - kept > self.limit:
                end = newest.entry(kept - 1)[1] if kept > 1 else newest.header.begin_log_offset
                newest.header = newest.header._replace(index_count=kept, end_log_offset=end)
                newest.store_header()
                self.is_loose, self.limit = True, 0
                notes = [self._drop_last() for _ in self.files[len(staying) :]]
                self.indexed_to = min(self.indexed_to, log_offset)
                return [*notes, f"{newest.path} is cut back to the records before {log_offset}"]
        return super().truncate(log_offset)

    def _drop_last(self) -> str:
        path = self.files[-1].path
        self._drop(len(self.files) - 1)
        return f"{path} indexes only records behind the cut and is dropped"

    @property
    def left(self) -> int:
        """Keys in the files that were there before."""
        counts = (max(0, index_file.header.index_count - 1) for index_file in self.files)
        return sum(counts) - (self.added - self.spared)


def with_sparing_index(
    parts: StoreParts, now_ms: Callable[[], int]
) -> tuple[StoreParts, SparingIndex]:
    """The same parts with such an index, which nothing was loaded into yet."""
    before = parts.index
    index = SparingIndex(
        before.disk,
        before.directory,
        slots=before.slots,
        entries=before.entries,
        now_ms=now_ms,
    )
    return attrs.evolve(parts, index=index), index
