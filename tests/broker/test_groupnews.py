"""What several name servers say of one group, put together."""

import pytest

from trio_mq.broker.groupnews import GroupNews, Master
from trio_mq.config import Address

NS1, NS2 = Address("ns1", 9876), Address("ns2", 9876)
A, B = (Master(Address(f"10.0.0.{n}", 10911), Address(f"10.0.0.{n}", 10912)) for n in (1, 2))
SLAVE = Address("10.0.0.7", 10911)


@pytest.fixture
def news():
    return GroupNews([NS1, NS2], own_id=1)


def test_first_answer_with_a_master_counts(news):
    assert news.registered, "nobody was asked: that proves nothing"
    news.answered(NS2, None)
    assert not news.registered
    news.answered(NS1, A)
    assert (news.master, news.registered) == (A, True)
    news.answered(NS2, B)  # they disagree from the beginning: no change, and none each time
    news.answered(NS1, A)
    news.answered(NS2, B)
    assert news.master == A


def test_answer_without_an_address_keeps_the_old_one(news):
    news.answered(NS1, A)
    news.answered(NS1, None)
    assert (news.master, news.registered) == (A, False)
    news.answered(NS1, A)
    assert (news.master, news.registered) == (A, True)


def test_change_of_mind_counts_whoever_has_it(news):
    news.answered(NS1, A)
    news.answered(NS2, A)
    news.answered(NS2, B)
    assert news.master == B
    news.answered(NS1, A)  # it has not heard yet
    assert news.master == B
    news.answered(NS1, B)
    news.answered(NS1, B)
    assert news.master == B


def test_what_nobody_says_any_more_is_not_followed(news):
    news.answered(NS1, A)
    news.answered(NS2, B)
    news.answered(NS1, None)
    assert news.master == B


def test_who_cannot_be_asked_says_nothing_while_others_can(news):
    news.answered(NS1, A)
    news.answered(NS2, None)
    assert news.registered
    news.unreachable(NS1)
    assert not news.registered
    news.unreachable(NS2)
    assert not news.registered, "nobody can be asked: what was said last stays"


def test_smallest_id_is_that_of_all_that_anybody_sees(news):
    assert (news.min_id, news.alive) == (None, None)
    news.has_members(NS1, {0: A.address, 1: SLAVE})
    assert (news.min_id, news.alive) == (0, 2)
    news.has_members(NS2, {1: SLAVE, 2: B.address})
    assert (news.min_id, news.alive) == (0, 3)
    news.has_members(NS1, {1: SLAVE})
    assert news.min_id == 1


def test_empty_group_says_nothing(news):
    news.has_members(NS1, {0: A.address, 1: SLAVE})
    assert not news.has_members(NS1, {})
    assert news.min_id == 0


def test_notices_move_the_smallest_id(news):
    news.answered(NS1, A)
    news.has_members(NS1, {0: A.address, 1: SLAVE})
    assert not news.noticed(NS1, 1, None, A.address)
    assert (news.min_id, news.registered) == (1, False)
    assert not news.noticed(NS1, 0, B, None)
    assert (news.min_id, news.master, news.registered) == (0, B, True)


def test_new_master_without_an_address_for_slaves_is_asked_for(news):
    news.answered(NS1, A)
    assert news.noticed(NS1, 0, Master(B.address), None)
    news.answered(NS1, B)
    assert news.master == B
    assert news.has_members(NS1, {0: A.address, 1: SLAVE})
    assert not news.has_members(NS1, {0: B.address, 1: SLAVE})
    assert not GroupNews([NS1], own_id=0).has_members(NS1, {0: A.address})
