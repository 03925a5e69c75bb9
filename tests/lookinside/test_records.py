"""Single records by their offset, the last one of a file, and walks past damage."""

from __future__ import annotations

from tests.recovery.stores import World
from trio_mq.lookinside.records import first_record, last_record, record_at, walk

from .support import view_of


async def test_a_record_is_only_where_it_begins(world: World) -> None:
    offsets = await world.filled(60)
    with view_of(world) as view:
        for number, offset in enumerate(offsets):
            raw = record_at(view.log, offset, check_crc=True)
            assert raw is not None
            assert raw.decoded().body == b"body %d" % number
        for offset in (-1, offsets[3] + 1, 1 << 40, offsets[-1] + 200):
            assert record_at(view.log, offset) is None


async def test_a_record_that_is_longer_than_a_guess(memory_world: World) -> None:
    memory_world = World.make(memory_world.disk, "/long", mapped_file_size_commit_log=1 << 20)
    async with memory_world.life() as store:
        offset = memory_world.send(store, b"x" * 300_000)
    with view_of(memory_world) as view:
        raw = record_at(view.log, offset)
        assert raw is not None
        assert len(raw.decoded().body) == 300_000
        assert [len(r.data) for r in walk(view.log, None, print)] == [raw.whole.size]


async def test_a_size_that_lies_is_not_read_for(memory_world: World) -> None:
    offsets = await memory_world.filled(20)
    memory_world.write_log((1 << 30).to_bytes(4, "big"), offsets[7])
    with view_of(memory_world) as view:
        assert record_at(view.log, offsets[7]) is None


async def test_first_and_last_of_each_file(memory_world: World) -> None:
    offsets = await memory_world.filled(200)
    size = memory_world.settings.mapped_file_size_commit_log
    with view_of(memory_world) as view:
        for start in view.log.starts:
            inside = [offset for offset in offsets if start <= offset < start + size]
            first, last = first_record(view.log, start), last_record(view.log, start, start + size)
            assert first is not None
            assert last is not None
            assert (first.log_offset, last.log_offset) == (inside[0], inside[-1])


async def test_a_walk_tells_of_damage_and_goes_on(memory_world: World) -> None:
    offsets = await memory_world.filled(60)
    memory_world.write_log(b"\xff" * 30, offsets[20])
    troubles: list[tuple[int, int]] = []
    with view_of(memory_world) as view:
        found = [
            raw.log_offset
            for raw in walk(view.log, None, lambda begin, end, _: troubles.append((begin, end)))
        ]
    assert found == offsets[:20] + offsets[21:]
    assert troubles == [(offsets[20], offsets[21])]
