"""The client against Apache RocketMQ 4.9, whatever broker is under test: the protocol of before release 5."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

import trio_mq
from tests.backends import both
from tests.interop import peers, servers
from tests.interop.java_client import unique
from trio_mq import Admin, Consumer, Message, Producer, PullConsumer, TransactionState


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the name server of a 4.9 cluster."""
    home = tmp_path_factory.mktemp("apache4")
    names = servers.ApacheNameServer(home=home / "names", version=peers.OLD_VERSION)
    broker = servers.ApacheBroker(
        name="b1", home=home / "b1", nameservers=[names.address], version=peers.OLD_VERSION
    )
    try:
        names.start()
        broker.start()
        yield names.address
    finally:
        broker.discard()
        names.discard()


async def made(nameserver: str, queues: int) -> str:
    topic = unique("T4")
    async with Admin(nameserver) as admin:
        await admin.create_topic(topic, queues=queues)
    return topic


async def bodies(consumer, count: int) -> list[bytes]:
    found = []
    async for message in consumer:
        async with message:
            found.append(message.body)
        if len(found) == count:
            return found


@both
async def test_sends_of_all_kinds_arrive(old):
    topic = await made(old, 2)
    async with Producer(old, group=unique("P")) as producer:
        sent = [b"one", b"x" * 5000, b"delayed", b"b0", b"b1", b"keyed", b"oneway"]
        await producer.send(Message(topic, sent[0]))
        await producer.send(Message(topic, sent[1]))
        await producer.send(Message(topic, sent[2], delay_level=1))
        await producer.send_batch([Message(topic, sent[3]), Message(topic, sent[4])])
        await producer.send(Message(topic, sent[5], sharding_key="k"))
        await producer.send_oneway(Message(topic, sent[6]))
        async with Consumer(
            old, group=unique("G"), subscribe={topic: "*"}, from_where="first"
        ) as consumer:
            assert sorted(await bodies(consumer, 7)) == sorted(sent)


@both
async def test_a_failed_message_comes_again(old):
    topic = await made(old, 1)
    async with Producer(old, group=unique("P")) as producer:
        await producer.send(Message(topic, b"again"))
    times = []
    with anyio.move_on_after(40) as limit:
        async with Consumer(
            old, group=unique("G"), subscribe={topic: "*"}, from_where="first"
        ) as consumer:
            async for message in consumer:
                times.append(message.reconsume_times)
                if len(times) == 2:
                    await message.ack()
                    break
                await message.retry(delay_level=1)
    assert not limit.cancelled_caught
    assert times == [0, 1]


@both
async def test_a_transaction_is_seen_when_it_is_committed(old):
    topic = await made(old, 1)

    async def check(message):
        return TransactionState.UNKNOWN

    async with Producer(old, group=unique("P"), check_transaction=check) as producer:

        async def commit(_):
            return TransactionState.COMMIT

        async def roll_back(_):
            return TransactionState.ROLLBACK

        await producer.send_in_transaction(Message(topic, b"no"), roll_back)
        await producer.send_in_transaction(Message(topic, b"yes"), commit)
        async with PullConsumer(old, group=unique("G"), subscribe={topic: "*"}) as consumer:
            for queue in consumer.assignment:
                await consumer.seek(queue, "begin")
            found = await consumer.poll(10, timeout_s=20)
    assert [message.body for message in found] == [b"yes"]


@both
async def test_pops_are_refused_clearly(old):
    """Pop came with release 5: the error says that the broker does not know the request."""
    topic = await made(old, 1)
    with pytest.raises(trio_mq.PeerRefused) as caught:
        async with trio_mq.SimpleConsumer(old, group=unique("G"), subscribe={topic: "*"}) as pops:
            await pops.receive(1, await_s=0.5)
    assert caught.value.code == 3
