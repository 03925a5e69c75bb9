"""What fails around a client, for real: processes that are killed and come back, on the same ports."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.to_thread import run_sync

from tests.backends import both
from trio_mq import Consumer, Message, Producer, TrioMQError

TOPIC = "Failing"
LIMIT_S = 90


@asynccontextmanager
async def collecting(ns):
    """A consumer of all numbers; the set of those that came."""
    got = set()

    async def receive(consumer):
        async for message in consumer:
            async with message:
                got.add(int(message.body))

    async with (
        Consumer(ns, "Failures", subscribe={TOPIC: "*"}, from_where="first") as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(receive, consumer)
        yield got
        tasks.cancel_scope.cancel()


async def send(producer, numbers):
    for one in numbers:
        await producer.send(Message(TOPIC, b"%d" % one))


async def send_at_last(producer, one):
    """Send as an application does that has to: again until it is taken."""
    with anyio.fail_after(LIMIT_S):
        while True:
            try:
                await send(producer, [one])
            except TrioMQError:
                await anyio.sleep(0.3)
            else:
                return


async def reach(got, numbers):
    with anyio.fail_after(LIMIT_S):
        while not got.issuperset(numbers):  # noqa: ASYNC110  (nobody tells)
            await anyio.sleep(0.02)


@both(limit_s=150)
async def test_a_broker_is_killed_and_comes_back(workshop):
    """The same clients go on: nothing that was confirmed is lost, and nobody opens anything again."""
    server = workshop.alone()
    await run_sync(server.start)
    ns = server.nameservers[0]
    async with Producer(ns) as producer:
        await send(producer, [0])
        async with collecting(ns) as got:
            await send(producer, range(1, 20))
            await reach(got, range(20))
            server.kill()
            with pytest.raises(TrioMQError, match=r"127\.0\.0\.1"):
                await send(producer, [99])
            await run_sync(server.start)
            began_s = anyio.current_time()
            await send_at_last(producer, 20)
            await send(producer, range(21, 40))
            await reach(got, range(40))
            assert anyio.current_time() - began_s < 45


@both(limit_s=180)
async def test_a_second_master_takes_over_while_the_name_server_is_down(workshop):
    names = await run_sync(workshop.nameserver)
    one, other = (workshop.joining(name, names.address) for name in ("b1", "b2"))
    for server in (one, other):
        await run_sync(server.start)
    async with Producer(names.address) as producer:
        await send(producer, range(16))
        async with collecting(names.address) as got:
            await reach(got, range(16))
            names.discard()
            await send(producer, range(16, 32))
            one.kill()
            began_s = anyio.current_time()
            await send(producer, range(32, 64))
            assert anyio.current_time() - began_s < 20
            await reach(got, range(32, 64))
            await run_sync(names.start)
            await run_sync(one.start)
            await reach(got, range(64))
            await send_at_last(producer, 64)
            await reach(got, [64])
