"""A slave's end: when it connects, how it goes on after each kind of end, and what it tells."""

import errno
import logging
import random
from itertools import pairwise

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.ha.masters import (
    MASTER,
    OTHER,
    SEGMENT,
    Bench,
    MemoryLog,
    beat,
    feeds,
    piece,
    sends,
    settle,
    stay,
)
from trio_mq.ha.findings import Finding, Verdict
from trio_mq.ha.replica import RECHECK_S, Complaints
from trio_mq.ha.states import LinkState

LOG = bytes(random.Random(7).randbytes(3000))


def lines(caplog, text, level=logging.WARNING):
    return [r for r in caplog.records if text in r.getMessage() and r.levelno >= level]


# -- copying


async def test_a_slave_copies_a_log_and_reports_all_of_it(autojump_clock):
    bench = Bench()
    master = bench.master(feeds(LOG))
    async with bench.running(master):
        await settle(0.1)
        assert bench.log.data == LOG
        assert master.last.reports[-1] == len(LOG)
        view = bench.replica.view
        assert (view.master, view.state) == (str(MASTER), LinkState.TRANSFER)
        assert (view.max_offset, view.reconnects, view.last_error) == (len(LOG), 0, "")
        await settle(1.2)
        assert bench.replica.view.read_age_s == pytest.approx(1.3)
    assert bench.replica.state.state is LinkState.SHUTDOWN


async def test_the_first_report_comes_right_after_the_connect(autojump_clock):
    bench = Bench(MemoryLog(b"x" * 50))
    master = bench.master()
    async with bench.running(master):
        await settle()
        assert (master.last.reports, master.last.times_s) == ([50], [0.0])


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_connection_cut_at_every_byte_is_gone_on_with_where_the_log_ends(
    autojump_clock, how
):
    """Three pieces, both directions of the second connection begin where the first one was cut."""
    bodies = (b"abc", b"defghi", b"jk")
    whole = b"".join(bodies)
    frames = piece(0, b"abc") + piece(3, b"defghi") + piece(9, b"jk")
    for cut in range(len(frames) + 1):
        bench = Bench()

        async def cut_off(visit, cut=cut):
            await visit.reported()
            await visit.send(frames[:cut])
            await wait_all_tasks_blocked()
            if how == "reset":
                visit.stream.wire.reset()

        master = bench.master(cut_off, feeds(whole))
        async with bench.running(master):
            await settle(5.1)
            assert bench.log.data == whole
            first, second = master.visits
            assert second.reports[0] == first.reports[-1]
            assert second.reports[-1] == len(whole)
            assert bench.replica.view.reconnects == 1


async def test_c064_an_idle_pair_keeps_one_connection_with_heartbeats_both_ways(autojump_clock):
    bench = Bench(MemoryLog(b"x" * 50))
    master = bench.master(beat)
    async with bench.running(master):
        await settle(90)
        assert len(master.visits) == 1
        assert bench.replica.view.reconnects == 0
        assert set(master.last.reports) == {50}
        assert len(master.last.reports) == 19
        assert bench.replica.view.read_age_s < 5


async def test_c073_the_lag_shrinks_to_nothing_while_producers_go_on(autojump_clock):
    """The slave was away for five seconds; then the master grows by 10 kB/s and sends 50 kB/s."""
    bench = Bench()
    bench.log.segment_bytes = 1 << 30
    lags = []

    async def loaded(visit):
        at = await visit.reported()
        while True:
            end = int(trio.current_time() * 10_000)
            size = min(5000, end - at)
            await visit.send(piece(at, b"x" * size))
            at += size
            lags.append(end - visit.reports[-1])
            await trio.sleep(0.1)

    master = bench.master(loaded)
    async with bench.running(master, follow=None):
        await trio.sleep(5)
        bench.replica.follow(MASTER)
        await settle(5)
        assert lags[0] == 50_000
        assert all(later <= before for before, later in pairwise(lags))
        assert lags[-1] <= 1000
        assert bench.log.end == pytest.approx(100_000, abs=2000)


# -- connecting again


async def test_c068_a_wrong_address_is_told_with_the_next_try_and_needs_no_restart(
    autojump_clock, caplog
):
    bench = Bench(master_address=MASTER)
    async with bench.running(follow=None) as nursery:
        await settle(59)
        assert len(lines(caplog, f"cannot reach {MASTER}, next try in 5 s")) == 1
        view = bench.replica.view
        assert f"cannot reach {MASTER}, next try in 5 s" in view.reason
        assert (view.state, view.last_error) == (LinkState.READY, view.reason)
        await settle(240)
        assert len(lines(caplog, "cannot reach")) == 5  # one a minute
        master = bench.master(feeds(LOG))
        await nursery.start(master.serve)
        await settle(5.1)
        assert bench.log.data == LOG
        assert bench.replica.state.state is LinkState.TRANSFER


