"""Checks all of a store against itself: the log's checksums, queues and index against the log, state files.

In: a view of a store, and a look at its state files. Out: a :class:`trio_mq.lookinside.findings.Report`. Reads the raw
files, in one pass through the log, and holds no more of them than a few mebibytes (20 for the slots of an index file).
Called by ``trio-mq store verify``. What a start would do about it is another question: ``trio-mq recover --dry-run``.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from trio_mq.errors import StoreDamaged
from trio_mq.lookinside.chains import chain_faults
from trio_mq.lookinside.feed import make_feed
from trio_mq.lookinside.findings import Kind, Report
from trio_mq.lookinside.keysearch import IndexFileView, open_index
from trio_mq.lookinside.records import record_at
from trio_mq.lookinside.verify_index import IndexCheck
from trio_mq.lookinside.verify_queues import Damage, QueueCheck
from trio_mq.lookinside.view import StoreView, data_end
from trio_mq.protocol.layout import INDEX_ENTRY_SIZE
from trio_mq.recovery.survey import Bad, Blank, Missing, Unwritten, survey
from trio_mq.store.checkpoint import AbortMarker, CheckpointFile, read_marks

#: Told what is gone through, how far that is, and how much there is, in bytes.
Progress = Callable[[str, int, int], None]


@attrs.frozen
class StateLook:
    """State files as somebody found them who knows their tables.

    `problems`: path, and what is wrong with that file. `topics`: names in topics.json, None when that cannot be read.
    """

    problems: tuple[tuple[str, str], ...] = ()
    topics: frozenset[str] | None = None


def verify(view: StoreView, state: StateLook, progress: Progress) -> Report:
    """Check everything; what is wrong is in the report. Blocks, for as long as reading takes."""
    report = Report()
    damage = Damage()
    unclean = AbortMarker(view.base, f"{view.root}/abort").present
    if unclean:
        report.notes.append("the abort marker is there: a broker runs on this store, or crashed")
    _state_files(view, state, report)
    queues = None
    if view.detected.commit_log_only:
        report.notes.append("there is only a commit log: queues and index are not checked")
    else:
        queues = QueueCheck(view, report, damage, known_topics=state.topics, unclean=unclean)
    _file_sizes(view, report)
    files = open_index(view)
    try:
        index = IndexCheck(view, files, report, damage, unclean=unclean)
        # Ends of queues and index are known by now. What a broker stores from here on is behind them.
        view.log.load(mend=True)
        _log(view, report, damage, queues, index, progress, unclean=unclean)
        if queues is not None:
            queues.finish()
            report.counted["queues"] = queues.queues
        index.finish()
        _index_files(view, files, report, progress, unclean=unclean)
    finally:
        for file in files:
            file.close()
    report.sort()
    return report


def _state_files(view: StoreView, state: StateLook, report: Report) -> None:
    for path, problem in state.problems:
        report.add(Kind.STATE_FILE, path, None, problem)
    path = f"{view.root}/checkpoint"
    checkpoint = CheckpointFile(view.base, path)
    try:
        checkpoint.load()
    except StoreDamaged as error:
        report.add(Kind.CHECKPOINT, path, None, str(error))
        return
    if not checkpoint.known and view.base.exists(path):
        report.add(Kind.CHECKPOINT, path, None, f"has only {view.base.size(path)} bytes")
    elif checkpoint.known and (safe := read_marks(checkpoint.value).safe_offset) > view.log.end:
        text = f"says that queues are whole up to log offset {safe}, the log's files end at {view.log.end}"
        report.add(Kind.CHECKPOINT, path, None, text)
    elif not checkpoint.known and not view.detected.commit_log_only:
        report.notes.append("there is no checkpoint: a start takes the careful path")


def _file_sizes(view: StoreView, report: Report) -> None:
    rows = [view.log, *(queue.segments for queue in view.queues())]
    for segments in rows:
        for name in view.base.list_dir(segments.directory):
            path = f"{segments.directory}/{name}"
            if not (len(name) == 20 and name.isdigit()) or view.base.is_dir(path):
                continue
            size = view.base.size(path)
            if size == 0 and int(name) not in segments.starts:
                report.notes.append(f"{path} is empty, as after a crash; a start drops it")
            elif size != segments.segment_bytes:
                text = f"has {size} bytes instead of {segments.segment_bytes}"
                report.add(Kind.FILE_SIZE, path, None, text)
    report.counted["logFiles"] = len(view.log.starts)


def _log(
    view: StoreView,
    report: Report,
    damage: Damage,
    queues: QueueCheck | None,
    index: IndexCheck,
    progress: Progress,
    *,
    unclean: bool,
) -> None:
    segments = view.log
    begin = segments.start
    end = data_end(segments, segments.starts[-1]) if segments.starts else begin
    records = log_bytes = 0
    feed = make_feed(queues, index)
    for piece in survey(segments):
        if isinstance(piece, Bad | Missing):
            feed.flush()  # what lies before the damage does not know of it yet
        if isinstance(piece, Bad) and unclean and _was_being_written(view, piece):
            break
        if isinstance(piece, Bad):
            damage.add(piece.begin, piece.end)
            start = segments.segment_of(piece.begin)
            kind = Kind.LOG_TORN if piece.torn else Kind.LOG_DAMAGED
            report.add(
                kind, segments.path(start), piece.begin - start,
                f"log offsets {piece.begin} to {piece.end} hold no whole record: {piece.reason}",
            )  # fmt: skip
        elif isinstance(piece, Missing):
            damage.add(piece.begin, piece.end)
            path = segments.path(segments.segment_of(piece.begin))
            text = f"log offsets {piece.begin} to {piece.end} have no file"
            report.add(Kind.LOG_MISSING, path, None, text)
        elif not isinstance(piece, Blank | Unwritten):
            records += piece.count
            log_bytes += piece.end - piece.begin
            if not feed.add(piece):
                continue
        progress("checking the log", min(piece.end, end) - begin, end - begin)
    feed.flush()
    report.counted["records"] = records
    report.counted["recordBytes"] = log_bytes


def _was_being_written(view: StoreView, piece: Bad) -> bool:
    """Whether what looked torn is a record now: there the log ended when it was read, whatever came behind since."""
    return record_at(view.log, piece.begin, check_crc=True) is not None


def _index_files(
    view: StoreView,
    files: list[IndexFileView],
    report: Report,
    progress: Progress,
    *,
    unclean: bool,
) -> None:
    total = sum(file.count for file in files)
    before = 0
    if not files and not view.detected.commit_log_only:
        report.notes.append("there is no index: messages are not found by key")
    for file in files:
        if file.fault:
            report.add(Kind.INDEX_FILE, file.path, None, file.fault)
            continue
        _header(file, report)

        def done(number: int, before: int = before) -> None:
            progress(
                "checking the index", (before + number) * INDEX_ENTRY_SIZE, total * INDEX_ENTRY_SIZE
            )

        for at, fault in chain_faults(file, done, grows=unclean):
            report.add(Kind.INDEX_CHAIN, file.path, at, fault)
        before += file.count
    report.counted["indexFiles"] = len(files)
    report.counted["indexEntries"] = total


def _header(file: IndexFileView, report: Report) -> None:
    """Compare what a header says with the first and the last entry."""
    header = file.header
    if not file.count:
        return
    first, last = file.entry(1), file.entry(file.count)
    for what, said, found in (
        ("first", header.begin_log_offset, first.log_offset),
        ("last", header.end_log_offset, last.log_offset),
    ):
        if said != found:
            text = f"the header says that the {what} record is at log offset {said}, its entry says {found}"
            report.add(Kind.INDEX_FILE, file.path, 16 if what == "first" else 24, text)
    if header.end_timestamp_ms < header.begin_timestamp_ms:
        text = f"its times go back: {header.begin_timestamp_ms} to {header.end_timestamp_ms}"
        report.add(Kind.INDEX_FILE, file.path, 0, text)
