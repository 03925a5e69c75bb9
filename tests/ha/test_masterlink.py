"""One connection of a slave: what it appends, what it reports and when, and why it ends."""

import errno

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.ha.masters import SEGMENT, MemoryLog, Visit, ha_settings, piece
from trio_mq.ha import masterlink
from trio_mq.ha.masterlink import EndKind, MasterLink, Traffic, joined
from trio_mq.protocol.replication import MAX_BODY_BYTES, Piece
from trio_mq.testing.wires import memory_pair

BODIES = (b"abc", b"defghi", b"jk")


def three_frames(begin=0):
    """Three pieces of a log, the second one after a heartbeat; their bytes, and the log's."""
    frames, at = b"", begin
    for number, body in enumerate(BODIES):
        if number == 1:
            frames += piece(at)
        frames += piece(at, body)
        at += len(body)
    return frames, b"".join(BODIES)


class Link:
    """A link on a wire; `visit` is what the master's end sees."""

    def __init__(self, log, **settings):
        self.log, self.traffic = log, Traffic()
        master, slave = memory_pair()
        self.visit = Visit(master, trio.current_time())
        self.stream = slave
        self.wire = slave.wire
        self.link = MasterLink(slave, log, ha_settings(**settings), self.traffic)
        self.end = None

    async def run(self):
        self.end = await self.link.run()
        await self.stream.aclose()

    async def start(self, nursery):
        nursery.start_soon(self.visit.read)
        nursery.start_soon(self.run)
        await wait_all_tasks_blocked()


async def after(log, *sent, hang_up=True, **settings):
    """What became of a link on which a master sends this."""
    link = Link(log, **settings)
    async with trio.open_nursery() as nursery:
        await link.start(nursery)
        for data in sent:
            if link.end is None:
                await link.visit.send(data)
            await wait_all_tasks_blocked()
        if hang_up:
            await link.visit.stream.aclose()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return link


# -- appending


async def test_every_split_of_three_frames_gives_the_same_log(autojump_clock):
    frames, whole = three_frames()
    for first in range(len(frames) + 1):
        for second in range(first, len(frames) + 1, 4):
            log = MemoryLog()
            parts = [frames[:first], frames[first:second], frames[second:]]
            link = await after(log, *filter(None, parts))
            assert (bytes(log.data), link.end.kind) == (whole, EndKind.CLOSED)
            assert link.visit.reports[-1] == len(whole)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_every_cut_of_three_frames_keeps_what_came_and_asks_for_the_rest(autojump_clock, how):
    frames, whole = three_frames(begin=100)
    before = b"." * 100
    for cut in range(len(frames) + 1):
        log = MemoryLog(before)
        link = Link(log)
        async with trio.open_nursery() as nursery:
            await link.start(nursery)
            await link.visit.send(frames[:cut])
            await wait_all_tasks_blocked()
            if how == "close":
                await link.visit.stream.aclose()
            else:
                link.wire.reset()
        assert link.end.kind is EndKind.CLOSED
        got = bytes(log.data[100:])
        assert whole.startswith(got)
        # Nothing of a body waits for the rest of it.
        headers = 12 * sum(cut >= start + 12 for start in _frame_starts())
        assert len(got) == max(0, min(cut - headers - _partial_header(cut), len(whole)))
        rest = await after(log, piece(log.end, whole[len(got) :]))
        assert rest.visit.reports[0] == 100 + len(got)
        assert bytes(log.data) == before + whole


def _frame_starts():
    return [0, 15, 27, 45]


def _partial_header(cut):
    """Bytes of a header that is not complete at `cut`."""
    return next((cut - start for start in _frame_starts() if 0 <= cut - start < 12), 0)


