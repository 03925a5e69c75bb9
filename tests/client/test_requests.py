"""Requests and their answers; with a whole broker in virtual time, and with answers made by hand."""

from __future__ import annotations

import logging
import zlib
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio

from tests.client.received import message_at
from trio_mq import (
    ClientError,
    Consumer,
    Message,
    NoReply,
    NoRoute,
    PeerRefused,
    Producer,
    SendFailed,
    reply_to,
)
from trio_mq.client.requests import Requests, answer_of
from trio_mq.errors import LocalProtocolError
from trio_mq.protocol import headers
from trio_mq.protocol import properties as props
from trio_mq.protocol.codes import MessageFlag, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.message import Host
from trio_mq.testing.inprocess import open_broker

TOPIC = "Questions"


async def answer_all(
    ns, *, delay_s=0.0, times=1, told=None, task_status=trio.TASK_STATUS_IGNORED
) -> None:
    """A consumer that answers with the question in capitals."""
    async with Producer(ns, "answers") as producer, trio.open_nursery() as nursery:
        await producer.send(Message(TOPIC, b"makes the topic"))

        async def answer(message) -> None:
            if props.CORRELATION_ID not in message.properties:
                return
            await trio.sleep(delay_s)
            reply = reply_to(
                message, message.body.upper(), "answer", ["k1", "k2"], {"own": "property"}
            )
            for _ in range(times):
                receipt = await producer.send(reply)
                if told is not None:
                    told.append(receipt)

        async with Consumer(ns, "repliers", subscribe={TOPIC: "*"}, from_where="first") as consumer:
            nursery.start_soon(consumer.run, answer)
            task_status.started()
            await trio.sleep_forever()


@asynccontextmanager
async def conversation(**options):
    """A producer, and somebody who answers it."""
    async with (
        open_broker() as broker,
        trio.open_nursery() as answering,
        Producer(broker.nameserver, "G") as producer,
    ):
        await answering.start(partial(answer_all, broker.nameserver, **options))
        yield producer
        answering.cancel_scope.cancel()


async def test_the_answer_comes_back(autojump_clock) -> None:
    told = []
    async with conversation(told=told) as producer:
        answer = await producer.request(Message(TOPIC, b"where?", tags="new"), timeout_s=10)
    assert answer.body == b"WHERE?"
    assert (answer.tags, answer.keys) == ("answer", ["k1", "k2"])
    assert answer.topic == "DefaultCluster_REPLY_TOPIC"
    assert answer.properties["own"] == "property"
    assert answer.properties[props.MSG_TYPE] == "reply"
    assert answer.properties[props.TTL] == "10000"
    assert {
        props.CORRELATION_ID,
        props.REPLY_TO_CLIENT,
        props.PUSH_REPLY_TIME,
        props.ARRIVE_TIME,
    } <= (answer.properties.keys())
    assert told[0].queue.topic == "DefaultCluster_REPLY_TOPIC"


async def test_many_questions_at_once_get_their_own_answers(autojump_clock) -> None:
    answers = {}
    async with conversation() as producer:

        async def ask(number) -> None:
            answers[number] = await producer.request(Message(TOPIC, b"q%d" % number), 20)

        async with trio.open_nursery() as asking:
            for number in range(30):
                asking.start_soon(ask, number)
    assert {n: answer.body for n, answer in answers.items()} == {n: b"Q%d" % n for n in range(30)}


async def test_a_question_that_nobody_answers(autojump_clock) -> None:
    async with open_broker() as broker, Producer(broker.nameserver, "G") as producer:
        began_s = trio.current_time()
        with pytest.raises(
            NoReply, match=r"topic Questions: no answer .*within 7 s.*reply_to"
        ) as caught:
            await producer.request(Message(TOPIC, b"?"), timeout_s=7)
        assert trio.current_time() - began_s == pytest.approx(7)
        assert caught.value.correlation_id in str(caught.value)


async def test_an_answer_that_comes_too_late_is_dropped(autojump_clock, caplog) -> None:
    caplog.set_level(logging.WARNING)
    told = []
    async with conversation(delay_s=5, told=told) as producer:
        with pytest.raises(NoReply) as caught:
            await producer.request(Message(TOPIC, b"?"), timeout_s=2)
        await trio.sleep(10)
    assert f"an answer to request '{caught.value.correlation_id}' comes too late" in caplog.text
    assert len(told) == 1


