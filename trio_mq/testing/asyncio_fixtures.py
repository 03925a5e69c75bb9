"""The fixture of the pytest plugin that pytest-asyncio runs.

In: pytest-asyncio's plugin. Out: an object with a fixture that it takes for its own, in both of its modes. Called by
:mod:`trio_mq.testing.pytest` where pytest-asyncio is there. It runs the start and the end of a fixture in tasks of
their own, while a client has to be opened and closed by the same one: that is a third task, here.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - pytest-asyncio's loop, and no anyio task can outlive the one that starts it
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from trio_mq.client.producer import Producer
    from trio_mq.testing.broker import RocketMQBroker

T = TypeVar("T")


def made_by(plugin: Any) -> ModuleType:
    """Something to register as a plugin."""
    module = ModuleType(__name__)
    fixture = plugin.fixture(_rocketmq_asyncio_producer)
    module._rocketmq_asyncio_producer = fixture  # type: ignore[attr-defined]
    return module


async def _rocketmq_asyncio_producer(rocketmq_broker: RocketMQBroker) -> AsyncIterator[Producer]:
    from trio_mq import Producer
    from trio_mq.testing.broker import fresh

    async for producer in hosted(Producer(rocketmq_broker.nameserver, fresh("producer"))):
        yield producer


async def hosted(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """What a context gives, once; one task enters it and leaves it when the iterator goes on."""
    opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()

    async def host() -> None:
        async with context as value:
            opened.set_result(value)
            await leave.wait()

    task = asyncio.create_task(host())
    waited: list[asyncio.Future[Any]] = [task, opened]
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    try:
        if opened.done():
            yield opened.result()
    finally:
        leave.set()
        await task
