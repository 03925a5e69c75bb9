"""A slave's end of replication: finds its master, checks that the logs continue each other, copies, and never gives up.

In: the master's address, as settings or name servers tell it, and a log to append to. Out: that log grows as the
master's; :attr:`Replica.state` and :attr:`Replica.view` say how it goes. Called by :mod:`trio_mq.system` as a task of
its own. Source: Apache DefaultHAClient.

Failure policy: whatever the network, the master or the disk does ends one connection. It is logged, and 5 s later tried
again, for ever; a master that fell silent is called again at once. A log that does not continue the master's is
SUSPEND: nothing is copied until a check every 30 s finds that it does, or the master is another one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import attrs
import trio

from trio_mq.config import Address
from trio_mq.config.ha import HASettings
from trio_mq.errors import PeerUnavailable, StoreError
from trio_mq.ha.findings import Finding, Verdict
from trio_mq.ha.masterlink import Copied, EndKind, LinkEnd, MasterLink, Traffic
from trio_mq.ha.states import LinkState, StateWatch
from trio_mq.net.streams import RawStream
from trio_mq.tasks import describe

log = logging.getLogger("trio_mq.ha")

#: Time to connect, and between two attempts. As Apache's: no setting, no growth, no end.
CONNECT_TIMEOUT_S: Final = 5.0
RECONNECT_S: Final = 5.0
#: Time between two checks of a log that does not continue the master's.
RECHECK_S: Final = 30.0
#: Time until a master that did not answer questions is asked again, for the first time.
ASK_AGAIN_S: Final = 3.0
#: How long a master that has answered questions before is asked again before anything is copied without an answer.
UNANSWERED_LIMIT_S: Final = 60.0
#: Time until the same complaint is told again.
REPEAT_S: Final = 60.0
#: Equal mismatches until they are an error: the first ones may come from a master that is just starting.
MISMATCHES: Final = 3

OpenStream = Callable[[Address, float], Awaitable[RawStream]]
#: Asks whether the log continues the master's; raises nothing but OSError and StoreError of the own store.
Check = Callable[[], Awaitable[Finding]]
#: Whether the master answers questions now, so that a check is worth while.
Answers = Callable[[], Awaitable[bool]]


async def _no_answers() -> bool:
    return False


@attrs.frozen
class ReplicaView:
    """How replication goes on a slave. Ages are seconds, None before the first time."""

    master: str | None
    state: LinkState
    reason: str
    max_offset: int
    bytes_per_s: int
    read_age_s: float | None
    write_age_s: float | None
    reconnects: int
    last_error: str


@attrs.define
class Complaints:
    """Says how a complaint is to be logged: a new one at its level, one that repeats once a minute."""

    _text: str = ""
    _count: int = 0
    _told_s: float = 0.0

    def level(self, text: str, now_s: float, *, error_after: int = 0, at_once: int = 1) -> int:
        """The level for this complaint now, 0 for silence.

        The first `at_once` equal ones are told, later ones every minute; an error from number `error_after` on.
        """
        self._count = self._count + 1 if text == self._text else 1
        self._text = text
        if self._count > at_once and now_s - self._told_s < REPEAT_S:
            return 0
        self._told_s = now_s
        return logging.ERROR if error_after and self._count >= error_after else logging.WARNING

    def clear(self) -> None:
        """It went well: the next complaint is a new one."""
        self._count, self._text = 0, ""


class Replica:
    """See the module. Made once; :meth:`run` is called once."""

    def __init__(
        self,
        copy: Copied,
        settings: HASettings,
        open_stream: OpenStream,
        check: Check,
        answers: Answers = _no_answers,
    ) -> None:
        self._copy = copy
        self._settings = settings
        self._open_stream = open_stream
        self._check = check
        self._answers = answers
        self._master = settings.master_address
        self._told_master = trio.Event()
        self._attempt = trio.CancelScope()
        self._recheck = trio.Event()
        self._links = 0
        #: Since when a master that answered before does not.
        self._unanswered_since_s = math.inf
        self._last_error = ""
        self._complaints = Complaints()
        self.traffic = Traffic()
        self.state = StateWatch("link to the master")

    @property
    def master(self) -> Address | None:
        """Where the master listens for slaves, as far as it is known."""
        return self._master

    @property
    def view(self) -> ReplicaView:
        """How it goes now."""
        now_s, traffic = trio.current_time(), self.traffic
        read_s, write_s = traffic.last_read_s, traffic.last_write_s
        return ReplicaView(
            master=None if self._master is None else str(self._master),
            state=self.state.state,
            reason=self.state.reason,
            max_offset=self._copy.end,
            bytes_per_s=traffic.meter.rate(now_s),
            read_age_s=None if read_s is None else now_s - read_s,
            write_age_s=None if write_s is None else now_s - write_s,
            reconnects=max(0, self._links - 1),
            last_error=self._last_error,
        )

    def follow(self, address: Address | None) -> None:
        """Copy from this master: a link to another one closes, and the new one is called at once.

        None, as of a name server that knows no master, keeps the old one. An address that settings give is kept too.
        """
        if address is None or address == self._master:
            return
        if self._settings.master_address is not None:
            log.debug("%s is not followed: haMasterAddress is set", address)
            return
        log.info("the master is at %s now, it was at %s", address, self._master or "no known place")
        self._master = address
        self._told_master.set()
        self._attempt.cancel()

    def resume(self) -> None:
        """Check a suspended link now and not at the next turn: an operator has done something."""
        self._recheck.set()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        """Follow the master until cancelled, which ends at once in every state."""
        task_status.started()
        try:
            while True:
                await self._attempts()
                if self.state.state is not LinkState.READY:
                    self.state.move(LinkState.READY, f"the master is at {self._master} now")
        finally:
            self.state.move(LinkState.SHUTDOWN)

    async def _attempts(self) -> None:
        """Try one master again and again, until another one is to be followed."""
        if self._master is None:
            self.state.move(
                LinkState.READY, "waiting for name servers to tell the master's address"
            )
            await self._told_master.wait()
        assert self._master is not None
        address = self._master
        self._complaints.clear()
        with trio.CancelScope() as self._attempt:
            while True:
                pause_s = await self._try(address)
                await trio.sleep(pause_s)

    async def _try(self, address: Address) -> float:
        """One connection from its beginning to its end; returns how long to wait for the next one, s."""
        try:
            stream = await self._open_stream(address, CONNECT_TIMEOUT_S)
        except PeerUnavailable as error:
            self._complain(f"cannot reach {address}, next try in {RECONNECT_S:g} s: {error}")
            return RECONNECT_S
        try:
            found = await self._found()
            if self._asks_again(found):
                self._complain(f"{found.text}; it did before, so nothing is copied unchecked yet")
                return RECONNECT_S
            if found.goes_on:
                return self._after(await self._copied(stream, address, found), address)
        finally:
            await stream.aclose()
        await self._suspended(found)
        return 0.0

    def _asks_again(self, found: Finding) -> bool:
        """Whether to try again for an answer: without one, bytes of another history may follow those here."""
        if found.verdict is not Verdict.UNANSWERED or not found.answered_before:
            self._unanswered_since_s = math.inf
            return False
        now_s = trio.current_time()
        self._unanswered_since_s = min(self._unanswered_since_s, now_s)
        return now_s - self._unanswered_since_s < UNANSWERED_LIMIT_S

    async def _copied(self, stream: RawStream, address: Address, found: Finding) -> LinkEnd:
        self._links += 1
        self.state.move(LinkState.TRANSFER, f"from {address}, offset {self._copy.end}")
        link = MasterLink(stream, self._copy, self._settings, self.traffic)
        if found.verdict is Verdict.CONTINUES:
            return await link.run()
        log.warning("copying from %s without a check of the log: %s", address, found.text)
        if found.verdict is Verdict.UNKNOWN:
            return await link.run()
        end = LinkEnd(EndKind.CHECKABLE, "it answers questions now, the log is checked")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_answers, nursery.cancel_scope)
            end = await link.run()
            nursery.cancel_scope.cancel()
        return end

    async def _until_answers(self, link: trio.CancelScope) -> None:
        """End a link once the log can be checked: that may cut it, and so nothing must be appended meanwhile."""
        pause_s = ASK_AGAIN_S
        while True:
            await trio.sleep(pause_s)
            if await self._answers():
                link.cancel()
                return
            pause_s = RECHECK_S

    def _after(self, end: LinkEnd, address: Address) -> float:
        """Tell how a connection ended; returns the pause."""
        if end.kind is EndKind.CHECKABLE:
            self.state.move(LinkState.READY, end.reason)
            return 0.0
        self.state.move(LinkState.READY, end.kind.value)
        pause_s = 0.0 if end.kind is EndKind.SILENT else RECONNECT_S
        soon = f"next try in {pause_s:g} s" if pause_s else "it is called again at once"
        text = f"connection to the master {address}: {end.reason}; {soon}"
        if end.kind is EndKind.MISMATCH:
            self._complain(text, error_after=MISMATCHES, at_once=MISMATCHES)
        else:
            self._complain(text)
        return pause_s

    def _complain(self, text: str, *, error_after: int = 0, at_once: int = 1) -> None:
        self._last_error = text
        self.state.move(LinkState.READY, text)
        level = self._complaints.level(
            text, trio.current_time(), error_after=error_after, at_once=at_once
        )
        if level:
            log.log(level, "%s", text)

    # -- logs that do not continue each other ----------------------------------------------------------------

    async def _found(self) -> Finding:
        """The check, which must not fail for what a disk does: then nobody could say."""
        try:
            return await self._check()
        except (OSError, StoreError) as error:
            return Finding(Verdict.UNKNOWN, f"the own log could not be read: {describe(error)}")

    async def _suspended(self, found: Finding) -> None:
        """Stay suspended until a check finds that the logs continue each other."""
        told = ""
        while not found.goes_on:
            reason = f"{found.verdict.value}: {found.text}"
            self._last_error = reason
            self.state.move(LinkState.SUSPEND, reason)
            if reason != told:
                log.error("nothing is copied any more: %s", reason)
                told = reason
            self._recheck = trio.Event()
            with trio.move_on_after(RECHECK_S):
                await self._recheck.wait()
            found = await self._found_again(found)
        self.state.move(LinkState.READY, "the log continues the master's again")

    async def _found_again(self, before: Finding) -> Finding:
        """A master that does not answer now has not been repaired thereby."""
        found = await self._found()
        return before if found.verdict is Verdict.UNANSWERED else found
