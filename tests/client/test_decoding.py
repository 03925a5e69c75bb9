"""Answers of brokers as messages, whole and damaged."""

from __future__ import annotations

import logging
import zlib

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.received import stored
from tests.strategies import stored_messages
from trio_mq.client.decoding import Source, read
from trio_mq.client.messages import ReceivedMessage
from trio_mq.errors import BodyError
from trio_mq.protocol import record as records
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.message import BatchItem, Host, join_batch

QUEUE = MessageQueue("T", "b1", 0)
RETRY = MessageQueue("%RETRY%G", "b1", 0)
BATCH = MessageFlag.INNER_BATCH | MessageFlag.NEED_UNWRAP


def answer(*messages):
    return b"".join(map(records.encode, messages))


def bodies_of(messages):
    return [message.body for message in messages]


def test_all_records_of_an_answer_are_messages_in_order():
    found = read(answer(stored(5, b"a"), stored(6, b"b")), Source(QUEUE))
    assert bodies_of(found) == [b"a", b"b"]
    assert [message.queue_offset for message in found] == [5, 6]
    assert [message.message_id for message in found] == ["id-000005", "id-000006"]
    assert {message.topic for message in found} == {"T"}
    assert found[0].record == stored(5, b"a")


def test_an_empty_answer_holds_nothing():
    assert read(b"", Source(QUEUE)) == []


@given(st.lists(stored_messages(), max_size=4))
def test_any_record_has_the_fields_that_the_codec_reads(messages):
    plain = int(~(MessageFlag.COMPRESSED | BATCH))
    messages = [attrs.evolve(message, sys_flag=message.sys_flag & plain) for message in messages]
    found = read(answer(*messages), Source(QUEUE), first_offset=-(2**63))
    assert [message.record for message in found] == messages
    assert bodies_of(found) == [message.body for message in messages]
    assert [message.queue_offset for message in found] == [m.queue_offset for m in messages]


@given(st.data())
def test_damaged_answers_never_raise(data):
    whole = answer(stored(1, b"abc"), stored(2, b"d" * 30), stored(3, b""))
    at = data.draw(st.integers(0, len(whole) - 1))
    broken = bytearray(whole)
    broken[at] ^= data.draw(st.integers(1, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(whole)))])
    for message in read(cut, Source(QUEUE)):
        assert isinstance(message, ReceivedMessage)


def test_a_broken_record_costs_no_other_one(caplog):
    bad = bytearray(records.encode(stored(2)))
    bad[84:88] = (10**6).to_bytes(4, "big")  # the length of its body
    data = answer(stored(1)) + bytes(bad) + answer(stored(3))
    with caplog.at_level(logging.ERROR):
        found = read(data, Source(QUEUE))
    assert [message.queue_offset for message in found] == [1, 3]
    assert "T@b1:0: a record of an answer cannot be read and is passed over" in caplog.text


def test_what_follows_a_record_without_a_size_is_said_to_be_lost(caplog):
    with caplog.at_level(logging.ERROR):
        found = read(answer(stored(1)) + b"\0" * 120 + answer(stored(3)), Source(QUEUE))
    assert [message.queue_offset for message in found] == [1]
    assert "bytes that follow" in caplog.text


def test_tags_are_checked_by_their_text():
    # "Aa" and "BB" have the same Java hash: a broker that compares hashes sends both
    data = answer(*(stored(i, tag.encode(), {"TAGS": tag}) for i, tag in enumerate(["Aa", "BB"])))
    data += answer(stored(2, b"none", {"KEYS": "k"}))
    assert bodies_of(read(data, Source(QUEUE, tags=frozenset({"BB", "CC"})))) == [b"BB"]


@pytest.mark.parametrize("tag", ["ÄÖ€", "😀 pair", "polygenelubricants", "t" * 200])
def test_c122_tags_with_any_hash_are_matched(tag):
    data = answer(stored(0, b"it", {"TAGS": tag}))
    assert bodies_of(read(data, Source(QUEUE, tags=frozenset({tag})))) == [b"it"]


def test_a_retried_message_has_the_topic_it_was_sent_to():
    own = {"RETRY_TOPIC": "ns%Orders", "ORIGIN_MESSAGE_ID": "x"}
    data = answer(stored(0, properties=own, topic="%RETRY%G", reconsume_times=2))
    (message,) = read(data, Source(RETRY, is_retry=True, namespace="ns"))
    assert message.topic == "Orders"
    assert message.queue == RETRY
    assert message.reconsume_times == 2


