"""The store that recoveries are measured on: made once, copied for every run, and held against what came out.

In: a cache folder, a number of records. Out: :class:`Origin` (where it is, how many entries each queue has), copies
of it in a chosen state, and what is wrong with a copy after a run. What is right is read from the original's queue
files, by this module alone, so that the code that is measured does not judge itself.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
import time
from pathlib import Path

import attrs
import trio

from tests.interop.polling import now_ms
from trio_mq.clock import SystemClock
from trio_mq.config import StoreSettings
from trio_mq.protocol.message import Host
from trio_mq.recovery.recover import recover
from trio_mq.store.disk import RealDisk
from trio_mq.store.store import Store, open_parts

ENTRY = struct.Struct(">qiq")
SEGMENT = 1 << 30
TOPICS, QUEUES = 4, 8
#: A chunk of reading and comparing.
CHUNK = 4 << 20
#: Bytes of a body, less the 40 of its number.
FILLER = 150


@attrs.frozen
class Origin:
    """A store that was stopped cleanly. `ends` has the entries of each queue, `log_end` is an offset in bytes."""

    root: Path
    ends: dict[tuple[str, int], int]
    log_end: int
    keys: int

    @property
    def records(self) -> int:
        """In all queues."""
        return sum(self.ends.values())

    def segments(self) -> list[Path]:
        """Log files in order."""
        return sorted((self.root / "commitlog").iterdir())

    def half(self) -> Origin:
        """What the first log files hold, about half of it."""
        limit = max(1, len(self.segments()) // 2) * SEGMENT
        ends, last, size_of_last = {}, 0, 0
        for queue, count in self.ends.items():
            data = queue_bytes(self.root, queue, count)
            inside = [(o, s) for o, s, _ in ENTRY.iter_unpack(data) if o < limit]
            ends[queue] = len(inside)
            if inside and inside[-1][0] > last:
                last, size_of_last = inside[-1]
        keys = self.keys * sum(ends.values()) // self.records
        return Origin(self.root, ends, last + size_of_last, keys)


def obtain(cache: Path, records: int) -> Origin:
    """The store in the cache folder; made there when it is not, or has too few records."""
    root = cache / "store"
    if (root / "commitlog").is_dir() and not (root / "abort").exists():
        found = read(root)
        if found.records >= records:
            return found
        print(f"{root} has {found.records:,} records, which is not enough: it is made again")
    shutil.rmtree(root, ignore_errors=True)
    print(f"making a store of {records:,} records in {root}")
    began = time.monotonic()
    trio.run(make, str(root), records)
    print(f"  took {time.monotonic() - began:.0f} s")
    return read(root)


def read(root: Path) -> Origin:
    """Count what the queue files hold. A tag may end in zeros, a size does not, so whole entries are rounded up."""
    ends, last, size_of_last = {}, -1, 0
    for folder in sorted((root / "consumequeue").glob("*/*")):
        queue = (folder.parent.name, int(folder.name))
        data = b"".join(f.read_bytes() for f in sorted(folder.iterdir())).rstrip(b"\0")
        count = -(-len(data) // ENTRY.size)
        ends[queue] = count
        if count:
            at = (count - 1) * ENTRY.size
            offset, size, _ = ENTRY.unpack(data[at:].ljust(ENTRY.size, b"\0"))
            if offset > last:
                last, size_of_last = offset, size
    return Origin(root, ends, last + size_of_last, index_keys(root))


def index_keys(root: Path) -> int:
    """Keys in all index files, as their headers say (Apache: IndexHeader, which counts from 1)."""
    total = 0
    for file in (root / "index").glob("*"):
        with file.open("rb") as opened:
            total += max(0, struct.unpack(">i", opened.read(40)[36:])[0] - 1)
    return total


def queue_bytes(root: Path, queue: tuple[str, int], count: int) -> bytes:
    """The first entries of a queue."""
    folder = root / "consumequeue" / queue[0] / str(queue[1])
    data, wanted = b"", count * ENTRY.size
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        data += file.read_bytes()
        if len(data) >= wanted:
            break
    return data[:wanted]


async def make(root: str, records: int, first: int = 0, filler_bytes: int = FILLER) -> None:
    """Write a store through our own writer, or go on with one at record `first`: tags, a key and a unique key, bodies
    that do not compress.
    """
    clock = SystemClock()
    parts = open_parts(RealDisk(), StoreSettings(path=root), clock, lambda topic: False)
    await recover(parts)
    store = Store(parts, clock, Host("127.0.0.1", 10911))
    await store.start()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for begin in range(first, records, 500):
            append(store, begin, min(begin + 500, records), filler_bytes)
            store.commit()
            if begin % 20_000 == 0:
                await indexed(store, 40_000)
        await indexed(store, 0)
        nursery.cancel_scope.cancel()
    await store.close()


async def indexed(store: Store, backlog: int) -> None:
    """Let the store's tasks run until no more keys than these wait for the index."""
    await trio.lowlevel.checkpoint()
    while store.dispatcher.index_backlog > backlog:  # noqa: ASYNC110 - the dispatcher tells nobody
        await trio.sleep(0.01)


