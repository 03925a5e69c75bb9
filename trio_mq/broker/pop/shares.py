"""Which queues of a topic each consumer of a group reads, where the broker decides that.

In: the queues of a topic and the client ids of a group, both sorted, and one of these ids. Out: the queues of that
client. Pure. Called by the assignment processor. All brokers come to the same result without talking to each other,
since all see the same clients. Rules: Apache AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle,
QueryAssignmentProcessor.allocate4Pop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from trio_mq.protocol.jsondialect import MessageQueue

Queues = list[MessageQueue]
Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], Queues]


def average(queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str) -> Queues:
    """Equal parts in one piece each; the first clients get one more when it does not come out even."""
    if client_id not in client_ids:
        return []
    number, rest = client_ids.index(client_id), len(queues) % len(client_ids)
    size = len(queues) // len(client_ids)
    start = number * size + min(number, rest)
    return list(queues[start : start + size + (number < rest)])


def by_circle(queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str) -> Queues:
    """Queues dealt out one by one, as cards."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


STRATEGIES: Final[Mapping[str, Strategy]] = {"AVG": average, "AVG_BY_CIRCLE": by_circle}
"""By the names that clients use."""


def share_for_pop(
    strategy: Strategy,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    client_id: str,
    share_queue_num: int,
) -> Queues:
    """Queues of a client that pops: its own, and those of the `share_queue_num` clients behind it.

    With 0 or less, or with as many as there are others, everybody pops everything: one entry for each broker, with
    queue id -1. With more clients than queues each has one queue.
    """
    count = len(client_ids)
    if share_queue_num <= 0 or share_queue_num >= count - 1:
        return list(dict.fromkeys(attrs.evolve(queue, queue_id=-1) for queue in queues))
    if client_id not in client_ids:
        return []
    number = client_ids.index(client_id)
    if count > len(queues):
        return [queues[number % len(queues)]]
    shared = [client_ids[(number + more) % count] for more in range(share_queue_num + 1)]
    found = [queue for one in shared for queue in strategy(queues, client_ids, one)]
    return list(dict.fromkeys(found))
