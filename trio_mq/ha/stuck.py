"""The alarm of a slave that gets nothing though its master has more.

In: the link's state, where the own log ends, and where the master's does, as it said last. Out: an error in the log,
and the reason of the state, which status shows. Run by :mod:`trio_mq.ha.service` on a slave. A master whose log begins
behind the end of the slave's sends heartbeats only, for ever (Apache and we); nothing on the stream says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NoReturn

import trio

from trio_mq.ha.states import LinkState, StateWatch

log = logging.getLogger("trio_mq.ha")

#: Time between two looks.
LOOK_S: Final = 10.0
#: Time without a byte that gives reason to an alarm, and between two of them.
STUCK_S: Final = 60.0


class StuckWatch:
    """See the module; `end` and `master_end` tell where the logs end, None where the master did not say."""

    def __init__(
        self, state: StateWatch, end: Callable[[], int], master_end: Callable[[], int | None]
    ) -> None:
        self._state = state
        self._end = end
        self._master_end = master_end
        self._stands_at = -1
        self._since_s = 0.0
        self._told_s = 0.0
        self._text = ""
        self._reason = ""

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        """Look until cancelled."""
        task_status.started()
        while True:
            self.look(trio.current_time())
            await trio.sleep(LOOK_S)

    def look(self, now_s: float) -> None:
        """Tell when nothing has come for a while, though there is more."""
        end, master_end = self._end(), self._master_end()
        has_more = master_end is not None and master_end > end
        if not has_more or end != self._stands_at or self._state.state is not LinkState.TRANSFER:
            self._stands_at, self._since_s = end, now_s
            self._all_clear()
            return
        stuck_s = now_s - self._since_s
        if stuck_s < STUCK_S or (self._text and now_s - self._told_s < STUCK_S):
            return
        if not self._text:
            self._reason = self._state.reason
        self._told_s = now_s
        self._text = (
            f"nothing has come from the master for {stuck_s:.0f} s, though its log ends at {master_end} and this one "
            f"at {end}: where its log begins behind {end}, this slave has to start with an empty store"
        )
        self._state.move(LinkState.TRANSFER, self._text)
        log.error("%s", self._text)

    def _all_clear(self) -> None:
        if self._text and self._state.reason == self._text:
            self._state.move(self._state.state, self._reason)
        self._text = ""
