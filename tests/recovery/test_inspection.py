"""The one value that a dry run ends with: its verdict, its JSON and its text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from trio_mq.protocol.layout import Checkpoint
from trio_mq.recovery.apacheview import ApacheView
from trio_mq.recovery.differences import differences
from trio_mq.recovery.glimpse import IndexGlimpse, QueueGlimpse
from trio_mq.recovery.inspection import (
    Effect,
    IndexCounts,
    Inspection,
    Kind,
    OffsetChange,
    QueueChange,
    Size,
    StateFinding,
    Verdict,
    file_change,
)
from trio_mq.recovery.inspectiontext import LINES_SHOWN, lines, record_lines
from trio_mq.recovery.picture import LogPicture, Lost, LostRecord, QueueCount, Span
from trio_mq.recovery.report import RecoveryReport

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "recover-json.md"
SOUND = Inspection("/s", picture=LogPicture(files=1), report=RecoveryReport())
EMPTIED = StateFinding("/s/config/topics.json", "empty", "missing", Effect.EMPTY, "empty")
EVERYTHING = Inspection(
    "/s",
    refusals=("a reason",),
    owner=17,
    sizes=(Size("mappedFileSizeCommitLog", 4096, "by the files", "commitlog"),),
    notes=("odd",),
    state_files=(EMPTIED,),
    picture=LogPicture(
        files=1, queues=(QueueCount("T", 0, 3),), damaged=(Span(0, 9, "why"),), missing=(Span(9, 18, "gone"),)
    ),
    report=RecoveryReport(cut_bytes=9, cut_reason="torn", quarantine="/s/quarantine/x"),
    changes=(file_change("commitlog/0", Kind.CHANGED, 9, index_is_kept=False),),
    queue_changes=(QueueChange("T", 0, 4, 3, 1),),
    queues_made=("T/0",),
    offset_changes=(OffsetChange("g", "T", 0, 4, 3),),
    index=IndexCounts(9, 5, 4),
    index_files=(IndexGlimpse("/s/index/1", 9, 1),),
    lost=Lost(9, 20, 1, 11, (QueueCount("T", 0, 1),), ("key",)),
    unreadable=(QueueGlimpse("T", 0, 4, 0, 1),),
    apache=ApacheView(0, 9, 1, "why"),
)  # fmt: skip


def changed(path: str, kind: Kind = Kind.CHANGED, *, index_is_kept: bool = False) -> Inspection:
    """A store that a start changes one file of."""
    return attrs.evolve(SOUND, changes=(file_change(path, kind, 1, index_is_kept=index_is_kept),))


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (SOUND, Verdict.SOUND),
        (changed("abort", Kind.CREATED), Verdict.SOUND),
        (changed("checkpoint"), Verdict.SOUND),
        (changed("lock", Kind.CREATED), Verdict.SOUND),
        (changed("index/1", index_is_kept=True), Verdict.SOUND),
        (changed("index/1"), Verdict.CHANGES),
        (changed("index/1", Kind.REMOVED, index_is_kept=True), Verdict.CHANGES),
        (changed("commitlog/1"), Verdict.CHANGES),
        (changed("config/topics.json"), Verdict.CHANGES),
        (attrs.evolve(SOUND, state_files=(EMPTIED,)), Verdict.CHANGES),
        (attrs.evolve(SOUND, queue_changes=(QueueChange("T", 0, 4, 3, 1),)), Verdict.CHANGES),
        (attrs.evolve(SOUND, offset_changes=(OffsetChange("g", "T", 0, 4, 3),)), Verdict.CHANGES),
        (attrs.evolve(SOUND, picture=LogPicture(damaged=(Span(0, 1, ""),))), Verdict.CHANGES),
        (attrs.evolve(SOUND, picture=LogPicture(missing=(Span(0, 1, ""),))), Verdict.CHANGES),
        (attrs.evolve(SOUND, lost=Lost(records=1)), Verdict.LOSES),
        (attrs.evolve(SOUND, lost=Lost(records=1), refusals=("why",)), Verdict.REFUSED),
    ],
)
def test_the_verdict(found: Inspection, verdict: Verdict):
    assert found.verdict is verdict


def test_codes_are_the_ones_that_are_promised():
    assert {verdict.value: verdict.exit_code for verdict in Verdict} == {
        "sound": 0, "changes": 1, "loses": 2, "refused": 3,
    }  # fmt: skip


def keys(value: object) -> Iterator[str]:
    """All names of fields in JSON."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def test_every_field_is_on_its_page():
    found = attrs.evolve(
        EVERYTHING, differences=differences(EVERYTHING, crashed=True, checkpoint=None)
    )
    table = json.loads(json.dumps(found.as_dict()))
    table["records"] = [attrs.asdict(LostRecord(0, "T", 0, 0, "id", ("k",), 9, 1, "why"))]
    table.pop("seconds")
    named = set(re.findall(r"`(\w+)`", PAGE.read_text("utf-8")))
    assert set(keys(table)) - named == set()


def test_all_of_it_is_told_in_words():
    told = "\n".join(lines(EVERYTHING))
    for words in (
        "a start would refuse this store (exit code 3)", "open in process 17", "bytes 0 to 9 hold no whole record",
        "bytes 9 to 18 are missing", "config/topics.json: empty (starts empty)", "cut: 9 bytes, torn, kept in",
        "T/0 ends at 3 instead of 4 (-1 messages)", "group g in T/0", "refused: a reason", "keys: key",
        "queue entries that lead to records that cannot be read: 1 (T/0 1)", "9 keys found, 4 of them go, 4",
    ):  # fmt: skip
        assert words in told


