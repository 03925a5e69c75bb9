"""A check finds each kind of damage, says where it is, and finds nothing in a store that is sound."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import pytest

from tests.recovery.stores import QUEUE_FILE_ENTRIES, SEGMENT_BYTES, World
from trio_mq.lookinside import verify as verifying
from trio_mq.lookinside.feed import Feed, make_feed
from trio_mq.lookinside.findings import KEPT_OF_A_KIND, Kind, Report
from trio_mq.lookinside.verify import StateLook
from trio_mq.protocol.layout import (
    BATCH_QUEUE_ENTRY_SIZE,
    INDEX_ENTRY_SIZE,
    PRE_BLANK,
    QUEUE_ENTRY,
    QUEUE_ENTRY_SIZE,
    index_entry_position,
    index_slot_position,
)
from trio_mq.protocol.verdict import Whole
from trio_mq.recovery.survey import Bad, Piece, survey
from trio_mq.store.segments import Segments

from .support import checked, kinds, view_of

SLOTS = 50


def index_path(world: World) -> str:
    (name,) = world.disk.list_dir(world.path("index"))
    return world.path(f"index/{name}")


# -- sound stores


@pytest.mark.parametrize("kill", [False, True])
async def test_a_whole_store_is_sound(world: World, kill: bool) -> None:
    await world.filled(200, kill=kill)
    report = checked(world)
    assert report.findings == []
    assert report.sound
    assert report.counted["records"] == 200
    assert report.counted["queues"] == 3
    assert report.counted["indexEntries"] == 400


@pytest.mark.parametrize("damage", ["none", "index", "queue", "log", "much"])
async def test_without_numpy_it_is_the_same(
    memory_world: World, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    offsets = await memory_world.filled(150)
    if damage in ("index", "much"):
        memory_world.write(index_path(memory_world), b"\0\0\0\1", index_slot_position(7))
        memory_world.write(index_path(memory_world), b"\1", index_entry_position(70, SLOTS))
    if damage in ("queue", "much"):
        memory_world.cut_entries("T", 0, 10, 3)
        memory_world.write(memory_world.queue_file("T", 1), b"\1", 105)
    if damage in ("log", "much"):
        memory_world.flip(offsets[70] + 88)
        memory_world.disk.remove(memory_world.segment(2 * SEGMENT_BYTES))
    with_numpy = checked(memory_world)
    for name in ("bulkchains", "bulkkeys", "bulkfeed"):
        monkeypatch.setitem(sys.modules, f"trio_mq.lookinside.{name}", None)
    assert type(make_feed(None, None)) is Feed
    assert checked(memory_world).as_dict() == with_numpy.as_dict()
    assert with_numpy.sound is (damage == "none")


async def test_columns_are_compared_as_columns(
    memory_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sound store with numpy: records are made only of what does not come in columns."""
    pytest.importorskip("numpy")
    from trio_mq.recovery.columns import ColumnLot

    await memory_world.filled(150)
    made: list[int] = []
    real = ColumnLot.records

    def counted(lot: ColumnLot) -> Sequence[Whole]:
        made.append(lot.count)
        return real(lot)

    monkeypatch.setattr(ColumnLot, "records", counted)
    assert checked(memory_world).sound
    assert made == []


async def test_expired_records_are_no_fault(memory_world: World) -> None:
    await memory_world.filled(200)
    for start in (0, SEGMENT_BYTES):
        memory_world.disk.remove(memory_world.segment(start))
    assert checked(memory_world).findings == []


async def test_holes_of_a_queue_are_no_fault(memory_world: World) -> None:
    async with memory_world.life() as store:
        memory_world.send(store, b"a")
        store.queues.obtain("T", 0).next_offset = 7
        memory_world.send(store, b"b")
        store.queues.obtain("U", 0).next_offset = 70
        memory_world.send(store, b"c", "U")
        for _ in range(100):
            memory_world.send(store, b"d", "U")
    assert checked(memory_world).findings == []


async def test_transactions_delays_and_batches_are_sound(memory_world: World) -> None:
    memory_world.batch_topics.add("B")
    async with memory_world.life() as store:
        memory_world.send(store, b"half", sys_flag=0x4, keys="a")
        memory_world.send(store, b"done", sys_flag=0x8, keys="a")
        memory_world.send(store, b"back", sys_flag=0xC, keys="a")
        for n in range(8):
            memory_world.send_batch(store, [b"x"] * (1 + n % 3))
        memory_world.send(store, b"one", "B")
    report = checked(memory_world)
    # A transaction takes its queue offset here, so the entries do not agree: that is what is told.
    assert {f.kind for f in report.findings} <= {Kind.QUEUE_SHIFTED, Kind.QUEUE_TORN}


