"""The network as servers see it: listening, serving and connecting, real or simulated.

In: addresses and handlers. Out: a :class:`Network`, which :mod:`trio_mq.system` is given. :data:`TCP` is the network
of this machine; that of :mod:`trio_mq.testing.hosts` lies in memory, so that a whole cluster runs under a mock clock.
Clients need :attr:`Network.connect` only (:mod:`trio_mq.client.world`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import anyio.abc
import trio

from trio_mq.config.addresses import Address
from trio_mq.net import dial, streams
from trio_mq.net import serve as serving
from trio_mq.net.serve import Handler
from trio_mq.net.streams import RawStream, StreamHandler
from trio_mq.protocol.message import Host


class Listening(Protocol):
    """A port that was taken."""

    @property
    def address(self) -> Host:
        """Where it really listens."""
        ...

    def double(self) -> Any:
        """Another handle of the same port, which stays taken until all of them are closed."""
        ...

    def close(self) -> None:
        """Give the port back; nothing happens the second time."""
        ...


class Network(Protocol):
    """What a server needs of a network. Listeners of one network mean nothing to another one."""

    def listen(self, host: str, port: int, *, purpose: str) -> Listening:
        """Take a port, 0 for a free one. AddressInUse or ConfigError, with `purpose` in the text."""
        ...

    def serve(
        self,
        listeners: Sequence[Any],
        handler: Handler,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> Awaitable[None]:
        """Accept and serve until cancelled: first accepting ends, then the connections. Closes `listeners`."""
        ...

    def connect(self, address: Address, timeout_s: float, /) -> Awaitable[anyio.abc.ByteStream]:
        """A connection, in the given time or PeerUnavailable."""
        ...

    def serve_streams(
        self,
        listeners: Sequence[Any],
        handle: StreamHandler,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> Awaitable[None]:
        """As :meth:`serve`, for a protocol without frames."""
        ...

    def open_stream(self, address: Address, timeout_s: float, /) -> Awaitable[RawStream]:
        """As :meth:`connect`, for such a protocol."""
        ...


class TcpNetwork:
    """The network of this machine."""

    listen = staticmethod(serving.listen)
    serve = staticmethod(serving.serve)
    connect = staticmethod(dial.connect)
    serve_streams = staticmethod(streams.serve_streams)
    open_stream = staticmethod(streams.open_stream)


TCP: Network = TcpNetwork()
