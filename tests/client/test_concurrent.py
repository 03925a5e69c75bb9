"""Handlers and settlements: what values mean, failures, time-outs, ends."""

from __future__ import annotations

import functools
import logging
from contextlib import asynccontextmanager

import anyio
import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.backends import both
from tests.client.received import message_at, until
from trio_mq.client.concurrent import HERE_AGAIN_S, HandlerRun, Settling, outcome_of
from trio_mq.client.lifetime import background
from trio_mq.client.messages import Outcome
from trio_mq.client.processqueue import ProcessQueue
from trio_mq.client.ready import Ready
from trio_mq.client.sendback import OVERDUE_LEVEL
from trio_mq.errors import HandlerError, PeerUnavailable
from trio_mq.protocol.bodies import MessageQueue

QUEUE = MessageQueue("T", "b1", 0)


class Brokers:
    """Where messages are sent back to."""

    def __init__(self):
        self.taken, self.failing, self.slow_s = [], False, 0.0

    async def __call__(self, message, delay_level):
        await anyio.sleep(self.slow_s)
        if self.failing:
            raise PeerUnavailable("b1 is down")
        self.taken.append((message.queue_offset, delay_level))


@attrs.define(eq=False)
class Consuming:
    queue: ProcessQueue
    ready: Ready
    brokers: Brokers
    settling: Settling
    runs: list = attrs.field(factory=list)

    def add(self, *offsets):
        settler = self.settling.of(self.queue)
        self.queue.put([message_at(offset, settler=settler) for offset in offsets])
        self.queue.next_offset = max(offsets) + 1
        self.ready.add(self.queue)

    async def run(self, handler, concurrency=2, grace_s=10.0):
        run = HandlerRun(self.ready, handler, concurrency, grace_s)
        self.runs.append(run)
        await run()


@asynccontextmanager
async def consuming(broadcasting=False):
    async with background() as tasks:
        brokers, ready = Brokers(), Ready()
        settling = Settling(tasks, ready, None if broadcasting else brokers)
        yield Consuming(ProcessQueue(QUEUE, 0), ready, brokers, settling)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Outcome.ACK),
        (True, Outcome.ACK),
        (Outcome.ACK, Outcome.ACK),
        (False, Outcome.RETRY),
        (Outcome.RETRY, Outcome.RETRY),
    ],
)
def test_c179_values_that_mean_something(value, expected):
    assert outcome_of(value, message_at(0)) is expected


@pytest.mark.parametrize("value", ["ok", 1, 0, "", object(), [None]])
def test_c179_values_that_mean_nothing(value):
    with pytest.raises(HandlerError, match=r"returned .* for message id-000000 .*Outcome\.RETRY"):
        outcome_of(value, message_at(0))


async def test_c179_a_handler_that_returns_what_means_nothing_ends_the_run(autojump_clock):
    async with consuming() as it:
        it.add(0, 1)

        async def handler(message):
            return "ok" if message.queue_offset == 0 else None

        with pytest.raises(HandlerError, match="returned 'ok'"), trio.fail_after(5):
            await it.run(handler, concurrency=1)
        assert it.queue.position == 0, "it comes again"


async def test_c179_an_exception_is_logged_once_with_the_message_and_asks_for_a_retry(
    autojump_clock, caplog
):
    async with consuming() as it, background() as tasks:

        async def handler(message):
            if message.queue_offset == 1:
                raise ValueError("bad luck")

        with caplog.at_level(logging.ERROR):
            tasks.start_soon(it.run, handler)
            it.add(0, 1, 2)
            await wait_all_tasks_blocked()
        assert it.brokers.taken == [(1, 0)]
        assert it.queue.position == 3
        (record,) = caplog.records
        assert record.message == "message id-000001 of topic T failed and is asked for again"
        assert "bad luck" in str(record.exc_info[1])


async def test_c179_a_cancelled_handler_settles_nothing(autojump_clock):
    async with consuming() as it:

        async def handler(message):
            await trio.sleep_forever()

        it.add(0)
        with trio.move_on_after(1):
            await it.run(handler, grace_s=2.0)
        assert trio.current_time() == pytest.approx(3.0, abs=0.1)
        assert it.brokers.taken == []
        assert it.queue.position == 0


@both
async def test_plain_functions_run_in_threads_and_may_block():
    async with consuming() as it, background() as tasks:
        seen = []

        def handler(message):
            anyio.from_thread.run(anyio.sleep, 0)  # only a thread can
            seen.append(message.queue_offset)
            return message.queue_offset != 1

        tasks.start_soon(it.run, handler)
        it.add(0, 1, 2)
        await until(lambda: it.queue.position == 3)
        assert sorted(seen) == [0, 1, 2]
        assert it.brokers.taken == [(1, 0)]


async def test_handlers_of_any_form_are_called(autojump_clock):
    class Callable:
        def __init__(self):
            self.seen = []

        async def __call__(self, message):
            self.seen.append(message.queue_offset)

    async def with_argument(seen, message):
        seen.append(message.queue_offset)

    class Method:
        def __init__(self):
            self.seen = []

        async def handle(self, message):
            self.seen.append(message.queue_offset)

    called, given, method = Callable(), [], Method()
    for handler in (called, functools.partial(with_argument, given), method.handle):
        async with consuming() as it, background() as tasks:
            tasks.start_soon(it.run, handler)
            it.add(0)
            await wait_all_tasks_blocked()
    assert called.seen == given == method.seen == [0]


