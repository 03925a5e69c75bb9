"""As :class:`trio_mq.lookinside.feed.Feed`, for lots that come as columns: with numpy, and twice as fast.

Whatever is unusual about a record, or does not fit, is left to the way that looks at records one by one, so both find
the same. Imported by :mod:`trio_mq.lookinside.feed` only when numpy is installed; nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from trio_mq.lookinside.bulkkeys import BulkExpected
from trio_mq.lookinside.feed import Feed
from trio_mq.lookinside.queuelane import ODD_FLAGS
from trio_mq.lookinside.verify_index import IndexCheck
from trio_mq.lookinside.verify_queues import QueueCheck
from trio_mq.protocol.layout import QUEUE_ENTRY_SIZE
from trio_mq.protocol.message import tags_code_of
from trio_mq.protocol.verdict import Whole
from trio_mq.recovery.columns import ColumnLot
from trio_mq.recovery.lots import Lot
from trio_mq.store.bulkindex import BulkHasher, key_texts
from trio_mq.store.keys import KeyHasher

_ENTRY = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_ROLLBACK = 0xC
#: Records that a run of columns has on average where it is worth it.
LEAST_RECORDS = 8


class BulkFeed(Feed):
    """Hands columns on where all lots of a flush have them."""

    def __init__(self, queues: QueueCheck | None, index: IndexCheck) -> None:
        super().__init__(queues, index)
        self._hasher = BulkHasher(KeyHasher())
        self._topics: dict[bytes, int] = {}
        self._names: list[str] = []

    def hand_on(self, lots: list[Lot]) -> None:
        """See :class:`Feed`."""
        runs = [(kind, list(run)) for kind, run in groupby(lots, type)]
        if len(runs) * LEAST_RECORDS > sum(lot.count for lot in lots):
            super().hand_on(lots)
            return
        for _, run in runs:
            columns = [lot for lot in run if isinstance(lot, ColumnLot)]
            if not columns or not self._hand_on(columns):
                super().hand_on(run)

    def _hand_on(self, columns: list[ColumnLot]) -> bool:
        """Compare what lies in columns; False, and nothing done, when some of it has no entry or no keys."""
        some = _Columns(columns)
        if np.any(some.flags & ODD_FLAGS) or np.any((some.flags & _ROLLBACK) == _ROLLBACK):
            return False
        texts = [key_texts(data) for lot in columns for data in lot.properties()]
        topics = [topic for lot in columns for topic in lot.topics()]
        numbers = self._numbered(topics)
        if self.queues is not None:
            tags = [tags_code_of(found[2]) if found[2] else 0 for found in texts]
            self._queues(self.queues, some, numbers, np.array(tags, np.int64))
        if not self.index.is_idle:
            names = [self._names[number] for number in numbers.tolist()]
            keys = self._hasher.keys_of(names, texts, some.log_offsets, some.times_ms)
            if not self.index.advance(BulkExpected(keys)):
                self.index.look(some.records())
        return True

    def _numbered(self, topics: Sequence[bytes]) -> NDArray[np.int64]:
        """A number for each topic."""
        known = self._topics
        for topic in set(topics) - known.keys():
            known[topic] = len(known)
            self._names.append(str(topic, "utf-8", "replace"))
        return np.array([known[topic] for topic in topics], np.int64)

    def _queues(
        self,
        check: QueueCheck,
        some: _Columns,
        topics: NDArray[np.int64],
        tags: NDArray[np.int64],
    ) -> None:
        """Compare the records of each queue with its next entries."""
        order = np.lexsort((some.queue_ids, topics))
        topics, queue_ids = topics[order], some.queue_ids[order]
        offsets = some.queue_offsets[order]
        entries = np.empty(len(order), _ENTRY)
        entries["log_offset"] = some.log_offsets[order]
        entries["size"] = some.sizes[order]
        entries["tags_code"] = tags[order]
        packed = entries.tobytes()
        borders = (topics[1:] != topics[:-1]) | (queue_ids[1:] != queue_ids[:-1])
        breaks = np.concatenate(([0], np.cumsum(~borders & (np.diff(offsets) != 1))))
        first = np.concatenate(([0], np.flatnonzero(borders) + 1, [len(order)])).tolist()
        for begin, end in pairwise(first):
            key = self._names[topics[begin]], int(queue_ids[begin])
            lane = check.lane(key)
            if (
                lane is None
                or breaks[begin] != breaks[end - 1]
                or not lane.is_at(int(offsets[begin]))
                or not lane.advance(packed[begin * QUEUE_ENTRY_SIZE : end * QUEUE_ENTRY_SIZE])
            ):
                records = some.records()
                check.look_at_queue(key, [records[row] for row in order[begin:end].tolist()])


class _Columns:
    """What some lots hold, side by side, in log order."""

    def __init__(self, lots: list[ColumnLot]) -> None:
        heads = np.concatenate([lot.heads for lot in lots])
        self._lots = lots
        self._records: list[Whole] = []
        self.sizes = heads["size"]
        self.queue_ids = heads["queue_id"].astype(np.int64)
        self.queue_offsets = heads["queue_offset"].astype(np.int64)
        self.log_offsets = heads["log_offset"].astype(np.int64)
        self.flags = heads["sys_flag"].astype(np.int64)
        self.times_ms = heads["store_ms"].astype(np.int64)

    def records(self) -> list[Whole]:
        """The records themselves, made when they are first wanted."""
        if not self._records:
            self._records = [record for lot in self._lots for record in lot.records()]
        return self._records
