"""Rates, sizes and latencies of the last minute, hour and day, per topic and group and for the whole broker.

In: the totals that hang on the queues (:mod:`trio_mq.store.traffic`), looked at every ten seconds. Out: :class:`Spans`
under Apache's names, and rates of the broker for its runtime information. Called by the processors of administrators
and by one periodic task of the broker. What is counted costs the hot path a few additions; samples are kept of what
moved within a day only, and go with their topic or group. Nothing is saved: all begins at 0 with the process. Rules:
Apache BrokerStatsManager, StatsItemSet, StatsItem, BrokerStats, StoreStatsService.

Unlike Apache's, a span ends now and not at the last look, so what was just sent is in it at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Final, NamedTuple, cast

import attrs
import trio

from trio_mq.clock import Clock
from trio_mq.store.queuetable import QueueTable
from trio_mq.store.traffic import Gets, Traffic

SAMPLE_S: Final = 10.0
"""Time between two looks at the totals."""

SPANS: Final[Mapping[str, tuple[int, int]]] = {"minute": (1, 7), "hour": (60, 7), "day": (360, 25)}
"""Looks between two samples of a span, and most samples kept of it; as with Apache."""

RATES_KEPT: Final = 61
"""Samples of the broker's totals: the longest rate is over ten minutes."""

YIELD_EVERY: Final = 500
"""Counters that one look samples before others may run."""

_TRAFFIC: Final = ("messages", "bytes", "timed", "timed_ms")
_GETS: Final = ("messages", "bytes", "answers", "sent_back", "timed", "timed_ms")

#: Which total of its counter a name of Apache's is about, and by which one it is divided for the average.
_TOPIC_NAMES: Final = {
    "TOPIC_PUT_NUMS": ("messages", "messages"),
    "TOPIC_PUT_SIZE": ("bytes", "messages"),
    "TOPIC_PUT_LATENCY": ("timed_ms", "timed"),
}
_GROUP_NAMES: Final = {
    "GROUP_GET_NUMS": ("messages", "answers"),
    "GROUP_GET_SIZE": ("bytes", "answers"),
    "GROUP_GET_LATENCY": ("timed_ms", "timed"),
    "SNDBCK_PUT_NUMS": ("sent_back", "sent_back"),
}
_BROKER_NAMES: Final = {
    "BROKER_PUT_NUMS": ("put", "put"),
    "BROKER_GET_NUMS": ("got", "got"),
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": ("users_put", "users_put"),
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": ("users_got", "users_got"),
}
NAMES: Final = (*_TOPIC_NAMES, *_GROUP_NAMES, *_BROKER_NAMES)


@attrs.frozen
class Snapshot:
    """What happened in a span: sum, rate per second, and average per occasion."""

    sum: int = 0
    tps: float = 0.0
    average: float = 0.0


@attrs.frozen
class Spans:
    """One statistic over all spans."""

    minute: Snapshot
    hour: Snapshot
    day: Snapshot


@attrs.define(eq=False)
class Totals:
    """What the whole broker put and gave out since its start, with and without its own topics; `found` counts
    answers with messages, `missed` those without.
    """

    put: int = 0
    put_bytes: int = 0
    users_put: int = 0
    got: int = 0
    users_got: int = 0
    found: int = 0
    missed: int = 0


_TOTALS: Final = tuple(field.name for field in attrs.fields(Totals))
_Values = tuple[float, ...]
_Counter = Traffic | Gets | Totals
_FIELDS: Final[Mapping[type[_Counter], tuple[str, ...]]] = {
    Traffic: _TRAFFIC,
    Gets: _GETS,
    Totals: _TOTALS,
}
_READ: Final = {kind: attrgetter(*fields) for kind, fields in _FIELDS.items()}


class _Sample(NamedTuple):
    at_s: float
    values: _Values


class _Series:
    """Samples of one counter in each span."""

    def __init__(self, counter: _Counter, now_s: float) -> None:
        self._counter = counter
        self._fields = _FIELDS[type(counter)]
        nothing = (0,) * len(self._fields)
        #: What the totals of the broker have of the counter already.
        self.added: _Values = nothing
        # One interval is taken as gone already, as with Apache: a rate over no time is none.
        self._spans = {
            name: deque([_Sample(now_s - looks * SAMPLE_S, nothing)], maxlen=kept)
            for name, (looks, kept) in SPANS.items()
        }

    @property
    def values(self) -> _Values:
        """The counter as it is now."""
        return cast("_Values", _READ[type(self._counter)](self._counter))

    def sample(self, look: int, now_s: float) -> bool:
        """Add to the spans that are due at look number `look`; whether the counter moved within the last day."""
        values = self.values
        for name, (looks, _) in SPANS.items():
            if look % looks == 0:
                self._spans[name].append(_Sample(now_s, values))
        return self._spans["day"][0].values != values

    def spans(self, what: str, per: str, now_s: float) -> Spans:
        """What happened from the first sample of each span until now."""
        at, per_at, values = self._fields.index(what), self._fields.index(per), self.values

        def snapshot(name: str) -> Snapshot:
            since = self._spans[name][0]
            total, times = values[at] - since.values[at], values[per_at] - since.values[per_at]
            rate = total / max(SAMPLE_S, now_s - since.at_s)
            return Snapshot(int(total), rate, total / times if times > 0 else 0.0)

        return Spans(snapshot("minute"), snapshot("hour"), snapshot("day"))


