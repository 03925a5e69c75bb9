"""The states of a replication link: which may follow which, and a way to wait for one.

In: changes, told by the owner of a link. Out: the state now, a line in the log for each change, and
:meth:`StateWatch.reached`. Used by :mod:`trio_mq.ha.primary`, :mod:`trio_mq.ha.replica` and whoever waits for them.
Sources: Apache HAConnectionState, HAConnectionStateNotificationService; transitions:
``docs/explanation/replication.md``.
"""

from __future__ import annotations

import enum
import logging
from typing import Final

import trio

log = logging.getLogger("trio_mq.ha")


class LinkState(enum.Enum):
    """The peers' names and numbers. SUSPEND is ours: stopped on purpose, because the logs do not continue."""

    READY = 0
    HANDSHAKE = 1
    TRANSFER = 2
    SUSPEND = 3
    SHUTDOWN = 4


_S = LinkState
TRANSITIONS: Final = {
    _S.READY: frozenset({_S.HANDSHAKE, _S.TRANSFER, _S.SUSPEND, _S.SHUTDOWN}),
    _S.HANDSHAKE: frozenset({_S.READY, _S.TRANSFER, _S.SUSPEND, _S.SHUTDOWN}),
    _S.TRANSFER: frozenset({_S.READY, _S.SUSPEND, _S.SHUTDOWN}),
    _S.SUSPEND: frozenset({_S.READY, _S.SHUTDOWN}),
    _S.SHUTDOWN: frozenset[LinkState](),
}
"""What may follow what. A link goes back to READY when it ends; nothing follows a SHUTDOWN."""


class StateWatch:
    """The state of one link; `name` is the link's in the log."""

    def __init__(self, name: str, state: LinkState = LinkState.READY) -> None:
        self.name = name
        self.state = state
        #: Why it is in this state: the last error, or what an operator can do.
        self.reason = ""
        #: When it changed last, by Trio's clock.
        self.since_s = 0.0
        self._changed = trio.Event()

    def move(self, to: LinkState, reason: str = "") -> None:
        """Change the state; the same one again changes the reason only."""
        if to is self.state:
            self.reason = reason
            return
        assert to in TRANSITIONS[self.state], f"{self.name}: {self.state.name} to {to.name}"
        log.info(
            "%s: %s to %s%s", self.name, self.state.name, to.name, f": {reason}" if reason else ""
        )
        self.state, self.reason, self.since_s = to, reason, trio.current_time()
        self._changed.set()
        self._changed = trio.Event()

    async def reached(self, state: LinkState, timeout_s: float) -> bool:
        """Wait for a state; False when the time is over, or the link is shut down before. Cancelling leaves nothing."""
        with trio.move_on_after(timeout_s):
            while self.state is not state and self.state is not LinkState.SHUTDOWN:
                await self._changed.wait()
        return self.state is state

    async def left(self, state: LinkState) -> None:
        """Wait until it is in another state."""
        while self.state is state:
            await self._changed.wait()
