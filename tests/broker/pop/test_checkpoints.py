"""Check points and acknowledgements, against records that Apache's broker 5.4.0 wrote."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.broker.pop.checkpoints import (
    Ack,
    Checkpoint,
    ack_properties,
    checkpoint_properties,
    decode_ack,
    decode_checkpoint,
)
from trio_mq.errors import BodyError
from trio_mq.protocol import properties

APACHE_CK = (
    b'{"bm":0,"bn":"b1","c":"G1","d":[0,1,2,3,4],"it":5000,"n":5,"pt":1796008424419,"q":0,'
    b'"reviveTime":1796008429419,"ro":0,"so":0,"t":"T1"}'
)
APACHE_ACK = b'{"ao":0,"bn":"b1","c":"G1","pt":1796008424419,"q":1,"so":0,"t":"T1"}'
APACHE_BATCH_ACK = (
    b'{"ao":-1,"aol":[0,1],"bn":"b1","c":"G1","pt":1796008424419,"q":0,"so":0,"t":"T1"}'
)
LONGS = st.integers(0, 2**62)
INTS = st.integers(0, 2**31 - 1)
NAMES = st.text(min_size=1, max_size=20).filter(lambda t: t.isprintable())


def test_a_check_point_of_apache() -> None:
    ck = decode_checkpoint(APACHE_CK)
    assert ck == Checkpoint(0, 1796008424419, 5000, 5, 0, "T1", "G1", [0, 1, 2, 3, 4], "b1")
    assert ck.encode() == APACHE_CK
    assert ck.due_ms == 1796008429419
    assert ck.offsets() == [0, 1, 2, 3, 4]
    found = properties.parse(checkpoint_properties(ck, 77))
    assert found.pop("POP_LOG_END") == "77"  # the only thing that Apache does not write
    assert found == {
        "TIMER_DELIVER_MS": "1796008428419",
        "UNIQ_KEY": "T1@0@0@G1@1796008424419@b1@ck",
        "TAGS": "ck",
    }


def test_acknowledgements_of_apache() -> None:
    ack = decode_ack(APACHE_ACK)
    assert ack == Ack(0, 1796008424419, 1, "T1", "G1", 0, None, "b1")
    assert ack.encode() == APACHE_ACK
    assert properties.parse(ack_properties(ack, 1796008429419)) == {
        "TIMER_DELIVER_MS": "1796008429419",
        "UNIQ_KEY": "T1@1@0@G1@1796008424419@b1@ack",
        "TAGS": "ack",
    }
    batch = decode_ack(APACHE_BATCH_ACK)
    assert batch == Ack(0, 1796008424419, 0, "T1", "G1", -1, [0, 1], "b1")
    assert batch.encode() == APACHE_BATCH_ACK
    assert properties.parse(ack_properties(batch, 1796008429419)) == {
        "TIMER_DELIVER_MS": "1796008429419",
        "UNIQ_KEY": "T1@0@-1@G1@1796008424419@b1@ack",
        "TAGS": "bAck",
    }


def test_a_check_point_and_its_acknowledgements_have_one_key() -> None:
    ck = decode_checkpoint(APACHE_CK)
    assert decode_ack(APACHE_BATCH_ACK).key == ck.key
    assert decode_ack(APACHE_ACK).key != ck.key, "another queue"


CHECKPOINTS = st.builds(
    Checkpoint,
    LONGS,
    LONGS,
    LONGS,
    st.integers(0, 32),
    INTS,
    NAMES,
    NAMES,
    st.lists(INTS, min_size=32, max_size=32),
    st.none() | NAMES,
    INTS,
    st.none() | st.text("0123456789", min_size=1, max_size=3),
)


@given(CHECKPOINTS)
def test_check_points_round_trip(ck: Checkpoint) -> None:
    assert decode_checkpoint(ck.encode()) == ck
    assert list(json.loads(ck.encode())) == sorted(json.loads(ck.encode())), "as Apache sorts them"


@given(
    st.builds(
        Ack,
        LONGS,
        LONGS,
        INTS,
        NAMES,
        NAMES,
        LONGS,
        st.none() | st.lists(LONGS, max_size=32),
        st.none() | NAMES,
    )
)
def test_acknowledgements_round_trip(ack: Ack) -> None:
    assert decode_ack(ack.encode()) == ack


def test_long_names_of_old_brokers_are_read() -> None:
    old = {
        "ackOffset": 4,
        "startOffset": 3,
        "consumerGroup": "G",
        "topic": "T",
        "queueId": 1,
        "popTime": 99,
    }
    assert decode_ack(json.dumps(old).encode()) == Ack(3, 99, 1, "T", "G", 4)


def test_check_points_of_old_brokers_have_no_list() -> None:
    ck = decode_checkpoint(b'{"so":5,"pt":1,"it":2,"n":3,"q":0,"t":"T","c":"G","bm":0}')
    assert ck.offsets() == [5, 6, 7]


@given(st.binary(max_size=200))
def test_any_other_bytes_are_an_error(data: bytes) -> None:
    for read in (decode_checkpoint, decode_ack):
        with pytest.raises(BodyError):
            read(data)


@pytest.mark.parametrize("cut", range(0, len(APACHE_CK), 7))
def test_a_part_of_a_check_point_is_an_error(cut: int) -> None:
    with pytest.raises(BodyError):
        decode_checkpoint(APACHE_CK[:cut])


@pytest.mark.parametrize("count", [-1, 128, 10**9])
def test_a_check_point_of_more_messages_than_there_can_be_is_an_error(count: int) -> None:
    with pytest.raises(BodyError, match="127"):
        decode_checkpoint(json.dumps({**json.loads(APACHE_CK), "n": count, "d": []}).encode())


def test_a_check_point_with_too_few_offsets_is_an_error() -> None:
    with pytest.raises(BodyError, match="2 offsets"):
        decode_checkpoint(b'{"so":5,"pt":1,"it":2,"n":3,"q":0,"t":"T","c":"G","d":[0,1]}')
