"""Sending and consuming numbers while a cluster fails: nothing may get lost."""

from __future__ import annotations

from contextlib import asynccontextmanager

import trio

from trio_mq import Consumer, Message

LIMIT_S = 300


class Got:
    """What a consumer has received and acknowledged."""

    def __init__(self):
        self.bodies = []
        self._more = trio.Event()

    def add(self, body):
        self.bodies.append(body)
        self._more.set()
        self._more = trio.Event()

    @property
    def numbers(self):
        return {int(body) for body in self.bodies}

    async def reach(self, count):
        """Wait for so many different numbers."""
        with trio.fail_after(LIMIT_S):
            while len(self.numbers) < count:
                await self._more.wait()

    async def reach_number(self, number):
        with trio.fail_after(LIMIT_S):
            while number not in self.numbers:
                await self._more.wait()


@asynccontextmanager
async def collecting(consumer):
    """Receive and acknowledge all that comes."""
    got = Got()

    async def receive():
        async for message in consumer:
            async with message:
                got.add(message.body)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        yield got
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def consume(cluster, groups, topic="T", **options):
    """A consumer of each group; what each has received."""
    found = []

    async def run(group, task_status=trio.TASK_STATUS_IGNORED):
        options.setdefault("from_where", "first")
        async with (
            Consumer(cluster.nameserver, group, subscribe={topic: "*"}, **options) as consumer,
            collecting(consumer) as got,
        ):
            found.append(got)
            task_status.started()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for group in groups:
            await nursery.start(run, group)
        yield found
        nursery.cancel_scope.cancel()


async def send_numbers(producer, numbers, topic="T", **options):
    for number in numbers:
        await producer.send(Message(topic, b"%d" % number), **options)


def numbers(count):
    return set(range(count))
