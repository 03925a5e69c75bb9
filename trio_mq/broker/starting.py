"""What a broker answers while its store is still being recovered: how far that is (case C019).

In: frames of clients that come before the broker is there, and the progress of the recovery. Out: for
GET_BROKER_RUNTIME_INFO a table with the progress, for everything else a refusal that clients try again after, with
the progress in its remark; and lines for the service manager. :mod:`trio_mq.system` runs :func:`tell` around a
recovery, and gives the listeners to the broker afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from trio_mq.net.network import Listening, Network
from trio_mq.net.requests import Call, Peer, Reply, requests_in
from trio_mq.net.supervisor import Supervisor
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import KVTable
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.frames import RawFrame

#: A recovery that takes longer answers clients. Whoever connects to a shorter one is served by the broker.
ANSWER_AFTER_S: Final = 1.0
#: Time between two tellings of the service manager.
PROGRESS_S: Final = 5.0


@attrs.define
class Progress:
    """How far a recovery is. `begin`, `offset` and `end` are log offsets of what `phase` goes through.

    A phase may begin further back when it turns out that it has to; then its share falls.
    """

    began_s: float = attrs.field(factory=trio.current_time)
    phase: str = "load"
    begin: int = 0
    offset: int = 0
    end: int = 0

    def tell(self, phase: str, offset: int, end: int) -> None:
        """What recovery calls; `end` is the end as far as it is known."""
        if phase != self.phase or offset < self.begin:
            self.begin = offset
        self.phase, self.offset, self.end = phase, offset, max(end, offset)

    @property
    def percent(self) -> int | None:
        """Share of the phase that is done; None for a phase without offsets."""
        if self.end <= self.begin:
            return None
        return 100 * (self.offset - self.begin) // (self.end - self.begin)

    def text(self) -> str:
        """One line for people."""
        for_s = max(0, int(trio.current_time() - self.began_s))
        if self.percent is None:
            return f"recovering (phase {self.phase}), for {for_s} s now"
        return (
            f"recovering {self.percent} % (phase {self.phase}, offset {self.offset} of {self.end}), "
            f"for {for_s} s now"
        )

    def table(self) -> dict[str, str]:
        """The same for programs, and for the tools that print a broker's runtime information."""
        percent = "" if self.percent is None else str(self.percent)
        return {
            "brokerActive": "false",
            "recovering": self.text(),
            "recoveringPercent": percent,
            "recoveringPhase": self.phase,
        }


class StartingFace:
    """Handler of the broker's listeners while there is no broker (:class:`trio_mq.net.serve.Handler`)."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def opened(self, peer: Peer) -> None:
        """See the protocol."""

    def disconnected(self, peer: Peer) -> None:
        """See the protocol."""

    def received(self, peer: Peer, frames: list[RawFrame]) -> int | None:
        """Answer each request; what a peer answers to nobody is ignored."""
        for command in requests_in(peer, frames):
            Call(peer, command, 0).respond(self._answer(command.code))
        return None

    def _answer(self, code: int) -> Reply:
        if code == RequestCode.GET_BROKER_RUNTIME_INFO:
            return Reply(body=bodies.encode(KVTable(self._progress.table())))
        remark = f"the broker is starting: its store is {self._progress.text()}; try again later"
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)


async def tell(
    progress: Progress, network: Network, listeners: Sequence[Listening], supervisor: Supervisor
) -> None:
    """Answer whoever asks, and tell the service manager, how far a long recovery is; until cancelled."""
    await trio.sleep(ANSWER_AFTER_S)
    # The end of serving closes its listeners, and the broker needs these.
    doubles = [one.double() for one in listeners]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.serve, doubles, StartingFace(progress))
        while True:
            supervisor.starting(progress.text())
            await trio.sleep(PROGRESS_S)