async def test_every_cut_of_a_report_is_made_up_for_by_the_next_connection(autojump_clock):
    for cut in range(25):
        log = MemoryLog(b"x" * 50)
        link = Link(log)
        link.wire.directions[1].stop_after(cut, "end")
        async with trio.open_nursery() as nursery:
            await link.start(nursery)
            for number in range(3):
                if link.end is None and not link.visit.stream.broken:
                    await link.visit.send(piece(log.end, b"%d" % number))
                await wait_all_tasks_blocked()
            await link.visit.stream.aclose()
        assert link.end.kind is EndKind.CLOSED
        assert link.visit.reports == [50, 51, 52, 53][: cut // 8]
        again = await after(log)
        assert again.visit.reports == [log.end]


async def test_an_empty_log_begins_where_the_master_does(autojump_clock):
    log = MemoryLog()
    await after(log, piece(2 * SEGMENT + 7, b"abc"))
    assert (log.begin, log.end) == (2 * SEGMENT + 7, 2 * SEGMENT + 10)


async def test_many_small_pieces_are_appended_in_few_writes(autojump_clock):
    log = MemoryLog()
    body = bytes(range(250)) * 8
    frames = b"".join(piece(at, body[at : at + 4]) for at in range(0, len(body), 4))
    link = await after(log, frames)
    assert bytes(log.data) == body
    assert [size for _, size in log.appends] == [SEGMENT, len(body) - SEGMENT]
    assert link.visit.reports[-1] == len(body)


def test_neighbours_are_joined_within_a_segment():
    some = [Piece(0, b"ab"), Piece(2, b""), Piece(2, b"c"), Piece(3, b"d", 5), Piece(1024, b"e")]
    assert joined(some, SEGMENT) == [Piece(0, b"abcd", 5), Piece(1024, b"e")]
    apart = [Piece(1022, b"ab"), Piece(1024, b"c"), Piece(7, b"d")]
    assert joined(apart, SEGMENT) == apart
    # what crosses the end of a segment is still seen to do so
    assert joined([Piece(1020, b"ab"), Piece(1022, b"cdef")], SEGMENT) == [Piece(1020, b"abcdef")]


async def test_a_burst_of_pieces_leaves_the_loop_to_others(autojump_clock, monkeypatch):
    """Here each append takes 3 ms; others have their turn after two of them."""
    log = MemoryLog()
    monkeypatch.setattr(masterlink, "SMALL_BYTES", 0)

    def slow(offset, data, append=log.append):
        append(offset, data)
        autojump_clock.jump(0.003)

    monkeypatch.setattr(log, "append", slow)
    seen = set()

    async def other():
        while True:
            seen.add(log.end)
            await trio.lowlevel.checkpoint()

    link = Link(log)
    async with trio.open_nursery() as nursery:
        await link.start(nursery)
        nursery.start_soon(other)
        await link.visit.send(b"".join(piece(at, b"x") for at in range(20)))
        while log.end < 20:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert len(seen) > 6


# -- reports


async def test_the_first_report_comes_at_once_and_then_after_each_append(autojump_clock):
    log = MemoryLog(b"x" * 10)
    link = Link(log)
    async with trio.open_nursery() as nursery:
        await link.start(nursery)
        assert (link.visit.reports, link.visit.times_s) == ([10], [0.0])
        for end in (11, 12, 13):
            await link.visit.send(piece(log.end, b"y"))
            await wait_all_tasks_blocked()
            assert link.visit.reports[-1] == end
        assert link.visit.times_s == [0.0] * 4
        nursery.cancel_scope.cancel()


async def test_an_idle_link_reports_at_each_heartbeat_interval(autojump_clock):
    link = Link(MemoryLog(b"x" * 10), send_heartbeat_interval_ms=700)
    async with trio.open_nursery() as nursery:
        await link.start(nursery)
        await trio.sleep(7.1)
        nursery.cancel_scope.cancel()
    assert link.visit.reports == [10] * 11
    assert link.visit.times_s == pytest.approx([0.7 * n for n in range(11)])
    assert link.traffic.last_write_s == pytest.approx(7.0)


async def test_appends_during_a_send_share_the_next_report(autojump_clock):
    """A stream that takes nothing for a while holds back no append, and gets one report for all."""
    log = MemoryLog(b"x" * 10)
    link = Link(log)
    sending = trio.Event()
    send = link.stream.send_all

    async def slow(data):
        await sending.wait()
        await send(data)

    link.stream.send_all = slow
    async with trio.open_nursery() as nursery:
        await link.start(nursery)
        for _ in range(5):
            await link.visit.send(piece(log.end, b"y"))
            await wait_all_tasks_blocked()
        assert (log.end, link.visit.reports) == (15, [])
        sending.set()
        await wait_all_tasks_blocked()
        assert link.visit.reports == [10, 15]
        nursery.cancel_scope.cancel()


async def test_with_sync_flush_what_is_durable_is_reported_and_the_first_report_covers_all(
    autojump_clock,
):
    log = MemoryLog(b"x" * 10, is_sync=True)
    log.append(10, b"not durable yet")
    link = Link(log)
    async with trio.open_nursery() as nursery:
        await link.start(nursery)
        # A report of 10 would have the master send from there, which is not where this log ends.
        assert link.visit.reports == []
        log.sync()
        await wait_all_tasks_blocked()
        assert link.visit.reports == [25]
        await link.visit.send(piece(25, b"more"))
        await wait_all_tasks_blocked()
        assert (log.end, link.visit.reports) == (29, [25])
        log.sync()
        await wait_all_tasks_blocked()
        assert link.visit.reports == [25, 29]
        nursery.cancel_scope.cancel()


# -- ends


@pytest.mark.parametrize("split", range(12, 25))
async def test_another_offset_ends_it_and_nothing_is_appended(autojump_clock, split):
    log = MemoryLog(b"x" * 10)
    frames = piece(10) + piece(11, b"abc")
    link = await after(log, frames[:split], frames[split:])
    if split < 24:
        assert log.data == b"x" * 10
    assert link.end.kind is EndKind.MISMATCH
    assert "offset 11" in link.end.reason
    assert "ends at 10" in link.end.reason


async def test_heartbeats_are_checked_too(autojump_clock):
    link = await after(MemoryLog(b"x" * 10), piece(9), hang_up=False)
    assert link.end.kind is EndKind.MISMATCH


@pytest.mark.parametrize("size", [-1, MAX_BODY_BYTES + 1, 2**31 - 1, -(2**31)])
async def test_a_length_that_no_master_sends_ends_it_at_once(autojump_clock, size):
    log = MemoryLog(b"x" * 10)
    header = (10).to_bytes(8, "big") + size.to_bytes(4, "big", signed=True)
    link = await after(log, header, hang_up=False)
    assert link.end.kind is EndKind.BAD_BYTES
    assert str(size) in link.end.reason
    assert log.data == b"x" * 10


@pytest.mark.parametrize("start", [0, 15, 27, 45])
async def test_an_offset_that_is_spoilt_never_spoils_the_log(autojump_clock, start):
    frames, whole = three_frames(begin=100)
    for at in range(8):
        for mask in (0x01, 0x10, 0x80):
            spoilt = bytearray(frames)
            spoilt[start + at] ^= mask
            log = MemoryLog(b"." * 100)
            link = await after(log, bytes(spoilt[:20]), bytes(spoilt[20:]))
            assert link.end.kind in (EndKind.MISMATCH, EndKind.BAD_BYTES)
            assert whole.startswith(log.data[100:])
            assert len(log.data) < 100 + len(whole)


@pytest.mark.parametrize("size", [101, 2 * SEGMENT])
@pytest.mark.parametrize("first", [13, 100])
async def test_a_piece_across_the_end_of_a_segment_tells_of_other_sizes(
    autojump_clock, size, first
):
    log = MemoryLog(b"x" * (SEGMENT - 100))
    frame = piece(SEGMENT - 100, b"y" * size)
    link = await after(log, frame[:first], frame[first:], hang_up=False)
    assert link.end.kind is EndKind.SEGMENTS
    assert str(SEGMENT) in link.end.reason
    assert str(SEGMENT - 100 + size) in link.end.reason
    assert "mappedFileSizeCommitLog" in link.end.reason
    # It is known by the header: not even its beginning is taken.
    assert log.end == SEGMENT - 100


async def test_a_piece_up_to_the_end_of_a_segment_is_fine(autojump_clock):
    log = MemoryLog(b"x" * (SEGMENT - 100))
    link = await after(log, piece(SEGMENT - 100, b"y" * 100) + piece(SEGMENT, b"z"))
    assert (link.end.kind, log.end) == (EndKind.CLOSED, SEGMENT + 1)


async def test_a_full_disk_ends_it_and_what_was_not_kept_is_not_reported(autojump_clock):
    log = MemoryLog(b"x" * 10)
    log.failure = OSError(errno.ENOSPC, "No space left on device")
    link = await after(log, piece(10, b"abc"), hang_up=False)
    assert link.end.kind is EndKind.DISK
    assert "No space left on device" in link.end.reason
    assert link.visit.reports == [10]


async def test_silence_ends_it_after_the_housekeeping_interval(autojump_clock):
    link = Link(MemoryLog(b"x" * 10), housekeeping_interval_ms=20_000)
    async with trio.open_nursery() as nursery:
        await link.start(nursery)
        await trio.sleep(15)
        await link.visit.send(piece(10)[:5])  # any byte is a sign of life
        await trio.sleep(19.9)
        assert link.end is None
        await trio.sleep(0.2)
        assert link.end.kind is EndKind.SILENT
        assert link.visit.reports == [10] * 7


async def test_a_master_that_takes_no_report_but_sends_is_no_silence(autojump_clock):
    """Its own housekeeping ends such a link."""
    log = MemoryLog()
    link = Link(log, send_heartbeat_interval_ms=1)

    async def stuck(_):
        await trio.sleep_forever()

    link.stream.send_all = stuck
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        for _ in range(10):
            await link.visit.send(piece(log.end, b"y"))
            await trio.sleep(10)
        assert (log.end, link.end) == (10, None)
        nursery.cancel_scope.cancel()


async def test_cancelling_ends_both_tasks_at_once(autojump_clock):
    link = Link(MemoryLog())
    async with trio.open_nursery() as nursery:
        await link.start(nursery)
        nursery.cancel_scope.cancel()
    assert trio.current_time() == 0
    assert link.end is None


def test_traffic_tells_the_rate_of_a_second():
    traffic = Traffic()
    for tenth in range(20):
        traffic.read(100, 10 + tenth / 10)
    assert traffic.meter.rate(12.0) == pytest.approx(1000, rel=0.15)
    assert (traffic.last_read_s, traffic.last_write_s) == (11.9, None)
