"""Threads that run plain functions for coroutines."""

from __future__ import annotations

import threading

import pytest
import trio

from tests.blocking.support import client_threads, until
from trio_mq.blocking.portal import Portal
from trio_mq.blocking.workers import Workers
from trio_mq.errors import NotOpen


@pytest.fixture
def portal():
    portal = Portal("trio-mq test")
    portal.start()
    yield portal
    portal.close()


async def several(workers, function, count):
    names = []

    async def one():
        names.append(await workers.call(function))

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return names


def test_results_and_errors_come_back(portal) -> None:
    workers = Workers(2, "trio-mq Toy")
    assert portal.call(lambda: workers.call(divmod, 7, 2)) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        portal.call(lambda: workers.call(divmod, 7, 0))
    workers.close()


def test_a_thread_is_kept_for_the_next_call(portal) -> None:
    workers = Workers(4, "trio-mq Toy")
    seen = {portal.call(lambda: workers.call(threading.current_thread)) for _ in range(10)}
    assert [thread.name for thread in seen] == ["trio-mq Toy worker"]
    workers.close()
    assert client_threads() == {"trio-mq test"}


def test_no_more_threads_than_were_allowed(portal) -> None:
    workers = Workers(3, "trio-mq Toy")
    together = threading.Barrier(3)

    def work() -> threading.Thread:
        together.wait(10)
        return threading.current_thread()

    assert len(set(portal.call(lambda: several(workers, work, 9)))) == 3
    workers.close()


def test_a_function_that_does_not_end_is_left(portal, caplog) -> None:
    workers = Workers(1, "trio-mq Toy")
    begun, end = threading.Event(), threading.Event()

    def stuck() -> None:
        begun.set()
        end.wait()

    call = portal.submit(lambda: workers.call(stuck))
    begun.wait()
    call.cancel()
    with pytest.raises(NotOpen):
        call.result()
    portal.close()
    workers.close(grace_s=0.05)
    assert "1 functions of trio-mq Toy still run" in caplog.text
    end.set()
    until(lambda: not client_threads(), "the end of the function")
