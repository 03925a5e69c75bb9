"""Does a slave's log continue its master's: what is compared, what is found, what is cut."""

import errno
import json
from contextlib import asynccontextmanager

import pytest

from tests.ha.copies import Copying, read_all
from tests.ha.histories import NOT_SUPPORTED, Asked, history
from tests.ha.masters import ha_settings
from trio_mq.ha.continuity import Continuity, judge
from trio_mq.ha.findings import Verdict
from trio_mq.ha.masterasks import Bounds
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command

STATE = "/slave/config/replication.json"
VIEW = RequestCode.VIEW_MESSAGE_BY_ID


class Slave:
    """A slave's store that runs, with its check."""

    def __init__(self, running, master, **settings):
        self.store, self.copy = running.store, running.copy
        self.running = running
        self.master = master
        self.continuity = Continuity(
            running.copy, running.store, ha_settings(**settings), self._ask
        )

    async def _ask(self, command):
        return await self.master(command)

    async def check(self):
        found = await self.continuity.check()
        await self.running.settled()
        return found

    @property
    def data(self):
        log = self.store.log
        return read_all(log.read, log.start, log.written)

    @property
    def quarantined(self):
        disk = self.store.parts.disk
        return disk.is_dir("/slave/quarantine") and bool(disk.list_dir("/slave/quarantine"))

    @property
    def remembered(self):
        disk = self.store.parts.disk
        return json.loads(disk_text(disk, STATE)) if disk.exists(STATE) else None


def disk_text(disk, path):
    file = disk.open(path, readonly=True)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


@asynccontextmanager
async def slave_of(log, end, master, *, copying=None, **settings):
    """A slave that has the log up to `end`."""
    copying = copying or Copying.make(log)
    async with copying.life() as running:
        await running.take(log, end)
        yield Slave(running, master, **settings)


def after(log, number):
    """Where so many records end; the ends of segments are told too, as multiples of their size."""
    return [end for end in log.ends if end % log.segment_bytes][number - 1]


# -- logs that continue each other


async def test_an_equal_end_is_enough_and_the_run_is_remembered(autojump_clock):
    log = await history()
    async with slave_of(log, after(log, 50), Asked(log, run=777)) as slave:
        assert (await slave.check()).verdict is Verdict.CONTINUES
        assert slave.remembered == {"masterFlushOffset": 777, "masterHaAddress": "master:10912"}
        # The first look asks for sizes, and for nothing more than the last record.
        assert sorted(slave.master.asked) == [26, 33, 906]
        slave.master.asked.clear()
        await slave.check()
        assert sorted(slave.master.asked) == [33, 906]


async def test_an_empty_slave_has_nothing_to_compare(autojump_clock):
    log = await history()
    async with slave_of(log, 0, Asked(log, run=777)) as slave:
        assert (await slave.check()).verdict is Verdict.CONTINUES
        assert VIEW not in slave.master.asked
        assert slave.remembered["masterFlushOffset"] == 777


@pytest.mark.parametrize("is_same_run", [True, False])
async def test_a_log_that_ends_at_any_byte_continues_and_keeps_all(autojump_clock, is_same_run):
    log = await history()
    master = Asked(log, run=0)
    async with slave_of(log, after(log, 10), master) as slave:
        await slave.check()
        # Some records, and a blank between two segments.
        blank = next(e for e in log.ends if e % 4096 == 0)
        for end in [*range(after(log, 10), after(log, 12)), *range(blank - 160, blank + 20, 2)]:
            await slave.running.take(log, end)
            if not is_same_run:
                master.run = end
            found = await slave.check()
            assert found.verdict is Verdict.CONTINUES
            # Only the blank at a segment's end is not asked for: it is cut, and comes again.
            in_blank = end < blank and slave.copy.end < end
            assert slave.copy.end == end or (in_blank and not is_same_run)
            assert slave.data == log.log[: slave.copy.end]


async def test_a_run_is_remembered_through_a_restart(autojump_clock):
    log = await history()
    copying = Copying.make(log)
    master = Asked(log, run=777)
    async with slave_of(log, after(log, 30), master, copying=copying) as slave:
        await slave.check()
    async with slave_of(log, after(log, 30) + 20, master, copying=copying) as slave:
        master.asked.clear()
        await slave.check()
        assert master.asked.count(VIEW) == 1  # the torn end is that of the same run
        master.address = "another:10912"
        await slave.check()
        assert master.asked.count(VIEW) == 3
        assert slave.remembered["masterHaAddress"] == "another:10912"


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b'{"masterFlushOffset":"x"}'])
async def test_a_spoilt_file_costs_one_comparison_only(autojump_clock, text):
    log = await history()
    copying = Copying.make(log)
    copying.disk.make_dirs("/slave/config")
    copying.disk.open(STATE, create=True).write(text, 0)
    async with slave_of(log, after(log, 30), Asked(log, run=777), copying=copying) as slave:
        assert (await slave.check()).verdict is Verdict.CONTINUES
        assert slave.remembered["masterFlushOffset"] == 777


