"""Requests that need data from the disk: put aside, the data fetched by a worker thread, then handled again.

In: requests that met :class:`trio_mq.store.segments.ColdData` on the loop, with a way to handle them once more. Out:
that second handling, which may put the same request aside again for the next piece of data. Owns a fixed number of
tasks, in :meth:`ColdRequests.run`; everything else is synchronous. Called by the remoting face.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import attrs
import trio

from trio_mq.net.requests import Peer, Reply, encode_reply
from trio_mq.protocol.codes import ResponseCode
from trio_mq.store.disk import Disk
from trio_mq.store.segments import ColdData

log = logging.getLogger("trio_mq.broker.cold")

#: Requests that wait for the disk at the same time; beyond, a request is refused as busy.
COLD_REQUESTS = 1000
#: Reads at the same time: enough to keep a disk busy, and fewer than Trio's threads.
COLD_READS = 16
#: Reads from the disk for one request, above which it is refused: a search by time makes some thirty, a query by
#: key two for each message. More means that the page cache forgets faster than we ask.
COLD_TRIES = 300


@attrs.frozen(eq=False)
class _Aside:
    """A request that waits: `again` handles it once more."""

    peer: Peer
    opaque: int
    oneway: bool
    warm: Callable[[], object]
    again: Callable[[], object]
    tries: int

    def refuse(self, code: int, remark: str) -> None:
        if not self.oneway:
            self.peer.write(encode_reply(self.opaque, Reply(code, remark=remark)))


class ColdRequests:
    """All requests that wait for the disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: deque[_Aside] = deque()
        self._idle = trio.lowlevel.ParkingLot()
        #: How often the request that is being handled again was put aside before.
        self._tries = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put_aside(
        self, peer: Peer, opaque: int, cold: ColdData, again: Callable[[], object], *, oneway: bool
    ) -> None:
        """Fetch what was missing, then call `again`; or refuse the request as one too many."""
        aside = _Aside(peer, opaque, oneway, cold.warm, again, self._tries)
        if len(self._waiting) >= COLD_REQUESTS:
            aside.refuse(
                ResponseCode.SYSTEM_BUSY,
                f"{COLD_REQUESTS} requests wait for the disk; try again, or pull less at a time",
            )
        elif aside.tries >= COLD_TRIES:
            aside.refuse(
                ResponseCode.SYSTEM_BUSY,
                f"the request needed more than {COLD_TRIES} reads from the disk: memory for the page "
                f"cache is short; ask for less at a time",
            )
        else:
            self._waiting.append(aside)
            self._idle.unpark()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fetch data and handle requests again, until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(COLD_READS):
                nursery.start_soon(self._work)
            task_status.started()

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                await self._idle.park()
            aside = self._waiting.popleft()
            if not aside.peer.closed:
                await self._fetch(aside)

    async def _fetch(self, aside: _Aside) -> None:
        try:
            await self._disk.run(aside.warm)
        except OSError as error:
            # A sector that cannot be read is the fate of this request, not of the broker.
            log.error(
                "a request of %s needs data that cannot be read: %s", aside.peer.address, error
            )
            remark = f"the data cannot be read: {error.filename or 'the store'}: {error.strerror}"
            aside.refuse(ResponseCode.SYSTEM_ERROR, remark)
            return
        if aside.peer.closed:
            return
        self._tries = aside.tries + 1
        try:
            aside.again()
        except Exception as error:
            log.exception("a request of %s failed", aside.peer.address)
            aside.refuse(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        finally:
            self._tries = 0
