"""Stores for recovery tests: built by appending through a real Store, closed or left as a kill leaves them, damaged.

A :class:`World` is one store on one disk through several lives of a broker. It checks what every recovery has to
hold: queues whose entries point to whole records, in order and once, with the offsets that the records say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs

from trio_mq.config import FlushDiskType, StoreSettings
from trio_mq.protocol import properties, record
from trio_mq.protocol.layout import (
    QUEUE_ENTRY,
    QUEUE_ENTRY_SIZE,
    Checkpoint,
    pack_checkpoint,
    unpack_checkpoint,
)
from trio_mq.protocol.message import Host, java_hash
from trio_mq.protocol.record import StoredMessage
from trio_mq.recovery.recover import recover
from trio_mq.recovery.report import RecoveryReport
from trio_mq.store.checkpoint import Marks, with_marks
from trio_mq.store.disk import Disk
from trio_mq.store.queues import BaseQueue
from trio_mq.store.segments import warmed
from trio_mq.store.store import Store, StoreParts, open_parts
from trio_mq.testing.clock import ManualClock

HOST = Host("127.0.0.1", 10911)
SEGMENT_BYTES = 4096
QUEUE_FILE_ENTRIES = 50


def small_settings(root: str, **changes: object) -> StoreSettings:
    """Settings with files so small that a few messages roll them."""
    values: dict[str, object] = {
        "path": root,
        "mapped_file_size_commit_log": SEGMENT_BYTES,
        "mapped_file_size_consume_queue": QUEUE_FILE_ENTRIES * QUEUE_ENTRY_SIZE,
        "mapped_file_size_batch_consume_queue": 460,
        "max_hash_slot_num": 50,
        "max_index_num": 400,
    }
    return StoreSettings(**{**values, **changes})


@attrs.define
class World:
    """One store through several starts. `batch_topics` stands for the broker's table of topics."""

    disk: Disk
    root: str
    settings: StoreSettings
    clock: ManualClock = attrs.field(factory=ManualClock)
    batch_topics: set[str] = attrs.field(factory=set)
    report: RecoveryReport = attrs.field(factory=RecoveryReport)

    @classmethod
    def make(cls, disk: Disk, root: str, *, sync: bool = False, **changes: object) -> World:
        """A world without any store yet."""
        flush = FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH
        return cls(disk, root, small_settings(root, flush_disk_type=flush, **changes))

    # -- lives

    def open_parts(self) -> StoreParts:
        """Lock the store, as every start does first."""
        return open_parts(self.disk, self.settings, self.clock, self.batch_topics.__contains__)

    async def recover(self) -> StoreParts:
        """Recover; the parts are the caller's to release."""
        parts = self.open_parts()
        try:
            self.report = await recover(parts)
        except BaseException:
            parts.release()
            raise
        return parts

    @asynccontextmanager
    async def life(self, *, kill: bool = False) -> AsyncIterator[Store]:
        """A recovered store. At the end it is closed, or left as kill -9 leaves it: written, but not closed."""
        parts = await self.recover()
        store = Store(parts, self.clock, HOST)
        try:
            yield store
            store.commit()
            if kill:
                store.dispatcher.finish()
            else:
                await store.close()
        finally:
            parts.release()

    async def restart(self) -> RecoveryReport:
        """Recover and let go again, without serving."""
        (await self.recover()).release()
        return self.report

    # -- messages

    def send(
        self,
        store: Store,
        body: bytes,
        topic: str = "T",
        queue_id: int = 0,
        *,
        tags: str | None = None,
        keys: str | None = None,
        sys_flag: int = 0,
        more: dict[str, str] | None = None,
        **fields: int,
    ) -> int:
        """Store one message; returns its log offset. One millisecond passes."""
        props = {"TAGS": tags, "KEYS": keys, **(more or {})}
        self.clock.advance(1)
        return store.append(
            store.queues.obtain(topic, queue_id),
            body,
            properties.encode({name: value for name, value in props.items() if value is not None}),
            token=body,
            sys_flag=sys_flag,
            born_timestamp_ms=self.clock.now_ms(),
            born_host=HOST.packed,
            now_ms=self.clock.now_ms(),
            **fields,
        )

    def send_batch(self, store: Store, bodies: list[bytes], topic: str = "B") -> int:
        """Store some messages as one record of a batch queue."""
        queue = store.queues.obtain(topic, 0)
        joined = b"".join(bodies)
        more = {"INNER_NUM": str(len(bodies)), "INNER_BASE": str(queue.next_offset)}
        return self.send(store, joined, topic, sys_flag=0xC0, more=more, count=len(bodies))

    async def filled(self, count: int = 60, *, kill: bool = False, queues: int = 3) -> list[int]:
        """Live once and store messages with tags and keys in some queues; returns their log offsets."""
        async with self.life(kill=kill) as store:
            return [
                self.send(store, b"body %d" % n, "T", n % queues, tags=f"tag{n % 2}", keys=f"k{n}")
                for n in range(count)
            ]

    # -- files

    def path(self, name: str) -> str:
        """Path of something in the store."""
        return f"{self.root}/{name}"

    def segment(self, offset: int) -> str:
        """Path of the log file that covers an offset."""
        size = self.settings.mapped_file_size_commit_log
        return f"{self.settings.commit_log_dir}/{offset - offset % size:020d}"

    def queue_file(self, topic: str = "T", queue_id: int = 0, first: int = 0) -> str:
        """Path of the queue file that begins with entry `first`."""
        return self.path(f"consumequeue/{topic}/{queue_id}/{first * QUEUE_ENTRY_SIZE:020d}")

    def read(self, path: str) -> bytes:
        """All of a file."""
        file = self.disk.open(path, readonly=True)
        try:
            return file.read(max(1, file.size()), 0)
        finally:
            file.close()

    def write(self, path: str, data: bytes, offset: int = 0) -> None:
        """Damage a file, or make one."""
        self.disk.make_dirs(path.rpartition("/")[0])
        file = self.disk.open(path, create=True)
        file.write(data, offset)
        file.sync()
        file.close()

    def resize(self, path: str, size: int) -> None:
        """Cut a file, or make one of zeros."""
        file = self.disk.open(path, create=True)
        file.truncate(size)
        file.sync()
        file.close()

    def write_log(self, data: bytes, offset: int) -> None:
        """Overwrite bytes of the log."""
        self.write(self.segment(offset), data, offset % self.settings.mapped_file_size_commit_log)

    def read_log(self, size: int, offset: int) -> bytes:
        """Bytes of the log."""
        at = offset % self.settings.mapped_file_size_commit_log
        return self.read(self.segment(offset))[at : at + size]

    def flip(self, offset: int) -> None:
        """Flip one bit of the log."""
        self.write_log(bytes([self.read_log(1, offset)[0] ^ 1]), offset)

    def cut_entries(self, topic: str, queue_id: int, first: int, count: int) -> None:
        """Make some entries of a queue zeros, as if they had never reached the disk."""
        for number in range(first, first + count):
            base = number - number % QUEUE_FILE_ENTRIES
            at = (number - base) * QUEUE_ENTRY_SIZE
            self.write(self.queue_file(topic, queue_id, base), bytes(QUEUE_ENTRY_SIZE), at)

    def crash(self) -> None:
        """Leave the abort marker, as a sudden end does."""
        self.write(self.path("abort"), b"4711")

    def from_the_start(self) -> None:
        """Let the next start go over the whole log: it says that one which began there has not ended."""
        self.crash()
        known = self.disk.exists(self.path("checkpoint"))
        value = with_marks(self.checkpoint() if known else Checkpoint(), Marks(0, 0))
        self.write(self.path("checkpoint"), pack_checkpoint(value))

    def checkpoint(self) -> Checkpoint:
        """What the checkpoint says."""
        found = unpack_checkpoint(self.read(self.path("checkpoint")))
        assert found is not None
        return found

    def files(self, *folders: str) -> dict[str, bytes]:
        """Content of all files, or of those below some folders, by path."""
        found: dict[str, bytes] = {}

        def gather(path: str) -> None:
            for name in self.disk.list_dir(path):
                inner = f"{path}/{name}"
                if name == "lock":
                    continue  # to close any descriptor of it would let the lock of this process go
                if self.disk.is_dir(inner):
                    gather(inner)
                else:
                    found[inner.removeprefix(self.root + "/")] = self.read(inner)

        for folder in folders or ("",):
            gather(f"{self.root}/{folder}".rstrip("/"))
        return found

    def derived(self) -> dict[str, bytes]:
        """Everything that recovery may write, but for markers."""
        return self.files("commitlog", "consumequeue", "batchconsumequeue", "index")


