"""A start rehearsed: the code of a start on an overlay, a look at the whole log, and one value that tells of both.

In: a folder, settings, and how to recover. Out: a :class:`Rehearsal` with its inspection; it can go through the
records that a start would cut off, as long as it is not closed. Changes no byte of the store. Called by
``trio-mq recover --dry-run``, and before a recovery is carried out.
"""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeVar

import attrs

from trio_mq.clock import Clock
from trio_mq.config import Settings
from trio_mq.errors import ForeignFormat, StoreError
from trio_mq.offline.phases import recover_parts
from trio_mq.offline.sparing import with_sparing_index
from trio_mq.offline.statefiles import Tables, examine_all, unused_findings
from trio_mq.offline.wanted import Wanted
from trio_mq.protocol.layout import BATCH_QUEUE_ENTRY_SIZE, QUEUE_ENTRY_SIZE
from trio_mq.recovery.apacheview import apache_view
from trio_mq.recovery.differences import differences
from trio_mq.recovery.glimpse import (
    IndexGlimpse,
    QueueGlimpse,
    differing_entries,
    glimpse_index,
    glimpse_queues,
)
from trio_mq.recovery.inspection import (
    Effect,
    FileChange,
    IndexCounts,
    Inspection,
    Kind,
    QueueChange,
    StateFinding,
    file_change,
)
from trio_mq.recovery.lots import Lot
from trio_mq.recovery.picture import LostRecord, Span, look, look_behind, lots
from trio_mq.recovery.report import RecoveryReport
from trio_mq.store.disk import Disk
from trio_mq.store.overlay import OverlayDisk
from trio_mq.store.queuetable import BATCH_FOLDER, SIMPLE_FOLDER, QueueTable
from trio_mq.store.segments import Segments
from trio_mq.store.store import StoreParts, open_parts

T = TypeVar("T")

_ENTRY_BYTES: Final = {SIMPLE_FOLDER: QUEUE_ENTRY_SIZE, BATCH_FOLDER: BATCH_QUEUE_ENTRY_SIZE}
#: Damaged places whose queue entries are looked for, and with many queues: places times queues.
SPANS_LOOKED_INTO: Final = 200
LOOKS: Final = 20_000
#: Queues that are looked at in one call to a worker thread.
QUEUES_AT_ONCE: Final = 64


