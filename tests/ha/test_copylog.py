"""The log of a slave: every cut of a master's log leads to the master's files, queues and index."""

import errno

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.ha.copies import Copying, original, picture, read_all
from trio_mq.errors import StoreFull
from trio_mq.ha.copylog import LogsDiffer
from trio_mq.store.store import FOLLOWS


def assert_same(running, master):
    """The slave has what the master has: log, queues, index."""
    store = running.store
    store.dispatcher.finish()
    assert running.copy.end == master.end
    assert read_all(store.log.read, master.start, master.end) == master.log
    seen = picture(store)
    assert seen.queues.keys() == master.picture.queues.keys()
    for key, queue in master.picture.queues.items():
        assert seen.queues[key] == queue, key
    assert seen.index == master.picture.index


# -- appending


async def test_an_empty_log_begins_where_the_first_bytes_belong(autojump_clock):
    master = await original(60)
    segment = master.segment_bytes
    copying = Copying.make(master)
    async with copying.life() as running:
        running.copy.append(segment, master.piece(segment, segment + 1000))
        assert running.store.log.segments.starts == [segment]
        assert (running.copy.end, running.copy.kept.value) == (segment + 1000, segment + 1000)
        await running.settled()
        assert running.copy.dispatched == master.whole_before(segment + 1000)
    async with copying.life() as running:
        assert running.copy.end == master.whole_before(segment + 1000)
        await running.take(master, master.end)
        late = picture(running.store).queues["T", 0]
        assert late.max_offset == master.picture.queues["T", 0].max_offset
        first = running.store.queue("T", 0)
        assert first.min_offset > 0
        assert first.log_offset_at(first.min_offset) >= segment


async def test_an_empty_log_may_begin_inside_a_segment(autojump_clock):
    master = await original(60)
    begin = master.ends[5]
    async with Copying.make(master).life() as running:
        running.copy.append(begin, master.piece(begin, begin + 700))
        assert running.store.log.segments.starts == [0]
        assert running.copy.end == begin + 700
        await running.settled()
        assert running.copy.dispatched == master.whole_before(begin + 700)


async def test_a_heartbeat_at_the_begin_of_a_segment_makes_it(autojump_clock):
    master = await original(5)
    segment = master.segment_bytes
    async with Copying.make(master).life() as running:
        running.copy.append(0, b"")
        running.copy.append(77, b"")
        assert running.store.log.segments.empty
        running.copy.append(3 * segment, b"")
        assert running.store.log.segments.starts == [3 * segment]
        assert running.copy.end == 3 * segment


async def test_a_log_that_was_cut_to_nothing_begins_anywhere_again(autojump_clock):
    master = await original(60)
    copying = Copying.make(master)
    async with copying.life() as running:
        await running.take(master, 50)  # not one whole record
    async with copying.life() as running:
        assert running.copy.end == 0
        segment = master.segment_bytes
        running.copy.append(segment, master.piece(segment, segment + 900))
        assert running.store.log.segments.starts == [segment]


@pytest.mark.parametrize("offset", [0, 499, 501, 5000])
async def test_bytes_for_another_place_are_refused(autojump_clock, offset):
    master = await original(60)
    async with Copying.make(master).life() as running:
        await running.take(master, 500)
        with pytest.raises(LogsDiffer, match=f"offset {offset} came, but the log ends at 500"):
            running.copy.append(offset, b"abc")
        assert running.copy.end == 500


async def test_bytes_across_the_end_of_a_file_are_refused_with_both_sizes(autojump_clock):
    master = await original(60)
    segment = master.segment_bytes
    async with Copying.make(master).life() as running:
        await running.take(master, segment - 10)
        with pytest.raises(LogsDiffer, match=rf"11 bytes .* {segment} bytes here"):
            running.copy.append(segment - 10, master.piece(segment - 10, segment + 1))
        assert running.copy.end == segment - 10
        await running.take(master, segment + 1)
        assert running.store.log.segments.starts == [0, segment]