async def test_a_master_that_comes_back_is_found_within_six_seconds(autojump_clock):
    bench = Bench()
    async with bench.running() as nursery:
        for away_s in (3, 7.7, 20.2):
            async with trio.open_nursery() as life:
                await settle(away_s)
                master = bench.master(feeds(LOG))
                began_s = trio.current_time()
                await life.start(master.serve)
                await bench.replica.state.reached(LinkState.TRANSFER, 100)
                assert trio.current_time() - began_s < 6
                life.cancel_scope.cancel()
            await settle()
        nursery.cancel_scope.cancel()


async def test_a_closed_link_is_made_again_after_five_seconds(autojump_clock):
    bench = Bench()
    master = bench.master(sends(hang_up=True))
    async with bench.running(master):
        await settle(26)
    assert [visit.began_s for visit in master.visits] == [0, 5, 10, 15, 20, 25]
    assert bench.replica.view.reconnects == 5


async def test_a_silent_master_is_called_again_without_a_pause(autojump_clock):
    bench = Bench()
    master = bench.master(stay, beat)
    async with bench.running(master):
        await settle(30)
    assert [visit.began_s for visit in master.visits] == [0, 20]
    assert "nothing came from it for 20 s" in bench.replica.view.last_error


async def test_a_partition_ends_the_link_and_heals(autojump_clock):
    bench = Bench()
    master = bench.master(feeds(LOG))
    async with bench.running(master):
        await settle(1)
        bench.network.sever("slave", "master")
        await settle(60)
        assert bench.replica.state.state is LinkState.READY
        bench.network.mend("slave", "master")
        await settle(10)
        assert bench.replica.state.state is LinkState.TRANSFER
        assert bench.log.data == LOG


# -- other masters


async def test_another_address_is_followed_at_once(autojump_clock):
    bench = Bench()
    master, other = bench.master(beat), bench.master(beat, at=OTHER)
    async with bench.running(master, other):
        await settle(3)
        bench.replica.follow(OTHER)
        await settle()
        assert master.last.ended_s == other.last.began_s == 3
        assert bench.replica.view.master == str(OTHER)


@pytest.mark.parametrize("wait_s", [0.5, 4.9, 7, 9.9, 12])
async def test_another_address_ends_a_connect_and_a_pause(autojump_clock, wait_s):
    bench = Bench()
    bench.network.listen(MASTER)
    bench.network.sever("slave", "master")
    other = bench.master(beat, at=OTHER)
    async with bench.running(other):
        await settle(wait_s)
        bench.replica.follow(OTHER)
        await settle()
        assert other.last.began_s == wait_s


async def test_no_address_and_the_same_address_change_nothing(autojump_clock):
    bench = Bench()
    master = bench.master(beat)
    async with bench.running(master):
        await settle(3)
        bench.replica.follow(None)
        bench.replica.follow(MASTER)
        await settle(3)
        assert len(master.visits) == 1
        assert bench.replica.state.state is LinkState.TRANSFER


async def test_an_address_of_the_settings_is_kept(autojump_clock):
    bench = Bench(master_address=MASTER)
    master, other = bench.master(beat), bench.master(beat, at=OTHER)
    async with bench.running(master, other, follow=OTHER):
        await settle(3)
        assert (len(master.visits), len(other.visits)) == (1, 0)


async def test_without_an_address_it_waits_and_says_so(autojump_clock):
    bench = Bench()
    async with bench.running(follow=None):
        await settle(3)
        view = bench.replica.view
        assert (view.master, view.state) == (None, LinkState.READY)
        assert "waiting for name servers" in view.reason


# -- stopping


@pytest.mark.parametrize(
    "state", ["no address", "connecting", "refused", "checking", "copying", "suspended", "silent"]
)
async def test_it_ends_at_once_in_every_state(autojump_clock, state):
    async def check():
        if state == "checking":
            await trio.sleep_forever()
        return Finding(Verdict.AHEAD if state == "suspended" else Verdict.CONTINUES, "told")

    bench = Bench(check=check)
    masters = [] if state in ("connecting", "refused") else [bench.master(stay)]
    if state == "connecting":
        bench.network.listen(MASTER)
        bench.network.sever("slave", "master")
    async with bench.running(*masters, follow=None if state == "no address" else MASTER) as nursery:
        await settle(3)
        nursery.cancel_scope.cancel()
    assert trio.current_time() == 3
    assert bench.replica.state.state is LinkState.SHUTDOWN