async def test_a_run_that_cannot_be_saved_is_remembered_in_memory(
    autojump_clock, caplog, monkeypatch
):
    log = await history()
    async with slave_of(log, after(log, 30), Asked(log, run=777)) as slave:
        disk = slave.store.parts.disk

        def full(path, *args, opened=disk.open, **options):
            if "replication.json" in path and options.get("create"):
                raise OSError(errno.ENOSPC, "No space left on device")
            return opened(path, *args, **options)

        monkeypatch.setattr(disk, "open", full)
        assert (await slave.check()).verdict is Verdict.CONTINUES
        assert "No space left on device" in caplog.text


# -- another run


async def test_a_torn_end_that_the_new_run_does_not_have_is_cut(autojump_clock):
    """The master lost its tail in the middle of what was torn here, or wrote something else there."""
    log = await history(common=30)
    other = await history("b", common=30)
    whole, next_end = after(log, 30), after(log, 31)
    same = 0
    for master in (Asked(log, run=whole, end=whole), Asked(other, run=whole)):
        copying = Copying.make(log)
        async with slave_of(log, whole, master, copying=copying) as slave:
            for end in range(whole + 1, next_end, 9):
                await slave.running.take(log, end)
                master.run += 1
                assert (await slave.check()).verdict is Verdict.CONTINUES
                if slave.copy.end == end:
                    same += 1
                    assert master.log is other  # its record begins with the same bytes
                    await slave.copy.cut_to(whole)
                assert slave.copy.end == whole
                assert slave.data == log.log[:whole]
    assert 0 < same < 3


async def test_without_the_cut_that_it_takes_nothing_is_copied(autojump_clock):
    """What came behind a stale end would make another log of it, and nobody would see that."""
    log = await history(common=30)
    whole = after(log, 30)
    master = Asked(log, run=777, end=whole)
    copying = Copying.make(log)
    async with slave_of(log, whole + 20, master, copying=copying) as slave:
        copying.disk.fail_when(lambda o: "quarantine" in o.path, error=errno.ENOSPC)
        found = await slave.check()
        assert (found.verdict, found.goes_on) == (Verdict.UNCUT, False)
        assert f"cut at {whole}" in found.text
        assert slave.copy.end == whole + 20
        copying.disk.heal()
        assert (await slave.check()).verdict is Verdict.CONTINUES
        assert slave.data == log.log[:whole]


@pytest.mark.parametrize("lost", [1, 3, 25])
async def test_c062_a_slave_ahead_is_found_with_both_offsets(autojump_clock, lost):
    """The master restarted with a shorter log. That counts also when its start says nothing new."""
    log = await history()
    mine = after(log, 55)
    theirs = after(log, 55 - lost)
    for run in (theirs, 0):
        master = Asked(log, run=0)
        async with slave_of(log, mine, master) as slave:
            await slave.check()
            master.run, master.end = run, theirs
            found = await slave.check()
            assert found.verdict is Verdict.AHEAD
            assert f"ends at {mine}" in found.text
            assert f"master's at {theirs}" in found.text
            assert "haCutWhenAhead" in found.text
            assert slave.remembered["masterFlushOffset"] == 0
            assert slave.copy.end == mine
            # When it has grown past us with other records it is no less wrong; when it is repaired, it is right.
            master.log, master.end = await history("b", common=55 - lost), log.end
            assert (await slave.check()).verdict is Verdict.DIVERGED
            master.log = log
            assert (await slave.check()).verdict is Verdict.CONTINUES


async def test_another_history_is_found(autojump_clock):
    log, other = await history(common=20), await history("b", common=20)
    async with slave_of(log, after(log, 50), Asked(other, run=5)) as slave:
        found = await slave.check()
        assert found.verdict is Verdict.DIVERGED
        assert str(after(log, 49)) in found.text
        assert str(after(log, 50)) in found.text
        assert str(other.end) in found.text
        assert slave.data == log.log[: after(log, 50)]
        assert slave.remembered is None