async def test_a_plain_function_may_make_a_coroutine():
    done = anyio.Event()

    async def handle(message):
        done.set()

    async with consuming() as it, background() as tasks:
        tasks.start_soon(it.run, lambda message: handle(message))
        it.add(0)
        await done.wait()


async def test_as_many_handlers_run_at_a_time_as_were_asked_for(autojump_clock):
    async with consuming() as it, background() as tasks:
        running = most = 0

        async def handler(message):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await trio.sleep(1)
            running -= 1

        tasks.start_soon(it.run, handler, 3)
        it.add(*range(9))
        await trio.sleep(3.5)
        assert most == 3
        assert it.queue.position == 9


async def test_a_handler_may_settle_by_itself(autojump_clock):
    async with consuming() as it, background() as tasks:

        async def handler(message):
            await message.retry(4)

        tasks.start_soon(it.run, handler)
        it.add(0)
        await wait_all_tasks_blocked()
        assert it.brokers.taken == [(0, 4)]
        assert it.queue.position == 1


async def test_c107_a_stop_waits_for_handlers_and_takes_no_more(autojump_clock):
    async with consuming() as it:
        done = []

        async def handler(message):
            await trio.sleep(1)
            done.append(message.queue_offset)

        it.add(*range(40))
        async with background() as tasks:
            tasks.start_soon(it.run, handler, 20)
            await trio.sleep(0.5)
            it.runs[0].stop()
            await it.runs[0].done.wait()
        assert trio.current_time() == pytest.approx(1.0, abs=0.01)
        assert sorted(done) == list(range(20))
        assert it.queue.position == 20


async def test_c107_a_cancelled_run_lets_handlers_finish_before_it_goes_on(autojump_clock):
    async with consuming() as it:
        done = []

        async def handler(message):
            await trio.sleep(1)
            done.append(message.queue_offset)

        it.add(0, 1)
        with trio.move_on_after(0.5) as scope:
            await it.run(handler, 2)
        assert scope.cancelled_caught
        assert trio.current_time() == pytest.approx(1.0, abs=0.01)
        assert it.queue.position == 2


async def test_idle_runs_stop_at_once(autojump_clock):
    async with consuming() as it, background() as tasks:

        async def handler(message): ...

        tasks.start_soon(it.run, handler, 8)
        await wait_all_tasks_blocked()
        it.runs[0].stop()
        await it.runs[0].done.wait()
        assert trio.current_time() == 0


async def test_a_closed_source_ends_a_run(autojump_clock):
    async with consuming() as it:

        async def handler(message): ...

        it.ready.close()
        with trio.fail_after(1):
            await it.run(handler)


async def test_broadcasting_failures_are_told_and_passed(autojump_clock, caplog):
    async with consuming(broadcasting=True) as it:
        it.add(0, 1)
        with caplog.at_level(logging.WARNING):
            await it.ready.take().retry()
        assert it.queue.position == 1
        assert "message id-000000 of topic T failed and is passed" in caplog.text


async def test_a_message_that_no_broker_takes_back_is_handed_out_again_here(autojump_clock, caplog):
    async with consuming() as it:
        it.brokers.failing = True
        it.add(0, 1)
        first = it.ready.take()
        with caplog.at_level(logging.WARNING):
            await first.retry()
        assert it.queue.position == 0
        assert "no broker takes it back: b1 is down" in caplog.text
        await it.ready.take().ack()
        assert it.ready.take() is None
        await trio.sleep(HERE_AGAIN_S + 0.1)
        again = it.ready.take()
        assert (again.queue_offset, again.body) == (0, first.body)
        assert not again.settled
        await again.ack()
        assert it.queue.position == 2


async def test_what_is_settled_after_its_queue_went_changes_nothing(autojump_clock):
    async with consuming() as it:
        it.add(0, 1)
        message = it.ready.take()
        it.queue.drop()
        await message.retry()
        assert it.brokers.taken == [], "the new owner gets it"


async def test_c106_a_retry_that_is_under_way_is_not_left_half_done_by_a_cancellation(
    autojump_clock,
):
    async with consuming() as it:
        it.brokers.slow_s = 1.0
        it.add(0)
        message = it.ready.take()
        with trio.move_on_after(0.5):
            await message.retry()
            await trio.lowlevel.checkpoint()
        assert it.brokers.taken == [(0, 0)]
        assert it.queue.position == 1, (
            "both or neither: it is not in the queue and in the retry topic"
        )


async def test_a_retry_is_not_waited_for_for_ever(autojump_clock):
    async with consuming() as it:
        it.brokers.slow_s = 10**6
        it.add(0)
        await it.ready.take().retry()
        assert trio.current_time() < 10
        assert it.queue.position == 0


async def test_a_handler_that_takes_too_long_does_not_hold_up_the_commit(autojump_clock, caplog):
    async with consuming() as it, background() as tasks:
        gate = trio.Event()

        async def handler(message):
            if message.queue_offset == 0:
                await gate.wait()
            return None

        with caplog.at_level(logging.WARNING):
            tasks.start_soon(it.settling.watch_overdue, lambda: [it.queue], 90.0)
            await trio.sleep(5)
            tasks.start_soon(it.run, handler)
            it.add(0, 1, 2)
            await trio.sleep(80)
            assert it.queue.position == 0
            await trio.sleep(20)
        assert it.queue.position == 3
        assert it.brokers.taken == [(0, OVERDUE_LEVEL)]
        assert "for more than 90 s" in caplog.text
        gate.set()
        await wait_all_tasks_blocked()
        assert it.brokers.taken == [(0, OVERDUE_LEVEL)], "what it returns then does not count"
