"""The broker's state files as an inspection tells of them: what is bad, what is lost with it, and how to repair it.

In: the folder of a store. Out: :class:`trio_mq.recovery.inspection.StateFinding` values, and the tables filled as far
as their files can be read. Called by :mod:`trio_mq.offline.rehearsal`. Rules: :mod:`trio_mq.broker.tables`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from trio_mq.broker.delayoffsets import DelayOffsets
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.pop.modes import RequestModes
from trio_mq.broker.pop.orders import PopOrders
from trio_mq.broker.tables import (
    DELAYS,
    GROUPS,
    MODES,
    OFFSETS,
    ORDERS,
    TOPICS,
    UPDATES,
    BrokerTables,
    CopyState,
    Examination,
    examine,
)
from trio_mq.broker.topics import TopicTable
from trio_mq.broker.unused import NAMES
from trio_mq.broker.updates import SettingUpdates
from trio_mq.clock import Clock
from trio_mq.config import BrokerSettings
from trio_mq.errors import StoreDamaged
from trio_mq.recovery.inspection import Effect, FileChange, Kind, StateFinding
from trio_mq.store.checkpoint import CheckpointFile
from trio_mq.store.disk import Disk

BACKUP_UNSEEN: Final = "unseen"


@attrs.frozen(eq=False)
class Tables:
    """The tables of a broker, before or without loading their files for good."""

    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    delays: DelayOffsets
    orders: PopOrders
    modes: RequestModes
    updates: SettingUpdates

    @classmethod
    def make(cls, settings: BrokerSettings, clock: Clock) -> Tables:
        """Empty ones."""
        return cls(
            TopicTable(settings, clock),
            GroupTable(settings, clock),
            ConsumerOffsets(settings, clock),
            DelayOffsets(clock, settings.delay_offset_update_version_step),
            PopOrders(clock),
            RequestModes(),
            SettingUpdates(),
        )

    def is_batch(self, topic: str) -> bool:
        """Whether a topic has batch queues, as its settings say."""
        config = self.topics.get(topic)
        return config is not None and config.attributes.get("queue.type") == "BatchCQ"


def examine_all(disk: Disk, root: str, tables: Tables) -> list[StateFinding]:
    """Look at the tables' files and at the checkpoint, and fill the tables. Blocking; changes nothing."""
    directory = f"{root}/config"
    found = [
        _finding(examine(disk, directory, kind, table))
        for kind, table in (
            (TOPICS, tables.topics),
            (GROUPS, tables.groups),
            (OFFSETS, tables.offsets),
            (DELAYS, tables.delays),
            (ORDERS, tables.orders),
            (MODES, tables.modes),
            (UPDATES, tables.updates),
        )
    ]
    return [*found, _checkpoint(disk, f"{root}/checkpoint")]


def _finding(found: Examination) -> StateFinding:
    main, backup, kind = found.main, found.backup, found.kind
    good = main.state is CopyState.GOOD
    told = BACKUP_UNSEEN if good else backup.state.value
    if good or (main.state is CopyState.MISSING and backup.state is CopyState.MISSING):
        effect = Effect.USED if good else Effect.ABSENT
        return StateFinding(main.path, main.state.value, told, effect)
    problem = f"it is {main.state.value}" + (f", {main.problem}" if main.problem else "")
    if found.damaged:
        bad = [copy.path for copy in (main, backup) if copy.unreadable]
        moves = " && ".join(f"mv '{path}' '{path}.lost'" for path in bad)
        lost = f"{kind.holds}: {kind.without}"
        if backup.unreadable:
            problem += f", and so is its backup ({backup.problem or backup.state.value})"
        if kind.expendable:
            repair = " && ".join(f"rm '{path}'" for path in bad)
            return StateFinding(
                main.path, main.state.value, told, Effect.EMPTY, problem, lost, repair
            )
        return StateFinding(main.path, main.state.value, told, Effect.REFUSED, problem, lost, moves)
    if backup.state is CopyState.GOOD:
        lost = f"the changes of the last save: check {kind.holds}"
        repair = f"cp '{backup.path}' '{main.path}'"
        return StateFinding(main.path, main.state.value, told, Effect.BACKUP, problem, lost, repair)
    lost = f"{kind.holds}: {kind.without}"
    repair = f"rm '{main.path}'"
    return StateFinding(main.path, main.state.value, told, Effect.EMPTY, problem, lost, repair)


def _checkpoint(disk: Disk, path: str) -> StateFinding:
    file = CheckpointFile(disk, path)
    if not disk.exists(path):
        return StateFinding(path, "missing", "missing", Effect.CAREFUL)
    try:
        file.load()
    except StoreDamaged as error:
        return StateFinding(
            path,
            "bad",
            "missing",
            Effect.REFUSED,
            f"it is no checkpoint ({error.__cause__})",
            "how far log, queues and index are durable: without it a start takes the careful path",
            f"mv '{path}' '{path}.lost'",
        )
    if file.known:
        return StateFinding(path, "good", "missing", Effect.USED)
    size = disk.size(path)
    return StateFinding(
        path,
        "bad" if size else "empty",
        "missing",
        Effect.CAREFUL,
        f"it has {size} bytes, so nothing is known from it",
        "how far log, queues and index are durable",
        f"rm '{path}'",
    )


def unused_findings(changes: Sequence[FileChange]) -> Iterator[StateFinding]:
    """Files of other features that a start gives other names, since they cannot be read (cases C043, C046)."""
    for change in changes:
        if change.kind is not Kind.RENAMED or change.old_path is None:
            continue
        directory, name = posixpath.split(change.old_path)
        if directory == "config" and name.removesuffix(".bak") in NAMES:
            yield StateFinding(
                change.old_path,
                "bad",
                BACKUP_UNSEEN,
                Effect.IGNORED,
                f"it cannot be read; a start names it {change.path}",
                "nothing here; an Apache broker begins anew without it, and may refuse to start with it",
            )


async def save_mended(tables: BrokerTables, findings: Sequence[StateFinding]) -> None:
    """Write the files that were not good, and those whose table has changed since; what was never there stays away."""
    absent = {finding.path for finding in findings if finding.effect is Effect.ABSENT}
    for file in tables.files:
        if file.path not in absent:
            await file.persist_if_changed()
