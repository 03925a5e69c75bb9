"""Times of the store alone, without sockets: append and commit, the key index, and reads of 32 messages.

Run ``python bench/micro_store.py``; prints microseconds per message (best of several rounds) as a table, or as JSON
with ``--json``. Times are CPU times of one thread; compare only
figures of one run.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from pathlib import Path

import attrs
import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from trio_mq.clock import SystemClock
from trio_mq.config import StoreSettings
from trio_mq.protocol.message import Host
from trio_mq.store.disk import RealDisk
from trio_mq.store.store import Store, open_parts

BODY = bytes(128)
PER_COMMIT = 32
MESSAGES = 32 * 1000
ROUNDS = 5
QUEUES = 8
BORN_HOST = Host("127.0.0.1", 50_000).packed
BORN_MS = 1_700_000_000_000


def properties_of(number: int) -> bytes:
    """Three properties, as a Java producer sends them."""
    return b"KEYS\x01order-%d\x02UNIQ_KEY\x017F000001A1B418B4AAC2%012X\x02TAGS\x01TagA\x02" % (
        number,
        number,
    )


def append_and_commit(store: Store, props: list[bytes]) -> float:
    """Microseconds per message for append, its share of commit and of the dispatcher."""
    queues = [store.queues.obtain("BenchTopic", number) for number in range(QUEUES)]
    token = object()
    append, commit = store.append, store.commit
    began = time.thread_time()
    for begin in range(0, len(props), PER_COMMIT):
        now_ms = BORN_MS
        for number in range(begin, begin + PER_COMMIT):
            append(
                queues[number % QUEUES],
                BODY,
                props[number],
                token=token,
                born_timestamp_ms=BORN_MS,
                born_host=BORN_HOST,
                now_ms=now_ms,
            )
        commit()
    return 1e6 * (time.thread_time() - began) / len(props)


def tails(store: Store) -> float:
    """Microseconds per message to write queue entries to their files."""
    began = time.thread_time()
    store.queues.write_tails()
    return 1e6 * (time.thread_time() - began) / MESSAGES


def index_keys(store: Store) -> float:
    """Microseconds per message to hash three keys and insert them."""
    count = store.dispatcher.index_backlog
    began = time.thread_time()
    while store.dispatcher.index_backlog:
        store.dispatcher.index_chunk()
    return 1e6 * (time.thread_time() - began) / count


def pulls(store: Store, codes: frozenset[int] | None, *, one_queue: bool) -> float:
    """Microseconds per read of 32 messages."""
    queue = store.queues.obtain("BenchOne" if one_queue else "BenchTopic", 0)
    read = store.reader.messages
    offset, times = 0, 1000
    began = time.thread_time()
    for _ in range(times):
        found = read(queue, offset, 32, codes)
        assert found.count == 32, found
        offset = (offset + 32) % (queue.max_offset - 64)
    return 1e6 * (time.thread_time() - began) / times


def fill_one_queue(store: Store) -> None:
    queue = store.queues.obtain("BenchOne", 0)
    for number in range(10_000):
        store.append(
            queue,
            BODY,
            properties_of(number),
            token=None,
            born_timestamp_ms=BORN_MS,
            born_host=BORN_HOST,
            now_ms=BORN_MS,
        )
    store.commit()


def opened(path: str) -> Store:
    settings = attrs.evolve(StoreSettings(), path=path)
    clock = SystemClock()
    parts = open_parts(RealDisk(), settings, clock, lambda _topic: False)
    parts.log.open_at(0)  # an empty store has nothing to recover
    return Store(parts, clock, Host("127.0.0.1", 10911))


async def measure() -> dict[str, float]:
    best: dict[str, float] = {}

    def note(name: str, value: float) -> None:
        best[name] = min(best.get(name, value), value)

    with tempfile.TemporaryDirectory() as directory:
        store = opened(directory)
        for number in range(ROUNDS):
            props = [properties_of(number * MESSAGES + i) for i in range(MESSAGES)]
            gc.collect()
            note("append + commit, us/message", append_and_commit(store, props))
            note("queue files, us/message", tails(store))
            note("index of 3 keys, us/message", index_keys(store))
        fill_one_queue(store)
        store.queues.write_tails()
        for _ in range(ROUNDS):
            note("read 32 contiguous, us", pulls(store, None, one_queue=True))
            note("read 32 scattered, us", pulls(store, None, one_queue=False))
            note("read 32 by tag, us", pulls(store, frozenset({2598919}), one_queue=True))
        await store.close()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    best: dict[str, float] = trio.run(measure)
    if parser.parse_args().json:
        print(json.dumps({name: round(value, 3) for name, value in best.items()}))
        return
    for name, value in best.items():
        print(f"{name:32} {value:8.2f}")


if __name__ == "__main__":
    main()
