"""What may go in a batch, and how batches are split by size (C139)."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq import Message
from trio_mq.client.batches import check_batch, size_bytes, split
from trio_mq.errors import LocalProtocolError
from trio_mq.protocol.message import BatchItem, join_batch

PLAIN = Message("T", b"x")


def test_one_topic_and_nothing_special_may_go_together():
    assert check_batch([PLAIN, Message("T", b"y", tags="a", keys=["k"])]) == "T"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([PLAIN, Message("U", b"x")], r"item 1 of topic U: item 0 has topic T; send one batch for each topic"),
        ([Message("T", b"x", delay_level=3)], r"ignore delays in batches; send delayed messages one by one"),
        ([PLAIN, Message("T", b"x", deliver_after=timedelta(seconds=1))], r"item 1 .*ignore delays"),
        ([Message("T", b"x", deliver_at=datetime(2030, 1, 1, tzinfo=UTC))], "ignore delays"),
        ([Message("T", b"x", properties={"TIMER_DELAY_SEC": "5"})], "ignore delays"),
        ([Message("T", b"x", properties={"TRAN_MSG": "true"})], "no transactions in batches; use send_in_transaction"),
        ([Message("%RETRY%g", b"x")], "retried cannot go in a batch"),
        ([PLAIN, Message("T", b"x", wait_store_ok=False)], "another wait_store_ok"),
        ([PLAIN, Message("T", b"")], "item 1 .*body is empty"),
        ([], "holds no message"),
    ],
)  # fmt: skip
def test_c139_what_does_not_fit_is_refused_with_the_reason(messages, reason):
    with pytest.raises(LocalProtocolError, match=reason):
        check_batch(messages)


ITEMS = st.lists(
    st.builds(BatchItem, st.just(0), st.binary(max_size=40), st.binary(max_size=20)), max_size=30
)


@given(ITEMS, st.integers(82, 400))
def test_splits_keep_all_in_order_and_under_the_limit(items, most):
    parts = list(split(items, most))
    assert [item for part in parts for item in part] == items
    assert all(len(join_batch(part)) <= most for part in parts)


@given(ITEMS, st.integers(82, 400))
def test_splits_are_as_few_as_the_order_allows(items, most):
    parts = list(split(items, most))
    for part, following in pairwise(parts):
        assert sum(map(size_bytes, part)) + size_bytes(following[0]) > most


def test_c139_a_message_over_the_limit_alone_is_named():
    items = [BatchItem(0, b"x", b""), BatchItem(0, b"x" * 100, b"")]
    with pytest.raises(LocalProtocolError, match="item 1 takes 122 bytes, 100 are the most"):
        list(split(items, 100))
