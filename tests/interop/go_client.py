"""A typed face of the Go driver: the producer, push and pull consumer of Apache's Go client v2.

In: calls of tests. Out: attrs values. Formats of the dialogue: go/main.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from .drivers import Driver
from .java_client import unique

SEND_OK = 0


@attrs.frozen
class GoSent:
    """Go: primitive.SendResult."""

    status: int
    msgId: str
    offsetMsgId: str
    queueOffset: int
    broker: str
    queue: int


@attrs.frozen
class GoReceived:
    """Go: primitive.MessageExt."""

    topic: str
    queue: int
    queueOffset: int
    msgId: str
    offsetMsgId: str
    body: str
    properties: dict[str, str]


@attrs.frozen
class GoPulled:
    """Go: primitive.PullResult; status 0 found, 1 no new message, 2 no match, 3 offset illegal."""

    status: int
    next: int
    min: int
    max: int
    messages: list[GoReceived]


@attrs.define
class _Handle:
    driver: Driver
    name: str
    kind: str

    def stop(self) -> None:
        """Shut down; a second time does nothing."""
        self.driver.call(f"{self.kind}.stop", name=self.name)


@attrs.define
class GoProducer(_Handle):
    """Go: rocketmq.Producer."""

    def send(self, messages: Sequence[dict[str, Any]], mode: str = "sync") -> list[GoSent]:
        """``mode``: sync, async, oneway (no results) or batch (one result)."""
        raw = self.driver.call("producer.send", name=self.name, mode=mode, messages=list(messages))
        results = [GoSent(**r) for r in raw]
        assert all(r.status == SEND_OK for r in results)
        return results


@attrs.define
class GoPush(_Handle):
    """Go: rocketmq.PushConsumer."""

    def received(self) -> list[GoReceived]:
        """All so far."""
        return [GoReceived(**r) for r in self.driver.call("push.received", name=self.name)]

    def bodies(self) -> list[str]:
        """Sorted bodies of all so far."""
        return sorted(r.body for r in self.received())


@attrs.define
class GoPull(_Handle):
    """Go: rocketmq.PullConsumer."""

    def poll(self, count: int, timeout_s: float = 30.0) -> list[GoReceived]:
        """Poll and acknowledge until so many have come or the time is over."""
        raw = self.driver.call(
            "pull.poll",
            timeout_s + 30,
            name=self.name,
            count=count,
            timeoutMs=int(timeout_s * 1000),
        )
        return [GoReceived(**r) for r in raw]

    def pull_from(self, topic: str, broker: str, queue: int, offset: int, count: int) -> GoPulled:
        """One pull of one queue."""
        raw = self.driver.call(
            "pull.from", name=self.name, topic=topic, broker=broker, queueId=queue, offset=offset,
            count=count,
        )  # fmt: skip
        messages = [GoReceived(**m) for m in raw.pop("messages")]
        return GoPulled(messages=messages, **raw)


def wait_go(consumers: Sequence[GoPush], count: int, timeout_s: float = 60.0) -> None:
    """Until the consumers together have so many."""
    names = ",".join(c.name for c in consumers)
    seen = consumers[0].driver.call(
        "push.wait", timeout_s + 30, name=names, count=count, timeoutMs=int(timeout_s * 1000)
    )
    assert seen >= count, f"{seen} of {count} messages within {timeout_s} s"


@attrs.define
class Go:
    """Makes clients in the driver and shuts down what a test left open."""

    driver: Driver
    open: list[_Handle] = attrs.field(factory=list)

    def _start(self, handle: Any, **arguments: Any) -> Any:
        arguments.setdefault("instance", handle.name)
        self.driver.call(f"{handle.kind}.start", name=handle.name, **arguments)
        self.open.append(handle)
        return handle

    def producer(self, ns: str) -> GoProducer:
        """In a group of its own."""
        handle = GoProducer(self.driver, unique("go_producer"), "producer")
        return self._start(handle, ns=ns, group=unique("GP"))

    def push(
        self, ns: str, group: str, *subscriptions: tuple[str, str], first: bool = False,
        broadcast: bool = False, orderly: bool = False,
    ) -> GoPush:  # fmt: skip
        """Start at the first or the last offset."""
        handle = GoPush(self.driver, unique("go_push"), "push")
        return self._start(
            handle, ns=ns, group=group, subscriptions=[list(s) for s in subscriptions], first=first,
            broadcast=broadcast, orderly=orderly,
        )  # fmt: skip

    def pull(self, ns: str, group: str, topic: str, expression: str = "*") -> GoPull:
        """Starts at the first offset."""
        handle = GoPull(self.driver, unique("go_pull"), "pull")
        return self._start(
            handle, ns=ns, group=group, subscriptions=[[topic, expression]], first=True
        )

    def close(self) -> None:
        """Shut down all that is still open."""
        pending = [self.driver.begin(f"{h.kind}.stop", name=h.name) for h in reversed(self.open)]
        self.open.clear()
        for stop in pending:
            stop.result()
