"""What goes to one slave: where it begins, how it is cut, when nothing goes, and when the connection ends."""

from __future__ import annotations

import errno
import itertools
import logging

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.ha.slaves import SEGMENT_BYTES, master
from trio_mq.ha.slavelink import SEND_BYTES, Bell, SlaveAhead, pieces
from trio_mq.protocol.replication import PieceReader
from trio_mq.testing.disk import MemoryDisk

# -- where it begins -------------------------------------------------------------------------------------------


async def test_nothing_goes_out_before_the_first_report(autojump_clock) -> None:
    async with master() as m:
        m.put(3)
        slave = await m.connect()
        await trio.sleep(19)
        assert slave.pieces == []
        assert m.view(slave).ack_offset == -1
        assert m.primary.in_sync_count == 1


async def test_half_a_report_is_none(autojump_clock) -> None:
    async with master() as m:
        m.put(3)
        slave = await m.connect()
        for byte in (m.end - 5).to_bytes(8, "big")[:7]:
            await slave.stream.send_all(bytes([byte]))
            await wait_all_tasks_blocked()
        assert slave.pieces == []
        await slave.stream.send_all((m.end - 5).to_bytes(8, "big")[7:])
        await slave.until(lambda: slave.end == m.end)
        assert slave.pieces[0].offset == m.end - 5


async def test_an_empty_slave_gets_the_newest_segment(autojump_clock, caplog) -> None:
    async with master() as m:
        m.put(60)
        first = m.end - m.end % SEGMENT_BYTES
        assert first >= 2 * SEGMENT_BYTES
        slave = await m.connect(report=0)
        await slave.until(lambda: slave.end == m.end)
        assert slave.pieces[0].offset == first
        assert slave.data == m.log_bytes(first, m.end)
        assert f"{first} bytes before are not replicated" in caplog.text


async def test_an_empty_slave_gets_the_whole_log_if_asked_to(autojump_clock, caplog) -> None:
    async with master(replicate_from_start=True) as m:
        m.put(60)
        slave = await m.connect(report=0)
        await slave.until(lambda: slave.end == m.end)
        assert slave.pieces[0].offset == 0
        assert slave.data == m.log_bytes(0, m.end)
        assert "not replicated" not in caplog.text


async def test_any_other_slave_gets_what_it_lacks(autojump_clock) -> None:
    async with master() as m:
        m.put(60)
        for begin in (1, SEGMENT_BYTES - 1, SEGMENT_BYTES, m.end - 1):
            slave = await m.connect(report=begin)
            await slave.until(lambda slave=slave: slave.end == m.end)
            assert slave.pieces[0].offset == begin
            assert slave.data == m.log_bytes(begin, m.end)


async def test_an_empty_master_sends_heartbeats_and_then_its_log(autojump_clock) -> None:
    async with master() as m:
        slave = await m.connect(report=0)
        await slave.until(lambda: bool(slave.heartbeats))
        assert slave.pieces[0].offset == 0
        m.put()
        await slave.until(lambda: slave.end == m.end)
        assert slave.data == m.log_bytes(0, m.end)


# -- how it is cut ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 7, 500, 4096, 32_768])
async def test_pieces_are_small_enough_and_never_cross_a_segment(batch, autojump_clock) -> None:
    async with master(transfer_batch_size=batch, replicate_from_start=True) as m:
        m.put(60)
        slave = await m.connect(report=0)
        await slave.until(lambda: slave.end == m.end)
        assert slave.data == m.log_bytes(0, m.end)
        for piece in slave.pieces:
            assert len(piece.body) <= batch
            last = piece.offset + len(piece.body) - 1
            assert piece.offset // SEGMENT_BYTES == last // SEGMENT_BYTES


def test_several_pieces_are_joined() -> None:
    data = bytes(range(256)) * 10
    found = PieceReader().feed(pieces(data, 1000, 600))
    assert [(piece.offset, len(piece.body)) for piece in found] == [
        (1000, 600),
        (1600, 600),
        (2200, 600),
        (2800, 600),
        (3400, 160),
    ]
    assert b"".join(piece.body for piece in found) == data
    assert pieces(data[:5], 7, 600) == b"\0" * 7 + b"\x07\0\0\0\x05" + data[:5]


