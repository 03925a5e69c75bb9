"""A dry run: the verdict for whole and for damaged stores, what is lost, and that no byte is touched."""

from __future__ import annotations

import json
from collections.abc import Callable

import attrs
import pytest

from tests.marks import first_fast
from tests.recovery.stores import QUEUE_FILE_ENTRIES, SEGMENT_BYTES, World
from trio_mq.broker.tables import load_tables
from trio_mq.config import Settings
from trio_mq.errors import ForeignFormat
from trio_mq.offline import Wanted, rehearsal, rehearse
from trio_mq.offline.statefiles import Tables
from trio_mq.recovery.inspection import Effect, Kind, Verdict
from trio_mq.recovery.inspectiontext import lines
from trio_mq.recovery.paths import Path

from .looking import inspect, state, unchanged, wanted

Damage = Callable[[World, list[int]], None]


def text(found) -> str:
    """The report as people read it."""
    return "\n".join(lines(found))


# -- whole stores --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", list(Path))
async def test_a_store_that_was_closed_is_sound(world: World, path: Path):
    await world.filled(100)
    found = await inspect(world, path=path)
    assert found.verdict is Verdict.SOUND
    assert found.report.clean
    assert (found.picture.records, found.picture.records_end) == (100, found.report.log_end)
    assert [(q.topic, q.queue_id, q.records) for q in found.picture.queues] == [
        ("T", 0, 34), ("T", 1, 33), ("T", 2, 33),
    ]  # fmt: skip
    assert [c.path for c in found.changes if c.counts] == []
    assert "sound, a start changes nothing (exit code 0)" in text(found)


async def test_a_killed_store_with_whole_files_is_sound_too(world: World):
    await world.filled(100, kill=True)
    await world.restart()
    world.crash()
    found = await inspect(world)
    assert not found.report.clean
    assert found.verdict is Verdict.SOUND, text(found)
    assert "did not close the store: the abort marker is there" in text(found)


async def test_both_paths_tell_the_same(world: World):
    offsets = await world.filled(100, kill=True)
    world.flip(offsets[70] + 90)
    batch, sequential = [
        attrs.evolve(await inspect(world, path=path), report=None, changes=()) for path in Path
    ]
    assert batch == sequential


async def test_an_assumed_exit_overrules_the_files(world: World):
    offsets = await world.filled(100)
    world.flip(offsets[-20] + 90)
    assert (await inspect(world)).report.clean
    found = await inspect(world, assume_clean=False)
    assert not found.report.clean
    world.crash()
    assert not (await inspect(world)).report.clean
    found = await inspect(world, assume_clean=True)
    assert found.report.clean


async def test_the_log_alone_tells_what_a_start_would_build(world: World):
    await world.filled(160, kill=True)
    for name in world.disk.list_dir(world.root):
        path = world.path(name)
        if world.disk.is_dir(path) and name != "commitlog":
            world.disk.remove_tree(path)
        elif not world.disk.is_dir(path) and name != "lock":
            world.disk.remove(path)
    found = await inspect(world)
    assert found.commit_log_only
    assert found.verdict is Verdict.CHANGES
    assert found.picture.records == 160
    assert [(c.topic, c.queue_id, c.before, c.after) for c in found.queue_changes] == [
        ("T", 0, 0, 54), ("T", 1, 0, 53), ("T", 2, 0, 53),
    ]  # fmt: skip
    assert found.queues_made == ("T/0", "T/1", "T/2")
    assert "160 records of 3 queues" in text(found)


async def test_sizes_that_are_given_win_over_the_files(world: World):
    await world.filled(30)
    settings = Settings(
        store=attrs.evolve(world.settings, mapped_file_size_commit_log=8192),
        origins={"mappedFileSizeCommitLog": "--set"},
    )
    async with rehearse(world.disk, world.clock, Wanted(world.root, settings)) as rehearsal:
        found = rehearsal.inspection
    assert found.verdict is Verdict.REFUSED
    assert "4096 bytes, but the settings say 8192" in found.refusals[0]
    size = next(size for size in found.sizes if size.name == "mappedFileSizeCommitLog")
    assert (size.value, size.how) == (8192, "given by --set")


async def test_what_is_no_store_is_said_so(world: World):
    world.disk.make_dirs(world.path("photos"))
    with pytest.raises(ForeignFormat, match="is no store"):
        await inspect(world)


# -- what is lost --------------------------------------------------------------------------------------------