def append(store: Store, begin: int, end: int, filler_bytes: int) -> None:
    """Records with these numbers."""
    host = Host("127.0.0.1", 5555).packed
    filler = random.Random(begin).randbytes(filler_bytes)
    now = now_ms()
    for i in range(begin, end):
        properties = (
            b"KEYS\x01order-%09d\x02UNIQ_KEY\x010A0000017D4C63947C6B%012X\x02WAIT\x01true\x02"
            b"TAGS\x01Tag%c\x02CLUSTER\x01DefaultCluster\x02" % (i, i, 65 + i % 4)
        )
        queue = store.queues.obtain(f"Bench{i % TOPICS}", i // TOPICS % QUEUES)
        store.append(
            queue, filler + b"%040d" % i, properties, token=None, born_timestamp_ms=now, born_host=host, now_ms=now,
        )  # fmt: skip


@attrs.frozen
class State:
    """What a copy begins as."""

    abort: bool = False
    queues: bool = True
    #: Whether the checkpoint has what only trio-mq writes into it; without, it is as Apache's broker leaves it.
    marks: bool = True
    checkpoint: bool = True


def copy(origin: Origin, target: Path, state: State) -> dict[Path, int]:
    """A copy that a broker may start on. Log files that a start only reads are linked: their times are returned."""
    shutil.rmtree(target, ignore_errors=True)
    (target / "commitlog").mkdir(parents=True)
    linked = {}
    *sealed, last = [
        s for s in origin.segments() if int(s.name) < max(origin.log_end, 1)
    ]  # a segment that was prepared and not begun is left out
    for segment in sealed:
        name = target / "commitlog" / segment.name
        try:
            name.hardlink_to(segment)
            linked[name] = segment.stat().st_mtime_ns
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                raise
            sparse_copy(segment, name)
    sparse_copy(last, target / "commitlog" / last.name)
    if state.queues:
        for folder in ("consumequeue", "index"):
            shutil.copytree(origin.root / folder, target / folder, copy_function=sparse_copy)
    if state.checkpoint:
        content = bytearray((origin.root / "checkpoint").read_bytes())
        if not state.marks:
            content[40:64] = bytes(24)
        (target / "checkpoint").write_bytes(content)
    if state.abort:
        (target / "abort").write_text("1")
    os.sync()  # what is still to be written would be counted as the start's
    return linked


def sparse_copy(source: str | Path, target: str | Path) -> None:
    """Holes stay holes: most of a segment that was just begun is one."""
    with open(source, "rb") as src, open(target, "wb") as dst:
        size = os.fstat(src.fileno()).st_size
        at = 0
        while at < size:
            try:
                at = os.lseek(src.fileno(), at, os.SEEK_DATA)
            except OSError:  # only a hole is left
                break
            end = os.lseek(src.fileno(), at, os.SEEK_HOLE)
            while at < end:
                data = os.pread(src.fileno(), min(CHUNK, end - at), at)
                at += os.pwrite(dst.fileno(), data, at)
        os.ftruncate(dst.fileno(), size)


def wrong_files(
    origin: Origin, target: Path, linked: dict[Path, int], *, keys_again: bool = False
) -> list[str]:
    """What is not as it should be in the files of a copy, after its broker has ended.

    `keys_again`: the keys of the last record may be there twice, which does no harm. Apache's broker hands it on once
    more after a crash, and its index passes over records before its last one only.
    """
    wrong = [
        f"{path.name} was written to"
        for path, modified in linked.items()
        if path.stat().st_mtime_ns != modified
    ]
    differ = [
        f"{topic}/{queue_id}"
        for (topic, queue_id), count in origin.ends.items()
        if queue_bytes(target, (topic, queue_id), count)
        != queue_bytes(origin.root, (topic, queue_id), count)
    ]
    if differ:
        wrong.append(f"entries of {len(differ)} queues differ, the first is {differ[0]}")
    keys = index_keys(target)
    most = origin.keys + (origin.keys // origin.records if keys_again else 0)
    if not origin.keys <= keys <= most:
        wrong.append(f"the index has {keys:,} keys, not {origin.keys:,}")
    return wrong


def load_pages(root: Path) -> None:
    """Have the log in the page cache, as it is for a broker that was just restarted."""
    for file in sorted((root / "commitlog").iterdir()):
        with file.open("rb", buffering=0) as opened:
            while opened.read(CHUNK):
                pass


def forget_pages(root: Path) -> float:
    """Have the system drop the files from its page cache; returns the share of sampled pages that is still there."""
    os.sync()
    kept = seen = 0
    for file in (f for f in root.rglob("*") if f.is_file()):
        with file.open("rb") as opened:
            fd, size = opened.fileno(), file.stat().st_size
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            for at in range(0, size, max(1 << 20, size // 64)):
                seen += 1
                kept += cached(fd, at)
    return kept / max(1, seen)


def cached(fd: int, at: int) -> bool:
    """Whether a page is in the page cache; a hole counts as one that is not."""
    try:
        return os.preadv(fd, [bytearray(1)], at, os.RWF_NOWAIT) == 1 and _is_data(fd, at)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
            return False
        raise


def _is_data(fd: int, at: int) -> bool:
    try:
        return os.lseek(fd, at, os.SEEK_DATA) == at
    except OSError:
        return False