# -- the log


async def test_a_flipped_bit_in_a_body(world: World) -> None:
    offsets = await world.filled(60)
    world.flip(offsets[20] + 88)
    report = checked(world)
    (damaged,) = [f for f in report.findings if f.kind is Kind.LOG_DAMAGED]
    assert damaged.path == world.segment(offsets[20])
    assert damaged.offset == offsets[20] % SEGMENT_BYTES
    assert "body CRC" in damaged.text
    assert kinds(report) == {Kind.LOG_DAMAGED: 1, Kind.QUEUE_STRAY: 1, Kind.INDEX_STRAY: 2}
    assert all("damaged" in f.text for f in report.findings if f.kind is not Kind.LOG_DAMAGED)


async def test_a_torn_tail(memory_world: World) -> None:
    offsets = await memory_world.filled(60)
    last = offsets[-1]
    memory_world.write_log(bytes(20), last + 100)
    report = checked(memory_world)
    assert report.totals[Kind.LOG_TORN] + report.totals[Kind.LOG_DAMAGED] == 1


@pytest.mark.parametrize("kill", [True, False], ids=["running", "closed"])
async def test_records_that_a_broker_stores_while_they_are_looked_at(
    memory_world: World, monkeypatch: pytest.MonkeyPatch, kill: bool
) -> None:
    """Where the log ended there is a record a moment later, and one behind it; no broker writes without its marker."""
    offsets = await memory_world.filled(60, kill=kill)
    at = offsets[-2]
    newer = memory_world.read_log(offsets[-1] - at, at)
    memory_world.write_log(bytes(len(newer)), at)

    def beside_a_broker(segments: Segments) -> Iterator[Piece]:
        for piece in survey(segments):
            if isinstance(piece, Bad):
                assert (piece.begin, piece.end) == (at, offsets[-1])
                memory_world.write_log(newer, at)
            yield piece

    monkeypatch.setattr(verifying, "survey", beside_a_broker)
    with view_of(memory_world) as view:
        report = verifying.verify(view, StateLook(), lambda *_: None)
    assert report.totals[Kind.LOG_DAMAGED] == (not kill)
    assert report.counted["records"] == 60 - (2 if kill else 1)


async def test_a_missing_segment(memory_world: World) -> None:
    offsets = await memory_world.filled(120)
    memory_world.disk.remove(memory_world.segment(SEGMENT_BYTES))
    gone = [o for o in offsets if SEGMENT_BYTES <= o < 2 * SEGMENT_BYTES]
    report = checked(memory_world)
    assert report.totals[Kind.LOG_MISSING] == 1
    assert report.totals[Kind.QUEUE_STRAY] == len(gone)
    assert report.totals[Kind.INDEX_STRAY] == 2 * len(gone)


async def test_a_short_file(memory_world: World) -> None:
    await memory_world.filled(60)
    memory_world.resize(memory_world.queue_file(), 600)
    report = checked(memory_world)
    (finding,) = [f for f in report.findings if f.kind is Kind.FILE_SIZE]
    assert finding.text == f"has 600 bytes instead of {QUEUE_FILE_ENTRIES * QUEUE_ENTRY_SIZE}"


# -- queues


def queue_faults(report: Report) -> list[tuple[Kind, int, str]]:
    return [(f.kind, f.count, f.text) for f in report.findings if f.kind.value.startswith("queue")]


async def test_entries_that_lack_at_the_end(world: World) -> None:
    offsets = await world.filled(60)
    world.cut_entries("T", 1, 15, 5)
    report = checked(world)
    assert queue_faults(report) == [
        (
            Kind.QUEUE_LACKS, 5,
            f"T/1 has no entry for queue offset 15 to 19, whose record is at log offset {offsets[46]} and behind "
            f"(it is empty)",
        )
    ]  # fmt: skip
    (finding,) = report.findings
    assert (finding.path, finding.offset) == (world.queue_file("T", 1), 300)


async def test_entries_that_lack_in_the_middle(memory_world: World) -> None:
    await memory_world.filled(60)
    memory_world.cut_entries("T", 1, 5, 3)
    (found,) = queue_faults(checked(memory_world))
    assert found[:2] == (Kind.QUEUE_LACKS, 3)
    assert "5 to 7" in found[2]