async def test_new_records_go_out_without_a_pause(autojump_clock) -> None:
    async with master() as m:
        m.put()
        slave = await m.connect(report=m.end)
        await wait_all_tasks_blocked()
        began_s = trio.current_time()
        for _ in range(5):
            m.put()
            await slave.until(lambda: slave.end == m.end)
        assert trio.current_time() == began_s


async def test_c073_a_slave_catches_up_while_producers_are_busy(autojump_clock) -> None:
    """What it lacks shrinks steadily to nothing though the load goes on: each send is of the log as it is then."""
    async with master(
        replicate_from_start=True, flow_control_enable=True, max_transfer_byte_in_second=20_000
    ) as m:
        m.put(200)
        slave = await m.connect(report=0)
        slave.acknowledges = True
        lags = [m.end]
        for _ in range(10):
            for _ in range(20):
                m.put()
                await trio.sleep(0.025)
            lags.append(m.view(slave).behind_bytes)
        behind = [lag for lag in lags if lag > 2000]
        assert len(behind) >= 4
        assert all(before - after > 2000 for before, after in itertools.pairwise(behind))
        assert max(lags[len(behind) :]) <= 2000, "once it has caught up, it stays there"
        await slave.until(lambda: slave.end == m.end)
        assert slave.data == m.log_bytes(0, m.end)


async def test_what_is_not_in_memory_is_fetched_by_a_worker(autojump_clock) -> None:
    disk = MemoryDisk()
    async with master(disk=disk, replicate_from_start=True) as m:
        m.put(60)
        expected = m.log_bytes(0, m.end)
        disk.cold, disk.run_delay_s = True, 0.5
        slave = await m.connect(report=0)
        await slave.until(lambda: slave.end == m.end)
        assert slave.data == expected
        assert slave.pieces[0].at_s >= 0.5


async def test_a_disk_that_fails_ends_the_connection_only(autojump_clock, caplog) -> None:
    disk = MemoryDisk()
    async with master(disk=disk) as m:
        m.put(3)

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        good = disk.check_read
        disk.check_read = fail
        slave = await m.connect(report=1)
        await slave.until(lambda: slave.closed_s is not None)
        assert "the log cannot be read at 1" in caplog.text
        disk.check_read = good
        again = await m.connect(report=1)
        await again.until(lambda: again.end == m.end)


# -- when nothing goes -----------------------------------------------------------------------------------------


async def test_heartbeats_come_after_silence_only(autojump_clock) -> None:
    async with master(send_heartbeat_interval_ms=5000) as m:
        m.put()
        slave = await m.connect(report=1)
        await slave.until(lambda: slave.end == m.end)
        began_s = trio.current_time()
        await trio.sleep(3)
        m.put()  # which is as good as a heartbeat
        await trio.sleep(4.9)
        assert slave.heartbeats == []
        for _ in range(3):
            await trio.sleep(5)
            await slave.report(m.end)
        assert [beat.at_s - began_s for beat in slave.heartbeats] == [8, 13, 18]
        assert {beat.offset for beat in slave.heartbeats} == {m.end}


async def test_c064_an_idle_slave_keeps_its_one_connection(autojump_clock) -> None:
    async with master() as m:
        m.put(2)
        slave = await m.connect(report=m.end)
        for _ in range(18):
            await trio.sleep(5)
            await slave.report(m.end)
        assert slave.closed_s is None
        assert len(m.primary.slaves) == 1
        assert len(slave.heartbeats) in (17, 18)
        assert all(piece.offset == m.end for piece in slave.pieces)


async def test_a_slave_that_needs_what_has_expired_gets_heartbeats_only(
    autojump_clock, caplog
) -> None:
    async with master() as m:
        m.put(60)
        m.store.log.segments.drop_segment(0)
        slave = await m.connect(report=100)
        for _ in range(6):
            await trio.sleep(5)
            await slave.report(100)
        assert slave.closed_s is None
        assert len(slave.heartbeats) == len(slave.pieces) >= 5
        assert {piece.offset for piece in slave.pieces} == {100}
        view = m.view(slave)
        assert view.too_old
        assert not view.in_sync, "it will never have more"
        assert view.behind_bytes == m.end - 100
        await m.primary.drained()  # a stop does not wait for it
        errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
        assert len(errors) == 1
        assert "from 100 on" in errors[0]
        assert f"begins at {SEGMENT_BYTES}" in errors[0]


