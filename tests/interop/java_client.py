"""A typed face of the Java driver: Apache's producer, push, pull, lite pull consumer and admin client.

In: calls of tests. Out: attrs values. Names follow Apache's classes (Apache: DefaultMQProducer,
DefaultMQPushConsumer, DefaultMQPullConsumer, DefaultLitePullConsumer, DefaultMQAdminExt).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from .drivers import ClientError, Driver, Pending
from .polling import wait_for

_NAMES = itertools.count(1)


def unique(prefix: str) -> str:
    """A name that no other client, topic or group of any run has."""
    return f"{prefix}_{os.getpid()}_{next(_NAMES)}"


@attrs.frozen(order=True)
class Queue:
    """Apache: MessageQueue."""

    topic: str
    broker: str
    queue: int

    def wire(self) -> dict[str, Any]:
        """As the driver takes it."""
        return attrs.asdict(self)


@attrs.frozen
class Sent:
    """One send: a result, or ``error``."""

    status: str = ""
    msg_id: str = ""
    offset_msg_id: str = ""
    broker: str = ""
    queue: int = -1
    queue_offset: int = -1
    transaction_id: str | None = None
    error: ClientError | None = None
    thrown: bool = False

    @property
    def ok(self) -> bool:
        """SEND_OK."""
        return self.status == "SEND_OK"


@attrs.frozen
class Received:
    """One message as a client sees it; ``body`` is None above 4096 bytes."""

    topic: str
    broker: str | None
    queue: int
    queue_offset: int
    log_offset: int
    msg_id: str
    body: str | None
    body_length: int
    body_crc32: int
    store_size: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    properties: dict[str, str]

    @property
    def tags(self) -> str | None:
        """Property TAGS."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> str | None:
        """Property KEYS."""
        return self.properties.get("KEYS")


def _snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name)


def _received(raw: dict[str, Any]) -> Received:
    return Received(**{_snake(k): v for k, v in raw.items()})


def _sent(raw: dict[str, Any] | None) -> Sent:
    if raw is None:
        return Sent()
    if "error" in raw:
        e = raw["error"]
        error = ClientError(e["type"], e["code"], e["message"])
        return Sent(error=error, thrown=raw.get("thrown", False))
    known = {a.name for a in attrs.fields(Sent)}
    return Sent(**{_snake(k): v for k, v in raw.items() if _snake(k) in known})


def _queue(raw: dict[str, Any]) -> Queue:
    return Queue(raw["topic"], raw["broker"], raw["queue"])


def text(topic: str, body: str, **fields: Any) -> dict[str, Any]:
    """A message: ``tags``, ``keys``, ``flag``, ``wait``, ``buyer``, ``delayLevel``, ``props`` as wanted."""
    return {"topic": topic, "body": body, **fields}


def texts(topic: str, count: int, prefix: str = "m", **fields: Any) -> list[dict[str, Any]]:
    """``count`` messages with different bodies; prefix them differently when a test sends twice."""
    return [text(topic, f"{prefix}-{i}", **fields) for i in range(count)]


@attrs.define
class _Handle:
    driver: Driver
    name: str
    kind: str

    def stop(self) -> None:
        """Shut the client down to its end; a second time does nothing."""
        self.driver.call(f"{self.kind}.stop", name=self.name)

    def leave(self) -> None:
        """Shut down without waiting: the farewell goes out at once, the rest takes some time."""
        self.driver.begin(f"{self.kind}.stop", name=self.name).forget()


