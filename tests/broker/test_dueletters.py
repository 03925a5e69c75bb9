"""The short way from a record to its letter gives the same as decoding it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.broker.dueletters import DueLetters, destination, letter_size
from trio_mq.broker.put import Letter
from trio_mq.errors import BodyError, RequestRefused
from trio_mq.protocol.message import Host
from trio_mq.protocol.record import decode, pack

HOSTS = (Host("10.1.2.3", 1).packed, Host("fd00::1", 2).packed)
NAMES = st.sampled_from(["REAL_TOPIC", "REAL_QID", "XREAL_TOPIC", "XREAL_QID", "DELAY", "TAGS"])
VALUES = st.sampled_from(["T", "0", "17", "%RETRY%G", "L" * 120, "a b", ""])


@given(
    pairs=st.lists(st.tuples(NAMES, VALUES), max_size=7),
    body=st.binary(max_size=9),
    times=st.integers(0, 20),
    born=st.sampled_from(HOSTS),
    store=st.sampled_from(HOSTS),
    topic=st.sampled_from([b"SCHEDULE_TOPIC_XXXX", b"S" * 130]),
    open_end=st.booleans(),
)
def test_both_ways_give_the_same(pairs, body, times, born, store, topic, open_end):
    props = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    props = props[:-1] if open_end else props
    flags = 1 | (0x10 if len(born) > 8 else 0) | (0x20 if len(store) > 8 else 0)
    record = pack(3, 7, 11, 13, flags, 17, born, 19, store, times, 0, body, topic, props)
    letters = DueLetters()
    letters.of(  # something is remembered already
        pack(0, 0, 0, 0, 0, 0, HOSTS[0], 0, HOSTS[0], 0, 0, b"", b"S", b"\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02")
    )  # fmt: skip
    message = decode(record)
    try:
        wanted = destination(props)
    except (BodyError, RequestRefused) as error:
        with pytest.raises(type(error)):
            letters.of(record)
        return
    for _ in range(2):
        letter = letters.of(record)
        plain = Letter.again(message, topic=wanted[0], queue_id=wanted[1])
        assert letter == plain
    stored = pack(
        0, 0, 0, 0, flags, 0, born, 0, store, 0, 0, body, wanted[0].encode(), props
    )  # fmt: skip
    assert 0 <= letter_size(letter) - len(stored) <= 24


@pytest.mark.parametrize("cut", [0, 1, 60, 90, 100])
def test_a_record_that_is_cut_off_is_told(cut):
    record = pack(
        0, 0, 0, 0, 0, 0, HOSTS[0], 0, HOSTS[0], 0, 0, b"b", b"S", b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
    )  # fmt: skip
    with pytest.raises(BodyError):
        DueLetters().of(record[:cut])


def test_only_so_many_ends_are_remembered():
    letters = DueLetters()
    for number in range(2500):
        text = b"A\x01b\x02REAL_TOPIC\x01T%d\x02REAL_QID\x01%d\x02" % (number, number)
        record = pack(0, 0, 0, 0, 0, 0, HOSTS[0], 0, HOSTS[0], 0, 0, b"b", b"S", text)
        letter = letters.of(record)
        assert (letter.topic, letter.queue_id) == (f"T{number}", number)
    assert len(letters._known) <= 1000
