"""Which queue the next try of a send goes to: by turns, not to the broker that just failed, by key, by latency.

In: the queues of a topic, what became of earlier sends. Out: one queue. Called by :mod:`.sending`. Pure: the time is
an argument, in seconds of any clock that only moves forward. Source of the rules: Apache TopicPublishInfo,
MQFaultStrategy, LatencyFaultToleranceImpl (without its detector, which is off by default), SelectMessageQueueByHash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.message import java_hash

#: From this latency on, a broker is avoided for so long (Apache: latencyMax, notAvailableDuration).
PENALTIES_S: Final = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))
#: What a failure counts as.
FAILURE_LATENCY_S: Final = 10.0


def penalty_s(latency_s: float) -> float:
    """How long a broker that took `latency_s` is avoided."""
    for least_s, avoided_s in PENALTIES_S:
        if latency_s >= least_s:
            return avoided_s
    return 0.0


def queue_by_key(key: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """The queue of all messages with that sharding key, the same one that Java producers choose."""
    return queues[abs(java_hash(key)) % len(queues)]


@attrs.define
class Turns:
    """Whose turn it is among the queues of a topic. `at` starts anywhere, so that producers do not move in step."""

    at: int

    def next(
        self, queues: Sequence[MessageQueue], usable: Callable[[str], bool] | None = None
    ) -> MessageQueue | None:
        """The next queue on a broker that is `usable`; None when there is none."""
        for _ in range(len(queues)):
            self.at += 1
            queue = queues[self.at % len(queues)]
            if usable is None or usable(queue.broker_name):
                return queue
        return None


@attrs.define
class Faults:
    """Brokers that were slow or failed, until when they are avoided."""

    _avoided_until_s: dict[str, float] = attrs.field(factory=dict)

    def note(self, broker_name: str, latency_s: float, now_s: float, *, failed: bool) -> None:
        """A try took `latency_s`. A good answer shortens no penalty that runs."""
        avoided_s = penalty_s(FAILURE_LATENCY_S if failed else latency_s)
        if avoided_s > 0:
            until_s = now_s + avoided_s
            self._avoided_until_s[broker_name] = max(
                until_s, self._avoided_until_s.get(broker_name, until_s)
            )

    def avoids(self, broker_name: str, now_s: float) -> bool:
        """Whether another broker is better now."""
        return self._avoided_until_s.get(broker_name, now_s) > now_s


def choose(
    queues: Sequence[MessageQueue],
    turns: Turns,
    *,
    failed_broker: str | None = None,
    faults: Faults | None = None,
    now_s: float = 0.0,
) -> MessageQueue:
    """The queue for the next try: on a broker that is not avoided and did not just fail, else on any other one, else
    on any. `queues` is not empty; `faults` are looked at where they are given.
    """
    found = None
    if faults is not None:
        found = turns.next(
            queues, lambda name: name != failed_broker and not faults.avoids(name, now_s)
        )
    if found is None and failed_broker is not None:
        found = turns.next(queues, lambda name: name != failed_broker)
    return found or turns.next(queues) or queues[0]
