"""A load that goes on while brokers are killed, and what must have become of its messages.

In: a pair or a name server, a topic. Out: how many messages were acknowledged, which of them are missing, and which
copies there are, by cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from tests.interop.java_client import Acked, Background, Java, Queue, Received
from tests.interop.polling import wait_for


@attrs.define
class Load:
    """An application that sends message after message, and sends one again until it is acknowledged."""

    background: Background
    topic: str

    def count(self) -> int:
        """Acknowledged so far."""
        return self.background.count()

    def wait_more(self, messages: int, timeout_s: float = 60.0) -> None:
        """Until so many more are acknowledged."""
        goal = self.count() + messages
        wait_for(
            lambda: self.count() >= goal,
            f"{messages} more messages of the load",
            timeout_s=timeout_s,
        )

    def stop(self) -> tuple[list[Acked], list[str]]:
        """What was acknowledged, and the bodies of sends that failed, once for each time."""
        return self.background.stop()


def load(java: Java, ns: str, topic: str, *, gap_ms: int = 2, filler: int = 500) -> Load:
    """Start one."""
    producer = java.producer(ns, timeoutMs=1000, retries=0)
    background = producer.background(
        topic, prefix="m:", first=0, gapMs=gap_ms, filler=filler, insist=True
    )
    started = Load(background, topic)
    started.wait_more(50)
    return started


def body(message: Received) -> str:
    """Without its filler."""
    return (message.body or "").rstrip("x")


@attrs.frozen
class Verdict:
    """Counts of one load. ``sent_twice``: bodies that are in the log more often than once, since a send failed whose
    message had been stored; ``read_twice``: receipts of a message that was received before.
    """

    acked: int
    lost: list[str]
    sent_twice: int
    read_twice: int
    strangers: list[str]


def verdict(acked: Sequence[Acked], failed: Iterable[str], received: Sequence[Received]) -> Verdict:
    """Compare what was sent with what some consumer, or a walk through the queues, got."""
    places = Counter((m.queue, m.queue_offset, body(m)) for m in received)
    copies = Counter(b for _, _, b in places)
    return Verdict(
        acked=len(acked),
        lost=sorted({a.body for a in acked} - copies.keys()),
        sent_twice=sum(n - 1 for n in copies.values()),
        read_twice=sum(n - 1 for n in places.values()),
        strangers=sorted(copies.keys() - {a.body for a in acked} - set(failed)),
    )


def check(acked: Sequence[Acked], failed: Sequence[str], received: Sequence[Received]) -> Verdict:
    """Nothing acknowledged is lost, and every copy in the log comes from a send that was told to have failed."""
    found = verdict(acked, failed, received)
    assert not found.lost, f"{len(found.lost)} of {found.acked} are lost: {found.lost[:5]}"
    assert not found.strangers, found.strangers[:5]
    assert found.sent_twice <= len(failed), (
        f"{found.sent_twice} copies after {len(failed)} failures"
    )
    return found


def everything(java: Java, ns: str, topic: str, broker: str, queues: int = 4) -> list[Received]:
    """All messages of a topic, read from its queues."""
    consumer = java.pull(ns, "ReadAll")
    found, _ = consumer.drain([Queue(topic, broker, q) for q in range(queues)])
    consumer.leave()
    return found
