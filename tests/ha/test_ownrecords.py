"""Where whole records lie, in logs that end anywhere."""

import pytest

from tests.ha.copies import Copying
from tests.ha.histories import history
from trio_mq.ha.ownrecords import OwnRecords
from trio_mq.protocol.layout import BLANK_MAGIC


def previous_end(log, end):
    return max((e for e in log.ends if e < end), default=0)


async def test_the_tail_of_a_log_that_ends_at_every_byte(autojump_clock):
    log = await history(count=25, mapped_file_size_commit_log=1024)
    assert log.end > 3 * 1024
    copying = Copying.make(log)
    async with copying.life() as running:
        afresh = running.store.log.segments
        kept = OwnRecords(afresh)
        for end in range(1, log.end + 1):
            running.copy.append(end - 1, log.piece(end - 1, end))
            own = OwnRecords(afresh) if end % 7 else kept
            tail = own.tail(end)
            whole = log.whole_before(end)
            assert tail.end == whole or (tail.torn[4:8] == BLANK_MAGIC and tail.is_blank)
            assert tail.torn == log.piece(tail.end, end)
            if tail.record is None:
                assert whole == 0
                continue
            assert tail.record == log.piece(tail.offset, tail.offset + len(tail.record))
            assert tail.offset + len(tail.record) in log.ends or tail.end % 1024 == 0
            assert own.record(tail.offset, end) == tail.record


async def test_a_look_goes_on_where_the_last_one_ended(autojump_clock, monkeypatch):
    log = await history()
    copying = Copying.make(log)
    async with copying.life() as running:
        own = OwnRecords(running.store.log.segments)
        await running.take(log, log.ends[20])
        first = own.tail(running.copy.end)
        begins = []

        def walk(segments, begin, end, walk=own._walk):
            found = walk(segments, begin, end)
            begins.append(found.offset)
            return found

        monkeypatch.setattr(own, "_walk", walk)
        await running.take(log, log.ends[22])
        assert own.tail(running.copy.end).end == log.ends[22]
        assert begins == [first.offset]
        own.forget(first.offset)
        own.tail(running.copy.end)
        assert begins[1] % 4096 == 0


async def test_marks_and_starts_of_a_range(autojump_clock):
    log = await history(mapped_file_size_commit_log=1 << 20, count=3000)
    copying = Copying.make(log)
    async with copying.life() as running:
        await running.take(log, log.end)
        own = OwnRecords(running.store.log.segments)
        marks = own.landmarks(0, log.end)
        starts = [0, *log.ends[:-1]]
        assert own.starts(0, log.end) == starts
        assert marks[0] == 0
        assert set(marks) <= set(starts)
        assert 2 <= len(marks) < 100
        assert own.starts(marks[1], log.end) == starts[starts.index(marks[1]) :]


async def test_damage_in_the_middle_is_no_tail(autojump_clock):
    log = await history(mapped_file_size_commit_log=1 << 20)
    copying = Copying.make(log)
    async with copying.life() as running:
        await running.take(log, log.end)
        last = previous_end(log, log.end)
        bad = previous_end(log, previous_end(log, last))
        running.store.log.segments.write(b"\xff" * 30, bad)
        tail = OwnRecords(running.store.log.segments).tail(log.end)
        assert (tail.end, tail.torn) == (bad, None)
        assert tail.record == log.piece(tail.offset, bad)


@pytest.mark.parametrize("size", [1, 3, 90])
async def test_a_log_without_a_whole_record(autojump_clock, size):
    log = await history()
    copying = Copying.make(log)
    async with copying.life() as running:
        running.copy.append(0, log.log[:size])
        tail = OwnRecords(running.store.log.segments).tail(size)
        assert (tail.record, tail.end, tail.torn) == (None, 0, log.log[:size])
