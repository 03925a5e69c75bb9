"""A whole system in a thread of its own, for clients of plain threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from tests.blocking.support import Thread, until
from tests.whole_system import running, settings_of


@contextmanager
def broker(**settings: object) -> Iterator[str]:
    """A system in a thread of its own; the address of its name server."""
    told: list[str] = []
    stop: list[Callable[[], None]] = []

    async def serve() -> None:
        token = trio.lowlevel.current_trio_token()
        end = trio.Event()
        stop.append(lambda: token.run_sync_soon(end.set))
        async with running(settings=settings_of(broker=settings)) as system:
            told.append(system.ready.nameserver)
            await end.wait()

    thread = Thread(lambda: trio.run(serve))
    until(lambda: told or not thread.is_alive(), "the broker")
    try:
        yield told[0]
    finally:
        stop[0]()
        thread.ended()
