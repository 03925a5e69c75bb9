"""A proxy for one TCP port whose connections can be held, cut and refused: the network between two brokers.

``python wire.py LISTEN_PORT TARGET_PORT``. In: one JSON object a line on standard input, {"id": 1, "op": "hold",
"ways": ["down"]}. Out: one JSON object a line, {"id": 1, "ok": value}. proxy.py is the other end. A process of its own,
so that what it does depends on no test that waits. "up" is from whoever connects to the target, "down" is back.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import trio

WAYS = ("up", "down")
CHUNK = 64 * 1024


class Wire:
    """What happens to all connections, and what has gone through them."""

    def __init__(self, listen: int, target: int) -> None:
        self.listen, self.target = listen, target
        self.counts = dict.fromkeys(WAYS, 0)
        self.made = self.cuts = 0
        self.cut_after: dict[str, int | None] = dict.fromkeys(WAYS)
        self.held: set[str] = set()
        self.flows = trio.Event()
        self.serving: trio.CancelScope | None = None
        self.links: set[trio.CancelScope] = set()

    async def passable(self, way: str) -> None:
        """Wait until this way is not held."""
        while way in self.held:
            await self.flows.wait()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until :attr:`serving` is cancelled; connections that exist stay."""
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as self.serving:
                listeners = await trio.open_tcp_listeners(self.listen, host="127.0.0.1")
                await trio.serve_listeners(
                    self.link, listeners, handler_nursery=nursery, task_status=task_status
                )

    async def link(self, near: trio.SocketStream) -> None:
        """One connection, until an end of it closes or something is told to happen to it."""
        self.made += 1
        with trio.CancelScope() as scope:
            self.links.add(scope)
            try:
                await self.passable("up")
                far = await trio.open_tcp_stream("127.0.0.1", self.target)
                async with near, far, trio.open_nursery() as nursery:
                    nursery.start_soon(self.pump, "up", near, far, scope)
                    nursery.start_soon(self.pump, "down", far, near, scope)
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            finally:
                self.links.discard(scope)
                await trio.aclose_forcefully(near)

    async def pump(
        self, way: str, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        """One direction; its end is the end of the connection, as soon as the news of it may pass."""
        while True:
            try:
                data = await source.receive_some(CHUNK)
            except trio.BrokenResourceError:
                data = b""
            await self.passable(way)
            left = self.cut_after[way]
            if left is not None and len(data) >= left:
                await sink.send_all(data[:left])
                self.counts[way] += left
                self.cut_after[way] = None
                self.cuts += 1
                data = b""
            if not data:
                scope.cancel()
                return
            if left is not None:
                self.cut_after[way] = left - len(data)
            await sink.send_all(data)
            self.counts[way] += len(data)

    async def obey(self, command: dict[str, Any], nursery: trio.Nursery) -> Any:
        """One command; what it answers."""
        match command["op"]:
            case "hold":
                self.held |= set(command["ways"])
            case "flow":
                self.held.clear()
                self.flows.set()
                self.flows = trio.Event()
            case "cut":
                self.cut_after[command["way"]] = command["after"]
            case "break":
                for scope in list(self.links):
                    scope.cancel()
            case "refuse":
                assert self.serving is not None
                self.serving.cancel()
            case "accept":
                await nursery.start(self.serve)
            case "seen":
                return {
                    "made": self.made,
                    "open": len(self.links),
                    "cuts": self.cuts,
                    **self.counts,
                }
            case other:
                raise ValueError(f"no command is called {other!r}")
        return None


async def main() -> None:
    """Until the end of the input."""
    wire = Wire(*map(int, sys.argv[1:3]))
    async with trio.open_nursery() as nursery:
        await nursery.start(wire.serve)
        lines = trio.lowlevel.FdStream(0)
        pending = b""
        async for data in lines:
            *whole, pending = (pending + data).split(b"\n")
            for line in whole:
                command = json.loads(line)
                answer = {"id": command["id"], "ok": await wire.obey(command, nursery)}
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