@pytest.mark.parametrize("place", ["first file", "inside", "next file"])
async def test_a_disk_that_refuses_leaves_all_as_it_was(autojump_clock, place):
    master = await original(60)
    at = {"first file": 0, "inside": 1000, "next file": master.segment_bytes}[place]
    copying = Copying.make(master)
    async with copying.life() as running:
        if at:
            await running.take(master, at)
        store = running.store
        before = (running.copy.end, running.copy.kept.value, store.log.end, store.log.written)
        copying.disk.fail_when(lambda o: "commitlog" in o.path, error=errno.ENOSPC)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                running.copy.append(at, master.piece(at, at + 500))
            after = (running.copy.end, running.copy.kept.value, store.log.end, store.log.written)
            assert after == before
        assert "No space left" in store.refusal
        copying.disk.heal()
        await running.take(master, master.end)
        assert_same(running, master)


async def test_a_store_that_follows_takes_no_messages(autojump_clock):
    master = await original(5)
    copying = Copying.make(master)
    async with copying.life() as running:
        await running.take(master, master.end)
        with pytest.raises(StoreFull, match="this broker is a slave, it takes no messages"):
            copying.world.send(running.store, b"mine")
        assert running.store.refusal == FOLLOWS
        await running.store.cleaner.clean()
        assert running.store.refusal == FOLLOWS
    assert not copying.world.open_parts().abort.present


async def test_growth_is_told_to_who_feeds_further_slaves(autojump_clock):
    master = await original(5)
    async with Copying.make(master).life() as running:
        told = []
        running.store.grown = lambda: told.append(running.store.log.written)
        await running.take(master, 30, step=10)
        assert told == [10, 20, 30]


async def test_a_master_tells_after_each_commit(autojump_clock):
    master = await original(5)
    copying = Copying.make(master)
    async with copying.world.life() as store:
        told = []
        store.grown = lambda: told.append(store.log.written)
        copying.world.send(store, b"one")
        assert told == []
        store.commit()
        assert told == [store.log.end]


# -- every cut


async def test_byte_by_byte_each_record_is_there_with_its_last_byte(autojump_clock):
    master = await original(40)
    async with Copying.make(master).life() as running:
        for end in range(1, master.end + 1):
            running.copy.append(end - 1, master.piece(end - 1, end))
            await running.settled()
            assert running.copy.dispatched == master.whole_before(end)
        assert_same(running, master)


@pytest.mark.parametrize("end", ["close", "kill", "7"])
@pytest.mark.parametrize("cuts", [pytest.param(3, marks=pytest.mark.slow), 41])
async def test_a_restart_at_each_byte_goes_on_to_the_same_files(autojump_clock, cuts, end):
    master = await original(12, mapped_file_size_commit_log=1024)
    for cut in range(1, master.end, cuts):
        copying = Copying.make(master)
        async with copying.life(end=end) as running:
            await running.take(master, cut)
        async with copying.life() as running:
            kept = running.copy.end
            assert kept <= cut
            if end != "7":
                # The blank that ends a segment is written again when no segment follows.
                whole = master.whole_before(cut)
                assert kept in (whole, max(e for e in [0, *master.ends] if e < whole or not e))
            assert running.copy.dispatched == kept
            await running.take(master, master.end)
            assert_same(running, master)


STEPS = st.lists(
    st.tuples(
        st.integers(1, 3000),
        st.integers(1, 1500),
        st.sampled_from(["go on", "go on", "close", "kill", "3", "14", "15"]),
    ),
    max_size=8,
)


@given(steps=STEPS, sync=st.booleans(), columns=st.booleans())
def test_random_pieces_with_ends_of_all_kinds_lead_to_the_same_files(steps, sync, columns):
    trio.run(random_lives, steps, sync, columns, clock=MockClock(autojump_threshold=0))


async def random_lives(steps, sync, columns):
    master = await original(60)
    copying = Copying.make(master, sync=sync)
    left = [*steps, (master.end, 1 << 20, "close")]
    while left:
        kind = next((kind for _, _, kind in left if kind != "go on"), "close")
        async with copying.life(end=kind) as running:
            if columns:
                many_at_once(running)
            while left:
                size, step, then = left.pop(0)
                end = min(master.end, running.copy.end + size)
                await running.take(master, end, step)
                if sync:
                    await running.synced()
                assert running.copy.dispatched == master.whole_before(end)
                if then != "go on":
                    break
    async with copying.life() as running:
        await running.take(master, master.end)
        if sync:
            await running.synced()
        assert_same(running, master)


def many_at_once(running):
    """Let the copy take over many records at once from the first byte on, as it does when there is a lot."""
    takeover = running.copy._takeover
    takeover.bulk_bytes = 1
    takeover.load_bulk()
