"""What Apache's admin tools see of a Python consumer and do with it, through the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import attrs
import pytest
from anyio.to_thread import run_sync

from tests.backends import both, until
from tests.interop.calls import Directly, consume_directly, consumer_status, running_info
from tests.interop.conftest import Cluster, Workshop
from tests.interop.drivers import ClientError
from tests.interop.java_client import Java, unique
from tests.interop.mqadmin import Mqadmin
from trio_mq import Consumer, Message, Outcome, Producer

COUNT = 20


@attrs.define
class Consuming:
    """A consumer whose handler keeps what it got."""

    group: str
    client_id: str
    got: list[str] = attrs.field(factory=list)
    answer: object = None

    async def handle(self, message) -> object:
        """The handler."""
        self.got.append(message.body.decode())
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def have(self, count: int) -> None:
        """Wait until so many messages came."""
        await until(lambda: len(self.got) >= count)


@asynccontextmanager
async def consuming(ns: str, topic: str, **options) -> AsyncIterator[Consuming]:
    """A consumer at work."""
    group = unique("G")
    async with (
        Consumer(ns, group, subscribe={topic: "*"}, from_where="first", **options) as consumer,
        anyio.create_task_group() as tasks,
    ):
        found = Consuming(group, consumer._member.instance.client_id)
        tasks.start_soon(consumer.run, found.handle, 3)
        yield found
        tasks.cancel_scope.cancel()


async def send_some(ns: str, topic: str) -> list[str]:
    """The broker's ids of twenty messages."""
    async with Producer(ns, unique("P")) as producer:
        sent = [await producer.send(Message(topic, b"m-%d" % n)) for n in range(COUNT)]
    return [receipt.offset_message_id for receipt in sent]


@both
async def test_running_info(cluster: Cluster) -> None:
    topic = cluster.topic(4)
    async with consuming(cluster.ns, topic) as consumer:
        info = await run_sync(
            lambda: running_info(cluster.admin, consumer.group, consumer.client_id, jstack=True)
        )
        assert info.topics == [f"%RETRY%{consumer.group}", topic]
        assert [q.queue for q in info.queues if q.topic == topic] == [0, 1, 2, 3]
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info.properties["PROP_CONSUMEORDERLY"] == "false"
        assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "3"
        assert "running_info" in info.jstack
    with pytest.raises(ClientError):
        await run_sync(running_info, cluster.admin, consumer.group, consumer.client_id)


@both
async def test_consumer_status_of_mqadmin(java: Java, cluster: Cluster) -> None:
    topic = cluster.topic(2)
    await send_some(cluster.ns, topic)
    async with consuming(cluster.ns, topic) as consumer:
        await consumer.have(COUNT)
        tool = Mqadmin(java.driver, cluster.brokers[0])
        told = await run_sync(
            lambda: tool.run("consumerStatus", "-g", consumer.group, "-i", consumer.client_id)
        )
    assert "#Consumer Properties#" in told
    assert f"Topic: {topic}" in told
    assert told.count("cachedMsgCount=0") == 3
    assert "lastConsumeTimestamp=20" in told


@both
async def test_consumers_tell_their_offsets(cluster: Cluster) -> None:
    topic = cluster.topic(2)
    await send_some(cluster.ns, topic)
    async with consuming(cluster.ns, topic) as consumer:
        await consumer.have(COUNT)
        found = await run_sync(consumer_status, cluster.admin, topic, consumer.group)
        assert list(found) == [consumer.client_id]
        assert found[consumer.client_id] == {0: 10, 1: 10}


@both
async def test_one_message_is_consumed_directly(cluster: Cluster) -> None:
    topic = cluster.topic(2)
    sent = await send_some(cluster.ns, topic)
    async with consuming(cluster.ns, topic) as consumer:
        await consumer.have(COUNT)

        async def directly(answer) -> Directly:
            consumer.answer = answer
            return await run_sync(
                consume_directly, cluster.admin, consumer.group, consumer.client_id, topic, sent[1]
            )

        told = await directly(None)
        assert told == Directly("CR_SUCCESS", order=False, autoCommit=True, remark=None)
        assert consumer.got.count("m-1") == 2
        assert (await directly(Outcome.RETRY)).result == "CR_LATER"
        told = await directly(ValueError("bad"))
        assert (told.result, told.remark) == ("CR_THROW_EXCEPTION", "ValueError: bad")


@both
async def test_a_consumer_resets_its_offsets_itself(workshop: Workshop) -> None:
    server = workshop.alone(settings={"useServerSideResetOffset": "false"})
    await run_sync(server.start)
    cluster = workshop.cluster(server)
    topic = cluster.topic(1)
    await send_some(cluster.ns, topic)
    async with consuming(cluster.ns, topic, auto_commit_s=0.2) as consumer:
        await consumer.have(COUNT)
        await until(lambda: cluster.admin.consume_stats(consumer.group, topic).lag == 0)
        moved = await run_sync(cluster.admin.reset_time, server.address, topic, consumer.group, 0)
        assert list(moved.values()) == [0]
        await consumer.have(2 * COUNT)
    assert sorted(consumer.got[COUNT:]) == sorted(f"m-{n}" for n in range(COUNT))
