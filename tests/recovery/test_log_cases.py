"""Cases from the field about the commit log: torn, damaged, stale, missing and empty parts of it."""

from __future__ import annotations

import logging
import sys

import pytest
import trio

from trio_mq.errors import ForeignFormat, StoreLocked
from trio_mq.protocol import properties
from trio_mq.protocol.record import blank, crc32, pack
from trio_mq.recovery import replay
from trio_mq.recovery.recover import recover
from trio_mq.store.store import Store
from trio_mq.testing.disk import MemoryDisk

from .stores import HOST, SEGMENT_BYTES, World, bodies, entries, everything, keyed, messages


def record_bytes(
    log_offset: int, body: bytes = b"x" * 40, *, queue_offset: int = 0, topic=b"T"
) -> bytes:
    """A record as the store writes it, for any place."""
    props = properties.encode({"TAGS": "a"})
    times = (1_700_000_000_000, HOST.packed, 1_700_000_000_001, HOST.packed)
    return pack(0, 0, queue_offset, log_offset, 0, *times, 0, 0, body, topic, props)


async def test_c001_an_empty_next_segment_is_dropped(world: World):
    """p13."""
    offsets = await world.filled(40, kill=True)
    following = world.segment(offsets[-1] + SEGMENT_BYTES)
    world.resize(following, 0)
    async with world.life() as store:
        assert any(following in note for note in world.report.notes)
        assert not world.disk.exists(following)
        assert sum(map(len, everything(store).values())) == 40
        world.send(store, b"next")


async def test_c001_a_short_file_that_is_not_the_last_is_refused(world: World):
    await world.filled(60)
    short = world.segment(0)
    world.resize(short, 1000)
    with pytest.raises(ForeignFormat, match=r"1000 bytes.*4096") as refused:
        await world.restart()
    assert short in str(refused.value)


async def test_c001_a_short_last_log_file_is_no_work_of_a_crash(world: World):
    """Nothing that we or Apache do leaves one, so it is refused: most likely the setting is wrong."""
    offsets = await world.filled(40, kill=True)
    short = world.segment(offsets[-1])
    world.resize(short, offsets[-1] % SEGMENT_BYTES)
    with pytest.raises(ForeignFormat, match=f"truncate -s {SEGMENT_BYTES} '{short}'"):
        await world.restart()
    world.resize(short, SEGMENT_BYTES)
    async with world.life() as store:
        assert sum(map(len, everything(store).values())) == 39


async def test_short_queue_files_after_a_crash_are_made_whole_from_the_log(world: World):
    offsets = await world.filled(160, kill=True, queues=1)
    world.resize(world.queue_file(), 333)
    world.resize(world.queue_file(first=50), 0)
    async with world.life() as store:
        assert [entry[0] for entry in entries(store.queue("T", 0))] == offsets


async def test_c002_a_record_cut_off_inside_its_properties_is_torn(world: World):
    offsets = await world.filled(9, kill=True)
    last = offsets[-1]
    record = world.read_log(300, last)
    size = int.from_bytes(record[:4], "big")
    text = properties.encode({"TAGS": "tag0", "KEYS": "k8"})
    assert record[:size].endswith(text)
    world.write_log(bytes(len(text)), last + size - len(text))
    async with world.life() as store:
        assert world.report.log_end == last
        assert "properties" in world.report.cut_reason
        assert everything(store)["T", 2] == [b"body 2", b"body 5"]
        assert keyed(store, "k8") == []
        assert world.send(store, b"again", "T", 2) == last


async def test_c002_a_property_crc_is_checked_where_there_is_one(world: World):
    async with world.life(kill=True) as store:
        world.send(store, b"good")
        end = store.log.end
    head = record_bytes(end, b"sealed", queue_offset=1)
    text = properties.encode({"TAGS": "a", "X": "1"})
    sealed = pack(
        *(0, 0, 1, end, 0, 1_700_000_000_000, HOST.packed, 1_700_000_000_001, HOST.packed, 0, 0),
        *(b"sealed", b"T", text + b"__CRC32#\x01" + b"%010d" % 7 + b"\x02"),
    )
    assert crc32(sealed) != 7
    assert len(head) < len(sealed)
    world.write_log(sealed, end)
    async with world.life() as store:
        assert world.report.log_end == end
        assert "CRC" in world.report.cut_reason
        assert bodies(store) == [b"good"]


