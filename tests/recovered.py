"""What trio-mq makes of a store that is given as a table of files: state files are loaded, the store is recovered and
read to its end, as a start of ``trio-mq serve`` and its consumers would do. Used for damaged golden stores.
"""

from __future__ import annotations

import attrs

from tests.damages import BATCH_QUEUE_FILE_SIZE, Files, Queue
from tests.golden_stores import HASH_SLOTS, MAX_INDEX_NUM, QUEUE_FILE_SIZE, SEGMENT_SIZE
from tests.recovery.stores import HOST, World, consumed, keyed
from trio_mq.config import BrokerSettings, StoreSettings
from trio_mq.errors import StoreError
from trio_mq.offline.phases import recover_parts
from trio_mq.offline.statefiles import Tables
from trio_mq.protocol import properties
from trio_mq.protocol.layout import BATCH_QUEUE_ENTRY, PRE_BLANK_SIZE, QUEUE_ENTRY
from trio_mq.protocol.record import StoredMessage
from trio_mq.recovery.paths import Path
from trio_mq.recovery.recover import Choices
from trio_mq.recovery.report import RecoveryReport
from trio_mq.store.disk import Disk
from trio_mq.store.queues import BaseQueue
from trio_mq.store.segments import warmed
from trio_mq.store.store import Store, open_parts

#: What GoldMaker's broker said in its settings.
SIZES = {
    "mapped_file_size_commit_log": SEGMENT_SIZE,
    "mapped_file_size_consume_queue": QUEUE_FILE_SIZE,
    "mapped_file_size_batch_consume_queue": BATCH_QUEUE_FILE_SIZE,
    "max_hash_slot_num": HASH_SLOTS,
    "max_index_num": MAX_INDEX_NUM,
}


@attrs.define
class Recovered:
    """A start: refused, with what it said; or the bounds of log and queues, and what can be read.

    `entries` are queue offset, log offset and size of what each queue points to, blank entries left out; `messages`
    the log offsets of what a consumer gets from each queue; `unkeyed` of those that their own key does not find.
    `files` is all that is in the store's folder then.
    """

    refused: str | None = None
    report: RecoveryReport = attrs.field(factory=RecoveryReport)
    queues: dict[Queue, tuple[int, int]] = attrs.field(factory=dict)
    entries: dict[Queue, list[tuple[int, int, int]]] = attrs.field(factory=dict)
    messages: dict[Queue, list[int]] = attrs.field(factory=dict)
    unkeyed: list[int] = attrs.field(factory=list)
    files: Files = attrs.field(factory=dict, repr=False)


def put(files: Files, world: World) -> None:
    """Write a store to a disk."""
    for path, content in files.items():
        world.write(world.path(path), content)


async def recovered(
    files: Files, disk: Disk, root: str, path: Path = Path.BATCH, *, read: bool = True
) -> Recovered:
    """Write a store to a disk and start it. The store is left as a kill leaves it."""
    settings = StoreSettings(path=root, **SIZES)  # type: ignore[arg-type]
    world = World(disk, root, settings)
    world.clock.set(1_795_976_500_000)  # a moment behind the newest message
    put(files, world)
    result = Recovered()
    try:
        await _start(world, path, result, read=read)
    except StoreError as error:
        result.refused = str(error)
    result.files = world.files()
    return result


async def _start(world: World, path: Path, result: Recovered, *, read: bool) -> None:
    tables = Tables.make(BrokerSettings(), world.clock)
    parts = open_parts(world.disk, world.settings, world.clock, tables.is_batch)
    try:
        choices = Choices(path=path)
        result.report, _ = await recover_parts(parts, tables, choices, world.clock, None)
        store = Store(parts, world.clock, HOST)
        for queue in store.queues:
            key = queue.topic, queue.queue_id
            result.queues[key] = queue.min_offset, queue.max_offset
            if read:
                result.entries[key] = _entries(queue)
                got = consumed(store, queue, 1000)
                result.messages[key] = [m.log_offset for m in got]
                result.unkeyed += [m.log_offset for m in got if not _keyed(store, m)]
    finally:
        parts.release()


def _entries(queue: BaseQueue) -> list[tuple[int, int, int]]:
    files = queue.files
    if files.segments.empty:
        return []
    start = files.segments.start
    data = warmed(lambda: files.read(files.end - start, start)) if files.end > start else b""
    if queue.is_batch:
        return [
            (e[4], e[0], e[1])
            for e in BATCH_QUEUE_ENTRY.iter_unpack(data)
            if e[4] >= queue.min_offset
        ]
    first = start // files.entry_bytes
    return [
        (number, entry[0], entry[1])
        for number, entry in enumerate(QUEUE_ENTRY.iter_unpack(data), first)
        if number >= queue.min_offset and entry[1] != PRE_BLANK_SIZE
    ]


def _keyed(store: Store, message: StoredMessage) -> bool:
    key = properties.get(message.properties, b"UNIQ_KEY")
    return key is None or message.log_offset in keyed(store, key.decode(), message.topic)
