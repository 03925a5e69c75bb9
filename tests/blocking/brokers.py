"""A broker in a thread of its own, for clients of plain threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from tests.blocking.support import Thread, until
from trio_mq.testing.inprocess import open_broker


@contextmanager
def broker(**settings: str) -> Iterator[str]:
    """The address of its name server. Settings have the broker's own names."""
    told: list[str] = []
    stop: list[Callable[[], None]] = []

    async def serve() -> None:
        token, end = trio.lowlevel.current_trio_token(), trio.Event()
        stop.append(lambda: token.run_sync_soon(end.set))
        async with open_broker(settings) as found:
            told.append(found.nameserver)
            await end.wait()

    thread = Thread(lambda: trio.run(serve))
    until(lambda: told or not thread.is_alive(), "the broker")
    try:
        yield told[0]
    finally:
        stop[0]()
        thread.ended()
