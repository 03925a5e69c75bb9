"""The broker's JSON state files: loaded with care, saved so that a power cut leaves the old or the new.

In: a table (topics, groups, offsets and others) and the directory of its file. Out: the table filled from the
file or its backup, and a :class:`LoadedStateFile` that saves it again. Only loading makes one, so
nothing is saved before it was loaded. Called when the broker starts, by its periodic saving and
when it stops. Format: ``docs/reference/state-files.md``; Apache: ConfigManager.

Saving writes ``x.json.tmp``, syncs it, renames a good ``x.json`` to ``x.json.bak``, renames the new
file to ``x.json`` and syncs the directory. At each step one of the two names that a start looks at
holds a complete file.

Loading takes ``x.json``, else ``x.json.bak``, as the peers do. Unlike the peers it deletes nothing:
an unreadable file is kept as ``x.json.bad-<ms>``. If there are files and none can be read, the
start is refused and says what would be lost and which commands go on without it. That holds for
the consumer offsets too: with an empty table each group would start where its from-where policy
says, which is the end of the queue by default, so waiting messages would be skipped in silence.
It does not hold for an expendable file, whose loss costs repeats only: the start goes on, and tells.
Files of 0 bytes without a backup are no reason to refuse: that is a first save that was cut off.
"""

from __future__ import annotations

import errno
import logging
import posixpath
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import attrs
import trio

from trio_mq.broker.aside import keep_aside
from trio_mq.broker.delayoffsets import DelayOffsets
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.offsets import Clamped, ConsumerOffsets
from trio_mq.broker.pop.modes import RequestModes
from trio_mq.broker.pop.orders import PopOrders
from trio_mq.broker.topics import TopicTable
from trio_mq.broker.unused import keep_spoilt_aside
from trio_mq.broker.updates import SettingUpdates
from trio_mq.clock import Clock
from trio_mq.errors import BodyError, StoreDamaged, StoreError, StoreFull
from trio_mq.protocol import jsondialect
from trio_mq.store.disk import Disk
from trio_mq.store.queuetable import QueueTable
from trio_mq.store.roster import QueueKey

log = logging.getLogger("trio_mq.broker.tables")


class Table(Protocol):
    """A table that has a state file."""

    @property
    def revision(self) -> int:
        """Grows with each change that has to be saved."""
        ...

    def read_json(self, value: Any) -> None:
        """Take over the content of a file; :class:`BodyError`, and no change, if it is not one."""
        ...

    def to_json(self) -> Any:
        """The content of the file, of parts that no later change touches: a worker thread encodes it."""
        ...


T = TypeVar("T", bound=Table)


@attrs.frozen
class StateKind:
    """What is known of a state file: its name, and what it means to lose it."""

    name: str
    holds: str
    without: str
    #: Whether a start goes on without it: what it holds can be found again, at the price of repeats.
    expendable: bool = False
    #: Whether a broker that never had something to write there has no such file.
    made_when_used: bool = False


TOPICS: Final = StateKind(
    "topics.json",
    "the settings of all topics",
    "topics have to be created again with the queue numbers and the attribute queue.type they had "
    "(one directory per queue is in consumequeue/<topic>/ or batchconsumequeue/<topic>/)",
)
GROUPS: Final = StateKind(
    "subscriptionGroup.json",
    "the settings of all consumer groups",
    "groups are made again with default settings when they are next used",
)
OFFSETS: Final = StateKind(
    "consumerOffset.json",
    "the progress of all consumer groups",
    "each group starts where its from-where policy says, by default at the end of each queue, "
    "and skips what waits there; set it back with: mqadmin resetOffsetByTime",
)
LMQ_OFFSETS: Final = attrs.evolve(OFFSETS, name="lmqConsumerOffset.json")
"""In place of the other one with enableLmq; with a further table for groups of light queues."""
DELAYS: Final = StateKind(
    "delayOffset.json",
    "the progress of delayed messages",
    "delayed messages that the log still holds are delivered once more when they are due or overdue",
    expendable=True,
)
ORDERS: Final = StateKind(
    "consumerOrderInfo.json",
    "what ordered pop consumers have not acknowledged yet",
    "they get those messages again at once, and their counts begin anew",
    expendable=True,
)
MODES: Final = StateKind(
    "messageRequestMode.json",
    "which groups pop the queues that the broker assigns to them",
    "all groups read as defaultMessageRequestMode says; set it again: mqadmin setConsumeMode",
    made_when_used=True,
)