async def test_a_slow_slave_that_is_overtaken_by_expiry_becomes_too_old(autojump_clock) -> None:
    async with master(replicate_from_start=True, transfer_batch_size=64) as m:
        m.put(2)
        slave = await m.connect(report=0)
        await slave.until(lambda: slave.end == m.end)
        m.put(400)  # more than the wire holds, and nothing was sent of it yet
        for segment in m.store.log.segments.starts[:-1]:
            m.store.log.segments.drop_segment(segment)
        await trio.sleep(1)
        assert m.view(slave).too_old
        assert slave.closed_s is None


# -- when it ends ----------------------------------------------------------------------------------------------


async def test_a_slave_that_reports_nothing_is_dropped(autojump_clock, caplog) -> None:
    async with master(housekeeping_interval_ms=20_000) as m:
        m.put()
        slave = await m.connect(report=m.end)
        await slave.until(lambda: slave.closed_s is not None)
        assert slave.closed_s == pytest.approx(20)
        assert m.primary.slaves == ()
        assert "has reported nothing for 20 s" in caplog.text


async def test_a_slave_that_never_reports_anything_whole_is_dropped(autojump_clock) -> None:
    async with master() as m:
        slave = await m.connect()
        for _ in range(4):  # a byte now and then is no report
            await trio.sleep(4)
            await slave.stream.send_all(b"\0")
        await slave.until(lambda: slave.closed_s is not None)
        assert slave.closed_s == pytest.approx(20)


async def test_a_send_that_makes_no_progress_ends_though_reports_come(
    autojump_clock, caplog
) -> None:
    async with master(replicate_from_start=True) as m:
        m.put(600)
        slave = await m.connect()
        slave.reads = trio.Event()
        await wait_all_tasks_blocked()
        await slave.report(1)
        while m.primary.slaves and trio.current_time() < 60:
            await trio.sleep(1)
            if m.primary.slaves:
                await slave.report(1)
        assert 19 <= trio.current_time() <= 22
        assert "has taken nothing for 20 s" in caplog.text


async def test_a_slow_send_goes_on_while_more_is_acknowledged(autojump_clock) -> None:
    async with master(replicate_from_start=True) as m:
        m.put(600)
        slave = await m.connect()
        slave.reads = trio.Event()
        await wait_all_tasks_blocked()
        for end in range(1, 11):
            await slave.report(end)
            await trio.sleep(10)
        assert len(m.primary.slaves) == 1
        slave.reads.set()
        await slave.until(lambda: slave.end == m.end)


async def test_every_report_of_a_read_is_checked(autojump_clock) -> None:
    async with master() as m:
        m.put(2)
        slave = await m.connect()
        await slave.report(m.end, m.end + 1, m.end)
        await slave.until(lambda: slave.closed_s is not None)
        assert m.primary.pushed.value == 0, "nothing of that read counts"


async def test_a_negative_report_ends_the_connection(autojump_clock, caplog) -> None:
    caplog.set_level(logging.INFO)
    async with master() as m:
        m.put(2)
        slave = await m.connect(report=-1)
        await slave.until(lambda: slave.closed_s is not None)
        assert slave.pieces == []
        assert "reports -1" in caplog.text
        assert m.primary.slaves == ()


async def test_a_slave_in_controller_mode_is_told_apart(autojump_clock, caplog) -> None:
    async with master() as m:
        m.put(2)
        slave = await m.connect()
        await slave.stream.send_all(bytes.fromhex("00000001 0000 0000 0000000000000001"))
        await slave.until(lambda: slave.closed_s is not None)
        assert "AutoSwitchHA" in caplog.text


def test_a_large_log_may_well_be_ahead() -> None:
    assert "AutoSwitchHA" in str(SlaveAhead(1 << 32, 5000))
    assert "AutoSwitchHA" not in str(SlaveAhead((1 << 32) + 5, 1 << 32))
    assert "AutoSwitchHA" not in str(SlaveAhead(6000, 5000))


async def test_nothing_to_send_is_no_lack_of_progress(autojump_clock) -> None:
    async with master(send_heartbeat_interval_ms=60_000) as m:
        m.put()
        slave = await m.connect(report=1)
        for _ in range(5):
            await trio.sleep(10)
            await slave.report(1)
        assert slave.closed_s is None
        assert slave.heartbeats == []