async def test_a_second_answer_is_taken_and_changes_nothing(autojump_clock) -> None:
    told = []
    async with conversation(times=2, told=told) as producer:
        answer = await producer.request(Message(TOPIC, b"?"), timeout_s=10)
        await trio.sleep(5)
    assert answer.body == b"?"
    assert len(told) == 2


async def test_an_answer_to_a_client_that_is_gone(autojump_clock) -> None:
    question = message_at(
        0,
        properties={"CLUSTER": "DefaultCluster", "REPLY_TO_CLIENT": "gone", "CORRELATION_ID": "1"},
    )
    async with open_broker() as broker, Producer(broker.nameserver, "G") as producer:
        with pytest.raises((PeerRefused, SendFailed), match="gone") as caught:
            await producer.send(reply_to(question, b"x"))
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


async def test_a_failed_send_of_a_question_is_told_as_such(autojump_clock) -> None:
    async with (
        open_broker({"autoCreateTopicEnable": "false"}) as broker,
        Producer(broker.nameserver, "G") as producer,
    ):
        with pytest.raises(NoRoute, match="nowhere"):
            await producer.request(Message("nowhere", b"?"))


# -- answers


def test_only_requests_are_answered() -> None:
    with pytest.raises(ClientError, match="is no request"):
        reply_to(message_at(0), b"x")
    half = {"REPLY_TO_CLIENT": "c", "CORRELATION_ID": "1"}
    with pytest.raises(LocalProtocolError, match="CLUSTER"):
        reply_to(message_at(0, properties=half), b"x")


def test_an_answer_names_its_question() -> None:
    asked = {"CLUSTER": "c1", "REPLY_TO_CLIENT": "me", "CORRELATION_ID": "1", "TTL": "3000"}
    reply = reply_to(message_at(0, properties=asked), b"x", properties={"MSG_TYPE": "own"})
    assert reply.topic == "c1_REPLY_TOPIC"
    assert reply.properties == {
        "MSG_TYPE": "reply", "REPLY_TO_CLIENT": "me", "CORRELATION_ID": "1", "TTL": "3000",
    }  # fmt: skip


HEADER = headers.ReplyMessageRequest(
    producer_group="G", topic="c1_REPLY_TOPIC", default_topic="TBW102", default_topic_queue_nums=4,
    queue_id=2, sys_flag=0, born_timestamp=1000, flag=9, born_host="10.0.0.7:40000",
    store_host="/10.0.0.1:10911", store_timestamp=2000, properties="CORRELATION_ID\x01one\x02TAGS\x01t\x02",
)  # fmt: skip


def test_the_message_that_a_broker_pushes() -> None:
    answer = answer_of(HEADER, b"x", now_ms=3000)
    assert (answer.body, answer.tags, answer.record.flag) == (b"x", "t", 9)
    assert answer.record.born_host == Host("10.0.0.7", 40000)
    assert answer.record.store_host == Host("10.0.0.1", 10911)
    assert answer.born_at.timestamp() == 1.0
    assert answer.stored_at.timestamp() == 2.0
    assert answer.properties[props.ARRIVE_TIME] == "3000"
    assert answer.queue.queue_id == 2


def test_a_compressed_answer() -> None:
    header = attrs.evolve(HEADER, sys_flag=int(MessageFlag.COMPRESSED))
    assert answer_of(header, zlib.compress(b"long" * 50), 0).body == b"long" * 50


class Instance:
    """What requests need of an instance here."""

    class clock:
        @staticmethod
        def now_ms() -> int:
            return 3000

    def __init__(self) -> None:
        self.handlers = {}

    def on_request(self, code, handler) -> None:
        self.handlers[code] = handler


@attrs.frozen
class Link:
    """Where a request came from."""

    address: str = "10.0.0.1:10911"


@pytest.mark.parametrize(
    "broken",
    [{"bornHost": "nowhere"}, {"sysFlag": "1"}, {"topic": None}],
    ids=lambda b: next(iter(b)),
)
def test_an_answer_that_cannot_be_read_is_refused(broken, caplog) -> None:
    instance = Instance()
    Requests(instance, None)
    ext = {**headers.encode(HEADER), **broken}
    ext = {name: value for name, value in ext.items() if value is not None}
    handler = instance.handlers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT]
    reply = handler(Link(), Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, b"x"))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "cannot read the reply" in reply.remark
    assert "10.0.0.1:10911: an answer cannot be read" in caplog.text
