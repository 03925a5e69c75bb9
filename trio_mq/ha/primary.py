"""The master's side of replication: who copies this log, how far each is, and who waits for them.

In: connections of the HA port, the news that the log has grown, and waits for replicas. Out: the log to each slave
(:mod:`.slavelink`), :attr:`Primary.pushed`, calls of those who wait, and :attr:`Primary.slaves` for status. Made and
run by :mod:`trio_mq.system`, on every role: a slave hands out its log, too.
Sources: Apache DefaultHAService, GroupTransferService, HAConnectionStateNotificationService.

Everything here happens on the one loop thread, and nothing between two awaits is interrupted. So
``push2SlaveMaxOffset``, which the peers raise with a compare-and-set loop, is a plain "if greater" on a watermark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import attrs
import trio

from trio_mq.config.ha import HASettings
from trio_mq.ha.slavelink import Bell, LinkOver, SlaveAhead, SlaveLink
from trio_mq.ha.states import LinkState
from trio_mq.ha.waiters import Waiters
from trio_mq.net.streams import RawStream
from trio_mq.protocol.message import Host
from trio_mq.store.store import Store
from trio_mq.tasks import Watermark

log = logging.getLogger("trio_mq.ha")

#: Time between two lines about the lag of slaves.
LAG_LINE_S: Final = 60.0
#: Deadlines of waiters are kept to within this, so that many of them make few wake-ups.
DEADLINE_GRAIN_S: Final = 0.005
#: How long a slave that was sent away for being ahead is still shown, and the least time between two lines about it.
AHEAD_SHOWN_S: Final = 60.0
#: Most of those that are remembered; whoever reaches the port can be one.
AHEAD_MOST: Final = 64


@attrs.frozen(kw_only=True)
class SlaveView:
    """One slave, as seen from here. `ack_offset` is what it reported last, -1 before its first report."""

    address: Host
    ack_offset: int
    #: How much of the log it lacks, by its last report; never negative.
    behind_bytes: int
    in_sync: bool
    #: Its log has more than this one, `reported`: it was sent away, and nothing of it counts.
    ahead: bool = False
    reported: int = -1
    #: It lacks what is not in this log any more: nothing is sent to it.
    too_old: bool = False
    transferred_per_s: int = 0
    #: Where the log began to go to it.
    transfer_from: int = -1
    #: Time since its last report.
    silent_s: float = 0.0

    @property
    def text(self) -> str:
        """How it does, in words."""
        if self.ahead:
            return f"is refused: it is ahead with {self.reported}"
        if self.ack_offset < 0:
            return "has reported nothing yet"
        if self.too_old:
            return f"{self.behind_bytes} bytes behind, needs what this log has no more: empty its store"
        return f"{self.behind_bytes} bytes behind{'' if self.in_sync else ', not in sync'}"


@attrs.frozen
class _SentAway:
    view: SlaveView
    at_s: float


class Primary:
    """What a store's log is handed out by."""

    def __init__(self, store: Store, settings: HASettings) -> None:
        self._log = store.log
        self._settings = settings
        self._links: list[SlaveLink] = []
        self._grown = Bell()
        #: Called after the written end of the log moved; next to nothing when no slave waits for more.
        self.grown: Callable[[], None] = self._grown.ring
        #: The highest log end that any slave reported since the start (push2SlaveMaxOffset).
        self.pushed = Watermark()
        self._waiters = Waiters()
        self._waiting = Bell()
        self._moved = Bell()
        self._sent_away: dict[str, _SentAway] = {}
        #: Where the log ended when this run of the broker began: slaves tell runs apart by it (906).
        self.began_at = store.log.written
        #: How many connections were ended because the slave was ahead.
        self.ahead_count = 0

    # -- connections -------------------------------------------------------------------------------------------

    async def serve(self, stream: RawStream, peer: Host) -> None:
        """Hand the log out to one slave until its connection ends (:data:`trio_mq.net.streams.StreamHandler`).

        Cancelling ends it at once. The stream is closed by whoever accepted it.
        """
        link = SlaveLink(self._log, self._settings, stream, peer, self._grown, self._acked)
        self._links.append(link)
        self._moved.ring()
        log.info("slave %s has connected", peer)
        reason: LinkOver | None = None
        try:
            reason = await link.run()
            if isinstance(reason, SlaveAhead):
                self._send_away(link.peer, reason)
        finally:
            self._links.remove(link)
            link.state.move(LinkState.SHUTDOWN, str(reason or "this broker stops"))
            self._moved.ring()

    def _acked(self, link: SlaveLink) -> None:
        if link.ack > self.pushed.value:
            self.pushed.advance(link.ack)
        self._sent_away.pop(link.peer.ip, None)
        links = self._links
        self._waiters.acknowledged([one.ack for one in links], [one.floor for one in links])
        self._moved.ring()

    def told_ahead(self, peer: Host, reported: int) -> None:
        """A slave that checks before it copies says over remoting how far its log goes: shown if that is ahead."""
        if reported > self._log.written:
            self._send_away(peer, SlaveAhead(reported, self._log.written))

    def _send_away(self, peer: Host, ahead: SlaveAhead) -> None:
        # A slave that is ahead comes back every 5 s, and says the same each time.
        now_s = trio.current_time()
        self.ahead_count += 1
        before = self._sent_away.pop(peer.ip, None)
        if before is None or now_s - before.at_s >= AHEAD_SHOWN_S:
            log.error(
                "slave %s is refused: %s. Nothing of it counts; look at both logs before either is cut",
                *(peer, ahead),
            )
        else:
            now_s = before.at_s  # the next line is due a minute after the last one
        view = SlaveView(
            address=peer,
            ack_offset=-1,
            behind_bytes=0,
            in_sync=False,
            ahead=True,
            reported=ahead.reported,
        )
        self._sent_away[peer.ip] = _SentAway(view, now_s)
        while len(self._sent_away) > AHEAD_MOST:
            del self._sent_away[next(iter(self._sent_away))]

    # -- waiting for replicas ----------------------------------------------------------------------------------

    def wait_for(self, end: int, needed: int, done: Callable[[bool], None]) -> None:
        """Call `done(True)` once `needed` brokers, this one included, have the log up to `end`.

        That may be within this call; `done(False)` comes after `slaveTimeout`. Each waits for itself only (C065).
        """
        if self.replicas_of(end) >= needed:
            done(True)
            return
        deadline_s = trio.current_time() + self._settings.slave_timeout_ms / 1000
        self._waiters.add(end, needed - 1, deadline_s, done)
        self._waiting.ring()

    def replicas_of(self, end: int) -> int:
        """How many brokers have the log up to `end`: this one, and each connection that reported it."""
        return 1 + sum(link.floor < end <= link.ack for link in self._links)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the deadlines of waiters and tell the lag, until cancelled. Nothing from outside ends it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_deadlines)
            nursery.start_soon(self._tell_lag)
            task_status.started()

    async def _watch_deadlines(self) -> None:
        while True:
            due_s = self._waiters.next_deadline_s
            if due_s is None:
                await self._waiting.wait()
                continue
            await trio.sleep_until(max(due_s, trio.current_time() + DEADLINE_GRAIN_S))
            self._waiters.expire(trio.current_time())

    async def _tell_lag(self) -> None:
        while True:
            await trio.sleep(LAG_LINE_S)
            for slave in self.slaves:
                log.info("slave %s %s", slave.address, slave.text)

    # -- looking -----------------------------------------------------------------------------------------------

    @property
    def in_sync_count(self) -> int:
        """How many brokers have about all of the log: this one, and slaves within `haMaxGapNotInSync`."""
        return 1 + sum(map(self._in_sync, self._links))

    def _in_sync(self, link: SlaveLink) -> bool:
        if link.ack < 0 or link.too_old:
            return False
        return self._log.written - link.ack < self._settings.max_gap_not_in_sync

    @property
    def slaves(self) -> tuple[SlaveView, ...]:
        """All that are connected, and those that were sent away for being ahead in the last minute."""
        now_s = trio.current_time()
        for ip, away in tuple(self._sent_away.items()):
            if now_s - away.at_s >= 2 * AHEAD_SHOWN_S:
                del self._sent_away[ip]
        return (
            *(self._view(link, now_s) for link in self._links),
            *(away.view for away in self._sent_away.values()),
        )

    def _view(self, link: SlaveLink, now_s: float) -> SlaveView:
        return SlaveView(
            address=link.peer,
            ack_offset=link.ack,
            behind_bytes=max(0, self._log.written - max(link.ack, 0)),
            in_sync=self._in_sync(link),
            too_old=link.too_old,
            transferred_per_s=link.meter.rate(now_s),
            transfer_from=link.transfer_from,
            silent_s=now_s - link.last_report_s,
        )

    def state_of(self, host: str) -> LinkState | None:
        """The state of the connection from a host (an IP address), None without one."""
        return next((link.state.state for link in self._links if link.peer.ip == host), None)

    async def wait_state(
        self, host: str, state: LinkState, timeout_s: float, *, until_shutdown: bool = False
    ) -> bool:
        """Wait until a connection from `host` is in `state`; False when the time is over.

        With `until_shutdown` also when a connection that was there has ended. Cancelling leaves nothing behind.
        """
        with trio.move_on_after(timeout_s):
            was_there = False
            while (now := self.state_of(host)) is not state:
                if until_shutdown and was_there and now is None:
                    return False
                was_there = now is not None
                await self._moved.wait()
        return self.state_of(host) is state

    async def drained(self) -> None:
        """Wait until all slaves that are in sync have the whole log, as a stop does, with a limit of its own."""
        while any(link.ack < self._log.written for link in self._links if self._in_sync(link)):
            await self._moved.wait()
