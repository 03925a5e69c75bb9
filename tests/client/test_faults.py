"""Which queue the next try goes to: turns, failed brokers, penalties, keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.client.faults import Faults, Turns, choose, penalty_s, queue_by_key
from trio_mq.protocol.bodies import MessageQueue

QUEUES = [MessageQueue("T", name, i) for name in ("b1", "b2") for i in range(2)]


def test_queues_take_turns_from_any_start():
    turns = Turns(41)
    chosen = [choose(QUEUES, turns) for _ in range(8)]
    assert chosen == (QUEUES[2:] + QUEUES[:2]) * 2


@given(st.integers(0, 2**40), st.sampled_from(["b1", "b2"]))
def test_a_retry_avoids_the_broker_that_failed(at, failed):
    assert choose(QUEUES, Turns(at), failed_broker=failed).broker_name != failed


def test_with_one_broker_a_retry_takes_its_next_queue():
    turns = Turns(3)
    first = choose(QUEUES[:2], turns)
    assert choose(QUEUES[:2], turns, failed_broker="b1") != first


@pytest.mark.parametrize(
    ("latency_s", "avoided_s"),
    [(0.05, 0), (0.1, 0), (0.549, 0), (0.55, 2), (1.8, 5), (3, 6), (5, 10), (14.9, 10), (15, 30), (99, 30)],
)  # fmt: skip
def test_penalties_are_those_of_apaches_client(latency_s, avoided_s):
    assert penalty_s(latency_s) == avoided_s


def test_a_failure_counts_as_ten_seconds():
    faults = Faults()
    faults.note("b1", 0.001, 100.0, failed=True)
    assert faults.avoids("b1", 109.9)
    assert not faults.avoids("b1", 110.0)
    assert not faults.avoids("b2", 100.0)


def test_a_good_answer_does_not_shorten_a_penalty():
    faults = Faults()
    faults.note("b1", 3.0, 100.0, failed=False)
    faults.note("b1", 0.6, 101.0, failed=False)
    faults.note("b1", 0.001, 102.0, failed=False)
    assert faults.avoids("b1", 105.9)
    assert not faults.avoids("b1", 106.0)


def test_slow_brokers_are_avoided_while_others_are_there():
    faults = Faults()
    faults.note("b1", 0, 0.0, failed=True)
    turns = Turns(0)
    chosen = {choose(QUEUES, turns, faults=faults, now_s=1.0).broker_name for _ in range(8)}
    assert chosen == {"b2"}
    # Its penalty is over:
    chosen = {choose(QUEUES, turns, faults=faults, now_s=10.0).broker_name for _ in range(8)}
    assert chosen == {"b1", "b2"}


def test_when_all_are_avoided_the_one_that_just_failed_is_the_last_choice():
    faults = Faults()
    for name in ("b1", "b2"):
        faults.note(name, 0, 0.0, failed=True)
    chosen = choose(QUEUES, Turns(0), failed_broker="b1", faults=faults, now_s=1.0)
    assert chosen.broker_name == "b2"
    assert choose(QUEUES[:2], Turns(0), failed_broker="b1", faults=faults, now_s=1.0) in QUEUES


@pytest.mark.parametrize(
    ("key", "hashed"),
    # Java's String.hashCode of each; the fourth is Integer.MIN_VALUE, whose abs overflows there.
    [("order-1", -1207111310), ("order-17", 1234255109), ("a", 97), ("polygenelubricants", -(2**31)),
     ("\U0001f600", 1772899)],
)  # fmt: skip
def test_keys_choose_the_queue_that_java_chooses(key, hashed):
    # Java: abs(hash % n), where % keeps the sign.
    for n in range(1, 9):
        queues = [MessageQueue("T", "b", i) for i in range(n)]
        assert queue_by_key(key, queues).queue_id == abs(hashed) % n
