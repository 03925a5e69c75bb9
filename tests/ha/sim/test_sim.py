"""Seeded runs of replication: some here, thousands by ``python -m tests.ha.sim --runs``; and that they can fail."""

import itertools
import logging

import pytest
import trio

from tests.ha.sim import runner
from tests.ha.sim.scenario import Kind, scenario
from tests.ha.sim.watch import Master, Slave
from trio_mq.ha.copylog import LogCopy
from trio_mq.ha.findings import Finding, Verdict
from trio_mq.ha.primary import Primary
from trio_mq.ha.replica import Replica


@pytest.fixture(autouse=True)
def _silence():
    """What brokers tell of all that goes wrong is no news here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


def is_short(seed):
    """Whether a run takes little time."""
    found = scenario(seed)
    return found.lasting_s < 12 and found.lasting_s * found.producers / found.pause_s < 70


SHORT = [seed for seed in range(10_000, 10_400) if is_short(seed)][:30]


@pytest.mark.parametrize("part", range(6))
def test_runs(part):
    for seed in SHORT[part::6]:
        outcome = runner.run_seed(seed)
        assert not isinstance(outcome, str), outcome


def test_a_seed_is_a_scenario_and_all_kinds_of_events_happen():
    assert scenario(7) == scenario(7)
    assert str(scenario(7)) == str(scenario(7))
    events = [event for seed in range(100) for event in scenario(seed).events]
    assert {event.kind for event in events} == set(Kind)
    assert any(scenario(seed).is_sync for seed in range(10))
    assert not all(scenario(seed).is_sync for seed in range(10))


def loses_log(found):
    """Whether the master loses the end of its log, probably."""
    is_cut = any(event.kind is Kind.CRASH and not event.side for event in found.events)
    return is_cut and found.store["flush_disk_type"] == "ASYNC_FLUSH"


def noticed(expected, where=lambda found: True, most=40):
    """Whether one of some seeds fails as expected, with the line that repeats it; `where` says which are worth it."""
    worth = (seed for seed in itertools.count(20_000) if where(scenario(seed)))
    for seed in itertools.islice(worth, most):
        failed = runner.run_seed(seed)
        if isinstance(failed, str):
            assert failed.startswith(f"python -m tests.ha.sim --seed {seed}: "), failed
            if expected in failed:
                return True
    return False


@pytest.mark.slow
def test_a_slave_that_appends_behind_a_stale_tail_is_noticed(monkeypatch):
    async def found(self):
        return Finding(Verdict.UNKNOWN, "nobody looks")

    monkeypatch.setattr(Replica, "_found", found)
    assert noticed("is that of no master", where=loses_log)


@pytest.mark.slow
def test_a_slave_that_reports_what_is_not_durable_is_noticed(monkeypatch):
    grown = LogCopy._grown

    def too_early(self):
        grown(self)
        if self._log.written > self.kept.value:
            self.kept.advance(self._log.written)

    monkeypatch.setattr(LogCopy, "_grown", too_early)
    monkeypatch.setattr(LogCopy, "_confirmed_moved", lambda self: self._takeover.more.set())
    assert noticed("no slave ever had more")


@pytest.mark.slow
def test_a_master_that_answers_before_its_slaves_have_it_is_noticed(monkeypatch):
    monkeypatch.setattr(Primary, "wait_for", lambda self, end, needed, done: done(True))
    assert noticed("acknowledged at")


@pytest.mark.slow
def test_a_slave_that_gives_up_is_noticed(monkeypatch):
    async def tried_once(self, address):
        await tried(self, address)
        await trio.sleep_forever()

    tried = Replica._try
    monkeypatch.setattr(Replica, "_try", tried_once)
    assert noticed("of quiet")


@pytest.mark.slow
def test_a_slave_that_never_pauses_is_noticed(monkeypatch):
    async def at_once(self, address):
        await tried(self, address)
        return 0.5

    tried = Replica._try
    monkeypatch.setattr(Replica, "_try", at_once)
    assert noticed("attempts to connect")


class FakeLog:
    def __init__(self, data, start=0):
        self.data, self.start = data, start

    @property
    def written(self):
        return self.start + len(self.data)

    def read(self, size, offset):
        return bytes(self.data[offset - self.start :][:size])


class FakeNode:
    running = True


class FakeStore:
    """As much of a store as is looked at."""

    is_sync = False
    queues = ()

    def __init__(self, data, start=0):
        self.log = FakeLog(data, start)

    @property
    def confirmed(self):
        return self.log.written


def sides(history, slave, start=0):
    master, copy = Master(FakeNode()), Slave(FakeNode())
    master.store = FakeStore(history)
    master.look()
    store = FakeStore(slave, start)
    copy.begin(store)
    return master, copy, store


def test_a_prefix_is_one_byte_for_byte():
    master, slave, store = sides(b"abcdef", b"abc")
    slave.look(store, master)
    store.log.data = b"abcxef"
    with pytest.raises(AssertionError, match="agrees up to 3"):
        slave.look(store, master)


def test_a_log_may_begin_later_and_may_be_that_of_an_earlier_life():
    master, slave, store = sides(b"abcdef", b"cde", start=2)
    slave.look(store, master)
    master.sure = 0
    master.begin(FakeStore(b"abc"))
    master.store = FakeStore(b"abcXYZ")
    master.look()
    slave.look(store, master)
    assert not slave.follows(master.log)
    store.log.data = b"cdeYZ"  # the first life, and then the second one
    with pytest.raises(AssertionError, match="of no master"):
        slave.look(store, master)


def test_a_log_does_not_go_back_in_one_life():
    master, slave, store = sides(b"abcdef", b"abcd")
    slave.look(store, master)
    store.log.data = b"ab"
    with pytest.raises(AssertionError, match="went back from 4 to 2 while it ran"):
        slave.look(store, master)
    master, slave, store = sides(b"x" * 5000, b"x" * 5000)
    slave.look(store, master)
    with pytest.raises(AssertionError, match="4000 bytes were cut"):
        slave.cut(FakeStore(b"x" * 1000), on_purpose=False)


def test_a_master_loses_nothing_without_a_power_cut():
    master, _, _ = sides(b"abcdef", b"")
    with pytest.raises(AssertionError, match="6 bytes were sure"):
        master.begin(FakeStore(b"abc"))