async def test_a_master_that_has_no_record_there_diverges(autojump_clock):
    log = await history(common=0)
    other = await history("bb", common=0, count=200)
    world_end = after(log, 50)
    master = Asked(other)
    master.instead[VIEW] = Command(ResponseCode.SYSTEM_ERROR, remark="no")
    async with slave_of(log, world_end, master) as slave:
        found = await slave.check()
        assert found.verdict is Verdict.DIVERGED
        assert "has no record" in found.text


async def test_what_has_expired_at_the_master_is_a_hole(autojump_clock):
    log = await history(count=200)
    mine = after(log, 50)
    async with slave_of(log, mine, Asked(log, run=5, start=8192)) as slave:
        found = await slave.check()
        assert found.verdict is Verdict.TOO_OLD
        assert f"ends at {mine}" in found.text
        assert "begins at 8192" in found.text
        assert "empty store" in found.text


async def test_a_master_that_begins_where_the_slave_ends_cannot_be_compared(autojump_clock):
    log = await history(count=200)
    end = next(e for e in log.ends if e % 4096 == 0)
    async with slave_of(log, end, Asked(log, run=5, start=end)) as slave:
        found = await slave.check()
        assert (found.verdict, found.goes_on) == (Verdict.UNKNOWN, True)


async def test_files_of_another_size_are_found_before_anything_is_copied(autojump_clock):
    log = await history()
    for end in (0, after(log, 30)):
        async with slave_of(log, end, Asked(log, segment_bytes=8192)) as slave:
            found = await slave.check()
            assert found.verdict is Verdict.FOREIGN
            assert "4096 bytes here and 8192 at the master" in found.text
            assert "mappedFileSizeCommitLog=8192" in found.text


# -- masters that answer little


async def test_a_master_that_answered_before_is_known_to_do_so(autojump_clock):
    log = await history()
    async with slave_of(log, after(log, 30), Asked(log)) as slave:
        assert (await slave.check()).verdict is Verdict.CONTINUES
        slave.master.is_dead = True
        found = await slave.check()
        assert (found.verdict, found.answered_before) == (Verdict.UNANSWERED, True)


async def test_nobody_answers(autojump_clock):
    log = await history()
    async with slave_of(log, after(log, 30), Asked(log, is_dead=True)) as slave:
        found = await slave.check()
        assert (found.verdict, found.goes_on) == (Verdict.UNANSWERED, True)
        assert "no answer within 3 s" in found.text
        assert not found.answered_before
        assert slave.remembered is None
        assert not await slave.continuity.answers()
        slave.master.is_dead = False
        assert await slave.continuity.answers()


async def test_a_master_before_release_5_is_compared_all_the_same(autojump_clock):
    old = (RequestCode.EXCHANGE_BROKER_HA_INFO, RequestCode.GET_BROKER_HA_STATUS)
    log = await history()
    async with slave_of(log, after(log, 30), Asked(log, unknown=old)) as slave:
        assert (await slave.check()).verdict is Verdict.CONTINUES
        slave.master.end = after(log, 20)
        found = await slave.check()
        assert found.verdict is Verdict.AHEAD
        assert f"master's at {after(log, 20)}" in found.text


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (906, Command(0, {"masterFlushOffset": "x"})),
        (906, Command(ResponseCode.SERVICE_NOT_AVAILABLE, remark="the broker is starting")),
        (33, Command(ResponseCode.NO_PERMISSION, remark="no")),
        (33, Command(ResponseCode.SYSTEM_BUSY, remark="busy")),
    ],
)
async def test_an_answer_that_says_nothing_is_none(autojump_clock, code, answer):
    log = await history()
    master = Asked(log, instead={RequestCode(code): answer})
    async with slave_of(log, after(log, 30), master) as slave:
        assert (await slave.check()).verdict is Verdict.UNANSWERED
        assert not await slave.continuity.answers()


@pytest.mark.parametrize("code", [26, 28, 907])
@pytest.mark.parametrize(
    "answer",
    [
        Command(1),
        Command(0),
        Command(0, body=b"["),
        Command(0, body=b"[1]"),
        Command(NOT_SUPPORTED),
    ],
)
async def test_single_answers_may_be_missing(autojump_clock, code, answer):
    log = await history()
    master = Asked(log, end=after(log, 20), instead={RequestCode(code): answer})
    async with slave_of(log, after(log, 30), master) as slave:
        assert (await slave.check()).verdict is Verdict.AHEAD