async def test_after_a_crash_the_newest_records_may_lack(memory_world: World) -> None:
    await memory_world.filled(60, kill=True)
    memory_world.crash()
    memory_world.cut_entries("T", 1, 15, 5)
    report = checked(memory_world)
    assert report.sound
    assert any(note.startswith("5 records at the log's end") for note in report.notes)


async def test_a_queue_without_files(memory_world: World) -> None:
    await memory_world.filled(60)
    memory_world.disk.remove_tree(memory_world.path("consumequeue/T/1"))
    known = StateLook(topics=frozenset({"T"}))
    (found,) = queue_faults(checked(memory_world, known))
    assert found[:2] == (Kind.QUEUE_LACKS, 20)
    report = checked(memory_world, StateLook(topics=frozenset()))
    assert report.sound, "the topic was deleted"
    assert report.notes == ["20 records are of T/1, a topic that was deleted"]


async def test_a_lost_first_queue_file(memory_world: World) -> None:
    await memory_world.filled(200)
    memory_world.disk.remove(memory_world.queue_file("T", 0, 0))
    (found,) = queue_faults(checked(memory_world))
    assert found[:2] == (Kind.QUEUE_LACKS, QUEUE_FILE_ENTRIES)


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        (lambda o, s, t: (o, s + 1, t), "size"),
        (lambda o, s, t: (o, s, t + 1), "tags code"),
        (lambda o, s, t: (1 << 40, s, t), "log offset"),
        (lambda o, s, t: (o + 3, s, t), "log offset"),
    ],
)
async def test_a_wrong_entry(memory_world: World, entry, word: str) -> None:
    await memory_world.filled(60)
    at = 7 * QUEUE_ENTRY_SIZE
    path = memory_world.queue_file("T", 2)
    right = QUEUE_ENTRY.unpack(memory_world.read(path)[at : at + QUEUE_ENTRY_SIZE])
    memory_world.write(path, QUEUE_ENTRY.pack(*entry(*right)), at)
    report = checked(memory_world)
    (found,) = queue_faults(report)
    assert found[:2] == (Kind.QUEUE_WRONG, 1)
    assert word in found[2]
    assert (report.findings[0].path, report.findings[0].offset) == (path, at)


async def test_an_entry_that_points_back_to_another_record(memory_world: World) -> None:
    offsets = await memory_world.filled(60)
    path = memory_world.queue_file("T", 2)
    entry = QUEUE_ENTRY.pack(offsets[0], 100, 0)
    memory_world.write(path, entry, 7 * QUEUE_ENTRY_SIZE)
    found = queue_faults(checked(memory_world))
    assert [(kind, count) for kind, count, _ in found] == [
        (Kind.QUEUE_LACKS, 1),
        (Kind.QUEUE_STRAY, 1),
    ]


async def test_entries_behind_the_logs_end(memory_world: World) -> None:
    await memory_world.filled(60)
    path = memory_world.queue_file("T", 0)
    extra = b"".join(QUEUE_ENTRY.pack((1 << 30) + n * 100, 100, 0) for n in range(3))
    memory_world.write(path, extra, 20 * QUEUE_ENTRY_SIZE)
    (found,) = queue_faults(checked(memory_world))
    assert found[:2] == (Kind.QUEUE_STRAY, 3)
    assert "behind the log's end" in found[2]


async def test_a_torn_entry_at_the_end(memory_world: World) -> None:
    await memory_world.filled(60)
    memory_world.write(memory_world.queue_file("T", 0), b"\1\2\3", 20 * QUEUE_ENTRY_SIZE)
    (found,) = queue_faults(checked(memory_world))
    assert found[0] is Kind.QUEUE_TORN


async def test_shifted_offsets(memory_world: World) -> None:
    await memory_world.filled(60)
    path = memory_world.queue_file("T", 0)
    entries = memory_world.read(path)
    memory_world.write(path, PRE_BLANK + entries[: 20 * QUEUE_ENTRY_SIZE], 0)
    (found,) = queue_faults(checked(memory_world))
    assert found[:2] == (Kind.QUEUE_SHIFTED, 20)
    assert "by 1 " in found[2]


async def with_batch_queue(world: World) -> str:
    """The file of a batch queue with eight batches of three messages."""
    world.batch_topics.add("B")
    async with world.life() as store:
        for _ in range(8):
            world.send_batch(store, [b"x"] * 3)
    return world.path(f"batchconsumequeue/B/0/{0:020d}")


