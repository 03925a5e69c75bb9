"""What has to be true of a store that was recovered from a cut.

In: the files after a recovery, the recovered parts, and what clients had been told when the power went. Out:
AssertionError with what is wrong.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tests.recovery.stores import messages
from tests.sweep.ledger import Ledger, Moment, Sent
from tests.sweep.naive import Record, entries_of, log_of
from trio_mq.protocol.layout import (
    BATCH_QUEUE_ENTRY,
    PRE_BLANK,
    QUEUE_ENTRY,
    QUEUE_ENTRY_SIZE,
    index_key_hash,
)
from trio_mq.protocol.message import split_batch
from trio_mq.store.store import Store

#: Files that two recoveries of one crash may leave different.
UNCOMPARED = ("lock",)
#: Files that a second recovery may change.
CHANGING = ("lock", "abort", "checkpoint")


def differences(
    one: Mapping[str, bytes], other: Mapping[str, bytes], left_out: Sequence[str]
) -> list[str]:
    """Names of files that are not the same, those of some names left out."""
    return [
        path
        for path in sorted(one.keys() | other.keys())
        if one.get(path) != other.get(path) and posixpath.basename(path) not in left_out
    ]


def check_store(
    files: Mapping[str, bytes],
    store: Store,
    ledger: Ledger,
    moment: Moment,
    *,
    power_cut: bool,
    holes: bool,
) -> None:
    """All that has to hold for log, queues and index.

    `holes`: the power cut took something out of the middle of the log that nobody was promised.
    """
    root = store.parts.root
    records, end = log_of(files, f"{root}/commitlog", holes=holes)
    if records:
        segment_end = (
            end - end % store.log.segments.segment_bytes + store.log.segments.segment_bytes
        )
        # a blank at the end may count or not: the next record goes there, or into the next segment
        ends = (end, segment_end) if store.log.segments.end == segment_end else (end,)
        assert store.log.end in ends, f"the log ends at {end}, not at {store.log.end}"
    by_place: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in records:
        by_place[record.topic, record.queue_id].append(record)
    check_messages(by_place, ledger, moment, power_cut=power_cut, holes=holes)
    for place, some in by_place.items():
        needed = [r for r in some if _needed(r, ledger, moment)]
        check_queue(files, store, *place, some, needed, holes=holes)
    for queue in store.queues:
        if (queue.topic, queue.queue_id) not in by_place:
            check_queue(files, store, queue.topic, queue.queue_id, [], [], holes=holes)
    check_index(store, records)


def _number(record: Record) -> int:
    """The number of the send that a record comes from."""
    body = split_batch(record.body)[0].body if record.is_batch else record.body
    return int(body.partition(b":")[0].partition(b".")[0].partition(b"-")[2])


def _needed(record: Record, ledger: Ledger, moment: Moment) -> bool:
    """Whether consumers have to see a record: not when its topic was to be deleted meanwhile."""
    return _number(record) >= moment.deleted.get(record.topic, 0)


def check_messages(
    by_place: Mapping[tuple[str, int], list[Record]],
    ledger: Ledger,
    moment: Moment,
    *,
    power_cut: bool,
    holes: bool,
) -> None:
    """Everything promised is in the log, once and where the reply said; what else is there was sent, and is whole."""
    seen: dict[bytes, Record] = {}
    for (topic, queue_id), records in by_place.items():
        last = -1
        for record in records:
            number = _number(record)
            assert number < moment.sent, f"a message that was not sent yet: {record}"
            sent = ledger.sent[number]
            assert (sent.topic, sent.queue_id) == (topic, queue_id), f"in a foreign queue: {record}"
            assert number >= last, f"{topic}/{queue_id}: out of order at {record.log_offset}"
            last = number
            bodies = _bodies(record)
            if record.is_batch:
                assert bodies == sent.bodies, f"a batch that is not whole: {record}"
            assert set(bodies) <= set(sent.bodies), f"a body that nobody sent: {record}"
            for body in bodies:
                assert body not in seen, f"twice: {record} and {seen[body]}"
                seen[body] = record
    for sent in ledger.promised(moment, power_cut=power_cut):
        for number, body in enumerate(sent.bodies):
            assert body in seen, f"promised and lost: {sent}"
            if number == 0:
                found = (seen[body].log_offset, seen[body].queue_offset)
                assert found == (sent.log_offset, sent.queue_offset), f"{sent} is at {found}"


def _bodies(record: Record) -> tuple[bytes, ...]:
    if record.is_batch:
        return tuple(item.body for item in split_batch(record.body))
    return (record.body,)


def check_queue(
    files: Mapping[str, bytes],
    store: Store,
    topic: str,
    queue_id: int,
    records: list[Record],
    needed: list[Record],
    *,
    holes: bool,
) -> None:
    """A queue has the entries of its records and no others, and consumers find them."""
    queue = store.queue(topic, queue_id)
    if queue is None:
        assert not needed, f"{topic}/{queue_id} is gone, but not its records"
        return
    what = f"queue {topic}/{queue_id}"
    kind, entry = (
        ("batchconsumequeue", BATCH_QUEUE_ENTRY)
        if queue.is_batch
        else (
            "consumequeue",
            QUEUE_ENTRY,
        )
    )
    log_start = store.log.start
    known = {r.entry: r for r in records}
    found: list[Record] = []
    path = f"{store.parts.root}/{kind}/{topic}/{queue_id}"
    for position, data in entries_of(files, path, entry):
        if data in known:
            record = known[data]
            assert queue.is_batch or record.queue_offset * QUEUE_ENTRY_SIZE == position, (
                f"{what}: the entry of {record} is at position {position}"
            )
            found.append(record)
        else:
            expired = not found and int.from_bytes(data[:8], "big") < log_start
            inside = position < queue.files.end and (expired or holes or data == PRE_BLANK)
            # behind the end, a torn entry of a record that is gone: the next entries go over it
            allowed = inside or (position >= queue.files.end and not is_valid(data))
            assert allowed, f"{what}: a foreign entry at {position}"
    offsets = [r.log_offset for r in found]
    assert offsets == sorted(set(offsets)), f"{what}: entries out of order, or twice"
    missing = {r.log_offset for r in needed} - set(offsets)
    assert not missing, f"{what}: no entries for the records at {sorted(missing)}"
    read = [m.log_offset for m in messages(store, topic, queue_id)]
    assert read == offsets, f"{what}: consumers find {read} and not {offsets}"
    assert queue.next_offset == queue.max_offset, f"{what}: {queue.next_offset}"
    if found and not holes:
        last, first = found[-1], found[0]
        assert queue.max_offset == last.queue_offset + last.count, f"{what}: ends too early or late"
        assert queue.min_offset == first.queue_offset, f"{what}: begins at {queue.min_offset}"


def is_valid(entry: bytes) -> bool:
    """Whether anybody would take an entry for one: it has a size, and in a batch queue a count."""
    has_size = any(entry[8:12])
    return has_size and (len(entry) == QUEUE_ENTRY_SIZE or any(entry[36:38]))


def check_index(store: Store, records: list[Record]) -> None:
    """Each record is found by its keys, once; and the index knows nothing that the log has not got."""
    places = {r.log_offset for r in records}
    for record in records:
        keys = record.properties.get("KEYS", "").split()
        if "UNIQ_KEY" in record.properties:
            keys.append(record.properties["UNIQ_KEY"])
        for key in keys:
            key_hash = index_key_hash(f"{record.topic}#{key}")
            hits = store.index.search(key_hash, 1000, 0, 1 << 62)
            assert hits.count(record.log_offset) == 1, f"key {key} of {record}: found at {hits}"
            live = [hit for hit in hits if hit >= store.log.start]
            assert set(live) <= places, f"key {key} leads to {live}"


def check_saves(files: Mapping[str, bytes], moment: Moment, ledger: Ledger) -> None:
    """Each state file, or its backup, holds what its last complete save wrote, or what was being saved."""
    for path, saved in ledger.saves.items():
        complete, begun = moment.saves.get(path, (0, 0))
        allowed = saved[max(0, complete - 1) : begun]
        content = files.get(path) or files.get(f"{path}.bak")
        if content is None:
            assert complete == 0, f"{path} was saved, and is gone"
        else:
            assert content in allowed, f"{path} holds what was not saved last: {content!r}"


def sent_topics(sent: Sequence[Sent], moment: Moment) -> set[str]:
    """Topics that have to exist: somebody was told of a message there, and nobody deleted them since."""
    return {
        one.topic for one in sent if one.is_sure and one.number >= moment.deleted.get(one.topic, 0)
    }
