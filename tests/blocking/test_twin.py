"""Twins: what all blocking clients do alike, shown on a toy."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import time

import pytest

from tests.blocking.support import (
    BlockingToy,
    Thread,
    Toy,
    alive,
    client_threads,
    interrupted_when,
    until,
)
from trio_mq.blocking.portal import Portal
from trio_mq.errors import ClientError, NotOpen

CYCLES = 1_000


def test_methods_give_what_the_originals_give() -> None:
    with BlockingToy(3) as toy:
        assert toy.add(1) == 4
        assert toy.add(2, twice=True) == 8
        assert toy.reset(to=5) == "trio-mq BlockingToy"
        with pytest.raises(KeyError, match="wrong"):
            toy.wrong()
        assert toy.add(1) == 6


def test_methods_look_like_the_originals() -> None:
    assert inspect.signature(BlockingToy.add) == inspect.signature(Toy.add)
    assert inspect.signature(BlockingToy) == inspect.signature(Toy)
    assert BlockingToy.add.__doc__ == Toy.add.__doc__
    assert not inspect.iscoroutinefunction(BlockingToy.add)
    with pytest.raises(TypeError):
        BlockingToy()


def test_outside_its_block_nothing_works() -> None:
    toy = BlockingToy(1)
    with pytest.raises(NotOpen, match=r"BlockingToy.* is not open yet.*`with` block"):
        toy.add(1)
    with toy:
        kept = toy.numbers()
        assert next(kept) == 0
    for use in (lambda: toy.add(1), lambda: toy.reset(), toy.numbers):
        with pytest.raises(NotOpen, match=r"BlockingToy.* is closed"):
            use()
    with pytest.raises(NotOpen, match="opened before"):
        toy.__enter__()
    assert list(kept) == []


def test_an_open_client_is_not_opened_again() -> None:
    with BlockingToy(1) as toy, pytest.raises(NotOpen, match="opened before"):
        toy.__enter__()


def test_it_is_opened_used_and_closed_by_different_threads() -> None:
    toy = BlockingToy(0)
    Thread(toy.__enter__).ended()
    threads = [Thread(lambda: [toy.add(1) for _ in range(100)]) for _ in range(10)]
    for thread in threads:
        thread.ended()
    assert toy.add(0) == 1_000
    Thread(lambda: toy.__exit__(None, None, None)).ended()
    assert toy.toy.ended == ["block"]
    assert client_threads() == set()


def test_errors_of_opening_and_closing_reach_the_caller() -> None:
    with pytest.raises(ValueError, match="cannot open"), BlockingToy(1, fail="opening"):
        pass
    with pytest.raises(ValueError, match="cannot close"), BlockingToy(1, fail="closing"):
        pass
    assert client_threads() == set()


def test_an_error_of_the_block_leaves_as_itself() -> None:
    with pytest.raises(ZeroDivisionError) as caught, BlockingToy(1):
        _ = 1 / 0
    assert caught.value.__context__ is None
    assert client_threads() == set()


def test_a_failure_inside_ends_what_waits_and_leaves_at_the_end() -> None:
    got = []

    def block() -> None:
        with BlockingToy(1) as toy:
            for number in toy.numbers():
                got.append(number)
                if number == 2:
                    toy.break_inside()

    with pytest.raises(ValueError, match="broken inside"):
        block()
    assert got == [0, 1, 2]


def test_the_end_of_the_block_ends_loops_of_other_threads() -> None:
    got: list[int] = []
    with BlockingToy(1) as toy:
        thread = Thread(lambda: [got.append(number) for number in toy.numbers()])
        until(lambda: len(got) == 3 or not thread.is_alive(), "the loop")
    thread.ended()
    assert got == [0, 1, 2]


def test_the_end_of_the_block_ends_calls_of_other_threads() -> None:
    with BlockingToy(1) as toy:
        thread = Thread(toy.wait)
        until(lambda: toy.toy.waiting, "the call")
    with pytest.raises(NotOpen, match="closed while this call waited"):
        thread.ended()
    assert toy.toy.ended == ["block", "wait"]


def test_a_loop_that_is_left_ends_its_source() -> None:
    with BlockingToy(1) as toy:
        for _ in toy.numbers():
            break
        until(lambda: toy.toy.ended == ["numbers"], "the end")


def test_ctrl_c_ends_a_waiting_call_and_leaves_the_client_open() -> None:
    with BlockingToy(1) as toy:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: toy.toy.waiting):
            toy.wait()
        assert time.monotonic() - began < 5
        until(lambda: toy.toy.ended == ["wait"], "the end of the call")
        assert toy.add(1) == 2


def test_ctrl_c_while_it_opens() -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        interrupted_when(client_threads),
        BlockingToy(1, fail="opens slowly"),
    ):
        pass
    until(lambda: not client_threads(), "the end of the thread")


def test_ctrl_c_in_the_block_closes_in_order() -> None:
    with pytest.raises(KeyboardInterrupt), BlockingToy(1) as toy:
        raise KeyboardInterrupt
    assert toy.toy.ended == ["block"]
    assert client_threads() == set()


def test_a_function_inside_that_uses_the_client_is_told_so() -> None:
    class Reentrant(Toy):
        def reset(self, to: int = 0) -> str:
            return str(toy.add(to))

    toy = BlockingToy(1)
    toy._client = Reentrant(1)
    with toy, pytest.raises(ClientError, match="would wait for itself"):
        toy.reset()


def test_a_client_that_is_dropped_is_told_of_and_ends() -> None:
    toys = [BlockingToy(1).__enter__()]
    inside = toys[0].toy
    with pytest.warns(ResourceWarning, match="was dropped inside its `with` block"):
        toys.clear()
    until(lambda: not client_threads(), "the end of the thread")
    assert inside.ended == ["block"]


def test_a_thousand_blocks_leave_nothing() -> None:
    with BlockingToy(1) as toy:  # what is loaded with the first one
        toy.add(1)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(CYCLES):
        with BlockingToy(1) as toy:
            assert toy.add(1) == 2
    del toy
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert alive(BlockingToy) == alive(Toy) == alive(Portal) == 0


FORKED = """
import os, sys
from tests.blocking.support import BlockingToy
from trio_mq.errors import NotOpen

def child(toy):
    try:
        toy.add(1)
    except NotOpen as error:
        print("child:", error)
    with BlockingToy(10) as own:
        print("child:", own.add(1))

with BlockingToy(1) as toy:
    toy.add(1)
    pid = os.fork()
    if not pid:
        child(toy)
if not pid:
    sys.stdout.flush()
    sys.exit(7)  # with all that an interpreter does at its end
_, status = os.waitpid(pid, 0)
print("parent:", os.waitstatus_to_exitcode(status), toy.toy.ended)
"""


def test_after_a_fork_the_child_opens_its_own() -> None:
    told = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert told.stderr == ""
    lines = told.stdout.splitlines()
    assert "belongs to process" in lines[0]
    assert lines[1:] == ["child: 11", "parent: 7 ['block']"]


FORGOTTEN = """
from tests.blocking.support import BlockingToy
toy = BlockingToy(1)
toy.__enter__()
print(toy.add(1))
"""


def test_a_client_that_is_never_closed_does_not_keep_the_process() -> None:
    told = subprocess.run(
        [sys.executable, "-c", FORGOTTEN], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout == "2\n"
