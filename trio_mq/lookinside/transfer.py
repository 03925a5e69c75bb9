"""Topics out of one store and into another, as lines of JSON.

Out (:func:`export`): the messages of topics in the order of the log. In (:func:`examine`, then :func:`append`): a file
of such lines is gone through once to be checked, and once to be stored, so that nothing is written when a line is bad.
The store is recovered and held by the caller (:mod:`trio_mq.offline_store`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

import attrs
import trio

from trio_mq.clock import Clock
from trio_mq.errors import RequestRefused, StoreFull
from trio_mq.lookinside.lines import BadLine, Line, parse, without_checksum
from trio_mq.lookinside.selection import Selection, Tell, select
from trio_mq.lookinside.shown import as_line
from trio_mq.lookinside.view import StoreView
from trio_mq.protocol import properties
from trio_mq.protocol.codes import TRANSACTION_MASK, UNDISPATCHED
from trio_mq.store.store import Store

#: Records that are written in one go, and bytes after which they are.
CHUNK_LINES: Final = 500
CHUNK_BYTES: Final = 1024 * 1024
#: Bytes after which everything is made durable, so that the end of an import has little left to do.
SYNC_BYTES: Final = 64 * 1024 * 1024
#: Bad lines that are told one by one.
TOLD_LINES: Final = 20


def export(view: StoreView, topics: frozenset[str], tell: Tell) -> Iterator[str]:
    """The messages of some topics, a line of JSON each."""
    for raw in select(view, Selection(topics=topics), tell):
        if raw.whole.sys_flag & TRANSACTION_MASK in UNDISPATCHED:
            continue
        message = raw.decoded()
        plain = without_checksum(message.properties)
        if plain != message.properties or message.topic != raw.whole.topic:
            message = attrs.evolve(
                message, properties=plain, topic=raw.whole.topic, queue_id=raw.whole.queue_id
            )
        yield as_line(message)


class LineSource(Protocol):
    """A file of lines that can be gone through twice."""

    def __call__(self) -> Iterator[str]:
        """All lines from the first one."""
        ...


@attrs.frozen(kw_only=True)
class ImportRules:
    """What a line has to keep. `check_topic` raises RequestRefused for a topic that nobody may send to."""

    topic_map: Mapping[str, str]
    check_topic: Callable[[str], None]
    max_body_bytes: int
    max_record_bytes: int

    def line(self, text: str, now_ms: int) -> Line:
        """The message of a line, under its new topic; :class:`BadLine` says why there is none."""
        line = parse(text, now_ms=now_ms)
        topic = self.topic_map.get(line.topic, line.topic)
        if topic != line.topic:
            line = attrs.evolve(line, topic=topic)
        try:
            self.check_topic(topic)
        except RequestRefused as error:
            raise BadLine(error.remark) from None
        if len(line.body) > self.max_body_bytes:
            raise BadLine(
                f"the body has {len(line.body)} bytes; {self.max_body_bytes} are allowed (maxMessageSize)"
            )
        size = len(line.body) + len(line.properties) + len(topic.encode()) + 256
        if size > self.max_record_bytes:
            raise BadLine(f"its record of about {size} bytes does not fit into a file of the log")
        return line


@attrs.define
class Examined:
    """What a file of lines would bring: queues needed by each topic, topics with batches, bad lines."""

    lines: int = 0
    queues: dict[str, int] = attrs.field(factory=dict)
    #: The first line that needs a batch queue, by topic.
    batches: dict[str, int] = attrs.field(factory=dict)
    bad: int = 0
    told: list[str] = attrs.field(factory=list)


def examine(source: LineSource, rules: ImportRules, now_ms: int) -> Examined:
    """Go through all lines; nothing is written."""
    found = Examined()
    for number, text in _numbered(source):
        try:
            line = rules.line(text, now_ms)
        except BadLine as error:
            found.bad += 1
            if found.bad <= TOLD_LINES:
                found.told.append(f"line {number}: {error}")
            continue
        found.lines += 1
        found.queues[line.topic] = max(found.queues.get(line.topic, 0), line.queue_id + 1)
        if line.is_batch:
            found.batches.setdefault(line.topic, number)
    return found


def _numbered(source: LineSource) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, counted from 1."""
    for number, text in enumerate(source(), 1):
        if text.strip():
            yield number, text


async def append(
    store: Store,
    source: LineSource,
    rules: ImportRules,
    clock: Clock,
    progress: Callable[[int], None],
) -> int:
    """Store all good lines at the ends of their queues; returns how many. `progress` is told how many so far.

    Raises :class:`StoreFull`, with the number of the first line that is not stored, when the disk takes no more.
    """
    appender = _Appender(store)
    now_ms = clock.now_ms()
    for number, text in _numbered(source):
        try:
            line = rules.line(text, now_ms)
        except BadLine:
            continue
        try:
            appender.add(line, number, clock.now_ms())
        except StoreFull as error:
            raise appender.full(error, number) from error
        if appender.waiting >= CHUNK_LINES or appender.bytes_waiting >= CHUNK_BYTES:
            await appender.write()
            progress(appender.done)
    await appender.write(sync=True)
    progress(appender.done)
    return appender.done


class _Appender:
    """Lines on their way into a store, some at a time."""

    def __init__(self, store: Store) -> None:
        self.done = 0
        self.waiting = 0
        self.bytes_waiting = 0
        self._store = store
        self._unsynced = 0

    def add(self, line: Line, number: int, now_ms: int) -> None:
        store = self._store
        queue = store.queues.obtain(line.topic, line.queue_id)
        data = line.properties
        if line.is_batch:
            data = properties.remove(data, b"INNER_BASE")
            data = properties.append(data, b"INNER_BASE", b"%d" % queue.next_offset)
        store.append(
            queue,
            line.body,
            data,
            token=number,
            flag=line.flag,
            sys_flag=line.sys_flag,
            born_timestamp_ms=line.born_timestamp_ms,
            born_host=line.born_host.packed,
            reconsume_times=line.reconsume_times,
            prepared_transaction_offset=line.prepared_transaction_offset,
            count=line.count,
            now_ms=now_ms,
        )
        self.waiting += 1
        self.bytes_waiting += len(line.body) + len(data)

    def full(self, error: StoreFull, number: int) -> StoreFull:
        """An error that tells how far the import came; without a failed write it is the line `number` that failed."""
        first = self._store.failed[0] if self._store.failed else number
        return StoreFull(
            f"{error}; the import ended before line {first}, what is before it is stored"
        )

    async def write(self, *, sync: bool = False) -> None:
        store = self._store
        store.commit()
        if store.failed:
            raise self.full(StoreFull(store.refusal), 0)
        self.done += self.waiting
        self._unsynced += self.bytes_waiting
        self.waiting = self.bytes_waiting = 0
        store.dispatcher.finish()
        if sync or self._unsynced >= SYNC_BYTES:
            await store.flusher.sync_log()
            await store.flusher.sync_derived()
            self._unsynced = 0
        await trio.lowlevel.checkpoint()