@attrs.define
class Producer(_Handle):
    """Apache: DefaultMQProducer."""

    def send_all(
        self,
        messages: Sequence[dict[str, Any]],
        mode: str = "sync",
        to: Queue | None = None,
        by_selector: bool = False,
        callback_s: float = 10.0,
        gap_ms: int = 0,
    ) -> SendReport:
        """Send each; ``mode`` is sync, async or oneway. For async it waits for the callbacks."""
        raw = self.driver.call(
            "producer.send", 120 + callback_s, producer=self.name, mode=mode, messages=list(messages),
            to=to and to.wire(), bySelector=by_selector, callbackMs=int(callback_s * 1000), gapMs=gap_ms,
        )  # fmt: skip
        return SendReport([_sent(r) for r in raw["results"]], raw["complete"], raw["shown"])

    def send(self, message: dict[str, Any], to: Queue | None = None) -> Sent:
        """One synchronous send; raises what the client throws."""
        result = self.send_all([message], to=to).results[0]
        if result.error is not None:
            raise result.error
        return result

    def send_ok(
        self, messages: Sequence[dict[str, Any]], to: Queue | None = None, **options: Any
    ) -> list[Sent]:
        """Send all and expect SEND_OK for each."""
        report = self.send_all(messages, to=to, **options)
        assert report.complete, "every callback came"
        assert all(r.ok for r in report.results), [r for r in report.results if not r.ok][:3]
        return report.results

    def batch(self, messages: Sequence[dict[str, Any]], to: Queue | None = None) -> Sent:
        """All in one request."""
        raw = self.driver.call(
            "producer.batch", producer=self.name, messages=list(messages), topic=to and to.topic,
            to=to and to.wire(),
        )  # fmt: skip
        return _sent(raw)

    def odd(self, kind: str, topic: str) -> Sent:
        """A call that the client has to refuse; see Producers.java for the kinds."""
        return _sent(self.driver.call("producer.odd", producer=self.name, kind=kind, topic=topic))

    def queues(self, topic: str) -> list[Queue]:
        """Queues that can be sent to."""
        return sorted(
            map(_queue, self.driver.call("producer.queues", producer=self.name, topic=topic))
        )

    def background(self, topic: str, **options: Any) -> Background:
        """Start sending in the background; see Producers.java."""
        name = unique("bg")
        queues = options.pop("queues", None)
        self.driver.call(
            "background.start", name=name, producer=self.name, topic=topic,
            queues=queues and [q.wire() for q in queues], **options,
        )  # fmt: skip
        return Background(self.driver, name)


@attrs.frozen
class SendReport:
    """Results in the order of the messages; ``shown``: number of queues that the selector saw."""

    results: list[Sent]
    complete: bool
    shown: int


@attrs.frozen(order=True)
class Acked:
    """One acknowledged send of a background sender."""

    broker: str
    queue: int
    queue_offset: int
    body: str


@attrs.define
class Background:
    """A sender at work."""

    driver: Driver
    name: str

    def count(self) -> int:
        """Acknowledged so far."""
        return self.driver.call("background.count", name=self.name)

    def errors(self) -> dict[str, int]:
        """Texts of failures, and how often each came."""
        return self.driver.call("background.errors", name=self.name)

    def stop(self) -> tuple[list[Acked], list[str]]:
        """Stop now: the acknowledged, and the bodies whose fate is unknown."""
        return self._end("background.stop")

    def join(self, timeout_s: float = 120.0) -> tuple[list[Acked], list[str]]:
        """Wait until all are sent."""
        return self._end("background.join", timeout_s)

    def _end(self, op: str, timeout_s: float = 120.0) -> tuple[list[Acked], list[str]]:
        raw = self.driver.call(op, timeout_s, name=self.name)
        assert all(a[0] == "SEND_OK" for a in raw["acked"]), "every answer was SEND_OK"
        return [Acked(*a[1:]) for a in raw["acked"]], raw["unknown"]


@attrs.define
class Push(_Handle):
    """Apache: DefaultMQPushConsumer. ``client_id`` is what the broker lists."""

    client_id: str = ""

    def received(self, start: int = 0) -> list[Received]:
        """All messages since the start, or from one number on."""
        return [
            _received(r)
            for r in self.driver.call("push.received", consumer=self.name, **{"from": start})
        ]

    def bodies(self, start: int = 0) -> list[str]:
        """Bodies in the order of arrival."""
        return [r.body or "" for r in self.received(start)]

    def count(self) -> int:
        """How many so far."""
        return together([self], 0, timeout_s=0)

    def wait(self, count: int, timeout_s: float = 60.0, distinct: bool = False) -> None:
        """Until so many have come."""
        expect_together([self], count, timeout_s, distinct)

    def subscribe(self, topic: str, expression: str | None = "*") -> None:
        """At run time."""
        self.driver.call("push.subscribe", consumer=self.name, topic=topic, expression=expression)

    def hold(self, held: bool) -> None:
        """While held, the listener does not return and nothing counts as received."""
        self.driver.call("push.hold", consumer=self.name, held=held)

    def assigned(self, topic: str) -> list[Queue]:
        """Queues that it works on now."""
        return assigned([self], topic)[0]

    def changes(self) -> list[dict[str, Any]]:
        """Calls of its queue-change listener."""
        return self.driver.call("push.changes", consumer=self.name)

    def halt(self) -> None:
        """Shut down without waiting for the end; what was received can still be asked for."""
        self.driver.begin("push.halt", consumer=self.name).forget()

    def rebalance(self) -> None:
        """Share queues out now rather than at the client's next 20 s."""
        self.driver.call("push.rebalance", consumer=self.name)

    def persist(self) -> None:
        """Commit offsets to the broker now rather than at the next period."""
        self.driver.call("push.persist", consumer=self.name)