# -- what does not fit


async def test_three_equal_mismatches_are_an_error_and_then_a_line_a_minute(autojump_clock, caplog):
    bench = Bench(MemoryLog(b"x" * 50))
    master = bench.master(sends(piece(70, b"abc")))
    async with bench.running(master):
        await settle(11)
        assert [r.levelname for r in lines(caplog, "offset 70 and this log ends at 50")] == [
            "WARNING",
            "WARNING",
            "ERROR",
        ]
        assert bench.replica.state.state is LinkState.READY
        await settle(120)
        assert len(lines(caplog, "offset 70")) == 5
    assert bench.log.data == b"x" * 50
    assert len(master.visits) == 27


async def test_another_mismatch_is_told_anew(autojump_clock, caplog):
    bench = Bench(MemoryLog(b"x" * 50))
    master = bench.master(*[sends(piece(60 + n % 2)) for n in range(10)])
    async with bench.running(master):
        await settle(36)
    assert len(lines(caplog, "they do not continue")) == 8
    assert not lines(caplog, "they do not continue", logging.ERROR)


async def test_other_sizes_of_files_are_told_once_a_minute(autojump_clock, caplog):
    bench = Bench(MemoryLog(b"x" * (SEGMENT - 10)))
    master = bench.master(sends(piece(SEGMENT - 10, b"y" * 20)))
    async with bench.running(master):
        await settle(119)
        assert len(lines(caplog, "mappedFileSizeCommitLog")) == 2
        assert f"{SEGMENT} bytes" in bench.replica.view.last_error
        assert f"{SEGMENT + 10}" in bench.replica.view.last_error


async def test_bad_bytes_close_the_link_and_it_goes_on(autojump_clock):
    bench = Bench()
    master = bench.master(sends(b"\xff" * 12), sends(b"GET / HTTP/1.1\r\n\r\n"), feeds(LOG))
    async with bench.running(master):
        await settle(11)
    assert [visit.ended_s for visit in master.visits[:2]] == [0, 5]
    assert bench.log.data == LOG


async def test_a_full_disk_is_visible_and_heals_by_itself(autojump_clock, caplog):
    bench = Bench()
    bench.log.failure = OSError(errno.ENOSPC, "No space left on device")
    master = bench.master(feeds(LOG))
    async with bench.running(master):
        await settle(23)
        assert "No space left on device" in bench.replica.view.reason
        assert len(lines(caplog, "No space left")) == 1
        assert {report for visit in master.visits for report in visit.reports} == {0}
        bench.log.failure = None
        await settle(3)
        assert bench.log.data == LOG
        assert bench.replica.state.state is LinkState.TRANSFER


# -- logs that do not continue each other


class Checks:
    """Gives the findings of a list, the last one again and again."""

    def __init__(self, *verdicts):
        self.verdicts = list(verdicts)
        self.times_s = []

    async def __call__(self):
        verdict = self.verdicts[min(len(self.times_s), len(self.verdicts) - 1)]
        self.times_s.append(trio.current_time())
        if isinstance(verdict, Exception):
            raise verdict
        return Finding(verdict, "ends at 50 and 40: do this")


@pytest.mark.parametrize(
    "verdict", [Verdict.AHEAD, Verdict.DIVERGED, Verdict.TOO_OLD, Verdict.FOREIGN]
)
async def test_c062_a_log_that_does_not_continue_is_suspended_and_nothing_is_asked_for(
    autojump_clock, caplog, verdict
):
    check = Checks(verdict)
    bench = Bench(MemoryLog(b"x" * 50), check)
    master = bench.master(feeds(LOG))
    async with bench.running(master):
        await settle(100)
        view = bench.replica.view
        assert view.state is LinkState.SUSPEND
        assert view.reason == view.last_error == f"{verdict.value}: ends at 50 and 40: do this"
        assert len(lines(caplog, "ends at 50 and 40", logging.ERROR)) == 1
        assert [visit.reports for visit in master.visits] == [[]]
        assert master.last.ended_s == 0
        assert check.times_s == [0, 30, 60, 90]
    assert bench.log.data == b"x" * 50


