"""Sweeps of whole workloads, in several processes.

In: which seeds, and how much of each. Out: :class:`Tally`, and the failures as text, each with the line that repeats
it. Every process runs the workload by itself and takes its share of the cuts, so that nothing large is passed around.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from typing import Final

import attrs
import trio

from tests.sweep import faults
from tests.sweep.sweep import (
    OUTCOMES,
    Crashed,
    Failure,
    check_cut,
    check_faulty_starts,
    crash_seed_of,
    kind_of,
)
from tests.sweep.workload import Recording, deterministically, record

#: Share of the cuts (one in so many) whose recovery is cut at each of its operations, too, and meets failing disks.
AGAIN_EVERY: Final = 40
#: Share of the possible faults of a workload that are tried; a run of its own each.
FAULTS_EVERY: Final = 6
#: How much a workload with a fault sends, compared with an ordinary one.
FAULTS_PERCENT: Final = 25
#: Failures of one share after which it ends.
MOST_FAILURES: Final = 5


@attrs.define
class Tally:
    """How much was tried: cuts of the workload (each with one crash), cuts of recoveries, faults; and what failed."""

    cuts: int = 0
    second_cuts: int = 0
    faults: int = 0
    failures: list[str] = attrs.field(factory=list)

    def add(self, other: Tally) -> None:
        """Count what somebody else has tried, too."""
        self.cuts += other.cuts
        self.second_cuts += other.second_cuts
        self.faults += other.faults
        self.failures += other.failures

    def __str__(self) -> str:
        return (
            f"{self.cuts} power cuts, {self.second_cuts} more during recoveries, {self.faults} faults: "
            f"{len(self.failures) or 'no'} failures"
        )


def sweep_share(seed: int, outcomes: int, part: int, parts: int) -> Tally:
    """One share of all cuts of a workload, and of its faults."""
    logging.disable(logging.CRITICAL)  # what a broker tells about crashes is no news here
    tally = Tally()
    recording = record(seed, lambda number: number % parts == part)
    trio.run(_cut_all, recording, outcomes, tally)
    _fault_some(seed, part, parts, tally)
    return tally


async def _cut_all(recording: Recording, outcomes: int, tally: Tally) -> None:
    seed = recording.seed
    for moment in recording.moments:
        for outcome in range(outcomes):
            crash_seed = crash_seed_of(seed, moment.number, outcome)
            crashed = Crashed(seed, moment.number, crash_seed, kind_of(crash_seed))
            again = outcome == 0 and (moment.number + seed) % AGAIN_EVERY == 0
            try:
                tally.cuts += 1
                tally.second_cuts += await check_cut(recording, moment, crashed, again=again) - 1
                if again:
                    tally.faults += await check_faulty_starts(recording, moment, crashed)
            except Failure as failure:
                tally.failures.append(str(failure))
                if len(tally.failures) >= MOST_FAILURES:
                    return


def _fault_some(seed: int, part: int, parts: int, tally: Tally) -> None:
    plain = Recording(seed, lambda _: False, percent=FAULTS_PERCENT)
    deterministically(seed, plain.run)
    every = list(faults.worth_trying(plain.disk.operations))
    chosen = random.Random(seed).sample(every, len(every) // FAULTS_EVERY)
    for name, number in chosen[part::parts]:
        tally.faults += 1
        failed = fault_once(seed, name, number)
        if failed is not None:
            tally.failures.append(failed)
            if len(tally.failures) >= MOST_FAILURES:
                return


def fault_once(seed: int, name: str, number: int) -> str | None:
    """Run the workload with one fault and recover; what went wrong, if anything did."""
    line = f"python -m tests.sweep --seed {seed} --fault {name} --at {number}"
    try:
        recording = faults.run_with(seed, FAULTS_PERCENT, name, number)
    except Exception as error:
        return f"{line}: {type(error).__name__}: {error}"
    crash_seed = crash_seed_of(seed, number, 0)
    if recording.disk.operations[number - 1].kind == "sync":
        # What a failed sync was about is in doubt until the machine starts again, whoever reads it from the page cache
        # meanwhile: after that only the process ends.
        crash_seed += OUTCOMES.index("kill") - crash_seed % len(OUTCOMES)
    crashed = Crashed(seed, number, crash_seed, kind_of(crash_seed))
    try:
        trio.run(check_cut, recording, recording.moments[-1], crashed)
    except Failure as failure:
        return f"{line}: {failure.__cause__.__class__.__name__}: {failure.__cause__}"
    return None


def sweeps(
    first_seed: int, outcomes: int, cuts: int | None, processes: int
) -> Iterator[tuple[int, Tally]]:
    """Sweep one workload after the other until so many cuts were made (None: for ever); each seed with its tally."""
    made = 0
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for seed in count(first_seed):
            shares = [
                pool.submit(sweep_share, seed, outcomes, part, processes)
                for part in range(processes)
            ]
            tally = Tally()
            for share in shares:
                tally.add(share.result())
            yield seed, tally
            made += tally.cuts
            if cuts is not None and made >= cuts:
                return


def repeat(seed: int, cut: int, crash_seed: int, second_cut: int) -> None:
    """Make one cut again; raises :class:`Failure` if it still fails."""
    recording = record(seed, lambda number: number == cut)
    if not recording.moments:
        raise SystemExit(f"the workload of seed {seed} has no cut {cut}")
    crashed = Crashed(seed, cut, crash_seed, kind_of(crash_seed), second_cut)
    run: Callable[[], object] = lambda: check_cut(  # noqa: E731
        recording, recording.moments[0], crashed, again=bool(second_cut)
    )
    trio.run(run)
