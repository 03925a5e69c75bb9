"""Which records of a store somebody wants to see: by log offset, topic and queue, time, or key.

In: a :class:`Selection`, and a view of a store. Out: the records, in the order of the log; and words about what had to
be done otherwise than asked (a scan where the index or a queue is missing, damage that was passed over). Called by
`cat` and by the export.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import islice

import attrs

from trio_mq.lookinside.keysearch import open_index
from trio_mq.lookinside.records import Raw, first_record, record_at, walk
from trio_mq.lookinside.view import Entry, QueueFiles, StoreView
from trio_mq.protocol import properties
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.layout import index_key_hash

Tell = Callable[[str], None]

_ROLLBACK = int(MessageFlag.TRANSACTION_ROLLBACK)
_PREPARED = int(MessageFlag.TRANSACTION_PREPARED)
#: Ranges without records that are told one by one; a damaged log may have any number.
TOLD_RANGES = 20


@attrs.frozen(kw_only=True)
class Selection:
    """What is asked for; None and empty mean no limit.

    `begin`: log offset to start at. `topics`, `queue_id`, `first` and `last` (queue offsets, both included) choose
    from queues; `since_ms` and `until_ms` (both included) are store times; `key` is a unique key or one of the keys of
    a message of the only topic. `count` bounds the records.
    """

    begin: int | None = None
    topics: frozenset[str] = frozenset()
    queue_id: int | None = None
    first: int | None = None
    last: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    key: str | None = None
    count: int | None = None

    def takes(self, raw: Raw) -> bool:
        """Whether a record is one of those."""
        whole = raw.whole
        if self.topics and whole.topic not in self.topics:
            return False
        if self.queue_id is not None and whole.queue_id != self.queue_id:
            return False
        if self.begin is not None and whole.log_offset < self.begin:
            return False
        if not self._takes_time(whole.store_timestamp_ms) or not self._takes_offset(raw):
            return False
        return self.key is None or has_key(whole.properties, self.key)

    def _takes_time(self, ms: int) -> bool:
        return (self.since_ms is None or ms >= self.since_ms) and (
            self.until_ms is None or ms <= self.until_ms
        )

    def _takes_offset(self, raw: Raw) -> bool:
        if self.first is None and self.last is None:
            return True
        if raw.whole.sys_flag & _ROLLBACK in (_PREPARED, _ROLLBACK):
            return False  # it has no queue offset
        base = raw.whole.base_offset
        end = base + max(1, raw.whole.batch_size)
        return (self.first is None or end > self.first) and (self.last is None or base <= self.last)


def has_key(data: bytes, key: str) -> bool:
    """Whether raw properties hold a key: as the unique key, or among the keys."""
    wanted = key.encode()
    if properties.get(data, b"UNIQ_KEY") == wanted:
        return True
    keys = properties.get(data, b"KEYS")
    return keys is not None and wanted in keys.split(b" ")


def select(view: StoreView, wanted: Selection, tell: Tell) -> Iterator[Raw]:
    """The records that are asked for, in log order; `tell` gets a sentence for whoever reads along."""
    if wanted.key is not None:
        found = _by_key(view, wanted, tell)
    elif wanted.topics and (queues := view.queues(wanted.topics)):
        absent = wanted.topics - {queue.topic for queue in queues}
        if absent:
            tell(
                f"no queue of {', '.join(sorted(absent))} is there; the log is not searched for it"
            )
        found = _by_queue(view, wanted, queues, tell)
    else:
        if wanted.topics:
            tell(
                f"no queue of {', '.join(sorted(wanted.topics))} is there: the whole log is searched"
            )
        found = scan(view, wanted, tell)
    return islice(found, wanted.count) if wanted.count is not None else found


# -- the log -------------------------------------------------------------------------------------------------


def scan(view: StoreView, wanted: Selection, tell: Tell) -> Iterator[Raw]:
    """Records found by going through the log."""
    begin, stop = log_range(view, wanted)
    told = 0

    def trouble(at: int, end: int, reason: str) -> None:
        nonlocal told
        told += 1
        if told <= TOLD_RANGES:
            tell(f"bytes {at} to {end} of the log hold no record that can be read: {reason}")
        elif told == TOLD_RANGES + 1:
            tell("there are more such places; trio-mq store verify lists them")

    for raw in walk(view.log, begin, trouble):
        if raw.log_offset >= stop:
            return
        if wanted.takes(raw):
            yield raw


def log_range(view: StoreView, wanted: Selection) -> tuple[int, int]:
    """Log offsets between which the records of a time lie, by the first record of each file.

    A file that begins behind the time still counts when an earlier one cannot be read; store times only grow.
    """
    segments = view.log
    begin = segments.start if wanted.begin is None else max(wanted.begin, segments.start)
    stop = segments.end
    if wanted.since_ms is None and wanted.until_ms is None:
        return begin, stop
    for start in segments.starts:
        first = first_record(segments, start)
        if first is None:
            continue
        ms = first.whole.store_timestamp_ms
        if wanted.since_ms is not None and ms < wanted.since_ms:
            begin = max(begin, start)
        if wanted.until_ms is not None and ms > wanted.until_ms:
            stop = min(stop, start)
            break
    return begin, stop


# -- queues --------------------------------------------------------------------------------------------------


def _by_queue(
    view: StoreView, wanted: Selection, queues: list[QueueFiles], tell: Tell
) -> Iterator[Raw]:
    begin, stop = log_range(view, wanted)
    chosen = [q for q in queues if wanted.queue_id is None or q.queue_id == wanted.queue_id]
    if not chosen:
        ids = ", ".join(str(queue.queue_id) for queue in queues)
        tell(f"there is no queue {wanted.queue_id}; there are {ids}")
    rows = [_entries(queue, wanted, begin, stop) for queue in chosen]
    lost = 0
    for log_offset, entry, queue in heapq.merge(*rows, key=lambda row: row[0]):
        raw = record_at(view.log, log_offset)
        if raw is None:
            lost += 1
            if lost <= TOLD_RANGES:
                tell(
                    f"queue {queue.name} has an entry for queue offset {entry.queue_offset}, "
                    f"but there is no record at log offset {log_offset}"
                )
        elif wanted.takes(_of_queue(raw, queue)):
            yield raw
    if lost > TOLD_RANGES:
        tell(f"{lost} queue entries lead to no record; trio-mq store verify lists them")


def _of_queue(raw: Raw, queue: QueueFiles) -> Raw:
    """A record as its queue sees it: one that was dispatched to several queues says the topic of the first."""
    if (raw.whole.topic, raw.whole.queue_id) == (queue.topic, queue.queue_id):
        return raw
    return raw._replace(whole=raw.whole._replace(topic=queue.topic, queue_id=queue.queue_id))


def _entries(
    queue: QueueFiles, wanted: Selection, begin: int, stop: int
) -> Iterator[tuple[int, Entry, QueueFiles]]:
    """Entries of one queue that may be wanted."""
    end = queue.end()
    first = queue.find(begin, end)
    if wanted.first is not None:
        first = max(first, queue.find_queue_offset(wanted.first, end))
    for entry in queue.entries(first, end):
        if entry.log_offset >= stop or (
            wanted.last is not None and entry.queue_offset > wanted.last
        ):
            return
        yield entry.log_offset, entry, queue


# -- keys ----------------------------------------------------------------------------------------------------


def _by_key(view: StoreView, wanted: Selection, tell: Tell) -> Iterator[Raw]:
    assert wanted.key is not None
    if len(wanted.topics) != 1:
        tell("the index knows keys by topic, and no topic is given: the whole log is searched")
        yield from scan(view, wanted, tell)
        return
    (topic,) = wanted.topics
    files = open_index(view)
    try:
        key_hash = index_key_hash(f"{topic}#{wanted.key}")
        hits = {hit for index_file in files for hit in index_file.search(key_hash)}
        faults = [f"{f.path} {f.fault}" for f in files if f.fault]
    finally:
        for index_file in files:
            index_file.close()
    found = False
    for log_offset in sorted(hits):
        raw = record_at(view.log, log_offset)
        # The index knows hashes only, so the real key is compared.
        if raw is not None and wanted.takes(raw):
            found = True
            yield raw
    if not found:
        why = "; ".join(faults) or ("there is no index" if not files else "the index lacks it")
        tell(f"no record by the index ({why}): the whole log is searched")
        yield from scan(view, wanted, tell)
