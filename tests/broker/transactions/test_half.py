"""What is made of a half message, and op records as Apache writes them."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.broker.transactions.half import Half, op_letter, op_offsets
from trio_mq.protocol import properties
from trio_mq.protocol.message import Host
from trio_mq.protocol.record import StoredMessage, decode, pack

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


def made(offset: int = 7, topic: str = HALF_TOPIC, born: str = "10.0.0.1", **props: str) -> Half:
    """A half as it is read from the log."""
    host = Host(born, 4000)
    known = {
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
        "PGROUP": "PG",
        "UNIQ_KEY": "U",
        "TRAN_MSG": "true",
    }
    data = pack(
        0, 5, offset, 4096, 0x10 if host.is_v6 else 0, 1000, host.packed, 2000,
        Host("10.0.0.2", 10911).packed, 0, 0, b"body", topic.encode(),
        properties.encode({**known, **props}),
    )  # fmt: skip
    half = Half.read(data)
    assert half is not None
    return half


def test_what_is_no_half_is_none():
    assert Half.read(b"\0" * 200) is None
    with pytest.raises(AssertionError):
        made(topic="T")


@pytest.mark.parametrize("born", ["10.0.0.1", "2001:db8::1"])
def test_a_commit_goes_to_its_real_topic(born):
    half = made(born=born, TRAN_PREPARED_QUEUE_OFFSET="2")
    letter = half.committed()
    assert (letter.topic, letter.queue_id, letter.flag) == ("T", 3, 5)
    assert letter.sys_flag == 8
    assert letter.prepared_transaction_offset == 4096
    assert len(letter.born_host) == (20 if ":" in born else 8)
    found = properties.parse(letter.properties)
    assert found == {"PGROUP": "PG", "UNIQ_KEY": "U", "TRAN_MSG": "true"}


def test_copies_name_the_first_of_them_and_count():
    half = made(offset=7)
    assert (half.root, half.check_times) == (7, 0)
    letter = half.copied(1)
    copy = made(offset=12, **properties.parse(letter.properties))
    assert (copy.root, copy.check_times) == (7, 1)
    again = made(offset=20, **properties.parse(copy.copied(None).properties))
    assert (again.root, again.check_times) == (7, 1)


@pytest.mark.parametrize("root", ["-1", "7", "8", "x", "99999999999999999999"])
def test_a_root_that_cannot_be_one_does_not_count(root):
    assert made(offset=7, TRAN_PREPARED_QUEUE_OFFSET=root).root == 7


@pytest.mark.parametrize(
    ("text", "immunity_ms"), [(None, None), ("5", 5000), ("0", 0), ("-3", 6000), ("x", 6000)]
)
def test_times_of_immunity(text, immunity_ms):
    more = {} if text is None else {"CHECK_IMMUNITY_TIME_IN_SECONDS": text}
    assert made(**more).immunity_ms(6000) == immunity_ms


def test_the_age_counts_from_birth_but_a_clock_ahead_makes_nothing_young():
    half = made()
    assert half.age_ms(3000) == 2000
    ahead = Half(attrs.evolve(half.record, born_timestamp_ms=9_000_000))
    assert ahead.age_ms(3000) == 1000


@pytest.mark.parametrize("queue", ["", "x", "-1", str(2**31)])
def test_a_queue_that_is_none(queue):
    assert made(REAL_QID=queue or None).real_queue_id is None


def test_a_check_shows_the_message_as_it_would_be_delivered():
    half = made(born="2001:db8::1")
    letter = half.copied(4)
    message = decode(half.check_body(letter.properties, 8192, 20))
    assert (message.topic, message.queue_id, message.body) == ("T", 3, b"body")
    assert (message.log_offset, message.queue_offset) == (8192, 20)
    assert message.property_map["TRANSACTION_CHECK_TIMES"] == "4"
    long = made(REAL_TOPIC="%RETRY%" + "t" * 200)
    assert decode(long.check_body(letter.properties, 8192, 20)).topic == "%RETRY%" + "t" * 200


def record_of(body: bytes, props: bytes) -> StoredMessage:
    host = Host("10.0.0.2", 10911).packed
    data = pack(0, 0, 3, 4096, 0, 1, host, 2, host, 0, 0, body, b"OP", props)
    return decode(data)


@given(st.lists(st.integers(0, 2**63 - 1), max_size=50))
def test_op_records_round_trip(offsets):
    letter = op_letter(offsets, 1, Host("10.0.0.2", 10911).packed)
    assert letter.body == "".join(f"{offset}," for offset in offsets).encode()
    assert op_offsets(record_of(letter.body, letter.properties)) == offsets


@given(st.binary(max_size=60))
def test_op_records_of_any_content_do_no_harm(body):
    assert all(place >= 0 for place in op_offsets(record_of(body, b"TAGS\x01d\x02")))
    assert op_offsets(record_of(body, b"TAGS\x01x\x02")) == []


def test_old_op_records_of_apache_hold_one_offset():
    assert op_offsets(record_of(b"17", b"TAGS\x01d\x02")) == [17]
