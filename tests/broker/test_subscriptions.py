"""Tag expressions: what they take, what they refuse, and the hashes they compare."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.broker.subscriptions import ALL_MESSAGES, is_tag_type, looks_like_sql, parse_tags
from trio_mq.errors import RequestRefused
from trio_mq.protocol.message import tags_code


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything(expression):
    """B023."""
    found = parse_tags(expression)
    assert found == ALL_MESSAGES
    assert found.everything
    assert found.expression == "*"
    assert found.matches_code(0)
    assert found.matches_code(2598919)
    assert found.matches_tags(None)
    assert found.matches_tags("A")


@pytest.mark.parametrize(
    "expression", ["TagA||TagB", "TagA || TagB", "  TagB||  TagA ", "TagA||||TagB||"]
)
def test_blanks_and_empty_parts_do_not_count(expression):
    """B024, B026."""
    found = parse_tags(expression)
    assert found.tags == {"TagA", "TagB"}
    assert found.codes == {2598919, 2598920}
    assert not found.everything
    assert found.matches_code(2598919)
    assert not found.matches_code(2598921)
    assert not found.matches_code(0)
    assert found.matches_tags("TagB")
    assert not found.matches_tags("TagC")
    assert not found.matches_tags(None)


@pytest.mark.parametrize("expression", ["||", " || ", "   ", "||||"])
def test_nothing_left_is_refused(expression):
    with pytest.raises(RequestRefused) as caught:
        parse_tags(expression)
    assert caught.value.code == 23
    assert repr(expression) in caught.value.remark


def test_one_hash_two_tags_is_for_the_client_to_tell_apart():
    """B029: Aa and BB have one Java hash."""
    found = parse_tags("Aa")
    assert found.matches_code(tags_code("BB"))
    assert not found.matches_tags("BB")


@pytest.mark.parametrize("tag", ["polygenelubricants", "x" * 200, "𝔘𝔫𝔦", "标签-甲"])
def test_c122_tags_with_negative_long_and_non_ascii_hashes(tag):
    """C122: queue entries hold the hash sign-extended to 64 bits; only 32 bits count."""
    code = tags_code(tag)
    found = parse_tags(f"other || {tag}")
    assert found.matches_code(code)
    assert found.matches_code(code & 0xFFFF_FFFF)
    assert found.matches_code((code & 0xFFFF_FFFF) | (7 << 32))
    assert found.matches_tags(tag)


def test_c125_an_sql_text_in_a_tag_expression_is_noticed():
    """C125."""
    assert looks_like_sql("Tag=test AND creator=xx")
    assert looks_like_sql("price BETWEEN 1 and 2")
    assert looks_like_sql("TAGS in ('A','B')")
    for tag in ("TagA || TagB", "*", "android", "in", "b-and", "order_not_paid"):
        assert not looks_like_sql(tag)


def test_expression_types():
    assert is_tag_type("TAG")
    assert is_tag_type(None)
    assert is_tag_type("")
    assert not is_tag_type("SQL92")


@given(
    st.lists(st.text(st.characters(exclude_characters="|", exclude_categories=["Cs"])), max_size=6)
)
def test_a_named_tag_always_passes(tags):
    names = [tag.strip() for tag in tags if tag.strip()]
    if not names or names == ["*"]:
        return
    found = parse_tags("||".join(names))
    assert all(found.matches_tags(name) and found.matches_code(tags_code(name)) for name in names)
