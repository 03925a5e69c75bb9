"""Stores that Apache's broker wrote, damaged in every way that comes to mind, and recovered on both paths.

What has to be left is computed by ``tests/damage_model.py`` from the lists that Apache's own decoder wrote. The same
damages are given to Apache's broker by ``tests/interop/test_damaged_golden.py``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.apache_model import OTHERWISE, ApacheEnd
from tests.damage_model import Expected
from tests.damages import (
    BEFORE_LAST,
    BLANK_MAGIC,
    BY_NAME,
    DAMAGES,
    END,
    HALF,
    LAST,
    LAST_SEGMENT,
    Damage,
    Files,
    golden,
    read_log,
    remove,
    segment_path,
    tear,
)
from tests.golden_stores import SEGMENT_SIZE
from tests.recovered import SIZES, Recovered, put, recovered
from tests.recovery.stores import World
from trio_mq.config import Settings, StoreSettings
from trio_mq.offline.rehearsal import rehearse
from trio_mq.offline.wanted import Wanted
from trio_mq.protocol.verdict import Whole, check
from trio_mq.recovery.paths import Path as LogPath
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "damage-and-apache.md"
ROOT = "/store"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Each start says what it found; here that is hundreds of pages."""
    logger = logging.getLogger("trio_mq")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def start(files: Files, path: LogPath, *, read: bool = True) -> Recovered:
    """Recover a store on one path."""
    call = partial(recovered, files, MemoryDisk(), ROOT, path, read=read)
    result = trio.run(call, clock=MockClock(autojump_threshold=0))
    result.report.phase_s.clear()
    return result


def both(files: Files) -> Recovered:
    """Recover on both paths, which have to come to the same; returns what they came to."""
    one, other = (start(files, path) for path in LogPath)
    assert one.files == other.files, "both paths leave the same bytes"
    assert one == other, "both paths tell the same"
    return one


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.name)
def test_what_is_whole_before_the_damage_is_there_and_nothing_else(damage: Damage) -> None:
    files = damage.files()
    found = both(files)
    if damage.refused is not None:
        assert found.refused is not None, "a start has to refuse this"
        assert re.search(damage.refused, found.refused)
        assert found.files == files, "and changes nothing"
        return
    assert found.refused is None
    expected = Expected.of(damage)
    assert found.report.log_end == expected.log_end
    assert {k: b for k, b in found.queues.items() if b != (0, 0)} == expected.queues
    readable = {
        # What no start has noticed is passed over by readers.
        queue: [offset for offset in offsets if is_readable(files, offset)]
        for queue, offsets in expected.messages.items()
    }
    assert {k: m for k, m in found.messages.items() if m} == {
        k: m for k, m in readable.items() if m
    }
    assert found.unkeyed == [] or damage.unseen, "the index knows all that is there"
    assert_log(files, found, expected)
    left = dict(found.files)
    if "abort" not in files:
        remove(left, "abort")  # that stop was clean, and so is the next one
    again = start(left, LogPath.BATCH)
    assert derived(again.files) == derived(found.files), "a second recovery changes nothing"
    assert again.report.cut_reason is None


def is_readable(files: Files, offset: int) -> bool:
    """Whether a reader, which checks no body, takes what lies at an offset for a record."""
    data = read_log(files, offset, SEGMENT_SIZE - offset % SEGMENT_SIZE)
    return isinstance(check(data, 0, len(data), check_crc=False, expected_offset=offset), Whole)


def derived(files: Files) -> Files:
    """What recovery makes and mends, but for markers and copies."""
    folders = ("commitlog/", "consumequeue/", "batchconsumequeue/", "index/")
    return {path: data for path, data in files.items() if path.startswith(folders)}


def log_of(files: Files) -> dict[int, bytes]:
    """The segments of a log."""
    return {int(p[-20:]): d for p, d in sorted(files.items()) if p.startswith("commitlog/")}


