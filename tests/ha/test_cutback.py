"""A slave that gives up the end of its log while it runs: what is left, what is kept, what a sudden end does."""

import errno

import attrs
import pytest

from tests.ha.copies import Copying, original, picture, read_all
from trio_mq.errors import StoreError
from trio_mq.ha.copylog import LogsDiffer
from trio_mq.recovery.quarantine import listed


def cuttable(master):
    """Where a log may be cut: where records end, and at the begin of segments."""
    return sorted({0, *master.ends} - {master.end})


async def assert_goes_on(running, master):
    """The copy takes the rest of the log again, and has what the master has."""
    await running.take(master, master.end)
    running.store.dispatcher.finish()
    store = running.store
    assert read_all(store.log.read, store.log.start, store.log.written) == master.log
    assert picture(store) == master.picture


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 9])
async def test_log_queues_and_index_end_at_the_cut_and_go_on_from_there(autojump_clock, every):
    master = await original(60)
    for cut in cuttable(master)[::every]:
        copying = Copying.make(master)
        async with copying.life() as running:
            await running.take(master, master.end - 5)
            await running.copy.cut_to(cut)
            assert (running.copy.end, running.copy.kept.value) == (cut, cut)
            await running.settled()
            assert running.copy.dispatched == cut
            store = running.store
            assert all(queue.indexed_to <= cut for queue in store.queues)
            assert all(n[1] < cut for file in picture(store).index for n in file)
            segment = master.segment_bytes
            assert store.log.segments.starts in (
                list(range(0, cut, segment)),
                list(range(0, cut + 1, segment)),
            )
            (kept,) = listed(copying.disk, "/slave")
            assert (kept.manifest.offset, kept.manifest.kept_length) == (cut, master.end - 5 - cut)
            await assert_goes_on(running, master)
        async with copying.life() as running:
            assert copying.world.report.clean
            await assert_goes_on(running, master)


async def test_after_a_cut_a_start_finds_the_cut_log(autojump_clock):
    master = await original(60)
    cut = master.ends[20]
    for end in ("close", "kill", "3", "9"):
        copying = Copying.make(master)
        async with copying.life(end=end) as running:
            await running.take(master, master.end)
            await running.copy.cut_to(cut)
        async with copying.life() as running:
            assert running.copy.end == cut
            await assert_goes_on(running, master)


async def test_a_part_of_a_record_can_be_cut(autojump_clock):
    master = await original(30)
    copying = Copying.make(master)
    async with copying.life() as running:
        await running.take(master, master.ends[7] + 40)
        await running.copy.cut_to(running.copy.dispatched)
        assert running.copy.end == master.ends[7]
        await assert_goes_on(running, master)


@pytest.mark.parametrize("offset", [-1, 1 << 40])
async def test_a_cut_where_there_is_no_log_is_refused(autojump_clock, offset):
    master = await original(30)
    async with Copying.make(master).life() as running:
        await running.take(master, master.end)
        with pytest.raises(LogsDiffer, match="cannot be cut"):
            await running.copy.cut_to(offset)
        await running.copy.cut_to(master.end)
        assert running.copy.end == master.end


async def test_what_comes_after_a_deletion_that_is_cut_is_kept(autojump_clock):
    """A broker that was the master once deleted a topic behind the cut: its new master may not have."""
    master = await original(60)
    cut = master.ends[20]
    copying = Copying.make(master)
    async with copying.life() as running:
        await running.take(master, master.end)
        running.store.drop_topic("T")
        await running.copy.cut_to(cut)
    async with copying.life(end="kill") as running:
        await running.take(master, master.end)
        there = picture(running.store).queues["T", 0]
    assert there.max_offset == master.picture.queues["T", 0].max_offset
    assert there.entries
    copying.disk.remove_tree("/slave/consumequeue/T")
    async with copying.life() as running:
        assert picture(running.store).queues["T", 0] == there


async def test_a_disk_without_room_for_what_is_cut_keeps_all(autojump_clock):
    master = await original(60)
    copying = Copying.make(master)
    async with copying.life() as running:
        await running.take(master, master.end)
        copying.disk.fail_when(lambda o: "quarantine" in o.path, error=errno.ENOSPC)
        with pytest.raises((OSError, StoreError), match=r"room|space"):
            await running.copy.cut_to(master.ends[20])
        copying.disk.heal()
        assert running.copy.end == master.end
        await assert_goes_on(running, master)
        await running.copy.cut_to(master.ends[20])
        await assert_goes_on(running, master)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 7])
@pytest.mark.parametrize("end", ["kill", "3", "4"])
async def test_a_sudden_end_during_a_cut_leaves_a_log_that_is_cut_or_not(
    autojump_clock, end, every
):
    master = await original(40)
    cut = master.ends[12]
    copying = Copying.make(master)
    moments = []
    async with copying.life() as running:
        await running.take(master, master.end)
        await running.synced()
        copying.disk.before = lambda _: moments.append(copying.disk.clone())
        await running.copy.cut_to(cut)
        copying.disk.before = None
    assert len(moments) > 20
    for number, disk in list(enumerate(moments))[::every]:
        if end == "kill":
            disk.kill()
        else:
            disk.crash(int(end) + number)
        again = Copying(attrs.evolve(copying.world, disk=disk))
        async with again.life() as running:
            assert running.copy.end <= master.end
            if end == "kill":
                assert running.copy.end >= cut
            await assert_goes_on(running, master)
