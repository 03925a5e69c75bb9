"""What is wrong with a store, what a start does about it, and what that costs: one value, for people and programs.

In: a report of a rehearsed or real recovery, a picture of the whole log, what the rehearsal changed, and what was found
of the state files. Out: an :class:`Inspection`, with its verdict and JSON; the text is made by
:mod:`trio_mq.recovery.inspectiontext`. Pure. Made by :mod:`trio_mq.offline`, printed by ``trio-mq recover``. The
fields of the JSON are a public interface: ``docs/reference/recover-json.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import attrs

from trio_mq.recovery.apacheview import ApacheView
from trio_mq.recovery.glimpse import IndexGlimpse, QueueGlimpse
from trio_mq.recovery.picture import LogPicture, Lost
from trio_mq.recovery.report import RecoveryReport


class Verdict(Enum):
    """The answer in one word, and the exit code that says the same."""

    SOUND = "sound"
    CHANGES = "changes"
    LOSES = "loses"
    REFUSED = "refused"

    @property
    def exit_code(self) -> int:
        """0 sound, 1 a start changes something, 2 it loses readable records, 3 it refuses."""
        return list(Verdict).index(self)


class Effect(Enum):
    """What a start makes of a state file."""

    USED = "used"
    ABSENT = "absent"
    BACKUP = "backup used"
    EMPTY = "starts empty"
    CAREFUL = "careful path"
    REFUSED = "start refused"
    IGNORED = "not used"


@attrs.frozen
class StateFinding:
    """A state file, or the checkpoint. `file` and `backup` are good, missing, empty or bad; `unseen`: not looked at.

    `problem` says what is wrong, `lost` what goes with it, `repair` is a shell command. All are empty when it is good.
    """

    path: str
    file: str
    backup: str
    effect: Effect
    problem: str = ""
    lost: str = ""
    repair: str = ""

    @property
    def changes(self) -> bool:
        """Whether a broker that starts writes it anew."""
        return self.effect in (Effect.BACKUP, Effect.EMPTY)


class Kind(Enum):
    """What happens to a file."""

    CREATED = "created"
    CHANGED = "changed"
    REMOVED = "removed"
    RENAMED = "renamed"


@attrs.frozen
class FileChange:
    """A file that a start changes: path in the store, and how many bytes of it. `old_path` is that of a renamed one.

    `phase` is the one of the six in which that happens. Every start leaves its marks in some files (abort marker,
    checkpoint, lock), and writes parts of the index again as they were: those have `counts` False.
    """

    path: str
    kind: Kind
    bytes: int
    phase: int
    counts: bool
    old_path: str | None = None


_MARKERS: Final = ("abort", "abort.bak", "checkpoint", "lock", "queuelist.json")
_PHASES: Final = {
    "commitlog": 3,
    "quarantine": 3,
    "consumequeue": 3,
    "batchconsumequeue": 3,
    "index": 3,
    "config": 1,
    "abort": 3,
}


def file_change(
    path: str, kind: Kind, size: int, *, old_path: str | None = None, index_is_kept: bool
) -> FileChange:
    """A change by its path in the store; `index_is_kept` when the index has as many keys as before in the end."""
    # Only the log can have a place of its own, outside of the store.
    top = "commitlog" if path.startswith("/") else path.partition("/")[0]
    counts = top not in _MARKERS
    if top == "index" and index_is_kept and kind is Kind.CHANGED:
        counts = False
    return FileChange(path, kind, size, _PHASES.get(top, 5), counts, old_path)


@attrs.frozen
class QueueChange:
    """A queue that a start changes: its end before and after, in messages, and how many `entries` become others."""

    topic: str
    queue_id: int
    before: int
    after: int
    entries: int


@attrs.frozen
class OffsetChange:
    """The progress of a consumer group that lies behind a queue's end, and is set to that end."""

    group: str
    topic: str
    queue_id: int
    before: int
    after: int


@attrs.frozen
class Size:
    """A size that the files of a folder were made with, by its setting, and how it is known."""

    name: str
    value: int
    how: str
    folder: str
    is_guess: bool = False


@attrs.frozen
class IndexCounts:
    """Keys in the index: found, what is left of them, and put in from the log."""

    found: int = 0
    left: int = 0
    added: int = 0

    @property
    def removed(self) -> int:
        """Keys that go, of which some may be put in again."""
        return max(0, self.found - self.left)

    @property
    def is_kept(self) -> bool:
        """Whether the index ends with as many keys as it had."""
        return self.left + self.added == self.found


@attrs.frozen
class Difference:
    """A point in which Apache's broker would do something else with this store."""

    about: str
    apache: str
    here: str


