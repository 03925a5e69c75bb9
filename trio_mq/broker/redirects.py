"""Where a message goes first that is not to be seen at once: delay levels, timers, half messages.

In: topic, queue, raw properties and sysFlag of a message on its way into the store. Out: the same as they are to be
stored. Pure; called by the send processor for messages with special properties, and by
:class:`trio_mq.broker.put.Putter` for what the broker itself puts. The services that bring such messages back are
:mod:`trio_mq.broker.delays`, :mod:`trio_mq.broker.timers` and :mod:`trio_mq.broker.transactions`. Rules: Apache
HookUtils.handleScheduleMessage, TransactionalMessageBridge.parseHalfMessageInner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from trio_mq.broker.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from trio_mq.config import StoreSettings
from trio_mq.errors import RequestRefused
from trio_mq.protocol import properties
from trio_mq.protocol.codes import TRANSACTION_MASK, MessageFlag, ResponseCode

_PREPARED: Final = int(MessageFlag.TRANSACTION_PREPARED)
_ROLLBACK: Final = int(MessageFlag.TRANSACTION_ROLLBACK)
#: Timer properties by rank: the first that is there counts. Two are delays in a unit of so many ms, one is a time.
_TIMERS: Final = (
    (properties.TIMER_DELAY_SEC, 1000),
    (properties.TIMER_DELAY_MS, 1),
    (properties.TIMER_DELIVER_MS, 0),
)
#: What a half message may not bring along: a delay, what the checks of transactions note in their copies, and what is
#: set for it.
_NOT_OF_HALVES: Final = tuple(
    name.encode()
    for name in (
        properties.DELAY,
        *(name for name, _ in _TIMERS),
        properties.TRANSACTION_CHECK_TIMES,
        properties.TRAN_PREPARED_QUEUE_OFFSET,
        properties.TRANSACTION_ID,
        properties.REAL_TOPIC,
        properties.REAL_QID,
    )
)
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1


class Redirected(NamedTuple):
    """What is to be stored. `delay_ms` is the delay of a level, None without; `timer_out_ms` the rounded time when a
    timer fires, 0 without one."""

    topic: str
    queue_id: int
    properties: bytes
    sys_flag: int
    delay_ms: int | None = None
    timer_out_ms: int = 0


class Redirects:
    """The rules, for one broker's settings."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._levels_ms = settings.delay_levels_ms
        #: Whether no more timers are taken for a time in ms; the timer service sets it.
        self.timer_is_full: Callable[[int], bool] = lambda _ms: False

    def apply(
        self, topic: str, queue_id: int, props: bytes, sys_flag: int, now_ms: int
    ) -> Redirected:
        """A message that may have to wait. Refuses timers that cannot be kept, with MESSAGE_ILLEGAL (13) or 1."""
        if sys_flag & TRANSACTION_MASK in (_PREPARED, _ROLLBACK):
            return Redirected(topic, queue_id, props, sys_flag)
        found = properties.parse(props)
        level = delay_level(found)
        if level > 0:
            return self._delayed(topic, queue_id, found, level, sys_flag)
        if topic != TIMER_TOPIC and properties.TIMER_OUT_MS not in found:
            for name, unit_ms in _TIMERS:
                if name in found:
                    at_ms = _timer_ms(name, found[name], unit_ms, now_ms)
                    return self._timed(topic, queue_id, found, props, sys_flag, at_ms, now_ms)
        return Redirected(topic, queue_id, props, sys_flag)

    def _delayed(
        self, topic: str, queue_id: int, found: dict[str, str], level: int, sys_flag: int
    ) -> Redirected:
        """To the queue of its level; one beyond the last counts as the last."""
        for name, _ in _TIMERS:
            found.pop(name, None)
        level = min(level, len(self._levels_ms))
        found[properties.DELAY] = str(level)
        self._remember(found, topic, queue_id)
        delay_ms = self._levels_ms[level - 1]
        stored = properties.encode(found)
        return Redirected(SCHEDULE_TOPIC, level - 1, stored, sys_flag, delay_ms)

    def _timed(
        self,
        topic: str,
        queue_id: int,
        found: dict[str, str],
        props: bytes,
        sys_flag: int,
        at_ms: int,
        now_ms: int,
    ) -> Redirected:
        """To the timer's queue; a time that is over makes an ordinary message."""
        out_ms = self._out_ms(at_ms, now_ms)
        if not out_ms:
            if properties.TIMER_DEL_UNIQKEY in found:
                raise _illegal("a recall came after the time of its message, which is delivered")
            return Redirected(topic, queue_id, props, sys_flag)
        found[properties.TIMER_OUT_MS] = str(out_ms)
        self._remember(found, topic, queue_id)
        return Redirected(TIMER_TOPIC, 0, properties.encode(found), sys_flag, timer_out_ms=out_ms)

    def waiting(
        self, topic: str, queue_id: int, props: bytes, at_ms: int, now_ms: int
    ) -> Redirected:
        """As :meth:`apply`, for a record of the broker's own that is due at `at_ms` and has no place of a message.

        `props` ends with a terminator. Made for check points of pops, of which there are many.
        """
        out_ms = self._out_ms(at_ms, now_ms)
        if not out_ms:
            return Redirected(topic, queue_id, props, 0)
        props = b"%bTIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (
            props,
            out_ms,
            topic.encode(),
            queue_id,
        )
        return Redirected(TIMER_TOPIC, 0, props, 0, timer_out_ms=out_ms)

    def _out_ms(self, at_ms: int, now_ms: int) -> int:
        """When the timer lets go what is due at `at_ms`: a step of its wheel; 0 for a time that is over."""
        settings = self._settings
        if not settings.timer_wheel_enable:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "timers are off in this broker; set timerWheelEnable=true, or use a delay level",
            )
        if at_ms <= now_ms:
            return 0
        if at_ms - now_ms > settings.timer_max_delay_sec * 1000:
            raise _illegal(
                f"the message is to wait {(at_ms - now_ms) // 1000} s, "
                f"{settings.timer_max_delay_sec} s are allowed (timerMaxDelaySec)"
            )
        precision_ms = settings.timer_precision_ms
        # A multiple goes one step earlier: the wheel fires a slot when its time is over.
        at_ms -= at_ms % precision_ms or precision_ms
        if self.timer_is_full(at_ms):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "too many messages wait for the same time (timerCongestNumEachSlot); choose another time",
            )
        return at_ms

    def half(self, topic: str, queue_id: int, props: bytes, sys_flag: int) -> Redirected:
        """The first part of a transaction: nobody sees it before its producer decides.

        A delay is dropped, as the Java client does before it sends: on the way back the message would wait twice
        (case C154).
        """
        for name in _NOT_OF_HALVES:
            props = properties.remove(props, name)
        unique_id = properties.get(props, b"UNIQ_KEY")
        if unique_id:
            props = properties.append(props, b"__transactionId__", unique_id)
        props = properties.append(props, b"REAL_TOPIC", topic.encode())
        props = properties.append(props, b"REAL_QID", b"%d" % queue_id)
        return Redirected(HALF_TOPIC, 0, props, sys_flag & ~TRANSACTION_MASK)

    @staticmethod
    def _remember(found: dict[str, str], topic: str, queue_id: int) -> None:
        found[properties.REAL_TOPIC] = topic
        found[properties.REAL_QID] = str(queue_id)


def delay_level(found: dict[str, str]) -> int:
    """The delay level in some properties, 0 without one (Apache: Message.getDelayTimeLevel)."""
    text = found.get(properties.DELAY)
    if text is None:
        return 0
    try:
        level = int(text)
    except ValueError:
        level = _INT_MAX + 1
    if not -_INT_MAX - 1 <= level <= _INT_MAX:
        raise _illegal(f"the property DELAY is {text[:40]!r}, which is no number of a delay level")
    return level


def _timer_ms(name: str, text: str, unit_ms: int, now_ms: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = _LONG_MAX + 1
    if not -_LONG_MAX - 1 <= number <= _LONG_MAX:
        raise _illegal(f"the property {name} is {text[:40]!r}, which is no number")
    return now_ms + number * unit_ms if unit_ms else number


def _illegal(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.MESSAGE_ILLEGAL, text)
