"""How many messages of each topic wait for a timer: the table behind ``config/timermetrics``.

In: messages that come and go, from :mod:`trio_mq.broker.timers`. Out: counts by topic, the file, and the answer to
code 61. No IO; the clock only dates changes. After a crash the counts may be off, as the peers' are, so nothing
depends on them. Format: ``docs/reference/state-files.md``; source: Apache TimerMetrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from trio_mq.broker.statejson import json_object
from trio_mq.broker.tables import StateKind
from trio_mq.clock import Clock
from trio_mq.errors import BodyError
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import DataVersion

METRICS: Final = StateKind(
    "timermetrics",
    "how many messages of each topic wait for a timer",
    "the counts begin at 0; no message is lost",
    expendable=True,
)


class TimerMetrics:
    """Counts by topic."""

    def __init__(self, clock: Clock) -> None:
        self._version = DataVersion()
        #: Changes that the version does not count yet.
        self._changes = 0
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._changed_ms: dict[str, int] = {}
        self._revision = 0

    @property
    def counts(self) -> Mapping[str, int]:
        """Messages that wait, by topic."""
        return self._counts

    @property
    def version(self) -> DataVersion:
        """The version, which grows with each change."""
        if self._changes:
            counter = self._version.counter + self._changes
            self._version = attrs.evolve(
                self._version, counter=counter, timestamp=self._clock.now_ms()
            )
            self._changes = 0
        return self._version

    def add(self, topic: str, count: int) -> None:
        """Messages came, or went when `count` is negative."""
        self._counts[topic] = self._counts.get(topic, 0) + count
        self._changed_ms[topic] = self._clock.now_ms()
        self._changes += 1
        self._revision += 1

    def forget(self, topic: str) -> None:
        """A topic was deleted (Apache: removeTimingCount)."""
        if self._counts.pop(topic, None) is not None:
            del self._changed_ms[topic]
            self._revision += 1

    def count_anew(self) -> None:
        """All messages that wait are taken, and counted, again."""
        self._counts.clear()
        self._changed_ms.clear()
        self._changes += 1
        self._revision += 1

    # -- the master's counts, and the file timermetrics

    def take_over(self, value: Any) -> bool:
        """Have what the master counts, given its answer; whether that is something new.

        :class:`BodyError`, and no change, if it is no such table.
        """
        before = self.version, self._counts
        self.read_json(value)
        if (self.version, self._counts) == before:
            return False
        self._revision += 1
        return True

    @property
    def revision(self) -> int:
        """Grows with each change that has to be saved."""
        return self._revision

    def read_json(self, value: Any) -> None:
        """Take the counts of a file."""
        if not isinstance(value, dict):
            raise BodyError("timermetrics is not an object")
        version = bodies.structure(DataVersion, value.get("dataVersion") or {})
        counts: dict[str, int] = {}
        changed_ms: dict[str, int] = {}
        for topic, item in json_object(value.get("timingCount"), "timingCount").items():
            fields = json_object(item, f"timermetrics of {topic}")
            count, at_ms = fields.get("count", 0), fields.get("timeStamp", 0)
            if type(count) is not int or type(at_ms) is not int:
                raise BodyError(f"timermetrics: topic {topic!r} has count {count!r} at {at_ms!r}")
            counts[topic], changed_ms[topic] = count, at_ms
        self._counts, self._changed_ms, self._version = counts, changed_ms, version
        self._changes = 0

    def to_json(self) -> Any:
        """The content of the file, and of the answer to peers."""
        return {
            "dataVersion": bodies.unstructure(self.version),
            "timingCount": {
                topic: {"count": count, "timeStamp": self._changed_ms[topic]}
                for topic, count in self._counts.items()
            },
        }
