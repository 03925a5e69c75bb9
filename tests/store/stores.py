"""Small stores for tests: on either disk, empty or recovered, with records that are easy to tell apart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from trio_mq.clock import Clock
from trio_mq.config import StoreSettings
from trio_mq.protocol.message import Host
from trio_mq.recovery.recover import recover
from trio_mq.store.disk import Disk
from trio_mq.store.queues import BaseQueue
from trio_mq.store.store import Store, StoreParts, open_parts
from trio_mq.testing.clock import DEFAULT_START_MS, ManualClock

ROOT = "/store"
SEGMENT_BYTES = 4096
HOST = Host("127.0.0.1", 10911)
BORN = Host("127.0.0.1", 5000).packed
BATCH_TOPICS = ("Batches",)


def settings(root: str = ROOT, **changes: Any) -> StoreSettings:
    """Settings with small files."""
    small: dict[str, Any] = {
        "path": root,
        "mapped_file_size_commit_log": SEGMENT_BYTES,
        "mapped_file_size_consume_queue": 200,
        "mapped_file_size_batch_consume_queue": 460,
        "max_hash_slot_num": 50,
        "max_index_num": 40,
    }
    return attrs.evolve(StoreSettings(), **(small | changes))


def open_small(
    disk: Disk, root: str = ROOT, *, clock: Clock | None = None, **changes: Any
) -> StoreParts:
    """The parts of a store with small files."""
    clock = clock or ManualClock()
    return open_parts(disk, settings(root, **changes), clock, lambda topic: topic in BATCH_TOPICS)


def empty_store(
    disk: Disk, root: str = ROOT, *, clock: Clock | None = None, host: Host = HOST, **changes: Any
) -> Store:
    """A new store; nothing has to be recovered."""
    clock = clock or ManualClock()
    parts = open_small(disk, root, clock=clock, **changes)
    parts.log.open_at(0)
    return Store(parts, clock, host)


async def recovered_store(
    disk: Disk, root: str = ROOT, *, clock: Clock | None = None, **changes: Any
) -> Store:
    """A store as `serve` opens it."""
    clock = clock or ManualClock()
    parts = open_small(disk, root, clock=clock, **changes)
    await recover(parts)
    return Store(parts, clock, HOST)


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[Store]:
    """The store with its tasks; closed at the end."""
    await store.start()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()
    await store.close()


def send(
    store: Store,
    queue: BaseQueue,
    body: bytes = b"body",
    *,
    props: bytes = b"",
    now_ms: int = DEFAULT_START_MS,
    token: object = None,
    **more: Any,
) -> int:
    """Stage one message; returns its log offset."""
    return store.append(
        queue,
        body,
        props,
        token=token,
        born_timestamp_ms=now_ms,
        born_host=more.pop("born_host", BORN),
        now_ms=now_ms,
        **more,
    )


def send_many(
    store: Store, queue: BaseQueue, count: int, *, first: int = 0, per_commit: int = 4, **more: Any
) -> list[int]:
    """Stage and commit numbered messages; returns their log offsets."""
    offsets = []
    for number in range(first, first + count):
        offsets.append(send(store, queue, b"body %d" % number, **more))
        if (number + 1) % per_commit == 0:
            store.commit()
    store.commit()
    return offsets


def bodies(store: Store, queue: BaseQueue | None) -> list[bytes]:
    """Bodies of all messages that a consumer sees, from the first offset on."""
    from trio_mq.protocol.record import decode
    from trio_mq.store.reader import Found

    assert queue is not None
    found: list[bytes] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        answer = store.reader.messages(queue, offset, 32, None)
        assert answer.next_offset > offset
        offset = answer.next_offset
        at = 0
        while answer.found is Found.FOUND and at < len(answer.data):
            message = decode(answer.data, at)
            assert message.topic == queue.topic
            found.append(message.body)
            at += message.size
    return found


def tree(disk: Disk, root: str = ROOT) -> dict[str, int]:
    """All files below a folder with their sizes."""
    found: dict[str, int] = {}
    for name in disk.list_dir(root):
        path = f"{root}/{name}"
        if disk.is_dir(path):
            found |= tree(disk, path)
        else:
            found[path] = disk.size(path)
    return found


def fails_in(folder: str) -> Callable[[Any], bool]:
    """For :meth:`MemoryDisk.fail_when`: writes (and new files) below a folder."""
    return lambda operation: (
        folder in operation.path and operation.kind in ("write", "create", "truncate")
    )
