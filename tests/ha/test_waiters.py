"""Waiters are released by their own end, number and deadline, each once, whatever the others do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trio_mq.ha.waiters import Waiters


class Log:
    """Keeps what waiters were told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, bool]] = []

    def note(self, name: object):
        return lambda reached: self.told.append((name, reached))


def test_an_acknowledgement_releases_all_at_or_below() -> None:
    waiters, log = Waiters(), Log()
    for end in (10, 20, 30):
        waiters.add(end, 1, 5.0, log.note(end))
    waiters.acknowledged([9])
    assert log.told == []
    waiters.acknowledged([20])
    assert log.told == [(10, True), (20, True)]
    assert len(waiters) == 1
    waiters.acknowledged([29, 30])
    assert log.told[2:] == [(30, True)]
    assert len(waiters) == 0
    assert waiters.next_deadline_s is None


def test_each_waits_for_as_many_slaves_as_it_wants() -> None:
    waiters, log = Waiters(), Log()
    waiters.add(10, 2, 5.0, log.note("two"))
    waiters.add(20, 1, 5.0, log.note("one"))
    waiters.add(30, 3, 5.0, log.note("three"))
    waiters.acknowledged([100])
    assert log.told == [("one", True)]
    waiters.acknowledged([10, 100])
    assert log.told[1:] == [("two", True)]
    waiters.acknowledged([100, 100])
    assert len(log.told) == 2
    waiters.acknowledged([30, 31, 32])
    assert log.told[2:] == [("three", True)]


def test_a_slave_that_began_later_has_nothing_of_before_whatever_it_reports() -> None:
    waiters, log = Waiters(), Log()
    for end in (90, 100, 110):
        waiters.add(end, 1, 5.0, log.note(end))
    waiters.acknowledged([200], [100])
    assert log.told == [(110, True)]
    waiters.acknowledged([200, 95], [100, 0])
    assert log.told[1:] == [(90, True)]
    waiters.expire(5.0)
    assert log.told[2:] == [(100, False)]
    assert len(waiters) == 0


def test_the_late_are_told_and_the_others_stay() -> None:
    waiters, log = Waiters(), Log()
    waiters.add(10, 1, 1.0, log.note(10))
    waiters.add(20, 1, 2.0, log.note(20))
    waiters.expire(0.9)
    assert log.told == []
    assert waiters.next_deadline_s == 1.0
    waiters.expire(1.0)
    assert log.told == [(10, False)]
    assert waiters.next_deadline_s == 2.0
    waiters.acknowledged([20])
    assert log.told == [(10, False), (20, True)]
    waiters.expire(9.0)
    assert len(log.told) == 2


def test_one_who_is_told_is_let_go_of_at_once() -> None:
    """What waits holds a whole send; it must not live until a deadline that does not matter any more."""
    waiters = Waiters()
    for end in range(1, 1001):
        waiters.add(end, 1, 5.0 + end, lambda _: None)
    waiters.acknowledged([999])
    assert len(waiters) == 1
    assert len(waiters._deadlines) == 1


def test_ends_need_not_come_in_order() -> None:
    waiters, log = Waiters(), Log()
    for end in (30, 10, 20):
        waiters.add(end, 1, 5.0, log.note(end))
    waiters.acknowledged([20])
    assert log.told == [(10, True), (20, True)]
    waiters.expire(5.0)
    assert log.told[2:] == [(30, False)]


def test_one_who_is_told_may_wait_again() -> None:
    waiters, log = Waiters(), Log()
    waiters.add(10, 1, 5.0, lambda _: waiters.add(20, 1, 6.0, log.note("again")))
    waiters.acknowledged([15])
    waiters.acknowledged([20])
    assert log.told == [("again", True)]
    assert len(waiters) == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30), st.integers(1, 3)),
        st.tuples(st.just("ack"), st.lists(st.integers(0, 30), max_size=4), st.just(0)),
        st.tuples(st.just("time"), st.integers(0, 4), st.just(0)),
    ),
    max_size=30,
)


@given(STEPS)
def test_as_a_list_that_is_searched(steps) -> None:
    """Against the plain rule: look at each waiter, one by one."""
    waiters, log, now_s = Waiters(), Log(), 0
    waiting: dict[int, tuple[int, int, int]] = {}
    for number, (what, value, slaves) in enumerate(steps):
        log.told, expected = [], []
        if what == "add":
            waiters.add(value, slaves, now_s + 5, log.note(number))
            waiting[number] = (value, slaves, now_s + 5)
        elif what == "ack":
            waiters.acknowledged(value)
            for name, (end, wanted, _) in waiting.items():
                if sum(ack >= end for ack in value) >= wanted:
                    expected.append((name, True))
        else:
            now_s += value
            waiters.expire(now_s)
            expected = [(name, False) for name, w in waiting.items() if w[2] <= now_s]
        assert sorted(log.told) == sorted(expected)
        for name, _ in expected:
            del waiting[name]
        assert len(waiters) == len(waiting)
        assert waiters.next_deadline_s == min((w[2] for w in waiting.values()), default=None)
