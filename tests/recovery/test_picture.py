"""A picture of a whole log, also behind damage, and how Apache's broker would walk it."""

from __future__ import annotations

import pytest

from trio_mq.protocol.layout import MAGIC_BLANK
from trio_mq.recovery import picture
from trio_mq.recovery.apacheview import apache_view
from trio_mq.recovery.paths import Path
from trio_mq.recovery.picture import LogPicture, look, look_behind
from trio_mq.store.segments import FilePool, Segments

from .stores import SEGMENT_BYTES, World

BOTH = pytest.mark.parametrize("path", list(Path))


def log_of(world: World) -> Segments:
    """The log, for looking."""
    segments = Segments(world.disk, FilePool(world.disk), world.path("commitlog"), SEGMENT_BYTES)
    segments.load()
    return segments


async def painted(world: World, path: Path = Path.BATCH) -> LogPicture:
    """The picture of the log."""
    return await look(world.disk, log_of(world), path=path, check_crc=True, progress=None)


@BOTH
async def test_a_whole_log(world: World, path: Path):
    offsets = await world.filled(100)
    found = await painted(world, path)
    assert (found.start, found.end) == (0, 3 * SEGMENT_BYTES)
    assert (found.files, found.segment_bytes) == (3, SEGMENT_BYTES)
    assert found.records == 100
    assert offsets[-1] < found.records_end < found.end
    assert found.newest_ms == world.clock.now_ms()
    assert sum(queue.records for queue in found.queues) == 100
    assert not found.damaged
    assert not found.missing


@BOTH
async def test_zeros_with_something_behind_are_damage(world: World, path: Path):
    offsets = await world.filled(100)
    first = next(offset for offset in offsets if offset > SEGMENT_BYTES)
    world.write_log(bytes(2 * SEGMENT_BYTES - first), first)
    found = await painted(world, path)
    (span,) = found.damaged
    assert (span.begin, span.end) == (first, 2 * SEGMENT_BYTES)
    assert "behind it" in span.reason


async def test_many_damaged_places_are_counted(world: World, monkeypatch):
    monkeypatch.setattr(picture, "SPANS_TOLD", 3)
    offsets = await world.filled(100)
    for n in range(10, 30, 2):
        world.flip(offsets[n] + 90)
    found = await painted(world)
    assert len(found.damaged) == 3
    assert found.more_damaged == 7
    assert found.records == 90
    assert [span.begin for span in found.spans_before(offsets[13])] == [offsets[10], offsets[12]]


async def test_progress_is_told_up_to_the_end(world: World, monkeypatch):
    monkeypatch.setattr(picture, "PIECES_AT_ONCE", 1)
    await world.filled(100)
    told: list[tuple[str, int, int]] = []
    await look(
        world.disk, log_of(world), path=Path.BATCH, check_crc=True, progress=lambda *a: told.append(a)
    )  # fmt: skip
    assert len(told) > 2
    assert {(phase, end) for phase, _, end in told} == {("survey", 3 * SEGMENT_BYTES)}
    assert [at for _, at, _ in told] == sorted(at for _, at, _ in told)
    assert told[-1][1] == 3 * SEGMENT_BYTES


@BOTH
async def test_what_lies_between_two_offsets(world: World, path: Path):
    offsets = await world.filled(100)
    found = await look_behind(
        world.disk, log_of(world), offsets[40], offsets[60], path=path, check_crc=True, progress=None
    )  # fmt: skip
    assert found.begin == offsets[40]
    assert found.records >= 20
    nothing = await look_behind(
        world.disk, log_of(world), offsets[60], offsets[60], path=path, check_crc=True, progress=None
    )  # fmt: skip
    assert nothing.records == 0


# -- Apache's walk -------------------------------------------------------------------------------------------


def view(world: World, *, crashed: bool, dispatched_to: int = 1 << 40, path: Path = Path.BATCH):
    """Where Apache's broker would begin and end."""
    return apache_view(
        log_of(world),
        world.checkpoint(),
        crashed=crashed,
        dispatched_to=dispatched_to,
        path=path,
        check_crc=True,
    )


@BOTH
async def test_apache_ends_where_the_records_end(world: World, path: Path):
    await world.filled(100)
    found = await painted(world)
    seen = view(world, crashed=False, path=path)
    assert (seen.begin, seen.end, seen.taken) == (2 * SEGMENT_BYTES, found.records_end, 0)


async def test_apache_begins_by_the_checkpoint_after_a_crash_and_by_the_queues_otherwise(
    world: World,
):
    await world.filled(100)
    assert view(world, crashed=True).begin == 0, "all of it is newer than the checkpoint less 3 s"
    world.clock.advance(10_000)
    async with world.life() as store:
        world.send(store, b"late")
    assert view(world, crashed=True).begin == 2 * SEGMENT_BYTES
    assert view(world, crashed=False, dispatched_to=SEGMENT_BYTES + 5).begin == SEGMENT_BYTES
    assert view(world, crashed=False, dispatched_to=-1).begin == 0


async def test_apache_ends_at_damage_and_takes_stale_records(world: World):
    offsets = await world.filled(100)
    world.flip(offsets[50] + 90)
    seen = view(world, crashed=True)
    assert seen.end == offsets[50]
    assert "body CRC" in seen.reason
    world.flip(offsets[50] + 90)
    size = int.from_bytes(world.read_log(4, offsets[20]), "big")
    assert size == offsets[51] - offsets[50]
    world.write_log(world.read_log(size, offsets[20]), offsets[50])
    seen = view(world, crashed=True)
    assert seen.taken == 1
    assert seen.end == (await painted(world)).records_end


@pytest.mark.parametrize("is_last", [True, False])
async def test_apache_goes_from_a_blank_behind_stale_records_to_the_next_file(
    world: World, is_last: bool
):
    offsets = await world.filled(100)
    at = (2 if is_last else 1) * SEGMENT_BYTES
    world.write(world.segment(at), world.read(world.segment(0)))
    seen = view(world, crashed=True)
    assert seen.taken == sum(offset < SEGMENT_BYTES for offset in offsets)
    blank = max(offset for offset in offsets if offset < SEGMENT_BYTES)
    blank += int.from_bytes(world.read_log(4, blank), "big")
    end = at + blank if is_last else (await painted(world)).records_end
    assert (seen.end, seen.reason) == (end, None)


@pytest.mark.parametrize("behind", [0, 1])
async def test_a_blank_that_claims_more_than_there_is_ends_apaches_walk(world: World, behind: int):
    offsets = await world.filled(100)
    blank = max(offset for offset in offsets if offset < SEGMENT_BYTES)
    blank += int.from_bytes(world.read_log(4, blank), "big")
    assert world.read_log(8, blank)[4:] == MAGIC_BLANK.to_bytes(4, "big", signed=True)
    world.write_log((SEGMENT_BYTES - blank + behind).to_bytes(4, "big"), blank)
    seen = view(world, crashed=True)
    assert seen.end == (blank if behind else (await painted(world)).records_end)


@pytest.mark.parametrize("crashed", [True, False])
async def test_apache_goes_back_ten_files_at_most(world: World, crashed: bool):
    await world.filled(500)
    starts = log_of(world).starts
    assert len(starts) > 11
    assert view(world, crashed=crashed, dispatched_to=-1).begin == starts[-10]