def test_long_lists_are_cut_short():
    many = tuple(QueueChange("T", n, 0, 1, 1) for n in range(100))
    told = list(lines(attrs.evolve(SOUND, queue_changes=many)))
    assert sum(line.startswith("  T/") for line in told) == LINES_SHOWN
    assert f"  and {100 - LINES_SHOWN} more (--json has all)" in told


def test_a_queue_that_is_cut_is_told_once():
    notes = ["queue T/0 ends at offset 3 instead of 4, since the log ends at 9", "something else"]
    found = attrs.evolve(EVERYTHING, report=RecoveryReport(notes=notes))
    told = "\n".join(lines(found))
    assert told.count("T/0 ends at") == 1
    assert "something else" in told


def test_a_record_is_a_line():
    record = LostRecord(7, "T", 1, 5, "", ("a", "b"), 99, 1, "behind the cut")
    assert list(record_lines([record]))[2] == ("  7  T/1  5  - keys a b  99 bytes  behind the cut")


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ({"report": RecoveryReport(cut_bytes=3, cut_reason="properties end in NUL")}, "the record at the cut"),
        ({"report": RecoveryReport(cut_bytes=3, cut_reason="record lies at offset 3")}, "the record at the cut"),
        ({"report": RecoveryReport(cut_bytes=3, cut_reason="torn")}, "bytes behind the cut"),
        ({"apache": ApacheView(0, 99)}, "end of the log"),
        ({"apache": ApacheView(99, 0)}, "where reading begins"),
        ({"picture": LogPicture(), "report": RecoveryReport(log_end=4096)}, "a log without files"),
        ({"report": RecoveryReport(notes=["3 queue entries were torn and are written again"])}, "torn queue entries"),
        ({"offset_changes": EVERYTHING.offset_changes}, "progress behind the end of a queue"),
    ],
)  # fmt: skip
def test_what_apache_would_do_otherwise(change: dict, about: str):
    found = attrs.evolve(SOUND, **change)
    rows = differences(found, crashed=False, checkpoint=Checkpoint())
    assert about in [row.about for row in rows]
    assert differences(SOUND, crashed=False, checkpoint=Checkpoint()) == ()


@pytest.mark.parametrize(
    ("files", "missing", "walked_from", "told"),
    [
        (10, (), 0, False),
        (11, (), 4096, False),
        (11, (), 4095, True),
        (10, (Span(20480, 24576, "gone"),), 0, False),
        (11, (Span(20480, 24576, "gone"),), 4095, True),
        (11, (Span(20480, 24576, "gone"),), 4096, False),
    ],
)
def test_apache_goes_back_ten_files_at_most(
    files: int, missing: tuple[Span, ...], walked_from: int, *, told: bool
):
    end = (files + len(missing)) * 4096
    picture = LogPicture(end=end, files=files, segment_bytes=4096, missing=missing)
    found = attrs.evolve(SOUND, picture=picture, report=RecoveryReport(walked_from=walked_from))
    rows = differences(found, crashed=True, checkpoint=Checkpoint())
    assert [row.about for row in rows] == ["how far reading goes back"] * told


@pytest.mark.parametrize(
    ("name", "file", "backup", "apache"),
    [
        ("topics", "bad", "bad", "deletes the file, and refuses to start, too, since its backup"),
        (
            "topics",
            "empty",
            "empty",
            "deletes the file, and refuses to start, too, since topics of",
        ),
        ("consumerOffset", "bad", "missing", "deletes the file, and goes on with an empty table"),
        ("consumerOffset", "missing", "empty", "goes on with an empty table"),
    ],
)
def test_what_apache_makes_of_a_state_file(name: str, file: str, backup: str, apache: str):
    finding = StateFinding(f"/s/config/{name}.json", file, backup, Effect.REFUSED, "it is bad")
    found = attrs.evolve(SOUND, state_files=(finding,))
    (row,) = differences(found, crashed=False, checkpoint=Checkpoint(), has_batch_queues=True)
    assert row.apache.startswith(apache)
    if name == "topics" and backup == "empty":
        (row,) = differences(found, crashed=False, checkpoint=Checkpoint())
        assert row.apache == "deletes the file, and goes on with an empty table"


def test_both_refuse_a_backup_that_is_bad_without_its_file():
    finding = StateFinding("/s/config/topics.json", "missing", "bad", Effect.REFUSED, "it is bad")
    found = attrs.evolve(SOUND, state_files=(finding,))
    assert differences(found, crashed=False, checkpoint=Checkpoint()) == ()


def test_lost_queues_and_index_files_and_the_checkpoint():
    made = attrs.evolve(SOUND, queues_made=("T/0",), report=RecoveryReport(queues=3))
    assert [row.about for row in differences(made, crashed=False, checkpoint=None)] == [
        "checkpoint",
        "queues without a folder",
    ]
    newer = attrs.evolve(SOUND, index_files=(IndexGlimpse("/s/index/1", 9, 1),))
    (row,) = [r for r in differences(newer, crashed=True, checkpoint=None) if "index" in r.about]
    assert "with 9 keys" in row.apache
