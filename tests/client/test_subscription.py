"""Subscriptions: what is told to brokers, what is refused, what the client checks again."""

import pytest

from tests.client.received import message_at
from trio_mq.client.subscription import Sql, Subscriptions, parse
from trio_mq.errors import ConfigError
from trio_mq.protocol.message import java_hash


@pytest.mark.parametrize("wanted", ["*", " * ", "", None])
def test_everything(wanted):
    found = parse("T", wanted)
    assert (found.expression, found.expression_type, found.tags) == ("*", "TAG", frozenset())
    assert found.wants(message_at(0))
    assert found.wants(message_at(0, properties={"TAGS": "a"}))


@pytest.mark.parametrize("wanted", ["a||b", "a || b", " a ||  || b ", "b || a || b"])
def test_tags(wanted):
    found = parse("T", wanted)
    assert found.tags == {"a", "b"}
    assert found.wants(message_at(0, properties={"TAGS": "a"}))
    assert not found.wants(message_at(0, properties={"TAGS": "c"}))
    assert not found.wants(message_at(0))


def test_c122_hashes_are_those_of_java_and_texts_are_compared_again():
    """ "Aa" and "BB" have one hash: the broker lets both through."""
    assert java_hash("Aa") == java_hash("BB")
    found = parse("T", "Aa")
    assert found.as_data(1).code_set == {java_hash("Aa")}
    assert not found.wants(message_at(0, properties={"TAGS": "BB"}))
    for tag in ("polygenelubricants", "é\U0001f600", "x" * 200):
        assert parse("T", tag).as_data(1).code_set == {java_hash(tag)}
    assert java_hash("polygenelubricants") == -(2**31)


def test_sql():
    found = parse("T", Sql("a > 1"))
    assert (found.expression, found.expression_type, found.tags) == ("a > 1", "SQL92", frozenset())
    assert found.wants(message_at(0, properties={"TAGS": "a"}))  # the broker has decided
    with pytest.raises(ConfigError, match="the SQL condition is empty"):
        parse("T", Sql("  "))


@pytest.mark.parametrize(
    "text",
    ["Tag=test AND creator=xx", "a > 5", "region IN ('eu')", "x IS NOT NULL", "a between 1 and 2",
     "TAGS = 'a'", "ok || a = 1", "name like 'x'"],
)  # fmt: skip
def test_c125_a_condition_as_tags_is_refused_and_the_way_out_named(text):
    with pytest.raises(
        ConfigError, match=r"subscription to T: .* looks like SQL .* trio_mq\.Sql\("
    ):
        parse("T", text)


@pytest.mark.parametrize(
    "tag", ["INVOICE", "android", "notify", "ISO", "order-new", "like-minded_tag"]
)
def test_tags_that_only_begin_like_a_condition_are_tags(tag):
    if tag == "like-minded_tag":
        with pytest.raises(ConfigError, match="looks like SQL"):
            parse("T", tag)
        return
    assert parse("T", tag).tags == {tag}


@pytest.mark.parametrize(
    ("wanted", "why"), [("||", "holds no tag"), (5, "is text, not int"), (["a"], "not list")]
)
def test_what_is_no_subscription(wanted, why):
    with pytest.raises(ConfigError, match=f"subscription to T: .*{why}"):
        parse("T", wanted)


def test_the_version_rises_with_each_change_whatever_the_clock_does():
    found = Subscriptions()
    found.put(parse("T", "a"), 100)
    assert found.get("T").version == 100
    found.put(parse("T", "b"), 100)
    found.put(parse("U", "*"), 50)
    assert found.get("T").version == 101
    found.put(parse("T", "b"), 7)  # the clock was set back
    assert found.get("T").version == 102
    found.put(parse("T", "c"), 500)
    assert found.get("T").version == 500
    assert found.topics == ("T", "U")
    assert [one.sub_version for one in found.data()] == [500, 50]
    assert found.drop("U")
    assert not found.drop("U")
    assert found.get("U") is None
