"""Asking for a message again: of its broker, and over another one."""

from __future__ import annotations

import zlib
from contextlib import asynccontextmanager

import pytest

from tests.client.admin.scripted import B1, B2, NS, cluster, no, ok
from tests.client.received import message_at
from trio_mq.client.instance import open_instance
from trio_mq.client.messages import COMPRESSED_BODY_AT, ReceivedMessage
from trio_mq.client.options import ClientOptions
from trio_mq.client.sendback import DEAD_LETTER, SendBack, origin_topic, retry_message
from trio_mq.errors import SendFailed
from trio_mq.protocol import headers, record
from trio_mq.protocol import properties as props
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import MessageFlag, RequestCode

SENT = ok(header=headers.SendMessageReply("0A00000100002A9F0000000000000000", 0, 9))


@asynccontextmanager
async def brokers(back, *, most=-1):
    async with cluster(B1, B2) as made:
        made.topic("T")
        made.topic("%RETRY%G")
        made.brokers[B1].answers[RequestCode.CONSUMER_SEND_MSG_BACK] = back
        for peer in made.brokers.values():
            peer.answers[RequestCode.SEND_MESSAGE_V2] = SENT
        async with open_instance(ClientOptions.of(NS)) as instance:
            await instance.route("T")
            yield made, SendBack(instance, "G", most)


def failed(offset=4, **fields):
    return message_at(offset, queue=MessageQueue("T", "b1", 0), **fields)


async def test_the_broker_of_a_message_is_asked_for_it(autojump_clock):
    async with brokers(ok()) as (made, send_back):
        await send_back(failed(), 2)
        (asked,) = made.brokers[B1].requests(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert asked.ext == {
            "offset": "4000", "group": "G", "delayLevel": "2", "originMsgId": "id-000004",
            "originTopic": "T", "maxReconsumeTimes": "16", "unitMode": "false",
        }  # fmt: skip
        assert made.brokers[B2].asked == []


async def test_a_dead_letter_is_asked_for_by_its_level(autojump_clock):
    async with brokers(ok(), most=3) as (made, send_back):
        await send_back(failed(), DEAD_LETTER)
        (asked,) = made.brokers[B1].requests(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert (asked.ext["delayLevel"], asked.ext["maxReconsumeTimes"]) == ("-1", "3")


@pytest.mark.parametrize("back", [no(1, "disk full"), None])
async def test_a_broker_that_does_not_take_it_back_is_gone_round(autojump_clock, back):
    async with brokers(back) as (made, send_back):
        await send_back(failed(body=b"precious", reconsume_times=2))
        sent = [
            one
            for peer in made.brokers.values()
            for one in peer.requests(RequestCode.SEND_MESSAGE_V2)
        ]
        header = headers.decode(headers.SendMessageRequestV2, sent[0].ext)
        stored = props.parse(header.properties.encode())
        assert sent[0].body == b"precious"
        assert (header.topic, header.reconsume_times, header.max_reconsume_times) == (
            "%RETRY%G", 3, 16,
        )  # fmt: skip
        assert stored["RETRY_TOPIC"] == "T"
        assert stored["ORIGIN_MESSAGE_ID"] == "id-000004"
        assert stored["UNIQ_KEY"] == "id-000004"
        assert stored["DELAY"] == "5"


async def test_when_no_broker_takes_it_the_caller_hears_of_it(autojump_clock):
    async with brokers(no(1)) as (made, send_back):
        for peer in made.brokers.values():
            peer.answers[RequestCode.SEND_MESSAGE_V2] = no(1, "full")
        with pytest.raises(SendFailed):
            await send_back(failed())


def test_a_retried_message_says_where_it_came_from_first():
    again = message_at(0, topic="%RETRY%G", properties={"RETRY_TOPIC": "Orders", "UNIQ_KEY": "u"})
    assert origin_topic(again) == "Orders"
    assert origin_topic(message_at(0)) == "T"


def test_a_copy_has_all_that_the_message_had():
    given = {
        "TAGS": "a", "KEYS": "k1 k2", "amount": "7", "ORIGIN_MESSAGE_ID": "first", "TRAN_MSG": "true",
        "DELAY": "9", "WAIT": "true", "UNIQ_KEY": "u",
    }  # fmt: skip
    copy = retry_message(message_at(0, properties=given, reconsume_times=1, flag=5), "G", 3)
    assert (copy.topic, copy.tags, copy.keys, copy.delay_level, copy.flag) == (
        "%RETRY%G", "a", ("k1", "k2"), 4, 5,
    )  # fmt: skip
    assert copy.properties == {
        "amount": "7", "ORIGIN_MESSAGE_ID": "first", "UNIQ_KEY": "u", "RETRY_TOPIC": "T",
        "RECONSUME_TIME": "2", "MAX_RECONSUME_TIMES": "3",
    }  # fmt: skip


def test_a_compressed_body_is_copied_plain_and_a_broken_one_as_it_is():
    def packed(body):
        message = message_at(0, body=body, sys_flag=int(MessageFlag.COMPRESSED))
        raw = record.encode(message.record)
        place = COMPRESSED_BODY_AT
        return ReceivedMessage.of_record(raw, place, place, message.queue, 0, None, "T")

    assert retry_message(packed(zlib.compress(b"x" * 99)), "G", 3).body == b"x" * 99
    assert retry_message(packed(b"broken"), "G", 3).body == b"broken"
