"""Who of a group gets which queues: every member computes it alone, so all of them have to compute the same.

In: the ids of all members and all queues of a topic, both sorted. Out: the queues of one member. Pure. Called by
:mod:`.rebalance`. Results are exactly those of Apache's AllocateMessageQueueAveragely,
AllocateMessageQueueAveragelyByCircle and AllocateMessageQueueConsistentHash: members of other languages are in the same
group.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache

from trio_mq.errors import ConfigError
from trio_mq.protocol.bodies import MessageQueue

#: ``(group, own client id, all queues of a topic, ids of all members)`` to the own queues, in the order of Apache's
#: AllocateMessageQueueStrategy.allocate. All members must use the same one.
Strategy = Callable[[str, str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]

#: Points of one member on the ring.
VIRTUAL_NODES = 10
_RINGS_KEPT = 16  # members change seldom, and a ring is asked for once for each topic


def average(
    group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> Sequence[MessageQueue]:
    """Neighbouring queues, as many for each as possible; the first ones get the rest. The default."""
    if client_id not in members:
        return ()
    index = members.index(client_id)
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return queues[start : start + share + (1 if index < rest else 0)]


def by_circle(
    group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> Sequence[MessageQueue]:
    """One queue after another goes round the members."""
    if client_id not in members:
        return ()
    return queues[members.index(client_id) :: len(members)]


def consistent_hash(
    group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> Sequence[MessageQueue]:
    """A queue belongs to the member that follows it on a ring of hashes: few queues move when members change."""
    if client_id not in members:
        return ()
    points, owners = _ring(tuple(members))
    found = []
    for queue in queues:
        at = bisect.bisect_left(points, _hash(_text(queue)))
        if owners[at % len(points)] == client_id:
            found.append(queue)
    return found


@lru_cache(maxsize=_RINGS_KEPT)
def _ring(members: tuple[str, ...]) -> tuple[list[int], list[str]]:
    ring = {
        _hash(f"{member}-{number}"): member for member in members for number in range(VIRTUAL_NODES)
    }
    points = sorted(ring)
    return points, [ring[point] for point in points]


def _text(queue: MessageQueue) -> str:
    """The peers' words for a queue, which their hash is made from."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


_BY_NAME: dict[str, Strategy] = {
    "average": average,
    "by_circle": by_circle,
    "consistent_hash": consistent_hash,
}


def strategy_of(wanted: str | Strategy) -> Strategy:
    """A strategy by its name, or the function that is one already; ConfigError for anything else."""
    if isinstance(wanted, str):
        found = _BY_NAME.get(wanted)
        if found is None:
            names = ", ".join(_BY_NAME)
            raise ConfigError(f"strategy: {wanted!r} is unknown; use one of {names}, or a function")
        return found
    if not callable(wanted):
        raise ConfigError(
            "strategy: a name or a function (group, client_id, queues, members) is needed, "
            f"not {type(wanted).__name__}"
        )
    return wanted
