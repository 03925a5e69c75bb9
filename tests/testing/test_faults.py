"""Rules by request code: which request meets which, and how often."""

from __future__ import annotations

import pytest

from trio_mq.errors import ConfigError
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.testing.faults import Faults, Kind, Rule, RuleBook, codes_of


@pytest.fixture
def book():
    return RuleBook()


@pytest.fixture
def faults(book):
    return Faults(book)


@pytest.mark.parametrize(
    ("request_", "codes"),
    [
        (RequestCode.SEND_MESSAGE_V2, {10, 310}),
        (10, {10, 310}),
        ("send_message", {10, 310}),
        ("310", {10, 310}),
        ("PULL_MESSAGE", {11, 361}),
        (RequestCode.HEART_BEAT, {34}),
        (4711, {4711}),
        (["HEART_BEAT", RequestCode.SEND_MESSAGE, 99], {34, 10, 310, 99}),
    ],
)
def test_a_request_is_meant_by_number_member_or_name(request_, codes):
    assert codes_of(request_) == codes


def test_exact_means_one_form_of_a_request():
    assert codes_of("SEND_MESSAGE_V2", exact=True) == {310}


def test_a_name_that_is_no_code_is_told_with_the_one_that_is_near():
    with pytest.raises(ConfigError, match=r"'SEND_MESAGE' .*is SEND_MESSAGE meant\?"):
        codes_of("SEND_MESAGE")
    with pytest.raises(ConfigError, match=r"request-codes\.md"):
        codes_of("frobnicate")


def test_a_fault_ends_with_its_last_time_and_its_hits_are_kept(book, faults):
    fault = faults.error("SEND_MESSAGE", code=ResponseCode.SYSTEM_BUSY, remark="full", times=2)
    met = [book.met(310), book.met(34), book.met(10), book.met(310)]
    assert [rule and (rule.code, rule.remark) for rule in met] == [
        (2, "full"),
        None,
        (2, "full"),
        None,
    ]
    assert fault.hits == 2
    assert not book.active


def test_the_oldest_fault_counts_first(book, faults):
    first, second = faults.close(34), faults.delay(34, 1.5)
    assert [rule and rule.kind for rule in (book.met(34), book.met(34), book.met(34))] == [
        Kind.CLOSE,
        Kind.DELAY,
        None,
    ]
    assert (first.hits, second.hits) == (1, 1)


def test_a_fault_without_end_goes_by_remove_or_clear(book, faults):
    one, other = faults.drop_reply(34, times=None), faults.close(10, times=None)
    assert [book.met(34).kind for _ in range(3)] == [Kind.DROP_REPLY] * 3
    one.remove()
    one.remove()
    assert book.met(34) is None
    faults.clear()
    assert book.met(10) is None
    assert (one.hits, other.hits) == (3, 0)


@pytest.mark.parametrize("times", [0, -1])
def test_a_fault_happens_at_least_once(faults, times):
    with pytest.raises(ConfigError, match="times"):
        faults.close(10, times=times)


def test_a_delay_is_a_time(faults):
    with pytest.raises(ConfigError, match="seconds"):
        faults.delay(10, -1)


def test_a_rule_survives_the_way_to_another_process():
    rule = Rule(Kind.ERROR, frozenset({10, 310}), None, ResponseCode.NO_PERMISSION, "no", 0.5)
    assert Rule.of_fields(rule.as_fields()) == rule
