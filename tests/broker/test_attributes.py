"""The text that changes attributes, and which changes are allowed."""

from __future__ import annotations

import pytest

from trio_mq.broker.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, change, parse
from trio_mq.errors import RequestRefused


def test_the_grammar():
    assert parse(None) == parse("") == {}
    assert parse("+queue.type=BatchCQ,-reserve.time,+message.type=FIFO,") == {
        "+queue.type": "BatchCQ",
        "-reserve.time": "",
        "+message.type": "FIFO",
    }


@pytest.mark.parametrize(
    "text",
    [
        "queue.type=BatchCQ",
        "+queue.type",
        "+queue.type=",
        "-queue.type=BatchCQ",
        "reserve.time",
        "+a=1,+a=2",
        ",+a=1",
    ],
)
def test_broken_grammar_is_refused_and_repeated(text):
    with pytest.raises(RequestRefused) as caught:
        parse(text)
    assert caught.value.code == 1


def topic_change(current, text):
    return change(TOPIC_ATTRIBUTES, current, parse(text))


def test_at_creation_only_additions():
    assert topic_change(None, "+queue.type=BatchCQ,+reserve.time=-1") == {
        "queue.type": "BatchCQ",
        "reserve.time": "-1",
    }
    with pytest.raises(RequestRefused, match="before it exists"):
        topic_change(None, "-message.type")


def test_later_changes():
    current = {"message.type": "FIFO", "queue.type": "BatchCQ"}
    assert topic_change(current, "+message.type=DELAY,+reserve.time=72") == {
        "message.type": "DELAY",
        "queue.type": "BatchCQ",
        "reserve.time": "72",
    }
    assert topic_change(current, "-message.type") == {"queue.type": "BatchCQ"}
    assert current == {"message.type": "FIFO", "queue.type": "BatchCQ"}


@pytest.mark.parametrize("name", ["queue.type", "cleanup.policy"])
def test_what_is_fixed_after_creation(name):
    values = TOPIC_ATTRIBUTES[name].texts
    current = {name: values[0]}
    assert topic_change(current, f"+{name}={values[0]}") == current
    for text in (f"+{name}={values[1]}", f"-{name}"):
        with pytest.raises(RequestRefused, match="fixed"):
            topic_change(current, text)
    with pytest.raises(RequestRefused, match="fixed"):
        topic_change({}, f"+{name}={values[0]}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("+colour=red", "unknown; known are queue.type"),
        ("+queue.type=TripleCQ", "use one of SimpleCQ, BatchCQ"),
        ("+message.type=normal", "use one of UNSPECIFIED, NORMAL"),
        ("+reserve.time=-2", "from -1 to 9223372036854775807"),
        ("+reserve.time=9223372036854775808", "from -1 to"),
        ("+reserve.time=1_0", "from -1 to"),
        ("+reserve.time=soon", "from -1 to"),
        ("-reserve.time", "not set"),
        ("-a-b", "write .name=value"),
    ],
)
def test_refusals_name_the_attribute_and_what_is_allowed(text, told):
    with pytest.raises(RequestRefused, match=told) as caught:
        topic_change({}, text)
    assert caught.value.code == 1


def test_one_attribute_is_changed_once():
    with pytest.raises(RequestRefused, match="twice"):
        change(TOPIC_ATTRIBUTES, {"reserve.time": "1"}, {"+reserve.time": "2", "-reserve.time": ""})


def test_unsigned_names_are_refused():
    with pytest.raises(RequestRefused, match="write"):
        change(TOPIC_ATTRIBUTES, None, {"queue.type": "BatchCQ"})


def test_groups_have_a_priority():
    assert change(GROUP_ATTRIBUTES, None, {"+priority.factor": "100"}) == {"priority.factor": "100"}
    with pytest.raises(RequestRefused, match="from 0 to 100"):
        change(GROUP_ATTRIBUTES, None, {"+priority.factor": "101"})
