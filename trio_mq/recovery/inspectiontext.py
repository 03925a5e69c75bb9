"""An inspection in words: the six phases, what is lost, and what Apache's broker would do otherwise.

In: an :class:`trio_mq.recovery.inspection.Inspection`. Out: lines for a terminal. Pure. Called by ``trio-mq recover``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from trio_mq.recovery.inspection import (
    Effect,
    FileChange,
    Inspection,
    QueueChange,
    Verdict,
)
from trio_mq.recovery.picture import LostRecord, QueueCount

#: Of long lists so many lines are shown; JSON has all.
LINES_SHOWN: Final = 20
QUEUES_SHOWN: Final = 12
_KEYS_SHOWN: Final = 12
_CUT_QUEUE: Final = re.compile(
    r"queue \S+ ends at offset \d+ instead of \d+, since the log ends at"
)

_VERDICTS: Final = {
    Verdict.SOUND: ("sound, a start changes nothing", "nothing was wrong"),
    Verdict.CHANGES: ("a start would change something", "recovered, something was put right"),
    Verdict.LOSES: (
        "a start would lose records that can be read",
        "recovered, records that could be read were cut off",
    ),
    Verdict.REFUSED: ("a start would refuse this store", "not recovered"),
}


def lines(found: Inspection) -> Iterator[str]:
    """All of it, line by line."""
    verdict = found.verdict
    yield f"{found.root}: {_headline(found)} (exit code {verdict.exit_code})"
    sections = (
        ("1 Load", _load(found)),
        ("2 Queue tails", _tails(found)),
        ("3 Log", _log(found)),
        ("4 Queues", _queues(found)),
        ("5 Metadata", _metadata(found)),
        ("6 Activation", _activation(found)),
        ("Lost", _lost(found)),
        ("What Apache's broker would do otherwise", _apache(found)),
    )
    for title, section in sections:
        yield ""
        yield title
        shown = list(section)
        yield from (f"  {line}" for line in shown or ["nothing"])


def _headline(found: Inspection) -> str:
    verdict = found.verdict
    if verdict is Verdict.CHANGES and found.is_damaged and not _changed(found):
        return "damaged in places that a start leaves as they are"
    return _VERDICTS[verdict][1 if found.done else 0]


def _changed(found: Inspection) -> bool:
    return bool(found.queue_changes) or any(change.counts for change in found.changes)


# -- the phases ----------------------------------------------------------------------------------------------


def _load(found: Inspection) -> Iterator[str]:
    report, picture = found.report, found.picture
    if found.owner is not None:
        yield (
            f"the store is open in process {found.owner}: what follows is a look at one moment of it, as if that "
            f"process had been killed then"
        )
    if report is not None:
        yield (
            "the last process closed the store"
            if report.clean
            else f"the last process did not close the store: {report.why_careful}"
        )
    if found.damaged_though_clean:
        yield "damaged though cleanly closed: see below"
    if found.commit_log_only:
        yield "there is only a commit log: queues and index are made from it"
    if picture is not None:
        yield (
            f"commit log: bytes {picture.start} to {picture.end} in {picture.files} files of {picture.segment_bytes} "
            f"bytes, {picture.records} records of {len(picture.queues)} queues, the last one ends at "
            f"{picture.records_end}{_newest(picture.newest_ms)}"
        )
        spans = [f"bytes {s.begin} to {s.end} are missing: {s.reason}" for s in picture.missing]
        spans += [
            f"bytes {s.begin} to {s.end} hold no whole record: {s.reason}" for s in picture.damaged
        ]
        yield from _some(spans, more=picture.more_damaged)
    for size in found.sizes:
        if not size.is_guess:
            yield f"{size.name} is {size.value} ({size.how})"
    for size in found.guesses:
        yield (
            f"new files in {size.folder} are made with {size.name} = {size.value}: no file tells what the broker's "
            f"settings say, so give them with --config or --set"
        )
    yield from _state_files(found)
    yield from _some([_file(change) for change in found.changes if change.phase == 1])
    yield from found.notes


def _n(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _newest(newest_ms: int) -> str:
    if not newest_ms:
        return ""
    try:
        at = datetime.fromtimestamp(newest_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f", the newest is of {newest_ms} ms"
    return f", the newest is of {at:%Y-%m-%d %H:%M:%S} UTC"


def _state_files(found: Inspection) -> Iterator[str]:
    for finding in found.state_files:
        if not finding.problem:
            continue
        yield f"{finding.path}: {finding.problem} ({finding.effect.value})"
        if finding.lost:
            yield f"  lost: {finding.lost}"
        if finding.repair:
            yield f"  repair: {finding.repair}"


def _tails(found: Inspection) -> Iterator[str]:
    if found.report is None:
        yield "not looked at"
    else:
        yield f"{_n(found.report.queues, 'queue')}, {_n(len(found.index_files), 'index file')}"


def _log(found: Inspection) -> Iterator[str]:
    report = found.report
    if report is None:
        yield "not looked at"
        return
    yield (
        f"{_n(report.records, 'record')} read from offset {report.walked_from}"
        f"{f' ({report.walk_reason})' if report.walk_reason else ''}; the log ends at {report.log_end}"
    )
    if report.cut_bytes:
        kept = f", kept in {report.quarantine}" if report.quarantine else ""
        yield f"cut: {report.cut_bytes} bytes, {report.cut_reason}{kept}"
    # Queues that are cut with the log are told under phase 4.
    yield from _some([note for note in report.notes if not _CUT_QUEUE.match(note)])
    index = found.index
    if index.found or index.added:
        yield (
            f"index: {index.found} keys found, {index.removed} of them go, {index.added} are put in from the log"
        )
    yield from _some([_file(change) for change in found.changes if change.phase == 3])


def _file(change: FileChange) -> str:
    note = "" if change.counts else ", as at every start"
    if change.old_path is not None:
        return f"renamed: {change.old_path} to {change.path}"
    return f"{change.kind.value}: {change.path} ({change.bytes} bytes{note})"


def _queues(found: Inspection) -> Iterator[str]:
    if found.queue_changes:
        count = sum(change.entries for change in found.queue_changes)
        yield f"{_n(len(found.queue_changes), 'queue')} with {count} entries that are added, removed or written again"
    yield from _some([_queue(change) for change in found.queue_changes])


def _queue(change: QueueChange) -> str:
    end = f"ends at {change.after}"
    if change.after != change.before:
        end += f" instead of {change.before} ({_signed(change.after - change.before)} messages)"
    return f"{change.topic}/{change.queue_id} {end}"


def _signed(number: int) -> str:
    return f"+{number}" if number > 0 else str(number)


def _metadata(found: Inspection) -> Iterator[str]:
    yield from _some(
        [
            f"group {c.group} in {c.topic}/{c.queue_id}: {c.before} is behind the end, and becomes {c.after}"
            for c in found.offset_changes
        ]
    )
    yield from _some([_file(change) for change in found.changes if change.phase not in (1, 3)])


def _activation(found: Inspection) -> Iterator[str]:
    if not found.refusals:
        yield "the store can be appended to"
        return
    for text in found.refusals:
        yield from (f"refused: {line}" for line in text.splitlines())
    if any(finding.effect is Effect.REFUSED for finding in found.state_files):
        yield "phases 2 to 5 are told as they would be after the repair commands above"


# -- the cost ------------------------------------------------------------------------------------------------


def _lost(found: Inspection) -> Iterator[str]:
    lost = found.lost
    if lost.records:
        yield (
            f"{_n(lost.records, 'record')} that can be read, {lost.bytes} bytes at {lost.begin} to {lost.end}"
        )
        yield f"of {_n(len(lost.queues), 'queue')}: {_counts(lost.queues)}"
        if lost.keys:
            more = "" if lost.all_keys and len(lost.keys) <= _KEYS_SHOWN else ", and others"
            yield f"keys: {', '.join(lost.keys[:_KEYS_SHOWN])}{more}"
    gone = [QueueCount(queue.topic, queue.queue_id, queue.unreadable) for queue in found.unreadable]
    if gone:
        count = sum(queue.records for queue in gone)
        yield f"queue entries that lead to records that cannot be read: {count} ({_counts(gone)})"


def _counts(queues: Sequence[QueueCount]) -> str:
    text = ", ".join(f"{q.topic}/{q.queue_id} {q.records}" for q in queues[:QUEUES_SHOWN])
    more = len(queues) - QUEUES_SHOWN
    return f"{text}, and {more} more" if more > 0 else text


def _apache(found: Inspection) -> Iterator[str]:
    for row in found.differences:
        yield f"{row.about}: Apache {row.apache}; here a start {row.here}"


def _some(texts: Sequence[str], more: int = 0) -> Iterator[str]:
    yield from texts[:LINES_SHOWN]
    more += max(0, len(texts) - LINES_SHOWN)
    if more:
        yield f"and {more} more (--json has all)"


def record_line(record: LostRecord) -> str:
    """A lost record as one line."""
    name = record.message_id or "-"
    keys = f" keys {' '.join(record.keys)}" if record.keys else ""
    return (
        f"  {record.log_offset}  {record.topic}/{record.queue_id}  {record.queue_offset}  {name}{keys}  "
        f"{record.size} bytes  {record.reason}"
    )


def record_lines(records: Iterable[LostRecord]) -> Iterator[str]:
    """Lost records, with a heading."""
    yield ""
    yield "Records that would be lost: log offset, queue, queue offset, message id, keys, size, reason"
    none = True
    for record in records:
        none = False
        yield record_line(record)
    if none:
        yield "  none"
