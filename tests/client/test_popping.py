"""Answers to pops, receipts, and the requests that show them."""

from __future__ import annotations

import pytest

from tests.client.received import stored
from tests.interop.pops import bit_set
from trio_mq.client.popping import RETRY_DELAYS_S, batch_acks, popped, retry_delay_s
from trio_mq.errors import BodyError, RemoteProtocolError
from trio_mq.protocol import record as records
from trio_mq.protocol.headers import PopMessageReply
from trio_mq.protocol.receipts import NORMAL, RETRY_V1, Receipt, parse_receipt


def answer(starts, offsets):
    return PopMessageReply(5000, 60_000, 3, 0, start_offset_info=starts, msg_offset_info=offsets)


def body(*messages):
    return b"".join(map(records.encode, messages))


def receipts(header, *messages, topic="T"):
    return [one.receipt.text for one in popped(header, body(*messages), topic, "b1")]


def test_receipts_are_made_of_the_lists_of_the_answer():
    header = answer("0 0 4;0 2 7", "0 0 4,6;0 2 7")
    found = receipts(header, stored(4), stored(6), stored(7, queue_id=2))
    assert found == [
        "4 5000 60000 3 0 b1 0 4",
        "4 5000 60000 3 0 b1 0 6",
        "7 5000 60000 3 0 b1 2 7",
    ]


def test_the_broker_s_own_receipt_counts_for_messages_of_retry_topics():
    receipt = "2 4000 60000 1 1 b1 0 2"
    retried = stored(2, properties={"POP_CK": receipt, "UNIQ_KEY": "x"}, reconsume_times=1)
    assert receipts(answer("1 0 2", "1 0 2"), retried) == [receipt]


def test_a_broker_that_shows_retry_topics_leaves_their_receipts_to_the_client():
    retried = stored(2, topic="%RETRY%G_T")
    assert receipts(answer("1 0 2", "1 0 2"), retried) == ["2 5000 60000 3 1 b1 0 2"]


def test_a_light_topic_s_offset_is_that_of_the_list():
    found = receipts(answer("0 0 8", "0 0 8,9"), stored(100), stored(200), topic="%LMQ%a")
    assert found == ["8 5000 60000 3 0 b1 0 8", "8 5000 60000 3 0 b1 0 9"]


@pytest.mark.parametrize("starts", [None, "", "0 1 4"])
def test_a_message_whose_queue_is_not_in_the_list_is_an_error(starts):
    with pytest.raises(BodyError, match="no start offset"):
        popped(answer(starts, "0 1 4"), body(stored(4)), "T", "b1")


def test_lists_that_do_not_parse_are_the_broker_s_fault():
    with pytest.raises(RemoteProtocolError, match="not kind, queue id"):
        popped(answer("0 4", "0 0 4"), body(stored(4)), "T", "b1")


def test_a_batch_of_acknowledgements_has_an_entry_for_each_pop_of_a_queue():
    several = [Receipt(4, 5000, 60_000, 3, NORMAL, "b1", 0, offset) for offset in (4, 6, 12, 40)]
    several += [Receipt(2, 5000, 60_000, 3, RETRY_V1, "b1", 0, 2)]
    first, second = batch_acks("G", "T", several)
    assert (first.start_offset, first.retry, first.bit_set) == (4, "0", bit_set([0, 2, 8, 36]))
    assert (second.start_offset, second.retry, second.bit_set) == (2, "1", bit_set([0]))
    assert (first.queue_id, first.revive_queue_id, first.pop_time) == (0, 3, 5000)


def test_delays_grow_with_failures_as_apache_s_do_unless_a_level_is_asked_for():
    assert [retry_delay_s(0, times) for times in range(4)] == [10, 30, 60, 120]
    assert retry_delay_s(0, 100) == RETRY_DELAYS_S[-1] == 7200
    assert retry_delay_s(3, 0) == 120


def test_receipts_survive_a_text():
    text = "4 5000 60000 3 0 b1 0 6"
    assert parse_receipt(text).text == text
