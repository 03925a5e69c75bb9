"""Locks of queues: a queue that is consumed in order has one owner at a time, and its broker says who.

In: queues of an orderly consumer. Out: which of them are ours, and until when. Called by :mod:`.orderly`.
Source of the rules: Apache RebalanceImpl (lock, lockAll, unlock), ProcessQueue, ConsumeMessageOrderlyService.

A broker gives a lock to the first who asks and takes it back when it was not renewed for its life time (60 s, Apache:
rocketmq.broker.rebalance.lockMaxLiveTime). No answer tells how long that is: whoever shortens it at the brokers has to
shorten `interval_s` here. A lock counts here for one and a half intervals from the moment that it was asked for, so
that handing out stops before the broker's time is over. And it counts only as long as the connection lives: a broker
that was started again has forgotten all locks, and gives them to the first who comes.

Failure policy: a broker that does not answer keeps nobody from asking again at the next interval; what is locked there
stays so until its time here is over. It is logged once for each cause.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import anyio
import attrs

from trio_mq.client.instance import Instance
from trio_mq.errors import PeerRefused, PeerUnavailable, ProtocolError
from trio_mq.net.link import Link
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import LockBatchBody, LockBatchReplyBody, MessageQueue
from trio_mq.protocol.codes import RequestCode

log = logging.getLogger("trio_mq.client")

#: Between two renewals (Apache: rocketmq.client.rebalance.lockInterval).
LOCK_INTERVAL_S = 20.0
#: For how many intervals a lock counts (Apache: rocketmq.client.rebalance.lockMaxLiveTime, 30 s).
INTERVALS_VALID = 1.5
#: For the answer of one broker (Apache: 1 s).
LOCK_TIMEOUT_S = 1.0

_FAILURES = (PeerUnavailable, PeerRefused, ProtocolError)


@attrs.frozen
class _Lock:
    """Until when a queue is ours, by the clock of the event loop, if the connection lives for so long."""

    until_s: float
    link: Link


class QueueLocks:
    """Locks of one group, whose name has its namespace; queues are named as on the wire."""

    def __init__(self, instance: Instance, group: str, interval_s: float = LOCK_INTERVAL_S) -> None:
        self.interval_s = interval_s
        self._instance = instance
        self._group = group
        self._held: dict[MessageQueue, _Lock] = {}
        #: Why brokers did not answer, for one line in the log for each cause.
        self._failures: dict[str, str] = {}

    def is_locked(self, queue: MessageQueue, now_s: float) -> bool:
        """Whether a queue is ours now."""
        return self.until_s(queue) > now_s

    def until_s(self, queue: MessageQueue) -> float:
        """Until when a queue is ours, by the clock of the event loop; 0 for one that is not."""
        lock = self._held.get(queue)
        return 0.0 if lock is None or lock.link.closed else lock.until_s

    async def renew(self, queues: Iterable[MessageQueue]) -> None:
        """Renew the locks of queues that are ours, when an interval is over since their broker gave them.

        A queue that was lost is not ours again by this, even if nobody else has it: who holds it has to learn of it.
        """
        now_s = anyio.current_time()
        rest_s = self.interval_s * (INTERVALS_VALID - 1)
        due = [queue for queue in queues if now_s < self.until_s(queue) <= now_s + rest_s]
        await self._lock_all(due, renew=True)

    async def lock(self, queues: Iterable[MessageQueue]) -> None:
        """Ask for locks: all brokers at the same time, one request for each.

        Queues that somebody else has are not ours afterwards; those of a broker that does not answer stay as they are.
        """
        await self._lock_all(queues, renew=False)

    async def _lock_all(self, queues: Iterable[MessageQueue], *, renew: bool) -> None:
        async with anyio.create_task_group() as asking:
            for broker_name, several in _by_broker(queues).items():
                asking.start_soon(self._lock_at, broker_name, several, renew)

    async def _lock_at(self, broker_name: str, queues: list[MessageQueue], renew: bool) -> None:
        began_s = anyio.current_time()
        before = self._link(broker_name)
        named = await self._ask(broker_name, RequestCode.LOCK_BATCH_MQ, queues)
        link = self._link(broker_name)
        if named is None or link is None or before not in (None, link):
            return  # no answer, or one over a connection that is gone
        for queue in queues:
            if queue in named:
                if renew and not self.is_locked(queue, anyio.current_time()):
                    continue
                until_s = began_s + self.interval_s * INTERVALS_VALID
                self._held[queue] = _Lock(until_s, link)
                continue
            old = self._held.pop(queue, None)
            if old is not None and old.link is link and old.until_s > began_s:
                log.warning(
                    "the lock of %s was lost before its time: do the broker's locks live shorter than the %g s of "
                    "lock_interval_s (rocketmq.broker.rebalance.lockMaxLiveTime)?", queue, self.interval_s,
                )  # fmt: skip

    def _link(self, broker_name: str) -> Link | None:
        address = self._instance.routes.address(broker_name)
        return None if address is None else self._instance.living_link(address)

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Let others have queues. A broker that is not reached finds out when their time is over."""
        async with anyio.create_task_group() as asking:
            for broker_name, several in _by_broker(queues).items():
                for queue in several:
                    self._held.pop(queue, None)
                asking.start_soon(self._ask, broker_name, RequestCode.UNLOCK_BATCH_MQ, several)

    async def _ask(
        self, broker_name: str, code: RequestCode, queues: Iterable[MessageQueue]
    ) -> frozenset[MessageQueue] | None:
        """The queues that the answer names, None without one."""
        is_lock = code is RequestCode.LOCK_BATCH_MQ
        header = headers.LockBatchMqRequest() if is_lock else headers.UnlockBatchMqRequest()
        body = LockBatchBody(self._group, self._instance.client_id, frozenset(queues))
        try:
            address = self._instance.routes.address(broker_name)
            if address is None:
                raise PeerUnavailable(
                    f"broker {broker_name} has no master in any route; check that it runs and is registered"
                )
            reply = await self._instance.ask(
                address, code, header, bodies.encode(body),
                about=f"group {self._group}", timeout_s=LOCK_TIMEOUT_S,
            )  # fmt: skip
            named = (
                bodies.decode(LockBatchReplyBody, reply.body).lock_ok_mq_set
                if is_lock
                else frozenset()
            )
        except _FAILURES as error:
            if self._failures.get(broker_name) != str(error):
                self._failures[broker_name] = str(error)
                log.warning("locks of queues at broker %s: %s", broker_name, error)
            return None
        self._failures.pop(broker_name, None)
        return named


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found
