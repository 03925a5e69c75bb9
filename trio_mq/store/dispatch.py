"""The dispatcher: from stored records to queue entries, index keys and waiting readers.

In: what was just written to the log (:class:`Stored`, from the store), or read from it again (recovery). Out:
entries in the queues at once, since consumers wait for them; keys in the index in bulk on a tick. Owns one task,
:meth:`Dispatcher.run`, which writes both to their files. Rules: Apache DefaultMessageStore.ReputMessageService,
CommitLogDispatcherBuildConsumeQueue, CommitLogDispatcherBuildIndex.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import trio

from trio_mq.protocol import properties
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.message import java_hash
from trio_mq.store.index import KeyIndex
from trio_mq.store.queues import BaseQueue, QueueTable

log = logging.getLogger("trio_mq.store.dispatch")

#: Time between writing entries in memory to their files, while there are any.
TICK_S = 0.02
#: Records whose keys are inserted in one go; between two goes the loop is free.
INDEX_CHUNK = 256
#: Work on the index per tick, so that latency stays flat.
INDEX_BUDGET_S = 0.004
#: Records waiting for the index above which the budget is lifted: memory stays bounded.
INDEX_BACKLOG = 50_000

_TRANSACTION_MASK = 0xC
_ROLLBACK = int(MessageFlag.TRANSACTION_ROLLBACK)
_PREPARED = int(MessageFlag.TRANSACTION_PREPARED)


class Stored(NamedTuple):
    """A record in the log, and what the queues and the index have to know of it. A tuple: one per message."""

    queue: BaseQueue
    queue_offset: int
    batch_size: int
    log_offset: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    properties: bytes
    sys_flag: int


class KeyHasher:
    """Hashes of ``topic#key``, without joining the two: ``hash(topic#) * 31**len(key) + hash(key)``."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._tags: dict[tuple[str, bytes], int] = {}
        #: Unique ids of one millisecond differ in their last four digits only.
        self._heads: dict[bytes, int] = {}
        self._ends: dict[bytes, int] = {}

    def keys(self, topic: str, data: bytes) -> list[int]:
        """The index hashes of a record's unique id, keys and tags, in the order that 5.4.0 writes them."""
        topic_hash = self._topics.get(topic)
        if topic_hash is None:
            topic_hash = self._topics[topic] = java_hash(topic + "#")
        hashes: list[int] = []
        unique = properties.get(data, b"UNIQ_KEY")
        if unique:
            hashes.append(self._joined(topic_hash, unique))
        keys = properties.get(data, b"KEYS")
        if keys:
            hashes += [self._joined(topic_hash, key) for key in keys.split(b" ") if key]
        tags = properties.get(data, b"TAGS")
        if tags:
            known = self._tags.get((topic, tags))
            if known is None:
                if len(self._tags) > 10_000:
                    self._tags.clear()
                known = self._tags[topic, tags] = self._joined(topic_hash, b"T#" + tags)
            hashes.append(known)
        return hashes

    def _joined(self, topic_hash: int, key: bytes) -> int:
        if key.isascii():
            length = len(key)
            value = self._hash_ascii(key) if length > 16 else java_hash(key.decode())
        else:
            text = key.decode("utf-8", "replace")
            length = len(text.encode("utf-16-be", "surrogatepass")) // 2
            value = java_hash(text)
        value = (topic_hash * pow(31, length, 1 << 32) + value) & 0xFFFFFFFF
        # As Apache's IndexFile.indexKeyHashMethod: the absolute value, and 0 for the one that has none.
        return value if value < 0x80000000 else (0x100000000 - value) & 0x7FFFFFFF

    def _hash_ascii(self, key: bytes) -> int:
        head, end = key[:-4], key[-4:]
        heads, ends = self._heads, self._ends
        head_hash = heads.get(head)
        if head_hash is None:
            if len(heads) > 20_000:
                heads.clear()
            head_hash = heads[head] = java_hash(head.decode()) * 923521  # 31**4
        end_hash = ends.get(end)
        if end_hash is None:
            if len(ends) > 70_000:
                ends.clear()
            end_hash = ends[end] = java_hash(end.decode())
        return head_hash + end_hash