def test_a_message_of_somebody_elses_retry_topic_keeps_its_topic():
    data = answer(stored(0, properties={"RETRY_TOPIC": "Orders"}, topic="%RETRY%H"))
    (message,) = read(data, Source(MessageQueue("%RETRY%H", "b1", 0)))
    assert message.topic == "%RETRY%H"


def test_compressed_bodies_are_inflated_when_they_are_asked_for():
    body = b"long " * 1000
    packed = stored(0, zlib.compress(body), sys_flag=int(MessageFlag.COMPRESSED))
    (message,) = read(answer(packed), Source(QUEUE))
    assert message.size_bytes < 500
    assert message.body == body
    assert message.body is message.body


def test_a_body_that_is_broken_fails_where_it_is_asked_for():
    data = answer(stored(0, b"not zlib", sys_flag=int(MessageFlag.COMPRESSED)), stored(1, b"good"))
    broken, good = read(data, Source(QUEUE))
    for _ in range(2):
        with pytest.raises(BodyError, match="compressed body is broken"):
            _ = broken.body
    assert broken.message_id == "id-000000"
    assert good.body == b"good"


def test_a_queue_that_moved_has_its_offsets_corrected():
    (message,) = read(answer(stored(7)), Source(QUEUE), 0, 20_000)
    assert message.queue_offset == 20_007
    assert message.record.queue_offset == 7


@pytest.mark.parametrize("born_v6", [False, True])
@pytest.mark.parametrize("store_v6", [False, True])
def test_records_of_ipv6_hosts_are_read(born_v6, store_v6):
    v4, v6 = Host("10.0.0.1", 1), Host("fe80::1", 2)
    flags = (MessageFlag.BORN_HOST_V6 if born_v6 else 0) | (
        MessageFlag.STORE_HOST_V6 if store_v6 else 0
    )
    record = stored(3, b"six", sys_flag=int(flags), born_host=v6 if born_v6 else v4,
                    store_host=v6 if store_v6 else v4)  # fmt: skip
    (message,) = read(answer(record), Source(QUEUE))
    assert (message.body, message.queue_offset) == (b"six", 3)
    assert message.record == record


def batch_of(offset, *items, sys_flag=BATCH, pack=bytes):
    body = pack(join_batch(items))
    return stored(offset, body, sys_flag=int(sys_flag))


ITEMS = [
    BatchItem(i, b"item %d" % i, b"UNIQ_KEY\x01u%d\x02TAGS\x01t%d\x02" % (i, i)) for i in range(4)
]


def test_a_batch_is_taken_apart():
    found = read(answer(batch_of(100, *ITEMS), stored(104, b"single")), Source(QUEUE))
    assert bodies_of(found) == [b"item 0", b"item 1", b"item 2", b"item 3", b"single"]
    assert [message.queue_offset for message in found] == [100, 101, 102, 103, 104]
    assert [message.message_id for message in found[:2]] == ["u0", "u1"]
    assert found[1].record.flag == 1


def test_a_compressed_batch_is_taken_apart():
    record = batch_of(0, *ITEMS, sys_flag=BATCH | MessageFlag.COMPRESSED, pack=zlib.compress)
    assert bodies_of(read(answer(record), Source(QUEUE))) == [item.body for item in ITEMS]


def test_a_pull_from_the_middle_of_a_batch_gives_the_rest_of_it():
    found = read(answer(batch_of(100, *ITEMS)), Source(QUEUE), 102)
    assert [message.queue_offset for message in found] == [102, 103]


def test_tags_of_a_batch_are_checked_message_by_message():
    found = read(answer(batch_of(100, *ITEMS)), Source(QUEUE, tags=frozenset({"t1", "t3"})))
    assert [message.queue_offset for message in found] == [101, 103]


def test_a_broken_batch_is_one_message_and_is_told(caplog):
    record = stored(100, b"no batch at all", sys_flag=int(BATCH))
    with caplog.at_level(logging.ERROR):
        found = read(answer(record, stored(101, b"next")), Source(QUEUE))
    assert bodies_of(found) == [b"no batch at all", b"next"]
    assert "offset 100: a batch cannot be taken apart" in caplog.text
