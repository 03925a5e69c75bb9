"""Legal names of topics and groups, and what a refusal says (C133, B018, B019, B020)."""

from __future__ import annotations

import pytest

from trio_mq.broker import names
from trio_mq.errors import RequestRefused


def refusal(check, name):
    with pytest.raises(RequestRefused) as caught:
        check(name)
    return caught.value.code, caught.value.remark


@pytest.mark.parametrize(
    "name", ["T", "a" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250, "A|b-C_9%"]
)
def test_legal_topics(name):
    names.check_topic(name)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a" * 128, ("128 characters", "at most 127")),
        ("a" * 255, ("255 characters", "at most 127")),
        ("%RETRY%" + "g" * 249, ("256 characters", "at most 255")),
        ("%DLQ%" + "g" * 251, ("256 characters", "at most 255")),
    ],
)
def test_c133_too_long_a_topic_is_refused_with_both_lengths(name, told):
    """C133."""
    code, remark = refusal(names.check_topic, name)
    assert code == 29
    assert all(part in remark for part in told)
    assert len(remark) < 200


@pytest.mark.parametrize("name", ["a b", "topic@group", "tópico", "a.b", "T\n", "主题"])
def test_illegal_characters(name):
    for check in (names.check_topic, names.check_group):
        code, remark = refusal(check, name)
        assert code == 29
        assert "illegal characters" in remark
        assert repr(name) in remark


@pytest.mark.parametrize("name", ["", " ", "\t"])
def test_blank_names(name):
    assert refusal(names.check_topic, name) == (29, "the topic name is blank")
    assert refusal(names.check_group, name) == (29, "the group name is blank")


def test_b020_groups_have_at_most_120_characters():
    """B020."""
    names.check_group("g" * 120)
    code, remark = refusal(names.check_group, "g" * 121)
    assert code == 29
    assert "121 characters" in remark
    assert "at most 120" in remark


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    ],
)
def test_b019_topics_of_the_broker_take_no_messages(topic):
    """B019."""
    code, remark = refusal(names.check_sendable, topic)
    assert code == 16
    assert topic in remark


def test_made_names():
    assert names.retry_topic("G") == "%RETRY%G"
    assert names.dlq_topic("G") == "%DLQ%G"
    assert names.pop_retry_topics("T", "G") == ("%RETRY%G_T", "%RETRY%G+T")
    names.check_sendable("TBW102")
