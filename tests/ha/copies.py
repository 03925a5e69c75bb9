"""Logs to be copied and the stores that copy them, without a network: pieces are handed over by the test.

An :class:`Original` is what a master has: its log, and queues and index as the master itself made them. A
:class:`Copying` is a store that follows, through several lives; :func:`picture` tells all that a reader can see of
either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from tests.recovery.stores import HOST, World
from trio_mq.ha.copylog import LogCopy
from trio_mq.protocol.verdict import SCHEDULE_TOPIC, Whole, check
from trio_mq.recovery.recover import Choices, recover
from trio_mq.store.segments import warmed
from trio_mq.store.store import Store
from trio_mq.testing.disk import MemoryDisk

PREPARED, COMMITTED, ROLLED_BACK = 0x4, 0x8, 0xC
LMQ = {"enable_lmq": True, "enable_multi_dispatch": True}


@attrs.frozen
class QueuePicture:
    """One queue: its bounds, and all entries from its first message on."""

    is_batch: bool
    min_offset: int
    max_offset: int
    entries: bytes


@attrs.frozen
class Picture:
    """What a store holds beside its log."""

    queues: dict[tuple[str, int], QueuePicture]
    #: Of each index file: entries as (hash, log offset, seconds, previous).
    index: list[list[tuple[int, int, int, int]]]


def read_all(read: Callable[[int, int], bytes], begin: int, end: int) -> bytes:
    """Bytes from files that are read one after the other."""
    data = b""
    while begin + len(data) < end:
        piece = warmed(partial(read, 1 << 20, begin + len(data)))
        assert piece, f"there is nothing at {begin + len(data)}, before {end}"
        data += piece
    return data


def picture(store: Store) -> Picture:
    """Queues and index of a store; queues without an entry are left out."""
    queues = {}
    for queue in store.queues:
        files = queue.files
        begin = 0 if files.segments.empty else files.segments.start
        data = read_all(files.read, begin, files.end)
        if queue.max_offset or data:
            bounds = queue.min_offset, queue.max_offset
            queues[queue.topic, queue.queue_id] = QueuePicture(queue.is_batch, *bounds, data)
    index = [[f.entry(n) for n in range(1, f.header.index_count)] for f in store.index.files]
    return Picture(queues, index)


@attrs.define
class Original:
    """A master's log from `start` on, where its records end, and what the master has made of it."""

    log: bytes
    ends: list[int]
    picture: Picture
    segment_bytes: int
    start: int = 0

    @classmethod
    def of(cls, store: Store) -> Original:
        """That of a store whose keys are all in its index."""
        store.dispatcher.finish()
        commit_log = store.log
        data = read_all(commit_log.read, commit_log.start, commit_log.written)
        segment = commit_log.segments.segment_bytes
        ends = list(record_ends(data, segment))
        return cls(data, ends, picture(store), segment, commit_log.start)

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self.start + len(self.log)

    def whole_before(self, offset: int) -> int:
        """End of the last whole record, or of the segment, in the log up to an offset."""
        return self.start + max((end for end in self.ends if end <= offset - self.start), default=0)

    def piece(self, begin: int, end: int) -> bytes:
        """Bytes of the log by their offsets."""
        return self.log[begin - self.start : end - self.start]

    def stops(self, begin: int, end: int) -> Iterator[int]:
        """`end`, and the ends of segments on the way to it."""
        at = begin - begin % self.segment_bytes + self.segment_bytes
        while at < end:
            yield at
            at += self.segment_bytes
        yield end


def record_ends(data: bytes, segment_bytes: int) -> Iterator[int]:
    """Where each record ends; for the last one of a segment the segment's end counts, too, when it is there."""
    at = 0
    while at < len(data):
        stop = min(at - at % segment_bytes + segment_bytes, len(data))
        found = check(data, at, stop)
        if isinstance(found, Whole):
            at += found.size
        elif stop % segment_bytes == 0:
            at = stop
        else:
            return
        yield at


