"""C020: a record that was damaged on the disk costs itself, and is told once; nobody is stuck at it."""

from __future__ import annotations

import logging

import attrs
import pytest

from tests.recovery.stores import World, bodies, messages
from trio_mq.protocol.record import decode
from trio_mq.store.reader import Found
from trio_mq.store.store import Store
from trio_mq.testing.disk import MemoryDisk

COUNT, BAD = 40, 12


@pytest.fixture
def world() -> World:
    return World.make(MemoryDisk(), "store")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "trio_mq.store.oldrecords"]


def taken(store: Store, **more: object) -> list[bytes]:
    """What a consumer gets, record by record, as a client decodes it: an answer that does not decode ends early."""
    queue, offset, found = store.queue("T", 0), 0, []
    while offset < queue.max_offset:
        got = store.reader.messages(queue, offset, 32, more.get("codes"))
        assert got.next_offset > offset
        at, count = 0, 0
        while at < len(got.data):
            message = decode(got.data, at)
            found.append(message.body)
            at += message.size
            count += 1
        assert got.count == count
        assert got.found is not Found.FOUND or count
        offset = got.next_offset
    return found


#: What is damaged: offset in the record, and the bytes that are written there.
DAMAGES = {
    "size": (0, b"\x7f\xff\xff\xff"),
    "size 0": (0, bytes(4)),
    "magic": (4, b"\0\0\0\0"),
    "another offset": (28, b"\0\0\0\0\0\0\0\x07"),
    "body length": (84, b"\0\0\x0f\xff"),
    "negative body length": (84, b"\xff\xff\xff\xff"),
    "topic length": (88 + len(b"body 12"), b"\x7f"),
    "all of it": (0, bytes(90)),
}


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("codes", [None, {0}])
async def test_c020_what_no_client_can_read_is_left_out_and_told_once(
    world: World, caplog, how: str, codes
):
    async with world.life() as store:
        offsets = [world.send(store, b"body %d" % n) for n in range(COUNT)]
    at, data = DAMAGES[how]
    world.write_log(data, offsets[BAD] + at)
    async with world.life() as store:
        assert world.report.clean
        for _ in range(2):
            got = taken(store, codes=codes)
            assert got == [b"body %d" % n for n in range(COUNT) if n != BAD]
        (line,) = told(caplog)
        assert f"log offset {offsets[BAD]} (T queue 0, offset {BAD}) is damaged" in line
        assert "consumers do not get it" in line
        assert store.reader.old.damaged == 1


async def test_c020_a_body_with_another_checksum_is_handed_out_and_told_once(world: World, caplog):
    async with world.life() as store:
        offsets = [world.send(store, b"body %d" % n) for n in range(COUNT)]
    world.flip(offsets[BAD] + 90)
    async with world.life() as store:
        for _ in range(2):
            assert len(taken(store)) == COUNT
        (line,) = told(caplog)
        for part in (f"log offset {offsets[BAD]} ", "body CRC is", "consumers get it as it is"):
            assert part in line


async def test_c020_a_queue_of_one_damaged_record_moves_on(world: World):
    async with world.life() as store:
        at = world.send(store, b"only")
        world.send(store, b"x", "Other")
    world.write_log(bytes(40), at)
    async with world.life() as store:
        got = store.reader.messages(store.queue("T", 0), 0, 32, None)
        assert (got.found, got.next_offset, got.data) == (Found.MESSAGE_WAS_REMOVING, 1, b"")


async def test_records_of_every_kind_are_good(world: World, caplog):
    """IPv6 hosts, long topics, batches, no body: nothing is told, and nothing left out."""
    world.batch_topics.add("B")
    async with world.life() as store:
        world.send(store, b"")
        world.send(store, b"long", "L" * 200)
        store._host_packed, store._host_flag = bytes(16) + bytes(4), 0x20
        world.send(store, b"v6")
        world.send_batch(store, [b"a", b"b", b"c"])
    async with world.life() as store:
        assert bodies(store) == [b"", b"v6"]
        assert bodies(store, "L" * 200) == [b"long"]
        assert [m.body for m in messages(store, "B")] == [b"abc"]
        assert told(caplog) == []


async def test_what_this_process_wrote_is_not_looked_at(world: World, monkeypatch):
    async with world.life() as store:
        world.send(store, b"old")
    async with world.life() as store:
        world.send(store, b"new")
        store.commit()
        looked: list[int] = []
        really = store.reader.old.all_good
        monkeypatch.setattr(
            store.reader.old,
            "all_good",
            lambda data, sizes, begin: looked.append(begin) or really(data, sizes, begin),
        )
        assert bodies(store) == [b"old", b"new"]
        assert looked == [0]
        store.reader.messages(store.queue("T", 0), 1, 32, None)
        assert looked == [0]


async def test_c025_a_hole_that_a_consumer_meets_is_told_and_filled_by_the_next_start(
    world: World, caplog
):
    """C025: after a clean stop large files are not read to their end, so only a consumer notices."""
    caplog.set_level(logging.WARNING)
    world.settings = attrs.evolve(world.settings, mapped_file_size_consume_queue=1000 * 20)
    await world.filled(900, queues=1)
    world.write(world.queue_file(), bytes(2 * 20), 610 * 20)
    async with world.life() as store:
        assert world.report.clean
        for _ in range(2):
            assert len(bodies(store)) == 898
        (line,) = told(caplog)
        assert "queue T/0 has no entry at offset 610" in line
    async with world.life() as store:
        assert world.report.why_careful == "the abort marker is there"
        assert len(bodies(store)) == 900
    assert (await world.restart()).clean
