"""The thread that runs a client: calls, context managers, functions in other threads."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import asynccontextmanager

import pytest
import trio

from tests.blocking.support import Thread, client_threads, interrupted_when
from trio_mq.blocking.portal import Held, Portal, call_with_function
from trio_mq.errors import NotOpen


@pytest.fixture
def portal():
    portal = Portal("trio-mq test")
    portal.start()
    yield portal
    portal.close()
    assert client_threads() == set()


def test_calls_after_the_end_are_refused(portal) -> None:
    portal.close()
    with pytest.raises(NotOpen):
        portal.call(trio.lowlevel.checkpoint)
    portal.close()


def test_a_start_that_is_interrupted_leaves_no_thread(monkeypatch) -> None:
    """Ctrl-C while the new thread is on its way: it has no number yet, and runs afterwards."""
    portal, late = Portal("trio-mq test"), []

    def start() -> None:
        late.append(portal._run)
        raise KeyboardInterrupt

    monkeypatch.setattr(portal._thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        portal.start()
    portal.close()
    Thread(late[0]).ended()


def test_in_another_process_nothing_of_it_works_and_nothing_waits(portal, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(NotOpen, match="from which this one was forked"):
            portal.call(trio.lowlevel.checkpoint)
        portal.stop_soon()
        portal.close()
    portal.call(trio.lowlevel.checkpoint)


def test_exceptions_of_all_kinds_come_back(portal) -> None:
    async def stop() -> None:
        raise StopAsyncIteration

    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(StopAsyncIteration):
        portal.call(stop)
    with pytest.raises(SystemExit):
        portal.call(leave)
    portal.call(trio.lowlevel.checkpoint)


def test_a_call_is_cancelled_from_outside(portal) -> None:
    call = portal.submit(trio.sleep_forever)
    call.cancel()
    with pytest.raises(NotOpen):
        call.result()
    call.cancel()


def test_names_of_hosts_are_looked_up_in_threads_that_end(portal) -> None:
    before = set(threading.enumerate())

    async def look_up() -> list[tuple]:
        assert await trio.socket.getnameinfo(("127.0.0.1", 80), socket.NI_NUMERICSERV)
        return await trio.socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)

    assert all(found[4][1] == 80 for found in portal.call(look_up))
    portal.close()
    assert set(threading.enumerate()) < before


@asynccontextmanager
async def telling(told, end=None):
    told.append("in")
    try:
        yield "value"
    except ZeroDivisionError:
        told.append("error")
        raise
    finally:
        told.append("out")
        if end is not None:
            await end.wait()


def test_a_context_is_entered_and_left_in_one_task(portal) -> None:
    told = []
    held = Held(portal, telling(told))
    assert held.enter() == "value"
    assert held.leave() is False
    assert told == ["in", "out"]


def test_a_context_gets_the_error_of_the_block(portal) -> None:
    told = []
    held = Held(portal, telling(told))
    held.enter()
    assert held.leave(ZeroDivisionError()) is False
    assert told == ["in", "error", "out"]


def test_an_interrupt_while_a_context_closes_cancels_that(portal) -> None:
    told = []
    held = Held(portal, telling(told, trio.Event()))
    held.enter()
    with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: "out" in told):
        held.leave()


def test_a_function_runs_in_the_thread_that_waits(portal) -> None:
    names = []

    async def method(function) -> str:
        first = await function("one")
        return first + await function("two")

    def function(word: str) -> str:
        names.append(threading.current_thread())
        return word

    assert call_with_function(portal, method, function) == "onetwo"
    assert names == [threading.current_thread()] * 2


def test_what_such_a_function_raises_is_raised_in_the_method(portal) -> None:
    async def method(function) -> str:
        try:
            await function(1)
        except ValueError as error:
            return f"caught {error}"
        return "nothing"

    def function(_: int) -> None:
        raise ValueError("bad")

    assert call_with_function(portal, method, function) == "caught bad"


def test_ctrl_c_in_such_a_function_or_before_it(portal) -> None:
    async def method(function) -> None:
        await function(1)

    async def waiting(function) -> None:
        await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: True):
        call_with_function(portal, method, lambda _: time.sleep(20))
    with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: True):
        call_with_function(portal, waiting, lambda _: None)


def test_the_end_of_the_portal_ends_such_a_call(portal) -> None:
    async def waiting(function) -> None:
        await trio.sleep_forever()

    thread = Thread(lambda: call_with_function(portal, waiting, lambda _: None))
    portal.call(trio.lowlevel.checkpoint)
    portal.close()
    with pytest.raises(NotOpen):
        thread.ended()
