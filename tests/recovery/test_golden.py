"""Stores that Apache RocketMQ 5.4.0 wrote: opened, read back, and left as they were.

``clean`` was closed in order, ``crash`` ended by kill -9; ``tests/golden/README.md`` tells how they were made.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden_stores import (
    HASH_SLOTS,
    MAX_INDEX_NUM,
    QUEUE_FILE_SIZE,
    SEGMENT_SIZE,
    decoded,
    raw_records,
    read_files,
    unpack,
)
from trio_mq.config import StoreSettings
from trio_mq.errors import ForeignFormat, StoreDamaged
from trio_mq.protocol.layout import (
    BATCH_QUEUE_ENTRY,
    QUEUE_ENTRY,
    index_key_hash,
)
from trio_mq.protocol.record import decode, keys_for_index
from trio_mq.store.disk import RealDisk
from trio_mq.store.store import Store

from .stores import World, bodies, entries, messages


def golden(name: str, tmp_path: Path, **changes: object) -> World:
    """A copy of a reference store, with the settings it was written with."""
    values: dict[str, object] = {
        "path": str(unpack(name, tmp_path)),
        "mapped_file_size_commit_log": SEGMENT_SIZE,
        "mapped_file_size_consume_queue": QUEUE_FILE_SIZE,
        "max_hash_slot_num": HASH_SLOTS,
        "max_index_num": MAX_INDEX_NUM,
    }
    settings = StoreSettings(**{**values, **changes})
    world = World(RealDisk(), settings.path, settings)
    table = json.loads((Path(settings.path) / "config" / "topics.json").read_text("utf-8"))
    world.batch_topics = {
        name
        for name, topic in table["topicConfigTable"].items()
        if topic["attributes"].get("queue.type") == "BatchCQ"
    }
    world.clock.set(max(row["storeTimestamp"] for row in decoded(name)) + 1000)
    return world


def log_end(name: str) -> int:
    """Where Apache's recovery ends the log: behind the last whole record."""
    last = decoded(name)[-1]
    return last["offset"] + last["size"]


