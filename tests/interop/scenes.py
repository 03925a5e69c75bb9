"""Steps that many rows share: a consumer that is ready, and "exactly so many, and nothing after them"."""

from __future__ import annotations

from collections.abc import Sequence

from .conftest import Cluster
from .java_client import (
    Java,
    Push,
    Queue,
    expect_together,
    together,
    wait_all_queues,
    wait_assigned,
)
from .polling import sleep, wait_for
from .raw import RawClient, Record, Sender, pull_fields, records

QUIET_S = 0.4


def push(
    java: Java,
    cluster: Cluster,
    *subscriptions: tuple[str, str | None],
    group: str | None = None,
    **settings: object,
) -> Push:
    """A push consumer alone in its group (a new one if not given) that works on all queues of its topics."""
    consumer = java.push(cluster.ns, group or cluster.group(), *subscriptions, **settings)
    for topic, _ in subscriptions:
        queues = len(cluster.admin.stats(topic))
        wait_all_queues([consumer], topic, queues)
    return consumer


def members(
    java: Java,
    cluster: Cluster,
    topic: str,
    count: int,
    group: str | None = None,
    **settings: object,
) -> list[Push]:
    """Several consumers of one group on ``*`` that share all queues of a topic."""
    group = group or cluster.group()
    consumers = [java.push(cluster.ns, group, (topic, "*"), **settings) for _ in range(count)]
    wait_assigned(consumers, topic, len(cluster.admin.stats(topic)))
    return consumers


def exactly(consumers: Push | Sequence[Push], count: int, timeout_s: float = 60.0) -> None:
    """They get so many messages together, and a moment later it is still as many."""
    consumers = [consumers] if isinstance(consumers, Push) else list(consumers)
    expect_together(consumers, count, timeout_s)
    sleep(QUIET_S)
    assert together(consumers, 0, 0) == count, (
        "nothing comes twice, and nothing that was not wanted"
    )


def bodies(messages: Sequence[dict[str, object]]) -> list[str]:
    """Sorted bodies of messages that were sent."""
    return sorted(str(m["body"]) for m in messages)


def got(*consumers: Push) -> list[str]:
    """Sorted bodies of all that the consumers received."""
    return sorted(b for c in consumers for b in c.bodies())


def stored(client: RawClient, topic: str, count: int, queues: int = 8) -> list[Record]:
    """Everything in a topic at one broker, pulled by hand, once ``count`` messages are there.

    The queues follow the log by a moment, so an answer to a send is no promise that a pull finds the message.
    """
    found: list[Record] = []

    def enough() -> bool:
        found[:] = [r for queue in range(queues) for r in _in_queue(client, topic, queue)]
        return len(found) >= count

    wait_for(enough, f"{count} messages in {topic}", timeout_s=10)
    return found


def _in_queue(client: RawClient, topic: str, queue: int) -> list[Record]:
    out: list[Record] = []
    while True:
        reply = client.call(11, pull_fields("TOOLS_CONSUMER", topic, queue, len(out)))
        if reply.code != 0:
            return out
        out += records(reply.body)


def total(cluster: Cluster, topic: str) -> int:
    """Messages in a topic, by its statistics."""
    return sum(q["max"] - q["min"] for q in cluster.admin.stats(topic))


def wait_total(cluster: Cluster, topic: str, count: int) -> None:
    """Until that many are in the queues: the queues follow the log by a moment."""
    wait_for(lambda: total(cluster, topic) == count, f"{count} messages in {topic}", timeout_s=10)


def sender(cluster: Cluster, topic: str, broker: int = 0) -> Sender:
    """Sends by hand to one broker; close its client at the end."""
    return Sender(RawClient(cluster.brokers[broker].address), topic)


def all_queues(topic: str, cluster: Cluster, queues: int = 8) -> list[Queue]:
    """Queues of a topic on every broker."""
    return [Queue(topic, b.name, q) for b in cluster.brokers for q in range(queues)]
