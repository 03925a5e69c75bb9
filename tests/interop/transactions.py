"""Transactional producers, in Java and in Go: the typed face of ``java/Transactions.java`` and ``go/transactions.go``.

In: messages with a plan: the local result, then the answers to checks, the last of which is repeated. Out: results of
sends, and the checks that a producer got. The clients are shut down with their drivers' others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from .drivers import Driver, Pending
from .go_client import Go, GoSent
from .java_client import Java, Sent, _Handle, _sent, unique
from .polling import wait_for

COMMIT, ROLL_BACK, UNKNOWN = "commit", "rollback", "unknown"


def planned(topic: str, body: str, *plan: str, local_ms: int = 0, **props: str) -> dict[str, Any]:
    """A message whose producer decides as planned; its local work takes ``local_ms``."""
    more = {"localMs": str(local_ms)} if local_ms else {}
    return {"topic": topic, "body": body, "props": {"plan": ",".join(plan), **more, **props}}


@attrs.frozen
class Check:
    """A check as the listener got it, and what it answered; ``at`` is in ms (Java only)."""

    body: str
    topic: str
    transactionId: str
    state: str
    queueOffset: int
    logOffset: int
    queue: int = -1
    at: int = 0
    properties: dict[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Load:
    """What came of many transactions: body to plan of those that were taken, and errors by their kind."""

    taken: dict[str, str]
    errors: dict[str, int]

    def bodies(self, plan: str) -> set[str]:
        """Those with a plan."""
        return {body for body, found in self.taken.items() if found == plan}


@attrs.define
class Transactional(_Handle):
    """Apache: TransactionMQProducer."""

    def send(self, *messages: dict[str, Any]) -> list[Sent]:
        """One after the other; the local work is part of it."""
        return self.begin(*messages).results()

    def begin(self, *messages: dict[str, Any]) -> Sending:
        """The same in the background."""
        pending = self.driver.begin("transactions.send", name=self.name, messages=list(messages))
        return Sending(pending)

    def checks(self) -> list[Check]:
        """All so far."""
        return [Check(**c) for c in self.driver.call("transactions.checks", name=self.name)]

    def wait_checks(self, count: int, timeout_s: float = 30.0) -> list[Check]:
        """Until there are so many."""
        wait_for(lambda: len(self.checks()) >= count, f"{count} checks", timeout_s=timeout_s)
        return self.checks()

    def load(self, topic: str, count: int, plans: Sequence[str], threads: int = 4) -> Loading:
        """Many transactions from some threads, with the plans in turn, in the background."""
        pending = self.driver.begin(
            "transactions.load",
            name=self.name,
            topic=topic,
            count=count,
            plans=list(plans),
            threads=threads,
            prefix="load-",
        )
        return Loading(pending)


@attrs.frozen
class Sending:
    """Sends under way."""

    pending: Pending

    def results(self, timeout_s: float = 60.0) -> list[Sent]:
        """When they have ended."""
        return [_sent(r) for r in self.pending.result(timeout_s)]


@attrs.frozen
class Loading:
    """A load under way."""

    pending: Pending

    def result(self, timeout_s: float = 240.0) -> Load:
        """When it has ended."""
        return Load(**self.pending.result(timeout_s))


def transactional(java: Java, ns: str, group: str | None = None, **settings: Any) -> Transactional:
    """Start one in Java. Settings: timeoutMs."""
    handle = Transactional(java.driver, unique("transactional"), "transactions")
    java._start(handle, ns=ns, group=group or unique("TP"), **settings)
    return handle


@attrs.define
class GoTransactional:
    """Go: rocketmq.TransactionProducer."""

    driver: Driver
    name: str
    kind: str = "transactions"

    def send(self, *messages: dict[str, Any]) -> list[GoSent]:
        """One after the other."""
        raw = self.driver.call("transactions.send", name=self.name, messages=list(messages))
        return [GoSent(**r) for r in raw]

    def checks(self) -> list[Check]:
        """All so far."""
        return [Check(**c) for c in self.driver.call("transactions.checks", name=self.name)]


def go_transactional(go: Go, ns: str) -> GoTransactional:
    """Start one in Go, in a group of its own."""
    handle = GoTransactional(go.driver, unique("go_transactional"))
    go._start(handle, ns=ns, group=unique("GTP"))
    return handle