async def test_a_repaired_master_is_found_without_a_restart(autojump_clock):
    # A master that does not answer in between has not been repaired.
    check = Checks(Verdict.AHEAD, Verdict.UNANSWERED, Verdict.AHEAD, Verdict.CONTINUES)
    bench = Bench(check=check)
    master = bench.master(feeds(LOG))
    async with bench.running(master):
        await settle(2 * RECHECK_S)
        assert bench.replica.state.state is LinkState.SUSPEND
        await settle(RECHECK_S)
        assert bench.replica.state.state is LinkState.TRANSFER
        assert bench.log.data == LOG


async def test_an_operator_may_have_it_checked_at_once(autojump_clock):
    check = Checks(Verdict.DIVERGED, Verdict.CONTINUES)
    bench = Bench(check=check)
    async with bench.running(bench.master(feeds(LOG))):
        await settle(1)
        bench.replica.resume()
        await settle()
        assert check.times_s == [0, 1, 1]  # the connection is checked too
        assert bench.replica.state.state is LinkState.TRANSFER


async def test_another_master_ends_the_suspension(autojump_clock):
    check = Checks(Verdict.DIVERGED, Verdict.CONTINUES)
    bench = Bench(check=check)
    master, other = bench.master(beat), bench.master(feeds(LOG), at=OTHER)
    async with bench.running(master, other):
        await settle(1)
        bench.replica.follow(OTHER)
        await settle()
        assert bench.replica.state.state is LinkState.TRANSFER
        assert bench.log.data == LOG


@pytest.mark.parametrize("verdict", [Verdict.UNKNOWN, Verdict.UNANSWERED])
async def test_without_an_answer_it_copies_on_with_a_warning(autojump_clock, caplog, verdict):
    bench = Bench(check=Checks(verdict))
    async with bench.running(bench.master(feeds(LOG))):
        await settle(1)
        assert bench.log.data == LOG
        assert len(lines(caplog, "without a check")) == 1


async def test_a_master_that_answered_before_is_asked_again_before_anything_is_copied(
    autojump_clock, caplog
):
    silent = Finding(Verdict.UNANSWERED, "no answer", answered_before=True)
    found = [silent, silent, Finding(Verdict.CONTINUES)]

    async def check():
        return found.pop(0)

    bench = Bench(check=check)
    async with bench.running(bench.master(feeds(LOG))):
        await settle(9)
        assert bench.log.data == b""
        assert bench.replica.state.state is LinkState.READY
        assert "it did before" in bench.replica.view.last_error
        await settle(2)
        assert bench.log.data == LOG
        assert not lines(caplog, "without a check")


async def test_a_master_that_does_not_answer_any_more_is_copied_from_after_a_minute(
    autojump_clock, caplog
):
    async def check():
        return Finding(Verdict.UNANSWERED, "no answer", answered_before=True)

    bench = Bench(check=check)
    async with bench.running(bench.master(feeds(LOG))):
        await settle(59)
        assert bench.log.data == b""
        await settle(2)
        assert bench.log.data == LOG
        assert len(lines(caplog, "without a check")) == 1


async def test_a_link_without_a_check_ends_when_the_master_answers_questions(autojump_clock):
    check = Checks(Verdict.UNANSWERED, Verdict.DIVERGED)
    answers = iter([False, False, True])
    asked_s = []

    async def are_there():
        asked_s.append(trio.current_time())
        return next(answers)

    bench = Bench(check=check, answers=are_there)
    master = bench.master(feeds(LOG))
    async with bench.running(master):
        await settle(70)
        assert asked_s == [3, 33, 63]
        assert [visit.ended_s for visit in master.visits] == [63, 63]
        assert bench.replica.state.state is LinkState.SUSPEND


async def test_an_own_log_that_cannot_be_read_is_no_reason_to_end(autojump_clock, caplog):
    bench = Bench(check=Checks(OSError(errno.EIO, "Input/output error")))
    async with bench.running(bench.master(feeds(LOG))):
        await settle(1)
        assert bench.log.data == LOG
        assert lines(caplog, "Input/output error")


# -- complaints


def test_a_complaint_is_told_once_and_then_every_minute():
    complaints = Complaints()
    told = [s for s in range(0, 200, 5) if complaints.level("a", s)]
    assert told == [0, 60, 120, 180]
    assert complaints.level("b", 200)
    assert complaints.level("a", 201)
    complaints.clear()
    assert complaints.level("a", 202)
