"""Who counts as having the log, who is told when, and what an operator can see of it."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.ha.slaves import Master, master
from trio_mq.config import Address
from trio_mq.ha.primary import AHEAD_MOST, AHEAD_SHOWN_S
from trio_mq.ha.states import LinkState
from trio_mq.testing.hosts import MemoryHost
from trio_mq.testing.links import MemoryNetwork


class Told:
    """What those who wait were told, and when."""

    def __init__(self, m: Master) -> None:
        self._primary = m.primary
        self.all: list[tuple[object, bool, float]] = []

    def wait(self, name: object, end: int, needed: int = 2) -> None:
        def done(reached: bool) -> None:
            self.all.append((name, reached, trio.current_time()))

        self._primary.wait_for(end, needed, done)

    @property
    def outcomes(self) -> list[tuple[object, bool]]:
        return [(name, reached) for name, reached, _ in self.all]


# -- waiting ---------------------------------------------------------------------------------------------------


async def test_who_needs_nobody_else_is_told_at_once(autojump_clock) -> None:
    async with master() as m:
        told = Told(m)
        told.wait("zero", m.put(), 0)
        told.wait("one", m.put(), 1)
        assert told.outcomes == [("zero", True), ("one", True)]


async def test_an_acknowledgement_releases_all_at_or_below(autojump_clock) -> None:
    async with master() as m:
        told = Told(m)
        slave = await m.connect(report=0)
        ends = [m.put() for _ in range(3)]
        for end in ends:
            told.wait(end, end)
        await slave.report(ends[1])
        await wait_all_tasks_blocked()
        assert told.outcomes == [(ends[0], True), (ends[1], True)]
        await slave.report(ends[2])
        await wait_all_tasks_blocked()
        assert told.outcomes[2:] == [(ends[2], True)]
        assert {at_s for _, _, at_s in told.all} == {0.0}, "nobody polls"


async def test_who_has_been_acknowledged_already_is_told_at_once(autojump_clock) -> None:
    async with master() as m:
        told, end = Told(m), m.put()
        await m.connect(report=end)
        await wait_all_tasks_blocked()
        told.wait("late", end)
        assert told.outcomes == [("late", True)]


async def test_each_has_its_own_deadline(autojump_clock) -> None:
    async with master(slave_timeout_ms=2500) as m:
        told = Told(m)
        for number in range(3):
            told.wait(number, m.put())
            await trio.sleep(1)
        await trio.sleep(5)
        assert told.outcomes == [(0, False), (1, False), (2, False)]
        assert [at_s for _, _, at_s in told.all] == pytest.approx([2.5, 3.5, 4.5], abs=0.02)


async def test_c065_one_who_waits_in_vain_holds_up_nobody(autojump_clock) -> None:
    """A wait for two slaves, of which there is one, does not delay those behind it that wait for one."""
    async with master() as m:
        told = Told(m)
        slave = await m.connect(report=0)
        slave.acknowledges = True
        await wait_all_tasks_blocked()
        told.wait("in vain", m.put(), 3)
        for number in range(50):
            told.wait(number, m.put())
            m.put(20)  # another topic, whose sends do not wait
            await trio.sleep(0.01)
        assert told.outcomes == [(number, True) for number in range(50)]
        await trio.sleep(3)
        assert told.outcomes[-1] == ("in vain", False)


async def test_connections_are_counted(autojump_clock) -> None:
    """Two of one host are two, as with Apache."""
    async with master() as m:
        told, end = Told(m), m.put()
        one, other = await m.connect(report=0), await m.connect(report=0)
        await wait_all_tasks_blocked()
        told.wait("both", end, 3)
        await one.report(end)
        await wait_all_tasks_blocked()
        assert told.all == []
        assert m.primary.replicas_of(end) == 2
        await other.report(end)
        await wait_all_tasks_blocked()
        assert told.outcomes == [("both", True)]


async def test_a_slave_that_has_gone_counts_no_more(autojump_clock) -> None:
    async with master() as m:
        told, end = Told(m), m.put()
        slave = await m.connect(report=end)
        await wait_all_tasks_blocked()
        assert m.primary.replicas_of(end) == 2
        slave.stream.close()
        await wait_all_tasks_blocked()
        assert m.primary.replicas_of(end) == 1
        assert m.primary.pushed.value == end, "which never goes back"
        told.wait("nobody", end)
        await trio.sleep(3)
        assert told.outcomes == [("nobody", False)]


async def test_a_report_of_less_counts_as_less(autojump_clock) -> None:
    async with master() as m:
        end = m.put(3)
        slave = await m.connect(report=end)
        await wait_all_tasks_blocked()
        await slave.report(5)
        await wait_all_tasks_blocked()
        assert m.primary.replicas_of(end) == 1
        assert m.primary.pushed.value == end


async def test_the_highest_offset_of_all_slaves_is_a_watermark(autojump_clock) -> None:
    async with master() as m:
        m.put(5)
        reached = []

        async def watch() -> None:
            await m.primary.pushed.reached(300)
            reached.append(m.primary.pushed.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            for ip, end in (("10.0.0.2", 200), ("10.0.0.3", 100), ("10.0.0.4", 301)):
                assert reached == []
                await m.connect(ip, report=end)
                await wait_all_tasks_blocked()
        assert reached == [301]


async def test_growing_costs_little_and_wakes_who_waits(autojump_clock) -> None:
    async with master() as m:
        m.primary.grown()  # with nobody there
        slave = await m.connect(report=m.put())
        await wait_all_tasks_blocked()
        for _ in range(3):
            m.primary.grown()  # with nothing new
            await wait_all_tasks_blocked()
        assert slave.pieces == []


# -- C061, C062 ------------------------------------------------------------------------------------------------


async def test_c061_a_huge_acknowledgement_is_refused_and_counts_nowhere(
    autojump_clock, caplog
) -> None:
    async with master() as m:
        told, end = Told(m), m.put()
        slave = await m.connect("203.0.113.9", report=0x7FFF_FFFF_FFFF_FFFF)
        await slave.until(lambda: slave.closed_s is not None)
        told.wait("send", end)
        assert m.primary.pushed.value == 0
        assert m.primary.in_sync_count == 1
        assert m.primary.replicas_of(end) == 1
        await trio.sleep(3)
        assert told.outcomes == [("send", False)]
        errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
        assert len(errors) == 1
        assert str(0x7FFF_FFFF_FFFF_FFFF) in errors[0]
        assert str(end) in errors[0]
        assert "203.0.113.9" in errors[0]


async def test_c061_one_who_was_honest_before_loses_what_it_had_with_the_lie(
    autojump_clock,
) -> None:
    async with master() as m:
        end = m.put()
        slave = await m.connect(report=end)
        await wait_all_tasks_blocked()
        await slave.report(end + 1)
        await slave.until(lambda: slave.closed_s is not None)
        assert m.primary.replicas_of(end) == 1
        assert m.primary.pushed.value == end


async def test_c062_a_slave_that_is_ahead_is_shown_with_both_offsets(
    autojump_clock, caplog
) -> None:
    """The master lost its tail; the slave comes back every five seconds, and is told off once a minute."""
    async with master() as m:
        end = m.put(10)
        for _ in range(24):
            slave = await m.connect("10.0.0.2", report=end + 4096)
            await slave.until(lambda slave=slave: slave.closed_s is not None)
            assert slave.pieces == [], "it gets nothing that it could append"
            (view,) = m.primary.slaves
            assert view.ahead
            assert view.reported == end + 4096
            assert view.behind_bytes == 0, "never negative"
            assert not view.in_sync
            assert view.ack_offset < end
            await trio.sleep(5)
        assert m.primary.ahead_count == 24
        errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
        assert len(errors) == 2
        assert all(str(end) in text and str(end + 4096) in text for text in errors)


async def test_c062_a_slave_that_was_cut_is_shown_as_any_other(autojump_clock) -> None:
    async with master() as m:
        end = m.put(10)
        slave = await m.connect("10.0.0.2", report=end + 4096)
        await slave.until(lambda: slave.closed_s is not None)
        again = await m.connect("10.0.0.2", report=end - 100)
        await again.until(lambda: again.end == end)
        (view,) = m.primary.slaves
        assert not view.ahead
        assert view.behind_bytes == 100


async def test_what_was_ahead_is_forgotten_in_time_and_number(autojump_clock) -> None:
    async with master() as m:
        for number in range(AHEAD_MOST + 10):
            slave = await m.connect(f"10.0.{number}.2", report=1 << 40)
            await slave.until(lambda slave=slave: slave.closed_s is not None)
        assert len(m.primary.slaves) == AHEAD_MOST
        await trio.sleep(2 * AHEAD_SHOWN_S + 1)
        assert m.primary.slaves == ()


# -- what is to be seen ----------------------------------------------------------------------------------------


async def test_in_sync_is_who_is_near_enough(autojump_clock) -> None:
    async with master(max_gap_not_in_sync=1000) as m:
        m.put(30)
        near = await m.connect("10.0.0.2", report=m.end - 999)
        far = await m.connect("10.0.0.3", report=m.end - 1000)
        mute = await m.connect("10.0.0.4")
        await wait_all_tasks_blocked()
        assert [m.view(one).in_sync for one in (near, far, mute)] == [True, False, False]
        assert m.primary.in_sync_count == 2
        m.put()
        assert m.primary.in_sync_count == 1


async def test_views(autojump_clock) -> None:
    async with master() as m:
        end = m.put(10)
        slave = await m.connect("10.0.0.2", report=100)
        await slave.until(lambda: slave.end == end)
        await trio.sleep(1.5)
        view = m.view(slave)
        assert view.address == slave.peer
        assert view.ack_offset == view.transfer_from == 100
        assert view.behind_bytes == end - 100
        assert view.silent_s == pytest.approx(1.5)
        assert view.transferred_per_s == int((end - 100 + 12) / 1.5)
        assert view.text == f"{end - 100} bytes behind"


async def test_the_lag_is_told_every_minute(autojump_clock, caplog) -> None:
    caplog.set_level(logging.INFO, "trio_mq.ha")
    async with master() as m:
        end = m.put(10)
        slave = await m.connect(report=100)
        for _ in range(25):
            await trio.sleep(5)
            await slave.report(100)
        lines = [r for r in caplog.records if f"{end - 100} bytes behind" in r.getMessage()]
        assert len(lines) == 2


async def test_states_are_told_apart_and_logged(autojump_clock, caplog) -> None:
    caplog.set_level(logging.INFO, "trio_mq.ha")
    async with master() as m:
        assert m.primary.state_of("10.0.0.2") is None
        slave = await m.connect("10.0.0.2", report=0)
        await wait_all_tasks_blocked()
        assert m.primary.state_of("10.0.0.2") is LinkState.TRANSFER
        assert m.primary.state_of("10.0.0.3") is None
        slave.stream.close()
        await wait_all_tasks_blocked()
        assert m.primary.state_of("10.0.0.2") is None
        assert f"slave {slave.peer}: TRANSFER to SHUTDOWN: the slave has closed it" in caplog.text


async def test_a_state_can_be_waited_for(autojump_clock) -> None:
    async with master() as m:
        found = []

        async def wait(**options: bool) -> None:
            reached = await m.primary.wait_state("10.0.0.2", LinkState.TRANSFER, 10.0, **options)
            found.append((reached, trio.current_time()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(4)
            await m.connect("10.0.0.3")
            await trio.sleep(1)
            await m.connect("10.0.0.2")
        await wait()
        assert found == [(True, 5.0), (True, 5.0)]
        assert not await m.primary.wait_state("10.0.0.9", LinkState.TRANSFER, 10.0)
        assert trio.current_time() == 15.0


async def test_waiting_for_a_state_may_end_with_the_connection(autojump_clock) -> None:
    async with master() as m:
        slave = await m.connect("10.0.0.2")
        await wait_all_tasks_blocked()
        found = []

        async def wait() -> None:
            found.append(
                await m.primary.wait_state("10.0.0.2", LinkState.SUSPEND, 60.0, until_shutdown=True)
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(3)
            slave.stream.close()
        assert found == [False]
        assert trio.current_time() == 3.0


async def test_a_stop_waits_for_those_in_sync(autojump_clock) -> None:
    async with master(max_gap_not_in_sync=1000) as m:
        end = m.put(30)
        far = await m.connect("10.0.0.3", report=0)
        near = await m.connect("10.0.0.2", report=end - 10)
        await far.until(lambda: far.end == end)
        ended_s = []

        async def drain() -> None:
            await m.primary.drained()
            ended_s.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain)
            await trio.sleep(1)
            assert ended_s == []
            await near.report(end)
        assert ended_s == [1.0]
        await m.primary.drained()  # nobody is waited for now


async def test_over_a_network(autojump_clock) -> None:
    """As the port of a broker serves it: accepted, served, and ended with the port."""
    async with master() as m:
        network = MemoryNetwork()
        server, client = MemoryHost(network, "10.0.0.1"), MemoryHost(network, "10.0.0.2")
        port = server.listen("", 10912, purpose="slaves")
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve_streams, [port], m.primary.serve)
            stream = await client.open_stream(Address("10.0.0.1", 10912), 3.0)
            await stream.send_all((0).to_bytes(8, "big"))
            end = m.put(2)
            data = b""
            while len(data) < 12 + end:
                data += await stream.receive_some(65_536)
            assert m.primary.state_of("10.0.0.2") is LinkState.TRANSFER
            nursery.cancel_scope.cancel()
        assert m.primary.slaves == ()
