"""Looking at the index of a store without changing it: what it holds, what is lost or damaged, and whose it is.

In: the loaded index, the log. Out: :class:`IndexState`. Everything here blocks and belongs in a worker thread; it is
called by :mod:`trio_mq.recovery.recover`. Source: Apache IndexService.load.
"""

from __future__ import annotations

from typing import Final

import attrs

from trio_mq.protocol.layout import index_key_hash
from trio_mq.protocol.record import keys_for_index
from trio_mq.protocol.verdict import Whole
from trio_mq.recovery.scan import LogFiles, record_at
from trio_mq.store.index import KeyIndex
from trio_mq.store.indexfile import IndexFile

#: Entries of an index file that are compared with the log, to tell whether the two belong together.
INDEX_SAMPLES: Final = 4
_ANY_OFFSET: Final = 1 << 63


@attrs.frozen
class IndexSpan:
    """What one index file holds: log offsets of its first and last record, store time of the last."""

    begin_offset: int
    end_offset: int
    end_ms: int


@attrs.frozen
class IndexState:
    """The index as found. `whole_to`: what was lost lies behind the record at this log offset, -1 for everything.

    `whole_to` is None when no file is missing. `foreign`: its entries do not fit the records of this log. `sound_from`:
    entries of records from there on were looked at, and none was lost with its page; None when nobody looked.
    `damaged`: paths of loaded files whose header and entries contradict each other.
    """

    spans: tuple[IndexSpan, ...] = ()
    whole_to: int | None = None
    foreign: bool = False
    sound_from: int | None = None
    damaged: tuple[str, ...] = ()

    @property
    def end_offset(self) -> int:
        """Log offset of the newest record in the index, -1 without one."""
        return self.spans[-1].end_offset if self.spans else -1


def scan_index(index: KeyIndex, log: LogFiles, *, clean: bool, safe_offset: int) -> IndexState:
    """Look at the loaded index files, and at the names of those that could not be used.

    After a crash the end of a file may be anything; how far it counts is decided by the checkpoint. What a crash
    does not explain is damage then, too: else the next start finds it, after a clean stop.
    """
    spans = tuple(
        IndexSpan(h.begin_log_offset, h.end_log_offset, h.end_timestamp_ms)
        for h in (f.header for f in index.files)
    )
    whole_to: int | None = None
    damaged = tuple(
        f.path for f in index.files if _is_damaged(f, clean=clean, safe_offset=safe_offset)
    )
    unusable = [*index.unusable, *damaged]
    if not spans:
        whole_to = -1
    elif unusable:
        first = min(unusable)
        before = [f.header.end_log_offset for f in index.files if f.path < first]
        whole_to = max(before, default=-1)
    foreign = bool(index.files) and not _fits(index.files[-1], log)
    return IndexState(spans, whole_to, foreign, damaged=damaged)


def _is_damaged(index_file: IndexFile, *, clean: bool, safe_offset: int) -> bool:
    """Whether an index file is not as its header says, and no crash can have done that.

    A crash may cost entries of records at or behind `safe_offset`, so that there are fewer than the header counts.
    """
    header, ends_well = index_file.header, index_file.ends_well
    if clean:
        return not ends_well
    if not ends_well and index_file.count_before(_ANY_OFFSET) == header.index_count:
        return True
    kept = index_file.count_before(safe_offset)
    if kept == header.index_count or header.begin_log_offset >= safe_offset:
        return False
    return header.end_log_offset < safe_offset or index_file.has_between(kept, safe_offset)


def _fits(index_file: IndexFile, log: LogFiles) -> bool:
    """Whether some entries of an index file belong to records of this log; True when none of them can be there."""
    first = index_file.count_before(log.segments.start)
    last = index_file.count_before(log.segments.end)
    if first >= last:
        return index_file.header.index_count <= 1 or index_file.header.end_log_offset < (
            log.segments.start
        )
    numbers = sorted(
        {first + (last - 1 - first) * n // INDEX_SAMPLES for n in range(INDEX_SAMPLES)}
    )
    hits = 0
    for number in numbers:
        key_hash, log_offset, _, _ = index_file.entry(number)
        record = record_at(log, log_offset, check_crc=False)
        if isinstance(record, Whole):
            keys = keys_for_index(record.topic, record.properties, record.sys_flag)
            hits += key_hash in map(index_key_hash, keys)
    # What is behind a torn end of the log does not fit either, so one that fits is enough.
    return hits > 0
