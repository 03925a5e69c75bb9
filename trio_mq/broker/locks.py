"""Queue locks of ordered consumers: one client of a group at a time for each queue.

In: lock and unlock requests with the present moment on a monotonic clock, in seconds. Out: which
queues a client holds, which were refused, and who lost a lock. Called by the client processor, and
by the send processor, which asks whether a group is an ordered one. Nothing here is saved: after a
restart clients lock again. Rules: Apache RebalanceLockManager.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from trio_mq.protocol.jsondialect import MessageQueue

log = logging.getLogger("trio_mq.broker.locks")

LOCK_LIFE_S: Final = 60.0
"""How long a lock lives without renewal; clients renew every 20 s."""

REMEMBERED_LOSSES: Final = 100
"""Lost locks that are kept for the status; older ones are in the log only."""


@attrs.frozen
class LostLock:
    """A client failed to renew a lock in time.

    `renewed_s` and `noticed_s` are moments of the clock that was passed in. `taken_by` is the
    client that has the lock now: another one, the same one again, or nobody yet.
    """

    group: str
    queue: MessageQueue
    client_id: str
    renewed_s: float
    noticed_s: float
    taken_by: str | None

    def text(self, now_s: float) -> str:
        """For the status: who lost what, and how long ago that was noticed."""
        return (
            f"{self.group}: {self.client_id} lost {self.queue.topic} queue {self.queue.queue_id} "
            f"{now_s - self.noticed_s:.0f} s ago, {self.noticed_s - self.renewed_s:.0f} s after its last "
            f"renewal, to {self.taken_by or 'nobody'}"
        )


@attrs.frozen
class Holder:
    """A client of a group, and the queues of one topic that it holds; renewed last at `renewed_s`."""

    group: str
    client_id: str
    topic: str
    queue_ids: tuple[int, ...]
    renewed_s: float

    def text(self, now_s: float) -> str:
        """For the status: who holds what, and how long ago the oldest of these locks was renewed."""
        return (
            f"{self.group}: {self.client_id} holds {self.topic} queues {_ranges(self.queue_ids)}, "
            f"renewed {now_s - self.renewed_s:.0f} s ago"
        )


@attrs.frozen
class LockOutcome:
    """Answer to a lock request: queues now held by the client, and queues with their owners."""

    held: tuple[MessageQueue, ...]
    refused: tuple[tuple[MessageQueue, str], ...] = ()
    lost: tuple[LostLock, ...] = ()


@attrs.define
class _Lock:
    client_id: str
    renewed_s: float


class QueueLocks:
    """Locks by group and queue. Moments are seconds of one monotonic clock."""

    def __init__(self, life_s: float = LOCK_LIFE_S) -> None:
        self._life_s = life_s
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self.recent_losses: deque[LostLock] = deque(maxlen=REMEMBERED_LOSSES)

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_s: float
    ) -> LockOutcome:
        """Lock or renew queues for a client; a lock that was not renewed in time is free."""
        table = self._groups.setdefault(group, {})
        held: list[MessageQueue] = []
        refused: list[tuple[MessageQueue, str]] = []
        lost: list[LostLock] = []
        for queue in queues:
            lock = table.get(queue)
            if lock is None:
                table[queue] = _Lock(client_id, now_s)
            elif self._expired(lock, now_s):
                lost.append(self._lose(group, queue, lock, now_s, taken_by=client_id))
                table[queue] = _Lock(client_id, now_s)
            elif lock.client_id == client_id:
                lock.renewed_s = now_s
            else:
                refused.append((queue, lock.client_id))
                continue
            held.append(queue)
        if not table:
            del self._groups[group]
        return LockOutcome(tuple(held), tuple(refused), tuple(lost))

    def unlock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Let go of those of the queues that the client holds; returns them."""
        table = self._groups.get(group, {})
        mine = [q for q in queues if (lock := table.get(q)) and lock.client_id == client_id]
        for queue in mine:
            del table[queue]
        if not table:
            self._groups.pop(group, None)
        return mine

    def release_client(self, group: str, client_id: str) -> list[MessageQueue]:
        """Let go of all that a client holds, when it says that it leaves.

        A connection that merely closes keeps its locks until they expire: the client may still be
        working on messages, and nobody else may get later ones before it is done.
        """
        return self.unlock(group, client_id, list(self._groups.get(group, {})))

    def owner(self, group: str, queue: MessageQueue, now_s: float) -> str | None:
        """The client that holds a queue now."""
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or self._expired(lock, now_s) else lock.client_id

    def holders(self, now_s: float) -> list[Holder]:
        """Who holds which queues now, by group, client and topic."""
        found: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
        for group, queue, lock in self._all():
            if not self._expired(lock, now_s):
                key = (group, lock.client_id, queue.topic)
                found.setdefault(key, []).append((queue.queue_id, lock.renewed_s))
        return [
            Holder(*key, tuple(sorted(id_ for id_, _ in held)), min(s for _, s in held))
            for key, held in sorted(found.items())
        ]

    def any_held(self, group: str, now_s: float) -> bool:
        """Whether a client of the group holds any queue: the group consumes in order."""
        return any(not self._expired(lock, now_s) for lock in self._groups.get(group, {}).values())

    def expire(self, now_s: float) -> list[LostLock]:
        """Drop locks that were not renewed in time, and say who lost them."""
        lost = [
            self._lose(group, queue, lock, now_s, taken_by=None)
            for group, queue, lock in self._all()
            if self._expired(lock, now_s)
        ]
        for loss in lost:
            table = self._groups[loss.group]
            del table[loss.queue]
            if not table:
                del self._groups[loss.group]
        return lost

    def _all(self) -> Iterator[tuple[str, MessageQueue, _Lock]]:
        for group, table in self._groups.items():
            for queue, lock in table.items():
                yield group, queue, lock

    def _expired(self, lock: _Lock, now_s: float) -> bool:
        return now_s - lock.renewed_s > self._life_s

    def _lose(
        self, group: str, queue: MessageQueue, lock: _Lock, now_s: float, *, taken_by: str | None
    ) -> LostLock:
        lost = LostLock(group, queue, lock.client_id, lock.renewed_s, now_s, taken_by)
        self.recent_losses.append(lost)
        log.warning(
            "group %s: client %s lost its lock on %s queue %d, last renewed %.1f s ago "
            "(locks live %.1f s); now held by %s",
            group,
            lock.client_id,
            queue.topic,
            queue.queue_id,
            now_s - lock.renewed_s,
            self._life_s,
            taken_by or "nobody",
        )
        return lost


def _ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as text, neighbours together: 0-3,7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