def apache_queues(name: str) -> dict[tuple[str, int], list[tuple[int, int, int, int]]]:
    """What Apache's queue files say: log offset, size, tags code and first message of each entry."""
    found: dict[tuple[str, int], list[tuple[int, int, int, int]]] = {}
    for path, data in sorted(read_files(name, "consumequeue").items()):
        topic, queue_id, file = path.split("/")
        rows = found.setdefault((topic, int(queue_id)), [])
        for number, entry in enumerate(QUEUE_ENTRY.iter_unpack(data), int(file) // 20):
            if entry[1] > 0:
                rows.append((*entry, number))
    for path, data in sorted(read_files(name, "batchconsumequeue").items()):
        topic, queue_id, _ = path.split("/")
        rows = found.setdefault((topic, int(queue_id)), [])
        usable = data[: len(data) // 46 * 46]
        rows += [(*e[:3], e[4]) for e in BATCH_QUEUE_ENTRY.iter_unpack(usable) if e[1] > 0]
    return found


async def test_a_clean_start_reads_one_record_and_changes_nothing(tmp_path):
    world = golden("clean", tmp_path)
    before = world.files("commitlog", "consumequeue", "batchconsumequeue", "index")
    rest = world.files("config")
    report = await world.restart()
    assert report.clean
    assert report.notes == []
    assert report.records == 1
    assert (report.log_start, report.log_end) == (0, log_end("clean"))
    assert world.files("commitlog", "consumequeue", "batchconsumequeue", "index") == before
    assert world.files("config") == rest


async def test_a_careful_start_of_the_clean_store_makes_the_same_files(tmp_path):
    """Everything is gone over, with the abort marker there: queues and index come out as Apache wrote them."""
    world = golden("clean", tmp_path)
    before = world.files("commitlog", "consumequeue", "batchconsumequeue")
    world.from_the_start()
    report = await world.restart()
    assert not report.clean
    assert report.records == len(decoded("clean"))
    assert report.log_end == log_end("clean")
    assert world.files("commitlog", "consumequeue", "batchconsumequeue") == before


async def test_queues_and_index_built_from_nothing_are_apaches(tmp_path):
    world = golden("clean", tmp_path)
    before = world.files("consumequeue", "batchconsumequeue")
    (index,) = world.files("index").values()
    for folder in ("consumequeue", "batchconsumequeue", "index"):
        world.disk.remove_tree(world.path(folder))
    async with world.life():
        assert world.report.records == len(decoded("clean"))
    assert world.files("consumequeue", "batchconsumequeue") == before
    (again,) = world.files("index").values()
    assert again == index


async def test_the_crashed_store_ends_where_its_records_end(tmp_path):
    world = golden("crash", tmp_path)
    report = await world.restart()
    assert not report.clean
    assert report.log_end == log_end("crash")
    assert report.cut_reason is None
    again = await world.restart()
    assert again.log_end == report.log_end
    assert again.records == 0, "what the first one did was synced and marked"


@pytest.mark.parametrize("name", ["clean", "crash"])
async def test_every_record_is_read_back(tmp_path, name: str):
    world = golden(name, tmp_path)
    async with world.life() as store:
        for offset, raw in raw_records(name):
            assert store.reader.record(offset) == raw


@pytest.mark.parametrize("name", ["clean", "crash"])
async def test_queues_end_where_apaches_files_say(tmp_path, name: str):
    world = golden(name, tmp_path)
    expected = apache_queues(name)
    async with world.life() as store:
        assert {(q.topic, q.queue_id) for q in store.queues} == set(expected)
        for queue in store.queues:
            rows = expected[queue.topic, queue.queue_id]
            assert queue.min_offset == rows[0][3]
            if queue.is_batch:
                assert queue.max_offset == rows[-1][3] + 5
                continue
            assert queue.max_offset == rows[-1][3] + 1
            assert entries(queue) == [row[:3] for row in rows]


@pytest.mark.parametrize("name", ["clean", "crash"])
async def test_every_message_is_pulled_from_its_queue(tmp_path, name: str):
    world = golden(name, tmp_path)
    wanted: dict[tuple[str, int], list[int]] = {}
    for row in decoded(name):
        wanted.setdefault((row["topic"], row["queueId"]), []).append(row["offset"])
    async with world.life() as store:
        for key, offsets in wanted.items():
            assert [m.log_offset for m in messages(store, *key)] == offsets


@pytest.mark.parametrize("name", ["clean", "crash"])
async def test_the_index_finds_every_key(tmp_path, name: str):
    world = golden(name, tmp_path)
    async with world.life() as store:
        for offset, raw in raw_records(name):
            message = decode(raw)
            for key in keys_for_index(message.topic, message.properties, message.sys_flag):
                assert offset in store.index.search(index_key_hash(key), 10_000, 0, 1 << 62), key


@pytest.mark.parametrize("name", ["clean", "crash"])
async def test_messages_go_on_behind_apaches(tmp_path, name: str):
    world = golden(name, tmp_path)
    async with world.life() as store:
        before = bodies(store, "GoldNormal", 0)
        assert world.send(store, b"ours", "GoldNormal", 0, keys="ours") == log_end(name)
    async with world.life() as store:
        assert world.report.clean
        assert bodies(store, "GoldNormal", 0) == [*before, b"ours"]
        assert _last_offset(store) == len(before)


def _last_offset(store: Store) -> int:
    return messages(store, "GoldNormal", 0)[-1].queue_offset


async def test_other_sizes_are_refused_with_the_file_and_both_sizes(tmp_path):
    world = golden("clean", tmp_path, mapped_file_size_commit_log=1 << 30)
    before = world.files()
    with pytest.raises(ForeignFormat, match=rf"{SEGMENT_SIZE} bytes.*{1 << 30}"):
        await world.restart()
    assert world.files() == before


async def test_without_its_topics_the_batch_queue_is_refused(tmp_path):
    world = golden("clean", tmp_path)
    world.batch_topics = set()
    with pytest.raises(StoreDamaged, match="GoldBCQ"):
        await world.restart()
