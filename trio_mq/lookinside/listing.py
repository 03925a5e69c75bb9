"""What is in a store: log files, queues, index files, state files; sizes, offsets and times.

In: a view of a store. Out: a :class:`Listing`, which is text or JSON. Reads a few pages of each file, so it is quick
for any store; it tells what the files say and checks nothing. Called by ``trio-mq store ls``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from trio_mq.errors import StoreDamaged
from trio_mq.lookinside.keysearch import open_index
from trio_mq.lookinside.records import first_record, last_record, record_at
from trio_mq.lookinside.shown import moment
from trio_mq.lookinside.view import QueueFiles, StoreView, data_end
from trio_mq.protocol.layout import BLANK_HEADER_SIZE, MAGIC_BLANK
from trio_mq.store.checkpoint import AbortMarker, CheckpointFile, read_marks


@attrs.frozen
class LogFile:
    """A file of the log. `used` bytes hold records (and the blank of a full file); times are ms, -1 without records."""

    path: str
    begin: int
    size: int
    used: int
    full: bool
    first_ms: int
    last_ms: int


@attrs.frozen
class QueueRow:
    """A queue: messages `min_offset` to `max_offset` (exclusive) have entries whose records are in the log."""

    topic: str
    queue_id: int
    kind: str
    files: int
    size: int
    used: int
    min_offset: int
    max_offset: int
    first_ms: int
    last_ms: int


@attrs.frozen
class IndexRow:
    """An index file, as its header says; `fault` when that cannot be believed."""

    path: str
    size: int
    entries: int
    capacity: int
    slots: int
    begin_log_offset: int
    end_log_offset: int
    first_ms: int
    last_ms: int
    fault: str


@attrs.frozen
class OtherFile:
    """Any other file of the store."""

    path: str
    size: int
    modified_ms: int


@attrs.frozen
class Listing:
    """All of it. Offsets of the log are bytes; `log_end` is where its last whole record ends."""

    store: str
    notes: tuple[str, ...]
    log_start: int
    log_end: int
    log: tuple[LogFile, ...]
    queues: tuple[QueueRow, ...]
    index: tuple[IndexRow, ...]
    checkpoint: dict[str, int] | None
    abort: bool
    state: tuple[OtherFile, ...]
    others: tuple[OtherFile, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with names like those of messages."""
        return {_camel(name): _plain(value) for name, value in attrs.asdict(self).items()}

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"store {self.store}: log {self.log_start} to {self.log_end}" + (
            ", abort marker is there" if self.abort else ""
        )
        yield from (f"note: {note}" for note in self.notes)
        yield ""
        yield from _table(
            ("log file", "bytes", "used", "first record", "last record", ""),
            [
                (
                    f.path,
                    f.size,
                    f.used,
                    _when(f.first_ms),
                    _when(f.last_ms),
                    "full" if f.full else "",
                )
                for f in self.log
            ],
        )
        yield ""
        yield from _table(
            ("queue", "kind", "files", "bytes", "min", "max", "messages", "first record", "last record"),
            [
                (
                    f"{q.topic}/{q.queue_id}", q.kind, q.files, q.size, q.min_offset, q.max_offset,
                    q.max_offset - q.min_offset, _when(q.first_ms), _when(q.last_ms),
                )
                for q in self.queues
            ],
        )  # fmt: skip
        yield ""
        yield from _table(
            ("index file", "bytes", "entries", "of", "log offsets", "first", "last", ""),
            [
                (
                    i.path, i.size, i.entries, i.capacity, f"{i.begin_log_offset} to {i.end_log_offset}",
                    _when(i.first_ms), _when(i.last_ms), i.fault,
                )
                for i in self.index
            ],
        )  # fmt: skip
        yield ""
        yield from self._state_lines()

    def _state_lines(self) -> Iterator[str]:
        known = self.checkpoint or {}
        if not known:
            yield "checkpoint: none that can be read"
        else:
            times = ", ".join(
                f"{n} {_when(known[n + 'Ms'])}" for n in ("physic", "logics", "index")
            )
            yield f"checkpoint: {times}; queues and index whole to log offset {known['safeOffset']}"
        yield ""
        yield from _table(
            ("other file", "bytes", "modified"),
            [(f.path, f.size, _when(f.modified_ms)) for f in (*self.state, *self.others)],
        )


def list_store(view: StoreView) -> Listing:
    """Look at everything in a store once."""
    log = tuple(_log_files(view))
    end = max((f.begin + f.used for f in log if f.used), default=view.log.start)
    state, others = _other_files(view)
    return Listing(
        store=view.root,
        notes=tuple(view.detected.notes),
        log_start=view.log.start,
        log_end=end,
        log=log,
        queues=tuple(_queue(view, queue) for queue in view.queues()),
        index=tuple(_index_files(view)),
        checkpoint=_checkpoint(view),
        abort=AbortMarker(view.base, f"{view.root}/abort").present,
        state=tuple(state),
        others=tuple(others),
    )


