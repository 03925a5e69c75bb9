"""Messages that may have gone round before: a promoted slave takes the timer's queue anew, and meets them again.

In: messages that are taken again, in their order. Out: which of them have to wait until it is known. Called by
:mod:`trio_mq.broker.timers`. No IO.

A message whose time is far ahead goes round: when its first slot comes, it is put into the timer's queue once more. A
slave has no units that say which ones did. So one that may have gone round is kept here until its next copy comes,
which stands for it then; without one until all was taken again, and then it waits like any other.
"""

from __future__ import annotations

from typing import Final

import attrs

from trio_mq.broker.timerfire import number_of
from trio_mq.broker.timerstate import TimerState
from trio_mq.protocol import properties as props
from trio_mq.protocol.record import StoredMessage

#: Messages kept at most; more wait at once, and may come twice.
MOST_KEPT: Final = 100_000
_UNIQ_KEY: Final = props.UNIQ_KEY.encode()
_ROLL_TIMES: Final = props.TIMER_ROLL_TIMES.encode()


class Retake:
    """Keeps what may have gone round."""

    def __init__(self, state: TimerState) -> None:
        self._state = state
        self._kept: dict[tuple[bytes, int], StoredMessage] = {}

    def saw(self, message: StoredMessage, out_ms: int | None) -> None:
        """A message came by: one that is kept, and is the same some rounds before, is over."""
        if not self._kept or out_ms is None:
            return
        key = _key(message, out_ms)
        kept = self._kept.get(key)
        if kept is not None and _rounds(kept) < _rounds(message):
            del self._kept[key]
            self._state.holding = bool(self._kept)

    def keeps(self, message: StoredMessage, out_ms: int) -> bool:
        """Whether a message that is taken has to wait until it is known whether it went round; called after `saw`."""
        state = self._state
        if message.queue_offset >= state.retake_before or len(self._kept) >= MOST_KEPT:
            return False
        round_ms = state.round_ms(out_ms, message.store_timestamp_ms)
        if round_ms is None or round_ms >= state.retake_ms:
            return False  # its master had no reason to touch it again
        key = _key(message, out_ms)
        if key in self._kept:
            return self._kept[key].queue_offset == message.queue_offset  # it is taken once more
        if not key[0]:
            return False
        self._kept[key] = attrs.evolve(message, body=b"")
        state.holding = True
        return True

    def first(self) -> StoredMessage | None:
        """The next one that did not go round, without its body."""
        return next(iter(self._kept.values()), None)

    def drop_first(self) -> None:
        """It waits like any other now."""
        del self._kept[next(iter(self._kept))]
        self._state.holding = bool(self._kept)


def _key(message: StoredMessage, out_ms: int) -> tuple[bytes, int]:
    """What all copies of a message have."""
    return props.get(message.properties, _UNIQ_KEY) or b"", out_ms


def _rounds(message: StoredMessage) -> int:
    return number_of(message.properties, _ROLL_TIMES) or 0
