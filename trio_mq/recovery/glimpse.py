"""Queues and index of a store as they lie there, for reports: where queues end, and which entries lead into damage.

In: the parts of a store on an overlay that nothing was recovered on, and damaged parts of the log. Out: a
:class:`QueueGlimpse` for each queue, an :class:`IndexGlimpse` for each index file. Blocks, for worker threads. Called
by :mod:`trio_mq.offline`. How ends are found: :mod:`trio_mq.recovery.scan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs

from trio_mq.protocol.layout import INDEX_HEADER_SIZE, unpack_index_header
from trio_mq.recovery import apply
from trio_mq.recovery.picture import Span
from trio_mq.recovery.scan import position_of, scan_queue
from trio_mq.store.disk import Disk
from trio_mq.store.index import NAME_DIGITS
from trio_mq.store.log import CommitLog
from trio_mq.store.queuetable import QueueTable
from trio_mq.store.segments import read_file

#: Entries that are compared in one go.
ENTRIES_AT_ONCE: Final = 16_384


@attrs.frozen
class QueueGlimpse:
    """A queue before a recovery. `max_offset` counts messages, `indexed_to` is a log offset (-1 without entries).

    `unreadable` entries lead into parts of the log that hold no record any more.
    """

    topic: str
    queue_id: int
    max_offset: int
    indexed_to: int
    unreadable: int = 0


def glimpse_queues(
    table: QueueTable,
    log: CommitLog,
    names: Iterable[tuple[str, int, bool]],
    spans: Sequence[Span],
) -> list[QueueGlimpse]:
    """Look at some queues; `names` are topic, queue id and kind (batch or not), as the table finds them."""
    found = []
    for topic, queue_id, batch in names:
        queue = table.make(topic, queue_id, batch=batch)
        queue.files.segments.load(mend=True)
        tail = scan_queue(queue, log, thorough=False)
        apply.open_queue(queue, tail)
        unreadable = 0
        for span in spans:
            entries = position_of(queue, span.end) - position_of(queue, span.begin)
            unreadable += entries // queue.files.entry_bytes
        found.append(QueueGlimpse(topic, queue_id, tail.max_offset, tail.indexed_to, unreadable))
    return found


def differing_entries(before: Disk, after: Disk, path: str, entry_bytes: int) -> int:
    """How many entries of a queue file are not the same on two disks. A file that is not there has zeros."""
    count, at, step = 0, 0, ENTRIES_AT_ONCE * entry_bytes
    while True:
        old, new = (read_file(disk, path, step, at) for disk in (before, after))
        if not old and not new:
            return count
        if old != new:
            old, new = old.ljust(step, b"\0"), new.ljust(step, b"\0")
            count += sum(
                old[entry : entry + entry_bytes] != new[entry : entry + entry_bytes]
                for entry in range(0, step, entry_bytes)
            )
        at += step


@attrs.frozen
class IndexGlimpse:
    """An index file: keys in it as its header counts them, and store time of the last."""

    path: str
    keys: int
    end_ms: int


def glimpse_index(disk: Disk, directory: str) -> Iterator[IndexGlimpse]:
    """The headers of all index files that are long enough to have one."""
    for name in disk.list_dir(directory):
        if name.isascii() and name.isdigit() and len(name) == NAME_DIGITS:
            head = read_file(disk, f"{directory}/{name}", INDEX_HEADER_SIZE, 0)
            if len(head) == INDEX_HEADER_SIZE:
                header = unpack_index_header(head)
                yield IndexGlimpse(
                    f"{directory}/{name}", max(0, header.index_count - 1), header.end_timestamp_ms
                )
