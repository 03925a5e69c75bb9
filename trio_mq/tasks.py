"""How tasks wait, stop, start again and recur; the small set of ways that every subsystem uses.

In: async functions of a subsystem. Out: a watermark to wait on, a stage that ends in order, a
restart with backoff, and a scheduler for periodic work. Called by ``system`` and by the ``run`` of
each subsystem. All durations are on Trio's clock, so tests turn it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from trio_mq.errors import StoreDamaged

log = logging.getLogger("trio_mq.tasks")

NEVER_RETRIED: Final = (AssertionError, StoreDamaged)
"""A broken invariant or damage does not get better by trying again; a full disk may."""


@attrs.define(eq=False)
class Watermark:
    """A number that only moves forward, and that tasks can wait on: a log offset, mostly."""

    value: int = 0
    #: How often it fell back.
    falls: int = attrs.field(default=0, init=False)
    _moved: trio.Event | None = attrs.field(default=None, init=False)

    def advance(self, to: int) -> None:
        """Move to `to` and wake whoever waits; costs next to nothing when nobody does."""
        assert to >= self.value, "a watermark never moves back"
        self.value = to
        if self._moved is not None:
            self._moved.set()
            self._moved = None

    def fall_back(self, to: int) -> None:
        """Go back to `to`, if that is less: what was counted is gone. Who waits goes on waiting."""
        if to < self.value:
            self.value = to
            self.falls += 1

    async def reached(self, target: int) -> None:
        """Wait until the value is at least `target`. Cancelling leaves nothing behind."""
        await trio.lowlevel.checkpoint()
        while self.value < target:
            if self._moved is None:
                self._moved = trio.Event()
            await self._moved.wait()


@asynccontextmanager
async def stage() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks end when its block does: leaving an inner stage ends the next one out.

    That gives the order of a stop. An error in a task cancels the block, as with any nursery.
    """
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()  # reached only when the inner stages are gone


async def restart(
    run: Callable[[], Awaitable[object]],
    *,
    name: str,
    expected: tuple[type[Exception], ...],
    first_delay_s: float = 1.0,
    longest_delay_s: float = 30.0,
    healthy_after_s: float = 60.0,
) -> None:
    """Run `run` until it returns, again after each failure that the outside is to blame for.

    `expected` lists those failures (a refused connection, a reset stream), alone or as a group of
    nothing else; any other error is raised at once. The pause doubles from `first_delay_s` to
    `longest_delay_s`, and starts over when a run has lasted `healthy_after_s`. There is no limit to
    the number of runs: a peer may be away for days.
    """
    delay_s = first_delay_s
    while True:
        began_s = trio.current_time()
        try:
            await run()
            return
        except expected as error:
            reason = describe(error)
        except BaseExceptionGroup as group:
            if group.split(expected)[1] is not None:
                raise
            reason = describe(group)
        if trio.current_time() - began_s >= healthy_after_s:
            delay_s = first_delay_s
        log.warning("%s ended: %s; again in %g s", name, reason, delay_s)
        await trio.sleep(delay_s)
        delay_s = min(2 * delay_s, longest_delay_s)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group, in their order; an error by itself is its own leaf."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error


def first_failure(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of the task that failed first, or else what stopped the nursery from outside."""
    found = list(leaves(group))
    return next((e for e in found if not isinstance(e, trio.Cancelled)), found[0])


def describe(error: BaseException) -> str:
    """One line for an error: the leaves of a group, and the class where there is no text."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(describe(leaf) for leaf in error.exceptions))
    text = " ".join(str(error).split())
    return text or type(error).__name__


@attrs.frozen(kw_only=True)
class PeriodicTask:
    """Work that recurs.

    The first run starts after `initial_delay_s`, the following ones every `interval_s` counted from
    start to start. A run that fails is tried up to `max_retry` more times with `retry_delay_s` in
    between. When all of them failed, a `fatal` task raises its last error, which ends the process
    with that error's exit code; any other task is logged and counted, and the next interval begins
    with fresh tries. Errors of :data:`NEVER_RETRIED` are raised at once, fatal or not.
    """

    name: str
    run: Callable[[], Awaitable[object]]
    interval_s: float = attrs.field(validator=attrs.validators.gt(0))
    initial_delay_s: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))
    max_retry: int = attrs.field(default=3, validator=attrs.validators.ge(0))
    retry_delay_s: float = attrs.field(default=1.0, validator=attrs.validators.ge(0))
    enabled: bool = True
    fatal: bool = False


@attrs.define
class TaskReport:
    """What became of a periodic task so far; `skipped` counts intervals lost to a long run."""

    name: str
    enabled: bool
    runs: int = 0
    failures: int = 0
    given_up: int = 0
    skipped: int = 0
    last_error: str | None = None


class Scheduler:
    """Runs periodic tasks, each in a task of its own, in one nursery that it owns.

    A task never overlaps with itself: a run that takes longer than its interval skips the starts
    that it missed, so nothing piles up. Cancelling :meth:`run` cancels all work at once; work that
    must not be cut short shields itself, with a time limit.
    """

    def __init__(self, tasks: Iterable[PeriodicTask]) -> None:
        self._tasks = tuple(tasks)
        self._reports = {task.name: TaskReport(task.name, task.enabled) for task in self._tasks}
        assert len(self._reports) == len(self._tasks), "periodic tasks need different names"

    def reports(self) -> tuple[TaskReport, ...]:
        """Copies of what is known about each task, in the order given."""
        return tuple(attrs.evolve(report) for report in self._reports.values())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the enabled tasks until cancelled, or until a fatal one fails."""
        async with trio.open_nursery() as nursery:
            for task in self._tasks:
                if task.enabled:
                    nursery.start_soon(self._recur, task, name=f"periodic {task.name}")
            task_status.started()
            await trio.sleep_forever()

    async def _recur(self, task: PeriodicTask) -> None:
        report = self._reports[task.name]
        due_s = trio.current_time() + task.initial_delay_s
        while True:
            await trio.sleep_until(due_s)
            await self._try(task, report)
            due_s += task.interval_s
            missed = max(0, math.ceil((trio.current_time() - due_s) / task.interval_s))
            report.skipped += missed
            due_s += missed * task.interval_s

    async def _try(self, task: PeriodicTask, report: TaskReport) -> None:
        """One due run with its retries."""
        report.runs += 1
        for retry in range(task.max_retry + 1):
            if retry:
                await trio.sleep(task.retry_delay_s)
            try:
                await task.run()
            except Exception as error:
                report.failures += 1
                report.last_error = describe(error)
                if _is_never_retried(error) or (task.fatal and retry == task.max_retry):
                    raise
                log.warning(
                    "%s failed (try %d of %d): %s",
                    task.name,
                    retry + 1,
                    task.max_retry + 1,
                    report.last_error,
                    exc_info=not isinstance(error, OSError),
                )
            else:
                return
        report.given_up += 1
        log.error("%s given up until its next turn, in %g s", task.name, task.interval_s)


def _is_never_retried(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.subgroup(NEVER_RETRIED) is not None
    return isinstance(error, NEVER_RETRIED)