def together(
    consumers: Sequence[Push], count: int, timeout_s: float, distinct: bool = False
) -> int:
    """Wait until the consumers together have ``count`` messages (different bodies with ``distinct``)."""
    return consumers[0].driver.call(
        "push.wait", timeout_s + 30, consumers=[c.name for c in consumers], count=count,
        timeoutMs=int(timeout_s * 1000), distinct=distinct,
    )  # fmt: skip


def expect_together(
    consumers: Sequence[Push], count: int, timeout_s: float = 60.0, distinct: bool = False
) -> None:
    """As :func:`together`, and fail when they have fewer."""
    seen = together(consumers, count, timeout_s, distinct)
    assert seen >= count, f"{seen} of {count} messages within {timeout_s} s"


def assigned(consumers: Sequence[Push], topic: str) -> list[list[Queue]]:
    """Queues of each consumer."""
    raw = consumers[0].driver.call(
        "push.assigned", consumers=[c.name for c in consumers], topic=topic
    )
    return [[_queue(q) for q in raw[c.name]] for c in consumers]


def wait_assigned(
    consumers: Sequence[Push], topic: str, queues: int, timeout_s: float = 40.0
) -> None:
    """Until every queue has exactly one owner among the consumers, and the shares differ by one at most."""

    def balanced() -> bool:
        shares = assigned(consumers, topic)
        flat = [q for share in shares for q in share]
        sizes = [len(share) for share in shares]
        return len(flat) == len(set(flat)) == queues and max(sizes) - min(sizes) <= 1

    wait_for(balanced, f"{len(consumers)} consumers share {queues} queues", timeout_s=timeout_s)


def wait_all_queues(
    consumers: Iterable[Push], topic: str, queues: int, timeout_s: float = 40.0
) -> None:
    """Until each consumer has all queues: broadcasting, or a group of one each."""
    for consumer in consumers:
        wait_for(
            lambda c=consumer: len(c.assigned(topic)) == queues,
            f"a consumer has all {queues} queues",
            timeout_s=timeout_s,
        )


@attrs.frozen
class Pulled:
    """Apache: PullResult."""

    status: str
    next: int
    min: int
    max: int
    messages: list[Received]


@attrs.define
class Pull(_Handle):
    """Apache: DefaultMQPullConsumer."""

    def queues(self, topic: str) -> list[Queue]:
        """Queues that can be read."""
        return [_queue(q) for q in self.driver.call("pull.queues", consumer=self.name, topic=topic)]

    def pull(
        self, queue: Queue, offset: int, count: int = 32, expression: str = "*", block: bool = False
    ) -> Pulled:
        """One pull; with ``block`` the broker holds it until something arrives."""
        raw = self.driver.call(
            "pull.pull", consumer=self.name, queue=queue.wire(), offset=offset, max=count,
            expression=expression, block=block,
        )  # fmt: skip
        messages = [_received(m) for m in raw.pop("messages")]
        return Pulled(messages=messages, **raw)

    def begin_pull(self, queue: Queue, offset: int) -> Pending:
        """A blocking pull whose answer is collected later."""
        return self.driver.begin(
            "pull.pull", consumer=self.name, queue=queue.wire(), offset=offset, max=32, expression="*",
            block=True,
        )  # fmt: skip

    def drain(
        self,
        queues: Iterable[Queue],
        expression: str = "*",
        offsets: dict[Queue, int] | None = None,
    ) -> tuple[list[Received], int]:
        """Everything in these queues, and how many pulls matched nothing."""
        offsets = offsets or {}
        raw = self.driver.call(
            "pull.drain", 180, consumer=self.name, expression=expression,
            queues=[{**q.wire(), "offset": offsets.get(q, 0)} for q in queues],
        )  # fmt: skip
        return [_received(m) for m in raw["messages"]], raw["unmatched"]

    def commit(self, queue: Queue, offset: int) -> None:
        """Write the group's offset."""
        self.driver.call("pull.commit", consumer=self.name, queue=queue.wire(), offset=offset)

    def committed(self, queue: Queue) -> int:
        """The group's offset as the broker has it."""
        return self.driver.call("pull.committed", consumer=self.name, queue=queue.wire())


