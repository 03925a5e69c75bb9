"""Received messages for tests of what consumers do with them, and waiting for what they bring about."""

from __future__ import annotations

import zlib

import anyio

from trio_mq.client.messages import ReceivedMessage
from trio_mq.protocol import properties as props
from trio_mq.protocol import record as records
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.message import Host
from trio_mq.protocol.record import StoredMessage, record_size

HOST = Host("10.0.0.1", 10911)
QUEUE = MessageQueue("T", "b1", 0)


def stored(
    offset=0, body=b"body", properties=None, sys_flag=0, topic="T", host=HOST, **fields
) -> StoredMessage:
    """A record as a broker stores it."""
    text = props.encode(properties or {"UNIQ_KEY": f"id-{offset:06d}"})
    return StoredMessage(
        **{
            "size": record_size(len(body), len(topic), len(text), sys_flag),
            "magic": records.MAGIC_V1 if len(topic) <= 127 else records.MAGIC_V2,
            "body_crc": zlib.crc32(body) & 0x7FFF_FFFF,
            "queue_id": 0,
            "flag": 0,
            "queue_offset": offset,
            "log_offset": 1000 * offset,
            "sys_flag": sys_flag,
            "born_timestamp_ms": 1,
            "born_host": host,
            "store_timestamp_ms": 2,
            "store_host": host,
            "reconsume_times": 0,
            "prepared_transaction_offset": 0,
            "body": body,
            "topic": topic,
            "properties": text,
            **fields,
        }
    )


def message_at(offset, *, settler=None, queue=QUEUE, **fields) -> ReceivedMessage:
    """A message at an offset of its queue."""
    record = stored(offset, **fields)
    return ReceivedMessage(record, queue, record.body, settler)


async def until(condition, *, limit_s=10.0, step_s=0.02):
    """Wait for what another task or process brings about, under Trio and asyncio."""
    with anyio.move_on_after(limit_s):
        while not condition():  # noqa: ASYNC110  (nobody tells)
            await anyio.sleep(step_s)
        return
    raise AssertionError(f"not within {limit_s:g} s")


async def receive(consumer, count, *, limit_s=30.0):
    """So many messages, acknowledged."""
    found = []
    with anyio.fail_after(limit_s):
        async for message in consumer:
            async with message:
                found.append(message)
            if len(found) == count:
                return found
    raise AssertionError(f"the consumer ended after {len(found)} messages")


async def nothing_comes(consumer, for_s):
    """Fail when a message comes in that time."""
    with anyio.move_on_after(for_s):
        async for message in consumer:
            raise AssertionError(f"{message!r} came")


def bodies(messages):
    """Their bodies, sorted."""
    return sorted(message.body for message in messages)