class BrokerStats:
    """Looks at the totals of `queues`. `is_system` tells the broker's own topics, `cluster` is the key of its own
    items, `missed` the number of pulls that found nothing.
    """

    def __init__(
        self,
        queues: QueueTable,
        clock: Clock,
        cluster: str,
        is_system: Callable[[str], bool],
        missed: Callable[[], int],
    ) -> None:
        self._queues = queues
        self._clock = clock
        self._cluster = cluster
        self._is_system = is_system
        self._missed = missed
        self._look = 0
        for traffic in queues.traffic.values():
            traffic.messages = traffic.bytes = 0  # what recovery read again was put long ago
        now_s = trio.current_time()
        self._series: dict[Traffic | Gets, _Series] = {}
        self._totals = Totals()
        self._broker = _Series(self._totals, now_s)
        self._recent = deque([_Sample(now_s, self._broker.values)], maxlen=RATES_KEPT)
        self._day = self._today()
        #: Totals at the beginning of yesterday and of today, by the clock of the machine.
        self.yesterday, self.today = Totals(), Totals()

    # -- the periodic look

    async def sample(self) -> None:
        """One look at everything; to be called every :data:`SAMPLE_S`."""
        self._look += 1
        totals, now_s = self.totals(), trio.current_time()
        self._broker.sample(self._look, now_s)
        self._recent.append(_Sample(now_s, self._broker.values))
        today = self._today()
        if today != self._day:
            self._day = today
            self.yesterday, self.today = self.today, attrs.evolve(totals)
        live = self._live()
        for number, (counter, series) in enumerate(list(self._series.items())):
            if number % YIELD_EVERY == 0:
                await trio.lowlevel.checkpoint()
            if counter not in live:
                self._series.pop(counter, None)
            elif not series.sample(self._look, now_s):
                self._rest(counter)

    def _today(self) -> tuple[int, int]:
        now = time.localtime(self._clock.now_ms() / 1000)
        return now.tm_year, now.tm_yday

    def _live(self) -> set[Traffic | Gets]:
        tables = self._queues.traffic.values()
        return {*tables, *(gets for traffic in tables for gets in traffic.gets.values())}

    def _rest(self, counter: Traffic | Gets) -> None:
        """Keep no samples of what stood still for a day; it begins anew when it moves."""
        del self._series[counter]
        for field in _FIELDS[type(counter)]:
            setattr(counter, field, 0)

    def forget_group(self, group: str) -> None:
        """A group was deleted."""
        for traffic in self._queues.traffic.values():
            gets = traffic.gets.pop(group, None)
            if gets is not None:
                self._series.pop(gets, None)

    # -- looking up

    def totals(self) -> Totals:
        """The totals of the broker, with what has moved since the last look. Topics that are gone still count."""
        now_s, totals = trio.current_time(), self._totals
        totals.missed = self._missed()
        for topic, traffic in self._queues.traffic.items():
            if not traffic.messages and not traffic.gets:
                continue
            put, put_bytes, *_ = self._moved(traffic, now_s)
            got = found = 0.0
            for gets in traffic.gets.values():
                messages, _, answers, *_ = self._moved(gets, now_s)
                got, found = got + messages, found + answers
            totals.put += int(put)
            totals.put_bytes += int(put_bytes)
            totals.got += int(got)
            totals.found += int(found)
            if (put or got) and not self._is_system(topic):
                totals.users_put += int(put)
                totals.users_got += int(got)
        return totals

    def _moved(self, counter: Traffic | Gets, now_s: float) -> _Values:
        """What the totals do not have of a counter yet, and have from now on."""
        series = self._of(counter, now_s)
        values, added = series.values, series.added
        if values == added:
            return (0,) * len(values)
        series.added = values
        return tuple(new - old for new, old in zip(values, added, strict=True))

    def _of(self, counter: Traffic | Gets, now_s: float) -> _Series:
        series = self._series.get(counter)
        if series is None:
            series = self._series[counter] = _Series(counter, now_s)
        return series

    def spans(self, name: str, key: str) -> Spans | None:
        """A statistic by Apache's `name`: of a topic, of `topic@group`, or of the cluster's name for the broker.

        None for what is not there, or did not move for a day.
        """
        now_s = trio.current_time()
        if name in _BROKER_NAMES:
            if key != self._cluster:
                return None
            self.totals()
            return self._broker.spans(*_BROKER_NAMES[name], now_s)
        topic, _, group = key.partition("@")
        traffic = self._queues.traffic.get(topic)
        counter: Traffic | Gets | None = traffic
        fields = None if group else _TOPIC_NAMES.get(name)
        if group and traffic is not None:
            fields, counter = _GROUP_NAMES.get(name), traffic.gets.get(group)
        if fields is None or counter is None or not any(_READ[type(counter)](counter)):
            return None
        return self._of(counter, now_s).spans(*fields, now_s)

    def put_tps(self, topic: str) -> float:
        """Messages put into a topic, per second of the last minute."""
        found = self.spans("TOPIC_PUT_NUMS", topic)
        return 0.0 if found is None else found.minute.tps

    def get_tps(self, group: str, topic: str) -> float:
        """Messages that a group got of a topic, per second of the last minute."""
        found = self.spans("GROUP_GET_NUMS", f"{topic}@{group}")
        return 0.0 if found is None else found.minute.tps

    def rate(self, what: str, span_s: float) -> float:
        """Average per second of a field of :class:`Totals` since the newest look that is `span_s` ago, or the first."""
        now_s, at = trio.current_time(), _TOTALS.index(what)
        older = [sample for sample in self._recent if now_s - sample.at_s >= span_s]
        since = older[-1] if older else self._recent[0]
        count = getattr(self.totals(), what) - since.values[at]
        return float(count) / max(1.0, now_s - since.at_s)