@attrs.define
class Lite(_Handle):
    """Apache: DefaultLitePullConsumer."""

    def poll(self, timeout_s: float = 3.0) -> list[Received]:
        """What is there, or comes within the time."""
        raw = self.driver.call("lite.poll", consumer=self.name, timeoutMs=int(timeout_s * 1000))
        return [_received(m) for m in raw]

    def poll_until(self, count: int, timeout_s: float = 40.0) -> list[Received]:
        """Poll until so many have come."""
        got: list[Received] = []

        def enough() -> bool:
            got.extend(self.poll(0.5))
            return len(got) >= count

        wait_for(enough, f"{count} messages by lite pull", timeout_s=timeout_s)
        return got

    def queues(self, topic: str) -> list[Queue]:
        """Queues that can be read."""
        return [_queue(q) for q in self.driver.call("lite.queues", consumer=self.name, topic=topic)]

    def assign(self, queues: Iterable[Queue]) -> None:
        """Choose queues by hand."""
        self.driver.call("lite.assign", consumer=self.name, queues=[q.wire() for q in queues])

    def seek(self, queue: Queue, to: str | int) -> None:
        """``begin``, ``end`` or an offset."""
        self.driver.call("lite.seek", consumer=self.name, queue=queue.wire(), to=str(to))

    def commit(self) -> None:
        """Commit what was polled."""
        self.driver.call("lite.commit", consumer=self.name)

    def committed(self, queue: Queue) -> int:
        """The group's offset as the broker has it."""
        return self.driver.call("lite.committed", consumer=self.name, queue=queue.wire())


@attrs.frozen
class ConsumeStats:
    """Apache: ConsumeStats. ``queues`` hold brokerOffset, consumerOffset and pullOffset."""

    queues: list[dict[str, Any]]
    lag: int
    in_flight: int

    @property
    def pull_lag(self) -> int:
        """Not even pulled yet."""
        return sum(q["brokerOffset"] - q["pullOffset"] for q in self.queues)