def send_all_kinds(world: World, store: Store, count: int) -> None:
    """Messages of every kind that a slave has to dispatch in its own way."""
    for n in range(count):
        more = {"UNIQ_KEY": f"id{n}"}
        if n % 7 == 1:
            _send_delayed(world, store, n, level=1 + n % 18)
        elif n % 7 == 2:
            flag = (PREPARED, COMMITTED, ROLLED_BACK)[n // 7 % 3]
            world.send(store, b"half %d" % n, "Half", sys_flag=flag, keys=f"h{n}", more=more)
        elif n % 7 == 3:
            world.send_batch(store, [b"a%d" % n, b"b", b"c"][: 1 + n % 3])
        elif n % 7 == 4 and store.multi is not None:
            _send_light(world, store, n)
        else:
            world.send(store, b"body %d" % n, "T", n % 3, tags=f"t{n % 4}", keys=f"k{n}", more=more)
        store.commit()


def _send_delayed(world: World, store: Store, n: int, level: int) -> None:
    delay_ms = world.settings.delay_levels_ms[level - 1]
    more = {"DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": "0"}
    world.send(store, b"later %d" % n, SCHEDULE_TOPIC, level - 1, more=more, delay_ms=delay_ms)


def _send_light(world: World, store: Store, n: int) -> None:
    assert store.multi is not None
    names = f"%LMQ%a{n % 2},%LMQ%b".encode()
    data = b"INNER_MULTI_DISPATCH\x01" + names + b"\x02TAGS\x01x\x02"
    data, further = store.multi.assign("T", data)
    world.clock.advance(1)
    now_ms = world.clock.now_ms()
    store.append(
        store.queues.obtain("T", n % 3), b"light %d" % n, data, token=n, further=further,
        born_timestamp_ms=now_ms, born_host=HOST.packed, now_ms=now_ms,
    )  # fmt: skip


async def original(count: int = 60, **changes: object) -> Original:
    """What a master has after messages of all kinds."""
    world = World.make(MemoryDisk(), "/master", **(LMQ | changes))
    world.batch_topics.add("B")
    async with world.life() as store:
        send_all_kinds(world, store, count)
        return Original.of(store)


@attrs.define
class Copying:
    """A store that follows, through several lives."""

    world: World

    @classmethod
    def make(cls, original: Original, *, sync: bool = False, **changes: object) -> Copying:
        """One without any file yet, in memory."""
        size = {"mapped_file_size_commit_log": original.segment_bytes}
        world = World.make(MemoryDisk(), "/slave", sync=sync, **(LMQ | size | changes))
        world.batch_topics.add("B")
        return cls(world)

    @property
    def disk(self) -> MemoryDisk:
        """The disk in memory."""
        assert isinstance(self.world.disk, MemoryDisk)
        return self.world.disk

    @asynccontextmanager
    async def life(self, end: str = "close") -> AsyncIterator[Running]:
        """One start, with all tasks. `end`: "close", "kill", or a number: the seed of a power cut."""
        parts = self.world.open_parts()
        choices = attrs.evolve(Choices.of(self.world.settings), copied=True)
        self.world.report = await recover(parts, choices)
        store = Store(parts, self.world.clock, HOST, follows=True)
        try:
            await store.start()
            copy = LogCopy(store)
            async with trio.open_nursery() as outer:
                await outer.start(store.run)
                async with trio.open_nursery() as inner:
                    await inner.start(copy.run)
                    yield Running(store, copy)
                    inner.cancel_scope.cancel()
                if end == "close":
                    await copy.close()
                outer.cancel_scope.cancel()
            if end == "close":
                await store.close()
        finally:
            if end == "close":
                parts.release()
            elif end == "kill":
                self.disk.kill()
            else:
                self.disk.crash(int(end))


@attrs.frozen
class Running:
    """A store that runs, and what appends to it."""

    store: Store
    copy: LogCopy

    async def settled(self) -> None:
        """Wait until all records are taken over that can be."""
        await wait_all_tasks_blocked()

    async def take(self, original: Original, end: int, step: int = 1 << 20) -> None:
        """Append the log from where the copy ends to `end`, in pieces; then wait until they are taken over."""
        begin = max(self.copy.end, original.start)
        for stop in original.stops(begin, end):
            while begin < stop:
                size = min(step, stop - begin)
                self.copy.append(begin, original.piece(begin, begin + size))
                begin += size
        await self.settled()

    async def synced(self) -> None:
        """Wait until all that is written is durable, and taken over."""
        await self.copy.kept.reached(self.copy.end)
        await self.settled()
