"""Waiting, stopping, restarting and recurring, on a clock that the tests turn."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
import trio
import trio.testing

from trio_mq.errors import StoreDamaged
from trio_mq.tasks import (
    PeriodicTask,
    Scheduler,
    Watermark,
    describe,
    first_failure,
    leaves,
    restart,
    stage,
)

Fails = Callable[[], Awaitable[None]]


# -- watermark


async def test_a_watermark_wakes_all_whose_target_is_reached() -> None:
    mark = Watermark()
    reached: list[int] = []

    async def wait(target: int) -> None:
        await mark.reached(target)
        reached.append(target)

    async with trio.open_nursery() as nursery:
        for target in (0, 5, 5, 9):
            nursery.start_soon(wait, target)
        await trio.testing.wait_all_tasks_blocked()
        assert reached == [0]
        mark.advance(4)
        await trio.testing.wait_all_tasks_blocked()
        assert reached == [0]
        mark.advance(7)
        await trio.testing.wait_all_tasks_blocked()
        assert reached == [0, 5, 5]
        mark.advance(9)
    assert reached == [0, 5, 5, 9]
    assert mark.value == 9


async def test_waiting_on_a_watermark_is_always_a_checkpoint() -> None:
    mark = Watermark(3)
    with trio.testing.assert_checkpoints():
        await mark.reached(3)


async def test_a_cancelled_wait_leaves_the_others_alone() -> None:
    mark = Watermark()
    with trio.CancelScope() as scope:
        scope.cancel()
        await mark.reached(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mark.reached, 1)
        await trio.testing.wait_all_tasks_blocked()
        mark.advance(1)


def test_a_watermark_never_moves_back() -> None:
    mark = Watermark(2)
    mark.advance(2)
    with pytest.raises(AssertionError, match="never moves back"):
        mark.advance(1)


# -- stage


async def test_stages_end_from_the_inside_out() -> None:
    ended: list[str] = []

    async def run(name: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(name)

    async with stage() as store, stage() as faces:
        store.start_soon(run, "store")
        faces.start_soon(run, "faces")
        await trio.testing.wait_all_tasks_blocked()
    assert ended == ["faces", "store"]


async def test_an_error_in_a_stage_ends_its_block_and_comes_out() -> None:
    async def fail() -> None:
        raise StoreDamaged("bad")

    with pytest.RaisesGroup(StoreDamaged):
        async with stage() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()


# -- restart


def failing(*errors: BaseException) -> tuple[Callable[[], Awaitable[None]], list[float]]:
    """A run that raises each of `errors`, then returns, and the times it began."""
    left = list(errors)
    began: list[float] = []

    async def run() -> None:
        began.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if left:
            raise left.pop(0)

    return run, began


async def test_restart_waits_longer_each_time_up_to_a_limit(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    run, began = failing(*[ConnectionRefusedError("refused")] * 5)
    start = trio.current_time()
    await restart(run, name="link", expected=(OSError,), first_delay_s=1, longest_delay_s=5)
    assert [round(at - start) for at in began] == [0, 1, 3, 7, 12, 17]
    assert caplog.messages[0] == "link ended: refused; again in 1 s"


async def test_restart_starts_over_after_a_healthy_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    began: list[float] = []

    async def run() -> None:
        began.append(trio.current_time())
        if len(began) == 3:
            await trio.sleep(60)
        if len(began) < 5:
            raise ConnectionResetError

    await restart(run, name="link", expected=(OSError,), healthy_after_s=60)
    pauses = [round(b - a) for a, b in pairwise(began)]
    assert pauses == [1, 2, 60 + 1, 2]


async def test_restart_takes_a_group_of_expected_errors_only(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    both = ExceptionGroup("", [ConnectionResetError("reset"), ConnectionResetError("reset")])
    run, began = failing(both)
    await restart(run, name="link", expected=(OSError,))
    assert len(began) == 2
    assert caplog.messages == ["link ended: reset; again in 1 s"]
    mixed = ExceptionGroup("", [ConnectionResetError(), StoreDamaged("bad")])
    run, began = failing(mixed)
    with pytest.RaisesGroup(ConnectionResetError, StoreDamaged):
        await restart(run, name="link", expected=(OSError,))
    assert len(began) == 1


async def test_restart_raises_what_is_not_expected() -> None:
    run, began = failing(StoreDamaged("bad"))
    with pytest.raises(StoreDamaged):
        await restart(run, name="link", expected=(OSError,))
    assert len(began) == 1


async def test_restart_can_be_cancelled_in_its_pause(
    autojump_clock: trio.testing.MockClock,
) -> None:
    run, began = failing(*[OSError("no")] * 100)
    with trio.move_on_after(10):
        await restart(run, name="link", expected=(OSError,))
    assert len(began) == 4  # at 0, 1, 3 and 7 s


def test_describe_is_one_line() -> None:
    assert describe(OSError("two\n lines")) == "two lines"
    assert describe(KeyError()) == "KeyError"
    group = ExceptionGroup("g", [OSError("a"), OSError("a"), ExceptionGroup("h", [OSError("b")])])
    assert describe(group) == "a; b"


# -- scheduler


async def run_for(scheduler: Scheduler, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await scheduler.run()


def recording(times: list[float], takes_s: float = 0, fails: tuple[int, ...] = ()) -> Fails:
    """Work that notes when it began, takes some time, and fails in the given runs (from 0)."""

    async def run() -> None:
        times.append(trio.current_time())
        if takes_s:
            await trio.sleep(takes_s)
        if len(times) - 1 in fails:
            raise OSError("no room")

    return run


async def test_periodic_work_starts_after_its_delay_and_keeps_its_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    times: list[float] = []
    start = trio.current_time()
    task = PeriodicTask(
        name="clean", run=recording(times, takes_s=3), interval_s=10, initial_delay_s=60
    )
    scheduler = Scheduler([task])
    await run_for(scheduler, 95)
    assert [round(at - start, 3) for at in times] == [60, 70, 80, 90]
    (report,) = scheduler.reports()
    assert (report.runs, report.failures, report.skipped, report.last_error) == (4, 0, 0, None)


async def test_a_disabled_task_never_runs(autojump_clock: trio.testing.MockClock) -> None:
    times: list[float] = []
    off = PeriodicTask(name="off", run=recording(times), interval_s=1, enabled=False)
    scheduler = Scheduler([off])
    await run_for(scheduler, 10)
    assert times == []
    assert [(report.name, report.enabled) for report in scheduler.reports()] == [("off", False)]


async def test_a_long_run_skips_the_starts_that_it_missed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    times: list[float] = []
    start = trio.current_time()
    scheduler = Scheduler([PeriodicTask(name="t", run=recording(times, 25), interval_s=10)])
    await run_for(scheduler, 100)
    assert [round(at - start, 3) for at in times] == [0, 30, 60, 90]
    assert scheduler.reports()[0].skipped == 6


async def test_a_run_as_long_as_its_interval_skips_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    times: list[float] = []
    start = trio.current_time()
    scheduler = Scheduler([PeriodicTask(name="t", run=recording(times, 8), interval_s=8)])
    await run_for(scheduler, 31)
    assert [round(at - start) for at in times] == [0, 8, 16, 24]
    assert scheduler.reports()[0].skipped == 0


async def test_a_slow_task_does_not_hold_up_another(autojump_clock: trio.testing.MockClock) -> None:
    slow: list[float] = []
    quick: list[float] = []
    scheduler = Scheduler(
        [
            PeriodicTask(name="slow", run=recording(slow, 1000), interval_s=1),
            PeriodicTask(name="quick", run=recording(quick), interval_s=1),
        ]
    )
    await run_for(scheduler, 5.5)
    assert (len(slow), len(quick)) == (1, 6)


async def test_a_failed_run_is_tried_again_and_then_the_interval_goes_on(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    times: list[float] = []
    start = trio.current_time()
    task = PeriodicTask(
        name="save",
        run=recording(times, fails=(0, 1)),
        interval_s=10,
        max_retry=3,
        retry_delay_s=1,
    )
    scheduler = Scheduler([task])
    await run_for(scheduler, 15)
    assert [round(at - start, 3) for at in times] == [0, 1, 2, 10]
    (report,) = scheduler.reports()
    assert (report.runs, report.failures, report.given_up) == (2, 2, 0)
    assert report.last_error == "no room"
    assert caplog.messages == [
        "save failed (try 1 of 4): no room",
        "save failed (try 2 of 4): no room",
    ]


async def test_retries_are_bounded_and_giving_up_is_logged_and_counted(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    times: list[float] = []
    start = trio.current_time()
    task = PeriodicTask(
        name="save", run=recording(times, fails=(0, 1, 2)), interval_s=10, max_retry=2
    )
    scheduler = Scheduler([task])
    await run_for(scheduler, 15)
    assert [round(at - start, 3) for at in times] == [0, 1, 2, 10]
    assert scheduler.reports()[0].given_up == 1
    assert caplog.records[-1].levelno == logging.ERROR
    assert caplog.messages[-1] == "save given up until its next turn, in 10 s"


async def test_a_fatal_task_ends_the_scheduler_after_its_last_retry(
    autojump_clock: trio.testing.MockClock,
) -> None:
    times: list[float] = []
    other_ended = trio.Event()

    async def other() -> None:
        try:
            await trio.sleep_forever()
        finally:
            other_ended.set()

    task = PeriodicTask(
        name="save", run=recording(times, fails=(0, 1)), interval_s=9, max_retry=1, fatal=True
    )
    scheduler = Scheduler([task, PeriodicTask(name="other", run=other, interval_s=1)])
    with pytest.RaisesGroup(OSError):
        await scheduler.run()
    assert len(times) == 2
    assert other_ended.is_set()


@pytest.mark.parametrize(
    "error",
    [
        StoreDamaged("bad"),
        AssertionError("ours"),
        ExceptionGroup("", [OSError(), StoreDamaged("bad")]),
    ],
)
async def test_damage_and_our_own_mistakes_are_never_retried(error: Exception) -> None:
    run, began = failing(error)
    scheduler = Scheduler([PeriodicTask(name="t", run=run, interval_s=1, max_retry=5)])
    with pytest.raises(ExceptionGroup) as caught:
        await scheduler.run()
    assert describe(caught.value) == describe(error)
    assert len(began) == 1


def test_leaves_come_in_their_order() -> None:
    first, second, third = ValueError("1"), OSError("2"), KeyError("3")
    nested = BaseExceptionGroup("", [ExceptionGroup("", [first, second]), third])
    assert list(leaves(nested)) == [first, second, third]
    assert list(leaves(third)) == [third]


async def test_the_first_failure_is_what_a_task_raised_and_not_what_it_cancelled() -> None:
    caught: list[BaseException] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            caught.append(cancelled)
            raise
    broken = OSError("broken")
    assert first_failure(BaseExceptionGroup("", caught)) is caught[0]
    assert first_failure(BaseExceptionGroup("", [*caught, broken])) is broken


async def test_cancelling_ends_work_at_once(autojump_clock: trio.testing.MockClock) -> None:
    times: list[float] = []
    start = trio.current_time()
    scheduler = Scheduler([PeriodicTask(name="t", run=recording(times, 1000), interval_s=1)])
    await run_for(scheduler, 2)
    assert trio.current_time() - start == pytest.approx(2)


async def test_the_scheduler_says_when_its_tasks_run() -> None:
    times: list[float] = []
    scheduler = Scheduler([PeriodicTask(name="t", run=recording(times), interval_s=1)])
    async with trio.open_nursery() as nursery:
        await nursery.start(scheduler.run)
        await trio.testing.wait_all_tasks_blocked()
        assert len(times) == 1
        nursery.cancel_scope.cancel()


def test_periodic_tasks_are_checked() -> None:
    run, _ = failing()
    for wrong in ({"interval_s": 0}, {"initial_delay_s": -1}, {"max_retry": -1}):
        with pytest.raises(ValueError, match="must be"):
            PeriodicTask(**{"name": "t", "run": run, "interval_s": 1, **wrong})
    same = PeriodicTask(name="t", run=run, interval_s=1)
    with pytest.raises(AssertionError, match="different names"):
        Scheduler([same, same])
