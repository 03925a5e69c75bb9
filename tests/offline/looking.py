"""Inspections in tests, and whether a store is left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.recovery.stores import World
from trio_mq.config import Settings, StoreSettings
from trio_mq.offline import Rehearsal, Wanted, recover_offline, rehearse
from trio_mq.recovery.inspection import Inspection, StateFinding

#: Sizes that are given where no file of a damaged store tells them.
_KEYS = (
    "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
)
GIVEN = dict.fromkeys(_KEYS, "test")


def wanted(world: World, *, given: bool = False, **more: object) -> Wanted:
    """A store whose sizes come from its files, but with `given` from the settings of the test."""
    settings = Settings(
        store=world.settings if given else StoreSettings(), origins=GIVEN if given else {}
    )
    return Wanted(world.root, settings, **more)


async def inspect(world: World, **more: object) -> Inspection:
    """What a dry run tells, after a look that it changes nothing."""
    with unchanged(world):
        async with rehearse(world.disk, world.clock, wanted(world, **more)) as rehearsal:
            return rehearsal.inspection


async def carry_out(world: World, **more: object) -> Inspection:
    """Recover without a broker."""
    return await recover_offline(world.disk, world.clock, wanted(world, **more), nothing)


async def nothing(rehearsal: Rehearsal) -> None:
    """What is done between rehearsal and recovery."""


@contextmanager
def unchanged(world: World) -> Iterator[None]:
    """No name, byte, or time of a file in the store is another one after the block."""
    before = snapshot(world)
    yield
    assert snapshot(world) == before


def snapshot(world: World) -> dict[str, tuple[int, bytes]]:
    """Time and content of every file; of folders the names are in the keys."""
    disk = world.disk
    found: dict[str, tuple[int, bytes]] = {}

    def gather(path: str) -> None:
        for name in disk.list_dir(path):
            inner = f"{path}/{name}"
            if disk.is_dir(inner):
                found[inner] = (0, b"")
                gather(inner)
            else:
                found[inner] = (disk.modified_ms(inner), world.read(inner))

    gather(world.root)
    return found


def state(found: Inspection, name: str) -> StateFinding:
    """What was found of a state file."""
    (one,) = [finding for finding in found.state_files if finding.path.endswith(name)]
    return one
