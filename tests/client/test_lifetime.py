"""The life of a client: entered once, tasks that end with their block, errors that leave as themselves."""

from contextlib import asynccontextmanager

import anyio
import pytest

from tests.backends import both
from trio_mq.client.lifetime import Owner, background, forever, only, sheltered, together
from trio_mq.errors import NotOpen


class Thing(Owner):
    """Tells what happens to it."""

    def __init__(self, fails=False):
        self.events, self.fails = [], fails

    @asynccontextmanager
    async def _running(self):
        self.events.append("opening")
        await anyio.lowlevel.checkpoint()
        if self.fails:
            raise OSError("cannot open")
        try:
            yield
        finally:
            self.events.append("closing")

    def use(self):
        self._check_open()

    def __repr__(self):
        return "<Thing>"


@both
async def test_an_owner_works_inside_its_block_only():
    thing = Thing()
    with pytest.raises(NotOpen, match=r"<Thing> is not open yet: use it inside its `async with`"):
        thing.use()
    async with thing as entered:
        assert entered is thing
        thing.use()
    with pytest.raises(NotOpen, match="<Thing> is closed"):
        thing.use()
    assert thing.events == ["opening", "closing"]


@both
async def test_an_owner_is_entered_once():
    thing = Thing()
    async with thing:
        with pytest.raises(NotOpen, match="was opened before; make a new one"):
            await thing.__aenter__()
        thing.use()  # the second try did no harm
    with pytest.raises(NotOpen, match="was opened before"):
        await thing.__aenter__()


@both
async def test_an_owner_that_cannot_open_is_closed():
    thing = Thing(fails=True)
    with pytest.raises(OSError, match="cannot open"):
        await thing.__aenter__()
    with pytest.raises(NotOpen, match="is closed"):
        thing.use()


@both
async def test_an_owner_that_is_cancelled_while_it_opens_is_closed():
    thing = Thing()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await thing.__aenter__()
    with pytest.raises(NotOpen, match="is closed"):
        thing.use()


def test_an_owner_that_is_made_and_dropped_does_nothing():
    """C178: what is never opened needs no care."""
    assert Thing().events == []


# -- background


async def wait(ended):
    try:
        await anyio.sleep_forever()
    finally:
        ended.append(True)


async def fail(error):
    await anyio.lowlevel.checkpoint()
    raise error


@both
async def test_tasks_end_with_their_block():
    ended = []
    async with background() as tasks:
        tasks.start_soon(wait, ended)
        await anyio.wait_all_tasks_blocked()
        assert not ended
    assert ended


@both
async def test_an_error_of_the_block_leaves_as_itself():
    ended = []
    with pytest.raises(LookupError, match="mine"):  # noqa: PT012
        async with background() as tasks:
            tasks.start_soon(wait, ended)
            await anyio.wait_all_tasks_blocked()
            raise LookupError("mine")
    assert ended


@both
async def test_an_error_of_a_task_ends_the_block_and_leaves_as_itself():
    with pytest.raises(LookupError, match="task"):  # noqa: PT012
        async with background() as outer, background() as inner:
            outer.start_soon(wait, [])
            inner.start_soon(fail, LookupError("task"))
            await anyio.sleep_forever()


@both
async def test_errors_of_several_tasks_leave_together():
    async def both_fail(gate, error):
        await gate.wait()
        raise error

    gate = anyio.Event()
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with background() as tasks:
            tasks.start_soon(both_fail, gate, LookupError("one"))
            tasks.start_soon(both_fail, gate, ValueError("other"))
            await anyio.wait_all_tasks_blocked()
            gate.set()
            await anyio.sleep_forever()
    assert {type(error) for error in caught.value.exceptions} == {LookupError, ValueError}


@both
async def test_an_error_of_the_block_is_not_lost_behind_one_of_a_task(caplog):
    async def fails_at_the_end():
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("at the end")

    with pytest.raises(LookupError, match="mine"):  # noqa: PT012
        async with background() as tasks:
            tasks.start_soon(fails_at_the_end)
            await anyio.wait_all_tasks_blocked()
            raise LookupError("mine")
    assert "at the end" in caplog.text


@both
async def test_a_cancellation_passes_and_ends_the_tasks():
    ended = []
    with anyio.CancelScope() as scope:
        async with background() as tasks:
            tasks.start_soon(wait, ended)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert ended


def test_the_only_error_of_nested_groups():
    error = LookupError("one")
    assert only(error) is error
    assert only(ExceptionGroup("", [ExceptionGroup("", [error])])) is error
    group = ExceptionGroup("", [error, ValueError("two")])
    assert only(ExceptionGroup("", [group])) is group


# -- together


@both
async def test_together_waits_for_all():
    done = []

    async def work(number):
        await anyio.lowlevel.checkpoint()
        done.append(number)

    async with together() as tasks:
        for number in range(3):
            tasks.start_soon(work, number)
    assert sorted(done) == [0, 1, 2]


@both
async def test_together_the_first_error_ends_the_others_and_leaves_as_itself():
    ended = []
    with pytest.raises(LookupError, match="task"):  # noqa: PT012
        async with together() as tasks:
            tasks.start_soon(wait, ended)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(fail, LookupError("task"))
    assert ended
    with pytest.raises(LookupError, match="block"):
        async with together() as tasks:
            raise LookupError("block")


# -- sheltered, forever


@both
async def test_what_is_sheltered_outlives_a_cancellation_until_it_is_told_to_stop():
    events, stop = [], anyio.Event()

    @asynccontextmanager
    async def links():
        try:
            yield "links"
        finally:
            events.append("closed")

    with anyio.CancelScope() as scope:
        async with background() as tasks:
            try:
                assert await tasks.start(sheltered, links, stop) == "links"
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
                assert events == []  # good for last words
                stop.set()
    assert events == ["closed"]


async def test_forever_pauses_after_each_end(autojump_clock):
    began, times = anyio.current_time(), []

    async def work():
        times.append(anyio.current_time() - began)
        await anyio.sleep(2)

    async with background() as tasks:
        tasks.start_soon(lambda: forever(10, work, first_s=3))
        await anyio.sleep(30)
    assert times == pytest.approx([3, 15, 27])