async def test_damage_here_is_told_and_nothing_is_cut_for_it(autojump_clock):
    log = await history(mapped_file_size_commit_log=1 << 20)
    master = Asked(log, segment_bytes=1 << 20)
    async with slave_of(log, log.end, master) as slave:
        slave.store.log.segments.write(b"\xff" * 30, after(log, 40))
        found = await slave.check()
        assert (found.verdict, found.goes_on) == (Verdict.UNKNOWN, True)
        assert str(after(log, 40)) in found.text
        assert slave.copy.end == log.end


# -- cutting back


@pytest.mark.parametrize("common", [1, 2, 7, 29, 43, 44, 59])
@pytest.mark.parametrize("how", ["ahead", "diverged"])
async def test_with_cut_when_ahead_the_log_ends_with_the_last_common_record(
    autojump_clock, common, how
):
    log = await history(common=common)
    other = await history("b", common=common)
    master = Asked(other)
    if how == "ahead":
        master.end = after(log, common) + (after(log, 60) - after(log, common)) // 2
    async with slave_of(log, log.end, master, cut_when_ahead=True) as slave:
        assert (await slave.check()).verdict is Verdict.CONTINUES
        assert slave.copy.end == slave.copy.kept.value == after(log, common)
        assert slave.data == log.log[: after(log, common)]
        assert slave.quarantined
        assert slave.store.dispatcher.dispatched == after(log, common)
        # And it goes on from there.
        await slave.running.take(other, other.end)
        assert slave.data == other.log
        assert (await slave.check()).verdict is Verdict.CONTINUES


async def test_a_large_log_is_cut_with_few_questions(autojump_clock):
    log = await history(common=323, count=700, mapped_file_size_commit_log=1 << 15)
    other = await history("b", common=323, count=700, mapped_file_size_commit_log=1 << 15)
    master = Asked(other, segment_bytes=1 << 15)
    async with slave_of(log, log.end, master, cut_when_ahead=True) as slave:
        assert (await slave.check()).verdict is Verdict.CONTINUES
        assert slave.copy.end == after(log, 323)
        assert len(slave.master.asked) < 30


async def test_nothing_in_common_is_not_cut(autojump_clock):
    log, other = await history(common=0), await history("b", common=0)
    async with slave_of(log, log.end, Asked(other), cut_when_ahead=True) as slave:
        found = await slave.check()
        assert found.verdict is Verdict.DIVERGED
        assert "not one record is the same" in found.text
        assert slave.data == log.log


async def test_a_master_that_falls_silent_while_it_is_asked_leaves_all_as_it_is(autojump_clock):
    log, other = await history(common=20), await history("b", common=20)
    master = Asked(other)
    async with slave_of(log, log.end, master, cut_when_ahead=True) as slave:
        for count in range(12):
            master.asked.clear()
            master.is_dead = False

            async def until(command, left=count):
                if len(master.asked) >= left:
                    master.is_dead = True
                return await master(command)

            slave._ask = slave.continuity._master._ask = until
            found = await slave.check()
            if master.is_dead:
                assert found.verdict is Verdict.UNANSWERED
                assert slave.data == log.log


async def test_what_has_expired_at_the_master_is_not_taken_for_different(autojump_clock):
    """The master's log begins in the middle of what is common."""
    log = await history(common=100, count=160)
    other = await history("b", common=100, count=160)
    async with slave_of(log, log.end, Asked(other, start=8192), cut_when_ahead=True) as slave:
        assert after(log, 100) > 8192 + 4096
        assert (await slave.check()).verdict is Verdict.CONTINUES
        assert slave.copy.end == after(log, 100)


# -- the verdict by itself


@pytest.mark.parametrize(
    ("master", "verdict"),
    [
        ((0, 900), Verdict.AHEAD),
        ((None, 999), Verdict.AHEAD),
        ((950, 999), Verdict.AHEAD),
        ((0, 1000), Verdict.DIVERGED),
        ((None, None), Verdict.UNANSWERED),
        ((900, 5000), Verdict.DIVERGED),
        ((901, 5000), Verdict.UNKNOWN),
        ((1000, 5000), Verdict.UNKNOWN),
        ((1001, 5000), Verdict.TOO_OLD),
        ((1001, None), Verdict.TOO_OLD),
    ],
)
def test_judgement(master, verdict):
    found = judge(1000, 900, Bounds(*master), has_other=False)
    assert found.verdict is verdict
    assert "1000" in found.text or found.goes_on


def test_another_record_says_enough_by_itself():
    assert judge(1000, 900, Bounds(None, None), has_other=True).verdict is Verdict.DIVERGED