async def damaged_behind(world: World) -> list[int]:
    """A crashed store whose log a start ends at record 70 of 100."""
    offsets = await world.filled(100, kill=True)
    await world.restart()
    world.crash()
    async with world.life(kill=True) as store:
        offsets += [
            world.send(store, b"late %d" % n, "Late", n % 2, keys=f"late{n}") for n in range(30)
        ]
    world.flip(offsets[110] + 90)
    return offsets


async def test_readable_records_behind_a_cut_are_told(world: World):
    offsets = await damaged_behind(world)
    with unchanged(world):
        async with rehearse(world.disk, world.clock, wanted(world)) as rehearsal:
            found = rehearsal.inspection
            records = list(rehearsal.lost_records())
    assert found.verdict is Verdict.LOSES
    assert found.report.log_end == offsets[110]
    assert (found.lost.records, found.lost.begin) == (19, offsets[111])
    assert found.lost.topics == ["Late"]
    assert {(q.queue_id, q.records) for q in found.lost.queues} == {(0, 9), (1, 10)}
    assert set(found.lost.keys) == {f"late{n}" for n in range(11, 30)}
    assert found.lost.all_keys
    assert [record.log_offset for record in records] == offsets[111:]
    assert [record.keys for record in records] == [(f"late{n}",) for n in range(11, 30)]
    assert all(f"at offset {offsets[110]}" in record.reason for record in records)
    assert "19 records that can be read" in text(found)
    assert "late11" in text(found)
    assert found.apache.end == offsets[110]


async def test_many_keys_are_told_in_part(world: World):
    await world.filled(10, kill=True)
    await world.restart()
    world.crash()
    async with world.life(kill=True) as store:
        first = world.send(store, b"damaged")
        for n in range(150):
            world.send(store, b"%d" % n, keys=f"one{n} two{n}")
    world.flip(first + 90)
    found = await inspect(world)
    assert found.lost.records == 150
    assert len(found.lost.keys) == 100
    assert not found.lost.all_keys


async def test_progress_in_a_queue_that_lost_everything_is_told(world: World):
    """Case C052, as a start of the broker does it: the topic is known, nothing of the queue is there."""
    topic = b'{"topicName":"T","readQueueNums":9,"writeQueueNums":9,"perm":6}'
    world.write(world.path("config/topics.json"), b'{"topicConfigTable":{"T":%s}}' % topic)
    world.write(world.path("config/consumerOffset.json"), b'{"offsetTable":{"T@G":{8:500,9:7}}}')
    await world.filled(20)
    found = await inspect(world)
    (change,) = found.offset_changes
    assert (change.queue_id, change.before, change.after) == (8, 500, 0)


async def test_progress_that_is_ahead_of_a_cut_log_is_told(world: World):
    offsets = await damaged_behind(world)
    content = b'{"offsetTable":{"Late@group":{0:15,1:3}}}'
    world.write(world.path("config/consumerOffset.json"), content)
    found = await inspect(world)
    assert found.report.log_end == offsets[110]
    (change,) = found.offset_changes
    assert (change.group, change.topic, change.queue_id) == ("group", "Late", 0)
    assert (change.before, change.after) == (15, 5)
    assert "config/consumerOffset.json" in {c.path for c in found.changes}
    assert "group group in Late/0: 15 is behind the end, and becomes 5" in text(found)


# -- damage of every kind changes nothing --------------------------------------------------------------------


def torn_end(world: World, offsets: list[int]) -> None:
    """The last record was written in part."""
    world.write_log(bytes(30), offsets[-1] + 60)


def zeroed_middle(world: World, offsets: list[int]) -> None:
    """A part of the log is zeros."""
    world.write_log(bytes(300), offsets[30])


def flipped(world: World, offsets: list[int]) -> None:
    """A bit in a body."""
    world.flip(offsets[40] + 90)


def no_queues(world: World, offsets: list[int]) -> None:
    """All queues are gone, and the index."""
    for folder in ("consumequeue", "index"):
        world.disk.remove_tree(world.path(folder))


def one_queue(world: World, offsets: list[int]) -> None:
    """The folder of one queue is gone."""
    world.disk.remove_tree(world.path("consumequeue/T/1"))


def no_middle(world: World, offsets: list[int]) -> None:
    """A file of the log is missing."""
    world.disk.remove(world.segment(SEGMENT_BYTES))


def short_queue(world: World, offsets: list[int]) -> None:
    """A queue file has lost its end."""
    world.resize(world.queue_file(), QUEUE_FILE_ENTRIES * 10 + 3)