async def test_a_wrong_batch_entry(memory_world: World) -> None:
    path = await with_batch_queue(memory_world)
    memory_world.write(path, b"\0\4", 2 * BATCH_QUEUE_ENTRY_SIZE + 36)
    (found,) = queue_faults(checked(memory_world))
    assert found[:2] == (Kind.QUEUE_WRONG, 1)
    assert "4 messages instead of 3" in found[2]


async def test_empty_entries_in_a_batch_queue(memory_world: World) -> None:
    path = await with_batch_queue(memory_world)
    memory_world.write(path, bytes(2 * BATCH_QUEUE_ENTRY_SIZE), 2 * BATCH_QUEUE_ENTRY_SIZE)
    (found,) = queue_faults(checked(memory_world))
    assert found[:2] == (Kind.QUEUE_LACKS, 2)
    assert "queue offset 6 to 9" in found[2]


async def test_a_wrong_time_in_a_batch_entry(memory_world: World) -> None:
    path = await with_batch_queue(memory_world)
    memory_world.write(path, b"\1", 2 * BATCH_QUEUE_ENTRY_SIZE + 20)
    memory_world.write(path, b"\1", 4 * BATCH_QUEUE_ENTRY_SIZE + 45)
    assert [kind for kind, _, _ in queue_faults(checked(memory_world))] == [Kind.QUEUE_WRONG] * 2


async def test_records_of_an_earlier_topic_are_no_fault(memory_world: World) -> None:
    async with memory_world.life() as store:
        for n in range(10):
            memory_world.send(store, b"old %d" % n)
        store.dispatcher.finish()
        store.commit()
        store.drop_topic("T")
        for n in range(3):
            memory_world.send(store, b"new %d" % n)
    report = checked(memory_world)
    assert report.findings == []
    assert any("10 records" in note and "earlier topic" in note for note in report.notes)


# -- the index


def index_faults(report: Report) -> list[tuple[Kind, int, str]]:
    return [(f.kind, f.count, f.text) for f in report.findings if f.kind.value.startswith("index")]


async def test_a_wrong_hash(memory_world: World) -> None:
    await memory_world.filled(60)
    at = index_entry_position(9, SLOTS)
    memory_world.write(index_path(memory_world), b"\0\0\0\1", at)
    report = checked(memory_world)
    assert (report.findings[0].kind, report.findings[0].offset) == (Kind.INDEX_WRONG, at)
    assert report.totals[Kind.INDEX_CHAIN] >= 1, "the entry is in a chain that is not its own"


async def test_an_index_entry_of_no_record(memory_world: World) -> None:
    await memory_world.filled(60)
    at = index_entry_position(9, SLOTS) + 4
    memory_world.write(index_path(memory_world), (17).to_bytes(8, "big"), at)
    ((kind, count, text),) = index_faults(checked(memory_world))
    assert (kind, count) == (Kind.INDEX_STRAY, 1)
    assert "there is no record" in text


async def test_empty_index_entries_that_the_header_counts(memory_world: World) -> None:
    await memory_world.filled(60)
    at = index_entry_position(111, SLOTS)
    memory_world.write(index_path(memory_world), bytes(10 * INDEX_ENTRY_SIZE), at)
    report = checked(memory_world)
    assert report.totals[Kind.INDEX_STRAY] == 10
    assert report.totals[Kind.INDEX_LACKS] == 5


@pytest.mark.parametrize(("link", "word"), [(77, "backwards"), (1, "leads past")])
async def test_a_wrong_link(memory_world: World, link: int, word: str) -> None:
    await memory_world.filled(60)
    at = index_entry_position(70, SLOTS) + 16
    memory_world.write(index_path(memory_world), link.to_bytes(4, "big"), at)
    report = checked(memory_world)
    (finding,) = report.findings
    assert (finding.kind, finding.offset) == (Kind.INDEX_CHAIN, at)
    assert word in finding.text


async def test_a_wrong_slot(memory_world: World) -> None:
    await memory_world.filled(60)
    memory_world.write(index_path(memory_world), (1).to_bytes(4, "big"), index_slot_position(3))
    ((kind, count, text),) = index_faults(checked(memory_world))
    assert (kind, count) == (Kind.INDEX_CHAIN, 1)
    assert text.startswith("slot 3 leads to entry 1 instead of")


