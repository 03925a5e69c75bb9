"""Work on every queue of a store: one child task for each in worker threads, or one queue after the other.

In: the queues, and a blocking call that may use the files of one queue and of the log. Out: its results in the order
of the queues, whatever order the children ended in. The first call that fails cancels the others; its error says which
queue it was. Sources: Apache ConsumeQueueStore.recoverConcurrently, RocketMQ-Rust LocalFileConsumeQueueStore.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

import attrs
import trio

from trio_mq.errors import StoreError
from trio_mq.store.disk import Disk
from trio_mq.store.queues import BaseQueue
from trio_mq.store.segments import Segments
from trio_mq.tasks import first_failure

S = TypeVar("S")
T = TypeVar("T")

#: Threads that look at queues at the same time: the work is reading, and little more.
WORKERS: Final = min(8, 2 + (os.cpu_count() or 1))
#: Child tasks at most: with more queues than this, each child takes some, since a thread costs more than a short queue.
CHILDREN: Final = 1000
#: Queues that are looked at in one call to a worker thread when they go in turn, so that a stop is noticed soon.
QUEUES_AT_ONCE: Final = 64


@attrs.frozen
class LogSegments:
    """The files of the log as one thread has them."""

    segments: Segments


Look = Callable[[BaseQueue, LogSegments], T]


async def for_each_queue(
    disk: Disk,
    queues: Sequence[BaseQueue],
    log: Segments,
    look: Look[T],
    *,
    concurrently: bool,
) -> list[T]:
    """What `look` gives for each queue. An OSError or StoreError of one gets out with the path of its queue."""
    if not concurrently:
        return await _in_turn(disk, queues, log, look)
    workers = trio.CapacityLimiter(WORKERS)
    share = 1 + len(queues) // CHILDREN
    shares = list(some_at_once(queues, share))
    results: list[list[T]] = [[] for _ in shares]

    async def child(number: int) -> None:
        async with workers:
            results[number] = await disk.run(partial(_each_apart, shares[number], log, look))

    # The first child that fails ends the start, so it cancels its siblings: that is what a nursery does.
    try:
        async with trio.open_nursery() as nursery:
            for number in range(len(shares)):
                nursery.start_soon(child, number)
    except BaseExceptionGroup as group:
        raise first_failure(group) from None
    return [result for some in results for result in some]


def some_at_once(items: Sequence[S], most: int = QUEUES_AT_ONCE) -> Iterator[Sequence[S]]:
    """All items in their order, at most so many at once."""
    for begin in range(0, len(items), most):
        yield items[begin : begin + most]


async def _in_turn(
    disk: Disk, queues: Sequence[BaseQueue], log: Segments, look: Look[T]
) -> list[T]:
    results: list[T] = []
    for some in some_at_once(queues):
        results += await disk.run(partial(_each_apart, some, log, look))
    return results


def _each_apart(queues: Sequence[BaseQueue], log: Segments, look: Look[T]) -> list[T]:
    return [_apart(queue, log, look) for queue in queues]


def _apart(queue: BaseQueue, log: Segments, look: Look[T]) -> T:
    """One look, with files that no other thread has. Blocking."""
    with _named(queue), queue.files.segments.lent(), log.read_apart() as segments:
        return look(queue, LogSegments(segments))


@contextmanager
def _named(queue: BaseQueue) -> Iterator[None]:
    """Give an error the path of the queue, when it has none."""
    directory = queue.files.segments.directory
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno or errno.EIO, error.strerror, directory) from error
        raise
    except StoreError as error:
        if directory in str(error):
            raise
        raise type(error)(f"{directory}: {error}") from error
