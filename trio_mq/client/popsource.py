"""The task of one source of a pop consumer: a topic at a broker.

In: turns of the :class:`.Inbox`. Out: popped messages in it. One task for each source runs :func:`pop_forever` in the
task group of :mod:`.simple`. Source of the rules: Apache DefaultMQPushConsumerImpl.popMessage.

Failure policy: whatever a broker does, it is logged once, left alone for a second (longer with each failure), and asked
again; the other sources go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
import attrs

from trio_mq.client.inbox import Asking, Inbox, Source, Turn
from trio_mq.client.popcalls import PopCalls
from trio_mq.client.popping import Popped, PoppedMessage, PopSettler
from trio_mq.client.subscription import Subscription
from trio_mq.errors import PeerRefused, PeerUnavailable, ProtocolError, RequestRefused, TrioMQError

log = logging.getLogger("trio_mq.client")

#: After a failure (Apache: PULL_TIME_DELAY_MILLS_WHEN_EXCEPTION), and the most after several.
PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
#: After a question that the broker did not hold though it found nothing: its clock is another one, or it holds as many
#: as it can.
NOT_HELD_PAUSE_S = 0.2

_FAILURES = (PeerUnavailable, PeerRefused, RequestRefused, ProtocolError)


@attrs.frozen
class PopRules:
    """What is the same for all sources of a consumer. Names on the wire have their namespace, `shown` takes it off."""

    calls: PopCalls
    settler: PopSettler
    group: str
    max_reconsume_times: int
    subscription: Callable[[str], Subscription]
    shown: Callable[[str], str]
    #: Whether a group without offsets begins at the end of queues.
    is_from_last: bool
    invisible_s: float


async def pop_forever(source: Source, inbox: Inbox, rules: PopRules) -> None:
    """Ask a source whenever it is its turn, until cancelled."""
    try:
        if rules.is_from_last and not await rules.calls.has_offsets(
            source.topic, source.broker_name
        ):
            # The first pop fixes the start: what is sent from now on is received, whenever that is asked for.
            await _pop(source, Turn(1, rules.invisible_s, 0.0, 0), inbox, rules)
    except _FAILURES as error:
        log.warning("the start of group %s in topic %s is not fixed before its first receive: %s",
                    rules.group, source.topic, error)  # fmt: skip
    source.begun.set()
    failures = 0
    while True:
        turn = inbox.turn(source, anyio.current_time())
        if turn is None:
            await inbox.wait()
            continue
        source.asking = Asking.NEWS if turn.poll_s else Asking.STOCK
        try:
            is_idle = await _ask(source, turn, inbox, rules)
        except _FAILURES as error:
            failures += 1
            if failures == 1:
                log.warning("pops of topic %s go on when they can: %s", source.topic, error)
            source.asking, source.has_more = Asking.FAILED, False
            source.refusal = error if isinstance(error, PeerRefused) else None
            inbox.changed()
            await anyio.sleep(min(PAUSE_S * failures, LONGEST_PAUSE_S))
        else:
            failures, source.refusal = 0, None
            source.asked_for = turn.number
            inbox.changed()
            if is_idle:
                await anyio.sleep(NOT_HELD_PAUSE_S)
        source.asking = Asking.NOTHING
        inbox.changed()


async def _ask(source: Source, turn: Turn, inbox: Inbox, rules: PopRules) -> bool:
    """One question; whether it brought nothing and was not held, so that the next one has to wait a little.

    A broker whose clock is further ahead than the question may wait takes it for an old one and does not look: it is
    asked again for what it has.
    """
    began_s = anyio.current_time()
    if await _pop(source, turn, inbox, rules):
        return False
    if anyio.current_time() - began_s >= turn.poll_s / 2:
        return False
    return not await _pop(source, attrs.evolve(turn, poll_s=0.0), inbox, rules)


async def _pop(source: Source, turn: Turn, inbox: Inbox, rules: PopRules) -> bool:
    """One question; whether there was anything."""
    wanted = rules.subscription(source.topic)
    began_s = anyio.current_time()
    found, has_more = await rules.calls.pop(
        wanted, source.broker_name, turn.count, turn.invisible_s, turn.poll_s
    )
    # A held question is answered when the pop is made; any other one cannot be older than its question.
    popped_s = anyio.current_time() if turn.poll_s else began_s
    source.has_more = has_more and bool(found)
    good: list[PoppedMessage] = []
    useless: list[PoppedMessage] = []
    for one in found:
        message = _message(one, source.topic, popped_s + turn.invisible_s, rules)
        is_good = wanted.wants(message) and message.reconsume_times <= rules.max_reconsume_times
        (good if is_good else useless).append(message)
    inbox.add(good)
    for message in useless:
        await _dispose(message, wanted, rules)
    return bool(found)


def _message(popped: Popped, topic: str, expires_s: float, rules: PopRules) -> PoppedMessage:
    return PoppedMessage(popped, topic, rules.shown(topic), rules.group, rules.settler, expires_s)


async def _dispose(message: PoppedMessage, wanted: Subscription, rules: PopRules) -> None:
    """A message that nobody is to get: its tag only looked like a wanted one, or it came too often."""
    try:
        if not wanted.wants(message):
            await rules.calls.ack(message.receipt, message.queue.topic)
            return
        log.error("message %s of topic %s was given back %d times and is a dead letter now",
                  message.message_id, message.topic, message.reconsume_times)  # fmt: skip
        await rules.calls.bury(message)
    except TrioMQError as error:
        log.warning("message %s comes again: %s", message.message_id, error)
