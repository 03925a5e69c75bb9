"""Taking over thousands of records of the log into queues and index at once, with numpy.

In: lots that came as columns. Out: the same entries and keys as :class:`trio_mq.recovery.feed.Feed` makes of the
records one by one, byte for byte, or nothing at all: where anything about the records is unusual (a hole before one,
an entry that differs, a batch queue, a delayed message, half messages, somebody who waits for them), they are left to
it. Imported where numpy is installed; nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.layout import QUEUE_ENTRY_SIZE
from trio_mq.protocol.message import java_hash, tags_code_of
from trio_mq.protocol.verdict import SCHEDULE_TOPIC
from trio_mq.recovery.columns import ColumnLot, Longs
from trio_mq.recovery.lanes import Lane, LaneOf
from trio_mq.recovery.lots import Lot
from trio_mq.store.bulkindex import BulkHasher, BulkKeys, key_texts
from trio_mq.store.dispatch import Dispatcher
from trio_mq.store.keys import KeyHasher
from trio_mq.store.keyspans import KeySpans, find
from trio_mq.store.multidispatch import MARK

_ENTRY: Final = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_PREPARED: Final = int(MessageFlag.TRANSACTION_PREPARED)
#: Entries in memory that are written to their files while a replay goes on.
TAIL_BYTES: Final = 4 * 1024 * 1024


@attrs.frozen
class _Run:
    """Records of one queue in log order: `known` of them have an entry, those from `first_new` on get one."""

    lane: Lane
    rows: NDArray[np.int64]
    known: int
    first_new: int


@attrs.frozen(eq=False)
class Batch:
    """Records on their way: heads, numbers of their topics, their entries; and all their keys, if any are wanted."""

    heads: NDArray[np.void]
    topics: Longs
    entries: NDArray[np.void]
    keys: BulkKeys | None


class BulkReplay:
    """Feeds queues and index from columns. `trusted` as in :class:`trio_mq.recovery.feed.Feed`."""

    accepts = ColumnLot

    def __init__(
        self, dispatcher: Dispatcher, lane_of: LaneOf, *, trusted: bool, index_enabled: bool
    ) -> None:
        self._dispatcher = dispatcher
        self._lane_of = lane_of
        self._trusted = trusted
        self._index_enabled = index_enabled
        self._hasher = BulkHasher(KeyHasher())
        self._unwritten = 0
        #: Topics by their bytes, numbered as they come.
        self._numbers: dict[bytes, int] = {}
        self._topics: list[str] = []
        #: The hash of ``topic#`` of each, which the hashes of its keys go on from.
        self._topic_hashes: list[int] = []

    def apply(self, lots: Sequence[Lot]) -> bool:
        """Take over all records of some lots; False when they are not of the usual kind, and nothing was done."""
        batch = self.prepare(lots)
        return batch is not None and self.commit(batch)

    def prepare(self, lots: Sequence[Lot]) -> Batch | None:
        """The larger part of the work, which changes nothing; None for records that are not of the usual kind.

        A worker thread may do that, one at a time.
        """
        columns = [lot for lot in lots if isinstance(lot, ColumnLot)]
        heads = np.concatenate([lot.heads for lot in columns])
        if ((heads["sys_flag"] & _PREPARED) != 0).any():  # also of a rollback
            return None
        if self._dispatcher.further is not None:  # a record may be in several queues
            windows = {id(lot.window): lot.window for lot in columns}
            if any(MARK in window for window in windows.values()):
                return None
        topics = self._numbered([topic for lot in columns for topic in lot.topics()])
        texts = [data for lot in columns for data in lot.properties()]
        wants_keys = self._wants_keys(heads)
        spans = find(texts, tags_only=not wants_keys)
        entries = np.empty(len(heads), _ENTRY)
        entries["log_offset"] = heads["log_offset"]
        entries["size"] = heads["size"]
        if spans is None:
            tags = (key_texts(data)[2] for data in texts)
            entries["tags_code"] = [tags_code_of(found) if found else 0 for found in tags]
        else:
            entries["tags_code"] = spans.tags_codes()
        keys = self._keys(heads, topics, texts, spans) if wants_keys else None
        return Batch(heads, topics, entries, keys)

    def commit(self, batch: Batch) -> bool:
        """Give queues and index what was prepared; False when a queue needs a closer look, and nothing was done."""
        runs = self._runs(batch.heads, batch.topics)
        if runs is None or not all(self._agrees(run, batch.heads, batch.entries) for run in runs):
            return False
        if batch.keys is not None and not self._drained():
            return False
        for run in runs:
            self._append(run, batch.entries)
        if batch.keys is not None:
            self._insert(batch.keys, _end(batch.heads))
        self._after(batch.heads)
        return True

    def _drained(self) -> bool:
        """Whether the keys of all records before are in the index; the oldest ones come first."""
        dispatcher = self._dispatcher
        while dispatcher.index_backlog:
            if not dispatcher.index_chunk():
                return False  # it is tried again later
        return True

    def _wants_keys(self, heads: NDArray[np.void]) -> bool:
        return self._index_enabled and self._dispatcher.index.indexed_to < _end(heads)

    def _numbered(self, topics: list[bytes]) -> Longs:
        """Numbers for topics."""
        numbers = self._numbers
        for topic in set(topics).difference(numbers):
            numbers[topic] = len(self._topics)
            name = str(topic, "utf-8", "replace")
            self._topics.append(name)
            self._topic_hashes.append(java_hash(name + "#") & 0xFFFF_FFFF)
        return np.array([numbers[topic] for topic in topics], np.int64)

    def _runs(self, heads: NDArray[np.void], topics: Longs) -> list[_Run] | None:
        """The records by queue; None when a queue of them needs a closer look."""
        keys = topics << 32 | heads["queue_id"].astype(np.int64) & 0xFFFF_FFFF
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        borders = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        runs: list[_Run] = []
        for begin, end in pairwise([0, *borders.tolist(), len(ordered)]):
            rows = order[begin:end]
            topic, queue_id = self._topics[topics[rows[0]]], int(heads["queue_id"][rows[0]])
            lane = None if topic == SCHEDULE_TOPIC else self._lane_of(topic, queue_id)
            if lane is None or lane.queue.is_batch or lane.queue.dropped or lane.queue.watched:
                return None
            run = self._run(lane, rows, heads)
            if run is None:
                return None
            runs.append(run)
        return runs

    def _run(self, lane: Lane, rows: NDArray[np.int64], heads: NDArray[np.void]) -> _Run | None:
        queue = lane.queue
        offsets = heads["log_offset"][rows].astype(np.int64)
        queue_offsets = heads["queue_offset"][rows].astype(np.int64)
        if offsets[0] < lane.from_offset:
            return None
        if (queue_offsets[1:] != queue_offsets[:-1] + 1).any():
            return None
        known = int(np.searchsorted(offsets, lane.known_to))
        first_new = max(known, int(np.searchsorted(offsets, queue.indexed_to)))
        if first_new < len(rows) and int(queue_offsets[first_new]) != queue.max_offset:
            return None
        return _Run(lane, rows, known, first_new)

    def _agrees(self, run: _Run, heads: NDArray[np.void], entries: NDArray[np.void]) -> bool:
        """Whether the entries that the files have are those of the records."""
        if not run.known:
            return True
        position = int(heads["queue_offset"][run.rows[0]]) * QUEUE_ENTRY_SIZE
        wanted = entries[run.rows[: run.known]].tobytes()
        if run.lane.range(position, len(wanted)) != wanted:
            return False
        if not self._trusted:
            run.lane.touched_from = min(run.lane.touched_from, position)
        return True

    def _append(self, run: _Run, entries: NDArray[np.void]) -> None:
        new = run.rows[run.first_new :]
        if not len(new):
            return
        queue = run.lane.queue
        queue.files.append(entries[new].tobytes())
        last = entries[new[-1]]
        queue.indexed_to = int(last["log_offset"]) + int(last["size"])
        traffic = queue.traffic
        traffic.messages += len(new)
        traffic.bytes += int(entries["size"][new].sum())
        self._dispatcher.queues.dirty.add(queue)
        self._unwritten += len(new) * QUEUE_ENTRY_SIZE

    def _after(self, heads: NDArray[np.void]) -> None:
        """What the dispatcher knows of its progress."""
        dispatcher = self._dispatcher
        dispatcher.moved(_end(heads), int(heads["store_ms"][-1]))
        if self._unwritten >= TAIL_BYTES:
            dispatcher.write_tails()
            self._unwritten = 0

    def _insert(self, keys: BulkKeys, end: int) -> None:
        """Put those keys into the index that it does not have."""
        index = self._dispatcher.index
        first = int(np.searchsorted(keys.log_offsets, index.indexed_to))
        if first:
            keys = BulkKeys(keys.hashes[first:], keys.log_offsets[first:], keys.times_ms[first:])
        self._dispatcher.insert_keys(keys, max(index.indexed_to, end))

    def _keys(
        self,
        heads: NDArray[np.void],
        topics: Longs,
        texts: Sequence[bytes],
        spans: KeySpans | None,
    ) -> BulkKeys:
        """The keys of some records."""
        offsets = heads["log_offset"].astype(np.int64)
        times_ms = heads["store_ms"].astype(np.int64)
        if spans is None:
            names = [self._topics[number] for number in topics.tolist()]
            return self._hasher.keys_of(names, map(key_texts, texts), offsets, times_ms)
        of_topics = np.array(self._topic_hashes, np.uint32)[topics]
        hashes, counts = spans.index_hashes(of_topics)
        return BulkKeys(hashes, np.repeat(offsets, counts), np.repeat(times_ms, counts))


def _end(heads: NDArray[np.void]) -> int:
    return int(heads["log_offset"][-1]) + int(heads["size"][-1])
