"""Does the log of a slave continue its master's? Nothing on the stream says so: both ends know offsets only.

In: the own log, and answers of the master over remoting. Out: a :class:`trio_mq.ha.findings.Finding`, before each
connection of :mod:`trio_mq.ha.replica` copies anything. The last whole record here has to be the master's record at the
same offset, byte for byte: a record holds its offset, its place in its queue and the time it was stored, so another
history does not make the same one.

A master's run is known by where its log ended when it started (906). Within one run the master has all that it ever
sent, so what is torn at the end of the own log is the beginning of its next record. After another start it may have
written something else there: then the torn bytes are compared too, and cut if they differ.
Apache's slaves check nothing, and diverge in silence; the rules are ours: ``docs/explanation/replication.md``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

import attrs

from trio_mq.broker.statejson import json_object
from trio_mq.broker.tables import LoadedStateFile, StateFile, StateKind
from trio_mq.config.ha import HASettings
from trio_mq.errors import BodyError, StoreError
from trio_mq.ha.findings import Finding, Verdict
from trio_mq.ha.masterasks import Ask, Bounds, MasterAsks, MasterRun, Unanswered
from trio_mq.ha.ownrecords import OwnRecords, Tail
from trio_mq.store.store import Store
from trio_mq.tasks import describe

log = logging.getLogger("trio_mq.ha")

STATE: Final = StateKind(
    "replication.json",
    "which run of the master this slave copied from",
    "the end of the log is compared with the master's once more",
    expendable=True,
    made_when_used=True,
)
_CONTINUES: Final = Finding(Verdict.CONTINUES)


class _NotCut(Exception):
    """The own log could not be cut where it has to be."""


class Cuttable(Protocol):
    """What the check needs of :class:`trio_mq.ha.copylog.LogCopy`."""

    @property
    def end(self) -> int:
        """Where the next byte goes; 0 in an empty log."""
        ...

    async def cut_to(self, offset: int) -> None:
        """Give up everything from there on, kept in the quarantine. OSError, StoreError."""
        ...


class RememberedRun:
    """The table of ``replication.json``: the run of the master that was found to continue."""

    def __init__(self) -> None:
        self.revision = 0
        self.run: MasterRun | None = None

    def remember(self, run: MasterRun) -> None:
        """Take note of a run."""
        if run != self.run:
            self.run = run
            self.revision += 1

    def read_json(self, value: Any) -> None:
        """See :class:`trio_mq.broker.tables.Table`."""
        fields = json_object(value, STATE.name)
        start, address = fields.get("masterFlushOffset"), fields.get("masterHaAddress")
        if not isinstance(start, int) or not isinstance(address, str):
            raise BodyError(f"{STATE.name} names no run of a master")
        self.run = MasterRun(start, address)

    def to_json(self) -> Any:
        """See :class:`trio_mq.broker.tables.Table`."""
        if self.run is None:
            return {}
        return {"masterFlushOffset": self.run.start, "masterHaAddress": self.run.address}


class Continuity:
    """See the module; :meth:`check` is what :class:`trio_mq.ha.replica.Replica` calls."""

    def __init__(self, copy: Cuttable, store: Store, settings: HASettings, ask: Ask) -> None:
        self._copy = copy
        self._settings = settings
        self._log = store.log
        self._parts = store.parts
        self._own = OwnRecords(store.log.segments)
        self._master = MasterAsks(ask)
        self._state: LoadedStateFile[RememberedRun] | None = None
        #: The run for which the sizes of files were compared.
        self._sized: MasterRun | None = None

    async def check(self) -> Finding:
        """Compare the logs. OSError or StoreError of the own store; what the master does is a finding.

        May cut the own log: what is torn at its end, and with `haCutWhenAhead` what the master does not have.
        """
        try:
            found = await self._checked()
        except Unanswered as error:
            found = Finding(Verdict.UNANSWERED, f"the master does not answer questions: {error}")
        except _NotCut as error:
            found = Finding(Verdict.UNCUT, str(error))
        if found.verdict is not Verdict.UNANSWERED:
            return found
        known = bool(self._copy.end) and (await self._loaded()).table.run is not None
        return attrs.evolve(found, answered_before=known)

    async def answers(self) -> bool:
        """Whether the master answers what a check has to know."""
        try:
            await self._master.run()
            await self._master.record(self._log.start)
        except Unanswered:
            return False
        return True

    async def _checked(self) -> Finding:
        run = await self._master.run()
        state = await self._loaded()
        if run is None or run != self._sized:
            theirs, ours = await self._master.segment_bytes(), self._log.segments.segment_bytes
            if theirs is not None and theirs != ours:
                return Finding(Verdict.FOREIGN, told_sizes(ours, theirs))
            self._sized = run
        found = _CONTINUES
        if self._copy.end and not self._log.segments.empty:
            found = await self._compared(is_same_run=run is not None and run == state.table.run)
        if run is not None and found.verdict is Verdict.CONTINUES:
            state.table.remember(run)
            await self._saved(state)
        return found

    async def _compared(self, *, is_same_run: bool) -> Finding:
        end = self._copy.end
        tail = await self._parts.disk.run(partial(self._own.tail, end))
        if tail.record is not None:
            theirs = await self._master.record(tail.offset)
            if theirs != tail.record:
                return await self._different(tail, theirs)
        if not is_same_run:
            return await self._torn(tail)
        return _CONTINUES

    # -- a torn end ------------------------------------------------------------------------------------------

    async def _torn(self, tail: Tail) -> Finding:
        """Cut what is torn, unless the master has just that."""
        if tail.torn is None:
            return Finding(
                Verdict.UNKNOWN,
                f"the own log is damaged at {tail.end}: only what is before is the master's for sure",
            )
        if not tail.torn:
            return _CONTINUES
        theirs = None if tail.is_blank else await self._master.record(tail.end)
        if theirs is None or not theirs.startswith(tail.torn):
            log.warning(
                "the master has started anew: %d bytes of an unfinished record at %d are cut from the log",
                *(len(tail.torn), tail.end),
            )
            await self._cut_to(tail.end)
        return _CONTINUES

    async def _cut_to(self, offset: int) -> None:
        try:
            await self._copy.cut_to(offset)
        except (OSError, StoreError) as error:
            raise _NotCut(
                f"the own log has to be cut at {offset}, where it stops being the master's, and that failed: "
                f"{describe(error)}"
            ) from error
        finally:
            self._own.forget(offset)

    # -- logs that differ ------------------------------------------------------------------------------------

    async def _different(self, tail: Tail, theirs: bytes | None) -> Finding:
        """What it means that the master does not have the last record here."""
        end = self._copy.end
        master = await self._master.bounds(end)
        found = judge(end, tail.offset, master, has_other=theirs is not None)
        may_cut = found.verdict in (Verdict.AHEAD, Verdict.DIVERGED)
        if not (may_cut and self._settings.cut_when_ahead):
            return found
        stop = end if master.end is None else min(end, master.end)
        point = await self._last_common(max(master.start or 0, self._log.start), stop)
        if point is None:
            return attrs.evolve(
                found,
                text=f"{found.text} (haCutWhenAhead is set, but not one record is the same)",
            )
        log.warning(
            "%s: %s; %d bytes from %d on are cut, since haCutWhenAhead is set",
            *(found.verdict.value, found.text, end - point, point),
        )
        await self._cut_to(point)
        return _CONTINUES

    async def _last_common(self, low: int, stop: int) -> int | None:
        """Where the last record ends that both logs have, of those from `low` to `stop`; None without one.

        First the file, then the part of it, then the record: logs are equal up to some point, and differ behind.
        """
        segments = self._log.segments
        files = [start for start in segments.starts if low <= start < stop]
        at = await self._last_same(files, stop)
        if at is None:
            return None
        file_end = min(stop, files[at] + segments.segment_bytes)
        run = self._parts.disk.run
        marks = await run(partial(self._own.landmarks, files[at], file_end))
        at = await self._last_same(marks, stop)
        if at is None:
            return None
        part_end = marks[at + 1] if at + 1 < len(marks) else file_end
        starts = await run(partial(self._own.starts, marks[at], part_end))
        at = await self._last_same(starts, stop)
        if at is None:
            return None
        last = await run(partial(self._own.record, starts[at], stop))
        assert last is not None, "it was just compared"
        return starts[at] + len(last)

    async def _last_same(self, offsets: Sequence[int], stop: int) -> int | None:
        """The index of the last offset at which both logs have the same record."""
        low, high = -1, len(offsets)
        while high - low > 1:
            middle = (low + high) // 2
            offset = offsets[middle]
            ours = await self._parts.disk.run(partial(self._own.record, offset, stop))
            is_same = ours is not None and ours == await self._master.record(offset)
            low, high = (middle, high) if is_same else (low, middle)
        return None if low < 0 else low

    # -- the remembered run ----------------------------------------------------------------------------------

    async def _loaded(self) -> LoadedStateFile[RememberedRun]:
        if self._state is None:
            parts = self._parts
            file = StateFile(
                parts.disk, f"{parts.root}/config", STATE, RememberedRun(), parts.clock
            )
            self._state = await file.load()
        return self._state

    async def _saved(self, state: LoadedStateFile[RememberedRun]) -> None:
        try:
            await state.persist_if_changed()
        except StoreError as error:  # next time the end of the log is compared again, no more
            log.warning("%s", describe(error))


def judge(end: int, last: int, master: Bounds, *, has_other: bool) -> Finding:
    """What it means that the record at `last`, the last one of a log that ends at `end`, is not the master's.

    `has_other` says whether the master answered something else for that offset.
    """
    if master.end is not None and master.end < end:
        return Finding(
            Verdict.AHEAD,
            f"this log ends at {end}, the master's at {master.end}: it has lost its newest {end - master.end} "
            f"bytes, or is another one. Make this broker the master (brokerRole, brokerId=0), or give up here what "
            f"the master does not have: haCutWhenAhead=true, or an empty store",
        )
    if master.start is not None and last < master.start:
        if master.start <= end:
            return Finding(
                Verdict.UNKNOWN,
                f"the master's log begins at {master.start}, behind the last record here, at {last}",
            )
        return Finding(
            Verdict.TOO_OLD,
            f"this log ends at {end}, the master's begins at {master.start}: what is between them has expired "
            f"there. Start this slave with an empty store",
        )
    if (
        master.end is None and not has_other
    ):  # it may be on its way down, and answer nothing properly
        return Finding(
            Verdict.UNANSWERED,
            f"the master neither has a record at {last} nor says where its log ends",
        )
    what = "has another record" if has_other else "has no record"
    where = "" if master.end is None else f" (it ends at {master.end})"
    return Finding(
        Verdict.DIVERGED,
        f"at offset {last}, where the last record of this log is (it ends at {end}), the master {what}{where}. "
        f"Decide which of the two logs is right: make this broker the master (brokerRole, brokerId=0), or give up "
        f"here what the master does not have: haCutWhenAhead=true, or an empty store",
    )


def told_sizes(ours: int, theirs: int) -> str:
    """The text about files of different sizes."""
    return (
        f"log files have {ours} bytes here and {theirs} at the master: set mappedFileSizeCommitLog={theirs}, "
        f"and start with an empty store"
    )
