"""Cuts, crashes and recoveries: what happens at each cut of a recording.

In: a moment of a recording, and seeds of crashes. Out: nothing, or :class:`Failure` with a line that repeats it.
"""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from typing import Final, Literal

import attrs

from tests.broker.support import is_batch
from tests.sweep.checks import (
    CHANGING,
    UNCOMPARED,
    check_saves,
    check_store,
    differences,
    sent_topics,
)
from tests.sweep.ledger import Moment
from tests.sweep.workload import BROKER, CONFIG, HOST, InOrder, Recording, store_settings
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.tables import BrokerTables, load_tables
from trio_mq.broker.topics import TopicTable
from trio_mq.errors import TrioMQError
from trio_mq.recovery.paths import Path
from trio_mq.recovery.recover import Choices, recover
from trio_mq.recovery.report import RecoveryReport
from trio_mq.store.store import Store, StoreParts, open_parts
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk

Crash = Literal["kill", "none", "some", "reordered"]
#: What becomes of what was not synced, by the number of the outcome. A kill loses nothing.
OUTCOMES: Final[tuple[Crash, ...]] = ("some", "reordered", "some", "none", "some", "kill")
#: What the reports of two equal recoveries may differ in.
NOT_EQUAL: Final[dict[str, object]] = {"seconds": None}
#: What the notes of a recovery say when the log has lost something in its middle.
HOLES: Final = ("has a hole", "cannot be read up to offset")
#: Reads that fail in turn, of a start that is looked at more closely.
READ_FAULTS: Final = 6


@attrs.frozen
class Crashed:
    """One crash: which cut, which outcome, and how to get there again."""

    seed: int
    cut: int
    crash_seed: int
    kind: Crash
    #: Operation of a recovery before which came another crash; 0 if none did.
    second_cut: int = 0

    @property
    def second_seed(self) -> int:
        """Seed of the second crash."""
        return self.crash_seed + self.second_cut

    @property
    def is_power_cut(self) -> bool:
        """Whether what was not synced may be gone: a kill may be followed by a power cut."""
        kinds = {self.kind, kind_of(self.second_seed)} if self.second_cut else {self.kind}
        return kinds != {"kill"}

    def __str__(self) -> str:
        second = f" --second {self.second_cut}" if self.second_cut else ""
        return f"--seed {self.seed} --cut {self.cut} --crash {self.crash_seed}{second}"


class Failure(Exception):
    """A store did not come back as it should."""

    def __init__(self, crashed: Crashed, moment: Moment, error: BaseException) -> None:
        operation = moment.operation
        where = f"{operation.kind} {operation.path}" if operation else "the end"
        super().__init__(
            f"python -m tests.sweep {crashed}: power cut ({crashed.kind}) before operation {crashed.cut}, "
            f"{where}: {type(error).__name__}: {error}"
        )


def kind_of(crash_seed: int) -> Crash:
    """What kind of crash a seed stands for."""
    return OUTCOMES[crash_seed % len(OUTCOMES)]


def crash(disk: MemoryDisk, crash_seed: int) -> None:
    """Let the power go, or end the process."""
    kind = kind_of(crash_seed)
    if kind == "kill":
        disk.kill()
    elif kind == "none":
        disk.crash(crash_seed, keep="none")
    else:
        disk.crash(crash_seed, reorder_names=kind == "reordered")


@attrs.define(eq=False)
class Recovered:
    """A start on a disk that had a crash: its parts, still open, and what it told."""

    disk: MemoryDisk
    parts: StoreParts
    tables: BrokerTables
    report: RecoveryReport
    clock: ManualClock

    def store(self) -> Store:
        """The store to look into."""
        return Store(self.parts, self.clock, HOST)


async def start(disk: MemoryDisk, seed: int, now_ms: int, path: Path) -> Recovered:
    """What a start does up to the recovered store."""
    clock = ManualClock(now_ms)
    topics = TopicTable(BROKER, clock)
    parts = open_parts(disk, store_settings(seed), clock, lambda topic: is_batch(topics, topic))
    parts.queues.dirty = InOrder()
    try:
        groups, offsets = GroupTable(BROKER, clock), ConsumerOffsets(BROKER, clock)
        tables = await load_tables(
            disk, CONFIG, clock, topics=topics, groups=groups, offsets=offsets
        )
        report = await recover(parts, Choices(path=path))
    except BaseException:
        parts.release()
        raise
    return Recovered(disk, parts, tables, report, clock)


