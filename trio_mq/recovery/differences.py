"""What Apache's broker would do otherwise with a store that was inspected: only the points that apply to it.

In: what an inspection found. Out: :class:`trio_mq.recovery.inspection.Difference` values. Pure. Called by
:mod:`trio_mq.offline`. The whole list with reasons: ``docs/explanation/recovery.md``; source: Apache RocketMQ 5.4.0
DefaultMessageStore, CommitLog, MappedFileQueue, ConsumeQueue, IndexService, ConfigManager.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trio_mq.protocol.layout import Checkpoint
from trio_mq.recovery.apacheview import FILES_BACK
from trio_mq.recovery.inspection import Difference, Effect, Inspection
from trio_mq.recovery.picture import LogPicture
from trio_mq.recovery.report import RecoveryReport

#: What notes and reasons of a recovery say, and what that means to Apache's broker.
_TORN_ENTRIES: Final = "queue entries were torn"
_NUL: Final = "end in NUL"
_ELSEWHERE: Final = "lies at offset"


def differences(
    found: Inspection,
    *,
    crashed: bool,
    checkpoint: Checkpoint | None,
    has_batch_queues: bool = False,
) -> tuple[Difference, ...]:
    """The points in which Apache's broker would do something else.

    `crashed`: the abort marker is there. `checkpoint` is None when it is missing or short. `has_batch_queues`: there
    are folders of such.
    """
    rows = [*_of_load(found, checkpoint), *_of_state_files(found, has_batch_queues)]
    if found.report is not None:
        rows += _of_log(found, found.report)
        rows += _of_queues(found, crashed)
        rows += _of_index(found, crashed, checkpoint or Checkpoint())
    return tuple(rows)


def _of_load(found: Inspection, checkpoint: Checkpoint | None) -> Iterator[Difference]:
    if checkpoint is None and found.picture is not None and found.picture.files:
        yield Difference(
            "checkpoint",
            "reads a checkpoint that is missing or short as zeros, and still takes the store for cleanly closed when "
            "there is no file abort",
            "takes the careful path",
        )


def _of_state_files(found: Inspection, has_batch_queues: bool) -> Iterator[Difference]:
    for finding in found.state_files:
        if finding.effect is not Effect.REFUSED or not finding.path.endswith(".json"):
            continue
        there = finding.file != "missing"
        if finding.backup == "bad":
            if not there:
                continue
            end = "refuses to start, too, since its backup cannot be read"
        elif has_batch_queues and finding.path.endswith("/topics.json"):
            end = "refuses to start, too, since topics of batch queues have lost their kind"
        else:
            end = "goes on with an empty table"
        yield Difference(
            finding.path,
            f"deletes the file, and {end}" if there else end,
            "keeps the file and refuses to start, so that somebody decides",
        )


def _of_log(found: Inspection, report: RecoveryReport) -> Iterator[Difference]:
    reason = report.cut_reason or ""
    if _NUL in reason:
        yield Difference(
            "the record at the cut",
            "keeps it, and hands it out with properties of NUL bytes (unless it has the property __CRC32#)",
            "takes it for torn, since its keys and tags would be gone without a sign",
        )
    if _ELSEWHERE in reason:
        yield Difference(
            "the record at the cut",
            "does not compare the offset in a record with its place, and takes it for a new message",
            "takes it for a remainder of something older, and ends the log before it",
        )
    if report.cut_bytes:
        yield Difference(
            "bytes behind the cut",
            "leaves them in the file, where they may come back after another crash, and keeps no copy",
            "makes them zeros" + (", and keeps a copy" if report.quarantine else ""),
        )
    view = found.apache
    if view is not None and view.end != report.log_end:
        why = f": {view.reason}" if view.reason else ""
        yield Difference(
            "end of the log", f"ends it at {view.end}{why}", f"ends it at {report.log_end}"
        )
    if view is not None and view.begin != report.walked_from:
        yield Difference(
            "where reading begins",
            f"begins at {view.begin}; damage before is not noticed",
            f"begins at {report.walked_from} ({report.walk_reason})",
        )
    first = _first_of_ten(found.picture)
    if first is not None and report.walked_from < first:
        yield Difference(
            "how far reading goes back",
            f"goes back {FILES_BACK} log files at most; messages in older files come into no queue that is made again",
            f"goes back as far as queues and index need it: to {report.walked_from}",
        )
    if found.picture is not None and not found.picture.files and report.log_end:
        yield Difference(
            "a log without files",
            "begins again at offset 0, and removes all queue files",
            f"goes on at {report.log_end}, behind everything that a queue knows",
        )


def _first_of_ten(picture: LogPicture | None) -> int | None:
    """The log offset at which the files begin that Apache's recovery may read; None when it may read all."""
    if picture is None or picture.files <= FILES_BACK:
        return None
    begin = picture.end - FILES_BACK * picture.segment_bytes
    for span in sorted(picture.missing, key=lambda span: -span.begin):
        if span.end > begin:
            begin -= span.end - span.begin
    return begin


def _of_queues(found: Inspection, crashed: bool) -> Iterator[Difference]:
    report = found.report
    notes = report.notes if report else []
    if any(_TORN_ENTRIES in note for note in notes):
        yield Difference(
            "torn queue entries",
            "takes what lies in a queue file for what was written",
            "compares entries with their records, and writes torn ones again",
        )
    others = found.report is not None and found.report.queues > len(found.queues_made)
    if found.queues_made and not crashed and others:
        yield Difference(
            "queues without a folder",
            "does not make them again after a clean stop as long as other queues are there: "
            + ", ".join(found.queues_made[:5]),
            "makes them again from the log",
        )
    if found.offset_changes:
        yield Difference(
            "progress behind the end of a queue",
            "keeps it, so that the group waits until the queue has grown that far",
            "sets it to the end of the queue",
        )


def _of_index(found: Inspection, crashed: bool, checkpoint: Checkpoint) -> Iterator[Difference]:
    newer = [f for f in found.index_files if f.end_ms > checkpoint.index_timestamp_ms]
    if crashed and newer:
        keys = sum(f.keys for f in newer)
        yield Difference(
            "index files",
            f"deletes {len(newer)} that are newer than the checkpoint, with {keys} keys; only keys of records that it "
            f"reads again come back",
            "keeps what was synced, and inserts the rest again from the log",
        )
