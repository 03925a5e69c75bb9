"""A handler around another one that does to requests what the rules of a test say.

In: the handler of a listener, and a :class:`.faults.RuleBook`. Out: a handler for the same listener. Requests that meet
no rule, and everything else of a connection, pass as they are. :class:`FaultyNetwork` puts one around the handlers of a
whole system; the brokers that tests start have it (:mod:`.child`, :mod:`.inprocess`). Requests that are held back wait
in the nursery of the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from struct import Struct
from typing import Any, Protocol

import anyio.abc
import trio

from trio_mq.config import Address
from trio_mq.errors import HeaderError
from trio_mq.net.network import Listening, Network
from trio_mq.net.requests import Peer, Reply, encode_reply
from trio_mq.net.streams import RawStream, StreamHandler
from trio_mq.protocol import command as commands
from trio_mq.protocol.frames import FrameReader, RawFrame
from trio_mq.protocol.message import Host
from trio_mq.testing.faults import Kind, RuleBook

log = logging.getLogger("trio_mq.testing")

_LENGTH = Struct(">I")


class Inner(Protocol):
    """A handler of :mod:`trio_mq.net.serve`, for any peer."""

    def opened(self, peer: Any) -> None:
        """A connection was accepted."""
        ...

    def received(self, peer: Any, frames: list[RawFrame]) -> int | None:
        """Frames arrived; how many were handled, None for all."""
        ...

    def disconnected(self, peer: Any) -> None:
        """The connection is gone."""
        ...


class FaultyPeer:
    """A connection as the handler behind the faults sees it: some replies do not get out."""

    def __init__(self, peer: Any) -> None:
        self._peer: Any = peer
        #: Requests whose replies are kept back.
        self.unanswered: set[int] = set()

    @property
    def address(self) -> Host:
        """See :class:`Peer`."""
        address: Host = self._peer.address
        return address

    @property
    def packed_address(self) -> bytes:
        """The peer's address as records hold it."""
        packed: bytes = self._peer.packed_address
        return packed

    @property
    def closed(self) -> bool:
        """See :class:`Peer`."""
        return bool(self._peer.closed)

    @property
    def stalled(self) -> bool:
        """See :class:`Peer`."""
        return bool(self._peer.stalled)

    def close(self) -> None:
        """See :class:`Peer`."""
        self._peer.close()

    def write(self, data: bytes) -> None:
        """See :class:`Peer`; without the replies that are kept back."""
        self._peer.write(self._without(data) if self.unanswered else data)

    def _without(self, data: bytes) -> bytes:
        kept, start = [], 0
        while start < len(data):
            end = start + 4 + _LENGTH.unpack_from(data, start)[0]
            (frame,) = FrameReader().feed(data[start:end])
            command = commands.decode(frame)
            if command.is_response and command.opaque in self.unanswered:
                self.unanswered.discard(command.opaque)
            else:
                kept.append(data[start:end])
            start = end
        return b"".join(kept)


class FaultyHandler:
    """See the module. `nursery` holds the requests that a rule delays."""

    def __init__(self, inner: Inner, book: RuleBook, nursery: trio.Nursery) -> None:
        self._inner = inner
        self._book = book
        self._nursery = nursery
        self._faces: dict[Any, FaultyPeer] = {}

    def opened(self, peer: Peer) -> None:
        """A connection was accepted."""
        self._faces[peer] = face = FaultyPeer(peer)
        self._inner.opened(face)

    def disconnected(self, peer: Peer) -> None:
        """The connection is gone."""
        self._inner.disconnected(self._faces.pop(peer))

    def received(self, peer: Peer, frames: list[RawFrame]) -> int | None:
        """Frames arrived; one by one while there are rules."""
        face = self._faces[peer]
        if not self._book.active:
            return self._inner.received(face, frames)
        for number, frame in enumerate(frames, 1):
            if not self._meets(face, frame):
                self._inner.received(face, [frame])
            if face.stalled:
                return number if number < len(frames) else None
        return None

    def _meets(self, face: FaultyPeer, frame: RawFrame) -> bool:
        """Do what the rule for a request says; False when the handler shall see it now."""
        try:
            command = commands.decode(frame)
        except HeaderError:
            return False  # the handler knows what to do with it
        rule = None if command.is_response else self._book.met(command.code)
        if rule is None:
            return False
        log.info("%s for request code %d of %s", rule.kind.value, command.code, face.address)
        if rule.kind is Kind.DROP_REPLY:
            if not command.is_oneway:
                face.unanswered.add(command.opaque)
            return False
        if rule.kind is Kind.ERROR:
            if not command.is_oneway:
                reply = Reply(rule.code, remark=rule.remark)
                face.write(encode_reply(command.opaque, reply))
        elif rule.kind is Kind.DELAY:
            self._nursery.start_soon(self._later, face, frame, rule.delay_s)
        else:
            face.close()
        return True

    async def _later(self, face: FaultyPeer, frame: RawFrame, delay_s: float) -> None:
        await trio.sleep(delay_s)
        if face.closed:
            return
        try:
            self._inner.received(face, [frame])
        except Exception:  # as in a listener: a fault on one connection must not end the others
            log.exception("a delayed request of %s failed", face.address)
            face.close()


class FaultyNetwork:
    """A network whose servers do what rules say (see :class:`trio_mq.net.network.Network`)."""

    def __init__(self, network: Network, book: RuleBook) -> None:
        self._network = network
        self._book = book

    def listen(self, host: str, port: int, *, purpose: str) -> Listening:
        """Take a port."""
        return self._network.listen(host, port, purpose=purpose)

    async def serve(
        self,
        listeners: Sequence[Any],
        handler: Inner,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve until cancelled."""
        async with trio.open_nursery() as nursery:
            faulty = FaultyHandler(handler, self._book, nursery)
            await self._network.serve(listeners, faulty, task_status=task_status)

    def serve_streams(
        self,
        listeners: Sequence[Any],
        handle: StreamHandler,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> Awaitable[None]:
        """Serve; replication has no faults of this kind."""
        return self._network.serve_streams(listeners, handle, task_status=task_status)

    def open_stream(self, address: Address, timeout_s: float, /) -> Awaitable[RawStream]:
        """A stream without frames."""
        return self._network.open_stream(address, timeout_s)

    def connect(self, address: Address, timeout_s: float, /) -> Awaitable[anyio.abc.ByteStream]:
        """A connection."""
        return self._network.connect(address, timeout_s)
