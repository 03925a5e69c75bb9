"""Receipts and the lists of a pop's answer, against texts that Apache's broker and client made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.errors import HeaderError, RequestRefused
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.receipts import (
    NORMAL,
    RETRY_V1,
    RETRY_V2,
    Receipt,
    kind_of,
    normal_topic,
    offsets_entry,
    offsets_in,
    parse_receipt,
    real_topic,
    start_entry,
    starts_in,
)

APACHE = "0 1796008432077 60000 7 1 b1 0 1"
LONGS = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text("abcXYZ019_-%|", min_size=1, max_size=20)


def test_a_receipt_of_apache() -> None:
    receipt = parse_receipt(APACHE)
    assert receipt == Receipt(0, 1796008432077, 60_000, 7, RETRY_V1, "b1", 0, 1)
    assert receipt.text == APACHE
    assert not receipt.is_ordered
    assert parse_receipt("3 5 6 999 0 b 2 4").is_ordered


def test_a_receipt_of_an_old_client_has_no_offset_of_the_message() -> None:
    assert parse_receipt("0 5 6 1 0 b1 3") == Receipt(0, 5, 6, 1, NORMAL, "b1", 3, -1)


@given(
    st.builds(
        Receipt,
        LONGS,
        LONGS,
        LONGS,
        st.integers(0, 999),
        st.sampled_from([NORMAL, RETRY_V1, RETRY_V2]),
        NAMES,
        st.integers(0, 2**31 - 1),
        LONGS,
    )
)
def test_round_trip(receipt: Receipt) -> None:
    assert parse_receipt(receipt.text) == receipt


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2 3",
        "1 2 3 4 0 b1 x 8",
        "1 2 3 4 9 b1 0 8",
        "1 2 3 4 0 b1 0 8 9",
        f"{2**63} 2 3 4 0 b1 0 8",
        "1  2 3 4 0 b1 0",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        parse_receipt(text)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert "receipt" in caught.value.remark


@given(st.text(max_size=60))
def test_any_text_is_a_receipt_or_refused(text: str) -> None:
    try:
        receipt = parse_receipt(text)
    except RequestRefused:
        return
    assert parse_receipt(receipt.text) == receipt


@given(NAMES.filter(lambda name: "%" not in name), NAMES.filter(lambda name: "%" not in name))
def test_retry_topics_lead_back_to_their_topic(topic: str, group: str) -> None:
    assert kind_of(topic) == NORMAL
    assert normal_topic(topic, group) == topic
    for kind in (NORMAL, RETRY_V1, RETRY_V2):
        name = real_topic(topic, group, kind)
        assert kind_of(name) == kind
        assert normal_topic(name, group) == topic


def test_an_unknown_kind_of_topic_is_refused() -> None:
    with pytest.raises(RequestRefused):
        real_topic("T", "G", "3")


def test_entries_of_an_answer() -> None:
    assert start_entry("T1", 1, 0) == "0 1 0"
    assert offsets_entry("T1", 0, (0, 1, 2, 3, 4)) == "0 0 0,1,2,3,4"
    assert start_entry("%RETRY%G1_T1", 0, 7) == "1 0 7"
    assert offsets_entry("%RETRY%G1+T1", 0, [9]) == "2 0 9"


def test_the_lists_of_an_answer_are_read_as_the_broker_writes_them() -> None:
    retry = "%RETRY%G_T"
    starts = f"{start_entry('T', 3, 7)};{start_entry(retry, 0, 2)}"
    offsets = f"{offsets_entry('T', 3, [7, 9])};{offsets_entry(retry, 0, [2])}"
    assert starts_in(starts) == {("0", 3): 7, ("1", 0): 2}
    assert offsets_in(offsets) == {("0", 3): [7, 9], ("1", 0): [2]}
    assert starts_in(None) == offsets_in("") == {}


@pytest.mark.parametrize("text", ["0 1", "0 x 1", "0 1 x", "0 1 2 3", "0 1 1,,2"])
def test_a_list_that_is_none_is_named(text: str) -> None:
    with pytest.raises(HeaderError, match="in a pop's answer"):
        offsets_in(text)
