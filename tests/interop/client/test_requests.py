"""Requests and answers between the Python client and Java's, in both directions, and over several brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.to_thread import run_sync

from tests.backends import both, until
from tests.interop.calls import ask, replier
from tests.interop.conftest import Cluster
from tests.interop.java_client import Java, text, unique
from trio_mq import Consumer, Message, NoReply, Producer, reply_to

QUESTIONS = 6


@asynccontextmanager
async def answering(cluster: Cluster, topic: str) -> AsyncIterator[list[str]]:
    """A consumer that answers with the question in capitals; the ids that its answers got."""
    told: list[str] = []
    async with (
        Producer(cluster.ns, unique("RP")) as producer,
        Consumer(cluster.ns, unique("RG"), subscribe={topic: "*"}, from_where="first") as consumer,
        anyio.create_task_group() as tasks,
    ):

        async def answer(message) -> None:
            receipt = await producer.send(reply_to(message, message.body.upper(), "answer"))
            told.append(receipt.offset_message_id)

        tasks.start_soon(consumer.run, answer)
        yield told
        tasks.cancel_scope.cancel()


@both
async def test_python_asks_and_python_answers(cluster: Cluster) -> None:
    topic = cluster.topic(4)
    async with answering(cluster, topic) as told, Producer(cluster.ns, unique("AP")) as producer:
        for number in range(QUESTIONS):
            answer = await producer.request(Message(topic, b"question %d" % number), timeout_s=10)
            assert answer.body == b"QUESTION %d" % number
            assert answer.topic == "DefaultCluster_REPLY_TOPIC"
            assert answer.tags == "answer"
            assert {
                "CORRELATION_ID",
                "REPLY_TO_CLIENT",
                "TTL",
                "PUSH_REPLY_TIME",
                "ARRIVE_TIME",
            } <= (answer.properties.keys())
    assert len(set(told)) == QUESTIONS


@both
async def test_java_asks_and_python_answers(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic(4)
    async with answering(cluster, topic) as told:
        asker = java.producer(cluster.ns)
        for form in ("sync", "async"):
            for number in range(QUESTIONS):
                question = text(topic, f"{form} {number}")
                reply = await run_sync(lambda q=question, f=form: ask(asker, q, form=f))
                assert reply.body == f"{form} {number}".upper()
                assert reply.tags == "answer"
    assert len(set(told)) == 2 * QUESTIONS


@both
async def test_python_asks_and_java_answers(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic(4)
    answers = replier(java, cluster.ns, topic)
    async with Producer(cluster.ns, unique("AP")) as producer:
        for number in range(QUESTIONS):
            answer = await producer.request(Message(topic, b"question %d" % number), timeout_s=10)
            assert answer.body == b"QUESTION %d" % number
    assert all(result.ok for result in answers.results())


@both
async def test_answers_come_by_any_broker_of_the_cluster(java: Java, cluster3: Cluster) -> None:
    """The topic is at one broker, and Java sends its answers to all of them in turn."""
    topic = unique("T")  # of b1 alone
    cluster3.admin.topic(topic, 2, brokers=["b1"])
    answers = replier(java, cluster3.ns, topic)
    async with Producer(cluster3.ns, unique("AP")) as producer:
        for number in range(QUESTIONS):
            answer = await producer.request(Message(topic, b"question %d" % number), timeout_s=10)
            assert answer.body == b"QUESTION %d" % number
    await until(lambda: len(answers.results()) == QUESTIONS)
    results = answers.results()
    assert all(result.ok for result in results)
    assert len({result.broker for result in results}) > 1


@both
async def test_a_request_that_nobody_answers(cluster: Cluster) -> None:
    topic = cluster.topic(1)
    async with Producer(cluster.ns, unique("AP")) as producer:
        with pytest.raises(NoReply, match=topic):
            await producer.request(Message(topic, b"?"), timeout_s=0.5)
