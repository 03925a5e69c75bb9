"""The ledger of half messages against a model that keeps everything, and the progress of the op queue."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.broker.transactions.ledger import Fate, HalfLedger, OpProgress


@attrs.define
class Model:
    """All halves ever sent, by offset: which transaction they are of; and the fate of each transaction."""

    roots: list[int] = attrs.field(factory=list)
    fates: dict[int, Fate] = attrs.field(factory=dict)

    def send(self) -> None:
        root = len(self.roots)
        self.roots.append(root)
        self.fates[root] = Fate.OPEN

    def copy(self, root: int) -> int:
        self.roots.append(root)
        return len(self.roots) - 1

    def newest(self, root: int) -> int:
        return max(offset for offset, of in enumerate(self.roots) if of == root)

    def open_places(self) -> list[int]:
        return sorted(self.newest(root) for root, fate in self.fates.items() if fate is Fate.OPEN)


STEPS = st.lists(
    st.one_of(
        st.just(("send", 0)),
        st.tuples(st.sampled_from(["copy", "commit", "roll back", "give up"]), st.integers(0, 99)),
        st.just(("advance", 0)),
    ),
    max_size=60,
)
FATES = {"commit": Fate.COMMITTED, "roll back": Fate.ROLLED_BACK, "give up": Fate.GIVEN_UP}


@given(STEPS)
def test_the_ledger_knows_what_is_open_and_where(steps):
    model, ledger = Model(), HalfLedger()
    for name, number in steps:
        open_roots = [root for root, fate in model.fates.items() if fate is Fate.OPEN]
        if name == "send":
            model.send()
        elif name == "advance":
            ledger.advance()
        elif open_roots:
            root = open_roots[number % len(open_roots)]
            assert ledger.newest(root) == model.newest(root)
            if name == "copy":
                ledger.copy(root, model.copy(root))
            else:
                assert ledger.settle(root, FATES[name]) == model.newest(root)
                model.fates[root] = FATES[name]
        end = len(model.roots)
        places, at = [], ledger.begin
        while (at := ledger.next_open(at, end)) < end:
            places.append(at)
            at += 1
        assert places == model.open_places()
        assert ledger.open_count(end) == len(places)
        for root, fate in model.fates.items():
            found = ledger.fate(ledger.newest(root))
            assert found in (fate, Fate.PASSED) if fate is not Fate.OPEN else found is Fate.OPEN
    begin = ledger.advance()
    assert begin == min(model.open_places(), default=begin)
    assert ledger.copied <= len(model.open_places())


def test_what_is_far_behind_the_end_is_noted_and_the_rest_stays_open():
    ledger = HalfLedger(100)
    ledger.settle_place(150, Fate.DECIDED)
    ledger.settle_place(99, Fate.DECIDED)
    assert ledger.fate(150) is Fate.DECIDED
    assert ledger.fate(149) is Fate.OPEN
    assert ledger.fate(99) is Fate.PASSED
    assert ledger.next_open(0, 200) == 100
    assert ledger.next_open(150, 200) == 151
    assert ledger.next_open(150, 151) == 151
    assert ledger.advance() == 100


def test_a_copy_that_cannot_be_read_takes_its_transaction_with_it():
    ledger = HalfLedger()
    ledger.copy(0, 5)
    ledger.copy(1, 6)
    ledger.forget_place(5)
    assert ledger.copied == 1
    assert ledger.fate(ledger.newest(0)) is Fate.COPIED
    assert ledger.newest(1) == 6


def test_what_has_expired_is_let_go_and_counted():
    ledger = HalfLedger()
    ledger.settle(1, Fate.COMMITTED)
    ledger.copy(0, 4)
    ledger.copy(2, 5)
    assert ledger.expire(3) == 0  # the two that were open have copies
    assert ledger.expire(5) == 2  # 3 and 4
    assert (ledger.begin, ledger.copied) == (5, 1)
    assert ledger.expire(2) == 0
    assert ledger.fate(5) is Fate.OPEN


@given(st.lists(st.lists(st.integers(0, 50), max_size=5), max_size=20), st.integers(0, 60))
def test_the_op_queue_is_needed_up_to_the_first_record_that_is(records, begin):
    progress = OpProgress(7)
    for number, places in enumerate(records):
        progress.add(7 + number, places)
    reached = progress.advance(begin)
    done = records[: reached - 7]
    assert all(place < begin for places in done for place in places)
    if reached - 7 < len(records):
        assert max(records[reached - 7]) >= begin
    assert len(progress) == len(records) - len(done)
    assert progress.advance(100) == 7 + len(records)
