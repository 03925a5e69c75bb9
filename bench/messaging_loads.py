"""Loads of every kind of messaging, run against a broker that is there or that is killed meanwhile.

In: the address of a name server, a kind, a number of messages. Out: :class:`Outcome`, the counts and rates of a load.
The work is done by ``bench/java/Messaging.java`` (Apache's own client), driven through :class:`Loads`.
``bench.messaging`` and ``tests/interop/test_kill_messaging.py`` call this.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import attrs

from tests.interop import peers
from tests.interop.drivers import Driver
from tests.interop.polling import wait_for

HERE = Path(__file__).parent
THREADS = 64
INVISIBLE_MS = 10_000

# Kind: its name in the table.
KINDS = {
    "delay": "delay level 1 (1 s)",
    "timer": "timer of 1 s",
    "timers-at-once": "timers, all due at once",
    "retry": "retry: fails once, comes again",
    "transaction": "transaction, all committed",
    "rollback": "transaction, a third rolled back",
    "ordered": "ordered, queue by key",
    "pop": "pop and acknowledge",
    "sql": "SQL filter that passes 45 %",
    "request": "request and reply",
}
# What both brokers are given beside their defaults.
SETTINGS = {"enablePropertyFilter": "true"}
# A transaction whose end got lost in a kill is asked for after seconds, not after half a minute.
KILL_SETTINGS = {**SETTINGS, "transactionTimeOut": "3000", "transactionCheckInterval": "2000"}
# A client looks every second for queues that it has not got yet, such as those of a new retry topic.
SHARE_OFTEN = "-Drocketmq.client.rebalance.waitInterval=1000"
# Where a message may come again on its own some time after a kill: seconds to wait for that when all have come.
SETTLE_S = {"pop": 15, "transaction": 8, "rollback": 8}


@attrs.frozen(kw_only=True)
class Outcome:
    """What became of the messages of one load.

    ``twice_sent`` counts copies of messages whose sender got no answer and sent again, ``twice`` all other copies;
    ``refused_twice`` are the same among first deliveries that were to fail. ``unwanted`` must not have come: rolled
    back, or outside the filter. Rates are messages a second: ``rate`` from the first send (plus the delay of all, or
    the moment for which all were meant) to the last receipt.
    """

    messages: int
    expected: int
    acknowledged: int
    failed_sends: int
    why: str
    received: int
    lost: int
    twice: int
    twice_sent: int
    refused_twice: int
    unwanted: int
    out_of_order: int
    send_rate: float
    rate: float
    seconds: float
    late_p50_ms: int
    late_max_ms: int

    def faults(self, kind: str, *, killed: bool) -> list[str]:
        """What a correct broker never does; copies are allowed only around a kill."""
        wrong = {
            "not acknowledged": self.messages - self.acknowledged,
            "lost": self.lost,
            "not received": self.expected - self.received,
            "not to come": self.unwanted,
        }
        if kind == "ordered":
            wrong["out of order"] = self.out_of_order
        if not killed:
            wrong["twice"] = self.twice + self.twice_sent + self.refused_twice
        return [f"{count} {what}" for what, count in wrong.items() if count]


@attrs.define
class Load:
    """One load that runs."""

    driver: Driver
    name: str
    kind: str

    def go(self) -> None:
        """The senders start."""
        self.driver.call("go", run=self.name)

    def progress(self) -> tuple[int, int]:
        """Messages acknowledged and received so far."""
        seen = self.driver.call("progress", run=self.name)
        return seen["acknowledged"], seen["received"]

    def wait(self, *, patience_s: int) -> None:
        """Until all have come, or nothing more comes."""
        self.driver.call("wait", timeout_s=1200, run=self.name, patience=patience_s, settle=0)

    def outcome(self, *, patience_s: int = 60, settle_s: int = 1) -> Outcome:
        """The same, and what comes in the time after that; its clients go."""
        found = self.driver.call(
            "wait", timeout_s=1200, run=self.name, patience=patience_s, settle=settle_s
        )
        self.driver.call("end", timeout_s=120, run=self.name)
        return Outcome(**found)


@attrs.define
class Loads:
    """The one Java process that makes all loads."""

    driver: Driver
    _numbers: itertools.count[int] = attrs.field(factory=itertools.count)

    def start(
        self, nameserver: str, kind: str, messages: int, *, threads: int = THREADS, pace: int = 0
    ) -> Load:
        """Topic, group and clients of one load, ready to go; ``pace`` in messages a second, 0 for no limit."""
        name = f"{kind}-{os.getpid()}-{next(self._numbers)}"
        self.driver.call(
            "start", timeout_s=90, run=name, kind=kind, nameserver=nameserver, topic=f"T-{name}", group=f"G-{name}",
            messages=messages, threads=threads, pace=pace, invisible_ms=INVISIBLE_MS,
        )  # fmt: skip
        return Load(self.driver, name, kind)


def loads(folder: Path, jvm: tuple[str, ...]) -> Loads:
    """Start the Java process."""
    command = peers.java(
        folder / "client", peers.compiled(HERE / "java"), "Messaging", jvm=(*jvm, SHARE_OFTEN)
    )
    return Loads(Driver(command, folder / "messaging.log"))


def wait_until_sent(running: list[Load], share: float, messages: int) -> None:
    """Until each of the loads has this share of its messages acknowledged."""
    for load in running:
        wait_for(
            lambda it=load: it.progress()[0] >= share * messages,
            f"{load.kind} has sent {share:.0%}", timeout_s=300, every_s=0.02,
        )  # fmt: skip


def settle_s(kind: str) -> int:
    """How long copies may still come after a kill."""
    return SETTLE_S.get(kind, 3)


def row(name: str, cells: list[Any], widths: list[int]) -> str:
    """A line of a table."""
    return f"{name:<34}" + "".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))