UPDATES: Final = StateKind(
    "settingUpdates.json",
    "the settings that were changed while the broker ran",
    "the broker has the settings that its file and its options give; change them again: mqadmin updateBrokerConfig",
    made_when_used=True,
)


class CopyState(Enum):
    """How a file was found."""

    GOOD = "good"
    MISSING = "missing"
    EMPTY = "empty"
    BAD = "bad"


@attrs.frozen
class Copy:
    """A state file or its backup as found; `problem` says why a bad one is bad."""

    path: str
    state: CopyState
    problem: str = ""

    @property
    def unreadable(self) -> bool:
        """Whether there is a file, and nothing to be had from it."""
        return self.state in (CopyState.EMPTY, CopyState.BAD)


@attrs.frozen
class Examination:
    """What was found of a state file. `backup` is not looked at when `main` is good."""

    kind: StateKind
    main: Copy
    backup: Copy

    @property
    def damaged(self) -> bool:
        """Whether a start would lose what the file held."""
        if CopyState.GOOD in (self.main.state, self.backup.state):
            return False
        return self.main.state is CopyState.BAD or self.backup.unreadable

    @property
    def notice(self) -> str:
        """What is wrong, what is lost and what to do; empty when all is well."""
        main, backup, kind = self.main, self.backup, self.kind
        if self.damaged:
            return self._damage()
        if main.state is CopyState.EMPTY and backup.state is CopyState.MISSING:
            return (
                f"{main.path} is empty and has no backup, as after a power cut during its first "
                f"save; starting without {kind.holds}: {kind.without}"
            )
        if main.unreadable:
            return (
                f"{main.path} {_told(main)}; loaded {backup.path}, which lacks the changes of the "
                f"last save: check {kind.holds}; the next save writes both files again"
            )
        return ""

    def _damage(self) -> str:
        bad = [copy for copy in (self.main, self.backup) if copy.unreadable]
        found = "; ".join(f"{copy.path} {_told(copy)}" for copy in bad)
        if self.kind.expendable:
            return f"{found}. Going on without {self.kind.holds}: {self.kind.without}"
        moves = " && ".join(f"mv '{copy.path}' '{copy.path}.lost'" for copy in bad)
        return (
            f"{found}. This file holds {self.kind.holds}. To repair, put a good copy at "
            f"{self.main.path}. To go on without it: {moves}; then {self.kind.without}."
        )


def _told(copy: Copy) -> str:
    return "is empty" if copy.state is CopyState.EMPTY else f"cannot be read ({copy.problem})"


def examine(disk: Disk, directory: str, kind: StateKind, table: Table) -> Examination:
    """Look at a state file without changing anything on the disk.

    `table` takes over what the first readable copy holds. Blocks; :class:`StoreError` if the disk
    does not hand the bytes over.
    """
    path = f"{directory}/{kind.name}"
    main = _judge(path, _read(disk, path), table)
    if main.state is CopyState.GOOD:
        return Examination(kind, main, Copy(f"{path}.bak", CopyState.MISSING))
    return Examination(kind, main, _judge(f"{path}.bak", _read(disk, f"{path}.bak"), table))


