"""Records behind a cut, written to a file before they are cut off, and read again."""

from __future__ import annotations

import json

from tests.recovery.stores import World
from trio_mq.lookinside.lines import parse
from trio_mq.offline import rehearse
from trio_mq.offline.salvage import salvage
from trio_mq.protocol import properties

from .looking import unchanged, wanted
from .test_rehearsal import damaged_behind


async def test_every_readable_record_behind_the_cut_is_written(world: World, tmp_path):
    offsets = await damaged_behind(world)
    path = tmp_path / "salvaged.jsonl"
    with unchanged(world):
        async with rehearse(world.disk, world.clock, wanted(world)) as rehearsal:
            with path.open("x") as target:
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
        with path.open("x") as target:
            assert await salvage(rehearsal, target) == 18
    written = [json.loads(line)["logOffset"] for line in path.read_text().splitlines()]
    assert written == offsets[111:120] + offsets[121:]


async def test_nothing_is_lost_so_nothing_is_written(world: World, tmp_path):
    await world.filled(10)
    path = tmp_path / "salvaged.jsonl"
    async with rehearse(world.disk, world.clock, wanted(world)) as rehearsal:
        with path.open("x") as target:
            assert await salvage(rehearsal, target) == 0
    assert path.read_text() == ""
