"""State files: loading with care, saving so that a power cut at any moment leaves the old or the new."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import pytest
import trio

from tests import golden_stores
from trio_mq.broker.delayoffsets import DelayOffsets
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.pop.modes import RequestModes
from trio_mq.broker.tables import (
    DELAYS,
    GROUPS,
    OFFSETS,
    ORDERS,
    TOPICS,
    CopyState,
    LoadedStateFile,
    StateFile,
    Table,
    examine,
    load_tables,
)
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings
from trio_mq.errors import StoreDamaged, StoreError, StoreFull
from trio_mq.protocol import jsondialect
from trio_mq.protocol.bodies import SetMessageRequestModeBody, TopicConfig
from trio_mq.store.disk import RealDisk
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk, PowerCut

CONFIG = "/store/config"
MAIN = f"{CONFIG}/consumerOffset.json"
BACKUP = f"{MAIN}.bak"
GARBAGE = b'{"offsetTable":{"T@G":{0:5'
SETTINGS = BrokerSettings(broker_name="broker-gold")
CLOCK = ManualClock(1_234)


def put(disk: MemoryDisk, path: str, data: bytes) -> None:
    disk.make_dirs(path.rpartition("/")[0])
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write(data, 0)
    file.sync()
    disk.sync_dir(path.rpartition("/")[0])


def get(disk: MemoryDisk, path: str) -> bytes:
    return disk.open(path).read(disk.size(path), 0)


def content(offset: int) -> bytes:
    return b'{"offsetTable":{"T@G":{0:%d}}}' % offset


def offsets_file(disk: MemoryDisk) -> StateFile[ConsumerOffsets]:
    return StateFile(disk, CONFIG, OFFSETS, ConsumerOffsets(SETTINGS, CLOCK), CLOCK)


async def load(disk: MemoryDisk) -> LoadedStateFile[ConsumerOffsets]:
    return await offsets_file(disk).load()


def stored(loaded: LoadedStateFile[ConsumerOffsets]) -> int | None:
    return loaded.table.query("G", "T", 0)


# -- loading


async def test_a_new_store_starts_with_defaults_and_says_nothing(caplog):
    loaded = await load(MemoryDisk())
    assert stored(loaded) is None
    assert loaded.unsaved
    assert caplog.text == ""


async def test_the_file_is_taken_and_the_backup_not_looked_at(caplog):
    disk = MemoryDisk()
    put(disk, MAIN, content(5))
    put(disk, BACKUP, GARBAGE)
    loaded = await load(disk)
    assert stored(loaded) == 5
    assert not loaded.unsaved
    assert not await loaded.persist_if_changed()
    assert caplog.text == ""


async def test_a_missing_file_is_a_save_cut_off_between_its_renames():
    disk = MemoryDisk()
    put(disk, BACKUP, content(4))
    loaded = await load(disk)
    assert stored(loaded) == 4
    assert loaded.unsaved


async def test_c040_an_empty_file_is_replaced_and_never_becomes_the_backup(caplog):
    """C040: files of size 0 after a hard reset, backups fine; both are good after the first save."""
    disk = MemoryDisk()
    put(disk, MAIN, b"")
    put(disk, BACKUP, content(4))
    loaded = await load(disk)
    assert stored(loaded) == 4
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.name == "trio_mq.broker.tables"
    for part in (MAIN, "is empty", BACKUP, "progress of all consumer groups"):
        assert part in record.getMessage()
    assert await loaded.persist_if_changed()
    for path in (MAIN, BACKUP):
        again = ConsumerOffsets(SETTINGS, CLOCK)
        again.read_json(jsondialect.loads(get(disk, path)))
        assert again.query("G", "T", 0) == 4


@pytest.mark.parametrize(
    "bad", [GARBAGE, bytes(180), b"\xff\xfe", b"[]", b" ", b'{"offsetTable":1}']
)
async def test_a_bad_file_is_kept_aside_and_the_backup_taken(bad, caplog):
    disk = MemoryDisk()
    put(disk, MAIN, bad)
    put(disk, BACKUP, content(4))
    loaded = await load(disk)
    assert stored(loaded) == 4
    aside = f"{MAIN}.bad-1234"
    assert get(disk, aside) == bad
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    for part in (MAIN, "cannot be read", BACKUP, aside):
        assert part in record.getMessage()
    await loaded.persist()
    disk.crash(1, keep="none")
    assert get(disk, aside) == bad
    assert get(disk, BACKUP) == content(4)


async def test_a_second_bad_file_does_not_replace_the_first():
    disk = MemoryDisk()
    put(disk, f"{MAIN}.bad-1234", b"first")
    put(disk, MAIN, GARBAGE)
    put(disk, BACKUP, content(4))
    await load(disk)
    assert get(disk, f"{MAIN}.bad-1234") == b"first"
    assert get(disk, f"{MAIN}.bad-1235") == GARBAGE


async def test_a_first_save_that_was_cut_off_is_no_damage(caplog):
    disk = MemoryDisk()
    put(disk, MAIN, b"")
    loaded = await load(disk)
    assert stored(loaded) is None
    assert "has no backup" in caplog.text


@pytest.mark.parametrize(
    ("main", "backup"),
    [
        (GARBAGE, GARBAGE),
        (GARBAGE, None),
        (None, GARBAGE),
        (b"", GARBAGE),
        (GARBAGE, b""),
        (b"", b""),
    ],
)
async def test_nothing_readable_refuses_the_start_and_touches_nothing(main, backup):
    """Offsets too: an empty table would let groups skip what waits for them."""
    disk = MemoryDisk()
    disk.make_dirs(CONFIG)
    for path, data in ((MAIN, main), (BACKUP, backup)):
        if data is not None:
            put(disk, path, data)
    before = len(disk.operations)
    with pytest.raises(StoreDamaged) as caught:
        await load(disk)
    text = str(caught.value)
    assert len(disk.operations) == before
    for path, data in ((MAIN, main), (BACKUP, backup)):
        assert (f"mv '{path}' '{path}.lost'" in text) is (data is not None)
    for part in ("progress of all consumer groups", f"good copy at {MAIN}", "resetOffsetByTime"):
        assert part in text


async def test_the_repair_that_is_named_works():
    disk = MemoryDisk()
    put(disk, MAIN, GARBAGE)
    put(disk, BACKUP, b"")
    with pytest.raises(StoreDamaged):
        await load(disk)
    disk.rename(MAIN, f"{MAIN}.lost")
    disk.rename(BACKUP, f"{BACKUP}.lost")
    assert stored(await load(disk)) is None


async def test_c044_all_bad_files_are_named_at_once_each_with_its_repair():
    """C044 (state files): topics, groups and offsets are bad at the same time."""
    disk = MemoryDisk()
    for kind in (TOPICS, GROUPS, OFFSETS):
        put(disk, f"{CONFIG}/{kind.name}", bytes(50))
    with pytest.raises(StoreDamaged) as caught:
        await load_all(disk)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    for line, kind in zip(lines, (TOPICS, GROUPS, OFFSETS), strict=True):
        assert f"mv '{CONFIG}/{kind.name}'" in line
        assert kind.holds in line
        assert kind.without in line


async def test_c044_one_bad_file_keeps_the_others_from_being_touched():
    """C044: a start that is refused changes nothing, not even a file that could be repaired."""
    disk = MemoryDisk()
    put(disk, f"{CONFIG}/topics.json", GARBAGE)
    put(disk, f"{CONFIG}/topics.json.bak", b'{"topicConfigTable":{}}')
    put(disk, MAIN, GARBAGE)
    before = len(disk.operations)
    with pytest.raises(StoreDamaged):
        await load_all(disk)
    assert len(disk.operations) == before


def test_c044_an_examination_changes_nothing_and_tells_what_a_start_would_do():
    """C044: what an inspector shows."""
    disk = MemoryDisk()
    put(disk, MAIN, GARBAGE)
    put(disk, BACKUP, content(4))
    before = len(disk.operations)
    table = ConsumerOffsets(SETTINGS, CLOCK)
    found = examine(disk, CONFIG, OFFSETS, table)
    assert (found.main.state, found.backup.state) == (CopyState.BAD, CopyState.GOOD)
    assert found.main.problem
    assert not found.damaged
    assert table.query("G", "T", 0) == 4
    assert len(disk.operations) == before


async def test_a_disk_that_does_not_answer_is_no_bad_file(monkeypatch):
    disk = MemoryDisk()
    put(disk, MAIN, content(5))

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(disk, "open", refuse)
    with pytest.raises(StoreError, match=r"cannot open .*Permission denied") as caught:
        await load(disk)
    assert not isinstance(caught.value, StoreDamaged)


# -- saving


async def test_a_save_keeps_the_one_before_as_backup():
    disk = MemoryDisk()
    loaded = await load(disk)
    for offset in (1, 2, 3):
        loaded.table.commit("G", "T", 0, offset)
        assert loaded.unsaved
        assert await loaded.persist_if_changed()
        assert not loaded.unsaved
    assert disk.list_dir(CONFIG) == ["consumerOffset.json", "consumerOffset.json.bak"]
    assert b"{0:3}" in get(disk, MAIN)
    assert b"{0:2}" in get(disk, BACKUP)
    disk.crash(1, keep="none")
    assert stored(await load(disk)) == 3


MAINS = {
    "good": (content(1), content(0)),
    "garbage": (GARBAGE, content(1)),
    "empty": (b"", content(1)),
    "missing": (None, content(1)),
}


@pytest.mark.parametrize("start", MAINS)
async def test_c041_a_power_cut_at_any_operation_leaves_the_old_or_the_new(start):
    """C041: every kill point of loading and of two saves, each with several ways to lose bytes."""
    main, backup = MAINS[start]

    async def run(disk: MemoryDisk) -> None:
        loaded = await load(disk)
        for offset in (2, 3):
            loaded.table.commit("G", "T", 0, offset)
            await loaded.persist()

    def prepared() -> MemoryDisk:
        disk = MemoryDisk()
        if main is not None:
            put(disk, MAIN, main)
        put(disk, BACKUP, backup)
        return disk

    disk = prepared()
    before = len(disk.operations)
    await run(disk)
    points = len(disk.operations) - before
    assert points > 10
    for point in range(1, points + 1):
        for seed in range(12):
            disk = prepared()
            disk.kill_at(point)
            with pytest.raises(PowerCut):
                await run(disk)
            disk.crash(seed, reorder_names=bool(seed % 2))
            again = await load(disk)
            assert stored(again) in (1, 2, 3), (point, seed)
            # and the next save works, whatever was left lying about
            again.table.commit("G", "T", 0, 9)
            await again.persist()
            disk.crash(seed, keep="none")
            assert stored(await load(disk)) == 9


SAVE = ("create", "truncate", "write", "sync", "rename", "rename", "sync_dir")


async def saved_once() -> tuple[MemoryDisk, LoadedStateFile[ConsumerOffsets]]:
    """A disk whose last finished save has offset 1, and a table that is at 2."""
    disk = MemoryDisk()
    put(disk, MAIN, content(0))
    loaded = await load(disk)
    loaded.table.commit("G", "T", 0, 1)
    before = len(disk.operations)
    await loaded.persist()
    assert tuple(operation.kind for operation in disk.operations[before:]) == SAVE
    loaded.table.commit("G", "T", 0, 2)
    return disk, loaded


@pytest.mark.parametrize("point", range(1, len(SAVE) + 1))
async def test_c041_progress_never_goes_back_behind_a_finished_save(point):
    """C041: a save that returned is what the next start loads, even if the one after it is cut."""
    for seed in range(20):
        disk, loaded = await saved_once()
        disk.kill_at(point)
        with pytest.raises(PowerCut):
            await loaded.persist()
        disk.crash(seed, reorder_names=bool(seed % 2))
        assert stored(await load(disk)) in (1, 2)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("point", range(1, len(SAVE) + 1))
async def test_a_failed_save_leaves_good_files_and_is_tried_again(point, error):
    disk, loaded = await saved_once()
    disk.fail_at(point, error)
    with pytest.raises(StoreError, match=MAIN) as caught:
        await loaded.persist()
    assert isinstance(caught.value, StoreFull) is (error == errno.ENOSPC)
    assert loaded.unsaved
    assert stored(await load(disk)) in (1, 2)
    assert await loaded.persist_if_changed()
    assert stored(await load(disk)) == 2
    loaded.table.commit("G", "T", 0, 3)
    await loaded.persist()
    assert b"{0:2}" in get(disk, BACKUP)


async def test_c047_nothing_is_written_before_its_load_has_finished():
    """C047: only a loaded file has a way to be saved, and loading writes nothing."""
    disk = MemoryDisk()
    put(disk, MAIN, content(5))
    before = len(disk.operations)
    file = offsets_file(disk)
    assert not hasattr(file, "persist")
    loaded = await file.load()
    assert len(disk.operations) == before
    assert stored(loaded) == 5
    await loaded.persist()
    assert stored(await load(disk)) == 5


async def test_saves_do_not_overlap(autojump_clock):
    disk = MemoryDisk()
    loaded = await load(disk)
    disk.run_delay_s = 0.05
    async with trio.open_nursery() as nursery:
        for offset in range(1, 4):
            loaded.table.commit("G", "T", 0, offset)
            nursery.start_soon(loaded.persist)
    kinds = [operation.kind for operation in disk.operations if operation.path != "/store"]
    assert kinds.count("sync_dir") == 3
    assert stored(await load(disk)) == 3
    assert not loaded.unsaved


async def test_a_change_during_a_save_stays_unsaved(autojump_clock):
    disk = MemoryDisk()
    loaded = await load(disk)
    disk.run_delay_s = 0.05
    loaded.table.commit("G", "T", 0, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loaded.persist)
        await trio.testing.wait_all_tasks_blocked()
        loaded.table.commit("G", "T", 0, 2)
    assert loaded.unsaved
    assert b"{0:1}" in get(disk, MAIN)


async def test_tables_are_encoded_off_the_loop(tmp_path, monkeypatch):
    """Tens of thousands of queues take a good part of a second, in which nobody else would be served."""
    table = ConsumerOffsets(SETTINGS, CLOCK)
    loaded = await StateFile(RealDisk(), str(tmp_path), OFFSETS, table, CLOCK).load()
    dumps, on_loop = jsondialect.dumps, []

    def noted(value):
        on_loop.append(trio.lowlevel.in_trio_run())
        return dumps(value)

    monkeypatch.setattr(jsondialect, "dumps", noted)
    table.commit("G", "T", 0, 1)
    await loaded.persist()
    assert on_loop == [False]


def changing_tables() -> list[tuple[Table, Callable[[int], object]]]:
    """Tables, and what changes each."""
    offsets, groups = ConsumerOffsets(SETTINGS, CLOCK), GroupTable(SETTINGS, CLOCK)
    light, copy = ConsumerOffsets(SETTINGS, CLOCK), ConsumerOffsets(SETTINGS, CLOCK)
    light.lmq = copy.following = True
    topics, delays, modes = TopicTable(SETTINGS, CLOCK), DelayOffsets(CLOCK), RequestModes()

    return [
        (offsets, lambda number: offsets.commit("G", "T", 0, number)),
        (light, lambda number: light.commit("%LMQ%G", "%LMQ%G", 0, number)),
        (copy, lambda number: copy.commit(f"G{number}", "T", 0, number)),
        (groups, lambda number: groups.set_readable("G", f"T{number}", readable=False)),
        (topics, lambda number: topics.create_if_absent(TopicConfig(f"T{number}"))),
        (delays, lambda number: delays.update(1, number)),
        (modes, lambda number: modes.set_mode(SetMessageRequestModeBody("T", "G", "POP", number))),
    ]


@pytest.mark.parametrize(("table", "change"), changing_tables())
def test_what_is_to_be_saved_does_not_change_any_more(table, change):
    change(1)
    content = table.to_json()
    before = jsondialect.dumps(content)
    change(2)
    assert jsondialect.dumps(content) == before
    assert jsondialect.dumps(table.to_json()) != before


# -- all tables of a broker


async def load_all(disk, directory=CONFIG):
    return await load_tables(
        disk,
        directory,
        CLOCK,
        topics=TopicTable(SETTINGS, CLOCK),
        groups=GroupTable(SETTINGS, CLOCK),
        offsets=ConsumerOffsets(SETTINGS, CLOCK),
    )


@pytest.mark.parametrize("store", golden_stores.NAMES)
async def test_the_files_of_a_reference_store_load_and_come_back_the_same(store, tmp_path):
    """On the real disk, with the peers' other state files beside them."""
    root = golden_stores.unpack(store, tmp_path)
    config = root / "config"
    names = [kind.name for kind in (TOPICS, GROUPS, OFFSETS, DELAYS, ORDERS)]
    before = {path.name: path.read_bytes() for path in config.iterdir()}
    tables = await load_all(RealDisk(), str(config))
    assert len(tables.topics.table) == 25
    assert tables.offsets.table.query("GoldFailing", "GoldRetry", 0) == 3
    assert not any(file.unsaved for file in tables.files)
    for file in tables.files:
        if file not in (tables.modes, tables.updates):  # nobody has set any
            await file.persist()
    after = {path.name: path.read_bytes() for path in config.iterdir()}
    assert after.keys() == before.keys()
    for name, data in before.items():
        if name in names:
            theirs = jsondialect.loads(data)
            theirs.pop("groupTopicMap", None)
            assert jsondialect.loads(after[name]) == theirs
            assert after[f"{name}.bak"] == data
        elif name.removesuffix(".bak") not in names:
            assert after[name] == data