def _log_files(view: StoreView) -> Iterator[LogFile]:
    segments = view.log
    for start in segments.starts:
        path = segments.path(start)
        first = first_record(segments, start)
        last = last_record(segments, start, data_end(segments, start))
        used, full = 0, False
        if last is not None:
            end = last.log_offset + last.whole.size
            used = end - start
            room = segments.segment_bytes - used
            if room >= BLANK_HEADER_SIZE:
                magic = segments.read(BLANK_HEADER_SIZE, end)[4:]
                full = int.from_bytes(magic, "big", signed=True) == MAGIC_BLANK
            used = segments.segment_bytes if full else used
        yield LogFile(
            path=path,
            begin=start,
            size=view.base.size(path),
            used=used,
            full=full,
            first_ms=-1 if first is None else first.whole.store_timestamp_ms,
            last_ms=-1 if last is None else last.whole.store_timestamp_ms,
        )


def _queue(view: StoreView, queue: QueueFiles) -> QueueRow:
    end = queue.end()
    first = queue.find(view.log.start, end)
    first_entry = next(queue.entries(first, end), None)
    last_entry = next(queue.entries(end - 1, end), None)
    low = high = end
    if first_entry is not None:
        low = first_entry.queue_offset
    if last_entry is not None:
        high = last_entry.queue_offset + last_entry.count
    return QueueRow(
        topic=queue.topic,
        queue_id=queue.queue_id,
        kind="batch" if queue.is_batch else "simple",
        files=len(queue.segments.starts),
        size=sum(view.base.size(queue.segments.path(s)) for s in queue.segments.starts),
        used=(end - queue.first) * queue.entry_bytes,
        min_offset=min(low, high),
        max_offset=high,
        first_ms=-1 if first_entry is None else _stored_ms(view, first_entry.log_offset),
        last_ms=-1 if last_entry is None else _stored_ms(view, last_entry.log_offset),
    )


def _stored_ms(view: StoreView, log_offset: int) -> int:
    raw = record_at(view.log, log_offset)
    return -1 if raw is None else raw.whole.store_timestamp_ms


def _index_files(view: StoreView) -> Iterator[IndexRow]:
    files = open_index(view)
    try:
        for file in files:
            header = file.header
            yield IndexRow(
                path=file.path,
                size=file.size,
                entries=max(0, header.index_count - 1),
                capacity=file.capacity - 1,
                slots=file.slots,
                begin_log_offset=header.begin_log_offset,
                end_log_offset=header.end_log_offset,
                first_ms=header.begin_timestamp_ms,
                last_ms=header.end_timestamp_ms,
                fault=file.fault,
            )
    finally:
        for file in files:
            file.close()


def _checkpoint(view: StoreView) -> dict[str, int] | None:
    file = CheckpointFile(view.base, f"{view.root}/checkpoint")
    try:
        file.load()
    except StoreDamaged:
        return None
    if not file.known:
        return None
    value = file.value
    return {
        "physicMs": value.physic_timestamp_ms,
        "logicsMs": value.logics_timestamp_ms,
        "indexMs": value.index_timestamp_ms,
        "masterFlushedOffset": value.master_flushed_offset,
        "confirmOffset": value.confirm_log_offset,
        "safeOffset": read_marks(value).safe_offset,
    }


#: Folders whose files have rows of their own.
_SHOWN = ("commitlog", "consumequeue", "batchconsumequeue", "index")


def _other_files(view: StoreView) -> tuple[list[OtherFile], list[OtherFile]]:
    """State files, and the rest: markers, what a recovery kept, what other features have."""
    disk, root = view.base, view.root
    state: list[OtherFile] = []
    others: list[OtherFile] = []

    def gather(path: str, into: list[OtherFile]) -> None:
        for name in disk.list_dir(path):
            inner = f"{path}/{name}"
            if disk.is_dir(inner):
                gather(inner, into)
            else:
                into.append(OtherFile(inner, disk.size(inner), disk.modified_ms(inner)))

    for name in disk.list_dir(root):
        path = f"{root}/{name}"
        if disk.is_dir(path):
            if name not in _SHOWN and path != view.log.directory:
                gather(path, state if name == "config" else others)
        elif path not in {f"{root}/{start:020d}" for start in view.log.starts}:
            others.append(OtherFile(path, disk.size(path), disk.modified_ms(path)))
    for folder in {view.log.directory, f"{root}/commitlog"}:
        for name in disk.list_dir(folder):
            if disk.is_dir(f"{folder}/{name}"):
                gather(f"{folder}/{name}", others)
    return state, others


def _when(ms: int) -> str:
    return "-" if ms <= 0 else moment(ms)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Lines with columns; numbers stand right."""
    if not rows:
        yield f"{head[0]}: none"
        return
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[n]) for row in [list(head), *texts]) for n in range(len(head))]
    yield "  ".join(
        cell.rjust(width) if isinstance(rows[0][n], int) else cell.ljust(width)
        for n, (cell, width) in enumerate(zip(head, widths, strict=True))
    ).rstrip()
    for row, text in zip(rows, texts, strict=True):
        yield "  ".join(
            cell.rjust(width) if isinstance(row[n], int) else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(text, widths, strict=True))
        ).rstrip()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_camel(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
