"""Ordered pop: blocked queues, attempt ids, counts, releases, and the state file."""

from __future__ import annotations

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.broker.pop.orders import FORGET_AFTER_MS, Committed, PopOrders
from trio_mq.errors import BodyError
from trio_mq.protocol import jsondialect
from trio_mq.testing.clock import ManualClock, TrioClock

INVISIBLE_MS = 3_000
ILLEGAL = -1
KEY = ("T", "G", 0)


class Queue:
    """Orders of one queue at a clock that stands until it is told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.orders = PopOrders(self.clock)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def pop(
        self, *offsets: int, attempt: str | None = None, invisible_ms: int = INVISIBLE_MS
    ) -> str:
        return self.orders.update(attempt, *KEY, self.now_ms, invisible_ms, offsets)

    def blocked(self, attempt: str | None = None) -> bool:
        return self.orders.blocked(*KEY, attempt, INVISIBLE_MS, self.now_ms)

    def ack(self, offset: int, pop_time_ms: int) -> int | None:
        """The offset to commit, -1 for a message that is not in the batch, None when nothing happens."""
        done = self.orders.commit(*KEY, (offset,), pop_time_ms, self.now_ms)
        return ILLEGAL if done.illegal is not None else done.next_offset


def test_a_batch_blocks_its_queue_until_it_is_visible_again():
    queue = Queue()
    assert not queue.blocked()
    assert queue.pop(5, 6, 7) == "0 0 0"
    assert queue.blocked()
    queue.clock.advance(INVISIBLE_MS - 1)
    assert queue.blocked()
    queue.clock.advance(1)
    assert not queue.blocked()
    assert queue.pop(5, 6, 7, 8) == "0 qo0%5 1;0 qo0%6 1;0 qo0%7 1;0 0 0"
    queue.clock.advance(INVISIBLE_MS)
    assert queue.pop(5, 6) == "0 qo0%5 2;0 qo0%6 2;0 0 2"


def test_other_queues_and_groups_are_free():
    queue = Queue()
    queue.pop(5)
    for other in (("T", "G", 1), ("T", "H", 0), ("U", "G", 0)):
        assert not queue.orders.blocked(*other, None, INVISIBLE_MS, queue.now_ms)


def test_the_offset_to_commit_has_no_gap_before_it():
    queue = Queue()
    queue.pop(5, 7, 9)
    at_ms = queue.now_ms
    assert queue.ack(9, at_ms) == 5
    assert queue.ack(5, at_ms) == 7
    assert queue.ack(5, at_ms) == 7
    assert queue.blocked()
    assert queue.ack(7, at_ms) == 10
    assert not queue.blocked()


def test_several_are_acknowledged_at_once():
    queue = Queue()
    queue.pop(5, 7, 9, 11)
    at_ms = queue.now_ms

    def ack(*offsets: int) -> Committed:
        return queue.orders.commit(*KEY, offsets, at_ms, at_ms)

    assert ack(7, 9) == Committed(5)
    assert ack(8, 12) == Committed(None, 8)
    assert ack(5, 6, 13) == Committed(11, 6)
    assert queue.blocked()
    assert ack(11) == Committed(12)
    assert not queue.blocked()


def test_b098_old_and_foreign_receipts_change_nothing():
    """B098: the processor answers success to the first, 13 to the second."""
    queue = Queue()
    queue.pop(5, 6)
    first_ms = queue.now_ms
    queue.clock.advance(INVISIBLE_MS)
    queue.pop(5, 6)
    assert queue.ack(5, first_ms) is None
    assert queue.ack(8, queue.now_ms) == ILLEGAL
    assert queue.blocked()
    assert queue.ack(5, queue.now_ms) == 6


def test_an_acknowledgement_counts_when_nothing_is_known():
    """The file may have got lost: then the group must be able to go on."""
    assert Queue().ack(5, 1) == 6


def test_b093_b094_c110_the_same_attempt_passes_and_does_not_count():
    """B093, B094, C110: a repeated attempt gets its batch again, at once and uncounted; others wait."""
    queue = Queue()
    assert queue.pop(0).endswith("0 0 0")
    assert queue.blocked("x")
    queue.clock.advance(INVISIBLE_MS)
    assert queue.pop(0, attempt="x").endswith("0 0 1")
    assert not queue.blocked("x")
    assert queue.blocked("y")
    assert queue.blocked()
    assert queue.pop(0, attempt="x").endswith("0 0 1")
    queue.clock.advance(INVISIBLE_MS)
    assert queue.pop(0, attempt="y").endswith("0 0 2")
    assert queue.blocked("x")
    assert queue.pop(0, attempt="y").endswith("0 0 2")
    queue.clock.advance(INVISIBLE_MS)
    assert queue.pop(0).endswith("0 0 3")


def test_two_pops_without_an_attempt_are_two_attempts():
    queue = Queue()
    queue.pop(0)
    assert queue.blocked(None)


def test_a_message_can_become_visible_earlier_or_later():
    queue = Queue()
    queue.pop(0, 1)
    popped_ms = queue.now_ms
    queue.orders.change_visible(*KEY, 0, popped_ms, popped_ms + 10_000)
    queue.clock.advance(INVISIBLE_MS)
    assert queue.blocked()
    queue.orders.change_visible(*KEY, 0, popped_ms - 1, popped_ms)
    assert queue.blocked()
    queue.orders.change_visible(*KEY, 0, popped_ms, popped_ms + INVISIBLE_MS)
    assert not queue.blocked()


def test_a_change_of_what_is_not_known_is_no_error():
    queue = Queue()
    queue.orders.change_visible(*KEY, 0, 1, 2)
    assert not queue.blocked()


def test_a_reset_frees_the_queue():
    queue = Queue()
    queue.pop(0, 1)
    queue.orders.clear("G", "T", 0)
    assert not queue.blocked()
    queue.orders.clear("G", "T", 0)
    assert queue.pop(0, 1) == "0 0 0"


def test_releases_are_told_once_and_follow_changes():
    queue = Queue()
    queue.pop(0)
    popped_ms = queue.now_ms
    assert queue.orders.release(queue.now_ms) == []
    queue.orders.change_visible(*KEY, 0, popped_ms, popped_ms + 5_000)
    assert queue.orders.release(popped_ms + INVISIBLE_MS) == []
    assert queue.orders.release(popped_ms + 5_000) == [KEY]
    assert queue.orders.release(popped_ms + 5_000) == []
    queue.pop(0)
    queue.ack(0, queue.now_ms)
    assert queue.orders.release(queue.now_ms) == [KEY]
    queue.pop(1)
    queue.orders.clear("G", "T", 0)
    assert queue.orders.release(popped_ms + 60_000) == []


def test_releases_are_not_told_when_switched_off():
    """The setting enableNotifyAfterPopOrderLockRelease=false."""
    clock = ManualClock()
    orders = PopOrders(clock, tell_unlocked=False)
    orders.update(None, *KEY, clock.now_ms(), INVISIBLE_MS, [0])
    assert orders.release(clock.now_ms() + INVISIBLE_MS) == []


def test_moved_releases_do_not_pile_up():
    queue = Queue()
    for _ in range(20_000):
        queue.clock.advance(1)
        queue.pop(0)
    assert len(queue.orders._heap) < 2_000
    assert queue.orders.release(queue.now_ms + INVISIBLE_MS) == [KEY]


async def test_the_task_tells_releases_on_time(autojump_clock):
    clock = TrioClock()
    orders = PopOrders(clock)
    told: list[tuple[float, tuple[str, str, int]]] = []
    orders.on_unlocked = lambda *key: told.append((trio.current_time(), key))
    async with trio.open_nursery() as nursery:
        await nursery.start(orders.run)
        start_s = trio.current_time()
        orders.update(None, *KEY, clock.now_ms(), 60_000, [0])
        await trio.sleep(1)
        orders.update(None, "T", "G", 1, clock.now_ms(), 2_000, [0])
        await trio.sleep(70)
        nursery.cancel_scope.cancel()
    assert [(round(at_s - start_s, 2), key[2]) for at_s, key in told] == [(3.0, 1), (60.0, 0)]


async def test_a_clock_that_is_set_forward_releases_soon(autojump_clock):
    clock = TrioClock()
    orders = PopOrders(clock)
    told: list[float] = []
    orders.on_unlocked = lambda *_: told.append(trio.current_time())
    async with trio.open_nursery() as nursery:
        await nursery.start(orders.run)
        start_s = trio.current_time()
        orders.update(None, *KEY, clock.now_ms(), 3_600_000, [0])
        await trio.sleep(1)
        clock.set(clock.now_ms() + 3_600_000)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert len(told) == 1
    assert told[0] - start_s < 11


def test_batches_of_what_is_gone_are_forgotten():
    queue = Queue()
    for key in (("T", "G", 0), ("T", "G", 8), ("gone", "G", 0), ("T", "nobody", 0)):
        queue.orders.update(None, *key, queue.now_ms, INVISIBLE_MS, [0])
    queue.orders.clean(lambda topic: 8 if topic == "T" else 0, lambda group: group == "G")
    assert list(queue.orders.to_json()["table"]) == ["T@G"]
    assert list(queue.orders.to_json()["table"]["T@G"]) == [0]
    queue.clock.advance(FORGET_AFTER_MS + 1)
    before = queue.orders.revision
    queue.orders.clean(lambda _: 8, lambda _: True)
    assert queue.orders.to_json()["table"] == {}
    assert queue.orders.revision > before


APACHE = (
    b'{"table":{"T@G":{0:{"a":"x","cm":5,"i":3000,"l":1700000000000,"o":[100,1,2],"oc":{100:1},'
    b'"ot":{101:1700000009000},"popTime":1700000000000},1:{"cm":0,"i":3000,"l":1700000000000,"o":[7],'
    b'"popTime":1700000000000}}}}'
)


def test_the_file_is_that_of_the_peers():
    queue = Queue()
    queue.orders.read_json(jsondialect.loads(APACHE))
    assert jsondialect.loads(jsondialect.dumps(queue.orders.to_json())) == jsondialect.loads(APACHE)
    assert queue.blocked()
    assert not queue.blocked("x")
    assert queue.ack(101, 1_700_000_000_000) == 103
    assert queue.orders.release(1_700_000_000_000) == [("T", "G", 0)]
    assert queue.orders.release(1_700_000_003_000) == [("T", "G", 1)]


def test_a_batch_without_its_own_time_takes_that_of_the_pop():
    """Older files lack the invisible time."""
    queue = Queue()
    queue.orders.read_json({"table": {"T@G": {"0": {"o": [3], "popTime": queue.now_ms}}}})
    assert queue.blocked()
    queue.clock.advance(INVISIBLE_MS)
    assert not queue.blocked()


def test_the_sign_bit_of_the_peers_survives():
    queue = Queue()
    one = {"o": list(range(64)), "cm": -(1 << 63), "popTime": 1, "i": 1, "l": 1}
    queue.orders.read_json({"table": {"T@G": {"0": one}}})
    assert queue.orders.to_json()["table"]["T@G"][0]["cm"] == -(1 << 63)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([], "consumerOrderInfo.json"),
        ({"table": []}, "table"),
        ({"table": {"T@G": {"x": {}}}}, "'x'"),
        ({"table": {"T@G": {"0": {"o": 5}}}}, "o"),
        ({"table": {"T@G": {"0": []}}}, "T@G"),
    ],
)
def test_a_spoilt_file_is_refused_and_changes_nothing(value, named):
    queue = Queue()
    queue.pop(0)
    before = queue.orders.to_json()
    with pytest.raises(BodyError, match=named.replace("[", r"\[")):
        queue.orders.read_json(value)
    assert queue.orders.to_json() == before


@attrs.define
class Model:
    """The rules again, in the plainest words."""

    now_ms: int
    batch: list[int] = attrs.field(factory=list)
    visible_ms: dict[int, int] = attrs.field(factory=dict)
    acked: set[int] = attrs.field(factory=set)
    counts: dict[int, int] = attrs.field(factory=dict)
    attempt: str | None = None
    popped_ms: int = 0

    def blocked(self, attempt: str | None) -> bool:
        if not self.batch or (attempt is not None and attempt == self.attempt):
            return False
        return any(self.visible_ms[o] > self.now_ms for o in self.batch if o not in self.acked)

    def pop(self, offsets: list[int], attempt: str | None, invisible_ms: int) -> None:
        if attempt is None or attempt != self.attempt:
            self.counts = {o: self.counts.get(o, 0) + 1 for o in offsets if o in self.batch}
        self.batch, self.attempt, self.acked = offsets, attempt, set()
        self.visible_ms = dict.fromkeys(offsets, self.now_ms + invisible_ms)
        self.popped_ms = self.now_ms

    def next_offset(self) -> int:
        left = [o for o in self.batch if o not in self.acked]
        return left[0] if left else self.batch[-1] + 1


attempts = st.sampled_from([None, "x", "y"])
offsets = st.lists(st.integers(0, 40), min_size=1, max_size=32, unique=True).map(sorted)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("pop"), offsets, attempts, st.integers(1, 10)),
        st.tuples(st.just("ack"), st.integers(0, 40)),
        st.tuples(st.just("visible"), st.integers(0, 40), st.integers(-5, 10)),
        st.tuples(st.just("wait"), st.integers(1, 10)),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


@given(steps)
def test_orders_behave_as_their_model(steps):
    queue = Queue()
    model = Model(queue.now_ms)
    for step in steps:
        match step:
            case ("pop", found, attempt, invisible_ms):
                if not model.blocked(attempt):
                    model.pop(found, attempt, invisible_ms)
                    told = queue.pop(*found, attempt=attempt, invisible_ms=invisible_ms).split(";")
                    expected = [f"0 qo0%{o} {n}" for o, n in model.counts.items()]
                    assert told[:-1] == expected
            case ("ack", offset) if model.batch:
                known = offset in model.batch
                if known:
                    model.acked.add(offset)
                assert queue.ack(offset, model.popped_ms) == (
                    model.next_offset() if known else ILLEGAL
                )
            case ("visible", offset, later_ms) if offset in model.batch:
                model.visible_ms[offset] = model.now_ms + later_ms
                queue.orders.change_visible(*KEY, offset, model.popped_ms, model.now_ms + later_ms)
            case ("wait", ms):
                queue.clock.advance(ms)
                model.now_ms += ms
            case ("restart",):
                saved = jsondialect.loads(jsondialect.dumps(queue.orders.to_json()))
                queue.orders = PopOrders(queue.clock)
                queue.orders.read_json(saved)
        for attempt in (None, "x", "y"):
            assert queue.blocked(attempt) == model.blocked(attempt)
