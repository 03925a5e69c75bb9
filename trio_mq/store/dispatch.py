"""The dispatcher: from stored records to queue entries, index keys and waiting readers.

In: what was just written to the log (:class:`Stored`, from the store), or read from it again (recovery). Out:
entries in the queues at once, since consumers wait for them; keys in the index in bulk on a tick. Owns one task,
:meth:`Dispatcher.run`, which writes both to their files. Rules: Apache DefaultMessageStore.ReputMessageService,
CommitLogDispatcherBuildConsumeQueue, CommitLogDispatcherBuildIndex.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import attrs
import trio

from trio_mq.protocol.codes import TRANSACTION_MASK, UNDISPATCHED, MessageFlag
from trio_mq.store.index import KeyIndex
from trio_mq.store.indexfile import Keys, SomeKeys
from trio_mq.store.keys import KeyHasher
from trio_mq.store.multidispatch import MARK
from trio_mq.store.queues import BaseQueue
from trio_mq.store.queuetable import QueueTable

if TYPE_CHECKING:
    from trio_mq.store.bulkindex import BulkHasher

log = logging.getLogger("trio_mq.store.dispatch")

#: Time between writing entries in memory to their files, while there are any.
TICK_S = 0.02
#: Time until files that could not be written are tried again (Apache: the same).
RETRY_S = 1.0
#: Records whose keys are inserted in one go; between two goes the loop is free.
INDEX_CHUNK = 256
#: With numpy lots are larger, and worth it from this many records on.
BULK_CHUNK, BULK_LEAST = 2048, 128
#: Records that wait before numpy is imported: that takes a moment, and memory that a small broker does not need.
BULK_FROM = 2000
#: Work on the index per tick, so that latency stays flat.
INDEX_BUDGET_S = 0.004
#: Records waiting for the index above which the budget is lifted: memory stays bounded.
INDEX_BACKLOG = 50_000

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


class Arrival(NamedTuple):
    """A new record in a watched queue, as those who wait for it want to know it."""

    queue: BaseQueue
    tags_code: int
    properties: bytes
    queue_offset: int


class Dispatcher:
    """Feeds queues, index and waiting readers. Everything but :meth:`run` is synchronous."""

    def __init__(self, queues: QueueTable, index: KeyIndex, *, index_enabled: bool) -> None:
        self.queues = queues
        self.index = index
        self.index_enabled = index_enabled
        self._backlog: deque[Stored] = deque()
        self._hasher = KeyHasher()
        self._bulk: BulkHasher | None = None
        self._bulk_wanted = True
        #: Keys of the oldest records in the backlog that are being inserted, and how far that has come.
        self._chunk: _Chunk | None = None
        self._work = trio.Event()
        self._working = False
        #: Everything before has queue entries (exclusive log offset).
        self.dispatched = 0
        #: Store time of the newest record that was dispatched, ms.
        self.newest_ms = 0
        #: Called with the new messages in queues that are watched.
        self.listeners: list[Callable[[list[Arrival]], None]] = []
        #: The further queues of a record by its topic and properties, where messages may be in several; else None.
        self.further: Callable[[str, bytes], list[tuple[BaseQueue, int]]] | None = None
        #: Called when files could not be written; the store stops taking messages.
        self.failed: Callable[[OSError], None] | None = None
        #: What could not be written at the last try.
        self._failing: set[str] = set()

    def apply(self, records: Iterable[Stored]) -> None:
        """Make records visible in their queues, in log order; a record that is known already changes nothing."""
        hits: list[Arrival] = []
        dirty, wait_for_index = self.queues.dirty.add, self._backlog.append
        index_enabled = self.index_enabled
        dispatched, ms = self.dispatched, self.newest_ms
        if self.further is not None:
            records = list(records)
            hits += self._apply_further(records)
        for stored in records:
            queue, queue_offset, count, log_offset, size, tags_code, ms, props, sys_flag = stored
            transaction = sys_flag & TRANSACTION_MASK
            if (
                transaction != _PREPARED
                and transaction != _ROLLBACK
                and not queue.dropped
                and queue.put(queue_offset, count, log_offset, size, tags_code, ms)
            ):
                dirty(queue)
                traffic = queue.traffic
                traffic.messages += count
                traffic.bytes += size
                if queue.watched:
                    hits.append(Arrival(queue, tags_code, props, queue_offset))
            dispatched = log_offset + size
            if index_enabled and transaction != _ROLLBACK:
                wait_for_index(stored)
        self.moved(dispatched, ms)
        if hits:
            for listener in self.listeners:
                listener(hits)

    def moved(self, dispatched: int, newest_ms: int) -> None:
        """Records before an offset have their entries in memory, the newest of them with that store time."""
        self.dispatched = dispatched
        self.newest_ms = newest_ms
        if not self._working:
            self._working = True
            self._work.set()

    def insert_keys(self, keys: SomeKeys, indexed_to: int) -> None:
        """Insert keys that were made elsewhere; all records before an offset have theirs then.

        Only while no record waits for the index. What it does not take now is tried again, before any other.
        """
        assert not self.index_backlog
        self._chunk = _Chunk(keys, 0, indexed_to)
        self.index_chunk()

    def _apply_further(self, records: Iterable[Stored]) -> list[Arrival]:
        """Make records visible in their further queues (LMQ)."""
        hits: list[Arrival] = []
        assert self.further is not None
        for stored in records:
            if MARK not in stored.properties or stored.sys_flag & TRANSACTION_MASK in UNDISPATCHED:
                continue
            code, ms = stored.tags_code, stored.store_timestamp_ms
            for queue, queue_offset in self.further(stored.queue.topic, stored.properties):
                if queue.put(queue_offset, 1, stored.log_offset, stored.size, code, ms):
                    self.queues.dirty.add(queue)
                    if queue.watched:
                        hits.append(Arrival(queue, code, stored.properties, queue_offset))
        return hits

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write entries and keys to their files until cancelled. :meth:`finish` writes what is left then."""
        task_status.started()
        while True:
            await self._work.wait()
            self._work = trio.Event()
            self._working = False
            while self.queues.dirty or self.index_backlog:
                done = self.write_tails()
                if self._bulk_wanted and len(self._backlog) >= BULK_FROM:
                    await self.queues.disk.run(self._load_bulk)
                done = self._index_some() and done
                await trio.sleep(TICK_S if done else RETRY_S)

    @property
    def is_failing(self) -> bool:
        """Whether the last try to write queues or index failed; it is repeated as long as the store runs."""
        return bool(self._failing)

    def retry(self) -> bool:
        """Try now to write what could not be written; whether that works."""
        return self.write_tails() and self._index_some()

    def write_tails(self) -> bool:
        """Write queue entries to their files. False when some are left; they stay in memory."""
        try:
            self.queues.write_tails()
        except OSError as error:
            self._note("queue entries", error)
            return False
        self._failing.discard("queue entries")
        return True

    def _note(self, what: str, error: OSError) -> None:
        if what not in self._failing:
            log.error("%s cannot be written: %s; tried again every %g s", what, error, RETRY_S)
        self._failing.add(what)
        if self.failed is not None:
            self.failed(error)

    def _index_some(self) -> bool:
        until = trio.current_time() + INDEX_BUDGET_S
        while self.index_backlog:
            if not self.index_chunk():
                return False
            if trio.current_time() > until and len(self._backlog) < INDEX_BACKLOG:
                break
        return True

    def index_chunk(self) -> bool:
        """Insert the keys of some waiting records; False when the index files take none."""
        chunk = self._chunk
        if chunk is None:
            chunk = self._chunk = self._next_chunk()
        try:
            chunk.done += self.index.insert(chunk.keys, chunk.done)
            while chunk.done < chunk.keys.total:
                chunk.done += self.index.insert(chunk.keys, chunk.done)
        except OSError as error:
            self._note("the key index", error)
            return False
        self._failing.discard("the key index")
        self.index.indexed_to = chunk.indexed_to
        for _ in range(chunk.records):
            self._backlog.popleft()
        self._chunk = None
        return True

    def _load_bulk(self) -> None:
        """Import the faster way to hash and insert keys, if numpy is there."""
        self._bulk_wanted = False
        try:
            from trio_mq.store.bulkindex import BulkHasher
        except ImportError:
            return
        self._bulk = BulkHasher(self._hasher)

    def _next_chunk(self) -> _Chunk:
        """Keys of the next records in the backlog, without those that the index knows already."""
        if self._bulk_wanted and len(self._backlog) >= BULK_FROM:
            self._load_bulk()
        bulk = self._bulk if len(self._backlog) >= BULK_LEAST else None
        known_to = self.index.indexed_to
        some = list(islice(self._backlog, BULK_CHUNK if bulk else INDEX_CHUNK))
        rows = [
            (stored.queue.topic, stored.properties, stored.log_offset, stored.store_timestamp_ms)
            for stored in some
            if stored.log_offset >= known_to
        ]
        indexed_to = max(known_to, some[-1].log_offset + some[-1].size) if some else known_to
        if bulk is not None:
            return _Chunk(bulk.keys(rows), len(some), indexed_to)
        hashes: list[int] = []
        log_offsets: list[int] = []
        times_ms: list[int] = []
        for topic, data, log_offset, ms in rows:
            found = self._hasher.keys(topic, data)
            hashes += found
            log_offsets += [log_offset] * len(found)
            times_ms += [ms] * len(found)
        return _Chunk(Keys(hashes, log_offsets, times_ms), len(some), indexed_to)

    @property
    def index_backlog(self) -> int:
        """Records whose keys are not in the index yet, as far as they are counted; 0 when there are none."""
        return len(self._backlog) or int(self._chunk is not None)

    def finish(self) -> None:
        """Write all that is left; OSError when that does not work. For a store that closes, and for recovery."""
        self.queues.write_tails()
        while self.index_backlog:
            self.finish_some()

    def finish_some(self) -> None:
        """Insert the keys of some waiting records; OSError when that does not work."""
        if not self.index_chunk():
            raise OSError(errno.ENOSPC, "the key index cannot be written", self.index.directory)


@attrs.define
class _Chunk:
    """Keys on their way into the index: `done` of them are there. `indexed_to` holds when all are."""

    keys: SomeKeys
    records: int
    indexed_to: int
    done: int = 0
