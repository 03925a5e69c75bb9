"""Rows of files as they lie there: ends of queues, entries by number, log offset and queue offset."""

from __future__ import annotations

import pytest

from tests.recovery.stores import QUEUE_FILE_ENTRIES, SEGMENT_BYTES, World
from trio_mq.errors import ForeignFormat
from trio_mq.lookinside.view import data_end, open_view
from trio_mq.protocol.layout import PRE_BLANK

from .support import view_of


async def test_ends_and_entries(world: World) -> None:
    offsets = await world.filled(200)
    with view_of(world) as view:
        queues = view.queues()
        assert [queue.name for queue in queues] == ["T/0", "T/1", "T/2"]
        queue = queues[1]
        end = queue.end()
        assert (queue.first, end) == (0, 67)
        assert [entry.log_offset for entry in queue.entries(0, end)] == offsets[1::3]
        for number in (0, 1, 49, 50, 66):
            log_offset = offsets[1::3][number]
            assert queue.find(log_offset, end) == number
            assert queue.find(log_offset + 1, end) == number + 1
            assert queue.find_queue_offset(number, end) == number
        assert queue.entry(5000) is None
        path, at = queue.place(60)
        assert (path, at) == (world.queue_file("T", 1, QUEUE_FILE_ENTRIES), 200)


async def test_topics_can_be_chosen_and_odd_names_are_passed_over(memory_world: World) -> None:
    await memory_world.filled(6)
    memory_world.write("/store/consumequeue/T/no number/x", b"")
    memory_world.write("/store/consumequeue/T/07/x", b"")
    memory_world.write("/store/consumequeue/file", b"")
    with view_of(memory_world) as view:
        assert [queue.queue_id for queue in view.queues()] == [0, 1, 2]
        assert view.queues(frozenset({"U"})) == []


async def test_blanks_count_to_what_is_before(memory_world: World) -> None:
    offsets = await memory_world.filled(60)
    path = memory_world.queue_file("T", 0)
    memory_world.write(path, PRE_BLANK * 5)
    with view_of(memory_world) as view:
        queue = view.queues()[0]
        assert queue.find(0, 20) == 5
        assert [entry.number for entry in queue.entries(0, 20)] == list(range(5, 20))
        first = queue.entry(0)
        assert first is not None
        assert first.is_blank
        assert queue.find(offsets[3 * 9], 20) == 9


async def test_the_end_of_what_is_written(memory_world: World) -> None:
    offsets = await memory_world.filled(60)
    with view_of(memory_world) as view:
        start = view.log.starts[-1]
        end = data_end(view.log, start)
        assert offsets[-1] < end <= start + SEGMENT_BYTES
        assert view.log.read(start + SEGMENT_BYTES - end, end).strip(b"\0") == b""


async def test_files_that_contradict_each_other_are_refused(memory_world: World) -> None:
    await memory_world.filled(120)
    memory_world.resize(memory_world.segment(0), 2 * SEGMENT_BYTES)
    with pytest.raises(ForeignFormat, match="/store/commitlog/0"), view_of(memory_world):
        raise AssertionError("not reached")
    with pytest.raises(ForeignFormat, match="/nowhere"):
        open_view(memory_world.disk, "/nowhere")


async def test_a_view_changes_nothing(world: World) -> None:
    await world.filled(60)
    world.resize(world.queue_file(), 30)
    world.resize(world.segment(1 << 20), 0)
    before = world.files()
    with view_of(world) as view:
        view.queues()
    assert world.files() == before