def spoilt_index(world: World, offsets: list[int]) -> None:
    """Index files have another size."""
    for name in world.disk.list_dir(world.path("index")):
        world.resize(world.path(f"index/{name}"), 1000)


def bad_tables(world: World, offsets: list[int]) -> None:
    """No state file can be read."""
    for name in ("topics", "subscriptionGroup", "consumerOffset", "delayOffset"):
        world.write(world.path(f"config/{name}.json"), b"\0" * 50)


def no_checkpoint(world: World, offsets: list[int]) -> None:
    """The checkpoint is empty."""
    world.resize(world.path("checkpoint"), 0)


DAMAGES: list[Damage] = [
    torn_end, zeroed_middle, flipped, no_queues, one_queue, no_middle, short_queue, spoilt_index, bad_tables,
    no_checkpoint,
]  # fmt: skip


@pytest.mark.parametrize("crashed", [True, False])
@pytest.mark.parametrize("damage", first_fast(DAMAGES))
async def test_no_byte_name_or_time_changes(world: World, damage: Damage, crashed: bool):
    offsets = await world.filled(100, kill=crashed)
    damage(world, offsets)
    found = await inspect(world)
    assert found.verdict is not Verdict.SOUND or damage is no_checkpoint
    table = json.loads(json.dumps(found.as_dict()))
    assert table["exit_code"] == found.verdict.exit_code
    assert found.root in text(found)


async def test_files_of_other_features_are_named_when_they_are_spoilt(world: World):
    await world.filled(10)
    world.write(world.path("config/consumerFilter.json"), b"\0" * 180)
    found = await inspect(world)
    finding = state(found, "consumerFilter.json")
    assert finding.effect is Effect.IGNORED
    assert "config/consumerFilter.json.bad-" in finding.problem


@pytest.mark.parametrize("log_is_refused", [True, False])
async def test_all_state_files_that_a_start_renames_are_told(world: World, log_is_refused: bool):
    await world.filled(60)
    config = world.path("config")
    spoilt = {
        "topics.json": (b"\0" * 180, b'{"topicConfigTable":{}}'),
        "consumerFilter.json": (b"\0" * 180, b"{"),
        "timermetrics": (b"{", b"{}"),
    }
    for name, (data, backup) in spoilt.items():
        world.write(f"{config}/{name}", data)
        world.write(f"{config}/{name}.bak", backup)
    if log_is_refused:
        world.resize(world.segment(0), 1000)
    found = await inspect(world)
    assert (found.verdict is Verdict.REFUSED) is log_is_refused
    now = world.clock.now_ms()
    renamed = {c.old_path: c.path for c in found.changes if c.kind is Kind.RENAMED}
    assert renamed == {
        f"config/{name}": f"config/{name}.bad-{now}"
        for name in ("topics.json", "consumerFilter.json", "consumerFilter.json.bak")
    }
    assert {state(found, f"consumerFilter.json{end}").effect for end in ("", ".bak")} == {
        Effect.IGNORED
    }
    report = text(found)
    assert all(f"renamed: {old} to {new}" in report for old, new in renamed.items())
    tables = Tables.make(Settings().broker, world.clock)
    await load_tables(
        world.disk,
        config,
        world.clock,
        topics=tables.topics,
        groups=tables.groups,
        offsets=tables.offsets,
    )
    names = {f"config/{name}" for name in world.disk.list_dir(config)}
    assert set(renamed.values()) <= names, "a real start does the same"
    assert not names & set(renamed)


async def test_an_empty_file_without_a_backup_starts_empty(world: World):
    await world.filled(10)
    world.write(world.path("config/consumerOffset.json"), b"")
    found = await inspect(world)
    finding = state(found, "consumerOffset.json")
    assert finding.effect is Effect.EMPTY
    assert "the progress of all consumer groups" in finding.lost
    assert finding.repair == f"rm '{finding.path}'"
    assert found.verdict is Verdict.CHANGES


async def test_many_damaged_places_are_looked_into_in_part(world: World, monkeypatch):
    monkeypatch.setattr(rehearsal, "SPANS_LOOKED_INTO", 2)
    offsets = await world.filled(100)
    for n in (10, 20, 30):
        world.flip(offsets[n] + 90)
    found = await inspect(world)
    assert sum(queue.unreadable for queue in found.unreadable) == 2
    assert "in the first 2 of 3 damaged parts" in text(found)