def assert_log(files: Files, found: Recovered, expected: Expected) -> None:
    """The log is what it was up to its end, zeros from there, and what is cut is told."""
    end, before, after = expected.log_end, log_of(files), log_of(found.files)
    at_blank = read_log(files, end + 4, 4) == BLANK_MAGIC
    for start, data in after.items():
        assert start <= end, "no file behind the end"
        left = SEGMENT_SIZE if at_blank else max(0, end - start)
        assert data == (before[start][:left] if left else b"").ljust(SEGMENT_SIZE, b"\0")
    assert all(start in after for start, data in before.items() if start < end and data)
    written = max(
        (s + len(d.rstrip(b"\0")) for s, d in before.items() if d.strip(b"\0")), default=0
    )
    if written <= end or at_blank:
        assert (found.report.cut_bytes, found.report.cut_reason) == (0, None)
    else:
        assert found.report.cut_bytes == written - end
        assert (found.report.cut_reason or "").startswith(f"at offset {end}: ")


def test_a_tail_torn_at_any_byte_of_the_last_two_records() -> None:
    """The rest of the store is left out for speed: an end is where it is, whatever lies far before.

    The paths take turns. Both records have the same odd size, so each byte of a head meets both; of the rest, which is
    body and properties, every third byte is enough.
    """
    assert BEFORE_LAST["size"] == LAST["size"] == 453
    head = 100
    kept = (segment_path(LAST_SEGMENT), f"consumequeue/{HALF}/", "abort")
    whole = {path: data for path, data in golden("crash").items() if path.startswith(kept)}
    first = BEFORE_LAST["offset"]
    for end in range(first, END + 1):
        if (end - first) % LAST["size"] > head and end % 3 and END - end > 3:
            continue
        files = dict(whole)
        tear(files, end)
        found = start(files, list(LogPath)[end % 2], read=False)
        whole_rows = [r for r in (BEFORE_LAST, LAST) if r["offset"] + r["size"] <= end]
        last = first + sum(row["size"] for row in whole_rows)
        assert found.report.log_end == last, f"torn at {end}"
        assert found.queues[HALF, 0][1] == BEFORE_LAST["queueOffset"] + len(whole_rows)
        (log,) = log_of(found.files).values()
        assert log == read_log(whole, LAST_SEGMENT, last - LAST_SEGMENT).ljust(SEGMENT_SIZE, b"\0")


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.name)
async def test_a_dry_run_knows_where_apache_would_end(
    damage: Damage, autojump_clock: MockClock
) -> None:
    disk, clock = MemoryDisk(), ManualClock()
    store = StoreSettings(path=ROOT, **SIZES)  # type: ignore[arg-type]
    put(damage.files(), World(disk, ROOT, store))
    theirs = ApacheEnd.of(damage)
    async with rehearse(disk, clock, Wanted(ROOT, Settings(store=store))) as rehearsal:
        found = rehearsal.inspection
    if not log_of(damage.files()):
        assert any(
            "begins again at offset 0" in difference.apache for difference in found.differences
        )
    elif found.apache is not None and theirs.starts:
        assert found.apache.end == theirs.log_end
    elif found.report is not None and theirs.starts:
        assert found.report.log_end == theirs.log_end


@pytest.mark.parametrize(
    "damage", [d for d in DAMAGES if "-and-backup-" in d.name], ids=lambda d: d.name
)
async def test_a_dry_run_knows_whether_apache_would_refuse_a_state_file_too(
    damage: Damage, autojump_clock: MockClock
) -> None:
    disk, clock = MemoryDisk(), ManualClock()
    store = StoreSettings(path=ROOT, **SIZES)  # type: ignore[arg-type]
    put(damage.files(), World(disk, ROOT, store))
    async with rehearse(disk, clock, Wanted(ROOT, Settings(store=store))) as rehearsal:
        rows = rehearsal.inspection.differences
    (row,) = [row for row in rows if row.about.endswith(".json")]
    assert row.apache.startswith("deletes the file, and ")
    starts = "goes on with an empty table" in row.apache
    assert starts is not ("refuses to start, too" in row.apache)
    assert starts is ApacheEnd.of(damage).starts


def test_the_page_has_each_damage_where_it_belongs() -> None:
    same, differ = PAGE.read_text("utf-8").split("## Where they end elsewhere")
    names = set(BY_NAME)
    assert [n for n in re.findall(r"`([\w-]+)`", same) if n in names and n in OTHERWISE] == []
    told = [n for n in re.findall(r"`([\w-]+)`", same + differ) if n in names]
    assert sorted(told) == sorted(names), "each once"
    assert {n for n in re.findall(r"`([\w-]+)`", differ) if n in names} == set(OTHERWISE)