async def test_a_wrong_header(memory_world: World) -> None:
    await memory_world.filled(60)
    memory_world.write(index_path(memory_world), (5).to_bytes(8, "big"), 24)
    ((kind, _, text),) = index_faults(checked(memory_world))
    assert kind is Kind.INDEX_FILE
    assert "the last record is at log offset 5" in text


async def test_an_index_file_of_another_size(memory_world: World) -> None:
    await memory_world.filled(60)
    memory_world.resize(index_path(memory_world), 1000)
    assert [kind for kind, _, _ in index_faults(checked(memory_world))] == [Kind.INDEX_FILE]


async def test_records_without_keys_in_the_index(memory_world: World) -> None:
    offsets = await memory_world.filled(60)
    path = index_path(memory_world)
    async with memory_world.life() as store:
        before = memory_world.read(path)
        memory_world.send(store, b"x", keys="new")
        memory_world.send(store, b"y", keys="newer")
    memory_world.write(path, before)
    ((kind, count, text),) = index_faults(checked(memory_world))
    assert (kind, count) == (Kind.INDEX_LACKS, 2)
    assert f"{offsets[-1]}" not in text


async def test_a_wrong_time(memory_world: World) -> None:
    await memory_world.filled(60)
    at = index_entry_position(9, SLOTS) + 12
    memory_world.write(index_path(memory_world), (77).to_bytes(4, "big"), at)
    assert index_faults(checked(memory_world))[0][:2] == (Kind.INDEX_WRONG, 1)


# -- the rest


async def outlived(world: World) -> None:
    """Queues of T whose records have all expired since."""
    await world.filled(20)
    async with world.life() as store:
        for n in range(200):
            world.send(store, b"%d" % n, "U")
    for start in (0, SEGMENT_BYTES):
        world.disk.remove(world.segment(start))


async def test_a_queue_that_is_gone_with_its_records_is_missed(memory_world: World) -> None:
    await outlived(memory_world)
    memory_world.disk.remove_tree(memory_world.path("consumequeue/T/1"))
    (found,) = queue_faults(checked(memory_world))
    assert found[0] is Kind.QUEUE_LACKS
    assert found[2] == "the list of queues knows T/1, which has no files"


async def test_a_queue_that_is_shorter_than_it_was_is_noticed(memory_world: World) -> None:
    await outlived(memory_world)
    memory_world.cut_entries("T", 1, 5, 2)
    (found,) = queue_faults(checked(memory_world))
    assert found[2] == "T/1 ends at queue offset 5, but has had 7 by the list"


async def test_a_list_of_queues_that_cannot_be_read(memory_world: World) -> None:
    await memory_world.filled(20)
    memory_world.resize(memory_world.path("queuelist.json"), 10)
    assert kinds(checked(memory_world)) == {Kind.STATE_FILE: 1}


async def test_a_checkpoint_that_runs_ahead(memory_world: World) -> None:
    await memory_world.filled(20)
    path = memory_world.path("checkpoint")
    memory_world.write(path, (1 << 40).to_bytes(8, "big"), 40)
    assert kinds(checked(memory_world)) == {Kind.CHECKPOINT: 1}


async def test_state_files_and_a_short_checkpoint(memory_world: World) -> None:
    await memory_world.filled(6)
    memory_world.resize(memory_world.path("checkpoint"), 17)
    report = checked(memory_world, StateLook((("/store/config/topics.json", "it is empty"),)))
    assert kinds(report) == {Kind.STATE_FILE: 1, Kind.CHECKPOINT: 1}


async def test_a_log_alone(memory_world: World) -> None:
    await memory_world.filled(60)
    for name in memory_world.disk.list_dir("/store"):
        if name != "commitlog":
            memory_world.disk.remove_tree(f"/store/{name}")
            memory_world.disk.remove(f"/store/{name}")
    report = checked(memory_world)
    assert report.sound
    assert report.counted["records"] == 60
    assert "there is only a commit log: queues and index are not checked" in report.notes


def test_a_report_is_bounded() -> None:
    report = Report()
    for n in range(KEPT_OF_A_KIND + 7):
        report.add(Kind.QUEUE_WRONG, "/p", n, "x", count=2)
    assert len(report.findings) == KEPT_OF_A_KIND
    assert report.left_out == {Kind.QUEUE_WRONG: 7}
    assert report.as_dict()["totals"] == {"queue-entry-wrong": 2 * KEPT_OF_A_KIND + 14}
