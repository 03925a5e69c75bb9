"""Requests of the broker to its clients, on the connections that the clients opened.

In: requests for one peer, its responses from the remoting face, connections that closed. Out: frames on that
connection, and for each call exactly one word on how it ended: the client's response, or why there is none. Called by
processors that ask a client for something (:mod:`.processors.callback`, :mod:`.processors.reply`) or only tell it
something. Everything but :meth:`ClientCalls.run`, which ends the calls that nobody answers, is synchronous.

A response belongs to a call when it comes on the call's own connection with the call's correlation number: a client
that answers what it was not asked, or twice, is not heard. Source of the rules: Apache Broker2Client,
NettyRemotingAbstract.invokeSyncImpl (which waits with a thread for each call).
"""

from __future__ import annotations

import enum
import heapq
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import attrs
import trio

from trio_mq.net.requests import Peer
from trio_mq.protocol import command as commands
from trio_mq.protocol import headers
from trio_mq.protocol.codes import FLAG_ONEWAY
from trio_mq.protocol.command import Command

log = logging.getLogger("trio_mq.broker.clientcalls")

#: How long a client may take to answer (Apache: the same 10 s).
CALL_TIMEOUT_S: Final = 10.0
#: Calls that wait at the same time in all; one costs less than a kilobyte besides what its caller keeps.
MAX_CALLS: Final = 10_000
#: The same on one connection: a client that answers nothing must not use up what is there for all.
MAX_CALLS_OF_PEER: Final = 1_000
#: How exactly the end of a call's time is kept.
STEP_S: Final = 0.1

_OPAQUE_LIMIT: Final = 2**31


class Unanswered(enum.Enum):
    """Why a call has no response; the value is a part of a sentence about the client."""

    TIMEOUT = "did not answer in time"
    GONE = "closed its connection"
    TOO_MANY = "has too many calls to answer already"


Then: TypeAlias = Callable[[Command | Unanswered], None]
"""Called once with the client's response, or with why there is none."""


@attrs.define(eq=False)
class _Pending:
    """A call that waits for its response."""

    peer: Peer
    opaque: int
    then: Then
    done: bool = False


class ClientCalls:
    """All calls to clients that are under way."""

    def __init__(self) -> None:
        # One counter for all connections, as Apache has it: numbers are easy to find in a capture then.
        self._opaques = itertools.count(1)
        self._by_peer: dict[Peer, dict[int, _Pending]] = {}
        self._deadlines: list[tuple[float, int, _Pending]] = []
        self._numbers = itertools.count()
        self._count = 0
        self._wanted = trio.Event()

    def __len__(self) -> int:
        return self._count

    def tell(self, peer: Peer, code: int, header: object, body: bytes = b"") -> None:
        """Send a one-way request; nothing happens on a closed connection."""
        if not peer.closed:
            peer.write(self._frame(code, headers.encode(header), body, FLAG_ONEWAY)[1])

    def call(
        self,
        peer: Peer,
        code: int,
        ext: Mapping[str, str],
        body: bytes,
        then: Then,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Send a request; `then` hears the response, or why there is none.

        `then` may be called before this returns: on a closed connection, or when too many calls wait. Raises
        LocalProtocolError when the request does not fit into a frame; nothing was sent then.
        """
        if peer.closed:
            then(Unanswered.GONE)
            return
        of_peer = self._by_peer.get(peer, {})
        if self._count >= MAX_CALLS or len(of_peer) >= MAX_CALLS_OF_PEER:
            log.warning("%s: %d calls wait for answers, no more is made", peer.address, self._count)
            then(Unanswered.TOO_MANY)
            return
        opaque, frame = self._frame(code, ext, body, 0)
        pending = _Pending(peer, opaque, then)
        self._by_peer.setdefault(peer, of_peer)[opaque] = pending
        self._count += 1
        deadline_s = trio.current_time() + timeout_s
        heapq.heappush(self._deadlines, (deadline_s, next(self._numbers), pending))
        self._wanted.set()
        peer.write(frame)

    def _frame(
        self, code: int, ext: Mapping[str, str], body: bytes, flag: int
    ) -> tuple[int, bytes]:
        """The correlation number and the frame of a request."""
        opaque = next(self._opaques) % _OPAQUE_LIMIT
        return opaque, commands.encode(Command(code, dict(ext), body, flag=flag, opaque=opaque))

    def answered(self, peer: Peer, response: Command) -> None:
        """A response has come on a connection; one that nobody waits for is dropped."""
        pending = self._by_peer.get(peer, {}).get(response.opaque)
        if pending is not None:
            self._end(pending, response)

    def dropped(self, peer: Peer) -> None:
        """A connection has closed: its calls will not be answered."""
        for pending in list(self._by_peer.get(peer, {}).values()):
            self._end(pending, Unanswered.GONE)

    def expire(self, now_s: float) -> None:
        """End the calls whose time is over."""
        # The list may be made anew by an end, so it is not kept in a name of its own.
        while self._deadlines and (self._deadlines[0][0] <= now_s or self._deadlines[0][2].done):
            pending = heapq.heappop(self._deadlines)[2]
            if not pending.done:
                self._end(pending, Unanswered.TIMEOUT)

    def _end(self, pending: _Pending, outcome: Command | Unanswered) -> None:
        pending.done = True
        of_peer = self._by_peer[pending.peer]
        del of_peer[pending.opaque]
        if not of_peer:
            del self._by_peer[pending.peer]
        self._count -= 1
        # Answered calls stay among the deadlines until these come: at most a few for each that waits.
        if len(self._deadlines) > 2 * self._count + MAX_CALLS_OF_PEER:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)
        try:
            pending.then(outcome)
        except Exception:  # the fate of one answer, and not of the connection that it came on
            log.exception("an answer of %s could not be used", pending.peer.address)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End calls whose time is over, until cancelled. Nothing runs while no call waits."""
        task_status.started()
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._count:
                await trio.sleep(STEP_S)
                self.expire(trio.current_time())