@attrs.frozen
class Inspection:
    """All about one store. `done`: the recovery has been carried out, else it was rehearsed.

    `report` is None when a start refuses; then `refusals` say why, and the rest is what can be told anyway. `owner`
    is the id of the process that has the store open. `queues_made` have no folder yet.
    """

    root: str
    done: bool = False
    refusals: tuple[str, ...] = ()
    owner: int | None = None
    commit_log_only: bool = False
    sizes: tuple[Size, ...] = ()
    notes: tuple[str, ...] = ()
    state_files: tuple[StateFinding, ...] = ()
    picture: LogPicture | None = None
    report: RecoveryReport | None = None
    changes: tuple[FileChange, ...] = ()
    queue_changes: tuple[QueueChange, ...] = ()
    queues_made: tuple[str, ...] = ()
    offset_changes: tuple[OffsetChange, ...] = ()
    index: IndexCounts = attrs.field(factory=IndexCounts)
    index_files: tuple[IndexGlimpse, ...] = ()
    lost: Lost = attrs.field(factory=Lost)
    unreadable: tuple[QueueGlimpse, ...] = ()
    apache: ApacheView | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def guesses(self) -> list[Size]:
        """Sizes that nothing tells, and that a start would make new files with."""
        made = {c.path.partition("/")[0] for c in self.changes if c.kind is Kind.CREATED}
        return [size for size in self.sizes if size.is_guess and size.folder in made]

    @property
    def is_damaged(self) -> bool:
        """Whether some part of the log that was written holds no record."""
        return self.picture is not None and bool(self.picture.damaged or self.picture.missing)

    @property
    def damaged_though_clean(self) -> bool:
        """Whether the log is damaged though the last process says that it closed the store well."""
        return self.is_damaged and self.report is not None and self.report.clean

    @property
    def verdict(self) -> Verdict:
        """The answer. Damage that a start leaves as it is counts as a change: the store is not sound."""
        if self.refusals:
            return Verdict.REFUSED
        if self.lost.records:
            return Verdict.LOSES
        changed = any(change.counts for change in self.changes)
        state = any(finding.changes for finding in self.state_files)
        if changed or state or self.queue_changes or self.offset_changes or self.is_damaged:
            return Verdict.CHANGES
        return Verdict.SOUND

    def as_dict(self) -> dict[str, Any]:
        """For JSON; see ``docs/reference/recover-json.md``."""
        report = self.report
        return {
            "store": self.root,
            "done": self.done,
            "verdict": self.verdict.value,
            "exit_code": self.verdict.exit_code,
            "refusals": list(self.refusals),
            "phases": {
                "load": self._load(),
                "tails": None if report is None else {"queues": report.queues},
                "log": None if report is None else self._log(report),
                "queues": {
                    "changed": _dicts(self.queue_changes),
                    "made": list(self.queues_made),
                },
                "metadata": {"offsets_set_back": _dicts(self.offset_changes)},
                "activation": {"starts": not self.refusals},
            },
            "changes": _dicts(self.changes),
            "notes": [*self.notes, *(report.notes if report else ())],
            "lost": {**_plain(self.lost), "topics": self.lost.topics},
            "unreadable": [
                {"topic": q.topic, "queue_id": q.queue_id, "entries": q.unreadable}
                for q in self.unreadable
            ],
            "apache": {
                "log": None if self.apache is None else _plain(self.apache),
                "differences": _dicts(self.differences),
            },
            "seconds": report.as_dict()["seconds"] if report else {},
        }

    def _load(self) -> dict[str, Any]:
        report = self.report
        return {
            "clean": None if report is None else report.clean,
            "why_careful": None if report is None else report.why_careful,
            "damaged_though_clean": self.damaged_though_clean,
            "open_in_process": self.owner,
            "commit_log_only": self.commit_log_only,
            "sizes": _dicts(self.sizes),
            "state_files": _dicts(self.state_files),
            "log": None if self.picture is None else _plain(self.picture),
            "index_files": _dicts(self.index_files),
        }

    def _log(self, report: RecoveryReport) -> dict[str, Any]:
        return {
            "walked_from": report.walked_from,
            "why": report.walk_reason,
            "records_read": report.records,
            "log_start": report.log_start,
            "log_end": report.log_end,
            "cut_bytes": report.cut_bytes,
            "cut_reason": report.cut_reason,
            "quarantine": report.quarantine,
            "entries_changed": sum(change.entries for change in self.queue_changes),
            "keys_removed": self.index.removed,
            "keys_added": self.index.added,
        }


def _plain(value: Any) -> dict[str, Any]:
    """A value of this page as JSON has it."""
    return attrs.asdict(value, value_serializer=_serialize)


def _serialize(_: Any, __: Any, value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _dicts(values: Sequence[Any]) -> list[dict[str, Any]]:
    return [_plain(value) for value in values]