async def check_cut(
    recording: Recording, moment: Moment, crashed: Crashed, *, again: bool = False
) -> int:
    """Crash, recover both ways, check; with `again`, cut the power at each operation of the recovery, too.

    Returns how many crashes were recovered from. Raises :class:`Failure`.
    """
    disk = moment.disk.clone()
    crash(disk, crashed.crash_seed)
    count = 1
    second: list[MemoryDisk] = []
    once = attrs.evolve(crashed, second_cut=0)
    try:
        await _recover_and_check(recording, moment, once, disk, second if again else None)
    except Exception as error:
        raise Failure(crashed, moment, error) from error
    for number, cut_again in enumerate(second, 1):
        if crashed.second_cut not in (0, number):
            continue
        twice = attrs.evolve(crashed, second_cut=number)
        crash(cut_again, twice.second_seed)
        try:
            await _recover_and_check(recording, moment, twice, cut_again, None)
        except Exception as error:
            raise Failure(twice, moment, error) from error
        count += 1
    return count


async def _recover_and_check(
    recording: Recording,
    moment: Moment,
    crashed: Crashed,
    disk: MemoryDisk,
    second: list[MemoryDisk] | None,
) -> None:
    seed, now_ms = recording.seed, moment.now_ms + 1000
    check_saves(disk.files(), moment, recording.ledger)
    other = disk.clone()
    if second is not None:
        disk.before = lambda _: second.append(disk.clone())
    ways = [
        await start(one, seed, now_ms, path)
        for one, path in ((disk, Path.BATCH), (other, Path.SEQUENTIAL))
    ]
    disk.before = None
    files = disk.files()
    unequal = differences(files, other.files(), UNCOMPARED)
    assert not unequal, f"the two paths leave {unequal} different"
    assert ways[0].report.as_dict() | NOT_EQUAL == ways[1].report.as_dict() | NOT_EQUAL
    try:
        _check(recording, moment, crashed, ways[0], files)
    finally:
        for way in ways:
            way.parts.release()
    third = await start(disk, seed, now_ms + 1000, Path.BATCH)
    third.parts.release()
    changed = differences(files, disk.files(), CHANGING)
    assert not changed, f"a second recovery changes {changed}"


def _check(
    recording: Recording,
    moment: Moment,
    crashed: Crashed,
    found: Recovered,
    files: dict[str, bytes],
) -> None:
    ledger = recording.ledger
    power_cut = crashed.is_power_cut
    check_store(
        files,
        found.store(),
        ledger,
        moment,
        power_cut=power_cut,
        holes=any(text in note for note in found.report.notes for text in HOLES),
    )
    promised = ledger.promised(moment, power_cut=power_cut)
    for topic in sent_topics(promised, moment):
        assert found.tables.topics.table.get(topic) is not None, f"topic {topic} is gone"


async def check_faulty_starts(recording: Recording, moment: Moment, crashed: Crashed) -> int:
    """Starts on a disk that fails: each operation of a recovery fails once, and some reads do.

    Such a start ends with an error of ours or does without; the next one, on a disk that works, finds everything.
    Returns how many faults were tried. Raises :class:`Failure`.
    """
    disk = moment.disk.clone()
    crash(disk, crashed.crash_seed)
    rng = random.Random(crashed.crash_seed)
    plain = disk.clone()
    (await start(plain, recording.seed, moment.now_ms + 1000, Path.BATCH)).parts.release()
    number, tried = 0, 0
    for number in range(1, len(plain.operations) + 1):
        broken = disk.clone()
        error = rng.choice((errno.EIO, errno.ENOSPC))
        broken.fail_at(number, error)
        await _start_and_check(recording, moment, crashed, broken, f"{error} at {number}")
        tried += 1
    for _ in range(READ_FAULTS):
        broken = disk.clone()
        left = rng.randint(1, 60)

        def fails(path: str, offset: int, size: int) -> bool:
            nonlocal left
            left -= 1
            return left == 0

        broken.fail_reads(fails)
        await _start_and_check(recording, moment, crashed, broken, f"read {left}")
        tried += 1
    return tried


async def _start_and_check(
    recording: Recording, moment: Moment, crashed: Crashed, disk: MemoryDisk, what: str
) -> None:
    try:
        with suppress(TrioMQError):
            now_ms = moment.now_ms + 1000
            (await start(disk, recording.seed, now_ms, Path.BATCH)).parts.release()
        disk.kill()
        await _recover_and_check(recording, moment, crashed, disk, None)
    except Exception as error:
        error.add_note(f"after a start with a fault: {what}")
        raise Failure(crashed, moment, error) from error


def crash_seed_of(seed: int, cut: int, outcome: int) -> int:
    """The seed of one of the crashes that are tried at a cut."""
    base = random.Random(f"{seed} {cut} {outcome}").randrange(1 << 24)
    return base * len(OUTCOMES) + (cut + outcome) % len(OUTCOMES)
