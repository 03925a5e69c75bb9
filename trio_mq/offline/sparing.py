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
    added: int = 0
    spared: int = 0

    def insert(self, keys: SomeKeys, begin: int = 0) -> int:
        """See :class:`trio_mq.store.index.KeyIndex`."""
        if self.added < self.limit:
            count = super().insert(keys, begin)
        else:
            count = keys.total - begin
            self.spared += count
        self.added += count
        return count

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
