"""Messages, and what becomes of received ones."""

from __future__ import annotations

import logging
import pickle
from datetime import UTC, datetime, timedelta

import pytest
import trio

from tests.client.received import QUEUE, message_at, stored
from trio_mq import Message, Outcome
from trio_mq.client.messages import ReceivedMessage, from_ms
from trio_mq.errors import ClientError, LocalProtocolError
from trio_mq.protocol import record as records


class Settler:
    def __init__(self, failure=None):
        self.settled, self.failure = [], failure

    async def settle(self, message, outcome, delay_level):
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        self.settled.append((message.queue_offset, outcome, delay_level))


# -- to send


def test_properties_are_stored_under_the_peers_names():
    message = Message(
        "T", b"x", tags="t", keys=["k1", "k2"], properties={"own": "1"}, sharding_key="s",
        delay_level=3, wait_store_ok=False,
    )  # fmt: skip
    assert message.all_properties() == {
        "own": "1", "TAGS": "t", "KEYS": "k1 k2", "DELAY": "3", "__SHARDINGKEY": "s", "WAIT": "false",
    }  # fmt: skip


def test_delays_are_dates_or_durations():
    at = datetime(2027, 1, 1, tzinfo=UTC)
    assert Message("T", b"x", deliver_at=at).all_properties()["TIMER_DELIVER_MS"] == str(
        round(at.timestamp() * 1000)
    )
    after = Message("T", b"x", deliver_after=timedelta(minutes=1, milliseconds=5))
    assert after.all_properties()["TIMER_DELAY_MS"] == "60005"


def test_one_key_is_a_text():
    assert Message("T", b"x", keys="k").keys == ("k",)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"properties": {"TAGS": "t"}}, "give it as tags="),
        ({"properties": {"DELAY": "3"}}, "give it as delay_level="),
        ({"keys": ["a b"]}, "holds blanks"),
        ({"keys": [""]}, "is empty"),
        ({"delay_level": 1, "deliver_after": timedelta(1)}, "give one of"),
        ({"deliver_at": datetime(2027, 1, 1)}, "no time zone"),
    ],
)
def test_what_would_be_lost_or_is_ambiguous_is_refused(fields, text):
    with pytest.raises(LocalProtocolError, match=text):
        Message("T", b"x", **fields)


def test_a_body_is_bytes():
    with pytest.raises(TypeError, match=r"not str; encode texts: text\.encode\(\)"):
        Message("T", "text")


def test_bodies_are_not_in_the_text_of_a_message():
    assert "<3 bytes>" in repr(Message("T", b"xyz"))
    assert "xyz" not in repr(Message("T", b"xyz"))


# -- received


def test_a_record_is_decoded_when_it_is_asked_for():
    raw = records.encode(stored(5, b"the body", {"TAGS": "t", "KEYS": "a b", "UNIQ_KEY": "u"}))
    message = ReceivedMessage.of_record(raw, 88, 96, QUEUE, 5, None, "T")
    assert message.body == b"the body"
    assert message._record is None, "the body needs no more"
    assert (message.tags, message.keys, message.message_id) == ("t", ["a", "b"], "u")
    assert message.record == stored(5, b"the body", {"TAGS": "t", "KEYS": "a b", "UNIQ_KEY": "u"})
    assert message.size_bytes == len(raw)


def test_a_message_without_a_clients_id_has_the_brokers():
    message = message_at(3, properties={"TAGS": "t"})
    assert message.message_id == message.offset_message_id == "0A00000100002A9F0000000000000BB8"


def test_times_are_in_utc():
    message = message_at(0)
    assert message.born_at == from_ms(1)
    assert message.stored_at == datetime(1970, 1, 1, 0, 0, 0, 2000, UTC)


def test_a_message_shows_where_it_is_and_not_what_is_in_it():
    shown = repr(message_at(7, body=b"secret"))
    assert shown == "<ReceivedMessage id-000007 T@b1:0 offset 7, 6 bytes>"


async def test_a_message_is_settled_once():
    settler = Settler()
    message = message_at(1, settler=settler)
    await message.ack()
    await message.ack()
    await message.retry()
    assert settler.settled == [(1, Outcome.ACK, 0)]
    assert message.settled


async def test_a_retry_has_a_delay_level():
    settler = Settler()
    await message_at(1, settler=settler).retry(4)
    assert settler.settled == [(1, Outcome.RETRY, 4)]


async def test_a_settlement_that_failed_may_be_tried_again():
    settler = Settler(OSError("gone"))
    message = message_at(1, settler=settler)
    with pytest.raises(OSError, match="gone"):
        await message.ack()
    assert not message.settled
    settler.failure = None
    await message.ack()
    assert message.settled


async def test_a_message_that_was_looked_up_cannot_be_settled():
    with pytest.raises(ClientError, match="was looked up and not consumed"):
        await message_at(1).ack()


async def test_a_block_acknowledges():
    settler = Settler()
    async with message_at(1, settler=settler) as message:
        pass
    assert message.settled
    assert settler.settled == [(1, Outcome.ACK, 0)]


async def test_an_exception_in_a_block_ends_there_and_asks_for_a_retry(caplog):
    settler = Settler()
    with caplog.at_level(logging.ERROR):
        async with message_at(1, settler=settler):
            raise ValueError("bad")
    assert settler.settled == [(1, Outcome.RETRY, 0)]
    (line,) = caplog.records
    assert line.message == "message id-000001 of topic T failed and is asked for again"
    assert line.exc_info[0] is ValueError


async def test_what_is_no_exception_passes_through_and_settles_nothing():
    settler = Settler()
    with pytest.raises(KeyboardInterrupt):
        async with message_at(1, settler=settler):
            raise KeyboardInterrupt
    with trio.move_on_after(0):
        async with message_at(2, settler=settler):
            await trio.sleep_forever()
    assert settler.settled == []


async def test_a_renewed_message_is_the_same_and_open():
    settler = Settler()
    message = message_at(1, settler=settler)
    await message.ack()
    again = message.renewed()
    assert (again.body, again.queue_offset, again.settled) == (message.body, 1, False)
    await again.retry()
    assert settler.settled == [(1, Outcome.ACK, 0), (1, Outcome.RETRY, 0)]


def test_messages_to_send_travel_between_processes():
    message = Message("T", b"x", tags="t", keys=["k"])
    assert pickle.loads(pickle.dumps(message)) == message
