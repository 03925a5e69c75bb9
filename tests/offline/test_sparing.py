"""An index that takes some keys and counts the others tells as much as one that takes all."""

from __future__ import annotations

import pytest

from tests.recovery.stores import World
from trio_mq.offline import sparing
from trio_mq.offline.sparing import SparingIndex
from trio_mq.recovery.inspection import Verdict

from .looking import inspect


@pytest.mark.parametrize("limit", [0, 3, 500])
async def test_a_lost_index_is_counted(world: World, monkeypatch, limit: int):
    monkeypatch.setattr(SparingIndex, "limit", limit)
    await world.filled(300)
    world.disk.remove_tree(world.path("index"))
    found = await inspect(world, given=True)
    assert (found.index.found, found.index.left, found.index.added) == (0, 0, 600)
    assert found.verdict is Verdict.CHANGES


@pytest.mark.parametrize("limit", [0, 3, 500])
async def test_keys_behind_a_cut_are_counted(world: World, monkeypatch, limit: int):
    monkeypatch.setattr(SparingIndex, "limit", limit)
    offsets = await world.filled(300, kill=True)
    await world.restart()
    world.flip(offsets[100] + 90)
    world.resize(world.path("checkpoint"), 0)
    for topic_queue in range(3):  # so that the walk begins before the damage
        world.cut_entries("T", topic_queue, 33, 1)
    found = await inspect(world)
    assert found.report.log_end == offsets[100]
    assert found.index.found == 600
    assert found.index.left + found.index.added == 200


async def test_few_keys_are_put_in_as_a_start_does(world: World):
    assert sparing.KEYS_INSERTED > 1000
    await world.filled(100, kill=True)
    await world.restart()
    world.crash()
    found = await inspect(world)
    assert not any(change.path.startswith("index/") for change in found.changes)
    assert found.verdict is Verdict.SOUND