@attrs.define
class Admin(_Handle):
    """Apache: DefaultMQAdminExt."""

    def _call(self, op: str, **arguments: Any) -> Any:
        return self.driver.call(f"admin.{op}", admin=self.name, **arguments)

    def masters(self) -> dict[str, str]:
        """Broker name to address."""
        return self._call("masters")

    def topic(
        self, topic: str, queues: int = 8, attributes: dict[str, str] | None = None,
        brokers: list[str] | None = None, perm: int = 6,
    ) -> None:  # fmt: skip
        """Create on all masters (or those named) and wait until it is ready."""
        self._call(
            "topic", topic=topic, queues=queues, attributes=attributes, brokers=brokers, perm=perm
        )

    def group(self, group: str) -> None:
        """Create on all masters."""
        self._call("group", group=group)

    def route(self, topic: str) -> dict[str, Any]:
        """``brokers`` and ``queues`` of a topic."""
        return self._call("route", topic=topic)

    def stats(self, topic: str) -> list[dict[str, Any]]:
        """min and max of each queue."""
        return self._call("stats", topic=topic)

    def consume_stats(self, group: str, topic: str, address: str | None = None) -> ConsumeStats:
        """Of all brokers, or of one."""
        raw = self._call("consumeStats", group=group, topic=topic, address=address)
        return ConsumeStats(raw["queues"], raw["lag"], raw["inFlight"])

    def consumers(self, group: str) -> list[str]:
        """Client ids online."""
        return self._call("consumers", group=group)

    def view(self, topic: str, message_id: str | None) -> Received:
        """By either kind of message id."""
        return _received(self._call("view", topic=topic, messageId=message_id))

    def view_all(
        self, address: str, offsets: list[int], topic: str = ""
    ) -> list[Received | ClientError]:
        """By log offset at one broker."""
        raw = self.driver.call(
            "admin.viewAll", 180, admin=self.name, address=address, topic=topic, offsets=offsets
        )
        return [
            ClientError(r["error"]["type"], r["error"]["code"], r["error"]["message"])
            if "error" in r
            else _received(r)
            for r in raw
        ]

    def query(self, topic: str, key: str, count: int, begin: int, end: int) -> list[Received]:
        """By key, over all brokers."""
        return [
            _received(m)
            for m in self._call("query", topic=topic, key=key, max=count, begin=begin, end=end)
        ]

    def offsets(self, queue: Queue) -> tuple[int, int, int]:
        """min, max, earliest store time."""
        raw = self._call("offsets", queue=queue.wire())
        return raw["min"], raw["max"], raw["earliest"]

    def max(self, queue: Queue) -> int:
        """Next offset of a queue."""
        return self._call("max", queue=queue.wire())

    def search(self, queue: Queue, time_ms: int, upper: bool = False) -> int:
        """Offset by store time."""
        return self._call("search", queue=queue.wire(), time=time_ms, upper=upper)

    def reset_queue(
        self, address: str, topic: str, group: str, queue: int, offset: int
    ) -> dict[Queue, int]:
        """One queue at one broker."""
        raw = self._call(
            "reset", address=address, topic=topic, group=group, queue=queue, offset=offset
        )
        return {_queue(r): r["offset"] for r in raw}

    def reset_time(self, address: str, topic: str, group: str, time_ms: int) -> dict[Queue, int]:
        """All queues at one broker, by time; forced."""
        raw = self._call("reset", address=address, topic=topic, group=group, time=time_ms)
        return {_queue(r): r["offset"] for r in raw}

    def topics(self) -> list[str]:
        """All that the name server knows."""
        return self._call("topics")


@attrs.define
class Java:
    """Makes clients in the driver and shuts down what a test left open."""

    driver: Driver
    open: list[_Handle] = attrs.field(factory=list)

    def _start(self, handle: _Handle, **arguments: Any) -> Any:
        arguments.setdefault("instance", handle.name)
        answer = self.driver.call(f"{handle.kind}.start", name=handle.name, **arguments)
        self.open.append(handle)
        return answer

    def producer(self, ns: str, group: str | None = None, **settings: Any) -> Producer:
        """Settings: timeoutMs, retries, maxMessageSize, instance, vip."""
        handle = Producer(self.driver, unique("producer"), "producer")
        self._start(handle, ns=ns, group=group or unique("P"), **settings)
        return handle

    def push(
        self, ns: str, group: str, *subscriptions: tuple[str, str | None], start: str = "LAST_OFFSET",
        **settings: Any,
    ) -> Push:  # fmt: skip
        """Settings: broadcast, orderly, later, instance, unknown (queries of offsets fail)."""
        handle = Push(self.driver, unique("push"), "push")
        handle.client_id = self._start(
            handle,
            ns=ns,
            group=group,
            subscriptions=[list(s) for s in subscriptions],
            **{"from": start},
            **settings,
        )
        return handle

    def pull(self, ns: str, group: str, broker_id: int | None = None) -> Pull:
        """With ``broker_id``, all pulls go to the broker with this id."""
        handle = Pull(self.driver, unique("pull"), "pull")
        self._start(handle, ns=ns, group=group, brokerId=broker_id)
        return handle

    def lite(
        self, ns: str, group: str, *subscriptions: tuple[str, str], start: str = "LAST_OFFSET",
        auto_commit: bool = False, batch: int = 10,
    ) -> Lite:  # fmt: skip
        """Without a subscription: assign by hand."""
        handle = Lite(self.driver, unique("lite"), "lite")
        self._start(
            handle, ns=ns, group=group, subscriptions=[list(s) for s in subscriptions] or None,
            autoCommit=auto_commit, batch=batch, **{"from": start},
        )  # fmt: skip
        return handle

    def admin(self, ns: str) -> Admin:
        """One for a cluster is enough."""
        handle = Admin(self.driver, unique("admin"), "admin")
        self._start(handle, ns=ns)
        return handle

    def close(self) -> None:
        """Shut down all that is still open, last one first."""
        while self.open:
            self.open.pop().leave()
