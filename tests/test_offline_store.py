"""Exports brought into other stores, and state files looked at: what joins the room for looking with the tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.golden_stores import unpack
from tests.recovery.stores import World, everything
from trio_mq.config import Settings, load
from trio_mq.errors import ConfigError, StoreFull, StoreLocked
from trio_mq.lookinside.selection import Selection, select
from trio_mq.lookinside.transfer import export
from trio_mq.lookinside.verify import verify
from trio_mq.lookinside.view import open_view
from trio_mq.offline import Wanted
from trio_mq.offline_store import (
    Imported,
    ImportRefused,
    ImportWanted,
    import_messages,
    look_at_state,
    parse_topic_map,
)
from trio_mq.store.checkpoint import take_lock
from trio_mq.store.disk import RealDisk
from trio_mq.testing.clock import ManualClock

SMALL = (
    "mappedFileSizeCommitLog=65536",
    "mappedFileSizeConsumeQueue=1200",
    "maxHashSlotNum=500",
    "maxIndexNum=2000",
)


@attrs.define
class Lines:
    """Lines in memory, as often as they are wanted."""

    lines: list[str]

    def __call__(self) -> Iterator[str]:
        return iter(self.lines)


def exported(root: str, *topics: str) -> list[str]:
    view = open_view(RealDisk(), root)
    told: list[str] = []
    try:
        return list(export(view, frozenset(topics), told.append))
    finally:
        view.close()
        assert told == []


async def brought(
    root: str, lines: list[str], *, skip_bad: bool = False, **topic_map: str
) -> Imported:
    settings: Settings = load(overrides=SMALL)
    what = ImportWanted(Lines(lines), topic_map, skip_bad, lambda _: None)
    clock = ManualClock(1_800_000_000_000)
    return await import_messages(RealDisk(), clock, Wanted(root, settings), what)


MOVES = ("queueOffset", "logOffset", "storeTimestamp", "storeHost", "messageId", "size")


def messages(lines: list[str], *but: str) -> list[dict[str, object]]:
    """What messages are, without what depends on the store."""
    return [
        {key: value for key, value in json.loads(line).items() if key not in (*MOVES, *but)}
        for line in lines
    ]


def sound(root: str) -> None:
    view = open_view(RealDisk(), root)
    try:
        report = verify(view, look_at_state(RealDisk(), root, ManualClock()), lambda *_: None)
    finally:
        view.close()
    assert report.findings == []
    assert not (Path(root) / "abort").exists()


TOPICS = ("GoldNormal", "GoldOrder", "GoldBatch", "GoldTrans", "%RETRY%GoldFailing", "GoldDelay")


async def test_a_round_trip_gives_equal_messages(tmp_path: Path) -> None:
    source, target = str(unpack("clean", tmp_path)), str(tmp_path / "new")
    lines = exported(source, *TOPICS)
    assert len(lines) > 250
    done = await brought(target, lines)
    assert done == Imported(len(lines), tuple(sorted(TOPICS)), 0, ())
    again = exported(target, *TOPICS)
    assert messages(again) == messages(lines)
    offsets = [json.loads(line)["queueOffset"] for line in again]
    assert offsets == [json.loads(line)["queueOffset"] for line in lines]
    sound(target)


async def test_batches_keep_their_messages(tmp_path: Path) -> None:
    source, target = str(unpack("clean", tmp_path)), str(tmp_path / "new")
    lines = exported(source, "GoldBCQ")
    for count in (1, 2):
        await brought(target, lines)
        again = exported(target, "GoldBCQ")
        assert [json.loads(line)["queueOffset"] for line in again] == [0, 5, 10, 15][: 2 * count]
    same = messages(lines, "properties", "propertiesBase64")
    assert messages(again, "properties", "propertiesBase64") == same * 2
    bases = [json.loads(line)["properties"]["INNER_BASE"] for line in again]
    assert bases == ["0", "5", "10", "15"]
    topics = json.loads((Path(target) / "config/topics.json").read_text("utf-8"))
    config = topics["topicConfigTable"]["GoldBCQ"]
    assert config["attributes"] == {"queue.type": "BatchCQ"}
    sound(target)


async def test_offsets_go_on_and_topics_get_queues(tmp_path: Path) -> None:
    root = str(unpack("clean", tmp_path))
    before = exported(root, "GoldOrder")
    path = Path(root) / "config/topics.json"
    old = json.loads(path.read_text("utf-8"))
    lines = [json.dumps({"topic": "GoldOrder", "queueId": 5, "bodyText": f"{n}"}) for n in range(3)]
    lines += [json.dumps({"topic": "GoldOrder", "queueId": 0, "bodyText": "more"})]
    await brought(root, lines)
    after = exported(root, "GoldOrder")
    assert after[: len(before)] == before
    rows = [json.loads(line) for line in after[len(before) :]]
    assert [(row["queueId"], row["queueOffset"]) for row in rows] == [
        *((5, 0), (5, 1), (5, 2)), (0, 12),
    ]  # fmt: skip
    new = json.loads(path.read_text("utf-8"))
    assert new["topicConfigTable"]["GoldOrder"]["writeQueueNums"] == 6
    assert new["dataVersion"]["counter"] == old["dataVersion"]["counter"] + 1
    for table in (old, new):
        del table["topicConfigTable"]["GoldOrder"], table["dataVersion"]
    assert new == old, "everything else stays as it was"
    sound(root)


async def test_keys_are_found_afterwards(tmp_path: Path) -> None:
    source, target = str(unpack("clean", tmp_path)), str(tmp_path / "new")
    await brought(target, exported(source, "GoldNormal"), GoldNormal="Other")
    view = open_view(RealDisk(), target)
    told: list[str] = []
    try:
        wanted = Selection(topics=frozenset({"Other"}), key="key-7")
        (found,) = select(view, wanted, told.append)
    finally:
        view.close()
    assert found.decoded().property_map["n"] == "7"
    assert told == [], "by the index"


@pytest.mark.parametrize("exists", [False, True])
async def test_a_bad_line_keeps_everything_as_it_was(tmp_path: Path, exists: bool) -> None:
    root = Path(tmp_path / "new")
    if exists:
        root = unpack("clean", tmp_path)
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    lines = ['{"topic":"T","bodyText":"a"}', "", "{", '{"topic":"T T","bodyText":"b"}']
    with pytest.raises(ImportRefused) as caught:
        await brought(str(root), lines)
    assert "2 lines are bad: line 3: it is not JSON" in str(caught.value)
    assert "line 4: topic 'T T' has illegal characters" in str(caught.value)
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before
    done = await brought(str(root), lines, skip_bad=True)
    assert (done.messages, done.skipped) == (1, 2)
    assert [json.loads(line)["topic"] for line in exported(str(root), "T")] == ["T"]


@pytest.mark.parametrize(
    "topic",
    ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "a/b", "../x", ""],
)
async def test_topics_of_the_broker_are_refused(tmp_path: Path, topic: str) -> None:
    line = json.dumps({"topic": topic, "bodyText": "x"})
    with pytest.raises(ImportRefused):
        await brought(str(tmp_path / "new"), [line])
    if topic:
        mapped = await brought(str(tmp_path / "new"), [line], **{topic: "Mine"})
        assert mapped.topics == ("Mine",)


async def test_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for size in (5_000_000, 70_000):
        line = json.dumps({"topic": "T", "bodyText": "x" * size})
        with pytest.raises(ImportRefused):
            await brought(str(tmp_path / "new"), [line])
    assert not (tmp_path / "new").exists()


async def test_a_batch_does_not_go_into_simple_queues(tmp_path: Path) -> None:
    root = str(unpack("clean", tmp_path))
    lines = exported(root, "GoldBCQ")
    with pytest.raises(ImportRefused, match="line 1 is a batch in one record"):
        await brought(root, lines, GoldBCQ="GoldNormal")


async def test_a_store_after_a_crash_is_recovered_first(tmp_path: Path) -> None:
    root = str(unpack("crash", tmp_path))
    before = exported(root, "GoldNormal")
    await brought(root, ['{"topic":"GoldNormal","bodyText":"new"}'])
    after = exported(root, "GoldNormal")
    assert after[:-1] == before
    sound(root)


async def test_a_store_that_is_open_is_left_alone(memory_world: World) -> None:
    await memory_world.filled(6)
    settings = attrs.evolve(Settings(), store=memory_world.settings)
    what = ImportWanted(Lines(['{"topic":"T","bodyText":"x"}']), {}, False, lambda _: None)
    lock = take_lock(memory_world.disk, memory_world.root)
    before = memory_world.files()
    with pytest.raises(StoreLocked):
        await import_messages(
            memory_world.disk, memory_world.clock, Wanted(memory_world.root, settings), what
        )
    lock.release()
    assert memory_world.files() == before


async def test_a_full_disk_tells_how_far_it_came(memory_world: World) -> None:
    world = memory_world
    lines = [json.dumps({"topic": "T", "bodyText": f"{n}" * 50}) for n in range(2000)]
    what = ImportWanted(Lines(lines), {}, False, lambda _: None)
    settings = attrs.evolve(Settings(), store=world.settings)
    world.disk.capacity_bytes = 150_000
    with pytest.raises(StoreFull, match=r"the import ended before line [0-9]+,") as caught:
        await import_messages(world.disk, world.clock, Wanted(world.root, settings), what)
    assert world.disk.exists(world.path("abort")), "the next start recovers"
    world.disk.capacity_bytes = 1 << 30
    number = int(str(caught.value).rpartition("before line ")[2].partition(",")[0])
    async with world.life() as store:
        assert len(everything(store)["T", 0]) == number - 1


@pytest.fixture
def memory_world() -> World:
    from trio_mq.testing.disk import MemoryDisk

    return World.make(MemoryDisk(), "/store", mapped_file_size_commit_log=65536)


async def test_files_of_a_guessed_size_are_not_made(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    shutil.rmtree(root / "index")
    shutil.rmtree(root / "batchconsumequeue")
    what = ImportWanted(Lines(['{"topic":"T","bodyText":"x"}']), {}, False, lambda _: None)
    clock = ManualClock(1_800_000_000_000)
    with pytest.raises(ConfigError, match=r"--set maxHashSlotNum=\.\.\. --set maxIndexNum=\.\.\."):
        await import_messages(RealDisk(), clock, Wanted(str(root)), what)
    assert not (root / "abort").exists()
    settings = load(overrides=SMALL[2:])
    done = await import_messages(RealDisk(), clock, Wanted(str(root), settings), what)
    assert done.messages == 1


def test_state_files_are_judged(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    good = look_at_state(RealDisk(), str(root), ManualClock())
    assert good.problems == ()
    assert good.topics is not None
    assert "GoldNormal" in good.topics
    (root / "config/consumerOffset.json").write_text("{")
    (root / "config/delayOffset.json").write_text("")
    (root / "config/topics.json").write_text("[]")
    (root / "config/topics.json.bak").write_text("[]")
    bad = look_at_state(RealDisk(), str(root), ManualClock())
    assert [Path(path).name for path, _ in bad.problems] == [
        *("consumerOffset.json", "delayOffset.json", "topics.json"),
    ]
    assert bad.topics is None


def test_topic_maps() -> None:
    assert parse_topic_map(["a=b", "c=d"]) == {"a": "b", "c": "d"}
    for bad in (["a"], ["=b"], ["a="], ["a=b", "a=c"]):
        with pytest.raises(ConfigError):
            parse_topic_map(bad)
