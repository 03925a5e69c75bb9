"""What `ls` tells of files, queues and markers."""

from __future__ import annotations

from tests.recovery.stores import QUEUE_FILE_ENTRIES, SEGMENT_BYTES, World
from trio_mq.lookinside.listing import list_store
from trio_mq.protocol.layout import QUEUE_ENTRY_SIZE

from .support import view_of


async def test_files_queues_and_ends(world: World) -> None:
    offsets = await world.filled(200)
    before = world.files()
    with view_of(world) as view:
        found = list_store(view)
    assert world.files() == before
    assert found.log_start == 0
    assert offsets[-1] < found.log_end <= offsets[-1] + 400
    assert [file.full for file in found.log] == [True] * (len(found.log) - 1) + [False]
    assert all(file.used == SEGMENT_BYTES for file in found.log[:-1])
    assert found.log[-1].begin + found.log[-1].used == found.log_end
    rows = {(q.topic, q.queue_id): (q.min_offset, q.max_offset, q.files) for q in found.queues}
    assert rows == {("T", 0): (0, 67, 2), ("T", 1): (0, 67, 2), ("T", 2): (0, 66, 2)}
    assert sum(file.entries for file in found.index) == 400
    assert found.checkpoint is not None
    assert found.checkpoint["safeOffset"] == found.log_end
    assert not found.abort


async def test_expired_records_do_not_count(memory_world: World) -> None:
    offsets = await memory_world.filled(200)
    memory_world.disk.remove(memory_world.segment(0))
    left = [o for o in offsets if o >= SEGMENT_BYTES]
    with view_of(memory_world) as view:
        found = list_store(view)
    assert found.log_start == SEGMENT_BYTES
    assert sum(q.max_offset - q.min_offset for q in found.queues) == len(left)


async def test_a_hole_does_not_hide_what_is_behind(memory_world: World) -> None:
    await memory_world.filled(200)
    memory_world.cut_entries("T", 0, 5, 3)
    memory_world.disk.remove(memory_world.queue_file("T", 1, 0))
    with view_of(memory_world) as view:
        rows = {(q.queue_id): (q.min_offset, q.max_offset) for q in list_store(view).queues}
    assert rows == {0: (0, 67), 1: (QUEUE_FILE_ENTRIES, 67), 2: (0, 66)}


async def test_markers_and_other_files_are_listed(memory_world: World) -> None:
    await memory_world.filled(6)
    memory_world.crash()
    memory_world.write("/store/config/topics.json", b"{}")
    memory_world.write("/store/commitlog/cut/00000000000000000000", b"x")
    memory_world.resize("/store/checkpoint", 3)
    memory_world.disk.make_dirs("/store/consumequeue/T/9")
    with view_of(memory_world) as view:
        found = list_store(view)
    assert found.abort
    assert found.checkpoint is None
    assert [file.path for file in found.state] == ["/store/config/topics.json"]
    assert "/store/commitlog/cut/00000000000000000000" in [file.path for file in found.others]
    (empty,) = [q for q in found.queues if q.queue_id == 9]
    assert (empty.files, empty.min_offset, empty.max_offset) == (0, 0, 0)
    text = "\n".join(found.lines())
    assert "abort marker is there" in text
    assert "checkpoint: none that can be read" in text


async def test_a_short_queue_file_shows_its_real_size(memory_world: World) -> None:
    await memory_world.filled(60)
    memory_world.resize(memory_world.queue_file(), 30 * QUEUE_ENTRY_SIZE)
    with view_of(memory_world) as view:
        row = list_store(view).queues[0]
    assert (row.size, row.max_offset) == (30 * QUEUE_ENTRY_SIZE, 20)