def _judge(path: str, data: bytes | None, table: Table) -> Copy:
    if data is None:
        return Copy(path, CopyState.MISSING)
    if not data:
        return Copy(path, CopyState.EMPTY)
    try:
        table.read_json(jsondialect.loads(data))
    except BodyError as error:
        return Copy(path, CopyState.BAD, str(error))
    return Copy(path, CopyState.GOOD)


def _read(disk: Disk, path: str) -> bytes | None:
    try:
        file = disk.open(path, readonly=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror}") from error
    try:
        return file.read(file.size(), 0)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    finally:
        file.close()


@attrs.frozen
class StateFile(Generic[T]):
    """A state file that was not loaded yet; it can only be loaded."""

    disk: Disk
    directory: str
    kind: StateKind
    table: T
    clock: Clock

    async def load(self) -> LoadedStateFile[T]:
        """Fill the table. :class:`StoreDamaged` if files are there and none can be read."""
        (loaded,) = await _load_all([self])
        return loaded


@attrs.frozen
class BrokerTables:
    """The loaded state files of a broker."""

    topics: LoadedStateFile[TopicTable]
    groups: LoadedStateFile[GroupTable]
    offsets: LoadedStateFile[ConsumerOffsets]
    delays: LoadedStateFile[DelayOffsets]
    orders: LoadedStateFile[PopOrders]
    modes: LoadedStateFile[RequestModes]
    updates: LoadedStateFile[SettingUpdates]

    @property
    def files(self) -> tuple[LoadedStateFile[Any], ...]:
        """All of them, in the order in which they are saved: offsets mention topics and groups."""
        return (
            self.topics,
            self.groups,
            self.modes,
            self.updates,
            self.offsets,
            self.delays,
            self.orders,
        )

    def read_queues(self) -> list[QueueKey]:
        """Queues of known topics that a group has read from: those had messages."""
        topics = self.topics.table
        read = self.offsets.table.read_queues()
        return [(topic, queue_id) for topic, queue_id in read if topics.get(topic) is not None]

    def clamp_progress(self, queues: QueueTable) -> list[Clamped]:
        """Set back consumers' progress that lies behind the end of its queue; returns what was changed."""

        def max_offset(topic: str, queue_id: int) -> int | None:
            queue = queues.get(topic, queue_id)
            if queue is not None:
                return queue.max_offset
            config = self.topics.table.get(topic)
            if config is None or queue_id >= max(config.read_queue_nums, config.write_queue_nums):
                return None  # nobody knows such a queue
            return 0  # the next message is its first one, whatever was there before

        return self.offsets.table.clamp_all(max_offset)


async def load_tables(
    disk: Disk,
    directory: str,
    clock: Clock,
    *,
    topics: TopicTable,
    groups: GroupTable,
    offsets: ConsumerOffsets,
    delays: DelayOffsets | None = None,
    orders: PopOrders | None = None,
    modes: RequestModes | None = None,
    damages: Sequence[str] = (),
    lmq: bool = False,
) -> BrokerTables:
    """Fill the tables of a broker from their files in `directory` (``config`` of the store).

    :class:`StoreDamaged` tells of all files at once that are there and cannot be read, and of `damages` that were
    found elsewhere in the store. With `lmq` the offsets have another file.
    """
    offsets.lmq = lmq
    if lmq:
        # What was there before the setting was; the file of its own replaces it. (Apache begins without.)
        await disk.run(partial(examine, disk, directory, OFFSETS, offsets))
    kind_of_offsets = LMQ_OFFSETS if lmq else OFFSETS
    loaded = await _load_all(
        [
            StateFile(disk, directory, TOPICS, topics, clock),
            StateFile(disk, directory, GROUPS, groups, clock),
            StateFile(disk, directory, kind_of_offsets, offsets, clock),
            StateFile(disk, directory, DELAYS, delays or DelayOffsets(clock), clock),
            StateFile(disk, directory, ORDERS, orders or PopOrders(clock), clock),
            StateFile(disk, directory, MODES, modes or RequestModes(), clock),
            StateFile(disk, directory, UPDATES, SettingUpdates(), clock),
        ],
        damages,
    )
    await disk.run(partial(keep_spoilt_aside, disk, directory, clock.now_ms()))
    return BrokerTables(*loaded)


