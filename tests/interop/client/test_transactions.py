"""Transactions of the Python client: ends, checks, and producers in Java that answer for it and that it answers for.

The broker checks every second, from an age of 2 s on.
"""

from __future__ import annotations

import anyio
import pytest
from anyio.to_thread import run_sync

from tests.backends import both
from tests.interop.conftest import STANDARD, Cluster, MakeCluster
from tests.interop.java_client import Java, unique
from tests.interop.transactions import COMMIT, UNKNOWN, planned, transactional
from trio_mq import Admin, Consumer, Message, Producer, TransactionState

QUICK_CHECKS = {
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "2000",
    "transactionOpBatchInterval": "200",
}


@pytest.fixture(scope="module")
def quick(make_cluster: MakeCluster) -> Cluster:
    """One master that checks often."""
    return make_cluster(1, {**STANDARD, **QUICK_CHECKS})


async def consumed(cluster: Cluster, topic: str, count: int) -> list[str]:
    """So many bodies, and what comes within a moment after them."""
    bodies: list[str] = []
    async with Consumer(
        cluster.ns, unique("TG"), subscribe={topic: "*"}, from_where="first"
    ) as consumer:
        with anyio.fail_after(30):
            while len(bodies) < count:
                async with await anext(consumer) as message:
                    bodies.append(message.body.decode())
        with anyio.move_on_after(0.3):
            bodies.append((await anext(consumer)).body.decode())
    return sorted(bodies)


@both
async def test_b124_what_is_committed_arrives_and_nothing_else(quick: Cluster) -> None:
    topic = quick.topic(4)
    asked: dict[str, int] = {}

    async def local(half) -> TransactionState | None:
        number = int(numbers[half.message_id]) if half.message_id in numbers else len(numbers)
        numbers[half.message_id] = number
        if number % 4 == 3:
            raise ValueError("rolled back")
        return [None, TransactionState.ROLLBACK, TransactionState.UNKNOWN][number % 4]

    async def check(message) -> TransactionState:
        body = message.body.decode()
        asked[body] = asked.get(body, 0) + 1
        assert message.topic == topic
        return TransactionState.COMMIT

    numbers: dict[str, int] = {}
    async with Producer(quick.ns, unique("TP"), check_transaction=check) as producer:
        for number in range(16):
            try:
                receipt = await producer.send_in_transaction(Message(topic, b"%d" % number), local)
                assert receipt.transaction_id == receipt.message_id
            except ValueError:
                assert number % 4 == 3
        found = await consumed(quick, topic, 8)
    assert found == sorted(str(number) for number in range(16) if number % 4 in (0, 2))
    assert asked == {str(number): 1 for number in range(16) if number % 4 == 2}


@both
async def test_b126_nothing_is_there_before_the_decision(quick: Cluster) -> None:
    topic = quick.topic(1)
    async with Admin(quick.ns) as admin, Producer(quick.ns, unique("TP")) as producer:

        async def local(half) -> None:
            await anyio.sleep(0.3)
            assert sum((await admin.max_offsets(topic)).values()) == 0

        await producer.send_in_transaction(Message(topic, b"x"), local)
        await consumed(quick, topic, 1)


@both
async def test_b128_a_producer_in_java_answers_for_one_in_python(
    java: Java, quick: Cluster
) -> None:
    topic, group = quick.topic(1), unique("TP")

    async def unknown(half) -> TransactionState:
        return TransactionState.UNKNOWN

    async with Producer(quick.ns, group) as producer:
        message = Message(topic, b"of python", properties={"plan": f"{UNKNOWN},{COMMIT}"})
        await producer.send_in_transaction(message, unknown)
    of_java = transactional(java, quick.ns, group)
    of_java.send(planned(topic, "of java", COMMIT))
    assert await consumed(quick, topic, 2) == ["of java", "of python"]
    (check,) = of_java.checks()
    assert (check.body, check.topic) == ("of python", topic)


@both
async def test_b128_a_producer_in_python_answers_for_one_in_java(
    java: Java, quick: Cluster
) -> None:
    topic, group = quick.topic(1), unique("TP")
    of_java = transactional(java, quick.ns, group)
    (sent,) = of_java.send(planned(topic, "of java", UNKNOWN))
    await run_sync(of_java.stop)
    asked = []

    async def check(message) -> TransactionState:
        asked.append((message.message_id, message.body))
        return TransactionState.COMMIT

    async with Producer(quick.ns, group, check_transaction=check) as producer:
        await producer.send(Message(topic, b"of python"))
        assert await consumed(quick, topic, 2) == ["of java", "of python"]
    assert asked == [(sent.msg_id, b"of java")]
