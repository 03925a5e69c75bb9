"""What goes over the wire for a message: checks, ids, properties, namespaces, batches."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq import ConfigError, Message
from trio_mq.client.outgoing import MAX_PROPERTIES_BYTES, Limits, prepare, prepare_batches
from trio_mq.errors import LocalProtocolError
from trio_mq.protocol import properties as props
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.message import decompress, split_batch

NOW_MS = 1_700_000_000_000
LIMITS = Limits()


def stored(outgoing):
    return props.parse(outgoing.properties.encode())


def test_a_plain_message_has_its_id_and_wait():
    outgoing = prepare(Message("T", b"x"), LIMITS, NOW_MS)
    assert stored(outgoing) == {"UNIQ_KEY": outgoing.message_id, "WAIT": "true"}
    assert (outgoing.topic, outgoing.body, outgoing.sys_flag) == ("T", b"x", 0)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1)


@given(
    st.none() | TEXTS, st.lists(TEXTS.filter(lambda t: len(t.split()) == 1 and t.strip() == t), max_size=3),
    st.none() | TEXTS, st.booleans(), st.dictionaries(TEXTS.map("p".__add__), TEXTS, max_size=2),
)  # fmt: skip
def test_both_ways_of_writing_properties_say_the_same(tags, keys, key, wait, own):
    message = Message("T", b"x", tags, keys, sharding_key=key, wait_store_ok=wait)
    plain = stored(prepare(message, LIMITS, NOW_MS))
    more = Message("T", b"x", tags, keys, own, sharding_key=key, wait_store_ok=wait)
    found = stored(prepare(more, LIMITS, NOW_MS))
    for each in (plain, found):
        assert each.pop("UNIQ_KEY")
    assert found == {**plain, **own}
    assert plain == {name: text for name, text in message.all_properties().items() if text}


@pytest.mark.parametrize("message", [
    Message("T", b"x", tags="a\x02b"),
    Message("T", b"x", keys=["a\x02b"]),
    Message("T", b"x", sharding_key="\x02"),
    Message("T", b"x", properties={"a\x01b": "c"}),
])  # fmt: skip
def test_a_separator_in_a_property_is_refused(message):
    with pytest.raises(LocalProtocolError, match="cannot be stored"):
        prepare(message, LIMITS, NOW_MS)


def test_too_many_properties_are_refused():
    prepare(Message("T", b"x", tags="t" * 32_000), LIMITS, NOW_MS)
    with pytest.raises(LocalProtocolError, match=f"{MAX_PROPERTIES_BYTES} are the most; put large"):
        prepare(Message("T", b"x", tags="t" * 33_000), LIMITS, NOW_MS)
    with pytest.raises(LocalProtocolError, match=f"{MAX_PROPERTIES_BYTES} are the most"):
        prepare(Message("T", b"x", tags="\u4e00" * 12_000), LIMITS, NOW_MS)


def test_ids_differ_and_one_that_is_given_stays():
    first, second = (prepare(Message("T", b"x"), LIMITS, NOW_MS).message_id for _ in range(2))
    assert first != second
    given_id = Message("T", b"x", properties={"UNIQ_KEY": "MINE"})
    assert prepare(given_id, LIMITS, NOW_MS).message_id == "MINE"


@pytest.mark.parametrize(
    ("topic", "reason"),
    [("", "empty"), ("a b", "holds ' '"), ("x" * 128, "127 are the most")],
)
def test_bad_topics_are_refused(topic, reason):
    with pytest.raises(ConfigError, match=reason):
        prepare(Message(topic, b"x"), LIMITS, NOW_MS)


def test_topics_of_the_brokers_own_are_refused():
    with pytest.raises(LocalProtocolError, match="SCHEDULE_TOPIC_XXXX is the brokers' own"):
        prepare(Message("SCHEDULE_TOPIC_XXXX", b"x"), LIMITS, NOW_MS)


def test_bodies_over_the_limit_or_empty_are_refused():
    limits = Limits(max_message_bytes=10)
    prepare(Message("T", b"x" * 10), limits, NOW_MS)
    with pytest.raises(
        LocalProtocolError, match=r"11 bytes is over max_message_bytes \(10\); raise it"
    ):
        prepare(Message("T", b"x" * 11), limits, NOW_MS)
    with pytest.raises(LocalProtocolError, match="the body is empty"):
        prepare(Message("T", b""), limits, NOW_MS)


def test_a_large_body_is_compressed():
    outgoing = prepare(Message("T", b"ab" * 5000), LIMITS, NOW_MS)
    assert len(outgoing.body) < 1000
    assert outgoing.sys_flag == MessageFlag.COMPRESSED | MessageFlag.COMPRESSION_ZLIB
    assert decompress(outgoing.body, outgoing.sys_flag) == b"ab" * 5000


def test_namespaces_are_in_front_of_topics_and_behind_retry():
    limits = Limits(namespace="ns")
    outgoing = prepare(Message("T", b"x"), limits, NOW_MS)
    assert (outgoing.topic, outgoing.given_topic) == ("ns%T", "T")
    assert stored(outgoing)["INSTANCE_ID"] == "ns"
    assert prepare(Message("%RETRY%g", b"x"), limits, NOW_MS).topic == "%RETRY%ns%g"


@pytest.mark.parametrize(
    ("message", "name", "text"),
    [
        (Message("T", b"x", delay_level=3), "DELAY", "3"),
        (Message("T", b"x", deliver_after=timedelta(seconds=1.5)), "TIMER_DELAY_MS", "1500"),
        (Message("T", b"x", deliver_at=datetime(2030, 1, 1, tzinfo=UTC)), "TIMER_DELIVER_MS", "1893456000000"),
    ],
)  # fmt: skip
def test_delays_are_properties(message, name, text):
    assert stored(prepare(message, LIMITS, NOW_MS))[name] == text


def test_retry_topics_tell_how_often_in_the_request_and_not_in_the_message():
    own = {"RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16", "RETRY_TOPIC": "T"}
    outgoing = prepare(Message("%RETRY%g", b"x", properties=own), LIMITS, NOW_MS)
    assert (outgoing.reconsume_times, outgoing.max_reconsume_times) == (3, 16)
    assert stored(outgoing).keys() == {"RETRY_TOPIC", "UNIQ_KEY", "WAIT"}
    assert not outgoing.is_usual
    with pytest.raises(LocalProtocolError, match="RECONSUME_TIME: 'x' is no number"):
        prepare(Message("%RETRY%g", b"x", properties={"RECONSUME_TIME": "x"}), LIMITS, NOW_MS)


def test_extra_properties_win():
    extra = {"TRAN_MSG": "true", "PGROUP": "g", "a": "theirs"}
    message = Message("T", b"x", properties={"a": "mine"})
    outgoing = prepare(message, LIMITS, NOW_MS, sys_flag=4, extra_properties=extra)
    assert stored(outgoing) | extra == stored(outgoing)
    assert outgoing.sys_flag == 4


def test_a_batch_holds_all_messages_each_with_its_id():
    messages = [Message("T", b"%d" % i, tags=f"t{i}", flag=i) for i in range(5)]
    (batch,) = prepare_batches(messages, LIMITS, NOW_MS)
    items = split_batch(batch.body)
    assert [item.body for item in items] == [b"0", b"1", b"2", b"3", b"4"]
    assert [item.flag for item in items] == [0, 1, 2, 3, 4]
    ids = [props.parse(item.properties)["UNIQ_KEY"] for item in items]
    assert batch.message_id == ",".join(ids)
    assert len({*ids, stored(batch)["UNIQ_KEY"]}) == 6
    assert batch.is_batch


def test_large_bodies_in_batches_are_not_compressed():
    (batch,) = prepare_batches([Message("T", b"a" * 9000)], LIMITS, NOW_MS)
    assert split_batch(batch.body)[0].body == b"a" * 9000
    assert batch.sys_flag == 0


def test_a_large_batch_is_split_and_each_part_knows_its_ids():
    messages = [Message("T", b"x" * 1000) for _ in range(10)]
    parts = list(prepare_batches(messages, Limits(max_message_bytes=4000), NOW_MS))
    assert [len(part.message_id.split(",")) for part in parts] == [3, 3, 3, 1]
    assert all(len(part.body) <= 4000 for part in parts)
    for part in parts:
        ids = [props.parse(item.properties)["UNIQ_KEY"] for item in split_batch(part.body)]
        assert part.message_id == ",".join(ids)
