"""A consumer that fails messages, in Java and in Go: the typed face of ``java/Failing.java`` and ``go/failing.go``.

In: how often a message is to fail. Out: every try as a value. The clients are shut down with their drivers' others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs

from .conftest import Cluster
from .go_client import Go
from .java_client import Java, Push, unique
from .polling import wait_for

ALWAYS = -1


@attrs.frozen
class Try:
    """One message as the listener got it; ``at`` is when, ``times`` the reconsumeTimes, all times in ms."""

    body: str
    topic: str
    msgId: str
    times: int
    born: int
    stored: int
    at: int
    failed: bool
    properties: dict[str, str]


@attrs.define
class Failing(Push):
    """A push consumer whose listener fails."""

    def tries(self) -> list[Try]:
        """All so far, in their order."""
        return [Try(**t) for t in self.driver.call("failing.tries", name=self.name)]

    def wait_for(
        self, enough: Callable[[list[Try]], bool], what: str, timeout_s: float
    ) -> list[Try]:
        """Until the tries are enough; returns them."""
        found: list[Try] = []

        def look() -> bool:
            found[:] = self.tries()
            return enough(found)

        wait_for(look, what, timeout_s=timeout_s)
        return found

    def wait_done(self, count: int, timeout_s: float) -> list[Try]:
        """Until so many have not failed any more."""
        return self.wait_for(
            lambda tries: sum(not t.failed for t in tries) >= count,
            f"{count} messages that do not fail any more",
            timeout_s,
        )


def failing(
    clients: Java | Go,
    cluster: Cluster,
    topic: str,
    failures: int,
    group: str | None = None,
    **settings: Any,
) -> Failing:
    """Start one. Settings: delayLevel, maxReconsumeTimes, orderly, broadcast, workMs, expression; Java only: suspendMs,
    and `assigned` for queues that the broker assigns.
    """
    handle = Failing(clients.driver, unique("failing"), "failing")
    group = group or cluster.group()
    if failures and not settings.get("broadcast"):
        # A client that starts before its retry topic has a route finds it with a later sharing out, 20 to 40 s on.
        cluster.admin.topic(f"%RETRY%{group}", 1)
    settings = {"expression": "*"} | settings
    arguments = {"ns": cluster.ns, "group": group, "topic": topic} | settings
    clients._start(handle, failures=failures, **arguments)
    return handle


def by_body(tries: list[Try]) -> dict[str, list[int]]:
    """The reconsumeTimes of each message, in the order of its tries."""
    found: dict[str, list[int]] = {}
    for one in tries:
        found.setdefault(one.body, []).append(one.times)
    return found


def outcomes(tries: list[Try]) -> Counter[bool]:
    """How many tries failed, and how many did not."""
    return Counter(one.failed for one in tries)