@pytest.mark.parametrize("grown", [1, 5])
async def test_a_log_that_is_cut_ends_the_connections(autojump_clock, caplog, grown) -> None:
    """On a slave, whose port is open, too; also when it has more than before by the time that it is looked at."""
    caplog.set_level(logging.INFO)
    async with master() as m:
        m.put(2)
        slave = await m.connect(report=m.end)
        await wait_all_tasks_blocked()
        m.store.log.cut_back(10)
        m.put(grown)
        await slave.until(lambda: slave.closed_s is not None)
        assert "the log was cut" in caplog.text
        assert not slave.data, "what is there now is not what the slave has"


async def test_what_ends_one_connection_leaves_the_others(autojump_clock) -> None:
    async with master() as m:
        m.put(3)
        good = await m.connect("10.0.0.3", report=1)
        bad = await m.connect("10.0.0.4", report=m.end + 1)
        reset = await m.connect("10.0.0.5", report=1)
        gone = await m.connect("10.0.0.6", report=1)
        await good.until(lambda: good.end == m.end)
        reset.stream.wire.reset()
        gone.stream.close()
        await bad.until(lambda: bad.closed_s is not None)
        await wait_all_tasks_blocked()
        assert [one.address for one in m.primary.slaves if not one.ahead] == [good.peer]
        m.put()
        await good.until(lambda: good.end == m.end)


async def test_cancelling_ends_a_connection_at_once_in_every_state(autojump_clock) -> None:
    async with master(replicate_from_start=True) as m:
        m.put(600)
        await m.connect("10.0.0.3")  # has not reported
        idle = await m.connect("10.0.0.4", report=m.end)
        full = await m.connect("10.0.0.5")
        full.reads = trio.Event()
        await wait_all_tasks_blocked()
        await full.report(0)
        await wait_all_tasks_blocked()
        began_s = trio.current_time()
        assert idle.closed_s is None
    assert trio.current_time() == began_s
    assert m.primary.slaves == ()


# -- flow control ----------------------------------------------------------------------------------------------


async def test_flow_control_holds_the_rate(autojump_clock) -> None:
    async with master(
        flow_control_enable=True, max_transfer_byte_in_second=2000, replicate_from_start=True
    ) as m:
        m.put(100)
        slave = await m.connect(report=0)
        slave.acknowledges = True
        began_s = trio.current_time()
        await slave.until(lambda: slave.end == m.end)
        spent_s = trio.current_time() - began_s
        wire_bytes = sum(12 + len(piece.body) for piece in slave.pieces)
        assert wire_bytes / 2000 - 0.2 <= spent_s <= wire_bytes / 2000 + 0.5
        assert slave.data == m.log_bytes(0, m.end)
        assert 1500 <= m.view(slave).transferred_per_s <= 2500


async def test_even_a_byte_a_second_gets_through(autojump_clock) -> None:
    async with master(flow_control_enable=True, max_transfer_byte_in_second=1) as m:
        m.put()
        slave = await m.connect(report=m.end - 5)
        slave.acknowledges = True
        await slave.until(lambda: slave.end == m.end)
        assert slave.data == m.log_bytes(m.end - 5, m.end)
        assert slave.closed_s is None


async def test_without_flow_control_nothing_waits(autojump_clock) -> None:
    async with master(max_transfer_byte_in_second=1, replicate_from_start=True) as m:
        m.put(600)
        slave = await m.connect(report=0)
        await slave.until(lambda: slave.end == m.end)
        assert trio.current_time() < 0.001


# -- parts -----------------------------------------------------------------------------------------------------


async def test_a_bell_wakes_those_who_wait_and_nobody_later(autojump_clock) -> None:
    bell, woken = Bell(), []

    async def wait(name: str, until_s: float) -> None:
        await bell.wait(until_s)
        woken.append((name, trio.current_time()))

    bell.ring()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "a", 100)
        nursery.start_soon(wait, "b", 1)
        await trio.sleep(2)
        bell.ring()
        await wait_all_tasks_blocked()
        nursery.start_soon(wait, "c", 5)
    assert woken == [("b", 1), ("a", 2), ("c", 5)]


def test_a_read_is_of_whole_pieces() -> None:
    assert SEND_BYTES // 32_768 * 32_768 == SEND_BYTES
