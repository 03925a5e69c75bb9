"""Records behind a cut, written to a file before they are cut off, and read again."""

from __future__ import annotations

import json

import pytest

from tests.recovery.stores import World
from trio_mq.errors import ConfigError
from trio_mq.lookinside.lines import parse
from trio_mq.offline import rehearse
from trio_mq.offline.salvage import open_target, salvage
from trio_mq.protocol import properties

from .looking import unchanged, wanted
from .test_rehearsal import damaged_behind


async def test_every_readable_record_behind_the_cut_is_written(world: World, tmp_path):
    offsets = await damaged_behind(world)
    path = tmp_path / "salvaged.jsonl"
    with unchanged(world):
        async with rehearse(world.disk, world.clock, wanted(world)) as rehearsal:
            with open_target(str(path), world.root) as target:
                count = await salvage(rehearsal, target)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert count == len(rows) == 19
    assert [row["logOffset"] for row in rows] == offsets[111:]
    assert {row["topic"] for row in rows} == {"Late"}
    read = [parse(line, now_ms=0) for line in path.read_text().splitlines()]
    assert [line.body for line in read] == [b"late %d" % n for n in range(11, 30)]
    assert [line.queue_id for line in read] == [n % 2 for n in range(11, 30)]
    assert [properties.parse(line.properties)["KEYS"] for line in read] == [
        f"late{n}" for n in range(11, 30)
    ]


async def test_records_between_two_damaged_places_are_written(world: World, tmp_path):
    offsets = await damaged_behind(world)
    world.flip(offsets[120] + 90)
    path = tmp_path / "salvaged.jsonl"
    async with rehearse(world.disk, world.clock, wanted(world)) as rehearsal:
        with open_target(str(path), world.root) as target:
            assert await salvage(rehearsal, target) == 18
    written = [json.loads(line)["logOffset"] for line in path.read_text().splitlines()]
    assert written == offsets[111:120] + offsets[121:]


async def test_nothing_is_lost_so_nothing_is_written(world: World, tmp_path):
    await world.filled(10)
    path = tmp_path / "salvaged.jsonl"
    async with rehearse(world.disk, world.clock, wanted(world)) as rehearsal:
        with open_target(str(path), world.root) as target:
            assert await salvage(rehearsal, target) == 0
    assert path.read_text() == ""


def test_the_file_is_new_and_outside_of_the_store(tmp_path):
    root = tmp_path / "store"
    root.mkdir()
    for inside in (root / "file", root / "commitlog" / ".." / "file", root):
        with pytest.raises(ConfigError, match="inside of the store"):
            open_target(str(inside), str(root))
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(ConfigError, match="inside of the store"):
        open_target(str(tmp_path / "link" / "file"), str(root))
    there = tmp_path / "there"
    there.write_text("precious")
    with pytest.raises(ConfigError, match="it is there already"):
        open_target(str(there), str(root))
    assert there.read_text() == "precious"
    with pytest.raises(ConfigError, match="No such file"):
        open_target(str(tmp_path / "no" / "folder"), str(root))
    beside = tmp_path / "store-salvaged"
    open_target(str(beside), str(root)).close()
    assert beside.exists()