class Dispatcher:
    """Feeds queues, index and waiting readers. Everything but :meth:`run` is synchronous."""

    def __init__(self, queues: QueueTable, index: KeyIndex, *, index_enabled: bool) -> None:
        self.queues = queues
        self.index = index
        self._index_enabled = index_enabled
        self._backlog: deque[Stored] = deque()
        self._hasher = KeyHasher()
        self._work = trio.Event()
        self._working = False
        #: Everything before has queue entries (exclusive log offset).
        self.dispatched = 0
        #: Store time of the newest record that was dispatched, ms.
        self.newest_ms = 0
        #: Called with (queue, tags code) of new messages in queues that are watched.
        self.arrived: Callable[[list[tuple[BaseQueue, int]]], None] | None = None
        #: Called when files could not be written; the store stops taking messages.
        self.failed: Callable[[OSError], None] | None = None

    def apply(self, records: Iterable[Stored]) -> None:
        """Make records visible in their queues, in log order; a record that is known already changes nothing."""
        hits: list[tuple[BaseQueue, int]] = []
        dirty = self.queues.dirty
        ms = self.newest_ms
        for stored in records:
            queue, queue_offset, count, log_offset, size, tags_code, ms, _props, sys_flag = stored
            transaction = sys_flag & _TRANSACTION_MASK
            if (
                transaction != _PREPARED
                and transaction != _ROLLBACK
                and queue.put(queue_offset, count, log_offset, size, tags_code, ms)
            ):
                dirty.add(queue)
                if queue.watched:
                    hits.append((queue, tags_code))
            self.dispatched = log_offset + size
            if self._index_enabled and transaction != _ROLLBACK:
                self._backlog.append(stored)
        self.newest_ms = ms
        if not self._working:
            self._working = True
            self._work.set()
        if hits and self.arrived is not None:
            self.arrived(hits)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write entries and keys to their files until cancelled. :meth:`finish` writes what is left then."""
        task_status.started()
        while True:
            await self._work.wait()
            self._work = trio.Event()
            self._working = False
            while self.queues.dirty or self._backlog:
                self._write_tails()
                self._index_some()
                await trio.sleep(TICK_S)

    def _write_tails(self) -> None:
        try:
            self.queues.write_tails()
        except OSError as error:
            # The entries stay in memory and are written when there is room again.
            log.error("queue entries cannot be written: %s", error)
            if self.failed is not None:
                self.failed(error)

    def _index_some(self) -> None:
        until = trio.current_time() + INDEX_BUDGET_S
        while self._backlog and self.index_chunk():
            if trio.current_time() > until and len(self._backlog) < INDEX_BACKLOG:
                return

    def index_chunk(self) -> bool:
        """Insert the keys of some waiting records; False when the index files take none."""
        backlog, hasher, indexed_to = self._backlog, self._hasher, self.index.indexed_to
        triples: list[tuple[int, int, int]] = []
        count = min(INDEX_CHUNK, len(backlog))
        end = indexed_to
        for number in range(count):
            queue, _, _, log_offset, size, _, ms, props, _ = backlog[number]
            if log_offset < indexed_to:
                continue
            triples += [(key_hash, log_offset, ms) for key_hash in hasher.keys(queue.topic, props)]
            end = log_offset + size
        try:
            self.index.insert(triples)
        except OSError as error:
            log.error("the key index cannot be written: %s", error)
            if self.failed is not None:
                self.failed(error)
            return False
        self.index.indexed_to = end
        for _ in range(count):
            backlog.popleft()
        return True

    @property
    def index_backlog(self) -> int:
        """Records whose keys are not in the index yet."""
        return len(self._backlog)

    def finish(self) -> None:
        """Write all that is left. Called when a store closes and by recovery."""
        self.queues.write_tails()
        while self._backlog and self.index_chunk():
            pass
