"""Runs of many seeds, on several processes; and what is told of those that fail.

In: seeds. Out: :class:`Tally`. A failure is one line with the command that repeats it.
"""

from __future__ import annotations

import logging
import signal
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import FrameType
from typing import Final

import attrs
import trio

from tests.ha.sim.clock import LeapClock
from tests.ha.sim.play import Outcome, play
from tests.ha.sim.scenario import scenario
from tests.sweep.workload import deterministically

#: Processor time that one run may take: more is a loop in which the mock clock stands still.
RUN_LIMIT_S: Final = 20
#: Seeds that a process gets at a time.
SHARE: Final = 20


class Stuck(BaseException):
    """A run does not get on."""


@attrs.define
class Tally:
    """How many runs there were, what was in them, and what failed."""

    runs: int = 0
    messages: int = 0
    acked: int = 0
    #: Slaves that followed their master in the end, and those that had stopped on purpose.
    following: int = 0
    stopped: int = 0
    #: How often a power cut took something of a master's log.
    cut: int = 0
    failures: list[str] = attrs.field(factory=list)

    def note(self, outcome: Outcome | str) -> None:
        """One run more: how it went, or how it failed."""
        self.runs += 1
        if isinstance(outcome, str):
            self.failures.append(outcome)
            return
        self.messages += outcome.messages
        self.acked += outcome.acked
        self.following += outcome.following
        self.stopped += outcome.slaves - outcome.following
        self.cut += outcome.histories - 1

    def add(self, other: Tally) -> None:
        """Count what somebody else has run, too."""
        for field in attrs.fields(Tally):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.messages} messages, {self.acked} acknowledged; masters lost the end of their log "
            f"{self.cut} times; in the end {self.following} slaves followed and {self.stopped} had stopped on purpose; "
            f"{len(self.failures) or 'no'} failures"
        )


def run_seed(seed: int) -> Outcome | str:
    """One run: how it went, or what went wrong, with the command that repeats it."""
    before = signal.signal(signal.SIGPROF, _stuck)
    signal.setitimer(signal.ITIMER_PROF, RUN_LIMIT_S)
    try:
        return repeat(seed)
    except (Exception, Stuck, trio.TrioInternalError) as error:
        return f"python -m tests.ha.sim --seed {seed}: {told(error)}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def repeat(seed: int) -> Outcome:
    """One run, as it is; raises what went wrong."""
    outcomes = []

    async def main() -> None:
        outcomes.append(await play(scenario(seed)))

    deterministically(seed, main, LeapClock())
    return outcomes[0]


def _stuck(signum: int, frame: FrameType | None) -> None:
    raise Stuck(
        f"no end after {RUN_LIMIT_S} s of work: {''.join(traceback.format_stack(frame)[-6:])}"
    )


def leaf_of(error: BaseException) -> BaseException:
    """The first error of a group, or what broke Trio."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, trio.TrioInternalError) and error.__cause__ is not None:
        return leaf_of(error.__cause__)
    return error


def told(error: BaseException) -> str:
    """One line for an error."""
    error = leaf_of(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} ({frame.name}, line {frame.lineno}): {error}"


def run_share(first: int, count: int) -> Tally:
    """Some seeds, in this process."""
    logging.disable(logging.CRITICAL)  # what brokers tell of all that goes wrong is no news here
    tally = Tally()
    for seed in range(first, first + count):
        tally.note(run_seed(seed))
    return tally


def run_many(first: int, count: int, processes: int) -> Iterator[Tally]:
    """Seeds from `first` on; the tally of each share as it comes."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        shares = [
            pool.submit(run_share, begin, min(SHARE, first + count - begin))
            for begin in range(first, first + count, SHARE)
        ]
        for share in shares:
            yield share.result()