class Rehearsal:
    """One rehearsal, filled by :func:`rehearse`. `inspection` is what came out of it."""

    def __init__(self, disk: Disk, clock: Clock, wanted: Wanted, settings: Settings) -> None:
        self._disk = disk
        self._clock = clock
        self._wanted = wanted
        self.settings = settings
        self.inspection = Inspection(wanted.root)
        self.tables = Tables.make(settings.broker, clock)
        self._bad_topics = False
        self._glimpses: list[QueueGlimpse] = []
        #: The store as it is, for looking only; log files that are short have their full size here.
        self._seen = self._parts(OverlayDisk(disk, clock=clock))
        self._path = wanted.choices(settings).path
        self._check_crc = settings.store.check_crc_on_recover

    def _parts(self, disk: Disk) -> StoreParts:
        return open_parts(disk, self.settings.store, self._clock, self._is_batch(disk))

    def _is_batch(self, disk: Disk) -> Callable[[str], bool]:
        def is_batch(topic: str) -> bool:
            if self._bad_topics:  # then the folders say what the table would have said
                return disk.is_dir(f"{self._wanted.root}/{BATCH_FOLDER}/{topic}")
            return self.tables.is_batch(topic)

        return is_batch

    def close(self) -> None:
        """Give all files back."""
        self._seen.release()

    async def run_blocking(self, call: Callable[[], T]) -> T:
        """Run a blocking call, such as one over :meth:`lost_records`."""
        return await self._disk.run(call)

    # -- looking ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at everything, rehearse, and draw it together."""
        disk, root = self._disk, self._wanted.root
        findings = await disk.run(partial(examine_all, disk, root, self.tables))
        self._bad_topics = findings[0].effect is Effect.REFUSED
        crashed = self._seen.abort.present
        index_files = tuple(await disk.run(lambda: list(glimpse_index(disk, f"{root}/index"))))
        self._set(state_files=tuple(findings), index_files=index_files)
        await self._look_at_log()
        overlay = OverlayDisk(disk, clock=self._clock)
        parts, index = with_sparing_index(self._parts(overlay), self._clock.now_ms)
        try:
            await self._recover(overlay, parts, findings)
            if self.inspection.report is not None:
                self._set(index=IndexCounts(_keys_in(index_files), index.left, index.added))
                kept = index.spared > 0 and self.inspection.index.is_kept
                changes = await self._changes(overlay, index_is_kept=kept)
                await self._draw_together(overlay, parts.queues, changes, self.inspection.report)
                await self._tell_apache(crashed)
            else:
                await self._tell_renamed(overlay)
        finally:
            parts.release()

    def _set(self, **values: object) -> None:
        self.inspection = attrs.evolve(self.inspection, **values)  # type: ignore[arg-type]

    def _refuse(self, text: str) -> None:
        if text not in self.inspection.refusals:
            self._set(refusals=(*self.inspection.refusals, text))

    async def _look_at_log(self) -> None:
        segments = self._seen.log.segments
        try:
            await self._disk.run(partial(segments.load, mend=True))
        except ForeignFormat as error:
            self._refuse(str(error))
            return
        picture = await look(
            self._disk,
            segments,
            path=self._path,
            check_crc=self._check_crc,
            progress=self._wanted.progress,
        )
        self._set(picture=picture)

    # -- rehearsing ------------------------------------------------------------------------------------------

    async def _recover(
        self, overlay: OverlayDisk, parts: StoreParts, findings: list[StateFinding]
    ) -> None:
        """What a start does, on the overlay. Bad state files are moved away there, so that the rest can be told."""
        for finding in findings:
            if finding.effect is Effect.REFUSED:
                self._refuse(f"{finding.path}: {finding.problem}")
                overlay.remove(finding.path)
                overlay.remove(f"{finding.path}.bak")
        choices = self._wanted.choices(self.settings)
        if (told := choices.progress) is not None:
            choices = attrs.evolve(choices, progress=lambda _, at, end: told("rehearsal", at, end))
        tables = Tables.make(self.settings.broker, self._clock)
        try:
            report, offsets = await recover_parts(
                parts,
                tables,
                choices,
                self._clock,
                findings if not self.inspection.refusals else None,
            )
        except StoreError as error:
            self._refuse(str(error))
        else:
            self._set(report=report, offset_changes=offsets)

    # -- drawing together ------------------------------------------------------------------------------------

    async def _draw_together(
        self,
        overlay: OverlayDisk,
        queues: QueueTable,
        changes: list[FileChange],
        report: RecoveryReport,
    ) -> None:
        """Everything that is told beside the report of a recovery."""
        found = self.inspection
        names = await self._disk.run(self._seen.queues.found)
        touched = await self._disk.run(partial(self._touched, overlay, changes))
        self._glimpses = await self._glimpse(
            [name for name in names if found.is_damaged or name[:2] in touched]
        )
        known = {name[:2] for name in names}
        made = [f"{topic}/{number}" for topic, number in touched if (topic, number) not in known]
        self._set(
            changes=tuple(changes),
            queue_changes=tuple(_queue_changes(touched, self._glimpses, queues)),
            queues_made=tuple(made),
            unreadable=tuple(g for g in self._glimpses if g.unreadable),
            state_files=(*found.state_files, *unused_findings(changes)),
        )
        await self._tell_cost(report)

    def _touched(
        self, overlay: OverlayDisk, changes: list[FileChange]
    ) -> dict[tuple[str, int], int]:
        """Queues whose files are changed, with the number of their entries that are. Blocking."""
        found: dict[tuple[str, int], int] = {}
        for change in changes:
            parts = change.path.split("/")
            if len(parts) == 4 and parts[0] in _ENTRY_BYTES and parts[2].isdigit():
                path = f"{self._wanted.root}/{change.path}"
                queue = parts[1], int(parts[2])
                found[queue] = found.get(queue, 0) + differing_entries(
                    self._disk, overlay, path, _ENTRY_BYTES[parts[0]]
                )
        return found

    async def _changes(self, overlay: OverlayDisk, *, index_is_kept: bool) -> list[FileChange]:
        refused = {f.path for f in self.inspection.state_files if f.effect is Effect.REFUSED}
        root = posixpath.normpath(self._wanted.root)
        found = []
        for change in await self._disk.run(overlay.changes):
            if change.is_dir or change.path.removesuffix(".bak") in refused:
                continue
            found.append(
                file_change(
                    _below(root, change.path),
                    Kind(change.kind),
                    change.bytes,
                    old_path=None if change.old_path is None else _below(root, change.old_path),
                    index_is_kept=index_is_kept,
                )
            )
        return found

    async def _tell_renamed(self, overlay: OverlayDisk) -> None:
        """State files that a start gives other names before it refuses the log."""
        changes = await self._changes(overlay, index_is_kept=False)
        renamed = [c for c in changes if c.kind is Kind.RENAMED and c.phase == 1]
        findings = (*self.inspection.state_files, *unused_findings(renamed))
        self._set(changes=tuple(renamed), state_files=findings)

    async def _glimpse(self, names: list[tuple[str, int, bool]]) -> list[QueueGlimpse]:
        """Look at queues as they are. The log has to be loaded: without it there is nothing that they could say."""
        picture, found = self.inspection.picture, []
        spans: list[Span] = []
        if picture is not None:
            spans = picture.spans_before(picture.end)
            most = min(SPANS_LOOKED_INTO, max(1, LOOKS // max(1, len(names))))
            if len(spans) > most:
                note = f"queue entries are looked for in the first {most} of {len(spans)} damaged parts"
                self._set(notes=(*self.inspection.notes, note))
            spans = spans[:most]
        for begin in range(0, len(names), QUEUES_AT_ONCE):
            some = names[begin : begin + QUEUES_AT_ONCE]
            seen = self._seen
            found += await self._disk.run(
                partial(glimpse_queues, seen.queues, seen.log, some, spans)
            )
        return found

    async def _tell_cost(self, report: RecoveryReport) -> None:
        picture = self.inspection.picture
        if picture is None or report.log_end >= picture.records_end:
            return
        lost = await look_behind(
            self._disk,
            self._seen.log.segments,
            report.log_end,
            picture.records_end,
            path=self._path,
            check_crc=self._check_crc,
            progress=self._wanted.progress,
        )
        self._set(lost=lost)

    async def _tell_apache(self, crashed: bool) -> None:
        checkpoint = self._seen.checkpoint
        with suppress(StoreError):
            await self._disk.run(checkpoint.load)
        if self.inspection.is_damaged:
            view = await self._disk.run(
                partial(
                    apache_view,
                    self.segments,
                    checkpoint.value,
                    crashed=crashed,
                    dispatched_to=max((g.indexed_to for g in self._glimpses), default=-1),
                    path=self._path,
                    check_crc=self._check_crc,
                )
            )
            self._set(apache=view)
        batch = any(is_batch for _, _, is_batch in await self._disk.run(self._seen.queues.found))
        rows = differences(
            self.inspection,
            crashed=crashed,
            checkpoint=checkpoint.value if checkpoint.known else None,
            has_batch_queues=batch,
        )
        self._set(differences=rows)

    # -- records that would be lost --------------------------------------------------------------------------

    def lost_lots(self) -> Iterator[Lot]:
        """Runs of records that a start would cut off. Blocking."""
        lost = self.inspection.lost
        if not lost.records:
            return iter(())
        return lots(self.segments, lost.begin, lost.end, path=self._path, check_crc=self._check_crc)

    @property
    def segments(self) -> Segments:
        """The log as it is, for reading."""
        return self._seen.log.segments

    def lost_records(self) -> Iterator[LostRecord]:
        """The records that a start would cut off, one by one. Blocking."""
        report = self.inspection.report
        reason = f"behind the cut, {report.cut_reason}" if report else ""
        for lot in self.lost_lots():
            for record in lot.records():
                yield LostRecord.of(record, reason)


def _keys_in(files: Iterable[IndexGlimpse]) -> int:
    return sum(index_file.keys for index_file in files)


def _below(root: str, path: str) -> str:
    """A path as it is called inside of the store; one outside of it stays as it is."""
    return path.removeprefix(f"{root}/")


def _queue_changes(
    touched: Mapping[tuple[str, int], int], glimpses: list[QueueGlimpse], after: QueueTable
) -> Iterator[QueueChange]:
    before = {(g.topic, g.queue_id): g.max_offset for g in glimpses}
    for (topic, queue_id), entries in touched.items():
        queue = after.get(topic, queue_id)
        ends = before.get((topic, queue_id), 0), queue.max_offset if queue else 0
        if entries or ends[0] != ends[1]:
            yield QueueChange(topic, queue_id, *ends, entries)


@asynccontextmanager
async def rehearse(disk: Disk, clock: Clock, wanted: Wanted) -> AsyncIterator[Rehearsal]:
    """Rehearse a start; the log can be looked at inside of the block.

    Raises StoreError for what is no store, and OSError for what cannot be read.
    """
    detected = await disk.run(partial(wanted.detect, disk))
    settings = wanted.effective(detected)
    rehearsal = Rehearsal(disk, clock, wanted, settings)
    rehearsal.inspection = attrs.evolve(
        rehearsal.inspection,
        notes=detected.notes,
        commit_log_only=detected.commit_log_only,
        sizes=tuple(wanted.sizes(detected)),
    )
    try:
        await rehearsal.run()
        yield rehearsal
    finally:
        rehearsal.close()
