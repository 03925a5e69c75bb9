"""How queues are shared out: the numbers of Apache's strategies, and that every queue has a reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.broker.pop.shares import STRATEGIES, average, by_circle, share_for_pop
from trio_mq.protocol.jsondialect import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "b", number) for number in range(count)]


def ids(count: int) -> list[str]:
    return [f"c{number:02}" for number in range(count)]


def shared(strategy, queue_count: int, client_count: int) -> list[list[int]]:
    clients = ids(client_count)
    found = [strategy(queues(queue_count), clients, one) for one in clients]
    return [[queue.queue_id for queue in mine] for mine in found]


@pytest.mark.parametrize(
    ("queue_count", "client_count", "avg", "circle"),
    [
        (8, 1, [[0, 1, 2, 3, 4, 5, 6, 7]], [[0, 1, 2, 3, 4, 5, 6, 7]]),
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]], [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (4, 4, [[0], [1], [2], [3]], [[0], [1], [2], [3]]),
        (2, 4, [[0], [1], [], []], [[0], [1], [], []]),
    ],
)
def test_the_numbers_of_the_peers(queue_count, client_count, avg, circle):
    assert shared(average, queue_count, client_count) == avg
    assert shared(by_circle, queue_count, client_count) == circle


@given(st.sampled_from(sorted(STRATEGIES)), st.integers(1, 40), st.integers(1, 40))
def test_every_queue_has_exactly_one_reader(name, queue_count, client_count):
    found = shared(STRATEGIES[name], queue_count, client_count)
    assert sorted(number for mine in found for number in mine) == list(range(queue_count))
    assert max(map(len, found)) - min(map(len, found)) <= 1


@given(
    st.sampled_from(sorted(STRATEGIES)),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(-1, 50),
)
def test_pops_are_shared_with_those_behind(name, queue_count, client_count, share):
    strategy, clients = STRATEGIES[name], ids(client_count)
    found = [share_for_pop(strategy, queues(queue_count), clients, one, share) for one in clients]
    if share <= 0 or share >= client_count - 1:
        assert found == [[MessageQueue("T", "b", -1)]] * client_count
        return
    if client_count > queue_count:
        assert [[q.queue_id for q in mine] for mine in found] == [
            [number % queue_count] for number in range(client_count)
        ]
        return
    plain = [strategy(queues(queue_count), clients, one) for one in clients]
    for number, mine in enumerate(found):
        behind = [plain[(number + more) % client_count] for more in range(share + 1)]
        assert mine == [queue for some in behind for queue in some]
    readers = [sum(queue in mine for mine in found) for queue in queues(queue_count)]
    assert set(readers) == {share + 1}, "each queue has its reader and those before it"


def test_each_broker_is_one_entry_where_all_pop_all():
    several = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(4)]
    assert share_for_pop(average, several, ids(2), "c00", -1) == [
        MessageQueue("T", "a", -1),
        MessageQueue("T", "b", -1),
    ]


@pytest.mark.parametrize("strategy", STRATEGIES.values())
def test_a_stranger_gets_nothing(strategy):
    assert strategy(queues(8), ids(3), "stranger") == []
    assert share_for_pop(strategy, queues(8), ids(5), "stranger", 1) == []
