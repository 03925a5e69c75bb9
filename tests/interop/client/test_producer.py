"""Every kind of send, read back from the broker under test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import anyio
import pytest

from tests.backends import both
from tests.interop.java_client import unique
from trio_mq import (
    Admin,
    Message,
    MessageQueue,
    NoRoute,
    PeerRefused,
    Producer,
    SendFailed,
    SendStatus,
)
from trio_mq.errors import LocalProtocolError
from trio_mq.protocol.codes import MessageFlag, ResponseCode

RECALLS = {"recallMessageEnable": "true"}


async def stored(cluster, topic, count, limit_s=15.0):
    """All messages of a topic, once there are `count`."""
    async with Admin(cluster.ns) as admin:
        with anyio.move_on_after(limit_s):
            while True:
                found = [message async for message in await admin.read(topic)]
                if len(found) >= count:
                    return found
                await anyio.sleep(0.02)
    raise TimeoutError(f"{len(found)} of {count} messages are there")


@both
async def test_a_message_is_stored_with_all_its_parts(cluster):
    topic = cluster.topic(4)
    before = datetime.now(UTC) - timedelta(seconds=1)
    async with Producer(cluster.ns) as producer:
        receipt = await producer.send(
            Message(topic, "größe".encode(), "new", ["42", "ä"], {"region": "eu"}, flag=7)
        )
    (message,) = await stored(cluster, topic, 1)
    assert receipt.status is SendStatus.OK
    assert (receipt.queue, receipt.queue_offset) == (message.queue, message.queue_offset)
    assert receipt.message_id == message.message_id
    assert receipt.offset_message_id == message.offset_message_id
    assert (message.body, message.tags, message.keys) == ("größe".encode(), "new", ["42", "ä"])
    assert message.properties["region"] == "eu"
    assert message.record.flag == 7
    assert before < message.born_at <= message.stored_at + timedelta(milliseconds=5)


@both
async def test_queues_take_turns_and_offsets_rise(cluster):
    topic = cluster.topic(4)
    async with Producer(cluster.ns) as producer:
        receipts = [await producer.send(Message(topic, b"x")) for _ in range(8)]
        assert await producer.queues(topic) == tuple(
            MessageQueue(topic, "b1", number) for number in range(4)
        )
    assert len({receipt.queue for receipt in receipts}) == 4
    assert sorted(receipt.queue_offset for receipt in receipts) == [0, 0, 0, 0, 1, 1, 1, 1]


@both
async def test_one_way_sends_arrive(cluster):
    topic = cluster.topic(1)
    async with Producer(cluster.ns) as producer:
        for number in range(5):
            await producer.send_oneway(Message(topic, b"%d" % number))
        found = await stored(cluster, topic, 5)
    assert sorted(message.body for message in found) == [b"0", b"1", b"2", b"3", b"4"]


@both
async def test_c139_batches_are_stored_one_by_one_and_what_does_not_fit_is_refused(cluster):
    topic = cluster.topic(1)
    async with Producer(cluster.ns) as producer:
        messages = [Message(topic, b"%d" % n, tags=f"t{n}") for n in range(5)]
        (receipt,) = await producer.send_batch(messages)
        for bad in (Message(unique("T"), b"x"), Message(topic, b"x", delay_level=1)):
            with pytest.raises(LocalProtocolError, match="send"):
                await producer.send_batch([*messages, bad])
    found = await stored(cluster, topic, 5)
    assert [(m.body, m.tags) for m in found] == [(b"%d" % n, f"t{n}") for n in range(5)]
    assert receipt.message_id.split(",") == [message.message_id for message in found]
    assert receipt.offset_message_id.split(",") == [m.offset_message_id for m in found]
    assert receipt.queue_offset == 0


@both
async def test_c139_a_batch_over_the_limit_is_split(cluster):
    topic = cluster.topic(1)
    async with Producer(cluster.ns) as producer:
        messages = [Message(topic, bytes([n]) * 1_000_000) for n in range(10)]
        receipts = await producer.send_batch(messages)
    assert [len(receipt.message_id.split(",")) for receipt in receipts] == [4, 4, 2]
    found = await stored(cluster, topic, 10)
    assert [message.body for message in found] == [message.body for message in messages]


@both
async def test_a_broker_says_why_it_takes_no_larger_message(cluster):
    topic = cluster.topic(1)
    async with Producer(
        cluster.ns, max_message_bytes=8 << 20, compress_over_bytes=1 << 30
    ) as producer:
        with pytest.raises(PeerRefused, match=f"SEND_MESSAGE_V2.* for topic {topic}") as caught:
            await producer.send(Message(topic, b"x" * (5 << 20)))
        assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
        assert await producer.send(Message(topic, b"x"))


@both
async def test_large_bodies_are_stored_compressed(cluster):
    topic = cluster.topic(1)
    async with Producer(cluster.ns) as producer:
        await producer.send(Message(topic, b"ab" * 5000))
    (message,) = await stored(cluster, topic, 1)
    assert message.body == b"ab" * 5000
    assert len(message.record.body) < 1000
    kind = MessageFlag.COMPRESSED | MessageFlag.COMPRESSION_ZLIB
    assert message.record.sys_flag & kind == kind


@both
async def test_messages_of_a_sharding_key_keep_their_order_in_one_queue(cluster):
    topic = cluster.topic(4)
    async with Producer(cluster.ns) as producer:
        for number in range(40):
            key = f"order-{number % 4}"
            await producer.send(Message(topic, b"%d" % number, sharding_key=key))
    found = await stored(cluster, topic, 40)
    for remainder in range(4):
        mine = [m for m in found if m.properties["__SHARDINGKEY"] == f"order-{remainder}"]
        assert len({message.queue for message in mine}) == 1
        assert [int(message.body) for message in mine] == list(range(remainder, 40, 4))


@both
async def test_delays_by_level_date_and_time(cluster):
    topic = cluster.topic(1)
    async with Producer(cluster.ns) as producer:
        await producer.send(Message(topic, b"level", delay_level=1))
        await producer.send(Message(topic, b"after", deliver_after=timedelta(seconds=1)))
        at = datetime.now(UTC) + timedelta(seconds=2)
        receipt = await producer.send(Message(topic, b"at", deliver_at=at))
        assert receipt.recall_handle
    found = {message.body: message for message in await stored(cluster, topic, 3)}
    assert found.keys() == {b"level", b"after", b"at"}
    assert found[b"level"].stored_at - found[b"level"].born_at > timedelta(seconds=0.9)
    assert abs(found[b"at"].stored_at - at) < timedelta(seconds=1.5)


@both(limit_s=120)
async def test_a_delayed_message_is_taken_back(workshop):
    server = workshop.alone(settings=RECALLS)
    server.start()
    cluster = workshop.cluster(server)
    topic = cluster.topic(1)
    async with Producer(cluster.ns) as producer:
        kept = await producer.send(Message(topic, b"kept", deliver_after=timedelta(seconds=2)))
        gone = await producer.send(Message(topic, b"gone", deliver_after=timedelta(seconds=2)))
        assert await producer.recall(topic, gone.recall_handle) == gone.message_id
        found = await stored(cluster, topic, 1)
        await anyio.sleep(0.5)
        assert [m.message_id for m in await stored(cluster, topic, 1)] == [kept.message_id]
    assert len(found) == 1


@both
async def test_recalls_are_refused_where_they_are_not_enabled(cluster):
    topic = cluster.topic(1)
    async with Producer(cluster.ns) as producer:
        receipt = await producer.send(Message(topic, b"x", deliver_after=timedelta(seconds=1)))
        with pytest.raises(PeerRefused, match=rf"RECALL_MESSAGE \(370\) for topic {topic}"):
            await producer.recall(topic, receipt.recall_handle)


@both
async def test_a_pipeline_stores_all_and_trio_mq_keeps_their_order(cluster, kind):
    topic = cluster.topic(1)
    async with Producer(cluster.ns) as producer, producer.pipeline(window=32) as pipeline:
        pending = [await pipeline.send(Message(topic, b"%d" % n)) for n in range(1000)]
        receipts = [await each for each in pending]
    found = await stored(cluster, topic, 1000)
    if kind == "apache":  # its send threads take the requests of one connection side by side
        receipts.sort(key=lambda receipt: receipt.queue_offset)
        found.sort(key=lambda message: int(message.body))
        assert {m.message_id for m in found} == {receipt.message_id for receipt in receipts}
    else:
        assert [m.message_id for m in found] == [receipt.message_id for receipt in receipts]
    assert [receipt.queue_offset for receipt in receipts] == list(range(1000))
    assert [int(message.body) for message in found] == list(range(1000))


@both
async def test_c103_the_first_send_makes_the_topic(cluster):
    topic = unique("New")
    async with Producer(cluster.ns, default_topic_queues=3) as producer:
        receipts = [await producer.send(Message(topic, b"x")) for _ in range(6)]
    assert {receipt.queue.queue_id for receipt in receipts} == {0, 1, 2}
    assert len(await stored(cluster, topic, 6)) == 6


@both(limit_s=120)
async def test_c103_without_auto_creation_the_error_says_what_to_do(workshop):
    server = workshop.alone(settings={"autoCreateTopicEnable": "false"})
    server.start()
    async with Producer(server.nameservers[0]) as producer:
        with pytest.raises(NoRoute, match=r"topic nowhere: .*create it \(mqadmin updateTopic"):
            await producer.send(Message("nowhere", b"x"))


@both
async def test_a_namespace_is_in_front_of_the_topic(cluster):
    name = unique("N")
    full = f"space%{name}"
    cluster.admin.topic(full, 1)
    async with Producer(cluster.ns, namespace="space") as producer:
        receipt = await producer.send(Message(name, b"x"))
        assert receipt.queue.topic == name
    (message,) = await stored(cluster, full, 1)
    assert message.properties["INSTANCE_ID"] == "space"


@both(limit_s=150)
async def test_sends_survive_the_restart_of_a_broker(workshop):
    first = workshop.alone()
    first.start()
    second = workshop.joining("b2", first.nameservers[0])
    second.start()
    cluster = workshop.cluster(first, second)
    topic = cluster.topic(2)
    async with Producer(cluster.ns) as producer:
        receipts = [await producer.send(Message(topic, b"x")) for _ in range(8)]
        second.kill()
        receipts += [await producer.send(Message(topic, b"x")) for _ in range(8)]
        assert {receipt.queue.broker_name for receipt in receipts[8:]} == {"b1"}
        with pytest.raises(SendFailed, match=r"b2|refused") as caught:
            await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "b2", 0))
        assert len(caught.value.failures) == 1
        await anyio.to_thread.run_sync(second.start)
        receipt = await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "b2", 0))
        assert receipt.status is SendStatus.OK
