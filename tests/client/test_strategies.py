"""Shares of queues: Apache's own results, and what must hold of any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.client.rebalance import share
from trio_mq.client.strategies import average, by_circle, consistent_hash, strategy_of
from trio_mq.errors import ConfigError
from trio_mq.protocol.bodies import MessageQueue

# What Apache 5.4's classes gave: name, queues, members, indexes of queues by member.
APACHE = [
    (average, 1, 1, [[0]]),
    (average, 3, 2, [[0, 1], [2]]),
    (average, 8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
    (average, 10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
    (average, 4, 8, [[0], [1], [2], [3], [], [], [], []]),
    (average, 16, 4, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]),
    (by_circle, 1, 1, [[0]]),
    (by_circle, 3, 2, [[0, 2], [1]]),
    (by_circle, 8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
    (by_circle, 10, 4, [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]),
    (by_circle, 4, 8, [[0], [1], [2], [3], [], [], [], []]),
    (by_circle, 16, 4, [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]),
    (consistent_hash, 1, 1, [[0]]),
    (consistent_hash, 3, 2, [[0, 1, 2], []]),
    (consistent_hash, 8, 3, [[0, 1, 2, 4, 7], [5], [3, 6]]),
    (consistent_hash, 10, 4, [[0, 1], [2, 5, 8], [6, 9], [3, 4, 7]]),
    (consistent_hash, 4, 8, [[], [], [2], [], [0, 1], [], [3], []]),
    (consistent_hash, 24, 5, [
        [4, 8, 9], [0, 1, 17, 23], [2, 10, 12, 15, 22], [7, 13, 16, 21], [3, 5, 6, 11, 14, 18, 19, 20],
    ]),
    (consistent_hash, 16, 4, [[0, 1, 13], [2, 8, 11], [7, 9, 12], [3, 4, 5, 6, 10, 14, 15]]),
]  # fmt: skip


def queues_of(count):
    names = ("broker-a", "broker-b")
    return sorted(MessageQueue("Orders", names[i % 2], i // 2) for i in range(count))


def members_of(count):
    return sorted(f"10.0.0.{9 - i}@{7000 + i}#{123456789 * i}" for i in range(count))


@pytest.mark.parametrize(("strategy", "queues", "members", "expected"), APACHE)
def test_shares_are_those_of_apache(strategy, queues, members, expected):
    all_queues, ids = queues_of(queues), members_of(members)
    shares = [strategy("G", one, all_queues, ids) for one in ids]
    assert [[all_queues.index(queue) for queue in found] for found in shares] == expected


MEMBERS = st.sets(st.text("abc0189@#.", min_size=1, max_size=8), min_size=1, max_size=12)
QUEUES = st.sets(
    st.builds(MessageQueue, st.sampled_from("TU"), st.sampled_from("ab"), st.integers(0, 20)),
    max_size=40,
)


@pytest.mark.parametrize("strategy", [average, by_circle, consistent_hash])
@given(queues=QUEUES, members=MEMBERS, order=st.randoms(use_true_random=False))
def test_each_queue_has_one_owner_in_whatever_order_members_hear_of_things(
    strategy, queues, members, order
):
    owners = {}
    for member in members:
        heard, known = list(queues), list(members)
        order.shuffle(heard)
        order.shuffle(known)
        for queue in share(strategy, "G", member, heard, known):
            assert queue not in owners
            owners[queue] = member
    assert owners.keys() == queues


@pytest.mark.parametrize("strategy", [average, by_circle])
@given(queues=QUEUES, members=MEMBERS)
def test_nobody_has_two_queues_more_than_another(strategy, queues, members):
    sizes = [len(share(strategy, "G", member, queues, sorted(members))) for member in members]
    assert max(sizes) - min(sizes) <= 1


@given(queues=QUEUES, members=MEMBERS, newcomer=st.text("xyz", min_size=1, max_size=4))
def test_a_newcomer_takes_queues_and_moves_none_between_others(queues, members, newcomer):
    before = {m: share(consistent_hash, "G", m, queues, sorted(members)) for m in members}
    grown = sorted({*members, newcomer})
    for member in members:
        assert share(consistent_hash, "G", member, queues, grown) <= before[member]


@pytest.mark.parametrize("strategy", [average, by_circle, consistent_hash])
def test_who_is_no_member_gets_nothing(strategy):
    assert list(strategy("G", "stranger", queues_of(4), members_of(2))) == []


def test_a_strategy_is_a_name_or_a_function():
    def mine(group, client_id, queues, members):
        return queues[:1]

    assert strategy_of("by_circle") is by_circle
    assert strategy_of(mine) is mine
    with pytest.raises(ConfigError, match=r"'fair' is unknown; use one of average, by_circle"):
        strategy_of("fair")
    with pytest.raises(ConfigError, match="a name or a function"):
        strategy_of(7)
