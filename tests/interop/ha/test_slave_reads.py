"""Without a master, groups read its slave and keep their places there: clients and slaves of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from tests.backends import both
from tests.interop.java_client import Java, texts, unique
from tests.interop.polling import wait_for
from tests.interop.raw import RawClient
from trio_mq import Consumer

from .conftest import MakeTopic
from .pairs import Pair, knows_topic

pytestmark = pytest.mark.slow

QUERY_OFFSET = 14
COUNT = 40


@contextmanager
def without_master(pair: Pair, java: Java, topic: MakeTopic) -> Iterator[str]:
    """The topic with messages that only the slave has to tell of; the master is back at the end."""
    name = topic(pair)
    java.producer(pair.ns).send_ok(texts(name, COUNT))
    pair.wait_caught_up()
    # Apache's slaves take tables over every minute.
    wait_for(lambda: knows_topic(pair.slave.address, name), "the slave has the topic", timeout_s=80)
    pair.master.kill()
    try:
        yield name
    finally:
        pair.master.start()


def places(pair: Pair, group: str, topic: str) -> int:
    """The sum of what the slave keeps for a group."""
    found = 0
    with RawClient(pair.slave.address) as client:
        for queue in range(4):
            fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
            reply = client.call(QUERY_OFFSET, fields)
            found += int(reply.ext["offset"]) if reply.code == 0 else 0
    return found


def test_java_reads_a_slave_without_a_master(pair: Pair, java: Java, topic: MakeTopic) -> None:
    group = unique("G")
    with without_master(pair, java, topic) as name:
        first = java.push(pair.ns, group, (name, "*"), start="FIRST_OFFSET")
        first.wait(COUNT, timeout_s=60)
        first.stop()
        wait_for(lambda: places(pair, group, name) == COUNT, "the slave keeps it", timeout_s=15)
        again = java.push(pair.ns, group, (name, "*"), start="FIRST_OFFSET")
    java.producer(pair.ns).send_ok(texts(name, 10, "later"))
    # Its route is 30 s old at most, and a slave lets it wait for 15 s.
    again.wait(10, timeout_s=60)
    assert again.count() == 10, "what was consumed at the slave does not come again"


@both(limit_s=200)
async def test_our_client_reads_a_slave_without_a_master(
    pair: Pair, java: Java, topic: MakeTopic
) -> None:
    group = unique("G")
    with without_master(pair, java, topic) as name:
        async with Consumer(pair.ns, group, subscribe={name: "*"}, from_where="first") as consumer:
            assert await _take(consumer, COUNT, 60) == COUNT
        assert places(pair, group, name) == COUNT
        async with Consumer(pair.ns, group, subscribe={name: "*"}, from_where="first") as consumer:
            assert await _take(consumer, 1, 3) == 0
    async with Consumer(pair.ns, group, subscribe={name: "*"}, from_where="first") as consumer:
        await anyio.to_thread.run_sync(java.producer(pair.ns).send_ok, texts(name, 10, "later"))
        assert await _take(consumer, 10, 60) == 10


async def _take(consumer: Consumer, count: int, limit_s: float) -> int:
    """How many different messages come, up to `count`."""
    seen: set[str] = set()
    with anyio.move_on_after(limit_s):
        async for message in consumer:
            async with message:
                seen.add(message.message_id)
            if len(seen) == count:
                break
    return len(seen)
