"""The faces of what brokers ask of clients: running info, direct consumption, offsets; requests, replies, traces.

In: calls of tests. Out: attrs values. The other ends are java/Calls.java and go/calls.go.
"""

from __future__ import annotations

from typing import Any

import attrs

from .drivers import Driver
from .go_client import Go, GoPush
from .java_client import (
    Admin,
    Java,
    Producer,
    Queue,
    Received,
    Sent,
    _Handle,
    _received,
    _sent,
    unique,
)


@attrs.frozen
class RunningInfo:
    """Apache: ConsumerRunningInfo."""

    properties: dict[str, str]
    queues: list[Queue]
    topics: list[str]
    jstack: str | None


@attrs.frozen
class Directly:
    """Apache: ConsumeMessageDirectlyResult."""

    result: str
    order: bool
    autoCommit: bool
    remark: str | None


def running_info(admin: Admin, group: str, client_id: str, *, jstack: bool = False) -> RunningInfo:
    """Through the broker (307)."""
    raw = admin.driver.call(
        "calls.runningInfo", admin=admin.name, group=group, clientId=client_id, jstack=jstack
    )
    queues = [Queue(**q) for q in raw.pop("queues")]
    return RunningInfo(queues=sorted(queues), **raw)


def consume_directly(
    admin: Admin, group: str, client_id: str, topic: str, message_id: str
) -> Directly:
    """Through the broker (309)."""
    raw = admin.driver.call(
        "calls.consumeDirectly", admin=admin.name, group=group, clientId=client_id, topic=topic,
        messageId=message_id,
    )  # fmt: skip
    return Directly(**raw)


def consumer_status(
    admin: Admin, topic: str, group: str, client_id: str = ""
) -> dict[str, dict[int, int]]:
    """Offsets by client id and queue number, as the clients say (223)."""
    raw = admin.driver.call(
        "calls.status", admin=admin.name, topic=topic, group=group, clientId=client_id
    )
    return {client: {row["queue"]: row["offset"] for row in rows} for client, rows in raw.items()}


def ask(
    producer: Producer, message: dict[str, Any], *, form: str = "sync", ttl_ms: int = 10_000
) -> Received:
    """Apache: DefaultMQProducer.request, ``sync`` or ``async``: the reply."""
    raw = producer.driver.call(
        f"request.{form}", producer=producer.name, message=message, ttlMs=ttl_ms
    )
    return _received(raw)


@attrs.define
class Replier(_Handle):
    """A Java consumer that answers requests with their bodies in capitals."""

    def results(self) -> list[Sent]:
        """What the sends of its replies said."""
        return [_sent(r) for r in self.driver.call("reply.results", name=self.name)]


def replier(java: Java, ns: str, topic: str) -> Replier:
    """From the first offset, in a group of its own."""
    handle = Replier(java.driver, unique("replier"), "reply")
    java._start(handle, ns=ns, group=unique("RG"), topic=topic)
    return handle


def go_asker(go: Go, ns: str, topic: str) -> str:
    """The name of a Go producer that the broker knows.

    The Go client makes itself known by heartbeats, and a producer sends its first one after 30 s; with a consumer in
    the same client it is sent at once.
    """
    producer = go.producer(ns)
    beside = GoPush(go.driver, unique("go_beside"), "push")
    go._start(
        beside, ns=ns, group=unique("G"), subscriptions=[[topic, "*"]], instance=producer.name
    )
    return producer.name


def go_ask(go: Go, name: str, message: dict[str, Any], *, form: str = "request") -> str:
    """Go: Producer.Request or ``requestAsync``: the body of the reply."""
    return go.driver.call(f"producer.{form}", name=name, messages=[message], timeoutMs=15_000)


@attrs.define
class GoReplier:
    """A Go consumer that answers requests with their bodies in capitals."""

    driver: Driver
    name: str
    kind: str = "reply"

    def results(self) -> list[dict[str, Any]]:
        """What the sends of its replies said."""
        return self.driver.call("reply.results", name=self.name)


def go_replier(go: Go, ns: str, topic: str) -> GoReplier:
    """From the first offset, in a group of its own."""
    handle = GoReplier(go.driver, unique("go_replier"))
    go._start(handle, ns=ns, group=unique("RG"), topic=topic)
    return handle


@attrs.define
class Traced(_Handle):
    """A Java producer that traces what it does."""

    def send(self, message: dict[str, Any]) -> Sent:
        """Plainly."""
        return _sent(self.driver.call("traced.send", producer=self.name, message=message))

    def recall(self, topic: str, handle: str) -> str:
        """The id of the message that was taken back."""
        return self.driver.call("traced.recall", producer=self.name, topic=topic, handle=handle)


def traced(java: Java, ns: str, group: str, trace_topic: str) -> Traced:
    """Apache: new DefaultMQProducer(group, true, traceTopic)."""
    handle = Traced(java.driver, unique("traced"), "traced")
    java._start(handle, ns=ns, group=group, traceTopic=trace_topic)
    return handle


def traced_consumer(java: Java, ns: str, group: str, topic: str, trace_topic: str) -> _Handle:
    """A push consumer that traces; from the first offset."""
    handle = _Handle(java.driver, unique("traced_consumer"), "tracedConsumer")
    java._start(handle, ns=ns, group=group, topic=topic, traceTopic=trace_topic)
    return handle


def trace_records(body: str) -> list[list[str]]:
    """The records of one trace message, each a list of its fields."""
    return [record.split("\x01") for record in body.split("\x02") if record]


@attrs.frozen(order=True)
class Work:
    """One message that an orderly consumer worked on, from ``began_ms`` to ``ended_ms`` of the wall clock."""

    queue: int
    began_ms: int
    ended_ms: int
    number: int
    consumer: str


@attrs.define
class Orderly:
    """An orderly consumer, Java or Go, of messages whose bodies are numbers."""

    driver: Driver
    name: str
    key: str
    kind: str = "orderly"

    def stop(self) -> None:
        """Shut down and forget; a second time does nothing."""
        self.driver.call("orderly.stop", name=self.name)

    leave = stop

    def halt(self) -> None:
        """Shut down, but keep what it received."""
        self.driver.call("orderly.halt", **{self.key: self.name})

    def works(self) -> list[Work]:
        """All so far."""
        rows = self.driver.call("orderly.received", **{self.key: self.name})
        return [
            Work(queue, began, ended, int(body), self.name) for queue, body, began, ended in rows
        ]


def orderly(client: Java | Go, ns: str, group: str, topic: str, work_ms: int = 3) -> Orderly:
    """From the first offset; each message takes ``work_ms``."""
    handle = Orderly(
        client.driver, unique("orderly"), "consumer" if isinstance(client, Java) else "name"
    )
    client._start(handle, ns=ns, group=group, topic=topic, workMs=work_ms, timeoutMs=work_ms)
    return handle
