"""The order in which servers live and end, whatever their ports and connections are.

In: ports, and a way to accept at one and to close one. Out: tasks in two nurseries, until cancelled. Called by
:mod:`.serve`, :mod:`.streams` and the network in memory of :mod:`trio_mq.testing.hosts`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

P = TypeVar("P")


async def accept_at(
    ports: Sequence[P],
    accept: Callable[[P, trio.Nursery], Awaitable[None]],
    close: Callable[[P], None],
    *,
    beside: Sequence[Callable[[], Awaitable[None]]] = (),
    task_status: trio.TaskStatus[None],
) -> None:
    """The order in which servers live and end, of sockets and of ports in memory, with frames or without.

    `accept` takes the connections of one port, for ever, and lets each live in the nursery that it gets; `beside` runs
    as long. A stop ends accepting first, then the ports are closed, then the connections end.
    """
    async with trio.open_nursery() as connections:
        try:
            async with trio.open_nursery() as accepting:
                for port in ports:
                    accepting.start_soon(accept, port, connections)
                for task in beside:
                    accepting.start_soon(task)
                task_status.started()
        finally:
            for port in ports:
                close(port)
            connections.cancel_scope.cancel()