async def _load_all(
    files: Sequence[StateFile[Any]], damages: Sequence[str] = ()
) -> list[LoadedStateFile[Any]]:
    """Load several files; if some are damaged, one error tells of all of them and of other `damages`."""
    found = [
        await file.disk.run(partial(examine, file.disk, file.directory, file.kind, file.table))
        for file in files
    ]
    bad = [look.notice for look in found if look.damaged and not look.kind.expendable]
    if bad or damages:
        raise StoreDamaged("\n".join([*bad, *damages]))
    loaded = []
    for file, examination in zip(files, found, strict=True):
        copies = (examination.main, examination.backup) if examination.damaged else ()
        if examination.damaged or examination.main.state is CopyState.BAD:
            paths = [copy.path for copy in copies if copy.unreadable] or [examination.main.path]
            aside = [
                await file.disk.run(partial(keep_aside, file.disk, path, file.clock.now_ms()))
                for path in paths
            ]
            log.error("%s; the bad file is kept as %s", examination.notice, ", ".join(aside))
        elif examination.notice:
            log.warning("%s", examination.notice)
        states = (examination.main.state, examination.backup.state)
        loaded.append(
            LoadedStateFile(
                file,
                main_is_good=states[0] is CopyState.GOOD,
                never_there=states == (CopyState.MISSING, CopyState.MISSING),
            )
        )
    return loaded


class LoadedStateFile(Generic[T]):
    """A state file whose content is in its table, and which may therefore be written.

    Made by :meth:`StateFile.load` and :func:`load_tables` only.
    """

    def __init__(
        self, file: StateFile[T], *, main_is_good: bool, never_there: bool = False
    ) -> None:
        self.table: T = file.table
        self.path = f"{file.directory}/{file.kind.name}"
        self._disk = file.disk
        self._directory = file.directory
        self._main_is_good = main_is_good
        # what did not come from the file itself is saved again even if it never changes
        is_saved = main_is_good or (never_there and file.kind.made_when_used)
        self._saved_revision = file.table.revision if is_saved else None
        self._one_at_a_time = trio.Lock()

    @property
    def unsaved(self) -> bool:
        """Whether the table has changes that are not on the disk."""
        return self.table.revision != self._saved_revision

    async def persist(self) -> None:
        """Save the table as it is now. :class:`StoreFull` or :class:`StoreError` if that fails.

        After an error, and when it is cancelled, the files are as before or as after a save.
        """
        async with self._one_at_a_time:
            revision = self.table.revision
            # Encoded over there, too: tens of thousands of queues take a good part of a second.
            content = self.table.to_json()
            try:
                await self._disk.run(lambda: self._write(jsondialect.dumps(content)))
            except OSError as error:
                kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
                raise kind(f"cannot save {self.path}: {error.strerror}") from error
            self._saved_revision = revision

    async def persist_if_changed(self) -> bool:
        """Save the table if it has unsaved changes; whether it had."""
        if not self.unsaved:
            return False
        await self.persist()
        return True

    def _write(self, content: bytes) -> None:
        disk, temporary = self._disk, f"{self.path}.tmp"
        if not disk.is_dir(self._directory):
            disk.make_dirs(self._directory)
            disk.sync_dir(posixpath.dirname(self._directory))
        file = disk.open(temporary, create=True)
        try:
            file.truncate(0)
            file.write(content, 0)
            file.sync()
        finally:
            file.close()
        if self._main_is_good and disk.exists(self.path):
            disk.rename(self.path, f"{self.path}.bak")
            self._main_is_good = False  # until the next rename a start would load the backup
        disk.rename(temporary, self.path)
        self._main_is_good = True
        disk.sync_dir(self._directory)
