"""Whatever is damaged: a dry run ends with a verdict, changes nothing, and a recovery does what it said."""

from __future__ import annotations

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.recovery.stores import World
from trio_mq.errors import TrioMQError
from trio_mq.recovery.inspection import Verdict
from trio_mq.recovery.inspectiontext import lines
from trio_mq.testing.disk import MemoryDisk

from .looking import carry_out, inspect

CUTS = st.tuples(
    st.sampled_from(["flip", "zero", "shorten", "remove", "garbage"]),
    st.integers(0, 1 << 30),
    st.integers(0, 1 << 30),
    st.integers(1, 600),
)


def spoil(world: World, how: str, which: int, where: int, length: int) -> None:
    """Do something to one of the files."""
    names = sorted(name for name in world.files() if name != "lock")
    if not names:
        return
    path = world.path(names[which % len(names)])
    data = world.read(path)
    if how == "remove":
        world.disk.remove(path)
    elif how == "shorten":
        world.resize(path, where % (len(data) + 1))
    elif data:
        at = where % len(data)
        length = min(length, len(data) - at)
        made = {"zero": bytes(length), "garbage": bytes(n * 7 % 251 for n in range(length))}
        world.write(path, made.get(how, bytes([data[at] ^ 1])), at)


@settings(max_examples=25)
@given(st.lists(CUTS, min_size=1, max_size=3), st.booleans())
@example([("zero", 5, 0, 12), ("zero", 8, 0, 31)], False)  # a hole, and an index header
@example([("zero", 5, 0, 12), ("zero", 8, 0, 40)], False)
@example([("zero", 5, 0, 12), ("zero", 8, 2360, 600)], False)
def test_a_dry_run_tells_what_a_recovery_does(cuts: list[tuple], kill: bool):
    trio.run(damaged, cuts, kill)


async def damaged(cuts: list[tuple], kill: bool) -> None:
    world = World.make(MemoryDisk(), "store")
    await world.filled(90, kill=kill)
    world.write(world.path("config/consumerOffset.json"), b'{"offsetTable":{"T@g":{0:3}}}')
    for cut in cuts:
        spoil(world, *cut)
    try:
        told = await inspect(world, given=True)
    except TrioMQError:  # no store any more, or not one that can be read
        return
    assert list(lines(told))
    if told.verdict is Verdict.REFUSED:
        before = world.files()
        assert (await carry_out(world, given=True)).verdict is Verdict.REFUSED
        assert world.files() == before
        return
    done = await carry_out(world, given=True)
    assert done.verdict is told.verdict
    assert done.report.log_end == told.report.log_end
    assert done.report.cut_bytes == told.report.cut_bytes
    assert done.queue_changes == told.queue_changes
    again = await inspect(world, given=True)
    assert again.lost.records == 0
    assert again.verdict in (Verdict.SOUND, Verdict.CHANGES)
    if not again.is_damaged:
        assert again.verdict is Verdict.SOUND, list(lines(again))