# -- reading


def consumed(store: Store, queue: BaseQueue, most: int = 32) -> list[StoredMessage]:
    """All messages of a queue, as a consumer gets them that asks for `most` at once, whatever records say."""
    found: list[StoredMessage] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        got = warmed(lambda at=offset: store.reader.messages(queue, at, most, None))
        assert got.next_offset > offset, "a consumer is never stuck"
        at = 0
        while at < len(got.data):
            found.append(record.decode(got.data, at))
            at += found[-1].size
        offset = got.next_offset
    return found


def messages(store: Store, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    """All messages of a queue, read as a consumer reads them; checks their order and offsets on the way."""
    queue = store.queue(topic, queue_id)
    if queue is None:
        return []
    found = consumed(store, queue)
    assert all((m.topic, m.queue_id) == (topic, queue_id) for m in found)
    offsets = [m.queue_offset for m in found]
    assert offsets == sorted(set(offsets)), "each once, and in order"
    return found


def bodies(store: Store, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """Bodies of all messages of a queue."""
    return [m.body for m in messages(store, topic, queue_id)]


def everything(store: Store) -> dict[tuple[str, int], list[bytes]]:
    """Bodies of all messages by queue."""
    return {(q.topic, q.queue_id): bodies(store, q.topic, q.queue_id) for q in store.queues}


def entries(queue: BaseQueue) -> list[tuple[int, int, int]]:
    """All entries of a simple queue from its minimum on: log offset, size, tags code."""
    data, at = b"", queue.min_offset * QUEUE_ENTRY_SIZE
    while at < queue.files.end:
        piece = warmed(lambda at=at: queue.files.read(1 << 20, at))
        data, at = data + piece, at + len(piece)
    return list(QUEUE_ENTRY.iter_unpack(data))


def keyed(store: Store, key: str, topic: str = "T") -> list[int]:
    """Log offsets that the index has for a key, oldest first."""
    key_hash = java_hash(f"{topic}#{key}")
    value = 0 if key_hash == -0x8000_0000 else abs(key_hash)
    return sorted(store.index.search(value, 1000, 0, 1 << 62))
