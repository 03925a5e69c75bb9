"""Consumers and producers of a simulated cluster, for tests of consumers."""

from __future__ import annotations

from contextlib import asynccontextmanager

from trio_mq import Consumer, Message, Producer
from trio_mq.testing.cluster import SimulatedCluster

#: Delay levels of a second: retries come soon.
QUICK_RETRIES = {"message_delay_level": "1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s"}
#: No queue is young: brokers let groups without offsets begin a young one at its first message, whatever they ask for.
NOTHING_IN_MEMORY = {"access_message_in_memory_max_ratio": 0}


@asynccontextmanager
async def simulated(brokers=1, topic="T", queues=4, store=(), **broker):
    settings = {**QUICK_RETRIES, **dict(store)}
    async with SimulatedCluster(brokers=brokers, store=settings, broker=broker) as cluster:
        if topic is not None:
            await cluster.create_topic(topic, queues)
        yield cluster


def consumer(cluster, group="G", subscribe=None, **options):
    options.setdefault("from_where", "first")
    return Consumer(cluster.nameserver, group, subscribe=subscribe or {"T": "*"}, **options)


async def send(cluster, *bodies, topic="T", **fields):
    async with Producer(cluster.nameserver) as producer:
        return [await producer.send(Message(topic, body, **fields)) for body in bodies]