async def test_c004_bytes_of_an_older_segment_are_not_taken_for_messages(world: World):
    offsets = await world.filled(60, kill=True)
    first, second = world.segment(0), world.segment(SEGMENT_BYTES)
    behind = [offset for offset in offsets if offset >= SEGMENT_BYTES]
    world.write(second, world.read(first)[:2000])
    async with world.life() as store:
        assert world.report.log_end == SEGMENT_BYTES
        assert f"record of offset 0 lies at offset {SEGMENT_BYTES}" in world.report.cut_reason
        assert sum(map(len, everything(store).values())) == 60 - len(behind)
        assert {
            m.log_offset for q in store.queues for m in messages(store, q.topic, q.queue_id)
        } == {offset for offset in offsets if offset < SEGMENT_BYTES}


async def test_c004_the_check_of_stored_offsets_holds_after_a_clean_stop_too(world: World):
    offsets = await world.filled(60)
    size = int.from_bytes(world.read_log(4, offsets[0]), "big")
    stale = world.read_log(size, offsets[0])
    world.write_log(stale, offsets[-1])
    async with world.life() as store:
        assert world.report.log_end == offsets[-1]
        assert sum(map(len, everything(store).values())) == 59


@pytest.mark.parametrize(
    "size", [b"\0\0\0\0", b"\x00\x00\x00\x08", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"]
)
async def test_c005_padding_is_known_by_its_magic_only(world: World, size: bytes):
    offsets = await world.filled(60, kill=True)
    end = max(o for o in offsets if o < SEGMENT_BYTES)
    end += int.from_bytes(world.read_log(4, end), "big")
    assert world.read_log(8, end) == blank(SEGMENT_BYTES - end)
    world.write_log(size, end)
    world.disk.remove(world.path("checkpoint"))
    async with world.life() as store:
        assert world.report.walked_from == 0
        assert world.report.cut_reason is None
        assert sum(map(len, everything(store).values())) == 60


@pytest.mark.parametrize("crashed", [True, False])
async def test_c010_a_missing_segment_is_told_and_nobody_is_stuck_at_it(
    world: World, crashed: bool
):
    offsets = await world.filled(100, kill=crashed)
    starts = [int(name) for name in world.disk.list_dir(world.path("commitlog")) if name.isdigit()]
    assert len(starts) >= 3
    gone = starts[1]
    world.disk.remove(world.segment(gone))
    world.disk.remove(world.path("checkpoint")) if crashed else None
    async with world.life() as store:
        assert any(f"{gone} to {gone + SEGMENT_BYTES}" in note for note in world.report.notes)
        left = [o for o in offsets if not gone <= o < gone + SEGMENT_BYTES]
        got = [m.log_offset for q in store.queues for m in messages(store, q.topic, q.queue_id)]
        assert sorted(got) == left


async def test_c011_a_damaged_last_record_after_a_clean_stop(world: World):
    offsets = await world.filled(30)
    last = offsets[-1]
    world.flip(last + 88)  # in the body
    async with world.life() as store:
        assert world.report.log_end == last
        assert "the store was damaged though it was closed cleanly" in world.report.notes
        assert store.queue("T", 2).max_offset == 9
        assert everything(store)["T", 2] == [b"body %d" % n for n in range(2, 29, 3)]
        assert keyed(store, "k29") == []
        assert keyed(store, "k28") == [offsets[28]]
        world.send(store, b"again", "T", 2)
    assert world.report.quarantine is not None
    assert world.report.quarantine.endswith(f"-{last:020d}")
    assert world.disk.exists(f"{world.report.quarantine}/manifest.json")


SECOND_START = """
from trio_mq.clock import SystemClock
from trio_mq.config import StoreSettings
from trio_mq.errors import StoreLocked
from trio_mq.store.disk import RealDisk
from trio_mq.store.store import open_parts
try:
    open_parts(RealDisk(), StoreSettings(path={root!r}), SystemClock(), lambda topic: False)
except StoreLocked as error:
    print(error)
    raise SystemExit(error.exit_code)
"""


async def test_c013_a_second_start_changes_nothing(world: World):
    """p27."""
    async with world.life() as store:
        world.send(store, b"mine")
        store.commit()
        await store.start()
        before = world.files()
        owner = before["abort"].decode()
        if isinstance(world.disk, MemoryDisk):
            with pytest.raises(StoreLocked, match=owner):
                world.open_parts()
        else:
            code = SECOND_START.format(root=world.root)
            command = [sys.executable, "-c", code]
            second = await trio.run_process(command, capture_stdout=True, check=False)
            assert second.returncode == StoreLocked.exit_code
            assert f"process {owner}" in second.stdout.decode()
        assert world.files() == before


async def test_c014_a_stop_during_recovery_keeps_the_abort_marker(world: World):
    await world.filled(60, kill=True)
    world.disk.remove(world.path("checkpoint"))
    parts = world.open_parts()
    with trio.CancelScope() as scope:
        scope.cancel()
        await recover(parts)
    parts.release()
    assert scope.cancelled_caught
    assert world.disk.exists(world.path("abort"))
    report = await world.restart()
    assert not report.clean
    assert report.records == 60


async def test_c014_a_stop_while_lost_queues_are_built_again_does_not_look_clean(autojump_clock):
    disk = MemoryDisk()
    world = World.make(disk, "store")
    await world.filled(100)
    disk.remove_tree("store/consumequeue")
    disk.run_delay_s = 1.0
    parts = world.open_parts()
    with trio.move_on_after(8.5) as scope:
        await recover(parts)
    parts.release()
    assert scope.cancelled_caught
    disk.run_delay_s = 0.0
    async with world.life() as store:
        assert not world.report.clean
        assert sum(map(len, everything(store).values())) == 100


@pytest.mark.parametrize("crashed", [True, False])
async def test_c016_a_negative_length_ends_the_log(world: World, crashed: bool):
    await world.filled(20, kill=crashed)
    end = (await world.restart()).log_end
    if not crashed:
        world.disk.remove(world.path("abort"))
    world.write_log((-448299468).to_bytes(4, "big", signed=True) + bytes(range(1, 200)), end)
    async with world.life() as store:
        assert world.report.clean is not crashed
        assert world.report.log_end == end
        assert world.report.cut_bytes == 203
        assert "magic" in world.report.cut_reason
        assert sum(map(len, everything(store).values())) == 20
        world.send(store, b"next")
    damaged = "the store was damaged though it was closed cleanly"
    async with world.life():
        assert world.report.clean
        assert damaged not in world.report.notes


@pytest.mark.parametrize("name", ["checkpoint", "abort", "segment"])
async def test_c017_empty_or_zero_files_of_a_power_cut(world: World, name: str):
    offsets = await world.filled(40)
    if name == "segment":
        world.crash()
        spare = world.segment(offsets[-1] + SEGMENT_BYTES)
        world.resize(spare, SEGMENT_BYTES)
    else:
        world.resize(world.path(name), 0)
    async with world.life() as store:
        assert not world.report.clean
        assert world.report.cut_reason is None
        assert sum(map(len, everything(store).values())) == 40
        if name == "segment":
            assert not world.disk.exists(spare)
        world.send(store, b"next")


async def test_c019_each_try_keeps_what_the_last_one_did(autojump_clock, caplog, monkeypatch):
    monkeypatch.setattr(replay, "STEP_BYTES", SEGMENT_BYTES)
    disk = MemoryDisk()
    world = World.make(disk, "store")
    offsets = await world.filled(800)
    disk.remove_tree("store/consumequeue")
    disk.remove_tree("store/index")
    disk.run_delay_s = 1.0
    starts = []
    caplog.set_level(logging.INFO, "trio_mq.recovery")
    for _ in range(2):
        parts = world.open_parts()
        with trio.move_on_after(24) as scope:
            await recover(parts)
        parts.release()
        assert scope.cancelled_caught
        starts.append(parts.checkpoint.value.confirm_log_offset)
    assert starts == sorted(set(starts))
    assert "recovering: offset" in caplog.text
    assert "%" in caplog.text
    disk.run_delay_s = 0.0
    async with world.life() as store:
        assert world.report.walked_from >= starts[-1]
        assert world.report.records < 800 * 3 // 4
        assert sum(map(len, everything(store).values())) == 800
        assert all(offsets[n] in keyed(store, f"k{n}") for n in range(800))


async def test_c020_a_damaged_record_in_the_middle_leaves_the_others_readable(world: World):
    offsets = await world.filled(100)
    bad = 12
    world.flip(offsets[bad] + 90)
    async with world.life() as store:
        assert world.report.clean
        got = [m.log_offset for q in store.queues for m in messages(store, q.topic, q.queue_id)]
        assert sorted(set(offsets) - set(got)) == []
        good = {b"body %d" % n for n in range(100) if n != bad}
        assert good < set(all_bodies(store))


def all_bodies(store: Store) -> list[bytes]:
    return [body for some in everything(store).values() for body in some]


async def test_c029_a_stop_right_after_a_roll_is_clean(world: World):
    await world.filled(30)
    async with world.life() as store:
        store.log.roll()
        rolled = store.log.end
    report = await world.restart()
    assert rolled % SEGMENT_BYTES == 0
    assert world.disk.exists(world.segment(rolled))
    assert report.clean or report.why_careful == "the abort marker is there"
    assert report.notes == []
    assert report.log_end == rolled
    async with world.life() as store:
        assert world.send(store, b"next") == rolled


async def test_c029_a_queue_file_that_is_exactly_full(world: World):
    async with world.life() as store:
        for n in range(50):
            world.send(store, b"%d" % n)
    assert world.disk.list_dir(world.path("consumequeue/T/0")) == ["0" * 20]
    async with world.life() as store:
        assert world.report.clean
        assert world.report.notes == []
        assert store.queue("T", 0).next_offset == 50
        world.send(store, b"50")
        store.commit()
        assert bodies(store) == [b"%d" % n for n in range(51)]


# -- pitfalls of the format


async def test_stale_bytes_behind_a_cut_do_not_come_back(world: World):
    """p5: Write over a cut area, crash again: no record behind the new end is revived, though its offset fits."""
    offsets = await world.filled(20, kill=True)
    world.flip(offsets[10] + 88)
    async with world.life(kill=True) as store:
        assert world.report.log_end == offsets[10]
        assert world.send(store, b"body 10", "T", 1, tags="tag0", keys="k10") == offsets[10]
        store.commit()
        assert store.log.end == offsets[11], "the next stale record would fit exactly"
    async with world.life() as store:
        assert world.report.log_end == offsets[11]
        assert sum(map(len, everything(store).values())) == 11


async def test_a_damaged_record_in_a_middle_segment_drops_what_is_behind_and_keeps_a_copy(
    world: World,
):
    """p6."""
    offsets = await world.filled(100, kill=True)
    world.from_the_start()
    bad = next(o for o in offsets if o > SEGMENT_BYTES + 1000)
    behind = [o for o in offsets if o >= bad]
    cut = {o: world.read_log(100, o) for o in behind}
    world.flip(bad + 88)
    async with world.life() as store:
        assert world.report.walked_from == 0
        assert world.report.log_end == bad
        assert sum(map(len, everything(store).values())) == 100 - len(behind)
    for offset in behind[1:]:
        segment, at = divmod(offset, SEGMENT_BYTES)
        copy = world.read(f"{world.report.quarantine}/{segment * SEGMENT_BYTES:020d}")
        assert copy[at : at + 100] == cut[offset]
    assert (await world.restart()).clean, "copies are not taken for segments"


async def test_a_blank_without_a_following_segment_is_written_over(world: World):
    """p9."""
    offsets = await world.filled(60, kill=True)
    inside = [o for o in offsets if o < SEGMENT_BYTES]
    for name in world.disk.list_dir(world.path("commitlog"))[1:]:
        world.disk.remove(world.path(f"commitlog/{name}"))
    async with world.life() as store:
        assert world.report.log_end == inside[-1] + int.from_bytes(
            world.read_log(4, inside[-1]), "big"
        )
        assert sum(map(len, everything(store).values())) == len(inside)
        world.send(store, b"n")
    async with world.life() as store:
        assert len(all_bodies(store)) == len(inside) + 1


@pytest.mark.parametrize(("spare", "rolls"), [(8, False), (7, True), (9, False)])
async def test_a_record_that_leaves_room_for_a_blank_fits_exactly(
    world: World, spare: int, rolls: bool
):
    """p8."""
    async with world.life(kill=True) as store:
        base = len(record_bytes(0, b""))
        while SEGMENT_BYTES - store.log.end > 1000:
            world.send(store, b"f" * 400)
        room = SEGMENT_BYTES - store.log.end
        overhead = len(record_bytes(0, b"")) - len(properties.encode({"TAGS": "a"}))
        assert overhead < base
        at = world.send(store, b"z" * (room - spare - overhead))
        assert (at >= SEGMENT_BYTES) is rolls
        after = world.send(store, b"after")
        assert after >= SEGMENT_BYTES
        count = store.queue("T", 0).next_offset
    async with world.life() as store:
        assert world.report.cut_reason is None
        assert len(bodies(store)) == count
        assert bodies(store)[-1] == b"after"


async def test_a_gap_of_zeros_before_written_bytes_is_told(world: World):
    """Pages of the log that never reached the disk, while later ones did."""
    offsets = await world.filled(100, kill=True)
    lost = next(o for o in offsets if o > 2 * SEGMENT_BYTES)
    world.write_log(bytes(400), lost)
    world.disk.remove(world.path("checkpoint"))
    async with world.life():
        assert world.report.log_end == lost
        assert "nothing was written here, but behind it" in world.report.cut_reason
        assert world.report.cut_bytes > 400


async def test_a_file_name_that_is_no_multiple_of_the_size_is_refused(world: World):
    """p13."""
    await world.filled(10)
    world.resize(world.path(f"commitlog/{SEGMENT_BYTES + 1:020d}"), SEGMENT_BYTES)
    with pytest.raises(ForeignFormat, match="multiple"):
        await world.restart()


async def test_foreign_files_beside_the_segments_are_left_alone(world: World):
    """p13."""
    await world.filled(10)
    world.write(world.path("commitlog/notes.txt"), b"hello")
    world.disk.make_dirs(world.path("commitlog/old"))
    async with world.life() as store:
        assert world.report.clean
        assert len(all_bodies(store)) == 10
    assert world.read(world.path("commitlog/notes.txt")) == b"hello"


async def test_a_record_larger_than_a_window(tmp_path):
    world = World.make(MemoryDisk(), "store", mapped_file_size_commit_log=24 * 1024 * 1024)
    large = b"ab" * (5 * 1024 * 1024 // 2)
    async with world.life(kill=True) as store:
        world.send(store, b"1")
        world.send(store, large)
        world.send(store, b"2")
    world.disk.remove("store/checkpoint")
    world.disk.remove_tree("store/consumequeue")
    async with world.life() as store:
        assert world.report.cut_reason is None
        queue = store.queue("T", 0)
        assert [size for _, size, _ in entries(queue)][1] > len(large)
        assert len(entries(queue)) == 3
